"""Faults for the fakes. An act hits a request before it is read (nothing is paid), or after it was taken and paid."""

# ruff: noqa: ARG002 - every act has the same methods

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import chain
from math import inf
from random import Random
from threading import Lock
from typing import Final, Literal

import anyio

from bansong.testing import messages
from bansong.testing.messages import BrokenConnectionError, ClientGoneError, FakeReply, FakeRequest, Lookup, Object

# one per endpoint: `batch` is the upload, `job` the poll, `status` the tax authority's
KINDS = ("verify", "batch", "job", "label", "watch_add", "watch_list", "watch_remove", "watch_history", "me", "status")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, the kind of requests that it hits (``*``: any), and when.

    ``at``: the n-th such request (or several), from 1; ``every``: each n-th; ``share``: probability; ``when``: a
    predicate; ``times``: at most. Requests are counted from when the fault was added, if ``when`` holds.
    """

    kind: str
    what: Act
    at: int | Collection[int] | None = None
    every: int | None = None
    share: float | None = None
    when: Callable[[FakeRequest], bool] | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "*"):
            raise ValueError(f"{self.kind!r} is no kind of request; they are {', '.join(KINDS)}, or *")


@dataclass(slots=True)
class _Rule:
    fault: Fault
    seen: int = 0
    hits: int = 0

    def strikes(self, request: FakeRequest, dice: Random) -> bool:
        fault = self.fault
        if fault.kind not in (request.kind, "*") or (fault.when is not None and not fault.when(request)):
            return False
        self.seen += 1
        at = (fault.at,) if isinstance(fault.at, int) else fault.at
        hit = (
            (fault.times is None or self.hits < fault.times)
            and (at is None or self.seen in at)
            and (fault.every is None or self.seen % fault.every == 0)
            and (fault.share is None or dice.random() < fault.share)
        )
        self.hits += hit
        return hit


class Faults:
    """The faults of a fake. Thread-safe; may be changed while it serves.

    All acts that hit a request are applied in order, such as a :class:`Delay` and then a :class:`Reset`. Equal ``seed``
    and requests give equal hits.
    """

    def __init__(self, *faults: Fault, seed: int = 0) -> None:
        self._dice = Random(seed)  # noqa: S311 - not a secret
        self._lock = Lock()
        self._rules: list[_Rule] = [_Rule(fault) for fault in faults]
        self.releases = 0

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._rules = [*self._rules, *map(_Rule, faults)]

    def clear(self) -> None:
        with self._lock:
            self._rules = []

    def release(self) -> None:
        """Release requests that hang or are delayed."""
        self.releases += 1

    @property
    def hits(self) -> int:
        return sum(rule.hits for rule in self._rules)

    def of(self, request: FakeRequest) -> tuple[Act, ...]:
        if not self._rules:
            return ()
        with self._lock:
            return tuple(rule.fault.what for rule in self._rules if rule.strikes(request, self._dice))


def fresh(times: int) -> Callable[[FakeRequest], bool]:
    """Return a ``when`` for the first polls of each job: ``Fault("job", Status(404), when=fresh(2))``."""
    return lambda request: request.polls <= times


class Act:
    """The effect of a fault on a request. This base class has none."""

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """Act before the request is read. A returned reply ends the request unpaid."""
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Act after the request was taken; return the reply to send."""
        return reply

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        """Edit the results of a job."""
        return results


@dataclass(frozen=True, slots=True)
class Status(Act):
    """Reply with this status; with ``paid`` the lookup is taken first."""

    code: int
    retry_after: float | str | None = None  # seconds or any text
    body: bytes = b""
    content_type: str | None = "application/json"
    paid: bool = False
    read: bool = True  # False: answer without reading the body

    async def before(self, request: FakeRequest) -> FakeReply | None:
        if self.paid:
            return None
        if self.read:
            await request.rest()
        return await self.after(request, FakeReply())

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        headers = [] if self.retry_after is None else [(b"retry-after", f"{self.retry_after}".encode("latin-1"))]
        return FakeReply(self.code, self.body, self.content_type, headers)


