"""Watch lists as they are sent: kept in blocks, and always what a fresh reading says."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.server import watch as scheduler
from bansong.server.store import Store
from bansong.server.watch import WatchListCache
from bansong.watch import store as book
from bansong.watch.store import Business
from examples import examples

Do = Callable[[sqlite3.Connection], list[int]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The blocks that are read, of two watches each."""
    found, block = list[int](), book.block
    monkeypatch.setattr(book, "_BLOCK", 2)
    monkeypatch.setattr(book, "block", lambda db, owner, number: (found.append(number), block(db, owner, number))[1])
    return found


@asynccontextmanager
async def opened(path: Path, limit: int = 1 << 20) -> AsyncIterator[tuple[Store, WatchListCache]]:
    store = Store(path)
    try:
        yield store, WatchListCache(store, limit)
    finally:
        store.close()


async def change(store: Store, lists: WatchListCache, owner: str, do: Do) -> None:
    """Change a list as the server does: written, and said when it is on the disk."""
    lists.mark_stale(owner, await store.write(do))


def added(owner: str, *names: int) -> Do:
    def do(db: sqlite3.Connection) -> list[int]:
        watches = [book.add(db, owner, Business(f"{name:010}", f"이름 {name}"), float(name))[0] for name in names]
        return [(book.rendered_entry(db, owner, watch.watch_id) or (0,))[0] for watch in watches]

    return do


def removed(owner: str, place: int) -> Do:
    def do(db: sqlite3.Connection) -> list[int]:
        ids = book.every(db, owner)["watch_id"].to_list()
        return [book.remove(db, owner, ids[place % len(ids)]) or 0] if ids else []

    return do


def checked(owner: str, at: float, count: int) -> Do:
    def do(db: sqlite3.Connection) -> list[int]:
        due = book.due(db, 1e9, count, [owner])
        answer = due.select("number", "name", "address").with_columns(
            biz_status=pl.lit("active"), grade=pl.lit("A"), bounce_prob=pl.lit(0.1), action=pl.lit("send")
        )
        book.record(db, answer, at, at + 10)
        return due["number"].to_list()

    return do


async def watches(lists: WatchListCache, owner: str) -> list[dict[str, Any]]:
    """The list as it is sent."""
    listed = json.loads(b"".join([piece async for piece in await lists.stream(owner)]))
    assert len(listed["watches"]) == listed["total"]
    found: list[dict[str, Any]] = listed["watches"]
    return found


steps = st.tuples(st.sampled_from(("add", "remove", "check", "look")), st.sampled_from("ab"), st.integers(0, 60))


@examples(40)
@given(st.lists(steps, min_size=3, max_size=30), st.sampled_from((0, 700, 1 << 20)))
def test_a_list_is_what_a_fresh_reading_says(
    tmp_path_factory: pytest.TempPathFactory, read: list[int], done: list[tuple[str, str, int]], limit: int
) -> None:
    """After any additions, removals and checks, whatever was kept and what dropped."""

    async def main() -> None:
        async with opened(tmp_path_factory.mktemp("lists") / "db.sqlite", limit) as (store, lists):
            for at, (what, owner, place) in enumerate([*done, ("look", "a", 0), ("look", "b", 0)]):
                do = {
                    "add": added(owner, place, place + 100),
                    "remove": removed(owner, place),
                    "check": checked(owner, float(at), place % 5 + 1),
                }.get(what)
                if do is not None:
                    await change(store, lists, owner, do)
                    continue
                fresh = await store.read(lambda db, owner=owner: book.every(db, owner))  # type: ignore[misc]
                found = [(entry["watch_id"], entry["grade"]) for entry in await watches(lists, owner)]
                assert found == fresh.select("watch_id", "grade").rows()

    anyio.run(main)


