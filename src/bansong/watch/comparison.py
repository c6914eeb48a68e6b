"""Compare the result of a check with the watches as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from bansong.watch.notifications import CLOSED

VERDICT_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "biz_status": pl.String,
    "grade": pl.String,
    "bounce_prob": pl.Float64,
    "action": pl.String,
}
"""Columns that a judge adds to :data:`bansong.watch.checking.JUDGED_COLUMNS`."""
STATUS_DAY: Final = "status_day"
"""Optional column of a judge: day (String, ISO) of the status, null if unknown."""
UNKNOWN: Final = "unknown"
OPEN: Final = ("active", "suspended")
"""Statuses with which a closed business has opened again; ``unknown`` is none of them."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check: one row of ``watches`` for each checked watch.

    Columns: number (Int64), owner, watch_id, biz_no, name, address, biz_status, grade, action, status_before,
    grade_before (String), bounce_prob, closed (Float64), changed, first, closure, closed_already (Boolean: see
    :func:`compare_with_check`).
    """

    watches: pl.DataFrame

    @property
    def changes(self) -> pl.DataFrame:
        """The watches with another grade than at the last check."""
        return self.watches.filter("changed")

    @property
    def closures(self) -> pl.DataFrame:
        """The watches found closed that were not before; each has a notification."""
        return self.watches.filter("closure")

    @property
    def closed_already(self) -> pl.DataFrame:
        """The watches that were closed at their first check; one notification names all."""
        return self.watches.filter("closed_already")


def compare_with_check(watches: pl.DataFrame, checked: pl.DataFrame, now: float) -> pl.DataFrame:
    """Compare the result of a check with the watches as they are now; one row for each fitting answer.

    ``watches`` has number, name, address, checked, closed, biz_status, grade, bounce_prob, action (and may have more),
    ``checked`` is of :func:`bansong.watch.checking.judge_watches`. An answer does not fit if the watch is gone, or its
    name or address has changed. The result has the columns of ``watches``, updated, and

    - ``status_before``, ``grade_before`` (String),
    - ``changed`` (Boolean): another grade than at the last check; never at the first,
    - ``first`` (Boolean): the first check, or the first that found a status,
    - ``closure`` (Boolean): found closed, and known not to be closed before,
    - ``closed_already`` (Boolean): found closed by the first check that found a status.

    Status and grade stay if the new status is ``unknown`` or of an earlier day than the known one (:data:`STATUS_DAY`):
    another source answered, and knows less.
    """
    watches, checked = _with_status_day(watches), _with_status_day(checked)
    verdict = (*VERDICT_COLUMNS, STATUS_DAY)
    found = pl.struct(*verdict)
    fits = pl.col("name").eq_missing(pl.col("name_asked")) & pl.col("address").eq_missing(pl.col("address_asked"))
    work = (
        watches.with_columns(found.alias("before"))
        .drop(*verdict)
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
    is_older = pl.col("after").struct.field(STATUS_DAY) < pl.col("before").struct.field(STATUS_DAY)
    after = pl.when(~is_older.fill_null(value=False)).then(pl.col("after").struct.field("biz_status"))
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


def _with_status_day(frame: pl.DataFrame) -> pl.DataFrame:
    return frame if STATUS_DAY in frame.columns else frame.with_columns(pl.lit(None, pl.String).alias(STATUS_DAY))
