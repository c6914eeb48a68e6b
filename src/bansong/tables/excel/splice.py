"""Extend the user's own workbook by new columns, widths and colours; prove that nothing else changed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import polars as pl

from bansong.base.errors import AccountingError, OutputError, Problem
from bansong.base.files import private_folder
from bansong.base.messages import gettext, gettext_noop
from bansong.base.schema import word_of
from bansong.tables.excel import package, sheet_xml
from bansong.tables.excel.package import Edit, Element, apply_edits, attribute, elements_of, find_child, without
from bansong.tables.excel.proof import FinishedSheet
from bansong.tables.excel.ranges import AddedColumns, warn_of_drawings, widen
from bansong.tables.excel.read import Sheet
from bansong.tables.excel.sheet_xml import (
    COLOURS,
    Area,
    RowBlocks,
    SheetXml,
    Style,
    column_letter,
    cut_rows,
    encode_rows,
    number_rows,
    render_rows,
    unusual,
)
from bansong.tables.streams import File
from bansong.tables.table import Enriched, contract_name, is_added

LAST_ROW_MISMATCHED: Final = Problem(
    "excel.last_row_mismatched",
    "nothing was published: the sheet's last row is {last_row}, the table's is {bottom}; "
    "write another format, `output='OUT.csv'`",
)
SHEET_FULL: Final = Problem(
    "excel.sheet_full", "the sheet has no room for more columns ({max_columns:,} are the limit); write CSV"
)
OTHER_CELLS_CHANGED: Final = Problem(
    "excel.other_cells_changed",
    "nothing was published: the workbook would not be what it was but for the new cells; "
    "write another format, `output='OUT.csv'`",
)

_SIGNED: Final = gettext_noop(
    "{called}: the workbook is digitally signed, and the signature does not hold for the output; "
    "sign the output anew if its reader asks for a signature"
)
_BLOCK_ROWS: Final = 5_000  # few enough for the processor's cache
_FORMULA: Final = r"<(?:\w+:)?f[\s/>]"


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
    """The styles of a workbook, and the cell formats and colours of words to add."""

    part: str
    xml: bytes
    added: list[bytes] = field(default_factory=list)
    coloured: bool = False

    def __post_init__(self) -> None:
        self.elements = elements_of(self.xml, self.part)
        self.formats = self._entries("cellXfs")
        looks = [self._look(xf.attributes, xf) for xf in self.formats]
        self.places = {look: place for place, look in reversed([*enumerate(looks)])}

    @classmethod
    def of(cls, part: str, xml: bytes) -> Styles | None:
        """Return the styles of a part. A part without cell formats gives ``None``: no format can be added to it."""
        styles = cls(part, xml)
        return styles if styles.formats else None

    def add_colours(self) -> int:
        self.coloured = True
        return len(self._entries("dxfs"))

    def text(self) -> bytes:
        p, colours = self.elements[0].prefix, COLOURS if self.coloured else ()
        dxfs = [
            f'<{p}dxf><{p}font><{p}color rgb="FF{text}"/></{p}font><{p}fill><{p}patternFill>'
            f'<{p}bgColor rgb="FF{background}"/></{p}patternFill></{p}fill></{p}dxf>'.encode()
            for text, background in colours
        ]
        return apply_edits(self.xml, self._append_entries("cellXfs", self.added) + self._append_entries("dxfs", dxfs))

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
        """Return a key of a cell format, which is equal for formats that look the same apart from the number format."""
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


def width_edits(xml: bytes, elements: Sequence[Element], widths: Mapping[int, float], *, replaced: bool) -> list[Edit]:
    """Return the edits that set widths (characters) of columns and show hidden or folded ones."""
    # ``replaced``: the columns are an earlier run's; visible ones keep the user's widths
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
            edits.append((element.start, element.stop, _split_tag(tag, low, high, {c: widths[c] for c in ours})))
    bare = f"<{data.prefix}col>".encode()
    inserted = []
    for column in sorted(free):
        beyond = [element.start for element in ranges if int(element.attributes.get("min", "0")) > column]
        place = beyond[0] if beyond else ranges[-1].stop if ranges else data.start
        inserted.append((place, place, _column_tag(bare, column, widths[column])))
    if not ranges and inserted:
        made = b"".join(new for _, _, new in inserted)
        start, stop = (whole.start, whole.stop) if whole else (data.start, data.start)
        return [(start, stop, b"<%bcols>%b</%bcols>" % (data.prefix.encode(), made, data.prefix.encode()))]
    return [*inserted, *edits]


def colour_edits(
    elements: Sequence[Element], xml: bytes, places: Mapping[str, Sequence[str]], rows: tuple[int, int], styles: Styles
) -> list[Edit]:
    """Return the edits that colour words (the best first) in columns by their letters, as conditional formats."""
    # the formats of an earlier run are fitted to the rows
    edits, new, p = list[Edit](), "", elements[0].prefix
    taken = [element.attributes.get("priority", "") for element in elements if element.name == "cfRule"]
    last = max((int(priority) for priority in taken if priority.isdecimal()), default=0)
    for letter, words in places.items():
        sqref = f"{letter}{rows[0]}:{letter}{rows[1]}"
        if found := _colours_of(elements, letter, words):
            if sqref != found.attributes["sqref"]:
                tag = xml[found.start : found.inner]
                edits.append((found.start, found.inner, attribute(tag, "sqref", sqref)))
            continue
        dxf = styles.add_colours()
        rules = "".join(
            f'<{p}cfRule type="cellIs" dxfId="{dxf + number}" priority="{last + number + 1}" operator="equal">'
            f'<{p}formula>"{word}"</{p}formula></{p}cfRule>'
            for number, word in enumerate(words)
        )
        last += len(words)
        new += f'<{p}conditionalFormatting sqref="{sqref}">{rules}</{p}conditionalFormatting>'
    place = max(element.stop for element in elements if element.depth == 1 and element.name in _BEFORE_FORMATS)
    return [*edits, *([(place, place, new.encode())] if new else [])]


def _colours_of(elements: Sequence[Element], letter: str, words: Sequence[str]) -> Element | None:
    for place, element in enumerate(elements):
        stated = element.attributes.get("sqref", "")
        if element.name != "conditionalFormatting" or not re.fullmatch(rf"{letter}[0-9]+(:{letter}[0-9]+)?", stated):
            continue
        inside = [one for one in elements[place:] if one.start < element.stop]
        rules = [one.attributes for one in inside if one.name == "cfRule"]
        texts = [one.text.strip() for one in inside if one.name == "formula"]
        plain = all((rule.get("type"), rule.get("operator")) == ("cellIs", "equal") for rule in rules)
        if element.depth == 1 and plain and sorted(texts) == sorted(f'"{word}"' for word in words):
            return element
    return None


def _split_tag(tag: bytes, low: int, high: int, ours: Mapping[int, float]) -> bytes:
    first, last = min(ours), max(ours)
    closed = tag if tag.endswith(b"/>") else tag[:-1] + b"/>"
    before = attribute(closed, "max", first - 1) if low < first else b""
    after = attribute(closed, "min", last + 1) if last < high else b""
    return before + b"".join(_column_tag(tag, column, width) for column, width in ours.items()) + after


def _column_tag(tag: bytes, column: int, width: float) -> bytes:
    shown = without(tag if tag.endswith(b"/>") else tag[:-1] + b"/>", "hidden", "outlineLevel", "collapsed", "bestFit")
    for name, value in (("min", column), ("max", column), ("width", width), ("customWidth", 1)):
        shown = attribute(shown, name, value)
    return shown


@dataclass(frozen=True)
class Splice:
    """Cells that are inserted into a sheet, from row ``header`` on."""

    sheet: SheetXml
    head: bytes  # what will stand before the rows
    tail: bytes  # what will stand behind them
    titles: pl.DataFrame
    frame: pl.DataFrame
    columns: Mapping[str, int]  # name → column of the sheet
    header: int
    styles: Mapping[str, Style]  # may refer to columns of the frame
    title_styles: Mapping[str, Style]
    crossing: bool  # something stands in the columns already, or behind them; else cells end their rows

    @property
    def bottom(self) -> int:
        return self.header + self.frame.height

    def pieces(self) -> Iterator[bytes]:
        rows = self.sheet.rows
        yield self.head + encode_rows(rows.filter(pl.col("r") < self.header), "xml", "end")
        yield self._splice_rows(render_rows(self.titles, self.columns, self.title_styles, self.header))
        for start in range(0, self.frame.height, _BLOCK_ROWS):
            block, first = self.frame.slice(start, _BLOCK_ROWS), self.header + 1 + start
            yield self._splice_rows(render_rows(block, self.columns, self.styles, first, blanks=True))
        yield encode_rows(rows.filter(pl.col("r") > self.bottom), "xml", "end") + self.sheet.rest.encode() + self.tail

    def prove(self, pieces: Iterable[bytes]) -> None:
        """Raise :class:`AccountingError` unless a sheet is the old one, byte for byte, plus new cells in their rows."""
        new, old, last, rest = RowBlocks(pieces), self.sheet, 0, ""
        same, counts = new.head == self.head, [0, 0, 0]
        for data in new:
            same = same and not rest
            rows, rest, _ = cut_rows(data, old.prefix)
            if same and rows.height:
                rows, first = number_rows(rows, old.prefix), last + 1
                last = int(rows["r"][-1])
                same, *found = self._compare_rows(rows, old.between(first, last))
                same, counts = same and rows["r"][0] >= first, [*map(sum, zip(counts, found, strict=True))]
        cells, ours, blanks = counts
        frames = (self.titles, self.frame)
        values = sum(frame.height - frame[name].null_count() for frame in frames for name in self.columns)
        same = same and not old.between(last + 1, sheet_xml.MAX_ROW).height
        if not (same and (rest, new.tail) == (old.rest, self.tail) and cells == ours == blanks + values):
            raise AccountingError(OTHER_CELLS_CHANGED)

    def _compare_rows(self, found: pl.DataFrame, old: pl.DataFrame) -> tuple[bool, int, int, int]:
        """Return whether rows equal the old ones but for inserted cells, and counts of these: all, ours, blank ones."""
        inside = pl.col("r").is_between(self.header, self.bottom)
        same = found.filter(~inside).equals(old.filter(~inside))
        found, old = _open_rows(found.filter(inside)), self._cut_rows(old.filter(inside))
        if found["r"].equals(old["r"]):
            both = found.with_columns(old["before"], old["behind"])
        else:
            same = same and not old.join(found, on="r", how="anti").height
            both = found.join(old, on="r", how="left", maintain_order="left")
            both = both.with_columns(pl.col("before").fill_null(self._row_start()), pl.col("behind").fill_null(""))
        xml, before, behind, within = map(pl.col, ("xml", "before", "behind", "within"))
        both = both.with_columns(within=xml.str.strip_prefix(before).str.strip_suffix(behind))
        size = pl.sum_horizontal(pl.col("before", "within", "behind").str.len_bytes())
        p, letters = self.sheet.prefix, "|".join(map(column_letter, self.columns.values()))
        row = within.str.extract(rf'^<{p}c r="[A-Z]+([0-9]+)"').fill_null("")
        placed, *counts = both.select(
            placed=((size == xml.str.len_bytes()) & ((row == pl.col("r").cast(pl.String)) | (within == ""))).all(),
            cells=within.str.count_matches(f"<{p}c", literal=True).sum(),
            ours=within.str.count_matches(rf'<{p}c r="(?:{letters})[0-9]').sum(),
            blanks=within.str.count_matches('"/>', literal=True).sum(),
        ).row(0)
        return (same and bool(placed), *counts)

    def _splice_rows(self, new: pl.DataFrame) -> bytes:
        first, last = int(new["r"][0]), int(new["r"][-1])
        p = self.sheet.prefix
        if p:
            new = new.with_columns(pl.col("cells").str.replace_all(r"<(/?)(c|is|t|v)\b", f"<${{1}}{p}${{2}}"))
        old = self.sheet.between(first, last)
        rows = self._cut_rows(old)
        if self.crossing:
            self.sheet.refuse_disorder(old)
            if rows["within"].str.contains(_FORMULA).any():
                raise unusual(gettext("formulas stand in the columns of the earlier enrichment"))
        end = pl.lit(f"</{p}row>").alias("end")
        if rows["r"].equals(new["r"]):
            return encode_rows(rows.with_columns(new["cells"], end), "before", "cells", "behind", "end")
        rows = new.join(rows, on="r", how="left", maintain_order="left")
        rows = rows.filter(pl.col("before").is_not_null() | (pl.col("cells") != ""))  # no row is made for nothing
        rows = rows.with_columns(pl.col("before").fill_null(self._row_start()), pl.col("behind").fill_null(""), end)
        return encode_rows(rows, "before", "cells", "behind", "end")

    def _row_start(self) -> pl.Expr:
        return pl.concat_str(pl.lit(f'<{self.sheet.prefix}row r="'), pl.col("r").cast(pl.String), pl.lit('">'))

    def _cut_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = _open_rows(rows)
        if self.crossing:
            return self.sheet.cut_rows(rows, min(self.columns.values()), max(self.columns.values()))
        return rows.select("r", pl.col("xml").alias("before"), within=pl.lit(""), behind=pl.lit(""))


def _open_rows(rows: pl.DataFrame) -> pl.DataFrame:
    if not (rows["end"] == "/>").any():
        return rows
    return rows.with_columns(pl.when(pl.col("end") == "/>").then(pl.concat_str("xml", pl.lit(">"))).otherwise("xml"))


def extend_workbook(result: Enriched, frame: pl.DataFrame, file: File, source: Sheet, target: Path) -> int:
    """Splice ``frame`` into the user's own sheet; return the number of rows that a reader finds in the result."""
    data, left, rows = file.data, list(frame.columns), 0
    added: AddedColumns | None = None
    with private_folder() as folder:
        while left:
            with ZipFile(data) as archive:
                part = package.sheet_parts(archive).get(source.name)
                if part is None:
                    raise OutputError(package.EXTENDED_SHEET_MISSING, sheet=source.name)
                looks = package.related_parts(archive, package.BOOK, "styles")
                sheet = SheetXml.parse(package.part_pieces(archive, part))
                size = archive.getinfo(part).file_size
                styles = Styles.of(looks[0], package.read_part(archive, looks[0])) if looks else None
                edits: list[Edit] = []
                parts: dict[str, bytes] = {}
                if added is None:
                    added = _locate_columns(result, frame, source, sheet)
                    edits, parts, warnings = widen(archive, part, source.name, added)
                    _warn(result, archive, part, added, warnings)
            columns = _side_by_side({column: added.places[column] for column in left})
            left = [column for column in left if column not in columns]
            splice = _plan_splice(result, added, columns, sheet, styles, edits)
            changed = {part: splice.pieces()} | {name: iter([xml]) for name, xml in parts.items()}
            if styles is not None and (styles.added or styles.coloured):
                changed[styles.part] = iter([styles.text()])
            made = folder / f"{len(left)}{target.suffix}" if left else target
            package.copy_package(data, made, changed, size)
            package.prove_same_parts(data, made, changed)
            cells = {added.places[column]: (added.titles[column], frame[column]) for column in frame.columns}
            finished = FinishedSheet(source.name, part, added.called, added.top - source.header, added.top, cells)
            with ThreadPoolExecutor(2 if len(finished.starts) == 1 else 1) as pool:  # a large one takes memory
                proof = pool.submit(copy_context().run, _prove_bytes, made, splice, finished, changed)
                if not left:
                    texts = enumerate(zip_longest(*result.table.title_rows), added.left)
                    above = pl.DataFrame({str(number): pl.Series(cells, dtype=pl.String) for number, cells in texts})
                    read = result.table.frame.select(result.table.ids).collect()
                    own = dict(enumerate(zip(added.headers, read, strict=True), added.left))
                    prove = partial(finished.prove_cells, file.data, target, above, own)
                    rows = pool.submit(copy_context().run, prove).result()
                proof.result()
            data = made
    return rows


