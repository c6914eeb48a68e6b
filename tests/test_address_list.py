"""A list without business numbers is an address list; what a report says first of it, of sheets, of no gazetteer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import openpyxl
import polars as pl
import pyarrow as pa
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.base.schema import Alert
from bansong.distributed import verify_batches
from bansong.engine.local import LocalEngine
from bansong.errors import ColumnError, UsageError
from bansong.history.labels import LabelStore
from conftest import NINE, SAMPLE, write
from customers import QUICK

Run = Callable[..., subprocess.CompletedProcess[str]]
GAZETTEER = SAMPLE / "gazetteer.parquet"
ADDRESSES = [
    "서울 종로구 종로 426, 2층 504호",
    "서울 종로구 종로 426",
    "테헤란로 1",
    "역삼로 *** *층",
    None,
    None,
]
LIST = pl.DataFrame({"업체명": ["가나", "다라", "마바", "사아", "자차", None], "주소": ADDRESSES})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "list.csv", LIST.write_csv())


def is_told_first(report: bs.Report) -> bool:
    """Whether the first alert is that no column holds numbers, and names the way to name it."""
    first = next(one for one in report.warnings if isinstance(one, Alert))
    return first is report.warnings[0] and "b_no" in first


@pytest.mark.parametrize("registry", [None, SAMPLE / "registry.parquet"])
def test_addresses_are_read_and_corrected_and_no_row_is_sent(
    source: Path, tmp_path: Path, registry: Path | None
) -> None:
    report = bs.enrich(source, tmp_path / "out.parquet", registry=registry, gazetteer=GAZETTEER)
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert found.select("업체명", "주소").equals(LIST)
    assert set(found["biz_status"]) == {"unknown"}
    assert set(found["row_status"]) == {"verified"}
    assert found["row_note"].null_count() == found.height
    assert found["action"].to_list() == ["confirm", "confirm", "confirm", *["fix_address"] * 3]
    assert found["fixed_zipcode"].to_list()[:2] == ["03122", "03122"]
    assert found["bounce_prob"].is_null().to_list() == [False, False, False, True, True, True]
    assert found["reasons"].list.join(" ").str.contains(r"\[status \+0\] status not known: the list has no").all()
    assert is_told_first(report)
    assert (report.exit_code, report.statuses, set(report.columns)) == (0, None, {"name", "address"})
    assert report.counts["verified"] == 6
    assert report.plan.invalid == 0


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_points_of_each_row_add_up(source: Path, tmp_path: Path, lang: bs.model.Lang) -> None:
    bs.enrich(source, tmp_path / "out.parquet", gazetteer=GAZETTEER, lang=lang)
    found = pl.read_parquet(tmp_path / "out.parquet").drop_nulls("bounce_prob")
    points = (
        found["reasons"].list.eval(pl.element().str.extract(r"^\[[a-z_]+ ([+-][0-9]+)\]").cast(pl.Int64)).list.sum()
    )
    assert found["bounce_prob"].to_list() == pytest.approx([0.93 / (1 + 2 ** (-s / 10)) for s in points], abs=5.1e-5)


def test_every_way_to_ask_gives_the_same_answers(source: Path, tmp_path: Path, run: Run) -> None:
    report = bs.enrich(source, tmp_path / "out.parquet", gazetteer=GAZETTEER)
    expected = pl.read_parquet(tmp_path / "out.parquet").select(NINE)
    with pytest.warns(UserWarning, match="no column holds business numbers"):
        framed = bs.verify_frame(LIST, gazetteer=GAZETTEER)
    with pytest.warns(UserWarning, match="no column holds business numbers"):
        spread = verify_batches(LIST, gazetteer=GAZETTEER)(pa.table(LIST.to_arrow()))
    assert framed.select(NINE).equals(expected)
    assert pl.DataFrame(spread).select(NINE).equals(expected)
    several = bs.enrich([source, write(tmp_path / "b.csv", LIST.write_csv())], tmp_path / "all", gazetteer=GAZETTEER)
    assert (several.rows, several.plan.lookups, several.plan.invalid) == (12, report.plan.lookups, 0)
    done = run("plan", source, "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 6)
    assert "b_no=" in json.loads(done.stdout)["warnings"][0]


def test_what_is_written_beside_holds_every_row_and_no_letter(source: Path, tmp_path: Path) -> None:
    out, letters, page = tmp_path / "out.xlsx", tmp_path / "letters.csv", tmp_path / "page.html"
    report = bs.enrich(source, out, gazetteer=GAZETTEER, split="action", letters=letters, report=page, summary=True)
    assert report.beside is not None
    assert report.beside.letters is not None
    assert (report.beside.letters.letters, report.beside.letters.waiting) == (0, 6)
    parts = {part: openpyxl.load_workbook(path).worksheets[0].max_row - 1 for part, path in report_parts(tmp_path)}
    assert parts == {"confirm": 3, "fix_address": 3, "send": 0, "hold": 0, "do_not_send": 0, "other": 0}
    assert "no column holds business numbers" in page.read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="review"):
        bs.enrich(source, out, gazetteer=GAZETTEER, review=tmp_path / "review.xlsx")


def report_parts(folder: Path) -> list[tuple[str, Path]]:
    return [(path.suffixes[0][1:], path) for path in folder.glob("out.*.xlsx")]


def test_an_output_is_enriched_again_and_labelled(source: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "out.csv", tmp_path / "again.csv"
    bs.enrich(source, first, gazetteer=GAZETTEER)
    bs.enrich(first, again, gazetteer=GAZETTEER)
    assert first.read_bytes() == again.read_bytes()
    outcomes = write(tmp_path / "returns.csv", "row_id,반송사유\n0,이사불명\n")
    report = bs.label(
        outcomes, file=first, mailed="2026-11-01", returns_requested=True, complete=True, book=tmp_path / "labels"
    )
    assert report.bounced == 1


@pytest.mark.parametrize("engine", ["verify", "batch", "hybrid"])
def test_lookups_are_not_bought_without_numbers(source: Path, tmp_path: Path, engine: str) -> None:
    """Refused before anything is asked: nobody listens at this address."""
    with pytest.raises(ColumnError, match="engine='local'") as caught:
        bs.enrich(source, tmp_path / "out.csv", engine=engine, base_url="http://127.0.0.1:9", **QUICK)
    assert caught.value.missing == "b_no"
    assert not (tmp_path / "out.csv").exists()


def test_a_list_with_neither_numbers_nor_addresses_is_refused(tmp_path: Path, run: Run) -> None:
    source = write(tmp_path / "names.csv", "업체명,비고\n가나,1\n다라,2\n")
    with pytest.raises(ColumnError) as caught:
        bs.enrich(source, tmp_path / "out.csv")
    assert caught.value.missing == "b_no"
    assert run("watch", "sync", write(tmp_path / "l.csv", LIST.write_csv()), "--local", tmp_path / "w").returncode == 2
    with pytest.raises(UsageError):
        LocalEngine().verify(pl.LazyFrame({"address": ["서울"]}))


@pytest.mark.parametrize("number", ["", "1.24E+09", "124810"])
def test_a_number_column_without_numbers_is_named(tmp_path: Path, number: str) -> None:
    """Blank, rounded by Excel, or cut: no row has a number, and the alerts say which column was to hold them."""
    row = f"{number},서울 종로구 종로 426\n"
    report = bs.enrich(write(tmp_path / "in.csv", f"사업자번호,주소\n{row}{row}"), tmp_path / "out.csv")
    assert is_told_first(report)
    assert [one for one in report.warnings if isinstance(one, Alert) and "'사업자번호'" in one]
    assert (report.counts["verified"], set(report.columns)) == (2, {"address"})


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("제주지역여부", "N"),
        ("부산 담당자", "김"),
        ("법정동코드", "1168010100"),
        ("접수번호", "2026110101"),
        ("대표전화", "0212345678"),
    ],
)
def test_a_column_beside_the_addresses_does_not_refuse_the_list(tmp_path: Path, header: str, cell: str) -> None:
    """A header that names a province is no address, and a code of ten digits that repeats is no business number."""
    rows = "".join(f"가나{place},서울 종로구 종로 {place},{cell}\n" for place in range(1, 7))
    report = bs.plan(write(tmp_path / "in.csv", f"상호,주소,{header}\n{rows}"))
    assert set(report.columns) == {"name", "address"}
    assert is_told_first(report)


@pytest.mark.parametrize("divided", ["¦", "  ", " * "])
def test_lines_that_were_not_divided_are_no_addresses(tmp_path: Path, divided: str) -> None:
    lines = [("사업자번호", "상호", "주소"), ("124-81-00998", "가나", "서울 종로구 종로 426")]
    source = write(tmp_path / "in.csv", "".join(divided.join(line) + "\n" for line in lines))
    with pytest.raises(ColumnError, match="delimiter="):
        bs.plan(source)


def test_names_that_begin_with_a_province_are_no_addresses(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "상호,전화\n서울상사,02-1\n부산식당,051-1\n")
    with pytest.raises(ColumnError):
        bs.plan(source)
    with pytest.raises(ColumnError):
        bs.verify_frame(pl.read_csv(source))


def test_a_list_of_addresses_without_a_header_is_refused(tmp_path: Path) -> None:
    """Its first row would be lost as the header."""
    source = write(tmp_path / "in.csv", "가나,서울 종로구 종로 426\n다라,서울 종로구 종로 1\n")
    with pytest.raises(ColumnError, match="has_header=False"):
        bs.enrich(source, tmp_path / "out.csv")
    assert bs.enrich(source, tmp_path / "out.csv", has_header=False).rows == 2


def test_a_job_that_had_numbers_does_not_take_the_list_for_addresses(source: Path, tmp_path: Path, run: Run) -> None:
    """An address list may be a job's; a list that had numbers the night before may not become one."""
    folder = tmp_path / "job"
    folder.mkdir()
    job = write(folder / "customers.toml", '[[inputs]]\npath = "list.csv"\n')
    write(folder / "list.csv", "사업자번호,주소\n1248100998,서울 종로구 종로 426\n")
    assert run("run", job).returncode == 0
    output = (folder / "list.enriched.csv").read_bytes()
    write(folder / "list.csv", source.read_text(encoding="utf-8"))
    failed = run("run", job, "--json")
    assert failed.returncode == 2
    assert "b_no" in failed.stdout or "business numbers" in json.loads(failed.stdout)["inputs"][0]["error"]
    assert (folder / "list.enriched.csv").read_bytes() == output
    other = write(folder / "addresses.toml", '[[inputs]]\npath = "list.csv"\n\n[output]\npath = "{name}.read.{ext}"\n')
    assert [run("run", other).returncode, run("run", other).returncode] == [0, 0]


