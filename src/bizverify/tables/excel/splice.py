"""Cells on their way into a sheet, and the proof that nothing but they came into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from bizverify.errors import AccountingError
from bizverify.tables.excel.cells import Style, render_rows
from bizverify.tables.excel.rows import encode_rows, split_rows, unusual
from bizverify.tables.excel.sheet_xml import SheetXml
from bizverify.tables.excel.xml_edit import elements_of

_BLOCK: Final = 20_000
_FORMULA: Final = r"<(?:\w+:)?f[\s/>]"


@dataclass(frozen=True)
class Splice:
    """What goes where: ``titles`` and ``frame`` into ``columns`` (name → column of the sheet), from row ``header`` on.

    ``head`` and ``tail`` are what will stand around the rows. ``crossing``: something stands in the columns already, or
    behind them; else the cells are put to the end of their rows. ``styles`` may refer to columns of ``frame``.
    """

    sheet: SheetXml
    head: bytes
    tail: bytes
    titles: pl.DataFrame
    frame: pl.DataFrame
    columns: Mapping[str, int]
    header: int
    styles: Mapping[str, Style]
    title_styles: Mapping[str, Style]
    crossing: bool

    @property
    def bottom(self) -> int:
        """The last row that gets cells."""
        return self.header + self.frame.height

    def pieces(self) -> Iterator[bytes]:
        """The finished sheet in pieces, made as they are asked for."""
        rows = self.sheet.rows
        yield self.head + encode_rows(rows.filter(pl.col("r") < self.header), "xml", "end")
        yield self._splice_rows(render_rows(self.titles, self.columns, self.title_styles, self.header))
        for start in range(0, self.frame.height, _BLOCK):
            block, first = self.frame.slice(start, _BLOCK), self.header + 1 + start
            yield self._splice_rows(render_rows(block, self.columns, self.styles, first, blanks=True))
        yield encode_rows(rows.filter(pl.col("r") > self.bottom), "xml", "end") + self.sheet.rest.encode() + self.tail

    def prove(self, pieces: Iterable[bytes]) -> None:
        """Take the cells out of the finished sheet again and hold what is left against what was there.

        Raises :class:`AccountingError` unless that is the same, byte for byte, and the cells are as many as there were
        values, each in its row.
        """
        elements_of(self.head + self.tail, "its new sheet")
        new = split_rows(pieces, cells=False)
        rows, old = new.rows(), self.sheet
        outside = ~pl.col("r").is_between(self.header, self.bottom)
        if not (
            (new.head, new.rest, new.tail) == (self.head, old.rest, self.tail)
            and rows.filter(outside).equals(old.rows.filter(outside))
            and self._holds(self._cut_rows(replace(old, rows=rows), self.header, self.bottom))
        ):
            raise AccountingError(
                "nothing was published: the workbook would not be what it was but for the new cells; "
                "write another format, `output='OUT.csv'`"
            )

    def _holds(self, found: pl.DataFrame) -> bool:
        """Whether rows of a finished sheet, taken apart, are the old ones with all the cells in them."""
        old = self._cut_rows(self.sheet, self.header, self.bottom)
        if found["r"].equals(old["r"]):
            both = pl.concat([found, old.drop("r").rename(lambda name: f"{name} old")], how="horizontal")
        else:
            if old.join(found, on="r", how="anti").height:
                return False
            both = found.join(old, on="r", how="left", maintain_order="left", suffix=" old")
            both = both.with_columns(
                pl.col("before old").fill_null(self._row_start()), pl.col("behind old").fill_null("")
            )
        before, stood = pl.col("before"), pl.col("before old")
        if not self.crossing:  # the cells are at the end of what was before them
            same = both.select(before.str.starts_with(stood)).to_series()
            both = both.with_columns(within=before.str.strip_prefix(stood))
        else:
            same = both.select((before == stood) & (pl.col("behind") == pl.col("behind old"))).to_series()
        within, p = pl.col("within"), self.sheet.prefix
        row = within.str.extract(rf'^<{p}c r="[A-Z]+([0-9]+)"')
        placed, cells, blanks = both.select(
            placed=((row == pl.col("r").cast(pl.String)) | (within == "")).all(),
            cells=within.str.count_matches(f"<{p}c", literal=True).sum(),
            blanks=within.str.count_matches('"/>', literal=True).sum(),
        ).row(0)
        frames = (self.titles, self.frame)
        values = sum(frame.height - frame[name].null_count() for frame in frames for name in self.columns)
        return bool(same.all() and placed and cells - blanks == values)

    def _splice_rows(self, new: pl.DataFrame) -> bytes:
        """Rows with their new cells; rows that did not exist are made. ``new``: as :func:`rendered` returns it."""
        first, last = int(new["r"][0]), int(new["r"][-1])
        p = self.sheet.prefix
        if p:
            new = new.with_columns(pl.col("cells").str.replace_all(r"<(/?)(c|is|t|v)\b", f"<${{1}}{p}${{2}}"))
        rows = self._cut_rows(self.sheet, first, last)
        if self.crossing and rows["within"].str.contains(_FORMULA).any():
            raise unusual("formulas stand in the columns of the earlier enrichment")
        end = pl.lit(f"</{p}row>").alias("end")
        if rows["r"].equals(new["r"]):
            return encode_rows(rows.with_columns(new["cells"], end), "before", "cells", "behind", "end")
        rows = new.join(rows, on="r", how="left", maintain_order="left")
        rows = rows.filter(pl.col("before").is_not_null() | (pl.col("cells") != ""))  # no row is made for nothing
        rows = rows.with_columns(pl.col("before").fill_null(self._row_start()), pl.col("behind").fill_null(""), end)
        return encode_rows(rows, "before", "cells", "behind", "end")

    def _row_start(self) -> pl.Expr:
        """The beginning of a row that did not exist."""
        return pl.concat_str(pl.lit(f'<{self.sheet.prefix}row r="'), pl.col("r").cast(pl.String), pl.lit('">'))

    def _cut_rows(self, sheet: SheetXml, first: int, last: int) -> pl.DataFrame:
        """Rows ``first`` to ``last``: ``r``, and what stands ``before``, ``within`` and ``behind`` the new columns."""
        rows = sheet.between(first, last)
        if (rows["end"] == "/>").any():
            closed = pl.when(pl.col("end") == "/>").then(pl.concat_str("xml", pl.lit(">"))).otherwise("xml")
            rows = rows.with_columns(closed.alias("xml"))
        if self.crossing:
            return sheet.cut_rows(rows, min(self.columns.values()), max(self.columns.values()))
        return rows.select("r", pl.col("xml").alias("before"), within=pl.lit(""), behind=pl.lit(""))
