"""Proves a finished workbook by readers that did not write it: expat parses its parts, calamine reads its cells."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.parsers import expat
from zipfile import ZipFile

import polars as pl

from bizverify.errors import AccountingError
from bizverify.tables.excel.cells import column_letter
from bizverify.tables.excel.package import part_pieces
from bizverify.translation import gettext

_CELLS_AT_ONCE: Final = 5_000_000
"""A sheet of more cells is read in stretches of rows: the reader takes about 150 bytes of memory for a cell."""
_FOLDERS_READ: Final = ("", "_rels", "xl", "xl/_rels")
"""Where the reader finds all but the cells: names of the sheets, styles, shared texts."""
_ROW: Final = re.compile(rb"""<(?:\w+:)?row\s(?:[^>]*?\s)?r\s*=\s*["']([0-9]+)""")
_ROWS_BEGIN: Final = re.compile(rb"<((?:\w+:)?)sheetData[^>]*>")
_SCANNED_BYTES: Final = 1 << 16
_NINE_DECIMALS: Final = 1e-9
"""The reader rounds a number that it gives as text."""
_STAY_SPELLED: Final = {"\ufffe": "_xFFFE_", "\uffff": "_xFFFF_"}
"""Characters that the reader leaves as Excel spells them."""
_READER_ERRORS: Final = ("CalamineError", "CannotRetrieveCellDataError", "PanicException", "SheetNotFoundError")

Added = Mapping[int, tuple[str, pl.Series]]
"""What was added, by the number of its column (from 1): the header, and the value of each row below it."""


