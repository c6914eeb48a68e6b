"""A file held against a watch list: what differs is found, done once, and at the service as in a local file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from bansong import errors, watch
from bansong.base import business_number
from bansong.client import ApiKey
from bansong.server.settings import load_plans
from bansong.testing import DIALECTS, Dialect, FakeService, Fault, Faults, Partial, Reset, Status, serve
from bansong.watch.api import CHANGE_TOO_LARGE
from bansong.watch.syncing import LISTED, parse_time, reconcile
from conftest import write
from serving import served

KEY = "test-key"
Fake = tuple[FakeService, dict[str, Any]]


def numbers(count: int, start: int = 0) -> list[str]:
    """Numbers with right check digits."""
    weights = (1, 3, 7, 1, 3, 7, 1, 3, 5)
    found = []
    for n in range(start, start + count):
        nine = f"{120_81_0000 + n:09d}"
        total = sum(int(digit) * weight for digit, weight in zip(nine, weights, strict=True)) + int(nine[8]) * 5 // 10
        found.append(f"{nine}{(10 - total % 10) % 10}")
    assert all(map(business_number.is_valid, found))
    return found


def csv_of(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    return write(path, "\n".join(["사업자번호,상호,주소", *(",".join(row) for row in rows)]) + "\n")


def rows_for(count: int, start: int = 0, address: str = "서울 종로구 종로") -> list[tuple[str, str, str]]:
    return [(b_no, f"상점{n}", f"{address} {n}") for n, b_no in enumerate(numbers(count, start), start)]


def listed(*rows: dict[str, Any]) -> pl.DataFrame:
    nothing = dict.fromkeys(LISTED) | {"shows_name": True, "shows_address": True}
    return pl.DataFrame([nothing | row for row in rows], schema=LISTED)


def in_file(*rows: tuple[str, str | None, str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"biz_no": pl.String, "name": pl.String, "address": pl.String}, orient="row")


@pytest.fixture
def fake() -> Iterator[Fake]:
    service = FakeService(KEY)
    with serve(service) as url:
        yield service, terms_of(url)


def terms_of(url: str, key: str = KEY) -> dict[str, Any]:
    return {"base_url": url, "api_key": ApiKey(key), "rate": 2000.0}


def watched(service: FakeService) -> list[tuple[str, str, str]]:
    return [(entry.biz_no, entry.name, entry.address) for entry in service.watches]


def test_rows_that_are_no_business_are_listed_and_not_guessed(tmp_path: Path) -> None:
    a, b = numbers(2)
    file = csv_of(
        tmp_path / "ugly.csv",
        [
            (business_number.format(a), "첫 이름", ""),
            ("1.248E+09", "지수", "종로 2"),
            (f"'{a}", "다른 이름", "종로 1"),
            (b, "없음", "-"),
            ("9001011234567", "개인", ""),
            ("합계", "2", ""),
        ],
    )
    report = watch.sync(file, local=tmp_path / "w.sqlite")
    assert report.plan.add.rows() == [(a, "첫 이름", "종로 1"), (b, None, None)]
    assert report.found.unusable.rows() == [(1, "scientific"), (4, "thirteen_digits"), (5, "totals_row")]
    assert report.found.repeated.rows() == [(a, 2, True)]
    assert not (tmp_path / "w.sqlite").exists()
    assert "9001011234567" not in json.dumps(report.as_dict()) + str(report)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_sync_makes_any_services_list_that_of_the_file(name: str, tmp_path: Path) -> None:
    service = FakeService(KEY, dialect=DIALECTS[name])
    first, second = rows_for(6), [*rows_for(4, 2, "부산 중구 중앙대로"), *rows_for(2, 10)]
    with serve(service) as url:
        terms = terms_of(url)
        made = watch.sync(csv_of(tmp_path / "a.csv", first), apply=True, **terms)
        assert (made.done.added, made.exit_code, made.left) == (6, 0, 0)
        moved = watch.sync(csv_of(tmp_path / "b.csv", second), apply=True, **terms)
        assert (moved.done.added, moved.done.changed, moved.done.removed, moved.exit_code) == (2, 4, 2, 0)
        assert sorted(watched(service)) == sorted(second)
        assert watch.sync(tmp_path / "b.csv", apply=True, **terms).to_do == 0


def test_a_lost_answer_is_settled_by_the_list_and_nothing_is_added_twice(tmp_path: Path) -> None:
    faults = Faults(
        Fault("watch_add", Status(500, paid=True), at=(2, 3)),
        Fault("watch_add", Partial(), at=5),
        Fault("watch_add", Status(502), at=7),
    )
    service = FakeService(KEY, faults=faults)
    file = csv_of(tmp_path / "a.csv", rows_for(10))
    with serve(service) as url:
        terms = terms_of(url) | {"concurrency": 1}
        report = watch.sync(file, apply=True, **terms)
        assert (report.done.added, len(report.done.doubts), report.exit_code, report.left) == (9, 1, 3, 1)
        assert service.requests["watch_add"] == 10
        again = watch.sync(file, apply=True, **terms)
        assert (again.done.added, again.exit_code) == (1, 0)
    assert sorted(watched(service)) == sorted(rows_for(10))


def test_a_used_up_quota_stops_and_the_same_call_goes_on(tmp_path: Path) -> None:
    faults = Faults(Fault("watch_add", Status(429), when=lambda _asked: len(service.watches) >= 5, times=16))
    service = FakeService(KEY, faults=faults)
    (gone,) = rows_for(1, 50)
    with serve(service) as url:
        terms = terms_of(url)
        watch.add(*gone, **terms)
        report = watch.sync(csv_of(tmp_path / "a.csv", rows_for(12)), apply=True, force=True, concurrency=2, **terms)
        assert report.exit_code == 5
        assert (report.done.removed, gone in watched(service)) == (0, True)
        assert report.done.halt is not None
        service.faults = Faults()
        assert watch.sync(tmp_path / "a.csv", apply=True, force=True, **terms).exit_code == 0
    assert sorted(watched(service)) == sorted(rows_for(12))


def test_a_watch_is_removed_by_its_id_or_its_number(fake: Fake, tmp_path: Path) -> None:
    service, terms = fake
    watch.sync(csv_of(tmp_path / "a.csv", rows_for(3)), apply=True, **terms)
    first = next(one for one in service.watches if one.biz_no == numbers(1)[0])  # they are added in any order
    assert watch.remove(first.id, **terms)["biz_no"].to_list() == [first.biz_no]
    assert watch.remove(business_number.format(numbers(2)[1]), **terms).height == 1
    with pytest.raises(errors.NotFoundError, match="neither a watch id nor a business number"):
        watch.remove(first.id, **terms)
    assert len(service.watches) == 1


def test_a_history_is_a_frame_and_a_plot() -> None:
    dialect = Dialect(history="changes", watch_ids="number", watches="items")
    service = FakeService(KEY, dialect=dialect)
    (a,) = numbers(1)
    with serve(service) as url:
        terms = terms_of(url)
        watch.add(a, "<b>상점</b>", **terms)
        next(iter(service.watches)).change("D")
        next(iter(service.watches)).change("<i>", "closed")
        found = watch.history(a, **terms)
        frame = watch.history_frame(a, **terms)
    texts = dict.fromkeys(("before", "after", "biz_status"), pl.String)
    assert frame.schema == {"at": pl.Datetime("us", "UTC"), **texts}
    assert frame["at"].dt.to_string("%Y-%m-%dT%H:%M").to_list() == ["2026-11-01T00:00", "2026-11-02T00:00"]
    assert (frame["after"].to_list(), frame["biz_status"][1]) == (["D", "<i>"], "closed")
    html = found._repr_html_()
    drawn = next(iter(found.chart().to_dict()["datasets"].values()))
    assert [step["grade"] for step in drawn] == [drawn[0]["grade"], "D", "<i>", "<i>"]
    assert [step["said"] is None for step in drawn] == [True, False, False, True]
    assert ("<svg" in html, "<i>" in html, "<b>" in html) == (True, False, False)


def test_options_of_the_service_are_refused_for_a_local_list(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="`rate=` is for the service's list"):
        watch.entries(local=tmp_path / "w.sqlite", rate=3.0)
    with pytest.raises(errors.UsageError, match=r"entries\(\) has no parameter 'budget'"):
        watch.entries(base_url="http://127.0.0.1:1", budget=3)  # type: ignore[call-arg]


def test_a_file_is_compared_with_a_list_as_people_read_it() -> None:
    same, renamed, decomposed, shy, twice, new, left = numbers(7)
    plan = reconcile(
        in_file(
            (same, "같은 상점", "종로 1"),
            (renamed, "새 이름", None),
            (decomposed, "한글", None),
            (shy, "이름", "주소"),
            (twice, "새 이름", None),
            (new, "새 상점", None),
        ),
        listed(
            {"watch_id": "1", "biz_no": business_number.format(same), "name": "같은  상점 ", "address": "종로 1"},
            {"watch_id": "2", "biz_no": renamed, "name": "옛 이름", "address": "종로 2"},
            {"watch_id": "3", "biz_no": decomposed, "name": "\u1112\u1161\u11ab\u1100\u1173\u11af"},
            {"watch_id": "4", "biz_no": shy, "shows_name": False, "shows_address": False},
            {"watch_id": "5", "biz_no": twice, "name": "옛 이름"},
            {"watch_id": "6", "biz_no": twice, "name": "새 이름"},
            {"watch_id": "7", "biz_no": left},
            {"watch_id": "8", "biz_no": "없음"},
            {"watch_id": "9", "biz_no": None},
        ),
    )
    assert plan.add.rows() == [(new, "새 상점", None)]
    assert plan.change.rows() == [("2", renamed, "새 이름", None, "옛 이름", "종로 2")]
    assert (plan.remove["watch_id"].to_list(), plan.repeated["watch_id"].to_list()) == (["7"], ["5"])
    assert (plan.unchanged, plan.unnumbered, plan.watched) == (4, 2, 6)


def test_a_full_list_is_made_room_in_and_not_asked_again_and_again(tmp_path: Path) -> None:
    plans = dict(load_plans())
    plans["business"] = msgspec.structs.replace(plans["business"], watches=5)
    with served(tmp_path / "db.sqlite", plans=plans) as server:
        terms = terms_of(server.url, server.key())
        assert watch.sync(csv_of(tmp_path / "a.csv", rows_for(5)), apply=True, **terms).exit_code == 0
        moved = watch.sync(csv_of(tmp_path / "b.csv", rows_for(5, 3)), apply=True, **terms)
        assert (moved.exit_code, moved.done.added, moved.done.removed, moved.done.refused) == (0, 3, 3, [])
        more = watch.sync(csv_of(tmp_path / "c.csv", rows_for(40, 4)), apply=True, **terms)
        assert (more.exit_code, more.done.added, more.done.removed, more.left) == (5, 1, 1, 35)
        assert (more.done.refused, "the watch list is full" in str(more)) == ([], True)
        with pytest.raises(errors.RejectedError):
            watch.add(numbers(1, 900)[0], **terms)
        watched_now = set(watch.entries(**terms)["biz_no"])
        assert (len(watched_now), watched_now < {*numbers(40, 4)}, watched_now > {*numbers(4, 4)}) == (5, True, True)


def test_most_of_a_list_is_not_removed_by_mistake(fake: Fake, tmp_path: Path) -> None:
    service, terms = fake
    names = {"all": rows_for(20), "less": rows_for(9), "others": rows_for(2, 100), "another": rows_for(1, 200)}
    file = {name: csv_of(tmp_path / f"{name}.csv", rows) for name, rows in names.items()}
    looked = watch.sync(file["all"], **terms)
    assert (looked.to_do, looked.applied, dict(service.requests)) == (20, False, {"watch_list": 1})
    watch.sync(file["all"], apply=True, **terms)
    for name in ("less", "another"):
        with pytest.raises(errors.UsageError) as refused:
            watch.sync(file[name], apply=True, **terms)
        assert (refused.value.code, len(service.watches)) == (CHANGE_TOO_LARGE.code, 20)
    kept = watch.sync(file["others"], apply=True, keep=True, **terms)
    assert (kept.done.added, kept.done.removed, len(service.watches)) == (2, 0, 22)
    assert watch.sync(file["less"], apply=True, force=True, **terms).done.removed == 13
    for before, after in ((20, 10), (19, 1)):
        local = tmp_path / f"{before}.sqlite"
        watch.sync(csv_of(tmp_path / "a.csv", rows_for(before)), apply=True, local=local)
        report = watch.sync(csv_of(tmp_path / "b.csv", rows_for(after)), apply=True, local=local)
        assert report.done.removed == before - after


def test_a_business_is_added_once_also_where_the_answer_is_lost(fake: Fake) -> None:
    service, terms = fake
    a, b, c = numbers(3)
    named = [watch.add(business_number.format(a), name, **terms).state for name in ("상점", "상점", "다른 상점")]
    assert named == ["added", "unchanged", "changed"]
    service.faults = Faults(Fault("watch_add", Status(500, paid=True), at=1), Fault("watch_add", Status(500), at=2))
    assert watch.add(b, **terms).state == "added"
    with pytest.raises(errors.DoubtError):
        watch.add(c, **terms)
    assert [row[:2] for row in watched(service)] == [(a, "다른 상점"), (b, "")]


def test_times_of_services_are_read() -> None:
    written = ("2026-11-22T09:00:00+09:00", "2026-11-22T00:00:00Z", "2026-11-22", 1795305600, "1795305600000")
    assert {parse_time(text) for text in written} == {1795305600.0}
    assert {parse_time(text) for text in ("어제", "2026-13-45", None, True, "1e400")} == {None}


def test_a_removal_is_sent_again_and_a_refusal_ends_with_4(fake: Fake, tmp_path: Path) -> None:
    service, terms = fake
    watch.sync(csv_of(tmp_path / "a.csv", rows_for(4)), apply=True, **terms)
    service.faults = Faults(Fault("watch_remove", Reset("before reply"), at=1), Fault("watch_add", Status(403)))
    report = watch.sync(csv_of(tmp_path / "b.csv", rows_for(2)), apply=True, **terms)
    assert (report.done.removed, report.exit_code, len(service.watches)) == (2, 0, 2)
    before = service.requests["watch_add"]
    report = watch.sync(csv_of(tmp_path / "c.csv", rows_for(50)), apply=True, concurrency=1, **terms)
    assert (report.exit_code, service.requests["watch_add"] - before) == (4, 1)
    with pytest.raises(errors.AuthenticationError):
        watch.entries(base_url=terms["base_url"], api_key=ApiKey("wrong-key"))
