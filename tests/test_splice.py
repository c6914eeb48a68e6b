"""A spliced workbook differs from the user's by the new cells and what shows them, and by nothing else."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

import openpyxl
import pandas as pd
import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st
from openpyxl.worksheet.formula import ArrayFormula

import bansong as bs
from bansong.errors import AccountingError, BansongError, OutputError
from bansong.tables.excel import package, proof
from bansong.tables.excel import splice as extend
from bansong.tables.excel.sheet_xml import COLOURED, SheetXml
from books import MAIN, NUMBER, PNG, SHEET, STYLES, cells, made, parts, spliced, with_part, with_parts, written
from conftest import NINE
from examples import examples
from office import converted

pytestmark = pytest.mark.filterwarnings("ignore:.*xtension is not supported:UserWarning")


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
        book.add_worksheet("표").add_table("A1:B3", {"data": [[1, 2], [3, 4]]})


def by_pandas(path: Path) -> None:
    frame = pd.DataFrame({"b_no": [NUMBER, "2208162517"], "when": pd.to_datetime(["2026-01-02", None]), "x": [1.5, 2]})
    frame.to_excel(path, index=False)


def by_a_table(path: Path) -> None:
    table = {"data": [[NUMBER, "가"], ["2208162517", "나"]], "columns": [{"header": "b_no"}, {"header": "name"}]}
    made(path, [], lambda sheet: sheet.add_table("B3:C5", table))


def by_libreoffice(path: Path) -> None:
    pd.DataFrame({"b_no": [NUMBER, "2208162517"], "name": ["가", "나"]}).to_csv(path.with_name("made.csv"), index=False)
    converted(path.with_name("made.csv"), "xlsx").replace(path)


MAKERS = [by_xlsxwriter, by_pandas, by_a_table, pytest.param(by_libreoffice, marks=pytest.mark.process)]


def taken_out(xml: bytes, columns: set[str]) -> list[object]:
    """A sheet, read by a parser, without the cells of some columns, its ranges, widths and the colours of words."""

    def told(element: ElementTree.Element) -> tuple[object, ...]:
        inner = [told(child) for child in element if child.tag != f"{MAIN}c" or column(child) not in columns]
        return element.tag, element.attrib, element.text, element.tail, inner

    def column(cell: ElementTree.Element) -> str:
        return re.sub("[0-9]", "", cell.get("r", ""))

    def ours(element: ElementTree.Element) -> bool:
        texts = [str(formula.text).strip('"') for formula in element.iter(f"{MAIN}formula")]
        return element.tag in (f"{MAIN}dimension", f"{MAIN}cols") or texts in map(list, COLOURED.values())

    root = ElementTree.fromstring(xml)
    for element in root.iter(f"{MAIN}autoFilter"):
        del element.attrib["ref"]
    return [told(element) for element in root if not ours(element)]


def headed(path: Path) -> dict[str, str]:
    rows = openpyxl.load_workbook(path).worksheets[0].iter_rows()
    return {cell.value: cell.column_letter for row in rows for cell in row if cell.value in NINE}


def packed(path: Path) -> dict[str, tuple[int, int, int]]:
    with ZipFile(path) as archive:
        return {part.filename: (part.CRC, part.compress_size, part.file_size) for part in archive.infolist()}


@pytest.mark.parametrize("make", MAKERS)
def test_the_workbook_comes_back_as_it_was_but_for_the_new_cells(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Other parts keep their packed bytes, a parser sees the same sheet but for our cells; again, nothing changes."""
    source = tmp_path / "in.xlsx"
    make(source)
    _, out = spliced(source)
    assert list(parts(source)) == list(parts(out))
    touched = {name for name, data in parts(out).items() if data != parts(source)[name]}
    more = {by_xlsxwriter: {"xl/workbook.xml"}, by_a_table: {"xl/tables/table1.xml"}}  # its filter's name, its table
    assert touched == {SHEET, STYLES} | more.get(make, set())
    same = parts(source).keys() - touched
    assert {name: packed(source)[name] for name in same} == {name: packed(out)[name] for name in same}
    columns = set(headed(out).values())
    assert len(columns) == 9
    assert taken_out(parts(out)[SHEET], columns) == taken_out(parts(source)[SHEET], set())
    before, after = (ElementTree.fromstring(parts(path)[STYLES]) for path in (source, out))
    olds, news = ({one.tag: [*map(ElementTree.tostring, one)] for one in styles} for styles in (before, after))
    assert olds.keys() <= news.keys()
    for tag, entries in news.items():  # styles gain entries at the end of their lists only
        grown = tag in (f"{MAIN}cellXfs", f"{MAIN}dxfs")
        assert entries[: len(olds.get(tag, []))] == olds.get(tag, []) if grown else entries == olds[tag]
        assert not grown or after.find(tag).get("count") == str(len(entries))  # type: ignore[union-attr]
    assert len(news[f"{MAIN}dxfs"]) == len(olds.get(f"{MAIN}dxfs", [])) + 5
    assert parts(spliced(out)[1]) == parts(out)


