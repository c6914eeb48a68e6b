"""Requests, timeouts, proxies, TLS, and the gate before the last byte.

The service cannot have understood a request before its last byte was handed to the network: until then an error means
"not sent", from then on "in doubt". So a body records whether its last byte may have gone.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import secrets
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from bansong._version import __version__
from bansong.base.errors import Problem, UsageError
from bansong.base.key import SecretKey
from bansong.base.messages import Option, Phrase, describe_os_error
from bansong.client.address import BaseUrl
from bansong.client.arguments import VALUE_INVALID, optional_text, wrong_type
from bansong.client.errors import is_page
from bansong.client.evidence import UnreadableError, parse_json
from bansong.client.responses import IDEMPOTENCY_KEY, read_acknowledged

IDEMPOTENCY_KEY_INVALID: Final = Problem(
    "service.idempotency_key_invalid", "an idempotency key has 1 to 200 visible ASCII characters"
)

HEADER_IS_OURS: Final = Problem("service.header_is_ours", "{option}: {name} is sent by the client itself; leave it out")

ORDINARY: Final = 2 << 20  # most bytes of an ordinary response
_REQUEST_IDS: Final = (
    *("x-request-id", "request-id", "x-requestid", "x-correlation-id", "x-amzn-requestid", "x-amz-cf-id", "cf-ray"),
    "x-trace-id",
)
_SECRET: Final = frozenset({"set-cookie", "set-cookie2", "authorization", "proxy-authorization", "cookie", "x-api-key"})
_OWN_HEADERS: Final = (
    *("accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie", "host"),
    *("idempotency-key", "proxy-authorization", "transfer-encoding", "x-api-key"),
)
_VISIBLE: Final = re.compile("[!-~]{1,200}")
_CHUNK_BYTES: Final = 64 * 1024

T = TypeVar("T")
Step = Callable[[], Awaitable[None]]


class Headers(Mapping[str, str]):
    """The headers of a response, without cookies and credentials. Names are found in any case."""

    def __init__(self, headers: Mapping[str, str], key: SecretKey) -> None:
        lowered = {name.lower(): value for name, value in headers.items()}
        self._values = {
            name: key.redact(value) if key.is_telling else value
            for name, value in lowered.items()
            if name not in _SECRET
        }

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"


def request_id_of(headers: Mapping[str, str], key: SecretKey) -> str | None:
    """Return the id that the service gave a request (G34), for its support; ``None`` without one."""
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    found = (lowered[name] for name in _REQUEST_IDS if _VISIBLE.fullmatch(lowered.get(name, "")))
    identifier = next(found, None)
    return None if identifier is None else key.redact(identifier)


@cache
def user_agent() -> str:
    """Return the User-Agent header, for instance ``bansong/0.2.0 (CPython 3.11.7; Linux)``."""
    runtime = f"{platform.python_implementation()} {platform.python_version()}"
    return f"bansong/{__version__} ({runtime}; {platform.system() or 'unknown'})"


@dataclass(slots=True, eq=False, repr=False)
class RequestBody:
    """The body of a request, of known length, as an async iterator that is used once.

    ``before_last`` is awaited before the last piece, ``after_last`` when the network has taken it. ``complete``: the
    last piece was handed over. ``failure``: the error of one of the two steps. This is no generator: trio warns of
    unfinished generators.
    """

    pieces: Iterator[bytes]
    last: bytes
    _: KW_ONLY
    length: int
    content_type: str
    before_last: Step | None = None
    after_last: Step | None = None
    complete: bool = field(default=False, init=False)
    failure: Exception | None = field(default=None, init=False)
    failure_traceback: TracebackType | None = field(default=None, init=False)

    def __aiter__(self) -> RequestBody:
        return self

    async def __anext__(self) -> bytes:
        piece = next(self.pieces, None)
        if piece is not None:
            return piece
        if self.complete:
            await self._step(self.after_last)
            raise StopAsyncIteration
        await self._step(self.before_last)
        self.complete = True
        return self.last

    async def _step(self, step: Step | None) -> None:
        if step is None:
            return
        try:
            await step()
        except Exception as error:
            self.failure, self.failure_traceback = error, error.__traceback__
            raise


def json_body(content: bytes) -> RequestBody:
    """Return a request body of JSON bytes."""
    return RequestBody(iter(()), content, length=len(content), content_type="application/json")


def file_body(
    content: bytes,
    filename: str,
    content_type: str = "text/csv; charset=utf-8",
    *,
    before_last: Step | None = None,
    after_last: Step | None = None,
) -> RequestBody:
    """Return a ``multipart/form-data`` body with one part, ``file`` (G28). Its last piece is the closing boundary."""
    boundary = f"bansong-{secrets.token_hex(16)}"
    head = (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{_quote_filename(filename)}"\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    ).encode()
    last = f"\r\n--{boundary}--\r\n".encode()
    return RequestBody(
        _in_pieces(head, content),
        last,
        length=len(head) + len(content) + len(last),
        content_type=f"multipart/form-data; boundary={boundary}",
        before_last=before_last,
        after_last=after_last,
    )


def _in_pieces(head: bytes, content: bytes) -> Iterator[bytes]:
    yield head
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]


def _quote_filename(filename: str) -> str:
    # like HTML forms
    plain = filename.encode("utf-8", "replace").decode("utf-8")
    return plain.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A").replace("\\", "_")


@dataclass(frozen=True, slots=True)
class ServiceRequest(Generic[T]):
    """A request to the service. ``body`` is called at each attempt; ``replacing`` accepts invalid UTF-8 in answers."""

    method: str
    path: tuple[str, ...]
    read: Callable[[object], T]
    body: Callable[[], RequestBody] | None = None
    params: Mapping[str, str] | None = None
    headers: Mapping[str, str] | None = None
    limit: int = ORDINARY
    is_upload: bool = False
    replacing: bool = False

    def parse(self, body: bytes) -> T:
        """Return the value of a response's body. An acknowledgement may be empty or no JSON (G21)."""
        try:
            content = parse_json(body, replacing=self.replacing)
        except UnreadableError:
            if self.read is not read_acknowledged or is_page(body):
                raise
            content = body.decode("utf-8", "replace")
        return self.read(content)


