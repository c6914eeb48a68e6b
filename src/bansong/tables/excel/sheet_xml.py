"""Split the XML of a sheet into rows; render cells as XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Final, Self

import polars as pl

from bansong.base.errors import OutputError, Problem
from bansong.base.messages import gettext, gettext_noop
from bansong.base.schema import ACTIONS_BEST_FIRST, GRADES, OUR_COLUMNS
from bansong.tables.excel.package import Edit, Element, attribute, elements_of, find_child, refuse_encoding
from bansong.tables.table import KEPT, Enriched, typed_id

MAX_CELL: Final = 32_767
MAX_COLUMNS: Final = 16_384
MAX_ROW: Final = 1_048_576
_EXACT: Final = 10**15
_EXACT_DIGITS: Final = 15
_EPOCH: Final = -25_569  # the day of Excel's serial number 0 (1899-12-30), in days of the Unix epoch
_FIRST_SAFE_SERIAL: Final = 61  # 1900-03-01: before it Excel counts a 29 February 1900 that never was

DAY: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
MOMENT: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.]+$"
TIME: Final = r"^([0-9]+):([0-9]{2}):([0-9]{2}(?:\.[0-9]+)?)$"
_MICROSECONDS_OF_DAY: Final = 86_400_000_000
_TRUTH: Final = ("true", "false")

_AREA: Final = re.compile(r"\$?([A-Z]{1,3})\$?([0-9]{1,7})(?::\$?([A-Z]{1,3})\$?([0-9]{1,7}))?")
_WHOLE: Final = re.compile(r"\$?([A-Z]{1,3}):\$?([A-Z]{1,3})")
_ROWS: Final = re.compile(r"\$?([0-9]{1,7}):\$?([0-9]{1,7})")

_ESCAPES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    **{chr(code): f"_x{code:04X}_" for code in range(32) if chr(code) not in "\t\n"},
    "\ufffe": "_xFFFE_",
    "\uffff": "_xFFFF_",
}
_SPACED: Final = r"^[ \t\r\n]|[ \t\r\n]$|[\t\r\n]|  "  # spaces that are kept only with xml:space="preserve"
# characters that XML cannot hold as they are; rare, so a column is tested first
_SPECIAL: Final = rf"[&<>\x00-\x1F\x{{FFFE}}\x{{FFFF}}]|_x[0-9A-Fa-f]{{4}}_|{_SPACED}"


def column_letter(number: int) -> str:
    letters = ""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def column_number(letters: str) -> int:
    return reduce(lambda number, letter: number * 26 + ord(letter) - 64, letters, 0)


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of cells; columns and rows from 1, the last ones included."""

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def parse(cls, reference: str) -> Self | None:
        if found := _WHOLE.fullmatch(reference):
            return cls(column_number(found[1]), 1, column_number(found[2]), MAX_ROW)
        if found := _ROWS.fullmatch(reference):
            return cls(1, int(found[1]), MAX_COLUMNS, int(found[2]))
        if found := _AREA.fullmatch(reference):
            left, top, right, bottom = found.groups()
            return cls(column_number(left), int(top), column_number(right or left), int(bottom or top))
        return None

    def meets_rows(self, first: int, last: int) -> bool:
        return self.top <= last and self.bottom >= first

    def meets(self, other: Area) -> bool:
        return self.meets_rows(other.top, other.bottom) and self.left <= other.right and self.right >= other.left

    def __str__(self) -> str:
        return f"{column_letter(self.left)}{self.top}:{column_letter(self.right)}{self.bottom}"


Style = str | pl.Expr  # the number of a cell format: one for all rows (`""` for none), or one for each (null for none)


