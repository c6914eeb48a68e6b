"""Private files and their folder, what puts them on the disk the same way on every platform, and network mounts.

What Windows lacks (modes of open files, folders that can be synced, `flock`, `pread`) is found missing here and nowhere
else. What it refuses beside, to move or remove a file that is open, the callers heed: they close first.
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
    """The kernel's list of mounts; empty where there is none (other platforms)."""
    try:
        return _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def network_file_system(folder: Path, table: str) -> str | None:
    """Return the kind of network file system that ``folder`` (absolute, without links) is on, or ``None``.

    The mount with the longest path above it counts, and of two at one path the later: it hides the earlier.
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
    """A run's id: when it started, and a random part (``20261121T081500-3f9a2c``)."""
    return f"{started.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


PRIVATE: Final = 0o600
_PRIVATE_FOLDER: Final = "bansong-private-"
_PRIVATE_FOLDERS: Final = (_PRIVATE_FOLDER, "bizverify-private-")
"""With that of the former name: what an older release left holds addresses, too."""
_STALE: Final = 24 * 3600.0
_BYTES: Final[int] = getattr(os, "O_BINARY", 0)
"""Windows ends lines its own way in a file that is opened without it."""


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are not there, all for the owner alone: ``mkdir`` opens those above."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)


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


def list_folder(folder: Path) -> list[Path]:
    """Return what a folder holds, by name; nothing of one that is not there, or where a file stands in its place.

    Raises OSError for a folder that cannot be read, which ``Path.glob`` takes for an empty one.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


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


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that only its owner may enter, gone with all that it holds when the block ends.

    It is locked for as long as this process lives. Those that processes have left which were killed a day ago hold
    people's addresses, too, and are removed.
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
    """Open and lock a folder; ``None`` where another has its lock, or the system locks no folders (Windows)."""
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
    """Remove private folders of the same user that are a day old and that no process has, once for each place."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PRIVATE_FOLDERS) and _is_left(entry.stat(follow_symlinks=False)):
                lock = _lock_folder(entry.path)
                if lock is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def _is_left(found: os.stat_result) -> bool:
    """Whether a private folder of this user has not been touched for a day."""
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == (os.getuid() if hasattr(os, "getuid") else found.st_uid)
    return is_ours and time.time() - found.st_mtime > _STALE
