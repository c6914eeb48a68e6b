"""The watch list of the server: the checks by plan and clock, and closures told to file and webhook."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import polars as pl
import pytest
from click.testing import CliRunner, Result

import bansong as bs
from bansong import watch
from bansong.cli.app import app as command_line
from bansong.engine.local import LocalEngine
from bansong.server import keys as key_table
from bansong.server.payloads import WatchListPayload
from bansong.server.settings import ServicePlan
from bansong.server.store import open_server_file
from bansong.watch import store
from bansong.watch.store import Business
from handclock import HandClock
from hooks import OK, Answer, Received, receiving
from serving import NUMBER, Account, Served, hosted, refused, rows_of, served

OTHER = "2208162517"
PLAN = ServicePlan(True, 100, True, 5, 24, 1_000_000, 1_000, 2)  # five watches, checked once a day
CLOSED = {NUMBER: "폐업자", OTHER: "폐업자"}


def registry(folder: Path, statuses: dict[str, str]) -> Path:
    """Build a registry in the place of the one before."""
    source, built = folder / "source.csv", folder / "built.parquet"
    source.write_text("\n".join(["사업자등록번호,사업자상태", *map(",".join, statuses.items()), ""]), "utf-8")
    bs.build_registry([source], built)
    return built.replace(folder / "registry.parquet")


@dataclass(frozen=True)
class Watcher(Account):
    """A key that watches, and the secret that its webhook signs with."""

    signing: str = ""

    def watch(self, number: str = NUMBER, **more: Any) -> httpx.Response:
        return self.ask("POST", "/watch", json={"biz_no": number, **more})

    def list(self) -> list[dict[str, Any]]:
        return list(self.get("/watch")["watches"])

    def is_checked(self) -> bool:
        return all(entry["checked_at"] for entry in self.list())


def watcher(server: Served, plan: str = "business", webhook: str | None = None) -> Watcher:
    made = server.account(plan)
    with closing(open_server_file(server.db)) as db:
        return Watcher(server, made.secret, key_table.set_webhook(db, made.id, webhook) or "")


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@contextmanager
def serving(
    tmp_path: Path, hand: HandClock, webhook: str | None = None, known: dict[str, str] | None = None, **settings: Any
) -> Iterator[tuple[Served, Watcher]]:
    """A server whose time stands still, what its registry says, and one key."""
    path = None if known is None else registry(tmp_path, known)
    networks = {"webhook_networks": (ip_network("127.0.0.0/8"),)}
    with hosted(tmp_path / "db.sqlite", hand.clock, registry=path, **networks | settings) as server:
        yield server, watcher(server, webhook=webhook)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def known_open(db: Path) -> None:
    """It is known that the businesses that are watched now are open: those found closed have closed since."""
    with closing(open_server_file(db)) as connection:
        connection.execute("UPDATE watches SET biz_status = 'active', grade = 'B'")


def notices(server: Served, *words: object) -> Any:
    return json.loads(run("notices", *words, "--db", server.db, "--json").stdout)


def run(*words: object) -> Result:
    return CliRunner().invoke(command_line, [str(word) for word in words], catch_exceptions=False)


def a_day_later(hand: HandClock, *keys: Watcher) -> None:
    """All that is watched was checked."""
    hand.forward(days=1)
    hand.until(lambda: all(key.is_checked() for key in keys), seconds=1)


# -------------------------------------------------------------------------------------------------- list and plan


def test_the_watch_list_is_no_lookup_without_quota(tmp_path: Path, hand: HandClock) -> None:
    """A number that is added, changed, removed and added again shows no status, nor is it due sooner."""
    with serving(tmp_path, hand, known=CLOSED) as (_, key):
        shown, due = set(), []

        def has_waited(until: float) -> bool:
            shown.update((one["biz_status"], one["grade"]) for one in key.list())
            return hand.seconds >= until

        for _ in range(2):
            entry = key.watch(name="가").json()
            due.append(entry["next_check_at"])
            hand.until(partial(has_waited, hand.seconds + 11 * 3600), hours=1)
            key.ask("DELETE", f"/watch/{entry['watch_id']}")
        assert (shown, due) == ({(None, None)}, sorted(due))
        key.watch(name="가", address="서울")
        a_day_later(hand, key)
        (before,) = key.list()
        changed = key.watch(name="나", address="부산 해운대구 우동 1").json()
        assert [changed[name] for name in ("next_check_at", "biz_status")] == [before["next_check_at"], "closed"]
        hand.forward(hours=6)
        assert key.list() == [changed]
        hand.until(lambda: key.list()[0]["checked_at"] > before["checked_at"], hours=1)
        assert key.used() == 0


def test_a_plan_bounds_the_list_and_its_changes_a_month(tmp_path: Path, hand: HandClock) -> None:
    """Additions and changes beyond a bound are refused with all of it; a removal never is."""
    plans = {"business": msgspec.structs.replace(PLAN, watches=1, watch_changes=4, watch_history=False)}
    with serving(tmp_path, hand, plans=plans) as (_, key):
        watch_id = key.watch(name="가").json()["watch_id"]
        full = key.watch(OTHER)
        assert (*refused(full), full.json()["error"]["limit"], full.json()["error"]["used"]) == (
            409,
            "watch_limit",
            1,
            1,
        )
        assert refused(key.ask("GET", f"/watch/{watch_id}/history")) == (403, "not_in_plan")
        assert [key.watch(name="가").status_code for _ in range(5)] == [200] * 5, "nothing new is no change"
        assert key.watch(name="나").status_code == 200
        key.ask("DELETE", f"/watch/{watch_id}")
        kept = key.watch(OTHER).json()["watch_id"]
        month = {"limit": 4, "used": 4, "remaining": 0, "month": "2026-11", "resets_at": "2026-12-01T00:00:00+09:00"}
        assert key.get("/me")["watch_changes"] == month
        answer = key.watch(OTHER, name="다")
        error = answer.json()["error"]
        assert (*refused(answer), error["bound"]) == (429, "limit_exceeded", "watch_changes")
        assert (error["limit"], error["used"], error["resets_at"]) == (4, 4, month["resets_at"])
        assert int(answer.headers["Retry-After"]) == round(10.5 * 86400)
        assert [entry["name"] for entry in key.list()] == [None]
        assert key.ask("DELETE", f"/watch/{kept}").status_code == 200
        assert key.get("/me")["watch_changes"]["used"] == 5
        hand.forward(days=11)
        assert key.watch().status_code == 201
        assert key.get("/me")["watch_changes"]["used"] == 1


def test_a_sync_says_when_the_first_check_is_and_stops_at_the_bound(tmp_path: Path, hand: HandClock) -> None:
    """At the month's bound it removes what goes, and pauses."""
    file = tmp_path / "customers.csv"
    plans = {"business": msgspec.structs.replace(PLAN, watches=50, watch_changes=6)}
    with served(tmp_path / "db.sqlite", hand.clock, plans=plans) as server:
        key = watcher(server)
        terms: Any = {"base_url": server.url, "api_key": key.secret, "apply": True, "force": True}
        file.write_text("\n".join(["사업자번호", *(f"{n:010}" for n in range(1, 6))]), "utf-8")
        made = watch.sync(file, **terms)
        assert (made.exit_code, made.done.added) == (0, 5)
        due = max(datetime.fromisoformat(entry["next_check_at"]) for entry in key.list())
        assert datetime.fromisoformat(str(made.as_dict()["first_check_by"])) == due
        file.write_text("\n".join(["사업자번호", *(f"{n:010}" for n in range(4, 14))]), "utf-8")
        paused = watch.sync(file, **terms, concurrency=1)
        assert (paused.exit_code, paused.done.added, paused.done.removed, paused.left) == (5, 1, 3, 7)
        assert paused.done.halt is not None
        assert (paused.done.halt.why, "2026-12-01" in str(paused)) == ("limit", True)
        hand.forward(days=11)
        assert (watch.sync(file, **terms).done.added, len(key.list())) == (6, 9)


