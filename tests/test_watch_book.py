"""The watch list's database: changes of grade and closures under any sequence of checks, and what is told of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.notify import queue as notifications
from bansong.watch import store
from bansong.watch.store import DDL, VERDICT_COLUMNS, Business, CheckResult
from examples import examples

OWNER = "k1"
NUMBER = "1248100998"


def database() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(DDL)
    db.execute("PRAGMA foreign_keys = ON")
    return db


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(database()) as connection:
        yield connection


def answered(watches: pl.DataFrame, status: str | None, grade: str | None) -> pl.DataFrame:
    found = {"biz_status": status, "grade": grade, "bounce_prob": 0.5, "action": "confirm"}
    return watches.select(
        "number", "name", "address", *(pl.lit(v, VERDICT_COLUMNS[k]).alias(k) for k, v in found.items())
    )


def found(
    db: sqlite3.Connection, status: str | None, grade: str | None, now: float, channels: tuple[str, ...] = ("file",)
) -> CheckResult:
    return store.record(db, answered(store.due(db, 1e12, 10_000), status, grade), now, now + 100, channels)


def payloads(db: sqlite3.Connection) -> list[dict[str, Any]]:
    return [json.loads(text) for (text,) in db.execute("SELECT payload FROM notices ORDER BY number")]


def test_a_closure_is_told_with_what_was_before(db: sqlite3.Connection) -> None:
    store.add(db, OWNER, Business(NUMBER, '이름 "가"\n', "서울"), 1.0)
    found(db, "active", "B", 2.0)
    assert found(db, "closed", "E", 1_700_000_000.0).closures.height == 1
    (notice,) = payloads(db)
    assert notice.pop("id")
    assert notice.pop("watch_id")
    assert notice == {
        "event": "closure",
        "biz_no": NUMBER,
        "name": '이름 "가"\n',
        "address": "서울",
        "biz_status": "closed",
        "status_before": "active",
        "grade_before": "B",
        "grade_after": "E",
        "detected_at": "2023-11-15T07:13:20+09:00",
    }


def gathered(db: sqlite3.Connection, number: str, now: float, channels: tuple[str, ...] = ("file",)) -> int:
    """Add a closed business and check it, half a minute of gathering; how many notices there are then."""
    store.add(db, OWNER, Business(number), now)
    checked = answered(store.due(db, now, 10), "closed", "E")
    store.record(db, checked, now, 1e9, channels, notifications.SummaryWindow(now - 30, now + 30))
    return len(payloads(db))


def test_a_summary_gathers_what_is_found_soon_after(db: sqlite3.Connection) -> None:
    assert [gathered(db, "1", 100.0), gathered(db, "2", 120.0)] == [1, 1]
    assert (payloads(db)[0]["closed"], payloads(db)[0]["biz_nos"]) == (2, ["1", "2"])
    assert notifications.due_deliveries(db, 129.0, 10) == []
    assert gathered(db, "3", 126.0) == 2  # the first is due in four seconds, and may be under way
    assert gathered(db, "4", 127.0, ("file", "webhook")) == 3  # a webhook was set meanwhile
    assert gathered(db, "5", 140.0, ("file", "webhook")) == 3
    (delivery, *_) = notifications.due_deliveries(db, 1e12, 10, channel="webhook")
    notifications.mark_failed(db, [(delivery.number, "webhook", "answered 500", 1e9)])
    assert gathered(db, "6", 141.0, ("file", "webhook")) == 4
    told = [number for payload in payloads(db) for number in payload["biz_nos"]]
    assert sorted(told) == ["1", "2", "3", "4", "5", "6"]


def test_many_are_added_as_one_is(db: sqlite3.Connection) -> None:
    assert store.add_many(db, OWNER, [Business("1", "가", "서울"), Business("2")], 1.0) == store.Added(2, 0)
    found(db, "active", "A", 2.0)
    assert store.add_many(
        db, OWNER, [Business("1", None, "부산"), Business("2", ""), Business("3")], 3.0
    ) == store.Added(1, 1)
    watches = {watch["biz_no"]: watch for watch in store.every(db, OWNER).to_dicts()}
    assert [watches["1"][name] for name in ("name", "address", "due")] == ["가", "부산", 3.0]
    assert [watches["2"][name] for name in ("name", "due")] == [None, 102.0]
    assert (store.count(db, OWNER), store.remove_many(db, "other", [watches["1"]["watch_id"]])) == (3, 0)
    assert store.remove_many(db, OWNER, [watches["1"]["watch_id"], watches["3"]["watch_id"], "none"]) == 2
    assert (store.count(db, OWNER), store.count(db, "other")) == (1, 0)


def test_the_longest_waiting_come_first(db: sqlite3.Connection) -> None:
    for at, number in enumerate(("1", "2", "3"), 1):
        store.add(db, "k1", Business(number), float(at))
    store.add(db, "k2", Business("4"), 0.5)
    assert store.due(db, 2.5, 9)["biz_no"].to_list() == ["4", "1", "2"]
    assert store.due(db, 9.0, 2, ["k1"])["biz_no"].to_list() == ["1", "2"]
    assert store.next_due(db, "k1") == 1.0
    assert store.due(db, 9.0, 2, [])["biz_no"].to_list() == []


def test_a_delivery_ends_when_it_is_acknowledged(db: sqlite3.Connection) -> None:
    store.add(db, OWNER, Business(NUMBER), 1.0)
    found(db, "closed", "E", 2.0, ("file", "webhook"))
    first, second = notifications.due_deliveries(db, 2.0, 10)
    assert (first.channel, second.channel, first.id == second.id) == ("file", "webhook", True)
    notifications.mark_failed(db, [(first.number, "file", "disk full", 50.0)])
    notifications.mark_delivered(db, [(second.number, "webhook")], 3.0)
    notifications.mark_failed(db, [(second.number, "webhook", "late", 4.0)])
    assert notifications.due_deliveries(db, 49.0, 10) == []
    (again,) = notifications.due_deliveries(db, 50.0, 10)
    assert (again.attempts, again.error, again.payload) == (1, "disk full", first.payload)
    notifications.mark_failed(db, [(first.number, "file", "gone", None)])
    assert notifications.due_deliveries(db, 1e12, 10) == []
    assert [one.error for one in notifications.list_undelivered(db, OWNER)] == ["gone"]
    assert notifications.purge(db, 1e12) == 0
    assert notifications.retry(db, 60.0, owner="other") == 0
    assert notifications.retry(db, 60.0) == 1
    (again,) = notifications.due_deliveries(db, 60.0, 10)
    notifications.mark_delivered(db, [(again.number, "file")], 61.0)
    assert (notifications.list_undelivered(db), notifications.retry(db, 62.0), notifications.purge(db, 2.5)) == (
        [],
        0,
        1,
    )


def test_a_channel_that_fails_is_left_alone(db: sqlite3.Connection) -> None:
    store.add_many(db, OWNER, [Business("1"), Business("2")], 1.0)
    found(db, "active", "B", 1.0)
    found(db, "closed", "E", 2.0, ("webhook",))
    first, second = notifications.due_deliveries(db, 2.0, 10, owner=OWNER, channel="webhook")
    assert notifications.due_channels(db, 2.0) == [(OWNER, "webhook")]
    notifications.mark_failed(db, [(first.number, "webhook", "answered 500", 32.0)])
    notifications.postpone(db, OWNER, "webhook", 32.0)
    assert (notifications.due_channels(db, 31.0), notifications.next_due(db, 31.0)) == ([], 32.0)
    assert [one.number for one in notifications.due_deliveries(db, 32.0, 10)] == [second.number, first.number]


STATUS = st.sampled_from(["active", "suspended", "closed", "unregistered", "unknown", None])
CHECKS = st.lists(st.tuples(STATUS, st.sampled_from(["A", "C", "E", None]), st.booleans()), max_size=12)


@examples(160)
@given(CHECKS)
def test_any_sequence_of_checks(checks: list[tuple[str | None, str | None, bool]]) -> None:
    with closing(database()) as db:
        watch, _ = store.add(db, OWNER, Business(NUMBER, "가"), 0.0)
        status = grade = None
        closed = checked = False
        wanted_history: list[tuple[str | None, str | None]] = []
        wanted_notices = 0
        for at, (new_status, new_grade, acknowledge) in enumerate(checks, 1):
            found(db, new_status, new_grade, float(at))
            if new_status == "closed" and not closed:
                wanted_notices += 1
            closed = new_status == "closed" or (closed and new_status not in ("active", "suspended"))
            if new_status not in ("unknown", None) or status in ("unknown", None):
                if checked and new_grade != grade:
                    wanted_history.append((grade, new_grade))
                status, grade = new_status, new_grade
            checked = True
            if acknowledge:
                for delivery in notifications.due_deliveries(db, 1e12, 10):
                    notifications.mark_delivered(db, [(delivery.number, "file")], float(at))
                assert notifications.list_undelivered(db) == []
            stored = store.get(db, OWNER, watch.watch_id)
            assert stored is not None
            assert (stored.biz_status, stored.grade, stored.closed is not None) == (status, grade, closed)
        history = store.history(db, OWNER, watch.watch_id)
        assert history is not None
        assert [(change.before, change.after) for change in history] == wanted_history
        made = payloads(db)
        assert len(made) == wanted_notices == len({notice["id"] for notice in made})


def test_closed_when_first_known_is_one_summary(db: sqlite3.Connection) -> None:
    store.add_many(db, OWNER, [Business(str(number)) for number in range(3)], 1.0)
    found(db, "unknown", "C", 2.0)
    store.add_many(db, OWNER, [Business("3")], 2.0)
    store.add(db, "k2", Business("other"), 1.0)
    recorded = found(db, "closed", "E", 1_700_000_000.0)
    assert (recorded.closures.height, recorded.closed_already.height) == (0, 5)
    mine, others = payloads(db)
    assert mine.pop("id") != others.pop("id")
    summary = {"event": "closed_already", "closed": 4, "biz_nos": ["0", "1", "2", "3"]}
    assert mine == summary | {"detected_at": "2023-11-15T07:13:20+09:00"}
    assert others["biz_nos"] == ["other"]
    assert found(db, "closed", "E", 1_700_000_001.0).closed_already.is_empty()


def test_an_answer_about_another_name_or_a_removed_watch_is_not_recorded(db: sqlite3.Connection) -> None:
    for name, again in (("나", "changed"), (None, "added")):
        watch, _ = store.add(db, OWNER, Business(NUMBER, "가"), 1.0)
        checked = answered(store.due(db, 2.0, 10), "closed", "E")
        if again == "added":
            assert store.remove(db, OWNER, watch.watch_id)
        later, done = store.add(db, OWNER, Business(NUMBER, name), 2.0)
        assert (done, later.watch_id == watch.watch_id) == (again, again == "changed")
        assert store.record(db, checked, 3.0, 103.0, ("file",)).watches.is_empty()
        stored = store.get(db, OWNER, later.watch_id)
        assert stored is not None
        assert (stored.checked, stored.due, payloads(db)) == (None, 2.0, [])
