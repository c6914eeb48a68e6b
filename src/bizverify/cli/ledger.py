"""``bizverify ledger`` and ``bizverify resolve``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bizverify.cli.console import print_json, print_out
from bizverify.cli.options import json_option, ledger_option
from bizverify.errors import UsageError
from bizverify.schema import counted

if TYPE_CHECKING:
    from bizverify.ledger import Doubt, Entry, Ledger, RunRecord

_SETTLED: Final = "nothing is unsettled"


@click.command(short_help="What was paid, when, for which file.")
@ledger_option
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
        raise UsageError("--number looks and --purge deletes; give one of them")
    with _opened(ledger) as book:
        if purge is not None:
            purged = asdict(book.purge(purge))
            shown = ", ".join(counted(count, what.removesuffix("s")) for what, count in purged.items())
            _show(as_json, {"ledger": str(book.path), "purged": purged}, [f"deleted: {shown}"])
        elif b_no is not None:
            from bizverify import business_number

            entries = book.find(business_number.compact(b_no))
            lines = [line for entry in entries for line in _entry_lines(entry)]
            found = {"ledger": str(book.path), "entries": [asdict(entry) for entry in entries]}
            _show(as_json, found, lines or ["the ledger has nothing about this number"])
        else:
            runs = book.runs()
            held = [*book.doubts(), *book.unusable(), *book.unfetched()]
            found = {"ledger": str(book.path), "runs": [asdict(run) for run in runs], "unsettled": _rows(held)}
            _show(
                as_json,
                found,
                [*_run_lines(runs), *_held_lines(held, "see them with `bizverify resolve`"), f"ledger: {book.path}"],
            )


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
@ledger_option
@json_option
def resolve(
    ids: tuple[str, ...], every: bool, job_id: str | None, lost: bool, resend: bool, ledger: Path | None, as_json: bool
) -> None:
    """List what was sent and never answered, or settle it. Nothing is sent; the next run acts on what was decided.

    The list names each by its ID. An upload that is "unfetched" has a job whose results could not be had so far: the
    next run tries again, which is free. For an upload, look into the service's console for its job and give --job;
    otherwise decide between --lost and --resend. Each decision is recorded in the ledger.
    """
    if sum((job_id is not None, lost, resend)) > 1:
        raise UsageError("give one of --job, --lost and --resend")
    with _opened(ledger) as book:
        held, unfetched = [*book.doubts(), *book.unusable()], book.unfetched()
        if job_id is None and not lost and not resend:
            if ids or every:
                raise UsageError("say what shall become of them: --job, --lost or --resend")
            ways = "settle each with `bizverify resolve ID` and --lost, --resend or, an upload, --job JOB_ID"
            repeatable = book.may_be_repeated()
            held += unfetched
            lines = [*_list_lines(held), *_held_lines(held, ways), *_repeatable_lines(repeatable)]
            _show(as_json, {"ledger": str(book.path), "unsettled": _rows(held), "repeatable": repeatable}, lines)
            return
        chosen = _chosen(ids, every, held)
        if job_id is not None:
            if len(chosen) != 1:
                raise UsageError("--job is for one upload; name it")
            settled, what = book.attach(chosen[0], job_id), f"the next run fetches job {job_id}"
        elif lost:
            settled, what = book.accept(chosen), "taken as lost"
        else:
            settled, what = book.resend(chosen), "the next run may buy again"
        left = counted(len(unfetched), "upload") if every and unfetched else None
        lines = [f"{counted(settled, 'lookup')}: {what}"] if chosen else [_SETTLED] if left is None else []
        if left is not None:
            lines.append(f"{left} with results that may yet be fetched: name each to settle it")
        _show(as_json, {"ledger": str(book.path), "settled": settled}, lines)


@contextmanager
def _opened(path: Path | None) -> Iterator[Ledger]:
    from bizverify.ledger import Ledger
    from bizverify.ledger.schema import ledger_path

    found = ledger_path(path)
    if not found.exists():
        raise UsageError(f"{found}: there is no ledger: nothing was bought yet, or --ledger names another place")
    with Ledger.open(found) as book:
        yield book


def _chosen(ids: tuple[str, ...], every: bool, held: list[Doubt]) -> list[str]:
    if bool(ids) == every:
        raise UsageError("name what to settle by its ID, or give --all")
    return [doubt.id for doubt in held] if every else list(ids)


def _rows(held: list[Doubt]) -> list[dict[str, object]]:
    return [asdict(doubt) for doubt in held]


def _show(as_json: bool, found: Mapping[str, object], lines: list[str]) -> None:
    if as_json:
        print_json(found)
        return
    for line in lines:
        print_out(line)


def _run_lines(runs: list[RunRecord]) -> list[str]:
    lines = [f"{'started':<17}{'engine':<8}{'paid':>10}{'answered':>10}  {'ended':<12}file"]
    for run in runs:
        outcome = run.outcome or "killed"
        lines.append(
            f"{_time(run.started):<17}{run.engine:<8}{run.paid:>10,}{run.answered:>10,}  {outcome:<12}{run.file}"
        )
    lines.append(f"{'in all':<25}{sum(run.paid for run in runs):>10,}{sum(run.answered for run in runs):>10,}")
    return lines


def _list_lines(held: list[Doubt]) -> list[str]:
    lines = []
    for doubt in held:
        what = doubt.b_no or f"{counted(doubt.rows, 'row')}, job {doubt.job_id or 'not known'}"
        lines.append(f"{doubt.id}  {doubt.kind:<7} {doubt.state:<11}{_time(doubt.since)}  {what}  {doubt.file}")
        if doubt.note:
            lines.append(f"    {doubt.note}")
    return lines


def _held_lines(held: list[Doubt], remedy: str) -> list[str]:
    if not held:
        return [_SETTLED]
    uploads = [doubt for doubt in held if doubt.kind == "upload"]
    places = {"request": len(held) - len(uploads), "upload": len(uploads)}
    where = " and ".join(counted(count, what) for what, count in places.items() if count)
    return [f"unsettled: {counted(sum(doubt.rows for doubt in held), 'lookup')} in {where}", remedy]


def _repeatable_lines(requests: int) -> list[str]:
    if not requests:
        return []
    return [
        f"{counted(requests, 'request')} in doubt may be sent again without being paid twice: "
        "give the command that left them once more, it settles them"
    ]


def _entry_lines(entry: Entry) -> list[str]:
    paid = f", answered {_time(entry.answered_at)}" if entry.answered_at is not None else ""
    lines = [
        f"{entry.id}  {entry.b_no}  {entry.state:<11}{_time(entry.since)}{paid}",
        f"    {entry.file}, run {entry.run_id}",
    ]
    if entry.note:
        lines.append(f"    {entry.note}")
    if entry.answer is not None:
        said = {name: value for name, value in asdict(entry.answer).items() if value not in (None, ())}
        lines += [f"    {name:<14}{' | '.join(value) if name == 'reasons' else value}" for name, value in said.items()]
    return lines


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
