"""The commands ``run JOB.toml`` and ``runs …``: scheduled jobs and their runs."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bansong.base.cancel import StopRequest
from bansong.base.errors import BansongError, OutputError, Problem, UsageError
from bansong.base.messages import describe_os_error, gettext, gettext_noops, ngettext
from bansong.cli.console import (
    INTERRUPTED,
    format_minute,
    freeze_imports,
    print_json,
    print_result,
    print_table,
    progress_shown,
    say,
    say_table,
    warn,
)
from bansong.cli.options import PATH, json_option, settings_in_effect

if TYPE_CHECKING:
    from bansong.jobs.report import JobReport

JOB_FILE_EXISTS: Final = Problem(
    "jobs.job_file_exists", "{path}: exists already and is left as it is; give another name"
)
FILE_UNWRITABLE: Final = Problem("jobs.job_file_unwritable", "{path}: cannot be written: {reason}")

_RUN_COLUMNS: Final = gettext_noops("run", "started", "exit", "rows", "changes", "delivered")
_LOG_FIELDS: Final = ("job", "run_id", "exit_code", "rows", "changes", "seconds", "message", "problems")


@click.command(short_help="Run a scheduled job: verify what is new, say what changed.")
@click.argument("job", type=PATH, required=False)
@click.option("--init", type=PATH, metavar="FILE", help="Write a job file with every field explained, and its schema.")
@click.option("--deadline", metavar="TIME", help="End in good order after so long (3h, 90m); the next run goes on.")
@click.option("--quiet", is_flag=True, help="Print nothing unless something changed, failed or paused.")
@click.option("--log-json", is_flag=True, help="Print one JSON object a line to stderr in place of text.")
@json_option
def run(job: Path | None, init: Path | None, deadline: str | None, quiet: bool, log_json: bool, as_json: bool) -> None:
    """Run the job that the file JOB describes: from cron, a timer or by hand.

    Every input is verified and written, what changed since the run before is found, written and told, and all of it is
    remembered for the next run. Inputs that are as before are not verified again. One run of a job at a time: a second
    one ends at once with exit code 6.

    Exit codes: 0 done; 2 an input failed, or the job file is not right; 3 rows failed, a message or a file did not get
    where it should, the tax authority refused the key, or a column is missing that the run before found; 4 refused by
    the service; 5 paused, or statuses were due and could not be asked: the next run goes on; 6 a run of this job is
    under way; 130 stopped by a signal, the next run does it again. A signal that comes when the outputs are written and
    the run is being written down ends with one of the others.
    """
    if init is not None:
        _write_template(init)
        return
    if job is None:
        raise click.UsageError(gettext("Name a job file, or make one with --init FILE."))
    with freeze_imports():
        from bansong.jobs.job_file import parse_duration
        from bansong.jobs.run import run_job

    try:
        seconds = parse_duration(deadline)
    except ValueError as error:
        raise click.UsageError(f"--deadline: {error}.") from None
    if log_json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonFormatter())
    context = click.get_current_context()
    stop = context.ensure_object(StopRequest)
    try:
        with progress_shown("none" if quiet or log_json else "auto") as progress:
            report = run_job(job, deadline=seconds, progress=progress, stop=stop, settings=settings_in_effect())
    except (BansongError, KeyboardInterrupt) as error:
        if not str(error):  # nothing had begun
            raise
        code = error.exit_code if isinstance(error, BansongError) else INTERRUPTED
        reason = {"job": str(job), "exit_code": code, "error": str(error), "at": _now()}
        say(json.dumps(reason, ensure_ascii=False) if log_json else f"bansong: {error}")
        context.exit(code)
    with suppress(KeyboardInterrupt):  # only printing is left
        if stop.is_made and not log_json:
            say(gettext("bansong: the signal to stop came when the outputs were written; the run is remembered"))
        _show(report, quiet=quiet, log_json=log_json, as_json=as_json)
    context.exit(report.exit_code)


def _show(report: JobReport, *, quiet: bool, log_json: bool, as_json: bool) -> None:
    whole = report.as_dict()
    if as_json:
        print_json(whole)
    if log_json:
        about = {"job": report.job, "run_id": report.run_id}
        for one in whole["inputs"]:
            say(json.dumps(about | {"input": one.pop("path"), **one, "at": _now()}, ensure_ascii=False))
        say(json.dumps({name: whole[name] for name in _LOG_FIELDS} | {"at": _now()}, ensure_ascii=False))
        return
    if quiet and not (report.exit_code or report.problems or any(report.counts.values())):
        return
    if not as_json:
        say_table(report.lines())
        warn(warning for one in report.inputs for warning in one.warnings)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {"at": _now(), "level": record.levelname.lower(), "logger": record.name, "text": record.getMessage()}
        return json.dumps(fields, ensure_ascii=False)


def _write_template(path: Path) -> None:
    from bansong.jobs.job_file import job_template, json_schema

    schema = path.with_name("bansong-job.schema.json")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(job_template())
        schema.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except FileExistsError:
        raise UsageError(JOB_FILE_EXISTS, path=path) from None
    except OSError as error:
        raise OutputError(FILE_UNWRITABLE, path=path, reason=describe_os_error(error)) from error
    say(gettext("{path} written; fill it in, then: bansong run {path}", path=path))


@click.group(short_help="What the runs of a job did.")
def runs() -> None:
    """Look at the runs of a job: what each did, and what changed between two of them."""


@runs.command("list")
@click.argument("job", type=PATH)
@json_option
def list_(job: Path, as_json: bool) -> None:
    """List the runs of the job file JOB, the oldest first."""
    from bansong.jobs.state import list_runs

    found = list_runs(job)
    if as_json:
        print_json({"runs": [one.as_dict() for one in found]})
        return
    rows = []
    for run in found:
        delivered = gettext("no") if run.waits else ""
        started = format_minute(run.started)
        rows.append((run.id, started, str(run.exit_code), f"{run.rows:,}", run.summary, delivered))
    print_table(_RUN_COLUMNS, rows)


@runs.command()
@click.argument("job", type=PATH)
@click.argument("run_id", metavar="[RUN]", default="last")
@json_option
def show(job: Path, run_id: str, as_json: bool) -> None:
    """Show one run of the job file JOB: `last` (the default), `last-1`, or its id or the beginning of it."""
    from bansong.jobs.report import OUTCOME_WORDS
    from bansong.jobs.state import find_run

    found = find_run(job, run_id)
    started, code = format_minute(found.started), found.exit_code
    lines = [gettext("{id}, started {korean}, exit code {exit_code}", id=found.id, korean=started, exit_code=code)]
    for one in found.inputs:
        rows = ngettext("{count:,} row", "{count:,} rows", one["rows"])
        error = f", {one['error']}" if one["error"] else ""
        lines.append(f"  {gettext(OUTCOME_WORDS.get(one['what'], one['what']))}: {one['path']}, {rows}{error}")
    lines.append(gettext("  changes: {summary}", summary=found.summary))
    if found.message:
        waiting = gettext(" (not delivered yet)") if found.waits else ""
        lines.append(gettext("  message: {message}{waiting}", message=found.message, waiting=waiting))
    print_result(as_json, found.as_dict(), lines)


@runs.command()
@click.argument("job", type=PATH)
@click.argument("before", metavar="[A]", default="last-1")
@click.argument("after", metavar="[B]", default="last")
@click.option("-o", "--output", type=PATH, help="Write what changed to this file: xlsx or csv.")
@json_option
def diff(job: Path, before: str, after: str, output: Path | None, as_json: bool) -> None:
    """Show what changed from run A to run B of the job file JOB, by default in the last run.

    A row that went and came back did not change.
    """
    from bansong.jobs.state import compare_runs
    from bansong.run.changes import KIND_WORDS, count_kinds, write_changes

    changed = compare_runs(job, before, after)
    counts = {kind: count for kind, count in count_kinds(changed).items() if count}
    if output is not None:
        write_changes(changed, output)
    changed_rows = ngettext("{count:,} row changed", "{count:,} rows changed", changed.height)
    lines = [f"{gettext(KIND_WORDS[kind])} {count:,}" for kind, count in counts.items()]
    lines.append(changed_rows + (gettext(", written to {path}", path=output) if output else ""))
    value = {"counts": counts, "rows": changed.height, "output": str(output) if output else None}
    print_result(as_json, value, lines)
