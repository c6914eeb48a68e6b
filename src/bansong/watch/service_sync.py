"""Bring a watch list at the hosted service to a file's state: one request a business, none twice."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from bansong.dispatch import Action, Dispatcher, Halt, HaltReason, OutgoingRequest, Slot, Task
from bansong.dispatch.error_actions import error_action
from bansong.errors import LimitError, NotFoundError, RejectedError, ServiceError
from bansong.progress.display import Progress
from bansong.watch.service_times import watch_time
from bansong.watch.store import Business

if TYPE_CHECKING:
    from bansong.client import Client, WatchEntry
    from bansong.options import ServiceOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps on a list: additions, changes (watch_id, new values), removals (watch_id)."""

    add: Sequence[Business] = ()
    change: Sequence[tuple[str, Business]] = ()
    remove: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.add) + len(self.change) + len(self.remove)


@dataclass(slots=True)
class Done:
    """Result of :class:`Steps`, counted as it happens.

    ``refused``: numbers and reasons. ``doubts``: numbers (of removals: watch_id) with an unknown result. ``halt``: why
    the rest was left. ``first_check_by``: when the last added business is first checked (seconds since 1970), if the
    service says so.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    halt: Halt | None = None
    first_check_by: float | None = None

    @property
    def settled(self) -> int:
        """Number of finished steps."""
        return self.added + self.changed + self.removed + len(self.refused) + len(self.doubts)


class ServiceSync:
    """Carries out the steps of one sync; ``dispatcher`` sends and cancels them."""

    def __init__(self, client: Client, terms: ServiceOptions, done: Done, total: int, progress: Progress) -> None:
        self.dispatcher = Dispatcher(rate=terms.rate, drain=terms.drain)
        self._client = client
        self._concurrency = terms.concurrency
        self._done = done
        self._total = total
        self._progress = progress
        self._refusal: ServiceError | None = None
        self._postponed: list[_StepRequest] = []

    async def put(self, add: Sequence[Business], change: Sequence[tuple[str, Business]]) -> None:
        """Add and change watches. A change is a second POST; if that made a new watch, the first one is removed."""
        await self._carry_out(
            (
                *(_StepRequest(self, entry.biz_no, partial(self._add, entry), adds=True) for entry in add),
                *(
                    _StepRequest(self, entry.biz_no, self._change(watch_id, entry), changes=True)
                    for watch_id, entry in change
                ),
            )
        )

    async def remove(self, watch_ids: Sequence[str]) -> None:
        """Remove watches, then add what found the list full before; a missing watch counts as removed.

        Removals make no room for additions refused because the month's changes are used up.
        """
        await self._carry_out(
            [_StepRequest(self, watch_id, partial(self._remove, watch_id), safe=True) for watch_id in watch_ids]
        )
        postponed, self._postponed = self._postponed, []
        is_full = self._refusal is not None and _is_list_full(self._refusal)
        if watch_ids and is_full and not self.dispatcher.is_cancelled:
            self._refusal = None
            await self._carry_out(postponed)
        if self._refusal is not None:
            why: HaltReason = "quota" if _is_list_full(self._refusal) else "limit"
            self.dispatcher.cancel(Halt(why, str(self._refusal), self._refusal))

    async def _carry_out(self, steps: Sequence[_StepRequest]) -> None:
        source = iter(steps)

        def next_task() -> Task | None:
            step = next(source, None)
            return None if step is None else partial(self.dispatcher.deliver, step)

        if steps:
            await self.dispatcher.run(next_task, self._concurrency, min(self._concurrency, len(steps)))

    async def _add(self, entry: Business) -> None:
        made = await self._client.watch_add(entry.biz_no, entry.name, entry.address)
        self._done.added += 1
        checked, due = (watch_time(made, of) for of in ("checked", "due"))
        if checked is None and due is not None:
            self._done.first_check_by = max(due, self._done.first_check_by or due)

    def _change(self, watch_id: str, entry: Business) -> Callable[[], Awaitable[None]]:
        made: WatchEntry | None = None

        async def change() -> None:
            nonlocal made  # sent again because the removal was not, it must not be added twice
            made = made or await self._client.watch_add(entry.biz_no, entry.name, entry.address)
            if made.watch_id != watch_id:
                await self._remove_watch(watch_id)
            self._done.changed += 1

        return change

    async def _remove(self, watch_id: str) -> None:
        await self._remove_watch(watch_id)
        self._done.removed += 1

    async def _remove_watch(self, watch_id: str) -> None:
        try:
            await self._client.watch_remove(watch_id)
        except NotFoundError:
            log.info("a watch that was to be removed is gone already")


class _StepRequest(OutgoingRequest[None]):
    """One step of a sync; ``name`` is listed with its outcome.

    ``safe``: may be repeated. ``adds``: takes a place on the list. ``changes``: counts as a change of the month.
    """

    def __init__(
        self,
        sync: ServiceSync,
        name: str,
        go: Callable[[], Awaitable[None]],
        *,
        safe: bool = False,
        adds: bool = False,
        changes: bool = False,
    ) -> None:
        self._sync, self._name, self._go, self._safe = sync, name, go, safe
        self._adds, self._changes = adds, changes

    async def skip(self) -> bool:
        is_refused = self._sync._refusal is not None and self._is_held_back(self._sync._refusal)
        if is_refused:
            self._sync._postponed.append(self)
        return is_refused

    async def send(self, slot: Slot) -> None:
        del slot
        await self._go()

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        del attempt
        if self._is_held_back(error):
            return Action.DROP
        action = error_action(error)
        return Action.RETRY_OR_HOLD if action is Action.HOLD and self._safe else action

    async def record_reply(self, reply: None, slot: Slot) -> None:
        del reply, slot
        self._report_progress()

    def give_up(self, error: ServiceError, action: Action) -> None:
        if action is Action.DROP:
            self._sync._refusal = error
            self._sync._postponed.append(self)
        elif action is Action.REFUSE:
            self._sync._done.refused.append((self._name, str(error)))
        elif action in (Action.HOLD, Action.RETRY_OR_HOLD):
            self._sync._done.doubts.append(self._name)
        self._report_progress()

    def _is_held_back(self, error: ServiceError) -> bool:
        """Whether an error (as `bansong serve` words it) will come to every step of this kind, and to no removal."""
        changes_are_spent = isinstance(error, LimitError) and "watch_changes" in (error.detail or "")
        return (self._adds and _is_list_full(error)) or ((self._adds or self._changes) and changes_are_spent)

    def _report_progress(self) -> None:
        self._sync._progress(self._sync._done.settled, self._sync._total)


def _is_list_full(error: ServiceError) -> bool:
    """Whether the list has no place left, in the words of `bansong serve`."""
    is_conflict = isinstance(error, RejectedError) and error.status == HTTPStatus.CONFLICT
    return is_conflict and "watch_limit" in (error.detail or "")
