"""Answer plain addresses without the readings: a usual head, a road of its region, a number, units, the right dong."""

# All that is written must be known, character by character: head, 읍 or 면, road and dong by tables, number and units by
# a closed grammar. The tables leave out each name that a reading may take for something else.

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import polars as pl

from bansong.base.business_number import first_code
from bansong.engine.address.batches import scatter
from bansong.engine.address.candidates import names_further_road
from bansong.engine.address.gazetteer import building_key
from bansong.engine.address.lookups import Lookups
from bansong.engine.address.matcher import REGION_AND_NUMBER
from bansong.engine.address.parse import (
    BRACKET_UNIT,
    DETAIL_UNIT,
    HINT,
    NO_HINT,
    NOT_PLAIN,
    describes_by_other,
    names_several,
)
from bansong.engine.address.region_split import catalogue, find_usual_heads
from bansong.engine.address.regions import level_of
from bansong.engine.address.road_lot import STRICT_LOT
from bansong.engine.address.words import (
    BRANCHING,
    MAX_CHARS,
    MAYBE_POSTAL,
    ROAD_LIKE_DONGS,
    TO_REWRITE,
    USUAL_ROAD_NAME,
)
from bansong.engine.registry import values_at

MIN_PLAIN_ROWS: Final = 2_000  # fewer rows are answered by the readings as fast
_LINE: Final = "line"
_TOWN: Final = "^[가-힣]{1,6}[읍면]$"
_DONG: Final = "^(?:[가-힣]{1,5}[0-9]?[동리]|[가-힣]{1,5}[0-9]가)$"
# unusual names, whose first 로 or 길 with a number behind it is at the end, or before branches; 읍 may end a town's name
_BEGUN: Final = "[가-힣&&[^거대길로리읍제]]"
_STEM: Final = (
    f"{_BEGUN}(?:[가-힣&&[^읍]]*[가-힣&&[^길로리읍]])?[0-9]{{1,4}}[가-힣&&[^읍면]]{{0,2}}|{_BEGUN}[가-힣&&[^읍]]*"
)
_ROAD: Final = f"^(?:{USUAL_ROAD_NAME}|(?:{_STEM})[로길](?:[0-9]{{1,4}}(?:{BRANCHING}|로))*)$"
_NUMBER: Final = "[1-9][0-9]{0,3}(?:-[1-9][0-9]{0,3})?"
_UNIT: Final = "(?:(?:지하 ?|지상 ?|[Bb])?[0-9]{1,4}층|(?:지하 ?|[A-Za-z])?[0-9]{1,4}호|[0-9]{1,4}동|[A-Z가나다라]동)"
_UNITS: Final = f"^ ?{_NUMBER}(?:,? {_UNIT}(?:(?:, ?| ){_UNIT}){{0,4}})?$"
_WORDS: Final = "[가-힣A-Za-z0-9]+(?:(?:, ?|[ -])[가-힣A-Za-z0-9]+)*"
_NUMBER_AND_WORDS: Final = f"^ {_NUMBER}, {_WORDS}$"
_BRACKETS: Final = rf"^[^ ,()]+(?:, ?{_WORDS})?\)$"
_IN_NUMBER: Final = "0123456789-,"
_TWO_DIGITS: Final = 99  # 120-101 is like a former postal code
_REGION_WEIGHT: Final = 0x9E37_79B9_7F4A_7C15


@dataclass(frozen=True)
class _Names:
    # of a gazetteer; the texts of an official address, and keys of roads

    regions_of_heads: pl.Series  # by catalogue's place
    regions: pl.DataFrame
    road_keys: pl.Series  # sorted
    roads: pl.Series
    dongs: pl.DataFrame


_NAMES: Final[WeakKeyDictionary[Lookups, _Names]] = WeakKeyDictionary()


