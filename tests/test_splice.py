"""A spliced workbook differs from the user's by the new cells and what shows them, and by nothing else."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import openpyxl
import pandas as pd
import polars as pl
import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import AccountingError, BansongError, OutputError
from bansong.tables.detect import FORMATS, open_table, write_table
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.excel import package, proof, sheet_xml
from bansong.tables.excel import splice as extend
from bansong.tables.excel.sheet_xml import SheetXml
from bansong.tables.table import Enriched, Table
from conftest import NINE
from examples import examples
from office import converted

pytestmark = pytest.mark.filterwarnings("ignore:.*xtension is not supported:UserWarning")

NUMBER = "124-81-00998"
SHEET = "xl/worksheets/sheet1.xml"
STYLES = "xl/styles.xml"
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
ANSWERS = (
    "active",
    0.25,
    "B",
    "send",
    "06236",
    "서울특별시 강남구 테헤란로 152",
    "[base -30] <b> & c",
    "verified",
    None,
)
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000000005000100"
    "0d0a2db40000000049454e44ae426082"
)


def enriched(source: Path, target: Path | None = None, answers: Sequence[object] = ANSWERS) -> Path:
    """Write the workbook back with the same answers in every row, without an engine."""
    target = target or source.with_name(f"out-{source.name}")
    with open_table(source) as table:
        types = [pl.Float64 if name == "bounce_prob" else pl.String for name in ADDED_COLUMNS]
        values = [
            pl.lit(value, dtype=type_).alias(name)
            for name, value, type_ in zip(ADDED_COLUMNS, answers, types, strict=True)
        ]
        frame = table.frame.with_columns(values)
        layout = laid_out(table)
        _, count = write_table(Enriched(table, frame, layout, frame.select(rows=pl.len())), target, FORMATS["xlsx"])
        assert count() == table.count()
    return target


def laid_out(table: Table) -> tuple[tuple[str, str], ...]:
    """The user's columns, those of an earlier enrichment replaced, and ours."""
    ours = find_earlier_columns(table, "").nine
    replaced = {place: name for name, place in ours.items()}
    own = [(replaced.get(place, f"c{place}"), header) for place, header in enumerate(table.headers)]
    return (*own, *((name, name) for name in ADDED_COLUMNS if not ours))


def parts(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path) -> dict[str, tuple[int, int, int]]:
    with ZipFile(path) as archive:
        return {part.filename: (part.CRC, part.compress_size, part.file_size) for part in archive.infolist()}


def with_parts(path: Path, changed: dict[str, bytes]) -> Path:
    content = parts(path) | changed
    with ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def by_xlsxwriter(path: Path) -> None:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet("고객")
        money = book.add_format({"num_format": "#,##0", "bg_color": "#FFEEDD", "border": 1})
        head = book.add_format({"bold": True, "bg_color": "#1F4E78", "font_color": "white"})
        sheet.write_row(0, 0, ["사업자번호", "상호", "금액"], head)
        for row, line in enumerate([[NUMBER, "가", 1200], ["2208162517", "나 <b>", 3400.5], ["x", " 끝 ", 1]], 1):
            sheet.write_row(row, 0, line, money)
        sheet.write_rich_string("B3", "굵은 ", head, "글", money)
        sheet.write_formula("C5", "=SUM(C2:C4)", money, 4601.5)
        sheet.write_string("A5", "합계")
        sheet.write_comment("A2", "note")
        sheet.insert_image("F8", "logo.png", {"image_data": io.BytesIO(PNG)})
        chart = book.add_chart({"type": "column"})
        chart.add_series({"values": "=고객!$C$2:$C$3"})
        sheet.insert_chart("E10", chart)
        sheet.conditional_format("C2:C4", {"type": "data_bar", "data_bar_2010": True})
        sheet.conditional_format("B2:B4", {"type": "duplicate", "format": head})
        sheet.data_validation("B2:B4", {"validate": "list", "source": ["가", "나"]})
        sheet.autofilter("A1:C4")
        sheet.freeze_panes(1, 1)
        sheet.protect("secret", {"select_locked_cells": True})
        sheet.set_column("B:B", 25)
        sheet.set_row(2, None, None, {"hidden": True})
        sheet.print_area("A1:C5")
        sheet.ignore_errors({"number_stored_as_text": "A1:A5"})
        book.add_worksheet("other").write("A1", "kept")
        book.define_name("금액들", "=고객!$C$2:$C$3")
        table = book.add_worksheet("표")
        table.add_table("A1:B3", {"data": [[1, 2], [3, 4]]})


