"""Sign notifications, and verify them where they are received: the signature scheme of Standard Webhooks.

The scheme (https://www.standardwebhooks.com) has verifiers in most languages. A secret is ``whsec_`` and the base64 of
the key, or any other text, whose UTF-8 bytes are the key. Beside its headers those of the former scheme are sent, and
accepted, for one more release.

>>> headers = signature_headers("secret", "closure", "n1", b"{}", now=1_700_000_000)
>>> verify_signature("secret", headers, b"{}", now=1_700_000_010)
True
>>> verify_signature("secret", headers, b"{} ", now=1_700_000_010)
False
>>> verify_signature("secret", headers, b"{}", now=1_700_009_999)
False
"""

from __future__ import annotations

import base64
import hmac
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Final

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
EVENT_HEADER: Final = "X-Bizverify-Event"
FORMER_ID_HEADER: Final = "X-Bizverify-Delivery"
FORMER_SIGNATURE_HEADER: Final = "X-Bizverify-Signature"
TOLERANCE: Final = 300.0
"""Seconds that a signature is good for, unless the receiver chooses otherwise."""
_PREFIX: Final = "whsec_"
_MOST_PARTS: Final = 8


def new_secret() -> str:
    """Return a new secret of 256 random bits, in the form that libraries for Standard Webhooks take."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature_headers(secret: str, event: str, delivery: str, body: bytes, now: float) -> dict[str, str]:
    """Return the headers that a notification is sent with: its id, event, and signatures of time and body."""
    at = str(int(now))
    return {
        ID_HEADER: delivery,
        TIMESTAMP_HEADER: at,
        SIGNATURE_HEADER: f"v1,{_sign(secret, delivery, at, body)}",
        EVENT_HEADER: event,
        FORMER_ID_HEADER: delivery,
        FORMER_SIGNATURE_HEADER: f"t={at},v1={_sign_as_before(secret, at, body)}",
    }


def verify_signature(
    secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None, tolerance: float = TOLERANCE
) -> bool:
    """Whether a received notification was signed with this secret, and not long ago.

    ``headers`` are the request's, in any case; ``body`` its bytes as they came, not parsed and written again; ``now``
    seconds since 1970, the clock's by default. A signature older or newer than ``tolerance`` seconds is refused, so
    that nobody can send an old notification again later; within that time a repeat is recognised by ``webhook-id``,
    which stays the same when a notification is delivered again. Compared in constant time. The former header
    ``X-Bizverify-Signature`` is read where there is no ``webhook-signature``.
    """
    given = {name.lower(): value for name, value in headers.items()}
    current = time.time() if now is None else now
    if SIGNATURE_HEADER in given:
        at = given.get(TIMESTAMP_HEADER, "")
        parts = [part.partition(",") for part in given[SIGNATURE_HEADER].split(" ", _MOST_PARTS)]
        return _is_recent(at, current, tolerance) and _matches(
            _sign(secret, given.get(ID_HEADER, ""), at, body), (text for version, _, text in parts if version == "v1")
        )
    value = given.get(FORMER_SIGNATURE_HEADER.lower(), "")
    parts = [part.strip().partition("=") for part in value.split(",", _MOST_PARTS)]
    times = [text for name, _, text in parts if name == "t"]
    return (
        len(times) == 1
        and _is_recent(times[0], current, tolerance)
        and _matches(_sign_as_before(secret, times[0], body), (text for name, _, text in parts if name == "v1"))
    )


def _is_recent(at: str, now: float, tolerance: float) -> bool:
    if not (at.isascii() and at.isdecimal() and len(at) <= 15):
        return False
    return math.fabs(now - int(at)) <= tolerance


def _matches(wanted: str, given: Iterable[str]) -> bool:
    return any(hmac.compare_digest(wanted.encode(), text.encode("utf-8", "replace")) for text in given)


def _key(secret: str) -> bytes:
    """The bytes of the key that a secret stands for."""
    if secret.startswith(_PREFIX):
        try:
            text = secret.removeprefix(_PREFIX)
            if key := base64.b64decode(text + "=" * (-len(text) % 4), validate=True):
                return key
        except ValueError:  # a text of the user's own
            pass
    return secret.encode()


def _sign(secret: str, delivery: str, at: str, body: bytes) -> str:
    digest = hmac.digest(_key(secret), f"{delivery}.{at}.".encode("utf-8", "replace") + body, "sha256")
    return base64.b64encode(digest).decode()


def _sign_as_before(secret: str, at: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
