"""The watch list of the server: its paths, the checks by plan and clock, and closures told to file and webhook."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
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
from bansong.server.payloads import WatchHistory, WatchListPayload
from bansong.server.settings import ServicePlan
from bansong.server.store import open_server_file
from bansong.watch import store
from bansong.watch.store import Business
from handclock import HandClock
from hooks import OK, Answer, Received, receiving
from serving import Served, make_key, rows_of, served

NUMBER, OTHER = "1248100998", "2208162517"
CLIENT = httpx.Client(trust_env=False)
HERE = (ip_network("127.0.0.0/8"),)
"""What a server must allow to post closures to the tests' receivers."""
PLAN = ServicePlan(
    api=True,
    quota=100,
    watch_history=True,
    watches=5,
    recheck_hours=24,
    upload_bytes=1_000_000,
    rows=1_000,
    jobs=2,
)


def registry(folder: Path, name: str = "registry.parquet", **statuses: str) -> Path:
    """Build a registry of numbers (``n1248100998="계속사업자"``), in place of the one with this name."""
    source = folder / "source.csv"
    lines = [f"{number[1:]},{status}" for number, status in statuses.items()]
    source.write_text("\n".join(["사업자등록번호,사업자상태", *lines, ""]), "utf-8")
    built = folder / "built.parquet"
    bs.build_registry([source], built)
    return built.replace(folder / name)


