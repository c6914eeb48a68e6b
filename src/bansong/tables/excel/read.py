"""Read a workbook as a table: choose a sheet, find its header, load its columns, here or in a child process."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from bansong.base import business_number
from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.files import private_folder
from bansong.base.isolation import IsolationError, limits, or_raise_limit, run_isolated
from bansong.base.messages import LANGS, gettext, gettext_noop, ngettext, use_language
from bansong.base.options import ReadOptions
from bansong.base.schema import Alert
from bansong.tables.excel import limits as limits_check
from bansong.tables.excel.limits import decodable_xlsx
from bansong.tables.excel.package import CORE, FORMER_SHEET, GUIDE, SHEET, SUMMARY, outline
from bansong.tables.headers import LOOK, Merge, find_heading, has_role, headless, headless_note
from bansong.tables.roles import holds_address
from bansong.tables.streams import File
from bansong.tables.table import SAMPLE_ROWS, Format, Table, advise_sheet, typed_id, wanted_sheet

if TYPE_CHECKING:
    from fastexcel import ExcelReader, ExcelSheet

WORKBOOK_UNREADABLE: Final = Problem(
    "excel.workbook_unreadable", "{path}: is not a readable workbook ({what}); open it in Excel and save it again"
)
TITLE_ROWS_UNCLEAR: Final = Problem(
    "excel.title_rows_unclear", "{name}: the rows above the header cannot be told apart; delete them and try again"
)
SHEET_MISSING: Final = Problem("excel.sheet_missing", "{path}: has no sheet {name!r}; it has {sheet_names}")
SHEET_NOT_TABLE: Final = Problem(
    "excel.sheet_not_table",
    "{path}: sheet {name!r} is a chart or a dialogue, not a table; choose another with `sheet=`",
)
SHEET_EMPTY: Final = Problem("excel.sheet_empty", "{path}: sheet {name!r} is empty")
VISIBLE_SHEETS_EMPTY: Final = Problem(
    "excel.visible_sheets_empty",
    "{path}: every visible sheet is empty; show the one that holds the table, or export it again",
)
SHEET_NAMES_AMBIGUOUS: Final = Problem("excel.sheet_names_ambiguous", "{path}: {what}; save it again in Excel")

_EXACT_INTEGERS: Final = 10**15
_DAY_OF_TIMES: Final = date(1899, 12, 31)  # the day that calamine puts before a time of day
# a text column's dates before 1910 are lengths of time: nobody was a customer then
_FIRST_DATE: Final = pl.duration(days=3660)
_DATED: Final = r"^[0-9]{4,}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?$"
# texts of numbers and truth values, and of dates and times, as in a column that holds texts, too
_MAY_BE_NUMBER: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$|^(?:true|false)$"
_MAY_BE_TIME: Final = r"^[0-9]{4,}-[0-9]{2}-[0-9]{2}(?:[ T][0-9:.]+)?$|^-?[0-9]+:[0-9:.]+$"
_UNSURE: Final = re.compile(r"could not determine dtype for column (.*)")
_RETRIES: Final = 8

_RIGHT_SHARE: Final = 0.9
_ADDRESS_SHARE: Final = 0.5
_NUMBERS, _NO_HEADER, _HEADER_ONLY, _ADDRESSES, _ANYTHING = 4, 3, 2, 1, 0
HAS_NUMBERS: Final = _NO_HEADER  # from this rank on, a table holds business numbers


@dataclass(frozen=True, slots=True)
class _Grid:
    frame: pl.DataFrame
    names: tuple[str, ...]  # the cells of the first row
    height: int  # of all rows, also those without a value at the end
    left: int  # the first column in the sheet
    renamed: bool  # some names may not be the cells' texts: fastexcel makes them unique
    visible: bool
    skipped: int  # rows above, as the parser counts them

    @property
    def below(self) -> int:
        return self.height - self.frame.height


def _load_below(book: ExcelReader, sheet: str, whole: _Grid, skipped: int, start: int, *, name: str) -> _Grid:
    """Load a sheet again without the first ``skipped`` rows of ``whole``."""
    # The parser skips rows from the top of the sheet and hides its first value: the count checks the guess ``start``.
    due = whole.height - skipped
    grid = _load_grid(book, sheet, skipped + start)
    if grid.height != due:
        grid = _load_grid(book, sheet, max(skipped + start + grid.height - due, 0))
    if grid.height != due or grid.left != whole.left or grid.frame.width != whole.frame.width:
        raise InputError(TITLE_ROWS_UNCLEAR, name=name)
    return grid


def _load_grid(book: ExcelReader, sheet: str, skipped: int = 0, *, headed: bool = True) -> _Grid:
    """Load a sheet without the first ``skipped`` rows. If ``headed``, the next row with a value is the header."""
    options: dict[str, Any] = {"skip_rows": skipped or None, "header_row": 0 if headed else None}
    loaded, forced = _load_untyped(book, sheet, options)
    columns, frame = loaded.selected_columns, loaded.to_polars()
    frame.columns = [f"c{place}" for place in range(frame.width)]
    ids = dict(zip(frame.columns, columns, strict=True))
    dated = frame.select(pl.col(pl.String).str.contains(_DATED).any())
    places = {date.name: ids[date.name].absolute_index for date in dated if date.item()}
    if places:
        serials = book.load_sheet(sheet, use_columns=[*places.values()], dtypes="duration", **options).to_polars()
        shown = [_shown_text(pl.col(id_), days).alias(id_) for id_, days in zip(places, serials, strict=True)]
        frame = frame.with_columns(shown)
    names = tuple("" if column.column_name_from == "generated" else column.name for column in columns)
    found = set(names)
    again = any(name.rpartition("_")[0] in found and name.rpartition("_")[2].isdecimal() for name in names)
    left = columns[0].absolute_index if columns else 0
    visible = loaded.visible == "visible"
    return _Grid(_natural_types(_without_tail(frame)), names, frame.height, left, again or forced, visible, skipped)


def _load_untyped(book: ExcelReader, sheet: str, options: dict[str, Any]) -> tuple[ExcelSheet, bool]:
    """Load a sheet; return also whether columns had to be read as text."""
    # fastexcel raises for a column with both texts and durations
    import fastexcel

    texts: dict[str | int, Any] = {}
    for _ in range(_RETRIES):
        try:
            return book.load_sheet(sheet, dtypes=texts or None, schema_sample_rows=None, **options), bool(texts)
        except fastexcel.UnsupportedColumnTypeCombinationError as error:
            if found := _UNSURE.search(str(error)):
                texts[found[1]] = "string"
    return book.load_sheet(sheet, dtypes="string", schema_sample_rows=None, **options), bool(texts)


def _shown_text(text: pl.Expr, days: pl.Series) -> pl.Expr:
    # days: what Excel stores, as a duration; null for anything but dates and times
    serial = pl.lit(days)
    date_or_length = pl.when(serial < _FIRST_DATE).then(_hours(serial)).otherwise(text.str.strip_suffix(" 00:00:00"))
    shown = pl.when(serial < pl.duration(days=1)).then(text.str.slice(11)).otherwise(date_or_length)
    return pl.when(serial.is_null() | ~text.str.contains(_DATED)).then(text).otherwise(shown)


def _hours(length: pl.Expr) -> pl.Expr:
    seconds = length.dt.total_seconds().abs()
    two = [(value % 60).cast(pl.String).str.zfill(2) for value in (seconds // 60, seconds)]
    sign = pl.when(length < pl.duration()).then(pl.lit("-")).otherwise(pl.lit(""))
    return sign + pl.concat_str((seconds // 3600).cast(pl.String), *two, separator=":")


def _without_tail(frame: pl.DataFrame) -> pl.DataFrame:
    if not frame.width:
        return frame
    blank = [pl.col(pl.String).str.strip_chars() == "", pl.exclude(pl.String).is_null()]
    for size in (100, frame.height):  # the end is found in the last rows, or else by looking at all
        tail = frame.tail(size)
        empty = tail.select(pl.all_horizontal(*[expr.fill_null(True) for expr in blank]).alias("empty"))["empty"]
        filled = (~empty).arg_true()
        if len(filled):
            return frame.head(frame.height - tail.height + filled[-1] + 1)
    return frame.clear()


def _natural_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Convert columns of whole floats to integers, of date-times to dates or times, of durations to ``26:30:00``."""
    natural: list[pl.Expr] = []
    for values in frame:
        if values.dtype == pl.Float64 and ((values % 1 == 0) & (values.abs() < _EXACT_INTEGERS)).all():
            natural.append(pl.col(values.name).cast(pl.Int64))
        elif values.dtype == pl.Datetime and (values.dt.date() == _DAY_OF_TIMES).all():
            natural.append(pl.col(values.name).dt.time())
        elif values.dtype == pl.Datetime and (values == values.dt.truncate("1d")).all():
            natural.append(pl.col(values.name).cast(pl.Date))
        elif values.dtype == pl.Duration:
            natural.append(_hours(pl.col(values.name)).alias(values.name))
    return frame.with_columns(natural)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a sheet that are known before it is loaded."""

    visible: bool
    table: bool = True
    merges: Sequence[Merge] = ()  # by the row numbers of the sheet
    first: int = 0  # the first row with a value


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded sheet: its headers, and its rows as a frame with the columns ``c0``, ``c1``, …."""

    name: str
    frame: pl.DataFrame
    headers: tuple[str, ...]
    header: int  # rows from the first with a value to the last line of the header, -1 without one
    others: tuple[str, ...] = ()  # further sheets that hold business numbers
    further: tuple[str, ...] = ()  # all that are visible and may be a list
    below: int = 0  # behind the frame's last row: white space, empty texts or errors only
    title_rows: tuple[tuple[str | None, ...], ...] = ()  # above the header, from the first row with a value
    left: int = 0
    skipped: int = 0


