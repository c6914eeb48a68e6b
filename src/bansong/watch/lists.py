"""Watch lists at the service and in a local file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar

import polars as pl

from bansong.base.cancel import CancelToken, run_async, run_until_interrupted
from bansong.base.display import Progress
from bansong.base.errors import Problem, StoreError, UsageError
from bansong.base.files import variable
from bansong.base.forking import refuse_after_fork
from bansong.base.messages import Option, gettext, gettext_noop, gettext_of
from bansong.base.options import service_options
from bansong.base.sqlite import FileKind
from bansong.client.dispatcher import Halt
from bansong.watch import store
from bansong.watch.store import DDL, MIGRATIONS, Change
from bansong.watch.syncing import LISTED, WATCH_TIMES, Done, ServiceSync, Steps, parse_time, watch_time

if TYPE_CHECKING:
    from bansong.base.key import ApiKey
    from bansong.client.client import Client
    from bansong.client.responses import WatchChange, WatchEntry


WATCH_FILE_MISSING: Final = Problem(
    "watch.watch_file_missing",
    "{path}: there is no watch file; begin one with `bansong watch add` or `bansong watch sync`, "
    "or name another with `local=` or {env}",
)

ENV: Final = "BANSONG_WATCH"
OWNER: Final = "local"  # owner of a local list, in tables that a server shares among its keys
# consecutive days in Korea on which statuses were due and could not be asked
_UNASKED: Final = "CREATE TABLE unasked_days (day TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;"
WATCH_FILE: Final = FileKind(
    gettext_noop("a watch file"),
    "local",
    0x62765763,  # "bvWc"
    DDL + _UNASKED,
    {**MIGRATIONS, 3: _UNASKED},
    StoreError,
    variable=ENV,
    default="watch.sqlite",
)


def watch_path(given: str | Path | None = None) -> Path:
    return WATCH_FILE.find(given)


class LocalFile:
    """A watch file, open; made with mode 0600 unless ``create`` is false. Raises :class:`StoreError`."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        with WATCH_FILE.errors(path):
            if not create and not path.exists():
                raise StoreError(WATCH_FILE_MISSING, path=path, env=ENV)
        WATCH_FILE.ensure(path)
        self.connection = WATCH_FILE.open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one state of the file within the block."""
        with WATCH_FILE.errors(self.path):
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: durable when the block ends, undone if it raises."""
        with WATCH_FILE.errors(self.path), self.connection as db:
            db.execute("BEGIN IMMEDIATE")
            yield db


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold ``PATH.lock``, so that one check at a time works on a list; raise :class:`StoreError` if it is taken."""
    lock = WATCH_FILE.lock(path, gettext("another check of this list is running; nothing was done"))
    try:
        yield
    finally:
        lock.release()


SERVICE_LIST_ONLY: Final = Problem(
    "watch.service_list_only", "{parameter} is for the service's list, not for a local one"
)
URL_MISSING: Final = Problem(
    "watch.url_missing",
    "no base URL: give the service's address, or set {env_base_url}; for a local list: `local=True`",
)

T = TypeVar("T")
# ``None`` or false: the service's list; true: the user's own local one; else a local list's file
Local = str | Path | bool | None


class ServiceTerms(TypedDict, total=False):
    """Options as in :class:`ServiceOptions`; ``drain``: seconds that an interrupted sync waits for replies."""

    base_url: str | None  # or BANSONG_BASE_URL
    api_key: ApiKey | str | None  # or BANSONG_API_KEY
    key_file: str | Path | None  # or BANSONG_API_KEY_FILE
    allow_http: bool
    rate: float  # requests a second, by default 50
    concurrency: int  # by default 16
    timeout: float  # seconds to wait for a reply, by default 30
    drain: float  # by default 10


def open_store(local: Local = None, **terms: Any) -> WatchStore:
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
        """Return the changes of grade, the oldest first; an unreadable time is ``NaN``."""
        changes = self._call(lambda client: client.watch_history(watch_id))
        return [_change(change) for change in changes]

    def carry_out(self, steps: Steps, progress: Progress) -> Done:
        """Do the steps, additions first; a request in doubt is not sent again."""
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
        retries = 2 if cancel is None else 0  # the dispatcher tries again by its own rules
        client = Client(self._url, self._key, concurrency=terms.concurrency, timeout=terms.timeout, max_retries=retries)

        async def main() -> T:
            async with client:
                return await ask(client)

        return run_until_interrupted(main) if cancel is None else run_async(main, cancel)


class LocalStore:
    """The watch list in a file, made by the first addition."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = watch_path(path)
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
