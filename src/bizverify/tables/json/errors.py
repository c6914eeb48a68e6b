"""What to say about JSON that cannot be read: the place, the reason, the remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bizverify.errors import InputError
from bizverify.tables.size_limits import VARIABLE, limits

_READ_SIZE: Final = 1 << 20
_AT: Final = re.compile(r" \(byte (\d+)\)")
_REMEDIES: Final = {
    rb"-?(NaN|Infinity)": "NaN and Infinity are no JSON; write null for them",
    rb"'": "JSON has double quotes only",
    rb"//|/\*|#": "JSON has no comments; take them out",
    rb"None|True|False": "this is Python, not JSON; save it with json.dump",
}


def offset_in(reason: str) -> int:
    """The byte that a message of msgspec names."""
    found = _AT.search(reason)
    return int(found.group(1)) if found else 0


def malformed_json(path: Path, data: Path, position: int, reason: str) -> InputError:
    """An error for a text that is no JSON from a position on."""
    with data.open("rb") as file:
        file.seek(position)
        there = file.read(16)
    plain = _AT.sub("", reason).removeprefix("JSON is malformed: ")
    remedy = next((words for start, words in _REMEDIES.items() if re.match(start, there)), "")
    remedy = "take it out" if "comma" in plain else remedy
    said = f"{plain}; {remedy}" if remedy else plain
    return InputError(f"{path}: {_line_and_column(data, position)}: is not valid JSON: {said}")


def not_utf8(path: Path, data: Path, start: int, end: int) -> InputError:
    """An error for bytes between two offsets that are no UTF-8."""
    with data.open("rb") as file:
        file.seek(start)
        text = file.read(end - start)
    at = _first_bad(text)
    return InputError(
        f"{path}: {_line_and_column(data, start + at)}: byte 0x{text[at]:02x} is not UTF-8, which JSON must be; "
        "save the file as UTF-8"
    )


def too_deep(path: Path, what: str) -> InputError:
    """An error for nesting beyond the limit."""
    return InputError(
        f"{path}: {what} is nested too deeply, beyond {limits().depth} levels; flatten it, or raise the limit with "
        f"{VARIABLE}=depth=…"
    )


def long_key(path: Path, key: str) -> InputError:
    """An error for a key that no header can be."""
    return InputError(
        f"{path}: the key {key[:20]!r}… has {len(key):,} characters; shorten it, or raise the limit "
        f"with {VARIABLE}=text=…"
    )


def _line_and_column(data: Path, position: int) -> str:
    """Line and column, from 1, of an offset."""
    line, last = 1, b""
    with data.open("rb") as file:
        while position > 0 and (chunk := file.read(min(_READ_SIZE, position))):
            position -= len(chunk)
            breaks = chunk.count(b"\n")
            line += breaks
            last = chunk.rpartition(b"\n")[2] if breaks else (last + chunk)[-_READ_SIZE:]
    return f"line {line}, column {len(last.decode(errors='replace').lstrip(chr(0xFEFF))) + 1}"


def _first_bad(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0