def load(data: Path, path: Path, wanted: ReadOptions, facts: Mapping[str, Facts] | None) -> Loaded:
    """Load the wanted sheet, else the first visible one with numbers, with addresses, or any."""
    import fastexcel

    for library in ("fastexcel", "calamine"):  # they warn of every column without a value, of parts that are no sheets
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        book = fastexcel.read_excel(data)
        if facts is not None and book.sheet_names != [*facts]:  # a line break in a name, say
            what = gettext("is a damaged workbook (the names of its sheets can be read in two ways)")
            raise InputError(SHEET_NAMES_AMBIGUOUS, path=path, what=what)
        return _Sheets(book, path, wanted.has_header, facts).load(wanted_sheet(wanted))
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of Rust; its class cannot be imported
        if not panic and not isinstance(error, fastexcel.FastExcelError | OSError):
            raise
        what = (str(error).splitlines() or ["unknown"])[0]
        raise InputError(WORKBOOK_UNREADABLE, path=path, what=what) from (None if panic else error)


def load_typed(data: Path, loaded: Loaded) -> pl.DataFrame:
    import fastexcel

    typed: dict[str, pl.Series] = {}
    options: dict[str, Any] = {"skip_rows": loaded.skipped or None, "header_row": None if loaded.header < 0 else 0}
    # neither is made of a text: `boolean` is of numbers and truth values, `date` of dates and times
    for pattern, dtype in ((_MAY_BE_NUMBER, "boolean"), (_MAY_BE_TIME, "date")):
        texts = loaded.frame.select(pl.col(pl.String).str.contains(pattern).any())
        if not (ids := [text.name for text in texts if text.item()]):
            continue
        options |= {"dtypes": dtype, "use_columns": [loaded.left + int(id_.removeprefix("c")) for id_ in ids]}
        cells = fastexcel.read_excel(data).load_sheet(loaded.name, **options).to_polars()
        for name, values in zip(map(typed_id, ids), cells, strict=True):
            found = values.is_not_null().alias(name)
            typed[name] = typed[name] | found if name in typed else found
    return pl.DataFrame([cells for cells in typed.values() if cells.any()]).head(loaded.frame.height)


