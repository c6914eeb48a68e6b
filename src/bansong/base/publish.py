"""Publish files atomically: whole, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Final

from bansong.base.errors import BansongError, InputError, OutputError, Problem
from bansong.base.files import (
    PRIVATE,
    RemotePath,
    create_private,
    is_remote,
    lock_file,
    make_folders,
    remove_unless_locked,
    set_mode,
    state_directory,
    sync_file,
    sync_folder,
)
from bansong.base.messages import describe_os_error
from bansong.base.remote import RemoteVersion, fetch_file, look_at_output, publish_remote, unfinished_error

OUTPUT_IS_FOLDER: Final = Problem("files.output_is_folder", "{target}: is a folder; name a file in it")
OUTPUT_FOLDER_MISSING: Final = Problem(
    "files.output_folder_missing", "{target}: the folder {parent} does not exist; create it first"
)
OUTPUT_NOT_PUBLISHED: Final = Problem("files.output_not_published", "{target}: cannot be written: {reason}")
BACKUP_FAILED: Final = Problem(
    "files.backup_failed", "{target}: cannot be backed up: {reason}; give another output or `backup=False`"
)
OUTPUT_UNWRITABLE: Final = Problem(
    "files.output_unwritable", "{target}: cannot be written: {reason}; choose another output"
)
FOLDER_UNMAKEABLE: Final = Problem("files.folder_unmakeable", "{path}: the folder cannot be made: {reason}")
SOURCE_UNREADABLE: Final = Problem("files.source_unreadable", "{place}cannot be read: {reason}")

_OURS: Final = ".bansong-"
# files of the former name hold customers, too
_UNFINISHED: Final = re.compile(r"\.(bansong|bizverify)-[0-9a-f]{8}-")
# polars names a full disk in the text of its error only
_FULL_DISK: Final = re.compile(rf"\(os error ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EFBIG})\)")
_NAME_KEPT: Final = 100
_STALE_S: Final = 3600.0
_CONTENTS_KNOWN: Final = 100  # how many contents are remembered of all files of one name


@contextmanager
def publish_file(target: Path, seen: RemoteVersion | None = None) -> Iterator[Path]:
    """Yield a temporary file that replaces ``target`` if the block ends without an error."""
    # A remote object is replaced only if it still is the version ``seen`` (default: as the block begins). A local file
    # is made with O_EXCL and mode 0600, or the mode of the replaced file; it and its folder are synced. Raises
    # OutputError, or InputError if the block failed on another file.
    if isinstance(target, RemotePath):
        with publish_remote(target, seen) as finished:
            try:
                with publish_file(finished) as temporary:
                    yield temporary
            except OutputError as error:
                if isinstance(cause := error.__cause__, OSError):
                    raise unfinished_error(target, cause) from cause
                raise
        return
    target = Path(os.path.realpath(target))
    temporary, lock = _reserve(target)
    try:
        try:
            yield temporary
            sync_file(temporary)
        finally:
            os.close(lock)  # Windows neither moves nor removes an open file
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        if _is_of_another_file(error, temporary):
            place = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
            raise InputError(SOURCE_UNREADABLE, place=place, reason=describe_os_error(error)) from error
        raise OutputError(OUTPUT_NOT_PUBLISHED, target=target, reason=describe_os_error(error)) from error
    except Exception as error:
        full = None if isinstance(error, BansongError) else _FULL_DISK.search(str(error))
        if full is None:
            raise
        reason = describe_os_error(OSError(int(full[1]), os.strerror(int(full[1]))))
        raise OutputError(OUTPUT_NOT_PUBLISHED, target=target, reason=reason) from error
    finally:
        with suppress(OSError):  # an open file must not hide the error; the next run removes it
            temporary.unlink(missing_ok=True)


@contextmanager
def backed_up(target: Path, apart_from: Path) -> Iterator[Path]:
    """Yield a backup of ``target`` (``NAME.bak``, ``.bak2``, …); remove it if ``target`` was not replaced."""
    # It is a hard link, which keeps mode, owner and times, else a synced copy. ``apart_from``: a name to leave free.
    if isinstance(target, RemotePath):
        names = (target.with_name(f"{target.name}.bak{again if again > 1 else ''}") for again in count(1))
        copy = next(name for name in names if look_at_output(name) is None)
        with fetch_file(target) as earlier, publish_file(copy) as temporary:
            shutil.copyfile(earlier.path, temporary)
        yield copy
        return
    called, target = target, Path(os.path.realpath(target))
    before = target.stat()
    try:
        backup = _backup(target, apart_from)
    except OSError as error:
        raise OutputError(BACKUP_FAILED, target=target, reason=describe_os_error(error)) from error
    try:
        sync_folder(target.parent)
        yield backup if called.is_symlink() else called.with_name(backup.name)
    finally:
        with suppress(OSError):  # if that is unknown, the backup stays
            if os.path.samestat(before, target.stat()):
                backup.unlink()


def find_foreign(files: Mapping[Path, Path], *, extends: bool = False) -> list[Path]:
    """Return the files to be replaced that bansong did not write, and record the contents that replace them."""
    # ``files``: the finished file by path; ``extends``: it keeps the old rows, so a foreign file is not recorded
    foreign = []
    for path, finished in files.items():
        if is_remote(path):
            continue
        record = record_of_name(path)
        with ThreadPoolExecutor(2) as pool:
            known, (old, new) = _read_record(record), pool.map(_digest, (path, finished))
        if old == new:  # nothing changes: a foreign content stays foreign
            continue
        if old not in (None, *known):
            foreign.append(path)
            if extends:
                continue
        with suppress(OSError):  # without a record, the next run keeps a needless copy
            make_folders(record.parent)
            written = [*(one for one in known if one != new), new or ""]
            record.write_text("\n".join(written[-_CONTENTS_KNOWN:]), encoding="ascii")
    return foreign


def is_foreign(path: Path) -> bool:
    """Whether a local file is there and was not written by bansong."""
    return _digest(path) not in (None, *_read_record(record_of_name(path)))


def record_of_name(path: Path) -> Path:
    """Return the file that records what bansong wrote under a name, in whatever folder, as folders may be moved."""
    name = os.path.basename(os.path.realpath(path))  # noqa: PTH119 - of a link, the file it leads to
    return state_directory() / "written" / hashlib.sha256(os.fsencode(name)).hexdigest()


def _read_record(record: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return record.read_text(encoding="ascii").split()
    return []


def _digest(path: Path) -> str | None:
    with suppress(OSError):  # publishing reports an unreadable file
        about = path.stat()
        return _digest_of(path, about.st_ino, about.st_size, about.st_mtime_ns)
    return None


@lru_cache(maxsize=8)  # a file to be replaced is looked at before the run and after it
def _digest_of(path: Path, *_state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, also through links. The file need not exist."""
    with suppress(OSError):  # a name that is too long: using it fails with a message
        if one.exists() and other.exists():
            return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def is_unfinished(path: Path) -> bool:
    """Whether a file is a temporary file of a run."""
    return _UNFINISHED.match(path.name) is not None


