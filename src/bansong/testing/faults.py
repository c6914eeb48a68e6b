"""Faults at will: which request is hit, and by what. Each act says whether the lookup was paid before it struck.

An act works before the request is looked at (nothing is taken yet) or after it was taken, and paid, while the
reply has not gone out. That is the whole difference between a failure that may be repeated and one that must not be.
"""

# ruff: noqa: ARG002 - every act has the same two methods, and few need all they are given

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal

import anyio

from bansong.testing.messages import BrokenConnectionError, ClientGoneError, FakeReply, FakeRequest

if TYPE_CHECKING:
    from bansong.testing.messages import FakeRequest


KINDS: Final = (
    "verify",
    "batch",
    "job",
    "label",
    "watch_add",
    "watch_list",
    "watch_remove",
    "watch_history",
    "me",
    "status",
)
"""The kinds of request, one an endpoint: ``batch`` is the upload, ``job`` the poll, ``status`` the tax authority's."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``what`` happens to a request of this ``kind`` (``*`` is any), where all conditions that are given hold.

    ``at`` the n-th such request (or several), from 1, ``every`` n-th, with the probability ``share``, or ``when`` it
    says; ``times`` at most. Requests are counted from when the fault was added, those for which ``when`` holds.
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
    """The faults of a service. They may be added and cleared while it serves, from any thread.

    All that hit a request act on it, in their order: a :class:`~bansong.testing.faults.Delay` and then a
    :class:`~bansong.testing.faults.Reset`. The same ``seed`` and the same order of requests hit the same ones.
    """

    def __init__(self, *faults: Fault, seed: int = 0) -> None:
        self._dice = Random(seed)  # noqa: S311 - not a secret
        self._lock = Lock()
        self._rules: list[_Rule] = [_Rule(fault) for fault in faults]
        self.releases = 0

    def add(self, *faults: Fault) -> None:
        """Add faults; they count requests from now on."""
        with self._lock:
            self._rules = [*self._rules, *map(_Rule, faults)]

    def clear(self) -> None:
        """Take all faults away. Requests that hang go on hanging: see :meth:`release`."""
        with self._lock:
            self._rules = []

    def release(self) -> None:
        """Let go what hangs or is delayed now."""
        self.releases += 1

    @property
    def hits(self) -> int:
        """How often a fault has hit, of those that are set."""
        return sum(rule.hits for rule in self._rules)

    def of(self, request: FakeRequest) -> tuple[Act, ...]:
        """What happens to this request, which is counted."""
        if not self._rules:
            return ()
        with self._lock:
            return tuple(rule.fault.what for rule in self._rules if rule.strikes(request, self._dice))


def fresh(times: int) -> Callable[[FakeRequest], bool]:
    """For ``when``: the first polls of each job, as ``Fault("job", Status(404), when=fresh(2))``."""
    return lambda request: request.polls <= times


_SHORTEST: Final = 0.02
_LONGEST: Final = 1.0


class Act:
    """What happens; by itself nothing does."""

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """Before the request is looked at; a reply ends it here, unpaid."""
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """After it was taken; the reply that goes out in place of the true one."""
        return reply


@dataclass(frozen=True, slots=True)
class Status(Act):
    """A reply of this status. With ``paid`` the lookup was taken and only its answer is lost.

    ``retry_after`` is seconds or any text; ``read=False`` answers at once, without waiting for the body.
    """

    code: int
    retry_after: float | str | None = None
    body: bytes = b""
    content_type: str | None = "application/json"
    paid: bool = False
    read: bool = True

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """Unless it was to be paid, this is all there is."""
        if self.paid:
            return None
        if self.read:
            await request.rest()
        return self._reply()

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """It was paid, and this is what the client sees."""
        return self._reply()

    def _reply(self) -> FakeReply:
        headers = [] if self.retry_after is None else [(b"retry-after", f"{self.retry_after}".encode("latin-1"))]
        return FakeReply(self.code, self.body, self.content_type, headers)


@dataclass(frozen=True, slots=True)
class Redirect(Act):
    """A redirect to another address. Nothing was taken."""

    url: str
    code: int = 307

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """That is all there is."""
        await request.rest()
        return FakeReply(self.code, b"", None, [(b"location", self.url.encode("ascii"))])


@dataclass(frozen=True, slots=True)
class Delay(Act):
    """Read the request, wait, and go on as usual, whether the client still waits or not: an impatient one pays too.

    With ``after_paying`` the lookup is paid first, and its reply late.
    """

    seconds: float
    after_paying: bool = False

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """Late in being taken."""
        if not self.after_paying:
            await request.body()
            await self._wait(request)
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Late in being answered."""
        if self.after_paying:
            await self._wait(request)
        return reply

    async def _wait(self, request: FakeRequest) -> None:
        start = anyio.current_time()
        while not request.released and (left := start + self.seconds - anyio.current_time()) > 0:
            await anyio.sleep(min(left, _tick(start)))