class _Sheets:
    def __init__(self, book: ExcelReader, path: Path, has_header: bool, facts: Mapping[str, Facts] | None) -> None:
        self._book, self._path, self._has_header = book, path, has_header
        self._facts = dict.fromkeys(book.sheet_names, Facts(visible=True)) if facts is None else facts

    def load(self, wanted: str | None) -> Loaded:
        names, path = self._book.sheet_names, self._path
        if wanted is None:
            return self._choose([name for name in names if self._facts[name].visible and self._facts[name].table])
        if wanted not in names:
            raise UsageError(SHEET_MISSING, path=path, name=wanted, sheet_names=", ".join(map(repr, names)))
        if not self._facts[wanted].table:
            raise UsageError(SHEET_NOT_TABLE, path=path, name=wanted)
        if (loaded := self._load_with_header(wanted, hidden=True)) is None:
            raise InputError(SHEET_EMPTY, path=path, name=wanted)
        return loaded

    def _choose(self, names: Sequence[str]) -> Loaded:
        best: Loaded | InputError | None = None
        highest, holding, filled = -1, [], []
        for name in names:
            found = self._try(name, spare=highest == _NUMBERS)
            if found is None:
                continue
            if isinstance(found, Loaded) and found.frame.height and found.frame.width > 1:  # no cover, no empty form
                filled.append(name)
            fit = rank(found) if len(names) > 1 else _ANYTHING
            if fit >= HAS_NUMBERS:
                holding.append(name)
            if fit > highest:
                best, highest = found, fit
        if best is None:
            raise InputError(VISIBLE_SHEETS_EMPTY, path=self._path)
        if isinstance(best, InputError):
            raise best
        others, further = (tuple(name for name in found if name != best.name) for found in (holding, filled))
        return replace(best, others=others, further=further)

    def _try(self, name: str, *, spare: bool) -> Loaded | InputError | None:
        import fastexcel

        try:
            return self._load_with_header(name)
        except InputError as error:
            return error
        except fastexcel.FastExcelError:
            if spare:  # the table is found already: another sheet's damage does no harm
                return None
            raise

    def _load_with_header(self, name: str, *, hidden: bool = False) -> Loaded | None:
        book, facts, called = self._book, self._facts[name], f"{self._path} [{name}]"
        grid = _load_grid(book, name)
        if not grid.names or not (grid.visible or hidden):
            return None
        # a header that is a number has no decimal point, whatever stands below it
        texts = grid.frame.head(LOOK - 1).with_columns(pl.col(pl.Float64).cast(pl.String).str.strip_suffix(".0"))
        top: list[tuple[str | None, ...]] = [grid.names, *texts.cast(pl.String).rows()]
        if grid.renamed:
            top = book.load_sheet(name, header_row=None, n_rows=LOOK, dtypes="string").to_polars().rows()
        merges = [
            (up - facts.first, left - grid.left, down - facts.first, right - grid.left)
            for up, left, down, right in facts.merges
            if facts.first <= up and down - facts.first < LOOK and left >= grid.left
        ]
        if not self._has_header and (found := headless(top, name=called)):
            grid = _load_grid(book, name, headed=False)
            return Loaded(name, grid.frame, found.headers, -1, below=grid.below, left=grid.left)
        heading = find_heading(top, merges, name=called, blank_rows=facts.first)
        if heading.last:
            grid = _load_below(book, name, grid, heading.last, facts.first, name=called)
        loaded = Loaded(name, grid.frame, heading.headers, heading.last, title_rows=tuple(top[: heading.first]))
        return replace(loaded, below=grid.below, left=grid.left, skipped=grid.skipped)


