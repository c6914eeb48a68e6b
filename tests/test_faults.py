"""Each file of ``files/faults`` and the right outcome for it: files in, files out, exit codes, reports.

The folder's README says where the shapes come from. Each file was read, judged or written back wrongly once.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openpyxl
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xlsxwriter

import bansong as bs
from bansong.base.schema import Alert
from bansong.errors import ColumnError, InputError, OutputError
from bansong.tables.excel.limits import decodable_xls
from bansong.tables.streams import File
from books import cells as texts_of
from books import parts, with_part
from conftest import NINE, ROOT, SAMPLE, json_of, write

Run = Callable[..., subprocess.CompletedProcess[str]]

FAULTS = ROOT / "tests" / "files" / "faults"
# openpyxl's words on some inputs
pytestmark = pytest.mark.filterwarnings("ignore:.*(contains no|not supported).*:UserWarning")


def test_every_file_is_named_here() -> None:
    """A file without an outcome proves nothing."""
    text = (ROOT / "tests" / "test_faults.py").read_text(encoding="utf-8")
    assert [one.name for one in FAULTS.iterdir() if one.suffix != ".md" and one.name not in text] == []


def own_alerts(report: bs.Report) -> list[str]:
    """The alerts but for those that no status was checked and that no gazetteer was given."""
    about_files = ("`send`", "gazetteer")
    return [one for one in report.warnings if isinstance(one, Alert) and not any(word in one for word in about_files)]


@pytest.mark.parametrize(
    ("name", "rows", "alert"),
    [
        ("11_spacer_row_and_blank_last_cells.xlsx", 8, None),
        ("11b_spacer_row_and_bordered_blank_last_row.xlsx", 8, None),
        ("11c_merged_title_and_spacer_row.xlsx", 8, None),
        ("report_05_empty_stylesheet.xlsx", 4, None),
        ("report_07_backslash_names.xlsx", 4, None),
        ("report_08_lowercase_content_types.xlsx", 4, None),
        ("report_09_signed.xlsx", 4, "signature"),
        ("report_13_sparkline_beside.xlsx", 4, "F2:F2"),
        ("report_14_whole_table_formulas.xlsx", 4, r"'T' .*Sheet2!A1, Sheet2!B1"),
    ],
)
def test_every_cell_comes_back_in_a_workbook_that_programs_can_open(
    tmp_path: Path, name: str, rows: int, alert: str | None
) -> None:
    """What the new columns change for others is an alert, once: where they are already, nothing changes."""
    out = tmp_path / "out.xlsx"
    report = bs.enrich(FAULTS / name, out)
    for part, data in parts(out).items():
        if part.endswith((".xml", ".rels")):
            ElementTree.fromstring(data)
    before, after = texts_of(FAULTS / name), texts_of(out)
    wide = len(before[0])
    assert [row[:wide] for row in after] == before
    header = next(place for place, row in enumerate(after) if "row_status" in row)
    assert after[header][wide:] == NINE
    assert [row[-2] for row in after[header + 1 :]] == ["verified"] * rows == ["verified"] * (len(after) - header - 1)
    new = openpyxl.load_workbook(out).active
    assert new["A1"].value == after[0][0]  # openpyxl does not find parts of odd names
    if name.startswith("11"):
        old = openpyxl.load_workbook(FAULTS / name).active
        assert new.row_dimensions[2].height == old.row_dimensions[2].height
        for row in old.iter_rows():
            assert [new[one.coordinate].border.top.style for one in row] == [one.border.top.style for one in row]
    assert [re.search(alert or "^$", one) is not None for one in own_alerts(report)] == [True] * bool(alert)
    if alert:
        again = own_alerts(bs.enrich(out, tmp_path / "again.xlsx"))
        assert [re.search(alert, one) is not None for one in again].count(True) == (alert == "signature")


def cells(path: Path) -> list[tuple[object, ...]]:
    """The cells of a workbook's first sheet, as another program than ours reads them."""
    return list(openpyxl.load_workbook(path).worksheets[0].values)


