"""Paid lookups, and replies that are replayed to repeated requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import blake2b, sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final

from bansong.testing.messages import FakeReply, FakeRequest, RefusedError, header, parts_of
from bansong.testing.verdicts import Lookup


class Billing:
    """Count paid lookups against a monthly quota; thread-safe.

    With ``count_only`` it keeps 16 bytes per lookup instead of the lookup. ``journal``: a file that gets a JSON line
    per paid lookup before the reply is sent, for checks by another process.
    """

    def __init__(
        self, quota: int | None, used: int = 0, *, count_only: bool = False, journal: Path | None = None
    ) -> None:
        self.quota = quota
        self.used = used
        self.total = 0
        self.count_only = count_only
        self.journal = journal
        self._lock = Lock()
        self._paid: Counter[Lookup] = Counter()
        self._marks: set[bytes] = set()

    def take(self, lookups: Sequence[Lookup], *, partial: bool = False, job: str | None = None) -> int:
        """Take all lookups or none (``partial``: the first that fit); return how many were taken, and so paid."""
        with self._lock:
            free = len(lookups) if self.quota is None else max(self.quota - self.used, 0)
            taken = len(lookups) if len(lookups) <= free else free if partial else 0
            paid = lookups[:taken]
            self.used += taken
            self.total += taken
            if self.count_only:
                self._marks.update(map(_mark, paid))
            else:
                self._paid.update(paid)
            if self.journal is not None and paid:
                lines = (json.dumps({**lookup._asdict(), "job_id": job}, ensure_ascii=False) + "\n" for lookup in paid)
                with self.journal.open("ab") as file:
                    file.write("".join(lines).encode("utf-8"))
        return taken

    def count_paid(self) -> Counter[Lookup]:
        if self.count_only:
            raise RuntimeError("with count_only only the numbers are kept: ask paid_total and paid_again")
        with self._lock:
            return self._paid.copy()

    def again(self) -> int:
        """Return the number of payments for a lookup that had been paid before."""
        with self._lock:
            return self.total - (len(self._marks) if self.count_only else len(self._paid))


def _mark(lookup: Lookup) -> bytes:
    return blake2b("\x1f".join(lookup).encode("utf-8"), digest_size=16).digest()


PROMISE: Final[dict[str, Any]] = {
    "idempotency": {
        "header": "Idempotency-Key",
        "endpoints": ["POST /verify", "POST /batch"],
        "keep_seconds": 7 * 86_400,
    }
}
"""Part of ``/me``; the fake never forgets."""


class ReplayMemory:
    """Successful replies by key. ``replayed``: requests answered from it."""

    def __init__(self) -> None:
        self.replayed = 0
        self._known: dict[bytes, tuple[bytes, FakeReply]] = {}

    async def reply(
        self, request: FakeRequest, max_bytes: int | None, do: Callable[[], Awaitable[FakeReply]]
    ) -> FakeReply:
        """Return the known reply to a request, else that of ``do``, which is remembered if successful.

        Raises :class:`RefusedError` (409) for another request with a known key.
        """
        key = header(request.scope, b"idempotency-key")
        if key is None or request.kind not in ("verify", "batch"):
            return await do()
        identity = _identity(request, await request.body(max_bytes))
        if key in self._known:
            before, reply = self._known[key]
            if before != identity:
                raise RefusedError(409, "another request had this Idempotency-Key")
            self.replayed += 1
            return replace(reply)
        reply = await do()  # the whole body is here, so nothing comes between this and what follows
        if 200 <= reply.status < 300:
            self._known[key] = identity, replace(reply)
        return reply


def _identity(request: FakeRequest, body: bytes) -> bytes:
    """Hash the file and flags of an upload, not its boundary."""
    digest = sha256(f"{request.kind}?{sorted(request.query().items())}".encode())
    content = [body]
    if request.kind == "batch":
        content = [part.content for part in parts_of(header(request.scope, b"content-type"), body)]
    for part in content:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()
