"""CSV and TSV ⇄ frames. Every cell is text: nothing is parsed, so leading zeros, long numbers and dates stay."""

from __future__ import annotations

import codecs
import csv
import io
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import polars as pl

from bizverify.errors import InputError, OutputError, UsageError
from bizverify.tables.packing import File, unpacked_name
from bizverify.tables.table import Enriched, Table, column_ids, flat, refuse_binary

_CHUNK: Final = 1 << 20
_SAMPLE: Final = 1 << 18
_DELIMITERS: Final = (",", ";", "\t", "|")
_TRIAL: Final = 'b_no;"x"..,\r\n1\t2|\n'
_BOMS: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written: a Python codec name, the delimiter and the line end."""

    encoding: str = "utf-8-sig"
    delimiter: str = ","
    line_end: str = "\n"

    @property
    def is_utf8(self) -> bool:
        """Whether polars reads and writes the bytes as they are."""
        return self.encoding in ("utf-8", "utf-8-sig")


def read(file: File, encoding: str | None, resources: ExitStack) -> Table:
    """Open a CSV file as a table of text columns.

    Blank cells are null, quoted blank ones ``""``; a blank line is a row of nulls. Encodings other than UTF-8 are
    transcoded, in chunks, to a private temporary file that lives as long as ``resources``. A bare CR at the very end
    of a cell without quotes is lost: polars takes it for a part of a line end.
    Raises :class:`InputError` for bytes that do not decode and for lines with more fields than the header.
    """
    path = file.path
    dialect, sample = _sniff(file, encoding)
    header = _header(path, sample, dialect.delimiter)
    source = file.data if dialect.is_utf8 else resources.enter_context(_transcoded(file, dialect.encoding))
    frame = pl.scan_csv(
        source,
        separator=dialect.delimiter,
        infer_schema=False,
        glob=False,
        with_column_names=lambda names: column_ids(len(names)),
    )
    try:
        width = len(frame.collect_schema())
    except pl.exceptions.PolarsError as error:
        raise explained(file, dialect, error) from error
    if width != len(header):
        raise InputError(f"{path}: the header line cannot be read; check its quotes")
    return Table(frame, tuple(header), "csv", path.name, file, dialect)


def write(result: Enriched, target: Path, stream: BinaryIO, encoding: str | None) -> pl.DataFrame:
    """Write an enriched table as CSV, in the input's dialect if it was CSV; return the tally.

    Reasons are joined by ``" | "``, nested values written as JSON text.
    Raises :class:`OutputError` naming the text that the encoding lacks.
    """
    dialect = _dialect_for(result.table, target, encoding)
    titled = result.titled(lists=False)
    refuse_binary(titled, "CSV")
    rows = _spelled(flat(titled))
    header = io.StringIO()
    csv.writer(header, delimiter=dialect.delimiter, lineterminator=dialect.line_end).writerow(
        [name for _, name in result.layout]
    )
    with _utf8_sink(stream, dialect) as sink:
        sink.write(header.getvalue().encode("utf-8-sig" if dialect.encoding == "utf-8-sig" else "utf-8"))
        sink.flush()
        query = rows.sink_csv(
            sink,
            include_header=False,
            separator=dialect.delimiter,
            line_terminator=dialect.line_end,
            lazy=True,
        )
        _, tally = pl.collect_all([query, result.tally], engine="streaming")
    return tally


def explained(file: File, dialect: Dialect, error: Exception) -> InputError:
    """Return the reason why polars gave a file up, with the line where it can be found."""
    path = file.path
    if "utf-8" in str(error):
        return InputError(f"{path}: is not {dialect.encoding} throughout; name its encoding, e.g. --encoding cp949")
    with file.data.open(encoding=dialect.encoding, errors="replace", newline="") as text:
        lines = csv.reader(text, delimiter=dialect.delimiter, strict=True)
        done = width = 0
        try:
            for fields in lines:
                width = width or len(fields)
                if len(fields) > width:
                    return InputError(
                        f"{path}: line {lines.line_num} has {len(fields)} fields, the header {width}; "
                        f"quote cells that hold {dialect.delimiter!r}"
                    )
                done = lines.line_num
        except csv.Error:  # a quote that is not closed, or closed before the end of its cell
            return InputError(f"{path}: line {done + 1}: the quotes of a cell do not match; write a quote in it twice")
    return InputError(f"{path}: cannot be read as CSV: {str(error).splitlines()[0]}")


def _spelled(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Times and durations as people write them; a date-time with a zone keeps it."""
    forms = {pl.Time: "%H:%M:%S%.f", pl.Datetime: "%Y-%m-%d %H:%M:%S%.f", pl.Duration: "iso"}
    schema = frame.collect_schema()
    zoned = [name for name, dtype in schema.items() if getattr(dtype, "time_zone", None)]
    return frame.with_columns(
        pl.col(name).dt.to_string("iso" if name in zoned else forms[dtype.base_type()])
        for name, dtype in schema.items()
        if dtype.base_type() in forms
    )


def _dialect_for(table: Table, target: Path, encoding: str | None) -> Dialect:
    """The input's own dialect; another extension than the input's asks for its usual delimiter."""
    dialect = table.source if isinstance(table.source, Dialect) else Dialect()
    delimiter = dialect.delimiter
    suffix = unpacked_name(target).suffix
    if table.file is None or table.file.name.suffix != suffix:
        tabs = suffix.lower() in (".tsv", ".tab")
        delimiter = "\t" if tabs else "," if delimiter == "\t" else delimiter
    return Dialect(_codec(encoding) if encoding else dialect.encoding, delimiter, dialect.line_end)