def kinds(path: Path, column: int) -> list[tuple[str, object]]:
    """The types and values of a column's cells below the header."""
    sheet = openpyxl.load_workbook(path).worksheets[0]
    return [(row[column].data_type, row[column].value) for row in sheet.iter_rows(min_row=2)]


@pytest.mark.parametrize(
    ("name", "number"),
    [("12_biff8_codepage_1252.xls", "201-81-00000"), ("12b_biff8_codepage_1252_numeric.xls", "2018100000")],
)
def test_the_text_of_an_excel_97_file_with_a_western_code_page_is_read(tmp_path: Path, name: str, number: str) -> None:
    report = bs.enrich(FAULTS / name, tmp_path / "out.csv")
    head, first, *_ = csv.reader((tmp_path / "out.csv").read_text("utf-8-sig").splitlines())
    assert head[:3] == ["상호", "사업자등록번호", "주소"]
    assert first[:3] == ["가상도서관0", number, "서울특별시 중구 세종대로 110"]
    assert report.counts["verified"] == 12


def test_an_excel_97_file_is_read_alike_whatever_code_page_it_states(tmp_path: Path) -> None:
    data = (FAULTS / "report_03_one_text_among_numbers.xls").read_bytes()
    stated = b"\x42\x00\x02\x00" + struct.pack("<H", 1200)
    assert data.count(stated) == 1
    for code_page in (949, 10000, 21010):
        source = tmp_path / f"{code_page}.xls"
        source.write_bytes(data.replace(stated, stated[:4] + struct.pack("<H", code_page)))
        with ExitStack() as resources:
            assert decodable_xls(File(source, source), resources).data.read_bytes() == data


def excel_95(path: Path, rows: list[tuple[str, ...]], code_page: int) -> Path:
    """Write a workbook of Excel 95: its texts are bytes in the code page that it states."""

    def record(kind: int, *parts: bytes) -> bytes:
        return struct.pack("<HH", kind, len(b"".join(parts))) + b"".join(parts)

    def label(row: int, column: int, text: str) -> bytes:
        encoded = text.encode(f"cp{code_page}")
        return record(0x0204, struct.pack("<4H", row, column, 0, len(encoded)), encoded)

    texts = [label(row, column, text) for row, line in enumerate(rows) for column, text in enumerate(line)]
    sheet = record(0x0809, struct.pack("<4H", 0x0500, 0x0010, 0, 0)) + b"".join(texts) + record(0x000A)
    start = record(0x0809, struct.pack("<4H", 0x0500, 0x0005, 0, 0)) + record(0x0042, struct.pack("<H", code_page))
    named = struct.pack("<H", 0) + bytes([1]) + b"S"
    place = len(start) + len(record(0x0085, bytes(4), named)) + len(record(0x000A))
    stream = start + record(0x0085, struct.pack("<I", place), named) + record(0x000A) + sheet
    around = bytearray((FAULTS / "12_biff8_codepage_1252.xls").read_bytes())  # for its allocation of sectors
    begin = around.index(bytes.fromhex("0908100000060500"))
    around[begin : begin + 4096] = stream.ljust(4096, b"\x00")
    path.write_bytes(around)
    return path


def test_an_excel_95_file_is_read_by_its_code_page_or_refused(tmp_path: Path, run: Run) -> None:
    western = [("b_no", "name"), ("124-81-00998", "Caf\u00e9"), ("220-81-62517", "\u00dcber")]
    bs.enrich(excel_95(tmp_path / "western.xls", western, 1252), tmp_path / "out.xlsx")
    assert [row[:2] for row in cells(tmp_path / "out.xlsx")] == western
    excel_95(tmp_path / "korean.xls", [("사업자등록번호", "상호"), ("124-81-00998", "가나다")], 949)
    told = run("enrich", "korean.xls")
    assert (told.returncode, "save it as .xlsx" in told.stderr) == (2, True)


