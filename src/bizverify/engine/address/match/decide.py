"""Which of the candidates is meant: the one, or none. Nothing here ever picks the first of several.

An address holds witnesses besides its road and number: the 읍·면·동 before it, the 동 in brackets, the postal code, the
name of the building. Each one speaks for a candidate, against it, or (not given, or not understood) not at all.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import polars as pl

from bizverify.engine.address.match.index import ROW, text_key
from bizverify.engine.address.match.lookups import Lookups
from bizverify.engine.address.regions import postal_fits

_WITNESSES: Final = (
    *("main", "zipcode_given", "emd", "lot_dong", "hint_dong", "building"),
    *("sido", "sido_typed", "sigungu", "region", "region_conflict", "needs_witness", "open"),
)


class Trust(Enum):
    """How much a reading needs the witnesses."""

    GIVEN = "region, name and number are all there as written"
    OPEN = "the region is not given: a witness from elsewhere refutes"
    WEAK = (
        "a name was changed: the postal code, if there is one, must agree, and no other witness speak against it alone"
    )
    CROSS = "the region that is written is overruled: witnesses must bear that out"


def judged(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (``row``, ``place``) of the rows that are decided, and ``row`` of those that are ambiguous.

    Rows whose only candidate is refuted are in neither: they may be read in another way.
    """
    candidates = _different(lookups, candidates)
    if trust is Trust.GIVEN:
        plain, candidates = _beyond_doubt(lookups, rows, candidates)
        decided, ambiguous = _decided(lookups, rows, candidates, trust)
        return pl.concat([plain, decided]), ambiguous
    return _decided(lookups, rows, candidates, trust)


def _different(lookups: Lookups, candidates: pl.DataFrame) -> pl.DataFrame:
    """Return candidates (``row``, ``place``) once each: entries of one road, number, dong and code are one address."""
    place = candidates["place"]
    candidates = candidates.select(
        ROW,
        "place",
        lookups.tables.building_key.gather(place).alias("key"),
        lookups.tables.building_dong.gather(place).alias("dong"),
        lookups.tables.building_zip.gather(place).alias("zip"),
    )
    return candidates.group_by(ROW, "key", "dong", "zip").agg(pl.col("place").min()).select(ROW, "place")


def outvoted(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame, rivals: pl.DataFrame) -> pl.DataFrame:
    """Return ``row`` where more witnesses speak for a rival (``row``, ``place``) than for the building decided on.

    Where district and province contradict each other, the province speaks for the rivals that lie in it.
    """
    if rivals.is_empty():
        return rows.select(ROW).clear()
    mine = hear_witnesses(lookups, rows, decided).select(ROW, mine="place", votes="pro")
    theirs = hear_witnesses(lookups, rows, rivals.select(ROW, "place").unique())
    of_rival = _province(lookups, theirs)
    typed = (pl.col("sido_typed") == of_rival) | (pl.col("sido") == of_rival)
    in_province = (pl.col("region_conflict") & typed).fill_null(False).cast(pl.UInt32)
    theirs = theirs.with_columns(pro=pl.col("pro") + in_province).join(mine, on=ROW)
    return theirs.filter((pl.col("place") != pl.col("mine")) & (pl.col("pro") > pl.col("votes"))).select(ROW).unique()