def test_other_answers_replace_the_old_ones_in_place(tmp_path: Path) -> None:
    by_xlsxwriter(tmp_path / "in.xlsx")
    _, once = spliced(tmp_path / "in.xlsx")
    other = ("closed", 1.0, None, "do_not_send", None, "서울", "x", "cached", "note")
    _, twice = spliced(once, tmp_path / "twice.xlsx", other)
    assert [cell.value for cell in openpyxl.load_workbook(twice).worksheets[0][3]][3:12] == list(other)
    assert taken_out(parts(twice)[SHEET], set("DEFGHIJKL")) == taken_out(parts(once)[SHEET], set("DEFGHIJKL"))
    assert parts(twice)[STYLES] == parts(once)[STYLES]


def test_the_new_conditional_format_stands_in_its_place_behind_the_others(tmp_path: Path) -> None:
    """In the schema's order, before validations and drawings, with priorities that no other rule has."""
    by_xlsxwriter(tmp_path / "in.xlsx")
    root = ElementTree.fromstring(parts(spliced(tmp_path / "in.xlsx")[1])[SHEET])
    names = [element.tag.removeprefix(MAIN) for element in root]
    place = names.index("conditionalFormatting")
    assert names.count("conditionalFormatting") == 4
    assert names.index("autoFilter") < place < place + 4 == names.index("dataValidations")
    priorities = [rule.get("priority") for rule in root.iter(f"{MAIN}cfRule")]
    assert len(set(priorities)) == len(priorities) == 12


def test_new_cells_look_like_their_neighbours_but_for_formats_that_hide_or_change_texts(tmp_path: Path) -> None:
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["b_no", "secret"], book.add_format({"num_format": ";;;", "bold": True}))
        for row, shape in enumerate([";;;", "yyyy-mm-dd", 49, "#,##0"], 1):
            style = book.add_format({"num_format": shape, "bg_color": "#FFEEDD", "border": 1})
            sheet.write_row(row, 0, [NUMBER, 45000], style)
    sheet = openpyxl.load_workbook(spliced(tmp_path / "in.xlsx")[1]).active
    assert [sheet.cell(row, 3).number_format for row in range(1, 6)] == ["General"] * 3 + ["@", "General"]
    assert [sheet.cell(row, 4).number_format for row in range(2, 6)] == ["0.00%"] * 4
    assert {sheet.cell(row, column).fill.fgColor.rgb for row in range(2, 6) for column in range(3, 12)} == {"FFFFEEDD"}
    assert (sheet["C1"].font.b, sheet["K5"].border.bottom.style, sheet.dimensions) == (True, "thin", "A1:K5")


