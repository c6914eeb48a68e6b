"""``bizverify keys`` and ``bizverify notices``: the API keys of the user's own server, and its notifications."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from bizverify.cli.console import print_json, print_out, print_table, say, warn
from bizverify.cli.options import PATH, json_option
from bizverify.cli.serve import db_option, needs_server
from bizverify.errors import OutputError, UsageError
from bizverify.schema import pluralize

if TYPE_CHECKING:
    import sqlite3

    from bizverify.server.store.key_table import Key
    from bizverify.watch.notifications import PendingDelivery

T = TypeVar("T")

_NOTIFICATION_COLUMNS: Final = ("notice", "key", "number", "found", "channel", "state", "tries", "next", "last error")

_key_argument = click.argument("key_id", metavar="KEY_ID")
_key_option = click.option("--key", "key_id", metavar="KEY_ID", help="Of this key alone.")


@click.group(short_help="The API keys of your own server.")
def keys() -> None:
    """Make, list and revoke API keys in a server's file, whether the server is running or not.

    A running server heeds a change within a second or two.
    """
    needs_server()


@keys.command()
@db_option
@click.option("--plan", default="business", show_default=True, help="What the key may do; see --plans.")
@click.option("--quota", type=click.IntRange(0), metavar="N", help="Lookups a calendar month; by default the plan's.")
@click.option("--note", metavar="TEXT", help="Whose key it is, shown by `keys list`.")
@click.option("--pool", is_flag=True, help="Learn from this key's outcomes together with those of other pooled keys.")
@click.option("--plans", type=PATH, metavar="FILE.toml", help="The plans that the server is started with.")
def create(db: Path, plan: str, quota: int | None, note: str | None, pool: bool, plans: Path | None) -> None:
    """Make a key and print it, alone, on stdout: this once, since only its SHA-256 is stored."""
    from bizverify.server.settings import load_plans
    from bizverify.server.store import key_table

    known = load_plans(plans)
    if plan not in known:
        raise UsageError(f"--plan {plan}: there is no such plan; there are {', '.join(known)} (--plans names a file)")
    limit = known[plan].quota if quota is None else quota
    key, secret = _change_file(
        db,
        lambda it: key_table.create_key(it, plan=plan, quota=limit, now=time.time(), note=note, pool=pool),
        make=True,
    )
    try:
        print_out(secret, needed=True)
    except OutputError:  # nobody has seen it, and nobody can
        _change_file(db, lambda it: key_table.revoke_key(it, key.id, time.time()))
        raise
    say(
        f"key {key.id}: plan {key.plan}, {pluralize(key.quota, 'lookup')} a month; shown this once, "
        "so keep it in a safe place"
    )
    if not known[plan].api:
        warn([f"the plan {plan!r} has no API: requests with this key are answered 403"])


@keys.command(name="list")
@db_option
@json_option
def list_keys(db: Path, as_json: bool) -> None:
    """List the keys: plan, this month's use, when they were made, used last and revoked."""
    from bizverify.server.clock import Clock
    from bizverify.server.store import key_table

    month = Clock().month()
    found = _change_file(
        db, lambda it: [(key, key_table.used_lookups(it, key.id, month)) for key in key_table.list_keys(it)]
    )
    rows = [_key_row(key, used) for key, used in found]
    if as_json:
        print_json({"month": month, "keys": rows})
    elif rows:
        names = ("id", "plan", f"used in {month}", "pool", "webhook", "made", "last used", "revoked", "note")
        print_table(names, [_key_cells(row) for row in rows])
    else:
        say(f"{db} has no keys; make one with `bizverify keys create --db {db}`")


@keys.command()
@_key_argument
@db_option
def revoke(key_id: str, db: Path) -> None:
    """Revoke a key for good. Its jobs and watches stay in the file, and can be reached by nobody."""
    from bizverify.server.store import key_table

    key = _require_key(db, key_id)
    if key.revoked is not None:
        say(f"key {key_id} was revoked before")
        return
    _change_file(db, lambda it: key_table.revoke_key(it, key_id, time.time()))
    say(f"key {key_id} is revoked; a running server refuses it within a second or two")


