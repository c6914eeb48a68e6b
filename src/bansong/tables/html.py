"""Web pages → tables: what portals and ERPs send as ``.xls`` is often a table in HTML; pages are only read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import polars as pl

from bansong.errors import InputError, Problem, UsageError
from bansong.schema import Alert
from bansong.tables.compression import File
from bansong.tables.csv.encoding import Coding, parts
from bansong.tables.csv.read import decode_file
from bansong.tables.detect import FORMATS
from bansong.tables.excel.sheets import HAS_NUMBERS, Loaded, rank
from bansong.tables.format import ReadAs, Verbs
from bansong.tables.heading import LOOK, Merge, Row, find_heading
from bansong.tables.size_limits import beyond_limit, limits
from bansong.tables.table import Table, advise_sheet, column_ids
from bansong.translation import gettext

PAGE_WITHOUT_TABLE: Final = Problem(
    "html.page_without_table",
    "{path}: is a web page without a table{title}, such as a portal's login or error page, "
    "or the frame of a workbook saved as a web page; open it in Excel or a browser, and save "
    "its table as .xlsx",
)
HTML_TABLE_MISSING: Final = Problem("html.html_table_missing", "{path}: has no {wanted!r}; it has {named}")
TAG_NOT_CLOSED: Final = Problem(
    "html.tag_not_closed", "{path}: has a tag or a comment without an end; open it in Excel, save it as .xlsx"
)
PAGE_CUT_OFF: Final = Problem(
    "html.page_cut_off", "{path}: ends in the middle of a tag or a comment; the file is not whole"
)
TABLES_TOO_NESTED: Final = Problem(
    "html.tables_too_nested", "{path}: its tables are too many or nested too deeply; open it in Excel, save .xlsx"
)

_BATCH: Final = 10_000
_PENDING: Final = 1 << 20
_UNENDED: Final = 1 << 16
_MOST_SPANNED: Final = 65_534
_TABLES: Final = 10_000
_UNSHOWN: Final = ("script", "style", "select")
_BREAKS: Final = ("br", "p", "div", "li")
_SPACES: Final = re.compile(r"[ \t\r\n\f]+")
_SEVERAL: Final = re.compile("  +")
_AROUND_BREAK: Final = re.compile(r" *\n[ \n]*")
_EDGES: Final = " \n\N{NO-BREAK SPACE}"


@dataclass(slots=True)
class PageTable:
    """A table of a page: ``top`` are its first rows, ``merges`` the merged cells among them, ``batches`` all rows.

    ``outer`` is the table in a cell of which it stands, if there is one.
    """

    outer: PageTable | None = None
    top: list[Row] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    batches: list[pl.DataFrame] = field(default_factory=list)
    width: int = 0
    height: int = 0
    rows: list[list[str | None]] = field(default_factory=list)

    def add(self, cells: list[str | None]) -> None:
        """Add a row."""
        if len(self.top) < LOOK:
            self.top.append(tuple(cells))
        self.rows.append(cells)
        self.width = max(self.width, len(cells))
        self.height += 1
        if len(self.rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Make columns of the rows that are rows still."""
        if not self.rows:
            return
        width = max(map(len, self.rows), default=0)
        rows = [row if len(row) == width else [*row, *[None] * (width - len(row))] for row in self.rows]
        self.batches.append(pl.DataFrame(rows, schema=dict.fromkeys(column_ids(width), pl.String), orient="row"))
        self.rows = []

    def append(self, other: PageTable) -> None:
        """Put another table's rows below."""
        self.flush()
        other.flush()
        self.merges += [(top + self.height, left, down + self.height, right) for top, left, down, right in other.merges]
        self.top += other.top[: LOOK - len(self.top)]
        self.batches += other.batches
        self.width, self.height = max(self.width, other.width), self.height + other.height

    def frame(self) -> pl.DataFrame:
        """All rows, but for blank ones at the end."""
        self.flush()
        empty = pl.DataFrame(schema=dict.fromkeys(column_ids(self.width), pl.String))
        frame = pl.concat([empty, *self.batches], how="diagonal")
        filled = frame.select(pl.any_horizontal(pl.all().is_not_null()).alias("filled"))["filled"].arg_true()
        return frame.head(filled[-1] + 1 if len(filled) else 0)


@dataclass(slots=True)
class _Open:
    """A table that has not ended yet: its row and cell under way, and the cells that reach down into its next rows."""

    grid: PageTable
    cells: list[str | None] | None = None
    texts: list[str] | None = None
    span: tuple[int, int] = (1, 1)
    reaching: dict[int, int] = field(default_factory=dict)


