"""Buy lookups by single requests (``POST /verify``), and repeat requests with an idempotency key."""

from __future__ import annotations

import json
import logging
import math
import secrets
import zlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import polars as pl

from bansong.base.errors import DoubtError, Problem, ServiceError, ShapeError
from bansong.base.messages import gettext
from bansong.client.dispatcher import OutgoingRequest, Slot, Task
from bansong.client.errors import Action, is_long_wait, may_pass
from bansong.purchase import changes
from bansong.purchase.ledger_file import StoredRequest
from bansong.purchase.lookups import Lookup, PurchaseContext, as_lookups
from bansong.purchase.proof import EMPTY_ANSWER
from bansong.purchase.recovery import REPEATS, LookupSettled, RequestRepeated, UploadSettled

if TYPE_CHECKING:
    from bansong.client.client import Client
    from bansong.client.responses import Verified
    from bansong.purchase.recovery import PendingRequest

REQUEST_IN_DOUBT: Final = Problem(
    "purchase.request_in_doubt", "{endpoint} was sent by an earlier run, and what became of it is not known"
)

log = logging.getLogger(__name__)

VERIFY: Final = "POST /verify"
BATCH: Final = "POST /batch"

_MAX_REPETITIONS: Final = 5  # repetitions of a request in a run
_MAX_HOPELESS: Final = 3  # after so many failed requests in a row, this run repeats no more
_SURE_SHARE: Final = 0.9  # share of the promised time in which the service surely remembers a key

Reply = TypeVar("Reply")
Ask = Callable[[bool], Awaitable[Reply]]  # sends a request; argument: whether it is a repetition


@dataclass(frozen=True, slots=True)
class _SentRequest:
    endpoint: str
    request: StoredRequest
    begun: float  # seconds of anyio's clock, which stops while a machine sleeps
    dated: float  # seconds of the ledger's clock, which may be set back
    repeats: int = 0  # repetitions by earlier runs


def stored_request(context: PurchaseContext, endpoint: str, content: bytes) -> StoredRequest | None:
    """Return a request to be kept for repetition; ``None`` without the service's promise to do it only once."""
    promise = context.idempotency
    if promise is None or endpoint not in promise.endpoints:
        return None
    token = secrets.token_hex(16)
    mark = context.client.account_mark(token)
    return StoredRequest(token, context.client.origin, mark, float(promise.keep_seconds), zlib.compress(content, 1))


async def verify_lookup(client: Client, record: tuple[str, str | None, str | None], key: str | None) -> Verified:
    """Send one lookup; raise :class:`ShapeError` for an unreadable or empty answer."""
    verified = await client.verify(*record, idempotency_key=key)
    if verified.answer == EMPTY_ANSWER:
        words = gettext("the service gave no answer")
        raise ShapeError(words, status=200, detail=words, raw=client.redact(verified.model_dump_json().encode()))
    return verified


async def send_once(
    context: PurchaseContext, endpoint: str, request: StoredRequest | None, ask: Ask[Reply], slot: Slot
) -> Reply:
    """Send a request; if its outcome is unknown, repeat it with its key; raise :class:`DoubtError` if it stays so."""
    if request is None:
        return await ask(False)
    begun, dated = anyio.current_time(), context.ledger.now()
    try:
        return await ask(False)
    except DoubtError as error:
        doubt = error
    return await _repeat(context, _SentRequest(endpoint, request, begun, dated), ask, slot, doubt)


async def settle_doubts(context: PurchaseContext, wanted: Collection[bytes] | None, most: int | None) -> int:
    """Repeat doubtful requests of earlier runs, for ``most`` lookups at most; return how many lookups were settled."""
    requests = [
        request
        for request in context.ledger.pending_requests(context.client.origin)
        if wanted is None or any(key in wanted for key in request.keys)
    ]
    if not requests:
        return 0
    source, read, settled, tried = iter(requests), anyio.current_time(), 0, 0

    async def repeat(request: PendingRequest, slot: Slot) -> None:
        nonlocal settled
        if await _settle_request(context, request, read, slot):
            settled += request.rows

    def next_task() -> Task | None:
        nonlocal tried
        for request in source:
            if most is None or tried + request.rows <= most:  # a request that never arrived is bought only now
                tried += request.rows
                return partial(repeat, request)
        return None

    await context.dispatcher.run(next_task, 1)
    log.info("%d of %d lookups in doubt were settled by asking again with their key", settled, tried)
    return settled


async def _settle_request(context: PurchaseContext, request: PendingRequest, read: float, slot: Slot) -> bool:
    # without an answer the request stays in doubt
    if request.age < 0:  # the clock was set back: the key's age is unknown
        return False
    endpoint, token = VERIFY if request.upload is None else BATCH, request.request.token
    sent = _SentRequest(endpoint, request.request, read - request.age, request.first, request.repeats)
    if (why_not := _why_expired(context, sent)) is not None:  # other requests may still be repeated
        log.info("%s: %s", endpoint, why_not)
        return False
    content, client, settle = zlib.decompress(request.request.content), context.client, context.journal.settle
    doubt = DoubtError(REQUEST_IN_DOUBT, endpoint=endpoint)
    try:
        if request.upload is None:
            record = json.loads(content)
            verified = await _repeat(context, sent, lambda _: verify_lookup(client, record, token), slot, doubt)
            await settle(LookupSettled(request.keys[0], verified.answer))
        else:
            upload = partial(client.create_batch, offline=request.offline, paid=request.paid, idempotency_key=token)
            created = await _repeat(context, sent, lambda _: upload(content), slot, doubt)
            await settle(UploadSettled(request.upload, created.job_id, created.total))
    except ServiceError as error:
        log.info("%s", error)
        return False
    return True


