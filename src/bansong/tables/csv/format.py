"""CSV files: dialect, header, reader, writer, errors."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeVar, cast

import polars as pl

from bansong.base.errors import InputError, OutputError, Problem, UsageError
from bansong.base.files import private_folder
from bansong.base.isolation import limits, or_raise_limit
from bansong.base.messages import advise, gettext, gettext_noop, parameter
from bansong.base.options import ReadOptions
from bansong.base.schema import OUR_COLUMNS
from bansong.tables.csv import encoding as encodings
from bansong.tables.csv.encoding import MARKED_UTF8, SPACE, Coding, Undecodable, blocks, coding_named
from bansong.tables.csv.lines import Irregular, LineFile, Repaired, Survey, bare_cr, notes, repair
from bansong.tables.detect import FORMATS
from bansong.tables.headers import LOOK, Heading, find_heading, headless, headless_note
from bansong.tables.streams import File, HoldEnd, open_file, packing_of, sink, unpacked_name
from bansong.tables.table import (
    RAW,
    SAMPLE_ROWS,
    Enriched,
    Table,
    Verbs,
    Written,
    column_ids,
    contract_name,
    escape_formula,
    flat,
    positional,
    refuse_binary,
)

HEADER_LINE_MISSING: Final = Problem(
    "csv.header_line_missing", "{path}: has no header line, or its quotes do not match"
)
SEPARATOR_INVALID: Final = Problem(
    "csv.separator_invalid",
    "{option}: must be one character of ASCII that stands between cells, such as ; ^ \\t or \\x01",
)
TOO_MANY_COLUMNS: Final = Problem(
    "csv.too_many_columns",
    "{path}: has {columns:,} columns, more than {most:,}; take out those that are not needed{or_raise}",
)
SEPARATOR_UNCLEAR: Final = Problem(
    "csv.separator_unclear",
    "{path}: the cells seem to be divided by {character}; put a line sep={character} above the header, "
    "as Excel understands it, {advice}",
)

_DELIMITERS: Final = (",", ";", "\t", "|")
_NAMED: Final = re.compile(r'"?sep=([!#-/:-@[-`{-~\x01-\t\x1c-\x1f])"?\n?', re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\(?:t|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_ODD: Final = "^~:#!&\x01\x02\x03\x04\x05\x06\x07\x08\x1c\x1d\x1e\x1f"  # not assumed: cells hold them, too
_REGULAR: Final = 0.9
_JUDGED: Final = 200

LineEnd = Literal["\n", "\r\n", "\r"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The encoding, delimiter, line ends, header lines and quoting of a CSV file."""

    coding: Coding = MARKED_UTF8
    delimiter: str = ","
    line_end: LineEnd = "\n"  # of most lines
    missing_end: str = ""  # what the last line lacks of a line end
    headed: bool = True  # the file has a header line; an output always has one
    prolog: str = ""  # the lines above the last line of the header
    header: tuple[str, ...] = ()  # the cells of that last line
    quoted: frozenset[int] = frozenset()  # positions of the columns whose cells are quoted without need
    quoted_header: bool = False
    titles: int = 0  # lines of the prolog above the header's first line
    header_line: str = field(default="", compare=False)  # as it stands in the file, as all below
    records: LineFile | None = field(default=None, compare=False)  # if a reader takes them as the csv module does

    @property
    def skip(self) -> int:
        return self.prolog.count("\n")


def _read_delimiter(given: str) -> str:
    found = unescape(given)
    if len(found) != 1 or not found.isascii() or found.isalnum() or found in '"\r\n\0 ':
        raise UsageError(SEPARATOR_INVALID, option=parameter("delimiter", given))
    return found


def unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\t" if found[0] == "\\t" else chr(int(found[0][2:], 16)), text)