def render_rows(
    frame: pl.DataFrame, columns: Mapping[str, int], styles: Mapping[str, Style], first: int, *, blanks: bool = False
) -> pl.DataFrame:
    """Return rows as XML: the columns ``r`` (Int64, the row's number in the sheet) and ``cells`` (String)."""
    # ``blanks``: nulls become cells with a style
    # Text is an inline string, so never a formula. What Excel cannot hold as a number (more than 15 digits, infinities,
    # days before March 1900, time zones) is text. A text whose ``typed_id`` is true becomes what it was.
    numbers = pl.int_range(first, first + frame.height, dtype=pl.Int64, eager=True).alias("r")
    work = frame.with_columns(numbers, numbers.cast(pl.String).alias("row"))
    pieces: list[pl.Expr | str] = []
    for column, number in sorted(columns.items(), key=lambda item: item[1]):
        typed = frame[typed_id(column)] if typed_id(column) in frame.columns else None
        pieces += _cell(frame[column], typed, column_letter(number), styles[column], blanks)
    return work.select("r", _concat_pieces(pieces).alias("cells"))


def _cell(values: pl.Series, typed: pl.Series | None, letter: str, style: Style, blanks: bool) -> list[pl.Expr | str]:
    start: list[pl.Expr | str] = [f'<c r="{letter}', pl.col("row"), '"']
    if isinstance(style, str):
        start += [f' s="{style}"'] if style else []
        blank = _concat_pieces([*start, "/>"]) if style and blanks else pl.lit("")
    else:
        start.append(pl.concat_str(pl.lit(' s="'), style, pl.lit('"')).fill_null(""))
        blank = pl.when(style.is_not_null() & blanks).then(_concat_pieces([*start, "/>"])).otherwise(pl.lit(""))
    content = _number(pl.col(values.name), values.dtype) if typed is None else _typed_number(values.name, typed)
    # the content of <v>, null for values that only text can hold
    number = values.to_frame().with_columns(content.cast(pl.String).alias(values.name)).to_series()
    nulls = values.null_count()
    truth = pl.lit(values.dtype == pl.Boolean) if typed is None else pl.col(values.name).is_in(_TRUTH)
    kind = pl.when(truth).then(pl.lit(' t="b"><v>')).otherwise(pl.lit("><v>"))
    as_number = [*start, kind, pl.lit(number), "</v></c>"]
    if nulls == len(values):
        return [blank]
    if number.null_count() == 0:
        return as_number
    as_text = [*start, ' t="inlineStr"><is><t', *_text(values), "</t></is></c>"]
    if number.null_count() == len(values):
        return [pl.coalesce(_concat_pieces(as_text), blank)] if nulls else as_text
    return [pl.coalesce(_concat_pieces(as_number), _concat_pieces(as_text), blank)]


def _concat_pieces(pieces: list[pl.Expr | str]) -> pl.Expr:
    merged: list[pl.Expr | str] = []
    for piece in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return pl.concat_str([pl.lit(piece) if isinstance(piece, str) else piece for piece in merged])


def _typed_number(name: str, typed: pl.Series) -> pl.Expr:
    text = pl.when(typed).then(pl.col(name))
    number = text.cast(pl.Float64, strict=False)
    digits = text.str.replace(r"[eE].*$", "").str.count_matches("[0-9]")
    exact = (number.abs() < _EXACT) & ((digits <= _EXACT_DIGITS) | (number.cast(pl.String) == text))
    day = text.str.to_date("%Y-%m-%d", strict=False)
    moment = text.str.replace("T", " ", literal=True).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False)
    hours, minutes, seconds = (text.str.extract(TIME, place).cast(pl.Float64) for place in (1, 2, 3))
    return pl.coalesce(
        pl.when(exact).then(text),
        pl.when(text.is_in(_TRUTH)).then((text == _TRUTH[0]).cast(pl.UInt8).cast(pl.String)),
        _serial(day.to_physical()).cast(pl.String),
        _serial(moment.dt.epoch("us") / _MICROSECONDS_OF_DAY).cast(pl.String),
        ((hours * 3600 + minutes * 60 + seconds) / 86_400).cast(pl.String),
    )


def _serial(days_of_unix: pl.Expr) -> pl.Expr:
    serial = days_of_unix - _EPOCH
    return pl.when(serial >= _FIRST_SAFE_SERIAL).then(serial)