def rank(found: Loaded | InputError) -> int:
    if isinstance(found, InputError):
        return _NO_HEADER
    sample = found.frame.head(SAMPLE_ROWS)
    titled = {f"c{place}" for place, header in enumerate(found.headers) if has_role(header, "b_no")}
    cells = [name for name, dtype in sample.schema.items() if dtype.is_numeric() or dtype == pl.String]
    long = sample.lazy().select(pl.col(cells).cast(pl.String)).unpivot(variable_name="id", value_name="cell")
    long = long.drop_nulls("cell").with_columns(digits=business_number.compact_expr(pl.col("cell")))
    right = business_number.checksum_expr(pl.col("digits").cast(pl.UInt64, strict=False)).fill_null(False).mean()
    columns = long.group_by("id").agg(pl.len(), pl.col("digits").is_not_null().mean(), right=right).collect()
    by_content = (pl.col("right") >= _RIGHT_SHARE) & (pl.col("len") >= 3)
    by_header = pl.col("id").is_in(list(titled)) & (pl.col("digits") > 0)
    if columns.select((by_content | by_header).any()).item():
        return _NUMBERS
    if titled:
        return _HEADER_ONLY
    texts = [cells for cells in sample if cells.dtype == pl.String]
    held = (cells.to_frame().select(holds_address(pl.first()).mean()).item() or 0.0 for cells in texts)
    return _ADDRESSES if any(share >= _ADDRESS_SHARE for share in held) else _ANYTHING


