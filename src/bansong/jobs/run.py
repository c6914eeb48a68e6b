"""Run a scheduled job once: verify inputs, find changes, write them, notify."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from msgspec import structs

from bansong.base.after_fork import refuse_after_fork
from bansong.base.cancel import CancelToken, StopRequest, run_async
from bansong.base.display import Progress
from bansong.base.errors import BansongError, OutputError, Problem, StoppedError
from bansong.base.files import as_path, is_remote
from bansong.base.messages import current_audience, current_language, gettext, join_clauses, use_audience, use_language
from bansong.base.options import engine_kind
from bansong.base.publish import make_folder, sweep_unfinished
from bansong.base.schema import SEOUL, Alert
from bansong.jobs.inputs import (
    JobInput,
    about_file,
    content_of,
    copy_file,
    enrich_input,
    find_inputs,
    find_predecessors,
    fingerprint,
    is_asking,
    is_stray_input,
    remove_old_outputs,
    set_mode,
)
from bansong.jobs.job_file import Deadline, JobFile, JobFileAudience, OutputNames, load_job_file, parse_duration
from bansong.jobs.report import PAUSED, InputOutcome, JobReport, compose_message, write_metrics
from bansong.jobs.state import (
    AnswerRecorder,
    EarlierRows,
    JobRun,
    KnownInput,
    RunStore,
    job_place,
    locate,
    refuse_shared_name,
)
from bansong.notify.channels import Channel, deliver, open_channels
from bansong.run.changes import CHANGE_SCHEMA, GONE, SNAPSHOT, advance, numbers_by_input, of_kinds, write_changes
from bansong.run.files_report import FilesReport
from bansong.run.options import REFERENCE_FILES, installed_lines, with_installed
from bansong.run.report import Report
from bansong.run.table import RunStart

if TYPE_CHECKING:
    from bansong.client.webhook import Outcome


MESSAGE_NOT_TAKEN: Final = Problem("jobs.message_not_taken", "{url}: the message was not taken: {error}")

_log = logging.getLogger(__name__)
_DAY: Final = 86_400.0


def run_job(
    path: str | Path,
    *,
    now: Callable[[], float] = time.time,
    deadline: float | None = None,
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
    stop: StopRequest | None = None,
    settings: Mapping[str, Any] | None = None,
) -> JobReport:
    """Run the job of a job file once; return what it did and what changed since the run before.

    Each input is verified by itself; a failure does not stop the others. An input with the same content, options and
    reference files is reused for ``skip_unchanged_days``. ``now``: the time in seconds since 1970. ``deadline``:
    seconds after which nothing new begins and open purchases are settled (default: as in the job file). ``stop``: the
    command line's request to stop by signals: it also interrupts an engine that buys nothing at the deadline, and is
    held back while the run is recorded. ``progress``, ``cancel``: as for :func:`bansong.enrich`. ``settings``: values
    for ``[reference]`` and ``[status]`` that the file does not name, by dotted key (the command line's config.toml).

    Raises :class:`JobRunningError` if the job is running; :class:`UsageError` for an invalid job file;
    :class:`StoreError` for an unusable state: nothing was done. ``KeyboardInterrupt`` names the outputs written before
    it; the next run takes over.
    """
    refuse_after_fork()
    path = Path(path).resolve()
    job = load_job_file(path, settings)
    named = {name: getattr(job.reference, name) for name in REFERENCE_FILES}
    used = with_installed(named, job.engine.name)
    reference = structs.replace(job.reference, **{name: path and str(path) for name, path in used.items()})
    job = structs.replace(job, reference=reference)
    name, state = job_place(path, job)
    seconds = parse_duration(job.run.deadline) if deadline is None else deadline
    stop = stop or StopRequest()
    with ExitStack() as stack:
        store = stack.enter_context(RunStore.alone(state))
        refuse_shared_name(path, name, store.job_file())
        store.note_job_file(path)
        limit = stack.enter_context(Deadline(seconds, cancel or CancelToken(), stop))
        report = _Run(job, name, path.parent, store, now, limit, progress, stop).carry_out()
        return replace(report, installed=tuple(installed_lines(used)))


@dataclass
class _Run:
    _job: JobFile
    _name: str
    _folder: Path
    _store: RunStore
    _now: Callable[[], float]
    _deadline: Deadline
    _progress: Progress | None
    _stop: StopRequest

    def __post_init__(self) -> None:
        self._job = job = structs.replace(self._job, lang=self._job.lang or current_language())
        self._audience = JobFileAudience(current_audience())
        self._start = replace(RunStart.now(self._now), at=datetime.fromtimestamp(self._now(), SEOUL))
        self._names = OutputNames(self._folder, self._name, self._start.at.date())
        self._budget = job.engine.budget
        self._verified: dict[str, pl.DataFrame] = {}
        self._other_columns: set[str] = set()
        self._known: dict[str, KnownInput] = {}
        self._predecessors: dict[str, str] = {}
        self._unlisted: set[str] = set()
        self._earlier_numbers: dict[str, pl.Series] | None = None
        self._changes: Path | None = None
        self._written: set[Path] = set()
        self._about_new: dict[Path, str] = {}
        self._all_are_there = True
        self._problems: list[str] = []
        self._mode = int(job.output.mode, 8)
        self._channels = open_channels(structs.asdict(job.notify), self._folder)

    def carry_out(self) -> JobReport:
        try:
            with use_language(self._job.lang), use_audience(self._audience):  # the message is stored as text
                report, after, changed = self._verify_inputs()
            self._stop.check()
        except (StoppedError, KeyboardInterrupt) as error:
            safe = gettext(
                "{job}: stopped before the run was written down: each output is whole, the new one or the one before, "
                "and nothing was told; the next run verifies again, pays for nothing twice, and tells what changed",
                job=self._name,
            )
            raise KeyboardInterrupt(join_clauses(safe, str(error))) from None
        try:
            with self._stop.hold_back():  # a message that is sent but not recorded would be sent twice
                return self._conclude(report, after, changed)
        except KeyboardInterrupt:
            reason = gettext(
                "{job}: interrupted when the outputs were written; `bansong runs list` says whether the run is"
                " remembered, and the next run does and tells what is not",
                job=self._name,
            )
            raise KeyboardInterrupt(reason) from None

    def _conclude(self, report: JobReport, after: pl.DataFrame | None, changed: pl.DataFrame) -> JobReport:
        self._remember(report, after, changed)
        first_code = report.exit_code
        with use_language(self._job.lang):
            report = replace(report, changes_file=self._write_changes())
        self._remove_old_outputs()
        self._problems += self._send_messages()
        report = replace(report, problems=tuple(self._problems))
        if report.exit_code != first_code:
            self._store.note_exit_code(report.run_id, report.exit_code)
        if (metrics := locate(self._folder, self._job.run.metrics)) is not None:
            try:
                write_metrics(report, metrics)
            except BansongError as error:
                self._problems.append(str(error))
        return replace(report, problems=tuple(self._problems))

    def _verify_inputs(self) -> tuple[JobReport, pl.DataFrame | None, pl.DataFrame]:
        self._write_changes()  # those of killed runs first, so that this run takes another name
        pattern = self._job.output.changes
        self._changes = self._names.changes(pattern) if pattern is not None else None
        inputs, missing = find_inputs(self._job, self._folder, self._names, self._store.outputs(), self._changes)
        self._all_are_there = not missing
        self._note_outputs(inputs)
        runs, earlier = self._store.runs(), self._store.known_inputs()
        paths = {str(one.path) for one in inputs}
        self._predecessors, self._unlisted = find_predecessors(paths, earlier), earlier.keys() - paths
        outcomes = _settle_strays(inputs, [self._take(one, earlier) for one in inputs])
        outcomes += [InputOutcome(path, "failed", exit_code=2, error=error) for path, error in missing.items()]
        unknown = [one for one in outcomes if one.what in ("failed", "left") and one.path not in earlier]
        after, changed = self._advance([one.path for one in outcomes], earlier, complete=not (missing or unknown))
        shown = of_kinds(changed, self._job.changes.kinds)
        report = JobReport(
            job=self._name,
            run_id=self._start.run_id,
            started=self._start.at,
            seconds=time.monotonic() - self._start.clock,
            inputs=tuple(outcomes),
            changes=shown,
            since=datetime.fromtimestamp(runs[-1].started, SEOUL) if runs else None,
        )
        return replace(report, message=self._compose(report)), after, changed

    def _advance(
        self, paths: Sequence[str], earlier: Collection[str], *, complete: bool
    ) -> tuple[pl.DataFrame | None, pl.DataFrame]:
        """Return the new snapshot (``None``: unchanged) and the changes. Rows of unverified inputs stay."""
        nothing = pl.DataFrame(schema=CHANGE_SCHEMA)
        removed = set(earlier) - set(paths) if complete else set()
        if not self._verified and not removed:
            return None, nothing
        before = self._store.snapshot()
        if before is None:
            return pl.concat(self._verified.values()), nothing
        rest = before.filter(pl.col(GONE).is_null(), ~pl.col("input").is_in([*self._verified, *removed]))
        kept = rest.partition_by("input", as_dict=True)
        parts = [self._verified[path] if path in self._verified else kept.pop((path,), None) for path in paths]
        after = [part for part in parts if part is not None]
        rows = pl.concat([pl.DataFrame(schema=SNAPSHOT), *after, *kept.values()])
        return advance(self._rename_earlier_rows(before, removed), rows, self._start.at.date(), self._other_columns)

    def _rename_earlier_rows(self, before: pl.DataFrame, removed: Collection[str]) -> pl.DataFrame:
        for path in self._other_columns.intersection(self._predecessors):
            is_earlier = (pl.col("input") == self._predecessors[path]) & pl.col(GONE).is_null()
            others = before.filter(~is_earlier) if self._predecessors[path] in removed else before
            before = pl.concat([others, before.filter(is_earlier).with_columns(pl.lit(path).alias("input"))])
        return before

    def _take(self, one: JobInput, earlier: Mapping[str, KnownInput]) -> InputOutcome:
        path, begun = str(one.path), self._now()
        known = earlier.get(path)
        try:
            self._stop.check()
            if self._deadline.is_over:
                return InputOutcome(path, "left", exit_code=PAUSED, error=gettext("the deadline came first"))
            content = content_of(one.path)
            now = fingerprint(self._job, one, self._folder, content)
            if known is not None and self._is_fresh(known, now):
                return self._reuse(one, known)
            return self._verify(one, now, content, earlier.get(self._name_before(one)))
        except (StoppedError, KeyboardInterrupt):
            if self._stop.is_made or not self._deadline.is_over:
                raise
            reason = gettext("the deadline came while it was verified; the next run goes on")
            return InputOutcome(path, "left", paid=self._paid_since(begun), exit_code=PAUSED, error=reason)
        except BansongError as error:
            if self._stop.is_made:  # polars turned the interruption into an error
                raise KeyboardInterrupt from error
            _log.info("%s: %s", path, error)  # the report shows it
            if self._name_before(one) not in earlier and is_stray_input(one, self._folder, error):
                return InputOutcome(path, "passed_over", error=str(error))
            paid = self._paid_since(begun)
            self._spend(paid)
            return InputOutcome(path, "failed", paid=paid, exit_code=error.exit_code, error=str(error))

    def _is_fresh(self, known: KnownInput, fingerprint: str) -> bool:
        max_age, today = self._job.status.max_age, self._start.at.date()
        age, ages = self._now() - known.verified, (self._job.engine.max_age, max_age)
        days = min(self._job.run.skip_unchanged_days, *(days for days in ages if days is not None))
        status_day = date.fromisoformat(known.status_day) if known.status_day else today
        return (
            known.fingerprint == fingerprint
            and 0 <= age < days * _DAY
            and (today - status_day).days <= max_age
            and about_file(as_path(known.output)) == known.written
        )

    def _reuse(self, one: JobInput, known: KnownInput) -> InputOutcome:
        kept: tuple[Alert, ...] = ()
        if as_path(known.output) != one.output:
            kept += copy_file(as_path(known.output), one.output, self._mode)
        if one.latest is not None and (not known.latest or about_file(one.latest) != known.latest):
            kept += copy_file(one.output, one.latest, self._mode)
        self._record_known(one, known)
        return InputOutcome(str(one.path), "unchanged", str(one.output), rows=known.rows, kept=kept)

    def _verify(self, one: JobInput, fingerprint: str, content: str, known: KnownInput | None) -> InputOutcome:
        recorder = AnswerRecorder(str(one.path), self._job.changes.key)
        earlier = self._earlier_rows(one, known)
        make_folder(one.output.parent)
        with self._deadline.ending(buys=engine_kind(self._job.engine.name).buys):
            report = enrich_input(
                self._job,
                self._folder,
                one,
                self._budget,
                day=self._start.at.date(),
                now=self._now,
                recorder=recorder,
                earlier=earlier,
                progress=self._progress,
                cancel=self._deadline.cancel,
            )
        set_mode(one.output, self._mode)
        kept = copy_file(one.output, one.latest, self._mode) if one.latest is not None else ()
        self._verified[str(one.path)] = recorder.snapshot()
        parts = report.parts if isinstance(report, FilesReport) else [report]
        was_read = all(content in (part.input_version, part.input_sha256) for part in parts)
        roles = set.intersection(*(set(part.columns) for part in parts)) if parts else set()
        roles_before = set(known.roles.split(",")) if known is not None and known.roles else roles
        if roles != roles_before:
            self._other_columns.add(str(one.path))
        status_day, unasked = _status_day(report), report.asked.fetch.unasked if report.asked else 0
        is_keyless = self._job.status.source == "auto" and not is_asking(self._job, self._folder)
        if known is not None and known.status_day and is_keyless:
            status_day, unasked = known.status_day, self._verified[str(one.path)]["b_no"].n_unique()
        outcome = InputOutcome(
            str(one.path),
            "verified",
            str(one.output),
            report.rows,
            report.purchase.paid if report.purchase else 0,
            lost=tuple(sorted(roles_before - roles)),
            unasked=unasked,
            report=report,
            kept=kept,
        )
        outcome = replace(outcome, exit_code=outcome.code_of_report)
        # an unfinished input, or one that changed after its fingerprint, is verified again by the next run
        finished = fingerprint if not outcome.exit_code and was_read else ""
        verified = KnownInput(finished, self._now(), str(one.output), "", report.rows, roles=",".join(sorted(roles)))
        self._record_known(one, replace(verified, status_day=status_day))
        self._spend(outcome.paid)
        return outcome

    def _earlier_rows(self, one: JobInput, known: KnownInput | None) -> EarlierRows:
        if self._earlier_numbers is None:
            before = self._store.snapshot()
            self._earlier_numbers = {} if before is None else numbers_by_input(before)
        if known is None:  # perhaps a renamed list, which is missing under its old name
            missed = [numbers for path, numbers in self._earlier_numbers.items() if path in self._unlisted]
            return EarlierRows(numbers=pl.concat([pl.Series(dtype=pl.UInt64), *missed]), may_lose=True)
        name = self._name_before(one)
        numbers = self._earlier_numbers.get(name, pl.Series(dtype=pl.UInt64))
        where = as_path(name).name if name != str(one.path) else gettext("the run before")
        return EarlierRows(known.rows, numbers, may_lose=one.part.force, where=where)

    def _name_before(self, one: JobInput) -> str:
        return self._predecessors.get(str(one.path), str(one.path))

    def _record_known(self, one: JobInput, known: KnownInput) -> None:
        latest = "" if one.latest is None else about_file(one.latest)
        written = about_file(one.output)
        self._known[str(one.path)] = replace(known, output=str(one.output), written=written, latest=latest)

    def _spend(self, paid: int) -> None:
        if self._budget is not None:
            self._budget = max(0, self._budget - paid)

    def _paid_since(self, begun: float) -> int:
        if not engine_kind(self._job.engine.name).buys:
            return 0
        from bansong.purchase.ledger import Ledger
        from bansong.purchase.ledger_file import ledger_path

        try:
            with Ledger.open(ledger_path(locate(self._folder, self._job.engine.ledger))) as ledger:
                return sum(run.paid for run in ledger.runs() if run.started >= begun)
        except BansongError as error:  # the ledger may be the cause of the failure
            _log.warning("what was paid before the failure is not known: %s", error)
            return 0

    def _write_changes(self) -> str | None:
        """Write the due files of changes, also those of killed runs; return the last one written."""
        written = None
        for run_id, due, changed in self._store.changes_due():
            try:
                make_folder(due.parent)
                write_changes(of_kinds(changed, self._job.changes.kinds), due)
                set_mode(due, self._mode)
                written = str(due)
            except BansongError as error:
                again = gettext("{error} (write it again: `bansong runs diff JOB last-1 last -o FILE`)", error=error)
                self._problems.append(again)
            self._store.mark_changes_written(run_id)
        return written

    def _note_outputs(self, inputs: Sequence[JobInput]) -> None:
        paths = [path for one in inputs for path in (one.output, one.latest) if path is not None]
        self._written = {path.resolve() for path in paths}
        changes = {self._changes.resolve()} if self._changes is not None else set()
        known = self._store.outputs()
        new = [path for path in self._written | changes if str(path) not in known and not is_remote(path)]
        self._about_new = {path: about_file(path) for path in new}
        self._store.note_outputs(self._written | changes)
        for folder in {path.parent for path in map(as_path, known) if not is_remote(path)}:  # perhaps one per day
            sweep_unfinished(folder)

    def _remove_old_outputs(self) -> None:
        """Remove old outputs that no input can write again; forget noted paths that were never written."""
        unwritten = [path for path, about in self._about_new.items() if about_file(path) == about]
        self._store.forget_outputs(unwritten)
        days = self._job.run.keep_outputs_days
        if days is None or not self._all_are_there:
            return
        known = (as_path(one.output).resolve() for one in self._store.known_inputs().values())
        used = self._written.union(known)
        outputs = [path for path in map(as_path, self._store.outputs()) if path not in used]
        try:
            gone = remove_old_outputs(outputs, self._start.at.date() - timedelta(days=days))
        except BansongError as error:
            self._problems.append(str(error))
        else:
            self._store.forget_outputs(gone)

    def _compose(self, report: JobReport) -> str | None:
        part = self._job.notify
        if not self._channels:
            return None
        failed = [f"{one.path}: {one.problem}" for one in report.inputs if one.exit_code not in (0, PAUSED)]
        paused = [f"{one.path}: {one.problem}" for one in report.inputs if one.exit_code == PAUSED]
        counts: dict[str, int] = {kind: report.counts[kind] for kind in part.kinds}
        nights = self._unasked_nights(report)
        is_failure = bool(failed) or nights > 1
        wanted = {"always": True, "failure": is_failure, "changes": is_failure or any(counts.values())}
        if not wanted[part.when]:
            return None
        since = None if report.since is None else report.since.timestamp()
        return compose_message(self._name, report.rows, since, counts, failed, paused, nights)

    def _unasked_nights(self, report: JobReport) -> int:
        if not any(one.unasked for one in report.inputs):
            return 0
        days = {self._start.at.date()}
        for run in reversed(self._store.runs()):
            if any(one.get("unasked") for one in run.inputs):
                days.add(datetime.fromtimestamp(run.started, SEOUL).date())
            elif any(one["what"] in ("verified", "unchanged") for one in run.inputs):
                break
        return len(days)

    def _remember(self, report: JobReport, snapshot: pl.DataFrame | None, changed: pl.DataFrame) -> None:
        times, inputs = (self._start.at.timestamp(), self._now()), [one.as_dict() for one in report.inputs]
        run = JobRun(report.run_id, *times, report.exit_code, report.rows, report.counts, inputs, report.message)
        due = None if report.changes.is_empty() else self._changes
        self._store.commit_run(run, snapshot, changed, self._known, self._job.run.keep_runs, due)

    def _send_messages(self) -> list[str]:
        """Deliver messages, in order, to the channels that lack them. A failing channel waits for the next run."""
        waiting = [run for run in self._store.runs() if run.waits]
        taken = {run.id: set(run.taken) for run in waiting}
        for run in waiting:
            if self._are_all_in(taken[run.id]):  # the channel that lacked it is no longer in the job file
                self._store.mark_taken(run.id, taken[run.id], self._now())
        problems = [problem for channel in self._channels for problem in self._deliver(channel, waiting, taken)]
        if self._stop.is_made and not all(map(self._are_all_in, taken.values())):
            problems.append(gettext("stopped before a message was delivered; the next run delivers it"))
        return problems

    def _deliver(self, channel: Channel, waiting: Sequence[JobRun], taken: Mapping[str, set[str]]) -> list[str]:
        problems: list[str] = []

        async def settle(runs: Sequence[JobRun], outcome: Outcome) -> None:
            if outcome.error is not None:
                refused = OutputError(MESSAGE_NOT_TAKEN, url=channel.receiver, error=outcome.error)
                problems.append(str(refused) if channel.receiver else outcome.error)
                return
            for run in runs:
                taken[run.id].add(channel.name)
                delivered = self._now() if self._are_all_in(taken[run.id]) else None
                self._store.mark_taken(run.id, taken[run.id], delivered)

        left = [run for run in waiting if channel.name not in taken[run.id]]
        if left:
            sending = partial(deliver, channel, left, settle, is_over=lambda: self._stop.is_made)
            run_async(sending, CancelToken())
        return problems

    def _are_all_in(self, taken: Collection[str]) -> bool:
        return all(channel.name in taken for channel in self._channels)


def _status_day(report: Report | FilesReport) -> str:
    if report.asked is None or not report.asked.fetch.numbers:
        return ""
    fetch = report.asked.fetch
    return str(date.min if fetch.unanswered or fetch.oldest is None else fetch.oldest)


def _settle_strays(inputs: Sequence[JobInput], outcomes: Sequence[InputOutcome]) -> list[InputOutcome]:
    """Mark files without a table as failed if their folder or pattern has no other file."""
    pairs = list(zip(inputs, outcomes, strict=True))
    read = {one.part.path for one, outcome in pairs if outcome.what != "passed_over"}
    settled = []
    for one, outcome in pairs:
        if outcome.what != "passed_over":
            settled.append(outcome)
        elif one.part.path in read:
            settled.append(replace(outcome, error=gettext("holds no table")))
        else:
            settled.append(replace(outcome, what="failed", exit_code=2))
    return settled