def test_new_columns_are_wide_and_shown_and_widths_of_the_user_stay(tmp_path: Path) -> None:
    def hide(sheet: xlsxwriter.worksheet.Worksheet) -> None:
        sheet.set_column("B:D", 9, None, {"level": 1})
        sheet.set_column("E:XFD", None, None, {"hidden": True})

    _, once = spliced(made(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"]], hide))
    columns = [dict(element.attrib) for element in ElementTree.fromstring(parts(once)[SHEET]).iter(f"{MAIN}col")]
    assert [(int(c["min"]), int(c["max"])) for c in columns] == [(2, 2), *((n, n) for n in range(3, 12)), (12, 16384)]
    assert columns[0]["outlineLevel"] == columns[-1]["hidden"] == "1"
    assert not any({"hidden", "outlineLevel", "collapsed"} & column.keys() for column in columns[1:-1])
    book = openpyxl.load_workbook(once)
    assert book.active.column_dimensions["I"].width == 70
    book.active.column_dimensions["I"].width = 33
    book.save(once)
    assert openpyxl.load_workbook(spliced(once)[1]).active.column_dimensions["I"].width == 33


def with_macros(path: Path) -> Path:
    by_xlsxwriter(path)
    types = parts(path)["[Content_Types].xml"]
    plain, macros = b"openxmlformats-officedocument.spreadsheetml.sheet.main", b"ms-excel.sheet.macroEnabled.main"
    kind = b'<Default Extension="bin" ContentType="application/vnd.ms-office.vbaProject"/><Override'
    types = types.replace(b"application/vnd." + plain, b"application/vnd." + macros).replace(b"<Override", kind, 1)
    return with_parts(path, {"[Content_Types].xml": types, "xl/vbaProject.bin": bytes(range(256)) * 40})


def test_macros_are_kept_in_place_and_no_extension_of_the_other_kind_is_given(tmp_path: Path) -> None:
    """Refused before a row is verified, in a plan, too: nothing may be spent for an output that cannot be."""
    book, plain = with_macros(tmp_path / "in.xlsm"), written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"]])
    for source, options, said in (
        (book, {"output": tmp_path / "out.xlsx"}, "would not open it as .xlsx; give `output='OUT.xlsm'`"),
        (plain, {"output": tmp_path / "out.xlsm"}, "would not open it as .xlsm; give `output='OUT.xlsx'`"),
        (plain, {"output": tmp_path / "out.xlsm", "select": ["b_no"]}, "a new workbook holds no macros"),
        (plain, {"summary": True}, "leave `summary=True` out"),
    ):
        with pytest.raises(OutputError, match=said):
            bs.plan(source, **options)
    bs.enrich(book, in_place=True)
    out = parts(book)
    assert out["xl/vbaProject.bin"] == bytes(range(256)) * 40
    assert b"macroEnabled" in out["[Content_Types].xml"]
    assert (tmp_path / "in.xlsm.bak").exists()


@pytest.mark.parametrize(
    "rows",
    [
        [[None, "b_no", "name", "address"], ["=ROW()", NUMBER, "가", "서울 1"]],
        [["b_no", "name", "address", None], [NUMBER, "가", "서울 1", "=1+1"]],
        [["=TODAY()"], ["b_no", "name", "address"], [NUMBER, "가", "서울 1"]],
        [[None, None], [None, "b_no", "name"], [None, NUMBER, "가"], [None, None, "나"]],
        [["b_no", "name"]],
    ],
    ids=["formulas to the left", "formulas to the right", "a formula above", "blank edges", "a header alone"],
)
def test_what_lies_around_the_table_is_not_overwritten(tmp_path: Path, rows: list[list[object]]) -> None:
    _, out = spliced(written(tmp_path / "in.xlsx", rows))
    after = openpyxl.load_workbook(out).active
    found = [[after.cell(down, right).value for right in range(1, len(row) + 1)] for down, row in enumerate(rows, 1)]
    assert (found, headed(out).keys()) == (rows, set(NINE))
    assert cells(spliced(out)[1]) == cells(out)


def test_merged_cells_and_styled_blanks_beside_the_table_do_no_harm(tmp_path: Path) -> None:
    source = written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"], ["합계", None]])
    book = openpyxl.load_workbook(source)
    book.active.merge_cells("A3:D3")
    for row, column in ((1, 5), (2, 5), (1, 9), (1, 20), (2, 20)):
        book.active.cell(row, column).fill = openpyxl.styles.PatternFill("solid", fgColor="FFFF00")
    book.save(source)
    _, out = spliced(source)
    sheet = openpyxl.load_workbook(out).active
    assert [cell.value for cell in sheet[1]][4:13] == list(NINE)
    assert sheet["T1"].fill.fgColor.rgb == "00FFFF00"
    assert "A3:D3" in [str(merged) for merged in sheet.merged_cells.ranges]
    assert cells(spliced(out)[1]) == cells(out)


def test_the_range_of_an_array_formula_is_not_free_space_and_not_overwritten(tmp_path: Path) -> None:
    """Excel would say that the workbook is damaged, or lose our cells when it works the formula out."""
    source, again = tmp_path / "in.xlsx", tmp_path / "again.xlsx"
    book = openpyxl.load_workbook(written(source, [["b_no", "name"], [NUMBER, "가"], [NUMBER, "나"]]))
    spliced(source, again)
    book.active.cell(2, 3).value = ArrayFormula("C2:E3", "=TRANSPOSE(C2:E3)")
    book.save(source)
    sheet = openpyxl.load_workbook(spliced(source)[1]).active
    assert [cell.value for cell in sheet[1]] == ["b_no", "name", None, None, None, *NINE]
    assert sheet["C2"].value.ref == "C2:E3"
    for cell, formula in (("C2", ArrayFormula("C2:D3", "=TRANSPOSE(C2:D3)")), ("E4", '=COUNTIF(E2:E3,"C")')):
        book = openpyxl.load_workbook(again)
        book.active["A4"], book.active[cell] = "합계", formula
        book.save(tmp_path / "edited.xlsx")
        with pytest.raises(OutputError, match="formulas stand in the columns of the earlier enrichment"):
            spliced(tmp_path / "edited.xlsx")


@pytest.mark.parametrize(
    ("text", "result"),
    [('=IF(A9="","",1)', ""), ("=NA()", "#N/A"), ("   ", None)],
    ids=["formulas filled down", "errors filled down", "white space"],
)
def test_rows_behind_the_table_that_hold_nothing_are_no_rows_and_stay(
    tmp_path: Path, text: str, result: str | None
) -> None:
    def fill_down(sheet: xlsxwriter.worksheet.Worksheet) -> None:
        for row in range(3, 30):
            cell = (row, 2, text)
            sheet.write_string(*cell) if result is None else sheet.write_formula(*cell, None, result)

    rows = [["b_no", "name", "check"], [NUMBER, "가", "x"], [NUMBER, "가", "x"]]
    _, out = spliced(made(tmp_path / "in.xlsx", rows, fill_down))
    before, after = (openpyxl.load_workbook(path).active for path in (tmp_path / "in.xlsx", out))
    assert [row[:3] for row in after.values] == [*before.values]
    assert [after.cell(row, 11).value for row in (1, 2, 3, 4)] == ["row_status", "verified", "verified", None]
    assert cells(spliced(out)[1]) == cells(out)


def test_empty_results_of_formulas_count_as_the_reader_counts_them(tmp_path: Path) -> None:
    source = written(tmp_path / "in.xlsx", [[None, "b_no", "name"], ["=ROW()", NUMBER, "가"]])
    _, out = spliced(with_part(source, SHEET, ('<c r="A2"', '<c r="A2" t="str"')))
    assert [row[-11:] for row in cells(spliced(out)[1])] == [row[-11:] for row in cells(out)]
    assert cells(out)[0][-11:] == ("b_no", "name", *NINE)


def sheet_of(path: Path, data: bytes, behind: bytes = b"") -> Path:
    by_pandas(path)
    space = MAIN[1:-1].encode()
    return with_parts(
        path, {SHEET: b'<worksheet xmlns="%b"><sheetData>%b</sheetData>%b</worksheet>' % (space, data, behind)}
    )


def cell(reference: str, text: str) -> bytes:
    return f'<c r="{reference}" t="inlineStr"><is><t>{text}</t></is></c>'.encode()


HEAD = b'<row r="1">' + cell("A1", "b_no") + cell("B1", "name") + b"</row>"
BODY = b'<row r="2" spans="1:2" ht="20">' + cell("A2", NUMBER) + cell("B2", "a") + b"</row>"
THIRD = b'<row r="3">' + cell("A3", NUMBER) + b"</row>"


USUAL = HEAD + BODY
CDATA = USUAL.replace(b"<t>a</t>", b"<t><![CDATA[a]]></t>")
ROWS, END = b"<worksheet><sheetData>", b"</sheetData></worksheet>"
REFUSED_SHEETS = {
    "hold comments": (
        *(ROWS + HEAD + b"<!-- </row> -->" + BODY, ROWS + HEAD + b"<?pi x?>" + BODY, ROWS + CDATA),
        ROWS + b"<!-- <sheetData> -->" + USUAL,
    ),
    "no references": (ROWS + USUAL.replace(b'<row r="2"', b"<row"), ROWS + USUAL.replace(b'<c r="B2"', b"<c")),
    "do not stand in order": (ROWS + USUAL + BODY,),
    "holds no rows": (ROWS,),
    "unusual way|damaged": (ROWS + USUAL + b"</sheetData><mergeCells>",),
    "document type": (b'<!DOCTYPE a [<!ENTITY b "b">]>' + ROWS + USUAL,),
    "encoded in ISO-8859-1": (b'<?xml version="1.0" encoding="ISO-8859-1"?>' + ROWS + USUAL,),
}


@pytest.mark.parametrize("why", REFUSED_SHEETS)
def test_what_cannot_be_spliced_safely_is_refused(why: str) -> None:
    for data in REFUSED_SHEETS[why]:
        with pytest.raises(OutputError, match=why):
            SheetXml.parse([data + END])


def test_odd_packages_are_extended_rightly_or_refused(tmp_path: Path) -> None:
    """A blank in a tag, a style that is not there, a part's name in another case; cells out of order."""
    for part, old, new in (
        (SHEET, "<sheetData>", "<sheetData >"),
        (SHEET, '<c r="B2"', '<c r="B2" s="77"'),
        ("xl/_rels/workbook.xml.rels", "sheet1.xml", "Sheet1.xml"),
    ):
        source = with_part(sheet_of(tmp_path / "in.xlsx", USUAL), part, (old, new))
        assert cells(spliced(source)[1])[1][-2] == "verified"
    sheet_of(source, USUAL.replace(b"</c></row><row", b'</c><c r="Z1"/><c r="Y1"/></row><row'))
    with pytest.raises(OutputError, match="another order than their columns"):
        spliced(source)


def test_a_sheet_is_taken_apart_alike_however_it_is_cut_in_pieces(tmp_path: Path) -> None:
    data = HEAD + b'<row r="2"/>' + THIRD + b'<row r="7"/>\n'
    xml = parts(sheet_of(tmp_path / "in.xlsx", data, behind=b"<!-- </row> -->"))[SHEET]
    whole = SheetXml.parse([xml])
    for size in (1, 7, 64):
        cut = SheetXml.parse(xml[at : at + size] for at in range(0, len(xml), size))
        assert cut.rows.equals(whole.rows)
        assert (cut.around, cut.rest, cut.columns) == (whole.around, whole.rest, whole.columns)


@contextmanager
def wrong_writer(old: bytes, new: bytes, *, proved: bool = True) -> Iterator[None]:
    """Let the writer put something else; ``proved``: the bytes of the finished sheet are compared."""
    right = extend.encode_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extend, "encode_rows", lambda *rows: re.sub(re.escape(old), lambda _: new, right(*rows), count=1))
        if not proved:
            patch.setattr(extend.Splice, "prove", lambda _, pieces: [*pieces] and None)
        yield


WRONG = [
    *((b"<t>verified</t>", b"<t></t>"), (b'<c r="A3"', b'<c r="A3" s="0"'), (b'<c r="B2"', b'<c r="B2" s="0"')),
    *((b"</is></c></row>", b"</is></c><c r='Z1'/></row>"), (b'<row r="3"', b'<row r="4"')),
    *((b'<c r="C2"', b'<c r="C3"'), (b'<c r="C2" t="inlineStr"><is><t>active</t></is></c>', b"")),
    *((b'<c r="D2"', b'<c r="Z2"/><c r="D2"'), (b'<c r="D2"', b'<c r="A2"/><c r="D2"')),
    *((b'<c r="C3"', b'<x/><c r="C3"'), (b'<row r="3"', b'<row r="2"></row><row r="3"')),
]


@pytest.mark.parametrize(("piece", "again"), [(100, True), (2_000_000, False)])
def test_a_finished_sheet_that_is_not_the_old_one_with_the_cells_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool, piece: int
) -> None:
    monkeypatch.setattr(package, "_PIECE", piece)  # bytes that are compared at once
    source = sheet_of(tmp_path / "in.xlsx", HEAD + BODY + THIRD)
    source = spliced(source)[1] if again else source
    for old, new in WRONG:
        with wrong_writer(old, new), pytest.raises((AccountingError, OutputError)):
            spliced(source, tmp_path / "out.xlsx")


