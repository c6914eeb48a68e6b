"""The server's writer: a thread that commits changes in groups."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import anyio.to_thread

from bansong.errors import StoreError
from bansong.server.store.schema import SERVER_FILE, open_server_file

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]
"""Runs in a savepoint, which is rolled back if it raises."""

_CHANGES_PER_COMMIT: Final = 512
_CHECK_INTERVAL_S: Final = 1.0
"""Anybody may call :meth:`Store.check`, so it writes only this often."""


class _PendingChange(NamedTuple):
    change: Change[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    context: Context
    """Carries the language of the request into the writer."""


class Store:
    """The server's file: :meth:`write` in the order of the calls, :meth:`read` beside it.

    ``on_commit`` is called with the seconds of each commit, in the writer's thread.
    """

    def __init__(self, path: Path, on_commit: Callable[[float], None] = lambda _: None) -> None:
        self.path = path
        self._on_commit = on_commit
        self._connection = open_server_file(path)
        self._probe_write()
        self._written = time.monotonic()
        self._queue: SimpleQueue[_PendingChange | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="bansong-store", daemon=True)
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._thread.start()

    async def write(self, change: Change[T]) -> T:
        """Run a change and return its result once it is on the disk.

        Raises what the change raises, and :class:`bansong.errors.StoreError` if the commit fails; nothing is kept then.
        If cancelled, the change may still be made.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_PendingChange(change, loop, future, copy_context()))
        return await future

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in a thread on a read-only connection."""
        return await anyio.to_thread.run_sync(self._query, query)

    async def check(self) -> None:
        """Raise :class:`bansong.errors.StoreError` unless the file can be read, and written within the last second."""
        if time.monotonic() - self._written > _CHECK_INTERVAL_S:
            await self.write(_write_version)
        await self.read(lambda db: db.execute("SELECT 1 FROM keys LIMIT 1").fetchone())

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        for reader in self._readers:
            reader.close()

    def _probe_write(self) -> None:
        """Fail at the start, not at the first request, if the file cannot be written."""
        try:
            with SERVER_FILE.errors(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                _write_version(self._connection)
                self._connection.execute("COMMIT")
        except BaseException:
            self._connection.close()
            raise

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = open_server_file(self.path, create=False, writing=False)
            self._local.connection = connection
            self._readers.append(connection)
        with SERVER_FILE.errors(self.path):
            return query(connection)

    def _serve(self) -> None:
        going = True
        while going:
            group = [self._queue.get()]
            while len(group) < _CHANGES_PER_COMMIT and not self._queue.empty():
                group.append(self._queue.get())
            asked = [one for one in group if one is not None]
            going = len(asked) == len(group)
            if asked:
                self._commit(asked)
        self._connection.close()

    def _commit(self, group: list[_PendingChange]) -> None:
        """Run a group in one transaction; a failed change is undone by itself."""
        results: list[tuple[_PendingChange, Any, BaseException | None]] = []
        started = time.perf_counter()
        try:
            with SERVER_FILE.errors(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                results = [self._carry_out(asked) for asked in group]
                self._connection.execute("COMMIT")
            self._written = time.monotonic()
        except BaseException as error:
            self._roll_back()
            results = [(asked, None, error) for asked in group]
        self._on_commit(time.perf_counter() - started)
        _wake_waiting(results)

    def _roll_back(self) -> None:
        """Roll back; if that fails, reopen the file, which rolls back from the journal."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            with suppress(StoreError, sqlite3.Error):  # else the next change fails, and it is tried again
                newer = open_server_file(self.path, create=False)
                self._connection.close()
                self._connection = newer

    def _carry_out(self, pending: _PendingChange) -> tuple[_PendingChange, Any, BaseException | None]:
        self._connection.execute("SAVEPOINT change")
        try:
            result = pending.context.run(pending.change, self._connection)
        except BaseException as error:
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
                raise  # the disk or the file: nothing of the group is sure
            self._connection.execute("ROLLBACK TO change")
            self._connection.execute("RELEASE change")
            return pending, None, error
        self._connection.execute("RELEASE change")
        return pending, result, None


def _write_version(db: sqlite3.Connection) -> None:
    """Write an unchanged value: fails if the file cannot be written."""
    db.execute(f"PRAGMA user_version = {SERVER_FILE.version}")


def _wake_waiting(results: list[tuple[_PendingChange, Any, BaseException | None]]) -> None:
    """Resolve futures with one call per event loop, not per change."""
    loops = {asked.loop for asked, _, _ in results}
    for loop in loops:
        settled = [result for result in results if result[0].loop is loop]
        try:
            loop.call_soon_threadsafe(_resolve_futures, settled)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _resolve_futures(results: list[tuple[_PendingChange, Any, BaseException | None]]) -> None:
    for asked, result, error in results:
        if asked.future.done():
            continue
        if error is None:
            asked.future.set_result(result)
        else:
            asked.future.set_exception(error)