def test_dates_in_a_korean_format_are_dates(tmp_path: Path) -> None:
    """The user's cells stay, and so does what follows from the day on which an address was confirmed."""
    found, right, own = tmp_path / "31.json", tmp_path / "14.json", tmp_path / "own.xlsx"
    bs.enrich(FAULTS / "report_01_korean_date_format_31.xlsx", found)
    bs.enrich(FAULTS / "report_01_control_date_format_14.xlsx", right)
    assert json_of(found) == json_of(right)
    assert {row["주소확인일"] for row in json_of(found)} == {"2026-11-19"}
    bs.enrich(FAULTS / "report_01c_korean_date_format_31.xls", tmp_path / "out.xlsx")
    assert [row[3] for row in cells(tmp_path / "out.xlsx")[1:]] == [dt.datetime(2024, 3, day) for day in range(1, 5)]
    shutil.copy(FAULTS / "report_01_korean_date_format_31.xlsx", own)
    defined = '<numFmts count="1"><numFmt numFmtId="31" formatCode="0.00"/></numFmts><fonts'
    bs.enrich(with_part(own, "xl/styles.xml", ("<fonts", defined)), tmp_path / "out.json")
    assert json_of(tmp_path / "out.json")[0]["주소확인일"] == 46345, "a workbook may use the number for its own format"


def test_every_built_in_date_format_of_east_asia_is_a_date(tmp_path: Path) -> None:
    formats = (*range(27, 37), *range(50, 59))
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as made:
        sheet = made.add_worksheet()
        sheet.write_row(0, 0, ["사업자등록번호", *map(str, formats), "수"])
        sheet.write_row(1, 0, ["124-81-00998", *[45352] * (len(formats) + 1)])
        for column, number_format in enumerate(formats, 1):
            sheet.write(1, column, 45352, made.add_format({"num_format": number_format}))
    bs.enrich(tmp_path / "in.xlsx", tmp_path / "out.json")
    [found] = json_of(tmp_path / "out.json")
    assert [found[str(head)] for head in formats] == ["2024-03-01"] * len(formats)
    assert found["수"] == 45352


def test_dates_of_an_xlsb_are_dates(tmp_path: Path) -> None:
    """The file has 45352 in the built-in formats 27 and 1."""
    bs.enrich(Path(__file__).parent / "files" / "dates.xlsb", tmp_path / "out.json")
    [found] = json_of(tmp_path / "out.json")
    assert (found["날짜"], found["수"]) == ("2024-03-01", 45352)


def test_closures_dated_in_a_korean_format_are_dated_in_the_registry(tmp_path: Path) -> None:
    for name in ("report_01b_closures_format_31.xlsx", "report_01b_control_closures_format_14.xlsx"):
        bs.build_registry([FAULTS / name], tmp_path / f"{name}.parquet", as_of=dt.date(2026, 11, 26))
    found, right = (pl.read_parquet(path) for path in sorted(tmp_path.glob("*.parquet"), reverse=True))
    assert found.equals(right)
    assert found["since"].to_list() == [dt.date(2026, 10, 5)] * 4


AMOUNTS = [("n", 100), ("n", 200), ("s", "미정"), ("n", 400)]


def test_a_number_among_texts_stays_a_number_in_new_workbooks_parts_and_json(tmp_path: Path) -> None:
    """A column of Parquet has one type."""
    out = tmp_path / "out.xlsx"
    bs.enrich(FAULTS / "report_03c_one_text_among_numbers.json", out)
    assert kinds(out, 3) == AMOUNTS
    bs.enrich(FAULTS / "report_03_one_text_among_numbers.xls", out)
    assert kinds(out, 3) == AMOUNTS
    days: list[tuple[str, object]] = [("d", dt.datetime(2024, 3, day)) for day in (1, 2, 4)]
    assert kinds(out, 4) == [*days[:2], ("s", "협의중"), days[2]]
    bs.enrich(FAULTS / "03_mixed_column.xls", out)
    assert kinds(out, 3)[:3] == [("s", "미상"), ("s", "미상"), ("n", 66937)]
    source = FAULTS / "report_03b_one_text_among_numbers.xlsx"
    bs.enrich(source, out, split="action")
    assert kinds(out, 3) == kinds(tmp_path / "out.confirm.xlsx", 3) == AMOUNTS
    for name in ("out.json", "out.parquet"):
        bs.enrich(source, tmp_path / name)
    assert [row["금액"] for row in json_of(tmp_path / "out.json")] == [100, 200, "미정", 400]
    assert pl.read_parquet(tmp_path / "out.parquet")["금액"].to_list() == ["100", "200", "미정", "400"]


