"""Messages for who wrote a job file: its fields where the library names parameters."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Mapping
from typing import Final

from bansong.errors import PARAMETER
from bansong.scheduling.job_file import EnginePart, InputPart, OutputPart, ReferencePart

_TABLES: Final = {"inputs": InputPart, "engine": EnginePart, "reference": ReferencePart, "output": OutputPart}
_OTHERS: Final[Mapping[str, tuple[str, str]]] = {
    "engine": ("engine", "name"),
    "status": ("status", "source"),
    "output": ("output", "path"),
    "output_encoding": ("output", "encoding"),
    "nts_key_file": ("status", "key_file"),
    "max_status_age": ("status", "max_age"),
    "status_budget": ("status", "budget"),
    "status_store": ("status", "store"),
}
"""Parameters that a job file calls otherwise: table and field."""


def name_fields(text: str) -> str:
    """Put the fields of a job file in the place of the library's parameters.

    >>> name_fields("give it with `base_url=`, or `status='nts'`; `no_such=`")
    'give it with `[engine] base_url`, or `[status] source = "nts"`; `no_such=`'
    """
    return PARAMETER.sub(_name_field, text) if "`" in text else text


def _name_field(found: re.Match[str]) -> str:
    name, value = found.groups()
    table = next((table for table, part in _TABLES.items() if name in part.__struct_fields__), None)
    place = _OTHERS.get(name) or (None if table is None else (table, name))
    if place is None:
        return found[0]
    return f"`[{place[0]}] {place[1]}{f' = {_as_toml(value)}' if value else ''}`"


def _as_toml(value: str) -> str:
    try:
        return json.dumps(literal_eval(value), ensure_ascii=False)
    except (ValueError, SyntaxError, TypeError):
        return value
