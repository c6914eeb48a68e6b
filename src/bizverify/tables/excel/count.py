"""How many rows a finished workbook holds, told from the file alone."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile, ZipInfo

from bizverify.tables.excel.create import SHEET
from bizverify.tables.excel.package import part_pieces, read_part, sheet_part, sheet_parts
from bizverify.tables.excel.read import Sheet
from bizverify.tables.excel.sheet_xml import SheetXml
from bizverify.tables.excel.workbook_index import entries_of
from bizverify.tables.table import Table


def count_rows(table: Table, path: Path) -> int:
    """Count the rows of a finished workbook that was made from ``table``, unpacking its sheet anew.

    In the user's own workbook they are the rows from below the header to the last that holds a value; in a new one
    those of all its sheets but the summary, less their headers and the title rows.
    """
    with ZipFile(path) as archive:
        if isinstance(table.source, Sheet) and table.file is not None:
            with ZipFile(table.file.data) as old:
                extended = _is_extended(old, archive)
            if extended:
                sheet = SheetXml.parse(part_pieces(archive, sheet_part(archive, table.source.name)), cells=False)
                return sheet.last_row() - table.source.below - sheet.first_row() - table.source.header
        parts = [part for name, part in sheet_parts(archive).items() if name.startswith(SHEET)]
        return sum(read_part(archive, part).count(b"<row ") - 1 for part in parts) - len(table.title_rows)


def _is_extended(old: ZipFile, new: ZipFile) -> bool:
    """Whether a workbook is another with its sheets extended: same sheets, same parts, those around the book alike."""
    around = [[(part.filename, part.CRC) for part in book.infolist() if not _in_book(part)] for book in (old, new)]
    return old.namelist() == new.namelist() and entries_of(old) == entries_of(new) and around[0] == around[1]


def _in_book(part: ZipInfo) -> bool:
    return part.filename.lower().startswith("xl/")