def by_openpyxl(path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    for line in [["b_no", "name", "sum"], [NUMBER, "가", "=1+1"], ["2208162517", None, 3], [None, "다", None]]:
        sheet.append(line)
    chart = openpyxl.chart.BarChart()
    chart.add_data(openpyxl.chart.Reference(sheet, min_col=3, min_row=1, max_row=3))
    sheet.add_chart(chart, "H9")
    sheet.column_dimensions.group("E", "G", hidden=True)
    sheet["A2"].hyperlink = "https://example.org"
    book.create_sheet("둘").append(["kept"])
    book.save(path)


def by_pandas(path: Path) -> None:
    frame = pd.DataFrame({"b_no": [NUMBER, "2208162517"], "when": pd.to_datetime(["2026-01-02", None]), "x": [1.5, 2]})
    frame.to_excel(path, index=False)


def by_a_table(path: Path) -> None:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        columns = [{"header": "b_no"}, {"header": "name"}]
        sheet.add_table("B3:C5", {"data": [[NUMBER, "가"], ["2208162517", "나"]], "columns": columns})


OF_LIBREOFFICE: list[bytes] = []
"""What it made, once it has made it."""


def by_libreoffice(path: Path) -> None:
    if not OF_LIBREOFFICE:
        made = path.with_name("made.csv")
        pd.DataFrame({"b_no": [NUMBER, "2208162517"], "name": ["가", "나"]}).to_csv(made, index=False)
        OF_LIBREOFFICE.append(converted(made, "xlsx").read_bytes())
    path.write_bytes(OF_LIBREOFFICE[0])


MAKERS: dict[str, Callable[[Path], None]] = {
    "xlsxwriter": by_xlsxwriter,
    "openpyxl": by_openpyxl,
    "pandas": by_pandas,
    "a table": by_a_table,
    "LibreOffice": by_libreoffice,
}


CHANGED = {"xlsxwriter": (SHEET, STYLES, "xl/workbook.xml"), "a table": (SHEET, STYLES, "xl/tables/table1.xml")}
"""The parts that change, where they are more than the sheet and the styles: a filter has a name, a table a part."""


def taken_out(xml: bytes, columns: set[str]) -> list[object]:
    """A sheet, read by a parser, without the cells of some columns, its ranges, widths and the grades' colours."""

    def told(element: ElementTree.Element) -> tuple[object, ...]:
        inner = [told(child) for child in element if child.tag != f"{MAIN}c" or column(child) not in columns]
        return element.tag, element.attrib, element.text, element.tail, inner

    def column(cell: ElementTree.Element) -> str:
        return re.sub("[0-9]", "", cell.get("r", ""))

    def ours(element: ElementTree.Element) -> bool:
        texts = [formula.text for formula in element.iter(f"{MAIN}formula")]
        return element.tag in (f"{MAIN}dimension", f"{MAIN}cols") or texts == [f'"{grade}"' for grade in "ABCDE"]

    root = ElementTree.fromstring(xml)
    for element in root.iter(f"{MAIN}autoFilter"):
        del element.attrib["ref"]
    return [told(element) for element in root if not ours(element)]


def headed(path: Path) -> dict[str, str]:
    """The letters of our columns."""
    sheet = openpyxl.load_workbook(path).worksheets[0]
    return {cell.value: cell.column_letter for row in sheet.iter_rows() for cell in row if cell.value in NINE}


@pytest.mark.parametrize("maker", MAKERS)
def test_the_workbook_comes_back_as_it_was_but_for_the_new_cells(tmp_path: Path, maker: str) -> None:
    """Every other part is the same, packed bytes and all; a parser sees the same sheet once our cells are left out.

    But for what sorts and filters: see ``test_ranges.py``.
    """
    source = tmp_path / "in.xlsx"
    MAKERS[maker](source)
    out = enriched(source)
    before, after = parts(source), parts(out)
    assert list(before) == list(after)
    same = [name for name in before if name not in CHANGED.get(maker, (SHEET, STYLES))]
    assert {name: before[name] for name in same} == {name: after[name] for name in same}
    assert {name: packed(source)[name] for name in same} == {name: packed(out)[name] for name in same}
    columns = set(headed(out).values())
    assert len(columns) == 9
    assert taken_out(after[SHEET], columns) == taken_out(before[SHEET], set())
    old, new = (openpyxl.load_workbook(path).worksheets[0] for path in (source, out))
    for row in old.iter_rows():
        for cell in row:
            assert new[cell.coordinate].value == cell.value
            assert new[cell.coordinate].number_format == cell.number_format


@pytest.mark.parametrize("maker", MAKERS)
def test_styles_gain_entries_at_the_end_of_their_lists_only(tmp_path: Path, maker: str) -> None:
    source = tmp_path / "in.xlsx"
    MAKERS[maker](source)
    before, after = (ElementTree.fromstring(parts(path)[STYLES]) for path in (source, enriched(source)))
    olds = {element.tag: [*map(ElementTree.tostring, element)] for element in before}
    news = {element.tag: [*map(ElementTree.tostring, element)] for element in after}
    assert olds.keys() <= news.keys()
    for tag, entries in news.items():
        if tag in (f"{MAIN}cellXfs", f"{MAIN}dxfs"):
            assert entries[: len(olds.get(tag, []))] == olds.get(tag, [])
            assert after.find(tag).get("count") == str(len(entries))  # type: ignore[union-attr]
        else:
            assert entries == olds[tag]
    assert len(news[f"{MAIN}dxfs"]) == len(olds.get(f"{MAIN}dxfs", [])) + 5


@pytest.mark.parametrize("maker", MAKERS)
def test_enriching_again_with_the_same_answers_changes_nothing(tmp_path: Path, maker: str) -> None:
    """No second conditional format, colour or cell format piles up: sheet and styles are the same bytes."""
    source = tmp_path / "in.xlsx"
    MAKERS[maker](source)
    once = enriched(source)
    assert parts(enriched(once)) == parts(once)


def test_other_answers_replace_the_old_ones_in_place(tmp_path: Path) -> None:
    by_xlsxwriter(tmp_path / "in.xlsx")
    once = enriched(tmp_path / "in.xlsx")
    other = ("closed", 1.0, None, "do_not_send", None, "서울", "x", "cached", "note")
    twice = enriched(once, tmp_path / "twice.xlsx", other)
    sheet = openpyxl.load_workbook(twice).worksheets[0]
    assert [cell.value for cell in sheet[3]][3:12] == list(other)
    assert taken_out(parts(twice)[SHEET], set("DEFGHIJKL")) == taken_out(parts(once)[SHEET], set("DEFGHIJKL"))
    assert parts(twice)[STYLES] == parts(once)[STYLES]


def test_the_new_conditional_format_stands_in_its_place_behind_the_others(tmp_path: Path) -> None:
    """In the schema's order, before validations and drawings, with priorities that no other rule has."""
    by_xlsxwriter(tmp_path / "in.xlsx")
    root = ElementTree.fromstring(parts(enriched(tmp_path / "in.xlsx"))[SHEET])
    names = [element.tag.removeprefix(MAIN) for element in root]
    before = ["sheetPr", "dimension", "sheetViews", "sheetFormatPr", "cols", "sheetData", "sheetProtection"]
    behind = ["dataValidations", "hyperlinks", "printOptions", "pageMargins", "pageSetup", "headerFooter"]
    last = ["ignoredErrors", "drawing", "legacyDrawing", "tableParts", "extLst"]
    order = [*before, "autoFilter", "mergeCells", "conditionalFormatting", *behind, *last]
    assert [order.index(name) for name in names] == sorted(order.index(name) for name in names)
    assert names.count("conditionalFormatting") == 3
    priorities = [rule.get("priority") for rule in root.iter(f"{MAIN}cfRule")]
    assert len(set(priorities)) == len(priorities) == 7


def test_number_formats_of_the_neighbour_do_not_hide_or_change_our_texts(tmp_path: Path) -> None:
    """Fill, border and font are the neighbour's; ``;;;`` and date formats are not."""
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["b_no", "secret"], book.add_format({"num_format": ";;;", "bold": True}))
        for row, shape in enumerate([";;;", "yyyy-mm-dd", 49, "#,##0"], 1):
            style = book.add_format({"num_format": shape, "bg_color": "#FFEEDD", "border": 1})
            sheet.write_row(row, 0, [NUMBER, 45000], style)
    sheet = openpyxl.load_workbook(enriched(tmp_path / "in.xlsx")).active
    assert [sheet.cell(row, 3).number_format for row in range(1, 6)] == [
        "General",
        "General",
        "General",
        "@",
        "General",
    ]
    assert [sheet.cell(row, 4).number_format for row in range(2, 6)] == ["0.00%"] * 4
    assert {sheet.cell(row, column).fill.fgColor.rgb for row in range(2, 6) for column in range(3, 12)} == {"FFFFEEDD"}
    assert sheet["C1"].font.b


