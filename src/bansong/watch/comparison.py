"""What a check found, held against the watches as they are."""

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
"""The columns that a judge adds to those of :data:`bansong.watch.checking.JUDGED_COLUMNS`."""
STATUS_DAY: Final = "status_day"
"""A column that a judge may add besides: the day (String, ISO) on which the status was known, null if not known."""
UNKNOWN: Final = "unknown"


OPEN: Final = ("active", "suspended")
"""A closed business of which one of these is found has opened again. Not knowing is no opening."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check: one row of ``watches`` for each watch that was checked.

    Its columns: number (Int64), owner, watch_id, biz_no, name, address, biz_status, grade, action, status_before,
    grade_before (String), bounce_prob, closed (Float64), changed, first, closure, closed_already (Boolean: see
    :func:`bansong.watch.store.compare_with_check`).
    """

    watches: pl.DataFrame

    @property
    def changes(self) -> pl.DataFrame:
        """The watches whose grade is another than at the last check."""
        return self.watches.filter("changed")

    @property
    def closures(self) -> pl.DataFrame:
        """The watches that were found closed, and were not before; each has a notification."""
        return self.watches.filter("closure")

    @property
    def closed_already(self) -> pl.DataFrame:
        """The watches that were closed when they were first checked; they are in one notification."""
        return self.watches.filter("closed_already")


def compare_with_check(watches: pl.DataFrame, checked: pl.DataFrame, now: float) -> pl.DataFrame:
    """Hold what a check found against the watches as they are now; one row for each that the answer still fits.

    ``watches`` has number, name, address, checked, closed, biz_status, grade, bounce_prob, action (and may have more),
    ``checked`` is of :func:`bansong.watch.checking.judge_watches`. An answer does not fit where the watch is gone, or
    its name or address was changed meanwhile. The result has the columns of ``watches``, the last four and ``closed``
    as they are to be stored, and

    - ``status_before``, ``grade_before`` (String),
    - ``changed`` (Boolean): the grade is another than at the last check; never so at the first,
    - ``first`` (Boolean): it is the first check, or the first that found a status,
    - ``closure`` (Boolean): found closed, and not closed before, though its status was known,
    - ``closed_already`` (Boolean): found closed by the first check that found a status; nobody saw it close.

    Where the status was known and now is ``unknown``, nothing was found out: status and grade stay what they were. So
    they do where the status is of an earlier day than the one that was known (:data:`STATUS_DAY`): another source
    answered, and knows less.
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
    """Return the frame with :data:`STATUS_DAY`, null where nobody says it."""
    return frame if STATUS_DAY in frame.columns else frame.with_columns(pl.lit(None, pl.String).alias(STATUS_DAY))
