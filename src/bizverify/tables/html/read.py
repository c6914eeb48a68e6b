"""Web pages → tables: the table that holds business numbers, its header found below its title rows."""

from __future__ import annotations

from dataclasses import replace

from bizverify.errors import InputError, UsageError
from bizverify.tables.compression import File
from bizverify.tables.csv.read import decode_file
from bizverify.tables.csv.text import Coding, parts
from bizverify.tables.excel.sheets import HAS_NUMBERS, Loaded, rank
from bizverify.tables.heading import find_heading
from bizverify.tables.html.page import Page, PageTable
from bizverify.tables.table import Table


def read(file: File, encoding: str | None, wanted: str | None) -> Table:
    """Open a table of a web page: the wanted one (``table 2``), else the first one that holds business numbers.

    Every cell is text, as the page shows it. Tables of equal width that follow one another are one, as portals make
    them of a long list or of a header apart from its rows. Raises :class:`InputError`; :class:`UsageError` for a
    missing table.
    """
    page = decode_file(file, encoding, lambda coding: _parse_page(file, coding))
    grids = _join_tables([grid for grid in page.grids if any(any(row) for row in grid.top)])
    if not grids:
        title = f" (its title is {page.title!r})" if page.title else ""
        raise InputError(
            f"{file.path}: is a web page without a table{title}, such as a portal's login or error page, or the frame "
            "of a workbook saved as a web page; open it in Excel or a browser, and save its table as .xlsx"
        )
    named = {f"table {number}": grid for number, grid in enumerate(grids, 1)}
    if wanted is not None and wanted not in named:
        raise UsageError(f"{file.path}: has no {wanted!r}; it has {', '.join(map(repr, named))}")
    chosen, others = _choose_table(file, {wanted: named[wanted]} if wanted else named)
    notes = []
    if others:
        names = ", ".join(map(repr, others))
        notes.append(
            f"business numbers stand in {names} of the page too; this is {chosen.name!r}, `sheet=` chooses another"
        )
    return Table(
        chosen.frame.lazy(),
        chosen.headers,
        "html",
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
