"""The id of a request: by it the lines of the log, the proxy's and the client's words about it are found together."""

from __future__ import annotations

import re
import secrets
from typing import Any, Final

from bansong.server.client_address import TrustedProxies

HEADER: Final = b"x-request-id"
_SANE: Final = re.compile(rb"[0-9A-Fa-f-]{16,64}")
"""Hexadecimal digits and hyphens, as nginx's ``$request_id`` and UUIDs are: neither a key nor anybody's name fits."""


def request_id_of(scope: Any, proxies: TrustedProxies) -> str:
    """Return the id that a trusted proxy gave an ASGI request, or a new one of 16 hexadecimal digits.

    That of anybody else is not taken: it would stand in the log as if it were ours, and be twice there if he wants.
    """
    peer = scope.get("client")
    if peer and proxies.trusts(peer[0]):
        given = [value for name, value in scope["headers"] if name == HEADER]
        if len(given) == 1 and _SANE.fullmatch(given[0]):
            return str(given[0], "ascii")
    return secrets.token_hex(8)
