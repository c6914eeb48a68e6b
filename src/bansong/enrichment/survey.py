"""The survey of a run's inputs: each table is opened, and refused if it must be, before anything is bought.

A single table stays open, and its records are its query. The records of several tables are kept in Arrow files, so
that what is the same in all of them is looked up and counted once, and memory does not grow with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.cloud.remote_files import InputData, fetch_file
from bansong.cloud.remote_path import as_path, is_remote
from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM
from bansong.enrichment.outputs import Outputs
from bansong.enrichment.prepared_table import PreparedTable, prepare_output
from bansong.errors import BansongError, ColumnError, InputError, NoTableError, Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.options import ALL_SHEETS, ReadOptions
from bansong.report import Report
from bansong.report_page.page import check_page
from bansong.run.accounting import PLAN_COUNTS, LookupPlan, plan_of, with_plan_columns
from bansong.run.engine import Engine, Records
from bansong.run.output_layout import Target, keep_apart
from bansong.run.records import DIGITS, RIGHT, ROW_ID
from bansong.run.side_files import SideFiles, letter_list_of
from bansong.schema import CONTEXT_COLUMNS, RECORD_COLUMNS
from bansong.storage.filesystem import private_folder
from bansong.tables import Table, open_table, reading
from bansong.tables.input_files import NO_FILE_USABLE, InputFile
from bansong.tables.standard_streams import STREAM, keep_input, name_input
from bansong.translation import Option, gettext, ngettext

INPUT_CHANGED: Final = Problem("inputs.input_changed", "{path}: was changed while it was being verified; run again")
INPUT_UNREADABLE: Final = Problem(
    "inputs.input_unreadable", "{path}: cannot be opened: {reason}; check who may read it"
)
REVIEW_WITHOUT_NUMBERS: Final = Problem(
    "options.review_without_numbers",
    "{table}: holds no business numbers, by which the choices of a review are known again; leave out {review}",
)

_NAMED: Final = 5
_PRIORITY: Final = "priority_value"
_KEPT: Final = {
    **dict.fromkeys((*RECORD_COLUMNS, *CONTEXT_COLUMNS), pl.String),
    NUMBER: pl.UInt64,
    DIGITS: pl.String,
    RIGHT: pl.Boolean,
    ROW_PROBLEM: pl.String,
    ADDRESS_LIST: pl.Boolean,
    _PRIORITY: pl.String,
}
"""The columns of a kept record."""


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table whose columns were chosen.

    ``sheet``: the name by which it was chosen, ``None`` for the table that the reader finds. ``opened``: the table of
    a run over one, which stays open; ``None`` for one that is opened again to be written, and whose records are in the
    file ``kept``. ``plan``: its part of a dry run over a list.
    """

    sheet: str | None
    records: Records
    is_address_list: bool
    opened: PreparedTable | None = None
    kept: Path | None = None
    plan: Report | None = None


@dataclass(frozen=True, slots=True)
class SurveyedInput:
    """An input that can be read, and whose output can be written.

    ``data``: its bytes, all through the run. ``state``: size and time of change of its file, ``None`` where changes
    are not looked for.
    """

    file: InputFile
    target: Target
    sides: SideFiles
    tables: tuple[SurveyedTable, ...]
    data: InputData
    state: tuple[int, int] | None

    @property
    def rows(self) -> int:
        """Rows of all its tables; 0 for a table that is open."""
        return sum(table.records.count for table in self.tables)

    def refuse_change(self) -> None:
        """Raise :class:`InputError` if the file was changed since the survey."""
        if self.state is not None and state_of(self.file.path, self.data) != self.state:
            raise InputError(INPUT_CHANGED, path=self.file.path)


@dataclass(frozen=True, slots=True)
class InputSurvey:
    """The inputs that can be enriched; ``failed``: why others cannot, by path; ``strays``: notes on files of a folder.

    Strays are files that hold no table, and that nobody named.
    """

    inputs: tuple[SurveyedInput, ...]
    failed: dict[str, str]
    strays: tuple[str, ...]

    @property
    def tables(self) -> list[SurveyedTable]:
        """The tables of all inputs."""
        return [table for one in self.inputs for table in one.tables]

    @property
    def is_open(self) -> bool:
        """Whether there is one table, which stayed open."""
        return self.tables[0].opened is not None

    @property
    def has_numbers(self) -> bool:
        """Whether any table is more than a list of addresses."""
        return not all(table.is_address_list for table in self.tables)

    def records_for(self, engine: Engine) -> Records:
        """Return the prepared records of all tables, numbered through."""
        tables = self.tables
        if self.is_open:
            return tables[0].records
        rows = pl.scan_ipc([table.kept for table in tables if table.kept]).drop(ROW_ID).with_row_index(ROW_ID)
        count = sum(table.records.count for table in tables)
        return engine.prepare(Records(rows, count, _PRIORITY if engine.priority is not None else None))


