"""Translate every text for people into Korean or English."""
# Code has English messages: one sentence with named fields. Backquotes name a parameter of the library, for which an
# :class:`Audience` may have another name (an option of the command line, a field of a job file):
#
#     gettext("{path}: there is no such file; check `registry=`", path=path)
#     ngettext("{count:,} row has no number", "{count:,} rows have no number", count)
#
# The Korean is in ``locale/ko/LC_MESSAGES/bansong.po``; ``python docs/translations.py --write`` collects the messages.

from __future__ import annotations

import gettext as catalogues
import locale
import os
import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from string import Formatter
from typing import Any, Final, Literal, Protocol, Self

NO_VALUE: Final = ...  # one object in all processes through which an error passes
LOCALE_DIR: Final = Path(__file__).parent.parent / "locale"
VARIABLE: Final = "BANSONG_LANG"
_FORMER_VARIABLE: Final = "BIZVERIFY_LANG"

_LONGEST_VALUE: Final = 300
_KOREAN_ENDING: Final = re.compile(r"(?:니다|세요)\Z")
_KOREAN_SENTENCE: Final = re.compile(r"(?:니다|세요)(?:\(.*\))?\Z")

_of_context: ContextVar[Lang | None] = ContextVar("bansong_language", default=None)


class Audience(Protocol):
    """The readers of messages, with their names for the library's parameters."""

    @property
    def sets_limits(self) -> bool:
        """Whether the readers of a message can set environment variables, and so raise limits."""

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        """Return the name of a parameter, alone or with a value; ``None`` if the reader has no such option."""


class PythonAudience:
    """Callers of the library."""

    sets_limits = True

    def option(self, name: str, value: object = NO_VALUE) -> str:
        return f"`{name}={'' if value is NO_VALUE else shorten(value)}`"


def shorten(value: object) -> str:
    """Return how a value is written in Python, or its type if that is long: no message prints a frame."""
    written = repr(value)
    return f"<{type(value).__name__}>" if "\n" in written or len(written) > _LONGEST_VALUE else written


@dataclass(frozen=True)
class OptionNames:
    """An audience that calls the options in ``of`` by other ``names``. Those without a name do not exist for it."""

    base: Audience
    names: Mapping[str, str]
    of: frozenset[str]

    @property
    def sets_limits(self) -> bool:
        return self.base.sets_limits

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        name = self.names.get(name, "") if name in self.of else name
        return self.base.option(name, value) if name else None


class ClientAudience:
    """Clients of a server, who send only a file."""

    sets_limits = False

    def option(self, name: str, value: object = NO_VALUE) -> str | None:  # noqa: ARG002
        return None


PYTHON: Final = PythonAudience()
CLIENT: Final = ClientAudience()
_PARAMETER: Final = re.compile(r"`([a-z_]+)=([^`]*)`")
_of_process: Audience = PYTHON
_reader: ContextVar[Audience | None] = ContextVar("bansong_audience", default=None)


def current_audience() -> Audience:
    """Return the audience of messages: this context's, else the process's."""
    return _reader.get() or _of_process


@contextmanager
def use_audience(audience: Audience) -> Iterator[None]:
    """Write the messages of the block for an audience, in this thread or task alone."""
    before = _reader.set(audience)
    try:
        yield
    finally:
        _reader.reset(before)


def set_audience(audience: Audience) -> Audience:
    """Write all messages of this process for an audience; return the former one."""
    global _of_process
    before, _of_process = _of_process, audience
    return before


def parameter(name: str, value: object = NO_VALUE) -> str:
    """Return the audience's name of a parameter, alone or with a value: ``registry=``, ``--registry``."""
    return current_audience().option(name, value) or PYTHON.option(name, value)


@dataclass(frozen=True, slots=True)
class Option:
    """A parameter as a field of a message. It is shown under the reader's name for it."""

    name: str
    value: object = NO_VALUE

    def __str__(self) -> str:
        return parameter(self.name, self.value)


def advise(option: str, advice: str, otherwise: str) -> str:
    """Return ``advice``, or ``otherwise`` if the audience lacks the ``option``."""
    return otherwise if current_audience().option(option) is None else advice


def gettext(message: str, /, **fields: object) -> str:
    """Return a message in the current language, with its fields. Without fields, braces stay."""
    text = _catalogue(current_language()).gettext(message) if message else message
    return _name_parameters(text, escaped=True).format(**fields) if fields else _name_parameters(text)


def ngettext(singular: str, plural: str, /, count: int, **fields: object) -> str:
    """Return the message for a ``count``, like :func:`gettext`."""
    text = _catalogue(current_language()).ngettext(singular, plural, count)
    return _name_parameters(text, escaped=True).format(count=count, **fields)


