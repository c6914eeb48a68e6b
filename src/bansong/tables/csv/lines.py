"""Check the number of fields of each CSV line; copy files that polars would misread."""
# Only each line's *shape* is checked: delimiters, quotes, CR and NUL. A million lines have a handful of shapes.

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import polars as pl
from polars.io.plugins import register_io_source

from bansong.base.errors import InputError, Problem
from bansong.base.messages import advise, gettext, ngettext
from bansong.tables.table import RAW, column_ids

if TYPE_CHECKING:
    from bansong.tables.csv.format import Dialect

NUL_BYTE: Final = Problem(
    "csv.nul_byte", "{path}: line {line}, character {column}: holds a NUL byte; the file is damaged, or {encoding}"
)
STRAY_CARRIAGE_RETURN: Final = Problem(
    "csv.stray_carriage_return",
    "{path}: {where}: holds a CR that ends no line; save the file with one kind of line end, or quote the cell",
)
QUOTES_NOT_CLOSED: Final = Problem(
    "csv.quotes_not_closed",
    "{path}: line {line}: the quotes of a cell do not match{endless}; put the whole cell in "
    "quotes and write a quote in it twice",
)
TOO_LONG: Final = Problem(
    "csv.line_too_wide",
    "{path}: line {line} has {fields} fields, the header {width}{more}; quote cells that hold {delimiter!r}",
)
TOO_LONG_HEADLESS: Final = Problem(
    "csv.line_too_wide_headless",
    "{path}: line {line} has {fields} fields, the first ones {width}{more}; quote cells that hold {delimiter!r}",
)

NAMED: Final = 20
_OPEN: Final = 4 << 20
_PART: Final = 1 << 20
_SHAPES: Final = 10_000
_QUOTED: Final = re.compile(rb'"[^"]*+"')


class Irregular(Exception):
    """A file has a line that polars would refuse or misread. It may still be a table."""


@dataclass(slots=True)
class LineNumbers:
    """Line numbers for a message: the first few, and the count of all."""

    first: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(line)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.first))
        if self.count > len(self.first):
            return gettext("lines {numbers} and {more:,} more", numbers=numbers, more=self.count - len(self.first))
        return ngettext("line {numbers}", "lines {numbers}", self.count, numbers=numbers)


@dataclass(frozen=True, slots=True)
class LineFile:
    """A UTF-8 file with one record per line. An output repeats these lines as they are."""

    path: Path
    above: int  # number of lines above the first record
    # NUL, which no table holds, stands for a line break in a cell, and behind a line that ends otherwise than most
    marked: bool = False

    def scan(self) -> pl.LazyFrame:
        """Return the records as column :data:`RAW`, a line each."""
        # in parts: scan_lines of a path reads 250 MB ahead
        return register_io_source(self._read, schema={RAW: pl.String})

    def _read(self, *_: Any) -> Iterator[pl.DataFrame]:
        with self.path.open("rb") as file:
            for _above in range(self.above):
                file.readline()
            while part := file.read(_PART):
                whole = b"\n" + part + file.readline()  # a line that begins with x\x01 looks like a packed file
                yield pl.scan_lines(whole, name=RAW).collect(engine="in-memory").slice(1)


