"""Private files and folders, syncing, locks, and network mounts, on every platform.

What Windows lacks (modes of open files, synced folders, `flock`, `pread`) is handled here alone. Callers close files
before they move or remove them, as Windows demands.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_TABLE: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    (
        *("afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse"),
        *("fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncp", "ncpfs", "nfs"),
        *("nfs4", "orangefs", "pvfs2", "smb2", "smb3", "smbfs"),
    )
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def mount_table() -> str:
    """Return the kernel's list of mounts; empty on other platforms."""
    try:
        return _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def network_file_system(folder: Path, table: str) -> str | None:
    """Return the network file system that ``folder`` (absolute, resolved) is on, or ``None``.

    The mount with the longest matching path counts; of two at one path the later, which hides the earlier.
    """
    above = {str(folder), *map(str, folder.parents)}
    longest, kind = "", ""
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        if point in above and len(point) >= len(longest):
            longest, kind = point, kinds[0]
    return kind if kind in _NETWORK else None


def new_run_id(started: datetime) -> str:
    """Return a run's id: its start and a random part (``20261121T081500-3f9a2c``)."""
    return f"{started.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


PRIVATE: Final = 0o600
_PRIVATE_FOLDER: Final = "bansong-private-"
_PRIVATE_FOLDERS: Final = (_PRIVATE_FOLDER, "bizverify-private-")
"""Folders left by releases with the former name hold addresses, too."""
_STALE_S: Final = 24 * 3600.0
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
"""Without it Windows changes line ends."""


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, all with mode 0700; ``mkdir`` would give parents another."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)


def create_private(path: Path) -> int:
    """Create a file (0600) and return a descriptor for writing; raise FileExistsError."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BINARY, PRIVATE)


def open_private(path: Path, *, append: bool = False) -> int:
    """Open a file for reading and writing (``append``: at its end); create it (0600) if missing."""
    return os.open(path, os.O_CREAT | os.O_RDWR | _BINARY | (os.O_APPEND if append else 0), PRIVATE)


def set_mode(descriptor: int, path: Path, mode: int) -> None:
    """Set the mode of an open file; by ``path`` where descriptors cannot be used."""
    os.chmod(descriptor if os.chmod in os.supports_fd else path, mode)  # noqa: PTH101 - Path.chmod takes no descriptor


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def last_byte(descriptor: int) -> bytes:
    """Return the last byte of an open file, if any; moves the read position."""
    if not os.lseek(descriptor, 0, os.SEEK_END):
        return b""
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1)


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder by name; nothing if it is missing or a file.

    Raises OSError for an unreadable folder, which ``Path.glob`` reports as empty.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def sync_file(path: Path) -> None:
    """Flush a file to the disk.

    Windows needs write access for that; elsewhere a read-only file can be synced, too.
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
    """Flush the names in a folder to the disk, where the system can (not Windows)."""
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
    """Lock a file until its descriptor is closed or the process dies; return whether that worked.

    On Windows it always does: the system protects open files from being moved or removed.
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
    """Remove a file that no process has locked; raise OSError if the system protects it."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        is_free = lock_file(descriptor)
    finally:
        os.close(descriptor)
    if is_free:
        path.unlink()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder for its owner alone, removed with its content after the block.

    It is locked while this process lives. Folders left by processes killed a day ago or more are removed: they hold
    addresses.
    """
    _sweep_private(tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix=_PRIVATE_FOLDER, ignore_cleanup_errors=True)
    lock = _lock_folder(folder.name)
    try:
        yield Path(folder.name)
    finally:
        try:
            if lock is not None:
                os.close(lock)
            folder.cleanup()
        except KeyboardInterrupt:  # came while it was removed, and people's data must not stay
            folder.cleanup()
            raise


def _lock_folder(folder: str) -> int | None:
    """Open and lock a folder; ``None`` if it is locked or folders cannot be locked (Windows)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    if lock_file(descriptor):
        return descriptor
    os.close(descriptor)
    return None


@functools.cache
def _sweep_private(place: str) -> None:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PRIVATE_FOLDERS) and _is_left(entry.stat(follow_symlinks=False)):
                lock = _lock_folder(entry.path)
                if lock is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def _is_left(found: os.stat_result) -> bool:
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == (os.getuid() if hasattr(os, "getuid") else found.st_uid)
    return is_ours and time.time() - found.st_mtime > _STALE_S
