"""A local list checked: what is due is verified again, changes are written down, closures are told."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.engine import Gazetteer, LocalEngine, Registry, Scorecard
from bizverify.errors import OutputError, UsageError, parameter
from bizverify.labels.history import Labels, remembered
from bizverify.model_store import resolved
from bizverify.run.alerts import stale_registry_alert
from bizverify.schema import Lang
from bizverify.watch import notices, store
from bizverify.watch.checking import LocalJudge
from bizverify.watch.checking import check as judged
from bizverify.watch.local_file import OWNER, LocalFile, alone, watch_path
from bizverify.watch.notices import Gathering
from bizverify.watch.report import CheckReport
from bizverify.watch.stores import Local, in_a_loop
from bizverify.watch.times import wait_of
from bizverify.watch.types import Delivery, Recorded

if TYPE_CHECKING:
    from bizverify.watch.delivery import Webhook

log = logging.getLogger(__name__)

SECRET: Final = "BIZVERIFY_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_SECRET_LENGTH: Final = 16
EVERY: Final = 24.0
"""Hours after which a watch is due again, unless others are asked for."""
TOLD: Final = "report"
"""The channel by which the caller himself is told; beside it :data:`bizverify.watch.delivery.FILE` and ``WEBHOOK``."""

_SELDOM: Final = 1e6
_AT_ONCE: Final = 10_000
"""Watches in one transaction: what a kill costs is checked again."""
_SHOWN: Final = (
    *("watch_id", "biz_no", "name", "address", "biz_status", "status_before", "grade_before", "grade", "bounce_prob"),
)
_GATHERED: Final = 3600.0
"""Seconds in which a check is done: its lots share the notice of what was closed already."""
_KEPT: Final = 90 * 86400.0
"""Seconds after which a notice that was delivered everywhere is forgotten."""
_PATIENCE: Final = 3
"""Deliveries in a row that a webhook may fail before the others are left to the next check."""

Tell = Callable[[CheckReport], None]


@dataclass(frozen=True, slots=True)
class _Channels:
    """Where closures go besides the report."""

    file: Path | None = None
    webhook: Webhook | None = None

    @property
    def names(self) -> list[str]:
        from bizverify.watch.delivery import FILE, WEBHOOK

        return [TOLD, *([FILE] if self.file else []), *([WEBHOOK] if self.webhook else [])]


def check(
    *,
    local: Local = True,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    labels: Labels = None,
    lang: Lang = "en",
    today: date | str | None = None,
    every: float = EVERY,
    everything: bool = False,
    notify: str | Path | None = None,
    webhook: str | None = None,
    allow_http: bool = False,
    forget: bool = False,
    tell: Tell | None = None,
    now: Callable[[], float] = time.time,
) -> CheckReport:
    """Verify again what is due on a local list, with the embedded engine, and tell of closures.

    ``registry``, ``gazetteer``, ``model``, ``labels``, ``lang``, ``today`` as for :func:`bizverify.enrich`. A watch is
    due ``every`` so many hours after the start of its last check, less a tenth, two hours at most, so that a nightly
    run that begins a little earlier looks at it; ``everything``: all of them are due, now.

    Closures are told by the report (in one notice what was closed already when it was first checked), and, where they
    are given, by a line appended to the file ``notify`` and by a POST to the URL ``webhook``, signed with the secret in
    BIZVERIFY_WEBHOOK_SECRET (plain http beyond this machine needs ``allow_http``). What cannot be delivered is in the
    report and is tried again by the next check; ``forget`` drops what waits for a file or webhook that is not given.

    ``tell`` is called with the report when all else is done: only when it has returned are the closures of the report
    taken for told. Without it, they are when this returns. Killed at any moment, a check loses nothing: what was found
    is told, perhaps twice, by the next one. Raises :class:`StoreError` (also where another check of the list is
    running), and what the engine raises.
    """
    if not 0 < every <= _SELDOM:
        raise UsageError(f"{parameter('every', every)}: must be a number of hours, above 0, at most {_SELDOM:,.0f}")
    path, clock = watch_path(None if isinstance(local, bool) or local is None else local), time.monotonic()
    channels = _Channels(None if notify is None else Path(notify), _webhook(webhook, allow_http))
    known = remembered(labels)
    engine = LocalEngine(
        registry,
        gazetteer=gazetteer,
        model=resolved(model),
        lang=lang,
        today=today,
        history=known.history if known else None,
    )
    with ExitStack() as held:
        file = held.enter_context(LocalFile(path, create=False))
        held.enter_context(alone(path))
        patrol = _Round(file, engine, every * 3600, channels, now)
        if forget:
            patrol.forget()
        patrol.make_due(everything=everything)
        patrol.look()
        patrol.deliver()
        report = patrol.report(time.monotonic() - clock)
        if tell is not None:
            tell(report)
        patrol.told(report)
    return report


@dataclass
class _Round:
    """One check of one list."""

    file: LocalFile
    engine: LocalEngine
    interval: float
    channels: _Channels
    now: Callable[[], float]
    started: float = field(init=False)
    _due: int = field(default=0, init=False)
    _checked: int = field(default=0, init=False)
    _first: int = field(default=0, init=False)
    _found: list[pl.DataFrame] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def make_due(self, *, everything: bool) -> None:
        """Let all watches be due, or those that should be: ``every`` was another at their check, or the clock."""
        wait = wait_of(self.interval)
        with self.file.writing() as db:
            store.make_due(db, OWNER, self.started, None if everything else wait)

    def forget(self) -> None:
        """Drop what waits for channels that are not given."""
        with self.file.writing() as db:
            db.execute(
                "DELETE FROM deliveries WHERE delivered IS NULL AND owner = ?"
                " AND channel NOT IN (SELECT value FROM json_each(?))",
                (OWNER, json.dumps(self.channels.names)),
            )

    def look(self) -> None:
        """Check what is due, so many watches at a time, each lot written down with the notices of its closures."""
        again = self.started + wait_of(self.interval)
        while True:
            with self.file.reading() as db:
                due = store.due(db, self.started, _AT_ONCE, [OWNER])
            if due.is_empty():
                return
            checked = judged(due, LocalJudge(self.engine))
            at = max(self.now(), self.started)
            with self.file.writing() as db:
                gathering = Gathering(self.started, at + _GATHERED)
                recorded: Recorded = store.record(db, checked, at, again, self.channels.names, gathering)
                still = store.due(db, self.started, due.height, [OWNER])["number"]  # no answer: not now, not for ever
                store.postpone(db, still.filter(still.is_in(due["number"].implode())).to_list(), again)
            self._due += due.height
            self._checked += recorded.watches.height
            self._first += int(recorded.watches["first"].sum())
            self._found.append(recorded.watches.filter(pl.any_horizontal("changed", "closure", "closed_already")))

    def deliver(self) -> None:
        """Tell the file and the webhook what they have not acknowledged."""
        from bizverify.watch.delivery import FILE, WEBHOOK

        if self.channels.file is not None:
            self._append(self._waiting(FILE), self.channels.file)
        if self.channels.webhook is not None:
            self._send(self._waiting(WEBHOOK), self.channels.webhook)

    def report(self, seconds: float) -> CheckReport:
        """What this check found, and what there is to be told."""
        with self.file.reading() as db:
            open_ = notices.undelivered(db, OWNER)
            watched, next_due = store.count(db, OWNER), store.next_due(db, OWNER)
        found = pl.concat(self._found) if self._found else pl.DataFrame(schema=_EMPTY)
        return CheckReport(
            watches=str(self.file.path),
            watched=watched,
            due=self._due,
            checked=self._checked,
            first=self._first,
            changes=found.filter("changed").select(_SHOWN),
            closures=found.filter("closure").select(_SHOWN),
            closed_already=found.filter("closed_already").select(_SHOWN),
            notices=tuple(json.loads(one.payload) for one in open_ if one.channel == TOLD),
            undelivered=tuple(_open(one) for one in open_ if one.channel not in (TOLD, None)),
            next_due=next_due,
            seconds=seconds,
            warnings=self._warnings(),
        )

    def told(self, report: CheckReport) -> None:
        """The caller was told of the report's closures."""
        ids = {notice["id"] for notice in report.notices}
        with self.file.writing() as db:
            numbers = [one.notice for one in notices.undelivered(db, OWNER) if one.channel == TOLD and one.id in ids]
            notices.delivered_many(db, [(number, TOLD) for number in numbers], self.now())
            notices.purge(db, self.now() - _KEPT)

    def _waiting(self, channel: str) -> list[Delivery]:
        with self.file.reading() as db:
            return [one for one in notices.undelivered(db, OWNER) if one.channel == channel]

    def _append(self, waiting: Sequence[Delivery], path: Path) -> None:
        from bizverify.watch.delivery import FILE, append_lines

        if not waiting:
            return
        try:
            append_lines(path, [one.payload for one in waiting])
        except OutputError as error:
            self._failed(waiting, FILE, str(error))
            return
        with self.file.writing() as db:
            notices.delivered_many(db, [(one.notice, FILE) for one in waiting], self.now())

    def _send(self, waiting: Sequence[Delivery], webhook: Webhook) -> None:
        if not waiting:
            return
        in_a_loop(lambda: self._sent(waiting, webhook))

    async def _sent(self, waiting: Sequence[Delivery], webhook: Webhook) -> None:
        from bizverify.client.webhook import WebhookSender
        from bizverify.watch.delivery import WEBHOOK, send

        sender, failures = WebhookSender(), 0
        try:
            for place, one in enumerate(waiting):
                outcome = await send(sender, webhook, one, self.now())
                if outcome.error is None:
                    failures = 0
                    with self.file.writing() as db:
                        notices.delivered(db, one.notice, WEBHOOK, self.now())
                    continue
                failures += 1
                self._failed([one], WEBHOOK, outcome.error)
                if failures >= _PATIENCE:
                    log.info("%d notices are left to the next check", len(waiting) - place - 1)
                    return
        finally:
            await sender.aclose()

    def _failed(self, waiting: Sequence[Delivery], channel: str, error: str) -> None:
        with self.file.writing() as db:
            for one in waiting:
                notices.failed(db, one.notice, channel, error, self.now())

    def _warnings(self) -> tuple[str, ...]:
        from bizverify.watch.delivery import append_lines

        notes: list[str] = [] if self.engine.registry is not None else [_NO_REGISTRY]
        today = self.engine.today or date.today()
        if stale := stale_registry_alert(self.engine.registry, self.engine.model.stale_after, today):
            notes.append(stale)
        if self.channels.file is not None:  # to be heard of now, not when a business closes
            try:
                append_lines(self.channels.file, [])
            except OutputError as error:
                notes.append(str(error))
        return tuple(notes)


