"""Find addresses of the usual form (region, road, number, units, dong) by look-up alone."""

# All that is written must be known, character by character: head, 읍 or 면, road and dong by tables, number and units
# by a closed grammar. What a reading may take for something else is in no table. Other words must be nothing to any
# reading: a new pattern by which one looks at detail or brackets belongs into `_with_units`, too.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

import polars as pl

from bansong.base.business_number import first_code
from bansong.engine.address import parse, words
from bansong.engine.address.batches import ROW, Index, PreparedStep, scatter, text_key
from bansong.engine.address.candidates import names_further_road
from bansong.engine.address.gazetteer import building_key
from bansong.engine.address.lookups import Lookups
from bansong.engine.address.matcher import REGION_AND_NUMBER
from bansong.engine.address.region_split import catalogue, find_usual_heads
from bansong.engine.address.regions import level_of
from bansong.engine.address.road_lot import STRICT_LOT

MIN_PLAIN_ROWS: Final = 2_000  # the readings answer fewer rows as fast
_TOWN: Final = "[읍면]$"
_DONG: Final = "^(?:[가-힣]{1,5}[0-9]?[동리]|[가-힣]{1,5}[0-9]가)$"
# unusual names whose first 로 or 길 with a number behind it is the last, or has its branches behind; 읍 may be a town's
_BEGUN: Final = "[가-힣&&[^거대길로리읍제]]"
_STEM: Final = (
    f"{_BEGUN}(?:[가-힣&&[^읍]]*[가-힣&&[^길로리읍]])?[0-9]{{1,4}}[가-힣&&[^읍면]]{{0,2}}|{_BEGUN}[가-힣&&[^읍]]*"
)
_ROAD: Final = f"^(?:{words.USUAL_ROAD_NAME}|(?:{_STEM})[로길](?:[0-9]{{1,4}}(?:{words.BRANCHING}|로))*)$"
_NUMBER: Final = "[1-9][0-9]{0,3}(?:-[1-9][0-9]{0,3})?"
_UNIT: Final = "(?:(?:지하 ?|지상 ?|[Bb])?[0-9]{1,4}층|(?:지하 ?|[A-Za-z])?[0-9]{1,4}호|[0-9]{1,4}동|[A-Z가나다라]동)"
_UNITS: Final = f"^ ?{_NUMBER}(?:,? {_UNIT}(?:(?:, ?| ){_UNIT}){{0,4}})?$"
_WORDS: Final = "[가-힣A-Za-z0-9]+(?:(?:, ?|[ -])[가-힣A-Za-z0-9]+)*"
_NUMBER_AND_WORDS: Final = f"^ {_NUMBER}, {_WORDS}$"
_BRACKETS: Final = rf"^[^ ,()]+(?:, ?{_WORDS})?\)$"
_TWO_DIGITS: Final = 99  # 120-101 is like a former postal code


@dataclass(frozen=True)
class PlainNames:
    """Names that stand for one region, road or dong, whatever stands beside them."""

    heads: pl.Series  # by place in the catalogue: the region, if the head means one by its names of today
    regions: pl.DataFrame
    roads: Index  # those that can be read in one way
    dongs: pl.DataFrame


_MAKING: Final = Lock()
_NAMES: Final[WeakKeyDictionary[Lookups, PlainNames]] = WeakKeyDictionary()


def answer_plain(
    lookups: Lookups, rows: pl.DataFrame, changes: pl.Series, read: Callable[[pl.DataFrame], pl.DataFrame]
) -> pl.DataFrame:
    """Answer each row (``address``, ``zipcode``): an address of the usual form by tables, others by ``read``.

    ``changes``: the result of :func:`changes_of_heads`. ``read`` answers parsed rows (columns of ``PARSED``).
    """
    parts, left = _take_apart(rows), pl.repeat(True, rows.height, dtype=pl.Boolean, eager=True)
    names = plain_names(lookups) if rows.height >= MIN_PLAIN_ROWS else None
    if names is None:
        return read(_parse(rows, parts, left))
    found = _with_units(_find_buildings(lookups, names, parts))
    answers = _compose(lookups, names, found, changes)
    left.scatter(found[ROW], False)
    if not left.any():
        return answers
    lines = (left.cum_sum() + answers.height).zip_with(left, (~left).cum_sum()) - 1
    parsed = _parse(rows, parts.filter(left[parts[ROW]]), left)
    return pl.concat([answers, read(parsed)[answers.columns]])[lines]


