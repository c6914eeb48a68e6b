"""Public functions on watch lists: synchronise with a file, add, remove, list, show the history."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack

import polars as pl

from bansong.base import business_number
from bansong.base.after_fork import refuse_after_fork
from bansong.base.cancel import CancelToken, run_async, run_until_interrupted
from bansong.base.display import AskedProgress, Progress, progress_asked
from bansong.base.errors import DoubtError, NotFoundError, Problem, RejectedError, ServiceError, UsageError
from bansong.base.files import as_path, variable
from bansong.base.messages import Option, Phrase, count_rows, gettext_noop, gettext_of
from bansong.base.options import ReadOptions, ServiceOptions, check_keywords, service_options, shows_keywords
from bansong.client.dispatcher import Halt
from bansong.notify.queue import korean_iso
from bansong.run.options import WriteOptions
from bansong.run.survey import NO_ADDRESS, PreparedTable, prepare_table
from bansong.tables.detect import open_table, reading
from bansong.watch import store
from bansong.watch.report import History, utc_expr
from bansong.watch.store import OWNER, WATCH_FILE, Business, Change, LocalFile
from bansong.watch.syncing import (
    BUSINESS,
    LISTED,
    WATCH_TIMES,
    Businesses,
    Done,
    ServiceSync,
    Steps,
    SyncPlan,
    SyncReport,
    businesses,
    parse_time,
    reconcile,
    watch_time,
)

if TYPE_CHECKING:
    from bansong.base.key import ApiKey
    from bansong.client.client import Client
    from bansong.client.responses import WatchChange, WatchEntry

CHANGE_TOO_LARGE: Final = Problem("watch.change_too_large", "{name}: {mistake}; nothing was done. {force}")
WATCH_AMBIGUOUS: Final = Problem(
    "watch.watch_ambiguous", "{name}: {which} is watched {height} times; give one of the watch ids {ids}"
)
CHANGE_IN_DOUBT: Final = Problem(
    "watch.change_in_doubt", "it is not known whether the service did it; look at `bansong watch list`, then try again"
)
WATCH_UNKNOWN: Final = Problem(
    "watch.watch_unknown", "{name}: {which} is neither a watch id nor a business number that is watched there"
)

_FORCE: Final = gettext_noop("If they shall all be removed, give `force=True`; `keep=True` removes nothing")
_PROTECTED_SIZE: Final = 20


@dataclass(frozen=True, slots=True)
class Placed:
    """The result of putting a business on a watch list; ``state`` is what the call changed.

    ``first_check_at``: time of the service's first check of a new business (ISO 8601, Korean time), if known.
    """

    watch_id: str
    biz_no: str
    state: Literal["added", "changed", "unchanged"]
    first_check_at: str | None = None


class ServiceTerms(TypedDict, total=False):
    """Options as in :class:`ServiceOptions`. An interrupted sync waits ``drain`` seconds for replies."""

    base_url: str | None  # or BANSONG_BASE_URL
    api_key: ApiKey | str | None  # or BANSONG_API_KEY
    key_file: str | Path | None  # or BANSONG_API_KEY_FILE
    allow_http: bool
    rate: float  # requests a second, by default 50
    concurrency: int  # by default 16
    timeout: float  # seconds to wait for a reply, by default 30
    drain: float  # by default 10


@shows_keywords(ServiceTerms, (ServiceOptions,))
def sync(
    file: str | Path,
    *,
    apply: bool = False,
    keep: bool = False,
    force: bool = False,
    local: Local = None,
    columns: Mapping[str, str] | None = None,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    delimiter: str | None = None,
    prefix: str = "",
    progress: AskedProgress = True,
    **terms: Unpack[ServiceTerms],
) -> SyncReport:
    """Compare the businesses of a file with a watch list; with ``apply`` make the list equal.

    ``file``, ``columns``, ``sheet``, ``encoding``, ``json_path``, ``delimiter`` and ``prefix`` as for
    :func:`bansong.enrich`. New businesses are added, other names and addresses changed, missing ones removed at the
    end, unless ``keep``. ``force`` allows removing more than half of a list of 20 businesses or more, or all of any
    list. A second call repeats nothing, since the list is read first. ``local`` and ``terms`` choose the list. Raises
    :class:`bansong.errors.BansongError` if the file or the list cannot be read; later refusals of the service are in
    the report.
    """
    check_keywords(sync, terms)
    watches = open_store(local, **terms)
    path = as_path(file)
    wanted = ReadOptions(columns, sheet, encoding, json_path, delimiter=delimiter)
    with open_table(path, wanted) as table:
        stages = prepare_table(table, wanted, WriteOptions(prefix=prefix))
        with reading(table):
            found = businesses(stages.rows)
    plan = reconcile(found.frame, watches.frame())
    mistake = None if keep else _likely_mistake(found, plan)
    notes = (*_warnings(stages, found, plan, keep), *([f"{mistake}. {_FORCE}"] if mistake and not apply else []))
    read = {role: choice for role, choice in stages.chosen.items() if role in ("b_no", "name", "address")}
    report = SyncReport(watches.name, str(path), read, found, plan, keep, warnings=notes)
    if not apply:
        return report
    if mistake and not force:
        raise UsageError(CHANGE_TOO_LARGE, name=watches.name, mistake=mistake, force=Phrase(_FORCE))
    with progress_asked(progress, "watches", "syncing") as shown:
        steps = replace(_plan_steps(plan), remove=report.to_remove["watch_id"].to_list())
        done = watches.carry_out(steps, shown or (lambda _done, _total: None))
    return replace(report, applied=True, done=_settle_doubts(watches, found.frame, done))


@shows_keywords(ServiceTerms, (ServiceOptions,))
def add(
    b_no: str | int,
    name: str | None = None,
    address: str | None = None,
    *,
    local: Local = None,
    **terms: Unpack[ServiceTerms],
) -> Placed:
    """Put a business on a watch list, or update its name and address there.

    Raises :class:`NumberError` for an invalid number, and the service's errors.
    """
    check_keywords(add, terms)
    watches, number = open_store(local, **terms), business_number.compact(b_no)
    entry = pl.DataFrame([(number, name or None, address or None)], schema=BUSINESS, orient="row")
    listed = watches.frame()
    same = business_number.compact_expr(pl.col("biz_no")) == number
    plan = reconcile(entry, listed.filter(same.fill_null(value=False)))
    if plan.unchanged:
        return Placed(_find_watches(watches, number)["watch_id"][0], number, "unchanged")
    state: Literal["added", "changed"] = "changed" if plan.change.height else "added"
    done = _settle_doubts(watches, entry, watches.carry_out(_plan_steps(plan), lambda _done, _total: None))
    _raise_for(done)
    return Placed(_find_watches(watches, number)["watch_id"][0], number, state, korean_iso(done.first_check_by))


@shows_keywords(ServiceTerms, (ServiceOptions,))
def remove(which: str, *, local: Local = None, **terms: Unpack[ServiceTerms]) -> pl.DataFrame:
    """Remove a watch by its identifier, or all watches of a business number.

    Returns the removed watches: ``watch_id``, ``biz_no``, ``name``, ``address``. Raises :class:`NotFoundError`.
    """
    check_keywords(remove, terms)
    watches = open_store(local, **terms)
    found = _find_watches(watches, which)
    _raise_for(watches.carry_out(Steps(remove=found["watch_id"].to_list()), lambda _done, _total: None))
    return found.select("watch_id", *BUSINESS)


@shows_keywords(ServiceTerms, (ServiceOptions,))
def entries(*, local: Local = None, **terms: Unpack[ServiceTerms]) -> pl.DataFrame:
    """Return a watch list as a frame, in its order.

    Columns: ``watch_id``, ``biz_no`` (ten digits), ``name``, ``address``, ``biz_status``, ``grade`` (String);
    ``created_at``, ``checked_at``, ``next_check_at``, ``closed_at`` (Datetime, UTC), null if unknown.
    """
    check_keywords(entries, terms)
    times = {"created_at": "created", "checked_at": "checked", "next_check_at": "due", "closed_at": "closed"}
    texts = ("watch_id", "biz_no", "name", "address", "biz_status", "grade")
    listed = open_store(local, **terms).frame()
    return listed.select(*texts, **{name: utc_expr(column) for name, column in times.items()})


@shows_keywords(ServiceTerms, (ServiceOptions,))
def history(which: str, *, local: Local = None, **terms: Unpack[ServiceTerms]) -> History:
    """Return the grade history of one watched business; displays as a plot and a table in a notebook.

    ``which``: a watch's identifier, or a business number watched once. Raises :class:`NotFoundError`;
    :class:`PlanError` if the account's plan has no history.
    """
    check_keywords(history, terms)
    watches = open_store(local, **terms)
    found = _find_watches(watches, which)
    if found.height > 1:
        ids = ", ".join(found["watch_id"])
        raise UsageError(WATCH_AMBIGUOUS, name=watches.name, which=which, height=found.height, ids=ids)
    watch = found.row(0, named=True)
    return History(
        watch["watch_id"],
        watch["biz_no"],
        watch["name"],
        watch["grade"],
        watch["created"],
        tuple(watches.history(watch["watch_id"])),
    )


@shows_keywords(ServiceTerms, (ServiceOptions,))
def history_frame(which: str, *, local: Local = None, **terms: Unpack[ServiceTerms]) -> pl.DataFrame:
    """Return :func:`history` as a frame: ``at`` (Datetime, UTC), ``before``, ``after``, ``biz_status`` (String)."""
    check_keywords(history_frame, terms)
    return history(which, local=local, **terms).frame


def _likely_mistake(found: Businesses, plan: SyncPlan) -> str | None:
    going = plan.remove["biz_no"].n_unique()
    most = plan.watched >= _PROTECTED_SIZE and going * 2 > plan.watched
    if not most and not (going and going == plan.watched):
        return None
    about = {"unusable": found.unusable.height, "rows": count_rows(found.rows)}
    rows = Phrase("; {unusable:,} of its {rows} have no usable number", **about) if about["unusable"] else ""
    return gettext_of(
        plan, "{going:,} of {watched:,} watched businesses are not in the file{rows}", going=going, rows=rows
    )


def _plan_steps(plan: SyncPlan) -> Steps:
    return Steps(
        add=[Business(*row) for row in plan.add.select(*BUSINESS).iter_rows()],
        change=[(watch_id, Business(*row)) for watch_id, *row in plan.change.select("watch_id", *BUSINESS).iter_rows()],
    )


def _settle_doubts(watches: WatchStore, file: pl.DataFrame, done: Done) -> Done:
    """Read the list again after requests in doubt, and count those that took effect as done."""
    if not done.doubts:
        return done
    try:
        now = watches.frame()
    except ServiceError:
        return done  # still in doubt: the next call reads the list first
    plan = reconcile(file, now)
    wanted, ids = set(file["biz_no"]), set(now["watch_id"])
    open_ = {*plan.add["biz_no"], *plan.change["biz_no"]}
    added = [name for name in done.doubts if name in wanted and name not in open_]
    removed = [name for name in done.doubts if name not in wanted and name not in ids]
    left = [name for name in done.doubts if name not in {*added, *removed}]
    return replace(done, added=done.added + len(added), removed=done.removed + len(removed), doubts=left)


def _raise_for(done: Done) -> None:
    if done.halt is not None:
        raise done.halt.error or ServiceError(done.halt.note)
    if done.refused:
        raise RejectedError(done.refused[0][1])
    if done.doubts:
        raise DoubtError(CHANGE_IN_DOUBT)


def _find_watches(watches: WatchStore, which: str) -> pl.DataFrame:
    listed = watches.frame().with_columns(
        pl.coalesce(business_number.compact_expr(pl.col("biz_no")), "biz_no").alias("biz_no")
    )
    found = listed.filter(pl.col("watch_id") == which)
    if found.is_empty() and business_number.problem(which) is None:
        found = listed.filter(pl.col("biz_no") == business_number.compact(which))
    if found.is_empty():
        raise NotFoundError(WATCH_UNKNOWN, name=watches.name, which=which)
    return found


def _warnings(stages: PreparedTable, found: Businesses, plan: SyncPlan, keep: bool) -> Iterator[str]:
    yield from (note for note in stages.warnings if note != Phrase(NO_ADDRESS))
    if found.repeated.height:
        differing = int(found.repeated["differing"].sum())
        more = Phrase(
            "; {differing:,} with different names or addresses: the first that are given count", differing=differing
        )
        numbers = Phrase("{count:,} number", "{count:,} numbers", count=found.repeated.height)
        yield Phrase("in several rows: {numbers}{more}", numbers=numbers, more=more if differing else "")
    if found.suspect:
        numbers = Phrase("{count:,} number", "{count:,} numbers", count=found.suspect)
        yield Phrase("with a wrong check digit: {numbers}, watched all the same", numbers=numbers)
    if found.unusable.height and plan.remove.height and not keep:
        yield Phrase(
            "without a usable number: {rows}; if one of the watches to be removed is theirs, repair the row first",
            rows=count_rows(found.unusable.height),
        )
    if plan.unnumbered:
        yield gettext_of(plan, "shown without a business number: {unnumbered:,} on the list; they are left alone")


SERVICE_LIST_ONLY: Final = Problem(
    "watch.service_list_only", "{parameter} is for the service's list, not for a local one"
)
URL_MISSING: Final = Problem(
    "watch.url_missing",
    "no base URL: give the service's address, or set {env_base_url}; for a local list: `local=True`",
)

T = TypeVar("T")
# ``None``, false: the service's list; true: the user's default local list; else the file of a local list
Local = str | Path | bool | None


def open_store(local: Local = None, **terms: Any) -> WatchStore:
    """Return a watch list: the service's (by default), the user's local one (``True``), or that of a local file."""
    refuse_after_fork()
    if local is None or local is False:
        from bansong.client.address import ENV_BASE_URL

        if not terms.get("base_url") and not variable(ENV_BASE_URL):
            raise UsageError(URL_MISSING, env_base_url=ENV_BASE_URL)
        return ServiceStore(**terms)
    if terms:
        raise UsageError(SERVICE_LIST_ONLY, parameter=Option(next(iter(terms))))
    return LocalStore(None if local is True else local)


class ServiceStore:
    """The watch list at the hosted service (INTERFACE §4.5 to §4.8)."""

    def __init__(self, **terms: Any) -> None:
        from bansong.client.address import BaseUrl

        self._terms = service_options("verify", terms)  # type: ignore[arg-type]
        self._url = BaseUrl.parse(self._terms.base_url, allow_http=self._terms.allow_http)
        self._key = self._terms.load_key()
        self.name = self._url.origin

    def frame(self) -> pl.DataFrame:
        entries = self._call(lambda client: client.watch_list())
        return pl.DataFrame([_row(entry) for entry in entries], schema=LISTED, orient="row")

    def history(self, watch_id: str) -> list[Change]:
        """Return the changes of grade, oldest first. An unreadable time is ``NaN``."""
        changes = self._call(lambda client: client.watch_history(watch_id))
        return [_change(change) for change in changes]

    def carry_out(self, steps: Steps, progress: Progress) -> Done:
        """Carry out steps, additions first. A request in doubt is not sent again."""
        cancel, done = CancelToken(), Done()

        async def main(client: Client) -> None:
            sync = ServiceSync(client, self._terms, done, len(steps), progress)
            cancel.set_handler(lambda: sync.dispatcher.cancel(Halt("interrupted", "interrupted")))
            try:
                await sync.put(steps.add, steps.change)
                if not sync.dispatcher.is_cancelled:
                    await sync.remove(steps.remove)
            finally:
                cancel.set_handler(None)
                done.halt = sync.dispatcher.halt

        try:
            self._call(main, cancel)
        except KeyboardInterrupt:
            note = gettext_noop(
                "{added:,} added, {changed:,} changed, {removed:,} removed in this run; the same command goes on"
            )
            raise KeyboardInterrupt(gettext_of(done, note)) from None
        if done.halt is not None and done.halt.why == "fault" and done.halt.error is not None:
            raise done.halt.error
        return done

    def _call(self, ask: Callable[[Client], Awaitable[T]], cancel: CancelToken | None = None) -> T:
        from bansong.client.client import Client

        terms = self._terms
        retries = 2 if cancel is None else 0  # with a token, the dispatcher retries
        client = Client(self._url, self._key, concurrency=terms.concurrency, timeout=terms.timeout, max_retries=retries)

        async def main() -> T:
            async with client:
                return await ask(client)

        return run_until_interrupted(main) if cancel is None else run_async(main, cancel)


class LocalStore:
    """The watch list in a local file, which the first addition creates."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = WATCH_FILE.find(path)
        self.name = str(self.path)

    def frame(self) -> pl.DataFrame:
        if not self.path.exists():
            return pl.DataFrame(schema=LISTED)
        with LocalFile(self.path, create=False) as file, file.reading() as db:
            shown = {name: pl.lit(value=True) for name in ("shows_name", "shows_address")}
            return store.every(db, OWNER).with_columns(**shown).select(*LISTED)

    def history(self, watch_id: str) -> list[Change]:
        with LocalFile(self.path, create=False) as file, file.reading() as db:
            return store.history(db, OWNER, watch_id) or []

    def carry_out(self, steps: Steps, progress: Progress) -> Done:
        with LocalFile(self.path) as file, file.writing() as db:
            entries = [*steps.add, *(entry for _, entry in steps.change)]
            added = store.add_many(db, OWNER, entries, time.time())
            removed = store.remove_many(db, OWNER, steps.remove)
        progress(len(steps), len(steps))
        return Done(added=added.new, changed=added.changed, removed=removed)


WatchStore = ServiceStore | LocalStore  # ``name`` is for people; ``frame`` has the columns of LISTED


def _row(entry: WatchEntry) -> tuple[object, ...]:
    given = entry.model_fields_set
    return (
        *(entry.watch_id, entry.biz_no, entry.name, entry.address, entry.biz_status, entry.grade),
        *(watch_time(entry, of) for of in WATCH_TIMES),
        "name" in given,
        "address" in given,
    )


def _change(change: WatchChange) -> Change:
    at = parse_time(change.at)
    status = getattr(change, "biz_status", None)
    return Change(
        float("nan") if at is None else at, change.before, change.after, None if status is None else str(status)
    )
