"""Locates the elements of an XML part by bytes and edits it in place; nothing is parsed and written anew."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

from bansong.errors import OutputError, Problem

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

Edit = tuple[int, int, bytes]
"""Bytes from … to … (exclusive) give way to others."""


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
        """The name without the prefix of its namespace."""
        return self.tag.rpartition(":")[2]

    @property
    def prefix(self) -> str:
        """The prefix of its namespace with the colon, or nothing."""
        return self.tag[: -len(self.name)]


def elements_of(xml: bytes, part: str) -> list[Element]:
    """Return the elements of a part in document order.

    Raises :class:`OutputError` for XML that is damaged, holds a document type (no workbook has one; entities could
    unfold without end), or is not UTF-8.
    """
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

    def refuse(*_: object) -> None:
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
    """The first child of a part's root that has a name."""
    return next((element for element in elements if element.depth == 1 and element.name == name), None)


def refuse_encoding(xml: bytes, part: str) -> None:
    """Raise :class:`OutputError` for a part that is not, or says that it is not, UTF-8."""
    stated = re.match(rb"""(?:\xef\xbb\xbf)?<\?xml[^>]*?\sencoding\s*=\s*["']([^"']+)""", xml)
    encoding = stated.group(1).decode("ascii", "replace") if stated else "UTF-8"
    if xml.startswith((b"\xff\xfe", b"\xfe\xff", b"<\x00", b"\x00<")):
        encoding = "UTF-16"
    if encoding.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise OutputError(PART_NOT_UTF8, part=part, encoding=encoding)


def apply_edits(xml: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the bytes with edits made; edits are given in the coordinates of ``xml`` and do not overlap.

    Those that insert at one place come out in the order in which they are given.
    """
    pieces, done = [], 0
    for start, stop, new in sorted(edits, key=lambda edit: edit[0]):
        pieces += [xml[done:start], new]
        done = stop
    return b"".join([*pieces, xml[done:]])


def attribute(tag: bytes, name: str, value: object) -> bytes:
    """A start tag with an attribute set, in place where it has it, else behind the others."""
    found = re.search(rb"""(\s%s\s*=\s*)(?:"[^"]*"|'[^']*')""" % name.encode(), tag)
    new = str(value).encode()
    if found:
        return tag[: found.start()] + found.group(1) + b'"' + new + b'"' + tag[found.end() :]
    end = len(tag) - (2 if tag.endswith(b"/>") else 1)
    return tag[:end].rstrip() + b" %s=" % name.encode() + b'"' + new + b'"' + tag[end:]


def without(tag: bytes, *names: str) -> bytes:
    """A start tag without some attributes."""
    for name in names:
        tag = re.sub(rb"""\s%s\s*=\s*(?:"[^"]*"|'[^']*')""" % name.encode(), b"", tag, count=1)
    return tag