@dataclass(frozen=True, slots=True)
class Surveyor:
    """Looks at the inputs of a run.

    ``besides``: files that the run reads besides, by their use. ``plan_table`` makes a table's part of a dry run.
    ``resources``: close copies of remote inputs, kept records and the table that stays open.
    """

    engine: Engine
    read: ReadOptions
    outputs: Outputs
    besides: dict[str, Path | None]
    resources: ExitStack
    plan_table: Callable[[InputFile, PreparedTable, Records], Report] | None = None

    def look_at(self, files: Sequence[InputFile], *, keep_going: bool) -> InputSurvey:
        """Look at every input.

        Raises :class:`InputError` where some cannot be enriched and the run is not to ``keep_going``, or none can.
        """
        folder = None if self.outputs.alone else self.resources.enter_context(private_folder())
        found, failed, strays = list[SurveyedInput](), dict[str, str](), list[str]()
        for place, file in enumerate(files):
            try:
                found.append(self._look_at_input(file, place, folder, alone=len(files) == 1))
            except BansongError as error:
                if len(files) == 1:
                    raise
                if file.listed and is_stray(file.path, error, self.read):
                    strays.append(gettext("{path}: holds no table, and was passed over", path=file.path))
                else:
                    failed[str(file.path)] = _name_file(file.path, str(error))
        self.outputs.refuse_shared(files, ((one.file, one.target, one.sides) for one in found))
        if not found and not failed:
            raise InputError(NO_FILE_USABLE, reasons="\n  ".join(strays[:_NAMED]))
        if failed and not (keep_going and found):
            raise InputError(_explain_failures(failed, len(files), keep_going=keep_going))
        return InputSurvey(tuple(found), failed, tuple(strays))

    def _look_at_input(self, file: InputFile, place: int, folder: Path | None, *, alone: bool) -> SurveyedInput:
        if file.path == STREAM:
            data = InputData(keep_input(self.resources))
        else:
            data = self.resources.enter_context(fetch_file(file.path))
        state = None if self.outputs.alone else state_of(file.path, data)
        sheets = self._sheets_of(file, data)
        if folder is None or (alone and len(sheets) == 1):
            target, sides, table = self._look_at_table(file, data, sheets[0], self.resources, several=False)
            return SurveyedInput(file, target, sides, (table,), data, state)
        tables = list[SurveyedTable]()
        for number, sheet in enumerate(sheets):
            with ExitStack() as resources:
                target, sides, table = self._look_at_table(file, data, sheet, resources, several=len(sheets) > 1)
                kept = folder / f"{place}-{number}.arrow"
                tables.append(replace(table, records=_keep(table.records, kept), opened=None, kept=kept))
        return SurveyedInput(file, target, sides, tuple(tables), data, state)

    def _look_at_table(
        self, file: InputFile, data: InputData, sheet: str | None, resources: ExitStack, *, several: bool
    ) -> tuple[Target, SideFiles, SurveyedTable]:
        """Open a table, choose its columns and its outputs; ``resources`` close it."""
        table = resources.enter_context(open_input(file.path, data.path, self.read, sheet))
        resources.enter_context(reading(table))
        target, sides = self._choose_outputs(file, data, table, several=several)
        prepared = prepare_output(table, target, self.read, self.outputs.write, self.engine.kind)
        if sides.review is not None and prepared.is_address_list:
            raise UsageError(REVIEW_WITHOUT_NUMBERS, table=table.name, review=Option("review"))
        records = prepared.records_for(self.engine)
        plan = replace(self.plan_table(file, prepared, records), sheet=sheet) if self.plan_table else None
        return target, sides, SurveyedTable(sheet, records, prepared.is_address_list, prepared, plan=plan)

    def _choose_outputs(
        self, file: InputFile, data: InputData, table: Table, *, several: bool
    ) -> tuple[Target, SideFiles]:
        """Return where a table's output goes, and the files beside it; raise :class:`UsageError` for one that is read.

        Raises what :meth:`Outputs.target_of` raises, too.
        """
        write = self.outputs.write
        target = self.outputs.target_of(file, table, self.resources, several=several)
        sides = self.outputs.sides_of(target, self.engine.local.gazetteer if self.engine.kind.answers_locally else None)
        if sides.page is not None:
            check_page(sides.page)
        keep_apart(
            {"input": file.path if is_remote(file.path) else data.path, **self.besides},
            {
                "output": target.path,
                "manifest": as_path(write.manifest) if write.manifest is not None else None,
                **sides.paths_by_use(),
                "letter list": letter_list_of(write),
            },
            write.in_place,
        )
        return target, sides

    def _sheets_of(self, file: InputFile, data: InputData) -> Sequence[str | None]:
        """Return the sheets of an input that are enriched; ``None`` for the table that the reader finds."""
        sheet = self.read.sheet
        if sheet is None or (isinstance(sheet, str) and sheet != ALL_SHEETS):
            return (sheet,)
        if sheet != ALL_SHEETS:
            return tuple(dict.fromkeys(sheet))
        with open_input(file.path, data.path, self.read, None) as table:
            return table.sheets or (None,)