def _beyond_doubt(lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Set apart the only candidates of rows whose postal code does not speak against them, and the others."""
    given = rows.select(ROW, "region_conflict", "main", given=pl.col("zipcode_given").cast(pl.UInt32, strict=False))
    pairs = candidates.join(given, on=ROW, how="left", maintain_order="left")
    pairs = pairs.with_columns(lookups.tables.building_zip.gather(pairs["place"]).alias("zip"))
    agrees = pl.col("given").is_null() | (pl.col("given") == pl.col("zip"))
    plain = (pl.len().over(ROW) == 1) & agrees & ~pl.col("region_conflict").fill_null(False)
    pairs = pairs.with_columns(plain=plain & ~_on_twin_road(lookups, pairs))
    return pairs.filter("plain").select(ROW, "place"), pairs.filter(~pl.col("plain")).select(ROW, "place")


def _decided(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust
) -> tuple[pl.DataFrame, pl.DataFrame]:
    if candidates.is_empty():
        return candidates, candidates.select(ROW)
    said = hear_witnesses(lookups, rows, candidates)
    best = said.filter(pl.col("pro") == pl.col("pro").max().over(ROW)).with_columns(rivals=pl.len().over(ROW))
    single = best.filter(pl.col("rivals") == 1)
    several = best.filter(pl.col("rivals") > 1)
    if trust is Trust.CROSS:
        return single.filter(_bears_out()).select(ROW, "place"), several.select(ROW).clear()
    of_twins = _on_twin_road(lookups, single) & (pl.col("pro") == 0)
    ambiguous = [several.select(ROW), single.filter(_torn(trust) | of_twins).select(ROW)]
    accepted = single.filter(~_refuted(trust) & ~of_twins)
    return accepted.select(ROW, "place"), pl.concat(ambiguous).unique()


def _on_twin_road(lookups: Lookups, pairs: pl.DataFrame) -> pl.Expr:
    """Whether a road is written that the district has twice: the other one may have that number, too, by now."""
    return pl.col("main").is_not_null() & pl.lit(lookups.on_twin_road.gather(pairs["place"]))


def hear_witnesses(lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Add what each witness says: ``*_pro`` (null if it says nothing), ``*_contra``, and how many are for (``pro``)."""
    open_region = pl.col("region").is_null() | pl.col("narrowed") | pl.col("region_conflict").fill_null(False)
    pairs = lookups.described(candidates.join(rows.with_columns(open=open_region).select(ROW, *_WITNESSES), on=ROW))
    given = pl.col("zipcode_given").cast(pl.UInt32, strict=False)
    pairs = pairs.with_columns(zip_given=given).with_columns(
        postal_pro=pl.col("zip_given") == pl.col("zip"),
        postal_elsewhere=_postal_elsewhere(lookups, pairs.with_columns(zip_given=given)),
        building_pro=lookups.bears_name(pairs),
        same_province=(pl.col("sido") == _province(lookups, pairs)).fill_null(False),
        same_city=_same_city(lookups, pairs),
        in_written_ward=_in_written_ward(lookups, pairs),
        **_dong_says(lookups, pairs, "emd", "emd"),
        **_dong_says(lookups, pairs, "hint_dong", "dong"),
    )
    return pairs.with_columns(
        pro=pl.sum_horizontal(pl.col("postal_pro", "emd_pro", "dong_pro", "building_pro").fill_null(False))
    )


def _dong_says(lookups: Lookups, heard: pl.DataFrame, word: str, witness: str) -> dict[str, pl.Series]:
    """A name speaks against a dong where another dong of that region is called so (``_contra``), or one anywhere."""
    pro = lookups.named_so(heard, "dong", word)
    keys = heard.select(here=text_key("home", word).fill_null(0), anywhere=text_key(word).fill_null(0))
    here, anywhere = lookups.dongs_here.holds(keys["here"]), lookups.dong_words.holds(keys["anywhere"])
    return {
        f"{witness}_pro": pro,
        f"{witness}_contra": (~pro & here).fill_null(False),
        f"{witness}_elsewhere": (~pro & (here | anywhere)).fill_null(False),
    }


def _same_city(lookups: Lookups, heard: pl.DataFrame) -> pl.Expr:
    """Whether the ward that is written is one of the city in which the building lies, and the gazetteer has it.

    In a ward that the gazetteer lacks, what is written may exist just so.
    """
    wards = lookups.tables.regions["sigungu"]
    same = pl.col("sigungu").str.extract("^([^ ]+ )") == pl.lit(wards.gather(heard["home"]).str.extract("^([^ ]+ )"))
    known = pl.col("sigungu") == pl.lit(wards.gather(heard["region"]))
    return (same & known & (pl.col("sido") == pl.lit(_province(lookups, heard)))).fill_null(False)


def _in_written_ward(lookups: Lookups, heard: pl.DataFrame) -> pl.Series:
    """Whether the dong that is written is one of the region that is."""
    keys = heard.select(text_key("region", pl.coalesce("emd", "hint_dong")).fill_null(0)).to_series()
    return lookups.dongs_here.holds(keys)


def _province(lookups: Lookups, heard: pl.DataFrame) -> pl.Series:
    return lookups.tables.regions["sido"].gather(heard["home"])


def _postal_elsewhere(lookups: Lookups, heard: pl.DataFrame) -> pl.Series:
    """Whether the postal code is that of another region, by its buildings or else by its first digits."""
    regions = lookups.zip_regions.find(heard.with_row_index("_line"), pl.col("zip_given"), "of_zip", ("_line", "home"))
    lines = regions.group_by("_line").agg(elsewhere=(pl.col("of_zip") != pl.col("home")).all())
    home = heard["home"]
    known = heard.select(
        "zipcode_given",
        lookups.tables.regions["sido"].gather(home),
        lookups.tables.regions["sigungu"].gather(home),
        _line=pl.int_range(pl.len(), dtype=pl.UInt32),
    ).join(lines, on="_line", how="left", maintain_order="left")
    by_prefix = ~postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu"))
    return known.select(pl.coalesce("elsewhere", by_prefix).fill_null(False)).to_series()


def _refuted(trust: Trust) -> pl.Expr:
    unsupported = pl.col("pro") == 0
    contra = pl.col("emd_contra") | pl.col("dong_contra")
    elsewhere = pl.col("emd_elsewhere") | pl.col("dong_elsewhere")
    if trust is Trust.WEAK:
        other_postal = (~pl.col("postal_pro")).fill_null(False)
        other_emd = ~pl.col("emd_pro").fill_null(True) & pl.col("emd").ne_missing(pl.col("lot_dong"))
        return other_postal | (unsupported & (elsewhere | other_emd | pl.col("needs_witness")))
    by_ri_alone = (pl.col("emd") != pl.col("lot_dong")).fill_null(False)
    is_open = unsupported & (contra | pl.col("postal_elsewhere") | ((pl.col("open") | by_ri_alone) & elsewhere))
    other_town = by_ri_alone & pl.col("emd_contra") & ~pl.col("postal_pro").fill_null(False)
    is_open = is_open | other_town  # a 리 of that name in another 읍 or 면, whatever repeats the 리's name
    if trust is Trust.GIVEN:
        return _torn(trust) | (pl.col("region_conflict").fill_null(False) & is_open)
    return is_open


def _torn(trust: Trust) -> pl.Expr:
    """Two witnesses, of different kinds, speak against what is written in full."""
    if trust is not Trust.GIVEN:
        return pl.lit(False)
    other_postal = (~pl.col("postal_pro")).fill_null(False)
    return (pl.col("pro") == 0) & other_postal & (pl.col("emd_elsewhere") | pl.col("dong_elsewhere"))


def _bears_out() -> pl.Expr:
    """A region that is written and exists is not crossed but within its province, and where two witnesses agree.

    Borders of wards move: into another one of the city a postal code leads alone, or a dong that the one written lacks.
    The dong by which a lot was found says nothing more; the building's name does.
    """
    dong = pl.col("emd_pro").fill_null(False) | pl.col("dong_pro").fill_null(False)
    postal = pl.col("postal_pro").fill_null(False)
    by_word = (dong & pl.col("main").is_not_null()) | pl.col("building_pro").fill_null(False)
    by_dong = by_word & pl.col("postal_pro").is_null() & ~pl.col("in_written_ward")
    elsewhere = pl.col("emd_elsewhere") | pl.col("dong_elsewhere")
    within_city = pl.col("same_city") & (postal | by_dong) & ~elsewhere
    return within_city | (postal & (pl.col("region_conflict") | (dong & pl.col("same_province"))))
