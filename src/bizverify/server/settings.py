"""What a server is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bizverify.schema import Lang
from bizverify.server.plans import Plan, load_plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``db`` is the SQLite file; files that belong to it (jobs, label books, models) are in the folder ``DB.files``.

    ``registry``, ``gazetteer``, ``model``, ``lang``: as for the local engine. ``notices``: a file to which each closure
    that is found is appended as a JSON line. ``keep_days``: how long a job and its results are kept after it ended;
    ``queue``: jobs of all keys that may wait; ``body_seconds``: how long the body of a request may take to come in, and
    ``stall_seconds`` how long nothing of it may come; ``refresh_seconds``: how often the indexes' files are looked at
    for newer ones; ``learn_hours``: how often outcomes are learned from.
    """

    db: Path
    registry: Path | None = None
    gazetteer: Path | None = None
    model: str | Path | None = None
    lang: Lang = "en"
    plans: Mapping[str, Plan] = field(default_factory=load_plans)
    notices: Path | None = None
    keep_days: float = 90.0
    queue: int = 64
    body_seconds: float = 600.0
    stall_seconds: float = 30.0
    refresh_seconds: float = 10.0
    learn_hours: float = 24.0

    @property
    def files(self) -> Path:
        """The folder of what is too large for the database."""
        return self.db.with_name(f"{self.db.name}.files")
