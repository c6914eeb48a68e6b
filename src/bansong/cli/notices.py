"""``bansong notices``: undelivered closures of one's own server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bansong.cli.console import print_json, print_table, say
from bansong.cli.options import json_option
from bansong.cli.serve import db_option, needs_server
from bansong.cli.server_file import act_on_file, change_file, minute, require_key
from bansong.translation import gettext, gettext_noop, ngettext

if TYPE_CHECKING:
    import sqlite3

    from bansong.watch.notifications import PendingDelivery

_NOTIFICATION_COLUMNS: Final = (
    gettext_noop("notice"),
    gettext_noop("key"),
    gettext_noop("number"),
    gettext_noop("found at"),
    gettext_noop("channel"),
    gettext_noop("state"),
    gettext_noop("tries"),
    gettext_noop("next"),
    gettext_noop("last error"),
)
_STATES: Final = {
    "nowhere": gettext_noop("nowhere"),
    "given_up": gettext_noop("given up"),
    "waiting": gettext_noop("waiting"),
}

_key_option = click.option("--key", "key_id", metavar="KEY_ID", help="Of this key alone.")


@click.group("notices", short_help="Closures that your own server could not deliver yet.")
def notifications() -> None:
    """List the closures that were found but not acknowledged by their receiver yet, and send them again.

    A closure goes to the file of `bansong serve --notices` and to the webhook of its key. What fails is tried again
    for three days, less and less often, and then given up; it stays listed here.
    """
    needs_server()


@notifications.command(name="list")
@db_option
@_key_option
@json_option
def list_notifications(db: Path, key_id: str | None, as_json: bool) -> None:
    """List the closures that were not acknowledged: of which key, since when, how often tried, what went wrong."""
    from bansong.watch.notifications import list_undelivered

    if key_id is not None:
        require_key(db, key_id)
    rows = [_notification_row(delivery) for delivery in change_file(db, lambda it: list_undelivered(it, key_id))]
    if as_json:
        print_json({"undelivered": rows})
    elif rows:
        print_table(_NOTIFICATION_COLUMNS, [_notification_cells(row) for row in rows])
    else:
        say(gettext("every closure that was found was acknowledged"))


@notifications.command()
@db_option
@_key_option
@click.option("--notice", "notification_id", metavar="ID", help="This notice alone.")
@json_option
def retry(db: Path, key_id: str | None, notification_id: str | None, as_json: bool) -> None:
    """Send again the closures that were not acknowledged, also those given up; no other is sent twice.

    Closures that were found while their key had no webhook are sent to the one that it has now. A running server
    begins within a minute.
    """
    if key_id is not None:
        require_key(db, key_id)
    count = act_on_file(
        db,
        "notices retry",
        lambda it: _retry(it, key_id, notification_id, time.time()),
        lambda retried: (key_id, {"notices": retried}),
    )
    if as_json:
        print_json({"retried": count})
    elif count:
        say(
            ngettext(
                "{count:,} notice will be tried again; a running server begins within a minute",
                "{count:,} notices will be tried again; a running server begins within a minute",
                count,
            )
        )
    else:
        say(
            gettext(
                "nothing to send: it is unknown, was acknowledged, or has nowhere to go; see `bansong keys webhook`"
            )
        )


def _retry(db: sqlite3.Connection, key_id: str | None, notification_id: str | None, now: float) -> int:
    from bansong.server.store import key_table
    from bansong.watch.notifications import WEBHOOK
    from bansong.watch.notifications import retry as again

    count = 0
    for key in key_table.list_keys(db):
        if key_id in (None, key.id):
            channels = [] if key.webhook_url is None or key.revoked is not None else [WEBHOOK]
            count += again(db, now, owner=key.id, notification_id=notification_id, channels=channels)
    return count


def _notification_row(delivery: PendingDelivery) -> dict[str, object]:
    from bansong.server.settings import as_text

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


def _notification_cells(row: dict[str, object]) -> list[str]:
    found, again = minute(row["detected_at"]), minute(row["next_attempt_at"])
    texts = {name: str(value or "") for name, value in row.items()}
    state, tries = gettext(_STATES[texts["state"]]), str(row["attempts"])
    who = [texts["id"], texts["key_id"], texts["biz_no"] or gettext("(several)")]
    return [*who, found, texts["channel"], state, tries, again, texts["error"]]
