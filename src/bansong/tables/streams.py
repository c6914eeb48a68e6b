"""Open files and unpack gzip and zstd to a private copy; pack outputs while writing."""

from __future__ import annotations

import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast
from zipfile import BadZipFile

from bansong.base.errors import BansongError, InputError, Problem
from bansong.base.files import as_path, is_remote, private_folder
from bansong.base.isolation import limits, or_raise_limit
from bansong.base.messages import describe_os_error, gettext
from bansong.base.remote import fetch_file

UNPACKED_TOO_LARGE: Final = Problem(
    "limits.unpacked_too_large", "{path}: unfolds to more than {cap:,} bytes; unpack it yourself{or_raise}"
)
INPUT_IS_FOLDER: Final = Problem("files.input_is_folder", "{path}: is a folder, not a file; give a file in it")
INPUT_IS_PIPE: Final = Problem(
    "files.input_is_pipe", "{path}: is a pipe, which can be read only once; save what it gives as a file first"
)
INPUT_FILE_MISSING: Final = Problem(
    "files.input_file_missing", "{path}: there is no such file in {parent}; check its name"
)
INPUT_UNREADABLE: Final = Problem("files.input_unreadable", "{path}: cannot be opened: {reason}; check who may read it")
URL_NOT_READ: Final = Problem(
    "files.url_not_read", "{url}: is a URL, and of those only s3://, gs://, az:// and https:// are read; {remedy}"
)
UNPACKING_FAILED: Final = Problem("files.unpacking_failed", "{path}: cannot be unpacked ({packing}): {reason}")

Packing = Literal["gzip", "zstd"]

SUFFIXES: Final[dict[str, Packing]] = {".gz": "gzip", ".zst": "zstd"}
_MAGIC: Final[dict[bytes, Packing]] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_CHUNK: Final = 1 << 20
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/+(.+)")

# errors of zipfile for damaged or unusual zips; RuntimeError: encryption or unknown compression
BROKEN_ZIP: Final = (BadZipFile, zlib.error, OSError, RuntimeError, EOFError, ValueError)


@dataclass(frozen=True, slots=True)
class File:
    """A user's file: ``path`` as given, and ``data``, the local file with the unpacked bytes."""

    path: Path
    data: Path
    packing: Packing | None = None

    @property
    def name(self) -> Path:
        """The path without the suffix of the compression: ``customers.csv`` for ``customers.csv.gz``."""
        return unpacked_name(self.path)


def unpacked_name(path: Path) -> Path:
    """Return a path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix.lower() in SUFFIXES else path


def packing_of(path: Path) -> Packing | None:
    """Return the compression that the suffix of a path means."""
    return SUFFIXES.get(path.suffix.lower())


def open_file(path: Path, resources: ExitStack, data: Path | None = None) -> File:
    """Fetch and unpack a file, or only unpack its local copy ``data``; raise :class:`InputError`."""
    where = data or resources.enter_context(fetch_file(path)).path
    if os.path.isdir(where):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise InputError(INPUT_IS_FOLDER, path=path)
    try:
        if stat.S_ISFIFO(where.stat().st_mode):
            raise InputError(INPUT_IS_PIPE, path=path)
        with where.open("rb") as file:
            head = file.read(4)
    except FileNotFoundError:
        if is_remote(as_path(path)):
            refuse_url(path, InputError)
        if url := url_of(path):
            copy = gettext("copy the file here and give the copy's path")
            remedy = gettext("give the path alone") if url.startswith("file:") else copy
            raise InputError(URL_NOT_READ, url=url, remedy=remedy) from None
        raise InputError(INPUT_FILE_MISSING, path=path, parent=path.absolute().parent) from None
    except OSError as error:
        raise InputError(INPUT_UNREADABLE, path=path, reason=describe_os_error(error)) from error
    for magic, packing in _MAGIC.items():
        if head.startswith(magic):
            return File(path, resources.enter_context(_unpack(where, packing)), packing)
    return File(path, _spell_path(where, resources))


def url_of(path: Path) -> str | None:
    """Return the URL, such as ``ftp://…``, that was given as a path; ``None`` for an ordinary path."""
    found = _URL.match(path.as_posix())
    return found and f"{found[1]}:{'///' if found[1] == 'file' else '//'}{found[2]}"


def refuse_url(path: Path, failure: type[BansongError]) -> None:
    """Raise ``failure`` if a URL was given as a path."""
    if url := url_of(path):
        raise failure(
            gettext("{url}: is a URL, which is not read for this; copy the file here and give the copy's path", url=url)
        )


def _spell_path(path: Path, resources: ExitStack) -> Path:
    whole = path.absolute()  # polars would expand ``~`` and ``file:`` at the start
    try:
        str(whole).encode()
        return whole
    except UnicodeEncodeError:  # bytes that are no UTF-8, as Korean names from an old zip
        link = resources.enter_context(private_folder()) / "data"
        link.symlink_to(whole)
        return link


@contextmanager
def sink(target: Path, packing: Packing | None) -> Iterator[BinaryIO]:
    """Open a file for writing; the bytes are compressed on the way."""
    with target.open("wb") as file:
        if packing is None:
            yield file
        else:
            import pyarrow as pa

            with pa.CompressedOutputStream(file, packing) as stream:
                yield cast("BinaryIO", stream)


class HoldEnd(io.RawIOBase):
    """A sink that drops the last bytes written if they are ``end``."""

    def __init__(self, file: BinaryIO, end: bytes) -> None:
        self._file = file
        self._end = end
        self._held = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        # nothing is copied but the end: a copy of each batch cost twice what writing does
        given, held = memoryview(data), self._held
        cut = max(0, len(held) + len(given) - len(self._end))
        behind = max(0, cut - len(held))
        self._file.write(held[:cut])
        self._file.write(given[:behind])
        self._held = held[cut:] + given[behind:]
        return len(data)

    def close(self) -> None:
        if not self.closed and self._held != self._end:
            self._file.write(self._held)
        super().close()


@contextmanager
def _unpack(path: Path, packing: Packing) -> Iterator[Path]:
    import pyarrow as pa

    cap, size = limits().unpacked, 0
    with private_folder() as folder:
        copy = folder / unpacked_name(path).name
        try:
            with pa.input_stream(str(path), compression=packing) as stream, copy.open("wb") as out:
                while chunk := stream.read(_CHUNK):
                    size += len(chunk)
                    if size > cap:
                        raise InputError(UNPACKED_TOO_LARGE, path=path, cap=cap, or_raise=or_raise_limit("unpacked"))
                    out.write(chunk)
        except (OSError, pa.ArrowException) as error:
            raise InputError(UNPACKING_FAILED, path=path, packing=packing, reason=str(error).splitlines()[0]) from error
        yield copy
