"""An answer's body, unpacked if it is compressed, no further than its limit (G27)."""

from __future__ import annotations

import zlib
from typing import Final

from bizverify.client.connection import Answer

_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_STARTS: Final = (b"\x1f\x8b", b"\x78")
_EITHER: Final = 47  # gzip or zlib, whichever it is


def unpacked(answer: Answer) -> tuple[bytes, bool, bool]:
    """Return an answer's body, whether there is more of it, and whether it is damaged: cut off, or of a wrong sum.

    A damaged one, and one that is not compressed although its head says so, are returned as they came.
    """
    packed = bytes(answer.content)
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding not in _CODINGS or not packed.startswith(_STARTS):
        return packed, answer.over, False
    content, left = bytearray(), packed
    try:
        while left and len(content) <= answer.limit:  # it may be several, one behind the other
            member = zlib.decompressobj(wbits=_EITHER)
            content += member.decompress(left, answer.limit + 1 - len(content))
            if not member.eof and len(content) <= answer.limit:
                return packed, answer.over, not answer.over
            left = member.unused_data
    except zlib.error:
        return packed, answer.over, not answer.over
    return bytes(content), answer.over or len(content) > answer.limit, False
