"""Files that a job writes: folders, copies, modes, removal. Failures raise :class:`OutputError`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Final

from bansong.cloud.object_store import look_at_object
from bansong.cloud.remote_files import fetch_file
from bansong.cloud.remote_path import RemotePath, is_remote
from bansong.errors import OutputError, Problem
from bansong.library_messages import describe_os_error
from bansong.run.alerts import kept_alert
from bansong.schema import Alert, seoul_day
from bansong.tables import publish_file
from bansong.tables.publish import backed_up, find_foreign, make_folder

MODE_NOT_SET: Final = Problem("jobs.mode_not_set", "{path}: its mode cannot be made {mode:o}: {strerror}; check `mode`")
OLD_FILE_STAYS: Final = Problem("jobs.old_file_stays", "{path}: is old and cannot be removed: {strerror}")

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def copy_file(source: Path, target: Path, mode: int) -> tuple[Alert, ...]:
    """Copy a file atomically; return alerts about kept copies that somebody edited."""
    make_folder(target.parent)
    with ExitStack() as backups, publish_file(target) as temporary, fetch_file(source) as data:
        shutil.copyfile(data.path, temporary)
        foreign = find_foreign({target: temporary})
        alerts = tuple(kept_alert(path, backups.enter_context(backed_up(path, path))) for path in foreign)
    set_mode(target, mode)
    return alerts


def set_mode(path: Path, mode: int) -> None:
    """Set a file's mode if it differs; an object's access is its bucket's."""
    if is_remote(path):
        return
    try:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
    except OSError as error:
        raise OutputError(MODE_NOT_SET, path=path, mode=mode, strerror=describe_os_error(error)) from error


def remove_old_outputs(outputs: Iterable[Path], before: date) -> list[Path]:
    """Remove outputs with a day before ``before`` in their names; return those that are gone.

    The day in a name may be the list's, so files written on that day or later stay, as do names without a day and
    objects in a bucket, which has its own rules. Raises :class:`OutputError` for the first that cannot be removed.
    """
    gone: list[Path] = []
    for path in outputs:
        days = [day for day in map(_day_of, _DAY.findall(path.name)) if day is not None]
        if is_remote(path) or not days or max(days) >= before:
            continue
        try:
            if path.exists() and seoul_day(path.stat().st_mtime) >= before:
                continue
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(OLD_FILE_STAYS, path=path, strerror=describe_os_error(error)) from error
        gone.append(path)
    return gone


def _day_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def about_file(path: Path) -> str:
    """Return size and time of change of a file, or the version of an object, as text; empty if missing.

    Raises :class:`InputError` for a store that does not answer.
    """
    if isinstance(path, RemotePath):
        version = look_at_object(path)
        return (version and version.label) or ""
    try:
        about = path.stat()
    except OSError:
        return ""
    return f"{about.st_size} {about.st_mtime_ns}"