async def _repeat(
    context: PurchaseContext, sent: _SentRequest, ask: Ask[Reply], slot: Slot, doubt: DoubtError
) -> Reply:
    # only one at a time: an outage leaves many requests in doubt, and one is enough to see that the service is back
    why: str | None = None
    dispatcher, wait = context.dispatcher, doubt.retry_after
    dispatcher.record_overload(doubt, slot)
    async with dispatcher.exclusively(context.repetition_gate) as is_free:
        for attempt in range(1, min(_MAX_REPETITIONS, REPEATS - sent.repeats) + 1):
            if not is_free or context.hopeless >= _MAX_HOPELESS or dispatcher.is_cancelled:
                break
            try:
                await dispatcher.back_off(attempt, wait)
                why = await _why_not_repeatable(context, sent)
                if why is not None or not await dispatcher.wait_for_permit(slot):
                    break
                await context.journal.settle(RequestRepeated(sent.request.token))
                context.counts.repeated += 1
                reply = await ask(True)
            except ShapeError as error:
                context.hopeless += 1
                raise _with_reason(doubt, str(error)) from None
            except ServiceError as error:
                why, wait = str(error), error.retry_after
                dispatcher.record_overload(error, slot)
                if not may_pass(error) or is_long_wait(wait):
                    break
            else:
                context.hopeless = 0
                return reply
        if is_free and not dispatcher.is_cancelled:
            context.hopeless += 1
    raise _with_reason(doubt, why)


async def _why_not_repeatable(context: PurchaseContext, sent: _SentRequest) -> str | None:
    if (why := _why_expired(context, sent)) is not None:
        return why
    promise = (await context.client.me()).idempotency
    if promise is None or sent.endpoint not in promise.endpoints:
        return gettext("the service does not promise any more to do it only once")
    return _why_expired(context, sent, promise.keep_seconds)


def _why_expired(context: PurchaseContext, sent: _SentRequest, promised: float = math.inf) -> str | None:
    # without asking the service
    if context.client.account_mark(sent.request.token) != sent.request.account:
        return gettext("it was sent with another API key, so it is not repeated with this one")
    age = max(anyio.current_time() - sent.begun, context.ledger.now() - sent.dated)
    if age >= _SURE_SHARE * min(sent.request.keep, promised):
        return gettext("it was sent so long ago that the service may have forgotten its key")
    return None


def _with_reason(doubt: DoubtError, why: str | None) -> DoubtError:
    if why is None:
        return doubt
    words = gettext("{doubt}; asked again with the same key: {why}", doubt=doubt, why=why)
    return DoubtError(words, status=doubt.status, detail=doubt.detail, raw=doubt.raw)


async def buy_singly(context: PurchaseContext, wanted: pl.DataFrame) -> None:
    """Buy each lookup by a request; a killed run leaves at most 2 × ``terms.concurrency`` lookups in doubt."""
    source = as_lookups(wanted)

    def next_task() -> Task | None:
        lookup = next(source, None)
        return None if lookup is None else partial(context.dispatcher.deliver, _SingleLookup(context, lookup))

    concurrency = min(context.terms.concurrency, max(wanted.height, 1))
    await context.dispatcher.run(next_task, concurrency, 2 * concurrency)


class _SingleLookup(OutgoingRequest["Verified"]):
    def __init__(self, context: PurchaseContext, lookup: Lookup) -> None:
        self._context, self._lookup = context, lookup
        self._request: StoredRequest | None = None

    async def prepare(self) -> None:
        lookup = self._lookup
        content = json.dumps([lookup.b_no, lookup.name, lookup.address], ensure_ascii=False).encode()
        self._request = stored_request(self._context, VERIFY, content)
        await self._context.journal.settle(
            changes.LookupAsked(lookup.key, lookup.b_no, self._context.run_id, self._request)
        )

    async def send(self, slot: Slot) -> Verified:
        lookup, request = self._lookup, self._request
        record, token = (lookup.b_no, lookup.name, lookup.address), request.token if request else None

        async def ask(_is_repetition: bool) -> Verified:
            return await verify_lookup(self._context.client, record, token)

        return await send_once(self._context, VERIFY, request, ask, slot)

    async def record_reply(self, reply: Verified, slot: Slot) -> None:
        slot.release()
        await self._context.journal.settle(changes.LookupAnswered(self._lookup.key, reply.answer))
        self._context.counts.paid += 1
        self._context.progress(1)

    async def record_error(self, error: ServiceError, action: Action) -> None:
        settle, key, counts = self._context.journal.settle, self._lookup.key, self._context.counts
        if isinstance(error, ShapeError):
            await settle(changes.LookupUnreadable(key, error.raw, str(error)))
            counts.paid += 1
        elif action is Action.HOLD:
            await settle(changes.LookupDoubted(key, str(error)))
            counts.doubts += 1
        elif action is Action.REFUSE:
            await settle(changes.LookupRefused(key, str(error)))
        else:  # not sent, or all requests are refused: restore the state before
            await settle(changes.LookupRetracted(key))

    async def record_interruption(self, note: str) -> None:
        await self._context.journal.settle(changes.LookupDoubted(self._lookup.key, note))
        self._context.counts.doubts += 1

    def give_up(self, error: ServiceError, action: Action) -> None:
        del error, action
        if not self._context.dispatcher.is_cancelled:
            self._context.progress(1)