def test_a_job_over_a_list_of_addresses_counts_its_rows_each_night(tmp_path: Path, run: Run) -> None:
    """The same list is no loss; a list that lost most of its rows is."""
    job = write(tmp_path / "addresses.toml", '[[inputs]]\npath = "list.csv"\n')
    rows = [f"가나{place},서울 종로구 종로 {place}" for place in range(1, 31)]
    codes = []
    for kept in (rows, [*rows[:-1], "가나,서울 종로구 종로 426"], rows[:9]):
        write(tmp_path / "list.csv", "\n".join(["상호,주소", *kept, ""]))
        codes.append(run("run", job).returncode)
    assert codes == [0, 0, 2]


# ── what else the report says first ──────────────────────────────────────────────────────────────────────────────


def test_without_a_gazetteer_the_first_lines_say_what_mends_it(tmp_path: Path, run: Run) -> None:
    given = [SAMPLE / "customers.csv", "-o", tmp_path / "out.csv", "--registry", SAMPLE / "registry.parquet"]
    page = tmp_path / "page.html"
    done = run("enrich", *given, "--report", page, "--progress", "none", "--json")
    alert = next(one for one in json.loads(done.stdout)["warnings"] if "build-gazetteer" in one)
    assert any(line.startswith("ATTENTION") and "--gazetteer" in line for line in done.stderr.splitlines()[:2])
    assert "build-gazetteer" in page.read_text(encoding="utf-8")
    report = bs.enrich(given[0], given[2], registry=given[4], today="2026-11-20")
    assert report.lines()[1][1] == alert.replace("--gazetteer gazetteer.parquet", "`gazetteer='gazetteer.parquet'`")
    mended = bs.enrich(given[0], given[2], registry=given[4], gazetteer=GAZETTEER, today="2026-11-20")
    assert not [one for one in mended.warnings if isinstance(one, Alert)]


