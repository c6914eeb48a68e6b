"""The record that an answer repeats, and contradictions that prove it to be another record's answer (G32).

Another number of ten digits is a contradiction. So is a name or address that cannot be a shortened, completed, masked
or respelled form of the one that was sent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Final

from bansong.client import field_aliases
from bansong.client.json_search import Object, plain_text
from bansong.translation import gettext

REPLACED: Final = "\ufffd"
"""Replacement of bytes that are not UTF-8; a number, identifier or row key with it proves nothing."""

_MAX_DEPTH: Final = 3
_MIN_DIGITS: Final = 8  # of a number that lost its leading zeros: no number begins with more than two
_SEPARATORS: Final = re.compile(r"[\s.·/\-\u2010-\u2015]+")
_TOKENS: Final = re.compile(r"\d+|[^\W\d_]")
_FORMS: Final = re.compile(r"\((?:주|유|사|재|합|의)\)|주식회사|유한회사")
_MASKS: Final = re.compile(r"[*●○■□…\ufffd]|\.\.\.")
_CUT_FROM_CHARS: Final = 20  # a longer text may have been cut in the middle of a number
_HOLDERS: Final = (*field_aliases.ECHOES, *field_aliases.VERIFY_WRAPPERS, *field_aliases.ANSWERS)
_MIN_COMMON_SHARE: Final = 2 / 3  # of the longer text's letters, in the same order


def digits_of(value: object) -> str | None:
    """Return the ten digits of a business number in any notation, also as a number without its leading zeros."""
    text = plain_text(value)
    if text is None:
        return None
    if isinstance(value, int):
        text = text.zfill(10) if len(text) >= _MIN_DIGITS else text
    if not (text.isascii() and text.isdigit()):
        text = _SEPARATORS.sub("", unicodedata.normalize("NFKC", _visible(text)).strip().removesuffix(".0"))
    return text if len(text) == 10 and text.isascii() and text.isdigit() else None


def fold_text(text: str | None) -> str:
    """Return the letters and digits of a text for comparison: composed, without case, width and company forms."""
    return "\x1f".join(_tokens(text)) if text else ""


def is_other(said: str, sent: str) -> bool:
    """Whether a repeated text cannot have been made of the one that was sent."""
    if said == sent:
        return False
    ours, theirs = _tokens(sent), _tokens(said)
    if ours == theirs or not ours or not theirs:
        return False
    if _MASKS.search(said):
        ours, theirs = list("".join(ours)), list("".join(theirs))
        return not _within(theirs, ours)
    if len(said) >= _CUT_FROM_CHARS and "".join(ours).startswith("".join(theirs)):
        return False
    if _within_each_other(ours, theirs):
        return False
    if not _within_each_other([t for t in ours if t.isdigit()], [t for t in theirs if t.isdigit()]):
        return True
    ours, theirs = ([token for token in text if not token.isdigit()] for text in (ours, theirs))
    alike = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return sum(block.size for block in alike) < _MIN_COMMON_SHARE * max(len(ours), len(theirs))


def numbers_in(answer: Object) -> list[str]:
    """Return the distinct business numbers that an answer repeats, at any place."""
    said = (digits_of(echo.get(name)) for echo in _echoes(answer) for name in field_aliases.NUMBERS)
    return list(dict.fromkeys(b_no for b_no in said if b_no is not None))


def find_contradiction(answer: Object, b_no: str, name: str | None, address: str | None) -> str | None:
    """Return why an answer is another record's, if it is; the text completes "the answer …"."""
    for number in numbers_in(answer):
        if number != b_no:
            return gettext("is about another number ({number}) than was asked ({b_no})", number=number, b_no=b_no)
    for echo in _echoes(answer):
        for field, sent in (("name", name), ("address", address)):
            said = echo.get(field)
            if sent and isinstance(said, str) and is_other(said, sent):
                return gettext("repeats another {field} than was sent with {b_no}", field=field, b_no=b_no)
    return None


def _echoes(answer: Object, depth: int = 0) -> Iterator[Object]:
    yield answer
    if depth == _MAX_DEPTH:
        return
    for name in [name for name in _HOLDERS if name in answer]:
        inner = answer[name]
        inner = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
        if isinstance(inner, dict):
            yield from _echoes(inner, depth + 1)


def _visible(text: str) -> str:
    return text if text.isascii() else "".join(letter for letter in text if unicodedata.category(letter) != "Cf")


def _tokens(text: str) -> list[str]:
    plainly = _FORMS.sub("", unicodedata.normalize("NFKC", _visible(text)).casefold())
    return [token.lstrip("0") or "0" if token.isdigit() else token for token in _TOKENS.findall(plainly)]


def _within(inner: list[str], outer: list[str]) -> bool:
    left = iter(outer)
    return all(item in left for item in inner)


def _within_each_other(one: list[str], other: list[str]) -> bool:
    return _within(one, other) if len(one) <= len(other) else _within(other, one)
