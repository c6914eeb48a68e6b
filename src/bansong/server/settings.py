"""Settings and plans of a server; clock, log, request ids."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import anyio
import msgspec
from starlette.types import Scope

from bansong.base.errors import Problem, StoreError, UsageError
from bansong.base.files import variable
from bansong.base.messages import (
    Lang,
    Option,
    current_language,
    describe_library_error,
    describe_os_error,
    gettext,
    match_language,
    speak,
)
from bansong.base.options import StatusOptions
from bansong.base.schema import SEOUL
from bansong.client.address import IpNetwork
from bansong.server.store import files_folder

ADDRESS_INVALID: Final = Problem(
    "server.address_invalid", "{given}: {error}; give an address, or a network such as 10.0.0.0/8"
)


def parse_proxies(proxies: Iterable[str]) -> tuple[str, ...]:
    """Parse addresses and networks of trusted proxies; raise :class:`UsageError`."""
    networks: list[str] = []
    for text in proxies:
        try:
            network = ip_network(text.strip())
        except ValueError as error:
            raise UsageError(ADDRESS_INVALID, given=Option("trusted_proxies", text), error=error) from None
        networks.append(str(network))
        if network.version == 4:  # as a socket of IPv6 shows it
            networks.append(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
    return tuple(networks)


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a server, in seconds since 1970; tests replace it."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def today(self) -> date:
        return datetime.fromtimestamp(self.now(), SEOUL).date()

    def month(self, at: float | None = None) -> str:
        return f"{datetime.fromtimestamp(self.now() if at is None else at, SEOUL):%Y-%m}"

    def month_ends(self) -> datetime:
        today = datetime.fromtimestamp(self.now(), SEOUL)
        return datetime(today.year + today.month // 12, today.month % 12 + 1, 1, tzinfo=SEOUL)


def as_text(seconds: float | None) -> str | None:
    """Return a time as ISO 8601 in Korean time."""
    return None if seconds is None else datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")


class WakeUp:
    """An interruptible sleep of one task. A :meth:`ring` before :meth:`wait` ends that wait at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None) -> None:
        async with anyio.create_task_group() as group:

            async def sleep(seconds: float) -> None:
                await self._clock.sleep(max(0.0, seconds))
                group.cancel_scope.cancel()

            if seconds is not None:
                group.start_soon(sleep, seconds)
            await self._event.wait()
            self._event = anyio.Event()
            group.cancel_scope.cancel()


LOGGER_ROOT: Final = "bansong"
_RENDERED: Final = "bansong_rendered"
_WRITE_INTERVAL_S: Final = 0.2
_encode: Final = msgspec.json.Encoder().encode

# id of the current request, also in the threads that it waits for; empty outside a request
REQUEST_ID: Final[ContextVar[str]] = ContextVar("bansong_request_id", default="")


def configure_logging(stream: TextIO | None = None, level: str | None = None) -> None:
    """Log JSON lines to ``stream`` (default: stderr), from ``level`` up (default: BANSONG_LOG, else info)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LogFormatter())
    logger = logging.getLogger(LOGGER_ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    asyncio_ = logging.getLogger("asyncio")  # its own texts may quote user data
    asyncio_.handlers[:] = [handler]
    asyncio_.propagate = False
    wanted = (level or variable("BANSONG_LOG") or "info").upper()
    logger.setLevel(wanted if wanted in logging.getLevelNamesMapping() else "INFO")


class _RequestLine(msgspec.Struct, omit_defaults=True):
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
    """Write request log lines in groups, as a log record for each would take a tenth of a request's time."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(f"{LOGGER_ROOT}.server.requests")
        self._lines: list[str] = []

    def note(self, method: str, path: str, status: int, seconds: float, *, key: str, client: str) -> None:
        if not self._logger.isEnabledFor(logging.INFO):
            return
        now = datetime.now(SEOUL).isoformat(timespec="milliseconds")
        ms = round(seconds * 1000, 1)
        about = method, path, status, ms, REQUEST_ID.get(), key, client
        line = _RequestLine(now, "info", self._logger.name, "request", *about)
        if not self._lines:
            asyncio.get_running_loop().call_later(_WRITE_INTERVAL_S, self.write)
        self._lines.append(_encode(line).decode())

    def write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._logger.info("\n".join(lines), extra={_RENDERED: True})


class _LogFormatter(logging.Formatter):
    """Format log records as JSON lines, without texts of exceptions and libraries, which may quote user data."""

    def format(self, record: logging.LogRecord) -> str:
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
    """Return the text of an error if it quotes no user data, else its type."""
    return str(error) if isinstance(error, StoreError) else type(error).__name__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"


HEADER: Final = b"x-request-id"
_PROXY_ID: Final = re.compile(rb"[0-9A-Fa-f-]{16,64}")  # nginx's ``$request_id`` and UUIDs; no key or name matches


