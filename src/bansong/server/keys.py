"""Keys, secrets and quotas.

A key is an account with plan, quota, jobs and watches. Clients send a secret of it
(:mod:`bansong.server.keys`).
"""

from __future__ import annotations

import hashlib
import math
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path
from typing import Final

from bansong.base.errors import Problem, UsageError
from bansong.client.webhook import new_secret

MOST: Final = 2
"""Valid secrets of a key."""
_FIELDS: Final = "number, key_id, created, expires, revoked, digest"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret; times in seconds since 1970."""

    number: int
    key_id: str
    created: float
    expires: float | None
    revoked: float | None
    digest: bytes = field(repr=False)

    def lives(self, now: float) -> bool:
        """Return whether the secret is valid; its key may still be revoked."""
        return self.revoked is None and (self.expires is None or now < self.expires)


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def add_secret(db: sqlite3.Connection, key_id: str, now: float) -> str:
    secret = f"bv_{secrets.token_urlsafe(32)}"
    db.execute("INSERT INTO secrets (key_id, digest, created) VALUES (?, ?, ?)", (key_id, digest_of(secret), now))
    return secret


def find_secret(db: sqlite3.Connection, secret: str) -> StoredSecret | None:
    digest = digest_of(secret)
    row = db.execute(f"SELECT {_FIELDS} FROM secrets WHERE digest = ?", (digest,)).fetchone()  # noqa: S608
    found = None if row is None else StoredSecret(*row)
    return found if found is not None and compare_digest(found.digest, digest) else None


def live_secrets(db: sqlite3.Connection, key_id: str, now: float) -> list[StoredSecret]:
    query = f"SELECT {_FIELDS} FROM secrets WHERE key_id = ? ORDER BY number"  # noqa: S608
    return [found for row in db.execute(query, (key_id,)) if (found := StoredSecret(*row)).lives(now)]


@dataclass(frozen=True, slots=True)
class Rotation:
    """A new secret, and those before that expire because of it."""

    secret: str = field(repr=False)
    before: tuple[StoredSecret, ...]


def rotate_secret(db: sqlite3.Connection, key_id: str, now: float, overlap: float) -> Rotation | None:
    """Add a secret; the earlier ones expire after ``overlap`` seconds at the latest. Expired ones are deleted.

    Returns ``None``, and changes nothing, if that would make more than :data:`MOST` valid ones.
    """
    before = live_secrets(db, key_id, now)
    if overlap > 0 and len(before) >= MOST:
        return None
    db.execute("DELETE FROM secrets WHERE key_id = ? AND (revoked IS NOT NULL OR expires <= ?)", (key_id, now))
    ends = now + overlap
    db.execute(
        "UPDATE secrets SET expires = ? WHERE key_id = ? AND (expires IS NULL OR expires > ?)", (ends, key_id, ends)
    )
    return Rotation(add_secret(db, key_id, now), tuple(before))


def undo_rotation(db: sqlite3.Connection, rotation: Rotation) -> None:
    """Delete a secret that nobody has seen, and restore the expiry of the others."""
    db.execute("DELETE FROM secrets WHERE digest = ?", (digest_of(rotation.secret),))
    db.executemany(
        "UPDATE secrets SET expires = ? WHERE number = ?", [(one.expires, one.number) for one in rotation.before]
    )


def revoke_secrets(db: sqlite3.Connection, numbers: list[int], now: float) -> None:
    db.executemany(
        "UPDATE secrets SET revoked = ? WHERE number = ? AND revoked IS NULL", [(now, number) for number in numbers]
    )


KEY_UNKNOWN: Final = Problem(
    "keys.key_unknown", "{key_id}: {db} has no key with this id; `bansong keys list --db {db}` shows them"
)

_COLUMNS = "id, plan, quota, note, created, last_used, revoked, webhook_url, webhook_secret, erased"


@dataclass(frozen=True, slots=True)
class Key:
    """A key; times in seconds since 1970. ``erased``: when its data was deleted."""

    id: str
    plan: str
    quota: int
    note: str | None
    created: float
    last_used: float | None
    revoked: float | None
    webhook_url: str | None
    webhook_secret: str | None = field(repr=False)
    erased: float | None


def create_key(
    db: sqlite3.Connection, *, plan: str, quota: int, now: float, note: str | None = None
) -> tuple[Key, str]:
    """Create a key; return it and its first secret, which is not stored."""
    id_ = secrets.token_hex(4)
    db.execute(
        "INSERT INTO keys (id, plan, quota, note, created) VALUES (?, ?, ?, ?, ?)", (id_, plan, quota, note, now)
    )
    secret = add_secret(db, id_, now)
    created = find_key(db, id_)
    assert created is not None  # noqa: S101 - it was inserted in this transaction
    return created, secret


def find_by_secret(db: sqlite3.Connection, secret: str, now: float) -> tuple[Key, float] | None:
    """Return the key of a valid secret and when the secret expires (``inf``: never), else ``None``."""
    found = find_secret(db, secret)
    if found is None or not found.lives(now):
        return None
    key = find_key(db, found.key_id)
    if key is None or key.revoked is not None:
        return None
    return key, math.inf if found.expires is None else found.expires


def find_key(db: sqlite3.Connection, id_: str) -> Key | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM keys WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    return None if row is None else Key(*row)


def require_key(db: sqlite3.Connection, id_: str, path: Path) -> Key:
    """Return the key with this id; raise :class:`bansong.errors.UsageError` if the file at ``path`` has none."""
    key = find_key(db, id_)
    if key is None:
        raise UsageError(KEY_UNKNOWN, key_id=id_, db=path)
    return key


def list_keys(db: sqlite3.Connection) -> list[Key]:
    return [Key(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, id")]  # noqa: S608


def list_pooled(db: sqlite3.Connection) -> list[str]:
    """List the valid keys that an earlier release put into its pool."""
    return [id_ for (id_,) in db.execute("SELECT id FROM keys WHERE pool AND revoked IS NULL ORDER BY created, id")]


def revoke_key(db: sqlite3.Connection, id_: str, now: float) -> bool:
    return db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (now, id_)).rowcount == 1


def mark_erased(db: sqlite3.Connection, id_: str, now: float) -> None:
    db.execute("UPDATE keys SET erased = ? WHERE id = ? AND erased IS NULL", (now, id_))


def keys_to_erase(db: sqlite3.Connection, before: float, asked_before: float, action: str) -> list[str]:
    """List the keys to erase: revoked before a time, without unfinished jobs.

    ``asked_before``: that time for keys whose erasure was requested as ``action`` in the table ``audit``.
    """
    query = (
        "SELECT id FROM keys WHERE erased IS NULL AND (revoked < ? OR revoked < ? AND id IN"
        " (SELECT key_id FROM audit WHERE action = ?)) AND NOT EXISTS"  # `audit` is read once, not for each key
        " (SELECT 1 FROM jobs WHERE key_id = keys.id AND state IN ('queued', 'running')) ORDER BY revoked, id"
    )
    return [id_ for (id_,) in db.execute(query, (before, asked_before, action))]


def change_key(db: sqlite3.Connection, id_: str, fields: Mapping[str, str | int]) -> None:
    for name in fields.keys() & {"plan", "quota", "note"}:
        db.execute(f"UPDATE keys SET {name} = ? WHERE id = ?", (fields[name], id_))  # noqa: S608 - one of these three


def record_last_use(db: sqlite3.Connection, times: dict[str, float]) -> None:
    update = "UPDATE keys SET last_used = ? WHERE id = ? AND erased IS NULL"
    db.executemany(update, [(at, id_) for id_, at in times.items()])


def set_webhook(db: sqlite3.Connection, id_: str, url: str | None) -> str | None:
    """Set a key's webhook; return its new signing secret, ``None`` without a URL."""
    secret = None if url is None else new_secret()
    db.execute("UPDATE keys SET webhook_url = ?, webhook_secret = ? WHERE id = ?", (url, secret, id_))
    return secret


