"""Which of a file's columns holds the number, the name, the address: chosen from headers, checked on content."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bizverify import number
from bizverify.errors import ColumnError, UsageError
from bizverify.model import ADDED_COLUMNS, Choice
from bizverify.tables.parties import ROLES as PARTY_ROLES
from bizverify.tables.parties import Party, parties, wanted
from bizverify.tables.table import TEXTS, Table
from bizverify.tables.words import has_role, is_trap, level_of, side_of

__all__ = ["Chosen", "choose_columns", "has_role", "kept_columns", "own_columns"]

_SAMPLE_ROWS: Final = 1000
_TIE: Final = 0.05
_CONFIDENCE: Final = {"sure": 1.0, "likely": 0.8, "contains": 0.6}
_BY_CONTENT: Final = 0.5
_Shares = tuple[float | None, float | None]
_POSITION: Final = re.compile(r"#[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The column of each role that has one, and what the user should know about the choice."""

    columns: dict[str, Choice]
    notes: tuple[str, ...] = ()


def choose_columns(
    table: Table,
    roles: Sequence[str],
    given: Mapping[str, str] | None = None,
    ours: Collection[int] = (),
) -> Chosen:
    """Choose a column for each role; the first role must get one.

    ``given`` names headers by role (or positions, ``#3`` for the third column) and overrides; ``ours`` are the
    positions of columns from an earlier enrichment, which are never chosen, and neither are lists, structs and bytes.
    The number column must also look like one: its first 1,000 rows lower or raise the confidence, and a column that
    holds nothing but numbers with right check digits is found without any header.

    Where a row holds several businesses (supplier and buyer), number, name and address are taken from one of them,
    and a note tells which and why. Raises :class:`ColumnError` when no number column is found or two fit equally well.
    """
    given = dict(given or {})
    if unknown := set(given) - set(roles):
        raise UsageError(f"unknown column role {sorted(unknown)[0]!r}; the roles are {', '.join(roles)}")
    schema = table.frame.collect_schema()
    textual = [_prints(schema[id_]) for id_ in table.ids]
    chosen = {role: _given(table, role, header) for role, header in given.items()}
    for role, choice in chosen.items():
        if not textual[choice.column]:
            kind = schema[table.ids[choice.column]]
            raise ColumnError(f"{table.name}: column {choice.header!r} holds {kind}, which cannot be the {role}")
    taken = {choice.column for choice in chosen.values()}
    free = [place for place, fits in enumerate(textual) if fits and place not in taken and place not in ours]
    key, *others = roles
    shares = _shares(table, free)
    fitting = _number_columns(table, shares)
    groups: tuple[Party, ...] = ()
    if any(role in PARTY_ROLES for role in roles):
        holding = {choice.column for choice in fitting if shares[choice.column][0] or side_of(choice.header)}
        users = ["" if place in ours else header for place, header in enumerate(table.headers)]
        groups = parties(users, holding | {choice.column for role, choice in chosen.items() if role == key})
    notes: tuple[str, ...] = ()
    if key not in chosen:
        near = [party for party in groups if not taken.isdisjoint(party.columns)]
        chosen[key], notes = _by_party(table, fitting, near or groups) or (_best(table, fitting), ())
    if chosen[key].why == "content":
        notes = (*notes, _unheaded(chosen[key]))
    for role in others:
        places = [place for place in free if place not in {choice.column for choice in chosen.values()}]
        if role not in chosen and (found := _beside(table, role, places, chosen[key].column, groups)):
            chosen[role] = found
    return Chosen({role: chosen[role] for role in roles if role in chosen}, notes)


def own_columns(headers: Sequence[str], prefix: str, names: Sequence[str] = ADDED_COLUMNS) -> dict[str, int]:
    """Return where an earlier enrichment put its columns: contract name → position; empty if there was none.

    A file is taken for an enriched one when all ``names``, by default the nine, stand side by side in their order, each
    under its name or, where the user had a column of that name, with ``_bv``, ``_bv2`` and so on behind it, as
    :func:`bizverify.execute.join.layout` calls them. Anything else is the user's, and is not replaced. The three of an
    earlier labelling are found in the same way, by ``bizverify.model.LABEL_COLUMNS``.
    """
    titles = [re.compile(rf"{re.escape(prefix + name)}(_bv[0-9]*)?") for name in names]
    for start in reversed(range(len(headers) - len(titles) + 1)):
        run = headers[start : start + len(titles)]
        if all(title.fullmatch(header) for title, header in zip(titles, run, strict=True)):
            return {name: start + place for place, name in enumerate(names)}
    return {}


