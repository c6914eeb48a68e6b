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
from bansong.errors import ColumnError, UsageError
from bansong.history.labels import LabelStore
from conftest import NINE, SAMPLE, write
from customers import QUICK

Run = Callable[..., subprocess.CompletedProcess[str]]
GAZETTEER = SAMPLE / "gazetteer.parquet"
JONGNO = "서울 종로구 종로 426"
ADDRESSES = [f"{JONGNO}, 2층 504호", JONGNO, "테헤란로 1", "역삼로 *** *층", None, None]
LIST = pl.DataFrame({"업체명": ["가나", "다라", "마바", "사아", "자차", None], "주소": ADDRESSES})
NUMBERED = f"사업자번호,상호,주소\n1248100998,가나,{JONGNO}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "list.csv", LIST.write_csv())


@pytest.fixture(scope="module")
def enriched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bs.Report]:
    folder = tmp_path_factory.mktemp("enriched")
    source, out = write(folder / "list.csv", LIST.write_csv()), folder / "out.csv"
    given = {"registry": SAMPLE / "registry.parquet", "gazetteer": GAZETTEER}
    return out, bs.enrich(source, out, **given, manifest=folder / "m.json")


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def alerts(report: bs.Report | bs.FilesReport) -> list[str]:
    return [one for one in report.warnings if isinstance(one, Alert)]


def test_addresses_are_read_and_corrected_and_no_row_is_sent(enriched: tuple[Path, bs.Report]) -> None:
    found, report = read(enriched[0]), enriched[1]
    assert found.select("업체명", "주소").equals(LIST)
    assert set(found.select("biz_status", "row_status", "row_note").rows()) == {("unknown", "verified", None)}
    assert found["action"].to_list() == ["confirm"] * 3 + ["fix_address"] * 3
    assert found["fixed_zipcode"].to_list()[:2] == ["03122", "03122"]
    assert found["bounce_prob"].is_null().to_list() == [False] * 3 + [True] * 3
    assert found["reasons"].str.contains(r"\[status \+0\] status not known: the list has no").all()
    points = (
        found["reasons"]
        .str.extract_all(r"\[[a-z_]+ [+-][0-9]+\]")
        .list.eval(pl.element().str.extract("([+-][0-9]+)").cast(pl.Int64))
    )
    wanted = [0.93 / (1 + 2 ** (-score / 10)) for score in points.list.sum().head(3)]
    assert found["bounce_prob"].head(3).cast(pl.Float64).to_list() == pytest.approx(wanted, abs=5.1e-5)
    assert report.warnings[0] in alerts(report)
    assert "b_no" in report.warnings[0]
    assert (report.exit_code, report.statuses, set(report.columns)) == (0, None, {"name", "address"})
    assert (report.counts["verified"], report.plan.invalid) == (6, 0)


def test_all_ways_answer_alike(enriched: tuple[Path, bs.Report], source: Path, tmp_path: Path, run: Run) -> None:
    with pytest.warns(UserWarning, match="no column holds business numbers"):
        framed = bs.verify_frame(LIST, gazetteer=GAZETTEER).select(NINE)
    same = [name for name in NINE if name not in ("bounce_prob", "reasons")]
    assert framed.select(same).equals(read(enriched[0]).select(same))
    with pytest.warns(UserWarning, match="no column holds business numbers"):
        spread = verify_batches(LIST, gazetteer=GAZETTEER)(pa.table(LIST.to_arrow()))
    assert pl.DataFrame(spread).select(NINE).equals(framed)
    several = bs.enrich([source, write(tmp_path / "b.csv", LIST.write_csv())], tmp_path / "all", gazetteer=GAZETTEER)
    assert (several.rows, several.plan.lookups, several.plan.invalid) == (12, enriched[1].plan.lookups, 0)
    done = run("plan", source, "--json")
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, 6)
    assert "b_no=" in json.loads(done.stdout)["warnings"][0]


