"""The status store: what was fetched is there, the newest day wins, and several processes write beside each other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from bansong.engine.registry import STATUS_DTYPE, STATUS_SCHEMA
from bansong.errors import StoreError
from bansong.reference.status_store import DayUsage, StatusStore, StoreSummary, find_status_store

TODAY = date(2026, 11, 23)


def statuses(
    numbers: list[int], status: str = "active", as_of: date = TODAY, taxation: str | None = "general"
) -> pl.DataFrame:
    rows = [(number, status, None, None, as_of, taxation, False) for number in numbers]
    return pl.DataFrame(rows, schema=STATUS_SCHEMA, orient="row")


def numbers(*values: int) -> pl.Series:
    return pl.Series("b_no", values, pl.UInt64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StatusStore]:
    with StatusStore(tmp_path / "statuses.sqlite") as opened:
        yield opened


def test_what_is_written_is_read_as_it_was(store: StatusStore) -> None:
    frame = statuses([1248100998, 2208162517]).with_columns(since=pl.Series([None, date(2020, 1, 2)]))
    store.write(frame)
    assert store.read().equals(frame)
    assert store.read(numbers(2208162517, 1, 1248100998)).equals(frame.reverse())
    assert store.read(numbers()).schema == pl.Schema(STATUS_SCHEMA)


def test_the_newest_day_of_a_number_wins(store: StatusStore) -> None:
    store.write(statuses([1248100998]))
    store.write(statuses([1248100998], "closed", date(2026, 11, 22)))
    assert store.read()["biz_status"].to_list() == ["active"]
    store.write(statuses([1248100998], "closed", taxation=None))
    assert store.read().select("biz_status", "taxation").row(0) == ("closed", "general")


def test_a_status_of_a_day_to_come_is_asked_again_and_replaced(store: StatusStore) -> None:
    """A clock that was wrong once leaves no status that counts as fresh for years, and that no answer replaces."""
    store.write(statuses([1248100998], as_of=date(2036, 1, 1)))
    assert store.stale(numbers(1248100998), 30, TODAY).rows() == [(1248100998, None)]
    store.write(statuses([1248100998], "closed"), today=TODAY)
    assert store.read().select("biz_status", "as_of").rows() == [("closed", TODAY)]
    assert store.stale(numbers(1248100998), 30, TODAY).is_empty()


def test_unknown_and_oldest_numbers_are_asked_first(store: StatusStore) -> None:
    store.write(statuses([11], as_of=date(2026, 10, 24)), unanswered=numbers(14), today=TODAY)
    store.write(statuses([12], as_of=date(2026, 10, 23)))
    store.write(statuses([13], as_of=date(2026, 10, 1)))
    asked = numbers(11, 12, 13, 14, 15)
    assert store.stale(asked, 30, TODAY).rows() == [(15, None), (13, date(2026, 10, 1)), (12, date(2026, 10, 23))]
    assert store.stale(asked, 31, date(2026, 11, 24))["b_no"].to_list() == [14, 15, 13, 12]


def test_a_day_s_usage_adds_up_by_key(store: StatusStore) -> None:
    store.write(usage={("a", TODAY): DayUsage(100, 1)})
    store.write(usage={("a", TODAY): DayUsage(50, 1, exhausted=True), ("b", TODAY): DayUsage(7, 1)})
    store.write(usage={("a", TODAY): DayUsage(1, 1)})
    assert store.usage("a", TODAY) == DayUsage(151, 3, exhausted=True)
    assert store.usage("b", TODAY) == DayUsage(7, 1)
    assert store.usage("a", date(2026, 11, 24)) == DayUsage()


def test_a_forgotten_number_is_gone(store: StatusStore) -> None:
    store.write(statuses([1248100998, 2208162517]), unanswered=numbers(3), today=TODAY)
    assert (store.forget(1248100998), store.forget(3), store.forget(4)) == (1, 1, 0)
    assert store.summary() == StoreSummary(1, TODAY, TODAY)


def test_the_file_is_private_and_no_other_is_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "statuses.sqlite"
    assert find_status_store(path) is None
    StatusStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o600 or sys.platform == "win32"
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"b_no,status\n")
    with pytest.raises(StoreError, match=r"other\.sqlite: is not a status store"):
        StatusStore(other)


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from test_status_store import *
with StatusStore(sys.argv[1]) as store:
    for place in range(40):
        first = int(sys.argv[2]) + place * 10
        store.write(statuses(list(range(first, first + 10))), usage={("k", TODAY): DayUsage(10, 1)})
"""


@pytest.mark.process
def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "statuses.sqlite"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, str(first), str(Path(__file__).parent)]) for first in (1000, 2000, 1200)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    with StatusStore(path) as store:
        assert store.read()["b_no"].to_list() == [*range(1000, 1600), *range(2000, 2400)]
        assert store.usage("k", TODAY) == DayUsage(1200, 120)


def test_a_group_with_a_row_without_a_day_is_not_stored(store: StatusStore) -> None:
    frame = pl.concat([statuses([1]), statuses([2]).with_columns(as_of=pl.lit(None, pl.Date))])
    with pytest.raises(StoreError, match="used against its rules"):
        store.write(frame)
    assert store.read().is_empty()
    assert store.read().schema["biz_status"] == STATUS_DTYPE
