"""Check a workbook before a parser reads it; repair what the parser cannot decode."""

from __future__ import annotations

import copy
import html
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from bansong.base.errors import InputError, Problem
from bansong.base.files import private_folder
from bansong.base.isolation import beyond_limit, limits
from bansong.base.messages import gettext, gettext_noop
from bansong.tables.excel.package import copy_package, plain_name, read_part
from bansong.tables.excel.sheet_xml import MAX_COLUMNS, MAX_ROW, column_letter, column_number
from bansong.tables.streams import BROKEN_ZIP, File

TOO_MANY_PARTS: Final = Problem(
    "excel.too_many_parts", "{path}: has {count:,} parts, more than a workbook has; save it again in Excel"
)
PART_REPEATED: Final = Problem(
    "excel.part_repeated", "{path}: is a damaged workbook (its part {twice} is there twice); save it again in Excel"
)
PART_SIZE_WRONG: Final = Problem(
    "excel.part_size_wrong", "{path}: is a damaged workbook ({filename} is not as long as stated); save it again"
)
PART_INVALID: Final = Problem("excel.part_invalid", "{path}: its part {name} {why}; open it in Excel and save it again")
WORKBOOK_DAMAGED: Final = Problem(
    "excel.workbook_damaged", "{path}: is a damaged workbook ({error}); open it in Excel and save it again"
)
PASSWORD_PROTECTED: Final = Problem(
    "excel.password_protected", "{path}: is protected with a password; unpack it and save it without one"
)
PART_PACKING_UNUSUAL: Final = Problem(
    "excel.part_packing_unusual", "{path}: its part {filename} is packed in an unusual way; save it again in Excel"
)

_EXACT, _ROUGH = 64, 16  # columns are bounded exactly up to so many; beyond, a sixteenth more are allowed for
_REFERENCE: Final = re.compile(rb'<c r="([^"<]{0,40})"')
_REFERENCE_PARTS: Final = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_PREFIXED: Final = re.compile(rb":c[\s/>]")  # a cell in a namespace with a prefix, <x:c …>
_ODD: Final = re.compile(rb"""<(?:\w+:)?c\s[^>]*?\br\s*=\s*["']([A-Za-z]{4}[^"']{0,40}|[A-Za-z]*[0-9]{8}[^"']{0,40})""")
_CHUNK: Final = 1 << 20
_LARGE: Final = 64_000_000
_SHORT: Final = 128
_ENTRIES: Final = 10_000
_ENCRYPTED: Final = 0x1
_LONGEST_CHARACTER: Final = 12  # bytes that a character of a text may take in XML: &#x0000AC00;

_UNREAD: Final = re.compile("xl/(?:media|embeddings|drawings|charts|pivotcache)/|docprops/|pictures/")
# bytes of memory that the parser takes: at all, a shared text, a cell, a place between first and last
_BASE, _TEXT, _CELL, _PLACE = 80_000_000, 60, 40, 32
_COPIES: Final = 2  # of a shared text for each cell that holds it: the parser's and the frame's

_ROOT: Final = re.compile(rb"(?s)(?:\s|<\?.*?\?>|<!--.*?-->)*<(?:[\w.-]+:)?([\w.-]+)[\s/>]")
_ROW: Final = re.compile(
    rb"""<(?:\w+:)?row[^>]*>\s*<(?:\w+:)?c\s(?:[^>]*?\s)?r\s*=\s*["'][A-Z]{1,3}([1-9][0-9]{0,6})["']"""
)
_HIDDEN_ROW: Final = re.compile(rb"""<(?:\w+:)?row\s[^<>]*?\bhidden\s*=\s*["'](?:1|true)["'][^<>]*(?<!/)>(?!\s*</)""")
# a formula that was never calculated: its cell has no value, which is no empty text either
_UNSOLVED: Final = re.compile(rb'<c (?:(?! t="str")[^<>])*><f(?:[^<>]*/>|[^<>]*>[^<]*</f>)(?:<v */>|<v></v>)?</c>')
_MERGE: Final = re.compile(rb'<mergeCell ref="([A-Z]{1,3})([0-9]{1,7}):([A-Z]{1,3})([0-9]{1,7})"')


