"""`bansong calibrate`: what it hands on, what it prints, what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from bansong.cli.app import app
from bansong.errors import BansongError
from bansong.learning import calibrate as learning
from conftest import write

CSV = "b_no,bounce_prob,grade,bounced\n" + "".join(
    f"1248100998,{0.02 if place % 10 else 0.4},{'A' if place % 10 else 'D'},{'true' if place % 20 == 0 else 'false'}\n"
    for place in range(200)
)


@dataclass
class Answer:
    """What learning gives back, as far as the command line looks at it."""

    exit_code: int = 0
    warnings: tuple[str, ...] = ("few labels",)

    def lines(self) -> list[tuple[str, str]]:
        return [("decided", "promoted v1")]

    def as_dict(self) -> dict[str, object]:
        return {"decided": "promoted", "version": "v1"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command line asked learning for."""
    calls: list[dict[str, Any]] = []

    def calibrate(**options: Any) -> Answer:
        calls.append(options)
        return Answer(exit_code=3 if options["dry_run"] else 0)

    monkeypatch.setattr(learning, "calibrate", calibrate, raising=False)
    return calls


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_every_option_is_handed_on_and_the_result_printed(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    """Lines on stdout, warnings on stderr; as JSON one object; the exit code is the one of the result."""
    done = run()
    assert (done.exit_code, done.stdout, done.stderr) == (0, "decided         promoted v1\n", "note: few labels\n")
    assert run("--labels", tmp_path, "--dry-run").exit_code == 3
    assert json.loads(run("--json").stdout) == {"decided": "promoted", "version": "v1"}
    default = {"labels": None, "dry_run": False}
    assert asked == [default, {"labels": tmp_path, "dry_run": True}, default]


def test_options_that_contradict_each_other_are_refused(asked: list[dict[str, Any]]) -> None:
    for arguments, message in (
        (["--report-only", "--dry-run"], "--report-only does not learn, so --dry-run says nothing with it"),
        (["x.csv"], "recorded with `bansong label`"),
        (["x.csv", "--report-only", "--labels", "book"], "give labelled files or --labels"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, BansongError)
        assert (error.exit_code, message in str(error)) == (2, True)
    assert asked == []


def test_the_report_of_labelled_files_is_printed(tmp_path: Path, state_directory: Path) -> None:
    """Scores, bins and groups of each file; nothing is learned or kept."""
    files = [write(tmp_path / name, CSV) for name in ("one.csv", "two.csv")]
    done = run(*files, "--report-only")
    assert done.exit_code == 0, done.exception
    for file in files:
        assert f"labels          {file}" in done.stdout
    for part in (
        "rows            200 with a known outcome",
        "came back       10, 5.00%; expected 11.6",
        "in the large    0.86 of what was expected (95 % interval 0.47 to 1.54): as expected",
        "AUC             0.974",
        "reliability, by tenths of the rows",
        "by grade",
    ):
        assert part in done.stdout, part
    assert done.stderr == ""
    assert list(state_directory.iterdir()) == []


def test_the_report_as_json_has_every_figure(tmp_path: Path) -> None:
    """One object with a report for each file; what limits the figures is on stderr, too."""
    file = write(tmp_path / "few.csv", "\n".join(CSV.splitlines()[:20]) + "\n")
    done = run(file, "--report-only", "--json")
    (report,) = json.loads(done.stdout)["reports"]
    assert (report["labels"], report["n"], report["bounced"], report["enough"]) == (str(file), 19, 1, False)
    assert [bin["n"] for bin in report["deciles"]] == [17, 2]
    assert [group["group"] for group in report["groups"]["grade"]] == ["A", "D"]
    assert f"{file}: only 19 rows with a known outcome" in done.stderr


def test_the_report_of_the_book_tells_engines_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state_directory: Path
) -> None:
    """Rows that a scorecard answered, and those of the service, each by themselves; an empty book has no report."""
    empty = run("--report-only")
    assert f"labels          {state_directory / 'labels'}" in empty.stdout
    assert "no row has both a probability and a known outcome" in empty.stderr
    rows = pl.LazyFrame({"bounce_prob": [0.1, 0.3] * 40, "bounced": [False, True] * 40, "unread": [False, True] * 40})
    seen: list[bool] = []

    def evidence(_: object, *, unread: bool) -> pl.LazyFrame:
        seen.append(unread)
        return rows

    monkeypatch.setattr("bansong.history.labels.LabelStore.evidence", evidence)
    (report,) = json.loads(run("--report-only", "--labels", tmp_path, "--json").stdout)["reports"]
    assert (report["labels"], report["n"], seen) == (str(tmp_path), 80, [True])
    engines = {group["group"]: (group["n"], group["bounced"]) for group in report["groups"]["engine"]}
    assert engines == {"local": (40, 0), "service or unknown": (40, 40)}
