"""What stands around a sheet's rows: the used range, the columns' widths, the conditional formats."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from typing import Final

from bizverify.schema import GRADES
from bizverify.tables.excel.cells import Area, column_letter, column_number
from bizverify.tables.excel.xml_edit import Edit, Element, attribute, without

_BEFORE_FORMATS: Final = (
    "sheetData",
    "sheetCalcPr",
    "sheetProtection",
    "protectedRanges",
    "scenarios",
    "autoFilter",
    "sortState",
    "dataConsolidate",
    "customSheetViews",
    "mergeCells",
    "phoneticPr",
    "conditionalFormatting",
)
"""The elements of a worksheet, in the order that its schema prescribes, up to the conditional formats."""


def merged_right(elements: Sequence[Element], top: int, bottom: int) -> int:
    """The last column (from 1) of the merged ranges that reach into rows ``top`` to ``bottom``; 0 if none does."""
    right = 0
    for element in elements:
        if element.name == "mergeCell":
            area = Area.parse(element.attributes.get("ref", ""))
            if area and area.top <= bottom and area.bottom >= top:
                right = max(right, area.right)
    return right


def dimension_edits(xml: bytes, elements: Sequence[Element], right: int, bottom: int) -> list[Edit]:
    """Widen the used range that the sheet states, if it states one."""
    stated = next((element for element in elements if element.depth == 1 and element.name == "dimension"), None)
    found = stated and re.fullmatch(r"([A-Z]+)([0-9]+)(?::([A-Z]+)([0-9]+))?", stated.attributes.get("ref", ""))
    if not stated or not found:
        return []
    left, top, old_right, old_bottom = found.groups()
    right = max(right, column_number(old_right or left))
    bottom = max(bottom, int(old_bottom or top))
    ref = f"{left}{top}:{column_letter(right)}{bottom}"
    return [(stated.start, stated.inner, attribute(xml[stated.start : stated.inner], "ref", ref))]


def width_edits(xml: bytes, elements: Sequence[Element], widths: Mapping[int, float], *, replaced: bool) -> list[Edit]:
    """Give columns their widths (in characters), and show them where they lie in hidden or folded ones.

    ``replaced``: the columns stood there before, so widths that the user gave them since are kept.
    """
    whole = next((element for element in elements if element.depth == 1 and element.name == "cols"), None)
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


def grade_edits(elements: Sequence[Element], xml: bytes, column: int, rows: tuple[int, int]) -> list[Edit] | None:
    """What makes the grades' colours of an earlier enrichment fit; ``None`` where there are none."""
    letter = column_letter(column)
    for place, element in enumerate(elements):
        if element.name == "conditionalFormatting" and element.depth == 1 and _is_of_grades(elements, place):
            stated = element.attributes.get("sqref", "")
            if re.fullmatch(rf"{letter}[0-9]+(:{letter}[0-9]+)?", stated):
                ref = f"{letter}{rows[0]}:{letter}{rows[1]}"
                tag = xml[element.start : element.inner]
                return [] if ref == stated else [(element.start, element.inner, attribute(tag, "sqref", ref))]
    return None


def new_grade_edits(elements: Sequence[Element], column: int, rows: tuple[int, int], dxf: int) -> list[Edit]:
    """One more conditional format, behind those that are there: a colour for each grade, from ``dxf`` on."""
    place = max(element.stop for element in elements if element.depth == 1 and element.name in _BEFORE_FORMATS)
    taken = [element.attributes.get("priority", "") for element in elements if element.name == "cfRule"]
    last = max((int(priority) for priority in taken if priority.isdecimal()), default=0)
    p, letter = elements[0].prefix, column_letter(column)
    rules = "".join(
        f'<{p}cfRule type="cellIs" dxfId="{dxf + number}" priority="{last + number + 1}" operator="equal">'
        f'<{p}formula>"{grade}"</{p}formula></{p}cfRule>'
        for number, grade in enumerate(GRADES)
    )
    sqref = f"{letter}{rows[0]}:{letter}{rows[1]}"
    new = f'<{p}conditionalFormatting sqref="{sqref}">{rules}</{p}conditionalFormatting>'
    return [(place, place, new.encode())]


def _is_of_grades(elements: Sequence[Element], place: int) -> bool:
    """Whether the element at a place is a conditional format like those of :func:`new_grade_edits`."""
    inside = list(takewhile(lambda element: element.start < elements[place].stop, islice(elements, place, None)))
    rules = [element.attributes for element in inside if element.name == "cfRule"]
    texts = [element.text.strip() for element in inside if element.name == "formula"]
    plain = all((rule.get("type"), rule.get("operator")) == ("cellIs", "equal") for rule in rules)
    return plain and sorted(texts) == [f'"{grade}"' for grade in GRADES]


def _split(tag: bytes, low: int, high: int, ours: Mapping[int, float]) -> bytes:
    """A ``<col>`` that spans columns of ours, cut so that each of them has its own."""
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