def post_request(
    path: tuple[str, ...],
    content: Mapping[str, object],
    read: Callable[[object], T],
    headers: Mapping[str, str] | None = None,
    *,
    replacing: bool = False,
) -> ServiceRequest[T]:
    """Return a POST request with a JSON body; ``read`` parses the reply."""
    encoded = json.dumps(content, separators=(",", ":")).encode()
    return ServiceRequest("POST", path, read, lambda: json_body(encoded), headers=headers, replacing=replacing)


def idempotency_header(idempotency_key: str | None) -> dict[str, str] | None:
    """Return the header for an idempotency key, ``None`` without a key; raise :class:`UsageError`."""
    key = optional_text("idempotency_key", idempotency_key)
    if key is None:
        return None
    if _VISIBLE.fullmatch(key) is None:
        raise UsageError(IDEMPOTENCY_KEY_INVALID)
    return {IDEMPOTENCY_KEY: key}


def check_headers(headers: Mapping[str, str] | None, option: str = "headers") -> dict[str, str]:
    """Return further headers, in lower case; raise :class:`UsageError` for those that the client sends itself."""
    if not isinstance(headers, Mapping | None):
        raise UsageError(VALUE_INVALID, option=Option(option), wanted=Phrase("a dict of header names and texts"))
    found: dict[str, str] = {}
    for name, value in (headers or {}).items():
        if not (isinstance(value, str) and _VISIBLE.fullmatch(name) and value.isascii() and value.isprintable()):
            raise UsageError(VALUE_INVALID, option=Option(option), wanted=Phrase("visible ASCII characters"))
        if name.lower() in _OWN_HEADERS:
            raise UsageError(HEADER_IS_OURS, option=Option(option), name=name)
        found[name.lower()] = value
    return found


def without_missing(**fields: object) -> dict[str, object]:
    """Return the fields that are not ``None``. Absent fields are not sent (G23)."""
    return {name: value for name, value in fields.items() if value is not None}


CA_BUNDLE_UNUSABLE: Final = Problem(
    "service.ca_bundle_unusable", "{option}: {fault}; give the path of a CA bundle (PEM)"
)
CERTIFICATE_CHECK_OFF: Final = Problem(
    "service.certificate_check_off",
    "{option}: without a check of the certificate whoever answers for {host} would get the API key; give "
    "the path of the CA's certificate instead",
)
TIMEOUT_INVALID: Final = Problem(
    "service.timeout_invalid", "{option}: the {name} timeout must be a number of seconds above 0"
)

_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_MAGIC_BYTES: Final = (b"\x1f\x8b", b"\x78")
_GZIP_OR_ZLIB_WBITS: Final = 47