def test_new_columns_in_hidden_or_folded_ranges_are_shown(tmp_path: Path) -> None:
    """The range is cut in pieces: ours are visible with widths of their own, the rest stays hidden as it was."""
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["b_no", "name"])
        sheet.write_row(1, 0, [NUMBER, "가"])
        sheet.set_column("B:D", 9, None, {"level": 1})
        sheet.set_column("E:XFD", None, None, {"hidden": True})
    root = ElementTree.fromstring(parts(enriched(tmp_path / "in.xlsx"))[SHEET])
    columns = [dict(element.attrib) for element in root.iter(f"{MAIN}col")]
    assert [(int(c["min"]), int(c["max"])) for c in columns] == [(2, 2), *((n, n) for n in range(3, 12)), (12, 16384)]
    assert columns[0]["outlineLevel"] == columns[-1]["hidden"] == "1"
    assert not any({"hidden", "outlineLevel", "collapsed"} & column.keys() for column in columns[1:-1])


def test_widths_that_the_user_gave_our_columns_stay(tmp_path: Path) -> None:
    by_pandas(tmp_path / "in.xlsx")
    once = enriched(tmp_path / "in.xlsx")
    book = openpyxl.load_workbook(once)
    book.active.column_dimensions["J"].width = 33
    book.save(once)
    assert openpyxl.load_workbook(enriched(once)).active.column_dimensions["J"].width == 33


@pytest.mark.process
def test_libreoffice_opens_what_was_spliced(tmp_path: Path) -> None:
    by_xlsxwriter(tmp_path / "in.xlsx")
    shown = "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,true"
    lines = converted(enriched(tmp_path / "in.xlsx"), shown).read_text(encoding="utf-8").splitlines()
    assert (
        lines[1]
        == f'{NUMBER},가,"1,200",active,25.00%,B,send,06236,서울특별시 강남구 테헤란로 152,[base -30] <b> & c,verified,'
    )


def test_a_table_without_rows_gets_its_header(tmp_path: Path) -> None:
    source = sheet_of(tmp_path / "in.xlsx", HEAD)
    assert [cell.value for cell in openpyxl.load_workbook(enriched(source)).active[1]] == ["b_no", "name", *NINE]


