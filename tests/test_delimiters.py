"""What stands between the cells of CSV files: named where it is not found, kept in the output."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import bansong as bs
from bansong.errors import InputError, UsageError
from conftest import NINE, write
from nightly_jobs import Nights

ROWS = [["사업자번호", "상호", "주소"], ["124-81-00998", "삼성전자", "경기도 수원시 영통구 삼성로 129"]]
ROWS = [*ROWS, ["220-81-62517", "네이버", "경기도 성남시 분당구 정자일로 95"]]


def divided(path: Path, delimiter: str) -> Path:
    return write(path, "".join(delimiter.join(row) + "\n" for row in ROWS))


@pytest.mark.parametrize("delimiter", [*"^~:#!&@*", "\x01", "\x1f", ";", "\t", "|"])
def test_a_named_delimiter_divides_and_stays(tmp_path: Path, delimiter: str) -> None:
    source = divided(tmp_path / "in.txt", delimiter)
    report = bs.enrich(source, tmp_path / "out.txt", delimiter=delimiter)
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert report.rows == 2
    assert lines[0].split(delimiter) == [*ROWS[0], *NINE]
    assert [line.split(delimiter)[:3] for line in lines] == ROWS
    again = bs.enrich(tmp_path / "out.txt", tmp_path / "again.txt", delimiter=delimiter)
    assert (again.rows, (tmp_path / "again.txt").read_bytes()) == (2, (tmp_path / "out.txt").read_bytes())


@pytest.mark.parametrize("delimiter", [*"^~:#!&", "\x01", "\x1f"])
@pytest.mark.parametrize("name", ["in.csv", "in.txt"])
def test_where_none_is_found_the_message_names_the_option(tmp_path: Path, delimiter: str, name: str) -> None:
    shown = delimiter if delimiter.isprintable() else rf"\x{ord(delimiter):02x}"
    with pytest.raises(InputError, match=re.escape(f"`delimiter={shown!r}`")):
        bs.plan(divided(tmp_path / name, delimiter))
    with pytest.raises(InputError, match="`delimiter=`"):
        bs.plan(write(tmp_path / "in.dat", "가\n나\n"))


@pytest.mark.parametrize(("typed", "meant"), [(r"\t", "\t"), (r"\x01", "\x01"), (r"\u001f", "\x1f"), ("^", "^")])
def test_a_command_line_types_what_it_cannot_hold_as_an_escape(
    tmp_path: Path, typed: str, meant: str, run: Callable[..., CompletedProcess[str]]
) -> None:
    divided(tmp_path / "in.dat", meant)
    divided(tmp_path / "in.txt", meant)
    done = run("enrich", "in.txt", "--delimiter", typed)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "in.enriched.txt").read_text(encoding="utf-8").splitlines()[0].split(meant)[:3] == ROWS[0]
    assert run("plan", "in.dat", "--delimiter", typed).returncode == 0


@pytest.mark.parametrize("delimiter", ["", "ab", "가", '"', "\n", "a", r"\x0", r"\x00"])
def test_what_divides_no_cells_is_refused(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(UsageError, match="`delimiter="):
        bs.plan(divided(tmp_path / "in.csv", ","), delimiter=delimiter)


@pytest.mark.parametrize(
    ("typed", "meant"), [("^", "^"), (r"\x01", "\x01"), (r"\x1f", "\x1f"), (r"\t", "\t"), ("\\", "\\")]
)
def test_a_line_sep_names_any_of_them_also_as_an_escape(tmp_path: Path, typed: str, meant: str) -> None:
    source, out = divided(tmp_path / "in.csv", meant), tmp_path / "out.csv"
    write(source, f"sep={typed}\n" + source.read_text(encoding="utf-8"))
    assert bs.enrich(source, out).rows == 2
    first, header, *_ = out.read_text(encoding="utf-8").splitlines()
    assert first == f"sep={typed}"
    assert header.split(meant) == [*ROWS[0], *NINE]
    bs.enrich(source, tmp_path / "out.tsv")
    assert ("sep=" in (tmp_path / "out.tsv").read_text(encoding="utf-8")) == (meant == "\t")


def test_a_workbook_has_no_delimiter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`delimiter=` is for CSV files"):
        bs.plan(write(tmp_path / "in.json", '[{"b_no": "124-81-00998"}]'), delimiter="^")


def test_a_job_and_outcomes_are_read_with_it(tmp_path: Path, nights: Nights) -> None:
    divided(nights.folder / "in.csv", "^")
    nights.write_job(inputs='path = "in.csv"\ndelimiter = "^"')
    assert nights.run().exit_code == 0
    outcomes = write(tmp_path / "back.csv", "사업자번호~반송여부~반송사유\n124-81-00998~Y~이사\n")
    report = bs.label(
        outcomes,
        file=nights.folder / "in.enriched.csv",
        delimiter="~",
        file_delimiter="^",
        mailed="2026-11-01",
        returns_requested=True,
    )
    assert (report.bounced, report.listed) == (1, ())


def test_one_refusal_names_all_bad_lines_up_to_twenty(tmp_path: Path) -> None:
    """Who mends a file line by line must not be told of one a run."""
    bad = range(3, 60, 3)
    lines = [f"124-81-00998,가,나{',다' if line in bad else ''}" for line in range(2, 61)]
    source = write(tmp_path / "in.csv", "\n".join(["사업자번호,상호,주소", *lines, ""]))
    with pytest.raises(InputError) as caught:
        bs.plan(source)
    assert ", ".join(map(str, bad)) in str(caught.value)
    many = write(tmp_path / "many.csv", "사업자번호,상호\n" + "124-81-00998,가,나\n" * 50)
    with pytest.raises(InputError, match="19, 20, 21 and 30 more"):
        bs.plan(many)
    short = write(tmp_path / "short.csv", "사업자번호,상호\n" + "124-81-00998\n" * 20)
    assert any(", 20, 21" in warning for warning in bs.plan(short).warnings)
