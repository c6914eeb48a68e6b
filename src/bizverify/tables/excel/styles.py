"""``styles.xml``, to whose lists entries are added at the end; nothing in it is changed or moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bizverify.tables.excel.xml_edit import Edit, Element, apply_edits, attribute, elements_of, without

GRADE_COLOURS: Final = {
    "A": ("006100", "C6EFCE"),
    "B": ("375623", "E2F0D9"),
    "C": ("7F6000", "FFF2CC"),
    "D": ("974706", "FCD5B4"),
    "E": ("9C0006", "FFC7CE"),
}
"""Text and background of a grade, as RGB."""

_GENERAL: Final = "0"
_AS_TEXT: Final = ("0", "49")
"""Number formats that show any text as it is: ``General`` and ``@``."""
_PERCENT: Final = "10"
"""The number format ``0.00%``."""
_REFERENCES: Final = ("numFmtId", "fontId", "fillId", "borderId", "xfId")
_MOST_FORMATS: Final = 64_000
_BEFORE_DXFS: Final = ("numFmts", "fonts", "fills", "borders", "cellStyleXfs", "cellXfs", "cellStyles")


@dataclass
class Styles:
    """The styles of a workbook, and the cell formats and grade colours that are to be added."""

    part: str
    xml: bytes
    added: list[bytes] = field(default_factory=list)
    graded: bool = False

    def __post_init__(self) -> None:
        self.elements = elements_of(self.xml, self.part)
        self.formats = self._entries("cellXfs")
        looks = [self._look(xf.attributes, xf) for xf in self.formats]
        self.places = {look: place for place, look in reversed([*enumerate(looks)])}

    def for_text(self, style: str) -> str:
        """A style like this one that shows text as it is: a number format can hide it (``;;;``) or add to it."""
        return self._variant(style, _AS_TEXT)

    def for_percent(self, style: str) -> str:
        """A style like this one that shows a fraction as ``12.34%``."""
        return self._variant(style, (_PERCENT,))

    def add_grades(self) -> int:
        """Add the grades' colours; return the number (``dxfId``) of the first."""
        self.graded = True
        return len(self._entries("dxfs"))

    @property
    def changed(self) -> bool:
        """Whether anything was added."""
        return self.graded or bool(self.added)

    def text(self) -> bytes:
        """The part with what was added."""
        edits = self._append_entries("cellXfs", self.added)
        if self.graded:
            edits += self._append_entries(
                "dxfs", [_grade_format(self._prefix, *pair) for pair in GRADE_COLOURS.values()]
            )
        return apply_edits(self.xml, edits)

    def _variant(self, style: str, formats: tuple[str, ...]) -> str:
        """The style itself if it has one of these number formats, else one like it that has the first."""
        if int(style) >= len(self.formats):
            return style  # the workbook names a style that it does not have
        xf = self.formats[int(style)]
        if xf.attributes.get("numFmtId", _GENERAL) in formats:
            return style
        look = self._look(xf.attributes | {"numFmtId": formats[0], "quotePrefix": "0"}, xf)
        if look not in self.places:
            if len(self.places) >= _MOST_FORMATS:
                return _GENERAL
            bare = without(self.xml[xf.start : xf.inner], "quotePrefix", "applyNumberFormat")
            tag = attribute(attribute(bare, "numFmtId", formats[0]), "applyNumberFormat", "1")
            self.places[look] = len(self.formats) + len(self.added)
            self.added.append(tag + self.xml[xf.inner : xf.stop])
        return str(self.places[look])

    def _look(self, attributes: Mapping[str, str], xf: Element) -> tuple[frozenset[tuple[str, str]], bytes]:
        """What two cell formats that look the same have in common: their references, alignment and protection."""
        compared = {name: value for name, value in attributes.items() if name in _REFERENCES}
        compared |= {name: "0" for name, value in attributes.items() if name[:5] == "apply" and value in ("0", "false")}
        compared.pop("applyNumberFormat", None)
        quoted = attributes.get("quotePrefix") in ("1", "true")
        inner = self.xml[xf.inner : xf.stop] if xf.stop > xf.inner else b""
        return frozenset({**compared, "quoted": str(quoted)}.items()), inner

    def _list(self, name: str) -> Element | None:
        return next((element for element in self.elements if element.depth == 1 and element.name == name), None)

    def _entries(self, name: str) -> list[Element]:
        whole = self._list(name)
        if whole is None:
            return []
        return [e for e in self.elements if e.depth == 2 and whole.start < e.start < whole.stop]

    @property
    def _prefix(self) -> str:
        return self.elements[0].prefix

    def _append_entries(self, name: str, new: list[bytes]) -> list[Edit]:
        if not new:
            return []
        entries, whole, tag = self._entries(name), self._list(name), f"{self._prefix}{name}"
        if whole is not None and entries:
            start = self.xml[whole.start : whole.inner]
            opened = attribute(start, "count", len(entries) + len(new))
            return [(whole.start, whole.inner, opened), (entries[-1].stop, entries[-1].stop, b"".join(new))]
        made = b"".join([f'<{tag} count="{len(new)}">'.encode(), *new, f"</{tag}>".encode()])
        if whole is not None:
            return [(whole.start, whole.stop, made)]
        place = max(e.stop for e in self.elements if e.depth == 1 and e.name in _BEFORE_DXFS)
        return [(place, place, made)]


def _grade_format(prefix: str, text: str, background: str) -> bytes:
    p = prefix
    return (
        f'<{p}dxf><{p}font><{p}color rgb="FF{text}"/></{p}font><{p}fill><{p}patternFill>'
        f'<{p}bgColor rgb="FF{background}"/></{p}patternFill></{p}fill></{p}dxf>'
    ).encode()
