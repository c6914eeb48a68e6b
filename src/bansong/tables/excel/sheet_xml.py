"""Reads a worksheet's XML: cut at its rows by polars, block by block; cells are put into rows, all else stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain
from typing import Final

import polars as pl

from bansong.errors import OutputError, Problem
from bansong.tables.excel.cells import MAX_COLUMNS, Area, column_letter, column_number
from bansong.tables.excel.xml_edit import Element, elements_of, refuse_encoding
from bansong.translation import gettext, gettext_noop

SHEET_NOT_EXTENSIBLE: Final = Problem(
    "excel.sheet_not_extensible",
    "the workbook cannot be extended, {why}; write another file, e.g. `output='OUT.csv'`, or a new .xlsx from it",
)

PART: Final = gettext_noop("the part of its sheet")
CUT: Final = "\x01"
"""Put where a row is to be cut; XML cannot hold it."""
_ATTRIBUTE: Final = r"""\s+[^\s=>"'/]+\s*=\s*(?:"[^"]*"|'[^']*')"""
"""An attribute as XML has it: its value may hold ``>`` and ``/``."""
_REFERENCE: Final = rf"""(?:{_ATTRIBUTE})*?\s+r\s*=\s*["']"""
"""What stands between the name of a row or a cell and its reference."""
_REST: Final = rf"""["'](?:{_ATTRIBUTE})*\s*"""
"""What stands between a cell's reference and the end of its tag."""
_FILLED: Final = rf"{_REST}>\s*<[^/]"
"""What stands between a cell's reference and its content; lxml writes an empty cell as ``<c …></c>``."""
_USUAL: Final = 'c r="'
"""How cells mostly begin: their reference comes first."""
_NO_LETTER: Final = r"[^\s\S]"
_FEW: Final = 2_000
_LIKELY: Final = 3
"""So many columns are asked one by one whether they are the last that holds anything."""


@dataclass(frozen=True)
class _Block:
    """Rows (``xml`` and ``end``), and what stands behind the last.

    ``usual``: whether all its cells begin in the usual way (``None``: not looked at). ``references``: the first
    characters behind each beginning, each once.
    """

    rows: pl.DataFrame
    rest: str
    usual: bool | None
    references: pl.Series


@dataclass(frozen=True)
class Parted:
    """A sheet's XML: ``head`` through the tag ``<sheetData>``, rows in blocks, ``rest`` and ``tail`` behind them."""

    head: bytes
    prefix: str
    blocks: list[_Block]
    rest: str
    tail: bytes

    def rows(self) -> pl.DataFrame:
        """All rows with their numbers (see :class:`SheetXml`).

        Raises :class:`OutputError` where rows carry no numbers or do not stand in order.
        """
        if not self.blocks:
            raise unusual(gettext("it holds no rows"))
        p, rows = self.prefix, pl.concat(block.rows for block in self.blocks)
        number = rows["xml"].str.extract(rf'^<{p}row r="([0-9]+)"')
        if number.null_count():
            number = rows["xml"].str.extract(rf"""^\s*<{p}row{_REFERENCE}([0-9]+)["']""")
        if number.null_count() or self.rest.strip():
            raise unusual(gettext("its rows carry no references"))
        number = number.cast(pl.Int64).alias("r")
        if not (number.diff().drop_nulls() > 0).all():
            raise unusual(gettext("its rows do not stand in order"))
        return rows.insert_column(0, number)

    def cell(self) -> str:
        """A pattern for the beginnings of all cells; raise :class:`OutputError` where some carry no reference."""
        if all(block.usual for block in self.blocks):
            return f"<{self.prefix}{_USUAL}"
        general = f"<{self.prefix}c{_REFERENCE}"
        if any(block.usual is None for block in self.blocks):
            return general
        texts = [block.rows["xml"] for block in self.blocks]
        cells = sum(text.str.count_matches(rf"<{self.prefix}c[\s/>]").sum() for text in texts)
        if cells != sum(text.str.count_matches(rf"{general}[A-Z]+[0-9]").sum() for text in texts):
            raise unusual(gettext("its rows or cells carry no references"))
        return general

    def columns(self, cell: str) -> list[int]:
        """The numbers of the columns that have cells."""
        starts = [block.references for block in self.blocks]
        if not all(block.usual for block in self.blocks):
            texts = [block.rows["xml"].str.join("").str.replace_all(cell, CUT) for block in self.blocks]
            starts = [_references(text.str.split(CUT).explode()) for text in texts]
        letters = pl.concat(starts).unique().str.extract("^([A-Z]+)").unique()
        return sorted(map(column_number, letters.drop_nulls()))


def split_rows(pieces: Iterable[bytes], *, cells: bool = True) -> Parted:
    """Cut a sheet's XML, given in pieces of any size, at its rows; nothing of it is lost.

    ``cells``: whether :meth:`Parted.cell` and :meth:`Parted.columns` will be asked.
    Raises :class:`OutputError` for XML that cannot be cut safely.
    """
    pieces = iter(pieces)
    head, p, data = _head(pieces)
    end, close, stop = f"</{p}row>".encode(), f"</{p}sheetData".encode(), -1
    with ThreadPoolExecutor(2) as pool:
        cut = []
        for piece in chain([b""], pieces):
            data += piece
            if stop < 0:
                stop = data.find(close)
                place = data.rfind(end, 0, stop if stop >= 0 else len(data)) + len(end)
                if place >= len(end):
                    cut.append(pool.submit(copy_context().run, _cut, data[:place], p, cells))
                    data, stop = data[place:], max(stop - place, -1)
        if stop < 0:
            raise unusual(gettext("its XML is written in an unusual way"))
        cut.append(pool.submit(copy_context().run, _cut, data[:stop], p, cells))
        blocks = [block.result() for block in cut]
    if any(block.rest for block in blocks[:-1]):
        raise unusual(gettext("its XML is written in an unusual way"))
    return Parted(head, p, [block for block in blocks if block.rows.height], blocks[-1].rest, data[stop:])


def unusual(why: str) -> OutputError:
    """The error for a sheet that cannot be spliced."""
    return OutputError(SHEET_NOT_EXTENSIBLE, why=why)


def encode_rows(frame: pl.DataFrame, *columns: str) -> bytes:
    """The columns of a frame's rows, one behind the other, as UTF-8."""
    whole = frame.select(pl.concat_str(*columns).str.join("").cast(pl.Binary)).item()
    assert isinstance(whole, bytes)  # noqa: S101 - Binary
    return whole


def _head(pieces: Iterator[bytes]) -> tuple[bytes, str, bytes]:
    """The bytes before the rows, the prefix of the sheet's elements, and the bytes read beyond."""
    data = b""
    for piece in pieces:
        data += piece
        found = re.search(rb"<((?:\w+:)?)sheetData\s*>", data)
        if found:
            refuse_encoding(data, PART)
            return data[: found.end()], found.group(1).decode(), data[found.end() :]
    elements_of(data, gettext(PART))
    raise unusual(gettext("it holds no rows, or they are written in an unusual way"))


def _cut(data: bytes, p: str, cells: bool) -> _Block:
    for sign in (b"!", b"?"):  # a single character is found ten times as fast as two
        if sign in data and b"<" + sign in data:
            raise unusual(gettext("its rows hold comments or other marks"))
    text = pl.Series("xml", [data], dtype=pl.Binary).cast(pl.String, strict=False)
    if text.null_count():
        raise unusual(gettext("it holds bytes that are not UTF-8"))
    rows, rest = _rows(text, p)
    if not cells:
        return _Block(rows, rest, None, pl.Series(dtype=pl.String))
    starts = text.str.split(f"<{p}{_USUAL}").explode()
    usual = not starts.str.contains(f"<{p}c", literal=True).any() or (
        text.str.count_matches(rf"<{p}c[\s/>]")[0] == len(starts) - 1
    )
    return _Block(rows, rest, usual, _references(starts))


def _rows(text: pl.Series, p: str) -> tuple[pl.DataFrame, str]:
    end = f"</{p}row>"
    rows = text.str.split(end).explode()
    whole, rest = rows[:-1], rows[-1]
    if not rest.strip() and (whole.str.count_matches(f"<{p}row", literal=True) == 1).all():
        return whole.to_frame().with_columns(end=pl.lit(end)), rest
    whole = text.str.extract_all(rf"(?s)\s*<{p}row(?:{_ATTRIBUTE})*\s*(?:/>|>.*?</{p}row\s*>)").explode().drop_nulls()
    joined = whole.str.join("")[0]
    if not text[0].startswith(joined):
        raise unusual(gettext("its XML is written in an unusual way"))
    ends = pl.col("xml").str.extract(rf"(/>|</{p}row\s*>)$")  # a row without cells is closed in itself
    frame = whole.to_frame().with_columns(end=ends).with_columns(pl.col("xml").str.strip_suffix(pl.col("end")))
    return frame, text[0][len(joined) :]


def _references(starts: pl.Series) -> pl.Series:
    first = starts[1:].cast(pl.Binary).bin.slice(0, 4).unique()
    return first.cast(pl.String, strict=False)


@dataclass(frozen=True)
class SheetXml:
    """A worksheet's XML. Put together again, its pieces are its bytes.

    ``around``: all but the rows, which stand at ``cut``; ``elements`` are its elements. ``rows``: ``r`` (Int64, the
    row's number), ``xml`` (String, the row without its end, with what stands before it) and ``end`` (String: its end
    tag, or ``/>``), ascending. ``rest``: what stands behind the last row. ``cell``: a pattern for the beginning of a
    cell, up to the letters of its column. ``columns``: the numbers of the columns that have cells, blank ones too.
    """

    around: bytes
    cut: int
    elements: Sequence[Element]
    rows: pl.DataFrame
    rest: str
    cell: str
    columns: Sequence[int]

    @classmethod
    def parse(cls, pieces: Iterable[bytes]) -> SheetXml:
        """Take a sheet apart; raise :class:`OutputError` for XML that cannot be spliced safely."""
        parted = split_rows(pieces)
        around, cut = parted.head + parted.tail, len(parted.head)
        elements = elements_of(around, gettext(PART))
        if not any((e.name, e.depth, e.inner) == ("sheetData", 1, cut) for e in elements):
            raise unusual(gettext("its XML is written in an unusual way"))
        rows, cell = parted.rows(), parted.cell()
        return cls(around, cut, elements, rows, parted.rest, cell, parted.columns(cell))

    @property
    def prefix(self) -> str:
        """The prefix of the sheet's elements with its colon, mostly none."""
        return self.elements[0].prefix

    def between(self, first: int, last: int) -> pl.DataFrame:
        """The rows with the numbers ``first`` to ``last``."""
        start, stop = (int(self.rows["r"].search_sorted(number)) for number in (first, last + 1))
        return self.rows.slice(start, stop - start)

    def first_row(self) -> int:
        """The first row that holds a value: where reading begins."""
        for start in range(0, self.rows.height, _FEW):
            found = self._rows_with_values(self.rows.slice(start, _FEW))
            if found.height:
                return int(found["r"][0])
        raise unusual(gettext("it holds no values"))

    def last_row(self) -> int:
        """The last row that holds a value: where reading ends."""
        for stop in range(self.rows.height, 0, -_FEW):
            found = self._rows_with_values(self.rows.slice(max(0, stop - _FEW), min(stop, _FEW)))
            if found.height:
                return int(found["r"][-1])
        raise unusual(gettext("it holds no values"))

    def first_column(self) -> int:
        """The first column (from 1) that holds a value: where reading begins."""
        least, leftmost = MAX_COLUMNS + 1, min(self.columns, default=0)  # no row has a cell before the leftmost
        for start in range(0, self.rows.height, _FEW):
            found = self._rows_with_values(self.rows.slice(start, _FEW))["letters"].unique()
            least = min(least, *map(column_number, found))
            if least == leftmost:
                break
        return least

    def last_column(self, first: int, last: int) -> int:
        """The last column (from 1) that holds anything, a value or a formula, in rows ``first`` to ``last``."""
        rows = self.between(first, last)
        for number in sorted(self.columns, reverse=True)[:_LIKELY]:
            if self.holds(number, first, last):
                return number
        filled = rows["xml"].str.extract_all(rf"{self.cell}[A-Z]+[0-9]+{_FILLED}").explode().drop_nulls()
        letters = filled.str.extract(rf"{self.cell}([A-Z]+)").unique()
        return max(map(column_number, letters), default=0)

    def holds(self, column: int, first: int, last: int) -> bool:
        """Whether a column holds anything, a value or a formula, in rows ``first`` to ``last``."""
        if column not in self.columns or last < first:
            return False
        filled = rf"{self.cell}{column_letter(column)}[0-9]+{_FILLED}"
        return bool(self.between(first, last)["xml"].str.contains(filled).any())

    def array_areas(self, first: int, last: int) -> list[Area]:
        """The ranges of array formulas that reach into rows ``first`` to ``last``; their cells may not be there."""
        array = rf"""<{self.prefix}f(?:{_ATTRIBUTE})*?\s+t\s*=\s*["'](?:array|dataTable)["'](?:{_ATTRIBUTE})*"""
        tags = self.between(1, last)["xml"].str.extract_all(array).explode().drop_nulls()
        references = tags.str.extract(r"""\sref\s*=\s*["']([^"']+)""").unique().drop_nulls()
        return [area for text in references if (area := Area.parse(text)) and area.bottom >= first]

    def styles(self, column: int, first: int, last: int) -> pl.Series:
        """The style of a column's cells in rows ``first`` to ``last``, one for each (String, null for none)."""
        rows, letters = self.between(first, last), column_letter(column)
        tag = rows["xml"].str.extract(f"({self.cell}{letters}[0-9]+{_REST})")
        style = tag.str.extract(rf"""^<[^\s]+(?:{_ATTRIBUTE})*?\s+s\s*=\s*["']([0-9]+)""").alias("style")
        found = rows.select("r", style)
        if rows.height < last + 1 - first:
            numbers = pl.DataFrame({"r": pl.int_range(first, last + 1, eager=True)})
            found = numbers.join(found, on="r", how="left", maintain_order="left")
        return found["style"]

    def cut_rows(self, rows: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Cut rows before the first cell of columns ``first`` to ``last`` and behind their last.

        Returns ``r`` and the pieces ``before`` (with all that stands before the row), ``within`` and ``behind``.
        The cells stand in order (see :meth:`refuse_disorder`).
        """
        xml = pl.col("xml")
        start, stop = (xml.str.find(self._cells(number)) for number in (first, last + 1))
        size, data = xml.str.len_bytes(), xml.cast(pl.Binary)
        at = rows.select("r", data, start=start.fill_null(size), stop=stop.fill_null(size))
        start, stop = pl.col("start"), pl.col("stop")
        return at.select(
            "r",
            before=xml.bin.slice(0, start).cast(pl.String),
            within=xml.bin.slice(start, stop - start).cast(pl.String),
            behind=xml.bin.slice(stop).cast(pl.String),
        )

    def refuse_disorder(self, rows: pl.DataFrame) -> None:
        """Raise :class:`OutputError` where cells do not stand in the order of their columns."""
        starts = pl.col("xml").str.extract_all(f"{self.cell}[A-Z]+").list.join(CUT)
        orders = rows.select(starts).unique().with_row_index("order")  # most rows have the same cells
        cells = orders.with_columns(pl.col("xml").str.split(CUT)).explode("xml")
        number = {column_letter(number): number for number in self.columns}
        column = pl.col("xml").str.extract("([A-Z]+)$").replace_strict(number, default=0, return_dtype=pl.Int32)
        if cells.select((column.diff().over("order") <= 0).any()).item():
            raise unusual(gettext("the cells of its rows stand in another order than their columns"))

    def _cells(self, first: int) -> str:
        letters = [column_letter(number) for number in self.columns if number >= first]
        return rf"{self.cell}(?:{'|'.join(letters or [_NO_LETTER])})[0-9]"

    def _rows_with_values(self, rows: pl.DataFrame) -> pl.DataFrame:
        """``r`` and ``letters``: the rows that hold a value, and the column of the first.

        A formula without a stored result is no value: the reader does not see it either; an empty text as its result
        is one.
        """
        p, xml, rest = self.prefix, pl.col("xml"), rf"(?:{_ATTRIBUTE})*\s*"
        formula = rf"(?:<{p}f{rest}(?:/>|>[^<]*</{p}f\s*>))?"
        nothing = rf"\s*(?:<{p}v{rest}>\s*</{p}v\s*>|<{p}v{rest}/>)"
        text = rf"""<{p}c(?:{_ATTRIBUTE})*?\s+t\s*=\s*["']str["']{rest}>"""
        valued = (
            xml.str.replace_all(rf"({text}\s*{formula}){nothing}", f"${{1}}<{p}v>x</{p}v>")
            .str.replace_all(rf"<{p}c{rest}/>", "")
            .str.replace_all(rf"<{p}c{rest}>\s*{formula}(?:{nothing})?\s*</{p}c\s*>", "")
        )
        return rows.select("r", valued.str.extract(rf"{self.cell}([A-Z]+)").alias("letters")).drop_nulls("letters")
