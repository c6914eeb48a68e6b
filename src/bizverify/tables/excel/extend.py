"""The user's own workbook, its sheet extended by new columns: cells spliced into the XML, all else as it stands."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import polars as pl

from bizverify.errors import AccountingError, OutputError
from bizverify.model import ADDED_COLUMNS
from bizverify.tables.excel.cells import MAX_COLUMNS, WIDTHS, column_letter, rendered, titles
from bizverify.tables.excel.package import copy_package, percent_styles, sheet_part
from bizverify.tables.excel.read import Sheet, read
from bizverify.tables.excel.sheetxml import SheetXml
from bizverify.tables.packing import File
from bizverify.tables.table import Enriched, Table


def extend(result: Enriched, frame: pl.DataFrame, file: File, source: Sheet, target: Path) -> None:
    """Splice the added columns into the user's own sheet, beside what is there, styled like their neighbour."""
    with ZipFile(file.data) as archive:
        part = sheet_part(archive, source.name)
        sheet = SheetXml.parse(archive.read(part).decode("utf-8-sig", "replace"))
        styles_xml = archive.read("xl/styles.xml").decode() if "xl/styles.xml" in archive.namelist() else ""
    top, left = sheet.corner()
    bottom = top + frame.height
    columns = _places(result, left, sheet.right())
    neighbours = sheet.styles(column_letter(min(columns.values()) - 1), top, bottom)["style"]
    styles_xml, percents = percent_styles(styles_xml, neighbours.slice(1).fill_null("0").unique().sort().to_list())

    style = _style(pl.col("style"))
    styles = dict.fromkeys(columns, style)
    header = rendered(titles(result, columns).with_columns(neighbours.head(1)), columns, styles, top)
    if percents:
        styles["bounce_prob"] = _style(pl.col("style").fill_null("0").replace(percents))
    body = rendered(frame.with_columns(neighbours.slice(1)), columns, styles, top + 1)

    sheet = sheet.with_cells(pl.concat([header, body]), sorted(columns.values()))
    sheet = sheet.with_dimension(max(columns.values()), bottom)
    sheet = sheet.with_widths({number: WIDTHS[column] for column, number in columns.items()})
    copy_package(file.data, target, {part: sheet.text()} | ({"xl/styles.xml": styles_xml} if percents else {}))
    _compare(result, frame, read(File(target, target), "xlsx", source.name))


def _places(result: Enriched, left: int, right: int) -> dict[str, int]:
    """The sheet's column (from 1) of each added column: where it stood before, else behind everything."""
    own = len(result.table.headers)
    places = {}
    for position, (column, _) in enumerate(result.layout):
        if column in ADDED_COLUMNS:
            right += position >= own
            places[column] = left + position if position < own else right
    if max(places.values()) > MAX_COLUMNS:
        raise OutputError(f"the sheet has no room for more columns ({MAX_COLUMNS:,} are the limit); write CSV")
    return places


def _style(number: pl.Expr) -> pl.Expr:
    return pl.concat_str(pl.lit(' s="'), number, pl.lit('"')).fill_null("")


def _compare(result: Enriched, added: pl.DataFrame, written: Table) -> None:
    """Hold the finished workbook against what was read and what was to be added: the last word on its cells."""
    before = result.table.frame.select(column for column, _ in result.layout if column not in ADDED_COLUMNS).collect()
    places = {column: place for place, (column, _) in enumerate(result.layout) if column in before.columns}
    headers = [written.headers[place] for place in places.values()]
    shift = len(written.headers) - len(result.layout)  # blank columns, where ours had to start further right
    found = written.frame.collect()
    after = found.select(pl.col(f"c{place}").alias(column) for column, place in places.items())
    texts = [column for column in ADDED_COLUMNS if column != "bounce_prob"]
    answers = {column: place for place, (column, _) in enumerate(result.layout) if column in texts}
    ours = found.select(
        pl.col(f"c{place + (shift if place >= len(result.table.headers) else 0)}").cast(pl.String).alias(column)
        for column, place in answers.items()
    )
    kept = headers == [header for column, header in result.layout if column in places] and after.equals(before)
    if not (kept and ours.equals(added.select(ours.columns))):
        raise AccountingError(
            "nothing was published: the workbook would not hold what it held before; write another format, -o OUT.csv"
        )
