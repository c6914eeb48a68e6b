"""Read request bodies within limits of size and time. Starlette's form parser has none, so python-multipart is used."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
from polars.exceptions import PolarsError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from bansong.base.files import create_private
from bansong.base.messages import describe_library_error, gettext, gettext_noop, join_clauses
from bansong.server.payloads import Refusal, invalid, too_large
from bansong.tables.detect import EXTENSIONS
from bansong.tables.streams import SUFFIXES

MAX_JSON_BYTES: Final = 64 << 10  # bytes of a JSON body
_BODY_TIMEOUT_S: Final = 30.0
_TOO_LONG: Final = re.compile(r"of length <= ([0-9]+) - at `\$\.(name|address|reason)`")
_NUMBER: Final = re.compile(r"`\$\.(b_no|biz_no)`")
T = TypeVar("T")


async def read_json(request: Request, type: type[T]) -> T:
    """Decode a JSON body; raise :class:`Refusal` 400, 408, 413, 415."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(
            415, "unsupported_media_type", gettext("the body is {kind}; send application/json", kind=kind[:100])
        )
    body = await read_body(request, MAX_JSON_BYTES)
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _too_long(str(error), body) or invalid(
            gettext(
                "the body is not as it should be: {explain_decode_error}",
                explain_decode_error=_explain_decode_error(error),
            )
        ) from None


def _too_long(error: str, body: bytes) -> Refusal | None:
    if (found := _TOO_LONG.search(error)) is None:
        return None
    limit, name = int(found[1]), found[2]
    try:
        text = msgspec.json.decode(body)[name]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # another part of the body is wrong, too
        return None
    if not isinstance(text, str):  # the field is there twice
        return None
    length = len(text)
    message = gettext(
        "{name} has {length:,} characters; at most {limit:,} are taken: shorten it",
        name=name,
        length=length,
        limit=limit,
    )
    return Refusal(400, "invalid_request", message, field=name, length=length, limit=limit)


def _explain_decode_error(error: Exception) -> str:
    text = str(error)
    if (place := _NUMBER.search(text)) and not text.startswith("Expected `str`, got"):
        return gettext(
            "{place} must be a business number: ten digits without hyphens or blanks, not all zero", place=place[1]
        )
    return str(describe_library_error(error))


