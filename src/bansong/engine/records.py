"""Records of rows, and cross-row features, which need the whole file (16 bytes of memory a row)."""

# Points without good reason do more harm than missing points, so only clear cases count.

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

import polars as pl

from bansong.base import business_number
from bansong.base.schema import CONTEXT_COLUMNS, RECORD_COLUMNS, Choice
from bansong.engine.address.words import plain_numbers
from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM
from bansong.engine.overlays import address_key
from bansong.engine.text import is_masked
from bansong.tables.roles import role_cell
from bansong.tables.table import TEXTS, Table

ROW_ID: Final = "row_id"
DIGITS: Final = "plan:digits"
RIGHT: Final = "plan:right"  # whether the number's check digit is right; null without a number
_AGAIN: Final = "plan:again"
_GAP: Final = r"[\s\p{P}\p{S}]*"
_WORDS: Final = ("총합계", "합계", "총계", "소계", "누계", "계", "grandtotal", "subtotal", "total", "sum")
_UNIT: Final = r"(?:건|개|곳|행|명|업체|rows?|records?|items?)"
_COUNT: Final = rf"[0-9][0-9,]*\s*{_UNIT}?"
_LABEL: Final = "|".join(_GAP.join(word) for word in _WORDS)
# a whole cell: 합계, [ 합 계 ], Sub-total:, 합계 120건, 총 1,200개
TOTALS: Final = rf"(?i)^{_GAP}(?:(?:{_LABEL}){_GAP}(?:{_COUNT})?|총{_GAP}[0-9][0-9,]*\s*{_UNIT}){_GAP}$"


def records(table: Table, chosen: Mapping[str, Choice], ours: Collection[int] = ()) -> pl.LazyFrame:
    """Return the rows of a table with ``row_id`` (from 0) and a column for each role, such as ``b_no``.

    ``ours``: positions of columns from an earlier run, in which totals and header rows are not looked for.
    """
    # with numbers, DIGITS, RIGHT and ROW_PROBLEM are added, else ADDRESS_LIST
    ids = table.ids
    rows = table.frame.with_row_index(ROW_ID).with_columns(
        role_cell(table, role, choice).alias(role)
        for role, choice in chosen.items()
        if role in (*RECORD_COLUMNS, *CONTEXT_COLUMNS)
    )
    if "b_no" not in chosen:
        if "address" in chosen:
            return rows.with_columns(pl.lit(True).alias(ADDRESS_LIST))
        nothing = pl.lit(None, pl.String)  # a table without columns
        return with_digits(rows.with_columns(nothing.alias("b_no"), nothing.alias(ROW_PROBLEM)))
    rows = with_digits(rows)
    unsure = ~pl.col(RIGHT).fill_null(False)
    schema = table.frame.collect_schema()
    texts = [place for place, id_ in enumerate(ids) if schema[id_] in TEXTS and place not in ours]
    totals, again = _is_totals_row(table, chosen, texts, unsure), pl.lit(False)
    # a repeated header cannot stand in a column of a numeric dtype
    if len(texts) == len(ids) - len(ours) and table.headers[chosen["b_no"].column].strip():
        first = chosen["b_no"].column
        rows = rows.with_columns((unsure & _is_header(table, first, pl.col(ids[first]))).alias(_AGAIN))
        again = pl.all_horizontal(
            _is_header(table, place, pl.when(pl.col(_AGAIN)).then(pl.col(ids[place]))) for place in texts
        )
    problem = pl.when(again).then(pl.lit("header_row")).when(totals).then(pl.lit("totals_row"))
    return rows.with_columns(problem.alias(ROW_PROBLEM))


