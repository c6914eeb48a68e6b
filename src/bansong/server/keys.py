"""API keys, secrets and quotas in the server's database; authentication and rate limits of requests."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.types import Scope

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import gettext
from bansong.client.webhook import new_secret
from bansong.server.payloads import Refusal, invalid, invalid_key, limit_exceeded, not_in_plan
from bansong.server.settings import Clock, ServicePlan
from bansong.server.store import Store

MAX_SECRETS: Final = 2  # valid secrets of a key
_IS_VALID: Final = "revoked IS NULL AND (expires IS NULL OR ? < expires)"


class StoredSecret(NamedTuple):
    """A secret of a key, as stored; the secret itself is not kept."""

    number: int
    created: float
    expires: float | None


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def add_secret(db: sqlite3.Connection, key_id: str, now: float) -> str:
    """Add a secret to a key and return it. Only its digest is stored."""
    secret = f"bv_{secrets.token_urlsafe(32)}"
    db.execute("INSERT INTO secrets (key_id, digest, created) VALUES (?, ?, ?)", (key_id, digest_of(secret), now))
    return secret


def live_secrets(db: sqlite3.Connection, key_id: str, now: float) -> list[StoredSecret]:
    """List a key's secrets that are neither revoked nor expired."""
    query = f"SELECT number, created, expires FROM secrets WHERE key_id = ? AND {_IS_VALID} ORDER BY number"  # noqa: S608
    return [StoredSecret(*row) for row in db.execute(query, (key_id, now))]


@dataclass(frozen=True, slots=True)
class Rotation:
    """A new secret and the earlier ones, to undo a rotation."""

    secret: str = field(repr=False)
    before: tuple[StoredSecret, ...]


def rotate_secret(db: sqlite3.Connection, key_id: str, now: float, overlap: float) -> Rotation | None:
    """Add a secret; end earlier ones after ``overlap`` seconds. ``None`` if :data:`MAX_SECRETS` are valid already."""
    before = live_secrets(db, key_id, now)
    if overlap > 0 and len(before) >= MAX_SECRETS:
        return None
    db.execute("DELETE FROM secrets WHERE key_id = ? AND (revoked IS NOT NULL OR expires <= ?)", (key_id, now))
    ends = now + overlap
    db.execute(
        "UPDATE secrets SET expires = ? WHERE key_id = ? AND (expires IS NULL OR expires > ?)", (ends, key_id, ends)
    )
    return Rotation(add_secret(db, key_id, now), tuple(before))


def undo_rotation(db: sqlite3.Connection, rotation: Rotation) -> None:
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
    """The account of an API key."""

    id: str
    plan: str
    quota: int
    note: str | None
    created: float  # seconds since 1970, as all times
    last_used: float | None
    revoked: float | None
    webhook_url: str | None
    webhook_secret: str | None = field(repr=False)
    erased: float | None  # when its data was deleted


def create_key(
    db: sqlite3.Connection, *, plan: str, quota: int, now: float, note: str | None = None
) -> tuple[Key, str]:
    """Create a key; return it with its only secret."""
    id_ = secrets.token_hex(4)
    db.execute(
        "INSERT INTO keys (id, plan, quota, note, created) VALUES (?, ?, ?, ?, ?)", (id_, plan, quota, note, now)
    )
    secret = add_secret(db, id_, now)
    created = find_key(db, id_)
    assert created is not None  # noqa: S101 - it was inserted in this transaction
    return created, secret


def find_by_secret(db: sqlite3.Connection, secret: str, now: float) -> tuple[Key, float] | None:
    """Return the key of a valid secret and when that secret expires (``inf``: never)."""
    query = f"SELECT key_id, expires FROM secrets WHERE digest = ? AND {_IS_VALID}"  # noqa: S608
    found = db.execute(query, (digest_of(secret), now)).fetchone()
    key = None if found is None else find_key(db, found[0])
    if key is None or key.revoked is not None:
        return None
    return key, math.inf if found[1] is None else found[1]


def find_key(db: sqlite3.Connection, id_: str) -> Key | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM keys WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    return None if row is None else Key(*row)


