"""Columns of values rendered as the cells of a worksheet's XML, by polars expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from bizverify.model import ADDED_COLUMNS
from bizverify.tables.table import Enriched

MAX_CELL: Final = 32_767
MAX_COLUMNS: Final = 16_384
_EXACT: Final = 10**15
_EPOCH: Final = -25_569
"""The day of Excel's serial number 0 (1899-12-30), in days of the Unix epoch."""
_FIRST_SAFE_SERIAL: Final = 61
"""1900-03-01: before it Excel counts a 29 February 1900 that never was."""

_ESCAPES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    **{chr(code): f"_x{code:04X}_" for code in range(32) if chr(code) not in "\t\n"},
    "\ufffe": "_xFFFE_",
    "\uffff": "_xFFFF_",
}


def column_letter(number: int) -> str:
    """``1`` → ``A``, ``28`` → ``AB``."""
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def column_number(letters: str) -> int:
    """``A`` → ``1``, ``AB`` → ``28``."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number


def cell_expr(value: pl.Expr, dtype: pl.DataType, letter: str, style: pl.Expr) -> pl.Expr:
    """Return a column's values as ``<c>`` elements (String, ``""`` for null).

    The frame has the sheet's row number as ``row`` (String). ``style`` is the attribute `` s="…"`` or ``""``. Text is
    an inline string, so never a formula; what Excel cannot hold as a number (15 digits and more, infinities, days
    before March 1900, time zones) is written as text.
    """
    start = pl.concat_str(pl.lit(f'<c r="{letter}'), pl.col("row"), pl.lit('"'), style)
    as_text = pl.concat_str(
        start,
        pl.lit(' t="inlineStr"><is><t xml:space="preserve">'),
        _escaped(_text(value, dtype)),
        pl.lit("</t></is></c>"),
    )
    number = _number(value, dtype)
    if number is None:
        return as_text.fill_null("")
    kind = ' t="b"><v>' if dtype == pl.Boolean else "><v>"
    as_number = pl.concat_str(start, pl.lit(kind), number, pl.lit("</v></c>"))
    return pl.coalesce(as_number, as_text).fill_null("")


def _number(value: pl.Expr, dtype: pl.DataType) -> pl.Expr | None:
    """The content of ``<v>``, null for values that only text can hold; ``None`` for dtypes that are text."""
    if dtype == pl.Boolean:
        return value.cast(pl.UInt8).cast(pl.String)
    if dtype.is_integer():
        wide = value.cast(pl.Int128)
        return pl.when((wide < _EXACT) & (wide > -_EXACT)).then(value.cast(pl.String))
    if dtype.is_float():
        return pl.when(value.is_finite()).then(value.cast(pl.String))
    if dtype == pl.Date:
        serial = value.to_physical() - _EPOCH
        return pl.when(serial >= _FIRST_SAFE_SERIAL).then(serial.cast(pl.String))
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is None:
        serial = value.dt.epoch("us") / 86_400_000_000 - _EPOCH
        return pl.when(serial >= _FIRST_SAFE_SERIAL).then(serial.cast(pl.String))
    return None


def _text(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    return value.dt.to_string("iso") if dtype.is_temporal() else value.cast(pl.String)


def _escaped(text: pl.Expr) -> pl.Expr:
    """XML text; control characters as Excel spells them, ``_x000D_``, and text that looks like that guarded."""
    guarded = text.str.replace_all(r"_(x[0-9A-Fa-f]{4}_)", "_x005F_${1}")
    return guarded.str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))


WIDTHS: Final = dict(zip(ADDED_COLUMNS, (13, 12, 8, 13, 13, 24, 70, 11, 30), strict=True))
"""Characters; reasons are long, so they get a wide column rather than a tall row."""


def rendered(frame: pl.DataFrame, columns: dict[str, int], styles: Mapping[str, pl.Expr], first: int) -> pl.DataFrame:
    """Rows of cells for :meth:`SheetXml.with_cells`, the first of them in row ``first``."""
    numbers = pl.int_range(first, first + frame.height, dtype=pl.Int64, eager=True).alias("r")
    work = frame.with_columns(numbers, numbers.cast(pl.String).alias("row"))
    cells = [
        cell_expr(pl.col(column), frame.schema[column], column_letter(number), styles[column])
        for column, number in sorted(columns.items(), key=lambda item: item[1])
    ]
    return work.select("r", pl.concat_str(cells).alias("cells"))


def titles(result: Enriched, columns: Mapping[str, int]) -> pl.DataFrame:
    """Return the output's headers as one row, under the columns' names; blank ones null."""
    return pl.DataFrame({column: [header or None] for column, header in result.layout if column in columns})