@dataclass(frozen=True, slots=True)
class Redirect(Act):
    """Redirect to another address; nothing is taken."""

    url: str
    code: int = 307

    async def before(self, request: FakeRequest) -> FakeReply | None:
        await request.rest()
        return FakeReply(self.code, b"", None, [(b"location", self.url.encode("ascii"))])


@dataclass(frozen=True, slots=True)
class Delay(Act):
    """Delay the request, or with ``after_paying`` the reply. The client pays even if it has left meanwhile."""

    seconds: float
    after_paying: bool = False

    async def before(self, request: FakeRequest) -> FakeReply | None:
        if not self.after_paying:
            await request.body()
            await _wait(request, self.seconds)
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        if self.after_paying:
            await _wait(request, self.seconds)
        return reply


@dataclass(frozen=True, slots=True)
class Hang(Act):
    """Answer only after the client has left, or after :meth:`Faults.release`.

    With ``paid`` the lookup is taken and answered after the release; else the connection breaks.
    """

    paid: bool = False

    async def before(self, request: FakeRequest) -> FakeReply | None:
        if not self.paid:
            await _hang(request)
            raise BrokenConnectionError("let go without having been looked at")
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        if self.paid and await _hang(request):
            raise ClientGoneError
        return reply


async def _hang(request: FakeRequest) -> bool:
    """Wait for a release, or until the client has left; return whether it has left."""

    async def wait_for_release() -> None:
        await _wait(request, inf)
        tasks.cancel_scope.cancel()

    left = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_release)
        while not left:
            left = (await request.receive())["type"] == "http.disconnect"
        tasks.cancel_scope.cancel()
    return left


async def _wait(request: FakeRequest, seconds: float) -> None:
    """Wait for these seconds or for a release. Another thread may release it, so it is polled, ever more rarely."""
    start = now = anyio.current_time()
    while not request.released and now < start + seconds:
        await anyio.sleep(min(start + seconds - now, max((now - start) / 20, 0.02), 1.0))
        now = anyio.current_time()


@dataclass(frozen=True, slots=True)
class Reset(Act):
    """Reset the connection ``before`` the body is read, ``in`` it, ``after`` paying, or in the ``reply``."""

    place: Literal["before", "in", "after", "reply"]

    async def before(self, request: FakeRequest) -> FakeReply | None:
        if self.place == "in":
            await request.receive()
        if self.place in ("before", "in"):
            raise BrokenConnectionError(f"reset ({self.place})")
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        if self.place == "after":
            raise BrokenConnectionError("reset (after)")
        reply.cut = len(reply.body) // 2
        return reply


@dataclass(frozen=True, slots=True)
class Truncate(Act):
    """Close the connection before the announced end of the reply. Paid."""

    keep: int | None = None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        reply.cut, reply.reset = len(reply.body) // 2 if self.keep is None else self.keep, False
        return reply


@dataclass(frozen=True, slots=True)
class Body(Act):
    """Replace the body by HTML, garbage or another shape, and the status if given. Paid."""

    content: bytes
    content_type: str | None = "application/json"
    status: int | None = None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        return FakeReply(self.status or reply.status, self.content, self.content_type)


