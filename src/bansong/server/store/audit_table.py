"""Audit log: what operators did to a server's file, when, and as which user.

An entry is in the transaction of its action. It holds no secrets, webhook addresses, notes or business numbers.
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
    """``at``: seconds since 1970; ``who``: a system user; ``key_id``: if it is about one key."""

    number: int
    at: float
    who: str
    action: str
    key_id: str | None
    details: Mapping[str, Any]


def record_action(
    db: sqlite3.Connection, now: float, action: str, key_id: str | None, details: Mapping[str, object]
) -> None:
    db.execute(
        "INSERT INTO audit (at, who, action, key_id, details) VALUES (?, ?, ?, ?, ?)",
        (now, operator_name(), action, key_id, json.dumps(details, ensure_ascii=False)),
    )


def list_actions(db: sqlite3.Connection, key_id: str | None = None) -> list[AuditEntry]:
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
    """Return the system user of this process, and who became it by ``sudo``."""
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