@dataclass(frozen=True, slots=True)
class Hang(Act):
    """No answer until the client goes or :meth:`Faults.release` is called.

    With ``paid`` the lookup was taken, and once released it is answered; else the connection breaks, and nothing was.
    """

    paid: bool = False

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """Never looked at."""
        if not self.paid:
            await _hang(request)
            raise BrokenConnectionError("let go without having been looked at")
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Taken, but not answered for as long as it lasts."""
        if self.paid and await _hang(request):
            raise ClientGoneError
        return reply


async def _hang(request: FakeRequest) -> bool:
    """Wait for one of the two; whether the client has gone."""
    left, start = False, anyio.current_time()

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        while not left and not request.released:
            await anyio.sleep(_tick(start))
        tasks.cancel_scope.cancel()
    return left


def _tick(start: float) -> float:
    """How long until the next look for a release, which may come from another thread: it grows with the time passed."""
    return min(max((anyio.current_time() - start) / 20, _SHORTEST), _LONGEST)


@dataclass(frozen=True, slots=True)
class Reset(Act):
    """The connection is reset: ``before`` the body is read, ``in`` the body, ``after`` paying, in the ``reply``.

    The first two are not paid, the others are. (In-process under trio, ``in`` leaves the generator of the client's body
    unfinished, of which trio warns.)
    """

    place: Literal["before", "in", "after", "reply"]

    async def before(self, request: FakeRequest) -> FakeReply | None:
        """Not taken."""
        if self.place == "in":
            await request.receive()
        if self.place in ("before", "in"):
            raise BrokenConnectionError(f"reset ({self.place})")
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Taken."""
        if self.place == "after":
            raise BrokenConnectionError("reset (after)")
        reply.cut = len(reply.body) // 2
        return reply


@dataclass(frozen=True, slots=True)
class Truncate(Act):
    """The reply ends early, by a plain close, though its length was announced. Paid."""

    keep: int | None = None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Keep so many bytes, or half."""
        reply.cut, reply.reset = len(reply.body) // 2 if self.keep is None else self.keep, False
        return reply


@dataclass(frozen=True, slots=True)
class Body(Act):
    """Another body in place of the true one: HTML, garbage, another shape. Paid; the status is kept unless given."""

    content: bytes
    content_type: str | None = "application/json"
    status: int | None = None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Replace it."""
        return FakeReply(self.status or reply.status, self.content, self.content_type)


@dataclass(frozen=True, slots=True)
class InvalidByte(Act):
    """One byte of the reply is replaced, in the middle of its Korean texts, so that they are no UTF-8. Paid."""

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Replace the first byte of a character."""
        places = [place for place, byte in enumerate(reply.body) if byte >= 0xC0]
        if places:
            place = places[len(places) // 2]
            reply.body = reply.body[:place] + b"\xff" + reply.body[place + 1 :]
        return reply


@dataclass(frozen=True, slots=True)
class Twice(Act):
    """The whole response is sent twice on a connection that stays open. Paid once.

    It needs a real socket: without one the reply is as it was.
    """

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Ask for it."""
        reply.twice = True
        return reply


HTML: Final = Body(b"<!DOCTYPE html><html><body><h1>Welcome</h1></body></html>", "text/html; charset=utf-8")
GARBAGE: Final = Body(b'{"biz_status": "active", \xff\x00')


@dataclass(frozen=True, slots=True)
class Retyped(Act):
    """The true body, called something else (``None``: not called anything). Paid."""

    content_type: str | None = "text/html"

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Call it so."""
        reply.content_type = self.content_type
        return reply


@dataclass(frozen=True, slots=True)
class Huge(Act):
    """A reply of so many bytes, streamed without a length: JSON, but for its size. Paid."""

    size: int

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        """Replace it."""
        return FakeReply(reply.status, parts=self._parts())

    def _parts(self) -> Iterator[bytes]:
        yield b'{"padding": "'
        for start in range(0, self.size - 15, 65_536):
            yield b"x" * min(65_536, self.size - 15 - start)
        yield b'"}'