@dataclass
class Account:
    """One key: its id, and requests that carry it."""

    url: str
    secret: str
    id: str

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return CLIENT.request(method, self.url + path, headers={"X-API-Key": self.secret}, **more)

    def watch(self, number: str = NUMBER, **more: Any) -> httpx.Response:
        return self.ask("POST", "/watch", json={"biz_no": number, **more})

    def list(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.ask("GET", "/watch").json()["watches"]
        return entries

    def history(self, watch_id: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.ask("GET", f"/watch/{watch_id}/history").json()["history"]
        return items

    def is_checked(self) -> bool:
        return all(entry["checked_at"] for entry in self.list())


def account(db: Path, url: str, plan: str = "business", webhook: str | None = None) -> tuple[Account, str]:
    """A key made in the file, and the secret that its webhook signs with."""
    secret = make_key(db, plan)
    with closing(open_server_file(db)) as connection:
        found = key_table.find_by_secret(connection, secret, time.time())
        assert found is not None
        key, _ = found
        signing = key_table.set_webhook(connection, key.id, webhook)
    return Account(url, secret, key.id), signing or ""


@pytest.fixture(scope="session", autouse=True)  # a worker may come back to this module
def _closed() -> Iterator[None]:
    yield
    CLIENT.close()


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@contextmanager
def serving(
    tmp_path: Path, hand: HandClock, webhook: str | None = None, **settings: Any
) -> Iterator[tuple[Served, Account, str]]:
    """A server whose time stands still, and one key."""
    with served(tmp_path / "db.sqlite", hand.clock, **{"webhook_networks": HERE} | settings) as server:
        yield (server, *account(server.db, server.url, webhook=webhook))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def known_open(db: Path) -> None:
    """It is known that the businesses that are watched now are open, so that those found closed have closed since."""
    with closing(open_server_file(db)) as connection:
        connection.execute("UPDATE watches SET biz_status = 'active', grade = 'B'")


def command(*words: object) -> Result:
    return CliRunner().invoke(command_line, [str(word) for word in words], catch_exceptions=False)


def test_the_paths_of_the_watch_list(tmp_path: Path, hand: HandClock) -> None:
    """A business is put on the list (201), known the next time (200), listed, and taken off (200, then 404)."""
    with serving(tmp_path, hand) as (_, key, _):
        assert key.list() == []
        made = key.watch(name="가")
        again = key.watch(address="서울")
        assert (made.status_code, again.status_code) == (201, 200)
        assert (again.json()["name"], again.json()["address"]) == ("가", "서울")
        assert made.json()["watch_id"] == again.json()["watch_id"]
        assert key.list() == [again.json()]
        path = f"/watch/{made.json()['watch_id']}"
        assert key.ask("DELETE", path).json() == {"watch_id": made.json()["watch_id"], "removed": True}
        assert key.ask("DELETE", path).status_code == 404
        assert key.ask("GET", f"{path}/history").status_code == 404
        assert key.ask("GET", "/watch").json() == {"watches": [], "total": 0}
        assert key.watch("124-81-00998").status_code == 400


def test_keys_do_not_see_each_other(tmp_path: Path, hand: HandClock) -> None:
    """Another key's watch is not listed, has no history and cannot be removed; the same number may be watched twice."""
    with serving(tmp_path, hand) as (server, key, _):
        other, _ = account(server.db, server.url)
        watch_id = key.watch().json()["watch_id"]
        assert other.list() == []
        assert other.ask("GET", f"/watch/{watch_id}/history").status_code == 404
        assert other.ask("DELETE", f"/watch/{watch_id}").status_code == 404
        assert other.watch().status_code == 201
        assert len(key.list()) == 1


def test_what_the_plan_does_not_allow(tmp_path: Path, hand: HandClock) -> None:
    """More watches than the plan has are 409 until one is removed; history is 403 in a plan without it."""
    plans = {"business": PLAN, "small": ServicePlan(True, 100, False, 1, 24, 1_000, 10, 1, watch_changes=9)}
    with serving(tmp_path, hand, plans=plans) as (server, _, _):
        key, _ = account(server.db, server.url, plan="small")
        watch_id = key.watch().json()["watch_id"]
        full = key.watch(OTHER)
        assert (full.status_code, full.json()["error"]["code"]) == (409, "watch_limit")
        assert (full.json()["error"]["limit"], full.json()["error"]["used"]) == (1, 1)
        assert key.watch(name="가").status_code == 200
        refused = key.ask("GET", f"/watch/{watch_id}/history")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_in_plan")
        key.ask("DELETE", f"/watch/{watch_id}")
        assert key.watch(OTHER).status_code == 201


def test_the_watch_list_is_no_lookup_without_quota(tmp_path: Path, hand: HandClock) -> None:
    """A number that is added, looked at, removed and added again shows no status and no grade, nor is it due sooner."""
    path = registry(tmp_path, n1248100998="폐업자")
    with serving(tmp_path, hand, registry=path) as (_, key, _):
        shown, due = set(), []

        def has_waited(until: float) -> bool:
            shown.update((one["biz_status"], one["grade"]) for one in key.list())
            return hand.seconds >= until

        for _ in range(4):
            entry = key.watch(name="가").json()
            due.append(entry["next_check_at"])
            hand.until(partial(has_waited, hand.seconds + 11 * 3600), minutes=20)
            key.ask("DELETE", f"/watch/{entry['watch_id']}")
        assert shown == {(None, None)}
        assert due == sorted(due)
        key.watch()
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)
        assert key.list()[0]["biz_status"] == "closed"
        me = key.ask("GET", "/me").json()
        assert me["quota"]["used"] == 0


def test_another_address_is_looked_at_when_it_is_time(tmp_path: Path, hand: HandClock) -> None:
    """Another name or address leaves the time of the next check as it is, so that changing is no lookup either."""
    with serving(tmp_path, hand) as (_, key, _):
        key.watch(name="가", address="서울")
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)
        (before,) = key.list()
        hand.forward(hours=2)
        changed = key.watch(name="나", address="부산 해운대구 우동 1").json()
        assert changed["next_check_at"] == before["next_check_at"]
        hand.forward(hours=6)
        assert key.list() == [changed]
        hand.until(lambda: key.list()[0]["checked_at"] > before["checked_at"], hours=1)


def test_first_checks_are_spread_and_come_in_groups(tmp_path: Path, hand: HandClock) -> None:
    """A list is checked first in the second half of the plan's interval, at a dozen times: after a day all of it is."""
    began = hand.seconds
    with serving(tmp_path, hand) as (server, key, _):
        for number in range(60):
            key.watch(f"{number + 1:010}")
        waits = [due - began for (due,) in rows_of(server.db, "SELECT due FROM watches")]
        assert 12 * 3600 <= min(waits) <= max(waits) <= 24 * 3600
        assert 6 <= len({round(wait) for wait in waits}) <= 13
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)


