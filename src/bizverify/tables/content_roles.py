"""The roles of columns without headers, by what their first rows hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from bizverify.schema import Alert, Choice
from bizverify.tables.role_cell import ADDRESS, is_filled
from bizverify.tables.table import Table

CONFIDENCE: Final = 0.5
"""How sure a column is that only its content tells."""

_NAME: Final = (
    r"주식회사|유한회사|\(주\)|㈜|\(유\)|상사|상회|산업|식당|마트|약국|의원|학원|건설|전자|물산|무역|기업|공업|상점"
    r"|(?i)\b(?:co|inc|ltd)\b"
)
_ZIPCODE: Final = r"^\s*(?:0[1-9]|[1-5][0-9]|6[0-3])[0-9]{3}\s*$"
_LEAST: Final = {"address": 0.5, "zipcode": 0.5, "name": 0.2}
"""The share of rows in which a column must hold what the role is about."""


def content_role(
    table: Table, sample: pl.DataFrame, role: str, places: Sequence[int], address: Choice | None
) -> Choice | None:
    """Return the column that holds the most of a role's content; a postal code stands beside its address."""
    if role not in _LEAST:
        return None
    if role == "zipcode":
        places = [place for place in places if address is not None and abs(place - address.column) == 1]
    pattern = {"address": ADDRESS, "zipcode": _ZIPCODE, "name": _NAME}[role]
    ids = {table.ids[place]: place for place in places if table.ids[place] in sample.columns}
    held = sample.select((is_filled(pl.col(id_)) & pl.col(id_).str.contains(pattern)).mean() for id_ in ids)
    shares = dict(zip(ids.values(), held.row(0), strict=True)) if ids else {}
    best = max(shares, key=lambda place: shares[place] or 0.0, default=None)
    if best is None or (shares[best] or 0.0) < _LEAST[role]:
        return None
    return Choice(best, table.headers[best], CONFIDENCE, "content")


def headless_alert(table: Table, chosen: Mapping[str, Choice], ours: Sequence[int] | frozenset[int]) -> Alert:
    """What was taken for what, where no header says anything."""
    used = {part.column for choice in chosen.values() for part in choice.parts}
    taken = ", ".join(f"{'+'.join(part.header for part in choice.parts)} as {role}" for role, choice in chosen.items())
    left = [header for place, header in enumerate(table.headers) if place not in used and place not in ours]
    rest = f"; not used: {', '.join(left)}" if left else ""
    return Alert(
        f"no column has a header, so they were chosen by what they hold: {taken}{rest}; make sure, and name others "
        "as in `columns={'name': '#2'}`"
    )