def _prove_bytes(made: Path, splice: Splice, finished: FinishedSheet, changed: Iterable[str]) -> None:
    with ZipFile(made) as archive:
        for part in changed:
            with closing(finished.parse(archive, package.usual_name(part))) as pieces:
                if part == finished.part:
                    splice.prove(pieces)
                deque(pieces, maxlen=0)


def _locate_columns(result: Enriched, frame: pl.DataFrame, source: Sheet, sheet: SheetXml) -> AddedColumns:
    top, left = sheet.first_row() + source.header, sheet.first_column()
    bottom = top + frame.height
    if sheet.last_row() != bottom + source.below:
        raise AccountingError(LAST_ROW_MISMATCHED, last_row=sheet.last_row(), bottom=bottom + source.below)
    return AddedColumns(
        called=result.table.name,
        sheet=sheet,
        headers=result.table.headers,
        left=left,
        places=_places(result, sheet, left, (top, bottom)),
        titles=dict(result.layout),
        frame=frame,
        top=top,
        bottom=bottom,
        record=frozenset(left + place for place in result.record_columns),
    )


def _warn(result: Enriched, archive: ZipFile, part: str, added: AddedColumns, warnings: Sequence[str]) -> None:
    own = {column for column, _ in result.layout[: len(result.table.headers)]}
    new = {column: number for column, number in added.places.items() if column not in own}
    drawn = warn_of_drawings(archive, part, added, new)
    signed = any(package.plain_name(name).startswith("_xmlsignatures/") for name in archive.namelist())
    for warning in (*warnings, *drawn, *([added.alert(_SIGNED)] if signed else [])):
        result.warn(warning)


