"""Filters, tables, formulas and drawings that reach over the new columns."""
# A range that ends before them would do harm: one click on "sort" moves the customers and leaves the verdicts.

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Final
from xml.sax.saxutils import quoteattr
from zipfile import ZipFile

import polars as pl

from bansong.base.messages import gettext, gettext_noop
from bansong.base.schema import Alert
from bansong.tables.excel import package
from bansong.tables.excel.package import Edit, Element
from bansong.tables.excel.sheet_xml import MAX_COLUMNS, MAX_ROW, WIDTHS, Area, SheetXml, column_letter
from bansong.tables.headers import OURS

_SHOWN: Final = 5
_COUNTED: Final = 1_000
_OVERLAP_BYTES: Final = 20_000  # more bytes than a formula cell takes: one that is cut off is found with the next piece


_FORMULAS_WIDENED: Final = gettext_noop(
    "{called}: formulas over the whole table {name!r} now count the new columns too: {shown}{more}; "
    "name your columns in them, such as {name}[[first]:[last]]"
)
_RANGE_SHORT: Final = gettext_noop(
    "{called}: {kind} does not reach all of the new columns, up to {letter}: {why}. A sort by it moves customers away "
    "from their verdicts; before you sort or filter in Excel, {remedy}"
)
_ROWS_BELOW: Final = gettext_noop(
    "{called}: {kind} ends before the last row of data, {bottom}: the rows below it are "
    "verified, but not filtered or sorted with the others; in Excel, {remedy}"
)
_GAP: Final = gettext_noop(
    "{called}: {column} is blank between your list and the new columns, because other cells stand beside or below the "
    "list. A sort by a click moves customers away from their verdicts; before you sort in Excel, mark all columns up "
    "to {letter}, or set a filter over {whole} (Data > Filter)"
)
_SHEET_PROTECTED: Final = gettext_noop(
    "{called}: the sheet is protected; {kinds} now holds the new columns too, and sorts and "
    "filters by them once the protection is taken off (Review > Unprotect Sheet)"
)
_FILTER_NAME_DIFFERS: Final = gettext_noop(
    "the workbook's hidden name {filter_name} states another range for it, {stated!r}"
)
_DRAWINGS_UNREAD: Final = gettext_noop(
    "{called}: has too many drawings to look at; if some lie over {columns}, {remedy}"
)
_DRAWINGS_OVER: Final = gettext_noop(
    "{called}: the new columns {columns} stand beside your table, under {shown}{more}; "
    "{remedy}, nothing of them has been changed"
)


def _list_some(found: Sequence[str]) -> dict[str, str]:
    more = gettext(" and {count} more", count=len(found) - _SHOWN) if len(found) > _SHOWN else ""
    return {"shown": ", ".join(found[:_SHOWN]), "more": more}


def _find_formulas(archive: ZipFile, table: str) -> Iterator[str]:
    name = re.escape(table)
    special = r"\[(?:|#[^\[\]]*|\[#[^\[\]]*\](?:,\s*\[#[^\[\]]*\])*)\]"  # [#All], [[#Headers],[#Data]]: no column
    whole = rf"(?<![\w.\\!]){name}(?:{special}|(?![\w.\\\[(!']))"
    in_cell = rf"""<(?:\w+:)?c\s[^<>]*?\br\s*=\s*["']([A-Z]+[0-9]+)["'][^<>]*>\s*<(?:\w+:)?f\b[^<>]*>[^<]*?{whole}"""
    in_name = rf"""<(?:\w+:)?definedName\s[^<>]*?\bname\s*=\s*["']([^"']+)["'][^<>]*>[^<]*?{whole}"""
    searched = [(part, f"{sheet}!", in_cell) for sheet, part in package.sheet_parts(archive).items()]
    for part, sheet, pattern in [*searched, (package.part_names(archive)[package.BOOK], "", in_name)]:
        places: dict[str, None] = {}
        rest = b""
        for piece in package.part_pieces(archive, part):
            stretch, rest = rest + piece, piece[-_OVERLAP_BYTES:]
            text = stretch.decode("utf-8", "ignore") if b"f" in stretch else ""  # as in every formula, found fast
            if table.casefold() in text.casefold() and len(places) < _COUNTED:
                places |= dict.fromkeys(match[1] for match in re.finditer(pattern, text, re.IGNORECASE))
        yield from (f"{sheet}{place}" for place in places)


