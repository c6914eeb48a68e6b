"""Gives an enriched frame back as the library that it came from has it, with the user's own columns untouched.

Only the added columns are made by polars; the others are those of the given frame, so that no dtype, index or metadata
of theirs goes through a conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import polars as pl

from bansong.errors import InputError, Problem
from bansong.tables.table import Enriched

NOT_A_TABLE: Final = Problem(
    "files.not_a_table", "a {name} is no table; give a polars, pandas or pyarrow one, or a file to enrich()"
)
DASK_NOT_COMPUTED: Final = Problem(
    "files.dask_not_computed", "a frame of dask is not computed yet; give `frame.compute()`, or its partitions"
)


def is_pandas(frame: Any) -> bool:
    """Whether a frame is one of pandas, or of a subclass."""
    return hasattr(frame, "columns") and any(
        one.__module__.partition(".")[0] == "pandas" for one in type(frame).__mro__
    )


def is_arrow(frame: Any) -> bool:
    """Whether a frame is a pyarrow Table or RecordBatch."""
    return type(frame).__module__.partition(".")[0] == "pyarrow" and hasattr(frame, "rename_columns")


def is_frame(given: object) -> bool:
    """Whether an object is a frame: of polars, pandas, pyarrow, or any other that gives Arrow data."""
    return isinstance(given, pl.LazyFrame) or is_pandas(given) or hasattr(given, "__arrow_c_stream__")


def as_known_frame(frame: Any) -> Any:
    """Return a frame of polars, pandas or pyarrow as it is, and any other that gives Arrow data as a pyarrow Table.

    Raises :class:`InputError` for a frame of dask and for anything that is no frame.
    """
    if isinstance(frame, pl.DataFrame | pl.LazyFrame) or is_pandas(frame) or is_arrow(frame):
        return frame
    if type(frame).__module__.startswith("dask"):
        raise InputError(DASK_NOT_COMPUTED)
    if hasattr(frame, "__arrow_c_stream__"):
        import pyarrow as pa

        with suppress(TypeError, ValueError):  # a single column gives such data, too
            return pa.table(frame)
    raise InputError(NOT_A_TABLE, name=type(frame).__name__)


def collect_like(result: Enriched, given: Any) -> tuple[Any, int, pl.DataFrame]:
    """Collect an enriched table as a frame of the library that ``given`` is of; return it, its rows and the tally."""
    if isinstance(given, pl.DataFrame | pl.LazyFrame):
        frame, tally = pl.collect_all([result.with_titles(lists=True), result.tally], engine="streaming")
        return (frame.lazy() if isinstance(given, pl.LazyFrame) else frame), frame.height, tally
    places = {column: place for place, column in enumerate(result.table.ids)}
    sources = [places.get(column) for column, _ in result.layout]
    added = [name for (_, name), place in zip(result.layout, sources, strict=True) if place is None]
    columns = [each for each, place in zip(result.layout, sources, strict=True) if place is None]
    frame, tally = pl.collect_all([result.with_columns_of(columns, lists=True), result.tally], engine="streaming")
    attach = _attach_to_pandas if is_pandas(given) else _attach_to_arrow
    return attach(given, frame, added, sources), frame.height, tally


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
    """Names as an Index like that of the columns: in a MultiIndex they are on the first level, the others blank."""
    import pandas as pd

    if isinstance(columns, pd.MultiIndex):
        blank = [""] * (columns.nlevels - 1)
        return pd.MultiIndex.from_tuples([(name, *blank) for name in names], names=columns.names)
    return pd.Index(names, name=columns.name)


def _to_pandas(series: pl.Series, index: Any) -> Any:
    import pandas as pd

    if series.dtype == pl.List:
        return pd.Series(series.to_list(), index=index, dtype=object)
    if series.dtype == pl.String:
        return pd.Series(pd.array(series.to_list(), dtype=_text_dtype()), index=index)
    return pd.Series(series.to_numpy(), index=index)


def _text_dtype() -> Any:
    """The dtype that this pandas gives text: ``str`` from its third release on, ``object`` before."""
    import pandas as pd

    return pd.Series(["text"]).dtype


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


def header_texts(columns: Any) -> tuple[str, ...]:
    """The headers of a pandas frame as texts; those of several levels joined, without what pandas calls unnamed."""
    if columns.nlevels == 1:
        return tuple(map(str, columns))
    return tuple(" ".join(part for part in map(str, header) if _is_label(part)) for header in columns)


def _is_label(part: str) -> bool:
    """Whether a level of a header says something: a blank cell of a sheet is ``Unnamed: 1_level_0`` in pandas."""
    return bool(part) and not part.startswith("Unnamed: ")