def _sniff_dialect(file: File, coding: Coding, wanted: ReadOptions) -> tuple[Dialect, tuple[str, ...]]:
    sample = encodings.sample_of(file, coding)
    lines = re.findall(r"[^\n]*\n|[^\n]+", sample)
    delimiter, records, starts, heading = _split(file, lines, wanted)
    headed = heading.last >= 0
    above = starts[heading.last] if headed else int(bool(lines and _named_delimiter(lines)))
    line_end: LineEnd = "\r" if coding.bare_cr else "\r\n" if 2 * sample.count("\r\n") > sample.count("\n") else "\n"
    own = records[heading.last] if headed else list(heading.headers)
    head = "" if headed else delimiter.join(own) + "\n"
    quoted, quoted_header = _quoting(head + "".join(lines[above:]), delimiter)
    header = (*own, *[""] * (len(heading.headers) - len(own)))
    titles, prolog = starts[heading.first] if headed else 0, "".join(lines[:above])
    line = "".join(lines[above : starts[heading.last + 1]]) if headed else ""
    end = ("\r" if coding.bare_cr else "\n").encode(coding.codec)
    with file.data.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - len(end)))
        last = stream.read()
    # of CR LF the file may have kept the CR
    lacking = "" if last == end else "\n" if last == "\r".encode(coding.codec) else line_end
    dialect = Dialect(coding, delimiter, line_end, lacking, headed, prolog, header, quoted, quoted_header, titles, line)
    return dialect, heading.headers


def _split(file: File, lines: list[str], wanted: ReadOptions) -> tuple[str, list[list[str]], list[int], Heading]:
    """Return the delimiter, the first records, the line where each starts, and the header."""
    # the delimiter of a header with a single field is the default one
    path = file.path
    given = None if wanted.delimiter is None else _read_delimiter(wanted.delimiter)
    alone = given or ("\t" if file.name.suffix.lower() in (".tsv", ".tab") else ",")
    for delimiter in (alone,) if given else (*_delimiters(lines), alone):
        records, starts = _records(lines, delimiter)
        if not records:
            break
        narrowest = min(filter(None, map(len, records[:LOOK])), default=0)
        _refuse_wide(path, narrowest)  # before the header is found, which looks at every cell
        rows = records[1:] if _named_delimiter(lines) else records
        bare = None if wanted.has_header else headless(rows, name=str(path))
        heading = bare or find_heading(records, name=str(path))
        _refuse_wide(path, len(heading.headers))
        if delimiter == alone and not given and len(heading.headers) == 1:
            _refuse_odd(path, lines)
        if delimiter == alone or len(heading.headers if heading.last < 0 else records[heading.last]) > 1:
            return delimiter, records, starts, heading
    if lines and "\r" in lines[0].removesuffix("\n").removesuffix("\r"):
        raise bare_cr(path, 1)
    raise InputError(HEADER_LINE_MISSING, path=path)


def _refuse_odd(path: Path, lines: list[str]) -> None:
    for odd, (share, _) in _scores(lines, _ODD).items():
        if share >= _REGULAR:
            shown = odd if odd.isprintable() else f"\\x{ord(odd):02x}"
            named = gettext("or name it with {option}", option=parameter("delimiter", shown))
            commas = gettext("or divide the cells by commas")
            raise InputError(SEPARATOR_UNCLEAR, path=path, character=shown, advice=advise("delimiter", named, commas))


def _refuse_wide(path: Path, columns: int) -> None:
    most, or_raise = limits().columns, or_raise_limit("columns", str(columns))
    if columns > most:  # polars takes a minute for a million columns
        raise InputError(TOO_MANY_COLUMNS, path=path, columns=columns, most=most, or_raise=or_raise)


def _delimiters(lines: list[str]) -> list[str]:
    if lines and (named := _named_delimiter(lines)):
        return [named]
    scores = _scores(lines, _DELIMITERS)
    return sorted(scores, key=lambda delimiter: scores[delimiter], reverse=True)


