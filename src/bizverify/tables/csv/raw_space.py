"""CP949 with the byte 0xA0 in it: a no-break space out of a web page, which the encoding itself does not have.

By the standard 0xA0 begins one of 178 syllables that no word has (잸 to 좤). Where it cannot, or where taking it for a
space leaves nothing but everyday characters, it is a no-break space. It is written as 0xA0 again, so that a cell comes
back as the bytes it was, however it was read.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

SPACE: Final = "\N{NO-BREAK SPACE}"
CODECS: Final = ("cp949", "euc_kr")
"""The codecs of Python's in whose files the byte is found."""

_BYTE: Final = b"\xa0"
_MARK: Final = b"\xff"
"""Stands for a no-break space on its way to the codec, which has no such byte."""
_HANDLER: Final = "bizverify.raw_space"
_RUN: Final = re.compile(rb"(?<![\x81-\xfe])[\x81-\x9f\xa1-\xfe]*+\xa0[\x81-\xfe]*+(?=([A-Za-z]{0,2}))")
_EVERYDAY: Final = re.compile(rb"(?:\xa0|[\xa1-\xfe]{2})+")
_ANY: Final = re.compile(rb"(?:\xa0|[\x81-\x9f\xa1-\xfe][\x81-\xfe])+")
_CHARACTER: Final = re.compile(rb"\xa0|[\x81-\x9f\xa1-\xfe][\x81-\xfe]")
_BETWEEN: Final = (b"\n", b"\r", b",", b" ", b"\t", b";")
"""Bytes that are never part of a longer character: what is before them can be decoded."""
_LONGEST: Final = 64 << 20


class Decoder(codecs.IncrementalDecoder):
    """Decodes chunks of such a text, each up to the last place between two characters."""

    def __init__(self, codec: str) -> None:
        super().__init__()
        self._codec = codec
        self._rest = b""

    def decode(self, input: bytes, final: bool = False) -> str:  # type: ignore[override]
        """Return the text of the next bytes, of which the last may be held back until more are there."""
        data = self._rest + input
        end = len(data) if final else max(map(data.rfind, _BETWEEN)) + 1
        if not end and len(data) > _LONGEST:
            raise UnicodeDecodeError(self._codec, data, 0, 1, "too long without a blank")
        part, self._rest = data[:end], data[end:]
        if _BYTE not in part or _MARK in part:  # the mark is no character: the codec will say where it stands
            return part.decode(self._codec)
        return _RUN.sub(self._mark_spaces, part).decode(self._codec, _HANDLER)

    def _mark_spaces(self, found: re.Match[bytes]) -> bytes:
        """A run of bytes beyond ASCII, with the mark for each no-break space."""
        run, letters = found.group(), found[1]
        if _EVERYDAY.fullmatch(run) and (run != _BYTE or len(letters) != 1):
            return run.replace(_BYTE, _MARK)
        try:
            (run + letters[: len(run) % 2]).decode(self._codec)
        except UnicodeDecodeError:
            return _CHARACTER.sub(_marked_space, run) if _ANY.fullmatch(run) else run
        return run


def handle_error(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write a no-break space as the byte 0xA0, and read the mark as a no-break space."""
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] == SPACE:
        return _BYTE, error.start + 1
    if isinstance(error, UnicodeDecodeError) and error.object[error.start] == _MARK[0]:
        return SPACE, error.start + 1
    raise error


def encoder(codec: str) -> codecs.IncrementalEncoder:
    """An encoder that writes a no-break space as the byte 0xA0."""
    return codecs.getincrementalencoder(codec)(_HANDLER)


def _marked_space(character: re.Match[bytes]) -> bytes:
    return _MARK if character.group() == _BYTE else character.group()


codecs.register_error(_HANDLER, handle_error)
