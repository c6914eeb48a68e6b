"""Charts, pictures and sparklines on a sheet: which of them lie over the columns that are added."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final
from zipfile import ZipFile

import polars as pl

from bansong.schema import Alert
from bansong.tables.excel.cells import MAX_COLUMNS, MAX_ROW, WIDTHS, Area, column_letter
from bansong.tables.excel.package import read_part, related_parts
from bansong.tables.excel.ranges import AddedColumns
from bansong.tables.excel.xml_edit import Element, elements_of
from bansong.translation import gettext, gettext_noop

_ANCHORS: Final = ("twoCellAnchor", "oneCellAnchor", "absoluteAnchor")
_KINDS: Final = {"graphicFrame": "chart", "pic": "picture"}
_NAMED: Final = {
    "chart": gettext_noop("the chart {name!r} ({area})"),
    "picture": gettext_noop("the picture {name!r} ({area})"),
    "shape": gettext_noop("the shape {name!r} ({area})"),
    "sparklines": gettext_noop("the sparklines in {area}"),
}
_POINT: Final = 12_700
_CHARACTER: Final = 7 * 9_525
"""English metric units of a point, and of a character's width in Excel's usual font."""
_WIDTH: Final = 64 / 7
_HEIGHT: Final = 15.0
"""Of columns (in characters) and rows (in points) that state nothing else."""
_NEAR: Final = 1_000
"""Rows behind the header whose heights are looked at; a drawing that reaches so far lies beside records anyway."""
_LARGEST: Final = 16_000_000
"""Bytes of a part with drawings up to which it is looked into."""
_SHOWN: Final = 5
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart, a picture, a shape or a group of sparklines, and the cells that it covers."""

    kind: str
    name: str
    area: Area


def warn_of_drawings(archive: ZipFile, part: str, added: AddedColumns, new: Mapping[str, int]) -> Iterator[Alert]:
    """Name the drawings of a sheet that lie over its ``new`` columns (name → column of the sheet).

    The columns stay beside the table all the same: a gap between them would part them in a sort.
    """
    if not new:
        return
    first, last = min(new.values()), max(new.values())
    columns = gettext("{first} to {last}", first=column_letter(first), last=column_letter(last))
    remedy = gettext("move them to the right of column {letter}", letter=column_letter(last))
    drawings = [*_sparklines(added.sheet.elements)]
    for drawing_part in related_parts(archive, part, "drawing"):
        if archive.getinfo(drawing_part).file_size > _LARGEST:
            yield Alert(
                gettext(
                    "{called}: has too many drawings to look at; if some lie over {columns}, {remedy}",
                    called=added.called,
                    columns=columns,
                    remedy=remedy,
                )
            )
            continue
        drawings += _read_drawings(read_part(archive, drawing_part), drawing_part, _Measures.of(added, new))
    found = {  # a drawing may be there twice, for old readers and new ones
        gettext(_NAMED[drawing.kind], name=drawing.name, area=drawing.area): None
        for drawing in drawings
        if drawing.area.left <= last
        and drawing.area.right >= first
        and drawing.area.top <= added.bottom
        and drawing.area.bottom >= added.top
    }
    if found:
        more = gettext(" and {count} more", count=len(found) - _SHOWN) if len(found) > _SHOWN else ""
        yield Alert(
            gettext(
                "{called}: the new columns {columns} stand beside your table, under {shown}{more}; "
                "{remedy}, nothing of them has been changed",
                called=added.called,
                columns=columns,
                shown=", ".join([*found][:_SHOWN]),
                more=more,
                remedy=remedy,
            )
        )