def plain_names(lookups: Lookups) -> PlainNames | None:
    """Return the names of plain addresses; ``None`` while another thread makes them."""
    # no thread waits for another: polars' threads would wait for themselves
    if lookups not in _NAMES and _MAKING.acquire(blocking=False):
        try:
            _NAMES[lookups] = _prepare_names(lookups)
        finally:
            _MAKING.release()
    return _NAMES.get(lookups)


def _parse(rows: pl.DataFrame, parts: pl.DataFrame, left: pl.Series) -> pl.DataFrame:
    # the rows `left`, without the parser where it would find nothing but the `parts`
    usual = _USUAL.run(parts)
    other = rows.with_row_index(ROW).filter(left.clone().scatter(usual[ROW], False))
    parsed = usual if other.is_empty() else pl.concat([usual, _PARSING.run(other)[usual.columns]]).sort(ROW)
    return parsed.drop(ROW)


_PARSING: Final = PreparedStep(parse.parse)


def _parse_usual(parts: pl.LazyFrame) -> pl.LazyFrame:
    road, town, name, zipcode, text = (pl.col(column) for column in ("road", "town", "name", "zipcode", "address"))
    head = partial(catalogue().value, place=pl.col("head"))
    values = {
        "text": text.str.strip_suffix(" "),
        "kind": pl.lit("korean"),
        "zipcode_given": pl.when(zipcode != "").then(zipcode),
        **{"detail": pl.col("detail"), "brackets": name, "hint_dong": name, "emd": town, "road": road},
        **{"sido": head("sido"), "sigungu": head("sigungu"), "sido_typed": head("sido_typed")},
        **{"region_change": head("change"), "region_typed": head("text")},
        "sido_given": head("sido_typed").is_not_null(),
        "road_pre": pl.concat_str(town, road, ignore_nulls=True),
        **{number: pl.col(number) for number in ("main", "sub", "under")},
        "has_unit": pl.col("detail").is_not_null(),
        "region_conflict": pl.lit(False),
    }
    bracketed = pl.concat_str(name, pl.lit(")"))
    no_dong = name.str.contains(parse.NO_HINT) | bracketed.str.contains(f"{parse.NOT_PLAIN}|{parse.BRACKET_UNIT}")
    return parts.filter(
        pl.col("plain"),
        road.str.contains(f"^{words.USUAL_ROAD_NAME}$") & ~road.is_in(words.ROAD_LIKE_DONGS),
        ~road.str.contains("^(?:대?로|길|거리)제"),  # it may belong to the word before
        town.is_null() | town.str.contains("^[가-힣]{2,7}$"),
        name.is_null() | (name.str.contains(_DONG) & ~no_dong),
        pl.col("detail").is_null() | ~pl.col("detail").str.contains("[A-Z가나다라]동"),
        zipcode.is_null() | zipcode.str.contains("^(?:[0-9]{5})?$"),
        (text.str.len_chars() <= words.MAX_CHARS) & ~text.str.contains(words.TO_REWRITE),
    ).select(
        *(ROW, "address", "zipcode"),
        *(values.get(column, pl.lit(None)).cast(dtype).alias(column) for column, dtype in parse.PARSED.items()),
    )


_USUAL: Final = PreparedStep(_parse_usual)


def changes_of_heads(changes: pl.Expr) -> pl.Series:
    """Return the text ``changes`` for each head of the catalogue, if only the region was corrected."""
    names = {"of_sido": "sido", "of_sigungu": "sigungu", "region_typed": "text", "region_change": "change"}
    texts = dict.fromkeys(("emd", "of_emd", "road", "hint_dong"), pl.lit(None, pl.String))
    known = {"place": pl.lit(0), "region_conflict": pl.lit(False), "dong_replaced": pl.lit(False)}
    heads = catalogue().columns.with_columns(**names, **texts, **known, sido_given=pl.col("sido_typed").is_not_null())
    return heads.select(pl.when(changes != "").then(changes)).to_series()


