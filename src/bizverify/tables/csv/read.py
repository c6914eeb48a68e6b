"""CSV and TSV → frames. Every cell is text: nothing is parsed, so leading zeros, long numbers and dates stay."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import polars as pl

from bizverify.errors import InputError
from bizverify.tables.csv.dialect import Dialect, sniffed
from bizverify.tables.csv.lines import Irregular, Places, Survey
from bizverify.tables.csv.repair import Repaired, repair
from bizverify.tables.csv.text import Coding, Undecodable, blocks, codings, is_broken_utf8, sample_of
from bizverify.tables.packing import File, private_folder
from bizverify.tables.table import Table, column_ids


def read(file: File, encoding: str | None, resources: ExitStack) -> Table:
    """Open a CSV file as a table of text columns.

    Blank cells are null, quoted blank ones ``""``; a blank line is a row of nulls. Short lines are kept, their missing
    cells null, and named in the table's notes, as are lines with nothing but blank fields beyond the header's. The file
    is looked through once, whole; what polars cannot read as it is (encodings other than UTF-8, lines that end in a
    bare CR, …) goes in the same pass to a private temporary file that lives as long as ``resources``.

    Raises :class:`InputError` for bytes that do not decode, for lines with more fields than the header, for quotes that
    do not match, for NUL bytes, and for a CR in a cell without quotes.
    """
    failures: list[Undecodable] = []
    for coding in codings(file, encoding):
        if failures and is_broken_utf8(file):
            break
        try:
            return _read(file, coding, resources)
        except Undecodable as failure:
            failures.append(failure)
    if len(failures) > 1:
        raise InputError(
            f"{file.path}: is neither UTF-8 ({failures[0]}) nor CP949 ({failures[1]}); "
            "name its encoding with --encoding"
        ) from failures[1]
    raise InputError(f"{file.path}: {failures[0]}; name its encoding with --encoding") from failures[0]


def explained(file: File, dialect: Dialect, error: Exception) -> InputError:
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
            )
        except (InputError, Undecodable) as reason:
            return reason if isinstance(reason, InputError) else InputError(f"{file.path}: {reason}")
    return InputError(f"{file.path}: cannot be read as CSV: {str(error).splitlines()[0]}")


def written_rows(file: File, dialect: Dialect, resources: ExitStack) -> int:
    """Count the rows of a file that was written in a dialect, without looking for it anew."""
    source = file.data
    if not dialect.coding.is_plain:
        source = _private(resources)
        with source.open("wb") as out:
            out.writelines(blocks(file, dialect.coding))
    frame = _scan(source, dialect.delimiter, dialect.skip)
    return Table(frame, dialect.header, "csv", file.path.name, file, dialect).count()


@dataclass(frozen=True, slots=True)
class _Looked:
    """A file that was looked through: where polars reads it, and how many lines it skips there."""

    source: Path
    skip: int
    found: Survey | Repaired


def _read(file: File, coding: Coding, resources: ExitStack) -> Table:
    sample = sample_of(file, coding)
    dialect, headers = sniffed(file.path, file.name, coding, sample, ended=_is_ended(file, coding))
    looked = _looked_through(file, dialect, resources)
    frame = _scan(looked.source, dialect.delimiter, looked.skip)
    try:
        width = len(frame.collect_schema())
    except pl.exceptions.PolarsError as error:
        raise explained(file, dialect, error) from error
    if width != len(headers):
        raise InputError(f"{file.path}: the header line cannot be read; check its quotes")
    return Table(
        frame,
        headers,
        "csv",
        file.path.name,
        file,
        dialect,
        notes=_notes(looked.found, width),
        above=dialect.skip,
        rows=looked.found.rows,
    )


def _scan(source: Path, delimiter: str, skip: int) -> pl.LazyFrame:
    return pl.scan_csv(
        source,
        separator=delimiter,
        skip_lines=skip,
        infer_schema=False,
        glob=False,
        with_column_names=lambda names: column_ids(len(names)),
    )


def _looked_through(file: File, dialect: Dialect, resources: ExitStack) -> _Looked:
    """Verify every byte, find ragged lines, and make the copy that polars reads where it cannot read the file."""
    plain = dialect.coding.is_plain
    source = file.data if plain else _private(resources)
    width = len(dialect.header)
    survey = Survey(file.path, dialect.delimiter, width, dialect.skip)
    with nullcontext() if plain else source.open("wb") as out:
        regular = _surveyed(file, dialect.coding, survey, out)
    if regular:
        return _Looked(source, dialect.skip, survey)
    copy = _private(resources)
    found = repair(file.path, source, copy, delimiter=dialect.delimiter, width=width, skip=dialect.skip)
    return _Looked(copy, 0, found)


def _surveyed(file: File, coding: Coding, survey: Survey, out: BinaryIO | None) -> bool:
    """Whether all lines are such as polars reads; the file is verified, and copied, to its end in any case."""
    regular = True
    for block in blocks(file, coding):
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
    return regular


def _private(resources: ExitStack) -> Path:
    return resources.enter_context(private_folder()) / "plain.csv"


def _is_ended(file: File, coding: Coding) -> bool:
    """Whether the last line has a line end."""
    end = ("\r" if coding.bare_cr else "\n").encode(coding.codec)
    with file.data.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - len(end)))
        return stream.read() == end


def _notes(found: Survey | Repaired, width: int) -> tuple[str, ...]:
    notes = []
    if found.short.count:
        notes.append(_note(found.short, f"fewer fields than the header's {width}; their missing cells are blank"))
    if isinstance(found, Repaired) and found.surplus.count:
        notes.append(_note(found.surplus, f"blank fields beyond the header's {width}, which are left out"))
    return tuple(notes)


def _note(places: Places, what: str) -> str:
    lines = f"{places.count:,} lines have" if places.count > 1 else "1 line has"
    return f"{lines} {what}: {places}"