def _scores(lines: list[str], delimiters: Iterable[str]) -> dict[str, tuple[float, int]]:
    """Return for each delimiter the share of lines with the most frequent number of fields, and that number."""
    scores = {}
    for delimiter in delimiters:
        widths = Counter(map(len, filter(None, _records(lines[:_JUDGED], delimiter)[0])))
        several = {width: count for width, count in widths.items() if width > 1}
        if several:
            width = max(several, key=lambda width: (several[width], width))
            scores[delimiter] = (several[width] / widths.total(), width)
    return scores


def _named_delimiter(lines: list[str]) -> str | None:
    named = _NAMED.fullmatch(unescape(lines[0].replace("\r", "")))
    return named[1] if named else None


def _records(lines: list[str], delimiter: str) -> tuple[list[list[str]], list[int]]:
    """Return the first records and the line (from 0) of each, up to one that the csv module refuses."""
    records: list[list[str]] = []
    starts = [0]
    reader = csv.reader(lines, delimiter=delimiter)
    with suppress(csv.Error):
        for fields in islice(reader, max(LOOK, _JUDGED)):
            records.append(fields)
            starts.append(reader.line_num)
    return records, starts


def _quoting(sample: str, delimiter: str) -> tuple[frozenset[int], bool]:
    d = re.escape(delimiter)
    token = re.compile(rf'("(?:[^"]|"")*"|[^{d}\r\n]*)({d}|\r?\n|\r|\Z)')
    needful = re.compile(rf'[{d}\r\n]|""')
    cells: list[list[str]] = [[]]
    for found in islice(token.finditer(sample), 100 * _JUDGED):
        cells[-1].append(found[1])
        if found[2] != delimiter:
            if len(cells) > _JUDGED:
                break
            cells.append([])
    header, rows = cells[0], cells[1:]
    quoted_header = any(header) and all(cell.startswith('"') for cell in header if cell)
    always, bare = set(), set()
    for column in range(len(header)):
        held = [row[column] for row in rows if column < len(row) and row[column]]
        if not all(cell.startswith('"') for cell in held):
            bare.add(column)
        elif any(len(cell) > 2 and not needful.search(cell[1:-1]) for cell in held):
            always.add(column)
    if (always or (quoted_header and not any(map(any, rows)))) and not bare:  # blank columns go with the others
        always = set(range(len(header)))
    return frozenset(always), quoted_header


ENCODING_MISMATCHED: Final = Problem("csv.encoding_mismatched", "{path}: {failure}; {advice}{two}")
CSV_UNREADABLE: Final = Problem("csv.csv_unreadable", "{path}: cannot be read as CSV: {reason}")
NEITHER_UTF8_NOR_CP949: Final = Problem(
    "csv.neither_utf8_nor_cp949", "{path}: is neither UTF-8 ({first}) nor CP949 ({second}); {advice}{two}"
)
HEADER_LINE_UNREADABLE: Final = Problem(
    "csv.header_line_unreadable", "{path}: the header line cannot be read; check its quotes"
)

T = TypeVar("T")

_TWO: Final = gettext_noop(", or if files of two encodings were put together, save both as UTF-8 first")
_SPACE: Final = SPACE.encode()
_BEGINNING: Final = 1 << 20


def decode_file(file: File, encoding: str | None, read: Callable[[Coding], T]) -> T:
    failures: list[Undecodable] = []
    for coding in encodings.codings(file, encoding):
        if failures and encodings.is_broken_utf8(file):
            break
        try:
            return read(coding)
        except Undecodable as failure:
            failures.append(failure)
    advice = advise("encoding", gettext("name its encoding with `encoding=`"), gettext("save it as UTF-8"))
    first, second = failures[0], failures[-1]
    said = {"path": file.path, "advice": advice, "two": gettext(_TWO)}
    if first is not second:
        raise InputError(NEITHER_UTF8_NOR_CP949, first=first, second=second, **said) from second
    raise InputError(ENCODING_MISMATCHED, failure=first, **said) from first


