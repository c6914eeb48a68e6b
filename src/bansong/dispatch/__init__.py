"""Requests to a service that must not be sent twice by mistake: pace, concurrency, retries, and an end in good order.

- ``dispatcher``: :class:`Dispatcher` sends :class:`OutgoingRequest` after request until its run is over or cancelled;
- ``error_actions``: the table of what each kind of error means for a request;
- ``limits``: :class:`RateLimiter`, :class:`ConcurrencyLimiter` and :class:`RetryBudget`.

Whoever sends supplies what to send and how each outcome is written down; nothing here knows a ledger.
"""

from bansong.dispatch.dispatcher import DispatchCounts, Dispatcher, Halt, HaltReason, OutgoingRequest, Task
from bansong.dispatch.error_actions import Action
from bansong.dispatch.limits import Slot

__all__ = [
    "Action",
    "DispatchCounts",
    "Dispatcher",
    "Halt",
    "HaltReason",
    "OutgoingRequest",
    "Slot",
    "Task",
]