_NO_REGISTRY: Final = (
    "no registry was given, so that closures cannot be found; build one with `bizverify data build-registry` and give "
    "it with `registry=`"
)
_EMPTY: Final = {
    **dict.fromkeys(_SHOWN, pl.String),
    "bounce_prob": pl.Float64,
    "changed": pl.Boolean,
    "closure": pl.Boolean,
    "closed_already": pl.Boolean,
}


def _open(one: Delivery) -> dict[str, Any]:
    return {
        "id": one.id,
        "biz_no": one.biz_no,
        "channel": one.channel,
        "attempts": one.attempts,
        "error": one.error,
        "notice": json.loads(one.payload),
    }


def _webhook(url: str | None, allow_http: bool) -> Webhook | None:
    if url is None:
        return None
    from bizverify.client.webhook import WebhookUrl
    from bizverify.watch.delivery import Webhook

    secret = os.environ.get(SECRET, "")
    if not secret.strip():
        raise UsageError(f"`webhook=` needs a secret that signs what is sent; set {SECRET}")
    if len(secret.strip()) < _SECRET_LENGTH:
        raise UsageError(
            f"{SECRET}: can be guessed; take {_SECRET_LENGTH} characters and more, as of `openssl rand -hex 32`"
        )
    return Webhook(WebhookUrl.parse(url, allow_http=allow_http), secret.strip())
