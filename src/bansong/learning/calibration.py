"""Calibration: a report of probabilities over rows whose outcome is known.

It works on any probabilities, the local engine's and the service's alike, and needs no more than polars: everything is
computed from the counts of each distinct probability, of which there are few, so a million rows take about a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong import charts
from bansong.engine.risk.features import LABELS
from bansong.engine.risk.reason_parser import LEVEL
from bansong.errors import LabelError, Problem, UsageError
from bansong.labels.label_store import LabelStore
from bansong.learning.labelled_file import open_labelled
from bansong.learning.significance import interval
from bansong.report_display import Shown
from bansong.schema import REASON_SEPARATOR
from bansong.translation import gettext, gettext_noop, ngettext

if TYPE_CHECKING:
    from bansong.charts.library import Chart

PROBABILITY_INVALID: Final = Problem(
    "learning.probability_invalid",
    "column {probability!r} holds {odd}, which is no probability; give fractions between 0 and 1",
)
CALIBRATED_COLUMN_MISSING: Final = Problem(
    "learning.calibrated_column_missing", "there is no column {column!r} to calibrate by; the columns are {names}"
)

BINS: Final = 10
FEW: Final = 50
"""Rows below which the figures are too uncertain to judge by."""

GROUPS: Final = ("engine", "model", "grade", "action")
"""The columns by which the report is broken down, where the rows have them."""

GROUP_DTYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "n": pl.Int64,
    "bounced": pl.Int64,
    "expected": pl.Float64,
    "mean_p": pl.Float64,
    "rate": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "lift": pl.Float64,
    "brier": pl.Float64,
    "log_loss": pl.Float64,
    "auc": pl.Float64,
}
"""The figures of each bin and group: ``low`` and ``high`` are the 95 % interval of ``rate`` (Wilson), ``lift`` is
``rate`` over the rate of all rows, ``auc`` null where all outcomes are the same."""

FIGURE_WORDS: Final[Mapping[str, str]] = {
    "bin": gettext_noop("bin"),
    "group": gettext_noop("group"),
    "lowest": gettext_noop("lowest"),
    "highest": gettext_noop("highest"),
    "n": gettext_noop("n"),
    "bounced": gettext_noop("bounced"),
    "expected": gettext_noop("expected"),
    "mean_p": gettext_noop("mean_p"),
    "rate": gettext_noop("rate"),
    "low": gettext_noop("low"),
    "high": gettext_noop("high"),
    "lift": gettext_noop("lift"),
    "brier": gettext_noop("brier"),
    "log_loss": gettext_noop("log_loss"),
    "auc": "AUC",
    "ece": "ECE",
}
"""A column of the figures → its word for people; the English ones are the names."""
GROUP_WORDS: Final[Mapping[str, str]] = {
    "engine": gettext_noop("engine"),
    "model": gettext_noop("model"),
    "grade": gettext_noop("grade"),
    "reason": gettext_noop("reason"),
}
"""What figures are broken down by → its word for people."""

_P, _N, _BOUNCED = pl.col("p"), pl.col("n"), pl.col("bounced")
_FIGURES: Final = (
    "whose",
    "n",
    "left_out",
    "bounced",
    "expected",
    "ratio",
    "low",
    "high",
    "brier",
    "log_loss",
    "auc",
    "ece",
)
_WRITTEN: Final = 5e-5
"""Half of the last place that probabilities are written with: what 0 and 1 may have been."""
_REASON_HEAD: Final = r"(?:^|\| )\[\S+ [+-]\d+\]"
_REASON_LABEL: Final = r"\[(\S+) "


@dataclass(frozen=True, slots=True, repr=False)
class Calibration(Shown):
    """Probabilities against outcomes. Displays as a table in a notebook and as text elsewhere.

    ``n`` rows have both, ``left_out`` lack one; ``bounced`` came back, ``expected`` is the sum of the probabilities.
    ``ratio`` is bounced over expected (calibration in the large), ``low`` and ``high`` its 95 % interval (Wilson's for
    the rate, over the mean probability). ``brier``: mean squared error; ``log_loss`` in nats, where probabilities of 0
    and 1 count as 0.00005 and 0.99995; ``auc``: how often a letter that came back had a higher probability than one
    that did not, ties counting half. ``ece``: expected calibration error, mean distance of probability and rate
    over ten bins of about equal count (rows of the same probability stay together, so bins may be fewer and unequal);
    by chance alone it is above zero. Each is ``None`` where it is not defined: without rows, ``auc`` also where all
    outcomes are the same.

    ``frame``: the bins with ``bin`` (UInt32), ``lowest``, ``highest`` (Float64) and :data:`GROUP_DTYPES`. ``groups``:
    for each column (and ``reason``, by the label of reasons) a frame with ``group`` (String), :data:`GROUP_DTYPES` and
    ``ece`` (Float64, over ten bins of the group's own).
    ``whose``: whose probabilities they are, if known.
    """

    n: int
    left_out: int
    bounced: int
    expected: float
    ratio: float | None
    low: float | None
    high: float | None
    brier: float | None
    log_loss: float | None
    auc: float | None
    ece: float | None
    frame: pl.DataFrame
    groups: Mapping[str, pl.DataFrame]
    whose: str | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The limits of the figures: no rows, few of them, or one outcome only."""
        if not self.n:
            return (gettext("no row has both a probability and a known outcome: there is nothing to compare"),)
        found = []
        if self.n < FEW:
            found.append(
                gettext(
                    "only {rows} with a known outcome, too few to say how good the probabilities are",
                    rows=ngettext("{count:,} row", "{count:,} rows", self.n),
                )
            )
        if self.bounced in (0, self.n):
            found.append(
                gettext("every one of the letters came back: whether the probabilities rank rightly cannot be said")
                if self.bounced
                else gettext(
                    "every one of the letters came back in no case: whether the probabilities rank rightly "
                    "cannot be said"
                )
            )
        return tuple(found)

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, as ``--json`` prints it."""
        return {name: getattr(self, name) for name in _FIGURES} | {
            "enough": self.n >= FEW,
            "deciles": self.frame.to_dicts(),
            "groups": {column: frame.to_dicts() for column, frame in self.groups.items()},
            "warnings": list(map(str, self.warnings)),
        }

    def lines(self) -> list[tuple[str, str]]:
        """The figures as (what, how much) for people; the frames are beside them."""
        found = [(gettext("probabilities"), self.whose)] if self.whose else []
        left_out = (
            gettext(", {left_out:,} without outcome or probability left out", left_out=self.left_out)
            if self.left_out
            else ""
        )
        found.append((gettext("rows"), gettext("{n:,} with a known outcome{left_out}", n=self.n, left_out=left_out)))
        if not self.n:
            return found
        found.append(
            (
                gettext("came back"),
                gettext(
                    "{bounced:,}, {share:.2%}; expected {expected:,.1f}",
                    bounced=self.bounced,
                    share=self.bounced / self.n,
                    expected=self.expected,
                ),
            )
        )
        if self.ratio is not None and self.low is not None and self.high is not None:
            share = gettext(
                "{ratio:.2f} of what was expected (95 % interval {low:.2f} to {high:.2f})",
                ratio=self.ratio,
                low=self.low,
                high=self.high,
            )
            found.append((gettext("in the large"), f"{share}: {self._verdict(self.low, self.high)}"))
        base = self.bounced / self.n
        found.append(
            (
                gettext("Brier"),
                gettext("{brier:.4f}; {base:.4f} if every row had the mean", brier=self.brier, base=base * (1 - base)),
            )
        )
        found.append((gettext("log loss"), f"{self.log_loss:.4f}"))
        ranked = gettext("not defined, all outcomes are the same") if self.auc is None else f"{self.auc:.3f}"
        return [
            *found,
            ("AUC", ranked),
            ("ECE", gettext("{ece:.4f} over {bins}", ece=self.ece, bins=_bin_count(self.frame.height))),
        ]

    def chart_reliability(self) -> Chart:
        """Return predicted against actual returns, a point a bin; raise :class:`UsageError` without rows or Altair."""
        if not self.n:
            raise UsageError(self.warnings[0])
        return charts.reliability(self.frame)

    def _verdict(self, low: float, high: float) -> str:
        if self.n < FEW:
            return gettext("too few rows to say")
        if low > 1:
            return gettext("too low, more came back than expected")
        return gettext("too high, less came back than expected") if high < 1 else gettext("as expected")

    def __repr__(self) -> str:
        rows = ngettext("{count:,} row", "{count:,} rows", self.n)
        return gettext(
            "<bansong calibration: {rows}, {bounced:,} bounced, {expected:,.1f} expected>",
            rows=rows,
            bounced=self.bounced,
            expected=self.expected,
        )

    def _repr_html_(self) -> str:
        frames = {
            gettext("reliability"): self.frame,
            **{
                gettext("by {column}", column=gettext(GROUP_WORDS.get(column, column))): frame
                for column, frame in self.groups.items()
            },
        }
        tables = "".join(f"<h4>{escape(title)}</h4>{frame._repr_html_()}" for title, frame in frames.items())
        return Shown._repr_html_(self) + tables


def calibration(
    frame: pl.LazyFrame | pl.DataFrame,
    *,
    probability: str = "bounce_prob",
    bounced: str = "bounced",
    by: Sequence[str] | None = None,
    whose: str | None = None,
) -> Calibration:
    """Hold probabilities against what happened.

    ``frame`` has ``probability`` (a number, 0 to 1) and ``bounced`` (Boolean); rows where one is null are left out and
    counted. ``by``: the columns to break the figures down by, by default those of :data:`GROUPS` that are there. With
    ``reasons`` (List or the joined String), or the ``level:`` columns of evidence, there are figures by reason, too.
    Raises :class:`LabelError` for a probability that is none, :class:`UsageError` for a column that is not there.
    """
    rows, schema = frame.lazy(), frame.lazy().collect_schema()
    for column in (probability, bounced, *(by or ())):
        if column not in schema:
            raise UsageError(CALIBRATED_COLUMN_MISSING, column=column, names=", ".join(schema))
    chosen = [column for column in (GROUPS if by is None else by) if column in schema]
    rows = rows.with_columns(p=pl.col(probability).cast(pl.Float64), b=pl.col(bounced).cast(pl.Boolean))
    known = rows.filter(pl.col("p").is_not_null() & pl.col("b").is_not_null())
    whole, total, odd, *parts = pl.collect_all(
        [
            _count_by_probability(known, []),
            rows.select(pl.len()),
            known.filter(~pl.col("p").is_between(0, 1) | pl.col("p").is_nan()).select("p").head(1),
            *(_count_by_probability(known, [pl.col(column).cast(pl.String).alias("group")]) for column in chosen),
            *_count_by_reason(known, schema),
        ],
        engine="streaming",
    )
    if odd.height:
        raise LabelError(PROBABILITY_INVALID, probability=probability, odd=odd.item())
    return _from_counts(whole, total.item(), dict(zip([*chosen, "reason"], parts, strict=False)), whose)


def _from_counts(whole: pl.DataFrame, total: int, parts: Mapping[str, pl.DataFrame], whose: str | None) -> Calibration:
    """The report from counts: rows and bounces of each probability, in all and by group."""
    whole = whole.sort("p")
    found = whole.select(*_scores()).row(0, named=True)
    n, bounced, expected = found["n"], found["bounced"], found["expected"]
    base = bounced / n if n else None
    frame = whole.group_by(_bin_expr(), maintain_order=True).agg(
        _P.min().alias("lowest"), _P.max().alias("highest"), *_scores()
    )
    frame = _add_intervals(frame.with_columns(bin=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32)), base)
    ece = frame.select(((pl.col("mean_p") - pl.col("rate")).abs() * _N).sum() / n).item() if n else None
    low, high = interval(bounced, n) if n else (None, None)
    large = expected if n and expected > 0 else None
    return Calibration(
        n=n,
        left_out=total - n,
        bounced=bounced,
        expected=expected,
        ratio=bounced / large if large else None,
        low=low * n / large if large and low is not None else None,
        high=high * n / large if large and high is not None else None,
        brier=found["brier"],
        log_loss=found["log_loss"],
        auc=found["auc"],
        ece=ece,
        frame=frame.select("bin", "lowest", "highest", *GROUP_DTYPES),
        groups={column: _group_frame(part, base, column) for column, part in parts.items() if part["group"].count()},
        whose=whose or _engine_names(parts.get("engine")),
    )


def _count_by_probability(rows: pl.LazyFrame, keys: Sequence[pl.Expr]) -> pl.LazyFrame:
    """Rows and bounces of each probability (and key)."""
    return rows.group_by(*keys, "p").agg(
        pl.len().cast(pl.Int64).alias("n"), pl.col("b").sum().cast(pl.Int64).alias("bounced")
    )


def _scores() -> list[pl.Expr]:
    """Aggregations over counts by probability, sorted by it."""
    n, clear = _N.sum(), _N - _BOUNCED
    sure = _P.clip(_WRITTEN, 1 - _WRITTEN)
    missed = -(_BOUNCED * sure.log() + clear * (1 - sure).log()).sum()
    squared = (_BOUNCED * (1 - _P) ** 2 + clear * _P**2).sum()
    below = clear.cum_sum() - clear / 2  # letters that arrived and rank lower, ties half
    pairs = _BOUNCED.sum() * clear.sum()
    return [
        n.alias("n"),
        _BOUNCED.sum().alias("bounced"),
        (_P * _N).sum().alias("expected"),
        _ratio((_P * _N).sum(), n).alias("mean_p"),
        _ratio(_BOUNCED.sum(), n).alias("rate"),
        _ratio(squared, n).alias("brier"),
        _ratio(missed, n).alias("log_loss"),
        _ratio((_BOUNCED * below).sum(), pairs).alias("auc"),
    ]


def _ratio(of: pl.Expr, to: pl.Expr) -> pl.Expr:
    return pl.when(to > 0).then(of / to)


def _bin_expr() -> pl.Expr:
    """Which of ten bins of equal count a probability falls into, by the rank of its middle row."""
    middle = _N.cum_sum() - _N / 2
    return (middle * BINS / _N.sum()).floor().clip(0, BINS - 1).cast(pl.UInt32).alias("bin")


def _group_frame(part: pl.DataFrame, base: float | None, column: str) -> pl.DataFrame:
    part = part.drop_nulls("group").sort("group", "p")
    bins = part.with_columns(_bin_expr().over("group")).group_by("group", "bin", maintain_order=True)
    off = bins.agg(_N.sum(), off=((_P * _N).sum() - _BOUNCED.sum()).abs())
    ece = off.group_by("group").agg(ece=pl.col("off").sum() / _N.sum())
    found = part.group_by("group", maintain_order=True).agg(*_scores()).join(ece, on="group", maintain_order="left")
    if column == "reason":
        found = found.sort("n", descending=True, maintain_order=True)
    return _add_intervals(found, base).select("group", *GROUP_DTYPES, "ece")


def _add_intervals(frame: pl.DataFrame, base: float | None) -> pl.DataFrame:
    """Add the interval of the rate and how it compares with the rate of all rows."""
    bounds = [interval(bounced, n) for bounced, n in frame.select("bounced", "n").iter_rows()]  # a row is a group
    return frame.with_columns(
        pl.Series("low", [low for low, _ in bounds], pl.Float64),
        pl.Series("high", [high for _, high in bounds], pl.Float64),
        (pl.col("rate") / base if base else pl.lit(None, pl.Float64)).alias("lift"),
    )


def _count_by_reason(known: pl.LazyFrame, schema: Mapping[str, Any]) -> list[pl.LazyFrame]:
    """Counts by the label of reasons, each label once a row.

    Labels are taken from each distinct text (or pattern of levels), and only the few sets of them are taken apart.
    """
    levels = [name for name in schema if name.startswith(LEVEL)]
    if "reasons" in schema:
        joined = isinstance(schema["reasons"], pl.List)
        text = pl.col("reasons").list.join(REASON_SEPARATOR) if joined else pl.col("reasons").cast(pl.String)
        known, keys = known.with_columns(text.alias("reasons")), ["reasons"]
        found = pl.col("reasons").str.extract_all(_REASON_HEAD).list.eval(pl.element().str.extract(_REASON_LABEL))
    elif levels:
        keys = levels
        named = {name: LABELS.get(name.removeprefix(LEVEL), name.removeprefix(LEVEL)) for name in levels}
        found = pl.concat_list(pl.when(pl.col(name).is_not_null()).then(pl.lit(of)) for name, of in named.items())
    else:
        return []
    labels = found.list.drop_nulls().list.unique().list.sort().list.join(" ").alias("labels")
    sets = known.select(keys).unique().with_columns(labels)
    counts = _count_by_probability(known.join(sets, on=keys, nulls_equal=True), [pl.col("labels")])
    each = counts.with_columns(group=pl.col("labels").str.split(" ")).explode("group", empty_as_null=True)
    return [each.filter(pl.col("group") != "").group_by("group", "p").agg(_N.sum(), _BOUNCED.sum())]


def _engine_names(engines: pl.DataFrame | None) -> str | None:
    return None if engines is None else gettext(" and ").join(engines["group"].drop_nulls().unique().sort()) or None


def _bin_count(bins: int) -> str:
    """Return the number of bins in words."""
    return gettext("{bins} bins of about equal count", bins=bins) if bins > 1 else gettext("1 bin")


def file_calibration(path: Path) -> Calibration:
    """The calibration report of a labelled file of any format, with the columns ``bounced`` and ``bounce_prob``.

    Used where they are there: ``grade``, ``action``, ``reasons``, ``engine``, ``model``. Raises :class:`InputError` as
    any reader does, :class:`LabelError` for a missing column, or naming row and value where one cannot be read.
    """
    with open_labelled(path) as (rows, _):
        return calibration(rows)


UNREAD_ENGINE: Final = gettext_noop("service or unknown")
"""The ``engine`` of labels whose reasons no scorecard gave: a value in frames, in every language."""


def store_calibration(folder: Path | None = None) -> tuple[str, Calibration]:
    """The calibration report of a label store (by default the user's), with its folder.

    Its ``engine`` is ``local`` where the reasons are those of a scorecard that is known, else ``service or unknown``.
    """
    store = LabelStore(folder)
    whose = pl.when("unread").then(pl.lit(UNREAD_ENGINE)).otherwise(pl.lit("local"))
    return str(store.folder), calibration(store.evidence(unread=True).with_columns(engine=whose))
