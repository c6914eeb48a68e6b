"""Layout of an output: where it goes, which columns it has, and what it cannot have of its input."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bizverify.column_words import HEADERS
from bizverify.errors import OutputError, UsageError, parameter
from bizverify.schema import ADDED_COLUMNS, Lang, pluralize
from bizverify.tables import WORKBOOKS, Format, Table, reading
from bizverify.tables.columns import own_columns
from bizverify.tables.compression import url_of
from bizverify.tables.detect import default_output, output_format, refuse_in_place
from bizverify.tables.publish import same_file
from bizverify.tables.standard_streams import INPUT_NAME, STREAM, check_terminal
from bizverify.tables.table import unique_names

_JSON: Final = ("json", "ndjson")
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run's output goes, and as what; ``streamed``: to standard output, once it is finished at ``path``."""

    path: Path
    format: Format
    encoding: str | None
    backup: bool
    summary: bool
    streamed: bool = False

    @property
    def name(self) -> str:
        """What the output is called in the report."""
        return str(STREAM if self.streamed else self.path)


def choose_target(path: Path, format: Format, output: str | Path | None, in_place: bool, **options: Any) -> Target:
    """Where the output goes; raise :class:`UsageError` where what is asked for does not go together.

    :class:`OutputError` for a place that is not on this machine.
    """
    if in_place and output is not None:
        raise UsageError("`in_place=True` replaces the input; do not name an output as well")
    if in_place:
        refuse_in_place(path, format)
        return _check_target(Target(path, format, **options))
    if not options["backup"]:
        raise UsageError("`backup=False` is for `in_place=True`: nothing else replaces the input")
    target = Path(output) if output is not None else default_output(path, format)
    if (url := url_of(target)) and not target.parent.is_dir():
        raise OutputError(f"{url}: is a URL, and files are written on this machine only; copy it there afterwards")
    return _check_target(Target(target, output_format(target), **options | {"backup": False}))


def choose_stream(path: Path, format: Format, folder: Path, **options: Any) -> Target:
    """Where an output is finished in ``folder`` before it goes to standard output, in the input's own format.

    Raises what :func:`choose_target` raises.
    """
    target = choose_target(path, format, folder / default_output(INPUT_NAME, format).name, in_place=False, **options)
    check_terminal(target.format)
    return replace(target, streamed=True)


def _check_target(target: Target) -> Target:
    for option, asked, format, meant in (
        ("output_encoding", target.encoding is not None, "csv", "CSV files"),
        ("summary", target.summary, "xlsx", "workbooks"),
    ):
        if asked and target.format != format:
            raise UsageError(f"{target.path}: {parameter(option)} is for {meant}, this output is {target.format}")
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

    The file's columns at the positions ``kept`` come first, in their order, ``names``, by default the nine, behind
    them, under their headers in the language ``lang``. Columns of an earlier enrichment or labelling (``ours``:
    contract name → position) are replaced where they stand. Where a column of the user's that is kept bears our name,
    in upper or lower case, ours is called ``<name>_bv``; if that is taken too, ``<name>_bv2`` and so on.
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
            warnings.append(f"the file has a column {wanted!r} of its own; it is kept, ours is {header!r}")
        columns.append((name, header))
    return tuple(columns), tuple(warnings)


def refuse_wide(table: Table, target: Target, prefix: str) -> None:
    """Raise :class:`OutputError` where a sheet cannot have all of a table's columns and ours.

    To choose among thousands of columns takes seconds, so this is asked before.
    """
    if target.format == "xlsx":
        from bizverify.tables import excel

        ours = own_columns(table.headers, prefix)
        excel.refuse_wide(len(table.headers) + len(ADDED_COLUMNS) - len(ours))


