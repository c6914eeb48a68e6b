"""Several inputs in one output: every cell of every row, in order, under its header; one page over all of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import lxml.html
import polars as pl
import pytest
from openpyxl import load_workbook

import bansong as bs
from bansong.base.schema import Alert
from bansong.errors import BansongError
from bansong.run.manifest import open_mailing
from bansong.testing import FakeService
from books import written
from conftest import NINE, SAMPLE, write
from customers import QUICK, answers, customers, is_right, numbers

Run = Callable[..., subprocess.CompletedProcess[str]]

REFERENCE: dict[str, Any] = {"registry": SAMPLE / "registry.parquet"}
HEADER, *ROWS = (SAMPLE / "customers.csv").read_text(encoding="utf-8-sig").splitlines(keepends=True)
ADDRESS = "서울특별시 종로구 종로 436"
FIRST, SECOND, THIRD, FOURTH, FIFTH = numbers(5)


def months(folder: Path) -> list[Path]:
    """A CSV file and a workbook with other headers for the same things, and columns of other kinds."""
    folder.mkdir()
    lines = (f"{FIRST},가,{ADDRESS},007,1e3,", f"{SECOND},나,,0,=1,x")
    first = write(folder / "01.csv", "\n".join(("사업자번호,상호,주소,코드,금액,file", *lines, "")))
    rows = (
        ("3월 명단",),
        ("등록번호", "거래처명", "주소 ", "코드", "금액", "가입일"),
        (THIRD, "다", ADDRESS, "008", 1500.5, date(2026, 3, 1)),
        (FOURTH, "라", ADDRESS, None, 2000, None),
    )
    return [first, written(folder / "02.xlsx", rows)]


def test_the_rows_are_answered_as_those_of_one_file(tmp_path: Path) -> None:
    """Also from files in another encoding; the inputs and their rows are in the manifest, which leads to the output."""
    whole = write(tmp_path / "whole.csv", "".join((HEADER, *ROWS[:90])))
    bs.enrich(whole, tmp_path / "whole.out.csv", **REFERENCE)
    (tmp_path / "in").mkdir()
    for place, encoding in enumerate(("utf-8", "cp949", "utf-8-sig")):
        rows = "".join((HEADER, *ROWS[30 * place : 30 * place + 30]))
        write(tmp_path / "in" / f"{place}.csv", rows, encoding)
    out = tmp_path / "out.csv"
    report = bs.enrich([tmp_path / "in"], out, merge=True, manifest=tmp_path / "run.json", **REFERENCE)
    merged, wanted = (pl.read_csv(path, infer_schema=False) for path in (out, tmp_path / "whole.out.csv"))
    assert merged["file"].to_list() == [f"{place}.csv" for place in range(3) for _ in range(30)]
    assert merged.drop("file").equals(wanted)
    assert (report.rows, len(report.parts), report.exit_code) == (90, 1, 0)
    inputs = json.loads((tmp_path / "run.json").read_text("utf-8"))["inputs"]
    assert [(Path(one["path"]).name, one["rows"], len(one["sha256"])) for one in inputs] == [
        (f"{place}.csv", 30, 64) for place in range(3)
    ]
    with open_mailing(tmp_path / "run.json", None) as mailing:
        assert (mailing.rows, mailing.path) == (90, out)


@pytest.mark.parametrize("kind", ["xlsx", "csv", "json"])
def test_each_cell_stands_under_its_header_as_it_was(kind: str, tmp_path: Path) -> None:
    """What a file lacks is empty, and said; a column of texts and numbers keeps both; the user's `file` stays."""
    report = bs.enrich(months(tmp_path / "in"), tmp_path / f"out.{kind}", merge=True, status="none")
    first, second = (str(text) for text in report.warnings if "these cells are empty" in text)
    assert "'등록번호', '거래처명', '가입일'" in first
    assert "'사업자번호', '상호', 'file'" in second
    assert any("02.xlsx" in text and "above the header" in text for text in report.warnings)
    if kind == "xlsx":
        header, *rows = load_workbook(tmp_path / "out.xlsx").worksheets[0].iter_rows(values_only=True)
        day: Any = rows[2][8].date()
    else:
        read = {"csv": pl.read_csv, "json": pl.read_json}[kind]
        frame = read(tmp_path / f"out.{kind}", **({"infer_schema": False} if kind == "csv" else {}))
        header, rows = tuple(frame.columns), [tuple(row) for row in frame.iter_rows()]
        day = date.fromisoformat(str(rows[2][8]))
    assert header[:9] == ("사업자번호", "상호", "주소", "코드", "금액", "file", "등록번호", "거래처명", "가입일")
    assert header[9:] == ("file_bv", *NINE)
    texts = [[None if cell in (None, "") else str(cell) for cell in row[:8]] for row in rows]
    assert texts == [
        [FIRST, "가", ADDRESS, "007", "1e3", None, None, None],
        [SECOND, "나", None, "0", "=1", "x", None, None],
        [None, None, ADDRESS, "008", "1500.5", None, THIRD, "다"],
        [None, None, ADDRESS, None, "2000", None, FOURTH, "라"],
    ]
    assert day == date(2026, 3, 1)
    assert [row[9] for row in rows] == ["01.csv", "01.csv", "02.xlsx", "02.xlsx"]
    assert {row[header.index("row_status")] for row in rows} == {"verified"}
    if kind == "xlsx":
        assert [type(row[4]) for row in rows] == [str, str, float, int]


