"""Nothing that a workbook contains kills the process, takes memory without bound or is read as something else."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
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
    rows: str | Iterable[bytes] = "",
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


def pieces(*parts: tuple[bytes, int]) -> Iterator[bytes]:
    for piece, times in parts:
        for _ in range(times):
            yield piece


def far(places: str) -> str:
    return f'<row r="1048576"><c {places}><v>1</v></c></row>'


BARE = "<c><v>1</v></c>"
PREFIXED = (
    f'<x:worksheet xmlns:x="{MAIN}"><x:sheetData><x:row r="1"><x:c r="A1"><x:v>1</x:v></x:c>'
    '<x:c r="XFD1048576"><x:v>1</x:v></x:c></x:row></x:sheetData></x:worksheet>'
)
WIDE = (f'<row r="{r}"><c r="A{r}"><v>1</v></c><c r="XFD{r}"><v>1</v></c></row>'.encode() for r in range(2, 3_001))
TEXT = (b'<row r="2"><c r="A2" t="inlineStr"><is><t>', 1), (b"a" * MEBIBYTE, 4), (b"</t></is></c></row>", 1)
LONGEST = "".join(f'<row r="{r}"><c r="A{r}" t="s"><v>0</v></c></row>' for r in range(2, 60_000))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, int, float]]:
    """What a process of its own said of each file: kind, message, highest peak so far (MB), CPU seconds."""
    folder = tmp_path_factory.mktemp("hostile")
    workbook(folder / "far.xlsx", far('r="XFD1048576"'))
    workbook(folder / "order.xlsx", far('s="0" r="XFD1048576"'))
    workbook(folder / "quotes.xlsx", far("r='XFD1048576'"))
    workbook(folder / "nowhere.xlsx", f"<row>{BARE * 16384}</row>{f'<row>{BARE}</row>' * 200_000}")
    workbook(folder / "prefix.xlsx", sheet=PREFIXED)
    workbook(folder / "wide.xlsx", WIDE)
    workbook(folder / "text.xlsx", pieces(*TEXT))
    workbook(folder / "bomb.xlsx", pieces((b"<row/>" * 200_000, 100)))
    workbook(folder / "clones.xlsx", LONGEST, shared=SHARED % ("x" * 32_767))
    lying(folder / "lie.xlsx")
    workbook(folder / "laughs.xlsx", sheet=LAUGHS + START + HEAD + cell("A2").replace("<v>1", "<v>&a9;") + END)
    workbook(folder / "laughs2.xlsx", book=f"<!-- -->{LAUGHS}" + BOOK % '<sheet name="&a9;" sheetId="1" r:id="rId1"/>')
    workbook(folder / "unsorted.xlsx", '<row r="9"><c r="A9"><v>9</v></c></row><row r="3"><c r="A3"><v>3</v></c></row>')
    for name, reference in {"zero": "A0", "huge": "A99999999999", "wraps": "A4294967297", "beyond": "XFE2"}.items():
        workbook(folder / f"{name}.xlsx", cell(reference))
    workbook(folder / "index.xlsx", '<row r="2"><c r="A2" t="s"><v>99</v></c></row>', shared=SHARED % "x")
    workbook(folder / "sheetless.xlsx", book=BOOK % "")
    for name, called in {"namesakes": "S", "broken-name": "T\n"}.items():
        both = "".join(f'<sheet name="{sheet}" sheetId="1" r:id="rId1"/>' for sheet in ("S", called))
        workbook(folder / f"{name}.xlsx", book=BOOK % both)
    workbook(folder / "linkless.xlsx", links=f'<Relationships xmlns="{PACKAGE}/relationships"/>')
    workbook(folder / "missing.xlsx", links=LINKS.replace("sheet1", "sheet9"))
    workbook(folder / "itself.xlsx", links=LINKS.replace("worksheets/sheet1.xml", "workbook.xml"))
    workbook(folder / "cut.xlsx", sheet=(START + HEAD)[:-30])
    workbook(folder / "noise.xlsx", sheet="<worksheet>\x00\x01<<<>>>")
    with ZipFile(folder / "twice.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "")
        archive.writestr("XL/workbook.xml", "")
    (folder / "zip.xlsx").write_bytes((folder / "far.xlsx").read_bytes()[:-50])
    cells = '<table:table-cell table:number-columns-repeated="16384" office:value-type="string"><text:p>x</text:p>'
    many = '<table:table-row table:number-rows-repeated="{}">' + cells + "</table:table-cell></table:table-row>"
    spreadsheet(folder / "repeated.ods", many.format(1_048_576))
    spreadsheet(folder / "negative.ods", many.format(-5))
    (folder / "noise.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(range(256)) * 64)
    (folder / "noise.xlsb").write_bytes((folder / "far.xlsx").read_bytes())
    command = [sys.executable, "-c", READ, *map(str, sorted(folder.iterdir()))]
    env = os.environ | STEADY | {"BANSONG_LIMITS": "memory=500000000"}
    child = subprocess.run(command, env=env, capture_output=True, timeout=280, check=False)
    assert child.returncode == 0, child.stderr.decode()[-2000:]
    return {name: tuple(answer) for name, answer in json.loads(child.stdout).items()}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by means that Linux has")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("far.xlsx", "spans 1,048,576 rows × 16,384 columns, more than 30,000,000 cells"),
        ("order.xlsx", "bytes of memory to read"),
        ("quotes.xlsx", "bytes of memory to read"),
        ("nowhere.xlsx", "bytes of memory to read"),
        ("prefix.xlsx", "bytes of memory to read"),
        ("wide.xlsx", "16,384 columns, more than 30,000,000 cells"),
        ("text.xlsx", "has a cell of more than 32,767 characters"),
        ("bomb.xlsx", "unfold to more than 200 times their size"),
        ("clones.xlsx", "bytes of memory to read"),
        ("lie.xlsx", "is not as long as stated"),
        ("laughs.xlsx", "declares a document type or entities"),
        ("laughs2.xlsx", "declares a document type or entities"),
        ("unsorted.xlsx", "has rows out of order"),
        ("zero.xlsx", "cell 'A0', which no sheet has"),
        ("huge.xlsx", "cell 'A99999999999', which no sheet has"),
        ("wraps.xlsx", "cell 'A4294967297', which no sheet has"),
        ("beyond.xlsx", "cell 'XFE2', which no sheet has"),
        ("index.xlsx", "is not a readable workbook"),
        ("sheetless.xlsx", "is a workbook without sheets"),
        ("namesakes.xlsx", "two sheets have one name"),
        ("broken-name.xlsx", "the names of its sheets can be read in two ways"),
        ("linkless.xlsx", "is a damaged workbook"),
        ("missing.xlsx", "the part xl/worksheets/sheet9.xml of sheet 'S' is missing"),
        ("itself.xlsx", "sheet 'S' has no rows"),
        ("cut.xlsx", "is not a readable workbook"),
        ("noise.xlsx", "sheet 'S' has no rows"),
        ("twice.xlsx", "its part xl/workbook.xml is there twice"),
        ("zip.xlsx", "is a damaged workbook"),
        ("repeated.ods", "is not a readable workbook"),
        ("negative.ods", "is not a readable workbook"),
        ("noise.xls", "is not a readable workbook"),
        ("noise.xlsb", "is not a readable workbook"),
    ],
)
def test_a_hostile_workbook_is_refused_in_bounded_memory(
    answers: dict[str, tuple[str, str, int, float]], name: str, said: str
) -> None:
    """Each ends with a message that names the file, within a minute of CPU, with no process above 1,200 MB."""
    kind, message, peak, seconds = answers[name]
    assert (kind, name in message, said in message) == ("InputError", True, True), (kind, message)
    assert peak < 1200
    assert seconds < 60


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
