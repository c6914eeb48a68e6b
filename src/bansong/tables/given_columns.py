"""Columns that the user names: by header, by position (``#3``), several for one value (``기본주소+상세주소``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bansong.errors import ColumnError, Problem, UsageError
from bansong.schema import Choice, JoinedColumn
from bansong.tables.role_content import JOINABLE
from bansong.tables.table import Table
from bansong.translation import Option, gettext, parameter

COLUMN_NAMED_TWICE: Final = Problem("columns.column_named_twice", "{parameter} names a column twice; name each once")
NAMES_NO_COLUMN: Final = Problem("columns.names_no_column", "{name}: {parameter} names no column; {headers}")
NAMED_HEADER_MISSING: Final = Problem(
    "columns.named_header_missing", "{name}: no column is headed {header!r}; {headers}"
)
ROLE_NOT_JOINABLE: Final = Problem(
    "columns.role_not_joinable", "{parameter} names {count} columns; only {joinable} may be in several"
)
ROLE_WITHOUT_HEADERS: Final = Problem(
    "columns.role_without_headers", "a role in columns has an empty list; name at least one header"
)
SELECTED_COLUMN_MISSING: Final = Problem(
    "columns.selected_column_missing", "{name}: {named} names no column; {headers}"
)

POSITION: Final = re.compile(r"#[1-9][0-9]*")
"""A column named by its place: ``#3``."""


def given_choice(table: Table, role: str, given: str | Sequence[str]) -> Choice:
    """Return what the user names for a role: a header, a position, or several of them.

    Columns with ``+`` between, or in a list, are joined; of several with ``|`` between the first that is not blank is
    taken in each row: ``도로명주소+상세주소|지번주소``. A header that holds such a sign goes before its parts. Raises
    :class:`ColumnError` for what names no column or two, :class:`UsageError` for several columns where a role has one.
    """
    first, *others = [_given_alternative(table, role, given, names) for names in _split(table, given)]
    if first in others or len(set(others)) < len(others):
        raise _named_twice(role, given)
    return replace(first, otherwise=tuple(others))


def _given_alternative(table: Table, role: str, given: str | Sequence[str], names: Sequence[str]) -> Choice:
    places = [_one_place(table, role, name) for name in names]
    first, *rest = [JoinedColumn(place, table.headers[place]) for place in places]
    if rest and role not in JOINABLE:
        raise UsageError(
            ROLE_NOT_JOINABLE, parameter=_quote_given(role, given), count=len(places), joinable=", ".join(JOINABLE)
        )
    if len(set(places)) < len(places):
        raise _named_twice(role, given)
    return Choice(first.column, first.header, 1.0, "given", tuple(rest))


def _named_twice(role: str, given: str | Sequence[str]) -> UsageError:
    return UsageError(COLUMN_NAMED_TWICE, parameter=_quote_given(role, given))


def kept_columns(table: Table, select: Sequence[str]) -> frozenset[int]:
    """Return the positions of the columns that ``select`` names: headers, or ``#3`` for the third column.

    A header that repeats stands for all that bear it. An item that is no header is read as several, separated by
    commas. Raises :class:`UsageError` for what names no column.
    """
    kept: set[int] = set()
    for item in select:
        if not item.strip(", "):
            raise UsageError(
                NAMES_NO_COLUMN,
                name=table.name,
                parameter=Option("select", item.strip()),
                headers=listed_headers(table),
            )
        for name in [item] if _places_named(table, item) else _split_at(table, item, ",")[0::2]:
            found = _places_named(table, name)
            if not found:
                named = parameter("select", name.strip())
                raise UsageError(SELECTED_COLUMN_MISSING, name=table.name, named=named, headers=listed_headers(table))
            kept |= found
    return frozenset(kept)


def named_column(table: Table, name: str, option: str) -> int:
    """Return the position of the one column that a header or ``#3`` names; raise :class:`UsageError`."""
    places = sorted(_places_named(table, name))
    if len(places) == 1:
        return places[0]
    if places:
        raise UsageError(_name_alike(table, name, [parameter(option, f"#{place + 1}") for place in places]))
    raise UsageError(NAMES_NO_COLUMN, name=table.name, parameter=Option(option, name), headers=listed_headers(table))


def _quote_given(role: str, given: str | Sequence[str]) -> str:
    return parameter("columns", {role: given if isinstance(given, str) else "+".join(given)})


def listed_headers(table: Table) -> str:
    """The headers of a table for a message."""
    return gettext("the headers are: ") + ", ".join(header or gettext("(blank)") for header in table.headers)


def _split(table: Table, given: str | Sequence[str]) -> list[list[str]]:
    if not isinstance(given, str):
        if not given:
            raise UsageError(ROLE_WITHOUT_HEADERS)
        return [list(given)]
    first, *rest = [given] if given in table.headers else _split_at(table, given, "+|")
    alternatives = [[first]]
    for sign, name in zip(rest[0::2], rest[1::2], strict=True):
        if sign == "|":
            alternatives.append([name])
        else:
            alternatives[-1].append(name)
    return alternatives


def _split_at(table: Table, text: str, signs: str) -> list[str]:
    """Names and the signs between them. Headers may hold signs: the longest header that fits is taken."""
    items: list[str] = []
    pieces = re.split(f"([{re.escape(signs)}])", text)
    while pieces:
        lengths = range(len(pieces) - 1 + len(pieces) % 2, 0, -2)
        length = next((length for length in lengths if _places_named(table, "".join(pieces[:length]))), 1)
        items += ["".join(pieces[:length]), *pieces[length : length + 1]]
        pieces = pieces[length + 1 :]
    return items


def _one_place(table: Table, role: str, name: str) -> int:
    exact = {place for place, header in enumerate(table.headers) if header == name}
    places = sorted(exact or _places_named(table, name))
    if len(places) == 1:
        return places[0]
    if places:
        raise ColumnError(_name_alike(table, name, [parameter("columns", {role: f"#{place + 1}"}) for place in places]))
    raise ColumnError(NAMED_HEADER_MISSING, name=table.name, header=name.strip(), headers=listed_headers(table))


def _places_named(table: Table, name: str) -> set[int]:
    """The positions that a header or ``#n`` names, spaces around it left aside.

    Where no header is spelled so: those that end with the name as a word of its own, below the label of a group.
    """
    name = name.strip()
    if POSITION.fullmatch(name) and int(name[1:]) <= len(table.headers):
        return {int(name[1:]) - 1}
    whole = {place for place, header in enumerate(table.headers) if header.strip() == name}
    lines = f" {' '.join(name.split())}"
    return whole or {
        place
        for place, header in enumerate(table.headers)
        if len(lines) > 1 and f" {' '.join(header.split())}".endswith(lines)
    }


def _name_alike(table: Table, header: str, places: Sequence[str]) -> str:
    return gettext(
        "{name}: {count} columns are headed {header!r}; give {these}",
        name=table.name,
        count=len(places),
        header=header,
        these=gettext(" or ").join(places),
    )
