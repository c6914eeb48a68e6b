"""Read and edit the zip parts of a workbook and their XML, as bytes."""

from __future__ import annotations

import copy
import posixpath
import re
import struct
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from xml.etree import ElementTree
from xml.parsers import expat
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from bansong.base.errors import AccountingError, InputError, OutputError, Problem
from bansong.base.messages import gettext, gettext_noop
from bansong.tables.streams import BROKEN_ZIP

DOCUMENT_TYPE_PRESENT: Final = Problem(
    "excel.document_type_present", "the workbook cannot be extended, {part} holds a document type; write CSV"
)
PART_NOT_UTF8: Final = Problem(
    "excel.part_not_utf8", "the workbook cannot be extended, {part} is encoded in {encoding}; write CSV"
)
PART_DAMAGED: Final = Problem(
    "excel.part_damaged", "the workbook cannot be extended, {part} is damaged ({error}); write CSV"
)

_TAG: Final = re.compile(rb"""<[^\s/>]+(?:[^>"']|"[^"]*"|'[^']*')*>""")

Edit = tuple[int, int, bytes]  # bytes from … to … (exclusive) give way to others


@dataclass(slots=True)
class Element:
    """An element of a part: its bytes are ``start`` to ``stop``, its content begins at ``inner``."""

    tag: str
    attributes: dict[str, str]
    depth: int
    start: int
    inner: int
    stop: int = 0
    text: str = ""

    @property
    def name(self) -> str:
        return self.tag.rpartition(":")[2]

    @property
    def prefix(self) -> str:
        return self.tag[: -len(self.name)]


def elements_of(xml: bytes, part: str) -> list[Element]:
    """Return the elements of a part; raise if it is damaged, not UTF-8, or has a document type."""
    elements: list[Element] = []
    stack: list[Element] = []
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        place = parser.CurrentByteIndex
        found = _TAG.match(xml, place)
        inner = found.end() if found else place
        elements.append(Element(tag, attributes, len(stack), place, inner))
        stack.append(elements[-1])

    def end(_: str) -> None:
        element = stack.pop()
        closed = xml.startswith(b"/>", element.inner - 2)
        element.stop = element.inner if closed else xml.index(b">", parser.CurrentByteIndex) + 1

    def text(content: str) -> None:
        if stack:
            stack[-1].text += content

    def refuse(*_: object) -> None:  # entities could unfold without end
        raise OutputError(DOCUMENT_TYPE_PRESENT, part=part)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = refuse
    refuse_encoding(xml, part)
    try:
        parser.Parse(xml, True)
    except expat.ExpatError as error:
        raise OutputError(PART_DAMAGED, part=part, error=error) from None
    return elements


def find_child(elements: Iterable[Element], name: str) -> Element | None:
    return next((element for element in elements if element.depth == 1 and element.name == name), None)


def refuse_encoding(xml: bytes, part: str) -> None:
    stated = re.match(rb"""(?:\xef\xbb\xbf)?<\?xml[^>]*?\sencoding\s*=\s*["']([^"']+)""", xml)
    encoding = stated.group(1).decode("ascii", "replace") if stated else "UTF-8"
    if xml.startswith((b"\xff\xfe", b"\xfe\xff", b"<\x00", b"\x00<")):
        encoding = "UTF-16"
    if encoding.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise OutputError(PART_NOT_UTF8, part=part, encoding=encoding)


def apply_edits(xml: bytes, edits: Iterable[Edit]) -> bytes:
    pieces, done = [], 0
    for start, stop, new in sorted(edits, key=lambda edit: edit[0]):
        pieces += [xml[done:start], new]
        done = stop
    return b"".join([*pieces, xml[done:]])


def attribute(tag: bytes, name: str, value: object) -> bytes:
    found = re.search(rb"""(\s%s\s*=\s*)(?:"[^"]*"|'[^']*')""" % name.encode(), tag)
    new = str(value).encode()
    if found:
        return tag[: found.start()] + found.group(1) + b'"' + new + b'"' + tag[found.end() :]
    end = len(tag) - (2 if tag.endswith(b"/>") else 1)
    return tag[:end].rstrip() + b" %s=" % name.encode() + b'"' + new + b'"' + tag[end:]


def without(tag: bytes, *names: str) -> bytes:
    for name in names:
        tag = re.sub(rb"""\s%s\s*=\s*(?:"[^"]*"|'[^']*')""" % name.encode(), b"", tag, count=1)
    return tag