@dataclass(frozen=True, slots=True)
class FinishedSheet:
    """A sheet of a finished workbook, with what was added to it.

    ``called``: file and sheet, for messages. ``first`` and ``header``: the first row that holds a value, and the row
    of the header (from 1).
    """

    name: str
    part: str
    called: str
    first: int
    header: int
    added: Added

    @property
    def starts(self) -> range:
        """The first rows of the stretches that it is read in."""
        bottom = self.header + max(len(values) for _, values in self.added.values())
        wide = max(self.added)
        return range(1, bottom + 1, bottom if bottom * wide <= _CELLS_AT_ONCE else _CELLS_AT_ONCE // wide)

    def refuse(self, why: object) -> AccountingError:
        """The error for a workbook that must not be published."""
        return AccountingError(
            gettext(
                "{called}: nothing was published: the finished workbook is not what it should be ({why}); "
                "write another format, `output='OUT.csv'`",
                called=self.called,
                why=why,
            )
        )

    def parse(self, pieces: Iterable[bytes], part: str) -> Iterator[bytes]:
        """Pass a part on while expat parses it; raise :class:`AccountingError` unless it is well-formed."""
        parser = expat.ParserCreate(namespace_separator=" ")
        try:
            for piece in pieces:
                parser.Parse(piece, False)
                yield piece
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self.refuse(f"{part}: {error}") from error

    def prove_cells(self, before: Path, after: Path) -> None:
        """Raise :class:`AccountingError` unless a reader finds every cell that was there before, and what was added."""
        try:
            with ThreadPoolExecutor(2 if len(self.starts) == 1 else 1) as pool:
                books = (_stretches(path, self.part, self.starts) for path in (before, after))
                for start, *both in zip(self.starts, *books, strict=True):
                    old, new = pool.map(_read_cells, both, [self.name] * 2)
                    if start > 1:  # below the cell above the stretch
                        self._compare(old[1:], new[1:], start)
                    else:
                        self._compare(old, new, self.first)
        except BaseException as error:
            if type(error).__name__ not in _READER_ERRORS:  # a Rust panic's class cannot be imported
                raise
            raise self.refuse(str(error).partition("\n")[0]) from error

    def _compare(self, old: pl.DataFrame, new: pl.DataFrame, top: int) -> None:
        """Compare frames whose first row is the sheet's row ``top``."""
        height = max(old.height, new.height)
        for column in sorted({*map(int, old.columns), *map(int, new.columns), *self.added}):
            found, expected = (_column(frame, str(column), height) for frame in (new, old))
            same = found == expected
            if column in self.added:
                title, values = self.added[column]
                start, stop = max(self.header - top, 0), min(self.header - top + 1 + len(values), height)
                ours = _agree(found[start:stop], title, values, start + top - self.header)
                same = pl.concat([same[:start], ours, same[stop:]])
            if not same.all():
                cell = f"{column_letter(column)}{top + int((~same).arg_true()[0])}"
                raise self.refuse(gettext("another program reads something else in cell {cell}", cell=cell))


def _stretches(path: Path, part: str, starts: range) -> Iterator[bytes]:
    """A workbook whole, or as one for each stretch of its sheet's rows that begins at one of ``starts``.

    A stretch has a cell above its first row: the reader begins at the first row that holds a value.
    """
    if len(starts) == 1:
        yield path.read_bytes()
        return
    with ZipFile(path) as archive:
        others = {name: archive.read(name) for name in archive.namelist() if posixpath.dirname(name) in _FOLDERS_READ}
        pieces, xml = part_pieces(archive, part), b""
        while (begin := _ROWS_BEGIN.search(xml)) is None:
            xml += next(pieces)
        head, xml, p = xml[: begin.end()], xml[begin.end() :], begin[1]
        end = b"</%bsheetData></%bworksheet>" % (p, p)
        for start in starts:
            while (stop := _find_row(xml, start + starts.step)) < 0 and (piece := next(pieces, b"")):
                xml += piece
            stop = stop if stop >= 0 else xml.index(b"</%bsheetData" % p)
            above = b'<%brow r="%d"><%bc r="A%d"><%bv>1</%bv></%bc></%brow>'
            above = above % (p, start - 1, p, start - 1, p, p, p, p) if start > 1 else b""
            book = io.BytesIO()
            with ZipFile(book, "w") as probe:
                for name, content in {**others, part: b"".join([head, above, xml[:stop], end])}.items():
                    probe.writestr(name, content)
            xml = xml[stop:]
            yield book.getvalue()


def _find_row(xml: bytes, number: int) -> int:
    """Where the first row from ``number`` on begins, or -1 where there is none."""
    low, high = 0, len(xml)
    while high - low > _SCANNED_BYTES:
        middle = (low + high) // 2
        found = _ROW.search(xml, middle)
        if found is None or int(found[1]) >= number:
            high = middle
        else:
            low = found.start()
    return next((row.start() for row in _ROW.finditer(xml, low) if int(row[1]) >= number), -1)


def _read_cells(book: bytes, sheet: str) -> pl.DataFrame:
    """The cells of a sheet as texts, from the first row that holds a value; columns are named by their numbers."""
    import fastexcel

    loaded = fastexcel.read_excel(book).load_sheet(sheet, header_row=None, dtypes="string")
    frame = loaded.to_polars()
    frame.columns = [str(column.absolute_index + 1) for column in loaded.selected_columns]
    return frame


def _column(frame: pl.DataFrame, name: str, height: int) -> pl.Series:
    """A column of so many rows, blank where it has none."""
    found = frame[name] if name in frame.columns else pl.Series(dtype=pl.String)
    return found.extend_constant("", height - len(found)).fill_null("")


def _agree(found: pl.Series, title: str, values: pl.Series, offset: int) -> pl.Series:
    """Whether cells are those of an added column from ``offset`` on, counted from its header."""
    texts = pl.concat([pl.Series([title]), values.cast(pl.String)]).slice(offset, len(found)).fill_null("")
    same = found == texts.str.replace_many(_STAY_SPELLED)
    if values.dtype.is_numeric():
        numbers = texts.cast(pl.Float64, strict=False)
        same |= ((found.cast(pl.Float64, strict=False) - numbers).abs() < _NINE_DECIMALS).fill_null(False)
    return same
