"""The commands `ledger`, `resolve`, `me`, `doctor` and `forget`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.display import aligned_rows, pad_text
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import gettext, gettext_noop, gettext_noops, ngettext
from bansong.base.options import ServiceOptions, StatusOptions
from bansong.cli.console import (
    format_minute,
    print_json,
    print_out,
    print_result,
    print_table,
    say,
    say_table,
    show_summary,
)
from bansong.cli.options import PATH, account_options, json_option, local_options, options_of
from bansong.run.options import LocalOptions, RunOptions

if TYPE_CHECKING:
    from bansong.purchase.ledger import Ledger
    from bansong.purchase.queries import Doubt, LedgerEntry, RunRecord
    from bansong.upkeep.doctor import Diagnosis

LOOK_AND_PURGE: Final = Problem("cli.look_and_purge", "--number looks and --purge deletes; give one of them")
SETTLEMENTS_EXCLUSIVE: Final = Problem("cli.settlements_exclusive", "give one of --job, --lost and --resend")
LEDGER_MISSING: Final = Problem(
    "ledger.ledger_missing", "{found}: there is no ledger: nothing was bought yet, or --ledger names another place"
)
SETTLED_ID_MISSING: Final = Problem("cli.settled_id_missing", "name what to settle by its ID, or give --all")
SETTLEMENT_MISSING: Final = Problem(
    "cli.settlement_missing", "say what shall become of them: --job, --lost or --resend"
)
JOB_WITHOUT_UPLOAD: Final = Problem("cli.job_without_upload", "--job is for one upload; name it")

_SETTLED: Final = gettext_noop("nothing is unsettled")
_RUN_COLUMNS: Final = gettext_noops("started", "engine", "paid", "answered", "ended", "file")
_KEPT_WORDS: Final = (
    *gettext_noops("plan", "limit", "used", "remaining", "done", "failed", "interrupted", "killed", "quota", "lookup"),
    *gettext_noops("upload", "uploaded", "asking", "refused", "doubt", "unreadable", "missing", "lost", "unfetched"),
)  # for translation: fields of an account; ends of runs, doubts and states of lookups


@click.command(short_help="What was paid, when, for which file.")
@options_of(ServiceOptions, "ledger")
@click.option("--number", "b_no", metavar="B_NO", help="What is known of one business number.")
@click.option(
    "--purge", type=float, metavar="DAYS", help="Delete what was answered longer ago than that; never a doubt."
)
@json_option
def ledger(ledger: Path | None, b_no: str | None, purge: float | None, as_json: bool) -> None:
    """Show what was paid, when, for which file; or what is known of one number; or delete what is old.

    What is deleted is bought again when it is needed again.
    """
    if b_no is not None and purge is not None:
        raise UsageError(LOOK_AND_PURGE)
    with _open_ledger(ledger) as opened:
        if purge is not None:
            gone = opened.purge(purge)
            lookups = ngettext("{count:,} lookup", "{count:,} lookups", gone.lookups)
            counts = lookups, _count_uploads(gone.uploads), ngettext("{count:,} run", "{count:,} runs", gone.runs)
            deleted = gettext("deleted: {counts}", counts=", ".join(counts))
            print_result(as_json, {"ledger": str(opened.path), "purged": asdict(gone)}, [deleted])
        elif b_no is not None:
            from bansong.base import business_number

            entries = opened.find(business_number.compact(b_no))
            lines = [line for entry in entries for line in _entry_lines(entry)]
            found = {"ledger": str(opened.path), "entries": [asdict(entry) for entry in entries]}
            print_result(as_json, found, lines or [gettext("the ledger has nothing about this number")])
        else:
            runs = opened.runs()
            held = [*opened.doubts(), *opened.unusable(), *opened.unfetched()]
            rows = {"runs": [asdict(run) for run in runs], "unsettled": [asdict(doubt) for doubt in held]}
            unsettled = _held_lines(held, gettext("see them with `bansong resolve`"))
            lines = [*_run_lines(runs), *unsettled, gettext("ledger: {path}", path=opened.path)]
            print_result(as_json, {"ledger": str(opened.path), **rows}, lines)


@click.command(short_help="Settle lookups and uploads whose answer is not known.")
@click.argument("ids", nargs=-1, metavar="[ID]…")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All that is unsettled, in place of naming each; uploads whose results may yet be fetched are named.",
)
@click.option(
    "--job", "job_id", metavar="JOB_ID", help="The job that an upload became; its results are fetched for free."
)
@click.option("--lost", is_flag=True, help="Take them as lost: their rows stay without an answer, nothing is bought.")
@click.option("--resend", is_flag=True, help="Let the next run buy them again, at the risk of paying twice.")
@options_of(ServiceOptions, "ledger")
@json_option
def resolve(
    ids: tuple[str, ...], every: bool, job_id: str | None, lost: bool, resend: bool, ledger: Path | None, as_json: bool
) -> None:
    """List the requests that were sent and never answered, or settle them. Nothing is sent: the next run does it.

    The list names each by its ID. An upload that is "unfetched" has a job whose results could not be had so far: the
    next run tries again, which is free. For an upload, look into the service's console for its job and give --job;
    otherwise decide between --lost and --resend. Each decision is recorded in the ledger.
    """
    if sum((job_id is not None, lost, resend)) > 1:
        raise UsageError(SETTLEMENTS_EXCLUSIVE)
    with _open_ledger(ledger) as opened:
        held, unfetched = [*opened.doubts(), *opened.unusable()], opened.unfetched()
        if job_id is None and not lost and not resend:
            if ids or every:
                raise UsageError(SETTLEMENT_MISSING)
            ways = gettext("settle each with `bansong resolve ID` and --lost, --resend or, an upload, --job JOB_ID")
            repeatable = opened.may_be_repeated()
            held += unfetched
            lines = [*_doubt_lines(held), *_held_lines(held, ways), *_repeatable_lines(repeatable)]
            unsettled = [asdict(doubt) for doubt in held]
            value = {"ledger": str(opened.path), "unsettled": unsettled, "repeatable": repeatable}
            print_result(as_json, value, lines)
            return
        if bool(ids) == every:
            raise UsageError(SETTLED_ID_MISSING)
        chosen = [doubt.id for doubt in held] if every else list(ids)
        if job_id is not None:
            if len(chosen) != 1:
                raise UsageError(JOB_WITHOUT_UPLOAD)
            settled = opened.attach(chosen[0], job_id)
            what = gettext("the next run fetches job {job_id}", job_id=job_id)
        elif lost:
            settled, what = opened.accept(chosen), gettext("taken as lost")
        else:
            settled, what = opened.resend(chosen), gettext("the next run may buy again")
        left = len(unfetched) if every else 0
        settling = ngettext("{count:,} lookup: {what}", "{count:,} lookups: {what}", settled, what=what)
        lines = [settling] if chosen else [] if left else [gettext(_SETTLED)]
        if left:
            said = gettext_noop("{left} with results that may yet be fetched: name each to settle it")
            lines.append(gettext(said, left=_count_uploads(left)))
        print_result(as_json, {"ledger": str(opened.path), "settled": settled}, lines)


@click.command(short_help="The account at the hosted service and its quota.")
@account_options
@json_option
def me(base_url: str | None, key_file: Path | None, allow_http: bool, as_json: bool) -> None:
    """Show the account at the hosted service: its plan, and what is left of the monthly quota. Costs nothing."""
    from bansong.base.key import ApiKey
    from bansong.client.blocking import BlockingClient

    with BlockingClient(base_url, ApiKey.load(key_file), allow_http=allow_http) as client:
        account = client.me()
    said = {"plan": account.plan, "limit": account.limit, "used": account.used, "remaining": account.remaining}
    unknown = gettext("not said")
    shown = {name: f"{value:,}" if isinstance(value, int) else value or unknown for name, value in said.items()}
    lines = [pad_text(gettext(name), 12) + text for name, text in shown.items()]
    print_result(as_json, said | {"account": account.model_dump(mode="json")}, lines)


@contextmanager
def _open_ledger(path: Path | None) -> Iterator[Ledger]:
    from bansong.purchase.ledger import Ledger
    from bansong.purchase.ledger_file import ledger_path

    found = ledger_path(path)
    if not found.exists():
        raise UsageError(LEDGER_MISSING, found=found)
    with Ledger.open(found) as opened:
        yield opened


_NO_FILES: Final = gettext_noops("a frame", "one lookup")  # noted in the ledger instead of a file's name


def _file_words(file: str) -> str:
    return gettext(file) if file in _NO_FILES else file


def _count_uploads(count: int) -> str:
    return ngettext("{count:,} upload", "{count:,} uploads", count)


def _run_lines(runs: list[RunRecord]) -> list[str]:
    rows = [tuple(map(gettext, _RUN_COLUMNS))]
    for run in runs:
        counts, ended = (f"{run.paid:,}", f"{run.answered:,}"), gettext(run.outcome or "killed")
        rows.append((format_minute(run.started), run.engine, *counts, ended, _file_words(run.file)))
    paid, answered = sum(run.paid for run in runs), sum(run.answered for run in runs)
    rows.append((gettext("in all"), "", f"{paid:,}", f"{answered:,}", "", ""))
    return aligned_rows(rows, right=(2, 3))


def _doubt_lines(held: list[Doubt]) -> list[str]:
    lines = []
    for doubt in held:
        job = gettext("job {id}", id=doubt.job_id or gettext("not known"))
        what = doubt.b_no or ngettext("{count:,} row", "{count:,} rows", doubt.rows) + f", {job}"
        kind = pad_text(gettext(doubt.kind), 8)
        since = f"{_state(doubt.state)}{format_minute(doubt.since)}"
        lines.append(f"{doubt.id}  {kind}{since}  {what}  {_file_words(doubt.file)}")
        lines += [f"    {doubt.note}"] if doubt.note else []
    return lines


def _held_lines(held: list[Doubt], remedy: str) -> list[str]:
    if not held:
        return [gettext(_SETTLED)]
    uploads = sum(doubt.kind == "upload" for doubt in held)
    places = []
    if requests := len(held) - uploads:
        places.append(ngettext("{count:,} request", "{count:,} requests", requests))
    if uploads:
        places.append(_count_uploads(uploads))
    where = gettext("{first} and {second}", first=places[0], second=places[1]) if len(places) > 1 else places[0]
    lookups = sum(doubt.rows for doubt in held)
    unsettled = ngettext(
        "unsettled: {count:,} lookup in {where}", "unsettled: {count:,} lookups in {where}", lookups, where=where
    )
    return [unsettled, remedy]


def _repeatable_lines(requests: int) -> list[str]:
    said = ngettext(
        "{count:,} request in doubt may be sent again without being paid twice: give the command that left them "
        "once more, it settles them",
        "{count:,} requests in doubt may be sent again without being paid twice: give the command that left them "
        "once more, it settles them",
        requests,
    )
    return [said] if requests else []


def _entry_lines(entry: LedgerEntry) -> list[str]:
    paid = gettext(", answered {at}", at=format_minute(entry.answered_at)) if entry.answered_at is not None else ""
    origin = gettext("{file}, run {run}", file=_file_words(entry.file), run=entry.run_id)
    lines = [f"{entry.id}  {entry.b_no}  {_state(entry.state)}{format_minute(entry.since)}{paid}", f"    {origin}"]
    lines += [f"    {entry.note}"] if entry.note else []
    if entry.answer is not None:
        said = {name: value for name, value in asdict(entry.answer).items() if value not in (None, ())}
        lines += [f"    {name:<14}{' | '.join(value) if name == 'reasons' else value}" for name, value in said.items()]
    return lines


def _state(state: str) -> str:
    return pad_text(gettext(state), 11)


_MARKS: Final = {
    "ok": (gettext_noop("ok"), "green"),
    "note": ("-", ""),
    "warning": (gettext_noop("look"), "yellow"),
    "error": (gettext_noop("BROKEN"), "red"),
}


@click.command(short_help="What is missing or old, and its remedy.")
@options_of(LocalOptions)
@options_of(ServiceOptions, "ledger")
@options_of(RunOptions, "labels")
@options_of(StatusOptions, "status_store", "nts_key_file")
@account_options
@click.option("--offline", is_flag=True, help="Ask nobody over the network.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the service and the tax authority may take to answer.",
)
@json_option
def doctor(as_json: bool, **options: Any) -> None:
    """Look at what a run needs: versions, extras, registry, gazetteer, stores, keys, and whether the services answer.

    Give the options that your runs are given. The hosted service and the tax authority are asked only if their key is
    there: for the account, and for the status of one listed company. Keys are never shown. Exit code 2 where a run
    would break; what is old or not set up is shown with its remedy and is no failure.
    """
    from bansong.upkeep.doctor import DoctorOptions, diagnose

    diagnosis = diagnose(DoctorOptions(**local_options(options)))
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        print_findings(diagnosis)
    click.get_current_context().exit(diagnosis.exit_code)


_NAMES: Final = (
    *gettext_noops("scorecard", "registry", "status store", "gazetteer", "state directory", "ledger", "label store"),
    *gettext_noops("API key", "tax authority's key", "tax authority", "service", "watch list", "jobs", "server"),
    *gettext_noops("database"),
)  # for translation


def print_findings(diagnosis: Diagnosis) -> None:
    """Print the findings of a diagnosis as a table, then the remedies."""
    rows = [(gettext(one.what), gettext(_MARKS[one.level][0]), one.said) for one in diagnosis.findings]
    print_table((gettext_noop("what"), "", gettext_noop("found")), rows)
    remedies = [finding for finding in diagnosis.findings if finding.remedy or finding.level == "error"]
    if remedies:
        print_out("")
    for finding in remedies:
        word, colour = _MARKS[finding.level]
        label = click.style(f"{gettext(finding.what)}:", fg=colour or None, dim=word == "-")
        print_out(f"{label} {finding.remedy or finding.said}")


NO_TERMINAL: Final = Problem(
    "forget.no_terminal", "nothing was erased: there is no terminal to ask on; give --yes, or look with --dry-run"
)


@click.command(short_help="Erase a business number from all that bansong keeps.")
@click.argument("b_no", nargs=-1, required=True, metavar="B_NO…")
@click.option("--dry-run", is_flag=True, help="Show what is held of it; nothing is erased.")
@click.option("--yes", is_flag=True, help="Erase without asking; needed where there is no terminal.")
@options_of(ServiceOptions, "ledger")
@options_of(RunOptions, "labels")
@click.option(
    "--local", type=PATH, metavar="FILE", help="The local watch list; by default BANSONG_WATCH, else your own."
)
@options_of(StatusOptions, "status_store")
@click.option(
    "--db",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A file of `bansong serve`, with its folder; the server must be stopped. Can be given several times.",
)
@json_option
def forget(b_no: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool, **stores: Any) -> None:
    """Erase business numbers from the ledger, labels, watch list, statuses, chosen addresses, jobs and servers' files.

    It lists what each store holds, asks, erases so that the files hold no byte of them any more, and lists what it
    cannot reach: outputs and backups, the hosted service. A lookup that was paid is paid again if it is needed again.
    What may have been paid and has no answer yet is not erased: settle it with `bansong resolve` first.
    """
    from bansong.upkeep.forget import forget as erase

    if dry_run or not yes:
        if not dry_run and not sys.stdin.isatty():
            raise UsageError(NO_TERMINAL)
        found = erase(b_no, dry_run=True, **stores)
        if dry_run:
            show_summary(found, as_json)
            return
        say_table(found.lines())
        if not click.confirm(gettext("Erase it for good?"), err=True):
            say(gettext("nothing was erased"))
            return
    show_summary(erase(b_no, **stores), as_json)
