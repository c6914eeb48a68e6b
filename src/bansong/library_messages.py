"""What the operating system, SQLite, msgspec and the TOML parser say, in the language of the run.

Their messages are English. The frequent ones are translated here; a rare one stays as it is.
"""

from __future__ import annotations

import os
import re
from typing import Final

from bansong.translation import Listed, Phrase, gettext_noop

SYSTEM: Final = (
    gettext_noop("Address already in use"),
    gettext_noop("All connection attempts failed"),
    gettext_noop("Bad file descriptor"),
    gettext_noop("Broken pipe"),
    gettext_noop("Cannot assign requested address"),
    gettext_noop("Connection refused"),
    gettext_noop("Connection reset by peer"),
    gettext_noop("Device or resource busy"),
    gettext_noop("Directory not empty"),
    gettext_noop("Disk quota exceeded"),
    gettext_noop("File exists"),
    gettext_noop("File name too long"),
    gettext_noop("File too large"),
    gettext_noop("Input/output error"),
    gettext_noop("Invalid argument"),
    gettext_noop("Invalid cross-device link"),
    gettext_noop("Is a directory"),
    gettext_noop("Name or service not known"),
    gettext_noop("Network is unreachable"),
    gettext_noop("No route to host"),
    gettext_noop("No space left on device"),
    gettext_noop("No such file or directory"),
    gettext_noop("Not a directory"),
    gettext_noop("Operation not permitted"),
    gettext_noop("Operation not supported"),
    gettext_noop("Permission denied"),
    gettext_noop("Read-only file system"),
    gettext_noop("Stale file handle"),
    gettext_noop("Text file busy"),
    gettext_noop("Too many levels of symbolic links"),
    gettext_noop("Too many open files"),
)
"""Reasons of the operating system for which files and addresses cannot be used."""

SQLITE_AND_PARSERS: Final = (
    gettext_noop("attempt to write a readonly database"),
    gettext_noop("database disk image is malformed"),
    gettext_noop("database is locked"),
    gettext_noop("database or disk is full"),
    gettext_noop("disk I/O error"),
    gettext_noop("file is not a database"),
    gettext_noop("unable to open database file"),
    gettext_noop("Input data was truncated"),
    gettext_noop("at end of document"),
)
"""Errors of SQLite, and what parsers say of a text that ends too early."""

_PATTERNS: Final = (
    ("Expected `(?P<wanted>.+?)`, got `(?P<found>.+?)`", gettext_noop("Expected `{wanted}`, got `{found}`")),
    ("Expected `(?P<kind>.+?)` (?P<bound>[<>]=? .+)", gettext_noop("Expected `{kind}` {bound}")),
    ("Expected `(?P<kind>.+?)` of length (?P<bound>[<>]=? .+)", gettext_noop("Expected `{kind}` of length {bound}")),
    (
        "Expected `(?P<kind>.+?)` matching regex (?P<pattern>.+)",
        gettext_noop("Expected `{kind}` matching regex {pattern}"),
    ),
    ("Object missing required field `(?P<name>.+?)`", gettext_noop("Object missing required field `{name}`")),
    ("Object contains unknown field `(?P<name>.+?)`", gettext_noop("Object contains unknown field `{name}`")),
    ("Invalid enum value (?P<value>.+)", gettext_noop("Invalid enum value {value}")),
    (r"JSON is malformed: .+ \(byte (?P<byte>\d+)\)", gettext_noop("JSON is malformed (byte {byte})")),
    (r"Invalid value \((?P<place>.+)\)", gettext_noop("Invalid value ({place})")),
    (r"Cannot overwrite a value \((?P<place>.+)\)", gettext_noop("Cannot overwrite a value ({place})")),
    (r"Unterminated string \((?P<place>.+)\)", gettext_noop("Unterminated string ({place})")),
    (r"Invalid statement \((?P<place>.+)\)", gettext_noop("Invalid statement ({place})")),
    (
        r"Expected '=' after a key in a key/value pair \((?P<place>.+)\)",
        gettext_noop("Expected '=' after a key ({place})"),
    ),
    (
        r"Expected ']' at the end of a table declaration \((?P<place>.+)\)",
        gettext_noop("Expected ']' at the end of a table declaration ({place})"),
    ),
    (
        r"Expected ']]' at the end of an array declaration \((?P<place>.+)\)",
        gettext_noop("Expected ']]' at the end of an array declaration ({place})"),
    ),
    (
        r"Expected newline or end of document after a statement \((?P<place>.+)\)",
        gettext_noop("Expected newline or end of document after a statement ({place})"),
    ),
    (r"Cannot declare (?P<table>.+) twice \((?P<place>.+)\)", gettext_noop("Cannot declare [{table}] twice ({place})")),
    (
        r"Duplicate inline table key (?P<name>.+) \((?P<place>.+)\)",
        gettext_noop("Duplicate inline table key {name} ({place})"),
    ),
    (r"Unclosed array \((?P<place>.+)\)", gettext_noop("Unclosed array ({place})")),
    (r"Unclosed inline table \((?P<place>.+)\)", gettext_noop("Unclosed inline table ({place})")),
    (r"Unescaped '\\' in a string \((?P<place>.+)\)", gettext_noop("Unescaped '\\' in a string ({place})")),
    (r"Invalid hex value \((?P<place>.+)\)", gettext_noop("Invalid hex value ({place})")),
    (r"Expected (?P<quote>[\"']+) \((?P<place>.+)\)", gettext_noop("Expected {quote} ({place})")),
    (
        r"Illegal character (?P<character>.+) \((?P<place>.+)\)",
        gettext_noop("Illegal character {character} ({place})"),
    ),
)
_LINE: Final = re.compile(r"at line (?P<line>\d+), column (?P<column>\d+)")
_KINDS: Final = (
    *(gettext_noop("str"), gettext_noop("int"), gettext_noop("float"), gettext_noop("bool")),
    *(gettext_noop("array"), gettext_noop("object"), gettext_noop("null")),
)
"""What msgspec calls kinds of values."""
_NUMBER_OF_ERROR: Final = re.compile(r"^\[Errno -?\d+\] ")


def describe_os_error(error: Exception) -> Phrase:
    """Return why the operating system refused something, without the path and the error's number."""
    if isinstance(error, FileNotFoundError | PermissionError) and error.errno:  # pyarrow's strerror has the path
        return Phrase(os.strerror(error.errno))
    return Phrase(getattr(error, "strerror", None) or _NUMBER_OF_ERROR.sub("", str(error)) or type(error).__name__)


def describe_library_error(error: Exception | str) -> Phrase:
    """Return what SQLite, msgspec or the TOML parser says; as it is, if it is not known here."""
    text, _, field = str(error).removesuffix("`").partition(" - at `")
    if field:
        return Phrase("{said} - at `{field}`", said=describe_library_error(text), field=field)
    text = str(error)
    for pattern, message in _PATTERNS:
        found = re.fullmatch(pattern, text)
        if found is not None:
            return Phrase(message, **{name: _describe_part(name, part) for name, part in found.groupdict().items()})
    return Phrase(text)


def _describe_part(name: str, part: str) -> object:
    if name in ("wanted", "found", "kind"):
        return Listed([Phrase(one) if one in _KINDS else one for one in part.split(" | ")], " | ")
    if name == "table":  # it is said as Python's tuple
        return ".".join(re.findall("'([^']*)'", part))
    if name == "place":
        line = _LINE.fullmatch(part)
        return Phrase("at line {line}, column {column}", **line.groupdict()) if line else Phrase(part)
    return part