def _number(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if dtype == pl.Boolean:
        return value.cast(pl.UInt8)
    if dtype.is_integer():
        wide = value.cast(pl.Int128)
        return pl.when((wide < _EXACT) & (wide > -_EXACT)).then(value)
    if dtype.is_float():
        return pl.when(value.is_finite()).then(value)
    if dtype == pl.Date:
        return _serial(value.to_physical())
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is None:
        return _serial(value.dt.epoch("us") / _MICROSECONDS_OF_DAY)
    if dtype == pl.Time:
        return value.to_physical() / (1000 * _MICROSECONDS_OF_DAY)
    return pl.lit(None)


def _text(values: pl.Series) -> list[pl.Expr | str]:
    value = pl.col(values.name)
    text = value.dt.to_string("iso") if values.dtype.is_temporal() else value.cast(pl.String)
    if values.dtype != pl.String or not values.str.contains(_SPECIAL).any():
        return [">", text]
    kept = pl.when(value.str.contains(_SPACED)).then(pl.lit(' xml:space="preserve">')).otherwise(pl.lit(">"))
    guarded = text.str.replace_all(r"_(x[0-9A-Fa-f]{4}_)", "_x005F_${1}")
    return [kept, guarded.str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))]


# characters; reasons are long, so they get a wide column rather than a tall row
_WIDTHS: Final = (13, 12, 8, 13, 13, 24, 70, 11, 30, 9, 24, 12, 13, 15, 14, 30, 20)
WIDTHS: Final = dict(zip((*OUR_COLUMNS, KEPT), _WIDTHS, strict=True))


# columns whose words, the best first, have these colours (RGB of text and background)
COLOURED: Final = {"grade": GRADES, "action": ACTIONS_BEST_FIRST}
COLOURS: Final = (
    ("006100", "C6EFCE"),
    ("375623", "E2F0D9"),
    ("7F6000", "FFF2CC"),
    ("974706", "FCD5B4"),
    ("9C0006", "FFC7CE"),
)


def titles(result: Enriched, columns: Mapping[str, int]) -> pl.DataFrame:
    return pl.DataFrame({column: [header or None] for column, header in result.layout if column in columns})


def dimension_edits(xml: bytes, elements: Sequence[Element], right: int, bottom: int) -> list[Edit]:
    stated = find_child(elements, "dimension")
    found = stated and re.fullmatch(r"([A-Z]+)([0-9]+)(?::([A-Z]+)([0-9]+))?", stated.attributes.get("ref", ""))
    if not stated or not found:
        return []
    left, top, old_right, old_bottom = found.groups()
    right = max(right, column_number(old_right or left))
    bottom = max(bottom, int(old_bottom or top))
    ref = f"{left}{top}:{column_letter(right)}{bottom}"
    return [(stated.start, stated.inner, attribute(xml[stated.start : stated.inner], "ref", ref))]


SHEET_NOT_EXTENSIBLE: Final = Problem(
    "excel.sheet_not_extensible",
    "the workbook cannot be extended, {why}; write another file, e.g. `output='OUT.csv'`, or a new .xlsx from it",
)

_PART: Final = gettext_noop("the part of its sheet")
_CUT: Final = "\x01"  # put where a row is to be cut; XML cannot hold it
# an XML attribute; its value may hold ``>`` and ``/``
_ATTRIBUTE: Final = r"""\s+[^\s=>"'/]+\s*=\s*(?:"[^"]*"|'[^']*')"""
_REFERENCE: Final = rf"""(?:{_ATTRIBUTE})*?\s+r\s*=\s*["']"""  # between the name of a row or a cell and its reference
_REST: Final = rf"""["'](?:{_ATTRIBUTE})*\s*"""  # what stands between a cell's reference and the end of its tag
# between a cell's reference and its content; lxml writes an empty cell as ``<c …></c>``
_FILLED: Final = rf"{_REST}>\s*<[^/]"
_USUAL: Final = 'c r="'  # how cells mostly begin: their reference comes first
_NO_LETTER: Final = r"[^\s\S]"
_FEW: Final = 2_000
_LIKELY: Final = 3  # so many columns are asked one by one whether they are the last that holds anything


