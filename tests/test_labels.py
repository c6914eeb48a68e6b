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
from bansong.base.messages import use_language
from bansong.base.options import ReadOptions
from bansong.engine.text import day_given
from bansong.errors import BansongError, LabelError, OutputError, UsageError
from bansong.history.labels import LabelStore
from bansong.history.mailings import parse_terms
from bansong.history.outcomes import Outcomes, read_outcomes
from bansong.labels.label import LabelReport
from bansong.learning.report import calibration
from bansong.testing import FakeService, serve
from conftest import SAMPLE, json_of, write
from customers import KEY, customers
from korean import english_sentences

NUMBERS = ("124-81-00998", "126-81-03725", "107-86-14075", "120-81-47521")
ADDRESSES = (
    "경기도 수원시 영통구 삼성로 129",
    "경기도 이천시 부발읍 경충대로 2091",
    "서울특별시 영등포구 여의대로 128",
    "제주특별자치도 제주시 첨단로 242",
)
LIST = f"""사업자등록번호,상호,주소
{NUMBERS[0]},삼성전자,{ADDRESSES[0]}
{NUMBERS[1]},하이닉스,{ADDRESSES[1]}
{NUMBERS[2]},LG,{ADDRESSES[2]}
{NUMBERS[2]},LG 창고,서울특별시 마포구 월드컵북로 5
{NUMBERS[3]},카카오,{ADDRESSES[3]}
{NUMBERS[0].replace("-", "")},삼성전자,{ADDRESSES[0].replace("경기도", "경기도 ")}
{NUMBERS[1]},하이닉스,
,번호 없음,서울 중구 세종대로 110
"""
MAILED = date(2026, 10, 5)
TODAY = date(2026, 11, 22)
OUTCOMES = Path(__file__).parent / "golden" / "outcomes.csv"
ONE = "row_id,반송여부\n4,Y\n"


