"""What a run will do, decided before anything is done: pure functions over frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from bizverify import number
from bizverify.engine.risk.features import is_blank
from bizverify.model import RECORD_COLUMNS, Choice
from bizverify.tables import Table

ROW_ID: Final = "row_id"


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be looked up.

    ``rows`` = ``invalid`` + ``lookups`` + ``duplicates``: rows that cannot be business numbers, distinct records, and
    rows that repeat one of those. ``invalid_by_problem`` counts by the codes of
    :data:`bizverify.number.PROBLEMS`; ``wrong_check_digits`` and ``without_address`` are among the valid rows.
    """

    rows: int
    lookups: int
    duplicates: int
    invalid: int
    invalid_by_problem: dict[str, int]
    wrong_check_digits: int
    without_address: int

    def as_dict(self) -> dict[str, object]:
        """The plan as plain values for JSON."""
        return asdict(self)


def records(table: Table, chosen: Mapping[str, Choice]) -> pl.LazyFrame:
    """Return the table's rows numbered from 0 (``row_id``) with their record beside the user's columns.

    The record's columns are ``b_no``, ``name``, ``address``, ``zipcode``, as far as a column was chosen, as written.
    """
    ids = table.ids
    return table.frame.with_row_index(ROW_ID).with_columns(
        pl.col(ids[choice.column]).alias(role) for role, choice in chosen.items() if role in RECORD_COLUMNS
    )


def plan(rows: pl.LazyFrame) -> Plan:
    """Count what the rows of :func:`records` ask for, in one streaming pass."""
    return plan_of(marked(rows).select(*PLAN_COUNTS).collect(engine="streaming").row(0, named=True))


def marked(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add to the rows of :func:`records` what a plan is counted from, as columns ``plan:…``."""
    names = rows.collect_schema().names()
    if "b_no" not in names:
        rows = rows.with_columns(pl.lit(None, pl.String).alias("b_no"))
    address = pl.col("address").cast(pl.String) if "address" in names else pl.lit(None, pl.String)
    rows = rows.with_columns(number.compact_expr(pl.col("b_no")).alias("plan:digits"))
    rows = rows.with_columns(number.key_expr(pl.col("plan:digits")).alias("plan:key"))
    invalid = pl.col("plan:digits").is_null()
    return rows.with_columns(
        pl.when(invalid).then(number.problem_expr(pl.when(invalid).then("b_no"))).alias("plan:problem"),
        (~number.checksum_expr(pl.col("plan:key"))).alias("plan:wrong_check_digit"),
        (~invalid & is_blank(address)).alias("plan:without_address"),
        pl.when(~invalid).then(_lookup_key(names)).alias("plan:lookup"),
    )


def _lookup_key(names: list[str]) -> pl.Expr:
    """A hash of a row's canonical (b_no, name, address): equal records are one lookup."""
    texts = [pl.col(name).cast(pl.String).str.strip_chars() for name in ("name", "address") if name in names]
    return pl.concat_str("plan:digits", *(text.fill_null("") for text in texts), separator="\x1f").hash(seed=0)


PLAN_COUNTS: Final = (
    pl.col("plan:digits").len().alias("plan:rows"),
    pl.col("plan:digits").count().alias("plan:valid"),
    pl.col("plan:lookup").drop_nulls().n_unique().alias("plan:lookups"),
    pl.col("plan:wrong_check_digit").sum().alias("plan:wrong_check_digits"),
    pl.col("plan:without_address").sum().alias("plan:without_addresses"),
    *((pl.col("plan:problem") == code).sum().alias(f"plan:problem:{code}") for code in number.PROBLEMS),
)
"""The plan as aggregations over :func:`marked` rows."""


def plan_of(counts: Mapping[str, int]) -> Plan:
    """Return the plan that the aggregations of :data:`PLAN_COUNTS` say."""
    rows, valid, lookups = (counts[f"plan:{name}"] for name in ("rows", "valid", "lookups"))
    problems = {code: counts[f"plan:problem:{code}"] for code in number.PROBLEMS}
    return Plan(
        rows=rows,
        lookups=lookups,
        duplicates=valid - lookups,
        invalid=rows - valid,
        invalid_by_problem={code: count for code, count in problems.items() if count},
        wrong_check_digits=counts["plan:wrong_check_digits"],
        without_address=counts["plan:without_addresses"],
    )
