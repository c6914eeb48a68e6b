"""Notifications to a receiver of the user's own: one POST each, and whether it was acknowledged.

Where it goes is checked when it is set. A path or query often holds a password of sorts, so no message, log line or
repr shows more of the URL than scheme, host and port. httpx's transport is used without its client, which would follow
redirects, read credentials from ``.netrc``, and write the whole URL into the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx

from bizverify._version import __version__
from bizverify.client.error_mapping import certificate_error, seconds_to_wait
from bizverify.errors import UsageError

_READ: Final = 16 << 10
"""Bytes of a response that are read, so that its connection can serve again; their content is not used."""
_CONNECT: Final = 5.0
_UNSAFE: Final = re.compile(r"[\s\\\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """The URL that notifications go to. ``shown`` is scheme, host and port; :meth:`reveal` alone returns the rest."""

    shown: str
    _whole: str = field(repr=False)

    @classmethod
    def parse(cls, text: str, *, allow_http: bool = False) -> WebhookUrl:
        """Check a URL: https, or http to this machine itself, or to any with ``allow_http``.

        A user name or password in it is refused: what arrives is known to be genuine by its signature.
        Raises :class:`UsageError`, which repeats no more than the host.
        """
        text = text.strip()
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            whole = httpx.URL(text)
        except (ValueError, httpx.InvalidURL):
            raise UsageError("the webhook's URL is not a URL; give it like https://example.com/closures") from None
        if parts.scheme not in ("http", "https") or not host or _UNSAFE.search(text) or port == 0:
            raise UsageError("the webhook's URL is not one; give it like https://example.com/closures")
        if "@" in parts.netloc:
            raise UsageError("the webhook's URL holds a user name or password; leave them out, notices are signed")
        if parts.fragment or text.endswith("#"):
            raise UsageError("the webhook's URL holds a fragment ('#'), which is never sent; leave it out")
        shown = f"{whole.scheme}://{whole.netloc.decode('ascii')}"
        if parts.scheme == "http" and not allow_http and not _is_loopback(host):
            raise UsageError(f"{shown}: plain http would show names and addresses to the network; use https")
        return cls(shown, str(whole))

    def reveal(self) -> str:
        """Return the whole URL, to be stored or sent to."""
        return self._whole

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt: acknowledged where ``error`` is ``None``; ``retry_after``: the seconds asked for."""

    error: str | None
    retry_after: float | None = None


class WebhookSender:
    """Sends notifications; connections are kept for the next. Close it with :meth:`aclose`."""

    def __init__(self, *, timeout: float = 10.0, concurrency: int = 32) -> None:
        self._timeout = timeout
        self._limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=8, keepalive_expiry=5.0)
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._making = anyio.Lock()
        self._agent = f"bizverify/{__version__}"

    async def send(self, url: WebhookUrl, headers: Mapping[str, str], body: bytes) -> Outcome:
        """POST a JSON body; any 2xx acknowledges it. Raises nothing: why it failed is in the outcome."""
        outcome: Outcome | None = None
        request = httpx.Request(
            "POST",
            url.reveal(),
            headers={**headers, "Content-Type": "application/json", "User-Agent": self._agent},
            content=body,
            extensions={"timeout": httpx.Timeout(self._timeout, connect=min(_CONNECT, self._timeout)).as_dict()},
        )
        try:
            transport = await self._ready()
            with anyio.move_on_after(self._timeout):
                response = await transport.handle_async_request(request)
                try:
                    outcome = _outcome_of(response)
                    await _drain(response)
                finally:
                    with anyio.CancelScope(shield=True):
                        await response.aclose()
        except Exception as error:  # not httpx's alone: a few of the TLS library's come through
            return outcome or Outcome(self._describe(error))
        return outcome or Outcome(f"no answer within {self._timeout:g} s")

    async def aclose(self) -> None:
        """Close all connections."""
        if self._transport is not None:
            await self._transport.aclose()

    async def _ready(self) -> httpx.AsyncHTTPTransport:
        async with self._making:
            if self._transport is None:
                context = await anyio.to_thread.run_sync(httpx.create_ssl_context)  # 130 ms: not in the event loop
                self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=self._limits)
        return self._transport

    def _describe(self, error: Exception) -> str:
        """Return what went wrong, without the error's own words, which may hold the URL."""
        if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
            return f"no connection within {min(_CONNECT, self._timeout):g} s"
        if isinstance(error, httpx.TimeoutException):
            return f"no answer within {self._timeout:g} s"
        if certificate_error(error) is not None:
            return "the receiver's certificate is not accepted"
        if isinstance(error, httpx.ConnectError):
            return "cannot connect"
        return f"the connection broke ({type(error).__name__})"


def _outcome_of(response: httpx.Response) -> Outcome:
    status = response.status_code
    if 200 <= status < 300:
        return Outcome(None)
    followed = "; redirects are not followed" if 300 <= status < 400 else ""
    return Outcome(f"answered {status}{followed}", seconds_to_wait(response.headers.get("retry-after")))


async def _drain(response: httpx.Response) -> None:
    """Read a short answer to its end; of a long one no more than a little."""
    size = 0
    assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - of an async transport's response it is
    async for chunk in response.stream:
        size += len(chunk)
        if size > _READ:
            return


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