@pytest.fixture(scope="module")
def enriched_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("enriched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        bs.enrich(write(folder / "list.csv", LIST), folder / "mailed.csv")
    return folder


@pytest.fixture
def enriched(tmp_path: Path, state_directory: Path, enriched_once: Path) -> Path:
    """A copy of an enriched file and of the state of its run."""
    shutil.copytree(enriched_once / "state", state_directory, dirs_exist_ok=True)
    manifest = next((state_directory / "runs").glob("*.json"))
    manifest.write_text(manifest.read_text("utf-8").replace(str(enriched_once), str(tmp_path)), "utf-8")
    for name in ("list.csv", "mailed.csv"):
        shutil.copy2(enriched_once / name, tmp_path)
    return tmp_path / "mailed.csv"


@pytest.fixture
def label(enriched: Path, tmp_path: Path) -> Callable[..., LabelReport]:
    def recorded(text: str | Path, **options: Any) -> LabelReport:
        outcomes = write(tmp_path / "outcomes.csv", text) if isinstance(text, str) else text
        given: dict[str, Any] = {"file": enriched, "mailed": MAILED, "returns_requested": True, "today": TODAY}
        return bs.label(outcomes, **(given | options))

    return recorded


@pytest.fixture
def manifest(enriched: Path, state_directory: Path) -> Path:
    return next((state_directory / "runs").glob("*.json"))


def problems(report: LabelReport) -> list[tuple[int, str]]:
    return [(one.row, one.problem) for one in report.listed]


def bounced(path: str | Path) -> dict[int, bool | None]:
    return dict(pl.read_parquet(path).select("row_id", "bounced").iter_rows())


TABLE = [
    ["사업자등록번호", "주소", "반송여부", "반송사유", "반송일자"],
    [NUMBERS[0], ADDRESSES[0], "Y", "이사불명", "2026-10-20"],
    [NUMBERS[3], ADDRESSES[3], "N", "", ""],
]


def written(path: Path) -> Path:
    if path.suffix == ".xlsx":
        with xlsxwriter.Workbook(path) as book:
            sheet = book.add_worksheet()
            for place, row in enumerate([["반송 목록"], [], *TABLE]):
                sheet.write_row(place, 0, row)
            sheet.write_datetime(3, 4, date(2026, 10, 20), book.add_format({"num_format": "yyyy-mm-dd"}))
    elif path.suffix == ".parquet":
        frame = pl.DataFrame(TABLE[1:], schema=TABLE[0], orient="row")
        day = pl.col("반송일자").str.to_date(strict=False)
        frame.with_columns(pl.col("반송여부") == "Y", day).write_parquet(path)
    else:
        write(path, "".join(",".join(row) + "\n" for row in TABLE), "cp949")
    return path


def read(path: Path, **options: Any) -> Outcomes:
    return read_outcomes(path, ReadOptions(), **options)


def read_text(folder: Path, text: str, **options: Any) -> Outcomes:
    return read(write(folder / "outcomes.csv", text), **options)


@pytest.mark.parametrize("name", ["a.csv", "a.xlsx", "a.parquet"])
def test_the_same_outcomes_are_read_from_each_format(tmp_path: Path, name: str) -> None:
    """A row's place is from 1, in a workbook as Excel shows it."""
    found = read(written(tmp_path / name)).frame.select("place", "digits", "said", "reason_code", "returned").rows()
    first = 4 if name.endswith("xlsx") else 1
    back, arrived = ("1248100998", True, "moved", date(2026, 10, 20)), ("1208147521", False, None, None)
    assert found == [(first, *back), (first + 1, *arrived)]


def test_days_are_read_as_offices_and_workbooks_write_them(tmp_path: Path) -> None:
    days = {
        "26.10.19": "2026-10-19",
        "'26/10/9": "2026-10-09",
        "46314.5": "2026-10-19",  # a cell that lost its format
        "2026. 10. 19.": "2026-10-19",
        "10/21": "2026-10-21",  # without a year: the next such day after the mailing
        "10월 5일": "2026-10-05",
        "'11.3": "2026-11-03",
        "1/7": "2027-01-07",
        "10/4": "2027-10-04",
    }
    for more, mailed in (("", MAILED), (",2026-10-05", None)):
        head = "row_id,반송일자" + (",발송일" if more else "")
        rows = [head, *(f"{place},{day}{more}" for place, day in enumerate(days))]
        frame = read_text(tmp_path, "\n".join([*rows, ""]), mailed=mailed).frame
        assert dict(zip(days, frame["returned"].cast(pl.String), strict=True)) == days
    found = read_text(tmp_path, "row_id,반송일자,발송일\n0,10/21,10/5\n1,10/21,9/5\n", mailed=MAILED).frame
    assert found["mailed_on"].to_list() == [MAILED, date(2026, 9, 5)]


def test_outcomes_that_say_nothing_are_refused(tmp_path: Path) -> None:
    codes = {
        f"사업자번호,상호\n{NUMBERS[0]},가\n": "labels.outcome_column_missing",
        f"사업자번호,반송여부\n{NUMBERS[0]},보류\n": "labels.bounced_not_understood",
        f"사업자번호,반송여부\n{NUMBERS[0]},\n": "labels.outcomes_empty",
        "봉투번호,반송여부\n": "labels.outcomes_empty",
        "상호,반송여부\n가,Y\n": "labels.row_column_missing",
        f"사업자번호,반송여부,반송여부\n{NUMBERS[3]},Y,N\n": "labels.header_ambiguous",
    }
    for text, code in codes.items():
        with pytest.raises(BansongError) as caught:
            read_text(tmp_path, text)
        assert caught.value.code == code


def test_columns_are_found_or_named(tmp_path: Path) -> None:
    """A bare 반송 above O and X; a list of returns only; a column named by header or by place."""
    bare = read_text(tmp_path, f"사업자등록번호,반송\n{NUMBERS[3]},O\n{NUMBERS[0]},X\n")
    assert bare.frame["said"].to_list() == [True, False]
    returns = read_text(tmp_path, f"사업자번호,반송사유\n{NUMBERS[0]},폐업\n{NUMBERS[3]},\n합계,2건\n")
    assert (returns.only_returns, returns.blank) == (True, 1)
    assert returns.frame["reason_code"].to_list() == ["closed", None]
    assert read_text(tmp_path, "줄,반송사유\n4,폐업\n", columns={"row_id": "줄"}).frame["row_id"].to_list() == [4]
    twice = f"사업자등록번호,반송여부,반송여부\n{NUMBERS[3]},Y,N\n"
    assert read_text(tmp_path, twice, columns={"bounced": "#3"}).frame["said"].to_list() == [False]


def test_each_outcome_finds_its_row_or_is_listed(label: Any, tmp_path: Path) -> None:
    """The golden file has outcomes of the eight rows above, and the problem that each is listed with."""
    outputs = {"unmatched": tmp_path / "left.csv", "output": tmp_path / "labelled.csv"}
    report = label(OUTCOMES, complete=True, sent="all", **outputs)
    expected = pl.read_csv(OUTCOMES, infer_schema=False)["문제"]
    wanted = [(row, problem) for row, problem in enumerate(expected, 1) if problem]
    assert problems(report) == [(row, problem) for row, problem in wanted if problem != "other_mailing"]
    assert report.problems["other_mailing"] == 1
    assert dict(report.ways) == {"row_id": 3, "number and address": 2, "number": 2}
    assert (report.bounced, report.not_bounced, report.repeated, report.blank) == (3, 2, 2, 1)
    assert report.exit_code == 3
    # row 2 is in doubt; row 5 is the letter of row 0; row 6 is silent
    assert bounced(report.book) == {0: True, 1: True, 2: None, 3: True, 4: False, 6: False, 7: False}
    left = pl.read_csv(tmp_path / "left.csv", infer_schema=False)
    assert left.select(pl.col("row").cast(pl.Int64), "problem").rows() == wanted
    assert stat.S_IMODE((tmp_path / "left.csv").stat().st_mode) == 0o600
    shown = pl.read_csv(tmp_path / "labelled.csv", infer_schema=False)["bounced"].to_list()
    assert shown == ["true", "true", None, "true", "false", None, "false", "false"]


def test_no_match_at_all_shows_both_files_but_no_address(label: Any) -> None:
    with pytest.raises(LabelError) as caught:
        label("사업자번호,주소,반송여부\n220-81-62517,경기도 성남시 분당구 불정로 6,Y\n")
    assert caught.value.code == "labels.outcomes_not_matched"
    text = str(caught.value)
    assert all(shown in text for shown in ("'사업자번호' (b_no)", "220-81-62517", "124-81-00998"))
    assert not any(address in text for address in ("불정로", "삼성로"))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """The sample enriched: its file, the state of its run, and the letters that the report counts."""
    folder = tmp_path_factory.mktemp("sample")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        report = bs.enrich(SAMPLE / "customers.csv", folder / "out.csv", letter_cost=500, **INDEXES)
    assert report.beside is not None
    assert report.beside.letters is not None
    return folder / "out.csv", folder / "state", report.beside.letters.letters


INDEXES = {"gazetteer": SAMPLE / "gazetteer.parquet", "registry": SAMPLE / "registry.parquet"}


def test_the_sample_is_labelled_and_its_letters_counted_once(sample: tuple[Path, Path, int]) -> None:
    where: dict[str, Any] = {"file": sample[0], "mailed": MAILED, "returns_requested": True, "complete": True}
    report = bs.label(SAMPLE / "outcomes.csv", sent="send", **where)
    assert report.rows == sum(report.ways.values()) + len(report.listed) == 287
    assert (dict(report.ways), report.listed) == ({"number and address": 268, "customer key": 19}, ())
    assert report.bounced >= 25
    assert (len(report.by_reason) >= 4, report.unread) == (True, 0)
    letters = sum(mailing.letters for mailing in LabelStore().mailings())
    assert report.usable == sample[2] == letters == 176


def test_an_outcome_of_the_corrected_address_is_of_its_row(sample: tuple[Path, Path, int], tmp_path: Path) -> None:
    """And is remembered under both: a list with the corrected address is told of it."""
    frame = pl.read_csv(sample[0], infer_schema=False)
    fixed = frame.filter(pl.col("reasons").str.contains("corrected automatically"), pl.col("bounce_prob").is_not_null())
    cells = fixed.select(사업자번호="사업자등록번호", 주소="fixed_address")
    cells.with_columns(반송사유=pl.lit("이사불명")).write_csv(tmp_path / "o.csv")
    report = bs.label(tmp_path / "o.csv", file=sample[0], mailed=MAILED, returns_requested=True)
    assert fixed.height > 5
    assert dict(report.ways) == {"number and address": fixed.height}
    cells.write_csv(tmp_path / "next.csv")
    bs.enrich(tmp_path / "next.csv", tmp_path / "next.out.csv")
    reasons = pl.read_csv(tmp_path / "next.out.csv", infer_schema=False)["reasons"]
    assert reasons.str.contains("[history", literal=True).all()


def test_a_run_and_its_file_are_one_mailing(label: Any, manifest: Path, enriched: Path, tmp_path: Path) -> None:
    run_id = json_of(manifest)["run_id"]
    found = [label(ONE), label(ONE, file=None, run=run_id), label(ONE, file=None, run=manifest)]
    moved = enriched.rename(tmp_path / "moved.csv")
    with pytest.raises(LabelError, match=f"`run='{run_id}'` `file='PATH'`"):
        label(ONE, file=None, run=run_id)
    found.append(label(ONE, file=moved, run=run_id))
    assert {report.mailing for report in found} == {f"{run_id}-20261005"}
    assert {report.model for report in found} == {json_of(manifest)["versions"]["model"]}
    assert [report.new for report in found] == [1, 0, 0, 0]


def test_a_file_of_an_unknown_run_is_known_by_its_answers(label: Any, manifest: Path, tmp_path: Path) -> None:
    bs.enrich(tmp_path / "list.csv", tmp_path / "mailed.parquet")
    shutil.rmtree(manifest.parent)
    first, second = label(ONE), label(ONE, file=tmp_path / "mailed.parquet")
    assert (first.run_id, first.mailing) == (None, second.mailing)
    assert any("no run is known" in warning for warning in first.warnings)


def test_an_output_with_other_rows_than_the_run_wrote_is_refused(label: Any, enriched: Path, manifest: Path) -> None:
    enriched.write_text("".join(enriched.read_text(encoding="utf-8").splitlines(True)[:-1]), encoding="utf-8")
    with pytest.raises(LabelError, match=f"has 7 rows, run {manifest.stem} wrote 8"):
        label(ONE, file=None, run=manifest.stem)
    assert label(ONE).run_id is None


def test_terms_of_a_mailing_are_read_or_refused() -> None:
    """Actions may be named in Korean."""
    for day in ("2026-10-05", " 2026-10-05 ", MAILED, datetime(2026, 10, 5, 23, 59, tzinfo=UTC)):
        assert day_given("mailed", day) == MAILED
    for wrong in ("5.10.2026", "October 5", "2026-13-01", "", 20261005):
        with pytest.raises(UsageError, match=r"^`mailed=.*`: is no day; give it as 2026-10-05"):
            day_given("mailed", wrong)  # type: ignore[arg-type]
    for sent, actions in (("발송 금지, 확인 후 발송", ("confirm", "do_not_send")), ("전체", ("all",))):
        assert parse_terms(MAILED, True, False, None, sent, TODAY).sent == actions
    terms: list[tuple[date, bool | None, str | None, str]] = [
        (date(2027, 1, 1), True, None, "mailings.date_in_future"),
        (date(202, 6, 10), True, None, "mailings.date_too_early"),
        (MAILED, None, None, "mailings.returns_not_declared"),
        (MAILED, True, "all,send", "mailings.actions_contradictory"),
        (MAILED, True, " , ", "mailings.actions_missing"),
    ]
    for mailed, requested, said, code in terms:
        with pytest.raises(LabelError) as caught:
            parse_terms(mailed, requested, False, None, said, TODAY)
        assert caught.value.code == code


def test_a_mailing_that_is_not_found_is_refused(label: Any, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"file": tmp_path / "list.csv"}, "has not the nine columns"),
        ({"file": None, "run": "20200101T000000-abcdef"}, "there is no manifest"),
        ({"file": None, "run": "../../etc/passwd"}, "is no run's id"),
        ({"file": None}, "which mailing"),
        ({"mailed": None}, "holds no mailing date"),
        ({"sent": "send,nonsense"}, "no row with the action 'nonsense'"),
    ]
    for options, message in refused:
        with pytest.raises((LabelError, UsageError), match=message):
            label(ONE, **options)
    assert not LabelStore().mailings()


