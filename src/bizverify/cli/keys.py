"""``bizverify keys``: the API keys of a server of one's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from bizverify.cli.console import print_json, print_out, print_table, say, warn
from bizverify.cli.options import PATH, json_option
from bizverify.cli.serve import db_option, needs_server
from bizverify.errors import OutputError, UsageError
from bizverify.schema import counted

if TYPE_CHECKING:
    import sqlite3

    from bizverify.server.store.key_table import Key

T = TypeVar("T")

_key_argument = click.argument("key_id", metavar="KEY_ID")


@click.group(short_help="The API keys of a server of one's own.")
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
    key, secret = _changed(
        db,
        lambda it: key_table.create_key(it, plan=plan, quota=limit, now=time.time(), note=note, pool=pool),
        make=True,
    )
    try:
        print_out(secret, needed=True)
    except OutputError:  # nobody has seen it, and nobody can
        _changed(db, lambda it: key_table.revoke_key(it, key.id, time.time()))
        raise
    say(
        f"key {key.id}: plan {key.plan}, {counted(key.quota, 'lookup')} a month; shown this once, "
        "so keep it in a safe place"
    )
    if not known[plan].api:
        warn([f"the plan {plan!r} has no API: requests with this key are answered 403"])


@keys.command(name="list")
@db_option
@json_option
def list_(db: Path, as_json: bool) -> None:
    """List the keys: plan, this month's use, when they were made, used last and revoked."""
    from bizverify.server.clock import Clock
    from bizverify.server.store import key_table

    month = Clock().month()
    found = _changed(
        db, lambda it: [(key, key_table.used_lookups(it, key.id, month)) for key in key_table.list_keys(it)]
    )
    rows = [_row(key, used) for key, used in found]
    if as_json:
        print_json({"month": month, "keys": rows})
    elif rows:
        _print_table(rows, month)
    else:
        say(f"{db} has no keys; make one with `bizverify keys create --db {db}`")


@keys.command()
@_key_argument
@db_option
def revoke(key_id: str, db: Path) -> None:
    """Revoke a key for good. Its jobs and watches stay in the file, and can be reached by nobody."""
    from bizverify.server.store import key_table

    key = _of(db, key_id)
    if key.revoked is not None:
        say(f"key {key_id} was revoked before")
        return
    _changed(db, lambda it: key_table.revoke_key(it, key_id, time.time()))
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
    key = _of(db, key_id) if list(changed) == ["note"] else _living(db, key_id)
    _changed(db, lambda it: key_table.change_key(it, key.id, changed))
    say(f"key {key_id}: {', '.join(f'{name} is now {value}' for name, value in changed.items())}")


@keys.command()
@_key_argument
@db_option
@click.option("--url", metavar="URL", help="Where closures are posted: https, or http on this machine.")
@click.option("--none", "remove", is_flag=True, help="Post them nowhere.")
def webhook(key_id: str, db: Path, url: str | None, remove: bool) -> None:
    """Set where the closures on a key's watch list are posted; print the secret that signs them, alone, on stdout."""
    from bizverify.client.webhook import WebhookUrl
    from bizverify.server.store import key_table

    if (url is None) != remove:
        raise UsageError("give either --url URL or --none")
    checked = None if url is None else WebhookUrl.parse(url)
    key = _of(db, key_id) if remove else _living(db, key_id)
    secret = _changed(db, lambda it: key_table.set_webhook(it, key.id, None if checked is None else checked.reveal()))
    if secret is None:
        say(f"key {key_id}: closures are posted nowhere")
        return
    print_out(secret, needed=True)
    say(f"key {key_id}: closures are posted to {checked}, signed with this secret; docs/watch.md says how to check it")


def _changed(db: Path, change: Callable[[sqlite3.Connection], T], *, make: bool = False) -> T:
    """Carry out a change of the server's file in a transaction of its own."""
    from bizverify.server.store.schema import SERVER_FILE, open_server_file

    with closing(open_server_file(db, create=make)) as connection, SERVER_FILE.errors(db):
        connection.execute("BEGIN IMMEDIATE")
        result = change(connection)
        connection.execute("COMMIT")
        return result


def _of(db: Path, key_id: str) -> Key:
    from bizverify.server.store import key_table

    key = _changed(db, lambda it: key_table.find_key(it, key_id))
    if key is None:
        raise UsageError(f"{key_id}: {db} has no key with this id; `bizverify keys list --db {db}` shows them")
    return key


def _living(db: Path, key_id: str) -> Key:
    key = _of(db, key_id)
    if key.revoked is not None:
        raise UsageError(f"key {key_id} was revoked, for good; make another with `bizverify keys create --db {db}`")
    return key


def _row(key: Key, used: int) -> dict[str, object]:
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


def _print_table(rows: list[dict[str, object]], month: str) -> None:
    names = ("id", "plan", f"used in {month}", "pool", "webhook", "made", "last used", "revoked", "note")
    print_table(names, [_cells(row) for row in rows])


def _cells(row: dict[str, object]) -> list[str]:
    times = [str(row[name] or "")[:16].replace("T", " ") for name in ("created", "last_used", "revoked")]
    flags = ["yes" if row[name] else "" for name in ("pool", "webhook")]
    return [
        str(row["id"]),
        str(row["plan"]),
        f"{row['used']:,} of {row['quota']:,}",
        *flags,
        *times,
        str(row["note"] or ""),
    ]
