"""Columns of values rendered as the cells of a worksheet's XML, by polars expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import polars as pl

from bansong.schema import OUR_COLUMNS
from bansong.tables.table import Enriched, typed_id

MAX_CELL: Final = 32_767
MAX_COLUMNS: Final = 16_384
MAX_ROW: Final = 1_048_576
_EXACT: Final = 10**15
_EXACT_DIGITS: Final = 15
_EPOCH: Final = -25_569
"""The day of Excel's serial number 0 (1899-12-30), in days of the Unix epoch."""
_FIRST_SAFE_SERIAL: Final = 61
"""1900-03-01: before it Excel counts a 29 February 1900 that never was."""

DAY: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
MOMENT: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.]+$"
TIME: Final = r"^([0-9]+):([0-9]{2}):([0-9]{2}(?:\.[0-9]+)?)$"
_NANOSECONDS_OF_DAY: Final = 86_400_000_000_000
_TRUTH: Final = ("true", "false")

_AREA: Final = re.compile(r"\$?([A-Z]{1,3})\$?([0-9]{1,7})(?::\$?([A-Z]{1,3})\$?([0-9]{1,7}))?")
_WHOLE: Final = re.compile(r"\$?([A-Z]{1,3}):\$?([A-Z]{1,3})")
_ROWS: Final = re.compile(r"\$?([0-9]{1,7}):\$?([0-9]{1,7})")

_ESCAPES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    **{chr(code): f"_x{code:04X}_" for code in range(32) if chr(code) not in "\t\n"},
    "\ufffe": "_xFFFE_",
    "\uffff": "_xFFFF_",
}
_SPACED: Final = r"^[ \t\r\n]|[ \t\r\n]$|[\t\r\n]|  "
"""Spaces that are kept only with ``xml:space="preserve"``."""
_SPECIAL: Final = rf"[&<>\x00-\x1F\x{{FFFE}}\x{{FFFF}}]|_x[0-9A-Fa-f]{{4}}_|{_SPACED}"
"""What cannot stand in XML as it is; most columns hold none of it."""


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


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of cells; columns and rows from 1, the last ones included."""

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def parse(cls, reference: str) -> Self | None:
        """The area that ``A1:C9``, ``$A$1:$C$9``, ``A1``, ``A:C`` or ``1:9`` names; ``None`` for any other text."""
        if found := _WHOLE.fullmatch(reference):
            return cls(column_number(found[1]), 1, column_number(found[2]), MAX_ROW)
        if found := _ROWS.fullmatch(reference):
            return cls(1, int(found[1]), MAX_COLUMNS, int(found[2]))
        found = _AREA.fullmatch(reference)
        if found is None:
            return None
        left, top, right, bottom = found.groups()
        return cls(column_number(left), int(top), column_number(right or left), int(bottom or top))

    def __str__(self) -> str:
        return f"{column_letter(self.left)}{self.top}:{column_letter(self.right)}{self.bottom}"


Style = str | pl.Expr
"""The number of a cell format: one for all rows (``""`` for none), or one for each (null for none)."""


def render_rows(
    frame: pl.DataFrame, columns: Mapping[str, int], styles: Mapping[str, Style], first: int, *, blanks: bool = False
) -> pl.DataFrame:
    """Render rows of cells: ``r`` (Int64, the sheet's row, from ``first`` on) and ``cells`` (String).

    ``cells`` are the ``<c>`` elements of ``columns`` (name → column of the sheet, from 1), in that order. Text is an
    inline string, so never a formula; what Excel cannot hold as a number (more than 15 digits, infinities, days before
    March 1900, time zones) is written as text. A text of which the frame's column of
    :func:`~bansong.tables.table.typed_id` is true becomes the number, date or truth value that it was. A null is no
    cell or, with ``blanks``, an empty one that has a style.
    """
    numbers = pl.int_range(first, first + frame.height, dtype=pl.Int64, eager=True).alias("r")
    work = frame.with_columns(numbers, numbers.cast(pl.String).alias("row"))
    pieces: list[pl.Expr | str] = []
    for column, number in sorted(columns.items(), key=lambda item: item[1]):
        typed = frame[typed_id(column)] if typed_id(column) in frame.columns else None
        pieces += _cell(frame[column], typed, column_letter(number), styles[column], blanks)
    return work.select("r", _concat_pieces(pieces).alias("cells"))


def _cell(values: pl.Series, typed: pl.Series | None, letter: str, style: Style, blanks: bool) -> list[pl.Expr | str]:
    """The pieces of a column's cells; numbers, texts and nulls are distinguished only where a column has several."""
    start: list[pl.Expr | str] = [f'<c r="{letter}', pl.col("row"), '"', _attribute(style)]
    blank: list[pl.Expr | str] = [_blank(start, style)] if blanks else [""]
    number, nulls = _numbers(values) if typed is None else _typed_numbers(values, typed), values.null_count()
    truth = pl.lit(values.dtype == pl.Boolean) if typed is None else pl.col(values.name).is_in(_TRUTH)
    kind = pl.when(truth).then(pl.lit(' t="b"><v>')).otherwise(pl.lit("><v>"))
    as_number = [*start, kind, pl.lit(number), "</v></c>"]
    if nulls == len(values):
        return blank
    if number.null_count() == 0:
        return as_number
    as_text = [*start, ' t="inlineStr"><is><t', *_text(values), "</t></is></c>"]
    if number.null_count() == len(values):
        if not nulls:
            return as_text
        return [pl.when(values.is_null()).then(_concat_pieces(blank)).otherwise(_concat_pieces(as_text))]
    return [pl.coalesce(_concat_pieces(as_number), _concat_pieces(as_text), _concat_pieces(blank))]


def _attribute(style: Style) -> pl.Expr | str:
    if isinstance(style, str):
        return f' s="{style}"' if style else ""
    return pl.concat_str(pl.lit(' s="'), style, pl.lit('"')).fill_null("")


def _blank(start: list[pl.Expr | str], style: Style) -> pl.Expr:
    if isinstance(style, str):
        return _concat_pieces([*start, "/>"]) if style else pl.lit("")
    return pl.when(style.is_null()).then(pl.lit("")).otherwise(_concat_pieces([*start, "/>"]))


def _concat_pieces(pieces: list[pl.Expr | str]) -> pl.Expr:
    merged: list[pl.Expr | str] = []
    for piece in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return pl.concat_str([pl.lit(piece) if isinstance(piece, str) else piece for piece in merged])


def _numbers(values: pl.Series) -> pl.Series:
    """The content of ``<v>`` (String), null for values that only text can hold, and for none."""
    number = _number(pl.col(values.name), values.dtype)
    if number is None:
        return pl.Series(values.name, [None], dtype=pl.String).new_from_index(0, len(values))
    return values.to_frame().select(number.cast(pl.String)).to_series()


def _typed_numbers(texts: pl.Series, typed: pl.Series) -> pl.Series:
    text = pl.when(typed).then(pl.col(texts.name))
    number = text.cast(pl.Float64, strict=False)
    digits = text.str.replace(r"[eE].*$", "").str.count_matches("[0-9]")
    exact = (number.abs() < _EXACT) & ((digits <= _EXACT_DIGITS) | (number.cast(pl.String) == text))
    day = text.str.to_date("%Y-%m-%d", strict=False)
    moment = text.str.replace("T", " ", literal=True).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False)
    hours, minutes, seconds = (text.str.extract(TIME, place).cast(pl.Float64) for place in (1, 2, 3))
    return (
        texts.to_frame()
        .select(
            pl.coalesce(
                pl.when(exact).then(text),
                pl.when(text.is_in(_TRUTH)).then((text == _TRUTH[0]).cast(pl.UInt8).cast(pl.String)),
                _serial_of_day(day).cast(pl.String),
                _serial_of_moment(moment).cast(pl.String),
                ((hours * 3600 + minutes * 60 + seconds) / 86_400).cast(pl.String),
            )
        )
        .to_series()
    )


