"""What a workbook says of itself: its sheets in their order, which are hidden, and the parts they stand in."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree
from zipfile import BadZipFile, ZipFile

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from bizverify.errors import InputError

BOOK: Final = "xl/workbook.xml"
_RELATIONS: Final = "xl/_rels/workbook.xml.rels"
CORE: Final = (BOOK, _RELATIONS)
"""The parts that are read here, in lower case."""

_LARGEST_INDEX: Final = 16_000_000
_RELATION: Final = re.compile(r"\{.*/relationships\}id$")


@dataclass(frozen=True, slots=True)
class SheetEntry:
    """A sheet as the workbook lists it; ``part`` is ``None`` for what is not a table, such as a chart."""

    name: str
    visible: bool
    part: str | None


def outline(path: Path, data: Path) -> list[SheetEntry]:
    """The sheets of an .xlsx workbook whose XML was looked over before (no document types, no entities).

    Raises :class:`InputError` for a workbook without sheets, or one whose list of sheets does not hold together.
    """
    try:
        with ZipFile(data) as archive:
            entries = entries_of(archive)
    except (ElementTree.ParseError, DefusedXmlException, KeyError, BadZipFile, ValueError) as error:
        raise InputError(
            f"{path}: is a damaged workbook (its list of sheets cannot be read: {error}); save it again in Excel"
        ) from error
    if not entries:
        raise InputError(f"{path}: is a workbook without sheets; save it again in Excel")
    return entries


def entries_of(archive: ZipFile) -> list[SheetEntry]:
    """The sheets that an open workbook lists; raise :class:`ValueError` or :class:`KeyError` for one that is damaged.

    Their names differ: by them, the parser is told which sheet to read, and the writer which part to extend.
    """
    names = {name.lower(): name for name in archive.namelist()}
    book, relations = (_parse_part(archive, names, part) for part in CORE)
    targets = {relation.get("Id"): relation for relation in relations}
    if len(targets) < len(relations):
        raise ValueError("a relation is there twice")
    entries = [_entry(element, targets, names) for element in book.iter() if _local(element) == "sheet"]
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("two sheets have one name")
    return entries


def _parse_part(archive: ZipFile, names: dict[str, str], part: str) -> ElementTree.Element:
    info = archive.getinfo(names[part])
    if info.file_size > _LARGEST_INDEX:
        raise ValueError(f"{part} is too large")
    found: ElementTree.Element = fromstring(archive.read(info))
    return found


def _entry(
    element: ElementTree.Element, targets: dict[str | None, ElementTree.Element], names: dict[str, str]
) -> SheetEntry:
    identity = next((value for key, value in element.attrib.items() if _RELATION.search(key)), None)
    relation = targets.get(identity)
    if relation is None:
        raise KeyError(f"sheet {element.get('name')!r} has no part")
    part = None
    if relation.get("Type", "").endswith("/worksheet"):
        target = posixpath.normpath(posixpath.join("/xl", relation.get("Target", ""))).lstrip("/")
        part = names.get(target.lower())
        if part is None:
            raise KeyError(f"the part {target} of sheet {element.get('name')!r} is missing")
    return SheetEntry(element.get("name", ""), element.get("state", "visible") == "visible", part)


def _local(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]
