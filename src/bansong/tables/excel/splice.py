"""Extend the user's own workbook by new columns and prove that nothing else changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import polars as pl

from bansong.base.errors import AccountingError, OutputError, Problem
from bansong.base.files import private_folder
from bansong.base.messages import gettext, gettext_noop
from bansong.base.schema import OUR_COLUMNS
from bansong.tables.excel import package, sheet_metadata, sheet_xml
from bansong.tables.excel.package import Edit
from bansong.tables.excel.proof import FinishedSheet
from bansong.tables.excel.ranges import AddedColumns, warn_of_drawings, widen
from bansong.tables.excel.read import Sheet
from bansong.tables.excel.sheet_metadata import AS_PERCENT, AS_TEXT, Styles
from bansong.tables.excel.sheet_xml import SheetXml, Style, column_letter, encode_rows, render_rows, split_rows, unusual
from bansong.tables.streams import File
from bansong.tables.table import Enriched, contract_name

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
_BLOCK_ROWS: Final = 20_000
_FORMULA: Final = r"<(?:\w+:)?f[\s/>]"


@dataclass(frozen=True)
class Splice:
    """Cells to put into a sheet, from row ``header`` on."""

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
        """Refuse a finished sheet that is not byte for byte the old one with a cell for each value, in its row."""
        new = split_rows(pieces, cells=False)
        rows, old = new.rows(), self.sheet
        outside = ~pl.col("r").is_between(self.header, self.bottom)
        if not (
            (new.head, new.rest, new.tail) == (self.head, old.rest, self.tail)
            and rows.filter(outside).equals(old.rows.filter(outside))
            and self._holds(_open_rows(rows.filter(~outside)))
        ):
            raise AccountingError(OTHER_CELLS_CHANGED)

    def _holds(self, found: pl.DataFrame) -> bool:
        old = self._cut_rows(self.header, self.bottom)
        if found["r"].equals(old["r"]):
            both = found.with_columns(old["before"], old["behind"])
        else:
            if old.join(found, on="r", how="anti").height:
                return False
            both = found.join(old, on="r", how="left", maintain_order="left")
            both = both.with_columns(pl.col("before").fill_null(self._row_start()), pl.col("behind").fill_null(""))
        xml, before, behind = pl.col("xml"), pl.col("before"), pl.col("behind")
        both = both.select("r", "behind", xml.str.strip_prefix(before), same=xml.str.starts_with(before))
        both = both.select("r", xml.str.strip_suffix(behind), same=pl.col("same") & xml.str.ends_with(behind))
        within, p = pl.col("xml"), self.sheet.prefix
        row = within.str.extract(rf'^<{p}c r="[A-Z]+([0-9]+)"')
        letters = "|".join(map(column_letter, self.columns.values()))
        placed, cells, ours, blanks = both.select(
            placed=((row == pl.col("r").cast(pl.String)) | (within == "")).all(),
            cells=within.str.count_matches(f"<{p}c", literal=True).sum(),
            ours=within.str.count_matches(rf'<{p}c r="(?:{letters})[0-9]').sum(),
            blanks=within.str.count_matches('"/>', literal=True).sum(),
        ).row(0)
        frames = (self.titles, self.frame)
        values = sum(frame.height - frame[name].null_count() for frame in frames for name in self.columns)
        return bool(both["same"].all() and placed and cells == ours == blanks + values)

    def _splice_rows(self, new: pl.DataFrame) -> bytes:
        first, last = int(new["r"][0]), int(new["r"][-1])
        p = self.sheet.prefix
        if p:
            new = new.with_columns(pl.col("cells").str.replace_all(r"<(/?)(c|is|t|v)\b", f"<${{1}}{p}${{2}}"))
        rows = self._cut_rows(first, last)
        if self.crossing:
            self.sheet.refuse_disorder(self.sheet.between(first, last))
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

    def _cut_rows(self, first: int, last: int) -> pl.DataFrame:
        rows = _open_rows(self.sheet.between(first, last))
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
            if styles is not None and (styles.added or styles.graded):
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
            pieces = finished.parse(archive, package.usual_name(part))
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
        *sheet_metadata.dimension_edits(sheet.around, sheet.elements, last, bottom),
        *sheet_metadata.width_edits(sheet.around, sheet.elements, widths, replaced=replaced),
        *more,
    ]
    if "grade" in columns and styles is not None and bottom > header:
        edits += sheet_metadata.grade_edits(
            sheet.elements, sheet.around, columns["grade"], (header + 1, bottom), styles
        )
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
    added = [(place, column) for place, (column, _) in enumerate(result.layout) if contract_name(column) in OUR_COLUMNS]
    places = {column: left + place for place, column in added if place < own}
    arrays = sheet.array_areas(*rows)
    if any(area.left <= number <= area.right for area in arrays for number in places.values()):
        raise unusual(gettext("formulas stand in the columns of the earlier enrichment"))
    if len(places) < len(added):
        taken = [*arrays, *sheet_metadata.merged_areas(sheet.elements, *rows)]
        right = max(sheet.last_column(*rows), 0, *places.values(), *(area.right for area in taken))
        places |= {column: right + number for number, (_, column) in enumerate(added[len(places) :], 1)}
    if max(places.values()) > sheet_xml.MAX_COLUMNS:
        raise OutputError(SHEET_FULL, max_columns=sheet_xml.MAX_COLUMNS)
    return places


def _styles(
    columns: Mapping[str, int], beside: pl.Series, styles: Styles | None, frame: pl.DataFrame | None
) -> tuple[dict[str, Style], pl.DataFrame]:
    """Return each column's style, made of those beside it, and the frame with their references (none: titles)."""
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