def remove_unfinished(folder: Path) -> None:
    """Remove all temporary files of killed runs from a folder; raise OSError."""
    for left in [path for path in folder.iterdir() if is_unfinished(path)]:
        remove_unless_locked(left)


def _is_of_another_file(error: OSError, temporary: Path) -> bool:
    # errors of writing itself name no file
    if error.filename is not None:
        return bool(os.fsdecode(error.filename) != str(temporary))
    # polars has the path in the text only; the temporary file exists, so another file is missing
    return isinstance(error, FileNotFoundError | PermissionError) and str(temporary) not in str(error)


def _reserve(target: Path) -> tuple[Path, int]:
    """Create the temporary file; return it and a descriptor that holds its lock."""
    if os.path.isdir(target):  # noqa: PTH112 - Path.is_dir raises where a name is too long
        raise OutputError(OUTPUT_IS_FOLDER, target=target)
    if not target.parent.is_dir():
        raise OutputError(OUTPUT_FOLDER_MISSING, target=target, parent=target.parent)
    sweep_unfinished(target.parent)
    kept = target.name.encode("utf-8", "ignore")[-_NAME_KEPT:].decode("utf-8", "ignore")  # file systems allow no more
    temporary = target.with_name(f"{_OURS}{secrets.token_hex(4)}-{kept}")
    descriptor = None
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else PRIVATE
        descriptor = create_private(temporary)
        lock_file(descriptor)
        set_mode(descriptor, temporary, mode)
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OutputError(OUTPUT_UNWRITABLE, target=target, reason=describe_os_error(error)) from error
    return temporary, descriptor


def sweep_unfinished(folder: Path) -> None:
    """Remove temporary files older than an hour that no run has locked. A new one may not be locked yet."""
    with suppress(OSError):
        for left in [path for path in folder.iterdir() if is_unfinished(path)]:
            with suppress(OSError):  # Windows does not remove what another run has open
                if time.time() - left.lstat().st_mtime > _STALE_S:
                    remove_unless_locked(left)


def _backup(target: Path, apart_from: Path) -> Path:
    for again in count(1):
        backup = target.with_name(f"{target.name}.bak{again if again > 1 else ''}")
        if same_file(backup, apart_from):
            continue
        with suppress(FileExistsError):
            try:
                os.link(target, backup)
            except FileExistsError:
                raise
            except OSError:  # no hard links here
                _copy(target, backup)
            return backup
    raise AssertionError("count() has no end")


def _copy(target: Path, backup: Path) -> None:
    os.close(create_private(backup))
    try:
        with publish_file(backup) as temporary:
            shutil.copy2(target, temporary)
    except BaseException:
        backup.unlink()
        raise


def make_folder(folder: Path) -> None:
    """Create a folder and its parents (0700); raise :class:`OutputError`."""
    if is_remote(folder):
        return
    try:
        make_folders(folder)
    except OSError as error:
        raise OutputError(FOLDER_UNMAKEABLE, path=folder, reason=describe_os_error(error)) from error