def test_a_long_list_comes_whole(tmp_path: Path, hand: HandClock) -> None:
    """A list of megabytes is sent in pieces, and is complete, typed as described, and in order."""
    with serving(tmp_path, hand) as (server, key):
        with closing(open_server_file(server.db)) as db:
            db.execute("BEGIN IMMEDIATE")
            entries = (Business(f"{n:010}", "이름" * 10, "서울 중구 세종대로 110") for n in range(1, 8_001))
            store.add_many(db, key.id, entries, hand.seconds)
            db.execute("UPDATE watches SET due = ?", (hand.seconds + 86400,))
            db.execute("COMMIT")
        for _ in range(2):  # read, then kept
            listed = msgspec.json.decode(key.ask("GET", "/watch").content, type=WatchListPayload)
            assert listed.total == 8_000
            assert [entry.biz_no for entry in listed.watches] == [f"{n:010}" for n in range(1, 8_001)]


# --------------------------------------------------------------------------------------------------------- checks


def test_first_checks_are_spread_and_later_ones_come_as_the_plan_says(tmp_path: Path, hand: HandClock) -> None:
    """First in the second half of the interval, at a dozen times; then at most a tenth earlier than it ends."""
    plan, began = msgspec.structs.replace(PLAN, watches=60, watch_changes=60), hand.seconds
    plans = {"business": plan, "often": msgspec.structs.replace(plan, recheck_hours=1)}
    with serving(tmp_path, hand, plans=plans) as (server, key):
        often = watcher(server, "often")
        for number in range(40):
            key.watch(f"{number + 1:010}")
        for number in (NUMBER, OTHER):
            often.watch(number)
        waits = [due - began for (due,) in rows_of(server.db, "SELECT due FROM watches WHERE owner = ?", key.id)]
        assert 12 * 3600 <= min(waits) <= max(waits) <= 24 * 3600
        assert 6 <= len({round(wait) for wait in waits}) <= 13
        a_day_later(hand, key, often)
        rows = rows_of(server.db, "SELECT owner, due - checked FROM watches")
        for one, hours in ((key, 24), (often, 1)):
            waits = [wait for owner, wait in rows if owner == one.id]
            assert all(0.9 * hours * 3600 <= wait <= hours * 3600 for wait in waits)
            assert len(set(waits)) == len(waits)
        first = [one.list()[0]["checked_at"] for one in (key, often)]
        hand.until(lambda: often.list()[0]["checked_at"] > first[1], minutes=20)
        assert key.list()[0]["checked_at"] == first[0]