def test_the_mailing_date_may_stand_in_the_outcomes(label: Any) -> None:
    text = f"사업자번호,반송여부,발송일\n{NUMBERS[3]},Y,2026.10.05\n{NUMBERS[0]},N,2026-10-05\n"
    assert label(text, mailed=None).declaration.mailed == MAILED
    codes = {None: "labels.mailing_date_ambiguous", date(2026, 9, 30): "mailings.mailing_date_not_found"}
    for mailed, code in codes.items():
        with pytest.raises(LabelError) as caught:
            label(text + f"{NUMBERS[1]},Y,2026-09-01\n", mailed=mailed)
        assert caught.value.code == code


def test_the_day_of_a_run_is_that_in_korea(label: Any, manifest: Path) -> None:
    """Half past six in the morning of the 6th is the 5th still in London."""
    manifest.write_text(json.dumps(json_of(manifest) | {"started": "2026-10-05T21:31:00+00:00"}), "utf-8")
    late = [one for one in label(ONE).warnings if "enriched on" in one]
    assert ["2026-10-06" in one for one in late] == [True]
    assert not [one for one in label(ONE, mailed=date(2026, 10, 6)).warnings if "enriched on" in one]


def test_a_selection_is_labelled_by_row_id(label: Any, tmp_path: Path) -> None:
    """The nine columns are found under any prefix; without its numbers, outcomes must name rows."""
    bs.enrich(tmp_path / "list.csv", tmp_path / "p.xlsx", prefix="bv:", select=["상호"])
    report = label(ONE, file=tmp_path / "p.xlsx", output=tmp_path / "l.xlsx")
    assert report.bounced == 1
    assert pl.read_excel(tmp_path / "l.xlsx")["bv:bounced"].to_list()[4] is True
    with pytest.raises(LabelError, match="it has no business numbers, so its letters are found by letter_id"):
        label(f"사업자등록번호,반송여부\n{NUMBERS[3]},Y\n", file=tmp_path / "p.xlsx")