@dataclass(frozen=True)
class _Measures:
    """The widths of a sheet's columns (characters) and the heights of its rows (points), as far as it states them."""

    columns: Mapping[int, float]
    rows: Mapping[int, float]
    width: float
    height: float

    @classmethod
    def of(cls, added: AddedColumns, new: Mapping[str, int]) -> _Measures:
        """The measures of a sheet up to the last row of its table, its new columns as wide as they will be."""
        columns: dict[int, float] = {}
        usual: dict[str, str] = {}
        for element in added.sheet.elements:
            if element.name == "col":
                low, high = (int(_parse_number(element.attributes.get(name), 1)) for name in ("min", "max"))
                shown = element.attributes.get("hidden", "0") in ("0", "false")
                width = _parse_number(element.attributes.get("width"), _WIDTH) if shown else 0.0
                columns |= dict.fromkeys(range(low, min(high, MAX_COLUMNS) + 1), width)
            elif element.name == "sheetFormatPr":
                usual = element.attributes
        columns |= {number: float(WIDTHS[column]) for column, number in new.items()}
        tag = pl.col("xml").str.extract(r"^\s*(<[^>]*>?)")
        hidden = pl.when(tag.str.contains(r'\shidden="(?:1|true)"')).then(pl.lit(0.0))
        height = hidden.otherwise(tag.str.extract(r'\sht="([0-9.]+)"').cast(pl.Float64, strict=False))
        said = added.sheet.between(1, added.top + _NEAR).select("r", height.alias("height")).drop_nulls()
        return cls(
            columns,
            dict(said.iter_rows()),
            _parse_number(usual.get("defaultColWidth"), _WIDTH),
            _parse_number(usual.get("defaultRowHeight"), _HEIGHT),
        )

    def column_at(self, column: int, distance: int) -> int:
        """The column that lies a distance (in English metric units) to the right of a column's left edge."""
        sizes = (self.columns.get(number, self.width) * _CHARACTER for number in count(column))
        return _find_end(column, distance, sizes, MAX_COLUMNS)

    def row_at(self, row: int, distance: int) -> int:
        """The row that lies a distance below a row's upper edge."""
        sizes = (self.rows.get(number, self.height) * _POINT for number in count(row))
        return _find_end(row, distance, sizes, MAX_ROW)


def _find_end(start: int, distance: int, sizes: Iterator[float], last: int) -> int:
    gone = 0.0
    for number, size in zip(range(start, last), sizes, strict=False):
        gone += size
        if gone >= distance:
            return number
    return last


def _read_drawings(xml: bytes, part: str, measures: _Measures) -> Iterator[Drawing]:
    elements = elements_of(xml, part)
    starts = [element.start for element in elements]
    for place, anchor in enumerate(elements):
        if anchor.name in _ANCHORS:
            inside = elements[place + 1 : bisect_left(starts, anchor.stop)]
            kind = next((_KINDS[element.name] for element in inside if element.name in _KINDS), "shape")
            name = next((e.attributes.get("name", "") for e in inside if e.name == "cNvPr"), "")
            yield Drawing(kind, name, _covered_area(anchor, inside, measures))


def _sparklines(elements: Sequence[Element]) -> Iterator[Drawing]:
    starts = [element.start for element in elements]
    for place, group in enumerate(elements):
        if group.name == "sparklineGroup":
            inside = elements[place + 1 : bisect_left(starts, group.stop)]
            cells = [area for e in inside if e.name == "sqref" if (area := Area.parse(e.text.strip()))]
            if cells:
                left, top = min(area.left for area in cells), min(area.top for area in cells)
                right, bottom = max(area.right for area in cells), max(area.bottom for area in cells)
                yield Drawing("sparklines", "", Area(left, top, right, bottom))


def _covered_area(anchor: Element, inside: Sequence[Element], measures: _Measures) -> Area:
    """The cells that a drawing covers, by its anchor: two cells, a cell and a size, or a place and a size."""
    numbers = [int(_parse_number(e.text)) for e in inside if e.name in ("col", "colOff", "row", "rowOff")]
    if anchor.name == "twoCellAnchor" and len(numbers) >= 8:
        left, _, top, _, right, right_off, bottom, bottom_off = numbers[:8]
        # one that ends at the very edge of a cell does not cover it
        return Area(left + 1, top + 1, max(right + (right_off > 0), left + 1), max(bottom + (bottom_off > 0), top + 1))
    size = _read_pair(inside, "ext", "cx", "cy")
    if anchor.name == "oneCellAnchor" and len(numbers) >= 4:
        left, x, top, y = numbers[:4]
        left, top = left + 1, top + 1
    else:
        (x, y), left, top = _read_pair(inside, "pos", "x", "y"), 1, 1
    return Area(
        measures.column_at(left, x + 1),
        measures.row_at(top, y + 1),
        measures.column_at(left, x + size[0]),
        measures.row_at(top, y + size[1]),
    )


def _read_pair(inside: Sequence[Element], name: str, *attributes: str) -> tuple[int, int]:
    found = next((e.attributes for e in inside if e.name == name), {})
    first, second = (int(_parse_number(found.get(attribute))) for attribute in attributes)
    return first, second


def _parse_number(text: str | None, otherwise: float = 0) -> float:
    return float(text) if text and _NUMBER.fullmatch(text.strip()) else otherwise
