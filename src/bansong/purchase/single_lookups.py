"""Buying one lookup a request: ``POST /verify``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from bansong.dispatch import Action, OutgoingRequest, Slot, Task
from bansong.errors import ServiceError, ShapeError
from bansong.ledger import (
    LookupAnswered,
    LookupAsked,
    LookupDoubted,
    LookupRefused,
    LookupRetracted,
    LookupUnreadable,
)
from bansong.purchase.idempotent_retry import VERIFY, content_of, send_once, stored_request, verify_lookup
from bansong.purchase.purchase_context import PurchaseContext
from bansong.run.lookups import Lookup, as_lookups

if TYPE_CHECKING:
    from bansong.client import Verified
    from bansong.ledger import StoredRequest


async def buy_singly(context: PurchaseContext, wanted: pl.DataFrame) -> None:
    """Buy each of the wanted lookups once; what became of one is in the ledger before its worker takes the next.

    While an answer is written down the next request is under way: there are two workers to a place. So a kill leaves no
    more than twice ``terms.concurrency`` lookups in doubt.
    """
    source = as_lookups(wanted)

    def next_task() -> Task | None:
        lookup = next(source, None)
        return None if lookup is None else partial(context.dispatcher.deliver, _SingleLookup(context, lookup))

    concurrency = min(context.terms.concurrency, max(wanted.height, 1))
    await context.dispatcher.run(next_task, concurrency, 2 * concurrency)


class _SingleLookup(OutgoingRequest["Verified"]):
    """One lookup, asked again only where it is certain that nothing was paid."""

    def __init__(self, context: PurchaseContext, lookup: Lookup) -> None:
        self._context, self._lookup = context, lookup
        self._request: StoredRequest | None = None

    async def prepare(self) -> None:
        lookup = self._lookup
        self._request = stored_request(self._context, VERIFY, content_of(lookup))
        await self._context.journal.settle(LookupAsked(lookup.key, lookup.b_no, self._context.run_id, self._request))

    async def send(self, slot: Slot) -> Verified:
        lookup, request = self._lookup, self._request
        key: dict[str, Any] = {} if request is None else {"idempotency_key": request.token}

        async def ask(_is_repetition: bool) -> Verified:
            return await verify_lookup(self._context.client, lookup.b_no, lookup.name, lookup.address, **key)

        return await send_once(self._context, VERIFY, request, ask, slot)

    async def record_reply(self, reply: Verified, slot: Slot) -> None:
        slot.release()
        await self._context.journal.settle(LookupAnswered(self._lookup.key, reply.answer))
        self._context.counts.paid += 1
        self._context.progress(1)

    async def record_error(self, error: ServiceError, action: Action) -> None:
        settle, key, counts = self._context.journal.settle, self._lookup.key, self._context.counts
        if isinstance(error, ShapeError):
            await settle(LookupUnreadable(key, error.raw, str(error)))
            counts.paid += 1
        elif action is Action.HOLD:
            await settle(LookupDoubted(key, str(error)))
            counts.doubts += 1
        elif action is Action.REFUSE:
            await settle(LookupRefused(key, str(error)))
        else:  # not sent, or refused whatever is asked: as if it had not been tried
            await settle(LookupRetracted(key))

    async def record_interruption(self, note: str) -> None:
        await self._context.journal.settle(LookupDoubted(self._lookup.key, note))
        self._context.counts.doubts += 1

    def give_up(self, error: ServiceError, action: Action) -> None:
        del error, action
        if not self._context.dispatcher.is_cancelled:
            self._context.progress(1)