@pytest.mark.parametrize(
    "damaged",
    [
        *(b'<c r="B2" s="0">', b'<c r="B2" s="0" s="0"/>', b'<c r="B2" x:s="0"/>', b'<x:c r="B2" s="0"/>'),
        *(b'<c r="B2" s="0"/><c r="C2"><v>&x;</v></c>', b'<c r="A2"><v>1</v></c>'),
    ],
)
def test_what_the_writers_own_reading_overlooks_is_not_published_either(tmp_path: Path, damaged: bytes) -> None:
    source = sheet_of(tmp_path / "in.xlsx", HEAD + BODY.replace(cell("B2", "a"), b'<c r="B2" s="0"/>') + THIRD)
    out = tmp_path / "out.xlsx"
    bs.enrich(source, out)
    before = out.read_bytes()
    with (
        wrong_writer(b'<c r="B2" s="0"/>', damaged, proved=False),
        pytest.raises(AccountingError, match=r"in.xlsx \[Sheet1\]: nothing was published"),
    ):
        bs.enrich(source, out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("titled", [False, True])
def test_another_reader_finds_every_cell_that_is_not_as_it_was_read(tmp_path: Path, titled: bool) -> None:
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
    for old, new, place in (
        (b'<c r="B3" t="s">', b'<c r="B3" t="n">', "B3"),
        (b"<v>3400.5</v>", b"<v>3400.6</v>", "C4"),
        (b"<v>46024</v>", b"<v>46025</v>", "D3"),
        (b't="b"><v>1', b't="b"><v>0', "E3"),
        (b"<t>active</t>", b"<t>closed</t>", "F3"),
        (b"<v>0.25</v>", b"<v>0.24</v>", "G3"),
    ):
        with (
            wrong_writer(old, new, proved=False),
            pytest.raises(AccountingError, match=rf"in.xlsx \[Sheet1\].*{place}"),
        ):
            spliced(tmp_path / "in.xlsx")


def test_a_large_sheet_is_proved_stretch_by_stretch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "_CELLS_AT_ONCE", 40)  # three rows of these
    monkeypatch.setattr(proof, "_SCANNED_BYTES", 64)
    monkeypatch.setattr(package, "_PIECE", 100)
    rows = [b'<row r="%d">' % r + cell(f"A{r}", NUMBER) + cell(f"B{r}", "a") + b"</row>" for r in (2, 3, 4, 7, 8, 9)]
    source = sheet_of(tmp_path / "in.xlsx", HEAD + b"".join(rows))
    spliced(source)
    for wrong, text in (("B7", "a"), ("C9", "active")):
        with (
            wrong_writer(cell(wrong, text), cell(wrong, f"?{text[1:]}"), proved=False),
            pytest.raises(AccountingError, match=rf"in.xlsx \[Sheet1\].*{wrong}"),
        ):
            spliced(source)


