"""What a run will do, decided before anything is done: pure functions over frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from bizverify import business_number
from bizverify.engine.local import ROW_PROBLEM, ROW_PROBLEMS
from bizverify.engine.text_values import is_blank
from bizverify.run.lookups import LOOKUP
from bizverify.run.records import DIGITS, RIGHT

PROBLEMS: Final = (*business_number.PROBLEMS, *ROW_PROBLEMS)
"""Why a row is not asked about: its number cannot be one, or it is no row of the list."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be looked up.

    ``rows`` = ``invalid`` + ``suspect`` + ``lookups`` + ``duplicates``: rows that cannot be business numbers, rows with
    a wrong check digit that are not bought for it, distinct records, and rows that repeat one of those.
    ``invalid_by_problem`` counts by the codes of :data:`PROBLEMS`; ``wrong_check_digits`` and ``without_address`` are
    among the valid rows.
    """

    rows: int
    lookups: int
    duplicates: int
    invalid: int
    invalid_by_problem: dict[str, int]
    wrong_check_digits: int
    without_address: int
    suspect: int = 0

    def as_dict(self) -> dict[str, object]:
        """The plan as plain values for JSON."""
        return asdict(self)


def plan(rows: pl.LazyFrame) -> Plan:
    """Count what the rows of :func:`bizverify.run.records.records` ask for, in one streaming pass."""
    return plan_of(with_plan_columns(rows).select(*PLAN_COUNTS).collect(engine="streaming").row(0, named=True))


def with_plan_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add to the rows of :func:`bizverify.run.records.records` what a plan is counted from, as columns ``plan:…``.

    Rows that have :data:`bizverify.run.lookups.LOOKUP` are counted by it; where lookups are free, a cheaper hash
    will do.
    """
    names = rows.collect_schema().names()
    if "b_no" not in names:
        nothing = {"b_no": pl.String, DIGITS: pl.String, RIGHT: pl.Boolean, ROW_PROBLEM: pl.String}
        rows = rows.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in nothing.items())
    address = pl.col("address").cast(pl.String) if "address" in names else pl.lit(None, pl.String)
    rows = rows.with_columns((pl.col(DIGITS).is_not_null() & pl.col(ROW_PROBLEM).is_null()).alias("plan:valid"))
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
    """A hash of a row's canonical (b_no, name, address): equal records are one lookup."""
    if LOOKUP in names:
        return pl.col(LOOKUP).hash(seed=0)
    texts = [pl.col(name).cast(pl.String).str.strip_chars() for name in ("name", "address") if name in names]
    return pl.concat_str(DIGITS, *(text.fill_null("") for text in texts), separator="\x1f").hash(seed=0)


PLAN_COUNTS: Final = (
    pl.col("plan:valid").len().alias("plan:rows"),
    pl.col("plan:valid").sum().alias("plan:valid"),
    pl.col("plan:lookup").count().alias("plan:asked"),
    pl.col("plan:lookup").drop_nulls().n_unique().alias("plan:lookups"),
    pl.col("plan:wrong_check_digit").sum().alias("plan:wrong_check_digits"),
    pl.col("plan:without_address").sum().alias("plan:without_addresses"),
    *((pl.col("plan:problem") == code).sum().alias(f"plan:problem:{code}") for code in PROBLEMS),
)
"""The plan as aggregations over :func:`with_plan_columns` rows."""


def plan_of(counts: Mapping[str, int]) -> Plan:
    """Return the plan that the aggregations of :data:`PLAN_COUNTS` say."""
    rows, valid, asked, lookups = (counts[f"plan:{name}"] for name in ("rows", "valid", "asked", "lookups"))
    problems = {code: counts[f"plan:problem:{code}"] for code in PROBLEMS}
    return Plan(
        rows=rows,
        lookups=lookups,
        duplicates=asked - lookups,
        invalid=rows - valid,
        invalid_by_problem={code: count for code, count in problems.items() if count},
        wrong_check_digits=counts["plan:wrong_check_digits"],
        without_address=counts["plan:without_addresses"],
        suspect=valid - asked,
    )
