"""Open all inputs of a run, choose their columns and outputs, keep their records."""
# A single table stays open. The records of several tables are kept in Arrow files: equal records are looked up and
# counted once, and memory does not grow with the number of tables.

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.base.errors import BansongError, ColumnError, InputError, NoTableError, Problem, UsageError
from bansong.base.files import as_path, is_remote, private_folder
from bansong.base.messages import Lang, Option, describe_os_error, gettext, gettext_noop, ngettext, parameter
from bansong.base.options import ALL_SHEETS, EngineKind, ReadOptions
from bansong.base.remote import InputData, fetch_file
from bansong.base.schema import (
    ADDED_COLUMNS,
    CONTEXT_COLUMNS,
    FILE,
    LABEL_COLUMNS,
    RECORD_COLUMNS,
    Alert,
    Choice,
    language_of_columns,
    role_code,
)
from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM
from bansong.engine.protocol import Engine, Records
from bansong.engine.records import DIGITS, RIGHT, ROW_ID, records
from bansong.run import accounting
from bansong.run.accounting import LookupPlan
from bansong.run.columns import (
    Target,
    checked_extra_columns,
    find_losses,
    keep_apart,
    lay_out_columns,
    open_elsewhere,
    refuse_wide,
)
from bansong.run.options import IfPresent, WriteOptions
from bansong.run.outputs import Outputs
from bansong.run.report import Report
from bansong.run.side_files import CARRIED, CARRIED_KEY, SideFiles
from bansong.tables.columns import Chosen, kept_columns, listed_headers, named_column
from bansong.tables.detect import EXTENSIONS, STREAM, keep_input, name_input, open_table, reading
from bansong.tables.earlier_columns import EarlierColumns, added_later, find_earlier_columns
from bansong.tables.inputs import NO_FILE_USABLE, InputFile
from bansong.tables.nested import choose_nested, held_choice, unfold
from bansong.tables.streams import unpacked_name
from bansong.tables.table import AS_FOUND, Table, contract_name

OPTION_NOT_FOR_FORMAT: Final = Problem(
    "outputs.option_not_for_format", "{path}: {option} is for CSV files and workbooks, this output is {format}"
)

log = logging.getLogger(__name__)

_OTHER_HEADERS: Final = gettext_noop(
    "the added columns of an earlier run stay in their language; remove them from the file to have `headers=` obeyed"
)
_ADDED_LATER: Final = gettext_noop(
    "the input is an earlier output; columns that stand between ours stay where they are: {headers}"
)
_SHOWN: Final = 5
NO_ADDRESS: Final = gettext_noop(
    "no address column was found: no bounce risk is given, only the status where it can be checked"
)


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads records from any table with these headers. It can be pickled."""

    headers: tuple[str, ...]
    chosen: Mapping[str, Choice]
    ours: frozenset[int]  # positions of the columns of an earlier run

    def read(self, table: Table) -> pl.LazyFrame:
        return records(unfold(table), self.chosen, self.ours)


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table with its columns chosen and its output laid out."""

    table: Table
    reader: RowReader
    chosen: Mapping[str, Choice]
    rows: pl.LazyFrame
    layout: tuple[tuple[str, str], ...]
    leaves_out: bool
    warnings: tuple[str, ...]
    extras: tuple[str, ...] = ()
    lang: Lang = "en"  # the language of the headers of the added columns, and of the words in them
    earlier: EarlierColumns = field(default_factory=EarlierColumns)
    merged: tuple[Mapping[str, object], ...] = ()  # inputs that became this table
    carried: Mapping[str, str] = field(default_factory=dict)  # columns of the list of letters → ids of the user's

    @property
    def header_unsure(self) -> bool:
        """Whether the header row is a guess, so that lines above it may be rows."""
        return "b_no" in self.chosen and self.chosen["b_no"].why in ("similar", "content")

    @property
    def is_address_list(self) -> bool:
        return "address" in self.chosen and "b_no" not in self.chosen

    def records_for(self, engine: Engine) -> Records:
        """Prepare the rows for an engine; raise :class:`ColumnError` if its priority column is missing."""
        wanted = engine.priority
        priority = None if wanted is None else self.table.ids[named_column(self.table, wanted, "priority")]
        return engine.prepare(Records(self.rows, priority=priority))


_WRITE_AS_READ: Final = WriteOptions()


