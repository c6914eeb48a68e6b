"""One request of the interface, its arguments checked, ready to be sent as often as is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from bizverify.client.account import IDEMPOTENCY_KEY
from bizverify.client.arguments import optional_text
from bizverify.client.multipart import Body, json_body
from bizverify.client.transport import ORDINARY
from bizverify.errors import UsageError

_KEY: Final = re.compile("[!-~]{1,200}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What is sent, and how the answer is read; ``body`` makes the request's body anew for each try.

    ``replacing``: the answer is paid for, so bytes of it that are not UTF-8 are replaced (G33).
    """

    method: str
    path: tuple[str, ...]
    read: Callable[[object], T]
    body: Callable[[], Body] | None = None
    params: Mapping[str, str] | None = None
    headers: Mapping[str, str] | None = None
    limit: int = ORDINARY
    is_upload: bool = False
    replacing: bool = False


def post_request(
    path: tuple[str, ...],
    content: Mapping[str, object],
    read: Callable[[object], T],
    headers: Mapping[str, str] | None = None,
    *,
    replacing: bool = False,
) -> Request[T]:
    """Return a ``POST`` of a JSON object."""
    encoded = json.dumps(content, separators=(",", ":")).encode()
    return Request("POST", path, read, lambda: json_body(encoded), headers=headers, replacing=replacing)


def key_header(idempotency_key: str | None) -> dict[str, str] | None:
    """The header that carries a request's key, if it has one."""
    key = optional_text("idempotency_key", idempotency_key)
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise UsageError("an idempotency key has 1 to 200 visible ASCII characters")
    return {IDEMPOTENCY_KEY: key}


def given(**fields: object) -> dict[str, object]:
    """The fields that are given: an absent one is not sent (G23)."""
    return {name: value for name, value in fields.items() if value is not None}
