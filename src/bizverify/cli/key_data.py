"""``bizverify keys audit``: what operators did to a server's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bizverify.cli.console import print_json, print_table, say
from bizverify.cli.options import json_option
from bizverify.cli.serve import db_option
from bizverify.cli.server_file import change_file, minute

if TYPE_CHECKING:
    from bizverify.server.store.audit_table import AuditEntry

_COLUMNS: Final = ("when", "who", "action", "key", "details")


@click.command()
@db_option
@click.option("--key", "key_id", metavar="KEY_ID", help="What was done to this key alone.")
@json_option
def audit(db: Path, key_id: str | None, as_json: bool) -> None:
    """List what operators did: to keys, to notices, and what was forgotten; when, and as which user of the system.

    It names no secret, no business number and no address of a webhook, and goes on to name a key that was erased.
    """
    from bizverify.server.store import audit_table

    rows = [_row(entry) for entry in change_file(db, lambda it: audit_table.list_actions(it, key_id))]
    if as_json:
        print_json({"actions": rows})
    elif rows:
        print_table(_COLUMNS, [_cells(row) for row in rows])
    else:
        say(f"nothing was done to {db if key_id is None else f'the key {key_id}'} since the audit log began")


def _row(entry: AuditEntry) -> dict[str, object]:
    from bizverify.server.clock import as_text

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
