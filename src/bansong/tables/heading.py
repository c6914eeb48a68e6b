"""Finds a table's header among its first rows: below title rows, over one line or several."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import polars as pl

from bansong import business_number
from bansong.column_words import HEADERS
from bansong.errors import InputError, Problem
from bansong.schema import ADDED_COLUMNS
from bansong.tables.header_vocabulary import has_role, names_column
from bansong.translation import Option, gettext

TABLE_EMPTY: Final = Problem("files.table_empty", "{name}: is empty")
NUMBER_AS_HEADER: Final = Problem(
    "columns.number_as_header",
    "{name}: has no header, row {place} holds a number of ten digits already; give {parameter}, "
    "or put a row of headers above it",
)

LOOK: Final = 40
"""How many rows are looked at."""

Row = Sequence[str | None]
Merge = tuple[int, int, int, int]
"""First row, first column, last row, last column of merged cells; from 0, inclusive."""

_LINES: Final = 4
_LONGEST: Final = 100
_WIDE: Final = 1000
_NUMBER_HIT: Final = 3
_OUR_HEADERS: Final = "|".join(header for headers in HEADERS.values() for header in headers.values())
OURS: Final = re.compile(rf".*({_OUR_HEADERS})(_bv[0-9]*)?", flags=re.S)
"""A header that enrichment has added, whatever prefix or group label stands before it."""
_TITLE: Final = re.compile(r"[^:：(（\[]+[:：]\s*\S.*", flags=re.S)
"""``회사명 : 가나다상사``: a value behind what it is, as title rows have it."""
_NO_LABEL: Final = re.compile(r"[:：※(（]|^[\W\d_]*$|[0-9]{4}\s*[.\-/년]")


@dataclass(frozen=True, slots=True)
class Heading:
    """The header lines of a table: ``first`` to ``last`` among the given rows, and the header of each column.

    Without a header both are -1. A header of two lines is its group's label and its own: ``공급자 등록번호``. A blank
    one is an empty text.
    """

    first: int
    last: int
    headers: tuple[str, ...]


def headless(rows: Sequence[Row], *, name: str = "") -> Heading | None:
    """Return the heading of a table without one: no line, and ``#1``, ``#2``, … as its headers.

    ``None`` where the first row has the names of our columns: the output of an earlier run, which has a header.
    Raises :class:`InputError` where there is no row.
    """
    first = next((row for row in rows if any(map(_is_filled, row))), None)
    if first is None:
        raise InputError(TABLE_EMPTY, name=name or gettext("the table"))
    if sum(bool(cell and OURS.fullmatch(cell)) for cell in first) >= len(ADDED_COLUMNS):
        return None
    return Heading(-1, -1, tuple(f"#{place + 1}" for place in range(max(map(len, rows)))))


def headless_note(headers: Sequence[str]) -> str:
    """The note on a table that is read without a header."""
    called = (
        gettext("its columns are called {first} to {last}", first=headers[0], last=headers[-1])
        if len(headers) > 1
        else gettext("its column is called #1")
    )
    return gettext("read without a header: {called}, in the output too", called=called)


def find_heading(
    rows: Sequence[Row], merges: Collection[Merge] = (), *, name: str = "", blank_rows: int = 0
) -> Heading:
    """Find the header among the first rows of a table.

    It is the row with the most cells that name a role (the number's counts most; of equal rows the fuller one), else
    the first one that holds at least half as many cells as the fullest. It stands above the first row with a business
    number; what stands above the header are title rows. ``merges`` are the merged cells of a sheet, ``name`` is what
    messages call the table. Raises :class:`InputError` when there is no row or the first one that holds anything has a
    number of ten digits already.
    """
    rows = rows[:LOOK]
    counts = [sum(map(_is_filled, row)) for row in rows]
    if not any(counts):
        raise InputError(TABLE_EMPTY, name=name or gettext("the table"))
    numbered, certain = _rows_with_numbers(rows)
    data = next((place for place in certain if not _has_label(rows[place])), len(rows))
    free = [place for place in range(data) if counts[place] and place not in numbered]
    if not free:
        place = next(place for place, count in enumerate(counts) if count)
        raise InputError(
            NUMBER_AS_HEADER, name=name, place=blank_rows + place + 1, parameter=Option("has_header", False)
        )
    main = _main_line(rows, counts, free)
    first, last = _lines(rows, main, free, merges)
    return Heading(
        first,
        last,
        _headers(
            rows[first : last + 1], [(top - first, left, bottom - first, right) for top, left, bottom, right in merges]
        ),
    )


def _is_filled(cell: str | None) -> bool:
    return bool(cell) and not cell.isspace()  # type: ignore[union-attr]


@lru_cache(maxsize=4096)
def _score_cell(cell: str) -> int:
    if len(cell) > _LONGEST or not has_role(cell):
        return 0
    return _NUMBER_HIT if has_role(cell, "b_no") else 1


def _has_label(row: Row) -> bool:
    return any(_score_cell(cell) for cell in row[:_WIDE] if cell)


def _rows_with_numbers(rows: Sequence[Row]) -> tuple[set[int], list[int]]:
    """Rows with a cell of ten digits, and those of them (ascending) where such a cell is surely a business number.

    With thousands separators it is an amount: title rows hold some.
    """
    cells = [(place, cell) for place, row in enumerate(rows) for cell in row if cell and "," not in cell]
    frame = pl.DataFrame(cells, schema={"row": pl.Int64, "cell": pl.String}, orient="row")
    digits = business_number.compact_expr(pl.col("cell"))
    found = frame.select("row", digits.alias("digits"), business_number.is_valid_expr(pl.col("cell")).alias("valid"))
    ten = found.filter(pl.col("digits").is_not_null())
    sure = ten.filter(pl.col("valid") & ~pl.col("digits").str.starts_with("0"))  # 031-123-4567 is a telephone number
    return set(ten["row"]), sorted(set(sure["row"]))


def _main_line(rows: Sequence[Row], counts: Sequence[int], free: Sequence[int]) -> int:
    cells = {place: [cell for cell in rows[place][:_WIDE] if cell] for place in free}
    titles = {place: [cell for cell in cells[place] if _TITLE.fullmatch(cell)] for place in free}
    hits = {
        place: [hit for cell in cells[place] if cell not in titles[place] and (hit := _score_cell(cell))]
        for place in free
    }
    most = max(counts)
    labels = {place: counts[place] - len(titles[place]) for place in free}
    full = next((place for place in free if 2 * labels[place] >= most and (labels[place] > 1 or most == 1)), free[0])
    named = [place for place in free if hits[place] and (place <= full or len(hits[place]) > 1)]
    if not named:
        return full
    main = max(named, key=lambda place: (sum(hits[place]), counts[place]))
    if counts[main] == 1:  # "사업자번호 목록" is a title where the header 사업자번호 stands below it
        title = "".join(filter(None, rows[main]))
        below = [place for place in free if place > main and counts[place] == 1 and hits[place] == hits[main]]
        main = next((place for place in below if (text := "".join(filter(None, rows[place]))) in title != text), main)
    return main


def _lines(rows: Sequence[Row], main: int, free: Sequence[int], merges: Collection[Merge]) -> tuple[int, int]:
    first, last = _tied_lines(main, main, free, merges)
    above = next((place for place in reversed(free) if place < main), -1)
    if first == main and _is_group_line(rows, main, above, merges):
        first, last = _tied_lines(above, last, free, merges)
    below = next((place for place in free if place > main), -1)
    if last == main and (_is_sub_line(rows, main, below, merges) or _divides(rows, main, below)):
        last = below
    return (first, last) if last - first < _LINES else (main, main)


def _tied_lines(first: int, last: int, free: Sequence[int], merges: Collection[Merge]) -> tuple[int, int]:
    for top, _, bottom, _ in merges:
        if top < bottom and top <= last and bottom >= first and {top, bottom} <= set(free):
            first, last = min(first, top), max(last, bottom)
    return first, last


def _is_group_line(rows: Sequence[Row], main: int, above: int, merges: Collection[Merge]) -> bool:
    """Whether the row ``above`` holds labels for groups of the columns of ``main``, and not a title."""
    labels = [(place, cell) for place, cell in enumerate(rows[above]) if cell and _is_filled(cell)]
    if above < 0 or (above < main - 1 and not any(names_column(cell) for _, cell in labels)):
        return False
    if any(_NO_LABEL.search(cell) for _, cell in labels):
        return False
    begin = next(place for place, cell in enumerate(rows[main]) if _is_filled(cell))
    if any(top == bottom == above and left < right for top, left, bottom, right in merges):
        return len(labels) > 1 or labels[0][0] > begin
    alone, grouped = _headers([rows[main]], ()), _headers(rows[above : main + 1], ())
    return len(labels) > 1 and _unclear(grouped) < _unclear(alone)


def _is_sub_line(rows: Sequence[Row], main: int, below: int, merges: Collection[Merge]) -> bool:
    """Whether the row ``below`` divides columns that ``main`` merges, and holds nothing else."""
    if below != main + 1:
        return False
    merged = [(left, right) for top, left, bottom, right in merges if top == bottom == main and left < right]
    cells = [(place, cell) for place, cell in enumerate(rows[below]) if cell and _is_filled(cell)]
    return len(cells) > 1 and all(
        any(left <= place <= right for left, right in merged) and not _NO_LABEL.search(cell) for place, cell in cells
    )


def _divides(rows: Sequence[Row], main: int, below: int) -> bool:
    """Whether the row ``below`` has headers for columns that ``main`` leaves blank: a file without merged cells."""
    if below < 0:
        return False
    cells = [(place, cell) for place, cell in enumerate(rows[below][:_WIDE]) if cell and _is_filled(cell)]
    blank = [cell for place, cell in cells if place >= len(rows[main]) or not _is_filled(rows[main][place])]
    named = [cell for _, cell in cells if names_column(cell)]
    alone, divided = _headers([rows[main]], ()), _headers(rows[main : below + 1], ())
    return (
        any(map(names_column, blank))
        and 2 * len(named) > len(cells) > 1
        and not any(_NO_LABEL.search(cell) for _, cell in cells)
        and _unclear(divided) < _unclear(alone)
    )


def _unclear(headers: Sequence[str]) -> int:
    """The number of headers that are blank or repeated."""
    return len(headers) - len({header for header in headers if header})


def _headers(lines: Sequence[Row], merges: Collection[Merge]) -> tuple[str, ...]:
    width = max(map(len, lines))
    padded = [[*line, *[None] * (width - len(line))] for line in lines]
    own = [cell or "" for cell in padded[-1]]
    labels = [_spread_labels(line, place, padded[place + 1 :], merges) for place, line in enumerate(padded[:-1])]
    return tuple(
        _join_labels([label[column] for label in labels], own[column]) if labels else own[column]
        for column in range(width)
    )


def _join_labels(labels: Sequence[str], own: str) -> str:
    if own and OURS.fullmatch(own):
        return own
    parts = list(dict.fromkeys(" ".join(part.split()) for part in [*labels, own] if _is_filled(part)))
    return own if parts == [" ".join(own.split())] else " ".join(parts)


def _spread_labels(line: Row, place: int, below: Sequence[Row], merges: Collection[Merge]) -> list[str]:
    """A line's labels, each also over the columns of its group: its merged cells', or those up to the next label."""
    labels = [cell or "" if _is_filled(cell) else "" for cell in line]
    across = [(left, right) for top, left, bottom, right in merges if top <= place <= bottom and left < right]
    if across:
        for left, right in across:
            labels[left : right + 1] = [labels[left]] * len(labels[left : right + 1])
        return labels
    down = {left for top, left, bottom, _ in merges if top <= place < bottom}
    spread, label = list(labels), ""
    for column, own in enumerate(labels):
        label = own or ("" if column in down else label)
        if any(_is_filled(row[column]) for row in below):
            spread[column] = label
    return spread
