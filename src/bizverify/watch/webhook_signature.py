"""How a notice is signed, and how who receives it makes sure of it.

>>> headers = signature_headers("secret", "closure", "n1", b"{}", now=1_700_000_000)
>>> verify_signature("secret", headers, b"{}", now=1_700_000_010)
True
>>> verify_signature("secret", headers, b"{} ", now=1_700_000_010)
False
>>> verify_signature("secret", headers, b"{}", now=1_700_009_999)
False
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Mapping
from typing import Final

EVENT_HEADER: Final = "X-Bizverify-Event"
DELIVERY_HEADER: Final = "X-Bizverify-Delivery"
SIGNATURE_HEADER: Final = "X-Bizverify-Signature"
TOLERANCE: Final = 300.0
"""Seconds that a signature is good for, unless the receiver chooses otherwise."""
_MOST_PARTS: Final = 8


def signature_headers(secret: str, event: str, delivery: str, body: bytes, now: float) -> dict[str, str]:
    """The headers that a notice is sent with; the signature covers the time and the body."""
    at = str(int(now))
    return {
        EVENT_HEADER: event,
        DELIVERY_HEADER: delivery,
        SIGNATURE_HEADER: f"t={at},v1={_digest(secret, at, body)}",
    }


def verify_signature(
    secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None, tolerance: float = TOLERANCE
) -> bool:
    """Whether a received notice was signed with this secret, and not long ago.

    ``headers`` are the request's, in any case; ``body`` its bytes as they came, not parsed and written again; ``now``
    seconds since 1970, the clock's by default. A signature older or newer than ``tolerance`` seconds is refused, so
    that nobody can send an old notice again later; within that time a repeat is told by ``X-Bizverify-Delivery``, which
    stays the same when a notice is delivered again. Compared in constant time.
    """
    value = next((value for name, value in headers.items() if name.lower() == SIGNATURE_HEADER.lower()), "")
    parts = [part.strip().partition("=") for part in value.split(",", _MOST_PARTS)]
    times = [text for name, _, text in parts if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) <= 15):
        return False
    current = time.time() if now is None else now
    if not math.fabs(current - int(times[0])) <= tolerance:
        return False
    wanted = _digest(secret, times[0], body).encode()
    return any(hmac.compare_digest(wanted, text.encode("utf-8", "replace")) for name, _, text in parts if name == "v1")


def _digest(secret: str, at: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
