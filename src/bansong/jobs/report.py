"""The report of a job's run, its message, and its metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from bansong.base.display import Shown
from bansong.base.messages import (
    Phrase,
    count_rows,
    current_audience,
    end_sentence,
    gettext,
    gettext_noop,
    gettext_of,
    join_clauses,
    ngettext,
    use_audience,
)
from bansong.base.publish import publish_file
from bansong.base.schema import SEOUL, Alert
from bansong.jobs.inputs import set_mode
from bansong.jobs.job_file import JobFileAudience
from bansong.run.changes import CHANGES, Change, count_kinds
from bansong.run.files_report import FilesReport
from bansong.run.report import Report

_WORDS: Final[Mapping[Change, str]] = {
    "closed": gettext_noop("{count:,} newly closed"),
    "suspended": gettext_noop("{count:,} newly suspended"),
    "reopened": gettext_noop("{count:,} open again"),
    "risk_up": gettext_noop("{count:,} with a higher risk of return"),
    "risk_down": gettext_noop("{count:,} with a lower risk of return"),
    "action_up": gettext_noop("{count:,} with a stricter action"),
    "action_down": gettext_noop("{count:,} with a milder action"),
    "address": gettext_noop("{count:,} with another corrected address"),
    "new": gettext_noop("{count:,} new"),
    "gone": gettext_noop("{count:,} gone"),
}


def compose_message(
    job: str,
    rows: int,
    since: float | None,
    counts: Mapping[str, int],
    failed: Sequence[str] = (),
    paused: Sequence[str] = (),
    unasked_nights: int = 0,
) -> str:
    """Return the message of a run. It has no numbers, names or addresses, but paths of inputs.

    ``counts``: rows by kind of change. ``since``: when the run before started, in seconds since 1970.
    """
    lines = [_describe_changes(job, rows, since, counts, is_whole=not (failed or paused))]
    if unasked_nights > 1:
        lines.append(
            gettext(
                "for {nights} nights in a row not all statuses could be asked of the tax authority, so closures may be "
                "missing",
                nights=unasked_nights,
            )
        )
    lines += [gettext("failed: {error}", error=error) for error in failed]
    lines += [gettext("the next run goes on with some rows: {error}", error=error) for error in paused]
    return "\n".join(map(end_sentence, lines))


def _describe_changes(job: str, rows: int, since: float | None, counts: Mapping[str, int], *, is_whole: bool) -> str:
    if since is None:
        return gettext("{job}: first run, {rows:,} rows verified (no run before to compare with)", job=job, rows=rows)
    day = datetime.fromtimestamp(since, SEOUL).date().isoformat()
    changes = describe_counts(counts)
    if not changes and not is_whole:
        return gettext("{job}: no change was found, but not all could be verified", job=job)
    if not changes:
        return gettext("{job}: nothing changed", job=job, day=day)
    return gettext("{job}: since {day} {changes}", job=job, day=day, changes=changes)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return the counts of changes in words, without zeros."""
    return ", ".join(gettext(_WORDS[kind], count=counts[kind]) for kind in CHANGES if counts.get(kind))


PAUSED: Final = 5  # exit code of inputs that the next run continues
_FAILED: Final = 3
# exit codes by urgency: failures that people must repair come first
_SEVEREST: Final = (4, 1, 2, 3, PAUSED, 0)
OutcomeKind = Literal["verified", "unchanged", "failed", "left", "passed_over"]
OUTCOME_WORDS: Final[Mapping[OutcomeKind, str]] = {
    "verified": gettext_noop("verified"),
    "unchanged": gettext_noop("unchanged"),
    "failed": gettext_noop("failed"),
    "left": gettext_noop("left"),
    "passed_over": gettext_noop("passed over"),
}


@dataclass(frozen=True, slots=True)
class InputOutcome:
    """The result of a run for one input."""

    path: str
    what: OutcomeKind  # unchanged: output reused; left: for the next run, at the deadline; passed_over: no table
    output: str | None = None
    rows: int = 0
    paid: int = 0  # lookups
    exit_code: int = 0
    error: str | None = None
    unasked: int = 0  # due numbers that could not be asked
    lost: tuple[str, ...] = ()  # columns that the run before had
    report: Report | FilesReport | None = field(default=None, repr=False)
    kept: tuple[Alert, ...] = ()  # about edited copies

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the answers, with remedies that name fields of the job file. Alerts stay alerts."""
        with use_audience(JobFileAudience(current_audience())):
            said = (*self.kept, *(self.report.warnings if self.report else ()))
            return tuple(Alert(str(one)) if isinstance(one, Alert) else str(one) for one in said)

    @property
    def code_of_report(self) -> int:
        if self.report is None:
            return 0
        if self.lost or self._unanswered_rows or (self.unasked and self.report.asked is None):
            return _FAILED
        return (self.report.asked.fetch.run_exit_code if self.report.asked else 0) or self.report.exit_code

    @property
    def problem(self) -> str | None:
        if not self.exit_code or self.error:
            return self.error
        return join_clauses(*self.problems_of_rows, self._halt) or gettext("most rows hold no usable business number")

    @property
    def problems_of_rows(self) -> Iterator[str]:
        if self.lost:
            yield gettext(
                "columns that the run before found are missing ({columns}), so only statuses were compared",
                columns=", ".join(self.lost),
            )
        if count := self._unanswered_rows:
            yield ngettext(
                "{count:,} row without an answer (failed or in doubt)",
                "{count:,} rows without an answer (failed or in doubt)",
                count,
            )
        if self.unasked and (self.report is None or self.report.asked is None):
            yield gettext(
                "the run before asked the tax authority, and this one found no key; set BANSONG_NTS_KEY, or set "
                '`source = "none"` in [status]'
            )
        if self.report is not None and self.report.counts.get("pending"):
            yield gettext("pending rows")

    @property
    def _halt(self) -> str:
        if not self.unasked or self.report is None or self.report.asked is None:
            return ""
        return gettext("not all could be asked of the tax authority: {halt}", halt=self.report.asked.fetch.halt)

    @property
    def _unanswered_rows(self) -> int:
        counts = self.report.counts if self.report else {}
        return counts.get("failed", 0) + counts.get("in_doubt", 0)

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON. Warnings are left out, since they may quote values of rows."""
        names = ("path", "what", "output", "rows", "paid", "exit_code", "error", "unasked", "lost")
        return {name: getattr(self, name) for name in names} | {"row_status": self.report.counts if self.report else {}}