def test_changes_of_the_list_are_bounded_a_month(tmp_path: Path, hand: HandClock) -> None:
    """Additions and changes of a month are refused beyond the plan's bound, with all of it; a removal never is."""
    plans = {"business": msgspec.structs.replace(PLAN, watch_changes=4)}
    with serving(tmp_path, hand, plans=plans) as (_, key, _):
        watch_id = key.watch(name="가").json()["watch_id"]
        assert [key.watch(name="가").status_code for _ in range(5)] == [200] * 5, "nothing new is no change"
        assert key.watch(name="나").status_code == 200
        key.ask("DELETE", f"/watch/{watch_id}")
        assert key.ask("DELETE", f"/watch/{watch_id}").status_code == 404
        kept = key.watch(OTHER).json()["watch_id"]
        month = {"limit": 4, "used": 4, "remaining": 0, "month": "2026-11", "resets_at": "2026-12-01T00:00:00+09:00"}
        assert key.ask("GET", "/me").json()["watch_changes"] == month
        for refused in (key.watch(), key.watch(OTHER, name="다")):
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["bound"]) == (429, "limit_exceeded", "watch_changes")
            assert (error["limit"], error["used"], error["resets_at"]) == (4, 4, month["resets_at"])
            assert int(refused.headers["Retry-After"]) == round(10.5 * 86400)
            assert "2026-12-01" in error["message"]
        assert [entry["name"] for entry in key.list()] == [None]
        assert key.ask("DELETE", f"/watch/{kept}").status_code == 200
        assert key.ask("GET", "/me").json()["watch_changes"]["used"] == 5
        hand.forward(days=11)
        assert key.watch().status_code == 201
        assert key.ask("GET", "/me").json()["watch_changes"]["used"] == 1


def test_a_sync_says_when_the_first_check_is_and_stops_at_the_bound(tmp_path: Path, hand: HandClock) -> None:
    """`watch sync` says by when what it added is checked; at the month's bound it removes what goes, and pauses."""
    file = tmp_path / "customers.csv"
    plans = {"business": msgspec.structs.replace(PLAN, watches=50, watch_changes=6)}
    with serving(tmp_path, hand, plans=plans) as (server, key, _):
        terms: Any = {"base_url": server.url, "api_key": key.secret, "apply": True, "force": True}
        file.write_text("\n".join(["사업자번호", *(f"{n:010}" for n in range(1, 6))]), "utf-8")
        made = watch.sync(file, **terms)
        assert (made.exit_code, made.done.added) == (0, 5)
        due = max(datetime.fromisoformat(entry["next_check_at"]) for entry in key.list())
        assert datetime.fromisoformat(str(made.as_dict()["first_check_by"])) == due
        assert "first check" in str(made)
        file.write_text("\n".join(["사업자번호", *(f"{n:010}" for n in range(4, 14))]), "utf-8")
        paused = watch.sync(file, **terms, concurrency=1)
        assert (paused.exit_code, paused.done.added, paused.done.removed, paused.left) == (5, 1, 3, 7)
        assert paused.done.halt is not None
        assert paused.done.halt.why == "limit"
        for told in ("watch_changes", "2026-12-01", "6"):
            assert told in str(paused)
        hand.forward(days=11)
        assert (watch.sync(file, **terms).done.added, len(key.list())) == (6, 9)


def test_a_closure_is_told_on_both_channels(tmp_path: Path, hand: HandClock) -> None:
    """A registry replaced while serving: the closure is in the history, once in the file and once at the webhook."""
    file, path = tmp_path / "closures.jsonl", registry(tmp_path, n1248100998="계속사업자", n2208162517="계속사업자")
    with (
        receiving() as receiver,
        serving(tmp_path, hand, receiver.url, registry=path, notices=file) as (_, key, secret),
    ):
        watch_id = key.watch(name="삼성전자", address="경기 수원시 영통구 삼성로 129").json()["watch_id"]
        key.watch(OTHER)
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)
        assert [entry["biz_status"] for entry in key.list()] == ["active", "active"]
        assert (key.history(watch_id), lines(file), receiver.received) == ([], [], [])
        before = key.list()[0]["grade"]
        registry(tmp_path, n1248100998="폐업자", n2208162517="계속사업자")
        hand.until(lambda: bool(lines(file) and receiver.received), minutes=10)
        hand.forward(days=3)
        hand.until(lambda: key.list()[0]["checked_at"] > key.list()[0]["closed_at"], minutes=10)
        (got,), (line,) = receiver.received, lines(file)
        assert got.notice == line
        assert got.is_signed(secret, hand.seconds, tolerance=90 * 86400)
        assert got.headers["X-Bizverify-Delivery"] == line["id"]
        (change,) = key.history(watch_id)
        after = key.list()[0]["grade"]
        assert (change["before"], change["after"], change["biz_status"]) == (before, after, "closed")
        wanted = {"event": "closure", "watch_id": watch_id, "biz_no": NUMBER, "biz_status": "closed"}
        assert {name: line[name] for name in wanted} == wanted
        assert (line["status_before"], line["grade_before"], line["grade_after"]) == ("active", before, after)
        assert line["detected_at"] == change["at"]
        assert rows_of(tmp_path / "db.sqlite", "SELECT count(*) FROM deliveries WHERE delivered IS NULL") == [(0,)]
    assert file.stat().st_mode & 0o777 == 0o600


