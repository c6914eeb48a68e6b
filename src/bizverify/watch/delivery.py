"""How notices are told: appended to a file, or sent to a webhook; and when one that failed is tried again."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bizverify.client.webhook import Outcome, WebhookSender, WebhookUrl
from bizverify.errors import OutputError
from bizverify.storage.filesystem import last_byte, open_private, sync_folder
from bizverify.watch.types import PendingDelivery
from bizverify.watch.webhook_signature import signature_headers

FILE: Final = "file"
WEBHOOK: Final = "webhook"
"""The channels, as they are written in the database."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """When a failed delivery is tried again, in seconds: each time twice as late, up to ``longest``, give or take half.

    It is given up after so many ``attempts``, or when the next would be later than ``patience`` after the first was
    due. With the defaults: after half a minute, a minute, … half a day; given up after three days.
    """

    first: float = 30.0
    longest: float = 12 * 3600.0
    attempts: int = 20
    patience: float = 3 * 86400.0
    random: Callable[[], float] = field(default=random.random, repr=False)

    @property
    def most(self) -> float:
        """The longest that a delivery may have to wait for its next attempt."""
        return self.longest * 1.5

    def next_due(self, attempts: int, begun: float, now: float, retry_after: float | None = None) -> float | None:
        """When to try again after so many attempts, the last of which failed now; ``None``: not again.

        A receiver that asks for more time (``retry_after``) gets it, up to ``longest``.
        """
        if attempts >= self.attempts:
            return None
        pause = min(self.longest, self.first * 2.0 ** min(attempts - 1, 60)) * (0.5 + self.random())
        due = now + max(pause, min(retry_after or 0.0, self.longest))
        return due if due <= begun + self.patience else None


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where an owner's notices are sent, and the secret that signs them."""

    url: WebhookUrl
    secret: str = field(repr=False)


async def send_notification(sender: WebhookSender, webhook: Webhook, delivery: PendingDelivery, now: float) -> Outcome:
    """Send one notice, signed; raises nothing."""
    body, event = delivery.payload.encode(), json.loads(delivery.payload)["event"]
    return await sender.send(webhook.url, signature_headers(webhook.secret, event, delivery.id, body, now), body)


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append lines to a file (made with mode 0600) in one write, on the disk when this returns.

    A last line that a crash left unfinished is ended first, so that it spoils no other. Raises :class:`OutputError`.
    """
    try:
        is_new = not path.exists()
        file = open_private(path, append=True)
        try:
            content = "".join(f"{line}\n" for line in lines).encode()
            _write_all(file, b"\n" + content if content and _is_torn(file) else content)
        finally:
            os.close(file)
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise OutputError(
            f"{path}: closures cannot be appended: {error.strerror or error}; make it writable, or free space"
        ) from error


def _is_torn(file: int) -> bool:
    return stat.S_ISREG(os.fstat(file).st_mode) and last_byte(file) not in (b"", b"\n")


def _write_all(file: int, content: bytes) -> None:
    """Write all of it, or, where the disk is full, nothing."""
    about = os.fstat(file)
    try:
        _write_bytes(file, content)
        os.fsync(file)
    except OSError:
        if stat.S_ISREG(about.st_mode):
            os.ftruncate(file, about.st_size)
        raise


def _write_bytes(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
