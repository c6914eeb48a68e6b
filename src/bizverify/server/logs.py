"""The server's log: one JSON object a line, with nothing in it that says who was asked about."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from bizverify.server.clock import SEOUL

ROOT: Final = "bizverify"
_FIELDS: Final = "bizverify_fields"


def set_up(stream: TextIO | None = None, level: str | None = None) -> None:
    """Let ``bizverify`` log as JSON lines to ``stream`` (stderr) from ``level`` on (BIZVERIFY_LOG, else info)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines())
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    wanted = (level or os.environ.get("BIZVERIFY_LOG") or "info").upper()
    logger.setLevel(wanted if wanted in logging.getLevelNamesMapping() else "INFO")


def event(logger: logging.Logger, level: int, what: str, **fields: object) -> None:
    """Log something that happened with its fields beside it."""
    if logger.isEnabledFor(level):
        logger.log(level, what, extra={_FIELDS: fields})


class Lines(logging.Formatter):
    """A record as a line of JSON.

    Of an exception its type and places are written and not its message, which may quote what a user sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, SEOUL).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = type(error).__name__
            line["trace"] = [_place(frame) for frame in traceback.extract_tb(error.__traceback__)]
        return msgspec.json.encode(line, enc_hook=str).decode()


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