_FILTER_NAME: Final = "_xlnm._FilterDatabase"
_OF_A_NAME: Final = re.compile(rb"!(\$?[A-Z]{0,3}\$?[0-9]{0,7}:\$?)([A-Z]{0,3})(\$?[0-9]{0,7})\s*(?=<|$)")
_NO: Final = ("0", "false")
_CONTROL: Final = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class AddedColumns:
    """The added columns and the table beside them, on its sheet."""

    called: str  # file and sheet, for messages
    sheet: SheetXml
    headers: Sequence[str]  # of the user's columns
    left: int  # the sheet's column of the first of them
    places: Mapping[str, int]  # the sheet's column of each added one
    titles: Mapping[str, str]  # the headers of the output
    frame: pl.DataFrame  # the added columns
    top: int  # the row of the header
    bottom: int  # the row of the last record
    record: frozenset[int]  # the sheet's columns that the answers are about, where that is known

    def alert(self, message: str, **fields: object) -> Alert:
        return Alert(gettext(message, called=self.called, **fields))

    @property
    def ours(self) -> dict[int, str]:
        earlier = {self.left + n: header for n, header in enumerate(self.headers) if OURS.fullmatch(header)}
        return earlier | {number: self.titles[column] for column, number in self.places.items()}

    @property
    def last(self) -> int:
        return max(self.places.values())

    def describe_column(self, column: int) -> str:
        header = dict(enumerate(self.headers, self.left)).get(column)
        message = gettext_noop("column {letter} ({header!r})") if header else gettext_noop("column {letter}")
        return gettext(message, letter=column_letter(column), header=header)

    def reach(self, area: Area, *, gaps: bool) -> int:
        right, ours = area.right, self.ours
        for column in range(area.right + 1, max(ours) + 1):
            if column in ours:
                outside = ((area.top, self.top - 1), (max(self.bottom + 1, area.top), area.bottom))
                if any(self.sheet.holds(column, *rows) for rows in outside):
                    break
                right = column
            elif not gaps or self.sheet.holds(column, area.top, area.bottom):
                break
        return right

    def rows_below(self, area: Area) -> bool:
        below = self.frame.slice(max(area.bottom - self.top, 0))
        if "row_status" not in below.columns:
            return below.height > 0
        return bool((below["row_status"] != "invalid").any())  # others are totals rows and the like


@dataclass(frozen=True)
class _Range:
    kind: str  # a filter or a table, as messages name it
    area: Area
    right: int  # the last column that it is widened to
    why: str = ""  # not all added columns are reached
    is_table: bool = False

    @property
    def changed(self) -> bool:
        return self.right > self.area.right


def widen(
    archive: ZipFile, part: str, name: str, added: AddedColumns
) -> tuple[list[Edit], dict[str, bytes], list[str]]:
    sheet = added.sheet
    edits: list[Edit] = []
    parts: dict[str, bytes] = {}
    ranges: list[_Range] = []
    alerts: list[Alert] = []
    own = package.find_child(sheet.elements, "autoFilter")
    if own is not None and (found := _read_filter(own, added)):
        book = package.part_names(archive)[package.BOOK]
        found, parts = _widen_filter_name(book, package.read_part(archive, book), name, found)
        ranges.append(found)
        if found.changed:
            edits += _widen_references(sheet.around, sheet.elements, own, found)
    edits += _widen_sort_state(added)
    for table in package.related_parts(archive, part, "table"):
        xml = package.read_part(archive, table)
        elements = package.elements_of(xml, table)
        if found := _read_table(elements, added):
            ranges.append(found)
            if found.changed:
                parts[table] = _widen_table(xml, elements, table, found, added)
                named = _table_name(elements[0])
                if formulas := [*_find_formulas(archive, named)]:
                    alerts.append(added.alert(_FORMULAS_WIDENED, name=named, **_list_some(formulas)))
    alerts += [*_range_alerts(ranges, added), *_gap_alert(ranges, added)]
    return edits, parts, [*alerts, *_protection_notes(ranges, sheet.elements, added)]


