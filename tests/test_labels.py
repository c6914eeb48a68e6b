"""Outcomes of a mailing: read from any table, matched to what was mailed, never guessed."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import xlsxwriter

import bansong as bs
from bansong.errors import ColumnError, InputError, LabelError, OutputError, UsageError
from bansong.history.labels import LabelStore
from bansong.labels.report import LabelReport
from bansong.tables import detect as tables
from bansong.testing import FakeService, serve
from conftest import SAMPLE, json_of, spreadsheet, write
from customers import KEY, customers

NUMBERS = ("124-81-00998", "126-81-03725", "107-86-14075", "120-81-47521")
ADDRESSES = (
    "경기도 수원시 영통구 삼성로 129",
    "경기도 이천시 부발읍 경충대로 2091",
    "서울특별시 영등포구 여의대로 128",
    "제주특별자치도 제주시 첨단로 242",
)
ROWS = [
    [NUMBERS[0], "삼성전자", ADDRESSES[0]],
    [NUMBERS[1], "하이닉스", ADDRESSES[1]],
    [NUMBERS[2], "LG", ADDRESSES[2]],
    [NUMBERS[2], "LG 창고", "서울특별시 마포구 월드컵북로 5"],
    [NUMBERS[3], "카카오", ADDRESSES[3]],
    [NUMBERS[0].replace("-", ""), "삼성전자", ADDRESSES[0].replace("경기도", "경기도 ")],
    [NUMBERS[1], "하이닉스", ""],
    ["", "번호 없음", "서울 중구 세종대로 110"],
]
HEADER = "사업자등록번호,상호,주소"
MAILED = date(2026, 10, 5)
TODAY = date(2026, 11, 22)


def lines(header: str, rows: list[list[str]]) -> str:
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


@pytest.fixture(scope="module")
def enriched_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("enriched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        bs.enrich(write(folder / "list.csv", lines(HEADER, ROWS)), folder / "mailed.csv")
    return folder


@pytest.fixture
def enriched(tmp_path: Path) -> Path:
    """A file that a run has written, where it was written."""
    bs.enrich(write(tmp_path / "list.csv", lines(HEADER, ROWS)), tmp_path / "mailed.csv")
    return tmp_path / "mailed.csv"


@pytest.fixture
def copied(tmp_path: Path, state_directory: Path, enriched_once: Path) -> Path:
    """A copy of such a file, and of what is remembered of its run: made once for all that are not about the run."""
    shutil.copytree(enriched_once / "state", state_directory, dirs_exist_ok=True)
    for name in ("list.csv", "mailed.csv"):
        shutil.copy2(enriched_once / name, tmp_path)
    return tmp_path / "mailed.csv"


@pytest.fixture
def label(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., LabelReport]:
    enriched = request.getfixturevalue("enriched" if "enriched" in request.fixturenames else "copied")

    def recorded(text: str | Path, **options: Any) -> LabelReport:
        outcomes = write(tmp_path / "outcomes.csv", text) if isinstance(text, str) else text
        given: dict[str, Any] = {"file": enriched, "mailed": MAILED, "returns_requested": True, "today": TODAY}
        return bs.label(outcomes, **(given | options))

    return recorded


def said() -> dict[int, bool | None]:
    """What the book's files hold, by row."""
    frames = [pl.read_parquet(mailing.path) for mailing in LabelStore().mailings()]
    return {row: said for frame in frames for row, said in frame.select("row_id", "said").iter_rows()}


def problems(report: LabelReport) -> list[tuple[int, str]]:
    return [(one.row, one.problem) for one in report.listed]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────


TABLE = [
    ["사업자등록번호", "주소", "반송여부", "반송사유", "반송일자"],
    [NUMBERS[0], ADDRESSES[0], "Y", "이사불명", "2026-10-20"],
]
TABLE += [[NUMBERS[3], ADDRESSES[3], "N", "", ""]]


def written(path: Path) -> Path:
    text = lines(",".join(TABLE[0]), TABLE[1:])
    records = [dict(zip(TABLE[0], row, strict=True)) for row in TABLE[1:]]
    if path.suffix == ".json":
        return write(path, json.dumps({"data": records}, ensure_ascii=False))
    if path.suffix == ".ods":
        return spreadsheet(path, TABLE)
    if path.suffix == ".xlsx":
        with xlsxwriter.Workbook(path) as book:
            sheet = book.add_worksheet()
            for place, row in enumerate(TABLE):
                sheet.write_row(place, 0, row)
            sheet.write_datetime(1, 4, date(2026, 10, 20), book.add_format({"num_format": "yyyy-mm-dd"}))
        return path
    if path.suffix == ".parquet":
        frame = pl.DataFrame(records).with_columns(
            pl.col("반송여부") == "Y", pl.col("반송일자").str.to_date(strict=False)
        )
        frame.write_parquet(path)
        return path
    return write(path, text, "cp949" if path.stem.endswith("949") else "utf-16" if path.stem == "wide" else "utf-8")


