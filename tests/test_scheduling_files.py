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
from bansong.jobs.inputs import remove_old_outputs
from bansong.jobs.job_file import OutputNames
from bansong.jobs.run import run_job
from bansong.jobs.state import RunStore
from bansong.tables.detect import EXTENSIONS
from bansong.tables.inputs import find_files
from conftest import write
from customers import numbers
from nightly_jobs import DAY, Nights, kinds

LATER: Final = '[output]\npath = "{name}.{date}.csv"\n'


def names(nights: Nights) -> list[str]:
    return [Path(one.path).name for one in nights.run().inputs]


def close(nights: Nights, place: int = 0) -> str:
    """Have one more business closed; return its number."""
    number = list(nights.statuses)[place]
    nights.statuses[number] = "closed"
    nights.write_inputs()
    return number


@pytest.mark.parametrize(
    ("inputs", "end"),
    [
        ('path = "in.csv"\n[[inputs]]\npath = "in.out.csv"', '[output]\npath = "{name}.out.csv"\n'),
        ('path = "*.csv"', '[output]\npath = "{name}.out.csv"\n'),
        ('path = "in.csv"\n[[inputs]]\npath = "in.out.csv"', '[output]\nlatest = "in.out.csv"\n'),
        ('path = "in.out.csv"', '[output]\npath = "out/{name}.csv"\nchanges = "in.out.csv"\n'),
        ('path = "in.out.csv"', '[output]\npath = "out/{name}.csv"\n[notify]\nfile = "in.out.csv"\n'),
        ('path = "in.out.csv"', '[output]\npath = "out/{name}.csv"\n[run]\nmetrics = "in.out.csv"\n'),
        ('path = "in.out.csv"', '[output]\npath = "out/a.csv"\nchanges = "out/a.csv"\n'),
    ],
)
def test_nothing_that_is_written_replaces_an_input(inputs: str, end: str, nights: Nights) -> None:
    """A list of the user's is refused before anything is done where an output, or anything else, has its name."""
    held = (nights.folder / "in.csv").read_bytes()
    (nights.folder / "in.out.csv").write_bytes(held)
    nights.write_job(inputs=inputs, end=end)
    with pytest.raises(UsageError, match=r"\.csv: is an input|besides"):
        nights.run()
    assert (nights.folder / "in.out.csv").read_bytes() == held