def _explain_error(file: File, dialect: Dialect, error: BaseException) -> InputError:
    try:
        with ExitStack() as resources:
            repair(file.path, _plain_copy(file, dialect.coding, resources), _private(resources), dialect)
    except InputError as reason:
        return reason
    except Undecodable as reason:
        return InputError(f"{file.path}: {reason}")
    return InputError(CSV_UNREADABLE, path=file.path, reason=str(error).splitlines()[0])


def _plain_copy(file: File, coding: Coding, resources: ExitStack) -> Path:
    copy = _private(resources)
    with copy.open("wb") as out:
        out.writelines(blocks(file, coding))
    return copy


def _read(file: File, coding: Coding, wanted: ReadOptions, resources: ExitStack) -> Table:
    dialect, headers = _sniff_dialect(file, coding, wanted)
    source = file.data if coding.is_plain else _private(resources)
    start = len(coding.mark) if coding.is_plain else 0
    beginning = None
    found: Survey | Repaired = (survey := Survey(file.path, dialect, source, start, _private(resources)))
    with nullcontext() if coding.is_plain else source.open("wb") as out:
        regular, raw_spaces = _survey_blocks(file, coding, survey, out)
    if regular:
        frame, beginning = _scan(source, dialect), _first_rows(survey.records(), dialect)
        if dialect.headed or dialect.skip or not start:  # else a mark stands before the first cell
            dialect = replace(dialect, records=survey.records())
    else:
        copy = _private(resources)
        found = repair(file.path, source, copy, dialect)
        frame = _scan(copy, replace(dialect, headed=True, prolog=""))
    try:
        width = len(frame.collect_schema())
    except pl.exceptions.PolarsError as error:
        raise _explain_error(file, dialect, error) from error
    if width != len(headers):
        raise InputError(HEADER_LINE_UNREADABLE, path=file.path)
    return Table(
        frame,
        headers,
        FORMATS["csv"],
        file.path.name,
        file,
        dialect,
        notes=(*([] if dialect.headed else [headless_note(headers)]), *notes(found, raw_spaces, dialect)),
        above=dialect.skip if dialect.headed else 0,
        titles=dialect.titles if dialect.headed else 0,
        rows=found.rows,
        loose=len(headers) == 1,
        beginning=beginning,
    )


def _first_rows(records: LineFile, dialect: Dialect) -> pl.LazyFrame | None:
    with records.path.open("rb") as file:  # the reader of a file reads 130 MB ahead
        lines = file.read(_BEGINNING)
    if records.marked or lines.count(b"\n") - records.above < SAMPLE_ROWS:
        return None
    return _scan(lines[: lines.rindex(b"\n") + 1], dialect)


def _scan(source: Path | bytes, dialect: Dialect) -> pl.LazyFrame:
    ids = column_ids(len(dialect.header))
    return pl.scan_csv(
        source,
        separator=dialect.delimiter,
        skip_lines=dialect.skip,
        infer_schema=False,
        glob=False,
        has_header=dialect.headed,
        schema=None if dialect.headed else dict.fromkeys(ids, pl.String),
        missing_columns="raise" if dialect.headed else "insert",  # the first line may be short
        with_column_names=(lambda names: column_ids(len(names))) if dialect.headed else None,
    )


def _survey_blocks(file: File, coding: Coding, survey: Survey, out: BinaryIO | None) -> tuple[bool, int]:
    """Return whether polars reads all lines as they are, and the number of no-break spaces outside the encoding."""
    regular, raw_spaces = True, 0
    for block in blocks(file, coding):  # verified, and copied, to the end in any case
        if coding.raw_spaces:
            raw_spaces += block.count(_SPACE)
        if out is not None:
            out.write(block)
            out.flush()  # the survey copies from there
        try:
            if regular:
                survey.feed(block)
        except Irregular:
            regular = False
    return regular and not survey.pending, raw_spaces


