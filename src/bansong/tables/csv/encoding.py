"""Guess a text file's encoding from its beginning, verify it on the rest, and read blocks of lines as UTF-8."""
# CP949 files may hold 0xA0, a no-break space of web pages that the codec lacks. By the standard it begins one of 178
# syllables that no word has (잸 to 좤). It is a space where it cannot begin one, or where all else then is everyday
# characters. It is written as 0xA0 again, so that a cell keeps its bytes.

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

import polars as pl

from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.messages import gettext
from bansong.tables.headers import LOOK
from bansong.tables.streams import File

UNKNOWN_ENCODING: Final = Problem(
    "csv.unknown_encoding", "unknown encoding {name!r}; use utf-8, utf-8-sig, cp949 or utf-16"
)
FIRST_LINE_TOO_LONG: Final = Problem(
    "csv.first_line_too_long", "{path}: its first line is longer than {count:,} bytes; this is no table"
)
LINE_TOO_LONG: Final = Problem("csv.line_too_long", "{path}: has a line of more than {longest} MB; this is no table")
MIXED_LINE_ENDS: Final = Problem(
    "csv.mixed_line_ends", "{path}: line {found}: its lines end in CR up to here, then in LF; save it anew"
)

SPACE: Final = "\N{NO-BREAK SPACE}"
_CODECS: Final = ("cp949", "euc_kr")
_BYTE: Final = b"\xa0"
_MARK: Final = b"\xff"  # stands for a no-break space on its way to the codec, which has no such byte
_HANDLER: Final = "bansong.raw_space"
_RUN: Final = re.compile(rb"(?<![\x81-\xfe])[\x81-\x9f\xa1-\xfe]*+\xa0[\x81-\xfe]*+(?=([A-Za-z]{0,2}))")
_EVERYDAY: Final = re.compile(rb"(?:\xa0|[\xa1-\xfe]{2})+")
_ANY: Final = re.compile(rb"(?:\xa0|[\x81-\x9f\xa1-\xfe][\x81-\xfe])+")
_CHARACTER: Final = re.compile(rb"\xa0|[\x81-\x9f\xa1-\xfe][\x81-\xfe]")
_BETWEEN: Final = (b"\n", b"\r", b",", b" ", b"\t", b";")  # never part of a longer character
SAMPLE: Final = 1 << 18
_LONGEST_SAMPLE: Final = 8 << 20
_CHUNK: Final = 1 << 18  # as many bytes as the caches of a processor hold
_LONGEST: Final = 64 << 20
_CONTINUING: Final = bytes(range(0x80, 0xC0))
_TRIAL: Final = 'b_no;"x"..,\r\n1\t2|\n'
_KOREAN: Final = "[\t\r\n -~가-힣]"  # patterns, since to compile such a set takes milliseconds, and few files need one
_WIDE: Final = "[\u0800-\ufffc\U00010000-\U0010ffff]"


class _Decoder(codecs.IncrementalDecoder):
    def __init__(self, codec: str) -> None:
        super().__init__()
        self._codec = codec
        self._rest = b""

    def decode(self, input: bytes, final: bool = False) -> str:  # type: ignore[override]
        data = self._rest + input
        end = len(data) if final else max(map(data.rfind, _BETWEEN)) + 1
        if not end and len(data) > _LONGEST:
            raise UnicodeDecodeError(self._codec, data, 0, 1, "too long without a blank")
        part, self._rest = data[:end], data[end:]
        if _BYTE not in part or _MARK in part:  # the mark is no character: the codec will say where it stands
            return part.decode(self._codec)
        return _RUN.sub(self._mark_spaces, part).decode(self._codec, _HANDLER)

    def _mark_spaces(self, found: re.Match[bytes]) -> bytes:
        run, letters = found.group(), found[1]
        if _EVERYDAY.fullmatch(run) and (run != _BYTE or len(letters) != 1):
            return run.replace(_BYTE, _MARK)
        try:
            (run + letters[: len(run) % 2]).decode(self._codec)
        except UnicodeDecodeError:
            if _ANY.fullmatch(run):
                return _CHARACTER.sub(lambda each: _MARK if each[0] == _BYTE else each[0], run)
        return run


def _handle_error(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] == SPACE:
        return _BYTE, error.start + 1
    if isinstance(error, UnicodeDecodeError) and error.object[error.start] == _MARK[0]:
        return SPACE, error.start + 1
    raise error


codecs.register_error(_HANDLER, _handle_error)


