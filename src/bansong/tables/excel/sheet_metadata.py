"""Edits around a sheet's rows: used range, widths, conditional formats, and entries added to ``styles.xml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from bansong.base.schema import GRADES
from bansong.tables.excel.package import Edit, Element, apply_edits, attribute, elements_of, find_child, without
from bansong.tables.excel.sheet_xml import Area, column_letter, column_number

GRADE_COLOURS: Final = {
    "A": ("006100", "C6EFCE"),
    "B": ("375623", "E2F0D9"),
    "C": ("7F6000", "FFF2CC"),
    "D": ("974706", "FCD5B4"),
    "E": ("9C0006", "FFC7CE"),
}  # RGB of text and background by grade

_GENERAL: Final = "0"
# formats that show text as it is, ``General`` and ``@``: others can hide it (``;;;``) or add to it
AS_TEXT: Final = ("0", "49")
AS_PERCENT: Final = ("10",)  # the number format `0.00%`
_REFERENCES: Final = ("numFmtId", "fontId", "fillId", "borderId", "xfId")
_MOST_FORMATS: Final = 64_000
_BEFORE_DXFS: Final = ("numFmts", "fonts", "fills", "borders", "cellStyleXfs", "cellXfs", "cellStyles")
_BEFORE_FORMATS: Final = (  # in the order that the schema of a worksheet prescribes
    *("sheetData", "sheetCalcPr", "sheetProtection", "protectedRanges", "scenarios", "autoFilter", "sortState"),
    *("dataConsolidate", "customSheetViews", "mergeCells", "phoneticPr", "conditionalFormatting"),
)


@dataclass
class Styles:
    """The styles of a workbook, and the cell formats and grade colours to add."""

    part: str
    xml: bytes
    added: list[bytes] = field(default_factory=list)
    graded: bool = False

    def __post_init__(self) -> None:
        self.elements = elements_of(self.xml, self.part)
        self.formats = self._entries("cellXfs")
        looks = [self._look(xf.attributes, xf) for xf in self.formats]
        self.places = {look: place for place, look in reversed([*enumerate(looks)])}

    @classmethod
    def of(cls, part: str, xml: bytes) -> Styles | None:
        """Return the styles of a part; ``None`` without cell formats, as some programs write it: none can be added."""
        styles = cls(part, xml)
        return styles if styles.formats else None

    def add_grades(self) -> int:
        self.graded = True
        return len(self._entries("dxfs"))

    def text(self) -> bytes:
        p, colours = self.elements[0].prefix, GRADE_COLOURS.values() if self.graded else ()
        grades = [
            f'<{p}dxf><{p}font><{p}color rgb="FF{text}"/></{p}font><{p}fill><{p}patternFill>'
            f'<{p}bgColor rgb="FF{background}"/></{p}patternFill></{p}fill></{p}dxf>'.encode()
            for text, background in colours
        ]
        return apply_edits(self.xml, self._append_entries("cellXfs", self.added) + self._append_entries("dxfs", grades))

    def variant(self, style: str, formats: tuple[str, ...]) -> str:
        """Return the style if it has one of these number formats, else a copy with the first."""
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
        """Return references, alignment and protection of a cell format; equal for formats that look the same."""
        compared = {name: value for name, value in attributes.items() if name in _REFERENCES}
        compared |= {name: "0" for name, value in attributes.items() if name[:5] == "apply" and value in ("0", "false")}
        compared.pop("applyNumberFormat", None)
        quoted = attributes.get("quotePrefix") in ("1", "true")
        inner = self.xml[xf.inner : xf.stop] if xf.stop > xf.inner else b""
        return frozenset({**compared, "quoted": str(quoted)}.items()), inner

    def _entries(self, name: str) -> list[Element]:
        whole = find_child(self.elements, name)
        return [e for e in self.elements if whole and e.depth == 2 and whole.start < e.start < whole.stop]

    def _append_entries(self, name: str, new: list[bytes]) -> list[Edit]:
        if not new:
            return []
        entries, whole, tag = self._entries(name), find_child(self.elements, name), f"{self.elements[0].prefix}{name}"
        if whole is not None and entries:
            start = self.xml[whole.start : whole.inner]
            opened = attribute(start, "count", len(entries) + len(new))
            return [(whole.start, whole.inner, opened), (entries[-1].stop, entries[-1].stop, b"".join(new))]
        made = b"".join([f'<{tag} count="{len(new)}">'.encode(), *new, f"</{tag}>".encode()])
        if whole is not None:
            return [(whole.start, whole.stop, made)]
        place = max(e.stop for e in self.elements if e.depth == 1 and e.name in _BEFORE_DXFS)
        return [(place, place, made)]


def merged_areas(elements: Sequence[Element], top: int, bottom: int) -> list[Area]:
    areas = [Area.parse(element.attributes.get("ref", "")) for element in elements if element.name == "mergeCell"]
    return [area for area in areas if area and area.meets_rows(top, bottom)]


def dimension_edits(xml: bytes, elements: Sequence[Element], right: int, bottom: int) -> list[Edit]:
    stated = find_child(elements, "dimension")
    found = stated and re.fullmatch(r"([A-Z]+)([0-9]+)(?::([A-Z]+)([0-9]+))?", stated.attributes.get("ref", ""))
    if not stated or not found:
        return []
    left, top, old_right, old_bottom = found.groups()
    right = max(right, column_number(old_right or left))
    bottom = max(bottom, int(old_bottom or top))
    ref = f"{left}{top}:{column_letter(right)}{bottom}"
    return [(stated.start, stated.inner, attribute(xml[stated.start : stated.inner], "ref", ref))]


def width_edits(xml: bytes, elements: Sequence[Element], widths: Mapping[int, float], *, replaced: bool) -> list[Edit]:
    """Set widths (characters) of columns; show hidden or folded ones; ``replaced`` ones keep the user's widths."""
    whole = find_child(elements, "cols")
    ranges = [element for element in elements if element.name == "col"] if whole else []
    data = next(element for element in elements if element.name == "sheetData")
    free, edits = set(widths), []
    for element in ranges:
        low, high = (int(element.attributes.get(name, "0")) for name in ("min", "max"))
        ours = sorted(column for column in widths if low <= column <= high)
        free -= set(ours)
        shown = element.attributes.get("hidden", "0") in ("0", "false")
        if ours and not (replaced and shown):
            tag = xml[element.start : element.inner]
            edits.append((element.start, element.stop, _split(tag, low, high, {c: widths[c] for c in ours})))
    bare = f"<{data.prefix}col>".encode()
    inserted = []
    for column in sorted(free):
        beyond = [element.start for element in ranges if int(element.attributes.get("min", "0")) > column]
        place = beyond[0] if beyond else ranges[-1].stop if ranges else data.start
        inserted.append((place, place, _column(bare, column, widths[column])))
    if not ranges and inserted:
        made = b"".join(new for _, _, new in inserted)
        start, stop = (whole.start, whole.stop) if whole else (data.start, data.start)
        return [(start, stop, b"<%bcols>%b</%bcols>" % (data.prefix.encode(), made, data.prefix.encode()))]
    return [*inserted, *edits]