def prepare_table(
    table: Table,
    read: ReadOptions = AS_FOUND,
    write: WriteOptions = _WRITE_AS_READ,
    engine: EngineKind | None = None,
) -> PreparedTable:
    """Choose the columns of a table and of its output; raise :class:`bansong.errors.ColumnError`."""
    # engine: without one, or with one that buys, the table must have business numbers
    with reading(table):
        earlier = find_earlier_columns(table, write.prefix)
    before = earlier.places
    if table.headers:
        with reading(table):
            given = {role_code(role): headers for role, headers in (read.columns or {}).items()}
            unused = {role for role, headers in given.items() if headers in ((), []) and role != "b_no"}
            roles = [role for role in (*RECORD_COLUMNS, *CONTEXT_COLUMNS) if role not in unused]
            named = {role: headers for role, headers in given.items() if role not in unused}
            unfolded, chosen = choose_nested(table, roles, named, before, address_list=engine is not None)
            if engine is not None and "b_no" not in chosen.columns:
                chosen = replace(chosen, notes=(_numberless_alert(table, engine), *chosen.notes))
    else:  # the JSON list `[]` has no columns
        unfolded, chosen = table, Chosen({})
    log.info("%s read as %s, %d columns; roles: %s", table.name, table.format, len(table.headers), chosen)
    rows = records(unfolded, chosen.columns, before)
    every = frozenset(range(len(table.headers)))
    select = [write.select] if isinstance(write.select, str) else write.select
    kept = kept_columns(table, select) if select else every
    lang = language_of_columns(table.headers, earlier.nine) or write.headers or "en"
    ours = {**earlier.nine, **earlier.extras, **(earlier.labels if write.with_outcomes else {})}
    kept |= set(ours.values())
    # extra columns of an earlier run are computed again: they would not fit the new answers
    extras = checked_extra_columns((*write.extra_columns, *map(contract_name, earlier.extras)))
    added = (*ADDED_COLUMNS, *(LABEL_COLUMNS if write.with_outcomes else ()), *extras)
    added = (FILE, *added) if write.merge else added
    layout, warnings = lay_out_columns(table.headers, write.prefix, ours, kept, added, lang)
    if write.headers not in (None, lang):
        warnings = (*warnings, gettext(_OTHER_HEADERS))
    if table.headers and "address" not in chosen.columns:
        warnings = (*warnings, gettext(NO_ADDRESS))
    if later := added_later(table.headers, earlier):
        shown_later = ", ".join(map(repr, later[:_SHOWN])) + (" …" if len(later) > _SHOWN else "")
        warnings = (*warnings, gettext(_ADDED_LATER, headers=shown_later))
    shown = {role: held_choice(table, choice) for role, choice in chosen.columns.items()}
    reader = RowReader(table.headers, dict(chosen.columns), before)
    notes = (*table.notes, *chosen.notes, *warnings)
    return PreparedTable(table, reader, shown, rows, layout, kept < every, notes, extras, lang, earlier)


def _numberless_alert(table: Table, engine: EngineKind) -> Alert:
    found = {
        "name": table.name,
        "headers": listed_headers(table),
        "columns": parameter("columns", {"b_no": gettext("HEADER")}),
    }
    if engine.buys:
        raise ColumnError(
            gettext(
                "{name}: no column holds business numbers, and lookups are bought by number; {headers}; name the "
                "column with {columns}, or have the addresses alone verified with {engine}",
                engine=parameter("engine", "local"),
                **found,
            ),
            missing="b_no",
        )
    return Alert(
        gettext(
            "{name}: no column holds business numbers, so this is a list of addresses: they are read and corrected, no "
            "status is checked, and no row says `send`; {headers}; if one holds the numbers, name it with {columns}",
            **found,
        )
    )


def _other_extension(table: Table, target: Target) -> tuple[str, ...]:
    plain = unpacked_name(table.path or Path())
    names = {"suffix": plain.suffix, "name": target.path.name, "option": parameter("output")}
    if not plain.suffix or plain.suffix.lower() in EXTENSIONS or target.path.stem != f"{plain.stem}.enriched":
        return ()
    return (gettext("{suffix} files are not written, so the output is {name}; {option} names another", **names),)