@pytest.mark.parametrize("name", ["a.csv", "a949.csv", "wide.csv", "a.json", "a.xlsx", "a.ods", "a.parquet"])
def test_outcomes_are_read_in_every_format(label: Any, tmp_path: Path, name: str) -> None:
    """The same outcomes say the same in each format and encoding."""
    report = label(written(tmp_path / name))
    assert (report.bounced, report.not_bounced, dict(report.by_reason), problems(report)) == (1, 1, {"moved": 1}, [])
    frame = LabelStore().outcomes().sort("b_no").collect()
    assert frame["bounced"].to_list() == [False, True] or frame["bounced"].to_list() == [True]
    assert date(2026, 10, 20) in frame["bounced_at"].to_list()
    assert report.exit_code == 0


def test_a_list_of_what_came_back_needs_no_column_for_it(label: Any) -> None:
    """Without 반송여부 each row is a letter that came back, and the report says that it was so taken."""
    report = label(f"사업자번호,반송사유\n{NUMBERS[0]},폐업\n{NUMBERS[3]},\n합계,2건\n")
    assert (report.only_returns, report.bounced, report.blank) == (True, 2, 1)
    assert dict(report.by_reason) == {"closed": 1, "none": 1}
    assert any("no column that says" in warning for warning in report.warnings)


def test_what_is_not_understood_is_listed_with_row_and_value(label: Any) -> None:
    """보류 is neither yes nor no: the row is listed, the letter is in doubt, and a date of another form is named."""
    text = f"사업자번호,반송여부,반송일\n{NUMBERS[0]},보류,\n{NUMBERS[3]},Y,시월\n,,\n"
    report = label(text, complete=True, sent="all")
    assert problems(report) == [(1, "not_understood"), (2, "date_not_read")]
    assert [one.value for one in report.listed] == ["보류", "시월"]
    assert (report.bounced, report.exit_code, report.blank) == (1, 3, 1)
    assert said()[0] is None
    assert pl.read_parquet(report.book).filter(pl.col("row_id") == 0)["bounced"].to_list() == [None]


def test_an_outcome_that_contradicts_itself_is_listed(label: Any) -> None:
    """N with a reason, or a return before the mailing, says two things, and so nothing."""
    text = f"사업자번호,반송여부,반송사유,반송일\n{NUMBERS[0]},N,이사불명,\n{NUMBERS[3]},Y,,2026-10-01\n"
    text += f"{NUMBERS[2]},Y,,\n{NUMBERS[1]},Y,,\n"
    report = label(text.replace(f"{NUMBERS[1]},Y", f"{NUMBERS[3]},Y"))
    assert problems(report) == [(1, "contradicts_itself"), (2, "returned_before_mailing"), (3, "ambiguous")]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (f"사업자번호,상호\n{NUMBERS[0]},가\n", LabelError, "no column says whether a letter came back"),
        (
            f"사업자번호,반송여부\n{NUMBERS[0]},보류\n",
            LabelError,
            "no value of the column '반송여부' is understood: '보류'",
        ),
        (f"사업자번호,반송여부\n{NUMBERS[0]},\n", LabelError, "of 1 row none says what became"),
        ("상호,반송여부\n가,Y\n", ColumnError, "`columns={'row_id': 'HEADER'}`"),
        (f"사업자번호,반송여부,반송일\n{NUMBERS[0]},Y,2027-01-01\n", LabelError, "row 1: the return date 2027-01-01"),
        ("", InputError, "empty"),
    ],
)
def test_outcomes_that_say_nothing_are_refused(label: Any, text: str, error: type[Exception], message: str) -> None:
    """The message names the column, row and value, and nothing is recorded."""
    with pytest.raises(error, match=message):
        label(text)
    assert LabelStore().mailings() == []


def test_a_file_of_two_encodings_is_refused_with_its_place(label: Any, tmp_path: Path) -> None:
    """A list put together of UTF-8 and CP949 parts cannot be read rightly, so it is not read."""
    path = tmp_path / "mixed.csv"
    path.write_bytes(f"사업자번호,반송사유\n{NUMBERS[0]},폐업\n".encode() + f"{NUMBERS[3]},이사불명\n".encode("cp949"))
    with pytest.raises(InputError, match=r"mixed\.csv"):
        label(path)


# ── matching ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_by_row_id(label: Any) -> None:
    """A row_id from 0 names the row; one beyond the file, or of another business, is listed."""
    text = f"row_id,사업자번호,반송여부\n3,,Y\n7,,N\n99,,Y\n0,{NUMBERS[3]},Y\n1.0,{NUMBERS[1]},Y\nx,,Y\n"
    report = label(text)
    assert said() == {1: True, 3: True, 7: False, 0: None}
    assert problems(report) == [(3, "row_absent"), (4, "number_differs"), (6, "no_row_id")]
    assert dict(report.ways) == {"row_id": 3}


def test_a_row_id_alone_is_enough(label: Any) -> None:
    """A list with row_id needs no number; any other header must be given."""
    assert label("row_id,반송사유\n2,폐업\n").bounced == 1
    assert label("줄,반송사유\n4,폐업\n", columns={"row_id": "줄"}).bounced == 1
    assert said() == {2: True, 4: True}


