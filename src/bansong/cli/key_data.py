"""``bansong keys export``, ``erase`` and ``audit``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bansong.cli.console import print_json, print_result, print_table, say
from bansong.cli.options import PATH, json_option
from bansong.cli.serve import db_option
from bansong.cli.server_file import act_on_file, change_file, key_argument, minute, require_key
from bansong.errors import Problem, StoreError, UsageError
from bansong.translation import gettext, gettext_noop

if TYPE_CHECKING:
    from bansong.server.store.audit_table import AuditEntry

NO_TERMINAL: Final = Problem("keys.no_terminal", "nothing was erased: there is no terminal to ask on; give --yes")

_PATIENCE: Final = 60.0
_LOOKED_EVERY: Final = 0.5
_PAUSED: Final = 5

_COLUMNS: Final = (
    gettext_noop("when"),
    gettext_noop("who"),
    gettext_noop("action"),
    gettext_noop("key"),
    gettext_noop("details"),
)


@click.command()
@key_argument
@db_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="FOLDER|FILE.zip",
    help="Where it is written: a new folder, or a new file that ends in .zip.",
)
@json_option
def export(key_id: str, db: Path, output: Path, as_json: bool) -> None:
    """Write all that is stored of a key in readable form: usage, jobs with results, watches, notices, what was learned.

    The server may be running. README.txt in it says what each file is; secrets are not in it. Only you may read it.
    """
    from bansong.server.account_export import export_account

    require_key(db, key_id)
    counts = export_account(db, key_id, output)
    act_on_file(db, "keys export", lambda _: None, (key_id, counts))
    shown = [
        gettext(
            "key {key_id}: written to {output}: {shown_counts}",
            key_id=key_id,
            output=output,
            shown_counts=_shown_counts(counts),
        )
    ]
    print_result(as_json, {"key_id": key_id, "output": str(output), "rows": counts}, shown)


@click.command()
@key_argument
@db_option
@click.option("--yes", is_flag=True, help="Erase without asking; needed where there is no terminal.")
@json_option
def erase(key_id: str, db: Path, yes: bool, as_json: bool) -> None:
    """Revoke a key and erase all that belongs to it; its id, plan, times and lookups by month stay, for the books.

    A running server erases it when the key's requests and jobs have ended. The command waits a minute for that, and
    ends with exit code 5 if it takes longer. Killed half-way, it is completed by the server, or when it is given again.
    """
    from bansong.server.account_erasure import open_account
    from bansong.server.settings import as_text
    from bansong.storage.sqlite import is_in_use

    key = require_key(db, key_id)
    if key.erased is not None:
        line = gettext("key {key_id} was erased: {erased}", key_id=key_id, erased=as_text(key.erased))
        print_result(as_json, {"key_id": key_id, "erased": {}}, [line])
        return
    held = _holdings(db, key_id)
    if not yes and not _confirm_erasure(key_id, held):
        say(gettext("nothing was erased"))
        return
    try:
        with open_account(db, key_id) as account:
            held = account.holdings()
            account.erase(time.time())
    except StoreError as error:
        if not is_in_use(error):
            raise
        _ask_server_to_erase(db, key_id)
    lines = [
        gettext("key {key_id} is revoked, and erased: {shown_counts}", key_id=key_id, shown_counts=_shown_counts(held)),
        gettext(
            "out of reach: backups, exports, the file of --notices, and scorecards that others learned in the pool"
        ),
    ]
    print_result(as_json, {"key_id": key_id, "erased": held}, lines)


def _holdings(db: Path, key_id: str) -> dict[str, int]:
    from bansong.server.account_erasure import account_holdings
    from bansong.server.settings import Settings

    return change_file(db, lambda it: account_holdings(it, Settings(db=db).files, key_id))


def _confirm_erasure(key_id: str, held: Mapping[str, int]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(NO_TERMINAL)
    say(gettext("key {key_id} has {shown_counts}", key_id=key_id, shown_counts=_shown_counts(held)))
    return click.confirm(gettext("Revoke it and erase them for good?"), err=True)


def _ask_server_to_erase(db: Path, key_id: str) -> None:
    """Ask the running server to erase a key; end with exit code 5 if that takes over a minute."""
    from bansong.server.account_erasure import ask_for_erasure
    from bansong.server.store import key_table

    change_file(db, lambda it: ask_for_erasure(it, key_id, time.time()))
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = change_file(db, lambda it: key_table.find_key(it, key_id))
        if found is not None and found.erased is not None:
            return
        time.sleep(_LOOKED_EVERY)
    say(
        gettext(
            "key {key_id} is revoked; the server erases it when its requests and jobs have ended: `bansong keys list "
            "--db {db}` shows that it is done",
            key_id=key_id,
            db=db,
        )
    )
    raise SystemExit(_PAUSED)


def _shown_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{gettext(what)} {count:,}" for what, count in counts.items() if count) or gettext("nothing")


@click.command()
@db_option
@click.option("--key", "key_id", metavar="KEY_ID", help="What was done to this key alone.")
@json_option
def audit(db: Path, key_id: str | None, as_json: bool) -> None:
    """List what operators did: to keys, to notices, and what was forgotten; when, and as which user of the system.

    It names no secret, no business number and no address of a webhook, and goes on to name a key that was erased.
    """
    from bansong.server.store import audit_table

    rows = [_row(entry) for entry in change_file(db, lambda it: audit_table.list_actions(it, key_id))]
    if as_json:
        print_json({"actions": rows})
    elif rows:
        print_table(_COLUMNS, [_cells(row) for row in rows])
    else:
        say(
            gettext(
                "nothing was done to {more} since the audit log began",
                more=db if key_id is None else gettext("the key {id}", id=key_id),
            )
        )


def _row(entry: AuditEntry) -> dict[str, object]:
    from bansong.server.settings import as_text

    return {
        "at": as_text(entry.at),
        "who": entry.who,
        "action": entry.action,
        "key_id": entry.key_id,
        "details": dict(entry.details),
    }


def _cells(row: dict[str, object]) -> list[str]:
    details = row["details"]
    assert isinstance(details, dict)  # noqa: S101 - as `_row` makes it
    shown = ", ".join(f"{name}={value}" for name, value in details.items())
    return [minute(row["at"]), str(row["who"]), str(row["action"]), str(row["key_id"] or ""), shown]