def _name_parameters(template: str, *, escaped: bool = False) -> str:
    # escaped: the template is formatted later, so braces double
    if "`" not in template or current_audience() is PYTHON:
        return template

    def name(found: re.Match[str]) -> str:
        written = found[2].replace("{{", "{").replace("}}", "}") if escaped else found[2]
        try:
            named = current_audience().option(found[1], literal_eval(written) if written else NO_VALUE)
        except (SyntaxError, ValueError):  # a placeholder instead of a value
            return found[0]
        if named is None:
            return found[0]
        return named.replace("{", "{{").replace("}", "}}") if escaped else named

    return _PARAMETER.sub(name, template)


class Phrase(str):
    """A message with its fields, translated when it is read."""

    # ``str`` and ``format`` translate it for the reader, with the reader's names of options.

    text: str
    plural: str
    fields: Mapping[str, Any]

    def __new__(cls, text: str, plural: str = "", /, **fields: Any) -> Self:
        made = super().__new__(cls, ngettext(text, plural, **fields) if plural else gettext(text, **fields))
        made.text, made.plural, made.fields = text, plural, fields
        return made

    def __str__(self) -> str:
        return ngettext(self.text, self.plural, **self.fields) if self.plural else gettext(self.text, **self.fields)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(str.__new__, type(self)), (self[:],), self.__dict__


class Listed(Phrase):
    """Items of a message, joined by a word such as ``" or "`` in the reader's language, else as clauses."""

    def __new__(cls, items: Iterable[object], between: str | None = None) -> Self:
        made = str.__new__(cls, cls._join(items := tuple(items), between))
        made.fields = {"items": items, "between": between}
        return made

    def __str__(self) -> str:
        return self._join(**self.fields)

    @staticmethod
    def _join(items: Iterable[object], between: str | None) -> str:
        said = map(str, items)
        return join_clauses(*said) if between is None else gettext(between).join(said)


def gettext_of(owner: object, message: str, /, **fields: object) -> Phrase:
    """Return a message as a phrase; fields that are not given are attributes of ``owner``."""
    names = {name for _, name, _, _ in Formatter().parse(message) if name} - fields.keys()
    return Phrase(message, **{name: getattr(owner, name) for name in names}, **fields)


def count_rows(count: int) -> Phrase:
    """Return a phrase such as ``3 rows``, translated when it is rendered."""
    return Phrase("{count:,} row", "{count:,} rows", count=count)


def count_letters(count: int) -> Phrase:
    """Return a phrase such as ``3 letters``, translated when it is rendered."""
    return Phrase("{count:,} letter", "{count:,} letters", count=count)


def gettext_noop(message: str) -> str:
    """Mark a message for the catalogue and return it unchanged; :func:`gettext` translates it later."""
    return message


def gettext_noops(*messages: str) -> tuple[str, ...]:
    """Mark several messages for the catalogue, like :func:`gettext_noop`."""
    return messages


def end_sentence(text: str) -> str:
    """Add a full stop to a Korean sentence. Korean messages lack it, since they may be parts of others."""
    return f"{text}." if _KOREAN_ENDING.search(text) else text


def join_clauses(*clauses: str) -> str:
    """Join clauses that are not blank: by semicolons; in Korean by full stops after sentences, else commas."""
    said = [clause for clause in clauses if clause]
    if current_language() != "ko":
        return "; ".join(said)
    joined = [f"{clause}{'. ' if _KOREAN_SENTENCE.search(clause) else ', '}" for clause in said[:-1]]
    return "".join([*joined, *said[-1:]])


def current_language() -> Lang:
    """Return the language of this context, else of ``BANSONG_LANG``, else of the locale, else English."""
    return _of_context.get() or _language_of_environment()


def set_language(lang: Lang) -> None:
    """Choose the language of this process and of those it starts."""
    os.environ[VARIABLE] = lang


@contextmanager
def use_language(lang: Lang | None) -> Iterator[None]:
    """Use a language within the block, in this thread or task alone."""
    before = _of_context.set(lang)
    try:
        yield
    finally:
        _of_context.reset(before)


def speak(lang: Lang) -> None:
    """Use a language in this context from now on."""
    _of_context.set(lang)


def match_language(tags: str) -> Lang | None:
    """Return the preferred known language of an ``Accept-Language`` header like ``ko-KR,ko;q=0.9,en;q=0.8``."""
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
    # of ``ko-KR``, ``ko_KR.UTF-8`` or, on Windows, ``Korean_Korea``
    start = tag[:2].lower()
    return next((lang for lang in LANGS if lang == start), None)


@cache
def _catalogue(lang: Lang) -> catalogues.NullTranslations:
    if lang == "en":
        return catalogues.NullTranslations()
    return catalogues.translation("bansong", LOCALE_DIR, languages=[lang])


Lang = Literal["en", "ko"]

LANGS: Final[tuple[Lang, ...]] = ("en", "ko")