def grade_edits(
    elements: Sequence[Element], xml: bytes, column: int, rows: tuple[int, int], styles: Styles
) -> list[Edit]:
    """Fit the grades' colours of an earlier enrichment to the rows, or add them behind other conditional formats."""
    letter = column_letter(column)
    sqref = f"{letter}{rows[0]}:{letter}{rows[1]}"
    for place, element in enumerate(elements):
        if element.name == "conditionalFormatting" and element.depth == 1 and _is_of_grades(elements, place):
            stated = element.attributes.get("sqref", "")
            if re.fullmatch(rf"{letter}[0-9]+(:{letter}[0-9]+)?", stated):
                tag = xml[element.start : element.inner]
                return [] if sqref == stated else [(element.start, element.inner, attribute(tag, "sqref", sqref))]
    dxf, p = styles.add_grades(), elements[0].prefix
    place = max(element.stop for element in elements if element.depth == 1 and element.name in _BEFORE_FORMATS)
    taken = [element.attributes.get("priority", "") for element in elements if element.name == "cfRule"]
    last = max((int(priority) for priority in taken if priority.isdecimal()), default=0)
    rules = "".join(
        f'<{p}cfRule type="cellIs" dxfId="{dxf + number}" priority="{last + number + 1}" operator="equal">'
        f'<{p}formula>"{grade}"</{p}formula></{p}cfRule>'
        for number, grade in enumerate(GRADES)
    )
    new = f'<{p}conditionalFormatting sqref="{sqref}">{rules}</{p}conditionalFormatting>'
    return [(place, place, new.encode())]


def _is_of_grades(elements: Sequence[Element], place: int) -> bool:
    inside = list(takewhile(lambda element: element.start < elements[place].stop, islice(elements, place, None)))
    rules = [element.attributes for element in inside if element.name == "cfRule"]
    texts = [element.text.strip() for element in inside if element.name == "formula"]
    plain = all((rule.get("type"), rule.get("operator")) == ("cellIs", "equal") for rule in rules)
    return plain and sorted(texts) == [f'"{grade}"' for grade in GRADES]


def _split(tag: bytes, low: int, high: int, ours: Mapping[int, float]) -> bytes:
    first, last = min(ours), max(ours)
    closed = tag if tag.endswith(b"/>") else tag[:-1] + b"/>"
    before = attribute(closed, "max", first - 1) if low < first else b""
    after = attribute(closed, "min", last + 1) if last < high else b""
    return before + b"".join(_column(tag, column, width) for column, width in ours.items()) + after


def _column(tag: bytes, column: int, width: float) -> bytes:
    shown = without(tag if tag.endswith(b"/>") else tag[:-1] + b"/>", "hidden", "outlineLevel", "collapsed", "bestFit")
    for name, value in (("min", column), ("max", column), ("width", width), ("customWidth", 1)):
        shown = attribute(shown, name, value)
    return shown
