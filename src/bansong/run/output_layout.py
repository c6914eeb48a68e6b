"""Layout of an output: its place, its columns, and losses from its input."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bansong.cloud.remote_path import as_path, is_remote, path_on_disk
from bansong.column_words import HEADERS
from bansong.errors import Notice, OutputError, Problem, UsageError
from bansong.schema import ADDED_COLUMNS, Lang
from bansong.tables import WORKBOOKS, Format, Table, reading
from bansong.tables.compression import url_of
from bansong.tables.detect import default_output, output_format, refuse_in_place
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.publish import same_file
from bansong.tables.standard_streams import INPUT_NAME, STREAM, check_terminal
from bansong.tables.table import unique_names
from bansong.translation import Listed, Option, Phrase, gettext, gettext_noop

IN_PLACE_AND_OUTPUT: Final = Problem(
    "outputs.in_place_and_output", "`in_place=True` replaces the input; do not name an output as well"
)
BACKUP_NOT_NEEDED: Final = Problem(
    "outputs.backup_not_needed", "`backup=False` is for `in_place=True`: nothing else replaces the input"
)
URL_NOT_WRITABLE: Final = Problem(
    "outputs.url_not_writable", "{url}: is a URL, and of those only s3://, gs:// and az:// are written"
)
OBJECT_BACKUP_IMPOSSIBLE: Final = Problem(
    "outputs.object_backup_impossible",
    "{path}: an object gets no copy beside it when it is replaced; turn on the versions of its bucket, and "
    "give `backup=False`",
)
OPTION_NEEDS_CSV: Final = Problem(
    "outputs.option_needs_csv", "{path}: {option} is for CSV files, this output is {format}"
)
OPTION_NEEDS_WORKBOOK: Final = Problem(
    "outputs.option_needs_workbook", "{path}: {option} is for workbooks, this output is {format}"
)
WORKBOOK_NOT_KEPT: Final = Problem(
    "outputs.workbook_not_kept",
    "{path}: with {option} the output is a new workbook, without its other sheets, formulas, charts and "
    "formats; name it with `output=`",
)

INPUT_OPEN: Final = Problem(
    "alert.input_open",
    "{path} seems to be open ({lock} lies beside it): what is not saved there was not read; save it and run again",
)
OUTPUT_OPEN: Final = Problem(
    "alert.output_open",
    "{path} seems to be open ({lock} lies beside it): close it without saving, or the old one replaces this run's",
)
COLUMN_DOUBLED: Final = Problem(
    "alert.column_doubled", "the file has a column {theirs!r} of its own; it is kept, ours is {ours!r}"
)

_JSON: Final = ("json", "ndjson")
_RENAMED_HEADERS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Place and format of an output.

    ``streamed``: goes to standard output once it is finished at ``path``; ``private``: only the run sees the file.
    """

    path: Path
    format: Format
    encoding: str | None
    backup: bool
    summary: bool
    streamed: bool = False
    private: bool = False

    @property
    def name(self) -> str:
        """Name of the output in the report."""
        return str(STREAM if self.streamed else self.path)


def choose_target(path: Path, format: Format, output: str | Path | None, in_place: bool, **options: Any) -> Target:
    """Return the output's place; raise :class:`UsageError` for options that exclude each other.

    Raises :class:`OutputError` for a URL that cannot be written.
    """
    if in_place and output is not None:
        raise UsageError(IN_PLACE_AND_OUTPUT)
    if in_place:
        refuse_in_place(path, format)
        if options["backup"] and is_remote(path):
            raise UsageError(OBJECT_BACKUP_IMPOSSIBLE, path=path)
        return _check_target(Target(path, format, **options))
    if not options["backup"]:
        raise UsageError(BACKUP_NOT_NEEDED)
    target = as_path(output) if output is not None else path_on_disk(default_output(path, format))
    if not is_remote(target) and (url := url_of(target)) and not target.parent.is_dir():
        raise OutputError(URL_NOT_WRITABLE, url=url)
    return _check_target(Target(target, output_format(target), **options | {"backup": False}))


