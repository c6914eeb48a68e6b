"""Make one table of several inputs, for ``merge=True``."""
# Each input is copied into a private Arrow file: it is read once, and rows and answers are of one version.

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.base.errors import BansongError, ColumnError, InputError, Problem
from bansong.base.files import private_folder, sha256_of
from bansong.base.messages import Phrase, gettext
from bansong.base.options import ReadOptions
from bansong.base.remote import fetch_file
from bansong.base.schema import CONTEXT_COLUMNS, FILE, RECORD_COLUMNS, Alert, Choice
from bansong.run.survey import HOLDS_NO_TABLE, INPUT_CHANGED, is_stray, open_input
from bansong.tables.detect import reading
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.inputs import NO_FILE_USABLE, InputFile
from bansong.tables.nested import choose_nested
from bansong.tables.table import FRAME, TEXTS, Table, column_ids, json_text, typed_id, wanted_sheet

NUMBERS_NOT_EVERYWHERE: Final = Problem(
    "merge.numbers_not_everywhere",
    "{path}: no column holds business numbers, as in other inputs; leave the file out, or enrich it by itself",
)
COLUMN_OF_EARLIER_RUN: Final = Problem(
    "merge.column_of_earlier_run",
    "{path}: has a column {header!r} of its own, which bansong added to another input; rename it",
)
ROLE_WITHIN_OBJECT: Final = Problem(
    "merge.role_within_object", "{path}: {header!r} stands within an object; enrich this input by itself"
)
_SHOWN: Final = 5
_Key = tuple[str, int]  # a header without surplus spaces, and which of equal ones it is


@dataclass(frozen=True, slots=True)
class MergedInputs:
    """One table with the rows of all inputs, in their order; its frame has the column :data:`FILE`, too."""

    table: Table
    data: Path
    read: ReadOptions  # names the columns of each role
    chosen: Mapping[str, Choice]  # in the first input that has the role
    inputs: tuple[Mapping[str, object], ...]  # path, rows and SHA-256


@dataclass(frozen=True, slots=True)
class _InputCopy:
    name: str
    copy: Path
    headers: Mapping[_Key, str]
    chosen: Mapping[str, Choice]
    ours: frozenset[int]  # positions of an earlier run's columns
    facts: Mapping[str, object]
    notes: tuple[str, ...]


def merge_inputs(
    files: Sequence[InputFile], name: str, read: ReadOptions, prefix: str, resources: ExitStack
) -> MergedInputs:
    """Unite tables by their headers; raise :class:`ColumnError` if a column would mean two things."""
    folder = resources.enter_context(private_folder())
    relative = Counter(file.relative for file in files)
    parts, notes = list[_InputCopy](), list[str]()
    for place, file in enumerate(files):
        named = str(file.path) if relative[file.relative] > 1 else file.relative.as_posix()
        try:
            parts.append(_copy(file, named, read, prefix, folder / f"{place}.arrow"))
        except BansongError as error:
            if not (file.listed and is_stray(file.path, error, read)):
                raise
            notes.append(Phrase(HOLDS_NO_TABLE, path=file.path))
    if not parts:
        raise InputError(NO_FILE_USABLE, reasons="\n  ".join(notes))
    _refuse_mixtures(parts)
    headers = {key: header for part in reversed(parts) for key, header in part.headers.items()}
    places = {key: place for place, key in enumerate(dict.fromkeys(key for part in parts for key in part.headers))}
    counted = Counter(note for part in parts for note in part.notes)
    notes += [note for note, times in counted.items() if times == len(parts)]
    for part in parts:
        if lacking := [repr(headers[key]) for key in places if key not in part.headers]:
            listed = ", ".join(lacking[:_SHOWN]) + (" …" if len(lacking) > _SHOWN else "")
            said = Phrase("{path}: has no {listed}; these cells are empty in its rows", path=part.name, listed=listed)
            notes.append(said)
        own = [note for note in part.notes if counted[note] < len(parts)]
        notes += [(Alert if isinstance(note, Alert) else str)(f"{part.name}: {note}") for note in own]
    united = tuple(headers[key] for key in places)
    rows = sum(int(str(part.facts["rows"])) for part in parts)
    return MergedInputs(
        Table(_unite(parts, places), united, FRAME, name, notes=tuple(notes), rows=rows),
        parts[0].copy,
        replace(read, columns=_spell_roles(parts, places)),
        {role: choice for part in reversed(parts) for role, choice in part.chosen.items()},
        tuple(part.facts for part in parts),
    )