WORKBOOK_WITHOUT_SHEETS: Final = Problem(
    "excel.workbook_without_sheets", "{path}: is a workbook without sheets; save it again in Excel"
)
EXTENDED_SHEET_MISSING: Final = Problem("excel.extended_sheet_missing", "the workbook has no sheet {sheet!r} to extend")
PART_NAMES_CLASH: Final = Problem(
    "excel.part_names_clash", "the workbook cannot be extended, it holds two parts of one name; write another format"
)
WORKBOOK_NOT_EXTENSIBLE: Final = Problem(
    "excel.workbook_not_extensible",
    "the workbook is no .xlsx or .xlsm ({kind}); save it as .xlsx first, or write `output='OUT.csv'`",
)
OUTPUT_EXTENSION_WRONG: Final = Problem(
    "excel.output_extension_wrong",
    "the workbook {what}, Excel would not open it as {suffix}; give `output='OUT{wanted}'`",
)
SHEET_LIST_UNREADABLE: Final = Problem(
    "excel.sheet_list_unreadable",
    "{path}: is a damaged workbook (its list of sheets cannot be read: {error}); save it again in Excel",
)
PARTS_DIFFER: Final = Problem(
    "excel.parts_differ", "nothing was published: the workbook's parts are not the ones it had"
)
PART_UNREADABLE: Final = Problem("excel.part_unreadable", "the workbook's part {part} cannot be read ({error})")
SHEET_TOO_LARGE: Final = Problem(
    "excel.sheet_too_large", "the sheet is too large for a workbook ({error}); write CSV or Parquet"
)
PART_CHANGED: Final = Problem(
    "excel.part_changed", "nothing was published: the workbook's part {filename} is not as it was"
)

BOOK: Final = "xl/workbook.xml"
_RELATIONS: Final = "xl/_rels/workbook.xml.rels"
CORE: Final = (BOOK, _RELATIONS)  # the parts that are read here, in lower case
SHEET: Final = "bansong"  # the name of a new workbook's sheet; further ones are called `bansong 2` and so on
FORMER_SHEET: Final = "bizverify"
SUMMARY: Final = gettext_noop("summary")  # the name of the sheet of figures that a run adds to a new workbook
GUIDE: Final = gettext_noop("how to read")  # of the sheet that says what each added column holds

_LARGEST_INDEX: Final = 16_000_000
_RELATION: Final = re.compile(r"\{.*/relationships\}id$")
_TYPES: Final = "[Content_Types].xml"
_MACROS: Final = "application/vnd.ms-excel.sheet.macroEnabled.main+xml"
_PLAIN: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
_FAST, _SMALL = 1, 6
_PIECE: Final = 2_000_000
_LARGE: Final = 8_000_000  # bytes of a sheet from which on it is packed fast instead of small


@dataclass(frozen=True, slots=True)
class SheetEntry:
    """A sheet in the workbook's list; ``part`` is ``None`` for anything but a table, such as a chart."""

    name: str
    visible: bool
    part: str | None


def outline(path: Path, data: Path) -> list[SheetEntry]:
    try:
        with ZipFile(data) as archive:
            entries = entries_of(archive)
    except (ElementTree.ParseError, DefusedXmlException, KeyError, BadZipFile, ValueError) as error:
        raise InputError(SHEET_LIST_UNREADABLE, path=path, error=error) from error
    if not entries:
        raise InputError(WORKBOOK_WITHOUT_SHEETS, path=path)
    return entries


def entries_of(archive: ZipFile) -> list[SheetEntry]:
    names = part_names(archive)
    book, relations = (_parse_part(archive, names, part) for part in CORE)
    targets = {relation.get("Id"): relation for relation in relations}
    if len(targets) < len(relations):
        raise ValueError(gettext("a relation is there twice"))
    sheets = (element for element in book.iter() if str(element.tag).rpartition("}")[2] == "sheet")
    entries = [_entry(element, targets, names) for element in sheets]
    if len({entry.name for entry in entries}) < len(entries):  # the parser chooses by the name, the writer by the part
        raise ValueError(gettext("two sheets have one name"))
    return entries


def plain_name(part: str) -> str:
    """Return a part's name in lower case and with slashes, as programs compare it."""
    return part.replace("\\", "/").lower()


def usual_name(part: str) -> str:
    """Return a part's name with slashes, and ``[Content_Types].xml`` so spelled, as every program finds it."""
    name = part.replace("\\", "/")
    return _TYPES if name.lower() == _TYPES.lower() else name


def part_names(archive: ZipFile) -> dict[str, str]:
    return {plain_name(name): name for name in archive.namelist()}


def _join(folder: str, target: str) -> str:
    return posixpath.normpath(posixpath.join("/", folder, plain_name(target))).lstrip("/")


def _parse_part(archive: ZipFile, names: dict[str, str], part: str) -> Any:
    info = archive.getinfo(names[part])
    if info.file_size > _LARGEST_INDEX:
        raise ValueError(gettext("{part} is too large", part=part))
    return fromstring(archive.read(info))


def _entry(element: Any, targets: dict[str, Any], names: dict[str, str]) -> SheetEntry:
    name, part = element.get("name"), None
    identity = next((value for key, value in element.attrib.items() if _RELATION.search(key)), "")
    relation = targets.get(identity)
    if relation is None:
        raise KeyError(gettext("sheet {name!r} has no part", name=name))
    if relation.get("Type", "").endswith("/worksheet"):
        target = _join("xl", relation.get("Target", ""))
        part = names.get(target)
        if part is None:
            raise KeyError(gettext("the part {target} of sheet {name!r} is missing", target=target, name=name))
    return SheetEntry(name or "", element.get("state", "visible") == "visible", part)


