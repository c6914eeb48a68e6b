"""Settings of a server, and the plans: what a key may do, how much, how often."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import anyio
import msgspec
from starlette.types import Scope

from bansong.client.address_policy import IpNetwork
from bansong.environment import variable
from bansong.errors import Problem, StoreError, UsageError
from bansong.library_messages import describe_library_error, describe_os_error
from bansong.options import StatusOptions
from bansong.schema import SEOUL, Lang
from bansong.server.client_address import TrustedProxies
from bansong.server.store.schema import files_folder
from bansong.translation import current_language, gettext, match_language, speak


@dataclass(frozen=True, slots=True)
class Clock:
    """``now``: seconds since 1970 (UTC). ``sleep``: wait so many of them."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def today(self) -> date:
        """The day in Korea."""
        return datetime.fromtimestamp(self.now(), SEOUL).date()

    def month(self, at: float | None = None) -> str:
        """The calendar month in Korea (``2026-11``), by which quotas are counted: the current one, or a time's."""
        return f"{datetime.fromtimestamp(self.now() if at is None else at, SEOUL):%Y-%m}"

    def month_ends(self) -> datetime:
        """When the next month begins in Korea."""
        today = datetime.fromtimestamp(self.now(), SEOUL)
        return datetime(today.year + today.month // 12, today.month % 12 + 1, 1, tzinfo=SEOUL)


def as_text(seconds: float | None) -> str | None:
    """A time as the API says it: ISO 8601 in Korea's time, to the second."""
    return None if seconds is None else datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")


class WakeUp:
    """A sleep that can be ended, for one task. A :meth:`ring` while nobody waits ends the next :meth:`wait` at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def ring(self) -> None:
        """End the wait, this one or the next."""
        self._event.set()

    async def wait(self, seconds: float | None) -> bool:
        """Wait so many seconds (``None``: for ever), or until :meth:`ring`; return whether it rang."""
        async with anyio.create_task_group() as group:

            async def sleep(seconds: float) -> None:
                await self._clock.sleep(max(0.0, seconds))
                group.cancel_scope.cancel()

            if seconds is not None:
                group.start_soon(sleep, seconds)
            await self._event.wait()
            group.cancel_scope.cancel()
        rang = self._event.is_set()
        if rang:
            self._event = anyio.Event()
        return rang


LOGGER_ROOT: Final = "bansong"
_RENDERED: Final = "bansong_rendered"
_WRITTEN_EVERY: Final = 0.2
_encode: Final = msgspec.json.Encoder().encode

REQUEST_ID: Final[ContextVar[str]] = ContextVar("bansong_request_id", default="")
"""The id of the request that is being answered, in its task and the threads that it waits for; else empty."""


def configure_logging(stream: TextIO | None = None, level: str | None = None) -> None:
    """Let ``bansong`` log as JSON lines to ``stream`` (stderr) from ``level`` on (BANSONG_LOG, else info)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(LOGGER_ROOT)
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
        self._logger = logging.getLogger(f"{LOGGER_ROOT}.server.requests")
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
        is_ours = record.name.partition(".")[0] == LOGGER_ROOT
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, SEOUL).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage() if is_ours else "a library reports something",
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


HEADER: Final = b"x-request-id"
_SANE: Final = re.compile(rb"[0-9A-Fa-f-]{16,64}")
"""Hexadecimal digits and hyphens, as nginx's ``$request_id`` and UUIDs are: neither a key nor anybody's name fits."""


def request_id_of(scope: Any, proxies: TrustedProxies) -> str:
    """Return the id that a trusted proxy gave an ASGI request, or a new one of 16 hexadecimal digits.

    That of anybody else is not taken: it would stand in the log as if it were ours, and be twice there if he wants.
    """
    peer = scope.get("client")
    if peer and proxies.trusts(peer[0]):
        given = [value for name, value in scope["headers"] if name == HEADER]
        if len(given) == 1 and _SANE.fullmatch(given[0]):
            return str(given[0], "ascii")
    return secrets.token_hex(8)


_HEADER: Final = b"accept-language"
_LONGEST: Final = 200
"""Bytes of the header that are read; browsers send some fifty."""


def choose_language(scope: Scope) -> None:
    """Speak the language that a request asks for in its task; English if it asks for none that is known here.

    Whoever runs the server may speak another: its log is English, its command line what ``--lang`` says.
    """
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    speak(_language_of(given[:_LONGEST]))


def language_headers() -> list[tuple[bytes, bytes]]:
    """Return the headers of a refusal, the one kind of answer whose words are in the language of its request."""
    return [(b"content-language", current_language().encode()), (b"vary", b"accept-language")]


@lru_cache(maxsize=256)
def _language_of(tags: bytes) -> Lang:
    return match_language(tags.decode("latin-1")) or "en"


PLANS_EMPTY: Final = Problem("server.plans_empty", "{path}: names no plan; see the built-in {name}")
PLANS_UNREADABLE: Final = Problem(
    "server.plans_unreadable", "{path}: the plans cannot be read: {reason}; check `plans=`"
)
PLANS_INVALID: Final = Problem("server.plans_invalid", "{path}: not a file of plans: {error}; see the built-in {name}")

