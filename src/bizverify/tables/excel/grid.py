"""One sheet out of the parser: its columns with their natural types, everything in them as Excel shows it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.errors import InputError

if TYPE_CHECKING:
    from fastexcel import ExcelReader, ExcelSheet

_EXACT_INTEGERS: Final = 10**15
_DAY_OF_TIMES: Final = date(1899, 12, 31)
"""The day that calamine puts before a time of day."""
_FIRST_DATE: Final = pl.duration(days=3660)
"""A text column's dates before 1910 are lengths of time: nobody was a customer then."""
_DATED: Final = r"^[0-9]{4,}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?$"
_UNSURE: Final = re.compile(r"could not determine dtype for column (.*)")
_RETRIES: Final = 8


@dataclass(frozen=True, slots=True)
class SheetGrid:
    """A sheet below its first row: ``names`` are that row's cells, ``left`` its first column in the sheet.

    ``height``: all rows, also those without a value at the end. ``renamed``: some names may not be the cells' texts,
    because fastexcel makes them unique.
    """

    frame: pl.DataFrame
    names: tuple[str, ...]
    height: int
    left: int
    renamed: bool
    visible: bool


def top_rows(book: ExcelReader, sheet: str, count: int) -> list[tuple[str | None, ...]]:
    """The first rows of a sheet as text, from the first one that holds a value."""
    return book.load_sheet(sheet, header_row=None, n_rows=count, dtypes="string").to_polars().rows()


def load_below(book: ExcelReader, sheet: str, whole: SheetGrid, skipped: int, start: int, *, name: str) -> SheetGrid:
    """Load the rows of a sheet once more, without the first ``skipped`` of ``whole``.

    The parser counts the rows to skip from the top of the sheet if it skips any, and does not tell where its first
    value is: ``start`` is a guess, and the number of rows that come back tells whether it was right. Raises
    :class:`InputError`, which calls the sheet ``name``, rather than return other rows.
    """
    due = whole.height - skipped
    grid = load_grid(book, sheet, skipped + start)
    if grid.height != due:
        grid = load_grid(book, sheet, max(skipped + start + grid.height - due, 0))
    if grid.height != due or grid.left != whole.left or grid.frame.width != whole.frame.width:
        raise InputError(f"{name}: the rows above the header cannot be told apart; delete them and try again")
    return grid


def load_grid(book: ExcelReader, sheet: str, skipped: int = 0, *, headed: bool = True) -> SheetGrid:
    """Load the rows of a sheet below its first one that holds a value, or where ``skipped``, below that many rows.

    Where it is not ``headed`` the first one is among them.

    The frame's columns are ``c0``, ``c1``, …: text stays text, whole numbers are Int64, dates Date, times of day Time;
    a column of mixed types is text, with dates as ISO dates in it. Rows below the last value are left out.
    """
    loaded, forced = _load_untyped(book, sheet, skipped, headed)
    columns = loaded.selected_columns
    frame = loaded.to_polars()
    ids = [f"c{place}" for place in range(frame.width)]
    frame.columns = ids
    places = {id_: column.absolute_index for id_, column in zip(ids, columns, strict=True)}
    dated = _columns_with_dates(frame)
    if dated:
        wanted = {id_: places[id_] for id_ in dated}
        frame = frame.with_columns(_as_shown(book, sheet, skipped, frame, wanted, headed))
    names = tuple("" if column.column_name_from == "generated" else column.name for column in columns)
    found = set(names)
    again = any(name.rpartition("_")[0] in found and name.rpartition("_")[2].isdecimal() for name in names)
    left = columns[0].absolute_index if columns else 0
    visible = loaded.visible == "visible"
    return SheetGrid(_natural_types(_without_tail(frame)), names, frame.height, left, again or forced, visible)