@keys.command()
@_key_argument
@db_option
@click.option("--plan", help="Another plan.")
@click.option("--quota", type=click.IntRange(0), metavar="N", help="Another number of lookups a month.")
@click.option("--note", metavar="TEXT", help="Another note.")
@click.option("--pool/--no-pool", default=None, help="Whether its outcomes are learned from with those of other keys.")
@click.option("--plans", type=PATH, metavar="FILE.toml", help="The plans that the server is started with.")
def change(
    key_id: str, db: Path, plan: str | None, quota: int | None, note: str | None, pool: bool | None, plans: Path | None
) -> None:
    """Change what a key may do; the key itself stays. What is not given stays, too."""
    from bizverify.server.settings import load_plans
    from bizverify.server.store import key_table

    if plan is not None and plan not in load_plans(plans):
        raise UsageError(f"--plan {plan}: there is no such plan (--plans names a file)")
    given = {"plan": plan, "quota": quota, "note": note, "pool": pool}
    changed = {name: value for name, value in given.items() if value is not None}
    if not changed:
        raise UsageError("nothing to change: give --plan, --quota, --note or --pool")
    key = _require_key(db, key_id) if list(changed) == ["note"] else _require_living_key(db, key_id)
    _change_file(db, lambda it: key_table.change_key(it, key.id, changed))
    say(f"key {key_id}: {', '.join(f'{name} is now {value}' for name, value in changed.items())}")


@keys.command()
@_key_argument
@db_option
@click.option("--url", metavar="URL", help="Where closures are posted: https, or http on this machine.")
@click.option("--none", "remove", is_flag=True, help="Post them nowhere.")
@click.option("--allow-private", is_flag=True, help="Take a private address, which `serve --webhook-network` allows.")
def webhook(key_id: str, db: Path, url: str | None, remove: bool, allow_private: bool) -> None:
    """Set where the closures on a key's watch list are posted; print the secret that signs them, alone, on stdout.

    What its name resolves to is checked at each delivery: public addresses are allowed, and those of the networks that
    the server was started with (--webhook-network).
    """
    from bizverify.client.address_policy import AddressPolicy
    from bizverify.client.webhook import WebhookUrl
    from bizverify.server.store import key_table

    if (url is None) != remove:
        raise UsageError("give either --url URL or --none")
    checked = None if url is None else WebhookUrl.parse(url)
    if checked is not None and not allow_private and not AddressPolicy().is_allowed_host(checked.host):
        raise UsageError(
            f"{checked}: no public address; if it is a receiver of your own, give --allow-private, "
            "and start the server with --webhook-network"
        )
    key = _require_key(db, key_id) if remove else _require_living_key(db, key_id)
    secret = _change_file(
        db, lambda it: key_table.set_webhook(it, key.id, None if checked is None else checked.reveal())
    )
    if secret is None:
        say(f"key {key_id}: closures are posted nowhere")
        return
    print_out(secret, needed=True)
    say(f"key {key_id}: closures are posted to {checked}, signed with this secret; docs/watch.md says how to check it")


@click.group("notices", short_help="Closures that your own server could not deliver yet.")
def notifications() -> None:
    """List the closures that were found but not acknowledged by their receiver yet, and send them again.

    A closure goes to the file of `bizverify serve --notices` and to the webhook of its key. What fails is tried again
    for three days, less and less often, and then given up; it stays listed here.
    """
    needs_server()


