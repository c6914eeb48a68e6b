"""Private files and folders, the state directory, environment variables, and URLs as paths."""
# Only this module works around Windows, which lacks modes of open files, synced folders and `flock`. All other code
# closes files before it moves or removes them, as Windows demands.

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.messages import describe_os_error, gettext

STATE_DIR: Final = "BANSONG_STATE_DIR"
_LEDGER: Final = "ledger.sqlite"
_log = logging.getLogger(__name__)


def variable(name: str) -> str | None:
    """Return an environment variable ``BANSONG_…``; if only ``BIZVERIFY_…`` is set, return that."""
    former = name.replace("BANSONG_", "BIZVERIFY_", 1)
    if name in os.environ or former not in os.environ:
        return os.environ.get(name)
    _notice(gettext("{former} is called {name} now; it is still read", former=former, name=name))
    return os.environ[former]


def state_directory() -> Path:
    """Return the state folder: that of bizverify (the former name) if only that exists, or only that has a ledger."""
    if given := variable(STATE_DIR):
        return Path(given)
    from platformdirs import user_state_path

    folder, former = (user_state_path(name, appauthor=False) for name in ("bansong", "bizverify"))
    if not former.is_dir() or (folder / _LEDGER).exists() or (folder.exists() and not (former / _LEDGER).exists()):
        return folder
    _notice(gettext("the state folder of bizverify, the former name, is used: {former}", former=former))
    return former


def installed_path(what: str) -> Path:
    """Return where `bansong data build-registry` and `build-gazetteer` put their file (``what``) without ``-o``."""
    return state_directory() / "data" / f"{what}.parquet"


@functools.cache
def _notice(text: str) -> None:
    _log.warning(text)


_NETWORK: Final = (
    *("afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse"),
    *("fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncp", "ncpfs", "nfs"),
    *("nfs4", "orangefs", "pvfs2", "smb2", "smb3", "smbfs"),
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def mount_table() -> str:
    """Return the kernel's list of mounts; empty on other platforms."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def network_file_system(folder: Path, table: str) -> str | None:
    """Return the type of the network file system that a resolved folder is on, else ``None``."""
    # the deepest mount point in ``table`` counts; of equal ones, the last
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
_PRIVATE_FOLDERS: Final = (_PRIVATE_FOLDER, "bizverify-private-")  # folders of the former name hold addresses, too
_STALE_S: Final = 24 * 3600.0
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)  # without it Windows changes line ends


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, all with mode 0700. ``Path.mkdir`` gives parents another mode."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)


def create_private(path: Path) -> int:
    """Create a file (0600) and return its descriptor; raise FileExistsError if it exists."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BINARY, PRIVATE)


def open_private(path: Path, *, append: bool = False) -> int:
    """Open a file for reading and writing, or with ``append`` for writing at its end; create it (0600) if missing."""
    return os.open(path, os.O_CREAT | os.O_RDWR | _BINARY | (os.O_APPEND if append else 0), PRIVATE)


def set_mode(descriptor: int, path: Path, mode: int) -> None:
    """Set the mode of an open file by its descriptor, or by ``path`` on systems that cannot do so."""
    os.chmod(descriptor if os.chmod in os.supports_fd else path, mode)  # noqa: PTH101 - Path.chmod takes no descriptor


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write the whole content, even if the system writes it in parts."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def last_byte(descriptor: int) -> bytes:
    """Return the last byte of an open file, empty for an empty file."""
    if not os.lseek(descriptor, 0, os.SEEK_END):
        return b""
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1)


def list_folder(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder. A missing folder has none; an unreadable one raises :class:`OSError`."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def sync_file(path: Path) -> None:
    """Flush a file to the disk. Windows needs write access for that; elsewhere reading is enough."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's directory entries to the disk, if the system can."""
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
    """Lock a file until its descriptor is closed; return whether that worked. Windows protects open files itself."""
    try:
        import fcntl
    except ImportError:
        return True
    with suppress(OSError):  # locked by another process, or a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def remove_unless_locked(path: Path) -> None:
    """Remove a file unless a process holds its lock."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        is_free = lock_file(descriptor)
    finally:
        os.close(descriptor)
    if is_free:
        path.unlink()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a locked temporary folder (0700), removed after the block. First remove old ones of killed runs."""
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
        except KeyboardInterrupt:  # personal data must not stay
            folder.cleanup()
            raise


def _lock_folder(folder: str) -> int | None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        if lock_file(descriptor):
            return descriptor
        os.close(descriptor)
    return None


@functools.cache
def _sweep_private(place: str) -> None:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            is_left = entry.name.startswith(_PRIVATE_FOLDERS) and _is_left(entry.stat(follow_symlinks=False))
            if is_left and (lock := _lock_folder(entry.path)) is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)