# ── workbooks with macros ────────────────────────────────────────────────────────────────────────────────────────


def with_macros(path: Path) -> Path:
    by_xlsxwriter(path)
    types = parts(path)["[Content_Types].xml"]
    plain, macros = b"openxmlformats-officedocument.spreadsheetml.sheet.main", b"ms-excel.sheet.macroEnabled.main"
    kind = b'<Default Extension="bin" ContentType="application/vnd.ms-office.vbaProject"/><Override'
    types = types.replace(b"application/vnd." + plain, b"application/vnd." + macros).replace(b"<Override", kind, 1)
    return with_parts(path, {"[Content_Types].xml": types, "xl/vbaProject.bin": bytes(range(256)) * 40})


def test_macros_are_kept(tmp_path: Path) -> None:
    source = with_macros(tmp_path / "in.xlsm")
    out = parts(enriched(source))
    assert out["xl/vbaProject.bin"] == bytes(range(256)) * 40
    assert b"macroEnabled" in out["[Content_Types].xml"]


@pytest.mark.parametrize(("given", "asked"), [(".xlsm", ".xlsx"), (".xlsx", ".xlsm")])
def test_a_workbook_is_not_given_the_extension_of_the_other_kind(tmp_path: Path, given: str, asked: str) -> None:
    source = tmp_path / f"in{given}"
    with_macros(source) if given == ".xlsm" else by_pandas(source)
    with pytest.raises(OutputError, match=rf"would not open it as {asked}; give `output='OUT{given}'`"):
        enriched(source, tmp_path / f"out{asked}")


def test_a_new_workbook_is_not_called_xlsm(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"b_no\n{NUMBER}\n")
    with pytest.raises(OutputError, match=r"a new workbook holds no macros.*give `output='OUT\.xlsx'`"):
        enriched(tmp_path / "in.csv", tmp_path / "out.xlsm")


# ── odd XML ──────────────────────────────────────────────────────────────────────────────────────────────────────


def sheet_of(path: Path, data: bytes, before: bytes = b"", behind: bytes = b"") -> Path:
    """A workbook whose sheet has these rows."""
    by_pandas(path)
    space = MAIN[1:-1].encode()
    return with_parts(
        path,
        {SHEET: b'<worksheet xmlns="%b">%b<sheetData>%b</sheetData>%b</worksheet>' % (space, before, data, behind)},
    )


def cell(reference: str, text: str) -> bytes:
    return f'<c r="{reference}" t="inlineStr"><is><t>{text}</t></is></c>'.encode()


def bare(path: Path, out: Path, data: bytes) -> bytes:
    """A sheet's rows without what stands in our columns and without rows that are not in ``data``."""
    xml = parts(path)[SHEET]
    letters = "|".join(headed(out).values())
    xml = xml[xml.index(b"<sheetData>") : xml.index(b"</sheetData>")]
    xml = re.sub(rf'<c [^>]*?r="(?:{letters})[0-9]+"[^>]*?(?:/>|>.*?</c>)'.encode(), b"", xml, flags=re.S)
    xml = re.sub(rb"(<row [^>]*[^/])></row>", rb"\1/>", xml)  # a row without cells is spelled the shorter way
    numbers = {int(number) for number in re.findall(rb'<row [^>]*?r="([0-9]+)"', data)}
    made = [number for number in range(1, 20) if number not in numbers]
    return re.sub(rb'<row r="(?:%b)"/>' % b"|".join(b"%d" % number for number in made), b"", xml)


HEAD = b'<row r="1">' + cell("A1", "b_no") + cell("B1", "name") + b"</row>"
BODY = b'<row r="2" spans="1:2" ht="20">' + cell("A2", NUMBER) + cell("B2", "a") + b"</row>"
THIRD = b'<row r="3">' + cell("A3", NUMBER) + b"</row>"


@pytest.mark.parametrize(
    "data",
    [
        HEAD + BODY + THIRD,
        b"\n  " + HEAD.replace(b"><c", b">\n    <c") + b"\n  " + BODY + b"\n " + THIRD + b"\n",
        HEAD + b'<row r="2" ht="9"/>' + THIRD + b'<row r="4" hidden="1"/><row r="9"/>',
        HEAD + THIRD,
        HEAD.replace(b'<c r="A1" t', b'<c s="0" r="A1" t') + BODY,
        HEAD + BODY.replace(b"</row>", b'<c r="D2"/><c r="Z2" s="0"/></row>') + THIRD,
        b'<row r="1"><c r="J1"/></row>'
        + HEAD.replace(b'1"', b'2"')
        + BODY.replace(b'2"', b'3"', 1).replace(b'2" ', b'3" '),
        HEAD
        + BODY.replace(b"<t>a", b"<r><rPr><color theme='1'/></rPr><t>a").replace(
            b"</t></is></c></row>", b"</t></r></is></c></row>"
        ),
    ],
    ids=["usual", "laid out", "empty rows", "a gap", "attributes turned", "blank cells", "a blank above", "rich text"],
)
def test_rows_of_every_shape_keep_their_bytes(tmp_path: Path, data: bytes) -> None:
    """Taken out again, the new cells leave the very bytes that were there."""
    source = sheet_of(tmp_path / "in.xlsx", data)
    once = enriched(source)
    assert bare(once, once, data) == bare(source, once, data)