def _holds_records(area: Area, added: AddedColumns) -> bool:
    inside = not added.record or any(area.left <= column <= area.right for column in added.record)
    return inside and area.meets_rows(added.top, added.bottom)


def _read_filter(element: Element, added: AddedColumns) -> _Range | None:
    area = Area.parse(element.attributes.get("ref", ""))
    if area is None or not _holds_records(area, added):
        return None
    kind = gettext("the filter {area}", area=element.attributes["ref"])
    why = _find_missing(area, added)
    right = area.right if why else added.reach(area, gaps=True)
    return _Range(kind, area, right, why or _find_obstacle(area, right, added))


def _read_table(elements: Sequence[Element], added: AddedColumns) -> _Range | None:
    root = elements[0]
    area = Area.parse(root.attributes.get("ref", ""))
    if area is None or not _holds_records(area, added):
        return None
    kind = gettext("the table {name!r} ({area})", name=_table_name(root), area=area)
    why = _find_missing(area, added) or _explain_unfit(elements, area, added)
    right = area.right if why else added.reach(area, gaps=False)
    names = [element.attributes.get("name", "").casefold() for element in elements if element.name == "tableColumn"]
    new = [name.casefold() for name in _list_new_names(area, right, added)]
    if len({*names, *new}) < len(names) + len(new):
        right, why = area.right, gettext("it has a column of the same name as a new one; rename yours")
    return _Range(kind, area, right, why or _find_obstacle(area, right, added), is_table=True)


def _table_name(root: Element) -> str:
    return root.attributes.get("displayName") or root.attributes.get("name", "")


def _find_missing(area: Area, added: AddedColumns) -> str:
    outside = [column for column in sorted(added.record) if not area.left <= column <= area.right]
    return gettext("{column} is not in it", column=added.describe_column(outside[0])) if outside else ""


def _explain_unfit(elements: Sequence[Element], area: Area, added: AddedColumns) -> str:
    root, columns = elements[0].attributes, sum(element.name == "tableColumn" for element in elements)
    if root.get("headerRowCount") == "0" or area.top != added.top:
        return gettext("its header does not stand in row {top}, where the header of the file was found", top=added.top)
    if root.get("tableType", "worksheet") != "worksheet":
        return gettext("it is filled by a query")
    return "" if columns == area.right - area.left + 1 else gettext("it does not list as many columns as it has")


def _find_obstacle(area: Area, right: int, added: AddedColumns) -> str:
    new = added.places.values()
    left_out = [column for column in added.ours if column > right or (column < area.left and column in new)]
    if not left_out:
        return ""
    if max(left_out) < area.left:
        return gettext("{column} stands to the left of it", column=added.describe_column(max(left_out)))
    if right + 1 in added.ours:
        return gettext("column {letter} holds something else above or below the rows", letter=column_letter(right + 1))
    return gettext("{column} stands between", column=added.describe_column(right + 1))


def _widen_references(xml: bytes, elements: Sequence[Element], whole: Element, found: _Range) -> Iterator[Edit]:
    for element in elements:
        if element.name in (whole.name, "autoFilter", "sortState") and whole.start <= element.start < whole.stop:
            area = Area.parse(element.attributes.get("ref", ""))
            across = element.attributes.get("columnSort", "0") not in _NO
            if area and not across and (area.left, area.right) == (found.area.left, found.area.right):
                tag = xml[element.start : element.inner]
                yield element.start, element.inner, package.attribute(tag, "ref", replace(area, right=found.right))


