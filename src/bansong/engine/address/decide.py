"""Choose the candidate that the witnesses (postal code, dong, building name) support; none on a tie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final

import polars as pl

from bansong.engine.address.batches import (
    ROW,
    Index,
    NameDifference,
    PreparedStep,
    TextIndex,
    compare_names,
    lacks_any,
    scatter,
    text_key,
)
from bansong.engine.address.lookups import Lookups, bears_name, without_number, zip_key
from bansong.engine.address.regions import Region, regions

_WITNESSES: Final = (
    *("main", "zipcode_given", "emd", "lot_dong", "hint_dong", "building", "road", "loose_road"),
    *("sido", "sido_typed", "sigungu", "region", "region_conflict", "needs_witness", "narrowed"),
)


class Trust(Enum):
    """How much a reading is trusted, and so what its candidates need from witnesses."""

    GIVEN = "region, name and number are all there as written"
    OPEN = "the region is not given: a witness from elsewhere refutes"
    WEAK = "a name was changed: the postal code, if given, must agree, and no other witness alone speak against it"
    CROSS = "the region that is written is overruled: witnesses must confirm that"


def decide_candidates(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust, *, renames: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return decided rows (``row``, ``place``) and ambiguous ones (``row``); refuted rows are in neither.

    ``renames``: the candidates' roads have another name than the written one; it must be a plausible misspelling.
    """
    candidates = drop_repeated(lookups, candidates)
    if trust is Trust.GIVEN:
        plain, candidates = _split_undoubted(lookups, rows, candidates)
        decided, ambiguous = _decide_by_witnesses(lookups, rows, candidates, trust)
        return pl.concat([plain, decided]), ambiguous
    return _decide_by_witnesses(lookups, rows, candidates, trust, renames=renames)


def drop_repeated(lookups: Lookups, candidates: pl.DataFrame) -> pl.DataFrame:
    """Keep one of the candidates of a row that have the same road, number, dong and postal code."""
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
    """Return the rows in which more witnesses support one of ``others`` than the ``decided`` building."""
    # a province that contradicts the district supports the others in that province
    if others.is_empty():
        return rows[[ROW]].clear()
    mine = hear_witnesses(lookups, rows, decided).select(ROW, mine="place", votes="pro")
    theirs = hear_witnesses(lookups, rows, others.select(ROW, "place").unique())
    typed = (pl.col("sido_typed") == pl.col("of_sido")) | (pl.col("sido") == pl.col("of_sido"))
    in_province = (pl.col("region_conflict") & typed).fill_null(False).cast(pl.UInt32)
    theirs = theirs.with_columns(pro=pl.col("pro") + in_province).join(mine, on=ROW)
    return theirs.filter((pl.col("place") != pl.col("mine")) & (pl.col("pro") > pl.col("votes"))).select(ROW).unique()


