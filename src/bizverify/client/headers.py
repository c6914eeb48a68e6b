"""The headers around a request: what the client says of itself, and what a reply's headers say to the user."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from bizverify._version import __version__
from bizverify.client.key import ApiKey

_REQUEST_IDS: Final = (
    "x-request-id",
    "request-id",
    "x-requestid",
    "x-correlation-id",
    "x-amzn-requestid",
    "x-amz-cf-id",
    "cf-ray",
    "x-trace-id",
)
_SECRET: Final = frozenset({"set-cookie", "set-cookie2", "authorization", "proxy-authorization", "cookie", "x-api-key"})
_IDENTIFIER: Final = re.compile("[!-~]{1,200}")


class Headers(Mapping[str, str]):
    """A reply's headers; upper and lower case of a name are the same. Cookies and credentials are left out."""

    def __init__(self, headers: Mapping[str, str], key: ApiKey) -> None:
        lowered = {name.lower(): value for name, value in headers.items()}
        self._values = {
            name: key.redact(value) if key.is_telling else value
            for name, value in lowered.items()
            if name not in _SECRET
        }

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"


def request_id_of(headers: Mapping[str, str], key: ApiKey) -> str | None:
    """Return the service's own name of a request (G34), which its support asks for; ``None`` where it gives none."""
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    found = (lowered[name] for name in _REQUEST_IDS if _IDENTIFIER.fullmatch(lowered.get(name, "")))
    identifier = next(found, None)
    return None if identifier is None else key.redact(identifier)


@cache
def user_agent() -> str:
    """Return the User-Agent header, for instance ``bizverify/0.1.0 (CPython 3.11.7; Linux)``."""
    runtime = f"{platform.python_implementation()} {platform.python_version()}"
    return f"bizverify/{__version__} ({runtime}; {platform.system() or 'unknown'})"
