"""The user's rows as records; totals and repeated headers among them are marked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import polars as pl

from bansong import business_number
from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM
from bansong.schema import CONTEXT_COLUMNS, RECORD_COLUMNS, Choice
from bansong.tables import Table
from bansong.tables.role_content import role_cell
from bansong.tables.table import TEXTS

ROW_ID: Final = "row_id"
DIGITS: Final = "plan:digits"
RIGHT: Final = "plan:right"
"""Whether the number's check digit is the right one; null where there is no number."""

_AGAIN: Final = "plan:again"
_GAP: Final = r"[\s\p{P}\p{S}]*"
_WORDS: Final = ("총합계", "합계", "총계", "소계", "누계", "계", "grandtotal", "subtotal", "total", "sum")
_UNIT: Final = r"(?:건|개|곳|행|명|업체|rows?|records?|items?)"
_COUNT: Final = rf"[0-9][0-9,]*\s*{_UNIT}?"
_LABEL: Final = "|".join(_GAP.join(word) for word in _WORDS)
_TOTALS: Final = rf"(?i)^{_GAP}(?:(?:{_LABEL}){_GAP}(?:{_COUNT})?|총{_GAP}[0-9][0-9,]*\s*{_UNIT}){_GAP}$"
"""``합계``, ``[ 합 계 ]``, ``Sub-total:``, ``합계 120건``, ``총 1,200개``: a whole cell, never a part of one."""


def records(table: Table, chosen: Mapping[str, Choice], ours: Collection[int] = ()) -> pl.LazyFrame:
    """Return the table's rows numbered from 0 (``row_id``) with their record beside the user's columns.

    The record: ``b_no``, ``name``, ``address``, ``zipcode``, and context columns, as far as columns were chosen, as
    written; several columns of one role are joined. With a number column come :data:`DIGITS` (String), :data:`RIGHT`
    (Boolean) and :data:`bansong.engine.local.ROW_PROBLEM` (String); rows with addresses alone are marked by
    :data:`bansong.engine.local.ADDRESS_LIST`. ``ours``: positions of columns from an earlier enrichment.
    """
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
    # in a column of numbers no header can stand
    if len(texts) == len(ids) - len(ours) and table.headers[chosen["b_no"].column].strip():
        first = chosen["b_no"].column
        rows = rows.with_columns((unsure & _is_header(table, first, pl.col(ids[first]))).alias(_AGAIN))
        again = pl.all_horizontal(
            _is_header(table, place, pl.when(pl.col(_AGAIN)).then(pl.col(ids[place]))) for place in texts
        )
    problem = pl.when(again).then(pl.lit("header_row")).when(totals).then(pl.lit("totals_row"))
    return rows.with_columns(problem.alias(ROW_PROBLEM))


def with_digits(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add :data:`bansong.engine.local.NUMBER`, :data:`DIGITS` and :data:`RIGHT` to rows with a ``b_no``."""
    key = pl.col(NUMBER)
    rows = rows.with_columns(business_number.key_expr(pl.col("b_no")).alias(NUMBER))
    return rows.with_columns(
        business_number.digits_expr(key).alias(DIGITS), business_number.checksum_expr(key).alias(RIGHT)
    )


def _is_totals_row(table: Table, chosen: Mapping[str, Choice], texts: Collection[int], unsure: pl.Expr) -> pl.Expr:
    # a label in a column up to the number's or in the name's, in a row whose number is not right
    number_place, name = chosen["b_no"].column, chosen.get("name")
    places = [place for place in texts if place <= number_place or (name and place == name.column)]
    ids = table.ids
    cells = [pl.when(unsure).then(pl.col(ids[place]).cast(pl.String)) for place in places]
    return pl.any_horizontal(pl.lit(False), *(cell.str.contains(_TOTALS).fill_null(False) for cell in cells))


def _is_header(table: Table, place: int, cell: pl.Expr) -> pl.Expr:
    return cell.cast(pl.String).fill_null("").str.strip_chars() == table.headers[place].strip()
