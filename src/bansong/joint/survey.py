"""The survey of several inputs: each table opened once, before anything is bought, and its records kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bansong.cloud.remote_files import InputData, fetch_file
from bansong.cloud.remote_path import as_path
from bansong.enrichment.enrichment_run import EnrichmentRun
from bansong.enrichment.prepared_table import prepare_output
from bansong.enrichment.run_inputs import files_read
from bansong.enrichment.single_file import open_input
from bansong.errors import BansongError, ColumnError, InputError, NoTableError, Problem
from bansong.joint.kept_records import KeptRecords, keep_records
from bansong.joint.output_places import OutputPlaces
from bansong.labels.history import LabelHistory
from bansong.library_messages import describe_os_error
from bansong.options import ALL_SHEETS, ReadOptions, StatusOptions
from bansong.report import Report
from bansong.run.accounting import plan as count_plan
from bansong.run.engine import Engine, RunContext
from bansong.run.output_layout import Target, keep_apart
from bansong.run.run_start import RunStart
from bansong.run.side_files import letter_list_of
from bansong.tables import Table, reading
from bansong.tables.input_files import InputFile
from bansong.translation import gettext, ngettext

INPUT_CHANGED: Final = Problem("inputs.input_changed", "{path}: was changed while it was being verified; run again")
NO_FILE_USABLE: Final = Problem("inputs.no_table_usable", "none of the files that were found is an input:\n  {reasons}")
INPUT_UNREADABLE: Final = Problem(
    "inputs.input_unreadable", "{path}: cannot be opened: {reason}; check who may read it"
)

_NAMED = 5


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table of an input: its records, and, where nothing more is to be done, what would be.

    ``sheet``: its name, where it was chosen by one; ``None`` for the table that is found by itself.
    """

    sheet: str | None
    kept: KeptRecords
    plan: Report | None


@dataclass(frozen=True, slots=True)
class SurveyedInput:
    """An input that can be read, and whose output can be written: its tables, and what the file was like then.

    ``data``: where its bytes are, all through the run.
    """

    file: InputFile
    target: Target
    tables: tuple[SurveyedTable, ...]
    data: InputData
    about: tuple[int, int]

    @property
    def rows(self) -> int:
        """Rows of all its tables."""
        return sum(table.kept.rows for table in self.tables)

    def refuse_change(self) -> None:
        """Raise :class:`InputError` where the file is another than it was."""
        if about_input(self.file.path, self.data) != self.about:
            raise changed_error(self.file.path)


