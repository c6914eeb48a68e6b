"""The commands `keys …`: accounts of a server, and their erasure."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.errors import OutputError, Problem, StoreError, UsageError
from bansong.base.messages import gettext, gettext_noop, gettext_noops, ngettext
from bansong.cli.console import print_out, print_result, print_rows, say, warn
from bansong.cli.options import PATH, ParsedType, json_option, parse_duration
from bansong.cli.serve import (
    change_file,
    db_option,
    key_argument,
    minute,
    needs_server,
    require_key,
    require_living_key,
)

if TYPE_CHECKING:
    import sqlite3

    from bansong.server.keys import Key, StoredSecret


NO_TERMINAL: Final = Problem("keys.no_terminal", "nothing was erased: there is no terminal to ask on; give --yes")

_ERASURE_TIMEOUT_S: Final = 60.0
_ERASURE_POLL_S: Final = 0.5
_PAUSED: Final = 5

PLAN_UNKNOWN: Final = Problem(
    "keys.plan_unknown", "--plan {plan}: there is no such plan; there are {listed} (--plans names a file)"
)
NEW_PLAN_UNKNOWN: Final = Problem(
    "keys.new_plan_unknown", "--plan {plan}: there is no such plan (--plans names a file)"
)
NOTHING_TO_CHANGE: Final = Problem("keys.nothing_to_change", "nothing to change: give --plan, --quota or --note")
WEBHOOK_CHOICE_UNCLEAR: Final = Problem("keys.webhook_choice_unclear", "give either --url URL or --none")
WEBHOOK_ADDRESS_PRIVATE: Final = Problem(
    "keys.webhook_address_private",
    "{checked}: no public address; if it is a receiver of your own, give --allow-private, and start the "
    "server with --webhook-network",
)
SECRETS_STILL_OVERLAP: Final = Problem(
    "keys.secrets_still_overlap",
    "key {key_id} has two valid secrets, the older until {expires}; wait for it, end it with "
    "`bansong keys revoke --old-secret --db {db} {key_id}`, or end both with --overlap 0",
)


_KEY_COLUMNS: Final = gettext_noops("webhook", "secrets", "made", "last used", "revoked", "note")


@click.group(short_help="The API keys of your own server.")
def keys() -> None:
    """Make, list, change and revoke API keys in a server's file, whether the server is running or not.

    A key is an account: jobs, watches, usage and what was learned belong to it. Its secret is what clients send; it can
    be replaced by another. A running server heeds a change within a second or two.
    """
    needs_server()


@keys.command()
@db_option
@click.option("--plan", default="business", show_default=True, help="What the key may do; see --plans.")
@click.option("--quota", type=click.IntRange(0), metavar="N", help="Lookups a calendar month; by default the plan's.")
@click.option("--note", metavar="TEXT", help="Whose key it is, shown by `keys list`.")
@click.option("--plans", type=PATH, metavar="FILE.toml", help="The plans that the server is started with.")
def create(db: Path, plan: str, quota: int | None, note: str | None, plans: Path | None) -> None:
    """Make a key and print it, alone, on stdout: this once, since only its SHA-256 is stored."""
    from bansong.server import keys as key_table
    from bansong.server.settings import load_plans

    known = load_plans(plans)
    if plan not in known:
        raise UsageError(PLAN_UNKNOWN, plan=plan, listed=", ".join(known))
    limit = known[plan].quota if quota is None else quota
    make = partial(key_table.create_key, plan=plan, quota=limit, now=time.time(), note=note)
    key, secret = change_file(db, make, make=True)
    try:
        print_out(secret, needed=True)
    except OutputError:  # the secret was never shown, and cannot be shown again
        change_file(db, lambda it: key_table.revoke_key(it, key.id, time.time()))
        raise
    made = ngettext(
        "key {id}: plan {plan}, {count:,} lookup a month; shown this once, so keep it in a safe place",
        "key {id}: plan {plan}, {count:,} lookups a month; shown this once, so keep it in a safe place",
        key.quota,
        id=key.id,
        plan=key.plan,
    )
    say(made)
    if not known[plan].api:
        warn([gettext("the plan {plan!r} has no API: requests with this key are answered 403", plan=plan)])


@keys.command(name="list")
@db_option
@json_option
def list_keys(db: Path, as_json: bool) -> None:
    """List the keys: plan, this month's use, valid secrets, when they were made, used last and revoked."""
    from bansong.server import keys as key_table
    from bansong.server.settings import Clock

    month, now = Clock().month(), time.time()

    def read(it: sqlite3.Connection) -> list[dict[str, object]]:
        return [
            _key_row(key, key_table.month_usage(it, key.id, month)[0], key_table.live_secrets(it, key.id, now))
            for key in key_table.list_keys(it)
        ]

    rows = change_file(db, read)
    columns = ("id", gettext_noop("plan"), gettext("used in {month}", month=month), *_KEY_COLUMNS)
    none = gettext("{db} has no keys; make one with `bansong keys create --db {db}`", db=db)
    print_rows(as_json, {"month": month, "keys": rows}, columns, map(_key_cells, rows), none)