@dataclass(frozen=True)
class _Block:
    rows: pl.DataFrame
    rest: str
    usual: bool  # all cells are known to begin in the usual way
    references: pl.Series  # the first characters behind each beginning of a cell, each once

    @classmethod
    def cut(cls, data: bytes, p: str) -> _Block:
        rows, rest, text = cut_rows(data, p)
        starts = text.str.split(f"<{p}{_USUAL}").explode()
        usual = not starts.str.contains(f"<{p}c", literal=True).any() or (
            text.str.count_matches(rf"<{p}c[\s/>]")[0] == len(starts) - 1
        )
        return cls(rows, rest, usual, _references(starts))


class RowBlocks:
    """A sheet's XML, given in pieces: ``head`` through the tag ``<sheetData>``, blocks of rows, then ``tail``."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.head, self.prefix, self._data = _head(self._pieces)
        self.tail = b""

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of whole rows. The last block may have other text behind its rows."""
        end, close, stop = f"</{self.prefix}row>".encode(), f"</{self.prefix}sheetData".encode(), -1
        data = self._data
        for piece in chain([b""], self._pieces):
            data += piece
            if stop < 0:
                stop = data.find(close)
                place = data.rfind(end, 0, stop if stop >= 0 else len(data)) + len(end)
                if place >= len(end):
                    yield data[:place]
                    data, stop = data[place:], max(stop - place, -1)
        if stop < 0:
            raise unusual(gettext("its XML is written in an unusual way"))
        yield data[:stop]
        self.tail = data[stop:]


def number_rows(rows: pl.DataFrame, p: str) -> pl.DataFrame:
    """Add the row numbers as the column ``r``; raise :class:`OutputError` if these are missing or out of order."""
    number = rows["xml"].str.extract(rf'^<{p}row r="([0-9]+)"')
    if number.null_count():
        number = rows["xml"].str.extract(rf"""^\s*<{p}row{_REFERENCE}([0-9]+)["']""")
    if number.null_count():
        raise unusual(gettext("its rows carry no references"))
    number = number.cast(pl.Int64).alias("r")
    if not (number.diff().drop_nulls() > 0).all():
        raise unusual(gettext("its rows do not stand in order"))
    return rows.insert_column(0, number)


def _find_cell(blocks: Sequence[_Block], p: str) -> str:
    """Return a regex for the beginning of every cell; raise :class:`OutputError` if a cell has no reference."""
    if all(block.usual for block in blocks):
        return f"<{p}{_USUAL}"
    general = f"<{p}c{_REFERENCE}"
    texts = [block.rows["xml"] for block in blocks]
    cells = sum(text.str.count_matches(rf"<{p}c[\s/>]").sum() for text in texts)
    if cells != sum(text.str.count_matches(rf"{general}[A-Z]+[0-9]").sum() for text in texts):
        raise unusual(gettext("its rows or cells carry no references"))
    return general


def _find_columns(blocks: Sequence[_Block], cell: str) -> list[int]:
    starts = [block.references for block in blocks]
    if not all(block.usual for block in blocks):
        texts = [block.rows["xml"].str.join("").str.replace_all(cell, _CUT) for block in blocks]
        starts = [_references(text.str.split(_CUT).explode()) for text in texts]
    letters = pl.concat(starts).unique().str.extract("^([A-Z]+)").unique()
    return sorted(map(column_number, letters.drop_nulls()))


def unusual(why: str) -> OutputError:
    return OutputError(SHEET_NOT_EXTENSIBLE, why=why)


def encode_rows(frame: pl.DataFrame, *columns: str) -> bytes:
    whole = frame.select(pl.concat_str(*columns).str.join("").cast(pl.Binary)).item()
    assert isinstance(whole, bytes)  # noqa: S101 - Binary
    return whole


def _head(pieces: Iterator[bytes]) -> tuple[bytes, str, bytes]:
    data = b""
    for piece in pieces:
        data += piece
        found = re.search(rb"<((?:\w+:)?)sheetData\s*>", data)
        if found:
            refuse_encoding(data, _PART)
            return data[: found.end()], found.group(1).decode(), data[found.end() :]
    elements_of(data, gettext(_PART))
    raise unusual(gettext("it holds no rows, or they are written in an unusual way"))