def _serial_of_day(day: pl.Expr) -> pl.Expr:
    serial = day.to_physical() - _EPOCH
    return pl.when(serial >= _FIRST_SAFE_SERIAL).then(serial)


def _serial_of_moment(moment: pl.Expr) -> pl.Expr:
    serial = moment.dt.epoch("us") / 86_400_000_000 - _EPOCH
    return pl.when(serial >= _FIRST_SAFE_SERIAL).then(serial)


def _number(value: pl.Expr, dtype: pl.DataType) -> pl.Expr | None:
    """The number that stands for a value, null for values that only text can hold; ``None`` for types of text."""
    if dtype == pl.Boolean:
        return value.cast(pl.UInt8)
    if dtype.is_integer():
        wide = value.cast(pl.Int128)
        return pl.when((wide < _EXACT) & (wide > -_EXACT)).then(value)
    if dtype.is_float():
        return pl.when(value.is_finite()).then(value)
    if dtype == pl.Date:
        return _serial_of_day(value)
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is None:
        return _serial_of_moment(value)
    if dtype == pl.Time:
        return value.to_physical() / _NANOSECONDS_OF_DAY
    return None


def _text(values: pl.Series) -> list[pl.Expr | str]:
    """The rest of the tag ``<t`` and XML text in it.

    Control characters are spelled as Excel does, ``_x000D_``, and text that looks like that is guarded; spaces at the
    ends are marked to be kept.
    """
    value = pl.col(values.name)
    text = value.dt.to_string("iso") if values.dtype.is_temporal() else value.cast(pl.String)
    if values.dtype != pl.String or not values.str.contains(_SPECIAL).any():
        return [">", text]
    kept = pl.when(value.str.contains(_SPACED)).then(pl.lit(' xml:space="preserve">')).otherwise(pl.lit(">"))
    guarded = text.str.replace_all(r"_(x[0-9A-Fa-f]{4}_)", "_x005F_${1}")
    return [kept, guarded.str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))]


WIDTHS: Final = dict(zip(OUR_COLUMNS, (13, 12, 8, 13, 13, 24, 70, 11, 30, 9, 24, 12, 13, 15, 14, 30), strict=True))
"""Characters; reasons are long, so they get a wide column rather than a tall row."""


def titles(result: Enriched, columns: Mapping[str, int]) -> pl.DataFrame:
    """Return the output's headers as one row, under the columns' names; blank ones null."""
    return pl.DataFrame({column: [header or None] for column, header in result.layout if column in columns})
