"""Prove a finished workbook by independent readers: expat parses its parts, calamine reads its cells."""

from __future__ import annotations

import io
import posixpath
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from xml.parsers import expat
from zipfile import ZipFile

import polars as pl

from bansong.base.errors import AccountingError, Problem
from bansong.base.messages import gettext
from bansong.tables.excel.package import part_names, part_pieces, plain_name
from bansong.tables.excel.sheet_xml import column_letter
from bansong.tables.table import Enriched, is_added

WORKBOOK_NOT_PROVEN: Final = Problem(
    "excel.workbook_not_proven",
    "{called}: nothing was published: the finished workbook is not what it should be ({why}); "
    "write another format, `output='OUT.csv'`",
)

# larger sheets are read in stretches of rows: a cell takes the reader about 150 bytes
_CELLS_AT_ONCE: Final = 2_500_000
_FOLDERS_READ: Final = ("", "_rels", "xl", "xl/_rels")  # where the reader finds sheet names, styles and shared texts
_SHARED_TEXTS: Final = "xl/sharedstrings.xml"
# shared texts are the same part before and after, so comparing their numbers is enough
_AS_NUMBERS: Final = (b' t="s"><', b' t="n"><')
_ROW: Final = re.compile(rb"""<(?:\w+:)?row\s(?:[^>]*?\s)?r\s*=\s*["']([0-9]+)""")
_ROWS_BEGIN: Final = re.compile(rb"<((?:\w+:)?)sheetData[^>]*>")
_SCANNED_BYTES: Final = 1 << 16
_NINE_DECIMALS: Final = 1e-9  # the reader rounds a number that it gives as text
# characters that the reader leaves as Excel spells them
_STAY_SPELLED: Final = {"\ufffe": "_xFFFE_", "\uffff": "_xFFFF_"}
_READER_ERRORS: Final = ("CalamineError", "CannotRetrieveCellDataError", "PanicException", "SheetNotFoundError")

Added = Mapping[int, tuple[str, pl.Series]]  # by column (from 1): the header, and the value of each row below it


@dataclass(frozen=True, slots=True)
class FinishedSheet:
    """A sheet of a finished workbook, with the values added to it."""

    name: str
    part: str
    called: str  # file and sheet, for messages
    first: int  # the first row (from 1) that holds a value
    header: int  # the row of the header
    added: Added

    @property
    def bottom(self) -> int:
        return self.header + max(len(values) for _, values in self.added.values())

    @property
    def starts(self) -> range:
        wide = max(self.added)
        step = self.bottom if self.bottom * wide <= _CELLS_AT_ONCE else _CELLS_AT_ONCE // wide
        return range(1, self.bottom + 1, step)

    def refuse(self, why: object) -> AccountingError:
        return AccountingError(WORKBOOK_NOT_PROVEN, called=self.called, why=why)

    def parse(self, archive: ZipFile, part: str) -> Generator[bytes]:
        """Yield a part in pieces and parse them by expat; :class:`AccountingError` unless it is well-formed."""
        parser = expat.ParserCreate(namespace_separator=" ")
        try:
            for piece in part_pieces(archive, part):
                parser.Parse(piece, False)
                yield piece
            parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self.refuse(f"{part}: {error}") from error

    def prove_cells(self, before: Path, after: Path, above: pl.DataFrame, own: Added) -> int:
        """Return the number of rows that a reader finds; raise :class:`AccountingError` unless it finds all cells."""
        # the cells of ``before`` and the added ones
        # ``above``, ``own``: rows above the table and the user's columns as first read. ``before`` is read again only
        # if shown and stored values differ (dates among texts).
        with self._refusing():
            olds, last = self._read(before), 0
            for start, new in zip(self.starts, self._read(after), strict=True):
                as_read = False
                if len(self.starts) == 1:
                    with suppress(AccountingError):
                        replace(self, added={**own, **self.added})._compare(above, new, 1)
                        as_read = True
                if not as_read:
                    self._compare(next(olds), new, start)
                last = self._span(start)[0] + new.height - 1 if new.height else last
        return min(last, self.bottom) - self.header

    def prove_new(self, path: Path, own: Mapping[int, pl.Series]) -> None:
        with ZipFile(path) as archive:
            deque(self.parse(archive, self.part), maxlen=0)
        with self._refusing():
            for start, new in zip(self.starts, self._read(path), strict=True):
                self._compare(new, new, start)
                top, last = self._span(start)
                for column, values in own.items():
                    first = max(self.header + 1, top)
                    found = _column(new, str(column), last + 1 - top)[first - top :]
                    wanted = values.slice(first - self.header - 1, len(found))
                    blank = wanted.fill_null("") == "" if wanted.dtype == pl.String else wanted.is_null()
                    self._refuse_cell(column, first, (found == "") == blank)

    def _span(self, start: int) -> tuple[int, int]:
        return self.first if start == 1 else start, min(start + self.starts.step - 1, self.bottom)

    def _compare(self, old: pl.DataFrame, new: pl.DataFrame, start: int) -> None:
        top, last = self._span(start)
        height = max(old.height, new.height, last + 1 - top)
        for column in sorted({*map(int, old.columns), *map(int, new.columns), *self.added}):
            found, expected = (_column(frame, str(column), height) for frame in (new, old))
            same = found == expected
            if column in self.added:
                title, values = self.added[column]
                begin, end = max(self.header - top, 0), min(self.header - top + 1 + len(values), height)
                ours = _agree(found[begin:end], title, values, begin + top - self.header)
                same = pl.concat([same[:begin], ours, same[end:]])
            self._refuse_cell(column, top, same)

    def _refuse_cell(self, column: int, top: int, same: pl.Series) -> None:
        if not same.all():
            cell = f"{column_letter(column)}{top + int((~same).arg_true()[0])}"
            raise self.refuse(gettext("another program reads something else in cell {cell}", cell=cell))

    def _read(self, path: Path) -> Iterator[pl.DataFrame]:
        """Yield the cells of each range of rows as text, from the first row with a value; column names are numbers."""
        import fastexcel

        for start, book in zip(self.starts, _stretches(path, self.part, self.starts), strict=True):
            loaded = fastexcel.read_excel(book).load_sheet(self.name, header_row=None, dtypes="string")
            frame = loaded.to_polars()
            frame.columns = [str(column.absolute_index + 1) for column in loaded.selected_columns]
            yield frame[1:] if start > 1 else frame  # without the cell above a stretch

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if type(error).__name__ not in _READER_ERRORS:  # a Rust panic's class cannot be imported
                raise
            raise self.refuse(str(error).partition("\n")[0]) from error


