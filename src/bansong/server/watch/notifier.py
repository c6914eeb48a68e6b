"""Deliver notifications to the operator's file and to each key's webhook, until acknowledged."""

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

_LINES_PER_APPEND: Final = 1_000
_SENT_PER_ROUND: Final = 64
"""Notifications of a key per round. The first is sent alone: a receiver that hangs blocks one slot only."""
_REQUESTS_PER_RECEIVER: Final = 8
"""Parallel requests to one receiver."""
_REQUESTS: Final = 32
"""Parallel requests to all receivers."""
_MAX_WAIT_S: Final = 60.0
"""`bansong notices retry` writes to the file, too, so look again after that time."""
_KEPT_S: Final = 90 * 86400.0
_PURGE_INTERVAL_S: Final = 86400.0
_FILE_QUEUE: Final = ""
"""Name of the queue for the file; the others are named after keys."""


class Notifier:
    """Deliver pending notifications. Raises :class:`OutputError` if ``file`` cannot be appended to."""

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
        self._places = anyio.Semaphore(_REQUESTS)
        self._purged = -_KEPT_S
        self._busy: set[str] = set()

    def wake(self) -> None:
        self._wake_up.ring()

    async def run(self) -> None:
        self._busy.clear()
        async with anyio.create_task_group() as group:
            while True:
                await self._wake_up.wait(await self._round(group))

    async def _round(self, group: TaskGroup) -> float:
        """Start due deliveries, receivers in parallel; return the seconds until more may be due."""
        now = self._clock.now()
        if now - self._purged > _PURGE_INTERVAL_S:
            self._purged = now
            await self._store.write(lambda db: notifications.purge(db, now - _KEPT_S))
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
        return _MAX_WAIT_S if due is None else min(_MAX_WAIT_S, due - now)

    async def _deliver(self, place: str) -> None:
        if place == _FILE_QUEUE:
            await self._append()
        else:
            await self._send(place)
        self._busy.discard(place)
        self.wake()

    async def _append(self) -> None:
        now = self._clock.now()
        waiting = await self._store.read(
            lambda db: notifications.due_deliveries(db, now, _LINES_PER_APPEND, channel=FILE)
        )
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
        """Send some notifications of a key; if one fails, the others are postponed, too."""
        now = self._clock.now()
        waiting, key = await self._store.read(
            lambda db: (
                notifications.due_deliveries(db, now, _SENT_PER_ROUND, owner=owner, channel=WEBHOOK),
                key_table.find_key(db, owner),
            )
        )
        if not waiting:
            return
        webhook = _webhook_of(key)
        if isinstance(webhook, str):
            given_up = [(delivery.number, str(delivery.channel), webhook, None) for delivery in waiting]
            await self._store.write(lambda db: notifications.mark_failed(db, given_up))
            return
        failing = await self._send_one(webhook, waiting[0])
        room = anyio.CapacityLimiter(_REQUESTS_PER_RECEIVER)

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
        """Send one notification and record the outcome; return whether it failed."""
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


def _webhook_of(key: key_table.Key | None) -> Webhook | str:
    if key is None or key.revoked is not None:
        return gettext("the key was revoked")
    if key.webhook_url is None or key.webhook_secret is None:
        return gettext("the key has no webhook any more")
    try:
        url = WebhookUrl.parse(key.webhook_url, allow_http=True)  # whether http may be was decided when it was set
    except BansongError as error:
        return str(error)
    return Webhook(url, key.webhook_secret)