def test_what_a_killed_run_wrote_is_no_input_of_the_next(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its output and its notes, a run leaves an output that the next night's does not read."""
    nights.write_job(inputs='path = "*.csv"', end=LATER)
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            nights.run()
    nights.night += 1
    assert names(nights) == ["in.csv"]


def test_files_that_the_job_names_otherwise_are_no_lists(nights: Nights) -> None:
    """A folder with the registry, the file of messages and that of figures in it is read as its list alone."""
    (nights.folder / "statuses.txt").unlink()
    more = '[notify]\nfile = "told.txt"\nwhen = "always"\n[run]\nmetrics = "figures.txt"\n'
    nights.write_job(inputs='path = "."', end=more)
    assert [names(nights) for _ in range(3)] == [["in.csv"]] * 3


def test_brackets_in_names_of_files_and_folders_are_no_patterns(tmp_path: Path) -> None:
    """`거래처[본사].csv` is a file; a folder `[team]` is one, for a glob and for the registry in it."""
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
    """It is told of in bytes, with the remedy, to the receiver too; the other inputs are verified and compared."""
    nights.write_job(inputs='path = "*.csv"', end='[output]\npath = "out/{name}.csv"\n[notify]\nfile = "told.txt"\n')
    Path(os.fsdecode(os.fsencode(nights.folder) + b"/b\xb0\xa1.csv")).write_bytes(b"b_no\n")
    report = nights.run()
    assert (report.exit_code, [one.what for one in report.inputs]) == (2, ["verified", "failed"])
    assert r"b\xb0\xa1.csv: the name is not UTF-8" in (nights.folder / "told.txt").read_text("utf-8")
    close(nights)
    assert kinds(nights.run())["closed"] == 1


@pytest.mark.parametrize(
    "pattern", ["a.{date", "a.{date!x}.csv", "a.{0}.csv", "a.{}.csv", "a.{date.x}.csv", "a.{no}.csv"]
)
@pytest.mark.parametrize("field", ["path", "latest", "changes"])
def test_a_pattern_that_cannot_be_filled_is_said_before_anything_is_done(
    field: str, pattern: str, nights: Nights
) -> None:
    """Exit code 2 with the pattern; nothing was verified, or bought."""
    nights.write_job(end=f'[output]\n{field} = "{pattern}"\n')
    before = sorted(nights.folder.iterdir())
    with pytest.raises(UsageError, match="pattern"):
        nights.run()
    assert sorted(nights.folder.iterdir()) == before


def test_a_folder_of_outputs_that_cannot_be_made_is_said(nights: Nights) -> None:
    """The input fails with the folder's name; what was known stays."""
    (nights.folder / "held").write_text("")
    nights.write_job(end='[output]\npath = "held/{name}.csv"\n')
    report = nights.run()
    assert (report.exit_code, "held: the folder cannot be made" in (report.inputs[0].error or "")) == (2, True)


def test_changes_and_figures_that_cannot_be_written_stop_nothing(nights: Nights) -> None:
    """The run is written down and told all the same; why they are not there is said."""
    (nights.folder / "held").write_text("")
    end = '[output]\nchanges = "held/c.csv"\n[run]\nmetrics = "held/m.prom"\n[notify]\nfile = "told.txt"\n'
    nights.write_job(end=end)
    nights.run()
    close(nights)
    report = nights.run()
    assert (kinds(report)["closed"], report.changes_file, len(report.problems)) == (1, None, 2)
    assert "1 newly closed" in (nights.folder / "told.txt").read_text("utf-8")
    assert kinds(nights.run()) == {}


def test_a_second_run_of_a_day_keeps_what_the_first_wrote(nights: Nights) -> None:
    """What changed in each of two runs of one day can be read in the evening."""
    nights.write_job(end='[output]\nchanges = "out/changes.{date}.csv"\n')
    nights.run()
    found = []
    for place in range(2):
        found.append(close(nights, place))
        nights.run()
        nights.night -= 1
    written = sorted((nights.folder / "out").iterdir())
    assert [path.name for path in written] == ["changes.2026-11-21.2.csv", "changes.2026-11-21.csv"]
    assert all(number in path.read_text("utf-8-sig") for number, path in zip(reversed(found), written, strict=True))


def test_a_registry_in_the_home_folder_is_noticed(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` in a path means the same for what is read and for whether it is another than last night."""
    monkeypatch.setenv("HOME", str(nights.folder))
    write(nights.folder / "job.toml", '[[inputs]]\npath = "in.csv"\n[reference]\nregistry = "~/registry.parquet"\n')
    nights.run()
    close(nights)
    assert kinds(nights.run())["closed"] == 1


def test_two_job_files_do_not_share_a_name_and_a_moved_one_keeps_it(nights: Nights) -> None:
    """A copy with the same name is refused, since each would have lost the other's rows; a moved file goes on."""
    nights.write_job('name = "customers"')
    nights.run()
    job = nights.folder / "job.toml"
    copy = write(nights.folder / "copy.toml", job.read_text("utf-8"))
    with pytest.raises(UsageError, match=r"copy\.toml: the name 'customers' is that of the job .*job\.toml"):
        run_job(copy, now=nights.now)
    job.unlink()
    close(nights)
    assert kinds(run_job(copy, now=nights.now))["closed"] == 1


def test_a_full_disk_is_called_one_and_the_next_run_comes_to_the_same(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the state cannot grow, the state before is left whole, and the closure is told when there is space."""
    nights.run()
    close(nights)
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


def test_a_copy_that_a_killed_run_left_is_replaced(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is again as it was before the night that was killed, so its output is, and the copy beside it, too."""
    nights.write_job(end='[output]\npath = "out/{name}.{date}.csv"\nlatest = "out/latest.csv"\n')
    nights.run()
    whole = (nights.folder / "in.csv").read_bytes()
    (nights.folder / "in.csv").write_bytes(whole.replace("상사".encode(), "회사".encode()))
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            nights.run()
    (nights.folder / "in.csv").write_bytes(whole)
    report = nights.run()
    assert report.inputs[0].what == "unchanged"
    assert (nights.folder / "out" / "latest.csv").read_bytes() == Path(report.inputs[0].output or "").read_bytes()
    assert "상사" in (nights.folder / "out" / "latest.csv").read_text("utf-8")


def test_changes_that_a_killed_run_owed_are_written_by_the_next(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the run is written down, and its file of changes is not: it has its own name, and what it should."""
    nights.write_job(end='[output]\nchanges = "out/changes.{date}.csv"\n')
    nights.run()
    number = close(nights)
    with monkeypatch.context() as patch:
        patch.setattr(job, "write_changes", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            nights.run()
    nights.night += 1
    assert kinds(nights.run()) == {}
    (written,) = (nights.folder / "out").iterdir()
    assert (written.name, number in written.read_text("utf-8-sig")) == ("changes.2026-11-21.csv", True)


def test_outputs_are_removed_when_they_are_old(nights: Nights) -> None:
    """What the job wrote long ago goes, by the day in its name; what it did not write, or writes each night, stays."""
    names = 'path = "out/{name}.{date}.csv"\nlatest = "out/latest.csv"\nchanges = "out/changes.{date}.csv"'
    nights.write_job(end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 2\n")
    (nights.folder / "out").mkdir()
    mine = write(nights.folder / "out" / "mine.2020-01-01.csv", "a\n")
    for night in range(5):
        close(nights, night)
        before = {path: path.stat().st_mtime_ns for path in (nights.folder / "out").iterdir()}
        assert nights.run().problems == ()
        for path in (nights.folder / "out").iterdir():
            if path.stat().st_mtime_ns != before.get(path):
                os.utime(path, (nights.now() - DAY,) * 2)  # of the night that wrote it
    assert mine.exists()
    written = {path.name for path in (nights.folder / "out").iterdir()} - {mine.name}
    days = ("2026-11-22", "2026-11-23", "2026-11-24")
    assert written == {"latest.csv", *(f"in.{day}.csv" for day in days), *(f"changes.{day}.csv" for day in days)}


def test_an_output_is_never_older_than_it_is(nights: Nights) -> None:
    """A list whose name has an old day, and that another list replaces, leaves an output of last night: it stays."""
    (nights.folder / "lists").mkdir()
    names = 'path = "out/{name}.{ext}"\nchanges = "out/changes.{date}.csv"'
    nights.write_job(inputs='path = "lists"', end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 90\n")
    days = ("2026-01-05", "2026-01-06", "2026-01-07")
    for day in days:
        for old in (nights.folder / "lists").iterdir():
            old.unlink()
        (nights.folder / "lists" / f"list-{day}.csv").write_bytes((nights.folder / "in.csv").read_bytes())
        assert nights.run().problems == ()
    outputs = sorted((nights.folder / "out").glob("list-*.csv"))
    assert [path.name for path in outputs] == [f"list-{day}.csv" for day in days]
    os.utime(outputs[0], (nights.now() - 100 * DAY,) * 2)
    nights.run()
    assert sorted((nights.folder / "out").glob("list-*.csv")) == outputs[1:]


def test_an_output_is_of_the_day_in_korea_on_which_it_was_written(tmp_path: Path) -> None:
    """What was written at half past eight in the morning is of that day, and in UTC of the day before: it stays."""
    output = write(tmp_path / "list-2026-01-05.csv", "b_no")
    written = datetime(2026, 3, 2, 8, 30, tzinfo=SEOUL).timestamp()
    os.utime(output, (written, written))
    assert remove_old_outputs([output], date(2026, 3, 2)) == []
    assert remove_old_outputs([output], date(2026, 3, 3)) == [output]


@pytest.mark.parametrize("folder", ["out", "lists/../out"])
def test_the_newest_output_and_its_copy_stay(folder: str, nights: Nights) -> None:
    """A list that is named by an old day keeps its output and the copy, while it is away, too."""
    old = (nights.folder / "in.csv").rename(nights.folder / "list-2026-01-05.csv")
    (nights.folder / "lists").mkdir()
    names = f'path = "{folder}/{{name}}.{{ext}}"\nlatest = "{folder}/{{name}}.latest.{{ext}}"'
    nights.write_job(inputs='path = "*.csv"', end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 90\n")
    written = {"list-2026-01-05.csv", "list-2026-01-05.latest.csv"}
    for _ in range(2):
        assert nights.run().problems == ()
        assert {path.name for path in (nights.folder / "out").iterdir()} == written
    old.rename(nights.folder / "away")
    assert nights.run().exit_code == 2
    assert {path.name for path in (nights.folder / "out").iterdir()} == written


def test_old_files_that_another_job_wrote_stay(nights: Nights) -> None:
    """A file of changes that this job had no changes for is another job's where it is there later."""
    names = 'path = "{name}.out.csv"\nchanges = "out/changes.{date}.csv"'
    nights.write_job(end=f"[output]\n{names}\n[run]\nkeep_outputs_days = 1\n")
    assert kinds(nights.run()) == {}
    (nights.folder / "out").mkdir()
    others = write(nights.folder / "out" / "changes.2026-11-20.csv", "a\n")
    for _ in range(4):
        nights.run()
    assert others.exists()


KILLED: Final = """
import os, signal
from bansong.jobs.run import run_job
from bansong.base import publish
publish.sync_file = lambda path: os.kill(os.getpid(), signal.SIGKILL)  # an output is whole and not yet in its place
run_job("job.toml", now=lambda: NOW)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("path", ["{name}.{date}.{ext}", "out/{date}/{name}.{ext}"])
def test_a_killed_night_leaves_no_customers_behind(nights: Nights, path: str) -> None:
    """The next night has other names and may have another folder; what a run that lives is writing stays."""
    nights.write_job(end=f'[output]\npath = "{path}"\n')
    code = KILLED.replace("NOW", str(nights.now()))
    done = subprocess.run([sys.executable, "-c", code], cwd=nights.folder, capture_output=True, text=True)
    left = list(nights.folder.rglob(".bansong-*"))
    assert (done.returncode, bool(left)) == (-9, True), done.stderr
    for one in left:
        os.utime(one, (0, 0))
    nights.night = 1
    with publish_file(left[0].parent / "other.csv") as alive:
        os.utime(alive, (0, 0))
        assert nights.run().exit_code == 0
        assert list(nights.folder.rglob(".bansong-*")) == [alive]


@pytest.mark.parametrize("extension", [extension for extension, format in EXTENSIONS.items() if not format.can.written])
def test_the_output_of_a_format_that_is_only_read_is_a_workbook(extension: str, tmp_path: Path) -> None:
    """A web page and an old workbook as inputs of a job: their output has a name that is written."""
    (tmp_path / f"list{extension}").touch()
    name = OutputNames(tmp_path, "job", date(2026, 11, 27)).fill("{name}.out.{ext}", find_files("list.*", tmp_path)[0])
    assert name.name == "list.out.xlsx"