MIXED: list[tuple[object, str | None]] = [
    *((value, None) for value in (100, -1.5, 0, "100", "0012", "-3", "true", "2024-03-01", "12:30:00", "미정")),
    *((value, None) for value in (True, False)),
    (dt.datetime(2024, 3, 1), "yyyy-mm-dd"),
    (dt.datetime(2024, 3, 1, 12, 30), "yyyy-mm-dd hh:mm"),
    (dt.timedelta(days=1, hours=12), "[h]:mm:ss"),
    (None, None),
]


@pytest.mark.parametrize("given", [{"select": ["값"]}, {"has_header": False, "columns": {"b_no": "#1"}}])
def test_each_kind_of_cell_in_one_column_stays_what_it_is(tmp_path: Path, given: dict[str, Any]) -> None:
    """Also where the table does not begin in the first cell, and where titles stand above it."""
    top, left, headed = 3, 2, "select" in given
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as made:
        sheet = made.add_worksheet()
        if headed:
            sheet.write(top - 2, left, "거래처 목록")
            sheet.write_row(top, left, ["사업자등록번호", "값"])
        for row, (value, shown) in enumerate(MIXED, top + headed):
            sheet.write(row, left, "124-81-00998")
            put = sheet.write_string if isinstance(value, str) else sheet.write
            put(row, left + 1, value, made.add_format({"num_format": shown}) if shown else None)
    bs.enrich(tmp_path / "in.xlsx", tmp_path / "out.xlsx", **given)
    found = kinds(tmp_path / "out.xlsx", 0 if headed else 1)[-len(MIXED) :]
    assert [value for _, value in found] == [value for value, _ in MIXED]
    assert [kind == "s" for kind, _ in found] == [isinstance(value, str) for value, _ in MIXED]


def test_a_number_of_json_that_excel_would_round_stays_a_text(tmp_path: Path) -> None:
    values = ["1234567890123456789", "0.1234567890123456789", "1.10", "1e3", "true", '"없음"', '"7"', "null"]
    rows = ",".join(f'{{"b_no": "124-81-00998", "값": {value}}}' for value in values)
    bs.enrich(write(tmp_path / "in.json", f"[{rows}]"), tmp_path / "out.xlsx")
    texts, numbers = [("s", values[0]), ("s", values[1])], [("n", 1.1), ("n", 1000)]
    assert kinds(tmp_path / "out.xlsx", 1) == [*texts, *numbers, ("b", True), ("s", "없음"), ("s", "7"), ("n", None)]


PLAIN = ("576-81-33138", "(주)해오름온누리식품", "대전광역시 유성구 대학로 313", "34134")
GUARDS = ('="{}"', "'{}", ' = "{} "', "＝＂{}＂", "＇{}")


def test_every_role_is_read_without_the_guard_and_the_cell_keeps_it(tmp_path: Path) -> None:
    report = bs.enrich(FAULTS / "report_04_excel_guarded_numbers.csv", tmp_path / "out.csv")
    assert report.counts["verified"] == 4
    heads = ["사업자등록번호", "상호", "주소", "우편번호"]
    guarded = pl.DataFrame([[guard.format(text) for text in PLAIN] for guard in GUARDS], heads, orient="row")
    pl.DataFrame([PLAIN] * len(GUARDS), heads, orient="row").write_csv(tmp_path / "plain.csv")
    guarded.write_csv(tmp_path / "in.csv")
    with xlsxwriter.Workbook(tmp_path / "in.xlsx", {"strings_to_formulas": False}) as made:
        sheet = made.add_worksheet()
        for row, line in enumerate([heads, *guarded.rows()]):
            sheet.write_row(row, 0, line)
    bs.enrich(tmp_path / "plain.csv", tmp_path / "right.json")
    right = [row | cells for row, cells in zip(json_of(tmp_path / "right.json"), guarded.to_dicts(), strict=True)]
    for suffix in ("csv", "xlsx"):
        bs.enrich(tmp_path / f"in.{suffix}", tmp_path / "out.json")
        assert json_of(tmp_path / "out.json") == right
    assert {row["row_status"] for row in right} == {"verified"}


