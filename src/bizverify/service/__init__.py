"""All that speaks to the hosted service: wire shapes, transport, client, its blocking door."""

from __future__ import annotations

from bizverify.service.account import Account, Idempotency, WatchChange, WatchEntry
from bizverify.service.address import BaseUrl
from bizverify.service.blocking import BlockingClient, BlockingRawClient
from bizverify.service.client import Client
from bizverify.service.headers import Headers
from bizverify.service.key import ApiKey
from bizverify.service.multipart import Step
from bizverify.service.network import HttpTransport, Verify
from bizverify.service.raw_client import RawClient
from bizverify.service.raw_response import RawResponse
from bizverify.service.shapes import Acknowledged, BatchCreated, BatchStatus, Result, Verified
from bizverify.service.timeouts import Timeouts
from bizverify.service.upload_file import BinaryFile, FileContent

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