def require_key(db: sqlite3.Connection, id_: str, path: Path) -> Key:
    """Return a key; raise :class:`UsageError` if there is none."""
    key = find_key(db, id_)
    if key is None:
        raise UsageError(KEY_UNKNOWN, key_id=id_, db=path)
    return key


def list_keys(db: sqlite3.Connection) -> list[Key]:
    return [Key(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, id")]  # noqa: S608


def list_pooled(db: sqlite3.Connection) -> list[str]:
    """List the valid keys that shared one folder of labels and scorecards (a pool) in an earlier release."""
    return [id_ for (id_,) in db.execute("SELECT id FROM keys WHERE pool AND revoked IS NULL ORDER BY created, id")]


def revoke_key(db: sqlite3.Connection, id_: str, now: float) -> bool:
    """Revoke a key; return whether it was valid before."""
    return db.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL", (now, id_)).rowcount == 1


def keys_to_erase(db: sqlite3.Connection, before: float, asked_before: float, action: str) -> list[str]:
    """List the revoked keys that are due for erasure and have no unfinished job.

    ``before``: latest revocation; ``asked_before``: the same for keys whose erasure was requested by ``action``.
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
    """Set or remove a key's webhook; return its new secret."""
    secret = None if url is None else new_secret()
    db.execute("UPDATE keys SET webhook_url = ?, webhook_secret = ? WHERE id = ?", (url, secret, id_))
    return secret


def month_usage(db: sqlite3.Connection, key_id: str, month: str) -> tuple[int, int]:
    """Return how many lookups and changes of the watch list a key has used in a month."""
    query = "SELECT used, watch_changes FROM usage WHERE key_id = ? AND month = ?"
    return db.execute(query, (key_id, month)).fetchone() or (0, 0)


def take_lookups(db: sqlite3.Connection, key_id: str, month: str, lookups: int, limit: int) -> int | None:
    """Take lookups from the month's quota and return ``None``; if too few are left, take none and return those used."""
    before, _ = month_usage(db, key_id, month)
    if before + lookups > limit:
        return before
    db.execute(
        "INSERT INTO usage (key_id, month, used) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET used = used + excluded.used",
        (key_id, month, lookups),
    )
    return None


def give_back_lookups(db: sqlite3.Connection, key_id: str, month: str, lookups: int) -> None:
    db.execute("UPDATE usage SET used = max(0, used - ?) WHERE key_id = ? AND month = ?", (lookups, key_id, month))


def count_watch_change(db: sqlite3.Connection, key_id: str, month: str) -> int:
    """Count a change of the watch list; return the changes counted before it."""
    _, before = month_usage(db, key_id, month)
    db.execute(
        "INSERT INTO usage (key_id, month, used, watch_changes) VALUES (?, ?, 0, 1)"
        " ON CONFLICT DO UPDATE SET watch_changes = watch_changes + 1",
        (key_id, month),
    )
    return before


_CACHED_S: Final = 1.0  # a revoked key may still be accepted for that long
KEY: Final = "bansong.key"  # of a scope: the key of its request
_MAX_CACHED_KEYS: Final = 10_000


class KeyCache:
    """Find keys by secret, cached for a second; note when they are used."""

    def __init__(self, store: Store, plans: Mapping[str, ServicePlan], clock: Clock) -> None:
        self._store = store
        self._plans = plans
        self._clock = clock
        self._known: dict[bytes, tuple[float, Key]] = {}
        self._reading: dict[bytes, asyncio.Future[tuple[Key, float] | None]] = {}
        self._used: dict[str, float] = {}

    async def find(self, secret: str) -> Key:
        digest, now = digest_of(secret), self._clock.now()
        until, key = self._known.get(digest, (0.0, None))
        if key is None or not now < until <= now + _CACHED_S:
            found = await self._read(digest, secret)
            self._known.pop(digest, None)
            if found is None:
                raise invalid_key()
            key, ends = found
            if len(self._known) >= _MAX_CACHED_KEYS:
                self._known.clear()
            self._known[digest] = min(now + _CACHED_S, ends), key
        self._used[key.id] = now
        if not self.plan(key).api:
            raise not_in_plan(gettext("the API"), key.plan)
        return key

    async def _read(self, digest: bytes, secret: str) -> tuple[Key, float] | None:
        reading = self._reading.get(digest)
        if reading is None:
            now = self._clock.now()
            reading = asyncio.ensure_future(self._store.read(lambda db: find_by_secret(db, secret, now)))
            self._reading[digest] = reading
            reading.add_done_callback(lambda _: self._reading.pop(digest, None))
        return await asyncio.shield(reading)

    def plan(self, key: Key) -> ServicePlan:
        plan = self._plans.get(key.plan)
        if plan is None:
            raise not_in_plan(gettext("the API"), key.plan)
        return plan

    async def record_last_use(self) -> None:
        used, self._used = self._used, {}
        if used:
            await self._store.write(lambda db: record_last_use(db, used))


def key_of(request: Request) -> Key:
    key: Key = request.scope[KEY]
    return key


async def renew_key(request: Request) -> Key:
    """Authenticate again after the body has arrived: the key may have been revoked meanwhile."""
    return await authenticate(request.scope)


async def authenticate(scope: Scope) -> Key:
    """Return the key of a request; raise :class:`Refusal` 400, 401 or 403."""
    given = {value.strip() for name, value in scope["headers"] if name == b"x-api-key"}
    if len(given) > 1:
        raise invalid(gettext("the header X-API-Key came more than once, with different keys; send one"))
    secret = given.pop() if given else b""
    if not secret:
        raise Refusal(401, "missing_key", gettext("the API key is missing: send it in the header X-API-Key"))
    keys: KeyCache = scope["app"].state.context.keys
    key = scope[KEY] = await keys.find(secret.decode("latin-1"))
    return key


_MAX_KEYS: Final = 10_000  # above it, keys with a full bucket are forgotten
_ROUNDING_S: Final = 1e-6  # rounding error of summed intervals


def decrease(counts: Counter[str], key_id: str, by: int = 1) -> None:
    """Lower a count; drop it at 0, so that idle keys take no memory."""
    counts[key_id] -= by
    if counts[key_id] <= 0:
        del counts[key_id]


class KeyBounds:
    """Limit each key's requests per second (a token bucket, stored as the time when it is full) and at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._under_way: Counter[str] = Counter()

    def enter(self, key_id: str, plan: ServicePlan) -> None:
        """Admit a request until :meth:`leave`; raise :class:`Refusal` 429, which takes no token."""
        under_way = self._under_way[key_id]
        if under_way >= plan.requests_at_once:
            message = gettext(
                "{under_way:,} requests of this key are under way, as many as its plan allows", under_way=under_way
            )
            raise limit_exceeded("requests_at_once", plan.requests_at_once, under_way, message, 1)
        self._take_token(key_id, plan)
        self._under_way[key_id] = under_way + 1

    def leave(self, key_id: str) -> None:
        decrease(self._under_way, key_id)

    def under_way(self, key_id: str) -> int:
        return self._under_way.get(key_id, 0)

    def _take_token(self, key_id: str, plan: ServicePlan) -> None:
        now, interval = self._clock.now(), 1 / plan.requests_per_second
        full_in = plan.request_burst * interval
        full_at = self._full_at.get(key_id, now)
        if not now <= full_at <= now + full_in + _ROUNDING_S:  # the bucket is full, or the clock was set back
            full_at = now
        wait = full_at + interval - full_in - now
        if wait > _ROUNDING_S:
            rate, burst = plan.requests_per_second, plan.request_burst
            message = gettext(
                "this key asks more often than its plan allows: {rate:g} times a second, {burst:,} at a stretch",
                rate=rate,
                burst=burst,
            )
            raise limit_exceeded("requests_per_second", rate, burst, message, math.ceil(wait))
        self._full_at[key_id] = full_at + interval
        if len(self._full_at) > _MAX_KEYS:
            self._full_at = {key: at for key, at in self._full_at.items() if at > now}