@pytest.mark.parametrize("numbers", [True, False])
def test_a_run_over_one_of_several_sheets_names_those_that_were_left(tmp_path: Path, run: Run, numbers: bool) -> None:
    source, book = tmp_path / "book.xlsx", openpyxl.Workbook()
    header = ["사업자번호", "주소"] if numbers else ["업체명", "주소"]
    for place, title in enumerate(["고객", "지점", "요약", "빈 시트"]):
        sheet = book.active if not place else book.create_sheet()
        sheet.title = title
        for row in [] if title == "빈 시트" else [header, ["1248100998" if numbers else "가나", "서울 종로구 종로 1"]]:
            sheet.append(row)
    book.save(source)
    report = bs.enrich(source, tmp_path / "out.xlsx", gazetteer=GAZETTEER)
    alert = next(one for one in report.warnings if isinstance(one, Alert) and "sheet=" in one)
    assert "'고객'" in alert
    assert "'지점'" in alert
    assert "빈 시트" not in alert
    first = run("enrich", source, "-o", tmp_path / "out.xlsx", "--progress", "none").stderr.splitlines()[:4]
    assert any(line.startswith("ATTENTION") and "--sheet" in line for line in first)
    chosen = bs.enrich(source, tmp_path / "out.xlsx", sheet="지점", gazetteer=GAZETTEER)
    assert not [one for one in chosen.warnings if "sheet=" in one]


