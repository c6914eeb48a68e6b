"""Convert frames of pandas, polars and pyarrow to tables and back."""
# polars makes only the added columns. The user's are never converted, so that dtypes, index and metadata stay.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import polars as pl

from bansong.base.errors import InputError, Problem
from bansong.base.messages import gettext, gettext_noop
from bansong.tables.detect import write_table
from bansong.tables.headers import has_role
from bansong.tables.table import FRAME, Enriched, Format, Section, Table, column_ids, escape_formula, positional

NOT_A_TABLE: Final = Problem(
    "files.not_a_table", "a {name} is no table; give a polars, pandas or pyarrow one, or a file to enrich()"
)
DASK_NOT_COMPUTED: Final = Problem(
    "files.dask_not_computed", "a frame of dask is not computed yet; give `frame.compute()`, or its partitions"
)
FRAME_WITHOUT_COLUMNS: Final = Problem(
    "files.frame_without_columns", "the frame has only an index; make columns of it with reset_index()"
)


def is_pandas(frame: Any) -> bool:
    kinds = type(frame).__mro__
    return hasattr(frame, "columns") and any(one.__module__.partition(".")[0] == "pandas" for one in kinds)


def is_frame(given: object) -> bool:
    return isinstance(given, pl.LazyFrame) or is_pandas(given) or hasattr(given, "__arrow_c_stream__")


def as_known_frame(frame: Any) -> Any:
    is_arrow = type(frame).__module__.partition(".")[0] == "pyarrow" and hasattr(frame, "rename_columns")
    if isinstance(frame, pl.DataFrame | pl.LazyFrame) or is_pandas(frame) or is_arrow:
        return frame
    if type(frame).__module__.startswith("dask"):
        raise InputError(DASK_NOT_COMPUTED)
    if hasattr(frame, "__arrow_c_stream__"):
        import pyarrow as pa

        with suppress(TypeError, ValueError):  # a single column gives such data, too
            return pa.table(frame)
    raise InputError(NOT_A_TABLE, name=type(frame).__name__)


def collect_like(result: Enriched, given: Any) -> tuple[Any, int, pl.DataFrame]:
    if isinstance(given, pl.DataFrame | pl.LazyFrame):
        frame, tally = pl.collect_all([result.with_titles(lists=True), result.tally], engine="streaming")
        return (frame.lazy() if isinstance(given, pl.LazyFrame) else frame), frame.height, tally
    places = {column: place for place, column in enumerate(result.table.ids)}
    sources = [places.get(column) for column, _ in result.layout]
    added = [each for each, place in zip(result.layout, sources, strict=True) if place is None]
    frame, tally = pl.collect_all([result.with_titles(added, lists=True), result.tally], engine="streaming")
    attach = _attach_to_pandas if is_pandas(given) else _attach_to_arrow
    return attach(given, frame, [header for _, header in added], sources), frame.height, tally


def _attach_to_pandas(given: Any, added: pl.DataFrame, names: Sequence[str], sources: Sequence[int | None]) -> Any:
    import pandas as pd

    kept = [place for place in sources if place is not None]
    # side by side by position: by the index, whose labels may repeat or be of dates, pandas would align or sort
    rows = pd.RangeIndex(len(given))
    parts = [given.iloc[:, kept].set_axis(rows, axis="index"), *(_to_pandas(series, rows) for series in added)]
    whole = pd.concat(parts, axis="columns").set_axis(given.index, axis="index")
    headers = given.columns[kept].append(_as_headers(given.columns, names))
    numbers, behind = iter(range(len(kept))), iter(range(len(kept), len(sources)))
    order = [next(behind if place is None else numbers) for place in sources]
    whole.columns = headers
    whole.attrs = dict(given.attrs)
    return whole.iloc[:, order] if order != sorted(order) else whole


def _as_headers(columns: Any, names: Sequence[str]) -> Any:
    import pandas as pd

    if isinstance(columns, pd.MultiIndex):
        blank = [""] * (columns.nlevels - 1)
        return pd.MultiIndex.from_tuples([(name, *blank) for name in names], names=columns.names)
    return pd.Index(names, name=columns.name)


def _to_pandas(series: pl.Series, index: Any) -> Any:
    import pandas as pd

    if series.dtype == pl.List:
        return pd.Series(_python_lists(series), index=index, dtype=object)
    if series.dtype == pl.String:
        text = pd.Series(["text"]).dtype  # ``str`` from pandas 3 on, ``object`` before
        if getattr(text, "storage", None) == "pyarrow":
            return pd.Series(text.__from_arrow__(series.to_arrow()), index=index)
        return pd.Series(pd.array(series.to_list(), dtype=text), index=index)
    return pd.Series(series.to_numpy(), index=index)


