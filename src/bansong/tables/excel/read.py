"""Workbooks → tables: checked first, then read by fastexcel, in this process or in a child with limits."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from bansong.base.errors import InputError, Problem
from bansong.base.files import private_folder
from bansong.base.isolation import IsolationError, limits, or_raise_limit, run_isolated
from bansong.base.messages import LANGS, gettext, gettext_noop, ngettext, use_language
from bansong.base.options import ReadOptions
from bansong.base.schema import Alert
from bansong.tables.excel import limits as limits_check
from bansong.tables.excel.limits import decodable_xlsx
from bansong.tables.excel.package import CORE, FORMER_SHEET, SHEET, SUMMARY, outline
from bansong.tables.excel.sheets import Facts, Loaded, load, load_typed
from bansong.tables.headers import headless_note
from bansong.tables.streams import File
from bansong.tables.table import Format, Table, advise_sheet, typed_id, wanted_sheet

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
    """Load a sheet, write its frame with ``typed_id`` columns to ``frame`` as Arrow IPC, return its other fields."""
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
    """Open a sheet of a workbook; ``file`` is ``given`` or its copy. Without a header the output is a new workbook."""
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
    summaries = set()
    for lang in LANGS if loaded.name in (SHEET, FORMER_SHEET) else ():
        with use_language(lang):
            summaries.add(gettext(SUMMARY))
    hold_numbers = gettext_noop("only the sheet {name!r} was taken; {names} hold business numbers too; {advice}")
    left_out = gettext_noop("only the sheet {name!r} was taken, not {names}; {advice}")
    if further := loaded.others or [name for name in loaded.further if name not in summaries]:
        said = {"name": loaded.name, "names": ", ".join(map(repr, further)), "advice": advise_sheet(further[0])}
        yield Alert(gettext(hold_numbers if loaded.others else left_out, **said))


def with_extension(file: File, format: Format, resources: ExitStack) -> File:
    """Return the file, or a copy with the extension of its real format: the parser goes by it."""
    if file.data.suffix.lower() in format.extensions:
        return file
    folder = resources.enter_context(private_folder())
    return replace(file, data=Path(shutil.copyfile(file.data, folder / f"book{format.extensions[0]}")))


def time_notes(parts: Mapping[str, limits_check.PartContent]) -> Iterator[str]:
    """Note the times of an .ods: the parser drops some of them without an error."""
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