def test_by_number_and_address_and_by_number(label: Any) -> None:
    """An address chooses among rows of a number however it is spaced; a number of one letter needs none."""
    text = f"""사업자번호,주소,반송여부
{NUMBERS[2]},서울특별시마포구 월드컵북로 5.,Y
{NUMBERS[2]},부산 어딘가 1,Y
{NUMBERS[3]},주소가 다르게 적힘,N
{NUMBERS[0]},{ADDRESSES[0]},Y
999-99-99999,,Y
"""
    report = label(text)
    assert said() == {3: True, 2: None, 4: False, 0: True} or said() == {3: True, 4: False, 0: True}
    assert dict(report.ways) == {"number and address": 2, "number": 1}
    assert problems(report) == [(2, "ambiguous"), (5, "unknown_number")]


def test_two_rows_of_one_addressee_are_one_letter(label: Any) -> None:
    """A business that stands twice in the list at one address is labelled once, in its first row."""
    report = label(
        f"사업자번호,주소,반송여부\n{NUMBERS[0]},{ADDRESSES[0]},Y\n{NUMBERS[0]},,Y\n", complete=True, sent="all"
    )
    assert (report.bounced, report.repeated) == (1, 1)
    assert said()[0] is True
    assert 5 not in said()


def test_a_corrected_address_matches_as_well(tmp_path: Path) -> None:
    """Letters may have gone to the address as corrected, so an outcome with it finds its row."""
    indexes = {"gazetteer": SAMPLE / "gazetteer.parquet", "registry": SAMPLE / "registry.parquet"}
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", **indexes)
    frame = pl.read_csv(tmp_path / "out.csv", infer_schema=False)
    moved = frame.filter(pl.col("reasons").str.contains("corrected automatically"), pl.col("bounce_prob").is_not_null())
    cells = moved.select(사업자번호="사업자등록번호", 주소="fixed_address", 반송여부=pl.lit("Y"))
    cells.write_csv(tmp_path / "o.csv")
    report = bs.label(tmp_path / "o.csv", file=tmp_path / "out.csv", mailed=MAILED, returns_requested=True)
    assert moved.height > 5
    assert dict(report.ways) == {"number and address": moved.height}


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("26.10.19", date(2026, 10, 19)),
        ("'26/10/9", date(2026, 10, 9)),
        ("46314", date(2026, 10, 19)),
        ("46314.5", date(2026, 10, 19)),
        ("2026. 10. 19.", date(2026, 10, 19)),
    ],
)
def test_a_day_is_read_as_offices_and_workbooks_write_it(label: Any, text: str, day: date) -> None:
    """The year first, in two digits as well, or the number that a workbook shows when the cell lost its format."""
    report = label(f"row_id,반송일자\n0,{text}\n")
    assert report.exit_code == 0
    assert pl.read_parquet(report.book)["returned"].to_list() == [day]


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("10/21", date(2026, 10, 21)),
        ("10월 5일", date(2026, 10, 5)),
        ("'11.3", date(2026, 11, 3)),
        ("1/7", date(2027, 1, 7)),
        ("10/4", date(2027, 10, 4)),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_day_without_a_year_is_the_next_after_the_mailing(label: Any, text: str, day: date, beside: bool) -> None:
    """The mailing's day is given, or stands in the row."""
    cells = ("row_id,반송일자,발송일\n0,{},2026-10-05\n" if beside else "row_id,반송일자\n0,{}\n").format(text)
    report = label(cells, today=date(2027, 12, 1), **({"mailed": None} if beside else {}))
    assert report.exit_code == 0
    assert pl.read_parquet(report.book)["returned"].to_list() == [day]


def test_a_mailing_date_without_a_year_is_of_the_mailing_s_year(label: Any) -> None:
    """Without a mailing date that is given, such a day cannot be told."""
    cells = "row_id,반송일자,발송일\n0,10/21,10/5\n1,10/21,9/5\n"
    assert label(cells).bounced == 1
    with pytest.raises(LabelError, match="mailed"):
        label(cells, mailed=None)


@pytest.mark.parametrize(
    ("written", "actions"), [("발송 금지, 확인 후 발송", ("confirm", "do_not_send")), ("전체", ("all",))]
)
def test_actions_may_be_named_in_korean(tmp_path: Path, written: str, actions: tuple[str, ...]) -> None:
    """The words of the Korean columns mean the same as the codes."""
    known = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", **known)
    where: dict[str, Any] = {"file": tmp_path / "out.csv", "mailed": MAILED, "returns_requested": True}
    report = bs.label(SAMPLE / "outcomes.csv", sent=written, **where)
    assert report.declaration.sent == actions