def used_lookups(db: sqlite3.Connection, key_id: str, month: str) -> int:
    row = db.execute("SELECT used FROM usage WHERE key_id = ? AND month = ?", (key_id, month)).fetchone()
    return 0 if row is None else int(row[0])


def take_lookups(db: sqlite3.Connection, key_id: str, month: str, lookups: int, limit: int) -> int | None:
    """Take lookups from the month's quota, all (``None``) or none (what was used before)."""
    before = used_lookups(db, key_id, month)
    if before + lookups > limit:
        return before
    _add_usage(db, key_id, month, lookups)
    return None


def take_single_lookups(db: sqlite3.Connection, asked: Sequence[tuple[str, str, int]]) -> list[int | None]:
    """Take one lookup per ``(key_id, month, limit)``; return what :func:`take_lookups` returns for each.

    Usage is read and written once per key and month.
    """
    left: dict[tuple[str, str], tuple[int, int]] = {}
    results: list[int | None] = []
    for key_id, month, limit in asked:
        place = key_id, month
        if place not in left:
            left[place] = used_lookups(db, key_id, month), 0
        before, taken = left[place]
        if before + taken >= limit:
            results.append(before + taken)
            continue
        left[place] = before, taken + 1
        results.append(None)
    for (key_id, month), (_, taken) in left.items():
        if taken:
            _add_usage(db, key_id, month, taken)
    return results


def give_back_lookups(db: sqlite3.Connection, key_id: str, month: str, lookups: int) -> None:
    db.execute("UPDATE usage SET used = max(0, used - ?) WHERE key_id = ? AND month = ?", (lookups, key_id, month))


def used_watch_changes(db: sqlite3.Connection, key_id: str, month: str) -> int:
    row = db.execute("SELECT watch_changes FROM usage WHERE key_id = ? AND month = ?", (key_id, month)).fetchone()
    return 0 if row is None else int(row[0])


def count_watch_change(db: sqlite3.Connection, key_id: str, month: str) -> int:
    before = used_watch_changes(db, key_id, month)
    db.execute(
        "INSERT INTO usage (key_id, month, used, watch_changes) VALUES (?, ?, 0, 1)"
        " ON CONFLICT DO UPDATE SET watch_changes = watch_changes + 1",
        (key_id, month),
    )
    return before


def _add_usage(db: sqlite3.Connection, key_id: str, month: str, lookups: int) -> None:
    db.execute(
        "INSERT INTO usage (key_id, month, used) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET used = used + excluded.used",
        (key_id, month, lookups),
    )