def _load_untyped(book: ExcelReader, sheet: str, skipped: int, headed: bool) -> tuple[ExcelSheet, bool]:
    """The sheet, and whether it took more than one attempt: columns of texts and lengths of time are no type."""
    import fastexcel

    texts: dict[str | int, Any] = {}
    for attempt in range(_RETRIES + 1):
        dtypes: Any = "string" if attempt == _RETRIES else texts or None
        try:
            options: dict[str, Any] = {"skip_rows": skipped or None, "schema_sample_rows": None}
            return book.load_sheet(sheet, header_row=0 if headed else None, dtypes=dtypes, **options), bool(texts)
        except fastexcel.UnsupportedColumnTypeCombinationError as error:
            found = _UNSURE.search(str(error))
            if attempt == _RETRIES:
                raise
            if found:
                texts[found.group(1)] = "string"
    raise AssertionError("unreachable")


def _columns_with_dates(frame: pl.DataFrame) -> list[str]:
    """The columns of text in which something looks like a moment."""
    texts = frame.select(pl.col(pl.String).str.contains(_DATED).any())
    return [name for name in texts.columns if texts[name][0]]


def _as_shown(
    book: ExcelReader, sheet: str, skipped: int, frame: pl.DataFrame, places: dict[str, int], headed: bool
) -> list[pl.Series]:
    """Columns of text with the dates and times in them as ISO dates, times and hours; typed texts stay as they are."""
    options: dict[str, Any] = {"skip_rows": skipped or None, "header_row": 0 if headed else None}
    loaded = book.load_sheet(sheet, use_columns=list(places.values()), dtypes="duration", **options)
    serials = loaded.to_polars()
    serials.columns = [f"serial_{id_}" for id_ in places]
    both = pl.concat([frame.select(list(places)), serials], how="horizontal")
    shown = both.select(_shown_text(pl.col(id_), pl.col(f"serial_{id_}")).alias(id_) for id_ in places)
    return [shown[id_] for id_ in places]


def _shown_text(text: pl.Expr, serial: pl.Expr) -> pl.Expr:
    """``serial``: the days that Excel stores, as a duration; null for what is neither date nor time."""
    return (
        pl.when(serial.is_null() | ~text.str.contains(_DATED))
        .then(text)
        .when(serial < pl.duration(days=1))
        .then(text.str.slice(11))
        .when(serial < _FIRST_DATE)
        .then(_hours(serial))
        .otherwise(text.str.strip_suffix(" 00:00:00"))
    )


def _hours(length: pl.Expr) -> pl.Expr:
    """A length of time as Excel shows it, 36:00:00."""
    seconds = length.dt.total_seconds().abs()
    two = [(value % 60).cast(pl.String).str.zfill(2) for value in (seconds // 60, seconds)]
    sign = pl.when(length < pl.duration()).then(pl.lit("-")).otherwise(pl.lit(""))
    return sign + pl.concat_str((seconds // 3600).cast(pl.String), *two, separator=":")


def _without_tail(frame: pl.DataFrame) -> pl.DataFrame:
    """Leave out the rows at the end that hold nothing but white space."""
    if not frame.width:
        return frame
    blank = [pl.col(pl.String).str.strip_chars() == "", pl.exclude(pl.String).is_null()]
    for size in (100, frame.height):  # the end is found in the last rows, or else by looking at all
        tail = frame.tail(size)
        empty = tail.select(pl.all_horizontal(*[expr.fill_null(True) for expr in blank]).alias("empty"))["empty"]
        filled = (~empty).arg_true()
        if len(filled):
            return frame.head(frame.height - tail.height + filled[-1] + 1)
    return frame.clear()


def _natural_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Excel knows only floats and date-times: make integers, dates and times of the columns that hold nothing else."""
    natural: list[pl.Expr] = []
    for values in frame:
        if values.dtype == pl.Float64 and ((values % 1 == 0) & (values.abs() < _EXACT_INTEGERS)).all():
            natural.append(pl.col(values.name).cast(pl.Int64))
        elif values.dtype == pl.Datetime and (values.dt.date() == _DAY_OF_TIMES).all():
            natural.append(pl.col(values.name).dt.time())
        elif values.dtype == pl.Datetime and (values == values.dt.truncate("1d")).all():
            natural.append(pl.col(values.name).cast(pl.Date))
        elif values.dtype == pl.Duration:
            natural.append(_hours(pl.col(values.name)).alias(values.name))
    return frame.with_columns(natural)