def test_no_guard_is_printed_on_a_letter_and_an_apostrophe_of_a_name_is(tmp_path: Path) -> None:
    """The list for the mail house has what a person would write on the envelope, and postal codes of five digits."""
    registry = pl.read_csv(SAMPLE / "registry_source.csv", infer_schema=False)
    active = registry.filter(pl.col(registry.columns[1]).str.contains("계속"))[registry.columns[0]]
    names = {'="라마"': "라마", "'=가나다": "=가나다", "'온누리": "온누리", "'가온' 식당": "'가온' 식당"}
    rows = pl.DataFrame({"b_no": active.head(len(names)), "name": [*names]})
    same = {"address": "서울특별시 종로구 종로 436", "zipcode": "031-04"}
    rows.with_columns(pl.lit(value).alias(name) for name, value in same.items()).write_csv(tmp_path / "in.csv")
    letters = tmp_path / "letters.json"
    bs.enrich(tmp_path / "in.csv", letters=letters, registry=SAMPLE / "registry.parquet")
    assert {letter["recipient"] for letter in json_of(letters)} == set(names.values())
    assert {letter["postal code"] for letter in json_of(letters)} == {"03104"}


def test_a_postal_code_with_a_dash_is_five_digits(tmp_path: Path) -> None:
    rows = [f"{PLAIN[0]},세종특별자치시 한누리대로 2130,{code}\n" for code in (" 301-49 ", "30149", "301-4")]
    bs.enrich(write(tmp_path / "in.csv", "".join(["사업자등록번호,주소,우편번호\n", *rows])), tmp_path / "out.json")
    dashed, plain, short = json_of(tmp_path / "out.json")
    assert dashed == plain | {"우편번호": " 301-49 ", "fixed_zipcode": "30149"}
    assert any("[postal" in reason for reason in short["reasons"])


@pytest.mark.parametrize("name", ["report_10_binary_strings.parquet", "report_10b_binary_address.parquet"])
def test_parquet_strings_without_their_mark_are_text(tmp_path: Path, name: str) -> None:
    report = bs.enrich(FAULTS / name, tmp_path / "out.parquet")
    assert {"b_no", "name", "address"} <= set(report.columns)
    assert report.counts["verified"] == 4
    source, written = pq.read_table(FAULTS / name), pq.read_table(tmp_path / "out.parquet")
    assert written.select(source.column_names).equals(source)