def _side_by_side(places: Mapping[str, int]) -> dict[str, int]:
    first = min(places.values())
    taken = set(places.values())
    end = next(number for number in range(first, sheet_xml.MAX_COLUMNS + 2) if number not in taken)
    return {column: number for column, number in places.items() if number < end}


def _plan_splice(
    result: Enriched,
    added: AddedColumns,
    columns: Mapping[str, int],
    sheet: SheetXml,
    styles: Styles | None,
    more: Sequence[Edit],
) -> Splice:
    header, bottom = added.top, added.bottom
    first, last = min(columns.values()), max(columns.values())
    beside = sheet.styles(first - 1, header, bottom)
    title_styles, _ = _styles(columns, beside.head(1), styles, None)
    body_styles, frame = _styles(columns, beside.slice(1), styles, added.frame.select(*columns))
    replaced = any(column in columns for column, _ in result.layout[: len(result.table.headers)])
    widths = {number: sheet_xml.WIDTHS[contract_name(column)] for column, number in columns.items()}
    edits = [
        *sheet_xml.dimension_edits(sheet.around, sheet.elements, last, bottom),
        *width_edits(sheet.around, sheet.elements, widths, replaced=replaced),
        *more,
    ]
    if styles is not None and bottom > header:
        coloured = {
            column_letter(columns[column]): [word_of(code, result.lang) for code in codes]
            for column, codes in sheet_xml.COLOURED.items()
            if column in columns
        }
        edits += colour_edits(sheet.elements, sheet.around, coloured, (header + 1, bottom), styles)
    before, behind = [edit for edit in edits if edit[0] < sheet.cut], [edit for edit in edits if edit[0] >= sheet.cut]
    return Splice(
        sheet=sheet,
        head=package.apply_edits(sheet.around[: sheet.cut], before),
        tail=package.apply_edits(sheet.around, [(0, sheet.cut, b""), *behind]),
        titles=sheet_xml.titles(result, columns),
        frame=frame,
        columns=columns,
        header=header,
        styles=body_styles,
        title_styles=title_styles,
        crossing=max(sheet.columns, default=0) >= first,
    )