def test_elements_with_a_prefix_are_extended_in_kind(tmp_path: Path) -> None:
    """As some .NET programs write them."""
    source = sheet_of(tmp_path / "in.xlsx", HEAD + BODY + THIRD)
    for part in (SHEET, STYLES):
        xml = re.sub(rb"<(/?)(?=[a-zA-Z])(?!\?)", rb"<\1x:", parts(source)[part]).replace(b" xmlns=", b" xmlns:x=")
        with_parts(source, {part: xml})
    out = enriched(source)
    ElementTree.fromstring(parts(out)[SHEET])
    assert re.findall(rb"<(?!/?x:)[^?]", parts(out)[SHEET]) == re.findall(rb"<(?!/?x:)[^?]", parts(out)[STYLES]) == []
    sheet = openpyxl.load_workbook(out).active
    assert [cell.value for cell in sheet[2]][2:5] == ["active", 0.25, "B"]
    assert [cell.value for cell in sheet[1]][2:] == list(NINE)


@pytest.mark.parametrize(
    ("data", "before", "behind", "why"),
    [
        (HEAD + b"<!-- </row> -->" + BODY, b"", b"", "hold comments"),
        (HEAD + BODY.replace(b"<t>a</t>", b"<t><![CDATA[a]]></t>"), b"", b"", "hold comments"),
        (HEAD + b"<?pi x?>" + BODY, b"", b"", "hold comments"),
        (HEAD + BODY.replace(b'<row r="2"', b"<row"), b"", b"", "no references"),
        (HEAD + BODY.replace(b'<c r="B2"', b"<c"), b"", b"", "no references"),
        (HEAD + BODY + BODY, b"", b"", "do not stand in order"),
        (b"", b"", b"", "holds no rows"),
        (HEAD + BODY, b"<!-- <sheetData> -->", b"", "unusual way|damaged"),
        (HEAD + BODY, b"", b"<mergeCells>", "damaged"),
    ],
    ids=["comment", "CDATA", "instruction", "row", "cell", "row twice", "no rows", "commented data", "damaged"],
)
def test_what_cannot_be_spliced_safely_is_refused_or_unreadable(
    tmp_path: Path, data: bytes, before: bytes, behind: bytes, why: str
) -> None:
    sheet = sheet_of(tmp_path / "in.xlsx", data, before, behind)
    with pytest.raises(OutputError, match=why):
        SheetXml.parse([parts(sheet)[SHEET]])


def test_a_document_type_is_refused(tmp_path: Path) -> None:
    xml = b'<!DOCTYPE a [<!ENTITY b "b">]>' + parts(sheet_of(tmp_path / "in.xlsx", HEAD + BODY))[SHEET]
    with pytest.raises(OutputError, match="document type"):
        SheetXml.parse([xml])


def test_cells_out_of_order_are_refused_where_ours_go_between(tmp_path: Path) -> None:
    turned = BODY.replace(b"</row>", b'<c r="Z2"/><c r="Y2"/></row>')
    with pytest.raises(OutputError, match="another order than their columns"):
        enriched(sheet_of(tmp_path / "in.xlsx", HEAD + turned))


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_sheet_is_taken_apart_alike_however_it_is_cut_in_pieces(tmp_path: Path, size: int) -> None:
    xml = parts(
        sheet_of(tmp_path / "in.xlsx", HEAD + b'<row r="2"/>' + THIRD + b'<row r="7"/>\n', behind=b"<!-- </row> -->")
    )[SHEET]
    whole, cut = SheetXml.parse([xml]), SheetXml.parse(xml[at : at + size] for at in range(0, len(xml), size))
    assert cut.rows.equals(whole.rows)
    assert (cut.around, cut.rest, cut.columns) == (whole.around, whole.rest, whole.columns)


# ── the proof ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"<t>verified</t>", b"<t></t>"),
        (b'<c r="A3"', b'<c r="A3" s="0"'),
        (b"</is></c></row>", b"</is></c><c r='Z1'/></row>"),
        (b'<row r="3"', b'<row r="4"'),
        (b'<c r="C2"', b'<c r="C3"'),
        (b'<c r="C2" t="inlineStr"><is><t>active</t></is></c>', b""),
        (b'<c r="D2"', b'<c r="Z2"/><c r="D2"'),
        (b'<c r="D2"', b'<c r="A2"/><c r="D2"'),
        (b'<c r="B2"', b'<c r="B2" s="0"'),
    ],
    ids=[
        "an answer less",
        "a cell of the user's",
        "a cell more",
        "another row",
        "in another row",
        "a cell less",
        "a blank cell among ours",
        "a blank cell of the user's column among ours",
        "the last cell of the user's",
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_finished_sheet_that_is_not_the_old_one_with_the_cells_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, again: bool
) -> None:
    """Whatever the writer does wrong, the finished file is what is held against the old one."""
    source = sheet_of(tmp_path / "in.xlsx", HEAD + BODY + THIRD)
    if again:
        source = enriched(source)
    right = extend.encode_rows

    def wrong(frame: pl.DataFrame, *columns: str) -> bytes:
        return right(frame, *columns).replace(old, new, 1)

    monkeypatch.setattr(extend, "encode_rows", wrong)
    with pytest.raises((AccountingError, OutputError)):
        enriched(source, tmp_path / "out.xlsx")


