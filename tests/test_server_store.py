"""The store: one writer that commits in groups, readers beside it, other processes that write the same file."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bansong.errors import StoreError
from bansong.server import job_table
from bansong.server import store as group_writer
from bansong.server.store import Store, open_server_file
from serving import rows_of

Change = Callable[[sqlite3.Connection], Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "db.sqlite")
    yield made
    made.close()


def key(name: str) -> Change:
    """A change that adds a key, and returns its name."""

    def add(db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO keys (id, plan, quota, created) VALUES (?, 'business', 1, 0)", (name,))
        return name

    return add


async def held(store: Store) -> threading.Event:
    """Keep the writer busy until the event is set, so that what comes in meanwhile is one group."""
    begun, go = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection) -> None:
        begun.set()
        assert go.wait(30)

    task = asyncio.create_task(store.write(wait))
    while not begun.is_set():
        await asyncio.sleep(0)
    task.add_done_callback(lambda done: done.result())
    return go


def written(store: Store, *changes: Change) -> list[Any]:
    """What becomes of changes that come in while the writer is busy."""

    async def ask() -> list[Any]:
        go = await held(store)
        asked = [asyncio.create_task(store.write(change)) for change in changes]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(ask(), 30))


def names(store: Store) -> list[str]:
    return [name for (name,) in rows_of(store.path, "SELECT id FROM keys ORDER BY id")]


def test_what_waits_is_one_commit_in_order(store: Store) -> None:
    said: list[str] = []
    store._connection.set_trace_callback(said.append)
    wanted = [f"{number:03}" for number in range(100)]
    assert written(store, *map(key, wanted)) == wanted == names(store)
    assert (said.count("COMMIT"), said.count("SAVEPOINT change")) == (2, 101)


def test_a_failing_change_does_not_harm_its_neighbours(store: Store) -> None:
    """A change that raises is undone wholly and alone; an integrity error is such a one."""

    def half_done(db: sqlite3.Connection) -> None:
        key("half")(db)
        raise ValueError("no more")

    found = written(store, key("a"), half_done, key("a"), key("b"))
    assert [type(each) for each in found] == [str, ValueError, sqlite3.IntegrityError, str]
    assert names(store) == ["a", "b"]


def test_what_a_write_returns_is_on_the_disk(store: Store) -> None:
    """While the change runs, no other connection sees it; a reader sees it afterwards, and cannot write."""
    seen: list[list[str]] = []

    def look(db: sqlite3.Connection) -> None:
        key("a")(db)
        seen.append(names(store))

    asyncio.run(store.write(look))
    assert (seen, names(store)) == ([[]], ["a"])
    with pytest.raises(StoreError, match="read-only"):
        asyncio.run(store.read(key("b")))
    assert asyncio.run(store.read(lambda db: db.execute("SELECT id FROM keys").fetchall())) == [("a",)]


def test_an_error_of_the_disk_fails_the_whole_group(store: Store) -> None:
    """When the file cannot grow nothing of the group is kept, each is told so, and the next group is written."""
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]

    def large(db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA max_page_count = {pages}")
        db.execute("UPDATE keys SET note = ?", ("x" * 1_000_000,))

    assert written(store, key("a")) == ["a"]
    found = written(store, key("b"), large, key("c"))
    assert [type(each) for each in found] == [StoreError] * 3
    assert "the disk is full, so nothing was written" in str(found[0])
    assert names(store) == ["a"]
    assert written(store, lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone()) == [(1_000_000,)]
    assert written(store, key("d")) == ["d"]


class Stubborn(sqlite3.Connection):
    """A connection that cannot leave its transaction."""

    def execute(self, statement: str, *more: Any) -> sqlite3.Cursor:
        if statement == "ROLLBACK":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, *more)


def test_a_transaction_that_cannot_be_left_does_not_end_the_writer(store: Store) -> None:
    """When even the rollback fails nothing of the group is kept, and the next is written over a new connection."""
    store._connection.close()
    store._connection = sqlite3.connect(store.path, factory=Stubborn, isolation_level=None, check_same_thread=False)

    def breaks(db: sqlite3.Connection) -> None:
        key("a")(db)
        raise sqlite3.OperationalError("disk I/O error")

    (found,) = written(store, breaks)
    assert (type(found), written(store, key("b")), names(store)) == (StoreError, ["b"], ["b"])


def test_a_file_that_others_hold_for_long_is_said_to_be(store: Store) -> None:
    store._connection.execute("PRAGMA busy_timeout = 50")
    with closing(open_server_file(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process is writing to it for long"):
            asyncio.run(store.write(key("a")))
        other.execute("ROLLBACK")
    assert (written(store, key("b")), names(store)) == (["b"], ["b"])


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    with closing(Store(path)) as store:
        written(store, *(key(f"{number:04}") for number in range(3_000)))
    whole = bytearray(path.read_bytes())
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * (len(whole) - half))
    with closing(Store(path)) as store:
        for ask, query in ((store.write, "UPDATE keys SET note = 'x'"), (store.read, "SELECT * FROM keys")):
            with pytest.raises(StoreError, match="restore it from a backup"):
                asyncio.run(ask(lambda db, query=query: db.execute(query).fetchall()))  # type: ignore[misc]


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server does not start on a read-only file, to fail at each request: it says so, and closes the file."""
    path, readers = tmp_path / "db.sqlite", list[sqlite3.Connection]()
    Store(path).close()

    def read_only(_: Path) -> sqlite3.Connection:
        readers.append(open_server_file(path, writing=False))
        return readers[-1]

    monkeypatch.setattr(group_writer, "open_server_file", read_only)
    with pytest.raises(StoreError, match="is read-only; make it writable"):
        Store(path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        readers[0].execute("SELECT 1")


def test_closing_finishes_what_was_asked(tmp_path: Path) -> None:
    """What was asked before is written, though nobody waits for it any more."""
    store = Store(tmp_path / "db.sqlite")

    async def ask() -> None:
        go = await held(store)
        asked = [asyncio.create_task(store.write(key(name))) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        asked[1].cancel()
        await asyncio.sleep(0)
        threading.Timer(0.01, go.set).start()
        store.close()
        assert await asyncio.gather(asked[0], asked[2]) == ["a", "c"]

    asyncio.run(ask())
    assert names(store) == ["a", "b", "c"]


def test_the_loop_may_be_gone_before_the_commit(store: Store) -> None:
    go = threading.Event()

    async def ask() -> None:
        asyncio.create_task(store.write(lambda _: go.wait(30)))  # noqa: RUF006 - it is let go on purpose
        asyncio.create_task(store.write(key("a")))  # noqa: RUF006
        await asyncio.sleep(0.01)

    asyncio.run(ask())
    go.set()
    assert (written(store, key("b")), names(store)) == (["b"], ["a", "b"])


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from serving import make_key
for _ in range(8):
    make_key(Path(sys.argv[1]))
"""


@pytest.mark.process
def test_two_processes_write_at_once(store: Store) -> None:
    """While another process makes keys in the same file, every write of both is kept."""
    command = [sys.executable, "-c", WRITER, str(store.path), str(Path(__file__).parent)]

    async def ask(process: subprocess.Popen[bytes]) -> int:
        count = 0
        while process.poll() is None:
            await asyncio.gather(*(store.write(key(f"{count}-{number}")) for number in range(5)))
            count += 5
        return count

    with subprocess.Popen(command) as process:
        count = asyncio.run(ask(process))
    assert (process.returncode, len(names(store))) == (0, 8 + count)


def test_the_steps_of_idempotency_can_be_repeated(tmp_path: Path) -> None:
    """Begin, finish and forget may come twice: the first answer stays, and a finished one is not forgotten."""
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        assert job_table.begin_request(db, "k", b"t", b"r", 1.0) is None
        assert job_table.begin_request(db, "k", b"t", b"other", 2.0) == (b"r", 1.0, None)
        for answer in (b"answer", b"another"):
            job_table.finish_request(db, "k", b"t", answer)
        assert not job_table.forget_request(db, "k", b"t")
        assert job_table.find_earlier(db, "k", b"t") == (b"r", 1.0, b"answer")