def _places(result: Enriched, sheet: SheetXml, left: int, rows: tuple[int, int]) -> dict[str, int]:
    """Return the sheet's column (from 1) of each added column: its earlier place, else behind everything."""
    own = len(result.table.headers)
    added = [(place, column) for place, (column, _) in enumerate(result.layout) if is_added(column)]
    places = {column: left + place for place, column in added if place < own}
    arrays = sheet.array_areas(*rows)
    if any(area.left <= number <= area.right for area in arrays for number in places.values()):
        raise unusual(gettext("formulas stand in the columns of the earlier enrichment"))
    if len(places) < len(added):
        taken = [*arrays, *merged_areas(sheet.elements, *rows)]
        right = max(sheet.last_column(*rows), 0, *places.values(), *(area.right for area in taken))
        places |= {column: right + number for number, (_, column) in enumerate(added[len(places) :], 1)}
    if max(places.values()) > sheet_xml.MAX_COLUMNS:
        raise OutputError(SHEET_FULL, max_columns=sheet_xml.MAX_COLUMNS)
    return places


def _styles(
    columns: Mapping[str, int], beside: pl.Series, styles: Styles | None, frame: pl.DataFrame | None
) -> tuple[dict[str, Style], pl.DataFrame]:
    """Return each added column's style, derived from the cells beside it, and ``frame`` with columns of styles."""
    # ``frame``: ``None`` for the row of titles
    found = beside.unique().to_list()
    text = {style: style for style in found if style is not None}
    percent = dict(text)
    if styles is not None:
        text = {style: styles.variant(style, AS_TEXT) for style in text}
        if frame is not None and "bounce_prob" in map(contract_name, columns):
            percent = {style: styles.variant(style or "0", AS_PERCENT) for style in found}
    kinds = {"text": text, "percent": percent if frame is not None else text}
    frame = pl.DataFrame() if frame is None else frame
    looks: dict[str, Style] = {}
    for kind, made in kinds.items():
        if len(found) == 1:
            looks[kind] = made.get(found[0]) or ""
        else:
            series = beside.replace_strict(made, default=None, return_dtype=pl.String).alias(f"{kind} style")
            frame, looks[kind] = frame.with_columns(series), pl.col(series.name)
    return {column: looks["percent" if contract_name(column) == "bounce_prob" else "text"] for column in columns}, frame
