"""Nothing that a workbook contains kills the process, takes memory without bound or is read as something else."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.errors import InputError
from bansong.tables.detect import open_table
from bansong.tables.excel.limits import Extent, _pattern_beyond
from bansong.tables.excel.sheet_xml import column_letter
from examples import examples
from memory import STEADY

MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
LINKS: Final = (
    f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/worksheet" Target="worksheets/sheet1.xml"/>'
    f'<Relationship Id="rId2" Type="{OFFICE}/sharedStrings" Target="sharedStrings.xml"/></Relationships>'
)
ROOT: Final = (
    f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
)
BOOK: Final = f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>%s</sheets></workbook>'
START: Final = f'<worksheet xmlns="{MAIN}"><sheetData>'
END: Final = "</sheetData></worksheet>"
HEAD: Final = '<row r="1"><c r="A1" t="inlineStr"><is><t>b_no</t></is></c><c r="B1"><v>1</v></c></row>'
SHARED: Final = f'<sst xmlns="{MAIN}"><si><t>%s</t></si></sst>'
LAUGHS: Final = "<!DOCTYPE a [{}]>".format(
    "".join(f'<!ENTITY a{i} "{(f"&a{i - 1};" if i else "ha") * 10}">' for i in range(10))
)
MEBIBYTE: Final = 1 << 20
READ: Final = """
import json, os, pathlib, resource, sys
from contextlib import ExitStack
from memory import peak
from bansong.errors import BansongError
from bansong.tables.detect import FORMATS
from bansong.tables.streams import File
from bansong.base.options import ReadOptions
answers = {}
for name in sys.argv[1:]:
    path, started = pathlib.Path(name), sum(os.times()[:4])
    try:
        table = FORMATS[path.suffix[1:]].verbs.read(File(path, path), ReadOptions(), ExitStack())
        rows = table.frame.select(table.ids).collect().rows()
        answer = ["rows", str(rows[:9])]
    except BansongError as error:
        answer = [type(error).__name__, str(error)]
    except BaseException as error:
        answer = ["not on purpose: " + type(error).__name__, str(error)]
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    answers[path.name] = [*answer, max(peak() >> 20, of_children), sum(os.times()[:4]) - started]
print(json.dumps(answers))
"""


def workbook(
    path: Path,
    rows: str | Sequence[bytes] = "",
    *,
    sheet: str | None = None,
    book: str = BOOK % '<sheet name="S" sheetId="1" r:id="rId1"/>',
    links: str = LINKS,
    shared: str | None = None,
) -> None:
    """A workbook of the fewest parts; rows stand below a header, ``sheet`` replaces all of the sheet's XML."""
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("[Content_Types].xml", f'<Types xmlns="{PACKAGE}/content-types"/>')
        archive.writestr("_rels/.rels", ROOT)
        archive.writestr("xl/workbook.xml", book)
        archive.writestr("xl/_rels/workbook.xml.rels", links)
        if shared is not None:
            archive.writestr("xl/sharedStrings.xml", shared)
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as part:
            if sheet is not None:
                part.write(sheet.encode())
                return
            part.write((START + HEAD).encode())
            for piece in [rows.encode()] if isinstance(rows, str) else rows:
                part.write(piece)
            part.write(END.encode())


def spreadsheet(path: Path, rows: str) -> None:
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    names = " ".join(f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in ("office", "table", "text"))
    entry = f'<m:file-entry m:full-path="/" m:media-type="{kind}"/>'
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", kind)
        space = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"
        archive.writestr("META-INF/manifest.xml", f'<m:manifest xmlns:m="{space}">{entry}</m:manifest>')
        body = f'<office:body><office:spreadsheet><table:table table:name="S">{rows}</table:table>'
        end = "</office:spreadsheet></office:body></office:document-content>"
        archive.writestr("content.xml", f"<office:document-content {names}>{body}{end}")


def lying(path: Path) -> None:
    """A sheet of 4 MB that states 100 bytes in the zip's directory."""
    workbook(path, [os.urandom(1000).hex().encode().join([b"<row><!--", b"--></row>"]) for _ in range(2000)])
    content = bytearray(path.read_bytes())
    place = content.rfind(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 100)
    path.write_bytes(content)


def cell(reference: str, value: str = "1") -> str:
    return f'<row r="2"><c r="{reference}"><v>{value}</v></c></row>'


def far(places: str) -> str:
    return f'<row r="1048576"><c {places}><v>1</v></c></row>'


BARE = "<c><v>1</v></c>"
PREFIXED = (
    f'<x:worksheet xmlns:x="{MAIN}"><x:sheetData><x:row r="1"><x:c r="A1"><x:v>1</x:v></x:c>'
    '<x:c r="XFD1048576"><x:v>1</x:v></x:c></x:row></x:sheetData></x:worksheet>'
)
WIDE = "".join(f'<row r="{r}"><c r="A{r}"><v>1</v></c><c r="XFD{r}"><v>1</v></c></row>' for r in range(2, 3_001))
LONGEST = "".join(f'<row r="{r}"><c r="A{r}" t="s"><v>0</v></c></row>' for r in range(2, 60_000))
TEXT = [b'<row r="2"><c r="A2" t="inlineStr"><is><t>', *[b"a" * MEBIBYTE] * 4, b"</t></is></c></row>"]


