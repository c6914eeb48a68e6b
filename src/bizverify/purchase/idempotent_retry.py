"""Doubt that disappears: where the service promises to do a request once, the same one is sent again with its key.

A request is repeated only while the promise stands: ``/me`` is asked again just before, the key is not older than
nine tenths of what the service said to keep it (then or now, whichever is less), and the API key is the one that it
was first sent with. Nothing but a
readable answer settles it: whatever else is said to a repetition (409, 400, 429, no connection), the first sending
stays in doubt.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import zlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from bizverify.errors import DoubtError, NotSentError, QuotaError, ServiceError, ShapeError
from bizverify.ledger import Repeating, Request, Settled, UploadSettled
from bizverify.ledger.pending_requests import REPEATS
from bizverify.purchase.dispatcher import Buying, is_long
from bizverify.purchase.result_matching import NOTHING

if TYPE_CHECKING:
    from bizverify.client import Client, Verified
    from bizverify.ledger import Repeatable
    from bizverify.purchase.limits import Slot, Throttle
    from bizverify.run.lookups import Lookup

log = logging.getLogger(__name__)

VERIFY: Final = "POST /verify"
BATCH: Final = "POST /batch"

_TRIES: Final = 5
"""How often one request is repeated in a run, with pauses that grow."""
_HOPELESS: Final = 3
"""After so many requests in a row that no repetition has settled, no other is repeated in this run."""
_SURE: Final = 0.9
"""The share of the promised time in which a key is believed to be remembered."""

Reply = TypeVar("Reply")
Ask = Callable[[bool], Awaitable[Reply]]
"""Sends a request; its argument says whether that is a repetition."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A request with a key, which was ``begun`` by anyio's clock and ``dated`` by the ledger's.

    ``repeats``: how often earlier runs have sent it again.

    Both are looked at: one does not run while a machine sleeps, the other may be set back.
    """

    endpoint: str
    token: str
    account: bytes
    keep: float
    begun: float
    dated: float
    repeats: int = 0

    def is_old(self, now: float, promised: float) -> bool:
        """Whether the service may have forgotten the key at ``now`` (the ledger's clock)."""
        age = max(anyio.current_time() - self.begun, now - self.dated)
        return age >= _SURE * min(self.keep, promised)


def request_of(buying: Buying, endpoint: str, content: bytes) -> Request | None:
    """What the ledger is to keep of a request; ``None`` where the service promises nothing."""
    said = buying.idempotency
    if said is None or endpoint not in said.endpoints:
        return None
    token = secrets.token_hex(16)
    mark = buying.client.account_mark(token)
    return Request(token, buying.client.origin, mark, float(said.keep_seconds), zlib.compress(content, 1))


def content_of(lookup: Lookup) -> bytes:
    """A lookup as the ledger keeps it until it is answered."""
    return json.dumps([lookup.b_no, lookup.name, lookup.address], ensure_ascii=False).encode()


async def verified_by(client: Client, b_no: str, name: str | None, address: str | None, **key: Any) -> Verified:
    """Ask about one lookup; raise :class:`ShapeError` also for an answer that says nothing in any field."""
    verified = await client.verify(b_no, name, address, **key)
    if verified.answer == NOTHING:
        words = "the service gave no answer"
        raise ShapeError(words, status=200, detail=words, raw=client.redact(verified.model_dump_json().encode()))
    return verified


async def once(
    buying: Buying, endpoint: str, request: Request | None, ask: Ask[Reply], throttle: Throttle, slot: Slot
) -> Reply:
    """Send a request; where its answer does not come, and it has a key, again until it does.

    Raises what the service said to the first sending; a :class:`DoubtError` also where no repetition settled it.
    """
    if request is None:
        return await ask(False)
    sending = Sending(endpoint, request.token, request.account, request.keep, anyio.current_time(), buying.ledger.now())
    try:
        return await ask(False)
    except DoubtError as error:
        doubt = error
    return await _repeated(buying, sending, ask, throttle, slot, doubt)


async def settle_doubts(buying: Buying, wanted: Collection[bytes] | None, most: int | None) -> int:
    """Repeat what earlier runs left in doubt; return how many lookups that settled.

    ``wanted``: only requests that hold one of these keys; ``None``: all. ``most``: no more lookups than that, since the
    first sending may never have arrived.
    """
    held = [one for one in buying.ledger.repeatable(buying.client.origin) if _concerns(one, wanted)]
    read, settled, tried = anyio.current_time(), 0, 0

    async def worker(throttle: Throttle) -> None:
        nonlocal settled, tried
        for one in held:
            if most is not None and tried + one.rows > most:
                continue
            async with buying.slot(throttle) as slot:
                if slot is None:
                    return
                tried += one.rows
                if await _settled(buying, one, read, throttle, slot):
                    settled += one.rows

    if held:
        await buying.carry_out(worker, 1)
        log.info("%d of %d lookups in doubt were settled by asking again with their key", settled, tried)
    return settled


def _concerns(one: Repeatable, wanted: Collection[bytes] | None) -> bool:
    return wanted is None or any(key in wanted for key in one.keys)


async def _settled(buying: Buying, one: Repeatable, read: float, throttle: Throttle, slot: Slot) -> bool:
    """Repeat a request of an earlier run; whether it was answered. If not, it stays as it is in the ledger."""
    if one.age < 0:  # the clock was set back: how old the key is, is not known
        return False
    endpoint = VERIFY if one.upload is None else BATCH
    sending = Sending(endpoint, one.token, one.account, one.keep, read - one.age, one.first, one.repeats)
    if (why_not := _outlived(buying, sending)) is not None:  # it says nothing about the others
        log.info("%s: %s", endpoint, why_not)
        return False
    content, client, settle = zlib.decompress(one.content), buying.client, buying.journal.settle
    unknown = DoubtError(f"{endpoint} was sent by an earlier run, and what became of it is not known")
    try:
        if one.upload is None:
            b_no, name, address = json.loads(content)
            verified = await _repeated(
                buying,
                sending,
                lambda _: verified_by(client, b_no, name, address, idempotency_key=one.token),
                throttle,
                slot,
                unknown,
            )
            await settle(Settled(one.keys[0], verified.answer))
        else:
            created = await _repeated(
                buying,
                sending,
                lambda _: client.create_batch(content, offline=one.offline, paid=one.paid, idempotency_key=one.token),
                throttle,
                slot,
                unknown,
            )
            await settle(UploadSettled(one.upload, created.job_id, created.total))
    except ServiceError as error:
        log.info("%s", error)
        return False
    return True


async def _repeated(
    buying: Buying, sending: Sending, ask: Ask[Reply], throttle: Throttle, slot: Slot, doubt: DoubtError
) -> Reply:
    """Repeat a request until it is answered; raise :class:`DoubtError` if it is not, or must not be repeated.

    One at a time in a run: where the service is down for a while, many are in doubt at once, and one is enough to see
    that it is back.
    """
    why: str | None = None
    buying.strained(doubt, slot)
    wait = doubt.retry_after
    async with buying.alone() as alone:
        for attempt in range(1, min(_TRIES, REPEATS - sending.repeats) + 1):
            if not alone or buying.hopeless >= _HOPELESS or buying.stop.pulled:
                break
            try:
                await _pause(buying, attempt, wait)
                if (why := await _forbidden(buying, sending)) is not None or not await buying.turn(throttle):
                    break
                await buying.journal.settle(Repeating(sending.token))
                buying.figures.repeated += 1
                reply = await ask(True)
            except ShapeError as error:
                buying.hopeless += 1
                raise _still(doubt, str(error)) from None
            except ServiceError as error:
                why, wait = str(error), error.retry_after
                buying.strained(error, slot)
                if not _passes(error):
                    break
            else:
                buying.hopeless = 0
                return reply
        if alone and not buying.stop.pulled:
            buying.hopeless += 1
    raise _still(doubt, why)


def _passes(error: ServiceError) -> bool:
    """Whether a repetition that came to this is worth another, in this run."""
    passing = isinstance(error, DoubtError | NotSentError) or (
        isinstance(error, QuotaError) and error.retry_after is not None
    )
    return passing and not is_long(error.retry_after)


async def _pause(buying: Buying, attempt: int, retry_after: float | None) -> None:
    with buying.stop.waiting():
        await anyio.sleep(buying.retries.backoff(attempt, retry_after))


async def _forbidden(buying: Buying, sending: Sending) -> str | None:
    """Why a request must not be repeated now; ``None`` if it may."""
    if (why := _outlived(buying, sending)) is not None:
        return why
    account = await buying.client.me()
    said = account.idempotency
    if said is None or sending.endpoint not in said.endpoints:
        return "the service does not promise any more to do it only once"
    return _outlived(buying, sending, said.keep_seconds)


def _outlived(buying: Buying, sending: Sending, promised: float = math.inf) -> str | None:
    """Why the promise does not hold for a request any more, as far as that can be known without asking."""
    if buying.client.account_mark(sending.token) != sending.account:
        return "it was sent with another API key, so it is not repeated with this one"
    if sending.is_old(buying.ledger.now(), promised):
        return "it was sent so long ago that the service may have forgotten its key"
    return None


def _still(doubt: DoubtError, why: str | None) -> DoubtError:
    if why is None:
        return doubt
    words = f"{doubt}; asked again with the same key: {why}"
    return DoubtError(words, status=doubt.status, detail=doubt.detail, raw=doubt.raw)