def kept_columns(table: Table, select: Sequence[str]) -> frozenset[int]:
    """Return the positions of the columns that ``select`` names: headers, or ``#3`` for the third column.

    A header that repeats stands for all that bear it. An item that is no header is read as several, separated by
    commas. Raises :class:`UsageError` for what names no column.
    """
    kept: set[int] = set()
    for item in select:
        if not item.strip(", "):
            raise UsageError(f"{table.name}: --select {item.strip()!r} names no column; {_listed(table)}")
        kept |= _named(table, item) or _listed_places(table, item)
    return frozenset(kept)


def named_column(table: Table, name: str, option: str) -> int:
    """Return the position of the one column that a header or ``#3`` names; raise :class:`UsageError`."""
    places = sorted(_named(table, name))
    if len(places) == 1:
        return places[0]
    if places:
        numbers = " or ".join(f"#{place + 1}" for place in places)
        raise UsageError(f"{table.name}: {len(places)} columns are headed {name!r}; give {option} {numbers}")
    raise UsageError(f"{table.name}: {option} {name!r} names no column; {_listed(table)}")


def _listed_places(table: Table, item: str) -> set[int]:
    """The columns of a list with commas, of which headers may hold some: the longest header that fits is taken."""
    places: set[int] = set()
    parts = item.split(",")
    while parts:
        for length in range(len(parts), 0, -1):
            if found := _named(table, ",".join(parts[:length])):
                places |= found
                parts = parts[length:]
                break
        else:
            raise UsageError(f"{table.name}: --select {parts[0].strip()!r} names no column; {_listed(table)}")
    return places


def _named(table: Table, name: str) -> set[int]:
    """The positions that a header or ``#n`` names, spaces around it left aside."""
    name = name.strip()
    if _POSITION.fullmatch(name) and int(name[1:]) <= len(table.headers):
        return {int(name[1:]) - 1}
    return {place for place, header in enumerate(table.headers) if header.strip() == name}


def _given(table: Table, role: str, header: str) -> Choice:
    if _POSITION.fullmatch(header) and int(header[1:]) <= len(table.headers):
        place = int(header[1:]) - 1
        return Choice(place, table.headers[place], 1.0, "given")
    places = [place for place, found in enumerate(table.headers) if found == header]
    if len(places) == 1:
        return Choice(places[0], header, 1.0, "given")
    if places:
        numbers = " or ".join(f"#{place + 1}" for place in places)
        raise ColumnError(f"{table.name}: {len(places)} columns are headed {header!r}; give --columns {role}={numbers}")
    raise ColumnError(f"{table.name}: no column is headed {header!r}; {_listed(table)}")


def _by_header(table: Table, role: str, places: Sequence[int]) -> Choice | None:
    choices = [choice for place in places if (choice := _rated(table, role, place))]
    return max(choices, key=lambda choice: choice.confidence, default=None)


def _beside(table: Table, role: str, places: Sequence[int], number: int, groups: Sequence[Party]) -> Choice | None:
    """A role's column: where the number is one party's, then from that party, else from what is no party's."""
    own = [party.columns for party in groups if party.number == number]
    if not own or role not in PARTY_ROLES:
        return _by_header(table, role, places)
    others = frozenset[int]().union(*(party.columns for party in groups))
    return _by_header(table, role, [place for place in places if place in own[0]]) or _by_header(
        table, role, [place for place in places if place not in others]
    )


def _rated(table: Table, role: str, place: int) -> Choice | None:
    level = level_of(role, table.headers[place])
    if level is None:
        return None
    return Choice(place, table.headers[place], _CONFIDENCE[level], "similar" if level == "contains" else "header")


