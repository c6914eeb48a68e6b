"""Requests to a service that must not be repeated by mistake: pace, concurrency, retries, and an orderly end.

- ``dispatcher``: :class:`Dispatcher` sends each :class:`OutgoingRequest` until its run is over or cancelled;
- ``error_actions``: the consequence of each kind of error for a request;
- ``limits``: :class:`RateLimiter`, :class:`ConcurrencyLimiter` and :class:`RetryBudget`.

The caller supplies the requests and records their outcomes.
"""

from bansong.dispatch.dispatcher import DispatchCounts, Dispatcher, Halt, HaltReason, OutgoingRequest, Task
from bansong.dispatch.error_actions import Action
from bansong.dispatch.limits import Slot

__all__ = ["Action", "DispatchCounts", "Dispatcher", "Halt", "HaltReason", "OutgoingRequest", "Slot", "Task"]
