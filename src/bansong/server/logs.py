"""The server's log: one JSON object a line, with nothing in it that says who was asked about."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from bansong.environment import variable
from bansong.errors import StoreError
from bansong.schema import SEOUL

ROOT: Final = "bansong"
_RENDERED: Final = "bansong_rendered"
_WRITTEN_EVERY: Final = 0.2
_encode: Final = msgspec.json.Encoder().encode

REQUEST_ID: Final[ContextVar[str]] = ContextVar("bansong_request_id", default="")
"""The id of the request that is being answered, in its task and the threads that it waits for; else empty."""


def configure_logging(stream: TextIO | None = None, level: str | None = None) -> None:
    """Let ``bansong`` log as JSON lines to ``stream`` (stderr) from ``level`` on (BANSONG_LOG, else info)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    asyncio_ = logging.getLogger("asyncio")  # else it says in its own words, and with what, a callback failed
    asyncio_.handlers[:] = [handler]
    asyncio_.propagate = False
    wanted = (level or variable("BANSONG_LOG") or "info").upper()
    logger.setLevel(wanted if wanted in logging.getLevelNamesMapping() else "INFO")


class RequestLine(msgspec.Struct, omit_defaults=True):
    """What is logged of a request.

    ``path`` is its pattern, ``ms`` how long it took, ``request`` its id, ``key`` the id of the key, ``client`` the
    address of the client.
    """

    time: str
    level: str
    logger: str
    event: str
    method: str
    path: str
    status: int
    ms: float
    request: str
    key: str = ""
    client: str = ""


class RequestLog:
    """The lines of requests, written together: a record for each would take a tenth of the time it is about."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(f"{ROOT}.server.requests")
        self._lines: list[str] = []

    def note(self, method: str, path: str, status: int, seconds: float, *, key: str, client: str) -> None:
        """Note the request of :data:`REQUEST_ID`, which has been answered, if such are logged."""
        if not self._logger.isEnabledFor(logging.INFO):
            return
        now = datetime.now(SEOUL).isoformat(timespec="milliseconds")
        ms = round(seconds * 1000, 1)
        about = method, path, status, ms, REQUEST_ID.get(), key, client
        line = RequestLine(now, "info", self._logger.name, "request", *about)
        if not self._lines:
            asyncio.get_running_loop().call_later(_WRITTEN_EVERY, self.write)
        self._lines.append(_encode(line).decode())

    def write(self) -> None:
        """Write what was noted."""
        lines, self._lines = self._lines, []
        if lines:
            self._logger.info("\n".join(lines), extra={_RENDERED: True})


class JsonFormatter(logging.Formatter):
    """A record as a line of JSON.

    Of an exception its type and places are written and not its message, which may quote what a user sent, unless it
    says what is wrong with the server's file. What a library says may quote it, too: its name alone is written.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        if getattr(record, _RENDERED, False):
            return record.getMessage()
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, SEOUL).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage() if record.name.partition(".")[0] == ROOT else "a library reports something",
        }
        if request := REQUEST_ID.get():
            line["request"] = request
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = type(error).__name__
            if reasons := [str(one) for one in _leaves(error) if isinstance(one, StoreError)]:
                line["reason"] = reasons[0]
            line["trace"] = [_place(frame) for frame in traceback.extract_tb(error.__traceback__)]
        return msgspec.json.encode(line, enc_hook=str).decode()


def loggable_message(error: BaseException) -> str:
    """What of an error can be logged: what is wrong with the server's file; of all others the type alone."""
    return str(error) if isinstance(error, StoreError) else type(error).__name__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group is made of, or the one."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
