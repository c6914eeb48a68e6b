"""The commands ``bansong watch …``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.display import pad_text
from bansong.base.errors import OutputError, Problem
from bansong.base.messages import describe_os_error, gettext, gettext_noop
from bansong.base.options import STATUS_SOURCES, ReadOptions, ServiceOptions, StatusOptions
from bansong.cli.console import INTERRUPTED, end_with, print_json, print_out, print_result, progress_shown, say, warn
from bansong.cli.options import (
    PATH,
    account_options,
    add_all,
    chosen_status,
    given_options,
    json_option,
    local_options,
    options_of,
)
from bansong.run.options import LocalOptions, RunOptions, installed_lines

if TYPE_CHECKING:
    import polars as pl

    from bansong.watch.report import CheckReport

STDOUT_UNWRITABLE: Final = Problem("watch.stdout_unwritable", "stdout: cannot be written: {reason}")

_PLACED_WORDS: Final = {
    "added": gettext_noop("is watched now"),
    "changed": gettext_noop("was watched; name or address changed"),
    "unchanged": gettext_noop("was watched"),
}
_DEFAULT_LIST: Final = "\0"  # `--local` without a file; no path can be this

local_option: Final = click.option(
    "--local",
    is_flag=False,
    flag_value=_DEFAULT_LIST,
    metavar="[FILE]",
    help="Use a watch list in a file in place of the service's: FILE, else BANSONG_WATCH, else watch.sqlite in the "
    "state directory.",
)


_which: Final = add_all([local_option, account_options])


@click.group(short_help="The watch list: businesses that are checked again and again.")
def watch() -> None:
    """Keep a list of businesses that are checked again and again, so that you hear when one of them closes.

    The list is kept, and checked, by the hosted service; or, with --local, in a file of your own that
    `bansong watch check` checks with the local engine.
    """


@watch.command(short_help="Make the watch list the same as a file.")
@click.argument("file", type=PATH)
@click.option("--apply", is_flag=True, help="Change the list; without this option only show what would change.")
@click.option("--keep", is_flag=True, help="Remove nothing: businesses that are not in FILE stay on the list.")
@click.option(
    "--force", is_flag=True, help="Remove even more than half of a list of 20 businesses and more, or all of any list."
)
@options_of(ReadOptions, "columns", roles=("b_no", "name", "address"))
@click.option("--sheet", metavar="NAME", help="The sheet of a workbook; by default the one with the number column.")
@options_of(ReadOptions, "encoding", "delimiter")
@click.option("--json-path", metavar="PATH", help="Where the list is in a JSON document; by default it is found.")
@_which
@options_of(ServiceOptions, "rate", "concurrency")
@json_option
def sync(file: Path, as_json: bool, local: str | None, **options: Any) -> None:
    """Compare the watch list with the businesses of FILE and show what would change; with --apply, change it.

    FILE is any table that `enrich` reads. Businesses that only FILE has are added, names and addresses that differ are
    changed, and at the end businesses that only the list has are removed. The command may be given again at any time,
    also after it was stopped: it reads the list first and does what is left to do.
    """
    from bansong.watch.api import sync as reconcile

    try:
        with progress_shown("auto", "watches", "syncing") as advance:
            report = reconcile(file, progress=advance, local=_local(local), **given_options(options))
    except KeyboardInterrupt as error:
        if not str(error):  # nothing had been begun
            raise
        say(gettext("bansong: interrupted; {error}", error=error))
        click.get_current_context().exit(INTERRUPTED)
    end_with(report, as_json)


@watch.command(short_help="Put one business on the list.")
@click.argument("b_no")
@click.option("--name", help="The business name.")
@click.option("--address", help="The address.")
@_which
@json_option
def add(b_no: str, as_json: bool, local: str | None, **options: Any) -> None:
    """Put a business on the list; if it is there already, it gets the name and address that are given."""
    from bansong.base import business_number
    from bansong.watch.api import add as put

    placed = put(b_no, local=_local(local), **given_options(options))
    number, state = business_number.format(placed.biz_no), gettext(_PLACED_WORDS[placed.state])
    lines = [gettext("{number} {state} (watch {watch_id})", number=number, state=state, watch_id=placed.watch_id)]
    if due := placed.first_check_at:
        text = gettext_noop("its first check is due at {first_check_at}; until then it has no status")
        lines.append(gettext(text, first_check_at=due))
    print_result(as_json, asdict(placed), lines)


@watch.command("list", short_help="Show the list.")
@_which
@json_option
def list_(as_json: bool, local: str | None, **options: Any) -> None:
    """Show the whole list, in the order in which businesses were added."""
    from bansong.watch.api import entries
    from bansong.watch.report import list_lines

    frame = entries(local=_local(local), **given_options(options))
    print_result(as_json, {"watches": _records(frame), "total": frame.height}, ["\n".join(list_lines(frame))])


@watch.command(short_help="Take a business off the list.")
@click.argument("which", metavar="WATCH_ID|B_NO")
@_which
@json_option
def remove(which: str, as_json: bool, local: str | None, **options: Any) -> None:
    """Take one watch off the list, or all watches of a business number. A local watch's history goes with it."""
    from bansong.watch.api import remove as take_off
    from bansong.watch.report import format_number

    gone = take_off(which, local=_local(local), **given_options(options))
    said = gettext_noop("{format_number} is not watched any more (watch {watch_id})")
    rows = ((format_number(row["biz_no"]), row["watch_id"]) for row in gone.iter_rows(named=True))
    lines = [gettext(said, format_number=number, watch_id=watch_id) for number, watch_id in rows]
    print_result(as_json, {"removed": gone.to_dicts()}, lines)