def sheets_called(*names: str) -> str:
    return BOOK % "".join(f'<sheet name="{name}" sheetId="1" r:id="rId1"/>' for name in names)


def twice(path: Path) -> None:
    with ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "")
        archive.writestr("XL/workbook.xml", "")


def cut_off(path: Path) -> None:
    workbook(path)
    path.write_bytes(path.read_bytes()[:-50])


def repeated(path: Path, times: int) -> None:
    cells = '<table:table-cell table:number-columns-repeated="16384" office:value-type="string"><text:p>x</text:p>'
    row = f'<table:table-row table:number-rows-repeated="{times}">{cells}</table:table-cell></table:table-row>'
    spreadsheet(path, row)


def noise(path: Path) -> None:
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(range(256)) * 64)


def book(rows: str | Sequence[bytes] = "", **parts: str) -> Callable[[Path], None]:
    return partial(workbook, rows=rows, **parts)


MEMORY_NEEDED = "bytes of memory to read"
NO_TYPE = "declares a document type or entities"
UNREADABLE = "is not a readable workbook"
DAMAGED = "is a damaged workbook"
MADE: dict[str, tuple[Callable[[Path], None], str]] = {
    "laughs.xlsx": (book(sheet=LAUGHS + START + HEAD + cell("A2").replace("<v>1", "<v>&a9;") + END), NO_TYPE),
    "laughs2.xlsx": (book(book=f"<!-- -->{LAUGHS}" + BOOK % '<sheet name="&a9;" sheetId="1" r:id="rId1"/>'), NO_TYPE),
    "unsorted.xlsx": (book('<row r="9"><c r="A9"/></row><row r="3"><c r="A3"/></row>'), "has rows out of order"),
    "zero.xlsx": (book(cell("A0")), "cell 'A0', which no sheet has"),
    "huge.xlsx": (book(cell("A99999999999")), "cell 'A99999999999', which no sheet has"),
    "wraps.xlsx": (book(cell("A4294967297")), "cell 'A4294967297', which no sheet has"),
    "beyond.xlsx": (book(cell("XFE2")), "cell 'XFE2', which no sheet has"),
    "sheetless.xlsx": (book(book=BOOK % ""), "is a workbook without sheets"),
    "namesakes.xlsx": (book(book=sheets_called("S", "S")), "two sheets have one name"),
    "broken-name.xlsx": (book(book=sheets_called("S", "T\n")), "the names of its sheets can be read in two ways"),
    "linkless.xlsx": (book(links=f'<Relationships xmlns="{PACKAGE}/relationships"/>'), DAMAGED),
    "missing.xlsx": (book(links=LINKS.replace("sheet1", "sheet9")), "worksheets/sheet9.xml of sheet 'S' is missing"),
    "itself.xlsx": (book(links=LINKS.replace("worksheets/sheet1.xml", "workbook.xml")), "sheet 'S' has no rows"),
    "noise.xlsx": (book(sheet="<worksheet>\x00\x01<<<>>>"), "sheet 'S' has no rows"),
    "twice.xlsx": (twice, "its part xl/workbook.xml is there twice"),
    "zip.xlsx": (cut_off, "is a damaged zip"),
}
HEAVY: dict[str, tuple[Callable[[Path], None], str]] = {
    "far.xlsx": (book(far('r="XFD1048576"')), "spans 1,048,576 rows × 16,384 columns, more than 30,000,000 cells"),
    "order.xlsx": (book(far('s="0" r="XFD1048576"')), MEMORY_NEEDED),
    "quotes.xlsx": (book(far("r='XFD1048576'")), MEMORY_NEEDED),
    "nowhere.xlsx": (book(f"<row>{BARE * 16384}</row>{f'<row>{BARE}</row>' * 200_000}"), MEMORY_NEEDED),
    "prefix.xlsx": (book(sheet=PREFIXED), MEMORY_NEEDED),
    "wide.xlsx": (book(WIDE), "16,384 columns, more than 30,000,000 cells"),
    "text.xlsx": (book(TEXT), "has a cell of more than 32,767 characters"),
    "bomb.xlsx": (book([b"<row/>" * 200_000] * 100), "unfold to more than 200 times their size"),
    "clones.xlsx": (book(LONGEST, shared=SHARED % ("x" * 32_767)), MEMORY_NEEDED),
    "lie.xlsx": (lying, "is not as long as stated"),
    "index.xlsx": (book('<row r="2"><c r="A2" t="s"><v>99</v></c></row>', shared=SHARED % "x"), UNREADABLE),
    "cut.xlsx": (book(sheet=(START + HEAD)[:-30]), UNREADABLE),
    "repeated.ods": (partial(repeated, times=1_048_576), UNREADABLE),
    "negative.ods": (partial(repeated, times=-5), UNREADABLE),
    "noise.xls": (noise, UNREADABLE),
    "noise.xlsb": (workbook, UNREADABLE),
}