DAMAGED_OR_TOO_LARGE: Final = Problem(
    "excel.damaged_or_too_large",
    "{path}: is damaged, or takes more than {memory:,} bytes of memory to read ({detail}); {advice}",
)
READING_TOO_SLOW: Final = Problem(
    "limits.reading_too_slow", "{path}: takes more than {seconds} minutes to read; save its table as .csv"
)
MEMORY_EXCEEDED: Final = Problem(
    "limits.memory_exceeded", "{path}: takes more than {memory:,} bytes of memory to read; {advice}"
)
SHEET_WITHOUT_ROWS: Final = Problem(
    "excel.sheet_without_rows",
    "{path}: is a damaged workbook (sheet {name!r} has no rows); open it in Excel and save it again",
)

_SECONDS: Final = 900
_BATCH: Final = 1 << 16
_HERE: Final = 900_000_000  # bytes of memory up to which a sheet is read in this process


def load_isolated(data: Path, path: Path, wanted: ReadOptions, facts: Mapping[str, Facts] | None) -> Loaded:
    """Do what :func:`load` does in a child process, which may abort or run out of memory or time."""
    memory = limits().memory
    with private_folder() as folder:
        frame = folder / "sheet.arrow"
        arguments = {
            "data": os.fspath(data.absolute()),
            "path": os.fspath(path),
            "wanted": {"sheet": wanted_sheet(wanted), "has_header": wanted.has_header},
            "facts": None if facts is None else {name: asdict(fact) for name, fact in facts.items()},
            "frame": os.fspath(frame),
        }
        try:
            loaded = run_isolated(f"{__name__}:load_to_file", arguments, memory=memory, seconds=_SECONDS)
        except IsolationError as error:
            raise _explain_failure(error, path, memory) from None
        loaded["frame"] = pl.read_ipc(io.BytesIO(frame.read_bytes()))  # no map of a file that goes away
    for name in ("headers", "others", "further"):
        loaded[name] = tuple(loaded[name])
    loaded["title_rows"] = tuple(map(tuple, loaded["title_rows"]))
    return Loaded(**loaded)


def load_to_file(
    data: str, path: str, wanted: dict[str, Any], facts: dict[str, Any] | None, frame: str
) -> dict[str, Any]:
    """Load a sheet, write its frame (with ``typed_id`` columns) to ``frame`` as Arrow IPC; return its other fields."""
    known = facts and {name: Facts(**fact) for name, fact in facts.items()}
    loaded = load(Path(data), Path(path), ReadOptions(**wanted), known)
    loaded.frame.hstack(load_typed(Path(data), loaded)).write_ipc(frame)
    return {field.name: getattr(loaded, field.name) for field in fields(Loaded) if field.name != "frame"}