@keys.command()
@key_argument
@db_option
@click.option("--old-secret", is_flag=True, help="Only the secret that `keys rotate` let run on; the key stays.")
def revoke(key_id: str, db: Path, old_secret: bool) -> None:
    """Revoke a key for good. No request reaches its data any more, and the server erases this data later.

    `bansong serve --keep-revoked-days` says when; `bansong keys erase` does it now.
    """
    from bansong.server import keys as key_table

    key = require_key(db, key_id)
    if key.revoked is not None:
        say(gettext("key {key_id} was revoked before", key_id=key_id))
    elif old_secret:
        _revoke_old_secret(db, key_id)
    else:
        change_file(db, lambda it: key_table.revoke_key(it, key_id, time.time()))
        say(gettext("key {key_id} is revoked; a running server refuses it within a second or two", key_id=key_id))


def _revoke_old_secret(db: Path, key_id: str) -> None:
    from bansong.server import keys as key_table

    now = time.time()
    old = change_file(db, lambda it: [one.number for one in key_table.live_secrets(it, key_id, now)][:-1])
    if old:
        change_file(db, lambda it: key_table.revoke_secrets(it, old, now))
        text = gettext_noop(
            "key {key_id}: its older secret is revoked; a running server refuses it within a second or two"
        )
        say(gettext(text, key_id=key_id))
    else:
        text = gettext_noop("key {key_id} has one secret; to replace it: `bansong keys rotate --db {db} {key_id}`")
        say(gettext(text, key_id=key_id, db=db))


@keys.command()
@key_argument
@db_option
@click.option(
    "--overlap",
    type=ParsedType("TIME", parse_duration),
    default="7d",
    show_default=True,
    help="How long the secret before stays valid (7d, 12h, 30m, 45s); 0 ends it at once.",
)
def rotate(key_id: str, db: Path, overlap: float) -> None:
    """Give a key another secret and print it, alone, on stdout: this once, since only its SHA-256 is stored.

    Jobs, watches, usage, webhook and what was learned stay with the key. The secret before stays valid for the overlap,
    so that clients can change one by one; two are valid at most.
    """
    from bansong.server import keys as key_table
    from bansong.server.settings import as_text

    require_living_key(db, key_id)
    now = time.time()

    def replace(it: sqlite3.Connection) -> key_table.Rotation:
        rotation = key_table.rotate_secret(it, key_id, now, overlap)
        if rotation is None:
            older = key_table.live_secrets(it, key_id, now)[0]
            raise UsageError(SECRETS_STILL_OVERLAP, key_id=key_id, expires=as_text(older.expires), db=db)
        return rotation

    rotation = change_file(db, replace)
    try:
        print_out(rotation.secret, needed=True)
    except OutputError:  # the secret was never shown: the earlier one stays valid
        change_file(db, lambda it: key_table.undo_rotation(it, rotation))
        raise
    before = gettext("is not valid any more")
    if overlap:
        before = gettext("stays valid until {value}", value=as_text(now + overlap))
    text = gettext_noop(
        "key {key_id}: the new secret is shown this once, so keep it in a safe place; the one before {before}"
    )
    say(gettext(text, key_id=key_id, before=before))


@keys.command()
@key_argument
@db_option
@click.option("--plan", help="Another plan.")
@click.option("--quota", type=click.IntRange(0), metavar="N", help="Another number of lookups a month.")
@click.option("--note", metavar="TEXT", help="Another note.")
@click.option("--plans", type=PATH, metavar="FILE.toml", help="The plans that the server is started with.")
def change(key_id: str, db: Path, plan: str | None, quota: int | None, note: str | None, plans: Path | None) -> None:
    """Change what a key may do; the key itself stays. What is not given stays, too."""
    from bansong.server import keys as key_table
    from bansong.server.settings import load_plans

    if plan is not None and plan not in load_plans(plans):
        raise UsageError(NEW_PLAN_UNKNOWN, plan=plan)
    given = {"plan": plan, "quota": quota, "note": note}
    changed = {name: value for name, value in given.items() if value is not None}
    if not changed:
        raise UsageError(NOTHING_TO_CHANGE)
    key = require_key(db, key_id) if list(changed) == ["note"] else require_living_key(db, key_id)
    change_file(db, lambda it: key_table.change_key(it, key.id, changed))
    now = ", ".join(gettext("{name} is now {value}", name=name, value=value) for name, value in changed.items())
    say(gettext("key {key_id}: {changes}", key_id=key_id, changes=now))


