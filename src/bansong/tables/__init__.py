"""Reads files as frames and writes frames as files; a package or a module a format.

- ``format`` (what a format is), ``detect`` (the registry of formats), ``compression`` (.gz, .zst), ``table`` (what
  passes between readers and writers), ``publish`` (files appear whole or not at all), ``size_limits`` and ``isolation``
  (hostile files: limits, and a child process with limited memory and time)
- ``csv``, ``excel``, ``json`` (packages), ``html``, ``parquet``, ``frames``: the formats
- ``input_files``: which files a name, glob or folder means; ``standard_streams``: what is piped in and out
- ``heading``: the header among the first rows; ``header_vocabulary`` and ``headers.toml``: the words of headers
- ``earlier_columns``: the columns that an earlier run added, wherever they stand now
- ``columns``: a column for each role; ``column_preference`` (one of several), ``given_columns`` (named by the user),
  ``role_content`` (found by content; joined values), ``nested`` (values within objects)

The code of a format is imported when a file is of it: together they take as long as a small file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import with_words
from bansong.errors import InputError, Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.tables.compression import open_file
from bansong.tables.detect import FORMATS, detect_format
from bansong.tables.format import Format, ReadAs
from bansong.tables.publish import is_unfinished, publish_file, remove_unfinished
from bansong.tables.table import Enriched, Table, with_copies
from bansong.translation import OptionNames, current_audience, gettext, gettext_noop, parameter, use_audience

OUTPUT_ENCODING_NEEDLESS: Final = Problem(
    "csv.output_encoding_needless", "{target}: `output_encoding=` is for CSV files"
)
OPTION_NOT_FOR_FORMAT: Final = Problem(
    "files.option_not_for_format", "{path}: {named} is for {meant}, this file is {format}"
)
TABLE_COPY_FAILED: Final = Problem(
    "files.table_copy_failed", "{path}: cannot be read: {reason}; TMPDIR chooses where copies are made"
)

__all__ = [
    "FILE_OPTIONS",
    "FORMATS",
    "ONLY_ENCODING",
    "OPTIONS",
    "Enriched",
    "Format",
    "Table",
    "is_unfinished",
    "open_table",
    "publish_file",
    "reading",
    "remove_unfinished",
    "write_table",
]

OPTIONS: Final = {name: name for name in ("sheet", "encoding", "json_path", "delimiter")}
"""The options of reading, and what they are called by the caller."""
FILE_OPTIONS: Final = {option: f"file_{option}" for option in OPTIONS}
"""Their names where two files are read, and this is the enriched one."""
ONLY_ENCODING: Final = {name: name for name in ("encoding", "delimiter")}
_MEANT: Final = {
    "sheet": gettext_noop("workbooks"),
    "encoding": gettext_noop("CSV files"),
    "json_path": gettext_noop("JSON documents"),
    "delimiter": gettext_noop("CSV files"),
    "has_header": gettext_noop("CSV files and workbooks"),
}
"""What each option is for, as messages say it."""


@contextmanager
def open_table(
    path: Path,
    *,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    has_header: bool = True,
    delimiter: str | None = None,
    options: Mapping[str, str] = OPTIONS,
    data: Path | None = None,
) -> Iterator[Table]:
    """Open a file as a lazy :class:`Table`, its format found by content and extension; packed files are unpacked.

    ``data``: where it is, if not at ``path``, which is then only what it is called. ``options``: the options of the
    caller that messages may name (see :data:`OPTIONS`).
    Raises :class:`InputError`; :class:`UsageError` where ``sheet``, ``encoding``, ``json_path``, ``delimiter`` or a
    missing header has no meaning for the format.
    """
    wanted = ReadAs(sheet, encoding, json_path, delimiter, has_header)
    with ExitStack() as resources:
        try:
            with use_audience(OptionNames(current_audience(), options, frozenset(OPTIONS))):
                file = open_file(path, resources, data)
                format = detect_format(file, delimiter)
                _refuse_needless(path, format, wanted)
                table = format.verbs.read(file, wanted, resources)
        except OSError as error:  # a disk that fails, or no room left for a private copy
            reason = f"{describe_os_error(error)}{f' ({error.filename})' if error.filename else ''}"
            raise InputError(TABLE_COPY_FAILED, path=path, reason=reason) from error
        yield table


def _refuse_needless(path: Path, format: Format, wanted: ReadAs) -> None:
    can = format.can
    for option, given, meant in (
        ("sheet", wanted.sheet is not None, can.sheets),
        ("encoding", wanted.encoding is not None, can.encoding),
        ("json_path", wanted.json_path is not None, can.json_path),
        ("delimiter", wanted.delimiter is not None, can.delimiter),
        ("has_header", not wanted.has_header, can.headless),
    ):
        if given and not meant:
            named = parameter(option, False) if option == "has_header" else parameter(option)
            raise UsageError(
                OPTION_NOT_FOR_FORMAT, path=path, named=named, meant=gettext(_MEANT[option]), format=format.name
            )


@contextmanager
def reading(table: Table) -> Iterator[None]:
    """Turn what polars says about an unreadable part of a file into an :class:`InputError` that names the place."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # a panic is no Exception
        if "KeyboardInterrupt" in str(error):  # raised while a query was built, of which polars makes a panic
            raise KeyboardInterrupt from error
        if table.file is None:
            raise
        raise table.format.verbs.explain(table, error) from error


def write_table(
    result: Enriched, target: Path, format: Format, encoding: str | None = None, *, anew: bool = False
) -> tuple[pl.DataFrame, Callable[[], int]]:
    """Write an enriched table to ``target`` in a format, packed as its name says.

    ``anew``: never into a copy of the input, which has rows that the table leaves out.
    Returns the tally of the same pass, and a call that counts the rows of the finished file. Raises
    :class:`OutputError`; :class:`UsageError` where ``encoding`` has no meaning for the format.
    """
    if encoding is not None and not format.can.encoding:
        raise UsageError(OUTPUT_ENCODING_NEEDLESS, target=target)
    frame = with_copies(with_words(result.frame, result.lang), result.layout)
    result, verbs = replace(result, frame=frame, encoding=encoding), format.verbs
    written = (None if anew else verbs.splice(result, target)) or verbs.render(result, target)
    rows = written.rows
    return written.tally, lambda: verbs.count(result, target) if rows is None else rows
