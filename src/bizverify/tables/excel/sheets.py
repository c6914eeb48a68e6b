"""Chooses a sheet of a workbook, finds its header and loads it: the part that may run in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify import business_number
from bizverify.errors import InputError, UsageError
from bizverify.tables.columns import has_role
from bizverify.tables.excel.grid import load_below, load_grid, top_rows
from bizverify.tables.heading import LOOK, Merge, find_heading, headless

if TYPE_CHECKING:
    from fastexcel import ExcelReader

_SAMPLE_ROWS: Final = 1000
_RIGHT_SHARE: Final = 0.9
_NUMBERS, _NO_HEADER, _HEADER_ONLY, _ANYTHING = 3, 2, 1, 0
HAS_NUMBERS: Final = _NO_HEADER
"""From this rank on, a table holds business numbers."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a sheet before it is loaded: ``merges`` in its own rows, of which ``first`` holds a value."""

    visible: bool
    table: bool = True
    merges: Sequence[Merge] = ()
    first: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A sheet as a frame (``c0``, ``c1``, …) under its headers.

    ``header``: rows from the first one that holds a value to the last line of the header, -1 without one. ``others``:
    names of further sheets that hold business numbers. ``below``: rows of the sheet behind the frame's last that hold
    white space, empty texts or errors only, as formulas filled down beyond the table do. ``title_rows``: the rows above
    the header, from the first that holds a value, as texts.
    """

    name: str
    frame: pl.DataFrame
    headers: tuple[str, ...]
    header: int
    others: tuple[str, ...] = ()
    below: int = 0
    title_rows: tuple[tuple[str | None, ...], ...] = ()

    @property
    def titles(self) -> int:
        """How many rows stand above the header."""
        return len(self.title_rows)


def load(
    data: Path, path: Path, wanted: str | None, facts: Mapping[str, Facts] | None, has_header: bool = True
) -> Loaded:
    """Load a sheet: the wanted one, else the first visible one that holds business numbers, else that is not empty.

    ``path`` is what messages call the file, ``facts`` what is known of its sheets (``None``: nothing). Raises
    :class:`InputError` and :class:`UsageError`; whatever happens inside the parser is an :class:`InputError`.
    """
    import fastexcel

    for library in ("fastexcel", "calamine"):  # they warn of every column without a value, of parts that are no sheets
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        book = fastexcel.read_excel(data)
        if facts is not None and book.sheet_names != [*facts]:  # a line break in a name, say
            what = "is a damaged workbook (the names of its sheets can be read in two ways)"
            raise InputError(f"{path}: {what}; save it again in Excel")
        if wanted is not None:
            return _load_wanted(book, path, wanted, facts or {}, has_header)
        return _choose_sheet(book, path, facts, has_header)
    except (fastexcel.FastExcelError, OSError) as error:
        raise _unreadable(path, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a Rust panic; its class cannot be imported
            raise
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: BaseException) -> InputError:
    what = (str(error).splitlines() or ["unknown"])[0]
    return InputError(f"{path}: is not a readable workbook ({what}); open it in Excel and save it again")


def _load_wanted(book: ExcelReader, path: Path, name: str, facts: Mapping[str, Facts], has_header: bool) -> Loaded:
    if name not in book.sheet_names:
        raise UsageError(f"{path}: has no sheet {name!r}; it has {', '.join(map(repr, book.sheet_names))}")
    if name in facts and not facts[name].table:
        raise UsageError(f"{path}: sheet {name!r} is a chart or a dialogue, not a table; choose another with `sheet=`")
    loaded = _load_with_header(book, path, name, facts.get(name, Facts(visible=True)), has_header, hidden=True)
    if loaded is None:
        raise InputError(f"{path}: sheet {name!r} is empty")
    return loaded


def _choose_sheet(book: ExcelReader, path: Path, facts: Mapping[str, Facts] | None, has_header: bool) -> Loaded:
    """The first visible sheet with business numbers, else with a header for them, else with anything."""
    best: Loaded | InputError | None = None
    highest, holding = -1, []
    known = {name: Facts(visible=True) for name in book.sheet_names} if facts is None else facts
    names = [name for name in book.sheet_names if name in known and known[name].visible and known[name].table]
    for name in names:
        found = _try_sheet(book, path, name, known[name], has_header, spare=highest == _NUMBERS)
        if found is None:
            continue
        fit = rank(found) if len(names) > 1 else _ANYTHING
        if fit >= HAS_NUMBERS:
            holding.append(name)
        if fit > highest:
            best, highest = found, fit
    if best is None:
        raise InputError(f"{path}: every visible sheet is empty; show the one that holds the table, or export it again")
    if isinstance(best, InputError):
        raise best
    return replace(best, others=tuple(name for name in holding if name != best.name))


def _try_sheet(
    book: ExcelReader, path: Path, name: str, facts: Facts, has_header: bool, *, spare: bool
) -> Loaded | InputError | None:
    """A sheet, or why it cannot be read as a table; ``None`` for one that is empty or hidden."""
    import fastexcel

    try:
        return _load_with_header(book, path, name, facts, has_header)
    except InputError as error:
        return error
    except fastexcel.FastExcelError:
        if spare:  # the table is found already: another sheet's damage does no harm
            return None
        raise


def rank(found: Loaded | InputError) -> int:
    """How well a sheet fits as the table of businesses."""
    if isinstance(found, InputError):
        return _NO_HEADER
    sample = found.frame.head(_SAMPLE_ROWS)
    titled = {f"c{place}" for place, header in enumerate(found.headers) if has_role(header, "b_no")}
    cells = [name for name, dtype in sample.schema.items() if dtype.is_numeric() or dtype == pl.String]
    long = sample.lazy().select(pl.col(cells).cast(pl.String)).unpivot(variable_name="id", value_name="cell")
    long = long.drop_nulls("cell").with_columns(digits=business_number.compact_expr(pl.col("cell")))
    right = business_number.checksum_expr(business_number.key_expr(pl.col("digits"))).fill_null(False).mean()
    columns = long.group_by("id").agg(pl.len(), pl.col("digits").is_not_null().mean(), right=right).collect()
    by_content = (pl.col("right") >= _RIGHT_SHARE) & (pl.col("len") >= 3)
    by_header = pl.col("id").is_in(list(titled)) & (pl.col("digits") > 0)
    if columns.select((by_content | by_header).any()).item():
        return _NUMBERS
    return _HEADER_ONLY if titled else _ANYTHING


def _load_with_header(
    book: ExcelReader, path: Path, name: str, facts: Facts, has_header: bool, *, hidden: bool = False
) -> Loaded | None:
    """A sheet with its header found: one parse where the header is its first row, another where it is not."""
    grid = load_grid(book, name)
    if not grid.names or not (grid.visible or hidden):
        return None
    top = list(top_rows(book, name, LOOK)) if grid.renamed else [grid.names, *_texts(grid.frame.head(LOOK - 1))]
    merges = [
        (up - facts.first, left - grid.left, down - facts.first, right - grid.left)
        for up, left, down, right in facts.merges
        if facts.first <= up and down - facts.first < LOOK and left >= grid.left
    ]
    called = f"{path} [{name}]"
    if not has_header and (found := headless(top, name=called)):
        grid = load_grid(book, name, headed=False)
        return Loaded(name, grid.frame, found.headers, -1, below=grid.height - grid.frame.height)
    heading = find_heading(top, merges, name=called)
    if heading.last:
        grid = load_below(book, name, grid, heading.last, facts.first, name=called)
    titles = tuple(top[: heading.first])
    below = grid.height - grid.frame.height
    return Loaded(name, grid.frame, heading.headers, heading.last, below=below, title_rows=titles)


def _texts(frame: pl.DataFrame) -> list[tuple[str | None, ...]]:
    """The rows of a frame as text; a header that is a number has no decimal point, whatever stands below it."""
    whole = pl.col(pl.Float64).cast(pl.String).str.strip_suffix(".0")
    return frame.with_columns(whole).cast(pl.String).rows()
