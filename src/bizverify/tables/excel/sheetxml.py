"""Cells and rows of a worksheet's XML, rendered and spliced by polars; what is not ours stays as it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from bizverify.errors import OutputError
from bizverify.tables.excel.cells import column_letter, column_number

_ROW: Final = r"(?s)<row(?:\s[^>]*?)?(?:/>|>.*?</row>)"
_CELL: Final = r"(?s)<c(?:\s[^>]*?)?(?:/>|>.*?</c>)"
_EMPTY_CELL: Final = r"<c(?:\s[^>]*?)?/>"
_WITHOUT_VALUE: Final = r"(?s)<c(?:\s[^>]*?)?>\s*(?:<f[^>]*?(?:/>|>[^<]*</f>))?\s*(?:<v>\s*</v>|<v\s*/>)?\s*</c>"
_EMPTY_RESULT: Final = r'(?s)(<c\s[^>]*?\bt="str"[^>]*?>\s*(?:<f[^>]*?(?:/>|>[^<]*</f>))?)\s*(?:<v>\s*</v>|<v\s*/>)'
_FIRST_REF: Final = r'<c\s[^>]*?\br="([A-Z]+)[0-9]+"'
_LAST_REF: Final = r'(?s).*<c\s[^>]*?\br="([A-Z]+)[0-9]+"'


@dataclass(frozen=True)
class SheetXml:
    """A worksheet's XML, taken apart at its rows.

    ``rows``: ``r`` (Int64, the row number) and ``xml`` (String, the row as it stands), ascending.
    """

    head: str
    rows: pl.DataFrame
    tail: str

    @classmethod
    def parse(cls, xml: str) -> SheetXml:
        """Take a sheet apart; raise :class:`OutputError` for XML that cannot be spliced safely."""
        declared = re.match(r"""<\?xml[^>]*?encoding=["']([^"']+)""", xml)
        if declared and declared.group(1).lower() not in ("utf-8", "utf8"):
            raise _unusual(f"its XML is encoded in {declared.group(1)}")
        found = re.search(r"<sheetData\s*/>|<sheetData\s*>(.*)</sheetData\s*>", xml, flags=re.S)
        data = (found.group(1) or "") if found else ""
        if found is None or "<!--" in data or "<![CDATA[" in data or re.search(r"<!--[^>]*sheetData", xml):
            raise _unusual("its XML is written in an unusual way")
        rows = pl.DataFrame({"xml": [data]}).select(pl.col("xml").str.extract_all(_ROW).explode()).drop_nulls()
        rows = rows.select(pl.col("xml").str.extract(r'^<row\s[^>]*?\br="([0-9]+)"').cast(pl.Int64).alias("r"), "xml")
        cells = pl.col("xml").str.count_matches(r"<c[\s>/]")
        placed = pl.col("xml").str.count_matches(r'<c\s[^>]*?\br="[A-Z]+[0-9]')
        if rows["r"].null_count() or not rows["r"].is_sorted() or not rows.filter(cells != placed).is_empty():
            raise _unusual("its rows or cells carry no references")
        return cls(xml[: found.start()] + "<sheetData>", rows, "</sheetData>" + xml[found.end() :])

    def text(self) -> str:
        """The sheet's XML."""
        return "".join((self.head, *self.rows["xml"], self.tail))

    def corner(self) -> tuple[int, int]:
        """Row and column (from 1) of the first row and column that hold a value: where reading begins.

        A formula without a stored result is no value: the reader does not see it either.
        """
        results = pl.col("xml").str.replace_all(_EMPTY_RESULT, "${1}<v>x</v>")  # the empty text of a formula is a value
        valued = _without(self.rows.with_columns(results), _EMPTY_CELL, _WITHOUT_VALUE)
        first = valued.select("r", pl.col("xml").str.extract(_FIRST_REF).alias("ref")).drop_nulls()
        if first.is_empty():
            raise _unusual("it holds no values")
        return int(first["r"][0]), min(map(column_number, first["ref"].unique()))

    def right(self) -> int:
        """The last column (from 1) that holds anything: a value, a formula, or a merged range."""
        last = _without(self.rows, _EMPTY_CELL)["xml"].str.extract(_LAST_REF).drop_nulls().unique()
        merged = re.findall(r'<mergeCell\s[^>]*?\bref="[A-Z]+[0-9]+:([A-Z]+)[0-9]+"', self.tail)
        return max(map(column_number, [*last, *merged]), default=0)

    def styles(self, letter: str, first: int, last: int) -> pl.DataFrame:
        """The style of a column's cells in rows ``first`` to ``last``: ``r`` and ``style`` (String, null for none)."""
        cell = pl.col("xml").str.extract(rf'(<c\s[^>]*?\br="{letter}[0-9]+"[^>]*?>)')
        styled = self.rows.select("r", cell.str.extract(r'\ss="([0-9]+)"').alias("style"))
        return pl.DataFrame({"r": pl.int_range(first, last + 1, eager=True)}).join(
            styled, on="r", how="left", maintain_order="left"
        )

    def with_cells(self, new: pl.DataFrame, columns: list[int]) -> SheetXml:
        """Put cells into rows.

        ``new``: ``r`` (Int64) and ``cells`` (String, ``<c>`` elements of ``columns`` in ascending order). Cells that
        stand in those columns are replaced, rows that do not exist are made.
        """
        rows = self.rows.join(new, on="r", how="full", coalesce=True).sort("r")
        letters = "|".join(column_letter(column) for column in columns)
        formula = rf'<c\s(?:[^>]*?\s)?r="(?:{letters})[0-9]+"[^>]*?>\s*<f'
        if rows.filter(pl.col("cells").is_not_null() & pl.col("xml").str.contains(formula)).height:
            raise _unusual("formulas stand in the columns of the earlier enrichment")
        opened = (
            pl.col("xml")
            .str.replace(r"^(<row[^>]*?)\s*/>$", "${1}></row>")
            .str.replace(r'^(<row[^>]*?)\sspans="[^"]*"', "${1}")  # a hint for readers, now wrong
            .str.replace_all(rf'(?s)<c\s(?:[^>]*?\s)?r="(?:{letters})[0-9]+"[^>]*?(?:/>|>.*?</c>)', "")
        )
        made = pl.concat_str(pl.lit('<row r="'), pl.col("r").cast(pl.String), pl.lit('"></row>'))
        rows = rows.with_columns(
            pl.when(pl.col("cells").is_null()).then(pl.col("xml")).otherwise(pl.coalesce(opened, made)).alias("xml"),
            pl.col("cells").fill_null(""),
        )
        crossing = (pl.col("cells") != "") & (_last_column(pl.col("xml")) > min(columns))
        body = pl.col("xml").str.strip_suffix("</row>")
        appended = pl.when(pl.col("cells") != "").then(pl.concat_str(body, "cells", pl.lit("</row>"))).otherwise("xml")
        merged = pl.struct("xml", "cells").map_elements(_in_column_order, return_dtype=pl.String)
        plain = rows.filter(~crossing).select("r", appended.alias("xml"))
        crossed = rows.filter(crossing).select("r", merged.alias("xml"))  # rare: something stands to the right of ours
        return replace(self, rows=pl.concat([plain, crossed]).sort("r"))

    def with_dimension(self, right: int, bottom: int) -> SheetXml:
        """Widen the used range that the sheet states."""
        stated = re.search(r'<dimension\s[^>]*?ref="([A-Z]+)([0-9]+)(?::([A-Z]+)([0-9]+))?"', self.head)
        if stated is None:
            return self
        left, top, old_right, old_bottom = stated.groups()
        right = max(right, column_number(old_right or left))
        bottom = max(bottom, int(old_bottom or top))
        ref = f'<dimension ref="{left}{top}:{column_letter(right)}{bottom}"'
        return replace(self, head=self.head.replace(stated.group(0), ref, 1))

    def with_widths(self, widths: dict[int, float]) -> SheetXml:
        """Set the widths (in characters) of columns that have none of their own yet."""
        ranges = re.findall(r'<col\s(?=[^>]*?\bmin="([0-9]+)")(?=[^>]*?\bmax="([0-9]+)")', self.head)
        free = {
            column: width
            for column, width in widths.items()
            if not any(int(low) <= column <= int(high) for low, high in ranges)
        }
        added = "".join(f'<col min="{c}" max="{c}" width="{width}" customWidth="1"/>' for c, width in free.items())
        beyond = all(int(high) < min(free, default=0) for _, high in ranges)  # <col> elements stand in order
        if not free or not beyond:
            return self
        if "</cols>" in self.head:
            return replace(self, head=self.head.replace("</cols>", added + "</cols>", 1))
        return replace(self, head=self.head.replace("<sheetData>", f"<cols>{added}</cols><sheetData>"))


def _without(rows: pl.DataFrame, *patterns: str) -> pl.DataFrame:
    xml = pl.col("xml")
    for pattern in patterns:
        xml = xml.str.replace_all(pattern, "")
    return rows.with_columns(xml)


def _last_column(xml: pl.Expr) -> pl.Expr:
    """The number of the last cell's column, 0 for none: base 26 of at most three letters."""
    letters = xml.str.extract(_LAST_REF).str.pad_start(3, "@")  # '@' stands before 'A': a digit of 0
    digits = [letters.str.slice(place, 1).str.to_integer(base=36, strict=False).fill_null(9) - 9 for place in range(3)]
    return (digits[0] * 676 + digits[1] * 26 + digits[2]).fill_null(0)


def _in_column_order(row: dict[str, str]) -> str:
    start, end = re.match(r"<row[^>]*>", row["xml"]), "</row>"
    assert start is not None  # noqa: S101 - every fragment was cut out as a row
    cells = re.findall(_CELL, row["xml"]) + re.findall(_CELL, row["cells"])
    placed = sorted(cells, key=lambda cell: column_number(re.search(r'\br="([A-Z]+)', cell).group(1)))  # type: ignore[union-attr]
    return start.group(0) + "".join(placed) + end


def _unusual(why: str) -> OutputError:
    return OutputError(
        f"the workbook cannot be extended, {why}; write another file, e.g. -o OUT.csv, or a new .xlsx from it"
    )