def cut_rows(data: bytes, p: str) -> tuple[pl.DataFrame, str, pl.Series]:
    """Split XML into rows (``xml`` and the closing tag, ``end``); return these, the rest, and the whole text."""
    for sign in (b"!", b"?"):  # a single character is found ten times as fast as two
        if sign in data and b"<" + sign in data:
            raise unusual(gettext("its rows hold comments or other marks"))
    text = pl.Series("xml", [data], dtype=pl.Binary).cast(pl.String, strict=False)
    if text.null_count():
        raise unusual(gettext("it holds bytes that are not UTF-8"))
    end = f"</{p}row>"
    rows = text.str.split(end).explode()
    whole, rest = rows[:-1], rows[-1]
    if not rest.strip() and (whole.str.count_matches(f"<{p}row", literal=True) == 1).all():
        return whole.to_frame().with_columns(end=pl.lit(end)), rest, text
    whole = text.str.extract_all(rf"(?s)\s*<{p}row(?:{_ATTRIBUTE})*\s*(?:/>|>.*?</{p}row\s*>)").explode().drop_nulls()
    joined = whole.str.join("")[0]
    if not text[0].startswith(joined):
        raise unusual(gettext("its XML is written in an unusual way"))
    ends = pl.col("xml").str.extract(rf"(/>|</{p}row\s*>)$")  # a row without cells is closed in itself
    frame = whole.to_frame().with_columns(end=ends).with_columns(pl.col("xml").str.strip_suffix(pl.col("end")))
    return frame, text[0][len(joined) :], text


def _references(starts: pl.Series) -> pl.Series:
    first = starts[1:].cast(pl.Binary).bin.slice(0, 4).unique()
    return first.cast(pl.String, strict=False)


