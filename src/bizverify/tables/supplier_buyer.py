"""Several businesses in one row, as in the tax portal's export: which columns belong together, and whose are wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bizverify import business_number
from bizverify.tables.header_vocabulary import Side, has_role, side_of, without_side
from bizverify.tables.table import Table

ROLES: Final = ("name", "address", "zipcode")
"""What belongs to a number: a name from one party and an address from another would be of no business."""


@dataclass(frozen=True, slots=True)
class Party:
    """The columns of one of several businesses: that of its number, and those that belong to it (positions)."""

    number: int
    side: Side | None
    columns: frozenset[int]


def parties(headers: Sequence[str], numbers: Collection[int]) -> tuple[Party, ...]:
    """Group columns around those that hold ``numbers``; empty unless there are at least two parties.

    A column belongs to the number whose side (supplier, buyer) its header names, else to the last number before it.
    Where the same headers stand before each number (name, number, address, name, number, address), they belong to the
    number behind them. A number column alone, with neither a side nor a name or address, is no party.
    """
    places = sorted(numbers)
    near = _nearby(headers, places)
    sides = {place: side_of(headers[place]) or _common_side(headers, near[place]) for place in places}
    owned: dict[int, set[int]] = {place: {place} for place in places}
    for place, header in enumerate(headers):
        if place in owned:
            continue
        side = side_of(header)
        named = [owner for owner in places if side and sides[owner] == side]
        owners = named if len(named) == 1 else [owner for owner in places if place in near[owner]]
        for owner in owners:  # one, or none before the first number
            owned[owner].add(place)
    found = [
        Party(place, sides[place], frozenset(owned[place]))
        for place in places
        if sides[place] or any(has_role(headers[other], *ROLES) for other in owned[place] - {place})
    ]
    return tuple(found) if len(found) > 1 else ()


def choose_party(table: Table, competing: Sequence[Party]) -> tuple[Party, str] | None:
    """Return the party that is mailed and why it is; ``None`` where nothing decides.

    Rows are about the one whose number changes from row to row: an export of one's own invoices has one's own number
    on one side throughout. Where both change (or neither does) it is the buyer. The whole file is looked at.
    """
    kinds = _kinds(table, competing)
    best = [party for party in competing if kinds[party.number] == max(kinds.values())]
    if len(best) == 1:
        others = [kinds[party.number] for party in competing if party is not best[0]]
        return best[0], "the other side has the same number in every row" if max(others) else "the other side has none"
    buyers = [party for party in best if party.side == "buyer"]
    return (buyers[0], "it is the buyer's side") if len(buyers) == 1 else None


def _kinds(table: Table, competing: Sequence[Party]) -> dict[int, int]:
    """For each party's number column: 0 where it holds no number, 1 where it holds one, 2 where several."""
    ids = {party.number: table.ids[party.number] for party in competing}
    digits = table.frame.select(business_number.compact_expr(pl.col(id_)).alias(id_) for id_ in ids.values())
    ends = [(pl.col(id_).min().alias(f"{id_}:min"), pl.col(id_).max().alias(f"{id_}:max")) for id_ in ids.values()]
    found = digits.select(end for pair in ends for end in pair).collect(engine="streaming").row(0, named=True)
    return {
        place: 0 if found[f"{id_}:min"] is None else 1 + (found[f"{id_}:min"] != found[f"{id_}:max"])
        for place, id_ in ids.items()
    }


def _nearby(headers: Sequence[str], places: Sequence[int]) -> dict[int, range]:
    """Each number's columns by position alone: from it, or from the headers that are before every one, to the next."""
    before = 0
    while places and places[0] > before:
        ahead = [place - before - 1 for place in places]
        if not set(ahead).isdisjoint(places) or not _same_headers(headers, ahead):
            break
        before += 1
    starts = [place - before for place in places]
    return dict(zip(places, map(range, starts, [*starts[1:], len(headers)]), strict=True))


def _same_headers(headers: Sequence[str], places: Sequence[int]) -> bool:
    words = {without_side(headers[place]) for place in places}
    return len(places) > 1 and len(words) == 1 and words != {""} and has_role(headers[places[0]], *ROLES)


def _common_side(headers: Sequence[str], places: Collection[int]) -> Side | None:
    sides = {side_of(headers[place]) for place in places} - {None}
    return sides.pop() if len(sides) == 1 else None
