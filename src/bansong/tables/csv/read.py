"""CSV and TSV → frames. Every cell is text: nothing is parsed, so leading zeros, long numbers and dates stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import polars as pl

from bansong.errors import InputError, Problem
from bansong.storage.filesystem import private_folder
from bansong.tables.compression import File
from bansong.tables.csv.dialect import Dialect, sniff_dialect
from bansong.tables.csv.encoding import SPACE, Coding, Undecodable, blocks, codings, is_broken_utf8, sample_of
from bansong.tables.csv.line_check import Irregular, Repaired, Survey, repair
from bansong.tables.detect import FORMATS
from bansong.tables.format import ReadAs
from bansong.tables.heading import headless_note
from bansong.tables.table import Table, column_ids
from bansong.translation import advise, gettext, gettext_noop, ngettext

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


def read(file: File, wanted: ReadAs, resources: ExitStack) -> Table:
    """Open a CSV file as a table of text columns.

    Blank cells are null, quoted blank ones ``""``; a blank line is a row of nulls. Short lines are kept, their missing
    cells null, and named in the table's notes, as are lines with nothing but blank fields beyond the header's. The file
    is looked through once, whole; what polars cannot read as it is (encodings other than UTF-8, lines that end in a
    bare CR, …) goes in the same pass to a private temporary file that lives as long as ``resources``. Without a header
    every line is a row, and the columns are called ``#1``, ``#2``, …

    Raises :class:`InputError` for bytes that do not decode, for lines with more fields than the header, for quotes that
    do not match, for NUL bytes, and for a CR in a cell without quotes.
    """
    return decode_file(file, wanted.encoding, lambda coding: _read(file, coding, wanted, resources))


def decode_file(file: File, encoding: str | None, read: Callable[[Coding], T]) -> T:
    """Read a file in the encoding that it is in: the first of its ``codings`` in which all of its bytes decode.

    Raises :class:`InputError` where there is none.
    """
    failures: list[Undecodable] = []
    for coding in codings(file, encoding):
        if failures and is_broken_utf8(file):
            break
        try:
            return read(coding)
        except Undecodable as failure:
            failures.append(failure)
    advice = advise("encoding", gettext("name its encoding with `encoding=`"), gettext("save it as UTF-8"))
    if len(failures) > 1:
        raise InputError(
            NEITHER_UTF8_NOR_CP949,
            path=file.path,
            first=failures[0],
            second=failures[1],
            advice=advice,
            two=gettext(_TWO),
        ) from failures[1]
    raise InputError(
        ENCODING_MISMATCHED, path=file.path, failure=failures[0], advice=advice, two=gettext(_TWO)
    ) from failures[0]


def explain_error(file: File, dialect: Dialect, error: BaseException) -> InputError:
    """Return the reason why polars gave a file up, with the line where it can be found."""
    with private_folder() as folder:
        plain, copy = folder / "plain.csv", folder / "copy.csv"
        try:
            with plain.open("wb") as out:
                out.writelines(blocks(file, dialect.coding))
            repair(
                file.path,
                plain,
                copy,
                delimiter=dialect.delimiter,
                width=len(dialect.header),
                skip=dialect.skip,
                headed=dialect.headed,
            )
        except (InputError, Undecodable) as reason:
            return reason if isinstance(reason, InputError) else InputError(f"{file.path}: {reason}")
    return InputError(CSV_UNREADABLE, path=file.path, reason=str(error).splitlines()[0])


def written_rows(file: File, dialect: Dialect, resources: ExitStack) -> int:
    """Count the rows of a file that was written in a dialect, without looking for it anew."""
    source = file.data
    if not dialect.coding.is_plain:
        source = _private(resources)
        with source.open("wb") as out:
            out.writelines(blocks(file, dialect.coding))
    frame = _scan(source, dialect, dialect.skip)
    return Table(frame, dialect.header, FORMATS["csv"], file.path.name, file, dialect).count()


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A file that was looked through: where polars reads it, how many lines it skips there, and if a header follows.

    ``raw_spaces``: no-break spaces that its encoding does not have.
    """

    source: Path
    skip: int
    headed: bool
    found: Survey | Repaired
    raw_spaces: int