def test_what_is_written_beside_holds_every_row_and_no_letter(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    report = bs.enrich(source, out, gazetteer=GAZETTEER, split="action", letters=tmp_path / "letters.csv")
    assert (report.beside.letters.letters, report.beside.letters.waiting) == (0, 6)
    parts = {path.suffixes[0][1:]: read(path).height for path in tmp_path.glob("out.*.csv")}
    assert parts == {"confirm": 3, "fix_address": 3, "send": 0, "hold": 0, "do_not_send": 0, "other": 0}
    with pytest.raises(UsageError, match="review"):
        bs.enrich(source, out, gazetteer=GAZETTEER, review=tmp_path / "review.xlsx")


def test_lookups_are_not_bought_without_numbers(source: Path, tmp_path: Path) -> None:
    for engine in ("verify", "batch", "hybrid"):
        with pytest.raises(ColumnError, match="engine='local'") as caught:
            bs.enrich(source, tmp_path / "out.csv", engine=engine, base_url="http://127.0.0.1:9", **QUICK)
        assert caught.value.missing == "b_no"
    assert not (tmp_path / "out.csv").exists()


NO_LISTS = {
    "neither numbers nor addresses": "업체명,비고\n가나,1\n다라,2\n",
    "names that begin with a province": "상호,전화\n서울상사,02-1\n부산식당,051-1\n",
    # its first row would be lost as the header
    "no header": f"가나,{JONGNO}\n다라,서울 종로구 종로 1\n",
    **{f"lines that were not divided{by}": NUMBERED.replace(",", by) for by in ("¦", "  ", " * ")},
}


@pytest.mark.parametrize("what", NO_LISTS)
def test_what_is_no_list_of_addresses_is_refused(tmp_path: Path, what: str) -> None:
    source = write(tmp_path / "in.csv", NO_LISTS[what])
    with pytest.raises(ColumnError) as caught:
        bs.plan(source)
    assert ("delimiter=" in str(caught.value)) == ("divided" in what)
    if what == "no header":
        assert bs.plan(source, has_header=False).rows == 2


@pytest.mark.parametrize("number", ["", "1.24E+09", "124810"])
def test_a_number_column_without_numbers_is_named(tmp_path: Path, number: str) -> None:
    row = f"{number},{JONGNO}\n"
    report = bs.plan(write(tmp_path / "in.csv", f"사업자번호,주소\n{row}{row}"))
    assert "b_no" in alerts(report)[0]
    assert [one for one in alerts(report) if "'사업자번호'" in one]
    assert set(report.columns) == {"address"}


def test_columns_beside_the_addresses_do_not_refuse_the_list(tmp_path: Path) -> None:
    beside = {"제주지역여부": "N", "부산 담당자": "김", "법정동코드": "1168010100", "접수번호": "2026110101"}
    beside["대표전화"] = "0212345678"
    rows = "".join(f"가나{place},서울 종로구 종로 {place},{','.join(beside.values())}\n" for place in range(1, 7))
    report = bs.plan(write(tmp_path / "in.csv", f"상호,주소,{','.join(beside)}\n{rows}"))
    assert set(report.columns) == {"name", "address"}
    assert "b_no" in alerts(report)[0]


def test_a_job_over_a_list_of_addresses_counts_its_rows_each_night(tmp_path: Path, run: Run) -> None:
    job = write(tmp_path / "addresses.toml", '[[inputs]]\npath = "list.csv"\n')
    rows = [f"가나{place},서울 종로구 종로 {place}" for place in range(1, 31)]
    codes = []
    for kept in (rows, [*rows[:-1], f"가나,{JONGNO}"], rows[:9]):
        write(tmp_path / "list.csv", "\n".join(["상호,주소", *kept, ""]))
        codes.append(run("run", job).returncode)
    assert codes == [0, 0, 2]
    other = write(tmp_path / "numbers.toml", '[[inputs]]\npath = "numbered.csv"\n')
    write(tmp_path / "numbered.csv", NUMBERED)
    assert run("run", other).returncode == 0
    output = (tmp_path / "numbered.enriched.csv").read_bytes()
    write(tmp_path / "numbered.csv", LIST.write_csv())
    assert run("run", other).returncode == 2
    assert (tmp_path / "numbered.enriched.csv").read_bytes() == output


def test_without_a_gazetteer_the_first_lines_say_what_mends_it(tmp_path: Path, run: Run) -> None:
    source, registry = write(tmp_path / "in.csv", NUMBERED), SAMPLE / "registry.parquet"
    done = run("enrich", source, "--registry", registry, "--progress", "none", "--json")
    assert any(line.startswith("ATTENTION") and "--gazetteer" in line for line in done.stderr.splitlines()[:2])
    alert = next(one for one in json.loads(done.stdout)["warnings"] if "build-gazetteer" in one)
    report = bs.enrich(source, tmp_path / "out.csv", registry=registry, today="2026-11-20")
    assert report.lines()[1][1] == alert.replace("--gazetteer gazetteer.parquet", "`gazetteer='gazetteer.parquet'`")
    assert report.addresses == {}
    mended = bs.plan(source, registry=registry, gazetteer=GAZETTEER, today="2026-11-20")
    assert not [one for one in alerts(mended) if "build-gazetteer" in one]
    bare = write(tmp_path / "bare.csv", "b_no\n1248100998\n")
    assert "addresses" not in dict(bs.enrich(bare).lines()), "nothing is said of addresses where there are none"


def book(path: Path, **sheets: list[list[object]]) -> Path:
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for title, rows in sheets.items():
        sheet = workbook.create_sheet(title)
        for row in rows:
            sheet.append(row)
    workbook.save(path)
    return path


def test_only_the_summary_of_an_earlier_output_is_no_sheet_that_was_left(tmp_path: Path) -> None:
    with use_language("ko"):
        bs.enrich(write(tmp_path / "in.csv", NUMBERED), tmp_path / "out.xlsx", summary=True)
    workbook = openpyxl.load_workbook(tmp_path / "out.xlsx")
    assert workbook.sheetnames == ["bansong", "요약", "읽는 법"]
    for title, is_left in (("bansong", False), ("bizverify", False), ("명단", True)):  # bizverify: the former name
        workbook.worksheets[0].title = title
        workbook.save(tmp_path / "now.xlsx")
        left = [one for one in alerts(bs.plan(tmp_path / "now.xlsx")) if "'요약'" in one or "'읽는 법'" in one]
        assert bool(left) == is_left, title


def test_a_sheet_with_addresses_goes_before_a_cover(tmp_path: Path) -> None:
    cover: list[list[object]] = [["구분", "건수"], ["전체", 2], ["신규", 1]]
    rows: list[list[object]] = [["상호", "주소"], ["가나", JONGNO], ["다라", "서울 종로구 종로 2"]]
    source = book(tmp_path / "book.xlsx", 표지=cover, 주소록=rows)
    report = bs.plan(source)
    assert (report.rows, report.columns["address"].header) == (2, "주소")
    assert [one for one in alerts(report) if "'주소록'" in one and "'표지'" in one]
    with pytest.raises(ColumnError):
        bs.plan(source, sheet="표지")


MAILED = {"mailed": "2026-11-01", "returns_requested": True}


def test_rows_that_did_not_come_back_are_delivered(enriched: tuple[Path, bs.Report], tmp_path: Path) -> None:
    given = {"file": enriched[0], "book": tmp_path / "book", **MAILED}
    first = write(tmp_path / "first.csv", "row_id,반송사유\n1,이사불명\n")
    report = bs.label(first, **given)
    assert (report.bounced, report.silent, report.unmailed) == (1, 0, 0)
    second = write(tmp_path / "second.csv", "row_id,반송사유\n0,이사불명\n")
    for _ in range(2):
        report = bs.label(second, **given, complete=True, sent="confirm", output=tmp_path / "labelled.csv")
        assert (report.silent, report.unmailed, report.exit_code) == (1, 0, 0)
        bounced = read(tmp_path / "labelled.csv")["bounced"].str.to_lowercase()
        assert bounced.to_list() == ["true", "true", "false", None, None, None]
    (mailing,) = LabelStore(tmp_path / "book").mailings()
    assert (mailing.rows, mailing.bounced, mailing.arrived, mailing.letters) == (3, 2, 1, 3)


def test_an_outcome_that_names_no_row_may_be_of_any(enriched: tuple[Path, bs.Report], tmp_path: Path) -> None:
    given = {"file": enriched[0], "complete": True, "sent": "confirm", "book": tmp_path / "book", **MAILED}
    for second, expected in (("", (1, 0, 3)), ("2", (2, 1, 0))):
        outcomes = write(tmp_path / "o.csv", f"row_id,주소,반송사유\n0,,이사불명\n{second},테헤란로 1,이사불명\n")
        report = bs.label(outcomes, **given)
        assert (report.bounced, report.silent, report.exit_code) == expected
        assert any("row_id" in warning for warning in report.warnings) == (not second)


def test_a_file_without_its_numbers_is_no_list_of_addresses(tmp_path: Path) -> None:
    """Two of its rows may be one letter, which nobody can see without the numbers."""
    out, row = tmp_path / "out.csv", NUMBERED.splitlines()[1]
    bs.enrich(write(tmp_path / "in.csv", f"{NUMBERED}{row}\n{row}\n"), out, select=["상호", "주소"])
    outcomes = write(tmp_path / "o.csv", "row_id,반송사유\n0,이사불명\n")
    assert bs.label(outcomes, file=out, complete=True, sent="all", book=tmp_path / "book", **MAILED).silent == 0