def answer_plain(lookups: Lookups, rows: pl.DataFrame, changes: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """Return which rows (``address``, ``zipcode``) are plain (Boolean), and their answers (``attach.ADDED``), in order.

    ``changes``: the corrections of each head, by its place in the catalogue.
    """
    # two threads may both make the names: a lock would be waited for by polars' threads
    names = _NAMES.get(lookups) or _NAMES.setdefault(lookups, _prepare_names(lookups))
    found = _find_buildings(lookups, names, _take_apart(names, rows))
    plain = pl.repeat(False, rows.height, dtype=pl.Boolean, eager=True).scatter(found[_LINE], True)
    return plain, _compose(lookups, names, found, changes)


def _prepare_names(lookups: Lookups) -> _Names:
    tables, name = lookups.tables, pl.col("key")
    single = ~pl.col("several").fill_null(False) & (pl.len().over("region", "key") == 1)
    roads = tables.roads.filter(single, name.str.contains(_ROAD), ~name.is_in(ROAD_LIKE_DONGS))
    roads = roads.filter(_means_itself(pl.concat_str(pl.lit(" "), name, pl.lit(" 1"))))
    roads = roads.select("road", key=_road_key(name, pl.col("region"))).sort("key")
    is_town, ri = pl.col("emd").str.contains("[읍면]$"), pl.when(pl.col("ri") != "").then("ri")
    town = pl.when(pl.col("emd").str.contains(_TOWN)).then("emd")
    hint = pl.when(is_town).then(ri).otherwise("emd")
    inner = pl.concat_str(pl.when(hint.str.contains(_DONG)).then(hint), pl.lit(")"))
    clear = _means_itself(pl.lit("(") + inner) & ~inner.str.contains(f"{NOT_PLAIN}|{BRACKET_UNIT}")
    dongs = tables.dongs.select(
        of_town=pl.when(_means_itself(pl.concat_str(pl.lit(" "), town, pl.lit(" ")))).then(town),
        before_road=pl.when(is_town).then(pl.concat_str("emd", pl.lit(" "))).otherwise(pl.lit("")),
        hint=pl.when(clear & ~hint.str.contains(NO_HINT)).then(hint),
        legal=pl.when(~is_town).then("emd"),
        reference=pl.when(is_town).then(pl.lit("")).otherwise(pl.concat_str(pl.lit(" ("), "emd", pl.lit(")"))),
        code=pl.col("code").cast(pl.String).str.zfill(10),
    )
    district = pl.when(pl.col("sigungu") != "").then("sigungu")
    begin = pl.concat_str(pl.concat_str("sido", district, separator=" ", ignore_nulls=True), pl.lit(" "))
    regions = tables.regions.select(of_region=begin, level=level_of(pl.col("sido")))
    return _Names(_find_regions(lookups), regions, roads["key"], roads["road"], dongs)


def _means_itself(text: pl.Expr) -> pl.Expr:
    return ~(describes_by_other(text) | names_several(text) | text.str.contains(TO_REWRITE))


def _find_regions(lookups: Lookups) -> pl.Series:
    # of heads that mean one region, by its names of today
    heads = catalogue().columns.select("sido", "sido_typed", "sigungu", region_conflict=pl.lit(False))
    settled = lookups.settle_scope(heads)
    names = lookups.tables.regions
    same = [pl.col(name) == pl.lit(names[name][settled["region"]]) for name in ("sido", "sigungu")]
    return settled.select(pl.when(pl.col("covered"), *same).then("region")).to_series()


def _road_key(name: pl.Expr, region: pl.Expr) -> pl.Expr:
    return name.hash(0) ^ (region.cast(pl.UInt64) * pl.lit(_REGION_WEIGHT, pl.UInt64))


def _take_apart(names: _Names, rows: pl.DataFrame) -> pl.DataFrame:
    # in the order of the words: head, town, road, number, detail, brackets
    parts, words = pl.col("_parts").struct, pl.col("_words").struct
    bodies = rows.with_columns(_parts=pl.col("address").str.splitn("(", 2)).select(
        "address", "zipcode", body=parts[0].str.strip_suffix(" "), inner=parts[1]
    )
    head = find_usual_heads(bodies["body"])
    bodies = bodies.hstack([head.alias("head"), names.regions_of_heads[head].alias("region")]).with_row_index(_LINE)
    length = catalogue().value("length", pl.col("head"))
    behind, inner, first = pl.col("behind"), pl.col("inner"), pl.col("_name").struct[0]
    return (
        bodies.lazy()
        .filter(pl.col("region").is_not_null())
        .with_columns(rest=pl.col("body").str.slice(length + 1))
        .with_columns(_words=pl.col("rest").str.splitn(" ", 2))
        .with_columns(town=pl.when(words[0].str.ends_with("읍") | words[0].str.ends_with("면")).then(words[0]))
        .with_columns(rest=pl.when(pl.col("town").is_not_null()).then(words[1]).otherwise("rest"))
        .with_columns(road=pl.col("rest").str.splitn(" ", 2).struct[0].str.strip_chars_end(_IN_NUMBER))
        .with_columns(behind=pl.col("rest").str.strip_prefix(pl.col("road")))
        .with_columns(units_only=behind.str.contains(_UNITS))
        .filter(pl.col("units_only") | behind.str.contains(_NUMBER_AND_WORDS), inner.is_null() | inner.str.contains(_BRACKETS))
        .with_columns(_words=behind.str.strip_prefix(" ").str.splitn(" ", 2), _name=inner.str.splitn(",", 2))
        .with_columns(number=words[0].str.strip_suffix(","), detail=words[1], name=first.str.strip_suffix(")"))
        .with_columns(_words=pl.col("number").str.splitn("-", 2), units_only=pl.col("units_only") & (inner.is_null() | first.str.ends_with(")")))
        .with_columns(main=words[0].cast(pl.UInt32), sub=words[1].cast(pl.UInt32).fill_null(0))
        .filter((pl.col("main") <= _TWO_DIGITS) | (pl.col("sub") <= _TWO_DIGITS))
        .with_columns(key=_road_key(pl.col("road"), pl.col("region")))
        .drop("body", "rest", "road", "behind", "_words", "_name")
        .collect()
    )


def _find_buildings(lookups: Lookups, names: _Names, rows: pl.DataFrame) -> pl.DataFrame:
    # of road and number, if it is the only one, and nothing that is written says otherwise
    tables = lookups.tables
    at = names.road_keys.search_sorted(rows["key"])
    known = (values_at(names.road_keys, at) == rows["key"]).fill_null(False)
    rows = rows.filter(known).hstack([names.roads[at.filter(known)]])
    keys = rows.select(building_key(pl.col("road"), pl.lit(0), pl.col("main"), pl.col("sub"))).to_series()
    place = tables.building_key.search_sorted(keys)
    there = (values_at(tables.building_key, place) == keys).fill_null(False)
    there &= (values_at(tables.building_key, place + 1) != keys).fill_null(True)
    rows = rows.filter(there).hstack([place.filter(there).alias("place")])
    dong, zipcode = tables.building_dong[rows["place"]], tables.building_zip[rows["place"]]
    rows = rows.hstack([*names.dongs[dong].get_columns(), zipcode.cast(pl.String).str.zfill(5).alias("right")])
    given = pl.col("zipcode").fill_null("")
    rows = rows.filter(
        pl.col("town").is_null() | (pl.col("town") == pl.col("of_town")),
        pl.col("name").is_null() | (pl.col("name") == pl.col("hint")),
        (given == "") | (given == pl.col("right")),
    )
    return _with_units(rows)


def _with_units(rows: pl.DataFrame) -> pl.DataFrame:
    # other words must be nothing to any reading
    usual = rows.filter("units_only").with_columns(has_unit=pl.col("detail").is_not_null())
    text, detail, brackets = pl.col("address"), pl.col("detail"), pl.col("brackets")
    both, apart = (pl.concat_str(detail, brackets, separator=between, ignore_nulls=True) for between in (", ", " , "))
    told = [
        text.str.len_chars() > MAX_CHARS,
        text.str.contains(f"{MAYBE_POSTAL}|주식회사"),
        both.str.contains(REGION_AND_NUMBER),
        apart.str.contains(STRICT_LOT),
        names_further_road(),
        detail.str.contains("[읍면]$"),
        brackets.is_null() & detail.str.contains(HINT),
    ]
    few = rows.filter(~pl.col("units_only")).with_columns(brackets=pl.col("inner").str.strip_suffix(")"))
    few = few.filter(_means_itself(text), *(~condition.fill_null(False) for condition in told))
    unit = [detail.str.contains(DETAIL_UNIT), brackets.str.contains(BRACKET_UNIT)]
    few = few.with_columns(has_unit=pl.any_horizontal(condition.fill_null(False) for condition in unit))
    return pl.concat([usual, few.drop("brackets")]).sort(_LINE) if few.height else usual


def _compose(lookups: Lookups, names: _Names, found: pl.DataFrame, changes: pl.Series) -> pl.DataFrame:
    tables = lookups.tables
    place, region, head = found["place"], found["region"], found["head"]
    known = found.hstack(
        [
            *names.regions[region].get_columns(),
            tables.roads["name"][found["road"]].alias("of_road"),
            tables.building_apartment[place].fill_null(False).alias("apartment"),
            changes[head].alias("changes"),
        ]
    )
    known = known.hstack([_name_complexes(lookups, known)])
    given, detail = pl.col("zipcode") == pl.col("right"), pl.col("detail")
    bracket = pl.coalesce(pl.lit(" (") + pl.col("inner"), "complex", "reference")
    address = ["of_region", "before_road", "of_road", pl.lit(" "), "number", (pl.lit(", ") + detail).fill_null(""), bracket]
    return known.select(
        match_level=pl.lit("exact"),
        region="level",
        covered=True,
        form=pl.lit("road"),
        unit=first_code({"given": pl.col("has_unit"), "missing": pl.col("apartment")}),
        region_given=True,
        numbered=True,
        beside=False,
        postal_match=pl.when(given).then(pl.lit("right")),
        supported=pl.lit(None, pl.Boolean),
        zipcode_given=pl.when(given).then("right"),
        zipcode_right="right",
        changes="changes",
        fixed_zipcode="right",
        fixed_address=pl.concat_str(address),
        district_code="code",
        place="place",
    )


def _name_complexes(lookups: Lookups, known: pl.DataFrame) -> pl.Series:
    # the reference of apartments, in place of the dong's
    bare = known["apartment"] & known["inner"].is_null()
    few = known.filter(bare)
    names = lookups.tables.building_name[few["place"]] if few.height else pl.Series(dtype=pl.String)
    words = pl.concat_str("legal", pl.lit(names), separator=", ", ignore_nulls=True)
    text = pl.when(words != "").then(pl.concat_str(pl.lit(" ("), words, pl.lit(")"))).otherwise(pl.lit(""))
    return scatter(few.select(text.alias("complex")).to_series(), bare)