class Page(HTMLParser):
    """Reads a page fed in parts; ``grids`` are its tables in the order in which they begin, ``title`` is its name.

    A table within a cell of another is a table of its own. Raises :class:`InputError` beyond the limits.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.grids: list[PageTable] = []
        self.title = ""
        self._path = path
        self._limits = limits()
        self._open: list[_Open] = []
        self._unshown = ""
        self._cells = 0
        self._in_title = False

    def feed(self, data: str) -> None:
        """Read the next part of the page."""
        super().feed(data)
        if len(self.rawdata) > _PENDING:
            raise InputError(TAG_NOT_CLOSED, path=self._path)

    def close(self) -> None:
        """End the page: close what is open; raise :class:`InputError` where it ends within a tag."""
        if len(self.rawdata) > _UNENDED:
            raise InputError(PAGE_CUT_OFF, path=self._path)
        super().close()
        while self._open:
            self._end_table()

    def updatepos(self, _i: int, j: int) -> int:
        """Count no lines, which takes a tenth of the time: no message names one."""
        return j

    def parse_marked_section(self, i: int, _report: int = 1) -> int:
        """Pass ``<![if …]>`` and its like up to their end, as browsers do; the library gives up over odd ones."""
        return self.rawdata.find(">", i) + 1 or -1

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Begin a table, a row or a cell; whatever is left open before it ends."""
        if tag in ("td", "th"):
            if self._open:
                self._begin_cell(attrs)
        elif tag == "tr":
            if self._open:
                self._end_row()
                self._open[-1].cells = []
        elif tag == "table":
            self._begin_table()
        elif tag in _UNSHOWN:
            self._unshown = tag
        elif tag == "title":
            self._in_title = True
        elif tag in _BREAKS and self._open and (texts := self._open[-1].texts) is not None:
            texts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End a table, a row or a cell."""
        if self._open and tag in ("td", "th"):
            self._end_cell()
        elif self._open and tag == "tr":
            self._end_row()
        elif self._open and tag == "table":
            self._end_table()
        elif tag == self._unshown:
            self._unshown = ""
        elif tag == "title":
            self._in_title = False

    def handle_data(self, data: str) -> None:
        """Take a text of a cell."""
        if self._in_title:
            self.title = self.title or " ".join(data.split())[:60]
        elif not self._unshown and self._open and (texts := self._open[-1].texts) is not None:
            texts.append(_SPACES.sub(" ", data))

    def _begin_table(self) -> None:
        if len(self._open) >= self._limits.depth or len(self.grids) >= _TABLES:
            raise InputError(TABLES_TOO_NESTED, path=self._path)
        self.grids.append(PageTable(self._open[-1].grid if self._open else None))
        self._open.append(_Open(self.grids[-1]))

    def _end_table(self) -> None:
        self._end_row()
        self._open.pop()

    def _begin_cell(self, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._end_cell()
        table = self._open[-1]
        if table.cells is None:
            table.cells = []
        table.texts = []
        table.span = (1, 1)
        for name, value in attrs:
            if name == "rowspan":
                table.span = (_number(value, _MOST_SPANNED), table.span[1])
            elif name == "colspan":
                table.span = (table.span[0], _number(value, self._limits.columns))

    def _end_cell(self) -> None:
        table = self._open[-1]
        if table.texts is None or table.cells is None:
            return
        text = _cell_text(table.texts)
        table.texts = None
        if len(text) > self._limits.text:
            raise beyond_limit(
                self._path, gettext("has a cell of more than {text:,} characters", text=self._limits.text), "text"
            )
        while table.reaching and len(table.cells) in table.reaching:
            table.cells.append(None)
        left, (down, across) = len(table.cells), table.span
        table.cells.append(text or None)
        if down > 1 or across > 1:
            self._span(table, left, down, across)
        if len(table.cells) > self._limits.columns:
            raise beyond_limit(
                self._path,
                gettext("has a table of more than {columns:,} columns", columns=self._limits.columns),
                "columns",
            )

    def _span(self, table: _Open, left: int, down: int, across: int) -> None:
        assert table.cells is not None  # noqa: S101 - a cell ends in a row
        table.cells += [None] * (across - 1)
        if down > 1:
            table.reaching |= dict.fromkeys(range(left, left + across), down)
        if table.grid.height < LOOK:
            table.grid.merges.append((table.grid.height, left, table.grid.height + down - 1, left + across - 1))

    def _end_row(self) -> None:
        self._end_cell()
        table = self._open[-1]
        if table.cells is None:
            return
        cells, table.cells = table.cells, None
        if table.reaching:
            table.reaching = {column: rows - 1 for column, rows in table.reaching.items() if rows > 1}
        table.grid.add(cells)
        self._cells += len(cells) + 1
        if max(self._cells, table.grid.height * table.grid.width) > self._limits.cells:
            raise beyond_limit(self._path, gettext("has more than {cells:,} cells", cells=self._limits.cells), "cells")


def _cell_text(texts: Sequence[str]) -> str:
    """The text of a cell from its parts, as a browser shows it, without spaces at its edges."""
    text = "".join(texts)
    if len(texts) > 1:
        text = _AROUND_BREAK.sub("\n", _SEVERAL.sub(" ", text))
    return text.strip(_EDGES)


def _number(text: str | None, most: int) -> int:
    """The number of rows or columns that a cell spans, 1 for what is no number."""
    found = re.match(r"\s*([0-9]{1,9})", text or "")
    return min(max(int(found[1]), 1), most) if found else 1


class HtmlVerbs(Verbs):
    """Web pages, only read."""

    def read(self, file: File, wanted: ReadAs, _resources: ExitStack) -> Table:
        """Open a table of a page; every cell is text, as the page shows it."""
        return read(file, wanted.encoding, wanted.sheet)


def read(file: File, encoding: str | None, wanted: str | None) -> Table:
    """Open a table of a web page: the wanted one (``table 2``), else the first one that holds business numbers.

    Every cell is text, as the page shows it. Tables of equal width that follow one another are one, as portals make
    them of a long list or of a header apart from its rows. Raises :class:`InputError`; :class:`UsageError` for a
    missing table.
    """
    page = decode_file(file, encoding, lambda coding: _parse_page(file, coding))
    grids = _join_tables([grid for grid in page.grids if any(any(row) for row in grid.top)])
    if not grids:
        title = gettext(" (its title is {title!r})", title=page.title) if page.title else ""
        raise InputError(PAGE_WITHOUT_TABLE, path=file.path, title=title)
    named = {f"table {number}": grid for number, grid in enumerate(grids, 1)}
    if wanted is not None and wanted not in named:
        raise UsageError(HTML_TABLE_MISSING, path=file.path, wanted=wanted, named=", ".join(map(repr, named)))
    chosen, others = _choose_table(file, {wanted: named[wanted]} if wanted else named)
    notes = []
    if others:
        names = ", ".join(map(repr, others))
        notes.append(
            Alert(
                gettext(
                    "only {name!r} of the page was taken; {names} hold business numbers too; {advice}",
                    name=chosen.name,
                    names=names,
                    advice=advise_sheet(others[0]),
                )
            )
        )
    return Table(
        chosen.frame.lazy(),
        chosen.headers,
        FORMATS["html"],
        file.path.name if len(grids) == 1 else f"{file.path.name} [{chosen.name}]",
        file,
        notes=tuple(notes),
        above=chosen.header,
        titles=chosen.titles,
        title_rows=chosen.title_rows,
        rows=chosen.frame.height,
    )


def _parse_page(file: File, coding: Coding) -> Page:
    page = Page(file.path)
    for part in parts(file, replace(coding, bare_cr=False)):
        page.feed(part.decode())
    page.close()
    return page


def _join_tables(grids: list[PageTable]) -> list[PageTable]:
    """The tables, those of equal width that follow one another as one."""
    joined: list[PageTable] = []
    for grid in grids:
        if joined and joined[-1].outer is grid.outer and joined[-1].width == grid.width > 1:
            joined[-1].append(grid)
        else:
            joined.append(grid)
    return joined


def _choose_table(file: File, grids: dict[str, PageTable]) -> tuple[Loaded, list[str]]:
    """The table that fits best, and the names of others that hold business numbers."""
    found = {name: _load_table(file, name, grid) for name, grid in grids.items()}
    ranks = {name: rank(table) for name, table in found.items()}
    best = max(found, key=lambda name: ranks[name])
    table = found[best]
    if isinstance(table, InputError):
        raise table
    return table, [name for name, fit in ranks.items() if fit >= HAS_NUMBERS and name != best]


def _load_table(file: File, name: str, grid: PageTable) -> Loaded | InputError:
    try:
        heading = find_heading(grid.top, grid.merges, name=f"{file.path} [{name}]")
    except InputError as error:
        return error
    frame = grid.frame().slice(heading.last + 1)
    headers = (*heading.headers, *[""] * (frame.width - len(heading.headers)))
    return Loaded(name, frame, headers, heading.last, title_rows=tuple(map(tuple, grid.top[: heading.first])))
