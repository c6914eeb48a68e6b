"""By what a scheduled job knows a row again, and what it holds on to while a question is open."""

from __future__ import annotations

import pytest

from bansong.jobs.state import compare_runs
from conftest import write
from customers import numbers
from nightly_jobs import Nights, kinds


def edit(nights: Nights, before: str, after: str) -> None:
    path = nights.folder / "in.csv"
    write(path, path.read_text("utf-8").replace(before, after))


def test_a_closure_is_told_though_the_name_was_edited_the_same_day(nights: Nights) -> None:
    """A row whose name and address were edited is known by its number, not gone and new; nothing is told twice."""
    nights.run()
    number = list(nights.statuses)[2]
    nights.statuses[number] = "closed"
    nights.write_inputs()
    edit(nights, f"상사 {number},서울시 중구", f"(주)상사 {number},서울특별시 중구")
    found = kinds(nights.run())
    assert (found["closed"], found.get("new"), found.get("gone")) == (1, None, None)
    nights.write_inputs()
    assert kinds(nights.run()) == {}
    week = compare_runs(nights.folder / "job.toml", "last-2", "last")
    assert [list(row) for row in week["changes"]] == [["closed", "risk_up", "action_up"]]


def test_two_rows_of_one_number_are_not_taken_for_each_other(nights: Nights) -> None:
    """Where several rows of a number were edited, nobody can tell which is which: they are gone and new."""
    number = list(nights.statuses)[2]
    second = f"\n{number},지점,서울시 중구 세종대로 3\n"
    path = nights.folder / "in.csv"
    write(path, path.read_text("utf-8").rstrip() + second)
    nights.run()
    edit(nights, f"{number},상사", f"{number},(주)상사")
    edit(nights, f"{number},지점", f"{number},새지점")
    assert kinds(nights.run()) == {"new": 2, "gone": 2}


def test_an_outage_raises_no_risk_and_its_end_lowers_none(nights: Nights) -> None:
    """While the registry knows nothing of the numbers, nobody is told of another status, risk or action."""
    nights.statuses[list(nights.statuses)[2]] = "closed"
    nights.write_inputs()
    nights.run()
    rows, whole = list(nights.statuses), dict(nights.statuses)
    nights.statuses = {numbers(13)[12]: "active"}
    nights.write_inputs(rows)
    assert kinds(nights.run()) == {}
    nights.statuses = whole
    nights.write_inputs()
    assert kinds(nights.run()) == {}


def test_runs_are_compared_though_the_clock_was_set_back(nights: Nights) -> None:
    """Which run came first is known by their order, not by their times."""
    nights.run()
    nights.night = -10
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()
    nights.run()
    assert compare_runs(nights.folder / "job.toml", "last-1", "last").height == 1


@pytest.mark.parametrize(("key", "exit_code"), [('["zipcode"]', 2), ('["zipcode", "name"]', 0), ('["b_no"]', 0)])
def test_a_list_without_the_columns_of_the_key_fails(key: str, exit_code: int, nights: Nights) -> None:
    """All its rows would be one, and the changes of all but one told to nobody."""
    nights.write_job(end=f"[changes]\nkey = {key}\n")
    report = nights.run()
    assert report.exit_code == exit_code
    assert ("has none of the columns" in (report.inputs[0].error or "")) == bool(exit_code)


def test_a_closure_is_told_of_a_number_that_was_on_the_list(nights: Nights) -> None:
    """Also if its status was not known the night before; a number that is closed when it first comes is a new row."""
    first, *rest = nights.statuses
    late = numbers(13)[12]
    nights.statuses = dict.fromkeys(rest, "active")
    nights.write_inputs([first, *rest])
    assert kinds(nights.run()) == {}
    nights.statuses |= {late: "closed"}
    nights.write_inputs([first, *rest, late])
    assert kinds(nights.run()) == {"new": 1}
    nights.statuses |= {first: "closed"}
    nights.write_inputs()
    assert kinds(nights.run())["closed"] == 1
    assert kinds(nights.run()) == {}
