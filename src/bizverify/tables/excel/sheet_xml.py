"""A worksheet's XML, taken apart at its rows by polars; cells are put into rows, all else stays byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bizverify.tables.excel.cells import column_letter, column_number
from bizverify.tables.excel.rows import CUT, PART, split_rows, unusual
from bizverify.tables.excel.xml_edit import Element, elements_of

_FEW: Final = 2_000
_LIKELY: Final = 3
"""So many columns are asked one by one whether they are the last that holds anything."""


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
    def parse(cls, pieces: Iterable[bytes], *, cells: bool = True) -> SheetXml:
        """Take a sheet apart; raise :class:`OutputError` for XML that cannot be spliced safely.

        Without ``cells``, only its rows are looked at, and ``columns`` is empty.
        """
        parted = split_rows(pieces, cells=cells)
        around, cut = parted.head + parted.tail, len(parted.head)
        elements = elements_of(around, PART)
        if not any((e.name, e.depth, e.inner) == ("sheetData", 1, cut) for e in elements):
            raise unusual("its XML is written in an unusual way")
        rows, cell = parted.rows(), parted.cell()
        columns = parted.columns(cell) if cells else []
        return cls(around, cut, elements, rows, parted.rest, cell, columns)

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
        raise unusual("it holds no values")

    def last_row(self) -> int:
        """The last row that holds a value: where reading ends."""
        for stop in range(self.rows.height, 0, -_FEW):
            found = self._rows_with_values(self.rows.slice(max(0, stop - _FEW), min(stop, _FEW)))
            if found.height:
                return int(found["r"][-1])
        raise unusual("it holds no values")

    def first_column(self) -> int:
        """The first column (from 1) that holds a value: where reading begins."""
        return min(map(column_number, self._rows_with_values(self.rows)["letters"].unique()))

    def last_column(self, first: int, last: int) -> int:
        """The last column (from 1) that holds anything, a value or a formula, in rows ``first`` to ``last``."""
        rows = self.between(first, last)
        for number in sorted(self.columns, reverse=True)[:_LIKELY]:
            if self.holds(number, first, last):
                return number
        filled = rows["xml"].str.extract_all(rf'{self.cell}[A-Z]+[0-9]+"(?:[^>]*[^>/])?>').explode().drop_nulls()
        letters = filled.str.extract(rf"{self.cell}([A-Z]+)").unique()
        return max(map(column_number, letters), default=0)

    def holds(self, column: int, first: int, last: int) -> bool:
        """Whether a column holds anything, a value or a formula, in rows ``first`` to ``last``."""
        if column not in self.columns or last < first:
            return False
        filled = rf'{self.cell}{column_letter(column)}[0-9]+"(?:[^>]*[^>/])?>'
        return bool(self.between(first, last)["xml"].str.contains(filled).any())

    def styles(self, column: int, first: int, last: int) -> pl.Series:
        """The style of a column's cells in rows ``first`` to ``last``, one for each (String, null for none)."""
        rows, letters = self.between(first, last), column_letter(column)
        tag = rows["xml"].str.extract(rf'({self.cell}{letters}[0-9]+"[^>]*)>')
        style = tag.str.extract(r'\ss="([0-9]+)"').alias("style")
        found = rows.select("r", style)
        if rows.height < last + 1 - first:
            numbers = pl.DataFrame({"r": pl.int_range(first, last + 1, eager=True)})
            found = numbers.join(found, on="r", how="left", maintain_order="left")
        return found["style"]

    def cut_rows(self, rows: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Cut rows before the first cell of columns ``first`` to ``last`` and behind their last.

        Returns ``r`` and the pieces ``before`` (with all that stands before the row), ``within`` and ``behind``.
        Raises :class:`OutputError` where cells do not stand in the order of their columns.
        """
        cut = pl.col("xml").str.replace_all(rf"({self.cell})", CUT + "${1}").str.split(CUT)
        pieces = rows.select("r", cut.alias("piece")).explode("piece")
        letters = pl.col("piece").str.extract(rf"^{self.cell}([A-Z]+)")
        number = {letter: column_number(letter) for letter in pieces.select(letters.unique()).to_series().drop_nulls()}
        pieces = pieces.with_columns(letters.replace_strict(number, default=0, return_dtype=pl.Int32).alias("column"))
        same_row = pl.col("r") == pl.col("r").shift(1)
        if pieces.filter(same_row & (pl.col("column") <= pl.col("column").shift(1))).height:
            raise unusual("the cells of its rows stand in another order than their columns")
        place, piece = pl.col("column"), pl.col("piece")
        return pieces.group_by("r", maintain_order=True).agg(
            piece.filter(place < first).str.join("").alias("before"),
            piece.filter(place.is_between(first, last)).str.join("").alias("within"),
            piece.filter(place > last).str.join("").alias("behind"),
        )

    def _rows_with_values(self, rows: pl.DataFrame) -> pl.DataFrame:
        """``r`` and ``letters``: the rows that hold a value, and the column of the first.

        A formula without a stored result is no value: the reader does not see it either; an empty text as its result
        is one.
        """
        p, xml = self.prefix, pl.col("xml")
        formula = rf"(?:<{p}f[^>]*?(?:/>|>[^<]*</{p}f>))?"
        nothing = rf"\s*(?:<{p}v>\s*</{p}v>|<{p}v\s*/>)"
        valued = (
            xml.str.replace_all(rf'(?s)(<{p}c\s[^>]*?\bt="str"[^>]*?>\s*{formula}){nothing}', f"${{1}}<{p}v>x</{p}v>")
            .str.replace_all(rf"<{p}c(?:\s[^>]*?)?/>", "")
            .str.replace_all(rf"(?s)<{p}c(?:\s[^>]*?)?>\s*{formula}(?:{nothing})?\s*</{p}c>", "")
        )
        return rows.select("r", valued.str.extract(rf"{self.cell}([A-Z]+)").alias("letters")).drop_nulls("letters")
