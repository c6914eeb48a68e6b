"""Requests to a service that must not be repeated by mistake: pace, concurrency, retries, and an orderly end."""

from bansong.dispatch.dispatcher import DispatchCounts, Dispatcher, Halt, HaltReason, OutgoingRequest, Task
from bansong.dispatch.error_actions import Action
from bansong.dispatch.limits import Slot

__all__ = ["Action", "DispatchCounts", "Dispatcher", "Halt", "HaltReason", "OutgoingRequest", "Slot", "Task"]