def choose_stream(path: Path, format: Format, folder: Path, **options: Any) -> Target:
    """Return the place in ``folder`` of an output for standard output, in the input's format; raise as above."""
    target = choose_target(path, format, folder / default_output(INPUT_NAME, format).name, in_place=False, **options)
    check_terminal(target.format)
    return replace(target, streamed=True, private=True)


def _check_target(target: Target) -> Target:
    name, format = target.path, target.format
    if target.encoding is not None and format != "csv":
        option = Option("output_encoding")
        raise UsageError(OPTION_NEEDS_CSV, path=name, option=option, format=format)
    if target.summary and format != "xlsx":
        option = Option("summary")
        raise UsageError(OPTION_NEEDS_WORKBOOK, path=name, option=option, format=format)
    return target


def lay_out_columns(
    headers: Sequence[str],
    prefix: str,
    ours: Mapping[str, int],
    kept: Collection[int],
    names: Sequence[str] = ADDED_COLUMNS,
    lang: Lang = "en",
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the output's columns as (column, header), and warnings.

    First the file's columns at the positions ``kept``, then ``names`` under their headers in ``lang``. Columns of an
    earlier enrichment or labelling (``ours``: contract name → position) are replaced where they stand. If a kept column
    of the user has our name, in any case, ours is called ``<name>_bv``, then ``<name>_bv2`` and so on.
    """
    replaced = {place: name for name, place in ours.items()}
    columns = [(replaced.get(place, f"c{place}"), header) for place, header in enumerate(headers) if place in kept]
    taken = {header.casefold() for _, header in columns}  # an Excel table, as SQL, has no `Grade` beside `grade`
    warnings = []
    for name in names:
        if name in ours:
            continue
        wanted = f"{prefix}{HEADERS[lang][name]}"
        header, again = wanted, 1
        while header.casefold() in taken:
            header, again = f"{wanted}_bv{again if again > 1 else ''}", again + 1
        if again > 1:
            both = {"theirs": wanted, "ours": header}
            # in an earlier output the user's column may be taken for ours
            warnings.append(Notice(COLUMN_DOUBLED, **both) if ours else Phrase(COLUMN_DOUBLED.text, **both))
        columns.append((name, header))
    return tuple(columns), tuple(warnings)


def refuse_wide(table: Table, target: Target, prefix: str) -> None:
    """Raise :class:`OutputError` if a sheet cannot have all of a table's columns and ours.

    Called first, since choosing among thousands of columns takes seconds.
    """
    if target.format == "xlsx":
        from bansong.tables import excel

        ours = find_earlier_columns(table, prefix).nine
        excel.refuse_wide(len(table.headers) + len(set(ADDED_COLUMNS) - ours.keys()))


def find_losses(
    table: Table, target: Target, in_place: bool, *, leaves_out: bool, header_unsure: bool
) -> tuple[str, ...]:
    """Return warnings about parts of the input around its table that the output lacks.

    ``leaves_out``: the output lacks columns of the user; ``header_unsure``: the lines above may be rows. Columns cannot
    be cut out of a workbook without changing its formulas, so such an output is a new workbook. Raises
    :class:`UsageError` if that would replace the old one, :class:`OutputError` for an impossible workbook.
    """
    anew = leaves_out or table.source is None  # of .xls and the like, and of a sheet without a header
    if table.format == target.format == "xlsx" and anew and in_place:
        option = Option("select") if leaves_out else Option("has_header", False)
        raise UsageError(WORKBOOK_NOT_KEPT, path=target.path, option=option)
    if target.format == "xlsx":
        from bansong.tables import excel

        excel.refuse(table, target.path, anew=leaves_out, summary=target.summary)
    rebuilt = target.format == "xlsx" and anew and table.format in (*WORKBOOKS, "html")
    notes = (_note_rebuilt(table),) if rebuilt else ()
    kept = rebuilt or table.format == target.format
    if header_unsure and table.above and kept:
        return (
            *notes,
            Phrase(
                "{count:,} line above the header's last: kept as they are, and not verified",
                "{count:,} lines above the header's last: kept as they are, and not verified",
                count=table.above,
            ),
        )
    if kept and not rebuilt:
        return notes
    return (*notes, *_note_lost_lines(table, titles=not rebuilt))


def _note_rebuilt(table: Table) -> str:
    if table.format == "html":
        return Phrase("the output is a new workbook: what the web page has beside its table is not in it")
    return Phrase("the output is a new workbook: its other sheets, formulas, charts and formats are not in it")


def _note_lost_lines(table: Table, *, titles: bool) -> tuple[str, ...]:
    joined = table.above - table.titles + 1
    notes = [Phrase("the {count} lines of the header are one line in the output", count=joined)] if joined > 1 else []
    if table.titles and titles:
        of_workbook = table.format in (*WORKBOOKS, "html")
        notes.append(
            Phrase(
                "{count:,} title line above the header not in the output; in {again} it has all lines",
                "{count:,} title lines above the header not in the output; in {again} it has all lines",
                count=table.titles,
                again=Phrase("a workbook") if of_workbook else Phrase("the input's own format"),
            )
        )
    return tuple(notes)


def find_changes(table: Table, target: Target, layout: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return warnings about headers (repeated, blank) and values (NaN, infinity) that JSON and Parquet cannot hold.

    ``layout``: the output's columns as (column, header). Raises :class:`OutputError` for more than a sheet has.
    """
    format = target.format
    if format == "xlsx":
        from bansong.tables import excel

        excel.refuse_wide(len(layout))
    if table.format == format or (format in _JSON and table.format in _JSON) or format not in (*_JSON, "parquet"):
        return ()
    warnings: tuple[str, ...] = ()
    headers = [header for _, header in layout]
    renamed = [pair for pair in zip(headers, unique_names(headers), strict=True) if pair[0] != pair[1]]
    if renamed:
        shown = renamed[:_RENAMED_HEADERS_SHOWN]
        named: Phrase = Listed((Phrase("{header!r} is {name!r}", header=old, name=new) for old, new in shown), ", ")
        if len(renamed) > len(shown):
            named = Phrase("{named} and so on", named=named)
        warnings = (
            Phrase(
                "headers that repeat or are blank get names of their own, as {format} needs: {named}",
                format=format,
                named=named,
            ),
        )
    if format in _JSON:
        from bansong.tables.json import not_finite

        with reading(table):
            warnings += not_finite(table)
    return warnings


def open_elsewhere(source: Path | None, target: Target) -> Iterator[Notice]:
    """Yield alerts if input or output is open in Excel or LibreOffice, shown by a lock file beside it."""
    if source is not None and (lock := _lock_beside(source)):
        yield Notice(INPUT_OPEN, path=source, lock=lock.name)
    if not target.private and target.path != source and (lock := _lock_beside(target.path)):
        yield Notice(OUTPUT_OPEN, path=target.path, lock=lock.name)


def _lock_beside(path: Path) -> Path | None:
    if is_remote(path):
        return None
    locks = (path.with_name(f"~${path.name}"), path.with_name(f".~lock.{path.name}#"))
    return next((lock for lock in locks if os.path.lexists(lock)), None)


def keep_apart(read: Mapping[str, Path | None], written: Mapping[str, Path | None], in_place: bool) -> None:
    """Raise :class:`UsageError` if a written file is also read, or two written files are one.

    Only ``in_place`` writes the output over the input.
    """
    others = dict(read)
    for use, path in written.items():
        for other, taken in others.items():
            allowed = in_place and (use, other) == ("output", "input")
            if path is not None and taken is not None and not allowed and same_file(path, taken):
                raise UsageError(_same(path, use, other))
        others[use] = path


def _same(path: Path, use: str, other: str) -> str:
    names = {"path": path, "other": _use(other), "use": _use(use)}
    if (use, other) == ("output", "input"):
        return gettext("{path}: is the {other} itself; give another {use}, or `in_place=True` to replace it", **names)
    return gettext("{path}: is the {other} itself; give another {use}", **names)


_USES: Final = (
    *(gettext_noop("input"), gettext_noop("output"), gettext_noop("manifest"), gettext_noop("registry")),
    *(gettext_noop("statuses"), gettext_noop("gazetteer"), gettext_noop("model"), gettext_noop("ledger")),
    *(gettext_noop("letter list"), gettext_noop("report"), gettext_noop("review"), gettext_noop("status store")),
    gettext_noop("key file"),
)
"""Uses of files in messages."""


def _use(name: str) -> str:
    return gettext(name) if name in _USES else name