def test_each_letter_is_one_in_the_history(tmp_path: Path) -> None:
    """A letter with a written and a corrected address is one, and rows that repeat a letter are one."""
    known = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
    first = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", letter_cost=500, **known)
    where: dict[str, Any] = {"file": tmp_path / "out.csv", "mailed": MAILED, "returns_requested": True}
    report = bs.label(SAMPLE / "outcomes.csv", sent="send", complete=True, **where)
    again = bs.enrich(SAMPLE / "customers.csv", tmp_path / "again.csv", **known)
    assert first.beside is not None
    assert first.beside.letters is not None
    assert again.history is not None
    assert again.history.letters == report.usable == first.beside.letters.letters == 176


def test_rows_of_a_workbook_are_those_that_excel_shows(label: Any, tmp_path: Path) -> None:
    """Below a blank row, a title and another blank row, the first row of the list is row 5."""
    with xlsxwriter.Workbook(str(tmp_path / "o.xlsx")) as book:
        sheet = book.add_worksheet()
        lines = [
            ["반송 목록"],
            [],
            ["사업자등록번호", "반송여부"],
            ["없음", "Y"],
            [NUMBERS[3], "Y"],
            [NUMBERS[0], "글쎄"],
        ]
        for row, line in enumerate(lines, 1):
            sheet.write_row(row, 0, line)
    report = label(tmp_path / "o.xlsx")
    assert problems(report) == [(5, "no_number"), (7, "not_understood")]


def test_the_day_of_a_run_is_that_in_korea(label: Any, enriched: Path, state_directory: Path) -> None:
    """Half past six in the morning of the 6th is the 5th still in London: a mailing of the 6th is no day too late."""
    record = next((state_directory / "runs").glob("*.json"))
    told = json_of(record) | {"started": "2026-10-05T21:31:00+00:00"}
    record.write_text(json.dumps(told), "utf-8")
    outcomes = "row_id,반송사유\n0,폐업\n"
    late = [one for one in label(outcomes).warnings if "enriched on" in one]
    assert ["2026-10-06" in one for one in late] == [True]
    assert not [one for one in label(outcomes, mailed=date(2026, 10, 6)).warnings if "enriched on" in one]


def test_a_column_headed_with_the_bare_word_is_read(label: Any) -> None:
    """Lists from a post room often have just 반송 above O and X."""
    label(f"사업자등록번호,반송\n{NUMBERS[3]},O\n{NUMBERS[0]},X\n")
    assert said() == {4: True, 0: False}


def test_two_columns_of_one_header_are_not_chosen_between(label: Any) -> None:
    """Whichever were taken might be the wrong one, so the user is asked, and can say it by place."""
    text = f"사업자등록번호,반송여부,반송여부\n{NUMBERS[3]},Y,N\n"
    with pytest.raises(
        ColumnError,
        match=r"2 columns are headed '반송여부'.*`columns={'bounced': '#2'}` or `columns={'bounced': '#3'}`",
    ):
        label(text)
    label(text, columns={"bounced": "#3"})
    assert said() == {4: False}


def test_a_mailed_file_without_numbers_asks_for_row_ids(label: Any, tmp_path: Path, enriched: Path) -> None:
    """Where --select left the numbers out, the message says what outcomes must have instead."""
    bs.enrich(tmp_path / "list.csv", tmp_path / "bare.csv", select="상호")
    with pytest.raises(LabelError, match="no column of business numbers: name its rows, from 0, in a column row_id"):
        label(f"사업자등록번호,반송여부\n{NUMBERS[3]},Y\n", file=tmp_path / "bare.csv")


def test_a_letter_is_remembered_under_the_corrected_address_too(tmp_path: Path) -> None:
    """Who takes the corrected address into the list finds what came back from the place under its old spelling."""
    indexes = {"gazetteer": SAMPLE / "gazetteer.parquet", "registry": SAMPLE / "registry.parquet"}
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", **indexes)
    frame = pl.read_csv(tmp_path / "out.csv", infer_schema=False).with_row_index("row_id")
    fixed = frame.filter(pl.col("fixed_address") != "", pl.col("bounce_prob").is_not_null()).head(5)
    fixed.select("row_id", 반송사유=pl.lit("이사불명")).write_csv(tmp_path / "o.csv")
    bs.label(tmp_path / "o.csv", file=tmp_path / "out.csv", mailed=MAILED, returns_requested=True)
    cells = fixed.select(사업자번호="사업자등록번호", 주소="fixed_address")
    cells.write_csv(tmp_path / "next.csv")
    bs.enrich(tmp_path / "next.csv", tmp_path / "next.out.csv", **indexes)
    reasons = pl.read_csv(tmp_path / "next.out.csv", infer_schema=False)["reasons"]
    assert fixed.height == 5
    assert reasons.str.contains("[history", literal=True).all()


def test_the_label_book_is_never_an_output(label: Any, tmp_path: Path) -> None:
    """What is recorded cannot be overwritten by the labelled file, nor by the list of what did not match."""
    book = tmp_path / "book"
    report = label("row_id,반송여부\n0,Y\n", book=book)
    before = Path(report.book).read_bytes()
    for written in ({"output": report.book}, {"unmatched": report.book}, {"output": book / "new.parquet"}):
        with pytest.raises(UsageError, match="of the label store itself"):
            label("row_id,반송여부\n0,Y\n", book=book, **written)
    assert Path(report.book).read_bytes() == before
    assert len(list(book.glob("*.parquet"))) == 1


