"""Faults at will: which request is hit, and by what."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bizverify.testing.fault_actions import Act
    from bizverify.testing.request import Asked

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
)
"""The kinds of request, one an endpoint: ``batch`` is the upload, ``job`` the poll."""


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
    when: Callable[[Asked], bool] | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "*"):
            raise ValueError(f"{self.kind!r} is no kind of request; they are {', '.join(KINDS)}, or *")


@dataclass(slots=True)
class _Rule:
    fault: Fault
    seen: int = 0
    hits: int = 0

    def hit(self, asked: Asked, dice: Random) -> bool:
        fault = self.fault
        if fault.kind not in (asked.kind, "*") or (fault.when is not None and not fault.when(asked)):
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

    All that hit a request act on it, in their order: a :class:`~bizverify.testing.fault_actions.Delay` and then a
    :class:`~bizverify.testing.fault_actions.Reset`. The same ``seed`` and the same order of requests hit the same ones.
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

    def of(self, asked: Asked) -> tuple[Act, ...]:
        """What happens to this request, which is counted."""
        if not self._rules:
            return ()
        with self._lock:
            return tuple(rule.fault.what for rule in self._rules if rule.hit(asked, self._dice))


def fresh(times: int) -> Callable[[Asked], bool]:
    """For ``when``: the first polls of each job, as ``Fault("job", Status(404), when=fresh(2))``."""
    return lambda asked: asked.polls <= times
