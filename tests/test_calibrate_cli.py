"""`bansong calibrate`: what it hands on, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from bansong.cli.app import app
from bansong.errors import BansongError
from conftest import write
from mailings import a_book, letters, mail

CSV = "b_no,bounce_prob,grade,bounced\n" + "".join(
    f"1248100998,{0.02 if place % 10 else 0.4},{'A' if place % 10 else 'D'},{'true' if place % 20 == 0 else 'false'}\n"
    for place in range(200)
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_a_book_is_learned_from_and_a_dry_run_keeps_nothing(tmp_path: Path, state_directory: Path) -> None:
    """Lines on stdout, warnings on stderr; as JSON one object; the exit code is that of the result."""
    book = a_book(tmp_path, letters(104, 800))
    mail(book, letters(2, 400).filter("bounced"), name="returns")
    done = run("--labels", tmp_path, "--dry-run")
    assert (done.exit_code, "one class only" in done.stdout, done.stderr[:6]) == (3, True, "note: ")
    assert list(state_directory.iterdir()) == []
    found = json.loads(run("--labels", tmp_path, "--json").stdout)
    assert (found["labels"], found["promoted"], list(found["set_aside"])) == (800, True, ["returns"])
    assert (state_directory / "models" / "journal.jsonl").exists()


def test_options_that_contradict_each_other_are_refused(state_directory: Path) -> None:
    for arguments, message in (
        (["--report-only", "--dry-run"], "--report-only does not learn, so --dry-run says nothing with it"),
        (["x.csv"], "recorded with `bansong label`"),
        (["x.csv", "--report-only", "--labels", "book"], "give labelled files or --labels"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, BansongError)
        assert (error.exit_code, message in str(error)) == (2, True)
    assert list(state_directory.iterdir()) == []


def test_the_report_of_labelled_files_is_printed(tmp_path: Path, state_directory: Path) -> None:
    """Scores, bins and groups of each file, as JSON one object; nothing is learned or kept."""
    files = [write(tmp_path / "one.csv", CSV), write(tmp_path / "few.csv", "\n".join(CSV.splitlines()[:20]) + "\n")]
    done = run(*files, "--report-only")
    for part in (
        *(f"labels          {file}" for file in files),
        "rows            200 with a known outcome",
        "came back       10, 5.00%; expected 11.6",
        "in the large    0.86 of what was expected (95 % interval 0.47 to 1.54): as expected",
        "AUC             0.974",
        "reliability, by tenths of the rows",
        "by grade",
    ):
        assert part in done.stdout, part
    assert f"{files[1]}: only 19 rows with a known outcome" in done.stderr
    _, few = json.loads(run(*files, "--report-only", "--json").stdout)["reports"]
    assert (few["labels"], few["n"], few["bounced"], few["enough"]) == (str(files[1]), 19, 1, False)
    assert [bin["n"] for bin in few["deciles"]] == [17, 2]
    assert [group["group"] for group in few["groups"]["grade"]] == ["A", "D"]
    assert list(state_directory.iterdir()) == []


def test_the_report_of_the_book_tells_engines_apart(tmp_path: Path, state_directory: Path) -> None:
    """Rows that a scorecard answered, and those of the service, each by themselves; an empty book has no report."""
    empty = run("--report-only")
    assert f"labels          {state_directory / 'labels'}" in empty.stdout
    assert "no row has both a probability and a known outcome" in empty.stderr
    mail(a_book(tmp_path, letters(1, 60)), letters(2, 80), name="service", unread=True)
    (report,) = json.loads(run("--report-only", "--labels", tmp_path, "--json").stdout)["reports"]
    assert (report["labels"], report["n"]) == (str(tmp_path), 140)
    engines = {group["group"]: group["n"] for group in report["groups"]["engine"]}
    assert engines == {"local": 60, "service or unknown": 80}