@notifications.command(name="list")
@db_option
@_key_option
@json_option
def list_notifications(db: Path, key_id: str | None, as_json: bool) -> None:
    """List the closures that were not acknowledged: of which key, since when, how often tried, what went wrong."""
    from bizverify.watch.notifications import list_undelivered

    if key_id is not None:
        _require_key(db, key_id)
    rows = [_notification_row(delivery) for delivery in _change_file(db, lambda it: list_undelivered(it, key_id))]
    if as_json:
        print_json({"undelivered": rows})
    elif rows:
        print_table(_NOTIFICATION_COLUMNS, [_notification_cells(row) for row in rows])
    else:
        say("every closure that was found was acknowledged")


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
        _require_key(db, key_id)
    count = _change_file(db, lambda it: _retry(it, key_id, notification_id, time.time()))
    if as_json:
        print_json({"retried": count})
    elif count:
        say(f"{pluralize(count, 'notice')} will be tried again; a running server begins within a minute")
    else:
        say("nothing to send: it is unknown, was acknowledged, or has nowhere to go; see `bizverify keys webhook`")


def _retry(db: sqlite3.Connection, key_id: str | None, notification_id: str | None, now: float) -> int:
    from bizverify.server.store import key_table
    from bizverify.watch.notifications import WEBHOOK
    from bizverify.watch.notifications import retry as again

    count = 0
    for key in key_table.list_keys(db):
        if key_id in (None, key.id):
            channels = [] if key.webhook_url is None or key.revoked is not None else [WEBHOOK]
            count += again(db, now, owner=key.id, notification_id=notification_id, channels=channels)
    return count


def _notification_row(delivery: PendingDelivery) -> dict[str, object]:
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


def _notification_cells(row: dict[str, object]) -> list[str]:
    found, again = _minute(row["detected_at"]), _minute(row["next_attempt_at"])
    texts = {name: str(value or "") for name, value in row.items()}
    state, tries = texts["state"].replace("_", " "), str(row["attempts"])
    who = [texts["id"], texts["key_id"], texts["biz_no"] or "(several)"]
    return [*who, found, texts["channel"], state, tries, again, texts["error"]]


def _minute(time: object) -> str:
    """Return a time as text, to the minute; nothing for ``None``."""
    return str(time or "")[:16].replace("T", " ")


def _change_file(db: Path, change: Callable[[sqlite3.Connection], T], *, make: bool = False) -> T:
    """Change the server's file in a transaction of its own, and return what ``change`` returns."""
    from bizverify.server.store.schema import SERVER_FILE, open_server_file

    with closing(open_server_file(db, create=make)) as connection, SERVER_FILE.errors(db):
        connection.execute("BEGIN IMMEDIATE")
        result = change(connection)
        connection.execute("COMMIT")
        return result


def _require_key(db: Path, key_id: str) -> Key:
    from bizverify.server.store import key_table

    key = _change_file(db, lambda it: key_table.find_key(it, key_id))
    if key is None:
        raise UsageError(f"{key_id}: {db} has no key with this id; `bizverify keys list --db {db}` shows them")
    return key


def _require_living_key(db: Path, key_id: str) -> Key:
    key = _require_key(db, key_id)
    if key.revoked is not None:
        raise UsageError(f"key {key_id} was revoked, for good; make another with `bizverify keys create --db {db}`")
    return key


def _key_row(key: Key, used: int) -> dict[str, object]:
    from bizverify.server.clock import as_text

    return {
        "id": key.id,
        "plan": key.plan,
        "quota": key.quota,
        "used": used,
        "pool": key.pool,
        "webhook": key.webhook_url is not None,
        "created": as_text(key.created),
        "last_used": as_text(key.last_used),
        "revoked": as_text(key.revoked),
        "note": key.note,
    }


def _key_cells(row: dict[str, object]) -> list[str]:
    used = f"{row['used']:,} of {row['quota']:,}"
    flags = ["yes" if row[name] else "" for name in ("pool", "webhook")]
    times = [_minute(row[name]) for name in ("created", "last_used", "revoked")]
    return [str(row["id"]), str(row["plan"]), used, *flags, *times, str(row["note"] or "")]