def test_only_the_summary_of_an_earlier_output_is_no_sheet_that_was_left(tmp_path: Path) -> None:
    """A user's own sheet may have that name."""
    source = write(tmp_path / "in.csv", "사업자번호,주소\n1248100998,서울 종로구 종로 1\n")
    with use_language("ko"):
        bs.enrich(source, tmp_path / "out.xlsx", summary=True)
    assert not [one for one in bs.plan(tmp_path / "out.xlsx").warnings if "sheet=" in one]
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    assert book.sheetnames == ["bansong", "요약"]
    book["bansong"].title = "bizverify"  # as older releases called it
    book.save(tmp_path / "former.xlsx")
    assert not [one for one in bs.plan(tmp_path / "former.xlsx").warnings if "sheet=" in one]
    book["bizverify"].title = "명단"
    book.save(tmp_path / "own.xlsx")
    assert [one for one in bs.plan(tmp_path / "own.xlsx").warnings if isinstance(one, Alert) and "'요약'" in one]


def test_a_sheet_with_addresses_goes_before_a_cover(tmp_path: Path) -> None:
    source, book = tmp_path / "book.xlsx", openpyxl.Workbook()
    cover, sheet = book.active, book.create_sheet("주소록")
    cover.title = "표지"
    for row in [["구분", "건수"], ["전체", 2], ["신규", 1]]:
        cover.append(row)
    for row in [["상호", "주소"], ["가나", "서울 종로구 종로 1"], ["다라", "서울 종로구 종로 2"]]:
        sheet.append(row)
    book.save(source)
    report = bs.plan(source)
    assert (report.rows, report.columns["address"].header) == (2, "주소")
    assert [one for one in report.warnings if isinstance(one, Alert) and "'주소록'" in one and "'표지'" in one]
    with pytest.raises(ColumnError):
        bs.plan(source, sheet="표지")