def with_digits(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add the number as integer (:data:`NUMBER`) and text (:data:`DIGITS`), and its check (:data:`RIGHT`)."""
    key = pl.col(NUMBER)
    rows = rows.with_columns(business_number.key_expr(pl.col("b_no")).alias(NUMBER))
    return rows.with_columns(
        business_number.digits_expr(key).alias(DIGITS), business_number.checksum_expr(key).alias(RIGHT)
    )


def _is_totals_row(table: Table, chosen: Mapping[str, Choice], texts: Collection[int], unsure: pl.Expr) -> pl.Expr:
    # a row without a right number, with the label in the name or in a column up to that of the number
    number_place, name = chosen["b_no"].column, chosen.get("name")
    places = [place for place in texts if place <= number_place or (name and place == name.column)]
    ids = table.ids
    cells = [pl.when(unsure).then(pl.col(ids[place]).cast(pl.String)) for place in places]
    return pl.any_horizontal(pl.lit(False), *(cell.str.contains(TOTALS).fill_null(False) for cell in cells))


def _is_header(table: Table, place: int, cell: pl.Expr) -> pl.Expr:
    header, text = table.headers[place].strip(), cell.cast(pl.String).str.strip_chars()
    return text == header if header else text.fill_null("") == ""  # null for most rows, which costs nothing


CROWDED: Final = "crowded"
SEVERAL: Final = "several_addresses"

# Businesses at a crowded address. A family, or a firm with branches, has a handful of numbers at one address; shared
# offices have dozens.
CROWD: Final = 10
ALIKE: Final = 3  # businesses with one spelling of an address, for its other spellings to be compared (which is costly)

_PAIRS_AT_ONCE: Final = 500_000
_NUMBER: Final = "number"
_PLACE: Final = "place"
_KEY: Final = "key"
_TEXT: Final = "text"
_WRITTEN: Final = "number:written"
_FOUND: Final = "whole_file"
_BUILDINGS: Final = ("building", "lot")

# columns of `row_keys`, null if unknown: number (Int64), number with a right check digit (Int64), written address and
# address key (String), building and lot number (Int64)
KEYS: Final = (_NUMBER, "business", _PLACE, _KEY, *_BUILDINGS)

_NO_ROWS: Final = pl.Series(dtype=pl.get_index_type())
_FACTS: Final = pl.Struct({CROWDED: pl.Boolean, SEVERAL: pl.Boolean})


def with_cross_row_features(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add :data:`CROWDED` and :data:`SEVERAL` (Boolean) to the rows of a whole file."""
    return with_found_features(rows, find_cross_row_features(rows))


def find_cross_row_features(rows: pl.LazyFrame) -> pl.DataFrame | None:
    """Compute :data:`CROWDED` and :data:`SEVERAL` (Boolean) of each row; null without number or address."""
    # crowded: CROWD businesses with one address key, at least ALIKE of them in one spelling; several addresses: a
    # number with two building numbers, or two lot numbers (a lot address and a road address do not count as two)
    if not _has_records(rows):
        return None
    address = pl.col("address").cast(pl.String)
    work = rows.select("b_no", pl.when(address.is_not_null()).then(address.hash()).alias(_PLACE))
    found = _with_number(work).select(_NUMBER, _PLACE).collect(engine="streaming")
    says = pl.all_horizontal(pl.col(_NUMBER, _PLACE).is_not_null())
    marks = {CROWDED: _find_crowded(rows, found), SEVERAL: _find_several(rows, found)}
    return found.select(
        pl.when(says).then(pl.repeat(False, found.height, eager=True).scatter(ids, True)).alias(name)
        for name, ids in marks.items()
    )


def with_found_features(rows: pl.LazyFrame, facts: pl.DataFrame | None) -> pl.LazyFrame:
    """Add the result of :func:`find_cross_row_features`, if any, to rows by ``row_id``."""
    if facts is None or not _has_records(rows):
        return rows
    looked_up = pl.col(ROW_ID).map_batches(partial(_gather_facts, facts), return_dtype=_FACTS, is_elementwise=True)
    return rows.with_columns(looked_up.alias(_FOUND)).unnest(_FOUND)


def with_given_features(rows: pl.LazyFrame, found: Collection[str]) -> pl.LazyFrame:
    """Fill nulls with false in the cross-row features ``found`` of a cluster; null without number or address."""
    if not _has_records(rows):
        return rows.drop(found)
    says = pl.col(_NUMBER).is_not_null() & pl.col("address").is_not_null()
    marks = [pl.when(says).then(pl.col(name).fill_null(False)).alias(name) for name in found]
    return _with_number(rows).with_columns(marks).drop(_NUMBER)


def _has_records(rows: pl.LazyFrame) -> bool:
    names = rows.collect_schema().names()
    return "b_no" in names and "address" in names


def row_keys(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return the columns :data:`KEYS`, for a cluster to compute cross-row features; hashes would vary by release."""
    address = pl.col("address").cast(pl.String)
    said = pl.when(~is_masked(address)).then(address)
    work = _with_number(rows.select("b_no", address.alias(_TEXT), said.alias("address")))
    return plain_numbers(work).select(
        pl.col(_NUMBER).reinterpret(signed=True),
        _business_expr().cast(pl.Int64).alias("business"),
        pl.col(_TEXT).alias(_PLACE),
        address_key(pl.col(_TEXT)).alias(_KEY),
        *(pl.col(name).cast(pl.Int64) for name in _BUILDINGS),
    )


def _with_number(rows: pl.LazyFrame) -> pl.LazyFrame:
    # spellings of a number become one integer, which may be no business number
    digits = pl.col(_WRITTEN).str.replace_all("-", "", literal=True).cast(pl.UInt64, strict=False)
    work = rows.with_columns(pl.col("b_no").cast(pl.String).alias(_WRITTEN)).with_columns(digits.alias(_NUMBER))
    odd = pl.when(pl.col(_NUMBER).is_null()).then(pl.col(_WRITTEN))  # null for most rows, where the rule costs nothing
    return work.with_columns(pl.coalesce(_NUMBER, business_number.key_expr(odd)).alias(_NUMBER)).drop(_WRITTEN)


def _find_crowded(rows: pl.LazyFrame, found: pl.DataFrame) -> pl.Series:
    alike = _find_with_different(_with_repeated(found, _PLACE, ALIKE), _PLACE, ALIKE)
    if alike.is_empty():
        return _NO_ROWS
    # the key of a spelling is made from its first row
    spelled = _select_rows(rows, found, _is_among(_PLACE, alike) & pl.col(_PLACE).is_first_distinct())
    keys = spelled.select(ROW_ID, address_key(pl.col("address")).alias(_KEY)).drop_nulls()
    hashed = keys.with_columns(pl.col(_KEY).hash()).collect(engine="streaming")
    hashed = hashed.select(found[_PLACE].gather(hashed[ROW_ID]), _KEY)
    there = found.with_row_index(ROW_ID).filter(_is_among(_PLACE, alike)).join(hashed, on=_PLACE).drop(_PLACE)
    crowds = _find_with_different(there.select(_business_expr(), _KEY).drop_nulls(), _KEY, CROWD)
    return there.filter(_is_among(_KEY, crowds))[ROW_ID]


def _find_several(rows: pl.LazyFrame, found: pl.DataFrame) -> pl.Series:
    respelled = _find_with_different(_with_repeated(found, _NUMBER, 2), _NUMBER, 2)
    if respelled.is_empty():
        return _NO_ROWS
    address = pl.col("address").cast(pl.String)
    asked = _select_rows(rows, found, _is_among(_NUMBER, respelled))
    said = asked.select(ROW_ID, pl.when(~is_masked(address)).then(address).alias("address"))
    read = plain_numbers(said).select(ROW_ID, *_BUILDINGS).collect(engine="streaming")
    read = read.with_columns(found[_NUMBER].gather(read[ROW_ID])).with_columns(_business_expr()).drop_nulls(_NUMBER)
    apart = [_find_with_different(read.select(_NUMBER, name).drop_nulls(), _NUMBER, 2) for name in _BUILDINGS]
    return read.filter(_is_among(_NUMBER, pl.concat(apart)))[ROW_ID]


def _business_expr() -> pl.Expr:
    # null with a wrong check digit, and below 10^9 like telephone numbers
    key = pl.col(_NUMBER)
    return pl.when(business_number.checksum_expr(key) & key.is_between(10**9, 10**10 - 1)).then(key).alias(_NUMBER)


def _with_repeated(found: pl.DataFrame, column: str, times: int) -> pl.DataFrame:
    often = find_repeated(found[column], times)
    return found.filter(_is_among(column, often)).drop_nulls() if len(often) else found.clear()


def _find_with_different(pairs: pl.DataFrame, column: str, times: int) -> pl.Series:
    # in parts, since finding distinct pairs takes ten times their memory
    parts = 1 + pairs.height // _PAIRS_AT_ONCE
    of_part = (pairs.filter(pl.col(column) % parts == part).unique() for part in range(parts))
    return pl.concat([find_repeated(part[column], times) for part in of_part])


def find_repeated(values: pl.Series, times: int) -> pl.Series:
    """Return the values that occur at least ``times`` times, sorted (sorting costs half of counting)."""
    ordered = values.sort()
    return ordered.filter(ordered == ordered.shift(times - 1)).unique()


def _is_among(column: str, values: pl.Series) -> pl.Expr:
    return pl.col(column).is_in(values.implode())


def _select_rows(rows: pl.LazyFrame, found: pl.DataFrame, which: pl.Expr) -> pl.LazyFrame:
    return rows.select(ROW_ID, "address").filter(look_up(found.select(which.fill_null(False)).to_series()))


def look_up(values: pl.Series) -> pl.Expr:
    """Return for each row the item of ``values`` at position ``row_id``."""
    return pl.col(ROW_ID).map_batches(partial(pl.Series.gather, values), values.dtype, is_elementwise=True)


def _gather_facts(facts: pl.DataFrame, ids: pl.Series) -> pl.Series:
    return facts.select(pl.all().gather(ids)).to_struct()
