"""Plan, tally and balance of a run; answers replaced from an earlier one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.errors import AccountingError, Notice, Problem
from bansong.base.messages import Lang, Listed, Phrase
from bansong.base.schema import ACTIONS, BIZ_STATUSES, GRADES, HEADERS, ROW_STATUSES, code_expr
from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM, ROW_PROBLEMS
from bansong.engine.records import RIGHT, ROW_ID
from bansong.engine.text import is_blank
from bansong.purchase.lookups import LOOKUP
from bansong.tables.earlier_columns import EarlierColumns
from bansong.tables.table import contract_name

ROWS_NOT_BALANCED: Final = Problem(
    "outputs.rows_not_balanced", "nothing was published, the rows do not balance: {faults}"
)

PROBLEMS: Final = (*business_number.PROBLEMS, *ROW_PROBLEMS)  # reasons why a row is not asked about

OTHER: Final = "other"  # words outside the local vocabulary, which the service may use, are counted under this one

_OUT_ID: Final = "out_id"


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """Lookups that a run would make; ``rows`` = ``invalid`` + ``suspect`` + ``lookups`` + ``duplicates``."""

    rows: int
    lookups: int  # distinct records
    duplicates: int  # repeated records
    invalid: int  # without a business number
    invalid_by_problem: dict[str, int]  # by a code of PROBLEMS
    wrong_check_digits: int  # of valid rows
    without_address: int  # of valid rows
    suspect: int = 0  # with a wrong check digit, and not bought for it


def plan(rows: pl.LazyFrame) -> LookupPlan:
    """Count the lookups of rows of :func:`bansong.engine.records.records` in one streaming pass."""
    return plan_of(with_plan_columns(rows).select(*PLAN_COUNTS).collect(engine="streaming").row(0, named=True))


def with_plan_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``plan:…`` for :data:`PLAN_COUNTS`; lookups count by ``LOOKUP`` if rows have it, else by a cheaper hash."""
    names = rows.collect_schema().names()
    if "b_no" not in names:
        nothing = {"b_no": pl.String, NUMBER: pl.UInt64, RIGHT: pl.Boolean, ROW_PROBLEM: pl.String}
        rows = rows.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in nothing.items())
    address = pl.col("address").cast(pl.String) if "address" in names else pl.lit(None, pl.String)
    asked = pl.col(NUMBER).is_not_null()
    if ADDRESS_LIST in names:
        asked |= pl.col(ADDRESS_LIST).fill_null(False)
    rows = rows.with_columns((asked & pl.col(ROW_PROBLEM).is_null()).alias("plan:valid"))
    valid = pl.col("plan:valid")
    problem = pl.coalesce(ROW_PROBLEM, business_number.problem_expr(pl.when(~valid).then("b_no")))
    return rows.with_columns(
        pl.when(~valid).then(problem).alias("plan:problem"),
        (valid & ~pl.col(RIGHT)).alias("plan:wrong_check_digit"),
        (valid & is_blank(address)).alias("plan:without_address"),
        pl.when(pl.col(LOOKUP).is_not_null() if LOOKUP in names else valid)
        .then(_lookup_key(names))
        .alias("plan:lookup"),
    )


def _lookup_key(names: list[str]) -> pl.Expr:
    if LOOKUP in names:
        return pl.col(LOOKUP).hash(seed=0)
    texts = [
        pl.col(name).cast(pl.String).str.strip_chars().fill_null("") for name in ("name", "address") if name in names
    ]
    return reduce(xor, (text.hash(seed=place) for place, text in enumerate([pl.col(NUMBER), *texts])))


PLAN_COUNTS: Final = (  # the plan as aggregations over `with_plan_columns` rows
    pl.col("plan:valid").len().alias("plan:rows"),
    pl.col("plan:valid").sum().alias("plan:valid"),
    pl.col("plan:lookup").count().alias("plan:asked"),
    pl.col("plan:lookup").drop_nulls().n_unique().alias("plan:lookups"),
    pl.col("plan:wrong_check_digit").sum().alias("plan:wrong_check_digits"),
    pl.col("plan:without_address").sum().alias("plan:without_addresses"),
    *((pl.col("plan:problem") == code).sum().alias(f"plan:problem:{code}") for code in PROBLEMS),
)


