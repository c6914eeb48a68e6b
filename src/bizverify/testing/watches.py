"""The watch list, and what really became of letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple

from bizverify.testing.answers import Verdict
from bizverify.testing.dialects import Dialect


class Label(NamedTuple):
    """A label as it was recorded."""

    job_id: str
    row_id: int
    bounced: bool
    reason: str


@dataclass(slots=True)
class Watch:
    """A business that is watched; ``changes`` are the items of its history, oldest first."""

    id: str
    biz_no: str
    name: str
    address: str
    biz_status: str
    grade: str | None
    changes: list[dict[str, Any]] = field(default_factory=list)

    def entry(self, dialect: Dialect) -> dict[str, Any]:
        """The watch as reads show it."""
        watch_id: object = int(self.id) if dialect.watch_ids == "number" else self.id
        entry = {"watch_id": watch_id, dialect.watch_number: self.biz_no, "name": self.name, "address": self.address}
        return entry | {"grade": self.grade, "biz_status": self.biz_status}

    def change(self, grade: str | None, biz_status: str | None = None, at: str | None = None) -> None:
        """Let a re-check find another grade, and perhaps another status."""
        at = at or f"2026-11-{len(self.changes) + 1:02d}T09:00:00+09:00"
        item = {"at": at, "before": self.grade, "after": grade, "biz_status": biz_status or self.biz_status}
        self.changes.append(item)
        self.grade, self.biz_status = grade, biz_status or self.biz_status


class Watches:
    """All watches, in the order in which they were added."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._numbers = count(1)

    def add(self, biz_no: str, name: str, address: str, dialect: Dialect, verdict: Verdict) -> Watch:
        """Add one; a business may be watched twice."""
        watch_id = str(next(self._numbers)) if dialect.watch_ids == "number" else token_hex(6)
        answer = verdict(biz_no, name, address)
        watch = Watch(watch_id, biz_no, name, address, answer["biz_status"], answer["grade"])
        self._watches[watch_id] = watch
        return watch

    def get(self, watch_id: str) -> Watch | None:
        """The watch with this identifier."""
        return self._watches.get(watch_id)

    def remove(self, watch_id: str) -> bool:
        """Take it off the list; whether it was on it."""
        return self._watches.pop(watch_id, None) is not None

    def __iter__(self) -> Iterator[Watch]:
        return iter(list(self._watches.values()))

    def __len__(self) -> int:
        return len(self._watches)
