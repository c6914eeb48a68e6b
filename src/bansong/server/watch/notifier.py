"""Deliver notifications: appended to the operator's file, and sent to each key's webhook until acknowledged."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from bansong.client.webhook import Outcome, WebhookSender, WebhookUrl
from bansong.errors import BansongError, OutputError
from bansong.server.settings import Clock, WakeUp
from bansong.server.store import Store, key_table
from bansong.translation import gettext
from bansong.watch import notifications
from bansong.watch.notifications import (
    FILE,
    WEBHOOK,
    Backoff,
    PendingDelivery,
    Webhook,
    append_lines,
    send_notification,
)

_log = logging.getLogger(__name__)

_LINES: Final = 1_000
_SENT: Final = 64
"""Notifications of one key in one go; the first is sent alone, so that a receiver that hangs holds one place only."""
_TOGETHER: Final = 8
"""Requests to one receiver at a time."""
_PLACES: Final = 32
"""Requests to all receivers at a time."""
_LONGEST: Final = 60.0
"""Seconds after which the file is looked at again: `bansong notices retry` writes it, too."""
_KEPT: Final = 90 * 86400.0
"""Seconds that a notification is kept after it was delivered."""
_PURGED_EVERY: Final = 86400.0
_FILE_QUEUE: Final = ""
"""What is busy while lines are appended; keys have longer names."""


class Notifier:
    """Delivers the notifications that wait.

    Raises :class:`OutputError` where nothing can be appended to ``file``, so that it shows when the server starts.
    """

    def __init__(
        self, store: Store, clock: Clock, sender: WebhookSender, *, file: Path | None, backoff: Backoff | None = None
    ) -> None:
        if file is not None:
            append_lines(file, [])
        self._store = store
        self._clock = clock
        self._file = file
        self._backoff = backoff or Backoff()
        self._sender = sender
        self._wake_up = WakeUp(clock)
        self._places = anyio.Semaphore(_PLACES)
        self._purged = -_KEPT
        self._busy: set[str] = set()

    def wake(self) -> None:
        """Deliver now: there is something new."""
        self._wake_up.ring()

    async def run(self) -> None:
        """Deliver, for ever."""
        self._busy.clear()
        async with anyio.create_task_group() as group:
            while True:
                await self._wake_up.wait(await self._round(group))

    async def _round(self, group: TaskGroup) -> float:
        """Begin what can be delivered now; return in how many seconds there may be more.

        Each receiver is served beside the others, so that one that hangs keeps nobody waiting.
        """
        now = self._clock.now()
        if now - self._purged > _PURGED_EVERY:
            self._purged = now
            await self._store.write(lambda db: notifications.purge(db, now - _KEPT))
        waiting, due = await self._store.read(
            lambda db: (notifications.due_channels(db, now), notifications.next_due(db, now))
        )
        latest = now + self._backoff.most
        if due is not None and due > latest:
            await self._store.write(lambda db: notifications.bring_forward(db, latest))
        for owner, channel in waiting:
            place = _FILE_QUEUE if channel == FILE else owner
            if place not in self._busy:
                self._busy.add(place)
                group.start_soon(self._deliver, place)
        return _LONGEST if due is None else min(_LONGEST, due - now)

    async def _deliver(self, place: str) -> None:
        if place == _FILE_QUEUE:
            await self._append()
        else:
            await self._send(place)
        self._busy.discard(place)
        self.wake()

    async def _append(self) -> None:
        """Append what waits for the operator's file."""
        now = self._clock.now()
        waiting = await self._store.read(lambda db: notifications.due_deliveries(db, now, _LINES, channel=FILE))
        if not waiting:
            return
        outcome = await anyio.to_thread.run_sync(self._append_lines, waiting)
        await self._settle([(delivery, outcome) for delivery in waiting])

    def _append_lines(self, waiting: list[PendingDelivery]) -> Outcome:
        if self._file is None:
            return Outcome(gettext("the server was started without `notices=`"))
        try:
            append_lines(self._file, [delivery.payload for delivery in waiting])
        except OutputError as error:
            _log.error("%s", error)
            return Outcome(str(error))
        return Outcome(None)

    async def _send(self, owner: str) -> None:
        """Send some of a key's notifications; when one fails the others wait as long as it does."""
        now = self._clock.now()
        waiting, key = await self._store.read(
            lambda db: (
                notifications.due_deliveries(db, now, _SENT, owner=owner, channel=WEBHOOK),
                key_table.find_key(db, owner),
            )
        )
        if not waiting:
            return
        webhook = _webhook_of(key)
        if isinstance(webhook, str):
            await self._give_up(waiting, webhook)
            return
        failing = await self._send_one(webhook, waiting[0])
        room = anyio.CapacityLimiter(_TOGETHER)

        async def send_delivery(delivery: PendingDelivery) -> None:
            nonlocal failing
            async with room:
                if not failing:
                    failing = await self._send_one(webhook, delivery) or failing

        async with anyio.create_task_group() as group:
            for delivery in waiting[1:]:
                group.start_soon(send_delivery, delivery)
        if failing:
            until = self._clock.now() + self._backoff.first
            await self._store.write(lambda db: notifications.postpone(db, owner, WEBHOOK, until))

    async def _send_one(self, webhook: Webhook, delivery: PendingDelivery) -> bool:
        """Send one notification and record what became of it; return whether it failed."""
        async with self._places:
            outcome = await send_notification(self._sender, webhook, delivery, self._clock.now())
        if outcome.error is not None:
            _log.warning("notice %s of key %s: %s %s", delivery.id, delivery.owner, webhook.url, outcome.error)
        await self._settle([(delivery, outcome)])
        return outcome.error is not None

    async def _settle(self, made: list[tuple[PendingDelivery, Outcome]]) -> None:
        now = self._clock.now()
        done = [(delivery.number, str(delivery.channel)) for delivery, outcome in made if outcome.error is None]
        failed = [
            (
                delivery.number,
                str(delivery.channel),
                outcome.error,
                self._backoff.next_due(delivery.attempts + 1, delivery.begun, now, outcome.retry_after),
            )
            for delivery, outcome in made
            if outcome.error is not None
        ]

        def settle(db: sqlite3.Connection) -> None:
            notifications.mark_delivered(db, done, now)
            notifications.mark_failed(db, failed)

        await self._store.write(settle)

    async def _give_up(self, waiting: list[PendingDelivery], why: str) -> None:
        failed = [(delivery.number, str(delivery.channel), why, None) for delivery in waiting]
        await self._store.write(lambda db: notifications.mark_failed(db, failed))


def _webhook_of(key: key_table.Key | None) -> Webhook | str:
    """Return a key's webhook, or why it has none."""
    if key is None or key.revoked is not None:
        return gettext("the key was revoked")
    if key.webhook_url is None or key.webhook_secret is None:
        return gettext("the key has no webhook any more")
    try:
        url = WebhookUrl.parse(key.webhook_url, allow_http=True)  # whether http may be was decided when it was set
    except BansongError as error:
        return str(error)
    return Webhook(url, key.webhook_secret)
