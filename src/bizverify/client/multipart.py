"""Request bodies that know whether their last byte may have gone.

A request cannot have been understood before its last byte was handed to the network: until then an error means "not
sent", from then on it means "in doubt".
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Final

_CHUNK: Final = 64 * 1024

Step = Callable[[], Awaitable[None]]


class Body:
    """A body of known length, given out piece by piece: an async iterator, used once.

    Just before the last piece it awaits ``before_last``; when the network has taken that piece, ``after_last``.
    ``complete`` says whether the last piece was handed over; ``failure`` is what one of the two steps raised. (A class
    and no generator: the network may leave it in the middle, and trio warns of generators that are left.)
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        last: bytes,
        *,
        length: int,
        content_type: str,
        before_last: Step | None = None,
        after_last: Step | None = None,
    ) -> None:
        self.length = length
        self.content_type = content_type
        self.complete = False
        self.failure: Exception | None = None
        self.failure_traceback: TracebackType | None = None
        self._pieces = pieces
        self._last = last
        self._before_last = before_last
        self._after_last = after_last

    def __aiter__(self) -> Body:
        return self

    async def __anext__(self) -> bytes:
        piece = next(self._pieces, None)
        if piece is not None:
            return piece
        if self.complete:
            await self._step(self._after_last)
            raise StopAsyncIteration
        await self._step(self._before_last)
        self.complete = True
        return self._last

    async def _step(self, step: Step | None) -> None:
        if step is None:
            return
        try:
            await step()
        except Exception as error:
            self.failure, self.failure_traceback = error, error.__traceback__
            raise


def json_body(content: bytes) -> Body:
    """A JSON document, in one piece."""
    return Body(iter(()), content, length=len(content), content_type="application/json")


def file_body(
    content: bytes,
    filename: str,
    content_type: str = "text/csv; charset=utf-8",
    *,
    before_last: Step | None = None,
    after_last: Step | None = None,
) -> Body:
    """``multipart/form-data`` with one file part named ``file`` (G28); its last piece is the closing boundary."""
    boundary = f"bizverify-{secrets.token_hex(16)}"
    head = (
        f"--{boundary}\r\n"
        f'Content-Disposition: form-data; name="file"; filename="{_quoted(filename)}"\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    ).encode()
    last = f"\r\n--{boundary}--\r\n".encode()
    return Body(
        _in_chunks(head, content),
        last,
        length=len(head) + len(content) + len(last),
        content_type=f"multipart/form-data; boundary={boundary}",
        before_last=before_last,
        after_last=after_last,
    )


def _in_chunks(head: bytes, content: bytes) -> Iterator[bytes]:
    yield head
    for start in range(0, len(content), _CHUNK):
        yield content[start : start + _CHUNK]


def _quoted(filename: str) -> str:
    """The name as HTML forms write it: what would end the header or its quotes is escaped."""
    plain = filename.encode("utf-8", "replace").decode("utf-8")
    return plain.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A").replace("\\", "_")