class Closing:
    """A live source that knows every business to be closed."""

    live = True

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        return engine.answer(rows).with_columns(biz_status=pl.lit("closed"))


def test_a_source_that_knows_better_is_asked(tmp_path: Path, hand: HandClock) -> None:
    """A status source that the app was made with is asked at each check, in the place of the registry alone."""
    more = {"notices": tmp_path / "closures.jsonl", "status_sources": [Closing()]}
    with serving(tmp_path, hand, **more) as (_, key, _):
        key.watch()
        hand.forward(days=1)
        hand.until(lambda: key.list()[0]["biz_status"] == "closed", seconds=1)
        hand.until(lambda: bool(lines(tmp_path / "closures.jsonl")), seconds=1)


def test_a_list_with_old_closures_is_one_notice(tmp_path: Path, hand: HandClock) -> None:
    """40 closed businesses sent one by one are told once on each channel; who closes later is told alone."""
    numbers = [f"12081{at:05}" for at in range(50)]
    file, states = tmp_path / "closures.jsonl", {f"n{number}": "폐업자" for number in numbers[:40]}
    path = registry(tmp_path, **states, **{f"n{number}": "계속사업자" for number in numbers[40:]})
    plans = {"business": ServicePlan(True, 100, True, 50, 24, 1_000, 10, 1)}
    with (
        receiving() as receiver,
        serving(tmp_path, hand, receiver.url, registry=path, notices=file, plans=plans) as (_, key, secret),
    ):
        for number in numbers:
            key.watch(number)
        hand.forward(days=1)
        hand.until(lambda: bool(lines(file) and receiver.received), seconds=1)
        (got,), (line,) = receiver.received, lines(file)
        assert got.notice == line
        assert (line["event"], line["closed"], sorted(line["biz_nos"])) == ("closed_already", 40, numbers[:40])
        assert got.headers["X-Bizverify-Event"] == "closed_already"
        assert got.is_signed(secret, hand.seconds, tolerance=86400)
        registry(tmp_path, **states, **{f"n{number}": "폐업자" for number in numbers[40:]})
        hand.until(lambda: len(lines(file)) == 11 == len(receiver.received), minutes=10)
        assert [notice["event"] for notice in lines(file)[1:]] == ["closure"] * 10


def test_a_slow_source_does_not_make_the_next_check_later(tmp_path: Path, hand: HandClock) -> None:
    """The plan's hours count from when a check began."""

    class Slow(Closing):
        def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
            hand.forward(hours=5)
            return super().answer(engine, rows)

    with serving(tmp_path, hand) as (server, key, _):
        server.app.state.context.watches.source = Slow()
        key.watch()
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)
        ((wait,),) = rows_of(server.db, "SELECT due - checked FROM watches")
        assert wait <= 19 * 3600


def test_the_plan_says_how_often(tmp_path: Path, hand: HandClock) -> None:
    """Each key's watches are due when its plan says, at most a tenth earlier, and not all in one moment."""
    plans = {"business": PLAN, "often": ServicePlan(True, 100, True, 5, 1, 1_000, 10, 1)}
    with serving(tmp_path, hand, plans=plans) as (server, key, _):
        often, _ = account(server.db, server.url, plan="often")
        for one in (key, often):
            one.watch()
            one.watch(OTHER)
        hand.forward(days=1)
        hand.until(lambda: key.is_checked() and often.is_checked(), seconds=1)
        rows = rows_of(server.db, "SELECT owner, due - checked FROM watches")
        for one, hours in ((key, 24), (often, 1)):
            waits = [wait for owner, wait in rows if owner == one.id]
            assert all(0.9 * hours * 3600 <= wait <= hours * 3600 for wait in waits)
            assert len(set(waits)) == 2
        first = {one.id: one.list()[0]["checked_at"] for one in (key, often)}
        hand.until(lambda: often.list()[0]["checked_at"] > first[often.id], minutes=5)
        assert key.list()[0]["checked_at"] == first[key.id]


