"""Reads files as frames and writes frames as files; a package or a module a format.

- ``detect`` (formats, extensions), ``compression`` (.gz, .zst), ``table`` (what passes between readers and writers),
  ``publish`` (files appear whole or not at all), ``size_limits`` and ``isolation`` (hostile files: limits, and a child
  process with limited memory and time)
- ``csv``, ``excel``, ``json`` (packages), ``html``, ``parquet``, ``frames``: the formats
- ``input_files``: which files a name, glob or folder means; ``standard_streams``: what is piped in and out
- ``heading``: the header among the first rows; ``header_vocabulary`` and ``headers.toml``: the words of headers
- ``earlier_columns``: the columns that an earlier run added, wherever they stand now
- ``columns``: a column for each role; ``column_preference`` (one of several), ``given_columns`` (named by the user),
  ``role_content`` (found by content; joined values), ``nested`` (values within objects)

Formats but CSV are imported when a file is of them: together they take as long as a small file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import with_words
from bansong.errors import InputError, Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.tables import csv
from bansong.tables.compression import File, open_file, packing_of, sink
from bansong.tables.detect import detect_format
from bansong.tables.publish import is_unfinished, publish_file, remove_unfinished
from bansong.tables.table import Enriched, Format, Table, with_copies
from bansong.translation import OptionNames, current_audience, gettext, parameter, use_audience

OUTPUT_ENCODING_NEEDLESS: Final = Problem(
    "csv.output_encoding_needless", "{target}: `output_encoding=` is for CSV files"
)
OPTION_NOT_FOR_FORMAT: Final = Problem(
    "files.option_not_for_format", "{path}: {named} is for {meant}, this file is {format}"
)
FILE_UNREADABLE: Final = Problem("files.file_unreadable", "{path}: cannot be read: {reason}")
TABLE_COPY_FAILED: Final = Problem(
    "files.table_copy_failed", "{path}: cannot be read: {reason}; TMPDIR chooses where copies are made"
)

__all__ = [
    "FILE_OPTIONS",
    "ONLY_ENCODING",
    "OPTIONS",
    "WORKBOOKS",
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

WORKBOOKS: Final = ("xlsx", "xls", "xlsb", "ods")
OPTIONS: Final = {name: name for name in ("sheet", "encoding", "json_path", "delimiter")}
"""The options of reading, and what they are called by the caller."""
FILE_OPTIONS: Final = {option: f"file_{option}" for option in OPTIONS}
"""Their names where two files are read, and this is the enriched one."""
ONLY_ENCODING: Final = {name: name for name in ("encoding", "delimiter")}


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
    with ExitStack() as resources:
        try:
            with use_audience(OptionNames(current_audience(), options, frozenset(OPTIONS))):
                table = _read_any(
                    open_file(path, resources, data), sheet, encoding, json_path, has_header, delimiter, resources
                )
        except OSError as error:  # a disk that fails, or no room left for a private copy
            reason = f"{describe_os_error(error)}{f' ({error.filename})' if error.filename else ''}"
            raise InputError(TABLE_COPY_FAILED, path=path, reason=reason) from error
        yield table


def _read_any(
    file: File,
    sheet: str | None,
    encoding: str | None,
    json_path: str | None,
    has_header: bool,
    delimiter: str | None,
    resources: ExitStack,
) -> Table:
    path, format = file.path, detect_format(file, delimiter)
    for option, given, formats, meant in (
        ("sheet", sheet, (*WORKBOOKS, "html"), gettext("workbooks")),
        ("encoding", encoding, ("csv", "html"), gettext("CSV files")),
        ("json_path", json_path, ("json",), gettext("JSON documents")),
        ("delimiter", delimiter, ("csv",), gettext("CSV files")),
        ("has_header", None if has_header else False, ("csv", *WORKBOOKS), gettext("CSV files and workbooks")),
    ):
        if given is not None and format not in formats:
            named = parameter(option, given) if isinstance(given, bool) else parameter(option)
            raise UsageError(OPTION_NOT_FOR_FORMAT, path=path, named=named, meant=meant, format=format)
    if format == "csv":
        return csv.read(file, encoding, resources, has_header=has_header, delimiter=delimiter)
    if format in WORKBOOKS:
        from bansong.tables import excel

        return excel.read(file, format, sheet, resources, has_header=has_header)
    if format == "html":
        from bansong.tables import html

        return html.read(file, encoding, sheet)
    return _read(file, format, json_path, resources)


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
        if isinstance(table.source, csv.Dialect):
            raise csv.explain_error(table.file, table.source, error) from error
        raise InputError(FILE_UNREADABLE, path=table.path, reason=str(error).splitlines()[0]) from error


def write_table(
    result: Enriched, target: Path, format: Format, encoding: str | None = None
) -> tuple[pl.DataFrame, Callable[[], int]]:
    """Write an enriched table to ``target`` in a format, packed as its name says.

    Returns the tally of the same pass, and a call that counts the rows of the finished file. Raises
    :class:`OutputError`; :class:`UsageError` where ``encoding`` has no meaning for the format.
    """
    if encoding is not None and format != "csv":
        raise UsageError(OUTPUT_ENCODING_NEEDLESS, target=target)
    result = replace(result, frame=with_copies(with_words(result.frame, result.lang), result.layout))
    if format == "xlsx":
        from bansong.tables import excel

        return excel.write(result, target)
    if format == "parquet":
        from bansong.tables import parquet

        tally = parquet.write(result, target)
    else:
        with sink(target, packing_of(target)) as stream:
            if format == "csv":
                tally = csv.write(result, target, stream, encoding)
            else:
                from bansong.tables import json

                tally = json.write(result, stream, format)
    return tally, partial(_written_rows, result.table, target, format, encoding)


def _written_rows(table: Table, path: Path, format: Format, encoding: str | None) -> int:
    """Read back an output that was made from ``table`` and count its rows."""
    with ExitStack() as resources:
        file = open_file(path, resources)
        if format == "csv":
            return csv.written_rows(file, csv.dialect_for(table, path, encoding), resources)
        if format in ("json", "ndjson"):
            from bansong.tables import json

            source = table.source
            inner = source.path if format == "json" and isinstance(source, json.Document) else None
            return json.count(file, format, inner or None, resources)
        return _read(file, format, None, resources).count()


def _read(file: File, format: Format, json_path: str | None, resources: ExitStack) -> Table:
    if format == "parquet":
        from bansong.tables import parquet

        return parquet.read(file)
    from bansong.tables import json

    return json.read(file, format, json_path, resources)