def test_what_is_read_while_others_write_is_never_old(tmp_path: Path, read: list[int]) -> None:
    """Asked for by many while others change it, a list shows what was acknowledged before it was asked for."""
    grown: set[str] = set()

    async def write(store: Store, lists: WatchListCache, begin: int) -> None:
        for name in range(begin, begin + 20):
            await change(store, lists, "a", added("a", name))
            grown.add(f"{name:010}")
            await anyio.sleep(random.random() / 1000)

    async def look(lists: WatchListCache) -> None:
        for _ in range(30):
            before = set(grown)
            assert before <= {entry["biz_no"] for entry in await watches(lists, "a")}

    async def main() -> None:
        async with opened(tmp_path / "db.sqlite") as (store, lists), anyio.create_task_group() as group:
            for begin in (0, 100, 200):
                group.start_soon(write, store, lists, begin)
                group.start_soon(look, lists)

    anyio.run(main)


class Held:
    """A store whose readings end when a test says so, with what was in the file when they began."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0
        self.began, self.go_on = anyio.Event(), anyio.Event()
        self.fails = False

    async def read(self, query: Callable[[sqlite3.Connection], Any]) -> Any:
        found = await self._store.read(query)
        self.asked += 1
        self.began.set()
        await self.go_on.wait()
        if self.fails:
            raise OSError("no")
        return found


def test_a_change_during_a_reading_is_read_again(tmp_path: Path) -> None:
    """Be the list new or kept; so is what a failed reading left."""

    async def main() -> None:
        async with opened(tmp_path / "db.sqlite") as (store, _):
            held = Held(store)
            lists = WatchListCache(held)  # type: ignore[arg-type]
            await change(store, lists, "a", added("a", 0))
            for name in (1, 2):
                held.began, held.go_on = anyio.Event(), anyio.Event()
                async with anyio.create_task_group() as group:
                    group.start_soon(watches, lists, "a")
                    await held.began.wait()
                    await change(store, lists, "a", added("a", name))
                    held.go_on.set()
                assert len(await watches(lists, "a")) == name + 1
                lists.mark_stale("a", [1])
            held.fails = True
            with pytest.raises(OSError, match="no"):
                await lists.stream("a")
            held.fails, before = False, held.asked
            for _ in range(2):
                assert (len(await watches(lists, "a")), held.asked) == (3, before + 1)

    anyio.run(main)


def test_a_list_that_is_not_kept_is_read_as_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    """Of a long list no more than a few pieces are in memory, however slowly it is taken: the rest is not read yet."""
    monkeypatch.setattr(scheduler, "_PIECE_BYTES", 2_000)

    async def main() -> None:
        async with opened(tmp_path / "db.sqlite", 0) as (store, lists):
            await change(store, lists, "a", added("a", *range(100)))
            pieces = await lists.stream("a")
            assert len(read) < 5
            assert max([len(piece) async for piece in pieces]) < 4_000
            assert (len(read), lists._size) == (26, 0)

    anyio.run(main)


def test_only_what_changed_is_read(tmp_path: Path, read: list[int]) -> None:
    """After a change one block is read, not the list; beyond the bound lists are dropped, the longest unasked first."""

    async def main() -> None:
        async with opened(tmp_path / "db.sqlite", 13_000) as (store, lists):

            async def asked(owner: str) -> list[int]:
                read.clear()
                await watches(lists, owner)
                return sorted(read)

            for owner in "ab":
                await change(store, lists, owner, added(owner, *range(16)))
            assert await asked("a") == [0, 1, 2, 3, 4]
            await change(store, lists, "a", added("a", 99))
            assert await asked("a") == [8]
            await change(store, lists, "a", removed("a", 5))
            assert await asked("a") == [1]
            assert await asked("b") == [4, 5, 6, 7, 8]
            assert (await asked("a"), await asked("b")) == ([], [])
            await change(store, lists, "c", added("c", *range(24)))
            assert len(await asked("c")) > 5
            assert (await asked("b"), len(await asked("a"))) == ([], 6)
            await change(store, lists, "d", added("d", *range(100)))
            assert len(await asked("d")) > len(await asked("d")) > 5
            assert (await asked("a"), lists._size <= 13_000) == ([0, 1, 2, 3, 4, 8], True)

    anyio.run(main)
