"""The user's own workbook, its sheet extended by new columns: cells spliced into the XML, all else as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

import polars as pl

from bizverify.errors import AccountingError, OutputError
from bizverify.schema import OUR_COLUMNS
from bizverify.tables.compression import File, private_folder
from bizverify.tables.excel import sheet_metadata
from bizverify.tables.excel.cells import MAX_COLUMNS, WIDTHS, Style, titles
from bizverify.tables.excel.drawings import warn_of_drawings
from bizverify.tables.excel.package import (
    copy_package,
    part_pieces,
    prove_same_parts,
    read_part,
    sheet_part,
    styles_part,
)
from bizverify.tables.excel.ranges import AddedColumns, RangeEdits, widen
from bizverify.tables.excel.read import Sheet
from bizverify.tables.excel.sheet_xml import SheetXml
from bizverify.tables.excel.splice import Splice
from bizverify.tables.excel.styles import Styles
from bizverify.tables.excel.xml_edit import Edit, apply_edits
from bizverify.tables.table import Enriched


def extend(result: Enriched, frame: pl.DataFrame, file: File, source: Sheet, target: Path) -> None:
    """Splice the added columns into the user's own sheet, beside what is there, styled like their neighbour.

    ``frame``: the added columns, a row for each row of the table. Raises :class:`OutputError` for a workbook that
    cannot be extended safely, :class:`AccountingError` where the finished one is not the old one with cells added.
    """
    data, left = file.data, list(frame.columns)
    added: AddedColumns | None = None
    with private_folder() as folder:
        while left:
            with ZipFile(data) as archive:
                part, looks = sheet_part(archive, source.name), styles_part(archive)
                sheet = SheetXml.parse(part_pieces(archive, part))
                size = archive.getinfo(part).file_size
                styles = Styles(looks, read_part(archive, looks)) if looks else None
                range_edits = RangeEdits()
                if added is None:
                    added = _locate_columns(result, frame, source, sheet)
                    range_edits = widen(archive, part, source.name, added)
                    _warn(result, archive, part, added, range_edits)
            columns = _side_by_side({column: added.places[column] for column in left})
            left = [column for column in left if column not in columns]
            splice = _plan_splice(result, frame.select(*columns), columns, source, sheet, styles, range_edits.edits)
            changed = {part: splice.pieces()} | {name: iter([xml]) for name, xml in range_edits.parts.items()}
            if styles is not None and styles.changed:
                changed[styles.part] = iter([styles.text()])
            made = folder / f"{len(left)}{target.suffix}" if left else target
            copy_package(data, made, changed, size)
            prove_same_parts(data, made, changed)
            with ZipFile(made) as archive:
                splice.prove(part_pieces(archive, part))
            data = made


def _rows_of(frame: pl.DataFrame, source: Sheet, sheet: SheetXml) -> tuple[int, int]:
    """The sheet's row with the header and the last one of the table."""
    header = sheet.first_row() + source.header
    bottom = header + frame.height
    if sheet.last_row() != bottom + source.below:
        raise AccountingError(
            f"nothing was published: the sheet's last row is {sheet.last_row()}, "
            f"the table's is {bottom + source.below}; write another format, `output='OUT.csv'`"
        )
    return header, bottom


def _locate_columns(result: Enriched, frame: pl.DataFrame, source: Sheet, sheet: SheetXml) -> AddedColumns:
    """Where the added columns go on the sheet, beside which table."""
    top, bottom = _rows_of(frame, source, sheet)
    left = sheet.first_column()
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


def _warn(result: Enriched, archive: ZipFile, part: str, added: AddedColumns, range_edits: RangeEdits) -> None:
    """Say what the new columns do not go together with on their sheet."""
    own = {column for column, _ in result.layout[: len(result.table.headers)]}
    new = {column: number for column, number in added.places.items() if column not in own}
    for warning in (*range_edits.warnings, *warn_of_drawings(archive, part, added, new)):
        result.warn(warning)


def _side_by_side(places: Mapping[str, int]) -> dict[str, int]:
    """The leftmost columns that have none of the user's between them: what goes into a sheet at once."""
    first = min(places.values())
    taken = set(places.values())
    end = next(number for number in range(first, MAX_COLUMNS + 2) if number not in taken)
    return {column: number for column, number in places.items() if number < end}