@watch.command(short_help="How a business's grade changed.")
@click.argument("which", metavar="WATCH_ID|B_NO")
@_which
@json_option
def history(which: str, as_json: bool, local: str | None, **options: Any) -> None:
    """Show the changes of one watched business's grade, the oldest first."""
    from bansong.watch.api import history as changes_of

    found = changes_of(which, local=_local(local), **given_options(options))
    value = {"watch_id": found.watch_id, "biz_no": found.biz_no, "history": _records(found.frame)}
    print_result(as_json, value, [repr(found)])


@watch.command(short_help="Check a local list: for cron.")
@local_option
@options_of(LocalOptions)
@click.option(
    "--status",
    type=click.Choice(STATUS_SOURCES),
    default="auto",
    show_default=True,
    help="Ask the tax authority's free API for the status of what is due: nts, none, or auto, with a key set.",
)
@options_of(StatusOptions, "status_budget", "status_store", "nts_key_file")
@options_of(RunOptions, "labels", "no_labels")
@click.option(
    "--every",
    type=click.FloatRange(0, min_open=True),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="How long after the start of a check a watch is due again, less a tenth (two hours at most) of slack.",
)
@click.option("--all", "everything", is_flag=True, help="Check all watches, due or not.")
@click.option(
    "--notify", type=PATH, metavar="FILE.jsonl", help="Append each closure to this file, a JSON object a line."
)
@click.option(
    "--webhook", metavar="URL", help="POST each closure to this URL, signed with the secret in BANSONG_WEBHOOK_SECRET."
)
@click.option("--allow-http", is_flag=True, help="Allow a webhook with plain http on another machine.")
@click.option("--forget", is_flag=True, help="Drop what waits for a file or webhook that is not given any more.")
@json_option
def check(as_json: bool, local: str | None, **options: Any) -> None:
    """Verify again what is due on a local list, record changes of grade, and report businesses that closed.

    Made for cron: it prints nothing when nothing happened (on a terminal: how many were checked, and when the next are
    due). Businesses that were closed already at their first check are reported in one line. It ends at once if another
    check of the same list is running. It may be killed at any moment: each closure is reported at least once.

    Exit codes: 3 a notice could not be delivered (it is kept, and the next check tries again), or the tax authority
    refused the key; 5 not all statuses that were due could be asked, the next check asks again.
    """
    from bansong.watch.checking import check as check_list

    options["max_status_age"] = 0.0  # ask for each due status that was not asked for on the same day
    status, given = chosen_status(options), local_options(options)
    report = check_list(
        local=_local(local) or True,
        status=status,
        tell=lambda report: _print_report(report, as_json, installed_lines(given)),
        **given,
    )
    click.get_current_context().exit(report.exit_code)


def _local(local: str | None) -> str | bool | None:
    return True if local == _DEFAULT_LIST else local


def _print_report(report: CheckReport, as_json: bool, installed: list[tuple[str, str]]) -> None:
    # closures count as reported once printed
    warn(report.warnings)
    if as_json:
        print_json(report.as_dict(), needed=True)
    else:
        if sys.stderr.isatty():  # people are told that nothing was due, cron is not
            for line in (report.progress_line, *installed):
                say(_line(*line))
        for closed_or_grade in report.news():
            print_out(_line(*closed_or_grade), needed=True)
        for undelivered in report.undelivered_lines():
            say(_line(*undelivered))
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputError(STDOUT_UNWRITABLE, reason=describe_os_error(error)) from error


def _line(what: str, value: str) -> str:
    return f"{pad_text(what, 13)}{value}"


def _records(frame: pl.DataFrame) -> list[dict[str, Any]]:
    from bansong.watch.report import with_local_times

    return with_local_times(frame).to_dicts()