def _private(resources: ExitStack) -> Path:
    return resources.enter_context(private_folder()) / "plain.csv"


CHARACTER_NOT_ENCODABLE: Final = Problem(
    "csv.character_not_encodable",
    "{where}: {encoding} has no {character!r}; write the output with `output_encoding='utf-8-sig'`",
)

_CHUNK: Final = 1 << 20
_TEXTLESS: Final = {"bounce_prob", "bounced", "bounced_at", "duplicate_of"}


def _append_cells(result: Enriched, dialect: Dialect, records: LineFile) -> tuple[pl.LazyFrame, str, str]:
    """Return the input's own lines with the added cells, the heading, and the line end."""
    added = replace(result, layout=result.layout[len(result.table.headers) :])
    cells = _quote_cells(_cells(added), added, dialect)
    line_end: str = _line_end(dialect)
    query = pl.concat([records.scan(), cells], how="horizontal")
    if records.marked:
        query, line_end = query.with_columns(_unmark(cells.collect_schema().names()[-1], dialect)), "\n"
    heading = _heading(result, dialect)
    if line := dialect.header_line:
        own = line.removesuffix("\n").removesuffix("\r")
        ours = _header_row([header for _, header in added.layout], dialect, line[len(own) :] or _line_end(dialect))
        heading = f"{dialect.prolog}{own}{dialect.delimiter}{ours}"
    return query, heading, line_end


def _unmark(last: str, dialect: Dialect) -> list[pl.Expr]:
    usual, other = ("\r", "") if dialect.line_end == "\r\n" else ("", "\r")
    text = pl.col(RAW).str.strip_suffix(f"{other}\0").str.replace_all("\0", "\n", literal=True)
    end = pl.when(pl.col(RAW).str.ends_with("\0")).then(pl.lit(other)).otherwise(pl.lit(usual))
    return [text, pl.concat_str(pl.col(last).cast(pl.String).fill_null(""), end).alias(last)]


def _send(
    result: Enriched, dialect: Dialect, target: Path, query: pl.LazyFrame, heading: str, line_end: str, style: Any
) -> Written:
    lacking: list[str] = []
    form: dict[str, Any] = {"separator": dialect.delimiter, "line_terminator": line_end, "quote_style": style}
    with sink(target, packing_of(target)) as stream:
        stream.write(dialect.coding.mark)
        try:
            with _sink(stream, dialect, lacking, "" if len(result.layout) == 1 else dialect.missing_end) as out:
                out.write(heading.encode())
                out.flush()
                written = query.sink_csv(out, include_header=False, lazy=True, **form)
                _, tally = pl.collect_all([written, result.tally], engine="streaming")
        except Exception as error:  # polars does not pass on what it was, only what it said
            if not lacking:
                raise
            raise _unwritable(result, dialect, lacking[0]) from error
    return Written(tally)


def _cells(result: Enriched) -> pl.LazyFrame:
    schema = result.frame.collect_schema()
    # the user's own cells stay as they are
    ours = [name for name, _ in result.layout if contract_name(name) in OUR_COLUMNS and schema[name] == pl.String]
    escaped = result.frame.with_columns(map(escape_formula, ours))
    titled = replace(result, frame=escaped).with_titles(lists=False)
    refuse_binary(titled, "CSV")
    return _format_times(flat(titled))


