"""Client of the hosted service: async and blocking, with transport and answers as values.

Names are loaded on first use: a local run needs one or two modules of this package, and no httpx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bansong.base.key import ApiKey as ApiKey
    from bansong.client.address import BaseUrl as BaseUrl
    from bansong.client.arguments import BinaryFile as BinaryFile
    from bansong.client.arguments import FileContent as FileContent
    from bansong.client.blocking import BlockingClient as BlockingClient
    from bansong.client.blocking import BlockingRawClient as BlockingRawClient
    from bansong.client.blocking import RawClient as RawClient
    from bansong.client.blocking import RawResponse as RawResponse
    from bansong.client.client import Client as Client
    from bansong.client.request import Headers as Headers
    from bansong.client.request import Step as Step
    from bansong.client.request import Timeout as Timeout
    from bansong.client.request import Timeouts as Timeouts
    from bansong.client.request import Verify as Verify
    from bansong.client.responses import Account as Account
    from bansong.client.responses import Acknowledged as Acknowledged
    from bansong.client.responses import BatchCreated as BatchCreated
    from bansong.client.responses import BatchStatus as BatchStatus
    from bansong.client.responses import Idempotency as Idempotency
    from bansong.client.responses import Result as Result
    from bansong.client.responses import Verified as Verified
    from bansong.client.responses import WatchChange as WatchChange
    from bansong.client.responses import WatchEntry as WatchEntry
    from bansong.client.transport import EventHooks as EventHooks
    from bansong.client.transport import HttpClient as HttpClient

_NAMES = {
    "base.key": ("ApiKey",),
    "client.address": ("BaseUrl",),
    "client.arguments": ("BinaryFile", "FileContent"),
    "client.blocking": ("BlockingClient", "BlockingRawClient", "RawClient", "RawResponse"),
    "client.client": ("Client",),
    "client.request": ("Headers", "Step", "Timeout", "Timeouts", "Verify"),
    "client.responses": (
        *("Account", "Acknowledged", "BatchCreated", "BatchStatus", "Idempotency", "Result", "Verified"),
        *("WatchChange", "WatchEntry"),
    ),
    "client.transport": ("EventHooks", "HttpClient"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'bansong.client' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"bansong.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