def test_bytes_that_are_no_text_stay_bytes(tmp_path: Path) -> None:
    columns: dict[str, list[bytes | None]] = {"주소": [b"\xff\xd8", None], "key": [b"\x00\x01", b"\x02"]}
    source = pa.table({"b_no": ["124-81-00998", "220-81-62517"], **columns})
    pq.write_table(source, tmp_path / "in.parquet")
    report = bs.enrich(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert set(report.columns) == {"b_no"}
    assert pq.read_table(tmp_path / "out.parquet").select(source.column_names).equals(source)
    with pytest.raises(OutputError, match="'주소'"):
        bs.enrich(tmp_path / "in.parquet", tmp_path / "out.csv")


@pytest.mark.parametrize(("name", "encoding"), [("in.xls", "utf-8"), ("in.xml", "utf-8-sig"), ("in.csv", "utf-16")])
def test_an_xml_spreadsheet_of_excel_2003_is_named(tmp_path: Path, name: str, encoding: str) -> None:
    text = (
        f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>\n<?mso-application progid="Excel.Sheet"?>\n'
        '<Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet"><Worksheet ss:Name="S"><Table>'
        "<Row><Cell><Data ss:Type='String'>사업자등록번호</Data></Cell></Row></Table></Worksheet></Workbook>"
    )
    with pytest.raises(InputError, match=r"(?s)Excel 2003.*\.xlsx"):
        bs.plan(write(tmp_path / name, text, encoding))


def test_a_geojson_file_is_read_and_another_output_is_offered(tmp_path: Path, run: Run) -> None:
    shutil.copy(FAULTS / "07_points.geojson", tmp_path)
    told = run("enrich", "07_points.geojson")
    assert (told.returncode, "-o names another" in told.stderr) == (0, True)
    features = json_of(tmp_path / "07_points.enriched.json")["features"]
    assert {feature["row_status"] for feature in features} == {"verified"}
    assert features[0]["geometry"] == {"type": "Point", "coordinates": [127.0, 37.5]}


def test_the_lines_of_a_caret_are_read_where_it_is_named_and_else_the_option_is(tmp_path: Path) -> None:
    source, out = FAULTS / "report_12_caret_delimited.txt", tmp_path / "out.txt"
    with pytest.raises(InputError, match=r"sep=\^.*`delimiter='\^'`"):
        bs.plan(source)
    report = bs.enrich(source, out, delimiter="^")
    assert (report.rows, sorted(report.columns)) == (4, ["address", "b_no", "name"])
    before, after = ([line.split("^") for line in path.read_text("utf-8").splitlines()] for path in (source, out))
    assert [line[:4] for line in after] == before
    assert tuple(after[0][4:]) == NINE


@pytest.mark.parametrize("name", ["report_15_reasons_deleted.csv", "report_15b_columns_twice.csv"])
def test_no_stale_verdict_stays_beside_the_new_one(tmp_path: Path, name: str) -> None:
    """A registry says something new: every `action` and `biz_status` of the output says it."""
    old = list(csv.reader((FAULTS / name).read_text(encoding="utf-8").splitlines()))
    source = write(tmp_path / "statuses.csv", "b_no,상태\n" + "".join(f"{row[0]},폐업자\n" for row in old[1:]))
    bs.build_registry([source], tmp_path / "registry.parquet", as_of="2026-11-20")
    report = bs.enrich(FAULTS / name, tmp_path / "out.csv", registry=tmp_path / "registry.parquet", today="2026-11-21")
    header, *rows = csv.reader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines())
    assert header == (old[0] if "reasons" in old[0] else [*old[0], "reasons"])
    for title, column in zip(header, zip(*rows, strict=True), strict=True):
        assert title != "biz_status" or set(column) == {"closed"}
        assert title != "action" or set(column) <= {"do_not_send", "hold"}
    assert report.replaced["action"] == 4


def test_a_memo_among_our_columns_stays_where_it_stands(tmp_path: Path) -> None:
    source = FAULTS / "report_15c_memo_among_ours.xlsx"
    report = bs.enrich(source, tmp_path / "out.xlsx")
    before, after = cells(source), cells(tmp_path / "out.xlsx")
    assert after[0] == before[0]
    assert [row[:4] + row[6:7] for row in after] == [row[:4] + row[6:7] for row in before]
    assert {row[9] for row in after[1:]} == {None}  # no gazetteer: yesterday's postal codes are no answers of today
    assert report.replaced == {"fixed_zipcode": 4, "fixed_address": 4}
    assert any("'내 메모'" in warning for warning in report.warnings)


def headers_of(report: bs.Report) -> dict[str, list[str]]:
    """The headers of each role, as written but for the tabs that some exports put behind every cell."""
    return {role: [part.header.strip() for part in choice.parts] for role, choice in report.columns.items()}


@pytest.mark.parametrize(
    ("name", "number", "address", "rows"),
    [
        ("01_ecount_customers.csv", "거래처코드", [], 14),
        ("01b_ecount_one_field_title.csv", "사업자등록번호", ["주소1"], 12),
        ("01c_ecount_one_field_title_without_name_word.csv", "사업자등록번호", ["주소1"], 12),
        ("01d_ecount_codes_are_numbers.csv", "거래처코드", [], 12),
        ("01e_ecount_customers.xlsx", "거래처코드", ["주소1"], 13),
    ],
)
def test_the_title_of_an_export_is_no_header(
    tmp_path: Path, name: str, number: str, address: list[str], rows: int
) -> None:
    """``회사명 : …`` stands above the header; twelve customers are verified, the export's foot is an invalid row."""
    report = bs.enrich(FAULTS / name, tmp_path / name)
    found = headers_of(report)
    assert (found["b_no"], found["name"], found.get("address", [])) == ([number], ["거래처명"], address)
    assert (report.rows, report.counts["verified"]) == (rows, 12)
    assert len(own_alerts(report)) == (number == "거래처코드")  # found by its content