@dataclass(frozen=True, slots=True)
class InvalidByte(Act):
    """Replace one byte in a Korean text of the reply, so that it is not UTF-8. Paid."""

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        places = [place for place, byte in enumerate(reply.body) if byte >= 0xC0]
        if places:
            place = places[len(places) // 2]
            reply.body = reply.body[:place] + b"\xff" + reply.body[place + 1 :]
        return reply


@dataclass(frozen=True, slots=True)
class Twice(Act):
    """Send the whole response twice on a connection that stays open; needs a real socket. Paid once."""

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        reply.twice = True
        return reply


HTML: Final = Body(b"<!DOCTYPE html><html><body><h1>Welcome</h1></body></html>", "text/html; charset=utf-8")
GARBAGE: Final = Body(b'{"biz_status": "active", \xff\x00')


@dataclass(frozen=True, slots=True)
class Retyped(Act):
    """Replace the content type (``None``: remove it). Paid."""

    content_type: str | None = "text/html"

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        reply.content_type = self.content_type
        return reply


@dataclass(frozen=True, slots=True)
class Huge(Act):
    """Reply with JSON of that many bytes, without a length. Paid."""

    size: int

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        size = self.size - 15
        padding = (b"x" * min(65_536, size - start) for start in range(0, size, 65_536))
        return FakeReply(reply.status, parts=chain([b'{"padding": "'], padding, [b'"}']))


@dataclass(frozen=True, slots=True)
class Partial(Act):
    """Return only the first ``share`` of a job's results."""

    share: float = 0.5

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        return results[: int(len(results) * self.share)]


@dataclass(frozen=True, slots=True)
class Missing(Act):
    """Leave out a scattered ``share`` of a job's results, the same at each poll; ``renumbered`` closes gaps in keys."""

    share: float = 0.03
    renumbered: bool = False
    seed: int = 0

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        dialect = request.service.dialect
        count = len(results) - int(len(results) * self.share)
        places = Random(self.seed).sample(range(len(results)), count)  # noqa: S311 - not a secret
        left = [results[place] for place in sorted(places)]
        if not self.renumbered or dialect.row_key is None:
            return left
        return [{**item, dialect.row_key: place + dialect.row_base} for place, item in enumerate(left)]


@dataclass(frozen=True, slots=True)
class Reordered(Act):
    """Return a job's results in another order."""

    seed: int = 0

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        return Random(self.seed).sample(results, len(results))  # noqa: S311 - not a secret


@dataclass(frozen=True, slots=True)
class Duplicated(Act):
    """Return the first ``count`` results of a job twice."""

    count: int = 1

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        return [*results, *results[: self.count]]


@dataclass(frozen=True, slots=True)
class Repeated(Act):
    """Return each result several times, but no more in all than ``preview`` asks for."""

    times: int = 3

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        every = [item for item in results for _ in range(self.times)]
        return every[: int(request.query().get("preview", len(every)))]


@dataclass(frozen=True, slots=True)
class ShiftedKeys(Act):
    """Give each result the row key of the result ``by`` places further."""

    by: int = 1

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        key = request.service.dialect.row_key
        if key is None:
            return results
        keys = [item[key] for item in results]
        return [{**item, key: keys[(place + self.by) % len(keys)]} for place, item in enumerate(results)]


@dataclass(frozen=True, slots=True)
class Emptied(Act):
    """Return results whose answer fields (INTERFACE §2.2) are all null."""

    def edit_results(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        under, nothing = request.service.dialect.answer_under, dict.fromkeys(messages.verdict("0"))
        return [item | (nothing if under is None else {under: nothing}) for item in results]


@dataclass(frozen=True, slots=True)
class SomebodyElses(Act):
    """Answer about a record that differs in one field, and echo that record."""

    field: Literal["b_no", "name", "address"] = "b_no"

    async def before(self, request: FakeRequest) -> FakeReply | None:
        request.answered_record = self._other
        return None

    def _other(self, row: Lookup) -> Lookup:
        match self.field:
            case "b_no":
                return row._replace(b_no=f"{(int(row.b_no) + 5_000_000_000) % 10_000_000_000:010}")
            case "name":
                return row._replace(name="다른 상사")
        return row._replace(address="부산광역시 해운대구 센텀중앙로 79")


@dataclass(frozen=True, slots=True)
class FirstJob(Act):
    """Reply to all uploads with the id of the first job, and to all polls with its state."""

    async def before(self, request: FakeRequest) -> FakeReply | None:
        if request.kind == "job" and request.service.jobs:
            request.target = next(iter(request.service.jobs))
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        if request.kind == "batch" and reply.status < 300:
            reply.body = messages.encode_json(json.loads(reply.body) | {"job_id": next(iter(request.service.jobs))})
        return reply


@dataclass(frozen=True, slots=True)
class Word(Act):
    """Return this word as a job's status."""

    word: str = "failed"

    async def before(self, request: FakeRequest) -> FakeReply | None:
        request.word = self.word
        return None