def test_the_enriched_file_is_opened_as_is_said(label: Any, enriched: Path, tmp_path: Path) -> None:
    rows = pl.read_csv(enriched, infer_schema=False).to_dicts()
    other = write(tmp_path / "m.json", json.dumps({"a": [{"x": "1"}] * 20, "b": {"rows": rows}}, ensure_ascii=False))
    label(ONE, file=other, file_json_path="b.rows", output=tmp_path / "labelled.json")
    labelled = json_of(tmp_path / "labelled.json")["b"]["rows"]
    assert [row["bounced"] for row in labelled] == [None] * 4 + [True] + [None] * 3


def test_a_dry_run_writes_nothing(label: Any, tmp_path: Path) -> None:
    report = label(ONE + "99,Y\n", dry_run=True, output=tmp_path / "o.csv", unmatched=tmp_path / "u.csv")
    assert (report.new, report.exit_code) == (1, 3)
    assert not any(path.exists() for path in (LabelStore().folder, tmp_path / "o.csv", tmp_path / "u.csv"))


def test_no_input_and_no_label_book_is_overwritten(label: Any, tmp_path: Path, enriched: Path) -> None:
    book = tmp_path / "book"
    recorded = Path(label(ONE, book=book).book)
    before = {path: path.read_bytes() for path in (recorded, enriched, tmp_path / "outcomes.csv")}
    for options in (
        {"output": tmp_path / "outcomes.csv"},
        {"unmatched": tmp_path / "outcomes.csv"},
        {"unmatched": enriched},
        {"output": recorded},
        {"unmatched": recorded},
        {"output": book / "new.parquet"},
    ):
        with pytest.raises(UsageError):
            label(ONE, book=book, **options)
    assert {path: path.read_bytes() for path in before} == before
    assert list(book.glob("*.parquet")) == [recorded]


