"""Scan the values of a JSON text in order; report faults with their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import polars as pl
from polars.datatypes import DataTypeClass

from bansong.base.errors import InputError, Problem
from bansong.base.isolation import limits, or_raise_limit
from bansong.base.messages import gettext, gettext_noop, join_clauses
from bansong.tables.table import RAW

JSON_INVALID: Final = Problem("json.json_invalid", "{path}: {where}: is not valid JSON: {said}")
NOT_UTF8: Final = Problem(
    "json.not_utf8", "{path}: {where}: byte 0x{byte:02x} is not UTF-8, which JSON must be; save the file as UTF-8"
)
NESTED_TOO_DEEPLY: Final = Problem(
    "limits.nested_too_deeply", "{path}: {what} is nested too deeply, beyond {depth} levels; flatten it{or_raise}"
)
KEY_TOO_LONG: Final = Problem(
    "limits.key_too_long", "{path}: the key {key!r}… has {count:,} characters; shorten it{or_raise}"
)
VALUE_TOO_LONG: Final = Problem(
    "limits.value_too_long", "{path}: the value at byte {position:,} is longer than {cap:,} bytes; shorten it{or_raise}"
)

_READ_SIZE: Final = 1 << 20
_AT: Final = re.compile(r" \(byte (\d+)\)")
_REMEDIES: Final = {
    rb"-?(NaN|Infinity)": gettext_noop("NaN and Infinity are no JSON; write null for them"),
    rb"'": gettext_noop("JSON has double quotes only"),
    rb"//|/\*|#": gettext_noop("JSON has no comments; take them out"),
    rb"None|True|False": gettext_noop("this is Python, not JSON; save it with json.dump"),
}
_SAID_BY_MSGSPEC: Final = (
    gettext_noop("Input data was truncated"),
    gettext_noop("expected ',' or ']'"),
    gettext_noop("expected ',' or '}'"),
    gettext_noop("expected ':'"),
    gettext_noop("invalid character"),
    gettext_noop("invalid escape character in string"),
    gettext_noop("invalid number"),
    gettext_noop("object keys must be strings"),
    gettext_noop("trailing characters"),
    gettext_noop("trailing comma in array"),
    gettext_noop("trailing comma in object"),
)  # reasons of the parser, which :func:`_malformed_json` translates with its own
_CUT_OFF: Final = gettext_noop("the text ends in the middle of a value; the file is not whole; copy or export it again")
CHUNK: Final = 1 << 22
PART: Final = 1 << 21  # bytes of lines at a time: of 4 MB a run took a quarter less CPU, and a quarter more memory
FIRST: Final = 1 << 18  # bytes of the first part of lines, from which types are learned the slow way
_TRIES: Final = 3
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_GAP: Final = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_FIRST_KEY: Final = re.compile(rb'\{[ \t\r\n]*"[^"\\]*"')
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED: Final = "truncated"
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_sequence: Final = msgspec.json.Decoder(msgspec.Raw).decode_lines
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

Raws = list[msgspec.Raw]


def _malformed_json(path: Path, data: Path, position: int, reason: str) -> InputError:
    with data.open("rb") as file:
        file.seek(position)
        there = file.read(16)
    plain = _AT.sub("", reason).removeprefix("JSON is malformed: ")
    remedy = next((words for start, words in _REMEDIES.items() if re.match(start, there)), "")
    remedy = gettext_noop("take it out") if "comma" in plain else remedy
    said = join_clauses(gettext(plain), gettext(remedy))
    return InputError(JSON_INVALID, path=path, where=_line_and_column(data, position), said=said)


def not_utf8(path: Path, data: Path, start: int, end: int) -> InputError:
    with data.open("rb") as file:
        file.seek(start)
        text = file.read(end - start)
    at = 0
    try:
        text.decode()
    except UnicodeDecodeError as error:
        at = error.start
    return InputError(NOT_UTF8, path=path, where=_line_and_column(data, start + at), byte=text[at])


def too_deep(path: Path, what: str) -> InputError:
    return InputError(NESTED_TOO_DEEPLY, path=path, what=what, depth=limits().depth, or_raise=or_raise_limit("depth"))


def long_key(path: Path, key: str) -> InputError:
    return InputError(KEY_TOO_LONG, path=path, key=key[:20], count=len(key), or_raise=or_raise_limit("text"))


def _line_and_column(data: Path, position: int) -> str:
    line, last = 1, b""
    with data.open("rb") as file:
        while position > 0 and (chunk := file.read(min(_READ_SIZE, position))):
            position -= len(chunk)
            breaks = chunk.count(b"\n")
            line += breaks
            last = chunk.rpartition(b"\n")[2] if breaks else (last + chunk)[-_READ_SIZE:]
    column = len(last.decode(errors="replace").lstrip(chr(0xFEFF))) + 1
    return gettext("line {line}, column {column}", line=line, column=column)


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Some records of a file, each on one line. In the file they are the bytes from ``start`` to ``end``."""

    lines: bytes
    count: int
    start: int
    end: int