def _number_columns(table: Table, shares: Mapping[int, _Shares]) -> list[Choice]:
    """The columns that may hold the number, the surest first."""
    choices = []
    for place, (ten_digits, checked) in shares.items():
        rated = _rated(table, "b_no", place)
        if rated is not None:
            weight = 1.0 if ten_digits is None else 0.6 + 0.4 * min(1.0, 2 * ten_digits)
            confidence = round(rated.confidence * weight, 2)
            choices.append(Choice(place, rated.header, confidence, rated.why))
        elif checked is not None and checked >= 0.9 and not is_trap("b_no", table.headers[place]):
            choices.append(Choice(place, table.headers[place], _BY_CONTENT, "content"))
    return sorted(choices, key=lambda choice: -choice.confidence)


def _by_party(
    table: Table, fitting: Sequence[Choice], groups: Sequence[Party]
) -> tuple[Choice, tuple[str, ...]] | None:
    """The number column of the party whose rows these are, and a note; ``None`` where no parties rival."""
    choices = {choice.column: choice for choice in fitting if choice.why == "header"}
    rivals = [party for party in groups if party.number in choices]
    if len(groups) == 1 and rivals:  # another of its columns was given
        return choices[rivals[0].number], ()
    if len(rivals) < 2 or fitting[0].column not in {party.number for party in rivals}:
        return None
    decided = wanted(table, rivals)
    if decided is None:
        return None
    party, reason = decided
    others = [choices[rival.number] for rival in rivals if rival is not party]
    instead = ", ".join(f"for {_called(other)} give --columns b_no=#{other.column + 1}" for other in others)
    return choices[party.number], (
        f"each row holds {len(rivals)} parties; {_called(choices[party.number])} was chosen, with what belongs to it, "
        f"because {reason}; {instead}",
    )


def _best(table: Table, fitting: Sequence[Choice]) -> Choice:
    if not fitting:
        raise ColumnError(
            f"{table.name}: no column with business numbers was found; {_listed(table)}; "
            "name it with --columns b_no=HEADER"
        )
    best, *rest = fitting
    equal = [choice for choice in rest if best.confidence - choice.confidence < _TIE]
    if equal:
        names = " and ".join(map(_called, [best, *equal]))
        advice = f"'{best.header}'" if table.headers.count(best.header) == 1 else f"#{best.column + 1}"
        raise ColumnError(
            f"{table.name}: {names} fit equally well as the business number; choose with --columns b_no={advice}"
        )
    return best


def _unheaded(choice: Choice) -> str:
    return (
        f"column {choice.column + 1} was chosen by what it holds, its header is {choice.header!r}; if that is a value "
        "and not a header, put a row of headers above it: the row is not verified now"
    )


def _called(choice: Choice) -> str:
    return f"{choice.header!r} (#{choice.column + 1})"


def _shares(table: Table, places: Sequence[int]) -> dict[int, _Shares]:
    """For each column: the share of its first non-blank cells that are ten digits, and that have a right check digit.

    ``None`` where there are no cells or none that could be a number; the second also where there are fewer than three.
    """
    shares: dict[int, _Shares] = dict.fromkeys(places, (None, None))
    schema = table.frame.collect_schema()
    names = table.ids
    ids = {names[place]: place for place in places}
    asked = [id_ for id_ in ids if schema[id_].is_numeric() or schema[id_] in TEXTS]
    if not asked:
        return shares
    # all columns below one another, so that the rule is planned and run once however many there are
    sample = table.frame.head(_SAMPLE_ROWS).select(pl.col(asked).cast(pl.String)).collect()
    cells = sample.lazy().unpivot(variable_name="id", value_name="cell").drop_nulls("cell")
    cells = cells.with_columns(digits=number.compact_expr(pl.col("cell")))
    cells = cells.with_columns(right=number.checksum_expr(number.key_expr(pl.col("digits"))).fill_null(False))
    found = cells.group_by("id").agg(pl.col("digits").is_not_null().mean(), pl.col("right").mean(), pl.len()).collect()
    for id_, ten, right, count in found.iter_rows():  # a row is a column of the table
        shares[ids[id_]] = (ten, right if count >= 3 else None)
    return shares


def _prints(dtype: pl.DataType) -> bool:
    """Whether values of a type can be read as the text of a cell."""
    return not (dtype.is_nested() or dtype in (pl.Binary, pl.Object, pl.Duration))


def _listed(table: Table) -> str:
    return "the headers are: " + ", ".join(header or "(blank)" for header in table.headers)