def _is_left(found: os.stat_result) -> bool:
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == (os.getuid() if hasattr(os, "getuid") else found.st_uid)
    return is_ours and time.time() - found.st_mtime > _STALE_S


FILE_UNREADABLE: Final = Problem("manifest.file_unreadable", "{path}: cannot be read: {reason}")

_CHUNK: Final = 1 << 20


def sha256_of(path: Path, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file in hexadecimal. Reading ends early if ``is_stopped`` returns true."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while not is_stopped() and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
        return digest.hexdigest()
    except OSError as error:
        raise InputError(FILE_UNREADABLE, path=path, reason=describe_os_error(error)) from error


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

STORES: Final = ("s3", "gs", "az")  # schemes that are read and written; ``https`` is only read
_URL: Final = re.compile(r"(s3|gs|az|https):(/{1,2})(?!/)([^/].*)", re.IGNORECASE | re.DOTALL)
_ODD: Final = re.compile(r"[\x00-\x1f\x7f\\]")


class RemotePath(_LocalPath):
    """The path of a remote file. No text shows its ``query``: it may hold a signature."""

    query: str = ""
    is_folder: bool = False

    def __str__(self) -> str:
        if not self.parts:  # its topmost parent: from Python 3.12 on pathlib compares it as text
            return "."
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def __rtruediv__(self, folder: Any) -> RemotePath:
        return self

    def relative_to(self, *other: Any, **options: Any) -> Path:  # type: ignore[override]
        return Path(super().relative_to(*other, **options))

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002 - as the class above has it
        return self

    absolute = expanduser = resolve

    def is_absolute(self) -> bool:
        return True

    @property
    def scheme(self) -> str:
        return self.parts[0].removesuffix(":")

    @property
    def bucket(self) -> str:
        return self.parts[1]

    @property
    def key(self) -> str:
        return "/".join(self.parts[2:])

    @property
    def identity(self) -> str:
        """The whole URL, for comparison. It must not be shown."""
        return f"{self}?{self.query}" if self.query else str(self)


def is_remote(path: str | Path) -> bool:
    """Whether a path is a URL of an object store or the web."""
    return isinstance(path, RemotePath)


def as_path(given: str | Path) -> Path:
    """Return a :class:`RemotePath` for a URL of a known scheme, else a local path as spelled on the disk."""
    if isinstance(given, RemotePath):
        return given
    found = _URL.fullmatch(os.fspath(given))
    if found is None or (found[2] == "/" and (isinstance(given, str) or os.path.lexists(given))):
        return path_on_disk(Path(given))
    scheme, rest = found[1].lower(), found[3]
    if scheme == "https":
        rest = rest.partition("#")[0]
    rest, mark, query = rest.partition("?")
    host, slash, name = rest.partition("/")
    if "@" in host:
        raise UsageError(URL_HOLDS_PASSWORD, url=f"{scheme}://***@{host.rpartition('@')[2]}{slash}{name}")
    if mark and scheme in STORES:
        raise UsageError(URL_HOLDS_QUERY, url=f"{scheme}://{rest}?***")
    is_folder = rest.endswith("/")
    parts = rest.removesuffix("/").split("/")
    if _ODD.search(rest) or any(part in ("", ".", "..") for part in parts):
        raise UsageError(URL_PART_INVALID, url=f"{scheme}://{_ODD.sub('�', rest)}")
    path = RemotePath(f"{scheme}:", *parts)
    path.query, path.is_folder = query, is_folder
    return path


def path_on_disk(path: Path) -> Path:
    """Return a path in the disk's spelling: macOS stores Hangul decomposed (NFD), keyboards type NFC."""
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
    """Return a path as the user gave it, a URL without its query."""
    path = as_path(given)
    return str(path if is_remote(path) else given)