def _spell_roles(parts: Sequence[_InputCopy], places: Mapping[_Key, int]) -> dict[str, str]:
    # ``#2|#9`` for the number in the second column of one input, which is the ninth of all in another
    columns = dict[str, dict[str, None]]()
    for part in parts:
        named = [f"#{places[key] + 1}" for key in part.headers]
        for role, choice in part.chosen.items():
            if nested := [column.header for column in choice.parts if column.column >= len(named)]:
                raise ColumnError(ROLE_WITHIN_OBJECT, path=part.name, header=nested[0])
            columns.setdefault(role, {})[_spell(choice, named)] = None
    return {role: "|".join(spelled) for role, spelled in columns.items()}


def _spell(choice: Choice, named: Sequence[str]) -> str:
    return choice.spell(lambda column: named[column.column])


def _copy(file: InputFile, name: str, read: ReadOptions, prefix: str, copy: Path) -> _InputCopy:
    with ExitStack() as resources:
        data = resources.enter_context(fetch_file(file.path))
        table = resources.enter_context(open_input(file.path, data.path, read, wanted_sheet(read)))
        resources.enter_context(reading(table))
        ours = find_earlier_columns(table, prefix).places
        _, chosen = choose_nested(table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS), read.columns, ours, address_list=True)
        there = table.frame.collect_schema().names()
        kept = [one for id_ in table.ids for one in (id_, typed_id(id_)) if one in there]
        named = table.frame.select(kept).with_columns(pl.lit(name).alias(FILE))
        named.sink_ipc(copy, compression="lz4", engine="streaming")
        rows = pl.scan_ipc(copy).select(pl.len()).collect().item()
        if rows != table.count():
            raise InputError(INPUT_CHANGED, path=file.path)
        facts = {"path": str(file.path), "rows": rows, "sha256": sha256_of(data.path)}
    headers, seen = dict[_Key, str](), Counter[str]()
    for header in table.headers:
        seen[text := " ".join(header.split())] += 1
        headers[text, seen[text]] = header
    notes = [*table.notes, *chosen.notes]
    if table.above:
        notes.append(
            gettext("the output has no lines from above the header ({count:,} are left out)", count=table.above)
        )
    return _InputCopy(name, copy, headers, chosen.columns, ours, facts, tuple(notes))


def _refuse_mixtures(parts: Sequence[_InputCopy]) -> None:
    lacking = [part for part in parts if "b_no" not in part.chosen]
    if lacking and len(lacking) < len(parts):
        raise ColumnError(NUMBERS_NOT_EVERYWHERE, path=lacking[0].name)
    ours = {key for part in parts for place, key in enumerate(part.headers) if place in part.ours}
    for part in parts:
        for place, key in enumerate(part.headers):
            if key in ours and place not in part.ours:
                raise ColumnError(COLUMN_OF_EARLIER_RUN, path=part.name, header=key[0])


def _unite(parts: Sequence[_InputCopy], places: Mapping[_Key, int]) -> pl.LazyFrame:
    # a column of several dtypes becomes texts, with marks for those that were none
    ids = dict(zip(places, column_ids(len(places)), strict=True))
    sources = [dict(zip(part.headers, column_ids(len(part.headers)), strict=True)) for part in parts]
    schemas = [pl.scan_ipc(part.copy).collect_schema() for part in parts]
    dtypes = {key: set[pl.DataType]() for key in ids}
    for source, schema in zip(sources, schemas, strict=True):
        for key, id_ in source.items():
            dtypes[key] |= {schema[id_]} - {pl.Null()}
    frames, marks = list[pl.LazyFrame](), dict[str, pl.Expr]()
    for part, source, schema in zip(parts, sources, schemas, strict=True):
        columns = [pl.col(FILE)]
        for key, id_ in source.items():
            mixed, mark = len(dtypes[key]) > 1, typed_id(ids[key])
            columns.append((_as_text(id_, schema[id_]) if mixed else pl.col(id_)).alias(ids[key]))
            if mixed or typed_id(id_) in schema:
                marks[mark] = pl.col(mark).fill_null(False)
                typed = pl.col(typed_id(id_)) if typed_id(id_) in schema else pl.lit(schema[id_] != pl.String)
                columns.append(typed.alias(mark))
        frames.append(pl.scan_ipc(part.copy).select(columns))
    return pl.concat(frames, how="diagonal_relaxed").with_columns(marks.values())


def _as_text(id_: str, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(id_)
    if dtype in TEXTS:
        return value.cast(pl.String)
    if dtype.is_nested():
        return json_text(value)
    text = value.cast(pl.String)  # 5.0 and 2026-03-01 00:00:00.000000 as Excel shows them
    return text.str.replace(r"\.0+$", "") if dtype.is_float() or dtype.is_temporal() else text