@pytest.mark.parametrize(
    "damaged", [b'<c r="B2" s="0">', b'<c r="B2" s="0"/><c r="C2"><v>&x;</v></c>', b'<c r="A2"><v>1</v></c>']
)
def test_what_the_writers_own_reading_overlooks_is_not_published_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    """The error names file and sheet, and the output of an earlier run stays."""
    source = sheet_of(tmp_path / "in.xlsx", HEAD + BODY.replace(cell("B2", "a"), b'<c r="B2" s="0"/>') + THIRD)
    out = enriched(source)
    before = out.read_bytes()
    right = extend.encode_rows
    monkeypatch.setattr(extend, "encode_rows", lambda *rows: right(*rows).replace(b'<c r="B2" s="0"/>', damaged, 1))
    monkeypatch.setattr(extend.Splice, "prove", lambda _, pieces: [*pieces] and None)
    with pytest.raises(AccountingError, match=r"in.xlsx \[Sheet1\]: nothing was published"):
        bs.enrich(source, out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("titled", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (b'<c r="B3" t="s">', b'<c r="B3" t="n">', "B3"),
        (b"<v>3400.5</v>", b"<v>3400.6</v>", "C4"),
        (b"<v>46024</v>", b"<v>46025</v>", "D3"),
        (b't="b"><v>1', b't="b"><v>0', "E3"),
        (b"<t>active</t>", b"<t>closed</t>", "F3"),
        (b"<v>0.25</v>", b"<v>0.24</v>", "G3"),
    ],
    ids=["text", "number", "date", "truth", "answer", "probability"],
)
def test_another_reader_finds_every_cell_that_is_not_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, titled: bool, old: bytes, new: bytes, place: str
) -> None:
    """Whether what the run has read is all of the sheet or, below a title, not."""
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet, plain, day = book.add_worksheet(), book.add_format({"bold": True}), book.add_format({"num_format": 14})
        if titled:
            sheet.write(0, 0, "2026 customers")
        sheet.write_row(1, 0, ["사업자번호", "상호", "금액", "날짜", "예"])
        for row, (text, amount) in enumerate([("가", 1200), ("나", 3400.5)], 2):
            sheet.write(row, 0, NUMBER, plain)
            sheet.write_row(row, 1, [text, amount])
            sheet.write_datetime(row, 3, datetime(2026, 1, 2), day)
            sheet.write_boolean(row, 4, True)
    right = extend.encode_rows
    monkeypatch.setattr(extend, "encode_rows", lambda *rows: right(*rows).replace(old, new, 1))
    monkeypatch.setattr(extend.Splice, "prove", lambda _, pieces: [*pieces] and None)
    with pytest.raises(AccountingError, match=rf"in.xlsx \[Sheet1\].*{place}"):
        enriched(tmp_path / "in.xlsx")


@pytest.mark.parametrize("wrong", [None, "B7", "C9"])
def test_a_large_sheet_is_proved_stretch_by_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    """As a whole it would take the reader more memory than the run itself."""
    monkeypatch.setattr(proof, "_CELLS_AT_ONCE", 40)  # three rows of these
    monkeypatch.setattr(proof, "_SCANNED_BYTES", 64)
    monkeypatch.setattr(package, "_PIECE", 100)
    rows = [b'<row r="%d">' % r + cell(f"A{r}", NUMBER) + cell(f"B{r}", "a") + b"</row>" for r in (2, 3, 4, 7, 8, 9)]
    source = sheet_of(tmp_path / "in.xlsx", HEAD + b"".join(rows))
    right = extend.encode_rows
    if wrong:

        def change(frame: pl.DataFrame, *columns: str) -> bytes:
            made = right(frame, *columns)
            return re.sub(rb'(<c r="%b" t="inlineStr"><is><t>)\w' % wrong.encode(), rb"\1?", made)

        monkeypatch.setattr(extend, "encode_rows", change)
        monkeypatch.setattr(extend.Splice, "prove", lambda _, pieces: [*pieces] and None)
        with pytest.raises(AccountingError, match=rf"in.xlsx \[Sheet1\].*{wrong}"):
            enriched(source)
    else:
        enriched(source)