def _explain_failure(error: IsolationError, path: Path, memory: int) -> InputError:
    advice = gettext("save its table as .csv{or_raise}", or_raise=or_raise_limit("memory"))
    if error.reason == "time":
        return InputError(READING_TOO_SLOW, path=path, seconds=_SECONDS // 60)
    if error.reason == "memory":
        return InputError(MEMORY_EXCEEDED, path=path, memory=memory, advice=advice)
    detail = error.detail or gettext("the parser gave up")
    return InputError(DAMAGED_OR_TOO_LARGE, path=path, memory=memory, detail=detail, advice=advice)


@dataclass(frozen=True, slots=True)
class Sheet:
    """The sheet of an .xlsx or .xlsm workbook that was read; ``header`` and ``below`` as in :class:`Loaded`."""

    name: str
    header: int = 0
    below: int = 0


def read_xlsx(file: File, given: File, format: Format, wanted: ReadOptions, resources: ExitStack) -> Table:
    """Open a sheet of a workbook (``file``: ``given`` or a copy). If it has no header, the output is a new workbook."""
    loaded, frame, part = _load_xlsx(file, wanted, resources)
    source = Sheet(loaded.name, loaded.header, loaded.below) if loaded.header >= 0 else None
    return _table(loaded, frame, given, format, wanted, source, _display_notes(part), part.first or 0)


def read_old(file: File, given: File, format: Format, wanted: ReadOptions, notes: Iterable[str] = ()) -> Table:
    loaded = load_isolated(file.data, given.path, wanted, None)
    return _table(loaded, loaded.frame.lazy(), given, format, wanted, None, notes, 0)


def _table(
    loaded: Loaded,
    frame: pl.LazyFrame,
    file: File,
    format: Format,
    wanted: ReadOptions,
    source: Sheet | None,
    notes: Iterable[str],
    blank_rows: int,
) -> Table:
    headless = [headless_note(loaded.headers)] if loaded.header < 0 else []
    return Table(
        frame,
        loaded.headers,
        format,
        f"{file.path.name} [{loaded.name}]",
        file,
        source,
        (*notes, *_further_sheets(loaded), *headless),
        above=max(loaded.header, 0),
        titles=len(loaded.title_rows),
        title_rows=loaded.title_rows,
        sheets=(loaded.name, *loaded.others) if wanted_sheet(wanted) is None else (),
        first_row=blank_rows + loaded.header + 2,
    )


def _further_sheets(loaded: Loaded) -> Iterator[Alert]:
    added = set[str]()  # by a run, beside the table
    for lang in LANGS if loaded.name in (SHEET, FORMER_SHEET) else ():
        with use_language(lang):
            added |= {gettext(SUMMARY), gettext(GUIDE)}
    hold_numbers = gettext_noop("only the sheet {name!r} was taken; {names} hold business numbers too; {advice}")
    left_out = gettext_noop("only the sheet {name!r} was taken, not {names}; {advice}")
    if further := loaded.others or [name for name in loaded.further if name not in added]:
        said = {"name": loaded.name, "names": ", ".join(map(repr, further)), "advice": advise_sheet(further[0])}
        yield Alert(gettext(hold_numbers if loaded.others else left_out, **said))


def with_extension(file: File, format: Format, resources: ExitStack) -> File:
    """Return the file, or a copy with the extension of its real format: the parser goes by it."""
    if file.data.suffix.lower() in format.extensions:
        return file
    folder = resources.enter_context(private_folder())
    return replace(file, data=Path(shutil.copyfile(file.data, folder / f"book{format.extensions[0]}")))


def time_notes(parts: Mapping[str, limits_check.PartContent]) -> Iterator[str]:
    """Yield a note if a workbook (.ods) has times, some of which the parser drops without an error."""
    if times := sum(part.times for part in parts.values()):
        yield ngettext(
            "times in {count:,} cell of the workbook: of an .ods lengths of a day and more, and times in columns with "
            "texts, are read as blank; save it as .xlsx to have them",
            "times in {count:,} cells of the workbook: of an .ods lengths of a day and more, and times in columns with "
            "texts, are read as blank; save it as .xlsx to have them",
            times,
        )


def _display_notes(part: limits_check.PartContent) -> Iterator[str]:
    if part.errors:
        yield ngettext(
            "errors such as #N/A in {count:,} cell of the sheet are read as blank",
            "errors such as #N/A in {count:,} cells of the sheet are read as blank",
            part.errors,
        )
    if part.hidden:
        hidden = ngettext(
            "{count:,} row of the sheet is hidden, by a filter or by hand, and is verified and listed like all others; "
            "delete it, or copy what is visible to a new sheet, to leave it out",
            "{count:,} rows of the sheet are hidden, by a filter or by hand, and are verified and listed like all "
            "others; delete them, or copy what is visible to a new sheet, to leave them out",
            part.hidden,
        )
        yield Alert(hidden)
    if part.unsolved:
        yield gettext(
            "formulas of the sheet have no stored result and are read as blank; open it in Excel and save it again"
        )


def _load_xlsx(
    file: File, wanted: ReadOptions, resources: ExitStack
) -> tuple[Loaded, pl.LazyFrame, limits_check.PartContent]:
    path, sheet = file.path, wanted_sheet(wanted)
    limits_check.check_zip(path, file.data, xml=True, only=CORE)
    entries = outline(path, file.data)
    read = {e.name: e.part for e in entries if e.part and (e.visible if sheet is None else e.name == sheet)}
    unread = {entry.part for entry in entries if entry.part} - {*read.values()}
    parts = limits_check.check_zip(path, file.data, xml=True, without=unread)
    nothing = limits_check.PartContent()
    facts = {
        entry.name: Facts(entry.visible, entry.part is not None, part.merges, part.first or 0)
        for entry in entries
        for part in [parts.get(entry.part or "", nothing)]
    }
    longest = max(part.longest for part in parts.values())
    sheets = {name: parts[part] for name, part in read.items()}
    for name, part in sheets.items():
        if not part.table:
            raise InputError(SHEET_WITHOUT_ROWS, path=path, name=name)
    memory = sum(part.memory() for part in parts.values() if part.texts)
    memory += max((part.memory(longest) for part in sheets.values()), default=0.0)
    data = decodable_xlsx(file, resources).data
    if memory > _HERE:
        loaded = load_isolated(data, path, wanted, facts)
        return loaded, loaded.frame.lazy(), sheets[loaded.name]
    loaded = load(data, path, wanted, facts)
    return loaded, _with_typed(data, loaded), sheets[loaded.name]


def _with_typed(data: Path, loaded: Loaded) -> pl.LazyFrame:
    frame = loaded.frame
    marks = {typed_id(id_): pl.Boolean() for id_, dtype in frame.schema.items() if dtype == pl.String}
    if not marks:
        return frame.lazy()

    @cache
    def whole() -> pl.DataFrame:
        typed = load_typed(data, loaded)
        none = pl.Series([False]).new_from_index(0, frame.height)
        return frame.with_columns(typed[name] if name in typed.columns else none.alias(name) for name in marks)

    def rows(
        ids: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        source = whole() if ids is None or not marks.keys().isdisjoint(ids) else frame
        source = source if most is None else source.head(most)
        for batch in source.iter_slices(_BATCH):
            chosen = batch if ids is None else batch.select(ids) if ids else pl.DataFrame(height=batch.height)
            yield chosen if predicate is None else chosen.filter(predicate)

    return register_io_source(rows, schema=pl.Schema({**frame.schema, **marks}), is_pure=True)