@dataclass(frozen=True, slots=True)
class JobReport(Shown):
    """The report of one run of a job.

    ``changes``: changes since the run before (:data:`bansong.run.changes.CHANGE_SCHEMA`); empty in the first run, where
    ``since`` is ``None``. ``message``: the notification, if any. ``problems``: failed deliveries and files.
    """

    job: str
    run_id: str
    started: datetime
    seconds: float
    inputs: tuple[InputOutcome, ...]
    changes: pl.DataFrame = field(repr=False)
    since: datetime | None = None
    changes_file: str | None = None
    message: str | None = None
    problems: tuple[str, ...] = ()
    installed: tuple[tuple[str, str], ...] = ()  # line about installed reference files

    @property
    def exit_code(self) -> int:
        """Exit code of the most urgent input, 3 for ``problems``, else 5 (paused), else 0."""
        codes = {outcome.exit_code for outcome in self.inputs} | ({3} if self.problems else set())
        return next(code for code in _SEVEREST if code in codes or not code)

    @property
    def counts(self) -> dict[str, int]:
        return count_kinds(self.changes)

    @property
    def rows(self) -> int:
        return sum(outcome.rows for outcome in self.inputs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "run_id": self.run_id,
            "started": self.started.isoformat(),
            "since": self.since.isoformat() if self.since else None,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            "rows": self.rows,
            "inputs": [one.as_dict() | {"warnings": list(map(str, one.warnings))} for one in self.inputs],
            "changes": self.counts,
            "changes_file": self.changes_file,
            "message": self.message,
            "problems": list(self.problems),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        written = "  " + gettext("written to")
        yield gettext("job"), gettext_of(self, "{job}, run {run_id}, {seconds:.1f} s")
        for one in self.inputs:
            rows = count_rows(one.rows)
            rows = Phrase("{rows}, paid {paid:,}", rows=rows, paid=one.paid) if one.paid else rows
            about = one.error or join_clauses(rows, *one.problems_of_rows)
            yield gettext(OUTCOME_WORDS[one.what]), f"{one.path}: {about}"
            if one.output and one.what != "failed":
                yield written, one.output
        yield gettext("changes"), self._describe_changes()
        if self.changes_file:
            yield written, self.changes_file
        yield from self.installed
        yield from ((gettext("attention"), problem) for problem in self.problems)

    def _describe_changes(self) -> str:
        if self.since is None:
            return gettext("first run, nothing to compare with")
        changes = describe_counts(self.counts)
        day = self.since.date().isoformat()
        if not changes and any(one.exit_code for one in self.inputs):
            return gettext("none found, but not all could be verified")
        return gettext("since {day} {changes}", day=day, changes=changes) if changes else gettext("none")


_METRICS_MODE: Final = 0o644  # the collector runs as another user, and the file holds only figures


def write_metrics(report: JobReport, target: Path) -> None:
    """Write a run's figures for the textfile collector of Prometheus."""
    job = f"job={json.dumps(report.job, ensure_ascii=False)}"
    figures: dict[str, float] = {
        f"bansong_job_last_run_timestamp_seconds{{{job}}}": report.started.timestamp(),
        f"bansong_job_duration_seconds{{{job}}}": round(report.seconds, 3),
        f"bansong_job_exit_code{{{job}}}": report.exit_code,
        f"bansong_job_rows{{{job}}}": report.rows,
        f"bansong_job_problems{{{job}}}": len(report.problems),
        f"bansong_job_paid_lookups{{{job}}}": sum(one.paid for one in report.inputs),
    }
    for what in OUTCOME_WORDS:
        figures[f'bansong_job_inputs{{{job},what="{what}"}}'] = sum(one.what == what for one in report.inputs)
    for kind, count in report.counts.items():
        figures[f'bansong_job_changes{{{job},kind="{kind}"}}'] = count
    names = dict.fromkeys(name.partition("{")[0] for name in figures)
    lines = [f"# TYPE {name} gauge" for name in names] + [f"{name} {value}" for name, value in figures.items()]
    with publish_file(target) as temporary:
        temporary.write_text("\n".join(sorted(lines, key=_by_name)) + "\n", encoding="utf-8")
    set_mode(target, _METRICS_MODE)


def _by_name(line: str) -> tuple[str, bool]:
    is_type = line.startswith("# TYPE ")
    return (line.split()[2] if is_type else line.partition("{")[0]), not is_type