def _dialect_for(table: Table, target: Path, encoding: str | None) -> Dialect:
    """Return the output's dialect: the input's, except for ``encoding`` and the delimiter of another extension."""
    dialect = table.source if isinstance(table.source, Dialect) else Dialect()
    delimiter = dialect.delimiter
    suffix = unpacked_name(target).suffix
    if table.file is None or table.file.name.suffix != suffix:
        tabs = suffix.lower() in (".tsv", ".tab")
        delimiter = "\t" if tabs else "," if delimiter == "\t" else delimiter
    own = coding = dialect.coding
    if encoding:  # the same by name keeps its no-break spaces
        coding = coding_named(encoding)
        coding = replace(coding, bare_cr=own.bare_cr, raw_spaces=own.raw_spaces and coding.codec == own.codec)
    prolog = dialect.prolog if delimiter == dialect.delimiter else _change_delimiter(dialect, delimiter)
    return replace(dialect, coding=coding, delimiter=delimiter, prolog=prolog, headed=True)


def _change_delimiter(dialect: Dialect, delimiter: str) -> str:
    """Return the lines above the header with another delimiter, without the line ``sep=``, which names the old one."""
    out = io.StringIO()
    lines = csv.reader(io.StringIO(dialect.prolog, newline=""), delimiter=dialect.delimiter)
    writer = csv.writer(out, delimiter=delimiter, lineterminator=_line_end(dialect))
    named = ("sep=", f"sep={dialect.delimiter}")
    writer.writerows(line for line in lines if unescape("".join(line).lower()) not in named)
    return out.getvalue()


def _line_end(dialect: Dialect) -> Literal["\n", "\r\n", "\r"]:
    # the sink turns LF into CR for files of bare CR
    return "\n" if dialect.coding.bare_cr else dialect.line_end


def _heading(result: Enriched, dialect: Dialect) -> str:
    own = {f"c{place}": cell for place, cell in enumerate(dialect.header)}
    headers = [own.get(column, header) for column, header in result.layout]
    return dialect.prolog + _header_row(headers, dialect, _line_end(dialect))


def _header_row(headers: list[str], dialect: Dialect, line_end: str) -> str:
    out = io.StringIO()
    quoting: Literal[0, 1] = csv.QUOTE_ALL if dialect.quoted_header else csv.QUOTE_MINIMAL
    csv.writer(out, delimiter=dialect.delimiter, lineterminator=line_end, quoting=quoting).writerow(headers)
    return out.getvalue()


def _format_times(frame: pl.LazyFrame) -> pl.LazyFrame:
    forms = {pl.Time: "%H:%M:%S%.f", pl.Datetime: "%Y-%m-%d %H:%M:%S%.f", pl.Duration: "iso"}
    schema = frame.collect_schema()
    zoned = [name for name, dtype in schema.items() if getattr(dtype, "time_zone", None)]
    return frame.with_columns(
        pl.col(name).dt.to_string("iso" if name in zoned else forms[dtype.base_type()])
        for name, dtype in schema.items()
        if dtype.base_type() in forms
    )


def _quote_cells(rows: pl.LazyFrame, result: Enriched, dialect: Dialect) -> pl.LazyFrame:
    if dialect.quoted or dialect.delimiter in "-.:":  # numbers and days may hold these
        rows = rows.with_columns(pl.all().cast(pl.String))
    whole = dialect.quoted and len(dialect.quoted) == len(dialect.header)
    always = {f"c{place}" for place in dialect.quoted} | (set(OUR_COLUMNS) - _TEXTLESS if dialect.quoted else set())
    columns = zip(rows.collect_schema().items(), result.layout, strict=True)
    return rows.with_columns(
        _in_quotes(name, dialect.delimiter, always=whole or contract_name(column) in always)
        for (name, dtype), (column, _) in columns
        if dtype == pl.String
    )


def _in_quotes(name: str, delimiter: str, *, always: bool) -> pl.Expr:
    cell = pl.col(name)
    needs = (cell == "") | cell.str.contains(f'[{re.escape(delimiter)}"\n\r]')
    quoted = cell if always else pl.when(needs).then(cell)  # nulls cost little
    return pl.coalesce('"' + quoted.str.replace_all('"', '""', literal=True) + '"', cell).alias(name)