@dataclass(slots=True)
class Extent:
    """Upper bounds of a sheet's rows and columns. They are valid only while ``plain`` is true."""

    # Rounded up (less if ``closer``): each cell that raises them costs a new pattern.

    closer: bool = False
    rows: int = 0
    columns: int = 0
    plain: bool = True  # every cell begins with <c r="…", as common programs write them
    odd: str = ""  # a reference that no sheet has

    @property
    def area(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        return gettext("{rows:,} rows × {columns:,} columns", rows=self.rows, columns=self.columns)

    def take(self, buffer: bytes) -> int:
        until = max(buffer.rfind(b"<"), 0)
        self.plain = self.plain and not (b":" in buffer and _PREFIXED.search(buffer))
        place = 0
        while self.plain and (found := _pattern_beyond(self.rows, self.columns).search(buffer, place, until)):
            place = found.end()
            reference = _REFERENCE.match(buffer, found.start())
            if reference is None:
                self.plain = False
            elif not self._reaches(reference.group(1).decode("utf-8", "replace")):
                return until
        if not self.plain and (odd := _ODD.search(buffer, 0, until)):
            self.odd = repr(odd.group(1).decode("utf-8", "replace"))
        return until

    def _reaches(self, reference: str) -> bool:
        found = _REFERENCE_PARTS.fullmatch(reference)
        column, row = (column_number(found.group(1)), int(found.group(2))) if found else (0, 0)
        if not 0 < column <= MAX_COLUMNS or row > MAX_ROW:
            self.odd = repr(reference)
            return False
        if row > self.rows:
            unit = 10 ** max(len(str(row)) - 1 - self.closer, 0)
            self.rows = min((row // unit + 1) * unit - 1 if self.closer else 10 * unit - 1, MAX_ROW)
        if column > self.columns:
            spare = column // (_EXACT if self.closer else _ROUGH) if column >= _EXACT else 0
            self.columns = min(column + spare, MAX_COLUMNS)
        return True


@lru_cache(64)
def _pattern_beyond(rows: int, columns: int) -> re.Pattern[bytes]:
    if not rows:
        return re.compile(rb"<c[\s/>]")
    letters, digits = _at_most(column_letter(columns), "A", "A", "Z"), _at_most(str(rows), "1", "0", "9")
    return re.compile(rf'<c(?! r="{letters}{digits}"|o)(?=[\s/>])'.encode())


def _at_most(text: str, first: str, lowest: str, highest: str) -> str:
    """Return a regex for the numbers up to ``text``, in digits ``lowest`` (first digit: ``first``) to ``highest``."""
    size, full = len(text), text == highest * len(text)
    shorter = size if full else size - 1
    patterns = [f"[{first}-{highest}]" + (f"[{lowest}-{highest}]{{0,{shorter - 1}}}" if shorter > 1 else "")]
    if full:
        return patterns[0]
    for place, sign in enumerate(text):
        low = lowest if place else first
        last = place == size - 1
        high = sign if last else chr(ord(sign) - 1)
        if low <= high:
            rest = size - place - 1
            patterns.append(f"{text[:place]}[{low}-{high}]" + (f"[{lowest}-{highest}]{{{rest}}}" if rest else ""))
    patterns = patterns[shorter == 0 :]
    return patterns[0] if len(patterns) == 1 else f"(?:{'|'.join(patterns)})"


@dataclass(slots=True)
class PartContent:
    """Sizes and counts of the content of a workbook's part."""

    size: int = 0
    texts: int = 0  # shared ones
    longest: int = 0  # bytes of the longest of them
    table: bool = False  # it has a sheet's rows
    errors: int = 0  # cells such as #N/A
    unsolved: bool = False  # some formulas have no result
    times: int = 0  # of day, and lengths of time, in an .ods
    hidden: int = 0  # rows with cells that a filter or a person hid
    merges: list[tuple[int, int, int, int]] = field(default_factory=list)  # rows and columns from 0
    first: int | None = None  # row (from 0) of the first value
    cells: int = 0  # if the extent is plain
    extent: Extent = field(default_factory=Extent)

    def memory(self, longest: int = 0) -> float:
        """Return the most memory (bytes) that reading takes; ``longest`` is the length of the longest shared text."""
        if self.texts:
            return _TEXT * self.texts + self.size
        if not self.extent.plain:
            return float("inf")
        return _BASE + (_CELL + _COPIES * longest) * self.cells + _PLACE * self.extent.area + 2 * self.size


def check_zip(
    path: Path, data: Path, *, xml: bool, only: Collection[str] = (), without: Collection[str] = ()
) -> dict[str, PartContent]:
    """Decompress a workbook's parts in constant memory; refuse damaged or too large ones; return measures of each."""
    # xml: parts are XML, and are parsed; only: the parts to look at, in lower case
    try:
        with ZipFile(data) as archive:
            entries = [entry for entry in _entries(path, archive) if not only or plain_name(entry.filename) in only]
            entries = [entry for entry in entries if entry.filename not in without]
            _refuse_stated_sizes(path, entries, data.stat().st_size)
            return {entry.filename: _check_part(path, archive, entry, xml=xml) for entry in entries}
    except BROKEN_ZIP as error:
        raise InputError(WORKBOOK_DAMAGED, path=path, error=error) from error


def _entries(path: Path, archive: ZipFile) -> list[ZipInfo]:
    entries = archive.infolist()
    if len(entries) > _ENTRIES:
        raise InputError(TOO_MANY_PARTS, path=path, count=len(entries))
    names = [plain_name(entry.filename) for entry in entries]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(PART_REPEATED, path=path, twice=twice)
    read = [entry for entry, name in zip(entries, names, strict=True) if not _UNREAD.match(name)]
    for entry in read:
        if entry.flag_bits & _ENCRYPTED:
            raise InputError(PASSWORD_PROTECTED, path=path)
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise InputError(PART_PACKING_UNUSUAL, path=path, filename=entry.filename)
    return read


def _refuse_stated_sizes(path: Path, entries: Collection[ZipInfo], size: int) -> None:
    cap, unfolded = limits(), sum(entry.file_size for entry in entries)
    packed = min(sum(entry.compress_size for entry in entries), size)  # parts may overlap, or state too much
    if unfolded > cap.inflated:
        what = gettext("its parts unfold to more than {inflated:,} bytes", inflated=cap.inflated)
        raise beyond_limit(path, what, "inflated")
    if unfolded > _LARGE and unfolded > cap.ratio * packed:
        what = gettext("its parts unfold to more than {ratio} times their size", ratio=cap.ratio)
        raise beyond_limit(path, what, "ratio")


def _check_part(path: Path, archive: ZipFile, entry: ZipInfo, *, xml: bool) -> PartContent:
    part, cap = PartContent(), limits()
    honest = copy.copy(entry)
    honest.file_size = cap.inflated + 1  # what it states may be a lie: it is read until it is longer
    with archive.open(honest) as stream:
        looked_into = xml and entry.filename.lower().endswith((".xml", ".rels"))
        scan = _Scan(path, entry.filename, part) if looked_into else None
        # unfolding in a thread beside was measured to take longer
        while part.size <= entry.file_size and (chunk := stream.read(_CHUNK)):
            part.size += len(chunk)
            if scan and part.size <= entry.file_size:
                scan.take(chunk)
        if scan:
            scan.end()
    if part.size != entry.file_size:
        raise InputError(PART_SIZE_WRONG, path=path, filename=entry.filename)
    if part.extent.area > cap.cells:
        part.extent = _closer(archive, entry, cap.cells)
        if part.extent.area > cap.cells:
            spans = gettext_noop("{filename} spans {extent}, more than {cells:,} cells")
            what = gettext(spans, filename=entry.filename, extent=part.extent, cells=cap.cells)
            raise beyond_limit(path, what, "cells")
    return part


def _closer(archive: ZipFile, entry: ZipInfo, cap: int) -> Extent:
    extent, rest = Extent(closer=True), b""
    with archive.open(entry) as stream:
        while extent.area <= cap and (chunk := stream.read(_CHUNK)):
            buffer = rest + chunk
            rest = buffer[extent.take(buffer) :]
    return extent


class _Scan:
    def __init__(self, path: Path, name: str, part: PartContent) -> None:
        self._path, self._name, self._part = path, name, part
        self._rest, self._last = b"", 0
        self._begun = self._sheet = self._shared = False

    def take(self, chunk: bytes) -> None:
        buffer = self._rest + chunk
        if not self._begun:  # a document type can be declared only before the first element
            root = _ROOT.match(buffer.removeprefix(b"\xef\xbb\xbf").lstrip())
            if root is None:
                raise self._refusal(gettext("is not XML in UTF-8, or declares a document type or entities"))
            self._sheet, self._shared = root[1] not in (b"sst", b"workbook", b"styleSheet"), root[1] == b"sst"
            self._begun = True
        self._refuse_long_text(buffer)
        until = max(buffer.rfind(b"<"), 0)  # an element that is cut off is left for the next chunk
        if self._shared:
            until = self._measure_texts(buffer)
        elif self._sheet:
            self._cells(buffer, until)
        self._rest = buffer[until:]

    def end(self) -> None:
        if self._shared:
            self._part.longest = max(self._part.longest, len(self._rest))

    def _refuse_long_text(self, buffer: bytes) -> None:
        most = limits().text  # a longer text has a whole window without a mark
        window = max(most // 2, 1)
        for start in range(0, len(buffer), window):
            if buffer.find(b"<", start, start + window) < 0:
                begin, end = buffer.rfind(b"<", 0, start) + 1, buffer.find(b"<", start)
                text = buffer[begin : end if end >= 0 else len(buffer)].partition(b">")[2]
                characters = len(html.unescape(text.decode("utf-8", "replace"))) if end >= 0 else 0
                if characters > most or len(text) > _LONGEST_CHARACTER * (most + 1024):
                    what = gettext("{name} has a cell of more than {most:,} characters", name=self._name, most=most)
                    raise beyond_limit(self._path, what, "text")

    def _measure_texts(self, buffer: bytes) -> int:
        part, place, end = self._part, 0, buffer.rfind(b"</si>") + 5
        if end < 5:
            part.longest = max(part.longest, len(buffer))
            return 0
        while place < end and (further := buffer.rfind(b"</si>", place, place + _SHORT)) >= 0:
            place = further + 5  # faster than to look at every text: each is within a short stretch
        longest = _SHORT if place >= end else max(map(len, buffer[:end].split(b"</si>")))
        part.longest = max(part.longest, longest)
        part.texts += buffer.count(b"</si>")
        return end

    def _cells(self, buffer: bytes, until: int) -> None:
        part = self._part
        if part.first is None:
            part.first = _first_row(buffer)
        part.table = part.table or b"sheetData" in buffer
        if b"#" in buffer:  # found faster than what it is part of, #N/A
            part.errors += buffer.count(b' t="e"', 0, until)
        if not part.unsolved and b"f" in buffer and (b"</f>" in buffer or b"<f " in buffer):
            part.unsolved = _UNSOLVED.search(buffer) is not None
        if b"h" in buffer and b"hidden" in buffer:
            part.hidden += len(_HIDDEN_ROW.findall(buffer, 0, until))
        if self._name == "content.xml":
            part.times += buffer.count(b'value-type="time"', 0, until)
        behind = buffer.find(b"<mergeCell ", max(buffer.rfind(b"<row"), 0), until)
        if behind >= 0:
            for left, top, right, bottom in _MERGE.findall(buffer, behind, until):
                first, last = (column_number(letters.decode()) - 1 for letters in (left, right))
                part.merges.append((int(top) - 1, first, int(bottom) - 1, last))
        part.cells += buffer.count(b'<c r="', 0, until)
        self._refuse_disorder(buffer, until)
        part.extent.take(buffer)
        if part.extent.odd:
            raise self._refusal(gettext("has a cell {odd}, which no sheet has", odd=part.extent.odd))

    def _refuse_disorder(self, buffer: bytes, until: int) -> None:
        """Refuse rows out of order, which the parser loses. In middle pieces, check only the first and last row."""
        if self._last and len(buffer) >= _CHUNK and self._part.extent.plain:
            ends = [_ROW.search(buffer, 0, until), _ROW.search(buffer, max(buffer.rfind(b"<row", 0, until), 0), until)]
            found = [int(end.group(1)) for end in ends if end]
        else:
            found = list(map(int, _ROW.findall(buffer, 0, until)))
        rows = [self._last, *found]
        if rows != sorted(rows):
            raise self._refusal(gettext("has rows out of order"))
        self._last = rows[-1]

    def _refusal(self, why: str) -> InputError:
        return InputError(PART_INVALID, path=self._path, name=self._name, why=why)


def _first_row(buffer: bytes) -> int | None:
    value = re.search(rb"<(?:v|t)(?:\s[^>]*)?>[^<]", buffer)
    cell = buffer.rfind(b"<c ", 0, value.start()) if value else -1
    found = re.match(rb'<c r="[A-Z]{1,3}([0-9]{1,7})"', buffer[cell : cell + 30]) if cell >= 0 else None
    return int(found.group(1)) - 1 if found else None


OLD_WORKBOOK_DAMAGED: Final = Problem(
    "excel.old_workbook_damaged", "{path}: is a damaged workbook; open it in Excel and save it again"
)
EXCEL_95_WORKBOOK: Final = Problem(
    "excel.excel_95_workbook",
    "{path}: is a workbook of Excel 95 in code page {code_page}, which is not read; open it in Excel "
    "and save it as .xlsx",
)

# built-in formats of dates and times in Korea, Japan and China; no file defines them
_EAST_ASIAN_DATES: Final = frozenset((*range(27, 37), *range(50, 59)))
_DATE: Final = 14  # a built-in date format that calamine reads
_UTF16: Final = 1200
_SINGLE_BYTE: Final = frozenset(
    (874, *range(1250, 1259), _UTF16, 10000, 10007, 20127, 20866, 21866, *range(28591, 28606))
)  # code pages of Excel 95 that calamine decodes; it takes others, such as 949, for UTF-16

_XML_CELL_FORMAT: Final = re.compile(rb"""(<(?:\w+:)?xf\s[^>]*?\bnumFmtId\s*=\s*["'])([0-9]{1,9})""")
_XML_DEFINED: Final = re.compile(rb"""<(?:\w+:)?numFmt\s[^>]*?\bnumFmtId\s*=\s*["']([0-9]{1,9})""")

_XLSB_FORMAT, _XLSB_CELL_FORMAT = 44, 47
_BIFF_BOF, _BIFF_EOF, _BIFF_PASSWORD = 0x0809, 0x000A, 0x002F
_BIFF_CODE_PAGE, _BIFF_FORMAT, _BIFF_CELL_FORMAT = 0x0042, 0x041E, 0x00E0
_BIFF8: Final = 0x0600

_HEADER_ENTRIES: Final = 109  # sectors of the allocation table that the header of an OLE file lists itself
_STREAMS: Final = ("Workbook", "Book")  # a file for both Excel 97 and 95 has both, and the first is read

Edits = Mapping[int, int]  # numbers of two bytes (little-endian) by the offset at which they are to stand


def decodable_xls(file: File, resources: ExitStack) -> File:
    """Return the workbook, or a repaired copy if calamine would misread its dates, or texts by the code page."""
    data = file.data.read_bytes()
    edited = _edit_xls(data, file.path)
    if edited == data:
        return file
    copied = _copy_name(file, resources)
    copied.write_bytes(edited)
    return replace(file, data=copied)


def decodable_xlsx(file: File, resources: ExitStack) -> File:
    return _with_styles(file, "xl/styles.xml", _edit_xml, resources)


def decodable_xlsb(file: File, resources: ExitStack) -> File:
    return _with_styles(file, "xl/styles.bin", _edit_xlsb, resources)


def _with_styles(file: File, part: str, edit: Callable[[bytes], bytes], resources: ExitStack) -> File:
    with ZipFile(file.data) as archive:
        name = next((name for name in archive.namelist() if name.lower() == part), None)
        styles = read_part(archive, name) if name else b""
    edited = edit(styles)
    if name is None or edited == styles:
        return file
    copied = _copy_name(file, resources)
    copy_package(file.data, copied, {name: [edited]})
    return replace(file, data=copied)


def _copy_name(file: File, resources: ExitStack) -> Path:
    return resources.enter_context(private_folder()) / f"book{file.data.suffix}"


def _edit_xml(styles: bytes) -> bytes:
    unknown = _EAST_ASIAN_DATES - set(map(int, _XML_DEFINED.findall(styles)))
    date = b"%d" % _DATE
    return _XML_CELL_FORMAT.sub(lambda found: found[1] + (date if int(found[2]) in unknown else found[2]), styles)


def _date_edits(cell_formats: Edits, defined: set[int]) -> dict[int, int]:
    return {place: _DATE for place, format in cell_formats.items() if format in _EAST_ASIAN_DATES - defined}


def _edit_xlsb(styles: bytes) -> bytes:
    edited = bytearray(styles)
    cell_formats: dict[int, int] = {}
    defined: set[int] = set()
    for kind, start, size in _xlsb_records(styles):
        if kind == _XLSB_FORMAT and size >= 2:
            defined.add(_number(styles, start))
        elif kind == _XLSB_CELL_FORMAT and size >= 4:
            cell_formats[start + 2] = _number(styles, start + 2)
    for place, number in _date_edits(cell_formats, defined).items():
        struct.pack_into("<H", edited, place, number)
    return bytes(edited)


def _xlsb_records(data: bytes) -> Iterator[tuple[int, int, int]]:
    place = 0
    while place < len(data):
        kind, place = _in_sevens(data, place, 2)
        size, place = _in_sevens(data, place, 4)
        if place + size > len(data):
            return
        yield kind, place, size
        place += size


def _in_sevens(data: bytes, place: int, most: int) -> tuple[int, int]:
    number = 0
    for shift in range(most):
        byte = data[place] if place < len(data) else 0
        number, place = number | (byte & 0x7F) << 7 * shift, place + 1
        if not byte & 0x80:
            break
    return number, place


def _number(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 2], "little")


def _edit_xls(data: bytes, path: Path) -> bytes:
    edited = bytearray(data)
    try:
        pieces, size = _workbook_stream(data)
        stream = b"".join(data[piece : piece + size] for piece in pieces)
        for place, number in _biff_edits(stream, path).items():
            for at, byte in enumerate(number.to_bytes(2, "little"), place):  # a record may lie in two pieces
                edited[pieces[at // size] + at % size] = byte
    except (struct.error, IndexError, ValueError) as error:
        raise InputError(OLD_WORKBOOK_DAMAGED, path=path) from error
    return bytes(edited)


def _biff_edits(stream: bytes, path: Path) -> Edits:
    edits: dict[int, int] = {}
    cell_formats: dict[int, int] = {}
    defined: set[int] = set()
    place, version = 0, 0
    while place + 4 <= len(stream):
        kind, size = struct.unpack_from("<HH", stream, place)
        place += 4
        if kind in (0, _BIFF_EOF, _BIFF_PASSWORD):  # what is behind a password is encrypted
            break
        if kind == _BIFF_BOF:
            version = _number(stream, place)
        elif kind == _BIFF_CODE_PAGE and version == _BIFF8:  # texts of Excel 97 are always UTF-16
            edits[place] = _UTF16
        elif kind == _BIFF_CODE_PAGE and (code_page := _number(stream, place)) not in _SINGLE_BYTE:
            raise InputError(EXCEL_95_WORKBOOK, path=path, code_page=code_page)
        elif kind == _BIFF_FORMAT:
            defined.add(_number(stream, place))
        elif kind == _BIFF_CELL_FORMAT:
            cell_formats[place + 2] = _number(stream, place + 2)
        place += size
    return edits | _date_edits(cell_formats, defined)


def _workbook_stream(data: bytes) -> tuple[Sequence[int], int]:
    size, small = 1 << data[30], 1 << data[32]
    directory, least, small_table, more = struct.unpack_from("<I4xII4xI", data, 48)
    table = _allocation_table(data, size, more)
    entries = b"".join(_sector(data, size, number) for number in _chain(table, directory))
    streams: dict[str, tuple[int, int]] = {}
    for name, length, first, bytes_ in struct.iter_unpack("<64sH50xII4x", entries):
        streams.setdefault(name[: max(length - 2, 0)].decode("utf-16-le", "replace"), (first, bytes_))
    first, bytes_ = next((streams[name] for name in _STREAMS if name in streams), (len(table), least))
    if bytes_ >= least:
        return [(number + 1) * size for number in _chain(table, first)], size
    # small streams lie in pieces in a large one, that of the first entry
    large = [(number + 1) * size for number in _chain(table, struct.unpack_from("<I", entries, 116)[0])]
    numbers = b"".join(_sector(data, size, number) for number in _chain(table, small_table))
    chain = _chain(_numbers(numbers), first)
    return [large[number * small // size] + number * small % size for number in chain], small


def _allocation_table(data: bytes, size: int, more: int) -> Sequence[int]:
    """Return the next sector of each sector of an OLE file."""
    # ``size``: bytes per sector; ``more``: the first sector of the list's continuation
    listed = list(struct.unpack_from(f"<{_HEADER_ENTRIES}I", data, 76))
    sectors = len(data) // size
    while more < sectors and len(listed) <= sectors:
        *entries, more = _numbers(_sector(data, size, more))
        listed += entries
    return _numbers(b"".join(_sector(data, size, number) for number in listed if number < sectors))


def _chain(table: Sequence[int], first: int) -> list[int]:
    found: list[int] = []
    while first < len(table) and len(found) < len(table):  # a chain may be a circle
        found.append(first)
        first = table[first]
    return found


def _sector(data: bytes, size: int, number: int) -> bytes:
    return data[(number + 1) * size : (number + 2) * size]


def _numbers(data: bytes) -> Sequence[int]:
    return struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
