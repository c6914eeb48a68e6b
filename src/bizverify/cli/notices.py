"""``bizverify notices``: the closures that a server of one's own found and could not tell yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from bizverify.cli.console import print_json, print_table, say
from bizverify.cli.options import json_option
from bizverify.cli.serve import db_option, needs_server
from bizverify.errors import UsageError
from bizverify.schema import counted

if TYPE_CHECKING:
    import sqlite3

    from bizverify.watch.notifications import PendingDelivery

T = TypeVar("T")

_NAMES: Final = ("notice", "key", "number", "found", "channel", "state", "tries", "next", "last error")

_key_option = click.option("--key", "key_id", metavar="KEY_ID", help="Of this key alone.")


@click.group(short_help="Closures that a server of one's own could not tell yet.")
def notices() -> None:
    """Look at the closures that were found and not acknowledged yet, and send them again.

    A closure goes to the file of `bizverify serve --notices` and to the webhook of its key. What fails is tried again
    for three days, less and less often, and then given up; it stays listed here.
    """
    needs_server()


@notices.command(name="list")
@db_option
@_key_option
@json_option
def list_(db: Path, key_id: str | None, as_json: bool) -> None:
    """List what was not acknowledged: for whom, since when, how often it was tried, what went wrong."""
    from bizverify.watch.notifications import list_undelivered

    found = _changed(db, lambda it: list_undelivered(it, _known(it, db, key_id)))
    rows = [_row(delivery) for delivery in found]
    if as_json:
        print_json({"undelivered": rows})
    elif rows:
        print_table(_NAMES, [_cells(row) for row in rows])
    else:
        say("every closure that was found was acknowledged")


@notices.command()
@db_option
@_key_option
@click.option("--notice", "notice_id", metavar="ID", help="This notice alone.")
@json_option
def retry(db: Path, key_id: str | None, notice_id: str | None, as_json: bool) -> None:
    """Send again what was not acknowledged, also what was given up; what was acknowledged is never sent again.

    Closures that were found while their key had no webhook are sent to the one that it has now. A running server
    begins within a minute.
    """
    count = _changed(db, lambda it: _retried(it, _known(it, db, key_id), notice_id, time.time()))
    if as_json:
        print_json({"retried": count})
    elif count:
        say(f"{counted(count, 'notice')} will be tried again; a running server begins within a minute")
    else:
        say("nothing to send: it is unknown, was acknowledged, or has nowhere to go; see `bizverify keys webhook`")


def _retried(db: sqlite3.Connection, key_id: str | None, notice_id: str | None, now: float) -> int:
    from bizverify.server.store import key_table
    from bizverify.watch.notifications import WEBHOOK
    from bizverify.watch.notifications import retry as again

    count = 0
    for key in key_table.list_keys(db):
        if key_id in (None, key.id):
            channels = [] if key.webhook_url is None or key.revoked is not None else [WEBHOOK]
            count += again(db, now, owner=key.id, notification_id=notice_id, channels=channels)
    return count


def _known(db: sqlite3.Connection, path: Path, key_id: str | None) -> str | None:
    from bizverify.server.store import key_table

    if key_id is not None and key_table.find_key(db, key_id) is None:
        raise UsageError(f"{key_id}: {path} has no key with this id; `bizverify keys list --db {path}` shows them")
    return key_id


def _changed(db: Path, change: Callable[[sqlite3.Connection], T]) -> T:
    """Carry out a change of the server's file in a transaction of its own."""
    from bizverify.server.store.schema import SERVER_FILE, open_server_file

    with closing(open_server_file(db, create=False)) as connection, SERVER_FILE.errors(db):
        connection.execute("BEGIN IMMEDIATE")
        result = change(connection)
        connection.execute("COMMIT")
        return result


def _row(delivery: PendingDelivery) -> dict[str, object]:
    from bizverify.server.clock import as_text

    waits = "given_up" if delivery.due is None else "waiting"
    return {
        "id": delivery.id,
        "key_id": delivery.owner,
        "biz_no": delivery.biz_no or None,
        "detected_at": as_text(delivery.created),
        "channel": delivery.channel,
        "state": "nowhere" if delivery.channel is None else waits,
        "attempts": delivery.attempts,
        "next_attempt_at": as_text(delivery.due),
        "error": delivery.error,
    }


def _cells(row: dict[str, object]) -> list[str]:
    found, again = (str(row[name] or "")[:16].replace("T", " ") for name in ("detected_at", "next_attempt_at"))
    texts = {name: str(value or "") for name, value in row.items()}
    state, tries = texts["state"].replace("_", " "), str(row["attempts"])
    who = [texts["id"], texts["key_id"], texts["biz_no"] or "(several)"]
    return [*who, found, texts["channel"], state, tries, again, texts["error"]]
