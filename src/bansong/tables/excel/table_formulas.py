"""Formulas over a whole Excel table: what they give changes with the columns that the table gains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from zipfile import ZipFile

from bansong.schema import Alert
from bansong.tables.excel.package import BOOK, part_pieces, plain_name, sheet_parts
from bansong.translation import gettext

_SHOWN: Final = 5
_COUNTED: Final = 1_000
_OVERLAP_BYTES: Final = 20_000
"""More than a cell with a formula takes: one that is cut off is found with the next piece."""


def warn_of_whole_table_formulas(archive: ZipFile, table: Mapping[str, str], called: str) -> Iterator[Alert]:
    """Name the formulas and defined names that are about all columns of a table which gains columns.

    ``table``: the attributes of its element. ``called``: file and sheet, for messages.
    """
    name = table.get("displayName") or table.get("name", "")
    found = [*_find_formulas(archive, name)]
    if found:
        more = gettext(" and {count} more", count=len(found) - _SHOWN) if len(found) > _SHOWN else ""
        yield Alert(
            gettext(
                "{called}: formulas over the whole table {name!r} now count the new columns too: {shown}{more}; "
                "name your columns in them, such as {name}[[first]:[last]]",
                called=called,
                name=name,
                shown=", ".join(found[:_SHOWN]),
                more=more,
            )
        )


def _find_formulas(archive: ZipFile, table: str) -> Iterator[str]:
    name = re.escape(table)
    special = r"\[(?:|#[^\[\]]*|\[#[^\[\]]*\](?:,\s*\[#[^\[\]]*\])*)\]"  # [#All], [[#Headers],[#Data]]: no column
    whole = rf"(?<![\w.\\!]){name}(?:{special}|(?![\w.\\\[(!']))"
    in_cell = rf"""<(?:\w+:)?c\s[^<>]*?\br\s*=\s*["']([A-Z]+[0-9]+)["'][^<>]*>\s*<(?:\w+:)?f\b[^<>]*>[^<]*?{whole}"""
    in_name = rf"""<(?:\w+:)?definedName\s[^<>]*?\bname\s*=\s*["']([^"']+)["'][^<>]*>[^<]*?{whole}"""
    parts = {part: (f"{sheet}!", re.compile(in_cell, re.IGNORECASE)) for sheet, part in sheet_parts(archive).items()}
    books = {part: ("", re.compile(in_name, re.IGNORECASE)) for part in archive.namelist() if plain_name(part) == BOOK}
    for part, (sheet, pattern) in {**parts, **books}.items():
        places: dict[str, None] = {}
        rest = b""
        for piece in part_pieces(archive, part):
            text = (rest + piece).decode("utf-8", "ignore")
            rest = piece[-_OVERLAP_BYTES:]
            if table.casefold() in text.casefold() and len(places) < _COUNTED:
                places |= dict.fromkeys(match[1] for match in pattern.finditer(text))
        yield from (f"{sheet}{place}" for place in places)