def plan_of(counts: Mapping[str, int]) -> LookupPlan:
    rows, valid, asked, lookups = (counts[f"plan:{name}"] for name in ("rows", "valid", "asked", "lookups"))
    problems = {code: counts[f"plan:problem:{code}"] for code in PROBLEMS}
    return LookupPlan(
        rows=rows,
        lookups=lookups,
        duplicates=asked - lookups,
        invalid=rows - valid,
        invalid_by_problem={code: count for code, count in problems.items() if count},
        wrong_check_digits=counts["plan:wrong_check_digits"],
        without_address=counts["plan:without_addresses"],
        suspect=valid - asked,
    )


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of a finished run, from the rows that were written."""

    rows: int
    in_order: bool
    by_row_status: dict[str, int]
    by_biz_status: dict[str, int]
    by_grade: dict[str, int]
    by_action: dict[str, int]


def number_rows(answered: pl.LazyFrame) -> pl.LazyFrame:
    return answered.with_row_index(_OUT_ID)


def order_counts() -> tuple[pl.Expr, pl.Expr]:
    """Return aggregations over rows of :func:`number_rows`: their number ``rows``, and whether ``in_order``."""
    return pl.len().alias("rows"), (pl.col(ROW_ID) == pl.col(_OUT_ID)).all().alias("in_order")


def tally(answered: pl.LazyFrame, more: Collection[pl.Expr] = ()) -> pl.LazyFrame:
    """Count rows of :func:`number_rows` in one row: ``<column>:<word>`` for our words, ``<column>:`` for all values."""
    counted = {"row_status": ROW_STATUSES, "biz_status": BIZ_STATUSES, "grade": GRADES, "action": ACTIONS}
    return answered.select(
        *order_counts(),
        *(
            (pl.col(name) == value).sum().alias(f"{name}:{value}")
            for name, values in counted.items()
            for value in values
        ),
        *(pl.col(name).count().alias(f"{name}:") for name in counted if name != "row_status"),
        *more,
    )


def row_counts_of(tallied: Mapping[str, int | bool]) -> RowCounts:
    def by(name: str) -> dict[str, int]:
        counts = {key.partition(":")[2]: int(count) for key, count in tallied.items() if key.startswith(f"{name}:")}
        in_all = counts.pop("", None)
        others = 0 if in_all is None else in_all - sum(counts.values())
        return counts | ({OTHER: others} if others else {})

    return RowCounts(
        rows=int(tallied["rows"]),
        in_order=bool(tallied["in_order"]),
        by_row_status=by("row_status"),
        by_biz_status=by("biz_status"),
        by_grade=by("grade"),
        by_action=by("action"),
    )


def check_balance(rows_in: int, account: RowCounts, rows_written: int) -> None:
    faults = []
    counted = sum(account.by_row_status.values())
    if counted != rows_in:
        faults.append(_fault(rows_in, Phrase("{count:,} with a row_status", count=counted)))
    check_rows(rows_in, account.rows, rows_written, *faults, in_order=account.in_order)


def check_rows(rows_in: int, rows_out: int, rows_written: int, *faults: Phrase, in_order: bool) -> None:
    """Raise :class:`AccountingError` for lost, added or moved rows, or for earlier ``faults``."""
    found = []
    if rows_out != rows_in:
        found.append(_fault(rows_in, Phrase("{count:,} answered", count=rows_out)))
    if rows_written != rows_in:
        found.append(_fault(rows_in, Phrase("{count:,} in the output file", count=rows_written)))
    found += faults
    if not in_order:
        found.append(Phrase("rows left in another order than they came"))
    if found:
        raise AccountingError(ROWS_NOT_BALANCED, faults=Listed(found))


def _fault(rows_in: int, found: Phrase) -> Phrase:
    return Phrase("{count:,} row in, {found}", "{count:,} rows in, {found}", count=rows_in, found=found)


ANSWERS_REPLACED: Final = Problem(
    "alert.answers_replaced",
    "the input is an earlier output, and its answers were replaced by others: {counts}; if somebody typed "
    "them, they are in the input as it was",
)

# columns that people correct or write notes into; the others follow from these, and change with each run
_TYPED: Final = ("biz_status", "grade", "action", "fixed_zipcode", "fixed_address", "row_note")
_COUNT: Final = "replaced "


def replaced_counts(earlier: EarlierColumns) -> list[pl.Expr]:
    """Count the cells of an earlier output that change, as aggregations over a run's rows."""
    found = []
    for name in _TYPED:
        places = [place for column, place in earlier.nine.items() if contract_name(column) == name]
        if places:
            changed = pl.any_horizontal(_differs(name, pl.col(f"c{place}")) for place in places)
            found.append(changed.sum().alias(_COUNT + name))
    return found


def replaced_rows(tallied: Mapping[str, Any]) -> dict[str, int]:
    return {
        name.removeprefix(_COUNT): int(count) for name, count in tallied.items() if name.startswith(_COUNT) and count
    }


def replaced_alert(rows: Mapping[str, int], lang: Lang) -> Notice | None:
    if not rows:
        return None
    counts = [
        Phrase("{name} in {count:,} row", "{name} in {count:,} rows", count=count, name=HEADERS[lang][name])
        for name, count in rows.items()
    ]
    return Notice(ANSWERS_REPLACED, counts=Listed(counts, ", "))


def _differs(name: str, cell: pl.Expr) -> pl.Expr:
    before, now = (code_expr(value.cast(pl.String).str.strip_chars(), name) for value in (cell, pl.col(name)))
    if name == "fixed_zipcode":  # a spreadsheet drops the zero in front
        before = before.str.zfill(5)
    return (before != "") & before.ne_missing(now)