# ── letters to a list of addresses ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sent", ["all", "confirm"])
def test_rows_that_did_not_come_back_are_delivered(source: Path, tmp_path: Path, sent: str) -> None:
    """Each row is one letter, by its ``row_id``; the same outcomes again change nothing."""
    given = {"file": tmp_path / "out.csv", "mailed": "2026-11-01", "returns_requested": True, "book": tmp_path / "book"}
    bs.enrich(source, tmp_path / "out.csv", gazetteer=GAZETTEER)
    first = write(tmp_path / "first.csv", "row_id,반송사유\n1,이사불명\n")
    report = bs.label(first, **given)
    assert (report.bounced, report.silent, report.unmailed) == (1, 0, 0)
    second = write(tmp_path / "second.csv", "row_id,반송사유\n0,이사불명\n")
    rows = {"all": 6, "confirm": 3}[sent]
    for _ in range(2):
        report = bs.label(second, **given, complete=True, sent=sent, output=tmp_path / "labelled.csv")
        assert (report.silent, report.unmailed, report.exit_code) == (rows - 2, 0, 0)
        bounced = pl.read_csv(tmp_path / "labelled.csv")["bounced"].cast(pl.String).str.to_lowercase()
        assert bounced.to_list() == ["true", "true", *["false"] * (rows - 2), *[None] * (6 - rows)]
    assert [(one.rows, one.bounced, one.arrived, one.letters) for one in LabelStore(tmp_path / "book").mailings()] == [
        (rows, 2, rows - 2, rows)
    ]


def test_an_outcome_that_names_no_row_may_be_of_any(source: Path, tmp_path: Path) -> None:
    """No row without an outcome is delivered then, and the report says so."""
    given = {"file": tmp_path / "out.csv", "mailed": "2026-11-01", "returns_requested": True, "complete": True}
    bs.enrich(source, tmp_path / "out.csv", gazetteer=GAZETTEER)
    outcomes = write(tmp_path / "o.csv", "row_id,주소,반송사유\n0,,이사불명\n,테헤란로 1,이사불명\n")
    report = bs.label(outcomes, **given, sent="confirm", book=tmp_path / "book")
    assert (report.bounced, report.silent, report.unmailed, report.exit_code) == (1, 0, 0, 3)
    assert any("row_id" in warning for warning in report.warnings)
    write(outcomes, "row_id,주소,반송사유\n0,,이사불명\n2,테헤란로 1,이사불명\n")
    report = bs.label(outcomes, **given, sent="confirm", book=tmp_path / "book")
    assert (report.bounced, report.silent, report.exit_code) == (2, 1, 0)
    assert not any("row_id" in warning for warning in report.warnings)


def test_a_file_without_its_numbers_is_no_list_of_addresses(tmp_path: Path) -> None:
    """Two of its rows may be one letter, which nobody can see without the numbers."""
    row = "1248100998,가나,서울 종로구 종로 426\n"
    given = {"file": tmp_path / "out.csv", "mailed": "2026-11-01", "returns_requested": True, "complete": True}
    bs.enrich(write(tmp_path / "in.csv", "사업자번호,상호,주소\n" + row * 3), given["file"], select=["상호", "주소"])
    outcomes = write(tmp_path / "o.csv", "row_id,반송사유\n0,이사불명\n")
    assert bs.label(outcomes, **given, sent="all", book=tmp_path / "book").silent == 0