class Survey:
    """Counts the rows of a CSV file, given in blocks, and finds lines that have too few fields but are not blank.

    ``source`` is the file as UTF-8, with its text from byte ``start`` on. If a record is short, has several lines or
    an unusual line end, a :class:`LineFile` is written to ``copy``.
    """

    def __init__(self, path: Path, dialect: Dialect, source: Path, start: int, copy: Path) -> None:
        self.rows = -1 if dialect.headed else 0  # the header is no row
        self.short = LineNumbers()
        self._path = path
        self._delimiter = dialect.delimiter.encode()
        self._width = len(dialect.header)
        self._skip = dialect.skip
        self._header = dialect.skip + 1 if dialect.headed else 0
        self._with_cr = dialect.line_end == "\r\n"
        self._source, self._start, self._copy, self._same, self._marked = source, start, copy, 0, False
        self._line = 1
        self.pending = b""  # the beginning of a record that goes on in the next block
        self._rest = bytes(set(range(256)) - {*b'"\r\n\0', *self._delimiter})
        self._regular: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        delimiter = re.escape(dialect.delimiter)
        cell = rf'(?:"(?:[^"]|"")*"|[^"{delimiter}]*)'
        self._record = rf"\A{cell}(?:{delimiter}{cell})*\r?\z"

    def feed(self, block: bytes) -> None:
        """Check the next whole lines; raise for a NUL byte, a CR that polars would drop, or :class:`Irregular`."""
        block = self._below_titles(self.pending + block)
        self.pending = b""
        records: list[bytes] | None = None
        outline = block.translate(None, self._rest)
        stray = b"\r" in block and block.count(b"\r") > block.count(b"\r\n")
        first, lines = outline[: outline.find(b"\n") + 1], outline.count(b"\n")
        uniform = lines and first[:-1] in self._regular and outline == first * lines
        if stray or not uniform:
            shapes = outline.split(b"\n")
            if not shapes[-1] and (not block or block.endswith(b"\n")):
                shapes.pop()
            strange = {shape for shape in set(shapes) - self._regular if not self._is_regular(shape)}
            if stray:  # a CR may not be the line's last character though it is the shape's
                strange |= (with_cr := {shape for shape in shapes if b"\r" in shape})
                self._regular -= with_cr
                self._doubtful -= with_cr
            if strange:
                records = self._look(block, [place for place, shape in enumerate(shapes) if shape in strange], shapes)
            lines = len(shapes)
        self.rows += lines
        self._line += lines
        self._keep(block[: len(block) - len(self.pending)], records)

    def records(self) -> LineFile:
        headers = 1 if self._header else 0
        return (
            LineFile(self._copy, headers, marked=True) if self._marked else LineFile(self._source, self._skip + headers)
        )

    def _keep(self, block: bytes, records: list[bytes] | None) -> None:
        if records is None and not self._marked:
            self._same += len(block)
            return
        with self._copy.open("ab") as copy:
            if not self._marked:
                with self._source.open("rb") as source:
                    source.seek(self._start)
                    while part := source.read(min(self._same, _OPEN)):
                        self._same -= copy.write(part)
                self._marked = True
            copy.write(block if records is None else b"\n".join(records))

    def _below_titles(self, block: bytes) -> bytes:
        left = self._skip + 1 - self._line
        if left <= 0:
            return block
        *titles, rest = block.split(b"\n", left)
        self._line += len(titles)
        rest = rest if len(titles) == left else b""
        self._start += len(block) - len(rest)
        return rest

    def _is_regular(self, shape: bytes) -> bool:
        """Whether lines of a shape have the header's number of fields and the usual end; false for escaped quotes."""
        cells = _QUOTED.sub(b"Q", shape)
        plain = cells.removesuffix(b"\r").replace(b"Q", b"")
        fits = plain == self._delimiter * (self._width - 1) and b"\0" not in shape and not cells.endswith(b"\rQ")
        regular = fits and b"QQ" not in cells and cells.endswith(b"\r") == self._with_cr
        if fits and len(self._regular) + len(self._doubtful) < _SHAPES:
            (self._regular if regular else self._doubtful).add(shape)
        return regular

    def _look(self, block: bytes, places: list[int], shapes: list[bytes]) -> list[bytes] | None:
        """Check the lines at ``places``; return the block's records if they differ from its lines, else ``None``."""
        kept: dict[int, bytes | None] = {}
        lines, quoted, upcoming = block.split(b"\n"), [], iter(places)
        for place in upcoming:
            end = place
            if shapes[place].count(b'"') % 2:
                end = next((other for other in upcoming if shapes[other].count(b'"') % 2), -1)
                if end < 0:  # the cell goes on in the next block
                    self.pending = b"\n".join(lines[place:])
                    lines[place:] = [b""]
                    del shapes[place:]
                    if len(self.pending) > _OPEN:
                        raise Irregular
                    break
                self.rows -= end - place
            record = b"\n".join(lines[place : end + 1])
            if b'"' in record:
                quoted.append(record)
            missing = 0 if shapes[place] in self._doubtful else self._check(record, self._line + place)
            whole = self._in_one_line(record, missing, ended=end + 1 < len(lines))
            if whole != record:
                kept |= dict.fromkeys(range(place, end + 1)) | {place: whole}
        # polars strips and halves the quotes of a cell like ""a"" without a word
        if quoted and not pl.Series(quoted, dtype=pl.Binary).cast(pl.String).str.contains(self._record).all():
            raise Irregular
        if not kept:
            return None
        return [line for place, own in enumerate(lines) if (line := kept.get(place, own)) is not None]

    def _in_one_line(self, record: bytes, missing: int, *, ended: bool) -> bytes:
        text = record.removesuffix(b"\r")
        end = record[len(text) :]
        other = bool(end) != self._with_cr and (ended or bool(end))
        return text.replace(b"\n", b"\0") + self._delimiter * missing + end + b"\0" * other

    def _check(self, record: bytes, line: int) -> int:
        """Return the number of missing fields."""
        if b"\0" in record:
            raise nul_byte(self._path, *_place(record, record.index(b"\0"), line))
        if record in (b"", b"\r"):
            return self._width - 1
        outside = _QUOTED.sub(lambda quoted: b"_" * len(quoted[0]), record)
        if b"\r" in outside.removesuffix(b"\r"):
            raise bare_cr(self._path, *_place(record, outside.index(b"\r"), line))
        fields = outside.count(self._delimiter) + 1
        if fields > self._width or (fields < self._width and line == self._header):
            raise Irregular
        if fields < self._width:
            self.short.add(line)
        return self._width - fields


