"""Which files scheduled jobs read and write: whatever lies about, none is lost, and none is read that is no list."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from bansong.base.publish import publish_file
from bansong.base.schema import SEOUL
from bansong.errors import StoreError, UsageError
from bansong.jobs import run as job
from bansong.jobs.inputs import OUTPUT_IS_INPUT, OUTPUT_SHARED, SIDE_FILE_CLASHES, remove_old_outputs
from bansong.jobs.job_file import OutputNames
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


def test_a_registry_in_the_home_folder_is_noticed(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(nights.folder))
    write(nights.folder / "job.toml", '[[inputs]]\npath = "in.csv"\n[reference]\nregistry = "~/registry.parquet"\n')
    nights.run()
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


def test_a_full_disk_is_called_one_and_the_next_run_comes_to_the_same(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_changes_that_a_killed_run_owed_are_written_by_the_next(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.write_job(end='[output]\nchanges = "out/changes.{date}.csv"\n')
    nights.run()
    number = nights.close()
    with monkeypatch.context() as patch:
        patch.setattr(job, "write_changes", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            nights.run()
    nights.night += 1
    assert kinds(nights.run()) == {}
    (written,) = (nights.folder / "out").iterdir()
    assert (written.name, number in written.read_text("utf-8-sig")) == ("changes.2026-11-21.csv", True)


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
    nights.write_job(inputs='path = "*.csv"', end=end)
    nights.run()
    nights.close()
    nights.run_killed()
    nights.night += 1
    report = nights.run()
    assert ([Path(one.path).name for one in report.inputs], kinds(report)["closed"]) == (["in.csv"], 1)
    assert names(nights) == ["in.csv"]


def test_files_that_the_job_names_otherwise_are_no_lists(nights: Nights) -> None:
    (nights.folder / "statuses.txt").unlink()
    more = '[notify]\nfile = "told.txt"\nwhen = "always"\n[run]\nmetrics = "figures.txt"\n'
    nights.write_job(inputs='path = "."', end=more)
    assert [names(nights) for _ in range(2)] == [["in.csv"]] * 2


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


def test_a_second_run_of_a_day_keeps_what_the_first_wrote(nights: Nights) -> None:
    nights.write_job(end='[output]\nchanges = "out/changes.{date}.csv"\n')
    nights.run()
    found = []
    for place in range(2):
        found.append(nights.close(place))
        nights.run()
        nights.night -= 1
    written = {path.name: path.read_text("utf-8-sig") for path in (nights.folder / "out").iterdir()}
    assert set(written) == {"changes.2026-11-21.csv", "changes.2026-11-21.2.csv"}
    assert found[0] in written["changes.2026-11-21.csv"]
    assert found[1] in written["changes.2026-11-21.2.csv"]


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
