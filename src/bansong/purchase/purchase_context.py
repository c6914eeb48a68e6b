"""What all ways of buying share: client, ledger, dispatcher and counts of one run, and when a service is not asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from bansong.dispatch import DispatchCounts, Dispatcher
from bansong.translation import gettext, ngettext, parameter

if TYPE_CHECKING:
    import polars as pl

    from bansong.client import Client
    from bansong.client.account import Idempotency
    from bansong.ledger import Journal, Ledger
    from bansong.options import ServiceOptions

TRIALS: Final = 3
"""How many trial uploads may come to nothing; the next waits for an answer to one of them, or for the user."""
REQUESTS: Final = 300
"""How many single requests may come to nothing: as many lookups as three trial uploads hold."""


@dataclass(slots=True)
class PurchaseCounts(DispatchCounts):
    """What a run's buying came to, counted as it happens.

    ``paid``, ``doubts`` (requests in doubt) and ``fetched`` (answers of jobs); ``repeated``: requests sent again with
    their key.
    """

    repeated: int = 0
    paid: int = 0
    doubts: int = 0
    fetched: int = 0


@dataclass
class PurchaseContext:
    """One run's purchases: who is asked, where it is written down, and the dispatcher that sends.

    ``lookups`` are those that the run's file asks for, with their keys: what was sent is not in the ledger.
    ``idempotency`` is what the service promises of requests that are sent again; ``hopeless`` counts those in a row for
    which that led to nothing.
    """

    client: Client
    ledger: Ledger
    journal: Journal
    terms: ServiceOptions
    run_id: str
    scope: str
    progress: Callable[[int], None] = lambda _: None
    counts: PurchaseCounts = field(default_factory=PurchaseCounts)
    idempotency: Idempotency | None = None
    hopeless: int = 0
    lookups: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(rate=self.terms.rate, drain=self.terms.drain, counts=self.counts)
        self.repetition_gate = anyio.Lock()
        """One request at a time is repeated with its key."""
        self.upload_gate = anyio.Lock()
        """One upload at a time is between its first byte and its reply: a run that is killed leaves one in doubt."""


def why_stopped(ledger: Ledger, origin: str, *, uploads: bool) -> str | None:
    """Return why nothing more may be bought from ``origin``, in uploads or by requests; ``None`` if something may."""
    if uploads:
        spent, most = ledger.spent_trials(origin), TRIALS
        what = ngettext("{count:,} trial upload", "{count:,} trial uploads", spent)
    else:
        spent, most = ledger.unanswered_requests(origin), REQUESTS
        what = ngettext("{count:,} request", "{count:,} requests", spent)
    if spent < most:
        return None
    return gettext(
        "nothing more is bought from {origin}: {what} came to nothing since its last answer; `bansong resolve` lists "
        "them; when the service works again, {option} tries once more",
        origin=origin,
        what=what,
        option=parameter("retry_trial", True),
    )
