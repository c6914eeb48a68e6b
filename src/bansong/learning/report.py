"""Compare probabilities with outcomes: calibration figures of labelled files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base.display import Shown
from bansong.base.errors import LabelError, Problem, UsageError
from bansong.base.messages import Phrase, count_rows, gettext, gettext_noop, gettext_of
from bansong.base.schema import HEADERS, REASON_SEPARATOR, code_expr
from bansong.engine.risk.reasons import LABELS, LEVEL
from bansong.history.labels import LabelStore
from bansong.history.letters import non_blank
from bansong.history.outcomes import came_back
from bansong.learning.checks import FEW, interval, judge_prediction
from bansong.run.charts import reliability
from bansong.tables.detect import open_table, reading
from bansong.tables.table import TEXTS, Table

if TYPE_CHECKING:
    from bansong.run.charts import Chart


VALUE_UNREADABLE: Final = Problem(
    "learning.value_unreadable", "{name}: row {row}, column {column!r}: {value!r} cannot be read; expected {expected}"
)
LABELLED_COLUMN_MISSING: Final = Problem(
    "learning.labelled_column_missing",
    "{name}: there is no column {column!r}; a labelled file is an enriched one with outcomes, as "
    "`bansong label OUTCOMES --file ENRICHED --output LABELLED` writes it",
)

_NEEDED: Final = ("bounced", "bounce_prob")
_READ: Final = (*_NEEDED, "grade", "action", "reasons", "engine", "model")
_NAMES: Final = {name: name for name in _READ} | {
    header: name for headers in HEADERS.values() for name, header in headers.items() if name in _READ
}


@contextmanager
def open_labelled(path: Path) -> Iterator[tuple[pl.LazyFrame, Table]]:
    """Yield the needed columns of a labelled file: ``bounced`` (Boolean), ``bounce_prob`` (Float64), …"""
    with open_table(path, options={}) as table, reading(table):
        places = _find_columns(table.headers)
        for name in _NEEDED:
            if name not in places:
                raise LabelError(LABELLED_COLUMN_MISSING, name=table.name, column=name)
        columns = {name: pl.col(table.ids[place]) for name, place in places.items()}
        rows = table.frame.select(expression.alias(name) for name, expression in columns.items())
        yield _parse_columns(rows, table), table


def _find_columns(headers: Sequence[str]) -> dict[str, int]:
    """Find bansong's columns; of several with one name the last, since they follow the user's columns."""
    found = {}
    for place, header in enumerate(headers):
        name = _NAMES.get(re.sub(r"_bv[0-9]*$", "", header))
        if name is not None:
            found[name] = place
    return found


def _parse_columns(rows: pl.LazyFrame, table: Table) -> pl.LazyFrame:
    schema = rows.collect_schema()
    read = {}
    if schema["bounced"] != pl.Boolean:
        read["bounced"] = came_back(non_blank(pl.col("bounced")), "bounced")
    if not schema["bounce_prob"].is_numeric():
        read["bounce_prob"] = non_blank(pl.col("bounce_prob")).cast(pl.Float64, strict=False)
    for name, expression in read.items():
        text = non_blank(pl.col(name))
        odd = rows.select(name).with_row_index("row", table.first_row)
        odd = odd.filter(text.is_not_null() & expression.is_null()).head(1).select("row", text)
        for row, value in odd.collect().iter_rows():
            fraction = Phrase("a fraction between 0 and 1")
            expected = fraction if name == "bounce_prob" else Phrase("true, false or nothing")
            raise LabelError(VALUE_UNREADABLE, name=table.name, row=row, column=name, value=value, expected=expected)
    texts = [name for name in ("grade", "action", "engine", "model") if schema.get(name) in TEXTS]
    codes = [code_expr(non_blank(pl.col(name)), name).alias(name) for name in texts]
    return rows.with_columns(**read).with_columns(codes)


PROBABILITY_INVALID: Final = Problem(
    "learning.probability_invalid",
    "column {probability!r} holds {odd}, which is no probability; give fractions between 0 and 1",
)
CALIBRATED_COLUMN_MISSING: Final = Problem(
    "learning.calibrated_column_missing", "there is no column {column!r} to calibrate by; the columns are {names}"
)

BINS: Final = 10
GROUPS: Final = ("engine", "model", "grade", "action")

# figures of bins and groups; `low` to `high`: 95 % interval (Wilson) of `rate`; `lift`: ratio to the rate of all rows
GROUP_DTYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **dict.fromkeys(("n", "bounced"), pl.Int64),
    **dict.fromkeys(("expected", "mean_p", "rate", "low", "high", "lift", "brier", "log_loss", "auc"), pl.Float64),
}

ABBREVIATIONS: Final = {"auc": "AUC", "ece": "ECE"}
# names of columns and groups that are translated when shown
_SHOWN: Final = (
    *(gettext_noop("bin"), gettext_noop("group"), gettext_noop("lowest"), gettext_noop("highest")),
    *(gettext_noop("n"), gettext_noop("bounced"), gettext_noop("expected"), gettext_noop("mean_p")),
    *(gettext_noop("rate"), gettext_noop("low"), gettext_noop("high"), gettext_noop("lift")),
    *(gettext_noop("brier"), gettext_noop("log_loss")),
    *(gettext_noop("engine"), gettext_noop("model"), gettext_noop("grade"), gettext_noop("reason")),
)

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
_WRITTEN: Final = 5e-5  # half of the last digit of a written probability
_REASON_HEAD: Final = r"(?:^|\| )\[\S+ [+-]\d+\]"
_REASON_LABEL: Final = r"\[(\S+) "


@dataclass(frozen=True, slots=True, repr=False)
class Calibration(Shown):
    """Figures on probabilities and outcomes. Displays as a table in a notebook and as text elsewhere."""

    n: int  # rows with probability and outcome
    left_out: int  # rows without one of them
    bounced: int
    expected: float  # sum of the probabilities
    ratio: float | None  # bounced over expected; `None` (also of other figures): not defined
    low: float | None  # 95 % interval of `ratio` (Wilson)
    high: float | None
    brier: float | None  # mean squared error
    log_loss: float | None  # in nats
    auc: float | None  # how often a returned letter ranks above an arrived one; ties count half
    ece: float | None  # expected calibration error over the bins
    frame: pl.DataFrame  # bins: `bin`, `lowest`, `highest` and `GROUP_DTYPES`
    groups: Mapping[str, pl.DataFrame]  # by column, and by `reason`: `group`, `GROUP_DTYPES` and `ece`
    whose: str | None = None  # source of the probabilities, if known

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the figures are uncertain: no rows, few rows, or one outcome only."""
        return tuple(self._limits())

    def _limits(self) -> Iterator[str]:
        if not self.n:
            yield gettext("no row has both a probability and a known outcome: there is nothing to compare")
            return
        if self.n < FEW:
            few = gettext_noop("only {rows} with a known outcome, too few to say how good the probabilities are")
            yield gettext(few, rows=count_rows(self.n))
        if self.bounced == self.n:
            yield gettext("every one of the letters came back: whether the probabilities rank rightly cannot be said")
        elif not self.bounced:
            yield gettext(
                "every one of the letters came back in no case: whether the probabilities rank rightly cannot be said"
            )

    @property
    def headline(self) -> str:
        """One plain sentence: whether the probabilities agree with what came back."""
        return judge_prediction(self.n, self.bounced, self.expected)

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _FIGURES} | {
            "enough": self.n >= FEW,
            "deciles": self.frame.to_dicts(),
            "groups": {column: frame.to_dicts() for column, frame in self.groups.items()},
            "warnings": list(map(str, self.warnings)),
        }

    def chart_reliability(self) -> Chart:
        """Draw predicted against actual returns; raise :class:`UsageError` without rows or without Altair."""
        if not self.n:
            raise UsageError(self.warnings[0])
        return reliability(self.frame)

    def _describe(self) -> Iterator[tuple[str, str]]:
        if self.whose:
            yield gettext("probabilities"), self.whose
        left_out = gettext_of(self, ", {left_out:,} without outcome or probability left out") if self.left_out else ""
        yield gettext("rows"), gettext_of(self, "{n:,} with a known outcome{left_out}", left_out=left_out)
        if not self.n:
            return
        share = self.bounced / self.n
        yield gettext("came back"), gettext_of(self, "{bounced:,}, {share:.2%}; expected {expected:,.1f}", share=share)
        if self.ratio is not None and self.low is not None and self.high is not None:
            ratio = gettext_of(self, "{ratio:.2f} of what was expected (95 % interval {low:.2f} to {high:.2f})")
            yield gettext("in the large"), f"{ratio}: {self._verdict(self.low, self.high)}"
        base = share * (1 - share)
        yield gettext("Brier"), gettext_of(self, "{brier:.4f}; {base:.4f} if every row had the mean", base=base)
        yield gettext("log loss"), f"{self.log_loss:.4f}"
        yield "AUC", gettext("not defined, all outcomes are the same") if self.auc is None else f"{self.auc:.3f}"
        count = self.frame.height
        bins = gettext("{bins} bins of about equal count", bins=count) if count > 1 else gettext("1 bin")
        yield "ECE", gettext_of(self, "{ece:.4f} over {bins}", bins=bins)

    def _verdict(self, low: float, high: float) -> str:
        if self.n < FEW:
            return gettext("too few rows to say")
        if low > 1:
            return gettext("too low, more came back than expected")
        return gettext("too high, less came back than expected") if high < 1 else gettext("as expected")

    def __repr__(self) -> str:
        rows = count_rows(self.n)
        return gettext_of(
            self, "<bansong calibration: {rows}, {bounced:,} bounced, {expected:,.1f} expected>", rows=rows
        )

    def _repr_html_(self) -> str:
        frames = {
            gettext("reliability"): self.frame,
            **{gettext("by {column}", column=gettext(column)): frame for column, frame in self.groups.items()},
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
    """Compare probabilities (0 to 1) with outcomes (Boolean), in all and by columns (``by``) and reasons."""
    # rows with nulls are left out; raises LabelError for an invalid probability, UsageError for a missing column
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
    engines = parts["engine"]["group"].drop_nulls().unique().sort() if "engine" in parts else ()
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
        whose=whose or gettext(" and ").join(engines) or None,
    )


