"""Frames in memory (polars, pandas, pyarrow) as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import polars as pl

from bizverify.errors import InputError
from bizverify.tables.columns import has_role
from bizverify.tables.frame_types import header_texts, is_arrow, is_pandas
from bizverify.tables.table import Enriched, Table, column_ids, positional
from bizverify.translation import gettext

_NOT_CONVERTED: Final = (pl.exceptions.PolarsError, TypeError, ValueError, NotImplementedError)
"""What polars raises where it has no such type; pyarrow's errors are among these."""


def read(frame: Any) -> Table:
    """Take a polars DataFrame or LazyFrame, a pandas DataFrame, or a pyarrow Table or RecordBatch as a table.

    Column names may repeat; those of several levels are joined. A pandas index is not a column and is left out; a
    pandas column of mixed objects is text.
    Raises :class:`InputError` for anything else.
    """
    lazy, headers = _lazy(frame)
    return Table(
        lazy, headers, "frame", gettext("the frame"), notes=nested_roles(headers, lazy.collect_schema().dtypes())
    )


def nested_roles(headers: Sequence[str], dtypes: Sequence[pl.DataType]) -> tuple[str, ...]:
    """Warnings about columns that have the header of a role and hold lists, which no role can.

    Of structs, values can be named (see :mod:`bizverify.tables.nested`).
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
        ids = column_ids(frame.shape[1])
        columns = [_series(frame.iloc[:, place]).alias(id_) for place, id_ in enumerate(ids)]
        return pl.LazyFrame(columns), header_texts(frame.columns)
    if is_arrow(frame):
        converted = _from_arrow(frame)
        if isinstance(converted, pl.DataFrame):
            return converted.lazy(), tuple(frame.column_names)
    raise InputError(
        gettext(
            "a {name} is no table; give a polars, pandas or pyarrow one, or a file to enrich()",
            name=type(frame).__name__,
        )
    )


def _from_arrow(frame: Any) -> pl.DataFrame | pl.Series:
    """A pyarrow table under positional names; raises :class:`InputError` naming a column of a type polars has not."""
    try:
        return pl.from_arrow(frame.rename_columns(column_ids(frame.num_columns)))
    except _NOT_CONVERTED:
        for place, name in enumerate(frame.column_names):
            column = frame.column(place)
            try:
                pl.from_arrow(column)
            except _NOT_CONVERTED:
                message = gettext(
                    "column {name!r}: {type} values cannot be read; make them text, or leave it out",
                    name=name,
                    type=column.type,
                )
                raise InputError(message) from None
        raise


def _series(column: Any) -> pl.Series:
    """A pandas column; as text where its objects are of several types."""
    try:
        return cast(pl.Series, pl.from_pandas(column))
    except _NOT_CONVERTED:
        if column.dtype != object:
            raise InputError(
                gettext(
                    "column {name!r}: {dtype} values cannot be read; make them text",
                    name=column.name,
                    dtype=column.dtype,
                )
            ) from None
        # only such columns are gone through value by value: no type of polars or pyarrow holds them
        return pl.Series([_text(value) for value in column], dtype=pl.String)


def _text(value: Any) -> str | None:
    """A value as one would write it: 1248100998.0 is 1248100998, None and NaN are blank."""
    if isinstance(value, str):
        return value
    if str(value) in ("None", "nan", "NaT", "<NA>"):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_written(frame: pl.DataFrame | pl.LazyFrame) -> Enriched:
    """Return a frame of our own as what :func:`bizverify.tables.write_table` writes; the tally counts its ``rows``."""
    table = read(frame)
    layout = tuple(zip(table.ids, table.headers, strict=True))
    return Enriched(table, table.frame, layout, table.frame.select(pl.len().alias("rows")))