def test_who_is_not_served_is_not_checked(tmp_path: Path, hand: HandClock) -> None:
    """The watches of a revoked key, and of one whose plan has no API any more, are left alone."""
    with serving(tmp_path, hand) as (server, key, _):
        others = [account(server.db, server.url)[0] for _ in range(2)]
        for one in (key, *others):
            one.watch()
        hand.forward(days=1)
        hand.until(lambda: all(one.is_checked() for one in (key, *others)), seconds=1)
        with closing(open_server_file(server.db)) as connection:
            key_table.revoke_key(connection, others[0].id, hand.seconds)
            key_table.change_key(connection, others[1].id, {"plan": "free"})
        query = "SELECT checked FROM watches ORDER BY number"
        before = rows_of(server.db, query)
        hand.until(lambda: rows_of(server.db, query)[0] > before[0], hours=1)
        assert rows_of(server.db, query)[1:] == before[1:]


def test_an_engine_that_fails_loses_nothing(
    tmp_path: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the engine fails watches stay due, are tried again more and more seldom, and are checked when it works."""
    asked = []
    works = LocalEngine.answer

    def answer(self: LocalEngine, frame: Any) -> Any:
        if "number" in frame.collect_schema().names():
            asked.append(hand.seconds)
            if len(asked) < 4:
                raise RuntimeError("가나다 1248100998")
        return works(self, frame)

    monkeypatch.setattr(LocalEngine, "answer", answer)
    with serving(tmp_path, hand) as (_, key, _):
        key.watch(name="가나다")
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=3)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert len(asked) == 4
    assert pauses[0] >= 5
    assert pauses[1] >= 30
    assert pauses[2] >= 120
    told = "".join(record.getMessage() for record in caplog.records)
    assert "not checked" in told
    assert not [secret for secret in ("가나다", NUMBER) if secret in told]


def test_one_key_that_fails_does_not_keep_the_others(
    tmp_path: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what was found cannot be written down for one key, or its engine panics, the next one's are checked."""
    with serving(tmp_path, hand) as (server, first, _):
        others = [account(server.db, server.url)[0] for _ in range(2)]
        first, second, third = sorted((first, *others), key=lambda one: one.id)
        works = store.record

        def record(db: sqlite3.Connection, checked: Any, *more: Any) -> Any:
            owners = {row[0] for row in db.execute("SELECT owner FROM watches WHERE number = ?", checked["number"][:1])}
            if owners == {first.id}:
                raise ValueError("no")
            if owners == {second.id}:
                raise pl.exceptions.PanicException("no")
            return works(db, checked, *more)

        monkeypatch.setattr(store, "record", record)
        for one in (first, second, third):
            one.watch()
        hand.forward(days=1)
        hand.until(third.is_checked, seconds=1)
        assert not first.is_checked()
        assert not second.is_checked()
        monkeypatch.undo()
        hand.until(lambda: first.is_checked() and second.is_checked(), seconds=10)


def test_no_watch_waits_longer_than_its_plan_says(tmp_path: Path, hand: HandClock) -> None:
    """Neither a better plan nor a clock that was a year ahead leaves watches waiting for what was due then."""
    plans = {"business": PLAN, "seldom": msgspec.structs.replace(PLAN, recheck_hours=720)}
    with serving(tmp_path, hand, plans=plans) as (server, _, _):
        key, _ = account(server.db, server.url, plan="seldom")
        key.watch()
        hand.forward(days=30)
        hand.until(key.is_checked, seconds=1)
        (before,) = key.list()
        with closing(open_server_file(server.db)) as connection:
            key_table.change_key(connection, key.id, {"plan": "business"})
        hand.until(lambda: key.list()[0]["next_check_at"] < before["next_check_at"], seconds=10)
        (due,) = rows_of(server.db, "SELECT due FROM watches")[0]
        assert due <= hand.seconds + 24 * 3600
        began = hand.seconds
        hand.forward(days=366)
        hand.until(lambda: key.list()[0]["checked_at"] > before["next_check_at"], seconds=1)
        (ahead,) = key.list()
        hand.forward(days=-366)
        hand.until(lambda: key.list()[0]["checked_at"] < ahead["checked_at"], hours=1)
        assert hand.seconds < began + 5 * 86400


def test_a_notice_put_off_by_a_wrong_clock_is_sent(tmp_path: Path, hand: HandClock) -> None:
    """A delivery that failed while the clock was a year ahead is tried again within a day of the right time."""
    answers: list[Answer] = [(500, {}, b"")]
    path = registry(tmp_path, n1248100998="폐업자")
    began = hand.seconds
    hand.forward(days=366)
    with (
        receiving(lambda _: answers[-1]) as receiver,
        serving(tmp_path, hand, receiver.url, registry=path) as (server, key, _),
    ):
        key.watch()
        hand.forward(days=1)
        hand.until(lambda: rows_of(server.db, "SELECT attempts FROM deliveries") == [(1,)], seconds=1)
        answers.append(OK)
        hand.seconds = began
        hand.until(lambda: len(receiver.received) > 1, minutes=5)
        assert hand.seconds < began + 2 * 86400


def test_a_webhook_that_fails_is_tried_again(tmp_path: Path, hand: HandClock) -> None:
    """A notice comes again, the same, later and later, until it is acknowledged, and never after."""
    at: list[float] = []

    def answer(_: Received) -> Answer:
        at.append(hand.seconds)
        return OK if len(at) == 4 else (503, {}, b"")

    path = registry(tmp_path, n1248100998="폐업자")
    with receiving(answer) as receiver, serving(tmp_path, hand, receiver.url, registry=path) as (server, key, secret):
        key.watch()
        known_open(server.db)
        hand.forward(days=1)
        hand.until(lambda: len(at) == 4, seconds=2)
        hand.until(
            lambda: rows_of(server.db, "SELECT attempts, delivered IS NULL FROM deliveries") == [(4, 0)], seconds=1
        )
        hand.until(lambda: hand.seconds > at[-1] + 5 * 86400, hours=1)
    assert len(receiver.received) == 4
    assert len({(got.body, got.headers["X-Bizverify-Delivery"]) for got in receiver.received}) == 1
    assert all(got.is_signed(secret, when, 300.0) for got, when in zip(receiver.received, at, strict=True))
    assert at[1] - at[0] >= 15
    assert at[3] - at[2] >= 60


def test_a_webhook_that_never_answers_is_given_up_and_listed(tmp_path: Path, hand: HandClock) -> None:
    """After three days a notice is given up, listed by the command, and sent when the operator asks for it."""
    answers: list[Answer] = [(500, {}, b"")]
    path = registry(tmp_path, n1248100998="폐업자", n2208162517="폐업자")
    with (
        receiving(lambda _: answers[-1]) as receiver,
        serving(tmp_path, hand, f"{receiver.url}/token", registry=path) as (server, key, _),
    ):
        key.watch()
        known_open(server.db)
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)
        given_up = "SELECT count(*) FROM deliveries WHERE delivered IS NULL AND due IS NULL"
        hand.until(lambda: rows_of(server.db, given_up) == [(1,)], hours=2)
        listed = command("notices", "list", "--db", server.db, "--json")
        (row,) = json.loads(listed.stdout)["undelivered"]
        assert (row["state"], row["error"], row["biz_no"], row["key_id"]) == (
            "given_up",
            "answered 500",
            NUMBER,
            key.id,
        )
        assert "token" not in listed.output
        assert "given up" in command("notices", "list", "--db", server.db, "--key", key.id).output
        count = len(receiver.received)
        answers.append(OK)
        assert json.loads(command("notices", "retry", "--db", server.db, "--json").stdout) == {"retried": 1}
        with closing(open_server_file(server.db)) as connection:  # the command's clock is not the server's
            connection.execute("UPDATE deliveries SET begun = ?, due = ?", (hand.seconds, hand.seconds))
        hand.until(lambda: len(receiver.received) > count, seconds=10)
        hand.until(
            lambda: not json.loads(command("notices", "list", "--db", server.db, "--json").stdout)["undelivered"],
            seconds=1,
        )
        assert len(receiver.received) == count + 1
        assert json.loads(command("notices", "retry", "--db", server.db, "--json").stdout) == {"retried": 0}


