"""Many tasks write into one ledger: whatever waits is committed together, by one thread at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from bizverify.ledger.label_outbox import LabelChange
from bizverify.ledger.ledger import Ledger
from bizverify.ledger.pending_requests import Repetition
from bizverify.ledger.transitions import Change


@dataclass(slots=True, eq=False)
class _Waiting:
    changes: tuple[Change | Repetition | LabelChange, ...]
    settled: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class Journal:
    """``await journal.settle(…)`` returns when its changes are durable; all that wait share one commit.

    Use it as ``async with Journal(ledger) as journal``, under asyncio or trio; all is settled when the block is left.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[_Waiting] = []
        self._wake = anyio.Event()
        self._ending = False
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        tasks.start_soon(self._flush)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks is None:
            return
        self._ending = True
        self._wake.set()
        # the block's own error is nothing to the flusher: given to the group, it would come out wrapped in one
        self._tasks.cancel_scope.shield = True
        await self._tasks.__aexit__(None, None, None)

    async def settle(self, *changes: Change | Repetition | LabelChange) -> None:
        """Make the changes, all or none; durable on return. Raises :class:`~bizverify.errors.LedgerError`.

        It cannot be cancelled: a caller that went on without knowing what is recorded could pay twice.
        """
        if self._tasks is None or self._ending:
            raise RuntimeError("a Journal settles only inside its 'async with'")
        waiting = _Waiting(changes)
        self._waiting.append(waiting)
        self._wake.set()
        with anyio.CancelScope(shield=True):
            await waiting.settled.wait()
        if waiting.error is not None:
            raise waiting.error

    async def _flush(self) -> None:
        """Commit what waits, for as long as there is any or more may come."""
        thread = anyio.CapacityLimiter(1)  # of its own: other work in threads must not hold commits up
        with anyio.CancelScope(shield=True):
            while self._waiting or not self._ending:
                await self._wake.wait()
                self._wake = anyio.Event()
                batch, self._waiting = self._waiting, []
                try:
                    if batch:
                        await anyio.to_thread.run_sync(self._commit, batch, limiter=thread)
                except Exception as error:  # no thread to be had: who waits must hear of it, or wait for ever
                    for waiting in batch:
                        waiting.error = waiting.error or error
                for waiting in batch:
                    waiting.settled.set()

    def _commit(self, batch: list[_Waiting]) -> None:
        """Commit a batch; if one of it is at fault, each by itself, so that only that one hears of it."""
        try:
            self._ledger.settle([change for waiting in batch for change in waiting.changes])
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for waiting in batch:
                self._commit([waiting])