def test_parts_that_would_come_back_otherwise_or_are_damaged_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_pandas(tmp_path / "in.xlsx")
    right = package._raw_part

    def wrong(archive: ZipFile, part: object) -> bytes:
        data = right(archive, part)  # type: ignore[arg-type]
        return data[:-1] + b"\0" if archive.filename and "out" in archive.filename else data

    monkeypatch.setattr(package, "_raw_part", wrong)
    with pytest.raises(AccountingError, match="is not as it was"):
        spliced(tmp_path / "in.xlsx")
    monkeypatch.undo()
    with ZipFile(tmp_path / "in.xlsx") as archive:
        crc = archive.getinfo(SHEET).CRC.to_bytes(4, "little")
    data = (tmp_path / "in.xlsx").read_bytes().replace(crc, (zlib.crc32(b"") + 1).to_bytes(4, "little"))
    (tmp_path / "in.xlsx").write_bytes(data)
    with ZipFile(tmp_path / "in.xlsx") as archive, pytest.raises(OutputError, match=f"{SHEET} cannot be read"):
        package.read_part(archive, SHEET)


SPELLINGS = {  # of a row's start, a cell, a row's end, what stands between; those in REFUSED may be refused
    "row": (
        *('<row r="{r}"{more}', "<row r='{r}'{more}", '<row\n  spans="1:3" r="{r}" {more}', "<row{more}"),
        '<row x:note="a > b / />" r="{r}"{more}',
    ),
    "more": ("", ' ht="9.75" customHeight="1"', " hidden='1'", ' s="1" customFormat="1"'),
    "cell": (
        *(
            "",
            '<c r="{at}" s="1"/>',
            "<c r='{at}' s='1' />",
            '<c s="1" r="{at}"></c>',
            '<c r="{at}" x:note="/>" s="1"/>',
        ),
        '<c r="{at}" t="inlineStr"><is><t>x &lt;row/></t></is></c>',
        "<c t='inlineStr' r='{at}'><is><t xml:space='preserve'> y </t></is></c>",
        '<c r="{at}" t="inlineStr"><is><r><rPr><b/></rPr><t>글</t></r><r><t>자 /></t></r></is></c>',
        *('<c r="{at}"><v>1.5</v></c>', '<c r="{at}" x:note="a > b"><f>1+1</f><v>2</v></c>'),
        *('<c r="{at}" t="str"><f>""</f><v></v></c>', '<c r="{at}" t="b"><v>1</v></c >'),
        '<c r="{at}" t="e"><f>NA()</f><v>#N/A</v></c>',
        '<c r="{at}" t="inlineStr"><is><t><![CDATA[</row>]]></t></is></c>',
        '<c t="inlineStr"><is><t>nowhere</t></is></c>',
    ),
    "end": ("</row>", "</row >", "</row\n>"),
    "gap": ("", "\n  ", "\t", "<!-- </row> -->", "<?mark <row/> ?>"),
}
REFUSED = ("<row{more}", "<![CDATA", "nowhere", "<!--", "<?mark")
Shape = list[tuple[str, str, str, str, list[str], bool]]
drawn = [st.sampled_from(SPELLINGS[name]) for name in ("gap", "row", "more", "end")]
inner_cells = st.lists(st.sampled_from(SPELLINGS["cell"]), min_size=4, max_size=4)
odd_rows = st.lists(st.tuples(*drawn, inner_cells, st.booleans()), min_size=1, max_size=6)