@dataclass(frozen=True, slots=True)
class Coding:
    """A Python codec that handles no byte order mark, and the file's byte order mark, if any."""

    codec: str
    mark: bytes = b""
    bare_cr: bool = False  # lines end in a CR alone; they are read with LF, and get their CR back on writing
    raw_spaces: bool = False  # the byte 0xA0 is a no-break space

    @property
    def is_plain(self) -> bool:
        return self.codec == "utf-8" and not self.bare_cr

    def decoder(self) -> codecs.IncrementalDecoder:
        return _Decoder(self.codec) if self.raw_spaces else codecs.getincrementaldecoder(self.codec)()

    def encoder(self) -> codecs.IncrementalEncoder:
        return codecs.getincrementalencoder(self.codec)(_HANDLER if self.raw_spaces else "strict")

    def __str__(self) -> str:
        return self.codec


MARKED_UTF8: Final = Coding("utf-8", codecs.BOM_UTF8)
_MARKED: Final = (MARKED_UTF8, Coding("utf-16-le", codecs.BOM_UTF16_LE), Coding("utf-16-be", codecs.BOM_UTF16_BE))
_WITH_MARK: Final = {"utf-8-sig": _MARKED[0], "utf-16": _MARKED[1]}
_MEANT: Final = {"utf-8-sig": ("utf-8",), "utf-16": ("utf-16-le", "utf-16-be")}


class Undecodable(Exception):
    """Bytes of a file are invalid in its encoding. ``line`` and ``column`` count from 1; ``what`` is the message."""

    def __init__(self, coding: Coding, line: int, column: int, what: str) -> None:
        super().__init__(gettext("line {line}, character {column}: {what}", line=line, column=column, what=what))
        self.coding = coding


def coding_named(name: str) -> Coding:
    try:  # it must turn plain text into bytes and back, which base64, idna or undefined do not
        encoded = codecs.getincrementalencoder(name)().encode(_TRIAL, True)
        if isinstance(encoded, bytes) and codecs.getincrementaldecoder(name)().decode(encoded, True) == _TRIAL:
            codec = codecs.lookup(name).name
            return _WITH_MARK.get(codec, Coding(codec))
    except (LookupError, ValueError, TypeError):
        pass
    raise UsageError(UNKNOWN_ENCODING, name=name)


def codings(file: File, encoding: str | None) -> list[Coding]:
    with file.data.open("rb") as stream:
        head = stream.read(SAMPLE)
    marked = next((coding for coding in _MARKED if head.startswith(coding.mark)), None)
    if encoding is not None:
        coding = coding_named(encoding)
        given = codecs.lookup(encoding).name
        if marked and marked.codec in _MEANT.get(given, (given,)):
            found = [marked]
        elif given == "utf-16":  # without a mark: the order of its bytes shows, or is this machine's
            found = [_unmarked_utf16(head) or Coding("utf-16-le")]
        else:
            found = [replace(coding, mark=b"")]
    else:
        clear = marked or _unmarked_utf16(head)
        found = [clear] if clear else [Coding("utf-8"), Coding("cp949")]  # CP949 has EUC-KR in it
    return [replace(coding, bare_cr=_has_bare_cr(coding, head), raw_spaces=coding.codec in _CODECS) for coding in found]


def sample_of(file: File, coding: Coding) -> str:
    with file.data.open("rb") as stream:
        head = stream.read(SAMPLE)
        while len(head) < _LONGEST_SAMPLE and max(map(head.count, (b"\n", b"\r"))) <= LOOK:
            if not (more := stream.read(SAMPLE)):
                break
            head += more
        whole = not stream.read(1)
    decoder = coding.decoder()
    body = head.removeprefix(coding.mark)
    try:
        text = decoder.decode(body, final=whole)
    except UnicodeError as error:
        raise _undecodable_at(coding, error, 1, 0) from error
    text = text.replace("\r", "\n") if coding.bare_cr else text
    if whole:
        return text
    if "\n" not in text:
        raise InputError(FIRST_LINE_TOO_LONG, path=file.path, count=len(head))
    return text[: text.rindex("\n") + 1]


def blocks(file: File, coding: Coding) -> Iterator[bytes]:
    rest: list[bytes] = []
    held = 0
    for part in parts(file, coding):
        cut = part.rfind(b"\n") + 1
        if cut:
            yield b"".join((*rest, part[:cut]))
            rest, held = [], 0
        if cut < len(part):
            rest.append(part[cut:])
            held += len(part) - cut
        if held > _LONGEST:
            raise InputError(LINE_TOO_LONG, path=file.path, longest=_LONGEST >> 20)
    if held:
        yield b"".join(rest)


