"""All that speaks to the hosted service: wire shapes, transport, client, its blocking door."""

from __future__ import annotations

from bizverify.client.account import Account, Idempotency, WatchChange, WatchEntry
from bizverify.client.arguments import BinaryFile, FileContent
from bizverify.client.base_url import BaseUrl
from bizverify.client.blocking import BlockingClient, BlockingRawClient
from bizverify.client.client import Client
from bizverify.client.key import ApiKey
from bizverify.client.network import HttpTransport, Timeouts, Verify
from bizverify.client.raw_response import RawClient, RawResponse
from bizverify.client.request import Headers, Step
from bizverify.client.responses import Acknowledged, BatchCreated, BatchStatus, Result, Verified

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
