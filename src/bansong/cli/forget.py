"""``bansong forget``."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from bansong.cli.console import say, say_table, show_summary
from bansong.cli.options import PATH, json_option, options_of
from bansong.errors import Problem, UsageError
from bansong.options import RunOptions, ServiceOptions, StatusOptions
from bansong.translation import gettext

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
    from bansong.erasure import forget as erase

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