def _sniff(file: File, encoding: str | None) -> tuple[Dialect, str]:
    path = file.path
    with file.data.open("rb") as stream:
        head = stream.read(_SAMPLE)
    found = _codec(encoding) if encoding else _encoding(file, head)
    try:
        sample = codecs.getincrementaldecoder(found)(errors="replace").decode(head)
    except UnicodeError as error:
        raise _undecodable(path, found, 1, error) from error
    line_end = "\r\n" if "\r\n" in sample else "\n"
    if "\n" not in sample and "\r" in sample:
        raise InputError(f"{path}: lines end in a bare CR (old Macintosh); save it with LF or CRLF line ends")
    return Dialect(found, _delimiter(sample, file.name), line_end), sample


def _codec(name: str) -> str:
    """The codec's own name; it must turn plain text into bytes and back, which base64, idna or undefined do not."""
    try:
        encoded = codecs.getincrementalencoder(name)().encode(_TRIAL, True)
        if isinstance(encoded, bytes) and codecs.getincrementaldecoder(name)().decode(encoded, True) == _TRIAL:
            return codecs.lookup(name).name
    except (LookupError, ValueError, TypeError):
        pass
    raise UsageError(f"unknown encoding {name!r}; use utf-8, utf-8-sig, cp949 or utf-16")


def _encoding(file: File, head: bytes) -> str:
    """The BOM decides; else the first part of the file that is not ASCII: UTF-8 if it decodes as that, else CP949."""
    for bom, name in _BOMS.items():
        if head.startswith(bom):
            return name
    with file.data.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            if chunk.isascii():
                continue
            for name in ("utf-8", "cp949"):
                try:
                    codecs.getincrementaldecoder(name)().decode(chunk)
                except UnicodeDecodeError:
                    continue
                return name
            raise InputError(f"{file.path}: is neither UTF-8 nor CP949; name its encoding with --encoding")
    return "utf-8"


def _delimiter(sample: str, path: Path) -> str:
    """The candidate that splits the most lines into as many fields as the header, more fields first."""
    lines = sample.splitlines(keepends=True)
    whole = lines[:-1] if len(lines) > 1 else lines
    scores = {}
    for delimiter in _DELIMITERS:
        widths = _widths(whole[:200], delimiter)
        if widths and widths[0] > 1:
            scores[delimiter] = (Counter(widths)[widths[0]] / len(widths), widths[0])
    if not scores:
        return "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
    return max(scores, key=lambda delimiter: scores[delimiter])


def _widths(lines: list[str], delimiter: str) -> list[int]:
    """The number of fields of each record, up to one that the csv module gives up (an open quote over pages)."""
    widths: list[int] = []
    with suppress(csv.Error):
        widths.extend(len(fields) for fields in csv.reader(lines, delimiter=delimiter) if fields)
    return widths


def _header(path: Path, sample: str, delimiter: str) -> list[str]:
    lines = csv.reader(io.StringIO(sample.removeprefix("\ufeff")), delimiter=delimiter)
    with suppress(csv.Error):
        for fields in lines:
            if fields:
                return fields
    raise InputError(f"{path}: has no header line, or its quotes do not match")


@contextmanager
def _transcoded(file: File, encoding: str) -> Iterator[Path]:
    """Yield a private temporary UTF-8 copy of a text file, made in chunks."""
    with tempfile.TemporaryDirectory(prefix="bizverify-") as folder:
        copy = Path(folder, "utf8.csv")
        decoder = codecs.getincrementaldecoder(encoding)()
        line = 1
        with file.data.open("rb") as source, copy.open("wb") as sink:
            more = True
            while more:
                more = bool(chunk := source.read(_CHUNK))
                try:
                    text = decoder.decode(chunk, final=not more)
                    sink.write(text.encode())
                except UnicodeError as error:
                    raise _undecodable(file.path, encoding, line, error) from error
                line += text.count("\n")
        yield copy


def _undecodable(path: Path, encoding: str, line: int, error: UnicodeError) -> InputError:
    """Return what is wrong with bytes that follow ``line``; not every codec says which of them it is."""
    reason = str(error)
    if isinstance(error, UnicodeDecodeError):
        line += bytes(error.object[: error.start]).count(b"\n")
        reason = f"byte 0x{error.object[error.start]:02x} is not {encoding}"
    return InputError(f"{path}: line {line}: {reason}; name its encoding with --encoding")


@contextmanager
def _utf8_sink(file: BinaryIO, dialect: Dialect) -> Iterator[BinaryIO]:
    """The file itself where it is UTF-8, else a sink in front of it that encodes."""
    if dialect.is_utf8:
        yield file
    else:
        with io.BufferedWriter(_Encoder(file, dialect.encoding), _CHUNK) as sink:
            yield sink


class _Encoder(io.RawIOBase):
    """A sink that takes UTF-8 in pieces and writes another encoding."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._encoding = encoding
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._encode = codecs.getincrementalencoder(encoding)().encode

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = self._decode(bytes(data))
        try:
            self._file.write(self._encode(text))
        except UnicodeEncodeError as error:
            lacking = text[error.start : error.end]
            raise OutputError(
                f"{self._encoding} has no {lacking!r}; write the output with --output-encoding utf-8-sig"
            ) from error
        return len(data)