def test_nothing_is_recorded_where_an_output_or_the_book_cannot_be(label: Any, tmp_path: Path) -> None:
    for output, options in (("out.xls", {}), ("out.xlsx", {"output_encoding": "cp949"})):
        with pytest.raises((UsageError, OutputError)):
            label(ONE, output=tmp_path / output, **options)
    assert LabelStore().mailings() == []
    taken = write(tmp_path / "taken", "x")
    for book in (taken, taken / "book"):
        with pytest.raises(LabelError, match="taken"):
            label(ONE, book=book)


def test_the_report_speaks_json_html_and_text_without_addresses(label: Any) -> None:
    rows = "".join(f"{number},비밀 주소 1,Y\n" for number in range(3_000_000_000, 3_000_000_030))
    report = label(f"사업자번호,주소,반송여부\n{NUMBERS[3]},{ADDRESSES[3]},Y\n{rows}")
    plain = json.loads(json.dumps(report.as_dict()))
    assert set(plain) == {one.name for one in fields(report)}
    assert plain["listed"][0] == {"row": 2, "problem": "unknown_number", "value": "300-00-00000"}
    assert sum(what == "" for what, _ in report.lines()) == 21
    text = "".join([str(report), report._repr_html_(), repr(report), json.dumps(plain, ensure_ascii=False)])
    assert not any(secret in text for secret in ("비밀", "첨단로"))


