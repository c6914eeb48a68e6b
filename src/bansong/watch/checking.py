"""Check a local list: verify due businesses, compare with their last check, notify."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base.after_fork import refuse_after_fork
from bansong.base.cancel import CancelToken, run_async, run_until_interrupted
from bansong.base.errors import OutputError, Problem, StoreError, UsageError
from bansong.base.files import variable
from bansong.base.messages import Lang, Listed, Option, Phrase, gettext_noop, gettext_of
from bansong.base.options import StatusOptions, StatusSource
from bansong.base.schema import SEOUL, seoul_day
from bansong.base.sqlite import is_in_use
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import Known, LocalEngine, stale_registry_alert
from bansong.engine.overlays import StatusOverlay
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import Labels, read_history
from bansong.history.scorecards import resolve_model
from bansong.notify import queue as notifications
from bansong.notify.channels import Channel, FileChannel, WebhookChannel, append_lines, deliver
from bansong.notify.queue import PendingDelivery, SummaryWindow
from bansong.reference.fetch import StatusFetch
from bansong.reference.statuses import StatusProvider, fresh_since, open_source
from bansong.watch import store
from bansong.watch.api import Local
from bansong.watch.report import CheckReport
from bansong.watch.store import OWNER, STATUS_DAY, VERDICT_COLUMNS, WATCH_FILE, CheckResult, LocalFile, alone

if TYPE_CHECKING:
    from bansong.client.webhook import Outcome

INTERVAL_INVALID: Final = Problem(
    "watch.interval_invalid", "{parameter}: must be a number of hours, above 0, at most {seldom:,.0f}"
)
SECRET_MISSING: Final = Problem(
    "watch.secret_missing", "`webhook=` needs a secret that signs what is sent; set {secret}"
)
SECRET_GUESSABLE: Final = Problem(
    "watch.secret_guessable",
    "{secret}: can be guessed; take {secret_length} characters and more, as of `openssl rand -hex 32`",
)

log = logging.getLogger(__name__)
SECRET: Final = "BANSONG_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_MIN_SECRET_CHARACTERS: Final = 16
EVERY: Final = 24.0  # hours until a watch is due again by default
REPORT: Final = "report"  # name of the caller's channel: the report
_MAX_INTERVAL_H: Final = 1e6
_AT_ONCE: Final = 10_000  # watches in one transaction; a killed check repeats at most these
_SHOWN: Final = (
    *("watch_id", "biz_no", "name", "address"),
    *("biz_status", "status_before", "grade_before", "grade", "bounce_prob"),
)
_SUMMARY_WINDOW_S: Final = 3600.0  # within it, businesses closed at their first check share one notification
_KEEP_DELIVERED_S: Final = 90 * 86400.0
_PATIENCE: Final = 3  # failed deliveries in a row after which the rest waits for the next check

_NO_REGISTRY: Final = gettext_noop(
    "no registry is used, so that closures cannot be found; store a free key of the tax authority with `bansong setup` "
    "or in BANSONG_NTS_KEY, or build a registry with `bansong data build-registry`, or name one with `registry=`"
)
_EMPTY: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(_SHOWN, pl.String),
    "bounce_prob": pl.Float64,
    **dict.fromkeys(("changed", "closure", "closed_already"), pl.Boolean),
}
# the reason for a status, with source and day; it holds no text of users
_STATUS_DAY: Final = r"\[status [+-][0-9]+\] [^|]*\([a-z]+, ([0-9]{4}-[0-9]{2}-[0-9]{2})"
_SLACK_SHARE: Final = 0.1
_MAX_SLACK_S: Final = 2 * 3600.0  # a nightly run may start that much earlier than the last, also in summer time
Tell = Callable[[CheckReport], None]
Status = StatusSource | StatusOptions


def judge_watches(
    watches: pl.DataFrame, engine: LocalEngine, answer: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None
) -> pl.DataFrame:
    """Verify the watches of :func:`bansong.watch.store.due`; those that the answer leaves out stay due."""
    asked = watches.lazy().select("number", "name", "address", b_no=pl.col("biz_no").cast(pl.String))
    day = pl.col("reasons").str.extract(_STATUS_DAY).alias(STATUS_DAY)
    verdicts = (pl.col(name).cast(dtype) for name, dtype in VERDICT_COLUMNS.items())
    answered = (answer or engine.answer)(asked).select("number", "name", "address", *verdicts, day)
    with engine.running():
        return answered.collect()


def _recheck_wait(interval: float) -> float:
    """Return the seconds until a watch is due again: a bit less than ``interval``, as jobs may start early."""
    return interval - min(interval * _SLACK_SHARE, _MAX_SLACK_S)


def check(
    *,
    local: Local = True,
    registry: str | Path | Registry | None = None,
    status: Status = "auto",
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    labels: Labels = None,
    lang: Lang | None = None,
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
    """Verify the due businesses of a local list with the local engine, and notify of closures.

    ``registry``, ``gazetteer``, ``model``, ``labels``, ``lang``, ``today``, ``status`` as for :func:`bansong.enrich`,
    but statuses are fetched daily unless ``max_age`` allows more. ``every``: hours from the start of a watch's last
    check until it is due again, less a tenth (two hours at most). ``everything``: all watches are due now.

    Closures are in the report, appended as lines to the file ``notify``, and sent to the URL ``webhook``, signed with
    the secret in BANSONG_WEBHOOK_SECRET (plain http beyond this machine needs ``allow_http``). Failed deliveries are in
    the report and repeated by the next check; ``forget`` drops those for a file or webhook no longer given.

    ``tell`` gets the report at the end; the report's closures count as delivered when it returns. A killed check loses
    nothing: the next one delivers, perhaps twice. Raises :class:`StoreError` (also if another check of the list is
    running), and what the engine raises.
    """
    refuse_after_fork()
    if not 0 < every <= _MAX_INTERVAL_H:
        raise UsageError(INTERVAL_INVALID, parameter=Option("every", every), seldom=_MAX_INTERVAL_H)
    path, clock = WATCH_FILE.find(local if isinstance(local, str | Path) else None), time.monotonic()
    channels: list[Channel] = [] if notify is None else [FileChannel(Path(notify))]
    if webhook is not None:
        channels.append(_open_webhook(webhook, allow_http, now))
    known, statuses = read_history(labels), _open_statuses(status, now)
    engine = LocalEngine(
        registry,
        gazetteer=gazetteer,
        model=resolve_model(model),
        lang=lang,
        today=today,
        history=known.history if known else None,
    )
    with ExitStack() as held:
        file = held.enter_context(LocalFile(path, create=False))
        held.enter_context(alone(path))
        run = _CheckRun(file, engine, statuses, every * 3600, channels, now)
        if forget:
            run.forget()
        run.make_due(everything=everything)
        run.check_due()
        run.note_unasked()
        run.deliver()
        report = run.report(time.monotonic() - clock)
        if tell is not None:
            tell(report)
        run.acknowledge(report)
    return report


@dataclass
class _CheckRun:
    file: LocalFile
    engine: LocalEngine
    statuses: WatchStatuses | None
    interval: float
    channels: Sequence[Channel]
    now: Callable[[], float]
    started: float = field(init=False)
    _due: int = field(default=0, init=False)
    _checked: int = field(default=0, init=False)
    _first: int = field(default=0, init=False)
    _found: list[pl.DataFrame] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    @property
    def names(self) -> list[str]:
        return [REPORT, *(channel.name for channel in self.channels)]

    def make_due(self, *, everything: bool) -> None:
        wait = _recheck_wait(self.interval)
        with self.file.writing() as db:
            store.make_due(db, OWNER, self.started, None if everything else wait)

    def forget(self) -> None:
        with self.file.writing() as db:
            db.execute(
                "DELETE FROM deliveries WHERE delivered IS NULL AND owner = ?"
                " AND channel NOT IN (SELECT value FROM json_each(?))",
                (OWNER, json.dumps(self.names)),
            )

    def check_due(self) -> None:
        again = self.started + _recheck_wait(self.interval)
        while True:
            with self.file.reading() as db:
                due = store.due(db, self.started, _AT_ONCE, [OWNER])
            if due.is_empty():
                return
            engine = self.engine if self.statuses is None else self.statuses.give_to(self.engine, due["biz_no"])
            checked = judge_watches(due, engine)
            at = max(self.now(), self.started)
            with self.file.writing() as db:
                window = SummaryWindow(self.started, at + _SUMMARY_WINDOW_S)
                recorded: CheckResult = store.record(db, checked, at, again, self.names, window)
                still = store.due(db, self.started, due.height, [OWNER])["number"]  # not answered: due next time
                store.postpone(db, still.filter(still.is_in(due["number"].implode())).to_list(), again)
            self._due += due.height
            self._checked += recorded.watches.height
            self._first += int(recorded.watches["first"].sum())
            self._found.append(recorded.watches.filter(pl.any_horizontal("changed", "closure", "closed_already")))

    def note_unasked(self) -> None:
        if self.statuses is None or not self._due:
            return
        numbers, day = self.statuses.unasked, datetime.fromtimestamp(self.started, SEOUL).date().isoformat()
        with self.file.writing() as db:
            if not numbers:
                db.execute("DELETE FROM unasked_days")
                return
            again = self.started + _recheck_wait(self.interval)
            db.execute("UPDATE watches SET due = ? WHERE owner = ? AND due = ?", (self.started, OWNER, again))
            if db.execute("INSERT OR IGNORE INTO unasked_days VALUES (?)", (day,)).rowcount:
                days = db.execute("SELECT count(*) FROM unasked_days").fetchone()[0]
                channels = [name for name in self.names if name != REPORT]
                if days > 1 and channels:
                    notifications.add_unasked(db, OWNER, numbers, days, self.started, channels)

    def deliver(self) -> None:
        for channel in self.channels:
            if waiting := self._waiting(channel.name):
                settle = partial(self._settle, channel.name)
                sending = partial(deliver, channel, waiting, settle, patience=_PATIENCE)
                if run_until_interrupted(sending):
                    log.info("%s: the other notifications are left to the next check", channel.name)

    def report(self, seconds: float) -> CheckReport:
        with self.file.reading() as db:
            open_ = notifications.list_undelivered(db, OWNER)
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
            notices=tuple(json.loads(one.payload) for one in open_ if one.channel == REPORT),
            undelivered=tuple(_undelivered_dict(one) for one in open_ if one.channel not in (REPORT, None)),
            next_due=next_due,
            seconds=seconds,
            warnings=self._warnings(),
            unasked=self.statuses.unasked if self.statuses else 0,
            status_exit_code=self.statuses.exit_code if self.statuses else 0,
        )

    def acknowledge(self, report: CheckReport) -> None:
        ids = {one["id"] for one in report.notices}
        waiting = [one for one in self._waiting(REPORT) if one.id in ids]
        with self.file.writing() as db:
            notifications.mark_delivered(db, [(one.number, REPORT) for one in waiting], self.now())
            notifications.purge(db, self.now() - _KEEP_DELIVERED_S)

    def _waiting(self, channel: str) -> list[PendingDelivery]:
        with self.file.reading() as db:
            return [one for one in notifications.list_undelivered(db, OWNER) if one.channel == channel]

    async def _settle(self, channel: str, deliveries: Sequence[PendingDelivery], outcome: Outcome) -> None:
        now = self.now()
        with self.file.writing() as db:
            if outcome.error is None:
                notifications.mark_delivered(db, [(one.number, channel) for one in deliveries], now)
            else:
                notifications.mark_failed(db, [(one.number, channel, outcome.error, now) for one in deliveries])

    def _warnings(self) -> tuple[str, ...]:
        registry, today = self.engine.registry, self.engine.today or seoul_day()
        caution = None if self.statuses is None else self.statuses.caution(registry)
        notes: list[str] = [] if caution is None else [caution]
        if self.statuses is None and registry is None:
            notes.append(Phrase(_NO_REGISTRY))
        stale = stale_registry_alert(registry, self.engine.model.stale_after, today)
        if stale and (self.statuses is None or caution):
            notes.append(stale)
        for channel in self.channels:
            if isinstance(channel, FileChannel):  # report an unusable file now, not at the next closure
                try:
                    append_lines(channel.path, [])
                except OutputError as error:
                    notes.append(Listed([error]))
        return tuple(notes)


def _undelivered_dict(one: PendingDelivery) -> dict[str, Any]:
    fields = {name: getattr(one, name) for name in ("id", "biz_no", "channel", "attempts", "error")}
    return fields | {"notice": json.loads(one.payload)}


def _open_statuses(status: Status, now: Callable[[], float]) -> WatchStatuses | None:
    options = status if isinstance(status, StatusOptions) else StatusOptions(source=status, max_age=0)
    if not options.is_asking:
        return None
    source = open_source(options)
    source.check()
    return WatchStatuses(source, options.max_age, now)


def _open_webhook(url: str, allow_http: bool, now: Callable[[], float]) -> Channel:
    from bansong.client.webhook import WebhookSender, WebhookUrl

    secret = (variable(SECRET) or "").strip()
    if not secret:
        raise UsageError(SECRET_MISSING, secret=SECRET)
    if len(secret) < _MIN_SECRET_CHARACTERS:
        raise UsageError(SECRET_GUESSABLE, secret=SECRET, secret_length=_MIN_SECRET_CHARACTERS)
    sender = WebhookSender()  # to any address: the URL comes from the user of this machine
    return WebhookChannel(WebhookUrl.parse(url, allow_http=allow_http), sender, secret, now)


_PAUSED_EXIT_CODE: Final = 5


@dataclass
class WatchStatuses:
    """Fetches the statuses for one check. ``max_age`` is in days; ``now`` returns seconds since 1970."""

    source: StatusProvider
    max_age: float
    now: Callable[[], float]
    _halted: list[StatusFetch] = field(default_factory=list, init=False)

    def give_to(self, engine: LocalEngine, numbers: pl.Series) -> LocalEngine:
        """Return the engine with statuses of these numbers (ten digits): stored ones if the API fails."""
        keys = numbers.cast(pl.UInt64).unique()
        try:
            return engine.with_known(Known(statuses=self._fetch(keys)))
        except StoreError as error:
            if not is_in_use(error):
                raise
            self._halted.append(
                StatusFetch(numbers=len(keys), left=len(keys), halt=str(error), exit_code=_PAUSED_EXIT_CODE)
            )
            return engine

    def _fetch(self, keys: pl.Series) -> StatusOverlay:
        token = CancelToken()
        fetch = run_async(partial(self.source.fetch, keys, cancel=token, today=self._day), token)
        log.info("asked the tax authority: %s", fetch)
        if fetch.halt is not None:
            self._halted.append(fetch)
        return self.source.read(keys, fresh_since(self.max_age, self._day()))

    @property
    def unasked(self) -> int:
        return sum(fetch.unasked for fetch in self._halted)

    @property
    def exit_code(self) -> int:
        """0; 3 for a refused key; 5 if the next check must fetch the rest."""
        return min((fetch.run_exit_code for fetch in self._halted), default=0)

    def caution(self, registry: Registry | None) -> str | None:
        if not self._halted:
            return None
        days = [fetch.oldest for fetch in self._halted if fetch.oldest is not None]
        known = []
        if days:
            age = Phrase("{count:,} day", "{count:,} days", count=(self._day() - min(days)).days)
            about = {"days": min(days), "age": age}
            known.append(Phrase("the status store, whose oldest status is of {days} ({age} ago)", **about))
        if registry is not None:
            known.append(gettext_of(registry, "the registry {version}"))
        left = Phrase("{count:,} number", "{count:,} numbers", count=self.unasked)
        names = Listed(known, gettext_noop(" and "))
        unknown = Phrase("not judged: nothing is known of their status")
        return Phrase(
            "{left} could not be asked of the tax authority and {by_what}: {halt}",
            left=left,
            by_what=Phrase("judged by {names}", names=names) if known else unknown,
            halt=self._halted[0].halt,
        )

    def _day(self) -> date:
        return datetime.fromtimestamp(self.now(), SEOUL).date()