class NotPlainError(Exception):
    """A line that is not exactly one object."""


def whole_lines(data: Path, *, longer: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield a file in blocks of whole lines, each with its offset; if ``longer``, a line may be longer than a block."""
    start, size = 0, FIRST
    with data.open("rb", buffering=0) as file:
        while chunk := file.read(size):
            end = chunk.rfind(b"\n")
            if end < 0 and len(chunk) == size:
                if not longer:
                    raise NotPlainError
                size *= 2
            else:
                lines = chunk[:end] if end >= 0 else chunk
                yield start, lines
                start, size = start + len(lines) + 1, PART
            file.seek(start)


class Scanner:
    """Reads a file's values in order. Use as a context; every method raises :class:`InputError`."""

    def __init__(self, path: Path, data: Path, start: int = 0) -> None:
        self.path = path
        self.data = data
        self._file = data.open("rb")
        self.seek(start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._base + self._at

    def seek(self, position: int) -> None:
        self._file.seek(position)
        self._window, self._base, self._at = b"", position, 0

    def peek(self) -> bytes:
        """Skip white space; return the next byte without consuming it, ``b""`` at the end of the file."""
        while True:
            self._at = _end_of(_BLANK, self._window, self._at)
            if self._at < len(self._window) or not self._grow():
                return self._window[self._at : self._at + 1]

    def take(self, byte: bytes) -> None:
        if (found := self.peek()) != byte:
            what = gettext_noop("{byte!r} is missing; the file is not whole; copy or export it again")
            raise self.fault(gettext(gettext_noop("{byte!r} is missing") if found else what, byte=byte.decode()))
        self._at += 1

    def inside(self) -> bytes:
        """Return the first byte behind the next bracket and white space, without consuming anything."""
        self.peek()
        while True:
            at = _end_of(_BLANK, self._window, self._at + 1)
            if at < len(self._window) or not self._grow():
                return self._window[at : at + 1]

    def value(self) -> bytes:
        self.peek()
        while True:
            length, complete = self._length()
            if complete or not self._grow():
                if length is None:
                    raise self.fault(_CUT_OFF, self.data.stat().st_size)
                text = self._window[self._at : self._at + length].rstrip(b" \t\r\n")
                self._at += len(text)
                return text

    def key(self) -> str:
        if self.peek() != b'"':
            raise self.fault(gettext_noop("a key in quotes is missing"))
        start, text = self.position, self.value()
        try:
            key = msgspec.json.decode(text, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.fault(gettext("a key cannot be read: {error}", error=error), start) from error
        if len(key) > limits().text:
            raise long_key(self.path, key)
        self.take(b":")
        return key

    def items(self, closing: bytes) -> Iterator[None]:
        """Yield before each item of an object or array, which the caller consumes; then consume the closing bracket."""
        self._at += 1
        if self.peek() == closing:
            self._at += 1
            return
        while True:
            yield
            self._skip_separator(closing)
            if self.peek() == closing:
                self._at += 1
                return

    def array(self) -> Iterator[RecordChunk]:
        self.take(b"[")
        yield from self._records(b"]", lambda text: _decode_array(b"[%b]" % text))
        self.take(b"]")

    def sequence(self) -> Iterator[RecordChunk]:
        yield from self._records(b"", _decode_sequence)

    def fault(self, reason: str, position: int | None = None) -> InputError:
        return _malformed_json(self.path, self.data, self.position if position is None else position, reason)

    def _records(self, closing: bytes, decode: Callable[[bytes], Raws]) -> Iterator[RecordChunk]:
        sign, many = b"", 2
        while self.peek() != closing:
            start = self.position
            raws = self._guess_records(sign, decode) if sign else None
            if raws is None:
                raws, sign = self._walk_records(closing, many)
                many = CHUNK
            yield RecordChunk(_lines(raws), len(raws), start, self.position)
            self._skip_separator(closing)

    def _skip_separator(self, closing: bytes) -> None:
        if closing and self.peek() != closing:
            self.take(b",")
            if self.peek() == closing:
                raise self.fault(gettext_noop("there is a comma too many"))

    def _guess_records(self, sign: bytes, decode: Callable[[bytes], Raws]) -> Raws | None:
        """Parse many records at once, up to the last ``sign`` that is the end of one; ``None`` if none is."""
        while len(self._window) - self._at < CHUNK and self._grow():
            pass
        end = len(self._window)
        for _ in range(_TRIES):
            end = self._window.rfind(sign, self._at, end)
            if end < 0:
                return None
            try:
                raws = decode(self._window[self._at : end + 1])
            except (msgspec.DecodeError, RecursionError):
                continue
            self._at = end + 1
            return raws
        return None

    def _walk_records(self, closing: bytes, many: int) -> tuple[Raws, bytes]:
        raws, size, sign, gap = [], 0, b"", b""
        while True:
            text = self.value()
            raws.append(msgspec.Raw(text))
            size += len(text)
            first_key = _FIRST_KEY.match(text)
            sign = gap and b"}" + gap + (first_key.group() if first_key else b"{")
            before = self._at
            if len(raws) >= many or size >= CHUNK or self.peek() in (closing, b""):
                return raws, sign
            gap = self._window[before : _end_of(_GAP, self._window, before)] if before <= self._at else b""
            self._skip_separator(closing)

    def _length(self) -> tuple[int | None, bool]:
        view = memoryview(self._window)[self._at :]
        try:
            _decode_raw(view)
        except msgspec.DecodeError as error:
            reason = str(error)
            if found := _TRAILING.search(reason):  # msgspec names the byte behind the one that is too many
                return int(found.group(1)) - 1, True
            if _TRUNCATED in reason:
                return None, False
            at = _AT.search(reason)
            raise self.fault(reason, self.position + int(at[1] if at else 0)) from error
        except RecursionError as error:
            raise too_deep(self.path, gettext("the value at byte {position:,}", position=self.position)) from error
        return len(view), False

    def _grow(self) -> bool:
        """Drop the buffer's consumed bytes and read on, at least doubling the rest; return whether there was more."""
        rest = self._window[self._at :]
        cap = limits().document
        if len(rest) > cap:
            said = {"position": self.position, "cap": cap, "or_raise": or_raise_limit("document")}
            raise InputError(VALUE_TOO_LONG, path=self.path, **said)
        more = self._file.read(max(CHUNK, len(rest)))
        self._base += self._at
        self._window, self._at = rest + more, 0
        return bool(more)


def _lines(raws: Raws) -> bytes:
    lines = b"\n".join(raws)
    if lines.count(b"\n") == len(raws) - 1 and b"\r" not in lines:
        return lines
    return b"\n".join(_decode_array(msgspec.json.format(b"[" + b",".join(raws) + b"]", indent=-1)))


def _end_of(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


_HEX: Final = "[0-9a-fA-F]"
_UNIT: Final = rf"(?:[0-9a-cefA-CEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
_PAIR: Final = rf"[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_STRING: Final = rf'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u{_UNIT}|\\u{_PAIR})*"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_VALUES: Final[dict[object, str]] = {
    None: rf"(?:{_STRING}|{_NUMBER}|true|false|null)",
    pl.String(): rf"(?:{_STRING}|null)",
    pl.Int64(): r"(?:0|-?[1-9][0-9]{0,17}|null)",
    pl.Float64(): r"(?:-?(?:0|[1-9][0-9]{0,9})\.(?:0|[0-9]{0,3}[1-9])|null)",
    pl.Boolean(): "(?:true|false|null)",
    pl.Null(): "null",
}  # values by type (``None``: text) in the spelling that polars gives back; numbers in the usual ones
_SPACES: Final = "[ \t]*"


def plain_pattern(types: Mapping[str, pl.DataType | DataTypeClass | None]) -> str | None:
    """Return a regex for JSON lines with exactly these keys, in this order; ``None`` if a type is nested."""
    # no key needs an escape in JSON
    if not all(dtype in _VALUES for dtype in types.values()):
        return None
    members = (f'"{re.escape(key)}"{_SPACES}:{_SPACES}{_VALUES[dtype]}' for key, dtype in types.items())
    return rf"\A\{{{_SPACES}{f'{_SPACES},{_SPACES}'.join(members)}{_SPACES}\}}\z"


def other_lines(lines: bytes, count: int, pattern: str) -> tuple[bytes, int]:
    """Return the lines that do not match a pattern, and their count; all ``lines`` if polars cannot read them."""
    try:
        texts = pl.scan_lines(lines, name=RAW).filter(~pl.col(RAW).str.contains(pattern)).collect(engine="streaming")
    except pl.exceptions.PolarsError:
        return lines, count
    return (str(texts[RAW].str.join("\n").item()).encode(), texts.height) if texts.height else (b"", 0)