SYSTEM: Final = (
    *gettext_noops("Address already in use", "All connection attempts failed", "Bad file descriptor", "Broken pipe"),
    *gettext_noops("Cannot assign requested address", "Connection refused", "Connection reset by peer"),
    *gettext_noops("Device or resource busy", "Directory not empty", "Disk quota exceeded", "File exists"),
    *gettext_noops("File name too long", "File too large", "Input/output error", "Invalid argument"),
    *gettext_noops("Invalid cross-device link", "Is a directory", "Name or service not known"),
    *gettext_noops("Network is unreachable", "No route to host", "No space left on device"),
    *gettext_noops("No such file or directory", "Not a directory", "Operation not permitted"),
    *gettext_noops("Operation not supported", "Permission denied", "Read-only file system", "Stale file handle"),
    *gettext_noops("Text file busy", "Too many levels of symbolic links", "Too many open files"),
)  # errors of the operating system, for translation

SQLITE_AND_PARSERS: Final = (
    *gettext_noops("attempt to write a readonly database", "database disk image is malformed", "database is locked"),
    *gettext_noops("database or disk is full", "disk I/O error", "file is not a database"),
    *gettext_noops("unable to open database file", "Input data was truncated", "at end of document"),
)  # for translation

_LIBRARY_MESSAGES: Final = (
    *gettext_noops("Expected `{wanted}`, got `{found}`", "Expected `{kind}` {bound}"),
    *gettext_noops("Expected `{kind}` of length {bound}", "Expected `{kind}` matching regex {pattern}"),
    *gettext_noops("Object missing required field `{name}`", "Object contains unknown field `{name}`"),
    *gettext_noops("Invalid enum value {value}", "Invalid value ({place})", "Cannot overwrite a value ({place})"),
    *gettext_noops("Unterminated string ({place})", "Invalid statement ({place})"),
    *gettext_noops("Expected ']' at the end of a table declaration ({place})"),
    *gettext_noops("Expected ']]' at the end of an array declaration ({place})"),
    *gettext_noops("Expected newline or end of document after a statement ({place})"),
    *gettext_noops("Duplicate inline table key {name} ({place})", "Unclosed array ({place})"),
    *gettext_noops("Unclosed inline table ({place})", "Unescaped '\\' in a string ({place})"),
    *gettext_noops(
        "Invalid hex value ({place})", "Expected {quote} ({place})", "Illegal character {character} ({place})"
    ),
)  # errors of msgspec and the TOML parser; each ``{name}`` stands for a changing part
_REWORDED: Final = {
    r"JSON is malformed: .+ \(byte (?P<byte>\d+)\)": gettext_noop("JSON is malformed (byte {byte})"),
    r"Expected '=' after a key in a key/value pair \((?P<place>.+)\)": gettext_noop(
        "Expected '=' after a key ({place})"
    ),
    r"Cannot declare (?P<table>.+) twice \((?P<place>.+)\)": gettext_noop("Cannot declare [{table}] twice ({place})"),
}
_PARTS: Final = {"bound": "[<>]=? .+", "quote": "[\"']+"}


@cache
def _library_patterns() -> dict[re.Pattern[str], str]:
    def pattern(message: str) -> str:
        pieces = Formatter().parse(message)
        return "".join(
            re.escape(text) + (f"(?P<{name}>{_PARTS.get(name, '.+?')})" if name else "") for text, name, _, _ in pieces
        )

    patterns = {pattern(message): message for message in _LIBRARY_MESSAGES} | _REWORDED
    return {re.compile(pattern): message for pattern, message in patterns.items()}


_LINE: Final = re.compile(r"at line (?P<line>\d+), column (?P<column>\d+)")
_KINDS: Final = gettext_noops(
    "str", "int", "float", "bool", "array", "object", "null"
)  # of values, as msgspec calls them
_NUMBER_OF_ERROR: Final = re.compile(r"^\[Errno -?\d+\] ")


def describe_os_error(error: Exception) -> Phrase:
    """Return the operating system's reason for an error, translated."""
    if isinstance(error, FileNotFoundError | PermissionError) and error.errno:  # pyarrow's strerror has the path
        return Phrase(os.strerror(error.errno))
    return Phrase(getattr(error, "strerror", None) or _NUMBER_OF_ERROR.sub("", str(error)) or type(error).__name__)


def describe_library_error(error: Exception | str) -> Phrase:
    """Return an error of SQLite, msgspec or the TOML parser as a message. Unknown ones stay English."""
    text, _, field = str(error).removesuffix("`").partition(" - at `")
    if field:
        return Phrase("{said} - at `{field}`", said=describe_library_error(text), field=field)
    text = str(error)
    for pattern, message in _library_patterns().items():
        if found := pattern.fullmatch(text):
            return Phrase(message, **{name: _describe_part(name, part) for name, part in found.groupdict().items()})
    return Phrase(text)


def _describe_part(name: str, part: str) -> object:
    if name in ("wanted", "found", "kind"):
        return Listed([Phrase(one) if one in _KINDS else one for one in part.split(" | ")], " | ")
    if name == "table":  # the parser's text is a Python tuple
        return ".".join(re.findall("'([^']*)'", part))
    if name == "place":
        line = _LINE.fullmatch(part)
        return Phrase("at line {line}, column {column}", **line.groupdict()) if line else Phrase(part)
    return part