def test_columns_that_are_like_others_are_told_apart(tmp_path: Path) -> None:
    """A school's name is one; codes of legal dongs and other registration numbers are no business numbers."""
    path = FAULTS / "04_name_of_a_school.csv"
    assert headers_of(bs.plan(path))["name"] == ["학교명"]
    without = bs.plan(write(tmp_path / "x.csv", path.read_text(encoding="utf-8-sig").replace("학교명", "비고")))
    assert "name" not in without.columns
    assert any("no name column" in one for one in without.warnings)
    with pytest.raises(InputError, match="has_header=False"):  # its first row is not taken for a header
        bs.plan(FAULTS / "05_headerless_dong_codes.csv")
    with pytest.raises(ColumnError) as error:
        bs.plan(FAULTS / "05_headerless_dong_codes.csv", has_header=False)
    assert error.value.missing == "b_no"
    assert "b_no" not in bs.plan(FAULTS / "10_other_registration_number.csv").columns
    misspelt = bs.plan(FAULTS / "14_misspelt_address_header.csv")
    assert (headers_of(misspelt)["address"], misspelt.columns["address"].why) == (["adress"], "content")
    assert len(own_alerts(misspelt)) == 1


def test_a_row_has_its_address_by_road_else_by_lot(tmp_path: Path) -> None:
    """08: half of the rows have no 도로명주소. Each row is verified with its own address, and no alert is needed."""
    path = FAULTS / "08_localdata_two_addresses.csv"
    report = bs.enrich(path, tmp_path / "x.parquet")
    assert headers_of(report)["address"] == ["도로명주소", "지번주소"]
    assert own_alerts(report) == []
    rows = pl.read_parquet(tmp_path / "x.parquet").head(2).to_dicts()
    for row, address in zip(rows, ("지번주소", "도로명주소"), strict=True):
        alone = bs.verify(row["사업자등록번호"], row["사업장명"], row[address], row["도로명우편번호"])
        assert row["reasons"] == list(alone.reasons)
    assert bs.plan(path, columns={"address": "지번주소|도로명주소"}).plan.without_address == 0
    (note,) = (one for one in report.warnings if one.startswith("zipcode"))
    assert "nearest" not in note  # six digits are no postal code, though they stand nearer


def test_a_header_of_three_lines_is_read_as_one(tmp_path: Path) -> None:
    """09: blank lines and line breaks within it; the blank line below it is a row as any blank line."""
    report = bs.enrich(FAULTS / "09_header_of_three_lines.csv", tmp_path / "x.csv")
    found = headers_of(report)
    assert (found["b_no"], found["name"]) == (["사업자 등록번호"], ["거래처명"])
    assert (found["address"], found["zipcode"]) == (["소재지(위치) 상세주소"], ["소재지(위치) 우편번호"])
    assert (report.rows, report.counts["verified"], report.counts["invalid"]) == (21, 20, 1)


@pytest.mark.parametrize(
    ("name", "key", "first"),
    [
        ("report_02_addresses_list_of_objects.json", "addresses.0.line", "서울특별시 종로구 종로 426"),
        ("report_02c_address_jsonb.csv", "address.road", "대전광역시 유성구 대학로 313"),
    ],
)
def test_an_object_is_no_address(tmp_path: Path, name: str, key: str, first: str) -> None:
    """The alert names the key that holds the address; with it each row is verified by that address."""
    path = FAULTS / name
    report = bs.plan(path)
    assert "address" not in report.columns
    assert [key in one for one in own_alerts(report)] == [True]
    with pytest.raises(ColumnError, match=key):
        bs.plan(path, columns={"address": key.split(".")[0]})
    report = bs.enrich(path, tmp_path / "x.parquet", columns={"address": key})
    assert (report.counts["verified"], report.plan.without_address) == (4, 0)
    row = pl.read_parquet(tmp_path / "x.parquet").row(0, named=True)
    assert row["reasons"] == list(bs.verify(row["b_no"], row["name"], first).reasons)