def test_the_command_line_says_what_could_not_be_used(run: Any, enriched: Path, tmp_path: Path) -> None:
    write(tmp_path / "o.csv", f"사업자번호,반송여부\n{NUMBERS[3]},Y\n1234567891,Y\n", "cp949")
    options = ("--file", "mailed.csv", "--mailed", "2026.10.5", "--returns-requested", "--mail-class", "bulk")
    done = run("label", "o.csv", *options, "--complete", "--sent", "all", "-o", "l.csv")
    assert (done.returncode, "row 2 (123-45-67891): its number is not in the mailed file" in done.stderr) == (3, True)


def test_outcomes_of_a_run_that_bought_in_uploads_are_sent_too(tmp_path: Path) -> None:
    """Returns and sure arrivals go to the jobs, once; silence does not, nor anything with `send=False`.

    The service has reasons of its own: probability and grade are kept, levels are null, and nothing is learned.
    """
    service, out = FakeService(KEY), tmp_path / "out.csv"
    outcomes = write(tmp_path / "o.csv", "row_id,반송여부,반송사유\n0,Y,이사불명\n1,N,\n2,Y,수취거절\n")
    with serve(service) as url:
        access: dict[str, Any] = {"base_url": url, "api_key": bs.ApiKey(KEY)}
        bs.enrich(customers(tmp_path / "in.csv", 12), out, engine="batch", poll=0.01, **access)
        terms: dict[str, Any] = {"mailed": MAILED, "returns_requested": True, "complete": True, "sent": "all"}
        given = [{"send": False}, {}, access, access]
        kept, nowhere, report, again = (bs.label(outcomes, file=out, **terms, **options) for options in given)
    assert (kept.sent, kept.new, kept.unread, kept.usable, kept.model) == (None, 3, 12, 0, None)
    assert any("not sent to the service" in warning for warning in nowhere.warnings)
    assert report.sent is not None
    assert again.sent is not None
    assert (report.sent.sent, again.sent.sent, again.sent.done, report.silent) == (3, 0, 3, 9)
    sent = sorted((label.bounced, label.reason) for label in service.labels)
    assert sent == [(False, ""), (True, "수취거절"), (True, "이사불명")]
    row = LabelStore().evidence(unread=True).collect().row(0, named=True)
    assert row["bounce_prob"] is not None
    assert row["level:status"] is None
    assert LabelStore().evidence().collect().is_empty()
    for options, message in (({"send": False, "rate": 5.0}, "outcomes that are sent"), ({"send": True}, "no base URL")):
        with pytest.raises(UsageError, match=message):
            bs.label(outcomes, file=out, **options, **terms)


def test_reports_of_outcomes_and_of_learning_are_korean_and_their_values_are_codes(label: Any, tmp_path: Path) -> None:
    rows = pl.DataFrame({"bounce_prob": [0.1, 0.2, 0.9] * 30, "bounced": [False, True, True] * 30})
    text = f"사업자번호,반송,사유\n{NUMBERS[3]},Y,이사\n999-99-99999,Y,\n,?,\n"
    with use_language("ko"):
        report = label(text, unmatched=tmp_path / "unused.csv")
        learned = bs.calibrate()
        said = "\n".join([str(report), *report.warnings, str(learned), str(calibration(rows))])
    assert english_sentences(said) == []
    for part in (
        "반송              1 (이사 1)",
        "2026-10-05 발송, 반송 요청함, 일부 결과",
        "예상의 1.67배(95% 구간 1.41~1.89)",
    ):
        assert part in said
    assert (report.as_dict()["by_reason"], report.as_dict()["ways"]) == ({"moved": 1}, {"number": 1})
    unused = pl.read_csv(tmp_path / "unused.csv", infer_schema=False)
    assert unused["problem"].to_list() == ["unknown_number", "not_understood"]
    assert unused["이유"][0] == "발송한 파일에 없는 사업자번호입니다"
    again = label((tmp_path / "unused.csv").read_text("utf-8-sig").replace("999-99-99999", NUMBERS[3]))
    assert again.bounced == 1  # corrected, it is a list like any other
    assert set(learned.as_dict()["left_out"]) <= {"mailed less than 45 days ago", "outcome not certain"}  # type: ignore[call-overload]
