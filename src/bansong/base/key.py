"""API keys: values that are never shown.

>>> print(ApiKey("bv-4711"), [ApiKey("bv-4711")])
ApiKey(…) [ApiKey(…)]
"""

from __future__ import annotations

import hmac
import json
import re
from hashlib import blake2b
from html import escape
from pathlib import Path
from typing import ClassVar, Final, NoReturn, Self, overload
from urllib.parse import quote

from bansong.base.errors import Problem, UsageError
from bansong.base.files import variable
from bansong.base.messages import Phrase, describe_os_error, gettext, gettext_noop

KEY_FILE_UNUSABLE: Final = Problem(
    "keys.key_file_unusable", "{path}: {fault}; the file is to hold the {name} and nothing else"
)
KEY_MALFORMED: Final = Problem("keys.key_malformed", "the {name} {fault}; copy it again from {origin}")
KEY_MISSING: Final = Problem("keys.key_missing", "no {name}: {remedy}")

ENV_KEY: Final = "BANSONG_API_KEY"
ENV_KEY_FILE: Final = "BANSONG_API_KEY_FILE"
BLOTTED: Final = "[key]"
_MAX_FILE_BYTES: Final = 4096
_TELLING_CHARS: Final = 8  # a shorter key may be part of ordinary text, so data is not searched for it


class SecretKey:
    """A key that only :meth:`reveal` and :attr:`header` show. No repr, log, traceback or pickle shows it."""

    NAME: ClassVar[str]
    ORIGIN: ClassVar[str]  # completes "copy it again from …"
    ENV: ClassVar[str]
    ENV_FILE: ClassVar[str]
    HEADER: ClassVar[str]
    SCHEME: ClassVar[str] = ""  # prefix of the value in the header

    __slots__ = ("_forms", "_value")

    def __init__(self, value: str) -> None:
        fault = _fault(value)
        if fault is not None:
            del value  # a traceback may be shown with its variables
            raise UsageError(KEY_MALFORMED, name=Phrase(self.NAME), fault=fault, origin=Phrase(self.ORIGIN))
        self._value = value
        self._forms = _forms_of(value)

    @classmethod
    def load(cls, file: str | Path | None = None) -> Self:
        """Read the key from ``file``, the environment, or a file named there; raise :class:`UsageError`."""
        found = cls.find(file)
        if found is None:
            text = gettext_noop("set {variable} to it, or {env_file} to the path of a file that holds it")
            remedy = Phrase(text, variable=cls.ENV, env_file=cls.ENV_FILE)
            raise UsageError(KEY_MISSING, name=Phrase(cls.NAME), remedy=remedy)
        return found

    @classmethod
    def find(cls, file: str | Path | None = None) -> Self | None:
        if file is None and (given := (variable(cls.ENV) or "").strip()):
            return cls(given)
        path = file or variable(cls.ENV_FILE)
        return cls(_content(Path(path).expanduser(), gettext(cls.NAME))) if path else None

    @property
    def header(self) -> tuple[bytes, bytes]:
        return self.HEADER.encode(), (self.SCHEME + self._value).encode()

    def fingerprint(self, salt: str) -> bytes:
        """Return a hash (8 bytes) of the key and ``salt``; the key cannot be derived from it."""
        return blake2b(self._value.encode(), key=salt.encode()[:64], digest_size=8).digest()

    def reveal(self) -> str:
        """Return the value; for request headers only."""
        return self._value

    @overload
    def redact(self, text: str) -> str: ...
    @overload
    def redact(self, text: bytes) -> bytes: ...
    def redact(self, text: str | bytes) -> str | bytes:
        """Hide the key in a text, also as URLs, JSON and HTML spell it; a short key only as a whole word."""
        if isinstance(text, bytes):
            return self.redact(text.decode("latin-1")).encode("latin-1")  # one character a byte, and keys are ASCII
        for form in self._forms:
            if self.is_telling:
                text = text.replace(form, BLOTTED)
            else:
                text = re.sub(rf"(?<![^\W_]){re.escape(form)}(?![^\W_])", BLOTTED, text)
        return text

    @property
    def is_telling(self) -> bool:
        # too long to be part of an ordinary text
        return len(self._value) >= _TELLING_CHARS

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretKey) or type(other) is not type(self):
            return False
        return hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash((type(self), self._value))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(gettext("an API key is not pickled or copied: give the other process its own"))


class ApiKey(SecretKey):
    """The hosted service's key: a :class:`SecretKey` from BANSONG_API_KEY, or from a file."""

    NAME = gettext_noop("API key")
    ORIGIN = gettext_noop("the service's console")
    ENV = ENV_KEY
    ENV_FILE = ENV_KEY_FILE
    HEADER = "X-API-Key"

    __slots__ = ()


def _forms_of(value: str) -> list[str]:
    # the key, and its spellings in URLs, JSON and HTML; the longest first
    quoted = {quote(value, safe=""), quote(value)}
    quoted |= {re.sub("%..", lambda found: found[0].lower(), one) for one in quoted}
    quoted |= {quote(one, safe="") for one in quoted}  # a URL within a URL
    forms = {value, *quoted, json.dumps(value)[1:-1], value.replace("/", "\\/"), escape(value)}
    return sorted(forms, key=len, reverse=True)


def _fault(value: object) -> Phrase | None:
    if not isinstance(value, str):
        return Phrase("is of type {name}, and no str", name=type(value).__name__)
    if not value:
        return Phrase("is empty")
    if not value.isascii():
        return Phrase("holds characters that no key has (outside ASCII)")
    if any(character.isspace() for character in value):
        return Phrase("holds a space or a line break")
    return None if value.isprintable() else Phrase("holds control characters")


def _content(path: Path, name: str) -> str:
    fault = None
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) <= _MAX_FILE_BYTES:
            return content.decode("utf-8-sig").strip()
        fault = Phrase("is too large to be a key file")
    except UnicodeDecodeError:
        fault = Phrase("is not text")
    except OSError as error:
        fault = Phrase("cannot be read: {value}", value=describe_os_error(error))
    content = b""  # a traceback may be shown with its variables
    raise UsageError(KEY_FILE_UNUSABLE, path=path, fault=fault, name=name)
