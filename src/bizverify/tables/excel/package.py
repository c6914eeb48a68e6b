"""The zip around a workbook: where its sheets and styles are, and a copy in which only named parts differ."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final
from xml.etree import ElementTree
from zipfile import ZIP_DEFLATED, ZipFile

from bizverify.errors import OutputError

_MAIN: Final = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_STRICT: Final = "{http://purl.oclc.org/ooxml/spreadsheetml/main}"
_RELATION: Final = re.compile(r"\{.*/relationships\}id$")
_CELL_FORMATS: Final = re.compile(r"(<cellXfs)([^>]*?)>(.*?)(</cellXfs>)", flags=re.S)
_FORMAT: Final = re.compile(r"<xf\b[^>]*?(?:/>|>.*?</xf>)", flags=re.S)


def sheet_part(archive: ZipFile, sheet: str) -> str:
    """Return the part's name of a sheet."""
    book = ElementTree.fromstring(archive.read("xl/workbook.xml"))  # noqa: S314
    relations = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))  # noqa: S314
    targets = {relation.get("Id"): relation.get("Target", "") for relation in relations}
    for element in [*book.iter(f"{_MAIN}sheet"), *book.iter(f"{_STRICT}sheet")]:
        if element.get("name") == sheet:
            identity = next(value for key, value in element.attrib.items() if _RELATION.search(key))
            part = posixpath.normpath(posixpath.join("/xl", targets[identity])).lstrip("/")
            names = {name.lower(): name for name in archive.namelist()}  # parts are named without regard to case
            if part.lower() in names:
                return names[part.lower()]
    raise OutputError(f"the workbook has no sheet {sheet!r} to extend")


def percent_styles(styles_xml: str, of: list[str]) -> tuple[str, dict[str, str]]:
    """Add to ``styles.xml`` a percent format for each cell style in ``of``; return it and style → percent style."""
    found = _CELL_FORMATS.search(styles_xml)
    if found is None:
        return styles_xml, {}
    formats = _FORMAT.findall(found.group(3))
    of = [style for style in of if int(style) < len(formats)]
    added = [_as_percent(formats[int(style)]) for style in of]
    places = {style: str(len(formats) + place) for place, style in enumerate(of)}
    attributes = re.sub(r'\scount="[0-9]+"', "", found.group(2)) + f' count="{len(formats) + len(added)}"'
    block = f"{found.group(1)}{attributes}>{found.group(3)}{''.join(added)}{found.group(4)}"
    return styles_xml[: found.start()] + block + styles_xml[found.end() :], places


def _as_percent(cell_format: str) -> str:
    bare = re.sub(r'\s(?:numFmtId|applyNumberFormat)="[^"]*"', "", cell_format, count=2)
    return bare.replace("<xf", '<xf numFmtId="10" applyNumberFormat="1"', 1)  # 10 is 0.00 %


def copy_package(source: Path | IO[bytes], target: Path, changed: Mapping[str, str]) -> None:
    """Copy a workbook, putting new text in place of the parts in ``changed``; every other part stays byte for byte."""
    with ZipFile(source) as old, target.open("wb") as file, ZipFile(file, "w", ZIP_DEFLATED) as new:
        for part in old.infolist():
            text = changed.get(part.filename)
            new.writestr(part, old.read(part) if text is None else text.encode(), compress_type=ZIP_DEFLATED)
