"""The client of the hosted service: one method an endpoint of INTERFACE §4, one request a call.

Nothing is retried here: what may be sent again and what must not is in the error (see :mod:`bizverify.errors`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from types import TracebackType
from typing import Final, Self, TypeVar

from bizverify import number
from bizverify.errors import ShapeError, UsageError, parameter
from bizverify.service.account import (
    IDEMPOTENCY_KEY,
    Account,
    WatchChange,
    WatchEntry,
    read_account,
    read_history,
    read_watch,
    read_watches,
)
from bizverify.service.address import BaseUrl
from bizverify.service.key import ApiKey
from bizverify.service.multipart import Body, Step, file_body, json_body
from bizverify.service.reading import Unreadable, parsed
from bizverify.service.refusal import RAW_KEPT, is_page, one_line
from bizverify.service.shapes import (
    Acknowledged,
    BatchCreated,
    BatchStatus,
    Verified,
    read_acknowledged,
    read_created,
    read_status,
    read_verified,
)
from bizverify.service.timeouts import Timeouts
from bizverify.service.transport import ORDINARY, Reply, Transport

_PREVIEW: Final = 8 << 20
_PREVIEWED_ROW: Final = 8 << 10
_KEY: Final = re.compile("[!-~]{1,200}")
_TEN_DIGITS: Final = re.compile("[0-9]{10}")

T = TypeVar("T")


class Client:
    """The hosted service, asynchronous, under asyncio and trio::

        async with Client("https://api.example.com", ApiKey.load()) as client:
            verified = await client.verify("124-81-00998", "삼성전자")

    Without ``base_url`` and ``api_key`` the environment is read (BIZVERIFY_BASE_URL, BIZVERIFY_API_KEY). At most
    ``concurrency`` requests are under way at once, uploads apart; ``timeout`` is the seconds to wait for the service
    to say something (uploads: four times that). ``app`` is an ASGI app to talk to in this process instead. Raises
    :class:`UsageError`.
    """

    def __init__(
        self,
        base_url: str | BaseUrl | None = None,
        api_key: str | ApiKey | None = None,
        *,
        concurrency: int = 16,
        timeout: float | Timeouts = 30.0,
        allow_http: bool = False,
        app: object | None = None,
    ) -> None:
        self._key = ApiKey.load() if api_key is None else ApiKey(api_key) if isinstance(api_key, str) else api_key
        del api_key  # what is raised from here on may be shown with the variables of its frames
        self._base = base_url if isinstance(base_url, BaseUrl) else BaseUrl.parse(base_url, allow_http=allow_http)
        if concurrency < 1:
            raise UsageError(f"{parameter('concurrency', concurrency)}: must be above zero")
        self._concurrency = concurrency
        self._timeouts = Timeouts.of(timeout)
        self._app = app
        self._transport: Transport | None = None
        self._stack = AsyncExitStack()

    @property
    def origin(self) -> str:
        """The service's name in the ledger: its base URL in canonical form, or the one it is known as there."""
        return self._base.name

    async def __aenter__(self) -> Self:
        if self._transport is not None:
            raise UsageError("this client is open already: use one `async with` at a time")
        self._transport = Transport(
            self._base, self._key, concurrency=self._concurrency, timeouts=self._timeouts, app=self._app
        )
        self._stack.push_async_callback(self._transport.aclose)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transport = None
        await self._stack.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._base.origin!r})"

    def account_mark(self, salt: str) -> bytes:
        """Eight bytes that are the same for the same API key and ``salt`` only; they tell nothing of the key."""
        return blake2b(self._key.reveal().encode(), key=salt.encode()[:64], digest_size=8).digest()

    async def verify(
        self,
        b_no: str,
        name: str | None = None,
        address: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Verified:
        """Verify one business (INTERFACE §4.1). This is a paid lookup; only what is given is sent.

        With an ``idempotency_key`` (1 to 200 visible ASCII characters) it is paid once however often it is sent, if
        the service promises that: see :attr:`Account.idempotency <bizverify.service.account.Account.idempotency>`.
        """
        digits = _ten_digits(b_no)
        lookup = _given(b_no=digits, name=name, address=address)
        return await self._post(
            ("verify",),
            lookup,
            lambda answer: read_verified(answer, digits, name, address),
            headers=_keyed(idempotency_key),
            replacing=True,
        )

    async def create_batch(
        self,
        content: bytes,
        *,
        filename: str = "lookups.csv",
        offline: bool | None = None,
        paid: bool | None = None,
        before_last_byte: Step | None = None,
        after_last_byte: Step | None = None,
        idempotency_key: str | None = None,
    ) -> BatchCreated:
        """Upload a CSV file, each row of which is verified (INTERFACE §4.2) and paid for.

        ``before_last_byte`` is awaited when all but the closing boundary is sent: until it returns the service
        cannot know the whole file, so what fails up to then is a :class:`NotSentError`. ``after_last_byte`` is awaited
        when the last byte is handed to the network. ``idempotency_key``: as for :meth:`verify`.
        """
        flags = {name: str(flag).lower() for name, flag in (("offline", offline), ("paid", paid)) if flag is not None}
        body = file_body(content, filename, before_last=before_last_byte, after_last=after_last_byte)
        reply = await self._open.ask(
            "POST",
            self._base.url("batch"),
            params=flags or None,
            body=body,
            upload=True,
            headers=_keyed(idempotency_key),
        )
        return self._read(reply, read_created)

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        """Ask how far a job is, and for its first ``preview`` results (INTERFACE §4.3)."""
        if preview is not None and preview < 0:
            raise UsageError(f"preview is a number of rows, not {preview}")
        params = None if preview is None else {"preview": str(preview)}
        limit = _PREVIEW + _PREVIEWED_ROW * (preview or 0)
        reply = await self._open.ask("GET", self._base.url("batch", job_id), params=params, limit=limit)
        return self._read(reply, read_status, replacing=True)

    async def label(self, job_id: str, row_id: int, *, bounced: bool, reason: str | None = None) -> Acknowledged:
        """Record whether the letter to a row of a job came back (INTERFACE §4.4).

        ``row_id`` is what the service itself calls the row in the job's results (G30).
        """
        outcome = _given(row_id=row_id, bounced=bounced, reason=reason)
        return await self._post(("batch", job_id, "label"), outcome, read_acknowledged)

    async def watch_add(self, biz_no: str, name: str | None = None, address: str | None = None) -> WatchEntry:
        """Put a business on the watch list (INTERFACE §4.5)."""
        entry = _given(biz_no=_ten_digits(biz_no), name=name, address=address)
        return await self._post(("watch",), entry, read_watch)

    async def watch_list(self) -> list[WatchEntry]:
        """Return the whole watch list (INTERFACE §4.6)."""
        return await self._get(("watch",), read_watches)

    async def watch_remove(self, watch_id: str) -> Acknowledged:
        """Take a business off the watch list (INTERFACE §4.7)."""
        reply = await self._open.ask("DELETE", self._base.url("watch", watch_id))
        return self._read(reply, read_acknowledged)

    async def watch_history(self, watch_id: str) -> list[WatchChange]:
        """Return the changes of a watched business's grade, the oldest first (INTERFACE §4.8; Business plan only)."""
        return await self._get(("watch", watch_id, "history"), read_history)

    async def me(self) -> Account:
        """Return the account and what is left of its monthly quota (INTERFACE §4.9)."""
        return await self._get(("me",), read_account)

    async def _get(self, path: tuple[str, ...], reader: Callable[[object], T]) -> T:
        return self._read(await self._open.ask("GET", self._base.url(*path)), reader)

    async def _post(
        self,
        path: tuple[str, ...],
        content: Mapping[str, object],
        reader: Callable[[object], T],
        headers: Mapping[str, str] | None = None,
        replacing: bool = False,
    ) -> T:
        body: Body = json_body(json.dumps(content, separators=(",", ":")).encode())
        reply = await self._open.ask("POST", self._base.url(*path), body=body, limit=ORDINARY, headers=headers)
        return self._read(reply, reader, replacing=replacing)

    @property
    def _open(self) -> Transport:
        if self._transport is None:
            raise UsageError(f"this {type(self).__name__} is not open: use it inside `async with … as client`")
        return self._transport

    def _read(self, reply: Reply, reader: Callable[[object], T], *, replacing: bool = False) -> T:
        """Read a reply; answers that are paid for with bytes ``replacing`` that are not UTF-8 (G33).

        What cannot be read is raised outside of the frames that held it, the key blotted out.
        """
        try:
            return reader(_content(reply, reader, replacing=replacing))
        except Unreadable as error:
            fault = self._key.redact(one_line(str(error)))
        words = f"{reply.asked}: {reply.status}, the answer {fault}"
        raise ShapeError(words, status=reply.status, detail=fault, raw=self._key.redact(reply.body)[:RAW_KEPT])


def _content(reply: Reply, reader: Callable[[object], object], *, replacing: bool) -> object:
    """What a reply's body says; an acknowledgement may say nothing, or something that is no JSON (G21)."""
    try:
        return parsed(reply.body, replacing=replacing)
    except Unreadable:
        if reader is not read_acknowledged or is_page(reply.body):
            raise
    return reply.body.decode("utf-8", "replace")


def _ten_digits(b_no: str) -> str:
    """The number as it is sent, or :class:`NumberError`. One that is ten digits already does without a polars query."""
    plain = isinstance(b_no, str) and _TEN_DIGITS.fullmatch(b_no) is not None and b_no.strip("0") != ""
    return b_no if plain else number.compact(b_no)


def _keyed(idempotency_key: str | None) -> dict[str, str] | None:
    """The header that carries a request's key, if it has one."""
    if idempotency_key is None:
        return None
    if _KEY.fullmatch(idempotency_key) is None:
        raise UsageError("an idempotency key has 1 to 200 visible ASCII characters")
    return {IDEMPOTENCY_KEY: idempotency_key}


def _given(**fields: object) -> dict[str, object]:
    """The fields that are given: an absent one is not sent (G23)."""
    return {name: value for name, value in fields.items() if value is not None}