class Closing:
    """A slow source that knows every business to be closed."""

    live = True

    def __init__(self, hand: HandClock) -> None:
        self._hand = hand

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        self._hand.forward(hours=5)
        return engine.answer(rows).with_columns(biz_status=pl.lit("closed"))


def test_a_source_that_knows_better_is_asked_and_makes_the_next_check_no_later(tmp_path: Path, hand: HandClock) -> None:
    """The plan's hours count from when a check began."""
    with serving(tmp_path, hand, status_sources=[Closing(hand)]) as (server, key):
        key.watch()
        a_day_later(hand, key)
        assert key.list()[0]["biz_status"] == "closed"
        ((wait,),) = rows_of(server.db, "SELECT due - checked FROM watches")
        assert wait <= 19 * 3600


def test_who_is_not_served_is_not_checked(tmp_path: Path, hand: HandClock) -> None:
    """The watches of a revoked key, and of one whose plan has no API any more, are left alone."""
    with serving(tmp_path, hand) as (server, key):
        others = [watcher(server) for _ in range(2)]
        for one in (key, *others):
            one.watch()
        a_day_later(hand, key, *others)
        with closing(open_server_file(server.db)) as db:
            key_table.revoke_key(db, others[0].id, hand.seconds)
            key_table.change_key(db, others[1].id, {"plan": "free"})
        query = "SELECT checked FROM watches ORDER BY number"
        before = rows_of(server.db, query)
        hand.until(lambda: rows_of(server.db, query)[0] > before[0], hours=1)
        assert rows_of(server.db, query)[1:] == before[1:]