def _read(file: File, coding: Coding, wanted: ReadAs, resources: ExitStack) -> Table:
    sample = sample_of(file, coding)
    dialect, headers = sniff_dialect(
        file.path,
        file.name,
        coding,
        sample,
        ended=_is_ended(file, coding),
        has_header=wanted.has_header,
        delimiter=wanted.delimiter,
    )
    looked = _check_file(file, dialect, resources)
    frame = _scan(looked.source, replace(dialect, headed=looked.headed), looked.skip)
    try:
        width = len(frame.collect_schema())
    except pl.exceptions.PolarsError as error:
        raise explain_error(file, dialect, error) from error
    if width != len(headers):
        raise InputError(HEADER_LINE_UNREADABLE, path=file.path)
    return Table(
        frame,
        headers,
        FORMATS["csv"],
        file.path.name,
        file,
        dialect,
        notes=(*([] if dialect.headed else [headless_note(headers)]), *_notes(looked, width, dialect)),
        above=dialect.skip if dialect.headed else 0,
        titles=dialect.titles if dialect.headed else 0,
        rows=looked.found.rows,
        loose=len(headers) == 1,
    )


def _scan(source: Path, dialect: Dialect, skip: int) -> pl.LazyFrame:
    ids = column_ids(len(dialect.header))
    return pl.scan_csv(
        source,
        separator=dialect.delimiter,
        skip_lines=skip,
        infer_schema=False,
        glob=False,
        has_header=dialect.headed,
        schema=None if dialect.headed else dict.fromkeys(ids, pl.String),
        missing_columns="raise" if dialect.headed else "insert",  # the first line may be short
        with_column_names=(lambda names: column_ids(len(names))) if dialect.headed else None,
    )


def _check_file(file: File, dialect: Dialect, resources: ExitStack) -> _CheckedFile:
    """Verify every byte, find ragged lines, and make the copy that polars reads where it cannot read the file."""
    plain = dialect.coding.is_plain
    source = file.data if plain else _private(resources)
    width = len(dialect.header)
    survey = Survey(file.path, dialect.delimiter, width, dialect.skip, headed=dialect.headed)
    with nullcontext() if plain else source.open("wb") as out:
        regular, raw_spaces = _survey_blocks(file, dialect.coding, survey, out)
    if regular:
        return _CheckedFile(source, dialect.skip, dialect.headed, survey, raw_spaces)
    copy = _private(resources)
    skip, headed = dialect.skip, dialect.headed
    found = repair(file.path, source, copy, delimiter=dialect.delimiter, width=width, skip=skip, headed=headed)
    return _CheckedFile(copy, 0, True, found, raw_spaces)


def _survey_blocks(file: File, coding: Coding, survey: Survey, out: BinaryIO | None) -> tuple[bool, int]:
    """Whether all lines are such as polars reads, and how many no-break spaces the encoding does not have.

    The file is verified, and copied, to its end in any case.
    """
    regular, raw_spaces = True, 0
    for block in blocks(file, coding):
        if coding.raw_spaces:
            raw_spaces += block.count(_SPACE)
        if out is not None:
            out.write(block)
        try:
            if regular:
                survey.feed(block)
        except Irregular:
            regular = False
    try:
        survey.finish()
    except Irregular:
        regular = False
    return regular, raw_spaces


def _private(resources: ExitStack) -> Path:
    return resources.enter_context(private_folder()) / "plain.csv"


def _is_ended(file: File, coding: Coding) -> bool:
    end = ("\r" if coding.bare_cr else "\n").encode(coding.codec)
    with file.data.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - len(end)))
        return stream.read() == end


def _notes(looked: _CheckedFile, width: int, dialect: Dialect) -> tuple[str, ...]:
    notes, found = [], looked.found
    most = gettext("the header's {width}", width=width) if dialect.headed else f"{width}"
    if found.short.count:
        notes.append(
            ngettext(
                "1 line has fewer fields than {most}; their missing cells are blank: {places}",
                "{count:,} lines have fewer fields than {most}; their missing cells are blank: {places}",
                found.short.count,
                most=most,
                places=found.short,
            )
        )
    if isinstance(found, Repaired) and found.surplus.count:
        notes.append(
            ngettext(
                "1 line has blank fields beyond {most}, which are left out: {places}",
                "{count:,} lines have blank fields beyond {most}, which are left out: {places}",
                found.surplus.count,
                most=most,
                places=found.surplus,
            )
        )
    if looked.raw_spaces:
        notes.append(
            ngettext(
                "{count:,} byte 0xA0, which CP949 does not have, read as no-break spaces and written as they were",
                "{count:,} bytes 0xA0, which CP949 does not have, read as no-break spaces and written as they were",
                looked.raw_spaces,
            )
        )
    return tuple(notes)
