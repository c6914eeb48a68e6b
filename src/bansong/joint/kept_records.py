"""The records of many tables in one place: what is the same in all of them is looked up, counted and found out once.

A table's records are kept in a private Arrow file of their own, whatever types its columns have, so that memory does
not grow with the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM
from bansong.run.accounting import PLAN_COUNTS, LookupPlan, plan_of, with_plan_columns
from bansong.run.records import DIGITS, RIGHT, ROW_ID
from bansong.schema import CONTEXT_COLUMNS, RECORD_COLUMNS

VALUE: Final = "priority_value"
"""What orders the rows where a budget does not last for all, as text."""

_KEPT: Final = {
    **dict.fromkeys((*RECORD_COLUMNS, *CONTEXT_COLUMNS), pl.String),
    NUMBER: pl.UInt64,
    DIGITS: pl.String,
    RIGHT: pl.Boolean,
    ROW_PROBLEM: pl.String,
    ADDRESS_LIST: pl.Boolean,
    VALUE: pl.String,
}


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """The records of one table in a file, and how many there are."""

    path: Path
    rows: int


def keep_records(rows: pl.LazyFrame, path: Path, priority: str | None) -> KeptRecords:
    """Write rows of :func:`bansong.run.records.records` to a file; ``priority``: the column of :data:`VALUE`."""
    there = set(rows.collect_schema().names())
    sources = {name: name for name in _KEPT if name in there} | ({VALUE: priority} if priority is not None else {})
    rows.select(
        ROW_ID,  # a table without any of the others has rows, or none, too
        *(
            (pl.col(sources[name]).cast(dtype, strict=False) if name in sources else pl.lit(None, dtype)).alias(name)
            for name, dtype in _KEPT.items()
        ),
    ).sink_ipc(path, compression="lz4", engine="streaming")
    return KeptRecords(path, pl.scan_ipc(path).select(pl.len()).collect().item())


def scan_records(kept: Sequence[KeptRecords]) -> pl.LazyFrame:
    """Return the records of all tables in their order, numbered through."""
    return pl.scan_ipc([one.path for one in kept]).drop(ROW_ID).with_row_index(ROW_ID)


def plan_together(records: pl.LazyFrame, plans: Sequence[LookupPlan]) -> LookupPlan:
    """Return the plan of several tables: rows are those of each, lookups those that differ in all ``records``."""
    of_all = plan_of(with_plan_columns(records).select(*PLAN_COUNTS).collect(engine="streaming").row(0, named=True))
    asked = sum(plan.lookups + plan.duplicates for plan in plans)
    problems = {code for plan in plans for code in plan.invalid_by_problem}
    return replace(
        of_all,
        rows=sum(plan.rows for plan in plans),
        duplicates=asked - of_all.lookups,
        invalid=sum(plan.invalid for plan in plans),
        invalid_by_problem={
            code: sum(plan.invalid_by_problem.get(code, 0) for plan in plans) for code in sorted(problems)
        },
        wrong_check_digits=sum(plan.wrong_check_digits for plan in plans),
        without_address=sum(plan.without_address for plan in plans),
        suspect=sum(plan.suspect for plan in plans),
    )