def _split_undoubted(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    # only candidates that the postal code does not contradict, and the others
    given = rows[[ROW, "region_conflict", "main", "zipcode_given"]]
    pairs = candidates.join(given, on=ROW, how="left", maintain_order="left")
    zips, twin = lookups.tables.building_zip[pairs["place"]], lookups.is_on_twin_road(pairs["place"])
    single = pairs[ROW].is_unique()
    plain = _UNDOUBTED.run(pairs.hstack([zips.alias("zip"), twin.alias("twin"), single.alias("single")])).to_series()
    pairs = pairs[[ROW, "place"]]
    return (pairs, pairs.clear()) if plain.all(ignore_nulls=False) else (pairs.filter(plain), pairs.filter(~plain))


def _is_undoubted() -> pl.Expr:
    given = pl.col("zipcode_given").cast(pl.UInt32, strict=False)
    agrees = given.is_null() | (given == pl.col("zip"))
    return pl.col("single") & agrees & ~pl.col("region_conflict").fill_null(False) & ~_is_on_twin_road()


_UNDOUBTED: Final = PreparedStep(lambda pairs: pairs.select(_is_undoubted()))


def _is_on_twin_road() -> pl.Expr:
    # the district has two such roads, and the other one may have that number, too
    return pl.col("main").is_not_null() & pl.col("twin")


def _decide_by_witnesses(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust, *, renames: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    if candidates.is_empty():
        return candidates, candidates[[ROW]]
    single = hear_witnesses(lookups, rows, candidates, trust)
    several = single[[ROW]].clear()
    if single[ROW].n_unique() < single.height:
        best = single.filter(pl.col("pro") == pl.col("pro").max().over(ROW))
        alone = best[ROW].is_unique()
        single, several = best.filter(alone), best[[ROW]].filter(~alone)
    accepted = single.filter(single["accepted"])
    if renames and not accepted.is_empty():
        accepted = accepted.filter(_TENABLE.run(_with_official(lookups, accepted)).to_series())
    if trust is Trust.CROSS:
        return accepted[[ROW, "place"]], several.clear()
    torn = single[[ROW]].filter(single["torn"])
    return accepted[[ROW, "place"]], pl.concat([several, torn]).unique()


def hear_witnesses(
    lookups: Lookups, rows: pl.DataFrame, candidates: pl.DataFrame, trust: Trust | None = None
) -> pl.DataFrame:
    """Add whether each witness supports a candidate (``*_pro``, null if the row lacks it), and how many do (``pro``).

    With ``trust``, also add what contradicts a candidate, and if it is ``accepted`` or ``torn`` (its row is ambiguous).
    """
    pairs = lookups.describe(candidates.join(rows[[ROW, *_WITNESSES]], on=ROW, how="left", maintain_order="left"))
    regions, home = lookups.tables.regions, pairs["home"]
    beside = {
        "of_sido": regions["sido"][home],
        "of_sigungu": regions["sigungu"][home],
        "of_ward": regions["sigungu"][pairs["region"]],
        "of_building": lookups.name_of_building(pairs),
        "twin": lookups.is_on_twin_road(pairs["place"]),
    }
    return lookups.prepare(_hear, trust).run(pairs.hstack([values.alias(name) for name, values in beside.items()]))


def _hear(lookups: Lookups, trust: Trust | None, pairs: pl.LazyFrame) -> pl.LazyFrame:
    # keys are columns before they are searched for: polars computes an expression at each place that uses it
    against, open_too = trust is not None, trust not in (None, Trust.WEAK)
    held: dict[str, tuple[Index, pl.Expr]] = {}
    for word in _DONGS:
        held |= {
            f"{word}:as_written": (lookups.names_of_dong, text_key("dong", word)),
            f"{word}:plain": (lookups.names_of_dong, text_key("dong", without_number(pl.col(word)))),
        }
        if against:
            held[f"{word}:here"] = (lookups.dongs_here, text_key("home", word))
            held[f"{word}:anywhere"] = (lookups.dong_words, text_key(word))
    if open_too:
        zip_given = pl.col("zipcode_given").cast(pl.UInt64, strict=False)
        held |= {
            "in_written_ward": (lookups.dongs_here, text_key("region", pl.coalesce("emd", "hint_dong"))),
            "zip_known": (lookups.zip_regions, zip_given),
            "zip_here": (lookups.zip_homes, zip_key(zip_given, pl.col("home"))),
        }
    return (
        pairs.with_columns(key.fill_null(0).alias(name) for name, (_, key) in held.items())
        .with_columns(index.holding(pl.col(name)).alias(name) for name, (index, _) in held.items())
        .with_columns(
            written=pl.coalesce("road", "loose_road"),
            postal_pro=pl.col("zipcode_given").cast(pl.UInt32, strict=False) == pl.col("zip"),
            building_pro=bears_name(),
            **{f"{witness}_pro": _of_dong(word) for word, witness in _DONGS.items()},
        )
        .with_columns(
            pro=pl.sum_horizontal(pl.col("postal_pro", "emd_pro", "dong_pro", "building_pro").fill_null(False)),
            **(_speak_against() if against else {}),
            **(_other_regions() if open_too else {}),
        )
        .with_columns(**_judgement(trust) if trust else {})
        .drop(name for name in held if ":" in name)
    )


_DONGS: Final = {"emd": "emd", "hint_dong": "dong"}  # column → witness


def _of_dong(word: str) -> pl.Expr:
    held = pl.col(f"{word}:as_written") | pl.col(f"{word}:plain")
    return pl.when(pl.col(word).is_not_null()).then(held)


def _speak_against() -> dict[str, pl.Expr]:
    # a name speaks against a dong if another dong of that region, or of any, has it
    found = {}
    for word, witness in _DONGS.items():
        other, here = ~pl.col(f"{witness}_pro"), pl.col(f"{word}:here")
        found[f"{witness}_contra"] = (other & here).fill_null(False)
        found[f"{witness}_elsewhere"] = (other & (here | pl.col(f"{word}:anywhere"))).fill_null(False)
    return found


def _other_regions() -> dict[str, pl.Expr]:
    # the postal code's region by the code's buildings, or else by its first digits
    by_prefix = ~postal_fits(pl.col("zipcode_given"), pl.col("of_sido"), pl.col("of_sigungu"))
    known = pl.col("zip_known") & pl.col("zipcode_given").is_not_null()
    elsewhere = pl.when(known).then(~pl.col("zip_here")).otherwise(by_prefix)
    # the written ward is one of the building's city, and the gazetteer has it: others may exist as written
    ward, same_sido = pl.col("sigungu"), pl.col("sido") == pl.col("of_sido")
    same_city = ward.str.extract("^([^ ]+ )") == pl.col("of_sigungu").str.extract("^([^ ]+ )")
    return {
        "postal_elsewhere": elsewhere.fill_null(False),
        "open": pl.col("region").is_null() | pl.col("narrowed") | pl.col("region_conflict").fill_null(False),
        "same_province": same_sido.fill_null(False),
        "same_city": (same_city & (ward == pl.col("of_ward")) & same_sido).fill_null(False),
    }


def _judgement(trust: Trust) -> dict[str, pl.Expr]:
    if trust is Trust.CROSS:
        return {"accepted": _is_borne_out()}
    of_twins = _is_on_twin_road() & (pl.col("pro") == 0)
    return {"accepted": ~_is_refuted(trust) & ~of_twins, "torn": _is_torn(trust) | of_twins}


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


def judge_support(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    """Whether unchanged words of each matched row confirm its repair; null without a repair, or if only renumbered."""
    # not counted: the region of a repaired road; a building's name as the only word, as a complex shares it
    nothing = _NOT_JUDGED.new_from_index(0, rows.height)
    if lacks_any(rows, "place"):
        return nothing
    repaired = rows["place"].is_not_null() & rows.select(_REPAIRED).to_series()
    if not repaired.any():
        return nothing
    repaired_rows = rows.filter(repaired)
    heard = hear_witnesses(lookups, repaired_rows, repaired_rows[[ROW, "place"]], Trust.WEAK)
    besides = repaired_rows[["level", "lot_main", "postal_match", *_COMPARED]]
    compared = _with_official(lookups, heard).hstack(besides)
    return scatter(lookups.prepare(_support).run(compared).to_series(), repaired)


_REPAIRED: Final = pl.col("level").is_in(REPAIRED).fill_null(False)
_COMPARED: Final = ("region_change", "region_typed", "moved_from", "of_emd")


def _support(lookups: Lookups, rows: pl.LazyFrame) -> pl.LazyFrame:
    return (
        compare_names(rows)
        .with_columns(
            postal=pl.col("postal_match").is_in(_NEAR).fill_null(False),
            city=_city_stands(lookups),
            as_written=_all_else_right(),
            far=(pl.col("postal_match") == "other_district").fill_null(False),
        )
        .select(supported=_is_supported())
    )


def _with_official(lookups: Lookups, heard: pl.DataFrame) -> pl.DataFrame:
    return heard.hstack([lookups.tables.roads["key"][heard["road_id"]].alias("official")])


def _has_witness() -> pl.Expr:
    # postal code, 동 or 리, name; a whole 읍 or 면 has too many roads
    dong = pl.col("emd_pro") & ~pl.col("emd").str.contains(_TOWN)
    return pl.any_horizontal(
        word.fill_null(False) for word in (pl.col("postal_pro"), dong, pl.col("dong_pro"), pl.col("building_pro"))
    )


def _is_tenable() -> pl.Expr:
    # a slip in a long name stands by itself, other differences need a witness, two roads the building's own name
    named = pl.col("building_pro").fill_null(False)
    slip = (pl.col("difference") == NameDifference.SLIP) & (~pl.col("short") | _has_witness())
    return named | slip | ((pl.col("difference") == NameDifference.DOUBTFUL) & _has_witness())


_TENABLE: Final = PreparedStep(lambda heard: compare_names(heard).select(_is_tenable()))


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
    """Return the positions of district and province in the tables of postal prefixes, and if no district is given."""
    districts, provinces = _prefix_tables()
    name = pl.concat_str(sido, sigungu.fill_null(""), separator=_BETWEEN)
    return districts.names.find(name), provinces.names.find(sido), sigungu.is_null()


def fits_numbers(code: pl.Expr, district: pl.Expr, province: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Do what :func:`postal_fits` does, for a code as an integer and the results of :func:`region_numbers`."""
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
