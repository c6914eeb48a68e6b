"""Client of the hosted service: wire shapes, transport, async and blocking client."""

from __future__ import annotations

from bansong.base.key import ApiKey
from bansong.client.address import BaseUrl
from bansong.client.arguments import BinaryFile, FileContent
from bansong.client.blocking import BlockingClient, BlockingRawClient, RawClient, RawResponse
from bansong.client.client import Client
from bansong.client.request import Headers, Step, Timeout, Timeouts, Verify
from bansong.client.responses import (
    Account,
    Acknowledged,
    BatchCreated,
    BatchStatus,
    Idempotency,
    Result,
    Verified,
    WatchChange,
    WatchEntry,
)
from bansong.client.transport import EventHooks, HttpTransport

__all__ = [
    "Account",
    "Acknowledged",
    "ApiKey",
    "BaseUrl",
    "BatchCreated",
    "BatchStatus",
    "BinaryFile",
    "BlockingClient",
    "BlockingRawClient",
    "Client",
    "EventHooks",
    "FileContent",
    "Headers",
    "HttpTransport",
    "Idempotency",
    "RawClient",
    "RawResponse",
    "Result",
    "Step",
    "Timeout",
    "Timeouts",
    "Verified",
    "Verify",
    "WatchChange",
    "WatchEntry",
]
