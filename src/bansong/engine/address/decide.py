"""Choose the one candidate that postal code, dong and building's name support, or none; never the first of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final

import polars as pl

from bansong.engine.address.batches import ROW, NameDifference, TextIndex, compare_names, lacks_any, text_key
from bansong.engine.address.lookups import Lookups
from bansong.engine.address.regions import Region, regions

_WITNESSES: Final = (
    *("main", "zipcode_given", "emd", "lot_dong", "hint_dong", "building"),
    *("sido", "sido_typed", "sigungu", "region", "region_conflict", "needs_witness", "open"),
)


class Trust(Enum):
    """Need for witnesses of a reading."""

    GIVEN = "region, name and number are all there as written"
    OPEN = "the region is not given: a witness from elsewhere refutes"
    WEAK = "a name was changed: the postal code, if given, must agree, and no other witness alone speak against it"
    CROSS = "the region that is written is overruled: witnesses must confirm that"


def decide_candidates(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (``row``, ``place``) of decided rows, and ``row`` of ambiguous ones; other candidates are refuted."""
    candidates = drop_repeated(lookups, candidates)
    if trust is Trust.GIVEN:
        plain, candidates = _split_undoubted(lookups, rows, candidates)
        decided, ambiguous = _decide_by_witnesses(lookups, rows, candidates, trust)
        return pl.concat([plain, decided]), ambiguous
    return _decide_by_witnesses(lookups, rows, candidates, trust)


def drop_repeated(lookups: Lookups, candidates: pl.DataFrame) -> pl.DataFrame:
    """Return distinct candidates (``row``, ``place``): entries of one road, number, dong and code are one address."""
    if candidates[ROW].n_unique() == candidates.height:
        return candidates[[ROW, "place"]]
    place = candidates["place"]
    candidates = candidates.select(
        ROW,
        "place",
        lookups.tables.building_key[place].alias("key"),
        lookups.tables.building_dong[place].alias("dong"),
        lookups.tables.building_zip[place].alias("zip"),
    )
    return candidates.group_by(ROW, "key", "dong", "zip").agg(pl.col("place").min()).select(ROW, "place")