@pytest.mark.parametrize("name", MADE)
def test_a_damaged_or_dishonest_workbook_is_refused(tmp_path: Path, name: str) -> None:
    make, said = MADE[name]
    make(tmp_path / name)
    with pytest.raises(InputError) as caught, open_table(tmp_path / name):
        pass
    assert said in str(caught.value)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by means that Linux has")
def test_a_hostile_workbook_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """Within a minute of CPU each, with no process above 1,200 MB: half a gigabyte is what a reader may take here."""
    for name, (make, _) in HEAVY.items():
        make(tmp_path / name)
    command = [sys.executable, "-c", READ, *map(str, sorted(tmp_path.iterdir()))]
    env = os.environ | STEADY | {"BANSONG_LIMITS": "memory=500000000"}
    child = subprocess.run(command, env=env, capture_output=True, timeout=280, check=False)
    assert child.returncode == 0, child.stderr.decode()[-2000:]
    answers = json.loads(child.stdout)
    for name, (_, said) in HEAVY.items():
        kind, message, peak, seconds = answers[name]
        assert (kind, said in message) == ("InputError", True), (name, kind, message)
        assert (name, peak < 1200, seconds < 60) == (name, True, True)


def test_parts_that_unfold_too_far_together_are_refused_before_any_is(tmp_path: Path) -> None:
    """Each is below what a part alone may be; what the directory states of their packed size is not believed."""
    sheets = "".join(f'<sheet name="S{n}" sheetId="{n}" r:id="rId{n}"/>' for n in range(1, 6))
    links = "".join(
        f'<Relationship Id="rId{n}" Type="{OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n in range(1, 6)
    )
    path = tmp_path / "in.xlsx"
    workbook(path, book=BOOK % sheets, links=f'<Relationships xmlns="{PACKAGE}/relationships">{links}</Relationships>')
    with ZipFile(path, "a", ZIP_DEFLATED) as archive:
        for n in range(2, 6):
            archive.writestr(f"xl/worksheets/sheet{n}.xml", START + HEAD + "<row/>" * 6_000_000 + END)
    content = bytearray(path.read_bytes())
    place = content.rfind(b"PK\x01\x02")
    content[place + 20 : place + 24] = struct.pack("<I", 10**9)
    path.write_bytes(content)
    began = time.process_time()
    with pytest.raises(InputError, match="unfold to more than 200 times their size"), open_table(path):
        pass
    assert time.process_time() - began < 1


@examples(100)
@given(st.lists(st.tuples(st.integers(1, 1_048_576), st.integers(1, 16_384)), min_size=1, max_size=20), st.booleans())
def test_no_cell_lies_beyond_the_bounds_and_the_bounds_are_near(cells: list[tuple[int, int]], closer: bool) -> None:
    """Up to ten times the rows and a sixteenth more columns; where it matters, a tenth and a 64th more."""
    extent = Extent(closer=closer)
    extent.take(b"".join(b'<c r="%s%d">' % (column_letter(column).encode(), row) for row, column in cells) + b"<")
    rows, columns = (max(place) for place in zip(*cells, strict=True))
    assert extent.plain
    assert rows <= extent.rows <= min(rows * (1.1 if closer else 10) + (not closer) * 9, 1_048_576)
    assert columns <= extent.columns <= min(columns + columns / (64 if closer else 16), 16_384)


def test_the_widest_sheet_takes_few_patterns() -> None:
    """Were one made for every further column, looking over a single full row would take half a minute."""
    made = _pattern_beyond.cache_info().misses
    Extent().take(b"".join(b'<c r="%s1">' % column_letter(column).encode() for column in range(1, 16_385)) + b"<")
    assert 1 < _pattern_beyond.cache_info().misses - made < 200


def test_limits_are_adjustable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of a limit says which variable raises it, and the variable does."""
    workbook(tmp_path / "in.xlsx", cell("ZZ99"))
    monkeypatch.setenv("BANSONG_LIMITS", "cells=1000")
    with pytest.raises(InputError, match="BANSONG_LIMITS=cells="), open_table(tmp_path / "in.xlsx"):
        pass
    monkeypatch.setenv("BANSONG_LIMITS", "cells=100000")
    with open_table(tmp_path / "in.xlsx") as table:
        assert len(table.headers) == 702


@pytest.mark.parametrize("text", ["가" * 32_767, "&#xAC00;" * 32_767], ids=["plain", "coded"])
def test_the_longest_text_that_excel_allows_is_read(tmp_path: Path, text: str) -> None:
    """The cap counts characters, not bytes or escapes; one more is refused."""
    row = '<row r="2"><c r="A2" t="inlineStr"><is><t>{}</t></is></c></row>'
    workbook(tmp_path / "in.xlsx", row.format(text))
    with open_table(tmp_path / "in.xlsx") as table:
        assert table.frame.collect()["c0"].str.len_chars().to_list() == [32_767]
    workbook(tmp_path / "in.xlsx", row.format(text + "x"))
    with pytest.raises(InputError, match="more than 32,767 characters"), open_table(tmp_path / "in.xlsx"):
        pass
