"""All that speaks to the hosted service: wire shapes, transport, client, its blocking door."""

from __future__ import annotations

from bizverify.service.account import Account, WatchChange, WatchEntry
from bizverify.service.address import BaseUrl
from bizverify.service.blocking import BlockingClient
from bizverify.service.client import Client
from bizverify.service.key import ApiKey
from bizverify.service.shapes import Acknowledged, BatchCreated, BatchStatus, Result, Verified

__all__ = [
    "Account",
    "Acknowledged",
    "ApiKey",
    "BaseUrl",
    "BatchCreated",
    "BatchStatus",
    "BlockingClient",
    "Client",
    "Result",
    "Verified",
    "WatchChange",
    "WatchEntry",
]
