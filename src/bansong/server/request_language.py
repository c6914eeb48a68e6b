"""The language of a request: what its answer says to people, errors first of all. Codes and fields are in none."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from starlette.types import Scope

from bansong.schema import Lang
from bansong.translation import current_language, match_language, speak

_HEADER: Final = b"accept-language"
_LONGEST: Final = 200
"""Bytes of the header that are read; browsers send some fifty."""


def choose_language(scope: Scope) -> None:
    """Speak the language that a request asks for in its task; English if it asks for none that is known here.

    Whoever runs the server may speak another: its log is English, its command line what ``--lang`` says.
    """
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    speak(_language_of(given[:_LONGEST]))


def language_headers() -> list[tuple[bytes, bytes]]:
    """Return the headers of a refusal, the one kind of answer whose words are in the language of its request."""
    return [(b"content-language", current_language().encode()), (b"vary", b"accept-language")]


@lru_cache(maxsize=256)
def _language_of(tags: bytes) -> Lang:
    return match_language(tags.decode("latin-1")) or "en"