def request_id_of(scope: Scope, proxies: Container[str]) -> str:
    """Return the request id that a trusted proxy has set, else a new one, as other clients could repeat known ids."""
    given = [value for name, value in scope["headers"] if name == HEADER]
    peer = scope.get("client")
    if len(given) == 1 and _PROXY_ID.fullmatch(given[0]) and peer and peer[0] in proxies:
        return str(given[0], "ascii")
    return secrets.token_hex(8)


def client_of(scope: Scope) -> str:
    """Return the client's IP address, or an empty text."""
    client = scope.get("client")
    return _parsed_address(client[0]) if client else ""


@lru_cache(maxsize=4_096)
def _parsed_address(text: str) -> str:
    with suppress(ValueError):
        return str(ip_address(text))
    return ""


_HEADER: Final = b"accept-language"
_MAX_HEADER_BYTES: Final = 200  # browsers send some fifty


def choose_language(scope: Scope) -> None:
    """Set the language of messages by ``Accept-Language``."""
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    speak(_language_of(given[:_MAX_HEADER_BYTES]))


def language_headers() -> list[tuple[bytes, bytes]]:
    return [(b"content-language", current_language().encode()), (b"vary", b"accept-language")]


@lru_cache(maxsize=256)
def _language_of(tags: bytes) -> Lang:
    return match_language(tags.decode("latin-1")) or "en"


PLANS_EMPTY: Final = Problem("server.plans_empty", "{path}: names no plan; see the built-in {name}")
PLANS_UNREADABLE: Final = Problem(
    "server.plans_unreadable", "{path}: the plans cannot be read: {reason}; check `plans=`"
)
PLANS_INVALID: Final = Problem("server.plans_invalid", "{path}: not a file of plans: {error}; see the built-in {name}")

_NO_SOURCE: Final = StatusOptions(source="none")
BUILT_IN: Final = Path(__file__).with_name("plans.toml")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_DISK_BYTES: Final = 2_000_000_000
_FILES_KEPT: Final = 32  # default of ``disk_bytes``: room for this many files of the largest upload
_NOT_GIVEN: Final = -1
_LISTS_CHANGED: Final = 2  # default of ``watch_changes``: whole lists per month
_Size = Annotated[int, msgspec.Meta(gt=0)]


class ServicePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a plan; ``plans.toml`` explains the fields. Fields of 0 or -1 are derived from others."""

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
        set_field = msgspec.structs.force_setattr
        if not self.uploads:
            set_field(self, "uploads", self.jobs)
        if not self.disk_bytes:
            set_field(self, "disk_bytes", max(_DISK_BYTES, _FILES_KEPT * self.upload_bytes))
        if self.watch_changes == _NOT_GIVEN:
            set_field(self, "watch_changes", _LISTS_CHANGED * self.watches)
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
    """Read a file of plans (default: the built-in one); raise :class:`UsageError`."""
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
    """Settings of a server. The local engine explains ``registry``, ``gazetteer``, ``model`` and ``lang``."""

    db: Path  # SQLite; the folder ``DB.files`` has larger data
    status: StatusOptions = _NO_SOURCE  # whether and how the tax authority is asked
    registry: Path | None = None
    gazetteer: Path | None = None
    model: str | Path | None = None
    lang: Lang | None = None
    plans: Mapping[str, ServicePlan] = field(default_factory=load_plans)
    notices: Path | None = None  # gets a JSON line per closure
    webhook_networks: tuple[IpNetwork, ...] = ()  # private networks to which webhooks may post
    keep_days: float = 90.0  # of ended jobs
    keep_labels_days: float = 730.0  # of outcomes
    keep_revoked_days: float = 30.0  # of accounts of revoked keys
    queue: int = 64  # waiting jobs of all keys
    body_seconds: float = 600.0  # timeout of an upload
    stall_seconds: float = 30.0  # timeout of an upload without a byte
    refresh_seconds: float = 10.0  # between looks at index files
    learn_hours: float = 24.0  # between calibrations
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks
    connections_per_address: int | None = None  # ignored: the proxy bounds them
    reading_slots: int = 4  # large uploads read at once, and as many small ones
    metrics_port: int | None = None  # ``None``: no metrics
    metrics_host: str = "127.0.0.1"

    @property
    def files(self) -> Path:
        return files_folder(self.db)

    @property
    def status_store(self) -> Path:
        return Path(self.status.store) if self.status.store is not None else self.files / "statuses.sqlite"


BACKLOG: Final = 2_048  # the event loop accepts all pending connections before it serves the first


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise :class:`UsageError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it each reply takes 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # on Windows, SO_REUSEADDR would let two servers use one address at once
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = describe_os_error(error)
        message = gettext(
            "{host}:{port}: cannot listen there: {reason}; choose another `host=` or `port=`",
            host=host,
            port=port,
            reason=reason,
        )
        raise UsageError(message) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
