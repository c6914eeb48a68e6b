"""Frames in memory (polars, pandas, pyarrow) as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import polars as pl

from bansong.errors import InputError, Problem
from bansong.tables import write_table
from bansong.tables.columns import has_role
from bansong.tables.format import FRAME, Format
from bansong.tables.frame_types import as_known_frame, header_texts, is_pandas
from bansong.tables.table import Enriched, Table, column_ids, escape_formula, positional
from bansong.translation import gettext

FRAME_WITHOUT_COLUMNS: Final = Problem(
    "files.frame_without_columns", "the frame has only an index; make columns of it with reset_index()"
)

_NOT_CONVERTED: Final = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError, NotImplementedError)
"""What polars raises where it has no such type; pyarrow's errors are among these."""


def read(frame: Any) -> Table:
    """Take a frame as a table: polars, pandas, pyarrow, or any object that gives Arrow data.

    Column names may repeat; those of several levels are joined. A pandas index is not a column and is left out. A
    column of values for which polars has no type is text.
    Raises :class:`InputError` for anything else.
    """
    lazy, headers = _lazy(as_known_frame(frame))
    return Table(
        lazy, headers, FRAME, gettext("the frame"), notes=nested_roles(headers, lazy.collect_schema().dtypes())
    )


def nested_roles(headers: Sequence[str], dtypes: Sequence[pl.DataType]) -> tuple[str, ...]:
    """Warnings about columns that have the header of a role and hold lists, which no role can.

    Of structs, values can be named (see :mod:`bansong.tables.nested`).
    """
    return tuple(
        gettext(
            "column {header!r} holds {dtype}, so it is not used; give its text in a column of its own",
            header=header,
            dtype=dtype,
        )
        for header, dtype in zip(headers, dtypes, strict=True)
        if dtype.is_nested() and not isinstance(dtype, pl.Struct) and has_role(header)
    )


def _lazy(frame: Any) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    """The columns as ``c0``, ``c1``, … and their names: polars has no two columns of one name, others have."""
    if isinstance(frame, pl.LazyFrame | pl.DataFrame):
        lazy = frame.lazy()
        names = lazy.collect_schema().names()
        return positional(lazy, names), tuple(names)
    if is_pandas(frame):
        if len(frame) and not frame.shape[1]:
            raise InputError(FRAME_WITHOUT_COLUMNS)
        ids = column_ids(frame.shape[1])
        columns = [_series(pl.from_pandas, frame.iloc[:, place]).alias(id_) for place, id_ in enumerate(ids)]
        return pl.LazyFrame(columns), header_texts(frame.columns)
    return _from_arrow(frame).lazy(), tuple(frame.column_names)


def _from_arrow(frame: Any) -> pl.DataFrame:
    ids = column_ids(frame.num_columns)
    try:
        return cast(pl.DataFrame, pl.from_arrow(frame.rename_columns(ids)))
    except _NOT_CONVERTED:
        return pl.DataFrame([_series(pl.from_arrow, frame.column(place)).alias(id_) for place, id_ in enumerate(ids)])


def _series(convert: Callable[[Any], Any], column: Any) -> pl.Series:
    try:
        return cast(pl.Series, convert(column))
    except _NOT_CONVERTED:
        # only such columns are gone through value by value; the output has the user's own
        values = column if hasattr(column, "iloc") else column.to_pylist()
        return pl.Series([_text(value) for value in values], dtype=pl.String)


def _text(value: Any) -> str | None:
    """A value as one would write it: 1248100998.0 is 1248100998, None and NaN are blank."""
    if isinstance(value, str):
        return value
    if str(value) in ("None", "nan", "NaT", "<NA>"):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def write_frame(
    frame: pl.DataFrame | pl.LazyFrame, target: Path, format: Format, theirs: Iterable[str]
) -> tuple[pl.DataFrame, Callable[[], int]]:
    """Write a frame of our own as :func:`bansong.tables.write_table` does; the tally counts its ``rows``.

    ``theirs``: columns with texts of the user's, none of which may begin a formula in a spreadsheet.
    """
    if format.can.formulas:
        frame = frame.with_columns(map(escape_formula, theirs))
    table = read(frame)
    layout = tuple(zip(table.ids, table.headers, strict=True))
    result = Enriched(table, table.frame, layout, table.frame.select(pl.len().alias("rows")))
    return write_table(result, target, format, "utf-8-sig" if format.can.encoding else None)