def test_a_private_receiver_gets_nothing_unless_it_is_allowed(tmp_path: Path, hand: HandClock) -> None:
    """A closure is not posted to the server's own network; the operator sees why, and the address that was refused."""
    path = registry(tmp_path, n1248100998="폐업자")
    with (
        receiving() as receiver,
        serving(tmp_path, hand, receiver.url, registry=path, webhook_networks=()) as (server, key, _),
    ):
        key.watch()
        hand.forward(days=1)
        hand.until(lambda: rows_of(server.db, "SELECT 1 FROM deliveries WHERE error IS NOT NULL") == [(1,)], seconds=1)
        (row,) = json.loads(command("notices", "list", "--db", server.db, "--json").stdout)["undelivered"]
        assert "127.0.0.1 is no public address" in row["error"]
        assert row["state"] == "waiting"
    assert receiver.received == []


def test_one_receiver_that_hangs_does_not_keep_the_others(tmp_path: Path, hand: HandClock) -> None:
    """While one key's receiver answers nothing, another key's notices arrive."""
    path = registry(tmp_path, n1248100998="폐업자")
    with (
        receiving(lambda _: None) as hanging,
        receiving() as good,
        serving(tmp_path, hand, hanging.url, registry=path) as (server, key, _),
    ):
        other, _ = account(server.db, server.url, webhook=good.url)
        for number in (NUMBER, OTHER):
            key.watch(number)
        other.watch()
        known_open(server.db)
        hand.forward(days=1)
        hand.until(lambda: bool(good.received), seconds=1)
        assert len(hanging.received) <= 1


