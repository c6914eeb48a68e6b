"""Where an output goes, and what it cannot have of its input: decided and said before the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bizverify.errors import UsageError
from bizverify.tables import WORKBOOKS, Format, Table, excel, reading
from bizverify.tables.detect import default_output, output_format, refuse_in_place
from bizverify.tables.json import not_finite
from bizverify.tables.publish import same_file
from bizverify.tables.table import unique_names

_JSON: Final = ("json", "ndjson")
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run's output goes, and as what."""

    path: Path
    format: Format
    encoding: str | None
    backup: bool
    summary: bool


def target_of(path: Path, format: Format, output: str | Path | None, in_place: bool, **options: Any) -> Target:
    """Where the output goes; raise :class:`UsageError` where what is asked for does not go together."""
    if in_place and output is not None:
        raise UsageError("--in-place replaces the input; do not name an output as well")
    if in_place:
        refuse_in_place(path, format)
        return _checked(Target(path, format, **options))
    if not options["backup"]:
        raise UsageError("--no-backup is for --in-place: nothing else replaces the input")
    target = Path(output) if output is not None else default_output(path, format)
    return _checked(Target(target, output_format(target), **options | {"backup": False}))


def _checked(target: Target) -> Target:
    for option, asked, format, meant in (
        ("--output-encoding", target.encoding is not None, "csv", "CSV files"),
        ("--summary", target.summary, "xlsx", "workbooks"),
    ):
        if asked and target.format != format:
            raise UsageError(f"{target.path}: {option} is for {meant}, this output is {target.format}")
    return target


def losses(table: Table, target: Target, in_place: bool, *, leaves_out: bool, header_unsure: bool) -> tuple[str, ...]:
    """Warnings about what the output cannot have of the file around its table.

    ``leaves_out``: whether it lacks columns of the user's; ``header_unsure``: whether no header says for certain that
    it is one, so that what stands above may be rows. Columns cannot be cut out of a workbook without changing its
    formulas, so such an output is a new one. Raises :class:`UsageError` where that is to replace the old one,
    :class:`OutputError` for a workbook that cannot be written as is asked.
    """
    lost = "its other sheets, formulas, charts and formats"
    if table.format == target.format == "xlsx" and leaves_out and in_place:
        raise UsageError(f"{target.path}: with --select the output is a new workbook, without {lost}; name it with -o")
    if target.format == "xlsx":
        excel.refuse(table, target.path, anew=leaves_out, summary=target.summary)
    if table.format in WORKBOOKS and target.format == "xlsx" and (leaves_out or table.format != "xlsx"):
        return (f"the output is a new workbook: {lost} are not in it",)
    if not table.above or (table.format == target.format and not header_unsure):
        return ()
    lines = f"{table.above} lines" if table.above > 1 else "1 line"
    gone = "not in the output, one in the input's own format has them again"
    what = "kept as they are, and not verified" if table.format == target.format else gone
    return (f"{lines} above the header's last: {what}",)


def changes(table: Table, target: Target, layout: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Warnings about what JSON and Parquet cannot hold as it is: headers that repeat or are blank, NaN and infinity.

    ``layout``: the output's columns as (column, header).
    """
    format = target.format
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
        with reading(table):
            warnings += not_finite(table)
    return warnings


def keep_apart(read: Mapping[str, Path | None], written: Mapping[str, Path | None], in_place: bool) -> None:
    """Raise :class:`UsageError` where a file that is written is one that is read, or both that are written are one.

    Only ``in_place`` may, and does, write the output over the input.
    """
    for use, path in written.items():
        for other, taken in {**read, "output": written["output"]}.items():
            allowed = use == other or (in_place and (use, other) == ("output", "input"))
            if path is not None and taken is not None and not allowed and same_file(path, taken):
                remedy = ", or --in-place to replace it" if (use, other) == ("output", "input") else ""
                raise UsageError(f"{path}: is the {other} itself; give another {use}{remedy}")
