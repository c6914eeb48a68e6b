"""`verify`, `status`, `doctor` and `forget`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import current_language, gettext, gettext_noop, gettext_noops
from bansong.base.options import ServiceOptions, StatusOptions
from bansong.base.schema import word_of
from bansong.cli.console import freeze_imports, print_json, print_out, print_table, say, say_table, show_summary, warn
from bansong.cli.options import (
    PATH,
    account_options,
    chosen_status,
    engine_option,
    fetch_options,
    given_options,
    json_option,
    options_of,
)
from bansong.run.options import LocalOptions, RunOptions

if TYPE_CHECKING:
    from bansong.upkeep.doctor import Diagnosis

_EXIT_CODES: Final = {"invalid": 2, "failed": 3, "in_doubt": 3, "pending": 5}


@click.command(short_help="Verify one business.")
@click.argument("b_no", metavar="B_NO")
@click.option("--name", help="The business's name.")
@click.option("--address", help="Its address; with it the risk of a bounce is assessed.")
@click.option("--zipcode", help="Its postal code.")
@engine_option("local", "verify")
@options_of(LocalOptions)
@options_of(StatusOptions)
@options_of(RunOptions, "labels", "no_labels", "choices", "no_choices")
@account_options
@options_of(ServiceOptions, "ledger", "known_as", "max_age", "buy_suspect", "retry_trial")
@json_option
def verify(as_json: bool, **options: Any) -> None:
    """Verify one business by its number, readable or as JSON.

    With `--engine verify` the hosted service is asked, unless the ledger has its answer. Exit code 2 if it cannot be a
    business number, 3 if the answer is in doubt or unusable, 5 if it is still to be had.
    """
    with freeze_imports():
        from bansong.run import verify as verify_business

    status = chosen_status(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        answer = verify_business.verify(**given_options(options), status=status)
    warn(str(warning.message) for warning in caught)
    if as_json:
        print_json(asdict(answer))
    else:
        print_out(str(answer))
    click.get_current_context().exit(_EXIT_CODES.get(answer.row_status, 0))


_COLUMNS: Final = gettext_noops("b_no", "status", "since", "taxation", "as of", "note")


@click.command(short_help="Ask the tax authority for the status of businesses.")
@click.argument("numbers", nargs=-1, required=True, metavar="B_NO…")
@fetch_options
@json_option
def status(numbers: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Ask the tax authority's free API for the status of businesses by their numbers, readable or as JSON.

    What was fetched in the last `--max-status-age` days is not asked again. Exit code 2 if one cannot be a business
    number, 4 if the key is refused, 5 if not all could be asked.
    """
    from bansong.run.verify import look_up_statuses

    found = look_up_statuses(numbers, chosen_status(options))
    rows = found.frame.to_dicts()
    if as_json:
        print_json({"statuses": rows, "halt": found.fetch.halt})
    else:
        print_table(_COLUMNS, map(_cells, rows))
    if found.fetch.halt is not None:
        say(f"bansong: {found.fetch.halt}")
    is_invalid = any(row["b_no"] is None for row in rows)
    click.get_current_context().exit(found.fetch.exit_code or (2 if is_invalid else 0))


def _cells(row: Mapping[str, Any]) -> list[str]:
    digits = row["b_no"]
    number = f"{digits[:3]}-{digits[3:5]}-{digits[5:]}" if digits else None
    status = word_of(row["biz_status"], current_language()) if row["biz_status"] else None
    if row["merged"]:
        status = gettext("{status} (merged)", status=status)
    return [str(value or "-") for value in (number, status, row["since"], row["taxation"], row["as_of"], row["note"])]


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

    diagnosis = diagnose(DoctorOptions(**options))
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
    """Erase business numbers from the ledger, the label store, the watch list, the status store and servers' files.

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
