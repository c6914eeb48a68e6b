"""Secrets of keys, sent in ``X-API-Key``; only the SHA-256 is stored.

A key has two secrets while its clients change from one to the other.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

MOST: Final = 2
"""Valid secrets of a key."""
_COLUMNS: Final = "number, key_id, created, expires, revoked, digest"


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
    row = db.execute(f"SELECT {_COLUMNS} FROM secrets WHERE digest = ?", (digest,)).fetchone()  # noqa: S608
    found = None if row is None else StoredSecret(*row)
    return found if found is not None and compare_digest(found.digest, digest) else None


def live_secrets(db: sqlite3.Connection, key_id: str, now: float) -> list[StoredSecret]:
    query = f"SELECT {_COLUMNS} FROM secrets WHERE key_id = ? ORDER BY number"  # noqa: S608
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
