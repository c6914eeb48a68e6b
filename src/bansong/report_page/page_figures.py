"""Counts and lists of a page, from the answered rows of a run or of an enriched file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from bansong import business_number, charts
from bansong.engine.address.regions.postal import region_level
from bansong.engine.letter_history import address_key
from bansong.errors import UsageError
from bansong.report_page.masking import mask_address, mask_digits, mask_name, mask_number
from bansong.report_page.tags import Markup
from bansong.schema import ACTIONS, BIZ_STATUSES, GRADES, ROW_STATUSES

SHOWN: Final = 20
"""Rows of a list."""

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
"""Columns read; missing ones are null."""
_COUNTED: Final = {"row_status": ROW_STATUSES, "biz_status": BIZ_STATUSES, "grade": GRADES, "action": ACTIONS}
_REASON: Final = r"^\[[^\]]+\] ([^(:→|]+)"
"""First reason, without the row's own parts: a date in brackets, an address behind a colon."""
_CHANGE: Final = r"\[address [+-][0-9]+\] [^|:]*: ([^|]*?) \(juso\)"
"""Difference between an address and its correction."""
_DAY: Final = r"\((?:registry|nts), ([0-9]{4}-[0-9]{2}-[0-9]{2})\)"
_MAX_REASON_CHARACTERS: Final = 60
_BATCH: Final = 100_000
"""Rows that are counted together."""
_EXPECTED: Final = pl.col("bounce_prob").sum()
_ROWS_AND_EXPECTED: Final = (pl.len().cast(pl.Int64).alias("rows"), _EXPECTED.alias("expected"))
_GROUPED: Final = ("reason", "region")
_TOTALS: Final = {
    "rows": pl.len().cast(pl.Int64).alias("rows"),
    "expected": _EXPECTED.alias("expected"),
    "expected_sent": pl.col("bounce_prob").filter(pl.col("action") == "send").sum().alias("expected_sent"),
    "dated": pl.col("day").count().cast(pl.Int64).alias("dated"),
    "oldest": pl.col("day").min().alias("oldest"),
    "newest": pl.col("day").max().alias("newest"),
    "corrected": pl.col("corrected").sum().cast(pl.Int64).alias("corrected"),
}
"""Counts of all rows; sums add up over batches."""