def _prepare_names(lookups: Lookups) -> PlainNames:
    tables, road, emd = lookups.tables, pl.col("key"), pl.col("emd")
    alone = ~pl.col("several").fill_null(False) & (pl.len().over("region", "key") == 1)
    roads = tables.roads.filter(alone, road.str.contains(_ROAD), ~road.is_in(words.ROAD_LIKE_DONGS))
    roads = roads.filter(_means_itself(pl.concat_str(pl.lit(" "), road, pl.lit(" 1"))))
    town = pl.when(emd.str.contains(_TOWN)).then("emd")
    legal = pl.when(town.is_null()).then("emd")
    hint = pl.coalesce(legal, pl.when(pl.col("ri") != "").then("ri"))
    inner = pl.concat_str(pl.lit("("), pl.when(hint.str.contains(_DONG) & ~hint.str.contains(parse.NO_HINT)).then(hint))
    is_plain = ~(inner.str.slice(1) + ")").str.contains(f"{parse.NOT_PLAIN}|{parse.BRACKET_UNIT}")
    dongs = tables.dongs.select(
        of_town=pl.when(_means_itself(pl.lit(" ") + town + " ") & town.str.contains("^[가-힣]{2,7}$")).then("emd"),
        before_road=(town + " ").fill_null(""),
        hint=pl.when(_means_itself(inner) & is_plain).then(hint),
        legal=legal,
        reference=(pl.lit(" (") + legal + ")").fill_null(""),
        code=pl.col("code").cast(pl.String).str.zfill(10),
    )
    district = pl.when(pl.col("sigungu") != "").then("sigungu")
    begin = pl.concat_str("sido", district, pl.lit(""), separator=" ", ignore_nulls=True)
    regions = tables.regions.select(of_region=begin, level=level_of(pl.col("sido")))
    return PlainNames(_find_regions(lookups), regions, Index.of(roads, text_key("region", "key"), "road"), dongs)


def _means_itself(text: pl.Expr) -> pl.Expr:
    return ~(parse.describes_by_other(text) | parse.names_several(text) | text.str.contains(words.TO_REWRITE))


def _find_regions(lookups: Lookups) -> pl.Series:
    heads = catalogue().columns.select("sido", "sido_typed", "sigungu", region_conflict=pl.lit(False))
    settled, names = lookups.settle_scope(heads), lookups.tables.regions
    same = [pl.col(name) == pl.lit(names[name][settled["region"]]) for name in ("sido", "sigungu")]
    return settled.select(pl.when(pl.col("covered"), *same).then("region")).to_series()


def _take_apart(rows: pl.DataFrame) -> pl.DataFrame:
    # in the order of the words: head, town, road, number, detail, brackets
    bodies = _BODIES.run(rows)
    return _PARTS.run(bodies.hstack([find_usual_heads(bodies["body"]).alias("head")]))


def _split_bodies(rows: pl.LazyFrame) -> pl.LazyFrame:
    parts = pl.col("_parts").struct
    split = rows.with_columns(_parts=pl.col("address").str.splitn("(", 2)).with_row_index(ROW)
    return split.select(ROW, "address", "zipcode", body=parts[0].str.strip_suffix(" "), inner=parts[1])


_BODIES: Final = PreparedStep(_split_bodies)


def _split_parts(bodies: pl.LazyFrame) -> pl.LazyFrame:
    pair, name = pl.col("_pair").struct, pl.col("_name").struct[0]
    rest, behind, inner, first = pl.col("rest"), pl.col("behind"), pl.col("inner"), pair[0]
    several = pl.col("inner").str.contains(",", literal=True)
    return (
        bodies.with_columns(rest=pl.col("body").str.slice(catalogue().value("length", pl.col("head")) + 1))
        .with_columns(_pair=rest.str.splitn(" ", 2))
        .with_columns(town=pl.when(first.str.ends_with("읍") | first.str.ends_with("면")).then(first))
        .with_columns(rest=pl.when(pl.col("town").is_not_null()).then(pair[1]).otherwise("rest"))
        .with_columns(road=rest.str.splitn(" ", 2).struct[0].str.strip_chars_end("0123456789-,"))
        .with_columns(behind=rest.str.strip_prefix(pl.col("road")))
        .with_columns(units=behind.str.contains(_UNITS))
        .with_columns(_pair=behind.str.strip_prefix(" ").str.splitn(" ", 2), _name=inner.str.splitn(",", 2))
        .with_columns(number=first.str.strip_suffix(","), detail=pair[1], name=name.str.strip_suffix(")"))
        .with_columns(_pair=pl.col("number").str.splitn("-", 2), plain=pl.col("units") & ~several.fill_null(False))
        .with_columns(main=first.cast(pl.UInt32, strict=False), sub=pair[1].cast(pl.UInt32, strict=False), under=0)
        .with_columns(pl.col("sub").fill_null(0))
        .filter(
            pl.col("head").is_not_null(),
            pl.col("units") | behind.str.contains(_NUMBER_AND_WORDS),
            inner.is_null() | inner.str.contains(_BRACKETS),
            (pl.col("main") <= _TWO_DIGITS) | (pl.col("sub") <= _TWO_DIGITS),
        )
        .drop("body", "rest", "behind", "units", "_pair", "_name")
    )


_PARTS: Final = PreparedStep(_split_parts)