def _python_lists(lists: pl.Series) -> list[list[str] | None]:
    # each text becomes one object, however many rows have it: a text a row takes most of the time, and gigabytes
    lengths = lists.list.len()
    texts = lists.filter(lengths > 0).explode()
    words = texts.unique()
    numbers = texts.cast(pl.Enum(words)).to_physical()
    flat = words.to_numpy()[numbers.to_numpy()].tolist()
    ends = lengths.fill_null(0).cum_sum()
    return [None if length is None else flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _attach_to_arrow(given: Any, added: pl.DataFrame, names: Sequence[str], sources: Sequence[int | None]) -> Any:
    import pyarrow as pa

    table, new = added.to_arrow(), iter(range(added.width))
    arrays, fields = [], []
    for place in sources:
        if place is not None:
            arrays.append(given.column(place))
            fields.append(given.schema.field(place))
            continue
        at = next(new)
        arrays.append(table.column(at).combine_chunks() if isinstance(given, pa.RecordBatch) else table.column(at))
        fields.append(table.schema.field(at).with_name(names[at]))
    schema = pa.schema(fields, metadata=given.schema.metadata)
    return type(given).from_arrays(arrays, schema=schema)


def _header_texts(columns: Any) -> tuple[str, ...]:
    """Return the headers of a pandas frame. Levels are joined, except blank ones (``Unnamed: 1_level_0``)."""
    if columns.nlevels == 1:
        return tuple(map(str, columns))
    levels = ([part for part in map(str, header) if part and not part.startswith("Unnamed: ")] for header in columns)
    return tuple(map(" ".join, levels))


# raised by polars for types that it lacks; pyarrow's errors are among these
_NOT_CONVERTED: Final = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError, NotImplementedError)


def read(frame: Any) -> Table:
    """Read a frame as a table, without a pandas index; columns of types that polars lacks become text."""
    known = as_known_frame(frame)
    lazy, headers = _lazy(known)
    notes = nested_roles(headers, lazy.collect_schema().dtypes())
    rows = None if isinstance(known, pl.LazyFrame) else len(known)
    return Table(lazy, headers, FRAME, gettext("the frame"), notes=notes, rows=rows)


def nested_roles(headers: Sequence[str], dtypes: Sequence[pl.DataType]) -> tuple[str, ...]:
    unused = gettext_noop("column {header!r} holds {dtype}, so it is not used; give its text in a column of its own")
    return tuple(
        gettext(unused, header=header, dtype=dtype)
        for header, dtype in zip(headers, dtypes, strict=True)
        if dtype.is_nested() and not isinstance(dtype, pl.Struct) and has_role(header)
    )


def _lazy(frame: Any) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    if isinstance(frame, pl.LazyFrame | pl.DataFrame):
        lazy = frame.lazy()
        names = lazy.collect_schema().names()
        return positional(lazy, names), tuple(names)
    if is_pandas(frame):
        if len(frame) and not frame.shape[1]:
            raise InputError(FRAME_WITHOUT_COLUMNS)
        ids = column_ids(frame.shape[1])
        columns = [_series(pl.from_pandas, frame.iloc[:, place]).alias(id_) for place, id_ in enumerate(ids)]
        return pl.LazyFrame(columns), _header_texts(frame.columns)
    ids = column_ids(frame.num_columns)
    try:
        whole = cast(pl.DataFrame, pl.from_arrow(frame.rename_columns(ids)))
    except _NOT_CONVERTED:
        whole = pl.DataFrame([_series(pl.from_arrow, frame.column(place)).alias(id_) for place, id_ in enumerate(ids)])
    return whole.lazy(), tuple(frame.column_names)


def _series(convert: Callable[[Any], Any], column: Any) -> pl.Series:
    try:
        return cast(pl.Series, convert(column))
    except _NOT_CONVERTED:
        # only such columns are gone through value by value; the output has the user's own
        values = column if hasattr(column, "iloc") else column.to_pylist()
        return pl.Series([_text(value) for value in values], dtype=pl.String)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if str(value) in ("None", "nan", "NaT", "<NA>"):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def write_frame(
    frame: pl.DataFrame | pl.LazyFrame,
    target: Path,
    format: Format,
    theirs: Iterable[str],
    sections: tuple[Section, ...] = (),
) -> tuple[pl.DataFrame, Callable[[], int]]:
    """Write a frame that bansong made. No cell of the columns ``theirs`` (texts of the user) may begin a formula."""
    # ``sections``: of a second sheet
    if format.can.formulas:
        frame = frame.with_columns(map(escape_formula, theirs))
    table = read(frame)
    layout = tuple(zip(table.ids, table.headers, strict=True))
    rows = table.frame.select(pl.len().alias("rows"))
    result = Enriched(table, table.frame, layout, rows, (lambda _: sections) if sections else None)
    return write_table(result, target, format, "utf-8-sig" if format.takes("encoding") else None)
