"""What a page counts and lists, from the answered rows of a run or of an enriched file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from bizverify import business_number
from bizverify.engine.address.regions.postal import region_level
from bizverify.engine.letter_history import address_key
from bizverify.report_page.masking import mask_address, mask_name, mask_number
from bizverify.schema import ACTIONS, BIZ_STATUSES, GRADES, ROW_STATUSES

SHOWN: Final = 20
"""Rows of a list: a page shows what is typical, the enriched file has the rest."""

COLUMNS: Final = (
    "row_id",
    "b_no",
    "name",
    "address",
    "biz_status",
    "bounce_prob",
    "grade",
    "action",
    "fixed_address",
    "reasons",
    "row_status",
)
"""What is read of each row; what a file does not have is null."""

_COUNTED: Final = {"row_status": ROW_STATUSES, "biz_status": BIZ_STATUSES, "grade": GRADES, "action": ACTIONS}
_REASON: Final = r"^\[[^\]]+\] ([^(:→|]+)"
"""The first reason, up to what is the row's own: a date in brackets, an address behind a colon."""
_DAY: Final = r"\((?:registry|nts), ([0-9]{4}-[0-9]{2}-[0-9]{2})\)"
_LONG: Final = 60


@dataclass(frozen=True, slots=True)
class PageFigures:
    """What a page says of the rows.

    ``counts``: rows by each word, by column. ``expected``: letters expected back if every row were mailed (the sum of
    the probabilities), and ``expected_sent`` if those that say ``send`` are. ``oldest`` and ``newest`` day (ISO) on
    which a status was known, and the ``dated`` rows that say one. ``corrected``: rows whose address was corrected.
    ``reasons``: what weighs most, with rows; ``regions``: as :func:`bizverify.charts.regions` takes it; ``worst`` and
    ``corrections``: the lists, masked unless asked otherwise.
    """

    rows: int
    counts: Mapping[str, Mapping[str, int]]
    expected: float
    expected_sent: float
    dated: int
    oldest: str | None
    newest: str | None
    corrected: int
    reasons: pl.DataFrame
    regions: pl.DataFrame
    worst: pl.DataFrame
    corrections: pl.DataFrame
    masked: bool


def collect_figures(answers: pl.LazyFrame, *, unmask: bool = False) -> PageFigures:
    """Count and list answered rows (:data:`COLUMNS`, as far as they are there), in streaming passes.

    ``reasons`` are joined to one text a row.
    """
    rows = _readable(answers)
    counts, worst, corrections = (_counts(rows), _worst(rows), _corrections(rows))
    groups = [
        *(rows.group_by(name).len() for name in _COUNTED),
        _group_by(rows, "reason", _first_reason()),
        _group_by(rows, "region", region_level(pl.col("address"))),
    ]
    found, bad, fixed, *tables = pl.collect_all([counts, worst, corrections, *groups], engine="streaming")
    totals, words = found.row(0, named=True), tables[: len(_COUNTED)]
    by = {name: _in_order(table, known) for table, (name, known) in zip(words, _COUNTED.items(), strict=True)}
    reasons, regions = tables[len(_COUNTED) :]
    return PageFigures(
        **totals,
        counts=by,
        reasons=reasons.drop_nulls("reason").sort("rows", "reason", descending=[True, False]).head(10),
        regions=regions,
        worst=_list_rows(bad, unmask),
        corrections=_list_rows(fixed, unmask),
        masked=not unmask,
    )


def _readable(answers: pl.LazyFrame) -> pl.LazyFrame:
    names = answers.collect_schema().names()
    missing = [pl.lit(None, pl.String).alias(name) for name in COLUMNS if name not in names]
    rows = answers.with_columns(missing).select(COLUMNS)
    texts = [name for name in COLUMNS if name not in ("row_id", "bounce_prob")]
    return rows.with_columns(pl.col("bounce_prob").cast(pl.Float64), pl.col(texts).cast(pl.String))


def _counts(rows: pl.LazyFrame) -> pl.LazyFrame:
    chance = pl.col("bounce_prob")
    day = pl.col("reasons").str.extract(_DAY)
    return rows.select(
        pl.len().alias("rows"),
        chance.sum().alias("expected"),
        chance.filter(pl.col("action") == "send").sum().alias("expected_sent"),
        day.count().alias("dated"),
        day.min().alias("oldest"),
        day.max().alias("newest"),
        _is_corrected().sum().alias("corrected"),
    )


def _is_corrected() -> pl.Expr:
    """Whether the corrected address differs in its letters and digits, brackets behind it aside."""
    fixed = pl.col("fixed_address").str.replace(r"\s*\([^()]*\)$", "")
    written = pl.col("address").str.replace(r"\s*\([^()]*\)$", "")
    return (address_key(fixed) != address_key(written)).fill_null(False)


def _worst(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.drop_nulls("bounce_prob").top_k(SHOWN, by=["bounce_prob", "row_id"], reverse=[False, True])


def _corrections(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.filter(_is_corrected()).bottom_k(SHOWN, by="row_id")


def _group_by(rows: pl.LazyFrame, name: str, value: pl.Expr) -> pl.LazyFrame:
    """Rows, and letters expected back, by a value."""
    work = rows.select(value.alias(name), pl.col("bounce_prob").fill_null(0.0))
    return work.group_by(name).agg(pl.len().alias("rows"), pl.col("bounce_prob").sum().alias("expected"))


def _first_reason() -> pl.Expr:
    said = pl.col("reasons").str.extract(_REASON).str.replace_all(r"\p{N}{5,}", "…")
    return said.str.strip_chars().str.slice(0, _LONG)


def _in_order(table: pl.DataFrame, known: tuple[str, ...]) -> dict[str, int]:
    """Rows by word: those that are known first, then the service's own; those without one are left out."""
    name, count = table.columns
    found: dict[str, int] = dict(table.drop_nulls(name).sort(name).select(name, count).iter_rows())
    return {word: found.pop(word, 0) for word in known} | found


def _list_rows(rows: pl.DataFrame, unmask: bool) -> pl.DataFrame:
    """The rows of a list, in the order of the list, masked unless ``unmask``; ``row`` counts from 1."""
    number = business_number.compact_expr(pl.col("b_no"))
    masked: dict[str, Any] = {
        "b_no": mask_number(number),
        "name": mask_name(pl.col("name")),
        "address": mask_address(pl.col("address")),
        "fixed_address": mask_address(pl.col("fixed_address")),
    }
    reason = pl.col("reasons").str.split(" | ").list.first() if unmask else _first_reason()
    rows = rows.sort("bounce_prob", "row_id", descending=[True, False], nulls_last=True)
    return rows.with_columns(
        (pl.col("row_id").cast(pl.Int64) + 1).alias("row"),
        reason.alias("reason"),
        *([] if unmask else [value.alias(name) for name, value in masked.items()]),
    )
