"""Read tables from web pages: many ``.xls`` files of portals and ERPs are tables in HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self, cast

import polars as pl
from lxml import etree

from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.isolation import beyond_limit, limits
from bansong.base.messages import gettext, gettext_noop
from bansong.base.options import ReadOptions
from bansong.base.schema import Alert
from bansong.tables.csv.encoding import parts
from bansong.tables.csv.format import decode_file
from bansong.tables.excel.read import HAS_NUMBERS, Loaded, rank
from bansong.tables.headers import LOOK, Merge, Row, find_heading
from bansong.tables.streams import File
from bansong.tables.table import Table, Verbs, advise_sheet, column_ids, wanted_sheet

PAGE_WITHOUT_TABLE: Final = Problem(
    "html.page_without_table",
    "{path}: is a web page without a table{title}, such as a portal's login or error page, or the frame of a workbook "
    "saved as a web page; open it in Excel or a browser, and save its table as .xlsx",
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

_OTHERS_HOLD_NUMBERS: Final = gettext_noop(
    "only {name!r} of the page was taken; {names} hold business numbers too; {advice}"
)
_BATCH_ROWS: Final = 10_000
_PENDING_BYTES: Final = 1 << 20
_MAX_SPANNED_ROWS: Final = 65_534
_MAX_TABLES: Final = 10_000
_UNSHOWN: Final = ("script", "style", "select")
_BREAKS: Final = ("br", "p", "div", "li")
_BREAK: Final = "\0"  # marks a line break in a cell; pages do not contain NUL
_SPACES: Final = re.compile(r"[ \t\r\n\f]+")
_AROUND_BREAK: Final = re.compile(rf" *{_BREAK}[ {_BREAK}]*")
_EDGES: Final = " \n\N{NO-BREAK SPACE}"
_SPAN: Final = re.compile(r"\s*([0-9]{1,9})")
_ROW_END: Final = re.compile(rb"</tr(?=[\s/>])", re.IGNORECASE)
# attribute of a ``<br>`` inserted before each ``</tr>``, which the parser drops in a row without ``<tr>``
_ROW_END_MARK: Final = "bansong-row-end"
_LAST_TAG: Final = "bansong-end"  # fed after the page; an unclosed tag or comment swallows it


@dataclass(slots=True)
class PageTable:
    """A table of a page."""

    outer: PageTable | None = None  # the table with this table in a cell
    top: list[Row] = field(default_factory=list)  # the first rows
    merges: list[Merge] = field(default_factory=list)  # merged cells among the first rows
    batches: list[pl.DataFrame] = field(default_factory=list)  # all rows
    width: int = 0
    height: int = 0
    rows: list[list[str | None]] = field(default_factory=list)
    # while the table is open: row, cell and span under way; by column, number of rows that a cell reaches down
    cells: list[str | None] | None = None
    texts: list[str] | None = None
    span: tuple[int, int] = (1, 1)
    reaching: dict[int, int] = field(default_factory=dict)

    def add(self, cells: list[str | None]) -> None:
        if len(self.top) < LOOK:
            self.top.append(tuple(cells))
        self.rows.append(cells)
        self.width = max(self.width, len(cells))
        self.height += 1
        if len(self.rows) >= _BATCH_ROWS:
            self._flush()

    def append(self, other: PageTable) -> None:
        self._flush()
        other._flush()
        self.merges += [(top + self.height, left, down + self.height, right) for top, left, down, right in other.merges]
        self.top += other.top[: LOOK - len(self.top)]
        self.batches += other.batches
        self.width, self.height = max(self.width, other.width), self.height + other.height

    def frame(self) -> pl.DataFrame:
        self._flush()
        empty = pl.DataFrame(schema=dict.fromkeys(column_ids(self.width), pl.String))
        frame = pl.concat([empty, *self.batches], how="diagonal")
        filled = frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series().arg_true()
        return frame.head(filled[-1] + 1 if len(filled) else 0)

    def _flush(self) -> None:
        if self.rows:
            rows = [[*row, *[None] * (self.width - len(row))] for row in self.rows]
            schema = dict.fromkeys(column_ids(self.width), pl.String)
            self.batches.append(pl.DataFrame(rows, schema=schema, orient="row"))
            self.rows = []


class Page:
    """A parser target for lxml: collects the tables of a page, also nested ones, without building a tree."""

    def __init__(self, path: Path) -> None:
        self.grids: list[PageTable] = []
        self.title = ""
        self._path = path
        self._limits = limits()
        self._open: list[PageTable] = []
        self._within = ""
        self._cells = 0
        self._last = ""

    def read(self, parts: Iterable[bytes]) -> Self:
        parser: Any = etree.HTMLParser(target=cast("Any", self), encoding="utf-8")
        pending = 0
        for part in _mark_row_ends(parts):
            self._last = ""
            parser.feed(part)
            pending = 0 if self._last else pending + len(part)
            if pending > _PENDING_BYTES:
                raise InputError(TAG_NOT_CLOSED, path=self._path)
        parser.feed(f"<{_LAST_TAG}>".encode())
        if self._last != _LAST_TAG:
            raise InputError(PAGE_CUT_OFF, path=self._path)
        parser.close()
        return self

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._last = tag
        if tag == "table":
            if len(self._open) >= self._limits.depth or len(self.grids) >= _MAX_TABLES:
                raise InputError(TABLES_TOO_NESTED, path=self._path)
            self.grids.append(PageTable(self._open[-1] if self._open else None))
            self._open.append(self.grids[-1])
        elif tag == "title" or tag in _UNSHOWN:
            self._within = tag
        elif not self._open:
            return
        elif tag in ("td", "th"):
            self._begin_cell(attributes)
        elif tag == "tr":
            self._end_row()
            self._open[-1].cells = []
        elif _ROW_END_MARK in attributes:
            self._end_row()
        elif tag in _BREAKS and (texts := self._open[-1].texts) is not None:
            texts.append(_BREAK)

    def end(self, tag: str) -> None:
        if tag == self._within:
            self._within = ""
        elif not self._open:
            return
        elif tag in ("td", "th"):
            self._end_cell()
        elif tag == "tr":
            self._end_row()
        elif tag == "table":
            self._end_row()
            self._open.pop()

    def data(self, text: str) -> None:
        self._last = self._last or "text"
        if self._within:
            if self._within == "title" and not self.title:
                self.title = " ".join(text.split())[:60]
        elif self._open and (texts := self._open[-1].texts) is not None:
            texts.append(text)

    def close(self) -> None:
        """Do nothing, since the parser has ended all open elements."""

    def _begin_cell(self, attributes: Mapping[str, str]) -> None:
        self._end_cell()
        table = self._open[-1]
        table.cells = [] if table.cells is None else table.cells
        table.texts = []
        down, across = (_SPAN.match(attributes.get(name, "")) for name in ("rowspan", "colspan"))
        table.span = (
            min(max(int(down[1]), 1), _MAX_SPANNED_ROWS) if down else 1,
            min(max(int(across[1]), 1), self._limits.columns) if across else 1,
        )

    def _end_cell(self) -> None:
        table = self._open[-1]
        if table.texts is None or table.cells is None:
            return
        text = _AROUND_BREAK.sub("\n", _SPACES.sub(" ", "".join(table.texts))).strip(_EDGES)
        table.texts = None
        if len(text) > self._limits.text:
            raise self._beyond("text", gettext_noop("has a cell of more than {text:,} characters"))
        while len(table.cells) in table.reaching:
            table.cells.append(None)
        left, (down, across) = len(table.cells), table.span
        table.cells += [text or None, *[None] * (across - 1)]
        if down > 1:
            table.reaching |= dict.fromkeys(range(left, left + across), down)
        if (down > 1 or across > 1) and table.height < LOOK:
            table.merges.append((table.height, left, table.height + down - 1, left + across - 1))
        if len(table.cells) > self._limits.columns:
            raise self._beyond("columns", gettext_noop("has a table of more than {columns:,} columns"))

    def _end_row(self) -> None:
        self._end_cell()
        table = self._open[-1]
        if table.cells is None:
            return
        cells, table.cells = table.cells, None
        if table.reaching:
            table.reaching = {column: rows - 1 for column, rows in table.reaching.items() if rows > 1}
        table.add(cells)
        self._cells += len(cells) + 1
        if max(self._cells, table.height * table.width) > self._limits.cells:
            raise self._beyond("cells", gettext_noop("has more than {cells:,} cells"))

    def _beyond(self, limit: str, message: str) -> InputError:
        return beyond_limit(self._path, gettext(message, **{limit: getattr(self._limits, limit)}), limit)


def _mark_row_ends(parts: Iterable[bytes]) -> Iterator[bytes]:
    marked, rest = f"<br {_ROW_END_MARK}></tr".encode(), b""
    for part in parts:
        data = rest + part
        cut = data.rfind(b"<", max(len(data) - len(b"</tr"), 0))
        data, rest = (data[:cut], data[cut:]) if cut >= 0 else (data, b"")
        yield _ROW_END.sub(marked, data)
    yield rest


class HtmlVerbs(Verbs):
    """Web pages, which are only read."""

    def read(self, file: File, wanted: ReadOptions, _resources: ExitStack) -> Table:
        page = decode_file(
            file, wanted.encoding, lambda coding: Page(file.path).read(parts(file, replace(coding, bare_cr=False)))
        )
        grids = _join_tables([grid for grid in page.grids if any(any(row) for row in grid.top)])
        if not grids:
            title = gettext(" (its title is {title!r})", title=page.title) if page.title else ""
            raise InputError(PAGE_WITHOUT_TABLE, path=file.path, title=title)
        named = {f"table {number}": grid for number, grid in enumerate(grids, 1)}
        sheet = wanted_sheet(wanted)
        if sheet is not None and sheet not in named:
            raise UsageError(HTML_TABLE_MISSING, path=file.path, wanted=sheet, named=", ".join(map(repr, named)))
        chosen, others = _choose_table(file, {sheet: named[sheet]} if sheet else named)
        notes: tuple[str, ...] = ()
        if others:
            said = {"name": chosen.name, "names": ", ".join(map(repr, others)), "advice": advise_sheet(others[0])}
            notes = (Alert(gettext(_OTHERS_HOLD_NUMBERS, **said)),)
        return Table(
            chosen.frame.lazy(),
            chosen.headers,
            self.format,
            file.path.name if len(grids) == 1 else f"{file.path.name} [{chosen.name}]",
            file,
            notes=notes,
            above=chosen.header,
            titles=len(chosen.title_rows),
            title_rows=chosen.title_rows,
            rows=chosen.frame.height,
        )


def _join_tables(grids: list[PageTable]) -> list[PageTable]:
    """Join adjacent tables of equal width, since portals split long lists, and headers from lists."""
    joined: list[PageTable] = []
    for grid in grids:
        if joined and joined[-1].outer is grid.outer and joined[-1].width == grid.width > 1:
            joined[-1].append(grid)
        else:
            joined.append(grid)
    return joined


def _choose_table(file: File, grids: dict[str, PageTable]) -> tuple[Loaded, list[str]]:
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