def _widen_sort_state(added: AddedColumns) -> Iterator[Edit]:
    sheet = added.sheet
    state = package.find_child(sheet.elements, "sortState")
    area = Area.parse(state.attributes.get("ref", "")) if state else None
    if state is None or area is None or not _holds_records(area, added) or _find_missing(area, added):
        return
    right = added.reach(area, gaps=True)
    if right > area.right and not _find_obstacle(area, right, added):
        yield from _widen_references(sheet.around, sheet.elements, state, _Range("", area, right))


def _widen_filter_name(book: str, xml: bytes, sheet: str, found: _Range) -> tuple[_Range, dict[str, bytes]]:
    """Widen the hidden name of a sheet's filter with the filter; if that is impossible, leave both as they are."""
    # both or neither: some programs sort by the name, others by the filter
    elements = package.elements_of(xml, book)
    sheets = [element.attributes.get("name") for element in elements if element.name == "sheet" and element.depth == 2]
    for element in elements:
        attributes = element.attributes
        if element.name != "definedName" or attributes.get("name", "").lower() != _FILTER_NAME.lower():
            continue
        if sheet not in sheets or attributes.get("localSheetId") != str(sheets.index(sheet)):
            continue
        text = xml[element.inner : element.stop]
        name = _OF_A_NAME.search(text)
        area = Area.parse((name[1] + name[2] + name[3]).decode()) if name else None
        if area and area.left <= found.area.left and area.right >= found.right:
            break
        if name and area and area.left == found.area.left:
            new = text[: name.start(2)] + column_letter(found.right).encode() + text[name.end(2) :]
            return found, {book: package.apply_edits(xml, [(element.inner, element.stop, new)])}
        why = gettext(_FILTER_NAME_DIFFERS, filter_name=_FILTER_NAME, stated=element.text.strip())
        return replace(found, right=found.area.right, why=found.why or why), {}
    return found, {}


def _list_new_names(area: Area, right: int, added: AddedColumns) -> list[str]:
    return [_column_name(added.ours[column]) for column in range(area.right + 1, right + 1)]


def _column_name(header: str) -> str:
    return _CONTROL.sub(lambda found: f"_x{ord(found[0]):04x}_", header)


def _widen_table(xml: bytes, elements: Sequence[Element], part: str, found: _Range, added: AddedColumns) -> bytes:
    listed = next(element for element in elements if element.name == "tableColumns")
    columns = [element for element in elements if element.name == "tableColumn"]
    ids = [column.attributes.get("id", "") for column in columns]
    taken = max(int(id_) for id_ in (*ids, "0") if id_.isdecimal())
    labels = _label_totals(elements[0], found.area, added)
    new = [
        f"<{listed.prefix}tableColumn id={quoteattr(str(taken + number))} name={quoteattr(name)}"
        f"{labels.get(found.area.right + number, '')}/>"
        for number, name in enumerate(_list_new_names(found.area, found.right, added), 1)
    ]
    tag = package.attribute(xml[listed.start : listed.inner], "count", len(columns) + len(new))
    entries = (listed.start, listed.inner, tag), (columns[-1].stop, columns[-1].stop, "".join(new).encode())
    made = package.apply_edits(xml, [*_widen_references(xml, elements, elements[0], found), *entries])
    package.elements_of(made, part)
    return made


def _label_totals(root: Element, area: Area, added: AddedColumns) -> dict[int, str]:
    row = area.bottom - added.top - 1
    if root.attributes.get("totalsRowCount", "0") == "0" or not 0 <= row < added.frame.height:
        return {}
    texts = added.frame.select(pl.col(pl.String)).row(row, named=True)
    return {
        added.places[column]: f" totalsRowLabel={quoteattr(_column_name(text))}"
        for column, text in texts.items()
        if text and column in added.places
    }