def _plan_splice(
    result: Enriched,
    frame: pl.DataFrame,
    columns: Mapping[str, int],
    source: Sheet,
    sheet: SheetXml,
    styles: Styles | None,
    more: Sequence[Edit],
) -> Splice:
    """How the new cells of ``columns`` (name → column of the sheet, side by side) go in, and how they look.

    ``more``: further edits of what stands around the rows.
    """
    header, bottom = _rows_of(frame, source, sheet)
    first, last = min(columns.values()), max(columns.values())
    beside = sheet.styles(first - 1, header, bottom)
    title_styles, _ = _styles(columns, beside.head(1), styles, None)
    body_styles, frame = _styles(columns, beside.slice(1), styles, frame)
    replaced = any(column in columns for column, _ in result.layout[: len(result.table.headers)])
    edits = [
        *sheet_metadata.dimension_edits(sheet.around, sheet.elements, last, bottom),
        *sheet_metadata.width_edits(
            sheet.around, sheet.elements, {n: WIDTHS[column] for column, n in columns.items()}, replaced=replaced
        ),
        *_colours(sheet, columns.get("grade"), (header + 1, bottom), styles),
        *more,
    ]
    return Splice(
        sheet=sheet,
        head=apply_edits(sheet.around[: sheet.cut], [edit for edit in edits if edit[0] < sheet.cut]),
        tail=apply_edits(sheet.around, [(0, sheet.cut, b""), *(edit for edit in edits if edit[0] >= sheet.cut)]),
        titles=titles(result, columns),
        frame=frame,
        columns=columns,
        header=header,
        styles=body_styles,
        title_styles=title_styles,
        crossing=max(sheet.columns, default=0) >= first,
    )


def _places(result: Enriched, sheet: SheetXml, left: int, rows: tuple[int, int]) -> dict[str, int]:
    """The sheet's column (from 1) of each added column: where it stood before, else behind everything."""
    own = len(result.table.headers)
    added = [(place, column) for place, (column, _) in enumerate(result.layout) if column in OUR_COLUMNS]
    places = {column: left + place for place, column in added if place < own}
    if len(places) < len(added):
        right = max(sheet.last_column(*rows), sheet_metadata.merged_right(sheet.elements, *rows), *places.values())
        places |= {column: right + number for number, (_, column) in enumerate(added[len(places) :], 1)}
    if max(places.values()) > MAX_COLUMNS:
        raise OutputError(f"the sheet has no room for more columns ({MAX_COLUMNS:,} are the limit); write CSV")
    return places


def _styles(
    columns: Mapping[str, int], beside: pl.Series, styles: Styles | None, frame: pl.DataFrame | None
) -> tuple[dict[str, Style], pl.DataFrame]:
    """Each column's style, made of those beside it (one for each row), and the frame with what they refer to.

    Without a ``frame``, they are the titles' styles.
    """
    found = beside.unique().to_list()
    text = {style: style for style in found if style is not None}
    percent = dict(text)
    if styles is not None:
        text = {style: styles.for_text(style) for style in text}
        if frame is not None and "bounce_prob" in columns:
            percent = {style: styles.for_percent(style or "0") for style in found}
    kinds = {"text": text, "percent": percent if frame is not None else text}
    frame = pl.DataFrame() if frame is None else frame
    looks: dict[str, Style] = {}
    for kind, made in kinds.items():
        if len(found) == 1:
            looks[kind] = made.get(found[0]) or ""
        else:
            series = beside.replace_strict(made, default=None, return_dtype=pl.String).alias(f"{kind} style")
            frame, looks[kind] = frame.with_columns(series), pl.col(series.name)
    return {column: looks["percent" if column == "bounce_prob" else "text"] for column in columns}, frame


def _colours(sheet: SheetXml, column: int | None, rows: tuple[int, int], styles: Styles | None) -> list[Edit]:
    """What gives each grade its colour; nothing where there is no styles part to hold colours."""
    if column is None or styles is None or rows[1] < rows[0]:
        return []
    edits = sheet_metadata.grade_edits(sheet.elements, sheet.around, column, rows)
    if edits is None:
        edits = sheet_metadata.new_grade_edits(sheet.elements, column, rows, styles.add_grades())
    return edits
