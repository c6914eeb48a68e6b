"""The audit log: what operators did to a server's file, when, and as which user of the system.

An entry is written in the transaction of what it tells of, so that neither is there without the other. It holds no
secrets, no addresses of webhooks, no notes of keys, and no business numbers.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action: ``at`` in seconds since 1970, ``who`` a user of the system, ``key_id`` where it is about one key."""

    number: int
    at: float
    who: str
    action: str
    key_id: str | None
    details: Mapping[str, Any]


def record_action(
    db: sqlite3.Connection, now: float, action: str, key_id: str | None, details: Mapping[str, object]
) -> None:
    """Write an action down, as done by the user of this process."""
    db.execute(
        "INSERT INTO audit (at, who, action, key_id, details) VALUES (?, ?, ?, ?, ?)",
        (now, operator_name(), action, key_id, json.dumps(details, ensure_ascii=False)),
    )


def list_actions(db: sqlite3.Connection, key_id: str | None = None) -> list[AuditEntry]:
    """Return the actions, the oldest first; of one key, or all."""
    rows = db.execute(
        "SELECT number, at, who, action, key_id, details FROM audit"
        " WHERE :key IS NULL OR key_id = :key ORDER BY number",
        {"key": key_id},
    )
    return [
        AuditEntry(number, at, who, action, about, json.loads(details))
        for number, at, who, action, about, details in rows
    ]


def operator_name() -> str:
    """Return the user of the system as which this process runs, and who became it by ``sudo``, as sudo says."""
    try:
        import pwd
    except ImportError:  # Windows has no such book
        return os.environ.get("USERNAME") or "unknown"
    try:
        name = pwd.getpwuid(os.getuid()).pw_name  # not `LOGNAME`, which anybody may set
    except KeyError:  # a container's user without a line in it
        name = f"uid {os.getuid()}"
    before = os.environ.get("SUDO_USER")
    return name if before in (None, "", name) else f"{name} (sudo: {before})"
