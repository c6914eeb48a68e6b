"""Private files, and what puts them on the disk, the same way on every platform.

What Windows lacks (modes of open files, folders that can be synced, `flock`, `pread`) is found missing here and nowhere
else. What it refuses beside, to move or remove a file that is open, the callers heed: they close first.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
_BYTES: Final[int] = getattr(os, "O_BINARY", 0)
"""Windows ends lines its own way in a file that is opened without it."""


def create_private(path: Path) -> int:
    """Create a file, mode 0600, and return a descriptor to write bytes; raise FileExistsError where there is one."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BYTES, PRIVATE)


def open_private(path: Path, *, append: bool = False) -> int:
    """Open a file to read and write bytes, all of them at its end with ``append``; make it, mode 0600, if need be."""
    return os.open(path, os.O_CREAT | os.O_RDWR | _BYTES | (os.O_APPEND if append else 0), PRIVATE)


def set_mode(descriptor: int, path: Path, mode: int) -> None:
    """Set the mode of an open file, by ``path`` where the system cannot by descriptor."""
    os.chmod(descriptor if os.chmod in os.supports_fd else path, mode)  # noqa: PTH101 - Path.chmod takes no descriptor


def last_byte(descriptor: int) -> bytes:
    """Return the last byte of an open file, none of an empty one; moves the place where it is read."""
    if not os.lseek(descriptor, 0, os.SEEK_END):
        return b""
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1)


def sync_file(path: Path) -> None:
    """Put on the disk what was written to a file.

    Windows does that only for who may write, so it is opened to write; elsewhere a read-only file can be synced, too.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Put on the disk which names a folder has, where the system opens folders (not Windows) and can sync them."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def lock_file(descriptor: int) -> bool:
    """Lock a file until its descriptor is closed or the process dies; return whether it could be had.

    On Windows it always can: the system itself neither moves nor removes a file that a process has open.
    """
    try:
        import fcntl
    except ImportError:
        return True
    with suppress(OSError):  # another's, or a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def remove_unless_locked(path: Path) -> None:
    """Remove a file of which no process has the lock; raise OSError where the system protects one that is open."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        is_free = lock_file(descriptor)
    finally:
        os.close(descriptor)
    if is_free:
        path.unlink()