def _range_alerts(ranges: Sequence[_Range], added: AddedColumns) -> Iterator[Alert]:
    for found in ranges:
        area = found.area
        whole = Area(area.left, area.top, max(found.right, added.last), max(area.bottom, added.bottom))
        resize = gettext_noop("resize the table to {whole} (Table Design)")
        renew = gettext_noop("set the filter anew over {whole} (Data > Filter)")
        remedy = gettext(resize if found.is_table else renew, whole=whole)
        if found.why:
            letter = column_letter(added.last)
            yield added.alert(_RANGE_SHORT, kind=found.kind, letter=letter, why=found.why, remedy=remedy)
        elif area.bottom < added.bottom and added.rows_below(area):
            yield added.alert(_ROWS_BELOW, kind=found.kind, bottom=added.bottom, remedy=remedy)


def _gap_alert(ranges: Sequence[_Range], added: AddedColumns) -> Iterator[Alert]:
    if not added.places or not added.record or any(found.right >= added.last and not found.why for found in ranges):
        return
    between = range(max(added.record) + 1, min(added.places.values()))
    gap = next((column for column in between if not added.sheet.holds(column, added.top, added.bottom)), None)
    if gap is not None:
        whole = Area(added.left, added.top, added.last, added.bottom)
        yield added.alert(_GAP, column=added.describe_column(gap), letter=column_letter(added.last), whole=whole)


def _protection_notes(ranges: Sequence[_Range], elements: Sequence[Element], added: AddedColumns) -> Iterator[str]:
    protected = protection.attributes if (protection := package.find_child(elements, "sheetProtection")) else {}
    locked = any(protected.get(name, "1") not in _NO for name in ("autoFilter", "sort"))
    if any(found.changed for found in ranges) and protected.get("sheet", "0") not in _NO and locked:
        kinds = gettext(" and ").join(found.kind for found in ranges if found.changed)
        yield gettext(_SHEET_PROTECTED, called=added.called, kinds=kinds)


_ANCHORS: Final = ("twoCellAnchor", "oneCellAnchor", "absoluteAnchor")
_DRAWN: Final = {
    "graphicFrame": gettext_noop("the chart {name!r} ({area})"),
    "pic": gettext_noop("the picture {name!r} ({area})"),
}
_SHAPE: Final = gettext_noop("the shape {name!r} ({area})")
_UNITS_OF_POINT: Final = 12_700
_UNITS_OF_CHARACTER: Final = 7 * 9_525  # English metric units, in Excel's usual font
_USUAL_WIDTH_CHARACTERS: Final = 64 / 7
_USUAL_HEIGHT_POINTS: Final = 15.0
# rows below the header whose heights are read; a drawing further down lies beside records anyway
_MEASURED_ROWS: Final = 1_000
_MAX_DRAWING_BYTES: Final = 16_000_000
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]+)?")


def warn_of_drawings(archive: ZipFile, part: str, added: AddedColumns, new: Mapping[str, int]) -> Iterator[Alert]:
    """Yield alerts about drawings that cover the ``new`` columns."""
    # the columns stay there: a sort would leave out columns behind a gap
    if not new:
        return
    first, last = min(new.values()), max(new.values())
    columns = gettext("{first} to {last}", first=column_letter(first), last=column_letter(last))
    remedy = gettext("move them to the right of column {letter}", letter=column_letter(last))
    over, drawings = Area(first, added.top, last, added.bottom), [*_sparklines(added.sheet.elements)]
    for drawing_part in package.related_parts(archive, part, "drawing"):
        if archive.getinfo(drawing_part).file_size > _MAX_DRAWING_BYTES:
            yield added.alert(_DRAWINGS_UNREAD, columns=columns, remedy=remedy)
            continue
        drawings += _read_drawings(package.read_part(archive, drawing_part), drawing_part, *_measure(added, new))
    # a drawing may be there twice, for old readers and new ones
    if found := [*dict.fromkeys(drawn for drawn, area in drawings if area.meets(over))]:
        yield added.alert(_DRAWINGS_OVER, columns=columns, remedy=remedy, **_list_some(found))


# sizes of columns or rows that a sheet states, and the default size, in English metric units
_Sizes = tuple[Mapping[int, float], float]