def test_a_folder_is_merged_again_without_what_was_written_into_it(tmp_path: Path, run: Run) -> None:
    """One set of files by action, one list of letters, one page; Korean headers; the second run changes nothing."""
    months(folder := tmp_path / "2026")
    beside = ("--split", "action", "--letters", f"{folder}/letters.xlsx", "--report", f"{folder}/p.html")
    outputs = []
    for _ in range(2):
        given = ("enrich", str(folder), "--merge", "-o", f"{folder}/all.csv", *beside, "--headers", "ko")
        done = run(*given, "--registry", str(REFERENCE["registry"]))
        assert done.returncode == 0, done.stderr
        outputs.append((folder / "all.csv").read_bytes())
    assert outputs[0] == outputs[1]
    frame = pl.read_csv(folder / "all.csv", infer_schema=False)
    assert frame["파일"].to_list() == ["01.csv", "01.csv", "02.xlsx", "02.xlsx"]
    assert sum(pl.read_csv(path, infer_schema=False).height for path in folder.glob("all.*.csv")) == 4
    assert files_of(folder / "p.html") == [["01.csv", "2"], ["02.xlsx", "2"]]


def test_what_is_bought_for_one_output_is_not_bought_again(service: FakeService, url: str, tmp_path: Path) -> None:
    """Within one budget over all inputs; the same call goes on, and outputs of each input are answered from it."""
    inputs = [customers(tmp_path / "a.csv", 20, repeats=5), customers(tmp_path / "b.csv", 40)]
    report = bs.enrich([*inputs], tmp_path / "all.csv", merge=True, engine="verify", budget=30, **QUICK)
    assert (service.paid_total, report.exit_code, report.counts["pending"]) == (30, 5, 10)
    report = bs.enrich([*inputs], tmp_path / "all.csv", merge=True, engine="batch", **QUICK)
    assert (service.paid_total, report.exit_code, max(service.paid.values())) == (40, 0, 1)
    assert all(is_right(row, service) for row in answers(tmp_path / "all.csv").iter_rows(named=True))
    bs.enrich([*inputs], tmp_path / "out", engine="batch", **QUICK)
    assert service.paid_total == 40