def open_input(path: Path, data: Path, read: ReadOptions, sheet: str | None) -> AbstractContextManager[Table]:
    """Open the table of the input that the user calls ``path``; ``data``: where its bytes are."""
    return open_table(
        name_input(read.input_format) if path == STREAM else path,
        sheet=sheet,
        encoding=read.encoding,
        json_path=read.json_path,
        has_header=read.has_header,
        delimiter=read.delimiter,
        data=data,
    )


def is_stray(path: Path, error: BansongError, read: ReadOptions) -> bool:
    """Whether a file that cannot be enriched is no table at all: of another kind, prose, or one JSON object.

    A list without numbers is a table.
    """
    if not isinstance(error, ColumnError):
        return isinstance(error, NoTableError)
    with fetch_file(path) as data, open_input(path, data.path, read, None) as table:
        return error.missing == "b_no" and table.loose


def state_of(path: Path, data: InputData) -> tuple[int, int]:
    """Return size and time of change of a file; raise :class:`InputError` where it cannot be looked at."""
    try:
        state = data.path.stat()
    except OSError as error:
        raise InputError(INPUT_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    return state.st_size, state.st_mtime_ns


def plan_together(records: pl.LazyFrame, plans: Sequence[LookupPlan]) -> LookupPlan:
    """Return the plan of several tables: rows are those of each, lookups those that differ in all ``records``."""
    if len(plans) == 1:
        return plans[0]
    of_all = plan_of(with_plan_columns(records).select(*PLAN_COUNTS).collect(engine="streaming").row(0, named=True))
    asked = sum(plan.lookups + plan.duplicates for plan in plans)
    problems = {code for plan in plans for code in plan.invalid_by_problem}
    return replace(
        of_all,
        rows=sum(plan.rows for plan in plans),
        duplicates=asked - of_all.lookups,
        invalid=sum(plan.invalid for plan in plans),
        invalid_by_problem={
            code: sum(plan.invalid_by_problem.get(code, 0) for plan in plans) for code in sorted(problems)
        },
        wrong_check_digits=sum(plan.wrong_check_digits for plan in plans),
        without_address=sum(plan.without_address for plan in plans),
        suspect=sum(plan.suspect for plan in plans),
    )


def _keep(records: Records, path: Path) -> Records:
    """Write the records of a table to a file, whatever types its columns have; return them as they are there."""
    there = set(records.rows.collect_schema().names())
    sources = {name: name for name in _KEPT if name in there}
    if records.priority is not None:
        sources[_PRIORITY] = records.priority
    records.rows.select(
        ROW_ID,  # a table without any of the others has rows, or none, too
        *(
            (pl.col(sources[name]).cast(dtype, strict=False) if name in sources else pl.lit(None, dtype)).alias(name)
            for name, dtype in _KEPT.items()
        ),
    ).sink_ipc(path, compression="lz4", engine="streaming")
    rows = pl.scan_ipc(path)
    return Records(rows, rows.select(pl.len()).collect().item())


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
