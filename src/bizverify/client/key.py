"""The API key: a value that is used, and never shown.

>>> print(ApiKey("bv-4711"), [ApiKey("bv-4711")])
ApiKey(…) [ApiKey(…)]
"""

from __future__ import annotations

import hmac
import json
import os
from html import escape
from pathlib import Path
from typing import Final, NoReturn, overload
from urllib.parse import quote

from bizverify.errors import UsageError

ENV_KEY: Final = "BIZVERIFY_API_KEY"
ENV_KEY_FILE: Final = "BIZVERIFY_API_KEY_FILE"
BLOTTED: Final = "[key]"
_LARGEST_FILE: Final = 4096
_TELLING: Final = 8
"""A shorter key may be part of an ordinary text by accident, so it is not looked for in answers that are data."""


class ApiKey:
    """An API key, out of the way of reprs, logs, tracebacks and pickles; :meth:`reveal` alone gives its value.

    Raises :class:`UsageError` for what cannot be sent as a header: empty, white space, control or non-ASCII characters.
    """

    __slots__ = ("_forms", "_value")

    def __init__(self, value: str) -> None:
        fault = _fault(value) if isinstance(value, str) else f"is of type {type(value).__name__}, and no str"
        if fault is not None:
            del value  # a traceback may be shown with the variables of its frames
            raise UsageError(f"the API key {fault}; copy it again from the service's console")
        self._value = value
        forms = {value, quote(value, safe=""), json.dumps(value)[1:-1], value.replace("/", "\\/"), escape(value)}
        self._forms = sorted(forms, key=len, reverse=True)

    @classmethod
    def load(cls, file: str | Path | None = None) -> ApiKey:
        """Read the key from ``file``, else from BIZVERIFY_API_KEY, else from the file BIZVERIFY_API_KEY_FILE names.

        White space around it is dropped: files end with a line feed.
        """
        if file is None and os.environ.get(ENV_KEY, "").strip():
            return cls(os.environ[ENV_KEY].strip())
        path = file or os.environ.get(ENV_KEY_FILE)
        if not path:
            raise UsageError(f"no API key: set {ENV_KEY}, or name a file that holds it (`key_file=`, {ENV_KEY_FILE})")
        return cls(_content(Path(path).expanduser()))

    def reveal(self) -> str:
        """Return the value itself: for the request's header and nothing else."""
        return self._value

    @overload
    def redact(self, text: str) -> str: ...
    @overload
    def redact(self, text: bytes) -> bytes: ...
    def redact(self, text: str | bytes) -> str | bytes:
        """Blot the key out of a text, also as URLs, JSON and HTML write it: a service may echo it."""
        if isinstance(text, str):
            for form in self._forms:
                text = text.replace(form, BLOTTED)
            return text
        for form in self._forms:
            text = text.replace(form.encode(), BLOTTED.encode())
        return text

    @property
    def is_telling(self) -> bool:
        """Whether the key is long enough to be no part of an ordinary text."""
        return len(self._value) >= _TELLING

    def __repr__(self) -> str:
        return "ApiKey(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(("ApiKey", self._value))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an API key is not pickled or copied: give the other process its own")


def _fault(value: str) -> str | None:
    if not value:
        return "is empty"
    if not value.isascii():
        return "holds characters that no key has (outside ASCII)"
    if any(character.isspace() for character in value):
        return "holds a space or a line break"
    return None if value.isprintable() else "holds control characters"


def _content(path: Path) -> str:
    fault = None
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) <= _LARGEST_FILE:
            return content.decode("utf-8-sig").strip()
        fault = "is too large to be a key file"
    except UnicodeDecodeError:
        fault = "is not text"
    except OSError as error:
        fault = f"cannot be read: {error.strerror or error}"
    content = b""  # not for the frames of a traceback
    raise UsageError(f"{path}: {fault}; the file is to hold the API key and nothing else")
