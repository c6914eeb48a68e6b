"""The journal of a store of scorecards: one JSON object a line, only appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bansong.errors import ModelError, Problem
from bansong.library_messages import describe_os_error
from bansong.storage.filesystem import open_private

JOURNAL_DAMAGED: Final = Problem(
    "models.journal_damaged",
    "{path}: line {place} is damaged, so it is not known which scorecard answers; restore the file from a "
    "backup or take the line out; until then, `model='builtin'` or a scorecard file answers",
)
JOURNAL_UNREADABLE: Final = Problem(
    "models.journal_unreadable",
    "{path}: the journal of the scorecards cannot be read: {reason}; let it be read by the user who runs "
    "bansong, or name another place",
)
JOURNAL_UNWRITABLE: Final = Problem(
    "models.journal_unwritable", "{path}: the journal of the scorecards cannot be written: {reason}"
)

PROMOTED: Final = "promoted"
ROLLED_BACK: Final = "rolled_back"
DECIDING: Final = (PROMOTED, ROLLED_BACK)
"""Kinds of events that change the champion; all others are notes."""
_OWN: Final = ("at", "kind", "version")


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the journal: ``kind`` is ``promoted``, ``rolled_back`` or a note (``refused``, ``quarantined``, …).

    ``version``: the scorecard concerned, if any; ``data``: what else was recorded (``e_value``, ``labels``, …).
    """

    at: datetime
    kind: str
    version: str | None
    data: Mapping[str, Any]

    def as_dict(self) -> dict[str, object]:
        """Return the event as plain values, as ``--json`` prints it."""
        return {"at": self.at.isoformat(), "kind": self.kind, "version": self.version, **self.data}


def read_events(path: Path) -> list[Event]:
    """Return all events, the oldest first.

    An incomplete last line, left by a crash, is ignored. Raises :class:`ModelError` for any other unreadable line,
    since it might name the champion.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # where a file stands for the folder, nothing was ever promoted
        return []
    except OSError as error:
        raise ModelError(JOURNAL_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    *whole, last = content.split(b"\n")
    events = [_parse_event(line) for line in whole]
    if None in events:
        raise ModelError(JOURNAL_DAMAGED, path=path, place=events.index(None) + 1)
    return [event for event in (*events, _parse_event(last)) if event is not None]


def append_event(path: Path, kind: str, version: str | None, data: Mapping[str, Any]) -> Event:
    """Append an event durably, after removing an incomplete last line; the caller holds the store's lock."""
    own = {"at": datetime.now(UTC).isoformat(), "kind": kind, "version": version}
    record = own | {name: value for name, value in data.items() if name not in _OWN}
    line = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
    try:
        descriptor = open_private(path)
        with os.fdopen(descriptor, "r+b") as file:
            content = file.read()
            cut = content.rfind(b"\n") + 1
            start = b"\n" if _parse_event(content[cut:]) is not None else b""  # whole but for its line end
            file.seek(len(content) if start else cut)
            file.truncate()
            file.write(start + line + b"\n")
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise ModelError(JOURNAL_UNWRITABLE, path=path, reason=describe_os_error(error)) from error
    event = _parse_event(line)
    assert event is not None  # noqa: S101 - it has just been written from its parts
    return event


def _parse_event(line: bytes) -> Event | None:
    """Parse a line; ``None`` for no event. No prefix of an object is one, so an incomplete line never is."""
    try:
        record = json.loads(line)
        at, kind, version = datetime.fromisoformat(record["at"]), record["kind"], record["version"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(kind, str) or not isinstance(version, str | None) or at.tzinfo is None:
        return None
    return Event(at, kind, version, {name: value for name, value in record.items() if name not in _OWN})
