"""Which files scheduled jobs read and write, lists with a day in their names, and files that are no lists."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Final

import polars as pl
import pytest

import bansong as bs
from bansong.base.publish import publish_file
from bansong.base.schema import SEOUL
from bansong.errors import StoreError, UsageError
from bansong.jobs import run as job
from bansong.jobs.inputs import OUTPUT_IS_INPUT, OUTPUT_SHARED, SIDE_FILE_CLASHES, find_predecessors, remove_old_outputs
from bansong.jobs.job_file import OutputNames
from bansong.jobs.report import InputOutcome
from bansong.jobs.run import run_job
from bansong.jobs.state import RunStore
from bansong.tables.detect import EXTENSIONS
from bansong.tables.inputs import find_files
from conftest import write
from customers import numbers
from nightly_jobs import DAY, Nights, kinds


def names(nights: Nights) -> list[str]:
    return [Path(one.path).name for one in nights.run().inputs]


def test_brackets_in_names_of_files_and_folders_are_no_patterns(tmp_path: Path) -> None:
    folder = tmp_path / "[team] a"
    folder.mkdir()
    nights = Nights(folder, statuses=dict.fromkeys(numbers(3), "active"))
    nights.write_inputs()
    (folder / "in.csv").rename(folder / "거래처[본사].csv")
    for inputs in ('path = "거래처[본사].csv"', 'path = "거*.csv"'):
        nights.write_job(inputs=inputs, end='[output]\npath = "out/{name}.{ext}"\n')
        report = nights.run()
        assert (report.exit_code, [Path(one.path).name for one in report.inputs]) == (0, ["거래처[본사].csv"])


@pytest.mark.skipif(os.name == "nt", reason="names are text on Windows")
def test_a_name_that_is_not_utf_8_fails_alone(nights: Nights) -> None:
    nights.write_job(inputs='path = "*.csv"', end='[output]\npath = "out/{name}.csv"\n[notify]\nfile = "told.txt"\n')
    Path(os.fsdecode(os.fsencode(nights.folder) + b"/b\xb0\xa1.csv")).write_bytes(b"b_no\n")
    report = nights.run()
    assert (report.exit_code, [one.what for one in report.inputs]) == (2, ["verified", "failed"])
    assert r"b\xb0\xa1.csv: the name is not UTF-8" in (nights.folder / "told.txt").read_text("utf-8")
    nights.close()
    assert kinds(nights.run())["closed"] == 1


def test_two_job_files_do_not_share_a_name_and_a_moved_one_keeps_it(nights: Nights) -> None:
    nights.write_job('name = "customers"')
    nights.run()
    job = nights.folder / "job.toml"
    copy = write(nights.folder / "copy.toml", job.read_text("utf-8"))
    with pytest.raises(UsageError, match=r"copy\.toml: the name 'customers' is that of the job .*job\.toml"):
        run_job(copy, now=nights.now)
    job.unlink()
    nights.close()
    assert kinds(run_job(copy, now=nights.now))["closed"] == 1


def test_a_full_disk_is_told_and_the_next_run_goes_on(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.run()
    nights.close()
    put = RunStore._put_snapshot

    def put_on_full_disk(store: RunStore, rows: pl.DataFrame) -> None:
        store._db.execute("PRAGMA max_page_count = 1")  # no more than there are
        put(store, rows)
        store._db.execute("INSERT INTO snapshot VALUES (9, zeroblob(1000000))")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "_put_snapshot", put_on_full_disk)
        with pytest.raises(StoreError, match="the disk is full"):
            nights.run()
    assert kinds(nights.run())["closed"] == 1


def test_changes_that_a_killed_run_owed_are_written(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.write_job(end='[output]\nchanges = "out/changes.{date}.csv"\n')
    nights.run()
    number = nights.close()
    with monkeypatch.context() as patch:
        patch.setattr(job, "write_changes", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            nights.run()
    later = nights.close(1)
    assert kinds(nights.run())["closed"] == 1
    written = {path.name: path.read_text("utf-8-sig") for path in (nights.folder / "out").iterdir()}
    assert number in written.pop("changes.2026-11-21.csv")
    assert (later in written.pop("changes.2026-11-21.2.csv"), written) == (True, {})


def test_an_output_is_of_the_day_in_korea_on_which_it_was_written(tmp_path: Path) -> None:
    output = write(tmp_path / "list-2026-01-05.csv", "b_no")
    written = datetime(2026, 3, 2, 8, 30, tzinfo=SEOUL).timestamp()
    os.utime(output, (written, written))
    assert remove_old_outputs([output], date(2026, 3, 2)) == []
    assert remove_old_outputs([output], date(2026, 3, 3)) == [output]


def test_old_files_that_another_job_wrote_stay(nights: Nights) -> None:
    names = 'path = "{name}.out.csv"\nchanges = "out/changes.{date}.csv"'
    nights.write_job(end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 1\n")
    assert kinds(nights.run()) == {}
    (nights.folder / "out").mkdir()
    others = write(nights.folder / "out" / "changes.2026-11-20.csv", "a\n")
    for _ in range(4):
        nights.run()
    assert others.exists()


@pytest.mark.parametrize("extension", [extension for extension, format in EXTENSIONS.items() if not format.can.written])
def test_the_output_of_a_format_that_is_only_read_is_a_workbook(extension: str, tmp_path: Path) -> None:
    (tmp_path / f"list{extension}").touch()
    name = OutputNames(tmp_path, "job", date(2026, 11, 27)).fill("{name}.out.{ext}", find_files("list.*", tmp_path)[0])
    assert name.name == "list.out.xlsx"


TWO = 'path = "in.csv"\n[[inputs]]\npath = "in.out.csv"'
ONE = 'path = "in.out.csv"'
OUT = '[output]\npath = "out/{name}.csv"\n'
CLASHES = [
    (TWO, '[output]\npath = "{name}.out.csv"\n'),
    ('path = "*.csv"', '[output]\npath = "{name}.out.csv"\n'),
    (TWO, '[output]\nlatest = "in.out.csv"\n'),
    (ONE, f'{OUT}changes = "in.out.csv"\n'),
    (ONE, f'{OUT}[notify]\nfile = "in.out.csv"\n'),
    (ONE, f'{OUT}[run]\nmetrics = "in.out.csv"\n'),
    (ONE, '[output]\npath = "out/a.csv"\nchanges = "out/a.csv"\n'),
]
"""Inputs, and what would be written under the name of one of them, or twice."""


def test_nothing_that_is_written_replaces_an_input(nights: Nights) -> None:
    held = (nights.folder / "in.csv").read_bytes()
    (nights.folder / "in.out.csv").write_bytes(held)
    for inputs, end in CLASHES:
        nights.write_job(inputs=inputs, end=end)
        with pytest.raises(UsageError) as refused:
            nights.run()
        assert refused.value.code in {one.code for one in (OUTPUT_SHARED, OUTPUT_IS_INPUT, SIDE_FILE_CLASHES)}
        assert (nights.folder / "in.out.csv").read_bytes() == held


def test_what_runs_wrote_also_a_killed_one_is_no_input_of_the_next(nights: Nights) -> None:
    end = '[output]\npath = "{name}.{date}.csv"\nchanges = "changes.{date}.csv"\n'
    more = '[notify]\nfile = "told.txt"\nwhen = "always"\n[run]\nmetrics = "figures.txt"\n'
    nights.write_job(inputs='path = "."', end=end + more)
    nights.run()
    nights.close()
    nights.run_killed()
    nights.night += 1
    report = nights.run()
    assert ([Path(one.path).name for one in report.inputs], kinds(report)["closed"]) == (["in.csv"], 1)
    assert names(nights) == ["in.csv"]


def test_what_cannot_be_written_stops_nothing_else(nights: Nights) -> None:
    (nights.folder / "held").write_text("")
    end = '[output]\nchanges = "held/c.csv"\n[run]\nmetrics = "held/m.prom"\n[notify]\nfile = "told.txt"\n'
    nights.write_job(end=end)
    nights.run()
    nights.close()
    report = nights.run()
    assert (kinds(report)["closed"], report.changes_file, len(report.problems)) == (1, None, 2)
    assert "1 newly closed" in (nights.folder / "told.txt").read_text("utf-8")
    nights.write_job(end='[output]\npath = "held/{name}.csv"\n')
    report = nights.run()
    assert (report.exit_code, report.inputs[0].what, kinds(report)) == (2, "failed", {})


def test_a_copy_that_a_killed_run_left_is_replaced(nights: Nights) -> None:
    nights.write_job(end='[output]\npath = "out/{name}.{date}.csv"\nlatest = "out/latest.csv"\n')
    nights.run()
    whole = (nights.folder / "in.csv").read_bytes()
    (nights.folder / "in.csv").write_bytes(whole.replace("상사".encode(), "회사".encode()))
    nights.run_killed()
    (nights.folder / "in.csv").write_bytes(whole)
    report = nights.run()
    latest = (nights.folder / "out" / "latest.csv").read_bytes()
    assert (report.inputs[0].what, Path(report.inputs[0].output or "").read_bytes() == latest) == ("unchanged", True)
    assert "상사".encode() in latest


def test_outputs_are_removed_when_they_are_old_and_others_stay(nights: Nights) -> None:
    names = 'path = "out/{name}.{date}.csv"\nlatest = "out/latest.csv"\nchanges = "out/changes.{date}.csv"'
    nights.write_job(end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 2\n")
    (nights.folder / "out").mkdir()
    mine = write(nights.folder / "out" / "mine.2020-01-01.csv", "a\n")
    for night in range(4):
        nights.close(night)
        before = {path: path.stat().st_mtime_ns for path in (nights.folder / "out").iterdir()}
        assert nights.run().problems == ()
        for path in (nights.folder / "out").iterdir():
            if path.stat().st_mtime_ns != before.get(path):
                os.utime(path, (nights.now() - DAY,) * 2)  # of the night that wrote it
    written = {path.name for path in (nights.folder / "out").iterdir()}
    days = ("2026-11-21", "2026-11-22", "2026-11-23")
    assert written == {mine.name, "latest.csv", *(f"{name}.{day}.csv" for day in days for name in ("in", "changes"))}


def test_the_newest_output_and_its_copy_stay_while_the_list_is_away(nights: Nights) -> None:
    old = (nights.folder / "in.csv").rename(nights.folder / "list-2026-01-05.csv")
    (nights.folder / "lists").mkdir()
    names = 'path = "lists/../out/{name}.{ext}"\nlatest = "lists/../out/{name}.latest.{ext}"'
    nights.write_job(inputs='path = "*.csv"', end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 90\n")
    assert nights.run().problems == ()
    old.rename(nights.folder / "away")
    assert nights.run().exit_code == 2
    written = {path.name for path in (nights.folder / "out").iterdir()}
    assert written == {"list-2026-01-05.csv", "list-2026-01-05.latest.csv"}


KILLED: Final = """
import os, signal
from bansong.jobs.run import run_job
from bansong.base import publish
publish.sync_file = lambda path: os.kill(os.getpid(), signal.SIGKILL)  # an output is whole and not yet in its place
run_job("job.toml", now=lambda: NOW)
"""


@pytest.mark.crash
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_killed_night_leaves_no_customers_behind_in_the_folder_of_a_day(nights: Nights) -> None:
    nights.write_job(end='[output]\npath = "out/{date}/{name}.{ext}"\n')
    code = KILLED.replace("NOW", str(nights.now()))
    done = subprocess.run([sys.executable, "-c", code], cwd=nights.folder, capture_output=True, text=True)
    left = list(nights.folder.rglob(".bansong-*"))
    assert (done.returncode, bool(left)) == (-9, True), done.stderr
    for one in left:
        os.utime(one, (0, 0))
    nights.night = 1
    with publish_file(left[0].parent / "other.csv") as alive:  # what a run that lives is writing
        os.utime(alive, (0, 0))
        assert nights.run().exit_code == 0
        assert list(nights.folder.rglob(".bansong-*")) == [alive]


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


def test_a_column_that_a_dated_list_lost_is_told_and_only_closures_are_compared(many: Nights) -> None:
    every, kept = list(many.statuses), HEADERS[:2]
    for night, (headers, closed) in enumerate([(HEADERS, 0), (kept, 1), (kept, 2), (HEADERS, 3)]):
        many.statuses |= dict.fromkeys(every[:closed], "closed")
        many.write_inputs()
        list_ = put(many, f"a_2026112{night}.csv", every, headers)
        report = many.run()
        is_lost = night == 1
        assert (outcome(report, list_.name).lost, report.exit_code) == (("address",) if is_lost else (), 3 * is_lost)
        found = kinds(report)
        assert found.get("closed", 0) == bool(night)
        assert {"new", "gone", "address"}.isdisjoint(found)
        if night in (1, 3):
            assert found == {"closed": 1}
        list_.unlink()


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