def decompress(
    packed: bytes | bytearray, headers: Mapping[str, str], limit: int, *, over: bool
) -> tuple[bytes, bool, bool]:
    """Return a body up to ``limit`` (as it came if damaged; G27), whether there is more, and whether it is damaged."""
    packed = bytes(packed)
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in _CODINGS or not packed.startswith(_MAGIC_BYTES):
        return packed, over, False
    content, left = bytearray(), packed
    try:
        while left and len(content) <= limit:  # a body may have several members
            member = zlib.decompressobj(wbits=_GZIP_OR_ZLIB_WBITS)
            content += member.decompress(left, limit + 1 - len(content))
            if not member.eof and len(content) <= limit:
                return packed, over, not over
            left = member.unused_data
    except zlib.error:
        return packed, over, not over
    return bytes(content), over or len(content) > limit, False


PROXY_UNUSABLE: Final = Problem(
    "service.proxy_unusable", "the environment's proxy is {fault}; set {upper}_PROXY to an http:// one, or NO_PROXY"
)
PROXY_INVALID: Final = Problem("service.proxy_invalid", "{option}: is {fault}; give the URL of an http:// proxy")

_PROXY_SCHEMES: Final = ("http", "https")


def environment_proxy(base: BaseUrl) -> str | None:
    """Return the environment's proxy for a service, ``None`` if that is on this machine; raise :class:`UsageError`."""
    if base.is_loopback or proxy_bypass(base.host.strip("[]")):
        return None
    found = getproxies()
    named = found.get(base.scheme) or found.get("all")
    if not named:
        return None
    url = named if "://" in named else f"http://{named}"
    fault = _proxy_fault(url)
    if fault is not None:
        raise UsageError(PROXY_UNUSABLE, fault=fault, upper=base.scheme.upper())
    return url


def check_proxy(proxy: str | None) -> str | None:
    """Check the URL of ``proxy=``; the :class:`UsageError` for a bad one does not show its password."""
    if proxy is None:
        return None
    fault = _proxy_fault(optional_text("proxy", proxy) or "")
    if fault is not None:
        raise UsageError(PROXY_INVALID, option=Option("proxy"), fault=fault)
    return proxy


def _proxy_fault(url: str) -> Phrase | str | None:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if is_whole and parts.scheme not in _PROXY_SCHEMES:
        return Phrase("a {scheme} proxy, which is not supported", scheme=parts.scheme)
    return None if is_whole else "no URL"


Verify = bool | str | os.PathLike[str] | ssl.SSLContext

_CONNECT_TIMEOUT_S: Final = 10.0


@runtime_checkable
class _TimeoutParts(Protocol):
    # an httpx.Timeout
    connect: float | None
    read: float | None
    write: float | None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for a connection (``connect``), for bytes of the service (``read``), for sending (``write``).

    Uploads wait four times ``read``: a service may check all rows first. Raises :class:`UsageError` for a value that is
    not a number above zero.
    """

    connect: float = _CONNECT_TIMEOUT_S
    read: float = 30.0
    write: float = 30.0

    def __post_init__(self) -> None:
        for part in fields(self):
            seconds = getattr(self, part.name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise UsageError(TIMEOUT_INVALID, option=Option("timeout", seconds), name=part.name)

    @classmethod
    def of(cls, timeout: Timeout) -> Timeouts:
        """Return timeouts from seconds for each part (at most 10 s to connect), or from an ``httpx.Timeout``."""
        if isinstance(timeout, Timeouts):
            return timeout
        if isinstance(timeout, _TimeoutParts):
            return cls(timeout.connect, timeout.read, timeout.write)  # type: ignore[arg-type] # None is refused
        whole = cls(read=timeout, write=timeout)  # checks the number before it is compared
        return replace(whole, connect=min(_CONNECT_TIMEOUT_S, timeout))


def tls_context(verify: Verify, base: BaseUrl) -> ssl.SSLContext | None:
    """Return the TLS context for ``verify``, ``None`` for the default. ``False`` is allowed on this machine only."""
    if verify is True:
        return None
    if verify is False:
        _require_loopback(base)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    if isinstance(verify, ssl.SSLContext):
        if verify.verify_mode != ssl.CERT_REQUIRED or not verify.check_hostname:
            _require_loopback(base)
        return verify
    if not isinstance(verify, str | os.PathLike):
        wrong_type("verify", verify, Phrase("the path of a CA bundle (PEM), or an ssl.SSLContext"))
    return _context_of(Path(verify).expanduser())


def _require_loopback(base: BaseUrl) -> None:
    if not base.is_loopback:
        raise UsageError(CERTIFICATE_CHECK_OFF, option=Option("verify"), host=base.host)


def _context_of(path: Path) -> ssl.SSLContext:
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        fault = Phrase("holds no certificates in PEM form")
    except OSError as error:
        fault = Phrase("cannot be read: {value}", value=describe_os_error(error))
    raise UsageError(CA_BUNDLE_UNUSABLE, option=Option("verify", str(path)), fault=fault)


Timeout = float | Timeouts | _TimeoutParts