def test_a_book_that_cannot_be_written_is_named(label: Any, tmp_path: Path) -> None:
    """A file in the place of the folder, or a folder below a file, is told in words."""
    taken = write(tmp_path / "taken", "x")
    for book in (taken, taken / "book"):
        with pytest.raises(LabelError, match="taken"):
            label("row_id,반송여부\n0,Y\n", book=book)


def test_an_output_that_cannot_be_is_refused_before_anything_is_recorded(label: Any, tmp_path: Path) -> None:
    """A format that cannot be written, or an encoding of a workbook, is no reason to record half of what was asked."""
    for output, options in (("out.xls", {}), ("out.xlsx", {"output_encoding": "cp949"})):
        with pytest.raises((UsageError, OutputError)):
            label("row_id,반송여부\n0,Y\n", output=tmp_path / output, **options)
    assert LabelStore().mailings() == []


def test_a_mailing_of_another_century_is_a_slip(label: Any) -> None:
    """A year that was typed with a digit too few is refused with how to write it."""
    with pytest.raises(LabelError, match="before 2000; give the day as"):
        label("row_id,반송여부\n0,Y\n", mailed=date(202, 6, 10))


def test_the_enriched_file_is_opened_as_is_said(label: Any, enriched: Path, tmp_path: Path) -> None:
    """Its sheet, encoding and JSON path are its own, for reading it and for writing it again; not those of OUTCOMES."""
    rows = pl.read_csv(enriched, infer_schema=False).to_dicts()
    other = write(
        tmp_path / "mailed.json", json.dumps({"a": [{"x": "1"}] * 20, "b": {"rows": rows}}, ensure_ascii=False)
    )
    options = {"file": other, "file_json_path": "b.rows", "output": tmp_path / "labelled.json"}
    label("row_id,반송여부\n0,Y\n", **options)
    labelled = json_of(tmp_path / "labelled.json")["b"]["rows"]
    assert [row["bounced"] for row in labelled] == [True, *[None] * (len(rows) - 1)]
    with pytest.raises(UsageError, match="no key 'c'"):
        label("row_id,반송여부\n0,Y\n", **options | {"file_json_path": "c.rows"})


