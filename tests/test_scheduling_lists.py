"""Lists of a job whose names have a day, lists of addresses, and files in its folders that are no lists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

import bansong as bs
from bansong.jobs.report import InputOutcome
from bansong.jobs.state import compare_runs
from conftest import write
from customers import numbers
from nightly_jobs import Nights, kinds

HEADERS = ("사업자번호", "상호", "주소")


@pytest.fixture
def many(nights: Nights) -> Nights:
    """A job over a folder, with thirty businesses, all open."""
    nights.statuses = dict.fromkeys(numbers(30), "active")
    nights.write_inputs()
    nights.write_job("[output]\npath = 'out/{name}.{ext}'\n", inputs='path = "lists"')
    return nights


def put(nights: Nights, name: str, rows: Sequence[str], headers: Sequence[str] = HEADERS) -> Path:
    """Write a list of businesses, by their numbers, with these columns."""
    cells = {"사업자번호": str, "상호": "상사 {}".format, "주소": lambda b_no: f"서울시 중구 세종대로 {int(b_no) % 97}"}
    lines = [",".join(cells[header](b_no) for header in headers) for b_no in rows]
    (nights.folder / "lists").mkdir(exist_ok=True)
    return write(nights.folder / "lists" / name, "\n".join([",".join(headers), *lines, ""]))


def outcome(report: bs.JobReport, name: str) -> InputOutcome:
    return next(one for one in report.inputs if Path(one.path).name == name)


# ── a list with the day in its name ──────────────────────────────────────────────────────────────────────────────

NAMES = [
    ("고객_20261120.csv", "고객_20261121.csv"),
    ("고객 2026-11-20.csv", "고객 2026-11-21.csv"),
    ("9월 30일 고객.csv", "10월 1일 고객.csv"),
    ("list.261130.021500.csv", "list.261201.021459.csv"),
]
REPLACED = [("12월 31일.csv", "1월 1일.csv"), ("export-99.csv", "export-100.csv")]


@pytest.mark.parametrize(
    ("names", "piles_up"), [*product(NAMES, [True, False]), *((names, False) for names in REPLACED)]
)
def test_a_dated_list_that_lost_most_of_its_rows_fails(names: tuple[str, str], piles_up: bool, many: Nights) -> None:
    """Its rows are not gone, and it is compared with the last list that was whole until there is one again."""
    every = list(many.statuses)
    first = put(many, names[0], every)
    many.run()
    if not piles_up:
        first.unlink()
    put(many, names[1], every[:9])
    for _ in range(2):
        report = many.run()
        assert (outcome(report, names[1]).what, report.exit_code, kinds(report)) == ("failed", 2, {})
    put(many, names[1], every[:-1])
    report = many.run()
    assert (report.exit_code, kinds(report)) == (0, {} if piles_up else {"gone": 1})


def test_a_dated_list_may_lose_its_rows_with_force(many: Nights) -> None:
    many.write_job("[output]\npath = 'out/{name}.{ext}'\n", inputs='path = "lists"\nforce = true')
    first = put(many, "a_20261120.csv", list(many.statuses))
    many.run()
    first.unlink()
    put(many, "a_20261121.csv", list(many.statuses)[:5])
    assert kinds(many.run()) == {"gone": 25}


def test_lists_of_branches_do_not_continue_each_other(many: Nights) -> None:
    """A new list beside others of which the names differ in a number, and hold no day, is a list of its own."""
    every = list(many.statuses)
    put(many, "지점_1.csv", every[:25])
    put(many, "지점_2.csv", every[:25])
    many.run()
    put(many, "지점_3.csv", every[25:])
    report = many.run()
    assert (report.exit_code, kinds(report)) == (0, {"new": 5})


def test_an_older_list_that_is_added_is_not_compared_with_a_newer(many: Nights) -> None:
    put(many, "a_20261120.csv", list(many.statuses))
    many.run()
    put(many, "a_20200101.csv", list(many.statuses)[:3])
    assert many.run().exit_code == 0


@pytest.mark.parametrize("piles_up", [True, False])
@pytest.mark.parametrize("lost", ["주소", "상호"])
def test_a_column_that_a_dated_list_lost_is_told(lost: str, piles_up: bool, many: Nights) -> None:
    """Only closures are compared that night, and on the night it is back."""
    every, kept = list(many.statuses), [header for header in HEADERS if header != lost]
    for night, (headers, closed) in enumerate([(HEADERS, 0), (kept, 1), (kept, 2), (HEADERS, 3), (HEADERS, 4)]):
        many.statuses |= dict.fromkeys(every[:closed], "closed")
        many.write_inputs()
        list_ = put(many, f"a_2026112{night}.csv", every, headers)
        report = many.run()
        role = {"주소": "address", "상호": "name"}[lost]
        assert outcome(report, list_.name).lost == ((role,) if night == 1 else ())
        assert report.exit_code == (3 if night == 1 else 0)
        found = kinds(report)
        assert found.get("closed", 0) == bool(night)
        if night in (1, 3) and not piles_up:
            assert found == {"closed": 1}
        assert {"new", "gone", "address"}.isdisjoint(found)
        if not piles_up:
            list_.unlink()


def test_a_dated_list_that_lost_its_numbers_fails_beside_a_list_of_addresses(many: Nights) -> None:
    """Whatever other lists there are."""
    every = list(many.statuses)
    put(many, "addresses.csv", every, HEADERS[1:])
    put(many, "a_20261120.csv", every)
    many.run()
    put(many, "a_20261121.csv", every, HEADERS[1:])
    report = many.run()
    assert (report.exit_code, outcome(report, "a_20261121.csv").what) == (2, "failed")


def test_a_list_under_another_name_may_be_the_one_that_is_gone(many: Nights) -> None:
    """Then it has to have numbers, too; a new list of addresses beside the lists of before need not."""
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


# ── a list of addresses ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("before", "after"), [(HEADERS[1:], HEADERS[2:]), (HEADERS[2:], HEADERS[1:])])
def test_a_list_of_addresses_with_another_column_has_no_other_rows(
    before: Sequence[str], after: Sequence[str], many: Nights
) -> None:
    every = list(many.statuses)
    put(many, "a.csv", every, before)
    many.run()
    put(many, "a.csv", every, after)
    report = many.run()
    assert (report.inputs[0].lost, kinds(report)) == (("name",) if "상호" in before else (), {})
    put(many, "a.csv", every[:-1], after)
    assert kinds(many.run()) == {"gone": 1}
    put(many, "a.csv", every, before)
    assert kinds(many.run()) == {}
    assert compare_runs(many.folder / "job.toml", "last-3", "last").height <= 1


def test_rows_without_a_number_are_no_other_rows_where_a_column_is_lost(many: Nights) -> None:
    every = list(many.statuses)
    for headers in (HEADERS, HEADERS[::2], HEADERS):
        path = put(many, "a.csv", every, headers)
        blank = ",".join({"사업자번호": "", "상호": "가나", "주소": "서울시 중구 세종대로 110"}[one] for one in headers)
        write(path, path.read_text("utf-8") + f"{blank}\n")
        assert kinds(many.run()) == {}


def test_a_list_of_addresses_that_gets_numbers_tells_which_are_closed(many: Nights) -> None:
    """Its rows are not new."""
    every = list(many.statuses)
    many.statuses[every[2]] = "closed"
    many.write_inputs()
    put(many, "a.csv", every, HEADERS[1:])
    many.run()
    put(many, "a.csv", every)
    found = kinds(many.run())
    assert (found["closed"], found.get("new"), found.get("gone")) == (1, None, None)
    assert kinds(many.run()) == {}


# ── files in a folder that are no lists ──────────────────────────────────────────────────────────────────────────

STRAYS = {
    "notes.txt": "담당자에게 확인할 것\n내일 다시 보낼 것\n",
    "readme.csv": "담당자에게 확인할 것\n",
    "settings.json": '{"a": 1}',
    "scan.csv": "%PDF-1.7\n1 0 obj\n",
}


@pytest.mark.parametrize("inputs", ['path = "lists"', 'path = "lists/*"', 'path = "lists"\nsheet = "*"'])
@pytest.mark.parametrize("name", STRAYS)
def test_a_file_of_a_folder_that_holds_no_table_is_passed_over(name: str, inputs: str, many: Nights) -> None:
    many.write_job("[output]\npath = 'out/{name}.{ext}'\n", inputs=inputs)
    put(many, "a.csv", list(many.statuses))
    for _ in range(2):
        write(many.folder / "lists" / name, STRAYS[name])
        report = many.run()
        assert (report.exit_code, outcome(report, name).what, kinds(report)) == (0, "passed_over", {})
        assert sorted(path.name for path in (many.folder / "out").iterdir()) == ["a.csv"]
        assert any(name in text for _, text in report.lines())


def test_what_was_a_list_or_stands_alone_or_is_named_fails(many: Nights) -> None:
    """So does a file without a table that takes the place of a dated list."""
    stray = write(many.folder / "notes.txt", STRAYS["notes.txt"])
    put(many, "a.csv", list(many.statuses))
    put(many, "b_20261120.csv", list(many.statuses))
    many.write_job("[output]\npath = 'out/{name}.{ext}'\n", inputs='path = "lists"\n[[inputs]]\npath = "notes.txt"')
    report = many.run()
    assert (report.exit_code, outcome(report, "notes.txt").what) == (2, "failed")
    many.write_job("[output]\npath = 'out/{name}.{ext}'\n", inputs='path = "lists"\n[[inputs]]\npath = "n*.txt"')
    report = many.run()
    assert (report.exit_code, outcome(report, "notes.txt").what) == (2, "failed")
    stray.unlink()
    many.write_job("[output]\npath = 'out/{name}.{ext}'\n", inputs='path = "lists"')
    assert many.run().exit_code == 0
    for name in ("a.csv", "b_20261121.csv"):
        write(many.folder / "lists" / name, STRAYS["notes.txt"])
        report = many.run()
        assert (report.exit_code, outcome(report, name).what, kinds(report)) == (2, "failed", {})
