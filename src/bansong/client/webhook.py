"""Send signed notifications to a webhook; verify their signature.

A path or query often holds a secret, so messages, logs and reprs show only scheme, host and port. Each POST opens a
connection, without a proxy, to an address that was checked when the name was resolved. Redirects are not followed.
"""

from __future__ import annotations

import base64
import hmac
import math
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from bansong._version import __version__
from bansong.base.errors import Problem, UsageError
from bansong.base.http import httpx
from bansong.base.messages import gettext
from bansong.client.address import PORTS, RefusedAddressError, can_exist, is_loopback
from bansong.client.errors import certificate_error, seconds_to_wait
from bansong.client.request import Timeouts
from bansong.client.transport import NO_TLS

URL_UNUSABLE: Final = Problem(
    "webhook.url_unusable", "the webhook's URL is not one; give it like https://example.com/closures"
)
URL_HOLDS_PASSWORD: Final = Problem(
    "webhook.url_holds_password", "the webhook's URL holds a user name or password; leave them out, notices are signed"
)
URL_HOLDS_FRAGMENT: Final = Problem(
    "webhook.url_holds_fragment", "the webhook's URL holds a fragment ('#'), which is never sent; leave it out"
)
URL_HOST_INVALID: Final = Problem("webhook.url_host_invalid", "{shown}: no host can have this name; check the URL")
URL_NOT_ENCRYPTED: Final = Problem(
    "webhook.url_not_encrypted", "{shown}: plain http would show names and addresses to the network; use https"
)
URL_INVALID: Final = Problem(
    "webhook.url_invalid", "the webhook's URL is not a URL; give it like https://example.com/closures"
)