def odd_sheet(shape: Shape) -> bytes:
    """Rows of a sheet in odd spellings, between a usual header and a usual last row."""
    rows = [HEAD.decode()]
    for number, (gap, row, more, end, inside, closed) in enumerate(shape, 2):
        inner = "".join(cell.format(at=f"{letter}{number}") for letter, cell in zip("ABCZ", inside, strict=True))
        start = row.format(r=number, more=more)
        rows.append(f"{gap}{start}/>" if closed and not inner else f"{gap}{start}>{inner}{gap}{end}")
    last = len(shape) + 2
    return "".join([*rows, f'<row r="{last}">{cell(f"B{last}", "end").decode()}</row>']).encode()


@examples(60, default=4)
@given(shape=odd_rows)
def test_however_a_sheet_is_spelt_its_cells_stay_and_ours_come_in_or_it_is_refused(
    tmp_path: Path, shape: Shape
) -> None:
    source, out = sheet_of(tmp_path / "in.xlsx", odd_sheet(shape)), tmp_path / "out.xlsx"
    with_part(source, SHEET, ("<worksheet ", '<worksheet xmlns:x="urn:x" xmlns:mc="urn:mc" '))
    out.unlink(missing_ok=True)
    try:
        spliced(source, out)
    except BansongError:
        assert any(mark in text for row in shape for text in (row[0], row[1], *row[4]) for mark in REFUSED)
        assert not out.exists()
        return
    ours = headed(out)
    before, after = (openpyxl.load_workbook(path).active for path in (source, out))
    for row in before.iter_rows():
        for old in row:
            new = after[old.coordinate]
            if old.column_letter in ours.values():
                assert old.value is None  # a blank cell that only had a style
            else:
                assert (new.value, new.data_type, new.style_id) == (old.value, old.data_type, old.style_id)
    heights = [{r: (d.height, d.hidden) for r, d in sheet.row_dimensions.items()} for sheet in (before, after)]
    assert heights[0].items() <= heights[1].items()
    assert [cell.value for cell in after[ours["row_status"]]] == ["row_status", *["verified"] * (len(shape) + 1)]
    assert parts(spliced(out, tmp_path / "again.xlsx")[1])[SHEET] == parts(out)[SHEET]
