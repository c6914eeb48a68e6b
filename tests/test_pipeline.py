"""From a file to its enriched file: every row accounted for, published whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import anyio
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bansong as bs
from bansong.base import publish
from bansong.base.files import sha256_of
from bansong.errors import AccountingError, ColumnError, InputError, OutputError, RegistryError, UsageError
from bansong.run import table as one_run
from bansong.tables.detect import write_table
from bansong.tables.table import Enriched, Section
from conftest import NINE, NOTHING_CHECKED, SAMPLE, json_of, spreadsheet, write

TEXT = "사업자등록번호,상호,주소\n124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129\n,무명,서울\n1.2E+9,가,나\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "list.csv", TEXT)


def frame_of(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


# ── the sample ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["customers.csv", "customers_cp949.csv", "customers.json", "customers.xlsx"])
def test_the_sample_is_enriched_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    options = {"registry": SAMPLE / "registry.parquet"}
    report = bs.enrich(SAMPLE / name, tmp_path / "out.parquet", **options)
    assert report.rows == 300
    assert sum(report.counts.values()) == 300
    assert report.plan.rows == report.plan.lookups + report.plan.duplicates + report.plan.invalid
    expected = bs.verify_frame(pl.read_csv(SAMPLE / "customers.csv", infer_schema=False), **options)
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert found.select(NINE).equals(expected.select(NINE))
    assert {"active", "closed", "suspended", "unknown"} == set(found["biz_status"].drop_nulls())


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "chosen"),
    [
        ("사업자등록번호,상호명,도로명주소,우편번호", "0123"),
        ("No,사업자 번호,회사명(상호),사업장 소재지(도로명)", "123"),
        ("b_no,b_nm,address,zip", "0123"),
        (
            "통신판매번호,신고기관명,상호,사업자등록번호,법인여부,대표자명,전화번호,전자우편,신고일자,사업장소재지,사업장소재지(도로명)",
            "3210",
        ),
        ("법인등록번호,종사업장번호,사업자번호,담당자명,거래처명,이메일주소,주소", "246"),
        ("BIZ_NO,Company Name,Road Address", "012"),
    ],
)
def test_columns_are_found_from_the_headers_that_people_use(tmp_path: Path, headers: str, chosen: str) -> None:
    found = bs.plan(write(tmp_path / "x.csv", headers + "\n")).columns
    assert "".join(str(choice.column) for choice in found.values()) == chosen


def test_header_synonyms_seen_in_real_files_are_known(shared: Path, tmp_path: Path) -> None:
    """Every header spelling gathered for a role is found; every trap is not taken for a number."""
    synonyms = json_of(shared / "status" / "header_synonyms.json")
    roles = {"b_no": "b_no", "name": "name", "address": "address", "zip": "zipcode"}
    missed = []
    for kind, role in roles.items():
        for header in synonyms[kind]:
            text = f"{header}\n" if role == "b_no" else f"사업자등록번호,{header}\n"
            found = bs.plan(write(tmp_path / "x.csv", text)).columns
            if role not in found or found[role].header != header:
                missed.append((role, header))
    assert missed == []
    for trap in synonyms["collision_traps"]:
        with pytest.raises(ColumnError):
            bs.plan(write(tmp_path / "x.csv", f"{trap}\nx\n"))


def test_a_column_of_right_numbers_is_found_without_a_header_that_says_so(tmp_path: Path) -> None:
    rows = "\n".join(f"{number},x" for number in ("124-81-00998", "220-81-62517", "120-81-47521", ""))
    choice = bs.plan(write(tmp_path / "x.csv", f"구분,메모\n{rows}\n")).columns["b_no"]
    assert (choice.header, choice.why, choice.confidence) == ("구분", "content", 0.5)


def test_without_a_number_column_the_headers_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"the headers are: 이름, 메모; name it with `columns={'b_no': 'HEADER'}`"):
        bs.enrich(write(tmp_path / "x.csv", "이름,메모\n가,나\n"))


def test_two_equally_good_number_columns_ask_for_a_choice(tmp_path: Path) -> None:
    """Two number columns that are no two parties, or nothing tells apart, are not chosen between."""
    text = "사업자번호,상호,사업자번호,상호\n1248100998,가,2208162517,나\n"
    path = write(tmp_path / "x.csv", text)
    with pytest.raises(ColumnError, match=r"\(#1\).*\(#3\) fit equally well"):
        bs.enrich(path)
    report = bs.enrich(path, columns={"b_no": "#3", "name": "#2"})
    assert [choice.column for choice in report.columns.values()] == [2, 1]
    with pytest.raises(
        ColumnError, match=r"2 columns are headed '상호'; give `columns={'name': '#2'}` or `columns={'name': '#4'}`"
    ):
        bs.enrich(path, columns={"b_no": "#1", "name": "상호"})
    with pytest.raises(ColumnError, match="no column is headed 'x'"):
        bs.enrich(path, columns={"b_no": "x"})
    with pytest.raises(UsageError, match="unknown column role 'bno'"):
        bs.enrich(path, columns={"bno": "상호"})


def test_content_decides_between_headers_that_say_the_same(tmp_path: Path) -> None:
    rows = "\n".join("없음,124-81-00998" for _ in range(5))
    assert bs.plan(write(tmp_path / "x.csv", f"사업자번호,사업자등록번호\n{rows}\n")).columns["b_no"].column == 1


# ── the nine columns and their names ─────────────────────────────────────────────────────────────────────────────


def test_a_users_own_column_is_kept_and_ours_gets_a_suffix(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "b_no,grade,action\n1248100998,VIP,call\n")
    report = bs.enrich(path, tmp_path / "y.csv")
    found = frame_of(tmp_path / "y.csv")
    assert (found["grade"][0], found["action"][0]) == ("VIP", "call")
    assert found.columns[3:] == ["biz_status", "bounce_prob", "grade_bv", "action_bv", *NINE[4:]]
    assert "'grade' of its own; it is kept, ours is 'grade_bv'" in " ".join(report.warnings)
    again = bs.enrich(tmp_path / "y.csv", tmp_path / "z.csv")
    assert (tmp_path / "z.csv").read_text() == (tmp_path / "y.csv").read_text()
    assert not any("grade" in warning for warning in again.warnings)


@pytest.mark.parametrize("format", ["csv", "xlsx", "json", "ndjson", "parquet"])
def test_enriching_an_enriched_file_replaces_the_nine_columns(source: Path, tmp_path: Path, format: str) -> None:
    one, two = tmp_path / f"one.{format}", tmp_path / f"two.{format}"
    bs.enrich(source, one, lang="ko")
    bs.enrich(one, two, lang="en")
    bs.enrich(source, tmp_path / "direct.csv", lang="en")
    bs.enrich(two, tmp_path / "end.csv", lang="en")
    assert frame_of(tmp_path / "end.csv").equals(frame_of(tmp_path / "direct.csv"))


def test_a_prefix_goes_before_the_names_and_is_known_again(source: Path, tmp_path: Path) -> None:
    bs.enrich(source, tmp_path / "a.csv", prefix="bv_")
    assert frame_of(tmp_path / "a.csv").columns[3:] == [f"bv_{name}" for name in NINE]
    bs.enrich(tmp_path / "a.csv", tmp_path / "b.csv", prefix="bv_")
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()


# ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_default_output_stands_beside_the_input_and_is_private(source: Path) -> None:
    report = bs.enrich(source)
    out = source.with_name("list.enriched.csv")
    assert report.output == str(out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert leftovers(source.parent) == []


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_a_link(source: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "real.csv", "old")
    real.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(real)
    bs.enrich(source, link)
    assert link.is_symlink()
    assert real.read_text().startswith("사업자등록번호")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_the_input_is_only_replaced_on_request(source: Path) -> None:
    with pytest.raises(UsageError, match="`in_place=True`"):
        bs.enrich(source, source)
    assert source.read_text() == TEXT
    with pytest.raises(UsageError, match="do not name an output"):
        bs.enrich(source, source, in_place=True)
    bs.enrich(source, in_place=True)
    assert frame_of(source).columns[3:] == list(NINE)


def test_no_file_that_is_read_is_written_and_no_file_written_twice(source: Path, tmp_path: Path) -> None:
    """Whichever name leads to it: the file's own, a symbolic link, a hard link."""
    registry, model, out = tmp_path / "r.parquet", tmp_path / "m.toml", tmp_path / "out.csv"
    registry.write_bytes((SAMPLE / "registry.parquet").read_bytes())
    model.write_text(bs.Scorecard.load().to_toml(), encoding="utf-8")
    (tmp_path / "soft.csv").symlink_to(source)
    os.link(source, tmp_path / "hard.csv")
    (tmp_path / "registry.csv").symlink_to(registry)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    read = {"registry": registry, "model": model}
    for written, other in (
        ({"output": out, "manifest": source}, "input"),
        ({"output": out, "manifest": tmp_path / "soft.csv"}, "input"),
        ({"output": tmp_path / "soft.csv"}, "input"),
        ({"output": tmp_path / "hard.csv"}, "input"),
        ({"output": registry}, "registry"),
        ({"output": tmp_path / "registry.csv"}, "registry"),
        ({"output": out, "manifest": model}, "model"),
        ({"output": out, "manifest": out}, "output"),
        ({"in_place": True, "manifest": source}, "input"),
    ):
        with pytest.raises(UsageError, match=f"is the {other} itself; give another"):
            bs.enrich(source, **written, **read)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_workbook_with_macros_is_replaced_in_place(tmp_path: Path) -> None:
    """Its macros stay in it, so nothing speaks against it."""
    book = tmp_path / "book.xlsm"
    with ZipFile(SAMPLE / "customers.xlsx") as parts, ZipFile(book, "w") as out:
        for name in parts.namelist():
            plain = b"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
            out.writestr(name, parts.read(name).replace(plain, b"application/vnd.ms-excel.sheet.macroEnabled.main+xml"))
    bs.enrich(book, in_place=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.xlsm", "book.xlsm.bak"]
    assert bs.plan(book).rows == 300


def test_a_format_that_is_only_read_is_not_replaced_in_place(tmp_path: Path) -> None:
    """An .ods is read but not written: an output is asked for, which is an .xlsx by default."""
    book = tmp_path / "book.ods"
    cells = [["b_no", "address"], ["1248100998", "서울 강남구 1"]]
    rows = "".join(
        "<table:table-row>"
        + "".join(
            f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>' for cell in row
        )
        + "</table:table-row>"
        for row in cells
    )
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    with ZipFile(book, "w") as out:
        out.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        out.writestr(
            "content.xml",
            f'<office:document-content {names}><office:body><office:spreadsheet><table:table table:name="S">{rows}'
            "</table:table></office:spreadsheet></office:body></office:document-content>",
        )
        out.writestr("META-INF/manifest.xml", "<manifest/>")
    with pytest.raises(UsageError, match=r"book\.ods: cannot be replaced in place, ods files are only read"):
        bs.enrich(book, in_place=True)
    assert [path.name for path in tmp_path.iterdir()] == ["book.ods"]
    assert bs.enrich(book).output == str(tmp_path / "book.enriched.xlsx")
    assert bs.plan(tmp_path / "book.enriched.xlsx").rows == 1


def test_an_encoding_for_an_output_without_one_is_refused_by_the_outputs_name(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"/out\.parquet: `output_encoding=` is for CSV files"):
        bs.enrich(source, tmp_path / "out.parquet", output_encoding="cp949")


def test_an_error_of_another_file_is_not_said_of_the_output(tmp_path: Path) -> None:
    for error in (PermissionError(13, "Permission denied", "in.csv"), FileNotFoundError("in.csv: gone")):
        with pytest.raises(InputError, match=r"in\.csv: .*(denied|gone)"), publish.publish_file(tmp_path / "out.csv"):
            raise error
    with pytest.raises(OutputError, match=r"out\.csv: cannot be written"), publish.publish_file(tmp_path / "out.csv"):
        raise OSError(28, "No space left on device")


def test_options_that_an_output_has_no_use_for_are_refused(source: Path, tmp_path: Path) -> None:
    """A summary sheet without a workbook, no backup of nothing, a path into what is no JSON document."""
    with pytest.raises(UsageError, match=r"out\.csv: `summary=` is for workbooks, this output is csv"):
        bs.enrich(source, tmp_path / "out.csv", summary=True)
    with pytest.raises(UsageError, match="`backup=False` is for `in_place=True`"):
        bs.enrich(source, tmp_path / "out.csv", backup=False)
    with pytest.raises(UsageError, match="`json_path=` is for JSON documents, this file is csv"):
        bs.enrich(source, json_path="data.items")
    assert [path.name for path in tmp_path.iterdir()] == ["list.csv"]


def test_a_json_path_says_where_the_list_is(tmp_path: Path) -> None:
    """Two lists of records in one document: the path chooses, for the plan as for the run."""
    record = {"b_no": "1248100998", "address": "서울 강남구 1"}
    path = write(tmp_path / "x.json", json.dumps({"old": [record] * 3, "data": {"items": [record]}}))
    assert bs.plan(path, json_path="data.items").rows == 1
    assert bs.enrich(path, tmp_path / "y.csv", json_path="old").rows == 3


def test_the_summary_is_made_of_the_very_account_that_balances(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every section's figures are those of the report, and there is none unless it was asked for."""
    made: list[tuple[Section, ...] | None] = []

    def spy(result: Enriched, target: Path, *rest: Any) -> tuple[pl.DataFrame, Callable[[], int]]:
        tallied, count = write_table(result, target, *rest)
        made.append(result.summary(tallied) if result.summary else None)
        return tallied, count

    monkeypatch.setattr(one_run, "write_table", spy)
    report = bs.enrich(source, tmp_path / "a.xlsx", summary=True)
    bs.enrich(source, tmp_path / "b.xlsx")
    assert made[1] is None
    found = {section.title: dict(section.rows) for section in made[0] or ()}
    assert found["run"]["rows"] == 3
    assert found["rows by status"] == report.counts
    assert found["invalid rows"] == {"missing": 1, "scientific": 1}
    assert [found[title] for title in ("businesses", "grades", "actions")] == [
        report.as_dict()[name] for name in ("biz_status", "grade", "action")
    ]


def test_the_report_names_the_sheet_that_was_read() -> None:
    assert dict(bs.plan(SAMPLE / "customers.xlsx").lines())["input"].endswith("customers.xlsx [고객명단]")


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_failing_disk_leaves_the_old_output_and_no_leftovers(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    target = write(tmp_path / "out.csv", "old")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    if call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(publish.os, call, fail)
    with pytest.raises(OutputError, match="No space left on device"):
        bs.enrich(source, target)
    monkeypatch.undo()
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_rows_that_do_not_balance_are_never_published(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever loses, doubles or reorders rows between reading and writing, the account notices."""
    answer = bs.LocalEngine.answer
    faults = {
        "lost": lambda frame: frame.filter(pl.col("c0") != "1.2E+9"),
        "doubled": lambda frame: pl.concat([frame, frame.head(1)]),
        "reordered": lambda frame: frame.reverse(),
        "unlabelled": lambda frame: frame.with_columns(row_status=pl.lit("odd")),
    }
    for fault in faults.values():
        monkeypatch.setattr(bs.LocalEngine, "answer", lambda self, frame, fault=fault: fault(answer(self, frame)))
        with pytest.raises(AccountingError, match="nothing was published"):
            bs.enrich(source, tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()
    monkeypatch.setattr(bs.LocalEngine, "answer", answer)
    monkeypatch.setattr("bansong.tables.csv.format.CsvVerbs.count", lambda *_: 2)
    with pytest.raises(AccountingError, match="3 rows in, 2 in the output file"):
        bs.enrich(source, tmp_path / "out.csv")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("output", "message"),
    [("no/such/out.csv", "does not exist"), (".", "cannot write|is a folder"), ("out.doc", "cannot write the format")],
)
def test_an_output_that_cannot_be_written_is_refused_first(
    source: Path, tmp_path: Path, output: str, message: str
) -> None:
    with pytest.raises(OutputError, match=message):
        bs.enrich(source, tmp_path / output)
    assert [path.name for path in tmp_path.iterdir()] == ["list.csv"]


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_counts_without_writing_anything(source: Path, tmp_path: Path, state_directory: Path) -> None:
    write(source, TEXT + "1248100998,삼성전자,경기도 수원시 영통구 삼성로 129\n")
    report = bs.plan(source)
    plan = report.plan
    assert (plan.rows, plan.lookups, plan.duplicates, plan.invalid) == (4, 1, 1, 2)
    assert plan.invalid_by_problem == {"missing": 1, "scientific": 1}
    assert report.account is None
    assert [path.name for path in tmp_path.iterdir()] == ["list.csv"]
    assert list(state_directory.rglob("*")) == []


def test_a_manifest_records_the_run(source: Path, tmp_path: Path, state_directory: Path) -> None:
    report = bs.enrich(source, registry=SAMPLE / "registry.parquet")
    path = state_directory / "runs" / f"{report.run_id}.json"
    record = json_of(path)
    assert report.manifest == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert record["inputs"][0]["sha256"] == sha256_of(source)
    assert record["versions"]["bansong"] == bs.__version__
    assert record["versions"]["registry"].startswith("2026-11-01-")
    assert record["row_status"] == {"verified": 1, "cached": 0, "invalid": 2, "pending": 0, "in_doubt": 0, "failed": 0}
    bs.enrich(source, manifest=tmp_path / "mine.json")
    assert json_of(tmp_path / "mine.json")["rows"] == 3


def test_a_state_directory_that_cannot_be_made_asks_for_a_manifest_path(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANSONG_STATE_DIR", str(write(tmp_path / "file", "") / "below"))
    with pytest.raises(OutputError, match="give `manifest='PATH'`"):
        bs.enrich(source)


def test_progress_is_told_up_to_the_last_row(source: Path) -> None:
    told: list[tuple[int, int]] = []
    bs.enrich(source, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)


def test_reports_show_in_a_notebook_with_everything_escaped(tmp_path: Path) -> None:
    source = write(tmp_path / "<b>.csv", TEXT)
    html = bs.enrich(source)._repr_html_()
    assert "&lt;b&gt;.enriched.csv" in html
    assert "<b>" not in html
    assert "<script>" not in bs.verify("1248100998", name="<script>", address="<script> 1")._repr_html_()


# ── without a file ───────────────────────────────────────────────────────────────────────────────────────────────

ROWS = {
    "사업자등록번호": ["124-81-00998", None],
    "상호": ["삼성전자", "x"],
    "주소": ["경기 수원시 영통구 삼성로 129", None],
}


@NOTHING_CHECKED
@pytest.mark.parametrize(
    "make", [pl.DataFrame, pl.LazyFrame, pd.DataFrame, pa.table], ids=["polars", "lazy", "pandas", "arrow"]
)
def test_frames_of_every_library_are_verified(make: Any) -> None:
    given = make(ROWS)
    verified = bs.verify_frame(given)
    assert type(verified) is type(given)
    found = verified.collect() if isinstance(verified, pl.LazyFrame) else pl.DataFrame(verified)
    assert found.columns == [*ROWS, *NINE]
    assert found["row_status"].to_list() == ["verified", "invalid"]
    assert found["상호"].to_list() == ROWS["상호"]


@NOTHING_CHECKED
def test_numbers_in_a_pandas_float_column_are_read() -> None:
    with pytest.warns(UserWarning, match="no address column"):
        found = bs.verify_frame(pd.DataFrame({"b_no": [1248100998.0, float("nan")]}))
    assert found["row_status"].to_list() == ["verified", "invalid"]


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(InputError, match="a dict is no table"):
        bs.verify_frame(ROWS)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "column",
    [pa.array([None], pa.month_day_nano_interval()), pa.RunEndEncodedArray.from_arrays([1], ["a"])],
    ids=["interval", "run ends"],
)
def test_a_column_of_a_type_that_polars_has_not_comes_back(column: Any) -> None:
    table = pa.table({"사업자번호": ["1248100998"], "기간": column})
    assert bs.verify_frame(table).column("기간").equals(table.column("기간"))


@NOTHING_CHECKED
def test_a_frames_own_column_is_kept_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="ours is 'grade_bv'"):
        found = bs.verify_frame(pl.DataFrame({"b_no": ["1248100998"], "address": [""], "grade": ["VIP"]}))
    assert found["grade"][0] == "VIP"


def test_one_business_is_verified() -> None:
    one = bs.verify("124-81-00998", name="삼성전자", address="경기 수원시 영통구 삼성로 129")
    assert (one.b_no, one.biz_status, one.grade, one.action) == ("1248100998", "unknown", "A", "confirm")
    assert "[base -50]" in str(one)
    bad = bs.verify("900101-1234567")
    assert (bad.b_no, bad.row_status) == (None, "invalid")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_async_door_gives_the_same_report(source: Path, backend: str) -> None:
    pytest.importorskip(backend)
    report = anyio.run(lambda: bs.aenrich(source), backend=backend)
    assert report.rows == 3


def test_the_engine_must_be_one_that_exists(source: Path) -> None:
    with pytest.raises(UsageError, match="unknown engine 'cloud'"):
        bs.enrich(source, engine="cloud")


# ── registries ───────────────────────────────────────────────────────────────────────────────────────────────────


def registry_of(path: Path) -> dict[str, str]:
    return {f"{row['b_no']:010d}": row["biz_status"] for row in pl.read_parquet(path).iter_rows(named=True)}


def test_the_newest_row_of_a_number_wins_and_unknown_words_are_listed(tmp_path: Path) -> None:
    rows = [
        "124-81-00998,계속사업자,2024-01-01",
        "1248100998,폐업자,20260101",
        "220-81-62517,휴업자,2026.1.2",
        "220-81-62517,폐업자,2025-12-31",
        "120-81-47521,이전중,2026-01-01",
        "1.2E9,계속사업자,2026-01-01",
        "107-86-14075,,2026-01-01",
    ]
    source = write(tmp_path / "s.csv", "사업자번호,상태,기준일자\n" + "\n".join(rows))
    report = bs.build_registry([source], tmp_path / "r.parquet")
    assert registry_of(tmp_path / "r.parquet") == {"1248100998": "closed", "2208162517": "suspended"}
    assert report.unknown_words == {"이전중": 1}
    assert report.left_out == {"no_status": 1, "scientific": 1, "unknown_status": 1}
    assert (report.rows, report.businesses, report.duplicates) == (7, 2, 2)
    assert report.version.startswith("2026-01-02-")


def test_the_mail_order_registry_is_understood(shared: Path, tmp_path: Path) -> None:
    report = bs.build_registry([shared / "status" / "ftc_shape_sample_cp949.csv"], tmp_path / "r.parquet")
    assert report.by_status == {"active": 3, "suspended": 0, "closed": 1, "unregistered": 0}
    assert registry_of(tmp_path / "r.parquet")["2208734425"] == "closed"


def test_a_registry_is_built_from_folders_enriched_files_and_every_format(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.csv", "b_no,status\n1248100998,active\n")
    pl.DataFrame({"b_no": [2208162517], "b_stt": ["폐업자"], "end_dt": ["20250102"]}).write_parquet(
        folder / "b.parquet"
    )
    bs.build_registry([folder], tmp_path / "r.parquet")
    customers = write(tmp_path / "c.csv", "b_no,name\n1248100998,가\n2208162517,나\n1208147521,다\n")
    bs.enrich(customers, tmp_path / "c.xlsx", registry=tmp_path / "r.parquet")
    report = bs.build_registry([tmp_path / "c.xlsx"], tmp_path / "again.parquet")
    assert registry_of(tmp_path / "again.parquet") == {"1248100998": "active", "2208162517": "closed"}
    assert report.left_out == {"no_status": 1}
    since = pl.read_parquet(tmp_path / "r.parquet").sort("b_no")["since"].to_list()
    assert [str(day) for day in since] == ["None", "2025-01-02"]


def test_a_registry_never_replaces_a_source_and_is_called_parquet(tmp_path: Path) -> None:
    source = write(tmp_path / "s.csv", "b_no,상태\n1248100998,폐업자\n")
    out = tmp_path / "r.parquet"
    out.symlink_to(source)
    with pytest.raises(UsageError, match="is one of the sources"):
        bs.build_registry([source], out)
    for name in ("s.csv", "n.txt", "n"):
        with pytest.raises(UsageError, match=r"call it \.parquet"):
            bs.build_registry([source], tmp_path / name)
    assert source.read_text().startswith("b_no")


def test_in_a_folder_hidden_files_lock_files_and_the_output_are_no_sources(tmp_path: Path) -> None:
    write(tmp_path / "s.csv", "b_no,상태\n1248100998,폐업자\n")
    (tmp_path / ".trash").mkdir()
    for name in (".hidden.csv", "~$book.xlsx", ".trash/old.csv"):
        write(tmp_path / name, "x")
    for _ in range(2):
        report = bs.build_registry([tmp_path], tmp_path / "r.parquet")
        assert report.sources == (str(tmp_path / "s.csv"),)


def test_sources_that_make_no_registry_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    with pytest.raises(RegistryError, match="no column with a status was found; the headers are: b_no, 메모"):
        bs.build_registry([write(tmp_path / "a.csv", "b_no,메모\n1248100998,x\n")], out)
    with pytest.raises(RegistryError, match="no row of 1 has"):
        bs.build_registry([write(tmp_path / "a.csv", "b_no,상태\n1248100998,x\n")], out)
    with pytest.raises(RegistryError, match="no source"):
        bs.build_registry([], out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RegistryError, match="holds no table"):
        bs.build_registry([tmp_path / "empty"], out)
    assert not out.exists()


def test_the_sample_registry_is_what_its_source_gives(tmp_path: Path) -> None:
    bs.build_registry([SAMPLE / "registry_source.csv"], tmp_path / "r.parquet")
    assert pl.read_parquet(tmp_path / "r.parquet").equals(pl.read_parquet(SAMPLE / "registry.parquet"))


def test_outputs_do_not_depend_on_the_callers_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    assert bs.enrich("list.csv").output == "list.enriched.csv"
    assert os.path.exists("list.enriched.csv")  # noqa: PTH110 - the point is the relative path


def test_what_an_output_cannot_have_of_the_file_is_said(tmp_path: Path) -> None:
    """A workbook that is only read comes back without its other sheets; titles do not go into another format."""
    old = spreadsheet(tmp_path / "in.ods", [["사업자번호", "상호"], ["124-81-00998", "가"]])
    assert any(note.startswith("the output is a new workbook: its other sheets") for note in bs.enrich(old).warnings)
    titled = write(tmp_path / "in.csv", "고객 목록\n사업자번호,상호\n124-81-00998,가\n")
    assert not any("above the header" in note for note in bs.enrich(titled).warnings)
    other = bs.enrich(titled, tmp_path / "out.json")
    assert "1 title line above the header not in the output; in the input's own format it has all lines" in (
        other.warnings
    )


def test_a_header_of_two_lines_is_said_to_be_one_in_another_format_and_no_more(tmp_path: Path) -> None:
    """Nothing of it is lost: its lines are joined, and no line above it was a title."""
    book = openpyxl.Workbook()
    for line in (["번호", "거래처", None], [None, "사업자등록번호", "상호"], [1, "124-81-00998", "가"]):
        book.active.append(line)
    book.active.merge_cells("A1:A2")
    book.active.merge_cells("B1:C1")
    book.save(tmp_path / "in.xlsx")
    write(tmp_path / "in.csv", "번호,거래처,\n,사업자등록번호,상호\n1,124-81-00998,가\n")
    for name in ("in.xlsx", "in.csv"):
        report = bs.enrich(tmp_path / name, tmp_path / "out.json")
        about = [warning for warning in report.warnings if "line" in warning]
        assert about == ["the 2 lines of the header are one line in the output"]


def test_lines_above_a_doubtful_header_are_said_not_to_be_verified(tmp_path: Path) -> None:
    """A row taken for the header by its words would leave the rows above it unverified without a word."""
    rows = "Reg,Firm,Where\n사업자번호 없음,상호 미상,주소 불명\n124-81-00998,가,서울\n220-81-62517,나,부산\n"
    report = bs.enrich(write(tmp_path / "in.csv", rows))
    assert "1 line above the header's last: kept as they are, and not verified" in report.warnings