def test_a_closure_with_nowhere_to_go_is_listed(tmp_path: Path, hand: HandClock) -> None:
    """Found without file and webhook, a closure is listed, and goes to the webhook that is set later when retried."""
    path = registry(tmp_path, n1248100998="폐업자")
    with receiving() as receiver, serving(tmp_path, hand, registry=path) as (server, key, _):
        key.watch()
        known_open(server.db)
        hand.forward(days=1)
        hand.until(key.is_checked, seconds=1)
        (row,) = json.loads(command("notices", "list", "--db", server.db, "--json").stdout)["undelivered"]
        assert (row["state"], row["channel"]) == ("nowhere", None)
        made = command(
            "keys", "webhook", key.id, "--db", server.db, "--url", f"{receiver.url}?token=1", "--allow-private"
        )
        assert made.exit_code == 0
        assert "token" not in made.output
        secret = made.stdout.strip()
        retried = command("notices", "retry", "--db", server.db, "--notice", row["id"], "--json")
        assert json.loads(retried.stdout) == {"retried": 1}
        with closing(open_server_file(server.db)) as connection:
            connection.execute("UPDATE deliveries SET begun = ?, due = ?", (hand.seconds, hand.seconds))
        hand.until(lambda: bool(receiver.received), seconds=10)
        assert receiver.received[0].is_signed(secret, hand.seconds, 3600)


def test_a_long_list_comes_whole(tmp_path: Path, hand: HandClock) -> None:
    """A list of megabytes is sent in pieces, and is complete, typed as described, and in order."""
    with serving(tmp_path, hand) as (server, key, _):
        with closing(open_server_file(server.db)) as connection:
            _fill(connection, key.id, 10_000, hand.seconds)
        for _ in range(2):  # read, then kept
            answer = key.ask("GET", "/watch")
            listed = msgspec.json.decode(answer.content, type=WatchListPayload)
            assert listed.total == 10_000
            assert [entry.biz_no for entry in listed.watches] == [f"{n:010}" for n in range(1, 10_001)]
        one = listed.watches[5].watch_id
        history = msgspec.json.decode(key.ask("GET", f"/watch/{one}/history").content, type=WatchHistory)
        assert history == WatchHistory(one, "0000000006", [])
        key.ask("DELETE", f"/watch/{one}")
        assert len(key.list()) == 9_999


def _fill(connection: sqlite3.Connection, owner: str, count: int, now: float) -> None:
    connection.execute("BEGIN IMMEDIATE")
    store.add_many(
        connection,
        owner,
        (Business(f"{n:010}", "이름" * 10, "서울 중구 세종대로 110") for n in range(1, count + 1)),
        now,
    )
    connection.execute("UPDATE watches SET due = ?", (now + 86400,))
    connection.execute("COMMIT")


def _wait_for(holds: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    give_up = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < give_up, "it did not come to hold"
        time.sleep(0.02)