def _stretches(path: Path, part: str, starts: range) -> Iterator[bytes]:
    """Yield the whole workbook, or a small one for each range of rows."""
    # a small one has a cell above its rows, since the reader begins at the first row with a value
    if len(starts) == 1:
        yield path.read_bytes()
        return
    with ZipFile(path) as archive:
        read = [name for name in archive.namelist() if posixpath.dirname(plain_name(name)) in _FOLDERS_READ]
        others = {name: archive.read(name) for name in read}
        pieces, head = _pieces(archive, part_names(archive)[plain_name(part)]), b""
        while (begin := _ROWS_BEGIN.search(head)) is None:
            head += next(pieces)
        head, piece, p = head[: begin.end()], head[begin.end() :], begin[1]
        for start in starts:
            above = b'<%brow r="%d"><%bc r="A%d"><%bv>1</%bv></%bc></%brow>' % (p, start - 1, p, start - 1, p, p, p, p)
            held = [head, above] if start > 1 else [head]
            while (stop := _find_row(piece, start + starts.step)) < 0 and b"</%bsheetData" % p not in piece:
                held.append(piece)
                piece = next(pieces)
            stop = stop if stop >= 0 else piece.index(b"</%bsheetData" % p)
            xml = b"".join([*held, piece[:stop], b"</%bsheetData></%bworksheet>" % (p, p)])
            piece = piece[stop:]
            refers = b'="s"' in (xml := xml.replace(*_AS_NUMBERS)) or b"='s'" in xml
            book = io.BytesIO()
            with ZipFile(book, "w") as probe:
                for name, content in others.items():
                    if refers or plain_name(name) != _SHARED_TEXTS:
                        probe.writestr(name, content)
                probe.writestr(part, xml)
            yield book.getvalue()


def _pieces(archive: ZipFile, part: str) -> Iterator[bytes]:
    rest = b""
    for piece in part_pieces(archive, part):
        whole = rest + piece
        cut = whole.rfind(b"<")
        yield whole[:cut]
        rest = whole[cut:]
    yield rest


def _find_row(xml: bytes, number: int) -> int:
    low, high = 0, len(xml)
    while high - low > _SCANNED_BYTES:
        middle = (low + high) // 2
        found = _ROW.search(xml, middle)
        if found is None or int(found[1]) >= number:
            high = middle
        else:
            low = found.start()
    return next((row.start() for row in _ROW.finditer(xml, low) if int(row[1]) >= number), -1)


def _column(frame: pl.DataFrame, name: str, height: int) -> pl.Series:
    found = frame[name] if name in frame.columns else pl.Series(dtype=pl.String)
    return found.extend_constant("", height - len(found)).fill_null("")


def _agree(found: pl.Series, title: str, values: pl.Series, offset: int) -> pl.Series:
    texts = pl.concat([pl.Series([title]), values.cast(pl.String)]).slice(offset, len(found)).fill_null("")
    same = found == texts
    if same.all():
        return same
    same |= found == texts.str.replace_many(_STAY_SPELLED)
    if values.dtype == pl.Date:
        same |= found == texts + " 00:00:00"
    if values.dtype.is_numeric():
        numbers = texts.cast(pl.Float64, strict=False)
        same |= ((found.cast(pl.Float64, strict=False) - numbers).abs() < _NINE_DECIMALS).fill_null(False)
    return same


def prove_created(result: Enriched, sheets: Iterable[tuple[str, str, pl.DataFrame]], path: Path) -> None:
    numbered = [*enumerate(result.layout, 1)]
    ours = {number for number, (column, _) in numbered if is_added(column)}
    for place, (name, part, rows) in enumerate(sheets):
        added = {number: (title, rows[column]) for number, (column, title) in numbered if number in ours}
        own = {number: rows[column] for number, (column, _) in numbered if number not in ours}
        header = 1 + (0 if place else len(result.table.title_rows))
        if added:
            FinishedSheet(name, part, result.table.name, 1, header, added).prove_new(path, own)