_NOBODY: Final = StatusOptions(source="none")
_NO_PROXIES: Final = TrustedProxies()
BUILT_IN: Final = Path(__file__).with_name("plans.toml")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_DISK_BYTES: Final = 2_000_000_000
_FILES_KEPT: Final = 32
"""Files of the plan's size for which a key has room where its plan does not say how much it has."""
_NOT_GIVEN: Final = -1
_CHANGES: Final = 2
"""How often a list may be changed whole in a month where the plan does not say how many changes it may have."""
_Size = Annotated[int, msgspec.Meta(gt=0)]


class ServicePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan allows; the fields are explained in ``plans.toml``.

    Those with a default may be missing in a file: 0, or -1, is what follows from the others then.
    """

    api: bool
    quota: _Count
    watch_history: bool
    watches: _Count
    recheck_hours: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
    upload_bytes: _Size
    rows: _Size
    jobs: _Size
    uploads: _Size = 0
    disk_bytes: _Size = 0
    requests_per_second: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 100.0
    request_burst: _Size = 1_000
    requests_at_once: _Size = 256
    watch_changes: _Count = _NOT_GIVEN

    def __post_init__(self) -> None:
        """Set what was not given; raise :class:`ValueError` for a plan under which no file of its size has room."""
        set_field = msgspec.structs.force_setattr
        if not self.uploads:
            set_field(self, "uploads", self.jobs)
        if not self.disk_bytes:
            set_field(self, "disk_bytes", max(_DISK_BYTES, _FILES_KEPT * self.upload_bytes))
        if self.watch_changes == _NOT_GIVEN:
            set_field(self, "watch_changes", _CHANGES * self.watches)
        if self.disk_bytes < self.upload_bytes:
            raise ValueError(
                gettext(
                    "disk_bytes ({disk_bytes:,}) must be at least upload_bytes ({upload_bytes:,})",
                    disk_bytes=self.disk_bytes,
                    upload_bytes=self.upload_bytes,
                )
            )


Plans = Mapping[str, ServicePlan]


def load_plans(path: Path | None = None) -> Plans:
    """Read the plans of a file, the built-in ones by default; raises :class:`UsageError` with the plan and field."""
    path = path or BUILT_IN
    try:
        plans = msgspec.toml.decode(path.read_bytes(), type=dict[str, ServicePlan])
    except OSError as error:
        raise UsageError(PLANS_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    except msgspec.DecodeError as error:
        raise UsageError(PLANS_INVALID, path=path, error=describe_library_error(error), name=BUILT_IN.name) from error
    if not plans:
        raise UsageError(PLANS_EMPTY, path=path, name=BUILT_IN.name)
    return plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``db`` is the SQLite file; files that belong to it (jobs, label stores, models) are in the folder ``DB.files``.

    ``registry``, ``gazetteer``, ``model``, ``lang``: as for the local engine. ``notices``: a file to which each closure
    that is found is appended as a JSON line. ``keep_days``: how long a job and its results are kept after it ended;
    ``keep_labels_days``: how long outcomes are learned from, from the day on which their job ended;
    ``keep_revoked_days``: how long the account of a revoked key is kept;
    ``queue``: jobs of all keys that may wait; ``body_seconds``: how long the body of a request may take to come in, and
    ``stall_seconds`` how long nothing of it may come; ``refresh_seconds``: how often the indexes' files are looked at
    for newer ones; ``learn_hours``: how often outcomes are learned from; ``pool_keys``: how many keys of the pool must
    agree before another learns of it. ``status``: whether the tax authority is asked for statuses, and how; its
    ``budget`` is one for all that the server does. ``trusted_proxies``: the proxies in front that say whose request
    they pass on; ``connections_per_address``: connections at once of any other address; ``reading_slots``: large
    uploads that are read at once, and small ones beside them. ``metrics_port``: where metrics are answered on
    ``metrics_host``, an address of their own; nowhere without it. ``webhook_networks``: networks that are not public,
    to which webhooks may be posted all the same.
    """

    db: Path
    status: StatusOptions = _NOBODY
    registry: Path | None = None
    gazetteer: Path | None = None
    model: str | Path | None = None
    lang: Lang | None = None
    plans: Mapping[str, ServicePlan] = field(default_factory=load_plans)
    notices: Path | None = None
    webhook_networks: tuple[IpNetwork, ...] = ()
    keep_days: float = 90.0
    keep_labels_days: float = 730.0
    keep_revoked_days: float = 30.0
    queue: int = 64
    body_seconds: float = 600.0
    stall_seconds: float = 30.0
    refresh_seconds: float = 10.0
    learn_hours: float = 24.0
    pool_keys: int = 3
    trusted_proxies: TrustedProxies = _NO_PROXIES
    connections_per_address: int = 256
    reading_slots: int = 4
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    @property
    def files(self) -> Path:
        """The folder of what is too large for the database."""
        return files_folder(self.db)

    @property
    def status_store(self) -> Path:
        """The file of the statuses that were fetched: ``status.store`` if it says one, else it is in the folder."""
        return Path(self.status.store) if self.status.store is not None else self.files / "statuses.sqlite"
