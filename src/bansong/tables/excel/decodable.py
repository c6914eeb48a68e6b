"""Private copies of workbooks that calamine would misread: East Asian date formats, code pages of Excel 97 files."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from bansong.errors import InputError, Problem
from bansong.storage.filesystem import private_folder
from bansong.tables.compression import File
from bansong.tables.excel.package import copy_package, read_part

OLD_WORKBOOK_DAMAGED: Final = Problem(
    "excel.old_workbook_damaged", "{path}: is a damaged workbook; open it in Excel and save it again"
)
EXCEL_95_WORKBOOK: Final = Problem(
    "excel.excel_95_workbook",
    "{path}: is a workbook of Excel 95 in code page {code_page}, which is not read; open it in Excel "
    "and save it as .xlsx",
)

_EAST_ASIAN_DATES: Final = frozenset((*range(27, 37), *range(50, 59)))
"""Built-in number formats that show dates and times in Korea, Japan and China; no file defines them."""
_DATE: Final = 14
"""A built-in date format that calamine knows."""
_UTF16: Final = 1200
_SINGLE_BYTE: Final = frozenset(
    (874, *range(1250, 1259), _UTF16, 10000, 10007, 20127, 20866, 21866, *range(28591, 28606))
)
"""Code pages by which calamine decodes the texts of Excel 95; others, such as 949, it mixes up with UTF-16."""

_XML_CELL_FORMAT: Final = re.compile(rb"""(<(?:\w+:)?xf\s[^>]*?\bnumFmtId\s*=\s*["'])([0-9]{1,9})""")
_XML_DEFINED: Final = re.compile(rb"""<(?:\w+:)?numFmt\s[^>]*?\bnumFmtId\s*=\s*["']([0-9]{1,9})""")

_XLSB_FORMAT, _XLSB_CELL_FORMAT = 44, 47
_BIFF_BOF, _BIFF_EOF, _BIFF_PASSWORD = 0x0809, 0x000A, 0x002F
_BIFF_CODE_PAGE, _BIFF_FORMAT, _BIFF_CELL_FORMAT = 0x0042, 0x041E, 0x00E0
_BIFF8: Final = 0x0600

_HEADER_ENTRIES: Final = 109
"""Sectors of the allocation table that the header of an OLE file lists itself."""
_STREAMS: Final = ("Workbook", "Book")
"""The streams that may be the workbook; a file for both Excel 97 and 95 has both, and the first is read."""

Edits = Mapping[int, int]
"""Numbers of two bytes (little-endian) by the offset at which they are to stand."""


def decodable_xls(file: File, resources: ExitStack) -> File:
    """Return the workbook, or where calamine would misread it a copy that is there as long as ``resources`` are.

    calamine decodes the texts of Excel 97 files by the code page that the file states, though they are always UTF-16;
    in the copy the code page is that. Dates are mended as :func:`decodable_xlsx` does. Raises :class:`InputError` for
    a workbook of Excel 95 with a code page that calamine misreads.
    """
    data = file.data.read_bytes()
    edited = _edit_xls(data, file.path)
    if edited == data:
        return file
    copy = _place_of_copy(file, resources)
    copy.write_bytes(edited)
    return replace(file, data=copy)


def decodable_xlsx(file: File, resources: ExitStack) -> File:
    """Return the workbook, or a copy where cells have built-in date formats that calamine reads as numbers."""
    return _with_styles(file, "xl/styles.xml", _edit_xml, resources)


def decodable_xlsb(file: File, resources: ExitStack) -> File:
    """Do as :func:`decodable_xlsx` does."""
    return _with_styles(file, "xl/styles.bin", lambda styles: _apply(styles, _xlsb_edits(styles)), resources)


def _with_styles(file: File, part: str, edit: Callable[[bytes], bytes], resources: ExitStack) -> File:
    with ZipFile(file.data) as archive:
        name = next((name for name in archive.namelist() if name.lower() == part), None)
        styles = read_part(archive, name) if name else b""
    edited = edit(styles)
    if name is None or edited == styles:
        return file
    copy = _place_of_copy(file, resources)
    copy_package(file.data, copy, {name: [edited]})
    return replace(file, data=copy)


def _place_of_copy(file: File, resources: ExitStack) -> Path:
    return resources.enter_context(private_folder()) / f"book{file.data.suffix}"


def _edit_xml(styles: bytes) -> bytes:
    unknown = _EAST_ASIAN_DATES - set(map(int, _XML_DEFINED.findall(styles)))

    def replace_format(found: re.Match[bytes]) -> bytes:
        return found[1] + (b"%d" % _DATE if int(found[2]) in unknown else found[2])

    return _XML_CELL_FORMAT.sub(replace_format, styles)


def _apply(data: bytes, edits: Edits) -> bytes:
    edited = bytearray(data)
    for place, number in edits.items():
        struct.pack_into("<H", edited, place, number)
    return bytes(edited)


def _date_edits(cell_formats: Edits, defined: set[int]) -> dict[int, int]:
    return {place: _DATE for place, format in cell_formats.items() if format in _EAST_ASIAN_DATES - defined}


def _xlsb_edits(styles: bytes) -> Edits:
    cell_formats: dict[int, int] = {}
    defined: set[int] = set()
    for kind, start, size in _xlsb_records(styles):
        if kind == _XLSB_FORMAT and size >= 2:
            defined.add(_number(styles, start))
        elif kind == _XLSB_CELL_FORMAT and size >= 4:
            cell_formats[start + 2] = _number(styles, start + 2)
    return _date_edits(cell_formats, defined)


def _xlsb_records(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The kind, start and size of each record; kind and size are numbers in pieces of seven bits."""
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
        elif kind == _BIFF_CODE_PAGE and version == _BIFF8:
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
    """Where the pieces of the workbook in an OLE file begin, and the size of a piece."""
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
    """For each sector of an OLE file, the number of the next one; ``more``: the first sector of further entries."""
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
