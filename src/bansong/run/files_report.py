"""The report of several inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import starmap
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.base.display import Shown, grade_bar, listed_counts
from bansong.base.errors import UsageError
from bansong.base.messages import current_language, gettext, ngettext
from bansong.base.schema import Alert, Choice, role_word, written_warnings
from bansong.run import charts
from bansong.run.accounting import LookupPlan, StatusCounts, kept_alert
from bansong.run.manifest import record_of
from bansong.run.report import (
    DRY_RUN_UNGRADED,
    OUTPUT_NOT_WRITTEN,
    Report,
    Versions,
    count_lines,
    lookups_as_dict,
    purchase_lines,
    quote_lines,
)
from bansong.run.side_files import WrittenSides

if TYPE_CHECKING:
    from bansong.engine.protocol import Purchase
    from bansong.reference.statuses import RunStatuses
    from bansong.run.charts import Chart

_SHOWN: Final = 30
_PASSED_SHOWN: Final = 5
_FAILED: Final = 3
_PAUSED: Final = 5
_COUNTED: Final = ("biz_status", "grade", "action")
# fields that all tables of a run share
_OF_ALL: Final = ("manifest", "dry_run", "seconds", "quota", "purchase", "lookups", "asked", "history")


@dataclass(frozen=True, slots=True, repr=False)
class FilesReport(Shown):
    """The outcome of one run over several inputs. Displays as a table in a notebook and as text elsewhere.

    ``parts``: a report for each table (a sheet or a file). Each ``account`` balances by itself; there is no
    ``manifest``, and ``purchase`` is that of the whole run. ``plan``: a lookup of several tables counts once.
    ``failed``: the error of each input without an output, by path. ``passed_over``: notes on files that are no inputs.
    ``statuses``, ``asked``, ``purchase``: as in :class:`Report`, over all tables. ``beside``: letters of all tables.
    """

    run_id: str
    started: datetime
    seconds: float
    engine: str
    parts: tuple[Report, ...]
    plan: LookupPlan
    versions: Versions
    failed: Mapping[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()
    statuses: StatusCounts | None = None
    asked: RunStatuses | None = None
    purchase: Purchase | None = None
    manifest: str | None = None
    beside: WrittenSides | None = None

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return self.plan.rows

    @property
    def dry_run(self) -> bool:
        """Whether this is a plan only."""
        return all(part.account is None for part in self.parts)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by ``row_status``; empty for a dry run."""
        return _sum(part.counts for part in self.parts)

    @property
    def columns(self) -> Mapping[str, Choice]:
        """The columns of each role if all tables have the same, else empty."""
        first = self.parts[0].columns if self.parts else {}
        return first if all(part.columns == first for part in self.parts) else {}

    @property
    def exit_code(self) -> int:
        """5 if rows are pending (repeat the call to continue), else 3 if rows or inputs failed, else 0."""
        kept = self.beside is not None and self.beside.lacks_letters
        codes = {part.exit_code for part in self.parts} | ({_FAILED} if self.failed or kept else set())
        return next((code for code in (_PAUSED, _FAILED) if code in codes), 0)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the run; one that does not hold for all tables begins with the table's name."""
        of_parts = []
        for part in self.parts:
            status = part.statuses.summary if part.statuses is not None else None
            of_parts.append((part, [one for one in dict.fromkeys(part.warnings) if one != status]))
        counted = Counter(warning for _, warnings in of_parts for warning in warnings)
        found = dict.fromkeys(warning for warning, times in counted.items() if times == len(self.parts))
        for part, warnings in of_parts:
            found |= dict.fromkeys(_of_table(part, one) for one in warnings if counted[one] < len(self.parts))
        failures = (Alert(error) for error in self.failed.values())
        statuses = [self.statuses] if self.statuses is not None and self.statuses.is_alarming else []
        kept = self.beside.alerts if self.beside else ()
        kept += tuple(starmap(kept_alert, self.beside.kept.items())) if self.beside else ()
        return (*failures, *kept, *(Alert(one.summary) for one in statuses), *found, *self._first_passed_over())

    def _first_passed_over(self) -> list[str]:
        more = len(self.passed_over) - _PASSED_SHOWN
        if more <= 1:
            return [*self.passed_over]
        rest = ngettext(
            "{count:,} more file was passed over; the manifest has all of them",
            "{count:,} more files were passed over; the manifest has all of them",
            more,
        )
        return [*self.passed_over[:_PASSED_SHOWN], rest]

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, as ``--json`` prints it."""
        return {
            "run_id": self.run_id,
            "started": self.started.isoformat(),
            "seconds": round(self.seconds, 3),
            "engine": self.engine,
            "manifest": self.manifest,
            "dry_run": self.dry_run,
            "rows": self.rows,
            "statuses": asdict(self.statuses) if self.statuses else None,
            "asked": self.asked.as_dict() if self.asked else None,
            "row_status": self.counts,
            **{name: self._sum_of(f"by_{name}") for name in _COUNTED},
            "match_level": _sum(part.addresses for part in self.parts),
            **lookups_as_dict(self.plan, self.purchase),
            "versions": asdict(self.versions),
            **(self.beside.as_dict() if self.beside else {}),
            "parts": [_part_as_dict(part, place) for place, part in enumerate(self.parts, 1)],
            "failed": dict(self.failed),
            "passed_over": list(self.passed_over),
            **written_warnings(self.warnings),
        }

    def _describe(self) -> list[tuple[str, str]]:
        plan = self.plan
        found = [] if self.statuses is None else [(gettext("statuses"), self.statuses.summary)]
        tables = ngettext("{count:,} table", "{count:,} tables", sum(len(part.merged) or 1 for part in self.parts))
        found += [(gettext("inputs"), tables), (gettext("rows"), f"{self.rows:,}")]
        if not self.dry_run:
            found += count_lines(self.counts, *(self._sum_of(f"by_{name}") for name in _COUNTED))
        repeats = ngettext("{count:,} row repeats one", "{count:,} rows repeat one", plan.duplicates)
        lookups = gettext("{lookups:,} distinct, {repeats}", lookups=plan.lookups, repeats=repeats)
        found.append((gettext("lookups"), lookups))
        if plan.invalid:
            found.append((gettext("invalid"), f"{plan.invalid:,}"))
        found += [] if self.asked is None else self.asked.lines()
        if self.purchase is not None:
            found += (quote_lines if self.dry_run else purchase_lines)(plan, self.purchase)
        found.append((gettext("time"), gettext("{seconds:.1f} s, run {run}", seconds=self.seconds, run=self.run_id)))
        beside = self.beside.lines() if self.beside else []
        decided = [line for part in self.parts if part.decisions for line in part.decisions.lines()]
        return [*found, *decided, *beside, *self._part_lines(), *self._column_lines()]

    def _part_lines(self) -> list[tuple[str, str]]:
        lines = [(gettext("table"), _describe(part)) for part in self.parts[:_SHOWN]]
        if (more := len(self.parts) - _SHOWN) > 0:
            rest = ngettext("and {count:,} more, in the manifest", "and {count:,} more, in the manifest", more)
            lines.append((gettext("table"), rest))
        return lines

    def _column_lines(self) -> list[tuple[str, str]]:
        if self.columns:
            return []
        alike: dict[str, list[str]] = {}
        for part in self.parts:
            roles = ((role_word(role, current_language()), choice) for role, choice in part.columns.items())
            headers = (f"{role} {choice.spell(lambda one: repr(one.header), ' + ', ' | ')}" for role, choice in roles)
            alike.setdefault(", ".join(headers), []).append(_name_table(part))
        lines = []
        for chosen, (first, *others) in [*alike.items()][:_SHOWN]:
            more = len(others)
            tables = ngettext("{table} and {count:,} more", "{table} and {count:,} more", more, table=first)
            lines.append((gettext("columns"), f"{tables if others else first}: {chosen}"))
        return lines

    def _sum_of(self, name: str) -> dict[str, int]:
        return _sum(getattr(part.account, name) for part in self.parts if part.account is not None)

    def chart_grades(self) -> Chart:
        """Draw rows by grade as bars; raise :class:`UsageError` for a dry run, or without Altair."""
        if self.dry_run:
            raise UsageError(DRY_RUN_UNGRADED)
        return charts.grades(self._sum_of("by_grade"), self.rows)

    def chart_regions(self) -> Chart:
        """Draw the return risk by province as tiles, from all outputs; raises as :meth:`Report.chart_regions`."""
        if not (regions := [part.regions() for part in self.parts]):
            raise UsageError(OUTPUT_NOT_WRITTEN)
        return charts.regions(pl.concat(regions).group_by("region").agg(pl.col("rows", "expected").sum()))

    def _repr_html_(self) -> str:
        return ("" if self.dry_run else grade_bar(self._sum_of("by_grade"), self.rows)) + Shown._repr_html_(self)

    def __repr__(self) -> str:
        done = gettext("planned") if self.dry_run else listed_counts(self.counts)
        tables = ngettext("{count:,} table", "{count:,} tables", len(self.parts))
        return f"<bansong.FilesReport {self.run_id}: {tables}, {done}>"


def record_of_files(report: FilesReport) -> dict[str, object]:
    """Return the manifest of a run over several inputs."""
    hashes = {part.input: part.input_sha256 for part in report.parts if not part.merged}
    inputs = [{"path": path, "sha256": sha256} for path, sha256 in hashes.items()]
    return report.as_dict() | {"inputs": [*inputs, *(one for part in report.parts for one in part.merged)]}


def agree_together(purchase: Purchase | None, parts: Sequence[Report]) -> Purchase | None:
    """Add to the purchase how far local engine and service agree on the rows of all tables."""
    agreed = [part.purchase.agreement for part in parts if part.purchase is not None and part.purchase.agreement]
    if purchase is None or not agreed:
        return purchase
    # mean distance of probabilities, weighted by the rows that both answered
    apart = [(one.prob_apart, one.rows) for one in agreed if one.prob_apart is not None and one.rows]
    weight = sum(rows for _, rows in apart)
    mean = sum(distance * rows for distance, rows in apart) / weight if weight else None
    counts = ("rows", "status_known", "status_same", "action_same")
    sums = {name: sum(getattr(one, name) for one in agreed) for name in counts}
    return replace(purchase, agreement=replace(agreed[0], prob_apart=mean, **sums))


def _part_as_dict(part: Report, place: int) -> dict[str, object]:
    own = {name: value for name, value in record_of(part).items() if name not in _OF_ALL}
    return {"id": f"{part.run_id}-{place}", "table": part.table, "sheet": part.sheet, **own}


def _describe(part: Report) -> str:
    rows = ngettext("{count:,} row", "{count:,} rows", part.rows)
    if part.account is None:
        return f"{_name_table(part)}: {rows}"
    return f"{_name_table(part)}: {rows} ({listed_counts(part.counts)}) → {part.output}"


def _name_table(part: Report) -> str:
    return f"{part.input} [{part.sheet}]" if part.sheet else part.input


def _of_table(part: Report, warning: str) -> str:
    named = f"{_name_table(part)}: {warning}"
    return Alert(named) if isinstance(warning, Alert) else named


def _sum(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found = Counter[str]()
    for counts in counted:
        found.update(counts)  # unlike `+`, keeps words with zero rows
    return dict(found)