_CONNECT_TIMEOUT_S: Final = 5.0
_UNSAFE: Final = re.compile(r"[\s\\\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """The URL of a webhook. Only :meth:`reveal` and ``whole`` show more than scheme, host and port."""

    shown: str
    whole: httpx.URL = field(repr=False)

    @classmethod
    def parse(cls, text: str, *, allow_http: bool = False) -> WebhookUrl:
        """Check a URL: https, or http to this machine or with ``allow_http``. Raises :class:`UsageError`."""
        text = text.strip()
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            whole = httpx.URL(text)
        except (ValueError, httpx.InvalidURL):
            raise UsageError(URL_INVALID) from None
        if parts.scheme not in ("http", "https") or not host or _UNSAFE.search(text) or port == 0:
            raise UsageError(URL_UNUSABLE)
        if "@" in parts.netloc:
            raise UsageError(URL_HOLDS_PASSWORD)
        if parts.fragment or text.endswith("#"):
            raise UsageError(URL_HOLDS_FRAGMENT)
        shown = f"{whole.scheme}://{whole.netloc.decode('ascii')}"
        if not can_exist(whole.raw_host.decode("ascii")):
            raise UsageError(URL_HOST_INVALID, shown=shown)
        if parts.scheme == "http" and not allow_http and not is_loopback(host):
            raise UsageError(URL_NOT_ENCRYPTED, shown=shown)
        return cls(shown, whole)

    def reveal(self) -> str:
        return str(self.whole)

    @property
    def is_secure(self) -> bool:
        return self.whole.scheme == "https"

    @property
    def host(self) -> str:
        return self.whole.raw_host.decode("ascii")

    @property
    def port(self) -> int:
        return self.whole.port or PORTS[self.whole.scheme]

    def __str__(self) -> str:
        return self.shown


AddressCheck = Callable[[str], None]  # raises for a forbidden address


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt. ``error`` is ``None`` if it was acknowledged; ``retry_after`` is in seconds."""

    error: str | None
    retry_after: float | None = None


class WebhookSender:
    """Send notifications. ``check`` raises :class:`RefusedAddressError` for forbidden addresses."""

    def __init__(self, *, timeout: float = 10.0, check: AddressCheck = lambda _: None) -> None:
        self._timeouts = Timeouts(min(_CONNECT_TIMEOUT_S, timeout), timeout, timeout)
        self._check = check
        self._context: ssl.SSLContext | None = None
        self._making = anyio.Lock()

    async def send(self, url: WebhookUrl, headers: Mapping[str, str], body: bytes) -> Outcome:
        """POST a JSON body. Any 2xx acknowledges it; failures are returned, not raised."""
        error = gettext("no answer within {read:g} s", read=self._timeouts.read)
        headers = {"User-Agent": f"bansong/{__version__}", "Content-Type": "application/json", **headers}
        try:
            with anyio.move_on_after(self._timeouts.read):
                return await self._send(url, headers, body)
        except RefusedAddressError as failure:
            error = gettext("not sent: {error}", error=failure)
        except httpx.ConnectError as failure:  # its text may hold the URL, so it is not shown
            untrusted = certificate_error(failure) is not None
            error = gettext("the receiver's certificate is not accepted") if untrusted else gettext("cannot connect")
        except (TimeoutError, httpx.ConnectTimeout):
            error = gettext("no connection within {connect:g} s", connect=self._timeouts.connect)
        except Exception as failure:  # errors of httpx, and a few of the TLS library
            error = gettext("the connection broke ({name})", name=type(failure).__name__)
        return Outcome(error)

    async def _send(self, url: WebhookUrl, headers: Mapping[str, str], body: bytes) -> Outcome:
        # the name is resolved once; the POST goes to a checked address, and TLS gets the name
        tls = await self._tls() if url.is_secure else None
        with anyio.fail_after(self._timeouts.connect):
            try:
                found = await anyio.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as error:  # ValueError: a name that no resolver can be asked for
                raise httpx.ConnectError("no address") from error
        addresses = list(dict.fromkeys(str(to[0]) for *_, to in found))
        for address in addresses:
            self._check(address)
        return await self._post(url, addresses, headers, body, tls or NO_TLS)

    async def _post(
        self, url: WebhookUrl, addresses: list[str], headers: Mapping[str, str], body: bytes, tls: ssl.SSLContext
    ) -> Outcome:
        # POSTs to the first address that takes a connection; TLS asks for the URL's host
        headers = {"Host": url.whole.netloc.decode("ascii"), "Connection": "close", **headers}
        waits = {part: getattr(self._timeouts, part) for part in ("connect", "read", "write")}
        waits["connect"] /= max(1, len(addresses))
        fault: httpx.TransportError = httpx.ConnectError("no address")
        async with httpx.AsyncHTTPTransport(verify=tls, trust_env=False) as line:
            for address in addresses:
                extensions = {"timeout": waits, "sni_hostname": url.host}
                place = url.whole.copy_with(host=address)
                request = httpx.Request("POST", place, headers=headers, content=body, extensions=extensions)
                try:
                    response = await line.handle_async_request(request)
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    fault = error
                    continue
                await response.aclose()
                return _outcome_of(response)
        raise fault

    async def _tls(self) -> ssl.SSLContext:
        async with self._making:
            if self._context is None:
                self._context = await anyio.to_thread.run_sync(httpx.create_ssl_context)  # 130 ms: not in the loop
        return self._context


def _outcome_of(response: httpx.Response) -> Outcome:
    if response.is_success:
        return Outcome(None)
    followed = gettext("; redirects are not followed") if response.is_redirect else ""
    said = gettext("answered {status}{followed}", status=response.status_code, followed=followed)
    return Outcome(said, seconds_to_wait(response.headers.get("retry-after")))


ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
EVENT_HEADER: Final = "X-Bizverify-Event"
FORMER_ID_HEADER: Final = "X-Bizverify-Delivery"
FORMER_SIGNATURE_HEADER: Final = "X-Bizverify-Signature"
TOLERANCE: Final = 300.0  # seconds that a signature is good for, unless the receiver chooses otherwise
_PREFIX: Final = "whsec_"
_MOST_PARTS: Final = 8


def new_secret() -> str:
    """Return a random secret in the form of Standard Webhooks."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature_headers(secret: str, event: str, delivery: str, body: bytes, now: float) -> dict[str, str]:
    """Return the headers that sign a delivery at the time ``now`` (seconds since 1970)."""
    at = str(int(now))
    return {
        ID_HEADER: delivery,
        TIMESTAMP_HEADER: at,
        SIGNATURE_HEADER: f"v1,{_sign(secret, delivery, at, body)}",
        EVENT_HEADER: event,
        FORMER_ID_HEADER: delivery,
        FORMER_SIGNATURE_HEADER: f"t={at},v1={_sign_as_before(secret, at, body)}",
    }


def verify_signature(
    secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None, tolerance: float = TOLERANCE
) -> bool:
    """Whether a received notification was signed with this secret, and not long ago.

    ``headers``: the request's, in any case. ``body``: its bytes as received, not parsed and written again. ``now``:
    seconds since 1970 (default: the clock's). A signature older or newer than ``tolerance`` seconds is refused, so that
    nobody can send an old notification again later. A repeat within that time has the same ``webhook-id``. The
    comparison takes constant time. Without a ``webhook-signature``, the former header ``X-Bizverify-Signature`` is
    read.
    """
    given = {name.lower(): value for name, value in headers.items()}
    current = time.time() if now is None else now
    if SIGNATURE_HEADER in given:
        at = given.get(TIMESTAMP_HEADER, "")
        parts = [part.partition(",") for part in given[SIGNATURE_HEADER].split(" ", _MOST_PARTS)]
        return _is_recent(at, current, tolerance) and _matches(
            _sign(secret, given.get(ID_HEADER, ""), at, body), (text for version, _, text in parts if version == "v1")
        )
    value = given.get(FORMER_SIGNATURE_HEADER.lower(), "")
    parts = [part.strip().partition("=") for part in value.split(",", _MOST_PARTS)]
    times = [text for name, _, text in parts if name == "t"]
    return (
        len(times) == 1
        and _is_recent(times[0], current, tolerance)
        and _matches(_sign_as_before(secret, times[0], body), (text for name, _, text in parts if name == "v1"))
    )


def _is_recent(at: str, now: float, tolerance: float) -> bool:
    if not (at.isascii() and at.isdecimal() and len(at) <= 15):
        return False
    return math.fabs(now - int(at)) <= tolerance


def _matches(wanted: str, given: Iterable[str]) -> bool:
    return any(hmac.compare_digest(wanted.encode(), text.encode("utf-8", "replace")) for text in given)


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            text = secret.removeprefix(_PREFIX)
            if key := base64.b64decode(text + "=" * (-len(text) % 4), validate=True):
                return key
        except ValueError:  # a secret that the user chose
            pass
    return secret.encode()


def _sign(secret: str, delivery: str, at: str, body: bytes) -> str:
    digest = hmac.digest(_key(secret), f"{delivery}.{at}.".encode("utf-8", "replace") + body, "sha256")
    return base64.b64encode(digest).decode()


def _sign_as_before(secret: str, at: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
