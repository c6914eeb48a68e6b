"""Lists of a job whose names have a day, lists of addresses, and files in its folders that are no lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import bansong as bs
from bansong.jobs.inputs import find_predecessors
from bansong.jobs.report import InputOutcome
from bansong.jobs.state import compare_runs
from conftest import write
from customers import numbers
from nightly_jobs import Nights, kinds

HEADERS = ("사업자번호", "상호", "주소")
OUT = "[output]\npath = 'out/{name}.{ext}'\n"


@pytest.fixture
def many(nights: Nights) -> Nights:
    """A job over a folder, with thirty businesses, all open."""
    nights.statuses = dict.fromkeys(numbers(30), "active")
    nights.write_inputs()
    nights.write_job(OUT, inputs='path = "lists"')
    return nights


def put(nights: Nights, name: str, rows: Sequence[str], headers: Sequence[str] = HEADERS) -> Path:
    """Write a list of businesses, by their numbers, with these columns."""
    cells = {"사업자번호": str, "상호": "상사 {}".format, "주소": lambda b_no: f"서울시 중구 세종대로 {int(b_no) % 97}"}
    lines = [",".join(cells[header](b_no) for header in headers) for b_no in rows]
    (nights.folder / "lists").mkdir(exist_ok=True)
    return write(nights.folder / "lists" / name, "\n".join([",".join(headers), *lines, ""]))


def outcome(report: bs.JobReport, name: str) -> InputOutcome:
    return next(one for one in report.inputs if Path(one.path).name == name)


def test_a_dated_list_that_lost_its_numbers_fails_beside_a_list_of_addresses(many: Nights) -> None:
    every = list(many.statuses)
    put(many, "addresses.csv", every, HEADERS[1:])
    put(many, "a_20261120.csv", every)
    many.run()
    put(many, "a_20261121.csv", every, HEADERS[1:])
    report = many.run()
    assert (report.exit_code, outcome(report, "a_20261121.csv").what) == (2, "failed")


def test_a_list_under_another_name_may_be_the_one_that_is_gone(many: Nights) -> None:
    every = list(many.statuses)
    first = put(many, "monday.csv", every)
    many.run()
    put(many, "addresses.csv", every, HEADERS[1:])
    assert many.run().exit_code == 0
    first.unlink()
    put(many, "tuesday.csv", every, HEADERS[1:])
    for _ in range(2):
        report = many.run()
        assert (outcome(report, "tuesday.csv").what, kinds(report)) == ("failed", {})
    put(many, "tuesday.csv", every[:-1])
    report = many.run()
    assert (report.exit_code, kinds(report)) == (0, {"gone": 1})


def test_rows_without_a_number_are_no_other_rows_where_a_column_is_lost(many: Nights) -> None:
    every = list(many.statuses)
    for headers in (HEADERS, HEADERS[::2], HEADERS):
        path = put(many, "a.csv", every, headers)
        blank = ",".join({"사업자번호": "", "상호": "가나", "주소": "서울시 중구 세종대로 110"}[one] for one in headers)
        write(path, path.read_text("utf-8") + f"{blank}\n")
        assert kinds(many.run()) == {}


def test_a_list_of_addresses_that_gets_numbers_tells_which_are_closed(many: Nights) -> None:
    every = list(many.statuses)
    many.statuses[every[2]] = "closed"
    many.write_inputs()
    put(many, "a.csv", every, HEADERS[1:])
    many.run()
    put(many, "a.csv", every)
    found = kinds(many.run())
    assert (found["closed"], found.get("new"), found.get("gone")) == (1, None, None)
    assert kinds(many.run()) == {}


STRAYS = {
    "notes.txt": "담당자에게 확인할 것\n내일 다시 보낼 것\n",
    "readme.csv": "담당자에게 확인할 것\n",
    "settings.json": '{"a": 1}',
    "scan.csv": "%PDF-1.7\n1 0 obj\n",
}


DATED = [
    ("고객_20261120.csv", "고객_20261121.csv"),
    ("고객 2026-11-20.csv", "고객 2026-11-21.csv"),
    ("9월 30일 고객.csv", "10월 1일 고객.csv"),
    ("list.261130.021500.csv", "list.261201.021459.csv"),
]
"""A list and the one that continues it, whether the earlier one is away or not."""
REPLACED = [("12월 31일.csv", "1월 1일.csv"), ("export-99.csv", "export-100.csv"), ("지점_2.csv", "지점_3.csv")]
"""A list, and one that continues it only where the earlier one is away."""


def test_a_list_continues_the_newest_of_its_name_with_other_digits() -> None:
    def continued(known: list[str], new: str, *, piles_up: bool) -> str | None:
        there = {f"/lists/{name}" for name in ([*known, new] if piles_up else [new])}
        found = find_predecessors(there, dict.fromkeys(f"/lists/{name}" for name in known))
        return Path(found[f"/lists/{new}"]).name if f"/lists/{new}" in found else None

    assert [continued([a], b, piles_up=pile) for a, b in DATED for pile in (True, False)] == [
        a for a, _ in DATED for _ in range(2)
    ]
    assert [continued([a], b, piles_up=False) for a, b in REPLACED] == [a for a, _ in REPLACED]
    assert [continued([a], b, piles_up=True) for a, b in REPLACED] == [None] * 3
    assert continued(["a_20261120.csv"], "a_20200101.csv", piles_up=True) is None
    assert continued(["a_20261119.csv", "a_20261120.csv"], "a_20261121.csv", piles_up=True) == "a_20261120.csv"
    assert continued(["b_20261120.csv"], "a_20261121.csv", piles_up=False) is None


@pytest.mark.parametrize("piles_up", [True, False])
def test_a_dated_list_that_lost_most_of_its_rows_fails(piles_up: bool, many: Nights) -> None:
    every, (before, after) = list(many.statuses), DATED[0]
    first = put(many, before, every)
    many.run()
    if not piles_up:
        first.unlink()
    put(many, after, every[:9])
    for _ in range(2):  # it is compared with the last list that was whole
        report = many.run()
        assert (outcome(report, after).what, report.exit_code, kinds(report)) == ("failed", 2, {})
    many.write_job(OUT, inputs='path = "lists"\nforce = true')
    assert kinds(many.run()) == ({} if piles_up else {"gone": 21})


@pytest.mark.parametrize(("lost", "role", "piles_up"), [("주소", "address", False), ("상호", "name", True)])
def test_a_column_that_a_dated_list_lost_is_told_and_only_closures_are_compared(
    lost: str, role: str, piles_up: bool, many: Nights
) -> None:
    every, kept = list(many.statuses), [header for header in HEADERS if header != lost]
    for night, (headers, closed) in enumerate([(HEADERS, 0), (kept, 1), (kept, 2), (HEADERS, 3)]):
        many.statuses |= dict.fromkeys(every[:closed], "closed")
        many.write_inputs()
        list_ = put(many, f"a_2026112{night}.csv", every, headers)
        report = many.run()
        is_lost = night == 1
        assert (outcome(report, list_.name).lost, report.exit_code) == ((role,) if is_lost else (), 3 * is_lost)
        found = kinds(report)
        assert found.get("closed", 0) == bool(night)
        assert {"new", "gone", "address"}.isdisjoint(found)
        if night in (1, 3) and not piles_up:
            assert found == {"closed": 1}
        if not piles_up:
            list_.unlink()


def test_a_list_of_addresses_with_another_column_has_no_other_rows(many: Nights) -> None:
    every = list(many.statuses)
    put(many, "a.csv", every, HEADERS[1:])
    many.run()
    put(many, "a.csv", every, HEADERS[2:])
    report = many.run()
    assert (report.inputs[0].lost, kinds(report)) == (("name",), {})
    put(many, "a.csv", every[:-1], HEADERS[2:])
    assert kinds(many.run()) == {"gone": 1}
    put(many, "a.csv", every, HEADERS[1:])
    assert kinds(many.run()) == {}
    assert compare_runs(many.folder / "job.toml", "last-3", "last").height <= 1


def test_files_of_a_folder_that_hold_no_table_are_passed_over(many: Nights) -> None:
    put(many, "a.csv", list(many.statuses))
    for name, text in STRAYS.items():
        write(many.folder / "lists" / name, text)
    for inputs in ('path = "lists"', 'path = "lists/*"', 'path = "lists"\nsheet = "*"'):
        many.write_job(OUT, inputs=inputs)
        report = many.run()
        assert (report.exit_code, kinds(report)) == (0, {})
        assert {outcome(report, name).what for name in STRAYS} == {"passed_over"}
        assert [path.name for path in (many.folder / "out").iterdir()] == ["a.csv"]


def test_what_was_a_list_or_stands_alone_or_is_named_fails(many: Nights) -> None:
    stray = write(many.folder / "notes.txt", STRAYS["notes.txt"])
    for name in ("a.csv", "b_20261120.csv"):
        put(many, name, list(many.statuses))
    for named in ("notes.txt", "n*.txt"):
        many.write_job(OUT, inputs=f'path = "lists"\n[[inputs]]\npath = "{named}"')
        report = many.run()
        assert (report.exit_code, outcome(report, "notes.txt").what) == (2, "failed")
    stray.unlink()
    many.write_job(OUT, inputs='path = "lists"')
    assert many.run().exit_code == 0
    for name in ("a.csv", "b_20261121.csv"):
        write(many.folder / "lists" / name, STRAYS["notes.txt"])
    report = many.run()
    assert (report.exit_code, kinds(report)) == (2, {})
    assert {outcome(report, name).what for name in ("a.csv", "b_20261121.csv")} == {"failed"}
