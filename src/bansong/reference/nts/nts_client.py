"""The client of the tax authority's open API: one call, ``/status``, which sends numbers only."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import Final, Self

import polars as pl

from bansong.client.arguments import ten_digits
from bansong.client.base_url import BaseUrl
from bansong.client.network import HttpTransport, Timeouts, check_http, tls_context
from bansong.client.request import json_body
from bansong.client.transport import ServiceResponse, Transport, Wording
from bansong.environment import variable
from bansong.errors import DoubtError, Problem, ServiceError, ShapeError, UnavailableError, UsageError
from bansong.reference.nts.nts_key import NtsKey
from bansong.reference.nts.replies import StatusReply, read_reply
from bansong.reference.nts.reply_errors import reply_error
from bansong.schema import seoul_day
from bansong.translation import Option, Phrase, gettext, gettext_noop

URL_NOT_ENCRYPTED: Final = Problem(
    "nts.url_not_encrypted",
    "http://{host}: plain http would show the {name} to the network; give {variable} with https",
)
NUMBER_COUNT_INVALID: Final = Problem(
    "nts.number_count_invalid", "{parameter}: holds {count} numbers; give 1 to {most} a call"
)
NUMBER_INVALID: Final = Problem("nts.number_invalid", "{parameter}: holds {number}, which has not up to ten digits")
CLIENT_ALREADY_OPEN: Final = Problem(
    "nts.client_already_open", "this client is open already: use one `async with` at a time"
)
CLIENT_NOT_OPEN: Final = Problem("nts.client_not_open", "this {name} is not open: use it inside `async with … as nts`")

ENV_NTS_URL: Final = "BANSONG_NTS_URL"
NTS_URL: Final = "https://api.odcloud.kr"
MAX_NUMBERS: Final = 100
"""Numbers a call."""
_PATH: Final = ("api", "nts-businessman", "v1", "status")
_PATH_END: Final = re.compile(r"(/api(/nts-businessman(/v1(/status)?)?)?)?/?(\?.*)?$")
"""Parts of the path that a URL may have, and a query, which would show a key."""
_SUBJECT: Final = gettext_noop("the tax authority's API")
_TIMEOUT_S: Final = 35.0
"""Seconds: an overloaded portal says so (504) after 30."""


class NtsClient:
    """Asks the tax authority for statuses, under asyncio and trio::

        async with NtsClient() as nts:
            reply = await nts.status(["124-81-00998"])

    A call costs nothing, so nothing is ever in doubt: a failure is an :class:`~bansong.errors.UnavailableError`.
    Retries, pace and budget are the caller's (:mod:`bansong.dispatch`).
    """

    def __init__(
        self,
        key: NtsKey | None = None,
        base_url: str | None = None,
        *,
        concurrency: int = 8,
        timeout: float | Timeouts = _TIMEOUT_S,
        verify: bool | str | os.PathLike[str] | ssl.SSLContext = True,
        http: HttpTransport | None = None,
        app: object | None = None,
        today: Callable[[], date] = seoul_day,
    ) -> None:
        """Check the arguments; nothing is connected yet.

        ``key``: by default from BANSONG_NTS_KEY or BANSONG_NTS_KEY_FILE. ``base_url``: by default BANSONG_NTS_URL, else
        https://api.odcloud.kr; it may end with the API's path (``…/v1/status``). The others as for
        :class:`bansong.client.Client`; ``today`` gives the day of statuses. Raises :class:`UsageError`.
        """
        self._transport: Transport | None = None
        self._key = NtsKey.load() if key is None else key
        base = _base_url(base_url)
        self._url = base.url(*_PATH)
        self._subject = gettext(_SUBJECT) if base.origin == NTS_URL else f"{gettext(_SUBJECT)} ({base.origin})"
        self._today = today
        again = gettext_noop("it is free to ask again, so try later")
        self._make_transport = partial(
            Transport,
            base,
            self._key,
            concurrency=concurrency,
            timeouts=Timeouts.of(timeout),
            app=app,
            http=check_http(http, verify, app),
            tls=tls_context(verify, base),
            wording=Wording(
                self._subject,
                unreachable=gettext_noop("check the network, and try again later"),
                incomplete=again,
                untrusted=gettext_noop("name the file with your network's certificates in SSL_CERT_FILE"),
                in_doubt=again,
            ),
        )

    async def __aenter__(self) -> Self:
        if self._transport is not None:
            raise UsageError(CLIENT_ALREADY_OPEN)
        self._transport = self._make_transport()
        return self

    async def __aexit__(self, *exception: object) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    async def status(self, numbers: pl.Series | Sequence[str] | Sequence[int]) -> StatusReply:
        """Ask for the statuses of up to 100 numbers, texts or whole numbers, in one request.

        A repeated number is asked once. Raises :class:`UsageError` for an invalid number, and a
        :class:`~bansong.errors.ServiceError` for the reply or its absence.
        """
        if self._transport is None:
            raise UsageError(CLIENT_NOT_OPEN, name=type(self).__name__)
        given = numbers.to_list() if isinstance(numbers, pl.Series) else list(numbers)
        if not 1 <= len(given) <= MAX_NUMBERS:
            raise UsageError(NUMBER_COUNT_INVALID, parameter=Option("numbers"), count=len(given), most=MAX_NUMBERS)
        asked = list(dict.fromkeys(map(_digits_of, given)))
        day = self._today()
        outcome = await self._ask(self._transport, json.dumps({"b_no": asked}, separators=(",", ":")).encode())
        if isinstance(outcome, ServiceResponse):
            found = read_reply(outcome.body, outcome.status, asked, day, self._subject)
            if isinstance(found, StatusReply):
                return found
            outcome = found
        raise outcome

    async def _ask(self, transport: Transport, content: bytes) -> ServiceResponse | ServiceError:
        """Return the response or the error it stands for: raised further out, it has no context."""
        try:
            return await transport.ask("POST", self._url, body=json_body(content))
        except ServiceError as error:
            outcome = self._translate(error)
            outcome.request_id = error.request_id
            return outcome

    def _translate(self, error: ServiceError) -> ServiceError:
        status, raw = error.status, error.raw
        if status is not None and not 200 <= status < 300:
            return reply_error(self._subject, status, raw, error.retry_after)
        if isinstance(error, DoubtError):
            return UnavailableError(str(error), status=status, raw=raw)
        if isinstance(error, ShapeError):
            return ShapeError(str(error), status=status, raw=raw)
        return error.with_traceback(None)


def _base_url(given: str | None) -> BaseUrl:
    try:
        url = given or (variable(ENV_NTS_URL) or "").strip() or NTS_URL
        base = BaseUrl.parse(_PATH_END.sub("", url, count=1), allow_http=True)
    except UsageError as error:  # it speaks of the hosted service's URL
        raise UsageError(f"{_SUBJECT} ({ENV_NTS_URL}): {error}") from None
    if base.scheme == "http" and not base.is_loopback:
        raise UsageError(URL_NOT_ENCRYPTED, host=base.host, name=Phrase(NtsKey.NAME), variable=ENV_NTS_URL)
    return base


def _digits_of(number: str | int) -> str:
    if not isinstance(number, int):
        return ten_digits("numbers", number)
    if not 0 < number < 10**10:
        raise UsageError(NUMBER_INVALID, parameter=Option("numbers"), number=number)
    return f"{number:010d}"  # a registry's
