"""A table made ready for a run: its columns chosen, its rows numbered, its output laid out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import language_of_columns
from bansong.errors import ColumnError, Problem, UsageError
from bansong.options import ALL_SHEETS, EngineKind, ReadOptions, WriteOptions
from bansong.run.engine import Engine, Records
from bansong.run.extra_columns import checked_extra_columns
from bansong.run.output_layout import Target, find_losses, lay_out_columns, open_elsewhere, refuse_wide
from bansong.run.records import records
from bansong.schema import ADDED_COLUMNS, CONTEXT_COLUMNS, LABEL_COLUMNS, RECORD_COLUMNS, Alert, Choice, Lang
from bansong.tables import Table, reading
from bansong.tables.columns import Chosen, kept_columns, named_column
from bansong.tables.compression import unpacked_name
from bansong.tables.detect import EXTENSIONS
from bansong.tables.earlier_columns import EarlierColumns, added_later, find_earlier_columns
from bansong.tables.given_columns import listed_headers
from bansong.tables.nested import choose_nested, held_choice, unfold
from bansong.tables.table import contract_name
from bansong.translation import Option, gettext, gettext_noop, parameter

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
    """Which columns are what, as chosen for one table; good for every table with the same headers, and picklable.

    ``chosen``: by positions of the table with the values within its objects behind its columns. ``ours``: positions of
    columns from an earlier enrichment.
    """

    headers: tuple[str, ...]
    chosen: Mapping[str, Choice]
    ours: frozenset[int]

    def read(self, table: Table) -> pl.LazyFrame:
        """Return a table's rows as :func:`bansong.run.records.records`."""
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
    lang: Lang = "en"
    """The language of the headers of the added columns, and of the words in them."""
    earlier: EarlierColumns = field(default_factory=EarlierColumns)

    @property
    def header_unsure(self) -> bool:
        """Whether the header row is a guess, so that lines above it may be rows."""
        return "b_no" in self.chosen and self.chosen["b_no"].why in ("similar", "content")

    @property
    def is_address_list(self) -> bool:
        """Whether the table has addresses and no business numbers."""
        return "address" in self.chosen and "b_no" not in self.chosen

    def records_for(self, engine: Engine) -> Records:
        """Return the rows as an engine answers them; raise :class:`ColumnError` for a priority without a column."""
        wanted = engine.priority
        priority = None if wanted is None else self.table.ids[named_column(self.table, wanted, "priority")]
        return engine.prepare(Records(self.rows, priority=priority))


def prepare_table(
    table: Table,
    columns: Mapping[str, str | Sequence[str]] | None,
    prefix: str,
    select: Sequence[str] | None = None,
    with_outcomes: bool = False,
    extras: Sequence[str] = (),
    headers: Lang | None = None,
    engine: EngineKind | None = None,
) -> PreparedTable:
    """Choose a table's columns, number its rows, lay its output out; raises :class:`bansong.errors.ColumnError`.

    ``headers``: the language of the added columns; one that they have from an earlier run stays. ``engine``: the one
    that answers the rows; without one, and for one that buys, a list must have business numbers.
    """
    with reading(table):
        earlier = find_earlier_columns(table, prefix)
    before = earlier.places
    if table.headers:
        with reading(table):
            unfolded, chosen = choose_nested(
                table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS), columns, before, address_list=engine is not None
            )
            if engine is not None and "b_no" not in chosen.columns:
                chosen = replace(chosen, notes=(_numberless_alert(table, engine), *chosen.notes))
    else:  # `[]`: no record, so no key to find
        unfolded, chosen = table, Chosen({})
    log.info("%s read as %s, %d columns; roles: %s", table.name, table.format, len(table.headers), chosen)
    rows = records(unfolded, chosen.columns, before)
    every = frozenset(range(len(table.headers)))
    kept = kept_columns(table, [select] if isinstance(select, str) else select) if select else every
    lang = language_of_columns(table.headers, earlier.nine) or headers or "en"
    ours = {**earlier.nine, **earlier.extras, **(earlier.labels if with_outcomes else {})}
    kept |= set(ours.values())
    # extra columns of an earlier run would be of other answers
    extras = checked_extra_columns((*extras, *map(contract_name, earlier.extras)))
    added = (*ADDED_COLUMNS, *(LABEL_COLUMNS if with_outcomes else ()), *extras)
    layout, warnings = lay_out_columns(table.headers, prefix, ours, kept, added, lang)
    if headers not in (None, lang):
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
    """Explain a list without business numbers; raise :class:`ColumnError` for an engine that buys."""
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
    suffix = plain.suffix
    if not suffix or suffix.lower() in EXTENSIONS or target.path.stem != f"{plain.stem}.enriched":
        return ()
    return (
        gettext(
            "{suffix} files are not written, so the output is {name}; {option} names another",
            suffix=suffix,
            name=target.path.name,
            option=parameter("output"),
        ),
    )


def prepare_output(
    table: Table, target: Target, read: ReadOptions, write: WriteOptions, engine: EngineKind
) -> PreparedTable:
    """Prepare a table for its output, and warn of what that output cannot hold."""
    if not write.select:
        refuse_wide(table, target, write.prefix)
    if write.headers == "ko" and not target.format.can.korean_headers:
        option = Option("headers", "ko")
        raise UsageError(OPTION_NOT_FOR_FORMAT, path=target.path, option=option, format=target.format.name)
    prepared = prepare_table(
        table, read.columns, write.prefix, write.select, write.with_outcomes, write.extra_columns, write.headers, engine
    )
    lost = find_losses(
        table,
        target,
        write.in_place,
        prepared.layout,
        leaves_out=prepared.leaves_out,
        header_unsure=prepared.header_unsure,
    )
    if table.headers and "name" not in prepared.chosen:
        named = parameter("columns", {"name": gettext("HEADER")})
        lost += (gettext("no name column was found, so letters have no name; {parameter} names it", parameter=named),)
    lost += tuple(open_elsewhere(table.path, target))
    lost += _other_extension(table, target)
    if len(table.sheets) > 1:
        every = parameter("sheet", ALL_SHEETS)
        lost += (gettext("{option} takes every sheet that holds business numbers", option=every),)
    return replace(prepared, warnings=(*prepared.warnings, *lost))