def test_the_mailed_file_is_opened_once(label: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written beside the rows and what is sent of them comes from the mailing that was opened for matching."""
    opened = []

    def open_counted(path: Path, *read: Any, **options: Any) -> Any:
        opened.append(path.name)
        return tables.open_table(path, *read, **options)

    for module in ("history.outcomes", "run.manifest", "run.survey"):
        monkeypatch.setattr(f"bansong.{module}.open_table", open_counted)
    service = FakeService(KEY)
    with serve(service) as url:
        label("row_id,반송여부\n0,Y\n", output=tmp_path / "mailed.csv", send=True, base_url=url, api_key=KEY)
    assert sorted(opened) == ["mailed.csv", "outcomes.csv"]


def test_a_defect_is_not_laid_to_the_file(label: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the enriched file can be read, what polars complains of is ours, and stays what it is."""

    def broken(*_: Any, **__: Any) -> None:
        raise pl.exceptions.ComputeError("a defect")

    monkeypatch.setattr("bansong.labels.label.match", broken)
    with pytest.raises(pl.exceptions.ComputeError, match="a defect"):
        label("row_id,반송여부\n0,Y\n")


def test_outcomes_of_one_row_that_differ_are_not_used(label: Any) -> None:
    """Came back and not, or moved and closed: both are listed, neither is recorded, and silence is no delivery."""
    text = f"사업자번호,반송여부,반송사유\n{NUMBERS[0]},Y,\n{NUMBERS[0]},N,\n{NUMBERS[3]},Y,폐업\n{NUMBERS[3]},Y,이사\n"
    text += f"{NUMBERS[2]},Y,\n"
    with pytest.raises(LabelError, match="of 5 outcomes none is of"):
        label(text)
    rows = [f"{NUMBERS[0]},Y,,0", f"{NUMBERS[0]},N,,0", f"{NUMBERS[3]},Y,폐업,4", f"{NUMBERS[3]},Y,이사,4", ",N,,1"]
    report = label("\n".join(["사업자번호,반송여부,반송사유,row_id", *rows]) + "\n", complete=True, sent="all")
    assert problems(report) == [(row, "contradictory") for row in (1, 2, 3, 4)]
    kept = pl.read_parquet(report.book)
    assert dict(kept.select("row_id", "bounced").iter_rows()) == {
        0: None,
        1: False,
        2: False,
        3: False,
        4: None,
        6: False,
    }


def test_no_match_at_all_is_an_error_that_shows_both_sides(label: Any) -> None:
    """The message names the columns that were read and numbers of both files; addresses stay out of it."""
    with pytest.raises(LabelError) as caught:
        label("사업자번호,주소,반송여부\n220-81-62517,경기도 성남시 분당구 불정로 6,Y\n")
    text = str(caught.value)
    assert "'사업자번호' (b_no)" in text
    assert "220-81-62517" in text
    assert "124-81-00998" in text
    assert "불정로" not in text
    assert "삼성로" not in text


def test_unmatched_outcomes_go_to_a_file(label: Any, tmp_path: Path) -> None:
    """The list has the row, the reason and the cells, for the user alone to read; the text shows twenty."""
    rows = "".join(f"{number},,Y\n" for number in range(3_000_000_000, 3_000_000_030))
    report = label(f"사업자번호,주소,반송여부\n{rows}{NUMBERS[3]},,Y\n", unmatched=tmp_path / "left.csv")
    left = pl.read_csv(tmp_path / "left.csv", infer_schema=False)
    assert left.height == len(report.listed) == 30
    assert left["why"].unique().to_list() == ["its number is not in the mailed file"]
    assert left["b_no"][0] == "3000000000"
    assert stat.S_IMODE((tmp_path / "left.csv").stat().st_mode) == 0o600
    assert sum(what == "" for what, _ in report.lines()) == 21
    assert "10 more" in str(report)


# ── which mailing ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_and_its_file_are_one_mailing(label: Any, enriched: Path) -> None:
    """By the run's id, its manifest, or the file: the same mailing, whose model the manifest tells."""
    manifest = next((Path(LabelStore().folder).parent / "runs").glob("*.json"))
    run_id = json_of(manifest)["run_id"]
    text = f"사업자번호,반송여부\n{NUMBERS[3]},Y\n"
    found = [label(text), label(text, file=None, run=run_id), label(text, file=None, run=manifest)]
    assert {report.mailing for report in found} == {f"{run_id}-20261005"}
    assert {report.model for report in found} == {json_of(manifest)["versions"]["model"]}
    assert [report.new for report in found] == [1, 0, 0]


def test_a_moved_output_is_asked_for(label: Any, enriched: Path, tmp_path: Path) -> None:
    """A run whose output is gone says where it was; with --file beside --run it is the same mailing."""
    run_id = next((Path(LabelStore().folder).parent / "runs").glob("*.json")).stem
    moved = enriched.rename(tmp_path / "moved.csv")
    text = f"사업자번호,반송여부\n{NUMBERS[3]},Y\n"
    with pytest.raises(LabelError, match=f"`run='{run_id}'` `file='PATH'`"):
        label(text, file=None, run=run_id)
    assert label(text, file=moved, run=run_id).run_id == run_id


def test_a_file_of_an_unknown_run_is_known_by_its_answers(label: Any, enriched: Path, tmp_path: Path) -> None:
    """Without a manifest a file is told by what it says: the same in another format is the same mailing."""
    bs.enrich(tmp_path / "list.csv", tmp_path / "mailed.parquet")
    for manifest in (Path(LabelStore().folder).parent / "runs").glob("*.json"):
        manifest.unlink()
    text = f"사업자번호,반송여부\n{NUMBERS[3]},Y\n"
    first, second = label(text), label(text, file=tmp_path / "mailed.parquet")
    assert first.run_id is None
    assert first.mailing == second.mailing
    assert any("no run is known" in warning for warning in first.warnings)


@pytest.mark.parametrize(
    "mailed", ["2026-10-05", " 2026-10-05 ", date(2026, 10, 5), datetime(2026, 10, 5, 23, 59, tzinfo=UTC)]
)
def test_the_day_of_mailing_is_a_date_or_text(label: Any, mailed: str | date) -> None:
    """What people type in a notebook is understood; it is the same mailing however its day was given."""
    report = label(f"사업자번호,반송여부\n{NUMBERS[3]},Y\n", mailed=mailed, today="2026-11-01")
    assert report.declaration.mailed == date(2026, 10, 5)
    assert report.mailing.endswith("-20261005")


@pytest.mark.parametrize("mailed", ["5.10.2026", "October 5", "2026-13-01", "", 20261005])
def test_another_text_is_refused_with_a_sentence(label: Any, mailed: Any) -> None:
    """5.10. may be May or October: nothing is guessed, and nothing is recorded."""
    with pytest.raises(UsageError, match=r"^`mailed=.*`: is no day; give it as 2026-10-05"):
        label(f"사업자번호,반송여부\n{NUMBERS[3]},Y\n", mailed=mailed)
    assert not LabelStore().mailings()


def test_other_days_are_given_as_text_too(tmp_path: Path) -> None:
    """`today` and `as_of` are read as `mailed` is."""
    source, registry = (
        write(tmp_path / "status.csv", f"사업자번호,상태\n{NUMBERS[3]},계속사업자\n"),
        tmp_path / "r.parquet",
    )
    bs.build_registry([source], registry, as_of="2026-10-31")
    assert pl.read_parquet(registry)["as_of"].to_list() == [date(2026, 10, 31)]
    days: tuple[str | date, ...] = ("2026-11-01", date(2026, 11, 1))
    one, other = (bs.verify(NUMBERS[3], registry=registry, today=day) for day in days)
    assert one == other
    with pytest.raises(UsageError, match=r"`today='tomorrow'`: is no day"):
        bs.verify(NUMBERS[3], today="tomorrow")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file": "list.csv"}, "has not the nine columns"),
        ({"file": None, "run": "20200101T000000-abcdef"}, "there is no manifest"),
        ({"file": None, "run": "../../etc/passwd"}, "is no run's id"),
        ({"mailed": None}, "holds no mailing date"),
        ({"mailed": date(2027, 1, 1)}, "is in the future"),
        ({"returns_requested": None}, "`returns_requested=True`"),
        ({"sent": "send,nonsense"}, "no row with the action 'nonsense'"),
        ({"sent": "all,send"}, "either all"),
        ({"sent": " , "}, "names no action"),
    ],
)
def test_a_mailing_that_cannot_be_is_refused(
    label: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    """Each message says what is missing or wrong and what to give."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabelError, match=message):
        label(f"사업자번호,반송여부\n{NUMBERS[3]},Y\n", **options)
    with pytest.raises(UsageError, match="which mailing"):
        label(f"사업자번호,반송여부\n{NUMBERS[3]},Y\n", file=None)


def test_an_output_with_other_rows_than_the_run_wrote_is_refused(label: Any, enriched: Path) -> None:
    """Rows are counted from 0 as they were written; a file that was cut or sorted anew has other numbers."""
    run_id = next((Path(LabelStore().folder).parent / "runs").glob("*.json")).stem
    enriched.write_text("".join(enriched.read_text(encoding="utf-8").splitlines(True)[:-1]), encoding="utf-8")
    with pytest.raises(LabelError, match=f"has 7 rows, run {run_id} wrote 8"):
        label(f"사업자번호,반송여부\n{NUMBERS[3]},Y\n", file=None, run=run_id)
    assert label(f"사업자번호,반송여부\n{NUMBERS[3]},Y\n").run_id is None


def test_a_prefix_and_a_selection_are_found(label: Any, tmp_path: Path) -> None:
    """The nine columns are found under any prefix; a file without its number column is labelled by row_id."""
    bs.enrich(tmp_path / "list.csv", tmp_path / "p.xlsx", prefix="bv:", select=["상호"])
    report = label("row_id,반송여부\n4,Y\n", file=tmp_path / "p.xlsx", output=tmp_path / "l.xlsx")
    assert report.bounced == 1
    assert pl.read_excel(tmp_path / "l.xlsx")["bv:bounced"].to_list()[4] is True


def test_the_mailing_date_may_stand_in_the_outcomes(label: Any) -> None:
    """One date in all rows is the day of mailing; of several the one that is given is taken."""
    text = f"사업자번호,반송여부,발송일\n{NUMBERS[3]},Y,2026.10.05\n{NUMBERS[0]},N,2026-10-05\n"
    assert label(text, mailed=None).declaration.mailed == MAILED
    both = text + f"{NUMBERS[1]},Y,2026-09-01\n"
    with pytest.raises(LabelError, match="holds 2 mailing dates"):
        label(both, mailed=None)
    report = label(both, mailed=MAILED)
    assert (report.exit_code, report.problems) == (0, {"other_mailing": 1})
    with pytest.raises(LabelError, match="none of its outcomes is of that day"):
        label(both, mailed=date(2026, 9, 30))


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_labelled_file_has_three_columns_more(label: Any, enriched: Path, tmp_path: Path) -> None:
    """`output` is the enriched file with bounced, bounce_reason and bounced_at; silence is false only if it is sure."""
    text = f"사업자번호,반송여부,반송사유,반송일\n{NUMBERS[3]},Y,이사불명(1차),2026-10-20\n"
    label(text, output=tmp_path / "partly.csv")
    frame = pl.read_csv(tmp_path / "partly.csv", infer_schema=False)
    assert frame["bounced"].to_list() == [None] * 4 + ["true"] + [None] * 3
    assert frame["bounce_reason"][4] == "이사불명(1차)"
    assert frame["bounced_at"][4] == "2026-10-20"
    label(text, output=tmp_path / "whole.csv", complete=True, sent="all")
    whole = pl.read_csv(tmp_path / "whole.csv", infer_schema=False)["bounced"].to_list()
    assert whole == ["false"] * 4 + ["true", None, "false", None]


def test_a_dry_run_writes_nothing(label: Any, tmp_path: Path) -> None:
    """It matches and reports, and leaves no book, no list and no output."""
    text = f"사업자번호,반송여부\n{NUMBERS[3]},Y\n1111111111,Y\n"
    report = label(text, dry_run=True, output=tmp_path / "o.csv", unmatched=tmp_path / "u.csv")
    assert (report.new, report.exit_code) == (1, 3)
    assert not LabelStore().folder.exists()
    assert not (tmp_path / "o.csv").exists()
    assert not (tmp_path / "u.csv").exists()


def test_what_is_read_is_not_overwritten(label: Any, tmp_path: Path, enriched: Path) -> None:
    """Neither the outcomes nor, by the list of unmatched ones, the enriched file is replaced."""
    text = f"사업자번호,반송여부\n{NUMBERS[3]},Y\n"
    for options in (
        {"output": tmp_path / "outcomes.csv"},
        {"unmatched": tmp_path / "outcomes.csv"},
        {"unmatched": enriched},
    ):
        with pytest.raises(UsageError, match="is the"):
            label(text, **options)
    report = label(text, output=enriched)
    assert report.output == str(enriched)
    assert label(text).known == 1


def test_the_report_speaks_json_html_and_text(label: Any) -> None:
    """All forms of the report say the same, and hold no address."""
    report = label(f"사업자번호,주소,반송여부\n{NUMBERS[3]},{ADDRESSES[3]},Y\n999-99-99999,비밀 주소 1,Y\n")
    plain = json.loads(json.dumps(report.as_dict()))
    assert set(plain) == {one.name for one in fields(report)}
    assert plain["bounced"] == 1
    assert plain["declaration"]["mailed"] == "2026-10-05"
    assert plain["listed"] == [{"row": 2, "problem": "unknown_number", "value": "999-99-99999"}]
    for text in (str(report), report._repr_html_(), repr(report), json.dumps(plain, ensure_ascii=False)):
        assert "비밀" not in text
        assert "첨단로" not in text


def test_the_command_line(run: Any, enriched: Path, tmp_path: Path) -> None:
    """The command records, prints, and its exit code says whether all could be used."""
    write(tmp_path / "o.csv", f"사업자번호,반송여부\n{NUMBERS[3]},Y\n", "cp949")
    options = ("--file", "mailed.csv", "--mailed", "2026-10-05", "--returns-requested")
    done = run(
        "label", "o.csv", *options, "--complete", "--sent", "all", "--json", "--mail-class", "bulk", "-o", "l.csv"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["bounced"], report["silent"], report["declaration"]["mail_class"]) == (1, 5, "bulk")
    write(tmp_path / "o.csv", f"사업자번호,반송여부\n{NUMBERS[3]},Y\n1234567891,Y\n")
    again = run("label", "o.csv", *options)
    assert again.returncode == 3, again.stderr
    assert "known before 1" in again.stderr
    assert "row 2 (123-45-67891): its number is not in the mailed file" in again.stderr
    refused = run("label", "o.csv", "--file", "mailed.csv", "--mailed", "2026-10-05")
    assert refused.returncode == 2
    assert "--returns-not-requested" in refused.stderr


def test_the_sample_is_labelled(tmp_path: Path) -> None:
    """The sample's outcomes fit the sample's customers: all rows with a number are matched, the others listed."""
    indexes = {"gazetteer": SAMPLE / "gazetteer.parquet", "registry": SAMPLE / "registry.parquet"}
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.xlsx", **indexes)
    report = bs.label(SAMPLE / "outcomes.csv", file=tmp_path / "out.xlsx", returns_requested=True, complete=True)
    assert report.rows == 287
    assert {one.problem for one in report.listed} == {"no_number"}
    assert sum(report.ways.values()) + len(report.listed) == 287
    assert report.bounced >= 25
    assert len(report.by_reason) >= 4
    assert (report.unread, report.usable) == (0, report.bounced + report.not_bounced)


def test_outcomes_of_a_run_that_bought_in_uploads_are_sent_too(tmp_path: Path) -> None:
    """Returns and sure arrivals go to the jobs, once; silence does not, nor anything with `send=False`."""
    source = customers(tmp_path / "in.csv", 12)
    service = FakeService(KEY)
    declared: dict[str, Any] = {"mailed": MAILED, "returns_requested": True, "complete": True, "sent": "all"}
    outcomes = write(tmp_path / "o.csv", "row_id,반송여부,반송사유\n0,Y,이사불명\n1,N,\n2,Y,수취거절\n")
    with serve(service) as url:
        access: dict[str, Any] = {"base_url": url, "api_key": bs.ApiKey(KEY)}
        bs.enrich(source, tmp_path / "out.csv", engine="batch", poll=0.01, **access)
        kept = bs.label(outcomes, file=tmp_path / "out.csv", send=False, **declared)
        assert (kept.sent, kept.new, service.labels) == (None, 3, [])
        report = bs.label(outcomes, file=tmp_path / "out.csv", **declared, **access)
        again = bs.label(outcomes, file=tmp_path / "out.csv", **declared, **access)
    assert report.sent is not None
    assert again.sent is not None
    assert (report.sent.sent, again.sent.sent, again.sent.done) == (3, 0, 3)
    assert sorted((label.bounced, label.reason) for label in service.labels) == [
        (False, ""),
        (True, "수취거절"),
        (True, "이사불명"),
    ]
    assert report.silent == 9
    assert json.loads(json.dumps(report.as_dict()))["sent"]["sent"] == 3
    assert "3 sent" in str(report)
    with pytest.raises(UsageError, match="`rate=` is for outcomes that are sent"):
        bs.label(outcomes, file=tmp_path / "out.csv", send=False, rate=5.0, **declared)
    with pytest.raises(UsageError, match="no base URL"):
        bs.label(outcomes, file=tmp_path / "out.csv", send=True, **declared)
