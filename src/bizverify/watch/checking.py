"""Watches held against what was found of them: which grades changed, which businesses closed. Frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import polars as pl

from bizverify.engine import LocalEngine
from bizverify.watch.types import CLOSED

JUDGED_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "number": pl.Int64,
    "b_no": pl.String,
    "name": pl.String,
    "address": pl.String,
}
"""What a :class:`Judge` is asked about."""
VERDICT_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "biz_status": pl.String,
    "grade": pl.String,
    "bounce_prob": pl.Float64,
    "action": pl.String,
}
"""What it adds."""
UNKNOWN: Final = "unknown"
OPEN: Final = ("active", "suspended")
"""A closed business of which one of these is found has opened again. Not knowing is no opening."""


class Judge(Protocol):
    """Who says what a business's status and grade are now: the seam for other sources than the registry."""

    def judge(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the columns of :data:`VERDICT_COLUMNS` to a frame of :data:`JUDGED_COLUMNS`, each row once, in any order.

        A row of which nothing could be found may be left out: it stays due. Raises what the source raises.
        """
        ...


class LocalJudge:
    """Judges by the embedded engine: its registry, gazetteer and model.

    ``answer`` is used in the place of the engine's own, where a source knows statuses better than its registry.
    """

    def __init__(self, engine: LocalEngine, answer: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None) -> None:
        self._engine = engine
        self._answer = answer or engine.answer

    def judge(self, frame: pl.DataFrame) -> pl.DataFrame:
        """See :meth:`Judge.judge`; raises :class:`bizverify.errors.RegistryError` and the engine's other errors."""
        answered = self._answer(frame.lazy()).select(*JUDGED_COLUMNS, *VERDICT_COLUMNS)
        with self._engine.running():
            return answered.collect()


def judge_watches(watches: pl.DataFrame, judge: Judge) -> pl.DataFrame:
    """Ask a judge about the watches of :func:`bizverify.watch.store.due`.

    Returns what :func:`bizverify.watch.store.record` takes: number (Int64), name, address (String: what was asked
    about) and the columns of :data:`VERDICT_COLUMNS`, one row for each that was answered. Raises what the judge raises.
    """
    asked = watches.select("number", "name", "address", b_no="biz_no").select(*_cast(JUDGED_COLUMNS))
    return judge.judge(asked).select("number", "name", "address", *_cast(VERDICT_COLUMNS))


def compare_with_check(watches: pl.DataFrame, checked: pl.DataFrame, now: float) -> pl.DataFrame:
    """Hold what a check found against the watches as they are now; one row for each that the answer still fits.

    ``watches`` has number, name, address, checked, closed, biz_status, grade, bounce_prob, action (and may have more),
    ``checked`` is of :func:`judge_watches`. An answer does not fit where the watch is gone, or its name or address was changed
    meanwhile. The result has the columns of ``watches``, the last four and ``closed`` as they are to be stored, and

    - ``status_before``, ``grade_before`` (String),
    - ``changed`` (Boolean): the grade is another than at the last check; never so at the first,
    - ``first`` (Boolean): it is the first check, or the first that found a status,
    - ``closure`` (Boolean): found closed, and not closed before, though its status was known,
    - ``closed_already`` (Boolean): found closed by the first check that found a status; nobody saw it close.

    Where the status was known and now is ``unknown``, nothing was found out: status and grade stay what they were.
    """
    found = pl.struct(*VERDICT_COLUMNS)
    fits = pl.col("name").eq_missing(pl.col("name_asked")) & pl.col("address").eq_missing(pl.col("address_asked"))
    work = (
        watches.with_columns(found.alias("before"))
        .drop(*VERDICT_COLUMNS)
        .join(
            checked.select("number", found.alias("after"), name_asked="name", address_asked="address"),
            on="number",
            how="inner",
            maintain_order="left",
        )
        .filter(fits)
        .drop("name_asked", "address_asked")
    )
    before = pl.col("before").struct.field("biz_status")
    after = pl.col("after").struct.field("biz_status")
    was_known, is_known = before.fill_null(UNKNOWN).ne(UNKNOWN), after.fill_null(UNKNOWN).ne(UNKNOWN)
    in_the_dark = was_known & ~is_known
    closed, open_again = after.eq_missing(pl.lit(CLOSED)), after.is_in(OPEN).fill_null(value=False)
    return (
        work.with_columns(
            pl.when(in_the_dark).then("before").otherwise("after").alias("found"),
            before.alias("status_before"),
            pl.col("before").struct.field("grade").alias("grade_before"),
            (pl.col("checked").is_null() | (is_known & ~was_known)).alias("first"),
            (closed & was_known & pl.col("closed").is_null()).alias("closure"),
            (closed & ~was_known & pl.col("closed").is_null()).alias("closed_already"),
            pl.when(open_again)
            .then(None)
            .when(closed)
            .then(pl.coalesce("closed", pl.lit(now, pl.Float64)))
            .otherwise("closed")
            .alias("closed"),
        )
        .unnest("found")
        .drop("before", "after")
        .with_columns(
            (pl.col("checked").is_not_null() & pl.col("grade").ne_missing(pl.col("grade_before"))).alias("changed")
        )
    )


def _cast(columns: dict[str, type[pl.DataType]]) -> list[pl.Expr]:
    return [pl.col(name).cast(dtype) for name, dtype in columns.items()]
