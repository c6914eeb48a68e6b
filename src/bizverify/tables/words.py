"""What a header says: the words of ``headers.toml`` by role, and which side of an invoice it speaks of."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Final, Literal

Side = Literal["supplier", "buyer"]

_LEVELS: Final = ("sure", "likely")
_PUNCTUATION: Final = re.compile(r"[\s_\-.·/()\[\]{}*'\"]+")
_SIDES: Final[dict[Side, re.Pattern[str]]] = {  # the words of tax invoices and of market places
    "supplier": re.compile("공급하는자|공급자|판매자|supplier|seller"),
    "buyer": re.compile("공급받는자|구매자|매입자|buyer|purchaser"),
}


def has_role(header: str, *roles: str) -> bool:
    """Whether a header names one of these roles, by default of all there are."""
    return any(level_of(role, header) for role in roles or _synonyms())


def level_of(role: str, header: str) -> str | None:
    """How surely a header names a role: ``sure``, ``likely``, ``contains``, or not at all.

    Which side of an invoice it speaks of is left aside: ``공급받는자 상호`` is a name as ``상호`` is.
    """
    words = _synonyms()[role]
    forms = {_plain(header), _plain(re.sub(r"[(\[].*?[)\]]", "", header)), without_side(header)}
    for level in _LEVELS:
        if not forms.isdisjoint(words[level]):
            return level
    if any(word in _plain(header) for word in words["contains"]) and not is_trap(role, header):
        return "contains"
    return None


def is_trap(role: str, header: str) -> bool:
    """Whether a header has a word that a role's headers never have."""
    plain = _plain(header)
    return any(word in plain for word in _synonyms()[role]["never"])


def side_of(header: str) -> Side | None:
    """Which side of an invoice a header speaks of, ``None`` where it names neither or both."""
    plain = _plain(header)
    sides = [side for side, words in _SIDES.items() if words.search(plain)]
    return sides[0] if len(sides) == 1 else None


def without_side(header: str) -> str:
    """A header in plain letters without the words of :func:`side_of`."""
    plain = _plain(header)
    side = side_of(header)
    return _SIDES[side].sub("", plain) if side else plain


@cache
def _synonyms() -> dict[str, dict[str, frozenset[str]]]:
    text = files("bizverify.tables").joinpath("headers.toml").read_text(encoding="utf-8")
    return {
        role: {level: frozenset(map(_plain, words)) for level, words in levels.items()}
        for role, levels in tomllib.loads(text).items()
    }


def _plain(header: str) -> str:
    return _PUNCTUATION.sub("", unicodedata.normalize("NFKC", header)).lower()
