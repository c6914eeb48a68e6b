"""multipart/form-data, read strictly: a body is taken only when its closing boundary is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bizverify.testing.asgi import RefusedError

_BOUNDARY: Final = re.compile(rb"""multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))""", re.I)
_PARAMETER: Final = re.compile(r';\s*([a-z*]+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.I)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form: its name, the name of its file (``None`` for a plain field), its kind and its bytes."""

    name: str
    filename: str | None
    content_type: str | None
    content: bytes


def parts_of(content_type: bytes | None, body: bytes) -> list[Part]:
    """The parts of a complete body. Raises :class:`RefusedError`: 415 for another kind, 400 where it is not whole.

    Every delimiter stands on a line of its own and nothing but a line end follows the closing one: a body that ends
    early, even by a byte of its boundary, is not a body.
    """
    found = _BOUNDARY.match(content_type or b"")
    if found is None:
        raise RefusedError(415, "multipart/form-data with a boundary is expected")
    delimiter = b"\r\n--" + (found[1] or found[2])
    first, *rest = (b"\r\n" + body).split(delimiter)
    if first or not rest or rest[-1] not in (b"--", b"--\r\n"):
        raise RefusedError(400, "the multipart body is not complete")
    return [_part(section) for section in rest[:-1]]


def _part(section: bytes) -> Part:
    head, blank, content = section.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not blank:
        raise RefusedError(400, "a part of the multipart body has no header, or no end of it")
    headers: dict[str, str] = {}
    for line in head[2:].decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise RefusedError(400, "a header of a part is not one")
        headers[name.strip().lower()] = value.strip()
    disposition = headers.get("content-disposition", "")
    parameters = {name.lower(): re.sub(r"\\(.)", r"\1", value) for name, value in _PARAMETER.findall(disposition)}
    if not disposition.lower().startswith("form-data") or "name" not in parameters:
        raise RefusedError(400, "a part has no name")
    return Part(parameters["name"], parameters.get("filename"), headers.get("content-type"), content)
