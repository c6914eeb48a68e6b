"""Names of a job's outputs: patterns with fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from itertools import count
from pathlib import Path
from string import Formatter
from typing import Final

from bansong.cloud.remote_files import is_there
from bansong.cloud.remote_path import as_path, path_on_disk
from bansong.errors import Problem, UsageError
from bansong.tables.compression import unpacked_name
from bansong.tables.input_files import InputFile
from bansong.translation import gettext

CHANGES_NAME_INVALID: Final = Problem(
    "jobs.changes_name_invalid",
    "output.changes: {named} is to be a table for people; its name must end with .xlsx or .csv",
)

_READ_ONLY: Final = {".xls": ".xlsx", ".xlsb": ".xlsx", ".ods": ".xlsx"}
"""Formats that are only read, and the format of their outputs."""
_TABLES_OF_CHANGES: Final = (".xlsx", ".csv")
_OF_INPUT: Final = ("name", "ext", "folder")
_OF_JOB: Final = ("date", "job")


def check_pattern(pattern: str, *, of_input: bool) -> None:
    """Raise ValueError for a pattern that cannot be filled; ``of_input``: it has the fields of an input."""
    known = (*_OF_INPUT, *_OF_JOB) if of_input else _OF_JOB
    try:
        fields = {name for _, name, _, _ in Formatter().parse(pattern) if name is not None}
    except ValueError as error:
        raise ValueError(
            gettext(
                "the pattern {pattern!r} cannot be read: {error}; write a brace itself twice",
                pattern=pattern,
                error=error,
            )
        ) from None
    if unknown := sorted(fields.difference(known)):
        raise ValueError(
            gettext(
                "the pattern {pattern!r} has a field {{{unknown}}}; known are {names}",
                pattern=pattern,
                unknown=unknown[0],
                names=", ".join(sorted(known)),
            )
        )
    try:
        pattern.format_map(dict.fromkeys(known, ""))
    except ValueError as error:
        raise ValueError(
            gettext(
                "the pattern {pattern!r} cannot be filled: {error}; give its fields like {{date}}",
                pattern=pattern,
                error=error,
            )
        ) from None


@dataclass(frozen=True, slots=True)
class OutputNames:
    """Names of a job's outputs on one day; see :class:`bansong.scheduling.job_file.OutputPart`."""

    folder: Path
    job: str
    day: date

    def fill(self, pattern: str, input: InputFile | None = None) -> Path:
        """Return the path of a pattern that :func:`check_pattern` accepts."""
        stem, ext = ("", "") if input is None else _stem_and_ext(input.path)
        below = "" if input is None else str(input.relative.parent)
        filled = pattern.format(name=stem, ext=ext, folder=below, date=self.day.isoformat(), job=self.job)
        return path_on_disk(self.folder / as_path(filled.replace("/./", "/")).expanduser())

    def changes(self, pattern: str) -> Path:
        """Return where changes are written; a file of an earlier run of the day is not replaced."""
        named = self.fill(pattern)
        if named.suffix.lower() not in _TABLES_OF_CHANGES:
            raise UsageError(CHANGES_NAME_INVALID, named=named)
        others = (named.with_name(f"{named.stem}.{place}{named.suffix}") for place in count(2))
        if "{date}" not in pattern or not is_there(named):
            return named
        return next(path for path in others if not is_there(path))


def _stem_and_ext(path: Path) -> tuple[str, str]:
    """Split ``a.csv.gz`` into ``a`` and ``csv.gz``; formats that are only read get their output's extension."""
    inner = unpacked_name(path)
    packed = path.name.removeprefix(inner.name)
    suffix = _READ_ONLY.get(inner.suffix.lower(), inner.suffix)
    return inner.stem, f"{suffix}{packed}".removeprefix(".")