@dataclass(frozen=True, slots=True)
class PageFigures:
    """Figures of the rows on a page.

    ``counts``: rows by word, by column. ``expected``: letters expected back if every row were mailed (sum of the
    probabilities), ``expected_sent`` of those to ``send``. ``oldest`` and ``newest``: days (ISO) of the ``dated``
    statuses. ``corrected``: rows with a corrected address. ``reasons``: weightiest ones, with rows; ``regions``: as
    :func:`bansong.charts.regions` takes it; ``worst`` and ``corrections``: the lists, masked by default.
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


def collect_figures(answers: pl.LazyFrame, *, unmask: bool = False, first_row: int = 1) -> PageFigures:
    """Count and list answered rows (:data:`COLUMNS`) in one streaming pass, batch by batch.

    ``reasons`` is one text a row; ``first_row``: number of the first row. A single query of several counts would keep
    all rows in memory.
    """
    found = _tally(_readable(answers.clear()).collect())
    for batch in _readable(answers).collect_batches(chunk_size=_BATCH, engine="streaming"):
        found = _merge(found, _tally(batch))
    by = {name: _in_order(found[name], known) for name, known in _COUNTED.items()}
    return PageFigures(
        **found["totals"].row(0, named=True),
        counts=by,
        reasons=found["reason"].drop_nulls("reason").sort("rows", "reason", descending=[True, False]).head(10),
        regions=found["region"],
        worst=_list_rows(found["worst"], unmask, first_row),
        corrections=_list_rows(found["corrections"], unmask, first_row),
        masked=not unmask,
    )


def _readable(answers: pl.LazyFrame) -> pl.LazyFrame:
    names = answers.collect_schema().names()
    missing = [pl.lit(None, pl.String).alias(name) for name in COLUMNS if name not in names]
    rows = answers.with_columns(missing).select(COLUMNS)
    texts = [name for name in COLUMNS if name not in ("row_id", "bounce_prob")]
    return rows.with_columns(pl.col("bounce_prob").cast(pl.Float64), pl.col(texts).cast(pl.String))


def _tally(batch: pl.DataFrame) -> dict[str, pl.DataFrame]:
    rows = batch.with_columns(
        _is_corrected().alias("corrected"),
        _first_reason().alias("reason"),
        region_level(pl.col("address")).alias("region"),
        pl.col("reasons").str.extract(_DAY).alias("day"),
    )
    return {
        "totals": rows.select(_TOTALS.values()),
        **{name: rows.group_by(name).agg(pl.len().cast(pl.Int64).alias("rows")) for name in _COUNTED},
        **{name: rows.group_by(name).agg(_ROWS_AND_EXPECTED) for name in _GROUPED},
        "worst": _pick_worst(rows.drop_nulls("bounce_prob").select(COLUMNS)),
        "corrections": rows.filter("corrected").select(COLUMNS).bottom_k(SHOWN, by="row_id"),
    }


def _merge(*tallies: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    found = {name: pl.concat([tally[name] for tally in tallies]) for name in tallies[0]}
    ends = {"oldest": pl.col("oldest").min(), "newest": pl.col("newest").max()}
    return {
        "totals": found["totals"].select(ends.get(name, pl.col(name).sum()) for name in _TOTALS),
        **{name: found[name].group_by(name).agg(pl.all().sum()) for name in (*_COUNTED, *_GROUPED)},
        "worst": _pick_worst(found["worst"]),
        "corrections": found["corrections"].bottom_k(SHOWN, by="row_id"),
    }


def _pick_worst(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.top_k(SHOWN, by=["bounce_prob", "row_id"], reverse=[False, True])


def _is_corrected() -> pl.Expr:
    fixed = pl.col("fixed_address").str.replace(r"\s*\([^()]*\)$", "")
    written = pl.col("address").str.replace(r"\s*\([^()]*\)$", "")
    return (address_key(fixed) != address_key(written)).fill_null(False)


def _first_reason() -> pl.Expr:
    said = pl.col("reasons").str.extract(_REASON).str.replace_all(r"\p{N}{5,}", "…")
    return said.str.strip_chars().str.slice(0, _MAX_REASON_CHARACTERS)


def _in_order(table: pl.DataFrame, known: tuple[str, ...]) -> dict[str, int]:
    name, count = table.columns
    found: dict[str, int] = dict(table.drop_nulls(name).sort(name).select(name, count).iter_rows())
    return {word: found.pop(word, 0) for word in known} | found


def _list_rows(rows: pl.DataFrame, unmask: bool, first_row: int) -> pl.DataFrame:
    number = business_number.compact_expr(pl.col("b_no"))
    masked: dict[str, Any] = {
        "b_no": mask_number(number),
        "name": mask_name(pl.col("name")),
        "address": mask_address(pl.col("address")),
        "fixed_address": mask_address(pl.col("fixed_address")),
    }
    reason = pl.col("reasons").str.split(" | ").list.first() if unmask else _first_reason()
    change = pl.col("reasons").str.extract(_CHANGE)
    rows = rows.sort("bounce_prob", "row_id", descending=[True, False], nulls_last=True)
    return rows.with_columns(
        (pl.col("row_id").cast(pl.Int64) + first_row).alias("row"),
        reason.alias("reason"),
        (change if unmask else mask_digits(change)).alias("change"),
        *([] if unmask else [value.alias(name) for name, value in masked.items()]),
    )


def draw_charts(figures: PageFigures) -> list[tuple[str, Markup]]:
    """Return the charts as (name, SVG): grades, reasons, provinces; none if nothing draws.

    The tables of the page say the same, so the drawings are hidden from screen readers.
    """
    try:
        drawn = {
            "grades": charts.grades(figures.counts["grade"], figures.rows),
            "reasons": charts.reasons(figures.reasons.select("reason", "rows")),
            "regions": charts.regions(figures.regions.select("region", "rows", "expected")),
        }
        images = {name: charts.as_svg(chart) for name, chart in drawn.items()}
    except (UsageError, ImportError, ValueError):  # Altair says ValueError where vl-convert is missing
        return []
    return [(name, Markup(svg.replace("<svg ", '<svg aria-hidden="true" ', 1))) for name, svg in images.items()]