def test_the_first_column_may_hold_its_first_value_far_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank cell is none; no column before the first that has cells is looked for."""
    monkeypatch.setattr(sheet_xml, "_FEW", 2)
    rows = [f'<row r="{r}"><c r="A{r}" s="1"/><c r="C{r}"><v>1</v></c></row>' for r in range(1, 6)]
    sheet = b"<worksheet><sheetData>%s</sheetData></worksheet>"
    below = '<row r="6"><c r="B6"><v>2</v></c><c r="C6"><v>1</v></c></row>'
    assert SheetXml.parse([sheet % "".join(rows).encode()]).first_column() == 3
    assert SheetXml.parse([sheet % "".join([*rows, below]).encode()]).first_column() == 2


def test_a_part_that_would_come_back_otherwise_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_xlsxwriter(tmp_path / "in.xlsx")
    right = package._raw_part

    def wrong(archive: ZipFile, part: object) -> bytes:
        data = right(archive, part)  # type: ignore[arg-type]
        return data[:-1] + b"\0" if archive.filename and "out" in archive.filename else data

    monkeypatch.setattr(package, "_raw_part", wrong)
    with pytest.raises(AccountingError, match="is not as it was"):
        enriched(tmp_path / "in.xlsx")


def test_a_table_that_does_not_end_where_the_sheet_ends_is_not_written(tmp_path: Path) -> None:
    by_pandas(tmp_path / "in.xlsx")
    with open_table(tmp_path / "in.xlsx") as table:
        values = [pl.lit(None, dtype=pl.String).alias(name) for name in ADDED_COLUMNS]
        frame = table.frame.head(1).with_columns(values)
        result = Enriched(table, frame, laid_out(table), frame.select(rows=pl.len()))
        with pytest.raises(AccountingError, match="last row is 3, the table's is 2"):
            write_table(result, tmp_path / "out.xlsx", FORMATS["xlsx"])


def test_a_damaged_part_is_told(tmp_path: Path) -> None:
    by_pandas(tmp_path / "in.xlsx")
    data = (tmp_path / "in.xlsx").read_bytes()
    with ZipFile(tmp_path / "in.xlsx") as archive:
        crc = archive.getinfo(SHEET).CRC.to_bytes(4, "little")
    (tmp_path / "in.xlsx").write_bytes(data.replace(crc, (zlib.crc32(b"") + 1).to_bytes(4, "little")))
    with ZipFile(tmp_path / "in.xlsx") as archive, pytest.raises(OutputError, match=f"{SHEET} cannot be read"):
        package.read_part(archive, SHEET)


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────────

rows_of_cells = st.lists(
    st.tuples(
        st.sampled_from(["", "\n", "  "]),
        st.booleans(),
        st.lists(st.sampled_from(["", "blank", "text", "number", "formula"]), min_size=6, max_size=6),
    ),
    min_size=1,
    max_size=8,
)


@examples(25)
@given(shape=rows_of_cells)
def test_cells_put_in_and_taken_out_again_leave_the_bytes(
    tmp_path: Path, shape: list[tuple[str, bool, list[str]]]
) -> None:
    """For sheets of any shape: rows without cells, rows left out, blanks, formulas, layout between the rows."""
    made = {
        "": "",
        "blank": '<c r="{}" s="0"/>',
        "text": '<c r="{}" t="inlineStr"><is><t>x &lt;row></t></is></c>',
        "number": '<c r="{}"><v>1</v></c>',
        "formula": '<c r="{}"><f>1+1</f><v>2</v></c>',
    }
    data = HEAD.decode()
    for number, (gap, there, kinds) in enumerate(shape, 2):
        cells = "".join(
            made[kind].format(f"{letter}{number}") for letter, kind in zip("ABCDE" + "Z", kinds, strict=True) if kind
        )
        if there:
            data += gap + (f'<row r="{number}">{cells}</row>' if cells else f'<row r="{number}"/>')
    last = len(shape) + 2
    data += f'<row r="{last}">' + cell(f"B{last}", "end").decode() + "</row>"
    source = sheet_of(tmp_path / "in.xlsx", data.encode())
    once = enriched(source)
    assert bare(once, once, data.encode()) == bare(source, once, data.encode())
    answered = openpyxl.load_workbook(once).active[headed(once)["row_status"]]
    assert [cell.value for cell in answered] == ["row_status", *["verified"] * (last - 1)]
    assert parts(enriched(once))[SHEET] == parts(once)[SHEET]


SPELLINGS = {  # of a row's start, a cell, a row's end, what stands between; those in REFUSED may be refused
    "row": (
        '<row r="{r}"{more}',
        "<row r='{r}'{more}",
        '<row\n  spans="1:3" r="{r}" {more}',
        '<row x:note="a > b / />" r="{r}"{more}',
        "<row{more}",
    ),
    "more": ("", ' ht="9.75" customHeight="1"', " hidden='1'", ' s="1" customFormat="1"'),
    "cell": (
        "",
        '<c r="{at}" s="1"/>',
        "<c r='{at}' s='1' />",
        '<c s="1" r="{at}"></c>',
        '<c r="{at}" x:note="/>" s="1"/>',
        '<c r="{at}" t="inlineStr"><is><t>x &lt;row/></t></is></c>',
        "<c t='inlineStr' r='{at}'><is><t xml:space='preserve'> y </t></is></c>",
        '<c r="{at}" t="inlineStr"><is><r><rPr><b/></rPr><t>글</t></r><r><t>자 /></t></r></is></c>',
        '<c r="{at}"><v>1.5</v></c>',
        '<c r="{at}" x:note="a > b"><f>1+1</f><v>2</v></c>',
        '<c r="{at}" t="str"><f>""</f><v></v></c>',
        '<c r="{at}" t="b"><v>1</v></c >',
        '<c r="{at}" t="e"><f>NA()</f><v>#N/A</v></c>',
        '<c r="{at}" t="inlineStr"><is><t><![CDATA[</row>]]></t></is></c>',
        '<c t="inlineStr"><is><t>nowhere</t></is></c>',
    ),
    "end": ("</row>", "</row >", "</row\n>"),
    "gap": ("", "\n  ", "\t", "<!-- </row> -->", "<?mark <row/> ?>"),
}
REFUSED = ("<row{more}", "<![CDATA", "nowhere", "<!--", "<?mark")
odd_rows = st.lists(
    st.tuples(
        *(st.sampled_from(SPELLINGS[name]) for name in ("gap", "row", "more", "end")),
        st.lists(st.sampled_from(SPELLINGS["cell"]), min_size=4, max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def odd_sheet(shape: list[tuple[str, str, str, str, list[str], bool]]) -> bytes:
    """Rows of a sheet in odd spellings, between a usual header and a usual last row."""
    rows = [HEAD.decode()]
    for number, (gap, row, more, end, cells, closed) in enumerate(shape, 2):
        inner = "".join(cell.format(at=f"{letter}{number}") for letter, cell in zip("ABCZ", cells, strict=True))
        start = row.format(r=number, more=more)
        rows.append(f"{gap}{start}/>" if closed and not inner else f"{gap}{start}>{inner}{gap}{end}")
    last = len(shape) + 2
    return "".join([*rows, f'<row r="{last}">{cell(f"B{last}", "end").decode()}</row>']).encode()


@examples(200)
@given(shape=odd_rows)
def test_however_a_sheet_is_spelt_its_cells_stay_and_ours_come_in_or_it_is_refused(
    tmp_path: Path, shape: list[tuple[str, str, str, str, list[str], bool]]
) -> None:
    data = odd_sheet(shape)
    source = sheet_of(tmp_path / "in.xlsx", data)
    space = b'<worksheet xmlns:x="urn:x" xmlns:mc="urn:mc" '
    with_parts(source, {SHEET: parts(source)[SHEET].replace(b"<worksheet ", space, 1)})
    out = tmp_path / "out.xlsx"
    out.unlink(missing_ok=True)
    try:
        enriched(source, out)
    except BansongError:
        assert any(mark in text for row in shape for text in (row[0], row[1], *row[4]) for mark in REFUSED)
        assert not out.exists()
        return
    for xml in parts(out).values():
        ElementTree.fromstring(xml)
    ours = headed(out)
    for results in (True, False):
        before, after = (openpyxl.load_workbook(path, data_only=results).active for path in (source, out))
        for row in before.iter_rows():
            for old in row:
                if old.column_letter in ours.values():
                    assert old.value is None  # a blank cell that only had a style
                    continue
                new = after[old.coordinate]
                assert (new.value, new.data_type, new.style_id) == (old.value, old.data_type, old.style_id)
        heights = [{r: (d.height, d.hidden) for r, d in sheet.row_dimensions.items()} for sheet in (before, after)]
        assert heights[0].items() <= heights[1].items()
    assert [cell.value for cell in after[ours["row_status"]]] == ["row_status", *["verified"] * (len(shape) + 1)]


@pytest.mark.parametrize(
    "value",
    [
        {"formula": '=IF(A9="","",1)', "result": ""},
        {"formula": "=NA()", "result": "#N/A"},
        {"text": "   "},
    ],
    ids=["formulas filled down", "errors filled down", "white space"],
)
def test_rows_behind_the_table_that_hold_nothing_are_no_rows_and_stay(tmp_path: Path, value: dict[str, str]) -> None:
    """Formulas filled down beyond the customers, as people do, are neither rows nor touched."""
    source = tmp_path / "in.xlsx"
    with xlsxwriter.Workbook(source) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["b_no", "name", "check"])
        for row in (1, 2):
            sheet.write_row(row, 0, ["124-81-00998", "가", "x"])
        for row in range(3, 30):
            if "formula" in value:
                sheet.write_formula(row, 2, value["formula"], None, value["result"])
            else:
                sheet.write_string(row, 2, value["text"])
    report = bs.enrich(source, tmp_path / "out.xlsx")
    assert report.rows == 2
    before, after = (openpyxl.load_workbook(path).active for path in (source, tmp_path / "out.xlsx"))
    assert [[cell.value for cell in row[:3]] for row in after.iter_rows()] == [
        [cell.value for cell in row] for row in before.iter_rows()
    ]
    assert [after.cell(row, 11).value for row in (1, 2, 3, 4)] == ["row_status", "verified", "verified", None]
    assert bs.enrich(tmp_path / "out.xlsx", tmp_path / "again.xlsx").rows == 2


def test_what_cannot_be_written_is_refused_before_a_row_is_verified(tmp_path: Path) -> None:
    """A dry run says so as well: nothing may be spent for an output that cannot be."""
    book = openpyxl.Workbook()
    for row in (["b_no", "name"], ["124-81-00998", "가"]):
        book.active.append(row)
    book.save(tmp_path / "in.xlsx")
    for options, said in (
        ({"output": tmp_path / "out.xlsm"}, "would not open it as .xlsm"),
        ({"output": tmp_path / "out.xlsm", "select": ["b_no"]}, "holds no macros"),
        ({"summary": True}, "leave `summary=True` out"),
    ):
        with pytest.raises(OutputError, match=said):
            bs.plan(tmp_path / "in.xlsx", **options)