def files_of(page: Path) -> list[list[str]]:
    """File and rows in the lines of a page's table of inputs."""
    tree = lxml.html.document_fromstring(page.read_text("utf-8"))
    (table,) = tree.xpath("//table[thead//th[2][text()='rows' or text()='행 수'] and contains(@class, 'list')]")
    return [[cell.text_content() for cell in line.xpath("td")[:2]] for line in table.xpath("tbody/tr")]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"output": None}, "outputs.merge_without_output"),
        ({"in_place": True}, "options.merge_excludes"),
        ({"keep_going": True}, "options.merge_excludes"),
        ({"sheet": "*"}, "options.merge_excludes"),
        ({"columns": {"b_no": "등록번호"}}, "columns.named_header_missing"),
        ({"input": "01.csv"}, "inputs.inputs_not_listed"),
        ({"input": ["01.csv", "numberless.csv"]}, "merge.numbers_not_everywhere"),
        ({"input": ["01.csv", "own.csv", "earlier.csv"]}, "merge.column_of_earlier_run"),
        ({"input": ["01.csv", "nested.json"]}, "merge.role_within_object"),
    ],
)
def test_what_cannot_be_one_table_is_refused(
    options: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    months(tmp_path / "in")
    monkeypatch.chdir(tmp_path / "in")
    write(Path("numberless.csv"), f"상호,주소\n바,{ADDRESS}\n")
    write(Path("own.csv"), f"사업자번호,상호,주소,action\n{FIFTH},마,{ADDRESS},전화함\n")
    write(Path("nested.json"), json.dumps([{"biz": {"사업자번호": FIFTH}, "주소": ADDRESS}]))
    bs.enrich("01.csv", "earlier.csv", status="none")
    given = {"input": ["01.csv", "02.xlsx"], "output": "out.csv", "merge": True, "status": "none", **options}
    with pytest.raises(BansongError) as refused:
        bs.enrich(**given)
    assert refused.value.code == code
    assert not Path("out.csv").exists()


def test_what_is_decided_in_a_merged_workbook_is_told_with_the_rows_of_its_sheet(tmp_path: Path) -> None:
    months(tmp_path / "in")
    out, options = tmp_path / "out.xlsx", REFERENCE | {"merge": True}
    bs.enrich([tmp_path / "in"], out, **options)
    book = load_workbook(out)
    sheet = book.worksheets[0]
    sheet.cell(3, [cell.value for cell in sheet[1]].index("action") + 1, "send")
    book.save(out)
    report = bs.enrich([tmp_path / "in"], out, **options)
    decided = report.parts[0].decisions
    assert decided is not None
    assert decided.sent_by_hand == (3,)
    assert set(decided.lines()) <= set(report.lines())


def test_a_page_has_alerts_in_red_and_notes_below_them_in_grey(tmp_path: Path) -> None:
    months(tmp_path / "in")
    report = bs.enrich([tmp_path / "in"], tmp_path / "out.csv", merge=True, report=tmp_path / "page.html")
    page = lxml.html.fromstring((tmp_path / "page.html").read_text("utf-8"))
    shown = [one.get("class") for one in page.xpath("//section[1]/p")]
    assert shown == ["alert" if isinstance(one, Alert) else "soft" for one in report.warnings]
    assert {"alert", "soft"} == set(shown)


def test_a_page_over_several_outputs_adds_them_up(tmp_path: Path) -> None:
    """Each line of its lists names file and row; an input that failed is named first, and its rows are not counted."""
    inputs: list[str | Path] = [*months(tmp_path / "in")]
    broken = write(tmp_path / "in" / "00.csv", "\x00\x00")
    options: dict[str, Any] = {"keep_going": True, "report": tmp_path / "p.html", "letter_cost": 430, **REFERENCE}
    report = bs.enrich([broken, *inputs], tmp_path / "out", **options)
    assert (report.exit_code, report.beside and report.beside.page) == (3, tmp_path / "p.html")
    tree = lxml.html.document_fromstring((tmp_path / "p.html").read_text("utf-8"))
    cards = {card.text_content().strip(): card.xpath("strong")[0].text for card in tree.xpath("//ul/li")}
    assert cards["4rows"] == "4"
    assert "00.csv" in tree.xpath("//p[@class='alert']")[0].text_content()
    assert files_of(tmp_path / "p.html") == [["01.csv", "2"], ["02.xlsx", "2"]]
    worst = tree.xpath("//table[thead//th[text()='weightiest reason']]/tbody/tr")
    places = {tuple(cell.text_content() for cell in line.xpath("td")[:2]) for line in worst}
    assert places == {("01.csv", "1"), ("02.xlsx", "3"), ("02.xlsx", "4")}
    assert FIRST not in tree.text_content()
