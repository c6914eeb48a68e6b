"""A URL as a path: with name, suffix and folder, shown as given but without secrets."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bansong.errors import Problem, UsageError

URL_PART_INVALID: Final = Problem(
    "cloud.url_part_invalid",
    "{url}: has an empty part, `.`, `..`, a backslash or a control character; such names are not read or written",
)
URL_HOLDS_PASSWORD: Final = Problem(
    "cloud.url_holds_password",
    "{url}: no user or password is taken from a URL, where histories and logs keep them; credentials come "
    "from the environment",
)
URL_HOLDS_QUERY: Final = Problem(
    "cloud.url_holds_query",
    "{url}: nothing is taken from behind the `?` of a URL of an object store; credentials come from the environment",
)

if sys.platform == "win32":
    from pathlib import WindowsPath as _LocalPath
else:
    from pathlib import PosixPath as _LocalPath

STORES: Final = ("s3", "gs", "az")
"""Schemes that are read and written; ``https`` is only read."""
_URL: Final = re.compile(r"(s3|gs|az|https):(/{1,2})(?!/)([^/].*)", re.IGNORECASE | re.DOTALL)
_ODD: Final = re.compile(r"[\x00-\x1f\x7f\\]")


class RemotePath(_LocalPath):
    """The path of a remote file, which only ``cloud`` can open.

    ``query``: of an ``https`` URL; it may be a signature, so no text shows it. ``is_folder``: given with a final slash.
    Derived paths have neither.
    """

    query: str = ""
    is_folder: bool = False

    def __str__(self) -> str:
        if not self.parts:  # the last of its parents, which pathlib compares as text from Python 3.12 on
            return "."
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def __rtruediv__(self, folder: Any) -> RemotePath:
        """As an absolute path, it ignores the folder."""
        return self

    def relative_to(self, *other: Any, **options: Any) -> Path:  # type: ignore[override]
        return Path(super().relative_to(*other, **options))

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002 - as the class above has it
        return self

    def absolute(self) -> RemotePath:
        return self

    def expanduser(self) -> RemotePath:
        return self

    def is_absolute(self) -> bool:
        return True

    @property
    def scheme(self) -> str:
        return self.parts[0].removesuffix(":")

    @property
    def bucket(self) -> str:
        """The bucket, container or host."""
        return self.parts[1]

    @property
    def key(self) -> str:
        """The object's name in its bucket."""
        return "/".join(self.parts[2:])

    @property
    def identity(self) -> str:
        """The whole URL, for comparison; never to be shown."""
        return f"{self}?{self.query}" if self.query else str(self)


def is_remote(path: str | Path) -> bool:
    return isinstance(path, RemotePath)


def as_path(given: str | Path) -> Path:
    """Return a :class:`RemotePath` for a URL of a known scheme, else a local path as spelled on the disk.

    Raises :class:`UsageError` for a URL with a password, or one that is ambiguous as a path.
    """
    if isinstance(given, RemotePath):
        return given
    found = _URL.fullmatch(os.fspath(given))
    if found is None or (found[2] == "/" and (isinstance(given, str) or os.path.lexists(given))):
        return path_on_disk(Path(given))
    scheme, rest = found[1].lower(), found[3]
    if scheme == "https":
        rest = rest.partition("#")[0]
    rest, mark, query = rest.partition("?")
    _refuse_secrets(scheme, rest, mark)
    is_folder = rest.endswith("/")
    parts = rest.removesuffix("/").split("/")
    if _ODD.search(rest) or any(part in ("", ".", "..") for part in parts):
        raise UsageError(URL_PART_INVALID, url=f"{scheme}://{_ODD.sub('�', rest)}")
    path = RemotePath(f"{scheme}:", *parts)
    path.query, path.is_folder = query, is_folder
    return path


def path_on_disk(path: Path) -> Path:
    """Return the path as spelled on the disk: macOS stores Hangul decomposed (NFD), keyboards type NFC."""
    if str(path).isascii() or isinstance(path, RemotePath) or os.path.lexists(path):
        return path
    found = Path(path.anchor)
    for part in path.parts[len(found.parts) :]:
        typed = found / part
        found = typed if os.path.lexists(typed) else next(_same_names(found, part), typed)
    return found


def _same_names(folder: Path, name: str) -> Iterator[Path]:
    wanted = unicodedata.normalize("NFC", name)
    with suppress(OSError, ValueError):
        yield from (one for one in folder.iterdir() if unicodedata.normalize("NFC", one.name) == wanted)


def describe_given(given: str | Path) -> str:
    """Return a given path for messages, without secrets."""
    path = as_path(given)
    return str(path if is_remote(path) else given)


def _refuse_secrets(scheme: str, rest: str, mark: str) -> None:
    """Raise :class:`UsageError` for a URL with a password, or a query where none is used."""
    host, slash, name = rest.partition("/")
    if "@" in host:
        raise UsageError(URL_HOLDS_PASSWORD, url=f"{scheme}://***@{host.rpartition('@')[2]}{slash}{name}")
    if mark and scheme in STORES:
        raise UsageError(URL_HOLDS_QUERY, url=f"{scheme}://{rest}?***")
