"""What stands between the cells of CSV files: named where it is not found, kept in the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import bansong as bs
from bansong.errors import InputError, UsageError
from bansong.tables.detect import open_table
from conftest import NINE, write

ROWS = [["사업자번호", "상호", "주소"], ["124-81-00998", "삼성전자", "경기도 수원시 영통구 삼성로 129"]]
ROWS = [*ROWS, ["220-81-62517", "네이버", "경기도 성남시 분당구 정자일로 95"]]


def divided(path: Path, delimiter: str) -> Path:
    return write(path, "".join(delimiter.join(row) + "\n" for row in ROWS))


def read(path: Path, delimiter: str | None = None) -> list[list[str]]:
    with open_table(path, bs.ReadOptions(delimiter=delimiter)) as table:
        return [list(table.headers), *map(list, table.frame.collect().rows())]


@pytest.mark.parametrize("delimiter", [*"^~:#!&@*", "\x01", "\x1f", ";", "\t", "|"])
def test_a_named_delimiter_divides(tmp_path: Path, delimiter: str) -> None:
    assert read(divided(tmp_path / "in.txt", delimiter), delimiter) == ROWS
    shown = delimiter if delimiter.isprintable() else rf"\x{ord(delimiter):02x}"
    if delimiter in ";\t|":
        assert read(tmp_path / "in.txt") == ROWS
    elif delimiter not in "@*":
        with pytest.raises(InputError) as caught:
            read(tmp_path / "in.txt")
        assert caught.value.code == "csv.separator_unclear"
        assert f"`delimiter={shown!r}`" in str(caught.value)


@pytest.mark.parametrize("delimiter", ["^", "\x1f"])
def test_it_stays_in_the_output(tmp_path: Path, delimiter: str) -> None:
    source = divided(tmp_path / "in.txt", delimiter)
    bs.enrich(source, tmp_path / "out.txt", delimiter=delimiter)
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(delimiter) == [*ROWS[0], *NINE]
    assert [line.split(delimiter)[:3] for line in lines] == ROWS
    bs.enrich(tmp_path / "out.txt", tmp_path / "again.txt", delimiter=delimiter)
    assert (tmp_path / "again.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()


@pytest.mark.parametrize(("typed", "meant"), [(r"\t", "\t"), (r"\u001f", "\x1f"), ("^", "^")])
def test_a_command_line_types_what_it_cannot_hold_as_an_escape(
    tmp_path: Path, typed: str, meant: str, run: Callable[..., CompletedProcess[str]]
) -> None:
    divided(tmp_path / "in.dat", meant)
    assert run("plan", "in.dat", "--delimiter", typed).returncode == 0


def test_what_divides_no_cells_is_refused(tmp_path: Path) -> None:
    for delimiter in ("", "ab", "가", '"', "\n", "a", r"\x0", r"\x00"):
        with pytest.raises(UsageError) as caught:
            read(divided(tmp_path / "in.csv", ","), delimiter)
        assert caught.value.code == "csv.separator_invalid"


@pytest.mark.parametrize(("typed", "meant"), [("^", "^"), (r"\x01", "\x01"), (r"\t", "\t"), ("\\", "\\")])
def test_a_line_sep_names_any_of_them_also_as_an_escape(tmp_path: Path, typed: str, meant: str) -> None:
    source, out = divided(tmp_path / "in.csv", meant), tmp_path / "out.csv"
    write(source, f"sep={typed}\n" + source.read_text(encoding="utf-8"))
    assert bs.enrich(source, out).rows == 2
    first, header, *_ = out.read_text(encoding="utf-8").splitlines()
    assert (first, header.split(meant)) == (f"sep={typed}", [*ROWS[0], *NINE])
    bs.enrich(source, tmp_path / "out.tsv")
    assert ("sep=" in (tmp_path / "out.tsv").read_text(encoding="utf-8")) == (meant == "\t")
