"""Every text a person reads, in Korean or English.

A message is written in English where it is needed, one whole sentence with named fields, and translated there::

    gettext("{path}: there is no such file; check its name", path=path)
    ngettext("{count:,} row has no number", "{count:,} rows have no number", count)

What is said later than it is written (a constant, a table of texts) is marked by ``gettext_noop`` and translated by
``gettext`` where it is said. The Korean stands in ``locale/ko/LC_MESSAGES/bansong.po``;
``python docs/translations.py --write`` collects the messages, and a test fails while one has no Korean.
"""

from __future__ import annotations

import gettext as catalogues
import locale
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Final

from bansong.schema import LANGS, Lang

LOCALE_DIR: Final = Path(__file__).parent / "locale"
VARIABLE: Final = "BANSONG_LANG"
_FORMER_VARIABLE: Final = "BIZVERIFY_LANG"

_KOREAN_ENDING: Final = re.compile(r"(?:니다|세요)\Z")
_KOREAN_SENTENCE: Final = re.compile(r"(?:니다|세요)(?:\(.*\))?\Z")

_of_context: ContextVar[Lang | None] = ContextVar("bansong_language", default=None)


def gettext(message: str, /, **fields: object) -> str:
    """Return a message in the current language, its fields filled in as :meth:`str.format` does.

    Without fields the message is taken as it stands, braces included.
    """
    text = _catalogue(current_language()).gettext(message) if message else message
    return text.format(**fields) if fields else text


def ngettext(singular: str, plural: str, count: int, /, **fields: object) -> str:
    """Return the message for a count, which is the field ``count``."""
    return _catalogue(current_language()).ngettext(singular, plural, count).format(count=count, **fields)


def gettext_noop(message: str) -> str:
    """Mark a message that is translated where it is said, and return it as it is."""
    return message


def end_sentence(text: str) -> str:
    """Return a message as it is said by itself: a Korean sentence gets its full stop, which the catalogue leaves out.

    Messages are parts of others, too, where a stop would stand in the middle.
    """
    return f"{text}." if _KOREAN_ENDING.search(text) else text


def join_clauses(*clauses: str) -> str:
    """Join what is said one after the other, without those that are blank: by semicolons, as English has them.

    In Korean whole sentences follow one another, and phrases have commas between them.
    """
    said = [clause for clause in clauses if clause]
    if current_language() != "ko":
        return "; ".join(said)
    joined = [f"{clause}{'. ' if _KOREAN_SENTENCE.search(clause) else ', '}" for clause in said[:-1]]
    return "".join([*joined, *said[-1:]])


def current_language() -> Lang:
    """Return the language chosen here, else that of ``BANSONG_LANG``, else of the locale, else English."""
    return _of_context.get() or _language_of_environment()


def set_language(lang: Lang) -> None:
    """Choose the language of this process and of those it starts."""
    os.environ[VARIABLE] = lang


@contextmanager
def use_language(lang: Lang | None) -> Iterator[None]:
    """Choose the language within the block, for this thread or task: a request, one message to somebody."""
    before = _of_context.set(lang)
    try:
        yield
    finally:
        _of_context.reset(before)


def speak(lang: Lang) -> None:
    """Choose the language of this task, thread or context, until it ends."""
    _of_context.set(lang)


def match_language(tags: str) -> Lang | None:
    """Return the first language that is spoken here of a list like ``ko-KR,ko;q=0.9,en;q=0.8``, by its weights."""
    weighed = []
    for place, one in enumerate(tags.split(",")):
        tag, _, weight = one.strip().partition(";q=")
        try:
            weighed.append((-float(weight or 1), place, tag))
        except ValueError:
            continue
    spoken = (_spoken(tag) for weight, _, tag in sorted(weighed) if weight)
    return next((lang for lang in spoken if lang), None)


def _language_of_environment() -> Lang:
    names = (os.environ.get(name) for name in (VARIABLE, _FORMER_VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG"))
    chosen = next((name for name in names if name), None) or locale.getlocale()[0] or ""
    return _spoken(chosen) or "en"


def _spoken(tag: str) -> Lang | None:
    """Return the language of ``ko-KR``, ``ko_KR.UTF-8`` or, as Windows has it, ``Korean_Korea``."""
    start = tag[:2].lower()
    return next((lang for lang in LANGS if lang == start), None)


@cache
def _catalogue(lang: Lang) -> catalogues.NullTranslations:
    if lang == "en":
        return catalogues.NullTranslations()
    return catalogues.translation("bansong", LOCALE_DIR, languages=[lang])
