"""Buying one lookup a request: ``POST /verify``."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import polars as pl

from bizverify.errors import (
    CertificateError,
    DoubtError,
    NotSentError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
)
from bizverify.ledger import Answered, Asking, Doubted, Refused, Retracted, Unreadable
from bizverify.purchase.dispatcher import Buying, is_redirect
from bizverify.purchase.idempotent_retry import VERIFY, content_of, once, request_of, verified_by
from bizverify.run.lookups import Lookup, as_lookups

if TYPE_CHECKING:
    from bizverify.client import Verified
    from bizverify.ledger import Change
    from bizverify.purchase.limits import Slot, Throttle


async def buy_singly(buying: Buying, wanted: pl.DataFrame) -> None:
    """Buy each of the wanted lookups once; what became of one is in the ledger before its worker takes the next.

    While an answer is written down the next request is under way: there are two workers to a place. So a kill leaves no
    more than twice ``terms.concurrency`` lookups in doubt.
    """
    source = as_lookups(wanted)

    async def worker(throttle: Throttle) -> None:
        while True:
            async with buying.slot(throttle) as slot:
                lookup = next(source, None) if slot is not None else None
                if slot is None or lookup is None:
                    return
                await _buy(buying, lookup, throttle, slot)

    at_once = min(buying.terms.concurrency, max(wanted.height, 1))
    await buying.carry_out(worker, at_once, 2 * at_once)


async def _buy(buying: Buying, lookup: Lookup, throttle: Throttle, slot: Slot) -> None:
    """Ask about one lookup, again only where it is certain that nothing was paid."""
    for attempt in count():
        if not await buying.turn(throttle):
            return
        error = await _ask(buying, lookup, throttle, slot)
        if error is None:
            return
        buying.strained(error, slot)
        if not await _again(buying, error, attempt):
            if not buying.stop.pulled:
                buying.progress(1)
            return


async def _ask(buying: Buying, lookup: Lookup, throttle: Throttle, slot: Slot) -> ServiceError | None:
    """Send the request and write down what came of it; return the error that it came to, if any."""
    settle = buying.journal.settle
    request = request_of(buying, VERIFY, content_of(lookup))
    await settle(Asking(lookup.key, lookup.b_no, buying.run_id, request))
    key: dict[str, Any] = {} if request is None else {"idempotency_key": request.token}

    async def ask(_again: bool) -> Verified:
        return await verified_by(buying.client, lookup.b_no, lookup.name, lookup.address, **key)

    try:
        verified = await once(buying, VERIFY, request, ask, throttle, slot)
    except ServiceError as error:
        await settle(_outcome(lookup.key, error))
        return error
    except BaseException as stopped:  # cancelled, or worse: the request may be on its way
        with anyio.CancelScope(shield=True):
            await settle(
                Doubted(lookup.key, f"the run was stopped while waiting for the answer ({type(stopped).__name__})")
            )
            buying.figures.doubts += 1
        raise
    slot.eased()
    slot.release()
    await settle(Answered(lookup.key, verified.answer))
    buying.figures.paid += 1
    buying.fruitful()
    buying.progress(1)
    return None


def _outcome(key: bytes, error: ServiceError) -> Change:
    """What an error means for a lookup (DESIGN: what an exception means for a paid request)."""
    match error:
        case DoubtError():
            return Doubted(key, str(error))
        case ShapeError():
            return Unreadable(key, error.raw, str(error))
        case TooLargeError() | RejectedError() if not is_redirect(error):
            return Refused(key, str(error))
        case _:  # not sent, or refused whatever is asked: as if it had not been tried
            return Retracted(key)


async def _again(buying: Buying, error: ServiceError, attempt: int) -> bool:
    """Whether to ask the same lookup once more; if not, whether to go on at all."""
    match error:
        case DoubtError():
            buying.figures.doubts += 1
            buying.fruitless(str(error))
        case ShapeError():
            buying.figures.paid += 1
            buying.fruitless(str(error))
        case CertificateError():
            buying.refused(error)
        case NotSentError():
            if await buying.again(attempt, error.retry_after):
                return True
            buying.unreachable(error)
        case QuotaError():
            return await buying.quota_used_up(error, attempt)
        case TooLargeError() | RejectedError() if not is_redirect(error):
            buying.fruitless(str(error), 1)
        case _:  # 401, 403, 404, a redirect: it will be the same for every other lookup
            buying.refused(error)
    return False
