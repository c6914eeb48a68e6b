"""Files appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bizverify.errors import OutputError

PRIVATE = 0o600


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``target`` that takes its place when the block ends without an error.

    The file is created with O_EXCL and mode 0600 (it may hold people's addresses; the mode of a file that is
    replaced is kept), synced, moved by ``os.replace``, and its folder synced. After an error or a crash ``target``
    is what it was. A symbolic link is followed, not replaced. Raises :class:`OutputError`.
    """
    target = Path(os.path.realpath(target))
    temporary = _reserve(target)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


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
