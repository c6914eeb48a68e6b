"""What a run bought, or would buy, in figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """What ``/me`` said of the monthly quota, in lookups; ``None`` where it did not say."""

    limit: int | None
    used: int | None
    remaining: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the local engine and the service agree on the rows that both answered (hybrid).

    ``status_known``: rows whose status both know, ``status_same``: those where it is the same; ``action_same``: rows
    with the same action; ``prob_apart``: the mean distance of the two probabilities, ``None`` where there is none.
    """

    rows: int
    status_known: int
    status_same: int
    action_same: int
    prob_apart: float | None


@dataclass(frozen=True, slots=True)
class Purchase:
    """What a run bought, or would buy.

    Of the lookups, ``cached`` were in the ledger, ``running`` in uploads of earlier runs, ``held`` asked once without
    an answer, and ``wanted`` missing, of which ``chosen`` were to be bought. ``paid``: lookups the service took in this
    run; ``fetched``: answers out of uploads; ``doubts``: requests whose answer is not known, ``doubts_found``: those
    that a killed run had left; ``repeated``: requests sent again with the key they had. ``rate``: requests per second
    reached. ``paused``: why the run ended before all that was chosen was bought.
    """

    ledger: str
    ledger_created: bool
    cached: int
    running: int
    held: int
    wanted: int
    chosen: int
    paid: int = 0
    fetched: int = 0
    doubts: int = 0
    doubts_found: int = 0
    requests: int = 0
    retries: int = 0
    repeated: int = 0
    rate: float | None = None
    seconds: float = 0.0
    before: Quota | None = None
    after: Quota | None = None
    paused: str | None = None
    notes: tuple[str, ...] = ()
    agreement: Agreement | None = None

    @property
    def known(self) -> int:
        """Lookups that the ledger knew before: answered, under way, or held."""
        return self.cached + self.running + self.held

    def as_dict(self) -> dict[str, object]:
        """The purchase as plain values for JSON."""
        return asdict(self)