def _unwritable(result: Enriched, dialect: Dialect, character: str) -> OutputError:
    rows, headers = _cells(result), [header for _, header in result.layout]
    names = rows.collect_schema().names()
    cells = positional(rows, names).with_columns(pl.all().cast(pl.String))
    held = [pl.col(f"c{place}").str.contains(character, literal=True).fill_null(False) for place in range(len(names))]
    found = cells.select(held).with_row_index("row").filter(pl.any_horizontal(pl.exclude("row"))).head(1)
    first = found.collect(engine="streaming")
    if character in _heading(result, dialect) or first.is_empty():
        where = gettext("the header")
    else:
        row, *holds = first.row(0)
        place = gettext_noop("row {row:,} below the header, column {header!r}")
        where = gettext(place, row=row + 1, header=headers[holds.index(True)])
    return OutputError(CHARACTER_NOT_ENCODABLE, where=where, encoding=dialect.coding, character=character)


@contextmanager
def _sink(file: BinaryIO, dialect: Dialect, lacking: list[str], missing_end: str) -> Iterator[BinaryIO]:
    # lacking: gets the first character that the encoding does not have
    with ExitStack() as sinks:
        if missing_end:
            file = sinks.enter_context(cast("BinaryIO", HoldEnd(file, missing_end.encode(dialect.coding.codec))))
        if not dialect.coding.is_plain:
            file = sinks.enter_context(io.BufferedWriter(_Encoder(file, dialect, lacking), _CHUNK))
        yield file


class _Encoder(io.RawIOBase):
    """A sink that takes pieces of UTF-8 and writes another encoding or other line ends."""

    def __init__(self, file: BinaryIO, dialect: Dialect, lacking: list[str]) -> None:
        self._file = file
        self._bare_cr = dialect.coding.bare_cr
        self._lacking = lacking
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._encode = dialect.coding.encoder().encode

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = self._decode(bytes(data))
        try:
            self._file.write(self._encode(text.replace("\n", "\r") if self._bare_cr else text))
        except UnicodeEncodeError as error:
            self._lacking.append(text[error.start])
            raise
        return len(data)


class CsvVerbs(Verbs):
    """CSV and TSV, in the dialect of the input."""

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        # blank cells are null, quoted blank ones ""; the pass that checks the file copies it if polars cannot read it
        return decode_file(file, wanted.encoding, lambda coding: _read(file, coding, wanted, resources))

    def splice(self, result: Enriched, target: Path) -> Written | None:
        own, dialect = result.table.source, _dialect_for(result.table, target, result.encoding)
        if not isinstance(own, Dialect) or own.records is None or own.delimiter != dialect.delimiter:
            return None
        ids = result.table.ids
        if len(result.layout) == len(ids) or [column for column, _ in result.layout][: len(ids)] != ids:
            return None
        with suppress(pl.exceptions.ShapeError):  # not one answer a record: the balance of what is rendered says so
            return _send(result, dialect, target, *_append_cells(result, dialect, own.records), "never")
        return None

    def render(self, result: Enriched, target: Path) -> Written:
        dialect = _dialect_for(result.table, target, result.encoding)
        query, style = _cells(result), "necessary"
        if dialect.quoted:
            query, style = _quote_cells(query, result, dialect), "never"
        return _send(result, dialect, target, query, _heading(result, dialect), _line_end(dialect), style)

    def count(self, result: Enriched, path: Path) -> int:
        dialect = _dialect_for(result.table, path, result.encoding)
        with ExitStack() as resources:
            file = open_file(path, resources)
            source = file.data if dialect.coding.is_plain else _plain_copy(file, dialect.coding, resources)
            return Table(_scan(source, dialect), dialect.header, self.format, path.name).count()

    def explain(self, table: Table, error: BaseException) -> InputError:
        if table.file is None or not isinstance(table.source, Dialect):
            return super().explain(table, error)
        return _explain_error(table.file, table.source, error)