def find_losses(
    table: Table, target: Target, in_place: bool, *, leaves_out: bool, header_unsure: bool
) -> tuple[str, ...]:
    """Warnings about what the output cannot have of the file around its table.

    ``leaves_out``: whether it lacks columns of the user's; ``header_unsure``: whether no header says for certain that
    it is one, so that what stands above may be rows. Columns cannot be cut out of a workbook without changing its
    formulas, so such an output is a new one. Raises :class:`UsageError` where that is to replace the old one,
    :class:`OutputError` for a workbook that cannot be written as is asked.
    """
    lost = "its other sheets, formulas, charts and formats"
    anew = leaves_out or table.source is None  # of .xls and the like, and of a sheet without a header
    if table.format == target.format == "xlsx" and anew and in_place:
        option = "`select=`" if leaves_out else parameter("has_header", False)
        raise UsageError(
            f"{target.path}: with {option} the output is a new workbook, without {lost}; name it with `output=`"
        )
    if target.format == "xlsx":
        from bizverify.tables import excel

        excel.refuse(table, target.path, anew=leaves_out, summary=target.summary)
    rebuilt = target.format == "xlsx" and anew and table.format in (*WORKBOOKS, "html")
    beside = "what the web page has beside its table is" if table.format == "html" else f"{lost} are"
    notes = (f"the output is a new workbook: {beside} not in it",) if rebuilt else ()
    kept = rebuilt or table.format == target.format
    if header_unsure and table.above and kept:
        return (
            *notes,
            f"{pluralize(table.above, 'line')} above the header's last: kept as they are, and not verified",
        )
    if kept and not rebuilt:
        return notes
    return (*notes, *_note_lost_lines(table, titles=not rebuilt))


def _note_lost_lines(table: Table, *, titles: bool) -> tuple[str, ...]:
    """Notes on the lines above the rows that the output lacks; ``titles``: whether title lines are among these."""
    joined = table.above - table.titles + 1
    notes = [f"the {joined} lines of the header are one line in the output"] if joined > 1 else []
    if table.titles and titles:
        lines = pluralize(table.titles, "title line")
        again = "a workbook" if table.format in (*WORKBOOKS, "html") else "the input's own format"
        notes.append(f"{lines} above the header not in the output; in {again} it has all lines")
    return tuple(notes)


def find_changes(table: Table, target: Target, layout: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Warnings about what JSON and Parquet cannot hold as it is: headers that repeat or are blank, NaN and infinity.

    ``layout``: the output's columns as (column, header). Raises :class:`OutputError` for more than a sheet has.
    """
    format = target.format
    if format == "xlsx":
        from bizverify.tables import excel

        excel.refuse_wide(len(layout))
    if table.format == format or (format in _JSON and table.format in _JSON) or format not in (*_JSON, "parquet"):
        return ()
    warnings: tuple[str, ...] = ()
    headers = [header for _, header in layout]
    renamed = [pair for pair in zip(headers, unique_names(headers), strict=True) if pair[0] != pair[1]]
    if renamed:
        named = ", ".join(f"{header!r} is {name!r}" for header, name in renamed[:_SHOWN])
        more = " and so on" if len(renamed) > _SHOWN else ""
        warnings = (f"headers that repeat or are blank get names of their own, as {format} needs: {named}{more}",)
    if format in _JSON:
        from bizverify.tables.json import not_finite

        with reading(table):
            warnings += not_finite(table)
    return warnings


def keep_apart(read: Mapping[str, Path | None], written: Mapping[str, Path | None], in_place: bool) -> None:
    """Raise :class:`UsageError` where a file that is written is one that is read, or both that are written are one.

    Only ``in_place`` may, and does, write the output over the input.
    """
    others = dict(read)
    for use, path in written.items():
        for other, taken in others.items():
            allowed = in_place and (use, other) == ("output", "input")
            if path is not None and taken is not None and not allowed and same_file(path, taken):
                remedy = ", or `in_place=True` to replace it" if (use, other) == ("output", "input") else ""
                raise UsageError(f"{path}: is the {other} itself; give another {use}{remedy}")
        others[use] = path