@dataclass(frozen=True)
class SheetXml:
    """A worksheet's XML, split into parts that together have all its bytes."""

    # rows: ``r`` (number, ascending), ``xml`` (the row without its end, with the text before it), ``end`` (its tag)

    around: bytes  # all but the rows
    cut: int  # where the rows stand in it
    elements: Sequence[Element]  # of it
    rows: pl.DataFrame
    rest: str  # what stands behind the last row
    cell: str  # a pattern for the beginning of a cell, up to the letters of its column
    columns: Sequence[int]  # that have cells, blank ones too

    @classmethod
    def parse(cls, pieces: Iterable[bytes]) -> SheetXml:
        parted = RowBlocks(pieces)
        p = parted.prefix
        with ThreadPoolExecutor(2) as pool:
            cut = [pool.submit(copy_context().run, _Block.cut, data, p) for data in parted]
            blocks = [block.result() for block in cut]
        around, place, rest = parted.head + parted.tail, len(parted.head), blocks[-1].rest
        elements = elements_of(around, gettext(_PART))
        found = any((e.name, e.depth, e.inner) == ("sheetData", 1, place) for e in elements)
        if not found or any(block.rest for block in blocks[:-1]):
            raise unusual(gettext("its XML is written in an unusual way"))
        if not (blocks := [block for block in blocks if block.rows.height]):
            raise unusual(gettext("it holds no rows"))
        if rest.strip():
            raise unusual(gettext("its rows carry no references"))
        rows, cell = number_rows(pl.concat(block.rows for block in blocks), p), _find_cell(blocks, p)
        return cls(around, place, elements, rows, rest, cell, _find_columns(blocks, cell))

    @property
    def prefix(self) -> str:
        return self.elements[0].prefix

    def between(self, first: int, last: int) -> pl.DataFrame:
        start, stop = (int(self.rows["r"].search_sorted(number)) for number in (first, last + 1))
        return self.rows.slice(start, stop - start)

    def first_row(self) -> int:
        return self._outermost_row(self.rows.iter_slices(_FEW), 0)

    def last_row(self) -> int:
        stops = range(self.rows.height, 0, -_FEW)
        return self._outermost_row((self.rows[max(0, stop - _FEW) : stop] for stop in stops), -1)

    def _outermost_row(self, slices: Iterable[pl.DataFrame], place: int) -> int:
        for found in map(self._rows_with_values, slices):
            if found.height:
                return int(found["r"][place])
        raise unusual(gettext("it holds no values"))

    def first_column(self) -> int:
        least, leftmost = MAX_COLUMNS + 1, min(self.columns, default=0)  # no row has a cell before the leftmost
        for rows in self.rows.iter_slices(_FEW):
            found = self._rows_with_values(rows)["letters"].unique()
            least = min(least, *map(column_number, found))
            if least == leftmost:
                break
        return least

    def last_column(self, first: int, last: int) -> int:
        for number in sorted(self.columns, reverse=True)[:_LIKELY]:
            if self.holds(number, first, last):
                return number
        filled = (
            self.between(first, last)["xml"]
            .str.extract_all(rf"{self.cell}[A-Z]+[0-9]+{_FILLED}")
            .explode()
            .drop_nulls()
        )
        letters = filled.str.extract(rf"{self.cell}([A-Z]+)").unique()
        return max(map(column_number, letters), default=0)

    def holds(self, column: int, first: int, last: int) -> bool:
        if column not in self.columns or last < first:
            return False
        filled = rf"{self.cell}{column_letter(column)}[0-9]+{_FILLED}"
        return bool(self.between(first, last)["xml"].str.contains(filled).any())

    def array_areas(self, first: int, last: int) -> list[Area]:
        """Return the ranges of array formulas that reach into rows ``first`` to ``last``."""
        array = rf"""<{self.prefix}f(?:{_ATTRIBUTE})*?\s+t\s*=\s*["'](?:array|dataTable)["'](?:{_ATTRIBUTE})*"""
        tags = self.between(1, last)["xml"].str.extract_all(array).explode().drop_nulls()
        references = tags.str.extract(r"""\sref\s*=\s*["']([^"']+)""").unique().drop_nulls()
        return [area for text in references if (area := Area.parse(text)) and area.bottom >= first]

    def styles(self, column: int, first: int, last: int) -> pl.Series:
        rows, letters = self.between(first, last), column_letter(column)
        tag = rows["xml"].str.extract(f"({self.cell}{letters}[0-9]+{_REST})")
        style = tag.str.extract(rf"""^<[^\s]+(?:{_ATTRIBUTE})*?\s+s\s*=\s*["']([0-9]+)""").alias("style")
        found = rows.select("r", style)
        if rows.height < last + 1 - first:
            numbers = pl.int_range(first, last + 1, eager=True).to_frame("r")
            found = numbers.join(found, on="r", how="left", maintain_order="left")
        return found["style"]

    def cut_rows(self, rows: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Split each row into its XML ``before``, ``within`` and ``behind`` the columns ``first`` to ``last``."""
        xml, ends = pl.col("xml"), []
        for number in (first, last + 1):
            letters = "|".join(column_letter(column) for column in self.columns if column >= number) or _NO_LETTER
            ends.append(xml.str.find(rf"{self.cell}(?:{letters})[0-9]").fill_null(xml.str.len_bytes()))
        at = rows.select("r", xml.cast(pl.Binary), start=ends[0], stop=ends[1])
        start, stop = pl.col("start"), pl.col("stop")
        pieces = {"before": xml.bin.slice(0, start), "within": xml.bin.slice(start, stop - start)}
        pieces["behind"] = xml.bin.slice(stop)
        return at.select("r", *(piece.cast(pl.String).alias(name) for name, piece in pieces.items()))

    def refuse_disorder(self, rows: pl.DataFrame) -> None:
        starts = pl.col("xml").str.extract_all(f"{self.cell}[A-Z]+").list.join(_CUT)
        orders = rows.select(starts).unique().with_row_index("order")  # most rows have the same cells
        cells = orders.with_columns(pl.col("xml").str.split(_CUT)).explode("xml")
        number = {column_letter(number): number for number in self.columns}
        column = pl.col("xml").str.extract("([A-Z]+)$").replace_strict(number, default=0, return_dtype=pl.Int32)
        if cells.select((column.diff().over("order") <= 0).any()).item():
            raise unusual(gettext("the cells of its rows stand in another order than their columns"))

    def _rows_with_values(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the numbers ``r`` of rows with a value, and the column (``letters``) of each row's first value."""
        # as the reader counts: a formula without a stored result is no value, an empty text as its result is one
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
