"""A worksheet's XML on its way in: cut at its rows, block by block, while the next block is unpacked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final

import polars as pl

from bizverify.errors import OutputError
from bizverify.tables.excel.cells import column_number
from bizverify.tables.excel.xml_edit import elements_of, refuse_encoding

PART: Final = "the part of its sheet"
CUT: Final = "\x01"
"""Put where a row is to be cut; XML cannot hold it."""
_USUAL: Final = 'c r="'
"""How cells mostly begin: their reference comes first."""


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
            raise unusual("it holds no rows")
        p, rows = self.prefix, pl.concat(block.rows for block in self.blocks)
        number = rows["xml"].str.extract(rf'^<{p}row r="([0-9]+)"')
        if number.null_count():
            number = rows["xml"].str.extract(rf'^\s*<{p}row\s(?:[^>]*?\s)?r="([0-9]+)"')
        if number.null_count() or self.rest.strip():
            raise unusual("its rows carry no references")
        number = number.cast(pl.Int64).alias("r")
        if not (number.diff().drop_nulls() > 0).all():
            raise unusual("its rows do not stand in order")
        return rows.insert_column(0, number)

    def cell(self) -> str:
        """A pattern for the beginnings of all cells; raise :class:`OutputError` where some carry no reference."""
        if all(block.usual for block in self.blocks):
            return f"<{self.prefix}{_USUAL}"
        general = rf'<{self.prefix}c\s(?:[^>]*?\s)?r="'
        if any(block.usual is None for block in self.blocks):
            return general
        texts = [block.rows["xml"] for block in self.blocks]
        cells = sum(text.str.count_matches(rf"<{self.prefix}c[\s/>]").sum() for text in texts)
        if cells != sum(text.str.count_matches(rf"{general}[A-Z]+[0-9]").sum() for text in texts):
            raise unusual("its rows or cells carry no references")
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
                    cut.append(pool.submit(_cut, data[:place], p, cells))
                    data, stop = data[place:], max(stop - place, -1)
        if stop < 0:
            raise unusual("its XML is written in an unusual way")
        cut.append(pool.submit(_cut, data[:stop], p, cells))
        blocks = [block.result() for block in cut]
    if any(block.rest for block in blocks[:-1]):
        raise unusual("its XML is written in an unusual way")
    return Parted(head, p, [block for block in blocks if block.rows.height], blocks[-1].rest, data[stop:])


def unusual(why: str) -> OutputError:
    """What is said of a sheet that cannot be spliced."""
    return OutputError(
        f"the workbook cannot be extended, {why}; write another file, e.g. `output='OUT.csv'`, or a new .xlsx from it"
    )


def encode_rows(frame: pl.DataFrame, *columns: str) -> bytes:
    """The columns of a frame's rows, one behind the other, as UTF-8."""
    whole = frame.select(pl.concat_str(*columns).str.join("").cast(pl.Binary)).item()
    assert isinstance(whole, bytes)  # noqa: S101 - Binary
    return whole


def _head(pieces: Iterator[bytes]) -> tuple[bytes, str, bytes]:
    """What stands before the rows, the prefix of the sheet's elements, and what was read beyond."""
    data = b""
    for piece in pieces:
        data += piece
        found = re.search(rb"<((?:\w+:)?)sheetData\s*>", data)
        if found:
            refuse_encoding(data, PART)
            return data[: found.end()], found.group(1).decode(), data[found.end() :]
    elements_of(data, PART)
    raise unusual("it holds no rows, or they are written in an unusual way")


def _cut(data: bytes, p: str, cells: bool) -> _Block:
    """The rows of a block; raise :class:`OutputError` where it holds what is no row."""
    for sign in (b"!", b"?"):  # a single character is found ten times as fast as two
        if sign in data and b"<" + sign in data:
            raise unusual("its rows hold comments or other marks")
    text = pl.Series("xml", [data], dtype=pl.Binary).cast(pl.String, strict=False)
    if text.null_count():
        raise unusual("it holds bytes that are not UTF-8")
    rows, rest = _rows(text, p)
    if not cells:
        return _Block(rows, rest, None, pl.Series(dtype=pl.String))
    starts = text.str.split(f"<{p}{_USUAL}").explode()
    usual = not starts.str.contains(f"<{p}c", literal=True).any() or (
        text.str.count_matches(rf"<{p}c[\s/>]")[0] == len(starts) - 1
    )
    return _Block(rows, rest, usual, _references(starts))


def _rows(text: pl.Series, p: str) -> tuple[pl.DataFrame, str]:
    """The rows of a text, and what is behind the last."""
    end = f"</{p}row>"
    rows = text.str.split(end).explode()
    whole, rest = rows[:-1], rows[-1]
    if not rest.strip() and (whole.str.count_matches(f"<{p}row", literal=True) == 1).all():
        return whole.to_frame().with_columns(end=pl.lit(end)), rest
    empty = rf"<{p}row(?:\s[^>]*)?/>"  # a row without cells, closed in itself
    rows = text.str.extract_all(rf"(?s).*?(?:{end}|{empty})").explode().drop_nulls()
    rest = text.str.replace(rf"(?s)^.*(?:{end}|{empty})", "")[0]
    ends = pl.when(pl.col("xml").str.ends_with(end)).then(pl.lit(end)).otherwise(pl.lit("/>")).alias("end")
    return rows.to_frame().select(pl.col("xml").str.strip_suffix(end).str.strip_suffix("/>"), ends), rest


def _references(starts: pl.Series) -> pl.Series:
    """The first characters of what stands behind each start of a cell, each once."""
    first = starts[1:].cast(pl.Binary).bin.slice(0, 4).unique()
    return first.cast(pl.String, strict=False)
