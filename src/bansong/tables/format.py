"""A file format: its declaration, its capabilities, and the verbs that the rest of the package calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import polars as pl

from bansong.base.errors import InputError, OutputError, Problem
from bansong.base.option import specs_of
from bansong.base.options import ReadOptions
from bansong.tables.streams import File

if TYPE_CHECKING:
    from bansong.tables.table import Enriched, Table

FILE_UNREADABLE: Final = Problem("files.file_unreadable", "{path}: cannot be read: {reason}")
OUTPUT_TOO_WIDE: Final = Problem(
    "excel.output_too_wide",
    "the output's {width:,} columns are more than a sheet has ({max_columns:,}); give "
    "`output='OUT.csv'` or OUT.parquet, or keep fewer with `select=`",
)


AS_FOUND: Final = ReadOptions()
INPUTS_OF: Final = {spec.name: spec.inputs for spec in specs_of(ReadOptions) if spec.inputs}


def wanted_sheet(wanted: ReadOptions) -> str | None:
    """Return the one sheet to read; ``None`` leaves the choice to the reader."""
    return wanted.sheet if isinstance(wanted.sheet, str) else None


class Evidence(IntEnum):
    """The certainty that a file has a format. The best evidence wins."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


@dataclass(frozen=True)
class Look:
    """The name and first bytes of a file, and the user's options for reading."""

    file: File
    head: bytes
    wanted: ReadOptions

    @cached_property
    def suffix(self) -> str:
        return self.file.name.suffix.lower()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a format beyond a table of texts below one header line."""

    # Where such files are taken from
    in_folders: bool = True
    uploads: bool = True
    # Writing
    written: bool = True  # an output of a format that is only read is an .xlsx
    text: bool = False  # may be packed, and shown on a terminal
    splices_sheets: bool = False  # several sheets of one file go back into one output
    spliced_only: tuple[str, ...] = ()  # extensions of files that are extended and never made anew
    titles: bool = False  # a new file has the title rows above the header again
    summary: bool = False
    korean_headers: bool = False
    formulas: bool = False  # a spreadsheet takes some texts of such a file for formulas
    max_columns: int | None = None
    left_behind: str = ""  # message on what a new workbook lacks of the input


@dataclass(frozen=True, slots=True)
class Planned:
    """An output to write; ``leaves_out``: without some columns of the user's; ``summary``: with a summary sheet."""

    path: Path
    headers: tuple[str, ...]
    leaves_out: bool = False
    in_place: bool = False
    summary: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A finished output: the tally of the pass that wrote it, and its rows if the writer counted them."""

    tally: pl.DataFrame
    rows: int | None = None


class Verbs(ABC):
    """The code of a format. A read-only format needs :meth:`read` alone."""

    def __init__(self, format: Format) -> None:
        self.format = format

    @abstractmethod
    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        """Open a file as a lazy table; temporary files live as long as ``resources``."""

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:  # noqa: ARG002 - for others
        """Refuse what the format cannot write, before any purchase; return warnings about changed values."""
        return ()

    def splice(self, result: Enriched, target: Path) -> Written | None:  # noqa: ARG002
        """Write the input's own bytes with one insertion a row; ``None`` if impossible: render then."""
        return None

    def render(self, result: Enriched, target: Path) -> Written:
        raise NotImplementedError(self.format.name)

    def count(self, result: Enriched, path: Path) -> int:
        raise NotImplementedError(self.format.name)

    def explain(self, table: Table, error: BaseException) -> InputError:
        """Return the error for a part of a file that polars could not read; lazy readers fail inside the query."""
        return InputError(FILE_UNREADABLE, path=table.path, reason=str(error).splitlines()[0])


@dataclass(frozen=True, eq=False)
class Format:
    """A file format. Its code (``module:class``) is imported on first use: a run needs one or two of them."""

    name: str
    extensions: tuple[str, ...] = ()  # the usual one first
    detect: Callable[[Look], Evidence | None] = lambda _: None
    code: str = ""
    can: Capabilities = Capabilities()

    def __str__(self) -> str:
        return self.name

    @cached_property
    def verbs(self) -> Verbs:
        module, _, name = self.code.partition(":")
        return cast(Verbs, getattr(import_module(module), name)(self))

    def takes(self, option: str) -> bool:
        return self.name in INPUTS_OF[option].formats

    def refuse_wide(self, columns: int) -> None:
        most = self.can.max_columns
        if most is not None and columns > most:
            raise OutputError(OUTPUT_TOO_WIDE, width=columns, max_columns=most)


FRAME: Final = Format("frame")