def parts(file: File, coding: Coding) -> Iterator[bytes]:
    """Yield the file as UTF-8 without byte order mark, cut between characters; raise as :func:`blocks`."""
    with file.data.open("rb", buffering=0) as stream:
        stream.seek(len(coding.mark))
        yield from _verify_utf8(stream, coding) if coding.is_plain else _decode_chunks(stream, coding, file)


def is_broken_utf8(file: File) -> bool:
    """Whether a file is UTF-8 except for a few bytes. CP949 read as UTF-8 has errors from the start."""
    with file.data.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            if not chunk.isascii():
                text = chunk.decode("utf-8", "replace")
                bad = text.count("\ufffd")
                before = text[: text.find("\ufffd")] if bad else text
                return len(re.findall(_WIDE, before)) >= 3 or len(re.findall(_WIDE, text)) > bad
    return False


def _has_bare_cr(coding: Coding, head: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder(coding.codec)("replace").decode(head)
    except UnicodeError:  # UTF-32 without its mark; reading will say so
        return False
    return "\r" in (text if len(head) < SAMPLE else text[:-1]) and "\n" not in text


def _unmarked_utf16(head: bytes) -> Coding | None:
    """Return UTF-16 for bytes without a mark that decode to lines with fields, mostly of ASCII and Hangul."""
    even = head[: len(head) // 2 * 2]
    if b"\0" not in even:
        return None
    codec = "utf-16-le" if even[1::2].count(0) > even[0::2].count(0) else "utf-16-be"
    text = even.decode(codec, "replace")
    has_lines = ("\n" in text or "\r" in text) and any(mark in text for mark in ",;\t|")
    return Coding(codec) if has_lines and len(re.findall(_KOREAN, text)) >= 0.7 * len(text) else None


def _verify_utf8(stream: BinaryIO, coding: Coding) -> Iterator[bytes]:
    # cut behind a line end if possible, else between characters
    done = stream.tell()
    while chunk := stream.read(_CHUNK + 3):  # one whole character at least
        part = chunk[: chunk.rfind(b"\n") + 1 or len(chunk) - _cut_off(chunk) or len(chunk)]
        try:
            pl.Series([part], dtype=pl.Binary).cast(pl.String)  # three times as fast as bytes.decode
        except pl.exceptions.PolarsError:
            _refuse_bad(stream, coding, done, part)
        yield part
        done += len(part)
        stream.seek(done)  # cheaper than to carry the rest over: no byte is copied twice


def _refuse_bad(stream: BinaryIO, coding: Coding, done: int, part: bytes) -> None:
    stream.seek(len(coding.mark))
    line, column, left = 1, 0, done - len(coding.mark)
    while left and (chunk := stream.read(min(left, _CHUNK))):
        left -= len(chunk)
        line += chunk.count(b"\n")
        end = chunk.rfind(b"\n")
        column = len(chunk[end + 1 :].translate(None, _CONTINUING)) + (column if end < 0 else 0)
    try:
        part.decode()
    except UnicodeDecodeError as error:
        raise _undecodable_at(coding, error, line, column) from error


def _cut_off(data: bytes) -> int:
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def _decode_chunks(stream: BinaryIO, coding: Coding, file: File) -> Iterator[bytes]:
    decoder = coding.decoder()
    end = "\r" if coding.bare_cr else "\n"
    line, column, more = 1, 0, True
    while more:
        more = bool(chunk := stream.read(_CHUNK))
        try:
            text = decoder.decode(chunk, final=not more)
            data = text.encode()
        except UnicodeError as error:
            raise _undecodable_at(coding, error, line, column) from error
        if coding.bare_cr:
            if b"\n" in data:
                found = line + text[: text.index("\n")].count("\r")
                raise InputError(MIXED_LINE_ENDS, path=file.path, found=found)
            data = data.replace(b"\r", b"\n")
        if data:
            yield data
        line += (ends := text.count(end))
        column = len(text) - text.rfind(end) - 1 + (0 if ends else column)


def _undecodable_at(coding: Coding, error: UnicodeError, line: int, column: int) -> Undecodable:
    if not isinstance(error, UnicodeDecodeError):
        return Undecodable(coding, line, column + 1, str(error))
    before = bytes(error.object[: error.start]).decode(coding.codec, "replace")
    end = "\r" if coding.bare_cr else "\n"
    line += (ends := before.count(end))
    column = len(before) - before.rfind(end) + (0 if ends else column)
    what = gettext("byte 0x{byte:02x} is not {coding}", byte=error.object[error.start], coding=coding)
    return Undecodable(coding, line, column, what)