def prepare_output(
    table: Table, target: Target, read: ReadOptions, write: WriteOptions, engine: EngineKind
) -> PreparedTable:
    """Prepare a table for this output: refuse impossible options, and warn about losses."""
    if not write.select:
        refuse_wide(table, target, write.prefix)
    if write.headers == "ko" and not target.format.can.korean_headers:
        option = Option("headers", "ko")
        raise UsageError(OPTION_NOT_FOR_FORMAT, path=target.path, option=option, format=target.format.name)
    prepared = prepare_table(table, read, write, engine)
    kinds = {"leaves_out": prepared.leaves_out, "header_unsure": prepared.header_unsure}
    lost = find_losses(table, target, write.in_place, prepared.layout, **kinds)
    if table.headers and "name" not in prepared.chosen:
        named = parameter("columns", {"name": gettext("HEADER")})
        lost += (gettext("no name column was found, so letters have no name; {parameter} names it", parameter=named),)
    lost += tuple(open_elsewhere(table.path, target))
    lost += _other_extension(table, target)
    if len(table.sheets) > 1:
        every = parameter("sheet", ALL_SHEETS)
        lost += (gettext("{option} takes every sheet that holds business numbers", option=every),)
    carried, lacking = columns_for_letters(prepared, write.letter_columns) if write.letters is not None else ({}, ())
    return replace(prepared, warnings=(*prepared.warnings, *lost, *lacking), carried=carried)


def columns_for_letters(prepared: PreparedTable, asked: Sequence[str] = ()) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the columns that a list of letters has besides (``CARRIED…``) → ids of the user's columns, and a note."""
    from bansong.history.letters import key_columns

    table = prepared.table
    record = {part.column for choice in prepared.chosen.values() for part in choice.parts}
    with reading(table):
        keys = key_columns(table, {*prepared.earlier.places, *record})[:1]
    places, lacking = list[int](), list[str]()
    for name in (name for item in asked for name in item.split(",") if name.strip()):
        try:
            places.append(named_column(table, name, "letter_columns"))
        except UsageError:
            if not isinstance(asked, IfPresent):
                raise
            lacking.append(name.strip())
    said = gettext_noop("{name}: lacks these columns of the setting letters.columns, or has them twice: {listed}")
    notes = (gettext(said, name=table.name, listed=", ".join(lacking)),) if lacking else ()
    marks = {**dict.fromkeys(places, CARRIED), **dict.fromkeys(keys, CARRIED_KEY)}
    found = {f"{marks[place]}{table.headers[place]}": table.ids[place] for place in dict.fromkeys([*keys, *places])}
    return found, notes


INPUT_CHANGED: Final = Problem("inputs.input_changed", "{path}: was changed while it was being verified; run again")
INPUT_UNREADABLE: Final = Problem(
    "inputs.input_unreadable", "{path}: cannot be opened: {reason}; check who may read it"
)
REVIEW_WITHOUT_NUMBERS: Final = Problem(
    "options.review_without_numbers",
    "{table}: holds no business numbers, by which the choices of a review are known again; leave out {review}",
)