def _measure(added: AddedColumns, new: Mapping[str, int]) -> tuple[_Sizes, _Sizes]:
    elements = added.sheet.elements
    usual = stated.attributes if (stated := package.find_child(elements, "sheetFormatPr")) else {}
    columns: dict[int, float] = {}
    for column in (element.attributes for element in elements if element.name == "col"):
        low, high = (int(_parse_number(column.get(name), 1)) for name in ("min", "max"))
        width = _parse_number(column.get("width"), _USUAL_WIDTH_CHARACTERS) * _UNITS_OF_CHARACTER
        shown = column.get("hidden", "0") in _NO
        columns |= dict.fromkeys(range(low, min(high, MAX_COLUMNS) + 1), width if shown else 0.0)
    columns |= {number: float(WIDTHS[name] * _UNITS_OF_CHARACTER) for name, number in new.items()}
    tag = pl.col("xml").str.extract(r"^\s*(<[^>]*>?)")
    hidden = pl.when(tag.str.contains(r'\shidden="(?:1|true)"')).then(pl.lit(0.0))
    points = hidden.otherwise(tag.str.extract(r'\sht="([0-9.]+)"').cast(pl.Float64, strict=False))
    near = added.sheet.between(1, added.top + _MEASURED_ROWS)
    rows = dict(near.select("r", points.alias("height") * _UNITS_OF_POINT).drop_nulls().iter_rows())
    width = _parse_number(usual.get("defaultColWidth"), _USUAL_WIDTH_CHARACTERS)
    height = _parse_number(usual.get("defaultRowHeight"), _USUAL_HEIGHT_POINTS)
    return (columns, width * _UNITS_OF_CHARACTER), (rows, height * _UNITS_OF_POINT)


def _find_end(sizes: _Sizes, start: int, distance: int, last: int) -> int:
    stated, usual = sizes
    ends = zip(count(start), accumulate(stated.get(number, usual) for number in range(start, last)), strict=False)
    return next((number for number, end in ends if end >= distance), last)


def _read_drawings(xml: bytes, part: str, columns: _Sizes, rows: _Sizes) -> Iterator[tuple[str, Area]]:
    for anchor, inside in _with_contents(package.elements_of(xml, part), *_ANCHORS):
        drawn = next((_DRAWN[element.name] for element in inside if element.name in _DRAWN), _SHAPE)
        name = next((e.attributes.get("name", "") for e in inside if e.name == "cNvPr"), "")
        area = _covered_area(anchor, inside, columns, rows)
        yield gettext(drawn, name=name, area=area), area


def _with_contents(elements: Sequence[Element], *names: str) -> Iterator[tuple[Element, Sequence[Element]]]:
    starts = [element.start for element in elements]
    for place, element in enumerate(elements):
        if element.name in names:
            yield element, elements[place + 1 : bisect_left(starts, element.stop)]


def _sparklines(elements: Sequence[Element]) -> Iterator[tuple[str, Area]]:
    for _, inside in _with_contents(elements, "sparklineGroup"):
        cells = [area for e in inside if e.name == "sqref" if (area := Area.parse(e.text.strip()))]
        if cells:
            left, top = min(area.left for area in cells), min(area.top for area in cells)
            area = Area(left, top, max(area.right for area in cells), max(area.bottom for area in cells))
            yield gettext("the sparklines in {area}", area=area), area


def _covered_area(anchor: Element, inside: Sequence[Element], columns: _Sizes, rows: _Sizes) -> Area:
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
        _find_end(columns, left, x + 1, MAX_COLUMNS),
        _find_end(rows, top, y + 1, MAX_ROW),
        _find_end(columns, left, x + size[0], MAX_COLUMNS),
        _find_end(rows, top, y + size[1], MAX_ROW),
    )


def _read_pair(inside: Sequence[Element], name: str, *attributes: str) -> tuple[int, int]:
    found = next((e.attributes for e in inside if e.name == name), {})
    first, second = (int(_parse_number(found.get(attribute))) for attribute in attributes)
    return first, second


def _parse_number(text: str | None, otherwise: float = 0) -> float:
    return float(text) if text and _NUMBER.fullmatch(text.strip()) else otherwise