def nul_byte(path: Path, line: int, column: int) -> InputError:
    named = gettext("in an encoding that `encoding=` has to name")
    encoding = advise("encoding", named, gettext("not in UTF-8"))
    return InputError(NUL_BYTE, path=path, line=line, column=column, encoding=encoding)


def bare_cr(path: Path, line: int, column: int | None = None) -> InputError:
    where = gettext("line {line}", line=line)
    if column is not None:
        where = gettext("line {line}, character {column}", line=line, column=column)
    return InputError(STRAY_CARRIAGE_RETURN, path=path, where=where)


def _place(record: bytes, at: int, line: int) -> tuple[int, int]:
    before = record[:at]
    return line + before.count(b"\n"), len(before[before.rfind(b"\n") + 1 :].decode()) + 1


@dataclass(slots=True)
class Repaired:
    """The number of rows; the lines with too few fields, with surplus blank fields, and with surplus filled ones."""

    rows: int = 0
    short: LineNumbers = field(default_factory=LineNumbers)
    surplus: LineNumbers = field(default_factory=LineNumbers)
    long: LineNumbers = field(default_factory=LineNumbers)
    fields: int = 0

    def add(self, line: int, fields: list[str], width: int) -> None:
        self.rows += 1
        if len(fields) > width and (width == 1 or any(fields[width:])):  # of one column, the delimiter is not known
            self.fields = self.fields or len(fields)
            self.long.add(line)
        elif len(fields) > width:
            self.surplus.add(line)
        elif fields and len(fields) < width:
            self.short.add(line)


def repair(path: Path, plain: Path, copy: Path, dialect: Dialect) -> Repaired:
    """Rewrite the UTF-8 file ``plain`` as ``copy`` by the csv module: one header line, and rows of equal width."""
    found, width, delimiter = Repaired(), len(dialect.header), dialect.delimiter
    with plain.open(encoding="utf-8-sig", newline="\n") as text, copy.open("w", encoding="utf-8", newline="") as out:
        minimal = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        quoting = csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        minimal.writerow(column_ids(width))
        records = _records(path, text, delimiter, dialect.skip)
        if dialect.headed:
            next(records)
        for line, fields in records:
            found.add(line, fields, width)
            writer = quoting if any("\r" in cell for cell in fields) else minimal
            writer.writerow(fields[:width])
    if found.long.count:
        more = gettext(" ({count:,} such lines: {long})", count=found.long.count, long=found.long)
        said = {"path": path, "line": found.long.first[0], "fields": found.fields, "width": width}
        said |= {"more": more if found.long.count > 1 else "", "delimiter": delimiter}
        raise InputError(TOO_LONG if dialect.headed else TOO_LONG_HEADLESS, **said)
    return found


def notes(found: Survey | Repaired, raw_spaces: int, dialect: Dialect) -> Iterator[str]:
    width = len(dialect.header)
    most = gettext("the header's {width}", width=width) if dialect.headed else f"{width}"
    if short := found.short.count:
        yield ngettext(
            "1 line has fewer fields than {most}; their missing cells are blank: {places}",
            "{count:,} lines have fewer fields than {most}; their missing cells are blank: {places}",
            short,
            most=most,
            places=found.short,
        )
    if isinstance(found, Repaired) and (surplus := found.surplus.count):
        yield ngettext(
            "1 line has blank fields beyond {most}, which are left out: {places}",
            "{count:,} lines have blank fields beyond {most}, which are left out: {places}",
            surplus,
            most=most,
            places=found.surplus,
        )
    if raw_spaces:
        yield ngettext(
            "{count:,} byte 0xA0, which CP949 does not have, read as no-break spaces and written as they were",
            "{count:,} bytes 0xA0, which CP949 does not have, read as no-break spaces and written as they were",
            raw_spaces,
        )


def _records(path: Path, text: TextIO, delimiter: str, skip: int) -> Iterator[tuple[int, list[str]]]:
    for _ in range(skip):
        text.readline()
    reader = csv.reader(_lines(path, text, skip), delimiter=delimiter, strict=True)
    line = skip + 1
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + skip + 1
    except csv.Error as error:
        if "new-line" in str(error):
            raise bare_cr(path, reader.line_num + skip) from error
        endless = gettext(", or it is longer than {most:,} characters", most=csv.field_size_limit())
        endless = endless if "limit" in str(error) else ""
        raise InputError(QUOTES_NOT_CLOSED, path=path, line=line, endless=endless) from error


def _lines(path: Path, text: TextIO, skip: int) -> Iterator[str]:
    for number, line in enumerate(text, skip + 1):
        if "\0" in line:
            raise nul_byte(path, number, line.index("\0") + 1)
        if line.endswith("\r\r\n"):
            raise bare_cr(path, number)
        yield line
