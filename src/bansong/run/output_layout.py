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
from bansong.tables import Format, Table, reading
from bansong.tables.compression import url_of
from bansong.tables.detect import default_output, output_format, refuse_in_place
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.format import Planned
from bansong.tables.publish import same_file
from bansong.tables.standard_streams import INPUT_NAME, STREAM, check_terminal
from bansong.translation import Option, Phrase, gettext, gettext_noop

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
    if target.encoding is not None and not format.can.encoding:
        option = Option("output_encoding")
        raise UsageError(OPTION_NEEDS_CSV, path=name, option=option, format=format.name)
    if target.summary and not format.can.summary:
        option = Option("summary")
        raise UsageError(OPTION_NEEDS_WORKBOOK, path=name, option=option, format=format.name)
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
    if target.format.can.max_columns is not None:
        ours = find_earlier_columns(table, prefix).nine
        target.format.refuse_wide(len(table.headers) + len(set(ADDED_COLUMNS) - ours.keys()))


def find_losses(
    table: Table,
    target: Target,
    in_place: bool,
    layout: Sequence[tuple[str, str]],
    *,
    leaves_out: bool,
    header_unsure: bool,
) -> tuple[str, ...]:
    """Return warnings about what the output cannot have of the file around its table, and about what it changes.

    ``layout``: the output's columns as (column, header). ``leaves_out``: whether it lacks columns of the user's;
    ``header_unsure``: whether no header says for certain that it is one, so that what stands above may be rows.
    Columns cannot be cut out of a workbook without changing its formulas, so such an output is a new one. Raises
    :class:`UsageError` where that is to replace the old one, :class:`OutputError` for what the format cannot hold.
    """
    headers = tuple(header for _, header in layout)
    planned = Planned(target.path, headers, leaves_out=leaves_out, in_place=in_place, summary=target.summary)
    with reading(table):
        changes = target.format.verbs.check(table, planned)
    return (*_losses_above(table, target, leaves_out=leaves_out, header_unsure=header_unsure), *changes)


def _losses_above(table: Table, target: Target, *, leaves_out: bool, header_unsure: bool) -> Iterator[str]:
    """Yield notes on what the output lacks around the table and above its rows."""
    anew = leaves_out or table.source is None  # of .xls and the like, and of a sheet without a header
    left_behind = table.format.can.left_behind
    rebuilt = bool(left_behind) and anew and target.format.can.titles
    if rebuilt:
        yield Phrase(left_behind)
    kept = rebuilt or table.format is target.format
    if header_unsure and table.above and kept:
        yield Phrase(
            "{count:,} line above the header's last: kept as they are, and not verified",
            "{count:,} lines above the header's last: kept as they are, and not verified",
            count=table.above,
        )
    elif rebuilt or not kept:
        yield from _note_lost_lines(table, titles=not rebuilt)


def _note_lost_lines(table: Table, *, titles: bool) -> Iterator[str]:
    """Yield notes on the lines above the rows that the output lacks; ``titles``: among these are title lines."""
    joined = table.above - table.titles + 1
    if joined > 1:
        yield Phrase("the {count} lines of the header are one line in the output", count=joined)
    if table.titles and titles:
        own = Phrase("a workbook") if table.format.can.left_behind else Phrase("the input's own format")
        yield Phrase(
            "{count:,} title line above the header not in the output; in {again} it has all lines",
            "{count:,} title lines above the header not in the output; in {again} it has all lines",
            count=table.titles,
            again=own,
        )


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