@dataclass(frozen=True, slots=True)
class InputSurvey:
    """How inputs are looked at.

    ``planned``: whether nothing more is to be done, so that each table has its plan. ``resources``: as long as these
    live, there are copies of remote inputs. ``strays`` gets sentences on files of a folder that are no tables.
    """

    engine: Engine
    read: ReadOptions
    places: OutputPlaces
    start: RunStart
    known: LabelHistory | None
    model: Path | None
    status: StatusOptions | None
    folder: Path
    planned: bool
    resources: ExitStack
    strays: list[str]

    def look_at(self, files: Sequence[InputFile], *, keep_going: bool) -> tuple[list[SurveyedInput], dict[str, str]]:
        """Look at every input; return those that can be enriched, and why others cannot, by their paths.

        Raises :class:`InputError` where there are others and the run is not to ``keep_going``, or nothing is left.
        """
        found, failed = list[SurveyedInput](), dict[str, str]()
        for place, file in enumerate(files):
            try:
                found.append(self._look_at_input(file, place))
            except BansongError as error:
                if len(files) == 1:
                    raise
                if file.listed and is_stray(file.path, error, self.read):
                    self.strays.append(gettext("{path}: holds no table, and was passed over", path=file.path))
                else:
                    failed[str(file.path)] = _name_file(file.path, str(error))
        self.places.refuse_shared(files, ((one.file, one.target) for one in found))
        if not found and not failed:
            raise InputError(NO_FILE_USABLE, reasons="\n  ".join(self.strays[:_NAMED]))
        if failed and not (keep_going and found):
            raise InputError(_explain_failures(failed, len(files), keep_going=keep_going))
        return found, failed

    def _look_at_input(self, file: InputFile, place: int) -> SurveyedInput:
        data = self.resources.enter_context(fetch_file(file.path))
        about, tables, targets = about_input(file.path, data), list[SurveyedTable](), list[Target]()
        sheets = self._sheets_of(file, data)
        for sheet in sheets:
            with open_input(file.path, data.path, self.read, sheet) as table, reading(table):
                targets.append(self.places.target_of(file, table, several=len(sheets) > 1))
                self._keep_apart(file, targets[-1])
                kept_as = self.folder / f"{place}-{len(tables)}.arrow"
                tables.append(self._look_at_table(file, table, targets[-1], sheet, kept_as))
        return SurveyedInput(file, targets[-1], tuple(tables), data, about)

    def _look_at_table(
        self, file: InputFile, table: Table, target: Target, sheet: str | None, kept_as: Path
    ) -> SurveyedTable:
        prepared = prepare_output(table, target, self.read, self.places.write, self.engine.kind)
        prepared = replace(prepared, rows=self.engine.prepare(prepared.rows))
        kept = keep_records(prepared.rows, kept_as, prepared.priority_column(self.engine))
        plan = None
        if self.planned:
            context = RunContext(str(file.path), self.start.run_id)
            run = EnrichmentRun(file.path, self.start, self.engine, prepared, context, self.known)
            plan = replace(run.report_plan(count_plan(prepared.rows)), sheet=sheet)
        return SurveyedTable(sheet, kept, plan)

    def _sheets_of(self, file: InputFile, data: InputData) -> Sequence[str | None]:
        """The sheets of an input that are enriched; ``None`` for the one table of a file that is no workbook."""
        sheet = self.read.sheet
        if sheet is None or (isinstance(sheet, str) and sheet != ALL_SHEETS):
            return (sheet,)
        if sheet != ALL_SHEETS:
            return tuple(dict.fromkeys(sheet))
        with open_input(file.path, data.path, self.read, None) as table:
            return table.sheets or (None,)

    def _keep_apart(self, file: InputFile, target: Target) -> None:
        write = self.places.write
        manifest = as_path(write.manifest) if write.manifest is not None else None
        read = {"input": file.path, **files_read(self.engine, self.model, self.status)}
        sides = self.places.sides_of(target).paths_by_use() | {"letters": letter_list_of(write)}
        keep_apart(
            read,
            {"output": target.path, "manifest": manifest, **sides},
            write.in_place,
        )


def is_stray(path: Path, error: BansongError, read: ReadOptions) -> bool:
    """Return whether a file that cannot be enriched is no table at all: of another kind, prose, or one JSON object.

    A list without numbers is one.
    """
    if not isinstance(error, ColumnError):
        return isinstance(error, NoTableError)
    with fetch_file(path) as data, open_input(path, data.path, read, None) as table:
        return error.missing == "b_no" and table.loose


def about_input(path: Path, data: InputData) -> tuple[int, int]:
    """Return what a file was like: its size, and when it was changed last; raise :class:`InputError` for none."""
    try:
        about = data.path.stat()
    except OSError as error:
        raise InputError(INPUT_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    return about.st_size, about.st_mtime_ns


def changed_error(path: Path) -> InputError:
    """Return the error of a file that is no more what it was when it was surveyed."""
    return InputError(INPUT_CHANGED, path=path)


def _name_file(path: Path, text: str) -> str:
    """Return an error with the whole path of its file: several may have one name."""
    if str(path) in text:
        return text
    return f"{path}{text.removeprefix(path.name)}" if text.startswith(path.name) else f"{path}: {text}"


def _explain_failures(failed: dict[str, str], count: int, *, keep_going: bool) -> str:
    """Return why a run stops before anything is bought."""
    shown = "\n  ".join([*failed.values()][:_NAMED])
    more = len(failed) - _NAMED
    rest = ngettext("and {count:,} more", "and {count:,} more", more) if more > 0 else ""
    listed = f"{shown}\n  {rest}" if rest else shown
    if keep_going:
        return gettext("none of the inputs can be enriched; nothing was bought or written:\n  {errors}", errors=listed)
    return ngettext(
        "{count:,} of {all:,} inputs cannot be enriched; nothing was bought or written. `keep_going=True` "
        "leaves it out:\n  {errors}",
        "{count:,} of {all:,} inputs cannot be enriched; nothing was bought or written. `keep_going=True` "
        "leaves them out:\n  {errors}",
        len(failed),
        all=count,
        errors=listed,
    )
