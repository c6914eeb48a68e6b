"""Client of the hosted service: wire shapes, transport, async and blocking client."""

from __future__ import annotations

from bansong.client.account import Account, Idempotency, WatchChange, WatchEntry
from bansong.client.arguments import BinaryFile, FileContent
from bansong.client.base_url import BaseUrl
from bansong.client.blocking import BlockingClient, BlockingRawClient
from bansong.client.client import Client
from bansong.client.key import ApiKey
from bansong.client.network import HttpTransport, Timeouts, Verify
from bansong.client.raw_response import RawClient, RawResponse
from bansong.client.request import Headers, Step
from bansong.client.responses import Acknowledged, BatchCreated, BatchStatus, Result, Verified

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
    "FileContent",
    "Headers",
    "HttpTransport",
    "Idempotency",
    "RawClient",
    "RawResponse",
    "Result",
    "Step",
    "Timeouts",
    "Verified",
    "Verify",
    "WatchChange",
    "WatchEntry",
]