def sheet_parts(archive: ZipFile) -> dict[str, str]:
    return {entry.name: entry.part for entry in entries_of(archive) if entry.part}


def related_parts(archive: ZipFile, part: str, kind: str) -> list[str]:
    names = part_names(archive)
    folder, name = posixpath.split(plain_name(part))
    relations = names.get(f"{folder}/_rels/{name}.rels")
    if relations is None:
        return []
    relation = [element.attributes for element in elements_of(read_part(archive, relations), relations)]
    kept = (stated.get("Target", "") for stated in relation if stated.get("Type", "").endswith(f"/{kind}"))
    return [names[path] for target in kept if (path := _join(folder, target)) in names]


def refuse_other_kind(archive: ZipFile, target: Path) -> None:
    names = archive.namelist()
    if len(set(names)) != len(names):
        raise OutputError(PART_NAMES_CLASH)
    types = elements_of(read_part(archive, part_names(archive).get(_TYPES.lower(), _TYPES)), _TYPES)
    kinds = {plain_name(e.attributes.get("PartName", "")): e.attributes.get("ContentType", "") for e in reversed(types)}
    kind = kinds.get(f"/{BOOK}", _PLAIN)
    wanted = {_MACROS: ".xlsm", _PLAIN: ".xlsx"}.get(kind)
    if wanted is None:
        raise OutputError(WORKBOOK_NOT_EXTENSIBLE, kind=kind)
    if target.suffix.lower() != wanted:
        what = gettext("holds macros") if wanted == ".xlsm" else gettext("is one without macros")
        raise OutputError(OUTPUT_EXTENSION_WRONG, what=what, suffix=target.suffix, wanted=wanted)


def copy_package(source: Path | IO[bytes], target: Path, changed: Mapping[str, Iterable[bytes]], size: int = 0) -> None:
    """Copy a workbook with new content (about ``size`` bytes) for parts ``changed``, and the others byte for byte."""
    level = _FAST if size > _LARGE else _SMALL
    with ZipFile(source) as old, ZipFile(target, "w", ZIP_DEFLATED, compresslevel=level) as new:
        for part in old.infolist():
            name = usual_name(part.filename)
            if part.filename in changed:
                _pack(new, name, changed[part.filename])
            else:
                _carry(old, part, new, name)


def prove_same_parts(source: Path, target: Path, changed: Iterable[str]) -> None:
    """Raise :class:`AccountingError` unless a finished workbook's parts, except ``changed``, equal the source's."""
    with ZipFile(source) as old, ZipFile(target) as new:
        if [*map(usual_name, old.namelist())] != new.namelist():
            raise AccountingError(PARTS_DIFFER)
        for before, after in zip(old.infolist(), new.infolist(), strict=True):
            same = (before.CRC, before.file_size) == (after.CRC, after.file_size)
            if before.filename not in changed and not (same and _raw_part(old, before) == _raw_part(new, after)):
                raise AccountingError(PART_CHANGED, filename=before.filename)


def read_part(archive: ZipFile, part: str) -> bytes:
    return b"".join(part_pieces(archive, part))


def part_pieces(archive: ZipFile, part: str) -> Generator[bytes]:
    try:
        with archive.open(part) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except (KeyError, *BROKEN_ZIP) as error:
        raise OutputError(PART_UNREADABLE, part=part, error=error) from error


def _pack(new: ZipFile, name: str, pieces: Iterable[bytes]) -> None:
    try:
        with new.open(name, "w") as stream, ThreadPoolExecutor(1) as packer:  # packs while the next piece is made
            pending = packer.submit(stream.write, b"")
            for piece in pieces:
                pending.result()
                pending = packer.submit(stream.write, piece)
            pending.result()
    except RuntimeError as error:  # zipfile's word for 2 GB and more, which not every Excel reads
        raise OutputError(SHEET_TOO_LARGE, error=error) from error


def _carry(old: ZipFile, part: ZipInfo, new: ZipFile, name: str) -> None:
    packed = _raw_part(old, part)
    carried = copy.copy(part)
    carried.filename = name
    carried.flag_bits &= ~0x08  # its size stands before it, not behind
    carried.extra = b""
    assert new.fp is not None  # noqa: S101 - it is open
    carried.header_offset = new.fp.tell()
    new.fp.write(carried.FileHeader(zip64=False))
    new.fp.write(packed)
    new.filelist.append(carried)
    new.NameToInfo[carried.filename] = carried
    new.start_dir = new.fp.tell()


def _raw_part(archive: ZipFile, part: ZipInfo) -> bytes:
    assert archive.fp is not None  # noqa: S101 - it is open
    archive.fp.seek(part.header_offset)
    name, extra = struct.unpack("<HH", archive.fp.read(30)[26:])
    archive.fp.seek(name + extra, 1)
    return archive.fp.read(part.compress_size)