HOLDS_NO_TABLE: Final = gettext_noop("{path}: holds no table, and was passed over")
_NAMED: Final = 5
_PRIORITY: Final = "priority_value"
_KEPT: Final = {  # columns of a kept record
    **dict.fromkeys((*RECORD_COLUMNS, *CONTEXT_COLUMNS), pl.String),
    NUMBER: pl.UInt64,
    DIGITS: pl.String,
    RIGHT: pl.Boolean,
    ROW_PROBLEM: pl.String,
    ADDRESS_LIST: pl.Boolean,
    _PRIORITY: pl.String,
}


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table of an input, with its records."""

    sheet: str | None  # `None`: the reader chooses the sheet
    records: Records
    is_address_list: bool
    opened: PreparedTable | None = None  # only if the run has one table; others are opened again
    kept: Path | None = None  # file with the records, if the run has several tables
    plan: Report | None = None  # report of the table in a dry run over several inputs


@dataclass(frozen=True, slots=True)
class SurveyedInput:
    """A readable input with a writable output."""

    file: InputFile
    target: Target
    sides: SideFiles
    tables: tuple[SurveyedTable, ...]
    data: InputData
    state: tuple[int, int, int]  # of `_state_of` before the survey

    @property
    def rows(self) -> int:
        """Rows of all tables; 0 for an open table, whose rows are not counted yet."""
        return sum(table.records.count for table in self.tables)

    def refuse_change(self) -> None:
        """Raise :class:`InputError` if the file was changed since the survey."""
        if _state_of(self.file.path, self.data) != self.state:
            raise InputError(INPUT_CHANGED, path=self.file.path)


@dataclass(frozen=True, slots=True)
class InputSurvey:
    """The inputs to enrich, and those that cannot be enriched."""

    inputs: tuple[SurveyedInput, ...]
    failed: dict[str, str]  # errors by path
    strays: tuple[str, ...]  # notes on files without a table

    @property
    def tables(self) -> list[SurveyedTable]:
        return [table for one in self.inputs for table in one.tables]

    @property
    def is_open(self) -> bool:
        return self.tables[0].opened is not None

    @property
    def has_numbers(self) -> bool:
        return not all(table.is_address_list for table in self.tables)

    def records_for(self, engine: Engine) -> Records:
        tables = self.tables
        if self.is_open:
            return tables[0].records
        rows = pl.scan_ipc([table.kept for table in tables if table.kept]).drop(ROW_ID).with_row_index(ROW_ID)
        count = sum(table.records.count for table in tables)
        return engine.prepare(Records(rows, count, _PRIORITY if engine.priority is not None else None))


@dataclass(frozen=True, slots=True)
class Surveyor:
    """Opens the inputs of a run and chooses their columns and outputs."""

    engine: Engine
    read: ReadOptions
    outputs: Outputs
    besides: dict[str, Path | None]  # further files that the run reads, by use
    resources: ExitStack  # closes copies of remote inputs, kept records and the table that stays open
    plan_table: Callable[[InputFile, PreparedTable, Records], Report] | None = None

    def look_at(self, files: Sequence[InputFile], *, keep_going: bool) -> InputSurvey:
        """Survey every input; raise :class:`InputError` if one fails, with ``keep_going`` only if all fail."""
        folder = None if self.outputs.alone else self.resources.enter_context(private_folder())
        found, failed, strays = list[SurveyedInput](), dict[str, str](), list[str]()
        for place, file in enumerate(files):
            try:
                found.append(self._look_at_input(file, place, folder, alone=len(files) == 1))
            except BansongError as error:
                if len(files) == 1:
                    raise
                if file.listed and is_stray(file.path, error, self.read):
                    strays.append(gettext(HOLDS_NO_TABLE, path=file.path))
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
        state = _state_of(file.path, data)
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
        table = resources.enter_context(open_input(file.path, data.path, self.read, sheet))
        resources.enter_context(reading(table))
        inputs = [file.path if is_remote(file.path) else data.path]
        target, sides = self._choose_outputs(file, inputs, table, several=several)
        prepared = prepare_output(table, target, self.read, self.outputs.write, self.engine.kind)
        return target, sides, self._survey_table(file, prepared, sides, sheet)

    def _survey_table(
        self, file: InputFile, prepared: PreparedTable, sides: SideFiles, sheet: str | None
    ) -> SurveyedTable:
        if sides.review is not None and prepared.is_address_list:
            raise UsageError(REVIEW_WITHOUT_NUMBERS, table=prepared.table.name, review=Option("review"))
        records = prepared.records_for(self.engine)
        plan = replace(self.plan_table(file, prepared, records), sheet=sheet) if self.plan_table else None
        return SurveyedTable(sheet, records, prepared.is_address_list, prepared, plan=plan)

    def merge(self, files: Sequence[InputFile], name: str) -> InputSurvey:
        """Survey several inputs as one table."""
        from bansong.run.merge import merge_inputs  # few runs merge

        found = merge_inputs(files, name, self.read, self.outputs.write.prefix, self.resources)
        file, data = InputFile(Path(name), Path()), InputData(found.data)
        target, sides = self._choose_outputs(file, [one.path for one in files], found.table, several=False)
        table = replace(found.table, first_row=2) if target.format.can.summary else found.table  # as the sheet numbers
        prepared = prepare_output(table, target, found.read, self.outputs.write, self.engine.kind)
        firsts = ((role, one, found.chosen[role]) for role, one in prepared.chosen.items())
        chosen = {role: replace(one, why=first.why, confidence=first.confidence) for role, one, first in firsts}
        prepared = replace(prepared, chosen=chosen, merged=found.inputs)
        surveyed = self._survey_table(file, prepared, sides, None)
        return InputSurvey((SurveyedInput(file, target, sides, (surveyed,), data, _state_of(file.path, data)),), {}, ())

    def _choose_outputs(
        self, file: InputFile, inputs: Sequence[Path], table: Table, *, several: bool
    ) -> tuple[Target, SideFiles]:
        write = self.outputs.write
        target = self.outputs.target_of(file, table, self.resources, several=several)
        sides = self.outputs.sides_of(target, self.engine.local.gazetteer if self.engine.kind.answers_locally else None)
        shared = SideFiles.of_run(write)
        if shared.page is not None:
            from bansong.run.page import check_page  # few runs make a page

            check_page(shared.page)
        written = {
            "output": target.path,
            "manifest": as_path(write.manifest) if write.manifest is not None else None,
            **sides.paths_by_use(),
            "letter list": shared.letters,
            "report": shared.page,
        }
        for path in inputs:
            keep_apart({"input": path, **self.besides}, written, write.in_place)
        return target, sides

    def _sheets_of(self, file: InputFile, data: InputData) -> Sequence[str | None]:
        # None: the reader chooses the sheet
        sheet = self.read.sheet
        if sheet is None or (isinstance(sheet, str) and sheet != ALL_SHEETS):
            return (sheet,)
        if sheet != ALL_SHEETS:
            return tuple(dict.fromkeys(sheet))
        with open_input(file.path, data.path, self.read, None) as table:
            return table.sheets or (None,)


def open_input(path: Path, data: Path, read: ReadOptions, sheet: str | None) -> AbstractContextManager[Table]:
    """Open a table of an input, whose local copy is ``data``."""
    named = name_input(read.input_format) if path == STREAM else path
    return open_table(named, replace(read, sheet=sheet), data=data)


def is_stray(path: Path, error: BansongError, read: ReadOptions) -> bool:
    """Whether a failed file holds no table at all (another format, prose, one JSON object)."""
    if not isinstance(error, ColumnError):
        return isinstance(error, NoTableError)
    with fetch_file(path) as data, open_input(path, data.path, read, None) as table:
        return error.missing == "b_no" and table.loose


def _state_of(path: Path, data: InputData) -> tuple[int, int, int]:
    """Return inode, size (bytes) and modification time (ns) of an input's local copy."""
    try:
        state = data.path.stat()
    except FileNotFoundError:
        return 0, 0, 0  # whoever opens it says so
    except OSError as error:
        raise InputError(INPUT_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    return state.st_ino, state.st_size, state.st_mtime_ns


def plan_together(records: pl.LazyFrame, plans: Sequence[LookupPlan]) -> LookupPlan:
    """Merge the plans of several tables; distinct lookups are counted over all ``records``."""
    if len(plans) == 1:
        return plans[0]
    lookups, problems = accounting.plan(records).lookups, Counter[str]()
    for plan in plans:
        problems.update(plan.invalid_by_problem)
    names = ("rows", "duplicates", "invalid", "wrong_check_digits", "without_address", "suspect")
    sums = {name: sum(getattr(plan, name) for plan in plans) for name in names}
    sums["duplicates"] += sum(plan.lookups for plan in plans) - lookups
    return LookupPlan(lookups=lookups, invalid_by_problem=dict(sorted(problems.items())), **sums)


def _keep(records: Records, path: Path) -> Records:
    sources = {name: name for name in records.rows.collect_schema().names() if name in _KEPT}
    if records.priority is not None:
        sources[_PRIORITY] = records.priority
    records.rows.select(
        ROW_ID,  # keeps the number of rows of a table without any other column
        *(
            (pl.col(sources[name]).cast(dtype, strict=False) if name in sources else pl.lit(None, dtype)).alias(name)
            for name, dtype in _KEPT.items()
        ),
    ).sink_ipc(path, compression="lz4", engine="streaming")
    rows = pl.scan_ipc(path)
    return Records(rows, rows.select(pl.len()).collect().item())


def _name_file(path: Path, text: str) -> str:
    # the whole path, since several files may have one name
    if str(path) in text:
        return text
    return f"{path}{text.removeprefix(path.name)}" if text.startswith(path.name) else f"{path}: {text}"


def _explain_failures(failed: dict[str, str], count: int, *, keep_going: bool) -> str:
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