def test_an_engine_that_fails_loses_nothing(
    tmp_path: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the engine fails watches stay due, are tried again more and more seldom, and are checked when it works."""
    asked, works = list[float](), LocalEngine.answer

    def answer(self: LocalEngine, frame: Any) -> Any:
        if "number" in frame.collect_schema().names():
            asked.append(hand.seconds)
            if len(asked) < 4:
                raise RuntimeError("가나다 1248100998")
        return works(self, frame)

    monkeypatch.setattr(LocalEngine, "answer", answer)
    with serving(tmp_path, hand) as (_, key):
        key.watch(name="가나다")
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=5)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert [pause >= least for pause, least in zip(pauses, (5, 30, 120), strict=True)] == [True] * 3
    assert "not checked" in caplog.text
    assert not [secret for secret in ("가나다", NUMBER) if secret in caplog.text]


def test_one_key_that_fails_does_not_keep_the_others(
    tmp_path: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what was found cannot be written down for one key, or its engine panics, the next one's are checked."""
    with serving(tmp_path, hand) as (server, key):
        first, second, third = sorted((key, watcher(server), watcher(server)), key=lambda one: one.id)
        ids = {first.id: ValueError("no"), second.id: pl.exceptions.PanicException("no")}
        works = store.record

        def record(db: sqlite3.Connection, checked: Any, *more: Any) -> Any:
            ((owner,),) = db.execute("SELECT owner FROM watches WHERE number = ?", checked["number"][:1])
            if owner in ids:
                raise ids[owner]
            return works(db, checked, *more)

        monkeypatch.setattr(store, "record", record)
        for one in (first, second, third):
            one.watch()
        a_day_later(hand, third)
        assert not first.is_checked()
        assert not second.is_checked()
        monkeypatch.undo()
        hand.until(lambda: first.is_checked() and second.is_checked(), seconds=10)


def test_no_watch_waits_longer_than_its_plan_says(tmp_path: Path, hand: HandClock) -> None:
    """Neither a better plan nor a clock that was a year ahead leaves watches waiting for what was due then."""
    plans = {"business": PLAN, "seldom": msgspec.structs.replace(PLAN, recheck_hours=720)}
    with serving(tmp_path, hand, plans=plans) as (server, _):
        key = watcher(server, "seldom")
        key.watch()
        hand.forward(days=30)
        hand.until(key.is_checked, seconds=1)
        (before,) = key.list()
        with closing(open_server_file(server.db)) as db:
            key_table.change_key(db, key.id, {"plan": "business"})
        hand.until(lambda: key.list()[0]["next_check_at"] < before["next_check_at"], seconds=10)
        assert rows_of(server.db, "SELECT due FROM watches")[0][0] <= hand.seconds + 24 * 3600
        began = hand.seconds
        hand.forward(days=366)
        hand.until(lambda: key.list()[0]["checked_at"] > before["next_check_at"], seconds=1)
        (ahead,) = key.list()
        hand.forward(days=-366)
        hand.until(lambda: key.list()[0]["checked_at"] < ahead["checked_at"], hours=1)
        assert hand.seconds < began + 5 * 86400


# -------------------------------------------------------------------------------------------------------- notices


def test_a_closure_is_told_on_both_channels(tmp_path: Path, hand: HandClock) -> None:
    """A registry replaced while serving: the closure is in the history, once in the file and once at the webhook."""
    file, active = tmp_path / "closures.jsonl", dict.fromkeys((NUMBER, OTHER), "계속사업자")
    with receiving() as receiver, serving(tmp_path, hand, receiver.url, active, notices=file) as (server, key):
        watch_id = key.watch(name="삼성전자", address="경기 수원시 영통구 삼성로 129").json()["watch_id"]
        key.watch(OTHER)
        a_day_later(hand, key)
        assert [entry["biz_status"] for entry in key.list()] == ["active", "active"]
        assert (key.get(f"/watch/{watch_id}/history")["history"], lines(file), receiver.received) == ([], [], [])
        before = key.list()[0]["grade"]
        registry(tmp_path, active | {NUMBER: "폐업자"})
        hand.until(lambda: bool(lines(file) and receiver.received), hours=1)
        hand.forward(days=3)
        hand.until(lambda: key.list()[0]["checked_at"] > key.list()[0]["closed_at"], hours=1)
        (got,), (line,) = receiver.received, lines(file)
        assert got.notice == line
        assert got.is_signed(key.signing, hand.seconds, tolerance=90 * 86400)
        assert got.headers["X-Bizverify-Delivery"] == line["id"]
        (change,), after = key.get(f"/watch/{watch_id}/history")["history"], key.list()[0]["grade"]
        assert change == {"at": line["detected_at"], "before": before, "after": after, "biz_status": "closed"}
        wanted = {"event": "closure", "watch_id": watch_id, "biz_no": NUMBER, "biz_status": "closed"}
        wanted |= {"status_before": "active", "grade_before": before, "grade_after": after}
        assert {name: line[name] for name in wanted} == wanted
        assert rows_of(server.db, "SELECT count(*) FROM deliveries WHERE delivered IS NULL") == [(0,)]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_list_with_old_closures_is_one_notice(tmp_path: Path, hand: HandClock) -> None:
    """Closed businesses sent one by one are told once on each channel; who closes later is told alone."""
    numbers, file = [f"12081{at:05}" for at in range(20)], tmp_path / "closures.jsonl"
    known = dict.fromkeys(numbers[:15], "폐업자") | dict.fromkeys(numbers[15:], "계속사업자")
    plans = {"business": msgspec.structs.replace(PLAN, watches=50, watch_changes=50)}
    with receiving() as receiver, serving(tmp_path, hand, receiver.url, known, notices=file, plans=plans) as (_, key):
        for number in numbers:
            key.watch(number)
        hand.forward(days=1)
        hand.until(lambda: bool(lines(file) and receiver.received), seconds=1)
        (got,), (line,) = receiver.received, lines(file)
        assert got.notice == line
        assert (line["event"], line["closed"], sorted(line["biz_nos"])) == ("closed_already", 15, numbers[:15])
        assert got.headers["X-Bizverify-Event"] == "closed_already"
        assert got.is_signed(key.signing, hand.seconds, tolerance=86400)
        registry(tmp_path, dict.fromkeys(numbers, "폐업자"))
        hand.until(lambda: len(lines(file)) == 6 == len(receiver.received), hours=1)
        assert [notice["event"] for notice in lines(file)[1:]] == ["closure"] * 5


def test_a_notice_put_off_by_a_wrong_clock_is_sent(tmp_path: Path, hand: HandClock) -> None:
    """A delivery that failed while the clock was a year ahead is tried again within a day of the right time."""
    answers: list[Answer] = [(500, {}, b"")]
    began = hand.seconds
    hand.forward(days=366)
    with (
        receiving(lambda _: answers[-1]) as receiver,
        serving(tmp_path, hand, receiver.url, CLOSED) as (server, key),
    ):
        key.watch()
        hand.forward(days=1)
        hand.until(lambda: rows_of(server.db, "SELECT attempts FROM deliveries") == [(1,)], seconds=1)
        answers.append(OK)
        hand.seconds = began
        hand.until(lambda: len(receiver.received) > 1, hours=1)
        assert hand.seconds < began + 2 * 86400


def test_a_webhook_that_fails_is_tried_again(tmp_path: Path, hand: HandClock) -> None:
    """A notice comes again, the same, later and later, until it is acknowledged, and never after."""
    at: list[float] = []

    def answer(_: Received) -> Answer:
        at.append(hand.seconds)
        return OK if len(at) == 4 else (503, {}, b"")

    with receiving(answer) as receiver, serving(tmp_path, hand, receiver.url, CLOSED) as (server, key):
        key.watch()
        known_open(server.db)
        hand.forward(days=1)
        hand.until(lambda: len(at) == 4, seconds=5)
        told = "SELECT attempts, delivered IS NULL FROM deliveries"
        hand.until(lambda: rows_of(server.db, told) == [(4, 0)], seconds=1)
        hand.until(lambda: hand.seconds > at[-1] + 5 * 86400, hours=3)
    assert len(receiver.received) == 4
    assert len({(got.body, got.headers["X-Bizverify-Delivery"]) for got in receiver.received}) == 1
    assert all(got.is_signed(key.signing, when, 300.0) for got, when in zip(receiver.received, at, strict=True))
    assert (at[1] - at[0] >= 15, at[3] - at[2] >= 60) == (True, True)


def test_what_could_not_be_told_is_listed_and_sent_when_the_operator_asks(tmp_path: Path, hand: HandClock) -> None:
    """Given up after three days; or found when there was nowhere to go, and sent to the webhook that is set later."""
    answers: list[Answer] = [(500, {}, b"")]
    with (
        receiving(lambda _: answers[-1]) as receiver,
        serving(tmp_path, hand, f"{receiver.url}?token=1", CLOSED) as (server, key),
    ):
        lost = watcher(server)
        key.watch()
        lost.watch(OTHER)
        known_open(server.db)
        a_day_later(hand, key, lost)
        given_up = "SELECT count(*) FROM deliveries WHERE delivered IS NULL AND due IS NULL"
        hand.until(lambda: rows_of(server.db, given_up) == [(1,)], hours=2)
        listed = {row["key_id"]: row for row in notices(server, "list")["undelivered"]}
        assert [listed[key.id][name] for name in ("state", "error", "biz_no")] == ["given_up", "answered 500", NUMBER]
        assert [listed[lost.id][name] for name in ("state", "channel", "biz_no")] == ["nowhere", None, OTHER]
        shown = run("notices", "list", "--db", server.db, "--key", key.id).output
        assert ("given up" in shown, "token" in shown + str(listed)) == (True, False)
        made = run("keys", "webhook", lost.id, "--db", server.db, "--url", receiver.url, "--allow-private")
        count = len(receiver.received)
        answers.append(OK)
        assert notices(server, "retry", "--notice", listed[lost.id]["id"]) == {"retried": 1}
        assert notices(server, "retry") == {"retried": 2}
        with closing(open_server_file(server.db)) as db:  # the command's clock is not the server's
            db.execute("UPDATE deliveries SET begun = ?, due = ?", (hand.seconds, hand.seconds))
        hand.until(lambda: not notices(server, "list")["undelivered"], seconds=10)
        sent = {got.notice["biz_no"]: got for got in receiver.received[count:]}
        assert sorted(sent) == [NUMBER, OTHER]
        assert sent[OTHER].is_signed(made.stdout.strip(), hand.seconds, 3600)
        assert notices(server, "retry") == {"retried": 0}


def test_a_private_receiver_gets_nothing_unless_it_is_allowed(tmp_path: Path, hand: HandClock) -> None:
    """A closure is not posted to the server's own network; the operator sees why, and the address that was refused."""
    with (
        receiving() as receiver,
        serving(tmp_path, hand, receiver.url, CLOSED, webhook_networks=()) as (server, key),
    ):
        key.watch()
        hand.forward(days=1)
        hand.until(lambda: rows_of(server.db, "SELECT 1 FROM deliveries WHERE error IS NOT NULL") == [(1,)], seconds=1)
        (row,) = notices(server, "list")["undelivered"]
        assert ("127.0.0.1 is no public address" in row["error"], row["state"]) == (True, "waiting")
    assert receiver.received == []


def test_one_receiver_that_hangs_does_not_keep_the_others(tmp_path: Path, hand: HandClock) -> None:
    with (
        receiving(lambda _: None) as hanging,
        receiving() as good,
        serving(tmp_path, hand, hanging.url, CLOSED) as (server, key),
    ):
        other = watcher(server, webhook=good.url)
        for number in (NUMBER, OTHER):
            key.watch(number)
        other.watch()
        known_open(server.db)
        hand.forward(days=1)
        hand.until(lambda: bool(good.received), seconds=1)
        assert len(hanging.received) <= 1
