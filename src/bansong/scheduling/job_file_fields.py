"""What messages call the parameters of the library in a job file: its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bansong.scheduling.job_file import EnginePart, InputPart, OutputPart, ReferencePart
from bansong.translation import NO_VALUE, Audience

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


@dataclass(frozen=True)
class JobFileAudience:
    """Who wrote a job file; ``beside``: who reads what its fields are no matter of, as the command line."""

    beside: Audience
    sets_limits = True

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        """See :meth:`bansong.translation.Audience.option`.

        >>> JobFileAudience(PYTHON).option("base_url"), JobFileAudience(PYTHON).option("status", "nts")
        ('`[engine] base_url`', '`[status] source = "nts"`')
        """
        table = next((table for table, part in _TABLES.items() if name in part.__struct_fields__), None)
        place = _OTHERS.get(name) or (None if table is None else (table, name))
        if place is None:
            return self.beside.option(name, value)
        written = "" if value is NO_VALUE else f" = {json.dumps(value, ensure_ascii=False)}"
        return f"`[{place[0]}] {place[1]}{written}`"