def _count_by_probability(rows: pl.LazyFrame, keys: Sequence[pl.Expr]) -> pl.LazyFrame:
    return rows.group_by(*keys, "p").agg(
        pl.len().cast(pl.Int64).alias("n"), pl.col("b").sum().cast(pl.Int64).alias("bounced")
    )


def _scores() -> list[pl.Expr]:
    n, clear = _N.sum(), _N - _BOUNCED
    sure = _P.clip(_WRITTEN, 1 - _WRITTEN)
    missed = -(_BOUNCED * sure.log() + clear * (1 - sure).log()).sum()
    squared = (_BOUNCED * (1 - _P) ** 2 + clear * _P**2).sum()
    below = clear.cum_sum() - clear / 2  # arrived letters that rank lower, plus half of the ties
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
    bounds = [interval(bounced, n) for bounced, n in frame.select("bounced", "n").iter_rows()]  # one row for each group
    return frame.with_columns(
        pl.Series("low", [low for low, _ in bounds], pl.Float64),
        pl.Series("high", [high for _, high in bounds], pl.Float64),
        (pl.col("rate") / base if base else pl.lit(None, pl.Float64)).alias("lift"),
    )


def _count_by_reason(known: pl.LazyFrame, schema: Mapping[str, Any]) -> list[pl.LazyFrame]:
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


def file_calibration(path: Path) -> Calibration:
    """Compare probabilities and outcomes of a labelled file; raise :class:`InputError` or :class:`LabelError`."""
    with open_labelled(path) as (rows, _):
        return calibration(rows)


UNREAD_ENGINE: Final = gettext_noop("service or unknown")  # engine of labels without a known scorecard


def store_calibration(folder: Path | None = None) -> tuple[str, Calibration]:
    """Compare probabilities and outcomes of a label store; return the path of its folder, too."""
    store = LabelStore(folder)
    whose = pl.when("unread").then(pl.lit(UNREAD_ENGINE)).otherwise(pl.lit("local"))
    return str(store.folder), calibration(store.evidence(unread=True).with_columns(engine=whose))
