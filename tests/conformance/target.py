"""The services that the suite is run against, and what one may ask of each."""

from __future__ import annotations

import ssl
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
import pytest

NUMBER = "1248100998"
OTHER_NUMBER = "2208162517"
BUSINESS = {"b_no": NUMBER, "name": "삼성전자", "address": "경기 수원시 영통구 삼성로 129"}
LINES = (
    "b_no,name,address",
    f"{NUMBER},삼성전자,경기 수원시 영통구 삼성로 129",
    f"{OTHER_NUMBER},네이버,경기 성남시 분당구 정자일로 95",
    "1208147521,카카오,제주 제주시 첨단로 242",
)
UNKNOWN_ID = "no-such-identifier-5f1c"

LOOKUPS = 10
"""Paid lookups that a run against a foreign service spends: 2 of /verify, 8 rows in 4 jobs."""


@cache
def _tls() -> ssl.SSLContext:
    """Made once: it takes longer than all else of a request."""
    return ssl.create_default_context()


class Key(httpx.Auth):
    """Puts the key into a header; never shows it."""

    def __init__(self, key: str | None, header: str = "X-API-Key") -> None:
        self._key = key
        self._header = header

    def __repr__(self) -> str:
        return "Key(…)"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._key is not None:
            request.headers[self._header] = self._key
        yield request

    def under(self, header: str) -> Key:
        """The same key in another header."""
        return Key(self._key, header)


@dataclass(frozen=True)
class Account:
    """A base URL with a key."""

    url: str
    key: Key

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, auth=self.key, timeout=60, verify=_tls())

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        with self.client() as client:
            return client.request(method, path, **request)


@dataclass(frozen=True)
class Target:
    """A service under test. Accounts that are missing, and what ``exempt`` names, are not asked for, with the reason.

    ``pause``: seconds between polls at most; the first come sooner. ``too_large``: bytes of an
    upload that it must refuse, where that is known.
    """

    name: str
    account: Account
    free: Account | None = None
    small: Account | None = None
    other: Account | None = None
    pause: float = 0.02
    too_large: int | None = None
    exempt: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def must(self, promise: str) -> None:
        """Skip where the target does not claim this."""
        if promise in self.exempt:
            pytest.skip(f"{self.name}: {self.exempt[promise]}")

    def needs(self, which: str, option: str) -> Account:
        """An account of this kind, or a skip that says how to give one."""
        account: Account | None = getattr(self, which)
        if account is None:
            pytest.skip(f"{self.name}: {self.exempt.get(which, f'needs {option}')}")
        return account


def endpoints(job_id: str = UNKNOWN_ID, watch_id: str = UNKNOWN_ID) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """§4: each endpoint, with a request that is as it should be."""
    label = {"row_id": 2, "bounced": True, "reason": "수취인불명"}
    watch = {"biz_no": NUMBER, "name": BUSINESS["name"], "address": BUSINESS["address"]}
    return {
        "4.1": ("POST", "/verify", {"json": BUSINESS}),
        "4.2": ("POST", "/batch", {"files": upload()}),
        "4.3": ("GET", f"/batch/{job_id}", {}),
        "4.4": ("POST", f"/batch/{job_id}/label", {"json": label}),
        "4.5": ("POST", "/watch", {"json": watch}),
        "4.6": ("GET", "/watch", {}),
        "4.7": ("DELETE", f"/watch/{watch_id}", {}),
        "4.8": ("GET", f"/watch/{watch_id}/history", {}),
        "4.9": ("GET", "/me", {}),
    }


def upload(rows: int = 3, part: str = "file") -> dict[str, tuple[str, bytes, str]]:
    """A file of 1 to 3 rows, as the one part of a form."""
    content = "\n".join([*LINES[: rows + 1], ""]).encode()
    return {part: ("customers.csv", content, "text/csv")}


def finished(account: Account, job_id: str, pause: float, **query: Any) -> dict[str, Any]:
    """§4.3: ask until ``status`` is ``done``; each answer must have a status that is text."""
    until, soon = time.monotonic() + 120, 0.05
    path = job_path(job_id)
    with account.client() as client:
        while time.monotonic() < until:
            answer = client.get(path, params=query)
            assert answer.is_success, answer.text
            record = answer.json()
            status = record["status"]
            assert isinstance(status, str)
            if status == "done":
                return dict(record)
            time.sleep(min(soon, pause))
            soon *= 2
    raise AssertionError(f"the job is still {status!r} after two minutes")


def job_path(job_id: str) -> str:
    """Where a job is: its identifier is any text."""
    return f"/batch/{quote(job_id, safe='')}"


def found(value: Any, name: str) -> Any:
    """The first field of this name, the outermost first: where it stands is often not shown."""
    level = [value]
    while level:
        for one in level:
            if isinstance(one, dict) and name in one:
                return one[name]
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return None


def lists_of_objects(value: Any) -> list[list[dict[str, Any]]]:
    """All lists of objects in an answer, the outermost first."""
    if isinstance(value, list):
        inner = [one for item in value for one in lists_of_objects(item)]
        return [value, *inner] if all(isinstance(item, dict) for item in value) else inner
    if isinstance(value, dict):
        return [one for item in value.values() for one in lists_of_objects(item)]
    return []


def texts(value: Any) -> list[str]:
    """Everything in an answer that is no container, as text."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [] if value is None else [str(value)]


def watch_ids(answer: Any, number: str) -> list[str]:
    """The ``watch_id`` of each entry of a list that names a number, wherever in it."""
    entries = [item for one in lists_of_objects(answer) for item in one if "watch_id" in item]
    return [str(item["watch_id"]) for item in entries if number in "".join(texts(item)).replace("-", "")]