async def read_body(request: Request, limit: int) -> bytes:
    """Return a body; raise :class:`Refusal` 400, 408, or 413 beyond ``limit`` bytes."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(gettext("the request"), limit, "bytes")
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):  # anyio's takes ten times as long to set up
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise invalid(gettext("the connection was closed before the body was complete"))
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    raise too_large(gettext("the request"), limit, "bytes")
    except TimeoutError:
        raise Refusal(
            408, "timeout", gettext("the body did not come within {patience:g} s", patience=_BODY_TIMEOUT_S)
        ) from None
    return bytes(body)


def refuse_two_lengths(scope: Scope) -> None:
    """Refuse Content-Length together with Transfer-Encoding, which allows request smuggling through a proxy."""
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        message = gettext("the request has Content-Length and Transfer-Encoding; send one of the two")
        raise Refusal(400, "bad_http", message, headers={"Connection": "close"})


LINGER_SECONDS: Final = 10.0


class IncomingBody:
    """The ASGI ``receive`` of a request, which can drain the body after an early response."""

    def __init__(self, receive: Receive, scope: Scope) -> None:
        self._receive = receive
        self._more = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def __call__(self) -> Message:
        message = await self._receive()
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def answer(self, response: Response, scope: Scope, send: Send) -> None:
        """Send a response, then drain the body for up to ten seconds, as most clients read only after sending."""

        async def send_and_drain(message: Message) -> None:
            if message["type"] != "http.response.body" or not self._more:
                await send(message)
                return
            await send({**message, "more_body": True})
            with anyio.move_on_after(LINGER_SECONDS):
                while self._more:
                    await self()
                await send({"type": "http.response.body", "body": b""})

        await response(scope, self, send_and_drain)


# python-multipart logs user data; ``disabled`` would not silence child loggers
logging.getLogger("python_multipart").setLevel(logging.CRITICAL + 1)

OVERHEAD: Final = 64 << 10  # bytes around the file: boundaries, part headers, small other fields
_WRITE_BYTES: Final = 1 << 20
_MAX_PARTS: Final = 50
_MAX_NAME_LENGTH: Final = 150
_KINDS: Final = gettext_noop("CSV, Excel (xlsx, xlsm, xls, xlsb, ods), JSON and NDJSON files are taken, not packed")
_MEDIA: Final = {
    "text/csv": ".csv",
    "application/json": ".json",
    "application/x-ndjson": ".ndjson",
    "application/jsonl": ".jsonl",
}
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class ReceivedUpload:
    """An uploaded file in its temporary folder."""

    folder: Path
    path: Path
    name: str  # the client's file name, for messages
    digest: bytes  # SHA-256 of the content and the file type


@dataclass(frozen=True, slots=True)
class UploadBounds:
    """The limits of one upload."""

    size: int  # bytes of the file
    stall: float  # seconds without a byte
    within: float  # seconds in all


@asynccontextmanager
async def receive_upload(
    request: Request, uploads: Path, bounds: UploadBounds, set_aside: Callable[[int], None]
) -> AsyncIterator[ReceivedUpload]:
    """Store an uploaded file until the block ends. ``set_aside`` reserves disk bytes, or raises."""
    folder = uploads / secrets.token_hex(16)
    try:
        with refusing_full_disk():
            form = await _receive_form(request, bounds, folder, set_aside)
        yield ReceivedUpload(folder, form.path, form.name, form.digest)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(shutil.rmtree, folder, True)


async def hash_upload(request: Request, bounds: UploadBounds) -> bytes:
    """Return the digest of an upload (see :class:`ReceivedUpload`) without storing it."""
    return (await _receive_form(request, bounds, None, lambda _: None)).digest


async def _receive_form(
    request: Request, bounds: UploadBounds, folder: Path | None, set_aside: Callable[[int], None]
) -> _UploadParser:
    boundary = _boundary(request)
    text = request.headers.get("content-length", "")
    declared = int(text) if text.isdecimal() else 0
    if declared > bounds.size + OVERHEAD:
        raise too_large(gettext("the file"), bounds.size, "bytes")
    set_aside(declared)
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True)
    form = _UploadParser(boundary, folder, bounds.size)
    try:
        with anyio.fail_after(bounds.within):
            await _take_body(request.receive, form, bounds, declared, set_aside)
    except TimeoutError:
        message = gettext(
            "the body must come within {within:g} s, and some of it every {stall:g} s",
            within=bounds.within,
            stall=bounds.stall,
        )
        raise Refusal(408, "timeout", message) from None
    finally:
        form.close()
    return form


@contextmanager
def refusing_full_disk() -> Iterator[None]:
    """Turn a full disk into a refusal (507)."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise disk_full() from None
        raise


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means a full disk. Polars errors show it only in their text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        if isinstance(error, PolarsError) and any(f"(os error {number})" in str(error) for number in _NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full() -> Refusal:
    """Return the refusal (507) of an upload that the disk has no room for."""
    message = gettext("the server has no room to store the file; nothing was done, try again later")
    return Refusal(507, "insufficient_storage", message, headers={"Retry-After": "300"})


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise Refusal(
            415, "unsupported_media_type", gettext("send the file as multipart/form-data, in a part named file")
        )
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 200:
        raise invalid(gettext("the Content-Type multipart/form-data needs a boundary of 1 to 200 characters"))
    return boundary


async def _take_body(
    receive: Callable[[], Awaitable[Any]],
    form: _UploadParser,
    bounds: UploadBounds,
    declared: int,
    set_aside: Callable[[int], None],
) -> None:
    size, pending, more = 0, bytearray(), True
    while more:
        with anyio.fail_after(bounds.stall):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise invalid(gettext("the connection was closed before the body was complete"))
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        if size > bounds.size + OVERHEAD:
            raise too_large(gettext("the file"), bounds.size, "bytes")
        if size > declared:
            set_aside(size - declared)
            declared = size
        pending += piece
        if pending and (not more or len(pending) >= _WRITE_BYTES):
            await anyio.to_thread.run_sync(form.take, bytes(pending))
            pending.clear()
    form.end()


class _UploadParser:
    def __init__(self, boundary: bytes, folder: Path | None, limit: int) -> None:
        self.name = ""
        self._limit = limit
        self._folder = folder
        self._file: Any = None
        self._hash = hashlib.sha256()
        self._size = self._parts = self._files = 0
        self._ended = self._taking = False
        self._suffix = ""
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = bytearray(), bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._header,
                "on_headers_finished": self._begin_content,
                "on_part_data": self._data,
                "on_end": self._end,
            },
        )

    def take(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError:
            raise invalid(gettext("the body is not well-formed multipart/form-data")) from None

    def end(self) -> None:
        if not self._ended:
            raise invalid(gettext("the body ends before its last multipart boundary"))
        if not self._files:
            raise invalid(gettext("there is no file: send one in a multipart part named file, with a file name"))
        if not self._size:
            raise invalid(gettext("the file is empty"))

    @property
    def digest(self) -> bytes:
        digest = self._hash.copy()
        digest.update(b"\n" + self._suffix.encode())
        return digest.digest()

    @property
    def path(self) -> Path:
        assert self._folder is not None  # noqa: S101 - only a stored upload has a path
        return self._folder / f"upload-{self._folder.name[:8]}{self._suffix}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise invalid(gettext("the form has more than {parts} parts; send one, named file", parts=_MAX_PARTS))
        self._headers, self._taking = {}, False

    def _header(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _begin_content(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if options.get(b"name") != b"file":
            return
        called = options.get(b"filename", b"").decode("utf-8", "replace")
        if not called:
            raise invalid(gettext("the part named file must have a file name, and a file in it"))
        self._files += 1
        if self._files > 1:
            raise invalid(gettext("there are two parts named file; send one file at a time"))
        if self._headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in (
            b"binary",
            b"8bit",
            b"7bit",
        ):
            raise invalid(gettext("the part named file has a Content-Transfer-Encoding; send it as it is"))
        self.name = display_name(called)
        self._suffix = _suffix(called, self._headers.get(b"content-type", b""))
        if self._folder is not None:
            self._file = os.fdopen(create_private(self.path), "wb")
        self._taking = True

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._taking:
            return
        self._size += end - start
        if self._size > self._limit:
            raise too_large(gettext("the file"), self._limit, "bytes")
        piece = data[start:end]
        self._hash.update(piece)
        if self._file is not None:
            self._file.write(piece)

    def _end(self) -> None:
        self._ended = True


def display_name(name: str) -> str:
    """Return a client's file name for messages: without folders, only printable characters, at most 150."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[-_MAX_NAME_LENGTH:] or gettext("the file")


def _suffix(called: str, media: bytes) -> str:
    suffix = PurePosixPath(display_name(called)).suffix.lower()
    format = EXTENSIONS.get(suffix)
    if suffix in SUFFIXES or (format and not format.can.uploads):
        raise unsupported_file(gettext("{suffix} files are not taken", suffix=suffix))
    if format:
        return suffix
    return _MEDIA.get(media.partition(b";")[0].strip().lower().decode("latin-1"), "")


def unsupported_file(what: str) -> Refusal:
    """Return the refusal (415) of a file that is not of a readable kind."""
    return Refusal(415, "unsupported_media_type", join_clauses(what, gettext(_KINDS)))
