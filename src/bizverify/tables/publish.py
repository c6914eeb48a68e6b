"""Files appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bizverify.errors import InputError, OutputError

PRIVATE = 0o600


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``target`` that takes its place when the block ends without an error.

    The file is created with O_EXCL and mode 0600 (it may hold people's addresses; the mode of a file that is
    replaced is kept), synced, moved by ``os.replace``, and its folder synced. After an error or a crash ``target``
    is what it was. A symbolic link is followed, not replaced. Raises :class:`OutputError`; :class:`InputError` where
    the block failed on another file.
    """
    target = Path(os.path.realpath(target))
    temporary = _reserve(target)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        if _is_of_another_file(error, temporary):
            place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
            raise InputError(f"{place}cannot be read: {error.strerror or error}") from error
        raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, through links of either kind too; it need not exist yet."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _is_of_another_file(error: OSError, temporary: Path) -> bool:
    """Whether an error in the block is not about the file that is written. Writing itself names no file."""
    if error.filename is not None:
        return bool(os.fsdecode(error.filename) != str(temporary))
    # polars puts the path into the text; the temporary file is there and ours, so it is not what is missing
    return isinstance(error, FileNotFoundError | PermissionError) and str(temporary) not in str(error)


def _reserve(target: Path) -> Path:
    if target.is_dir():
        raise OutputError(f"{target}: is a folder; name a file in it")
    if not target.parent.is_dir():
        raise OutputError(f"{target}: the folder {target.parent} does not exist; create it first")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else PRIVATE
    temporary = target.with_name(f".bizverify-{secrets.token_hex(4)}-{target.name[-100:]}")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE)
        os.fchmod(descriptor, mode)
        os.close(descriptor)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}; choose another output") from error
    return temporary


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