def _find_buildings(lookups: Lookups, names: PlainNames, rows: pl.DataFrame) -> pl.DataFrame:
    # of road and number, if it is the only one, and neither town nor dong nor postal code says otherwise
    rows = rows.hstack([names.heads[rows["head"]].alias("region")])
    kept = [name for name in rows.columns if name not in (ROW, "road")]
    rows = names.roads.find(rows, text_key("region", "road"), "road", kept)
    key = building_key(*(pl.col(part) for part in ("road", "under", "main", "sub")))
    rows = lookups.buildings.find(rows, key, "place", [*kept, "road"])
    rows = rows.filter(~rows[ROW].is_duplicated())
    dong, zipcode = lookups.tables.building_dong[rows["place"]], lookups.tables.building_zip[rows["place"]]
    rows = rows.hstack([*names.dongs[dong].get_columns(), zipcode.cast(pl.String).str.zfill(5).alias("right")])
    return rows.filter(
        pl.col("town").is_null() | (pl.col("town") == pl.col("of_town")),
        pl.col("name").is_null() | (pl.col("name") == pl.col("hint")),
        (pl.col("detail") != pl.col("legal")).fill_null(True),  # it stands in brackets
        pl.col("zipcode").is_null() | (pl.col("zipcode") == "") | (pl.col("zipcode") == pl.col("right")),
    )


def _with_units(rows: pl.DataFrame) -> pl.DataFrame:
    # other words than units and dong must be nothing to any reading
    text, detail, brackets = pl.col("address"), pl.col("detail"), pl.col("brackets")
    usual = rows.filter("plain").with_columns(has_unit=detail.is_not_null())
    few = rows.filter(~pl.col("plain")).with_columns(brackets=pl.col("inner").str.strip_suffix(")"))
    both, apart = (pl.concat_str(detail, brackets, separator=between, ignore_nulls=True) for between in (", ", " , "))
    other = (
        text.str.len_chars() > words.MAX_CHARS,
        text.str.contains(f"{words.MAYBE_POSTAL}|주식회사"),
        both.str.contains(REGION_AND_NUMBER),
        apart.str.contains(STRICT_LOT),
        names_further_road(),
        detail.str.contains(_TOWN),
        brackets.is_null() & detail.str.contains(parse.HINT),
    )
    few = few.filter(_means_itself(text), ~pl.any_horizontal(word.fill_null(False) for word in other))
    units = (detail.str.contains(parse.DETAIL_UNIT), brackets.str.contains(parse.BRACKET_UNIT))
    few = few.with_columns(has_unit=pl.any_horizontal(unit.fill_null(False) for unit in units))
    return usual if few.is_empty() else pl.concat([usual, few.drop("brackets")]).sort(ROW)


def _compose(lookups: Lookups, names: PlainNames, found: pl.DataFrame, changes: pl.Series) -> pl.DataFrame:
    tables, place = lookups.tables, found["place"]
    apartment = tables.building_apartment[place].fill_null(False)
    known = found.hstack(
        [
            *names.regions[found["region"]].get_columns(),
            tables.roads["name"][found["road"]].alias("of_road"),
            apartment.alias("apartment"),
            _name_complexes(lookups, found, apartment & found["inner"].is_null()),
            changes[found["head"]].alias("changes"),
        ]
    )
    given = pl.when(pl.col("zipcode") == pl.col("right"))
    detail = (pl.lit(", ") + pl.col("detail")).fill_null("")
    brackets = pl.coalesce(pl.lit(" (") + pl.col("inner"), "complex", "reference")
    return known.select(
        match_level=pl.lit("exact"),
        region="level",
        covered=True,
        form=pl.lit("road"),
        unit=first_code({"given": pl.col("has_unit"), "missing": pl.col("apartment")}),
        region_given=True,
        numbered=True,
        beside=False,
        postal_match=given.then(pl.lit("right")),
        supported=pl.lit(None, pl.Boolean),
        zipcode_given=given.then("right"),
        zipcode_right="right",
        changes="changes",
        fixed_zipcode="right",
        fixed_address=pl.concat_str("of_region", "before_road", "of_road", pl.lit(" "), "number", detail, brackets),
        district_code="code",
        place="place",
    )


def _name_complexes(lookups: Lookups, found: pl.DataFrame, bare: pl.Series) -> pl.Series:
    # the reference of apartments: names are read from the file at their first use
    few = found.filter(bare)
    names = lookups.tables.building_name[few["place"]] if few.height else pl.Series(dtype=pl.String)
    both = pl.concat_str("legal", pl.lit(names), separator=", ", ignore_nulls=True)
    text = pl.when(both != "").then(pl.lit(" (") + both + ")").otherwise(pl.lit(""))
    return scatter(few.select(text.alias("complex")).to_series(), bare)