def find_outvoted(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return ``row`` where more witnesses support another (``row``, ``place``) than the chosen building."""
    # a province that contradicts the district supports the others in that province
    if others.is_empty():
        return rows.select(ROW).clear()
    mine = hear_witnesses(lookups, rows, decided).select(ROW, mine="place", votes="pro")
    theirs = hear_witnesses(lookups, rows, others.select(ROW, "place").unique())
    province = _province(lookups, theirs)
    typed = (pl.col("sido_typed") == province) | (pl.col("sido") == province)
    in_province = (pl.col("region_conflict") & typed).fill_null(False).cast(pl.UInt32)
    theirs = theirs.with_columns(pro=pl.col("pro") + in_province).join(mine, on=ROW)
    return theirs.filter((pl.col("place") != pl.col("mine")) & (pl.col("pro") > pl.col("votes"))).select(ROW).unique()


def _split_undoubted(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    # only candidates that the postal code does not contradict, and the others
    given = rows.select(ROW, "region_conflict", "main", given=pl.col("zipcode_given").cast(pl.UInt32, strict=False))
    pairs = candidates.join(given, on=ROW, how="left", maintain_order="left")
    pairs = pairs.hstack([lookups.tables.building_zip[pairs["place"]].alias("zip")])
    agrees = pl.col("given").is_null() | (pl.col("given") == pl.col("zip"))
    plain = (pl.len().over(ROW) == 1) & agrees & ~pl.col("region_conflict").fill_null(False)
    pairs = pairs.with_columns(plain=plain & ~_on_twin_road(lookups, pairs))
    is_plain, pairs = pairs["plain"], pairs[[ROW, "place"]]
    return pairs.filter(is_plain), pairs.filter(~is_plain)


def _decide_by_witnesses(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust
) -> tuple[pl.DataFrame, pl.DataFrame]:
    if candidates.is_empty():
        return candidates, candidates[[ROW]]
    said = hear_witnesses(lookups, rows, candidates)
    best = said.filter(pl.col("pro") == pl.col("pro").max().over(ROW)).with_columns(best_count=pl.len().over(ROW))
    single = best.filter(pl.col("best_count") == 1)
    several = best.filter(pl.col("best_count") > 1)
    if trust is Trust.CROSS:
        return single.filter(_is_borne_out()).select(ROW, "place"), several.select(ROW).clear()
    of_twins = _on_twin_road(lookups, single) & (pl.col("pro") == 0)
    ambiguous = [several.select(ROW), single.filter(_is_torn(trust) | of_twins).select(ROW)]
    accepted = single.filter(~_is_refuted(trust) & ~of_twins)
    return accepted.select(ROW, "place"), pl.concat(ambiguous).unique()


def _on_twin_road(lookups: Lookups, pairs: pl.DataFrame) -> pl.Expr:
    # the district has two such roads, and the other one may have that number, too
    return pl.col("main").is_not_null() & pl.lit(lookups.is_on_twin_road(pairs["place"]))


def hear_witnesses(lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Add the votes of each witness: ``*_pro`` (null if silent), ``*_contra``, and the number in favour (``pro``)."""
    open_region = pl.col("region").is_null() | pl.col("narrowed") | pl.col("region_conflict").fill_null(False)
    pairs = lookups.describe(candidates.join(rows.with_columns(open=open_region).select(ROW, *_WITNESSES), on=ROW))
    given = pl.col("zipcode_given").cast(pl.UInt32, strict=False)
    dong_of_ward = pairs.select(text_key("region", pl.coalesce("emd", "hint_dong")).fill_null(0)).to_series()
    pairs = pairs.with_columns(zip_given=given).with_columns(
        postal_pro=pl.col("zip_given") == pl.col("zip"),
        postal_elsewhere=_postal_elsewhere(lookups, pairs.with_columns(zip_given=given)),
        building_pro=lookups.bears_name(pairs),
        same_province=(pl.col("sido") == _province(lookups, pairs)).fill_null(False),
        same_city=_same_city(lookups, pairs),
        in_written_ward=lookups.dongs_here.holds(dong_of_ward),
        **_hear_dong(lookups, pairs, "emd", "emd"),
        **_hear_dong(lookups, pairs, "hint_dong", "dong"),
    )
    return pairs.with_columns(
        pro=pl.sum_horizontal(pl.col("postal_pro", "emd_pro", "dong_pro", "building_pro").fill_null(False))
    )


def _hear_dong(lookups: Lookups, heard: pl.DataFrame, word: str, witness: str) -> dict[str, pl.Series]:
    # a name speaks against a dong if another dong of that region, or of any, has it
    pro = lookups.named_so(heard, "dong", word)
    keys = heard.select(here=text_key("home", word).fill_null(0), anywhere=text_key(word).fill_null(0))
    here, anywhere = lookups.dongs_here.holds(keys["here"]), lookups.dong_words.holds(keys["anywhere"])
    return {
        f"{witness}_pro": pro,
        f"{witness}_contra": (~pro & here).fill_null(False),
        f"{witness}_elsewhere": (~pro & (here | anywhere)).fill_null(False),
    }


def _same_city(lookups: Lookups, heard: pl.DataFrame) -> pl.Expr:
    # the written ward is one of the building's city, and the gazetteer has it: others may exist as written
    wards = lookups.tables.regions["sigungu"]
    same = pl.col("sigungu").str.extract("^([^ ]+ )") == pl.lit(wards[heard["home"]].str.extract("^([^ ]+ )"))
    known = pl.col("sigungu") == pl.lit(wards[heard["region"]])
    return (same & known & (pl.col("sido") == pl.lit(_province(lookups, heard)))).fill_null(False)


def _province(lookups: Lookups, heard: pl.DataFrame) -> pl.Series:
    return lookups.tables.regions["sido"][heard["home"]]


def _postal_elsewhere(lookups: Lookups, heard: pl.DataFrame) -> pl.Series:
    # by the code's buildings, or else by its first digits
    regions = lookups.zip_regions.find(heard.with_row_index("_line"), pl.col("zip_given"), "of_zip", ("_line", "home"))
    lines = regions.group_by("_line").agg(elsewhere=(pl.col("of_zip") != pl.col("home")).all())
    home = heard["home"]
    known = heard.select(
        "zipcode_given",
        lookups.tables.regions["sido"][home],
        lookups.tables.regions["sigungu"][home],
        _line=pl.int_range(pl.len(), dtype=pl.UInt32),
    ).join(lines, on="_line", how="left", maintain_order="left")
    by_prefix = ~postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu"))
    return known.select(pl.coalesce("elsewhere", by_prefix).fill_null(False)).to_series()


@cache
def _is_refuted(trust: Trust) -> pl.Expr:
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
        return _is_torn(trust) | (pl.col("region_conflict").fill_null(False) & is_open)
    return is_open


def _is_torn(trust: Trust) -> pl.Expr:
    # two witnesses of different kinds speak against a complete address
    if trust is not Trust.GIVEN:
        return pl.lit(False)
    other_postal = (~pl.col("postal_pro")).fill_null(False)
    return (pl.col("pro") == 0) & other_postal & (pl.col("emd_elsewhere") | pl.col("dong_elsewhere"))


@cache
def _is_borne_out() -> pl.Expr:
    # an existing region is overruled only within its province, by two witnesses. Borders of wards move: within a
    # city a postal code is enough, or a dong that the written ward lacks. The dong of a found lot is no witness.
    dong = pl.col("emd_pro").fill_null(False) | pl.col("dong_pro").fill_null(False)
    postal = pl.col("postal_pro").fill_null(False)
    by_word = (dong & pl.col("main").is_not_null()) | pl.col("building_pro").fill_null(False)
    by_dong = by_word & pl.col("postal_pro").is_null() & ~pl.col("in_written_ward")
    elsewhere = pl.col("emd_elsewhere") | pl.col("dong_elsewhere")
    within_city = pl.col("same_city") & (postal | by_dong) & ~elsewhere
    return within_city | (postal & (pl.col("region_conflict") | (dong & pl.col("same_province"))))


REPAIRED: Final = ("region_repaired", "typo_repaired", "building_only", "renumbered")
_NEAR: Final = ("right", "neighbouring")
_TOWN: Final = "[읍면]$"
_NOT_JUDGED: Final = pl.Series("supported", [None], pl.Boolean)


def keep_tenable(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return the ``decided`` (``row``, ``place``) with a road that may be meant by the written one."""
    if decided.is_empty():
        return decided
    return _hear_and_compare(lookups, rows, decided).filter(_is_tenable()).select(decided.columns)


def judge_support(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    """Whether unchanged words of each matched row confirm its repair; null without a repair, or if only renumbered."""
    # not counted: the region of a repaired road; a building's name as the only word, as a complex shares it
    nothing = _NOT_JUDGED.new_from_index(0, rows.height)
    if lacks_any(rows, "place"):
        return nothing
    repaired = rows.filter(pl.col("level").is_in(REPAIRED) & pl.col("place").is_not_null())
    if repaired.is_empty():
        return nothing
    compared = _hear_and_compare(lookups, repaired, repaired.select(ROW, "place"))
    besides = repaired.select(
        *(ROW, "level", "lot_main"),
        postal=pl.col("postal_match").is_in(_NEAR).fill_null(False),
        city=_city_stands(lookups),
        as_written=_all_else_right(),
        far=(pl.col("postal_match") == "other_district").fill_null(False),
    )
    answer = compared.join(besides, on=ROW).select(ROW, supported=_is_supported())
    return rows.select(ROW).join(answer, on=ROW, how="left", maintain_order="left")["supported"]


def _hear_and_compare(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    pairs = hear_witnesses(lookups, rows, decided)
    written = rows.select(ROW, written=pl.coalesce("road", "loose_road"))
    pairs = pairs.join(written, on=ROW, how="left", maintain_order="left")
    official = lookups.tables.roads["key"][pairs["road_id"]]
    return pairs.hstack(compare_names(pairs["written"], official))


def _has_witness() -> pl.Expr:
    # postal code, 동 or 리, name; a whole 읍 or 면 has too many roads
    dong = pl.col("emd_pro") & ~pl.col("emd").str.contains(_TOWN)
    return pl.any_horizontal(
        word.fill_null(False) for word in (pl.col("postal_pro"), dong, pl.col("dong_pro"), pl.col("building_pro"))
    )


@cache
def _is_tenable() -> pl.Expr:
    # a slip in a long name stands by itself, other differences need a witness, two roads the building's own name
    named = pl.col("building_pro").fill_null(False)
    slip = (pl.col("difference") == NameDifference.SLIP) & (~pl.col("short") | _has_witness())
    return named | slip | ((pl.col("difference") == NameDifference.DOUBTFUL) & _has_witness())


@cache
def _is_supported() -> pl.Expr:
    misspelt = (pl.col("level") == "typo_repaired") & pl.col("difference").is_not_null()
    contradicted = pl.col("emd_elsewhere") | pl.col("dong_elsewhere")
    slip = (pl.col("difference") == NameDifference.SLIP) & _has_witness()
    return (
        pl.when(pl.col("level") == "building_only")
        .then(pl.col("postal") & pl.col("lot_main").is_null())
        .when(misspelt)
        .then((slip | pl.col("building_pro").fill_null(False)) & ~contradicted)
        .when((pl.col("level") == "renumbered") & (pl.col("far") | pl.col("as_written")))
        .then(pl.when("far").then(False))
        .otherwise(_has_witness() | pl.col("postal") | pl.col("emd_pro").fill_null(False) | pl.col("city"))
    )


@cache
def _all_else_right() -> pl.Expr:
    # region and 읍·면·동 before the road are the successor's, and nothing was filled in
    repaired = pl.any_horizontal(
        pl.col("narrowed"),
        pl.col("region_conflict").fill_null(False),
        (pl.col("region_change") == "typo").fill_null(False),
        (pl.col("emd") != pl.col("of_emd")).fill_null(False),
        pl.col("moved_from").is_not_null(),
    )
    return ~repaired


def _city_stands(lookups: Lookups) -> pl.Expr:
    # the filled-in one lies within the written city, or above; beside a misspelt province the district must be unique
    sole = lookups.tables.regions.filter(pl.len().over("sigungu") == 1, pl.col("sigungu") != "")["sigungu"]
    as_written = pl.col("region_typed").str.contains(pl.col("of_sigungu"), literal=True)
    misspelt = (pl.col("region_change") == "typo").fill_null(False)
    stands = pl.when(misspelt).then(as_written & pl.col("of_sigungu").is_in(sole.implode())).otherwise(True)
    same_town = pl.col("emd").is_null() | (pl.col("emd") == pl.col("of_emd"))
    untouched = ~pl.col("region_conflict").fill_null(False) & same_town & stands
    return (pl.col("sigungu").is_not_null() & untouched & (pl.col("level") == "region_repaired")).fill_null(False)


_BETWEEN: Final = "|"


@dataclass(frozen=True)
class _PrefixTable:
    # by number of a region and first digits of a code: one of the constants below, null where nothing is known
    names: TextIndex
    width: int
    fits: pl.Series

    def find(self, number: pl.Expr, prefix: pl.Expr) -> pl.Expr:
        return pl.lit(self.fits).gather(number * self.width + prefix)


_OTHER, _FITS, _GIVEN_UP = range(3)  # another's prefix, this one's, a former one of this one (undecidable)


def postal_fits(zipcode: pl.Expr, sido: pl.Expr, sigungu: pl.Expr) -> pl.Expr:
    """Whether a postal code (five digits) may belong to a region of :func:`split_region`; null if undecidable."""
    # the first three digits belong to one district; if it is unknown, the first two are compared to the province
    code = pl.when(zipcode.str.contains("^[0-9]{5}$")).then(zipcode)
    return fits_numbers(code.cast(pl.UInt32, strict=False), *region_numbers(sido, sigungu))


def region_numbers(sido: pl.Expr, sigungu: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """Return the numbers of district and province in the tables of prefixes, and whether it is a whole province."""
    districts, provinces = _prefix_tables()
    name = pl.concat_str(sido, sigungu.fill_null(""), separator=_BETWEEN)
    return districts.names.find(name), provinces.names.find(sido), sigungu.is_null()


def fits_numbers(code: pl.Expr, district: pl.Expr, province: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Do what :func:`postal_fits` does, for a code as a number and a region as :func:`region_numbers`."""
    districts, provinces = _prefix_tables()
    by_two = provinces.find(province, code // 1000)
    by_province = pl.when((by_two == _OTHER) | whole).then(by_two)
    fits = pl.coalesce(districts.find(district, code // 100), by_province)
    return pl.when(fits != _GIVEN_UP).then(fits == _FITS)


@cache
def _prefix_tables() -> tuple[_PrefixTable, _PrefixTable]:
    provinces = regions().provinces
    prefixes = {Region(of.name, city): given for of in provinces for city, given in of.prefixes.items()}
    left = {Region(of.name, city): given for of in provinces for city, given in of.left.items()}
    digits: dict[str, frozenset[str]] = {}
    gone: dict[str, frozenset[str]] = {}
    for name in (name for province in provinces for name in _list_districts(province.name)):
        places = [Region(place.sido, place.sigungu.split(" ")[0]) for place in regions().members(name)]
        digits[_BETWEEN.join(name)] = frozenset().union(*(prefixes.get(place, ()) for place in places))
        gone[_BETWEEN.join(name)] = frozenset().union(*(left.get(place, ()) for place in places))
    return _make_table(3, digits, gone), _make_table(2, {province.name: province.postal for province in provinces}, {})


def _make_table(length: int, fitting: Mapping[str, frozenset[str]], gone: Mapping[str, frozenset[str]]) -> _PrefixTable:
    known = frozenset().union(*fitting.values())
    others = [_OTHER if str(prefix).zfill(length) in known else None for prefix in range(10**length)]
    fits: list[int | None] = []
    for name, of_name in fitting.items():
        line: list[int | None] = others.copy() if of_name else [None] * len(others)
        for prefix in of_name:
            line[int(prefix)] = _FITS
        for prefix in gone.get(name, ()):
            line[int(prefix)] = _GIVEN_UP
        fits += line
    return _PrefixTable(TextIndex(fitting), len(others), pl.Series(fits, dtype=pl.UInt8))


def _list_districts(sido: str) -> list[Region]:
    # wards, their cities, and split districts
    names = [place for place in regions().today if place.sido == sido]
    names += [Region(sido, place.sigungu.split(" ")[0]) for place in names if " " in place.sigungu]
    names += [place for place in regions().parts if place.sido == sido]
    return list(dict.fromkeys(names))