@keys.command()
@key_argument
@db_option
@click.option("--url", metavar="URL", help="Where closures are posted: https, or http on this machine.")
@click.option("--none", "remove", is_flag=True, help="Post them nowhere.")
@click.option("--allow-private", is_flag=True, help="Take a private address, which `serve --webhook-network` allows.")
def webhook(key_id: str, db: Path, url: str | None, remove: bool, allow_private: bool) -> None:
    """Set where the closures on a key's watch list are posted; print the secret that signs them, alone, on stdout.

    What its name resolves to is checked at each delivery: public addresses are allowed, and those of the networks that
    the server was started with (--webhook-network).
    """
    from bansong.client.address import AddressPolicy
    from bansong.client.webhook import WebhookUrl
    from bansong.server import keys as key_table

    if (url is None) != remove:
        raise UsageError(WEBHOOK_CHOICE_UNCLEAR)
    checked = None if url is None else WebhookUrl.parse(url)
    if checked is not None and not allow_private and not AddressPolicy().is_allowed_host(checked.host):
        raise UsageError(WEBHOOK_ADDRESS_PRIVATE, checked=checked)
    key = require_key(db, key_id) if remove else require_living_key(db, key_id)
    target = None if checked is None else checked.reveal()
    secret = change_file(db, lambda it: key_table.set_webhook(it, key.id, target))
    if secret is None:
        say(gettext("key {key_id}: closures are posted nowhere", key_id=key_id))
        return
    print_out(secret, needed=True)
    text = gettext_noop(
        "key {key_id}: closures are posted to {checked}, signed with this secret; docs/watch.md says how to check it"
    )
    say(gettext(text, key_id=key_id, checked=checked))


@keys.command()
@key_argument
@db_option
@click.option("--yes", is_flag=True, help="Erase without asking; needed where there is no terminal.")
@json_option
def erase(key_id: str, db: Path, yes: bool, as_json: bool) -> None:
    """Revoke a key and erase all that belongs to it; its id, plan, times and lookups by month stay, for the books.

    A running server erases it when the key's requests and jobs have ended. The command waits a minute for that, and
    ends with exit code 5 if it takes longer. Killed half-way, it is completed by the server, or when it is given again.
    """
    from bansong.base.sqlite import is_in_use
    from bansong.server.erasure import account_holdings, erase_account
    from bansong.server.settings import Settings, as_text

    key = require_key(db, key_id)
    if key.erased is not None:
        line = gettext("key {key_id} was erased: {erased}", key_id=key_id, erased=as_text(key.erased))
        print_result(as_json, {"key_id": key_id, "erased": {}}, [line])
        return
    held = change_file(db, lambda it: account_holdings(it, Settings(db=db).files, key_id))
    if not yes and not _confirm_erasure(key_id, held):
        say(gettext("nothing was erased"))
        return
    try:
        held = erase_account(db, key_id, time.time())
    except StoreError as error:
        if not is_in_use(error):
            raise
        _ask_server_to_erase(db, key_id)
    said = gettext(
        "key {key_id} is revoked, and erased: {shown_counts}", key_id=key_id, shown_counts=_shown_counts(held)
    )
    beyond = gettext("out of reach: backups, exports and the file of --notices")
    print_result(as_json, {"key_id": key_id, "erased": held}, [said, beyond])


def _confirm_erasure(key_id: str, held: Mapping[str, int]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(NO_TERMINAL)
    say(gettext("key {key_id} has {shown_counts}", key_id=key_id, shown_counts=_shown_counts(held)))
    return click.confirm(gettext("Revoke it and erase them for good?"), err=True)


def _ask_server_to_erase(db: Path, key_id: str) -> None:
    from bansong.server import keys as key_table
    from bansong.server.erasure import ask_for_erasure

    change_file(db, lambda it: ask_for_erasure(it, key_id, time.time()))
    deadline = time.monotonic() + _ERASURE_TIMEOUT_S
    while time.monotonic() < deadline:
        found = change_file(db, lambda it: key_table.find_key(it, key_id))
        if found is not None and found.erased is not None:
            return
        time.sleep(_ERASURE_POLL_S)
    text = gettext_noop(
        "key {key_id} is revoked; the server erases it when its requests and jobs have ended: `bansong keys list "
        "--db {db}` shows that it is done"
    )
    say(gettext(text, key_id=key_id, db=db))
    raise SystemExit(_PAUSED)


def _shown_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{gettext(what)} {count:,}" for what, count in counts.items() if count) or gettext("nothing")


def _key_row(key: Key, used: int, secrets: list[StoredSecret]) -> dict[str, object]:
    from bansong.server.settings import as_text

    valid = [] if key.revoked is not None else secrets
    return {
        **{"id": key.id, "plan": key.plan, "quota": key.quota, "used": used, "webhook": key.webhook_url is not None},
        "secrets": [{"created": as_text(one.created), "expires": as_text(one.expires)} for one in valid],
        **{name: as_text(getattr(key, name)) for name in ("created", "last_used", "revoked", "erased")},
        "note": key.note,
    }


def _key_cells(row: dict[str, Any]) -> list[str]:
    used = gettext("{used:,} of {quota:,}", used=row["used"], quota=row["quota"])
    webhook = gettext("yes") if row["webhook"] else ""
    secrets, until = str(len(row["secrets"])), [minute(one["expires"]) for one in row["secrets"] if one["expires"]]
    if until:
        secrets += gettext(", one until {until}", until=until[0])
    times = [minute(row[name]) for name in ("created", "last_used", "revoked")]
    if row["erased"]:
        times[-1] += gettext(" (erased)")
    return [str(row["id"]), str(row["plan"]), used, webhook, secrets, *times, str(row["note"] or "")]
