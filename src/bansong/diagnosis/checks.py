"""Checks shared by the doctor and `serve --check`: versions, extras, reference data, statuses, disk."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bansong._version import __version__
from bansong.diagnosis.findings import Finding, Level
from bansong.engine import Gazetteer, Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.models.model_store import resolve_model
from bansong.reference.status_store import find_status_store
from bansong.run.alerts import stale_registry_alert
from bansong.translation import gettext, gettext_noop, ngettext
from bansong.watch.local_file import WATCH_FILE

EXTRAS: Final = {
    "learn": (("numpy",), gettext_noop("to learn the scorecard from letters (`bansong calibrate`)")),
    "server": (
        ("starlette", "uvicorn", "python_multipart", "prometheus_client", "numpy"),
        gettext_noop("to run the service yourself (`bansong serve`)"),
    ),
    "cloud": (("obstore",), gettext_noop("to read and write files at s3://, gs:// and az://")),
    "fast": (("uvloop",), gettext_noop("for more requests a second of the processor")),
    "notebook": (("pandas", "ipykernel"), gettext_noop("for pandas frames and notebooks")),
}
"""Modules and purpose of each extra."""
_CALLED: Final = (
    *(gettext_noop("extra learn"), gettext_noop("extra server"), gettext_noop("extra cloud")),
    *(gettext_noop("extra fast"), gettext_noop("extra notebook")),
)
"""For translation."""
_PACKAGES: Final = ("polars", "pyarrow", "openpyxl", "fastexcel", "httpx")
_ROOM: Final = 1 << 30
"""A run writes little besides its output; a server needs room for uploads."""
_LEAST: Final = 16 << 20
_DATA: Final = gettext_noop("docs/data-sources.md says where it comes from")


def look_at_versions() -> Iterator[Finding]:
    yield Finding("bansong", "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()} ({platform.system()} {platform.machine()})")
    for package in _PACKAGES:
        yield Finding(package, "ok", _version_of(package) or gettext("there, of an unknown version"))
    if sqlite3.sqlite_version_info < WATCH_FILE.minimum:
        needed = ".".join(map(str, WATCH_FILE.minimum[:2]))
        remedy = gettext("use a Python that comes with a newer SQLite, or update SQLite")
        said = gettext(
            "{sqlite_version}, and {needed} or newer is needed", sqlite_version=sqlite3.sqlite_version, needed=needed
        )
        yield Finding("SQLite", "error", said, remedy)
    else:
        yield Finding("SQLite", "ok", sqlite3.sqlite_version)


def look_at_extras() -> Iterator[Finding]:
    for name in EXTRAS:
        yield from look_at_extra(name)


def look_at_extra(name: str, missing: Level = "note") -> Iterator[Finding]:
    """Check an extra; ``missing``: the level of the finding if it is not installed."""
    modules, purpose = EXTRAS[name]
    called = next(one for one in _CALLED if one.endswith(name))
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        remedy = f"pip install 'bansong[{name}]'"
        if missing == "note":
            remedy = gettext("{command}, if you want it", command=remedy)
        said = gettext("not installed ({absent}): {purpose}", absent=", ".join(absent), purpose=gettext(purpose))
        yield Finding(called, missing, said, remedy)
    else:
        yield Finding(called, "ok", gettext("installed: {purpose}", purpose=gettext(purpose)))


def look_at_model(name: str | Path | None) -> Iterator[Finding]:
    card = resolve_model(name)
    builtin = Scorecard.load()
    learned = (
        gettext("the built-in one")
        if card is builtin
        else gettext("beside the built-in {version}", version=builtin.version)
    )
    yield Finding("scorecard", "ok", f"{card.version}, {learned}")


def look_at_registry(path: Path | None, model: str | Path | None, today: date) -> Iterator[Finding]:
    if path is None:
        remedy = gettext("give `registry=`, or have statuses fetched with `status='nts'`; {data}", data=gettext(_DATA))
        yield Finding(
            "registry", "note", gettext("none was given, so the local engine knows no status by itself"), remedy
        )
        return
    registry = Registry.open(path)
    registry.check()
    age = (
        gettext("of days that are not known")
        if registry.newest is None
        else gettext("newest status of {age_of}", age_of=_age_of(registry.newest, today))
    )
    said = ngettext(
        "{path}: {count:,} business, {age}, version {version}",
        "{path}: {count:,} businesses, {age}, version {version}",
        registry.rows,
        path=registry.path,
        age=age,
        version=registry.version,
    )
    if stale := stale_registry_alert(registry, resolve_model(model).stale_after, today):
        yield Finding("registry", "warning", said, gettext("{stale}; or `bansong data refresh-registry`", stale=stale))
    else:
        yield Finding("registry", "ok", said)


def look_at_statuses(path: Path, today: date) -> Iterator[Finding]:
    store = find_status_store(path)
    if store is None:
        yield Finding("status store", "note", gettext("{path}: there is none, so no status was fetched yet", path=path))
        return
    with store:
        found = store.summary()
    held = ngettext("{count:,} status", "{count:,} statuses", found.numbers)
    ages = []
    if found.newest:
        ages.append(gettext("newest of {age}", age=_age_of(found.newest, today)))
    if found.oldest:
        ages.append(gettext("oldest of {age}", age=_age_of(found.oldest, today)))
    yield Finding("status store", "ok" if found.numbers else "note", ", ".join([f"{path}: {held}", *ages]))


def look_at_gazetteer(path: Path | None, today: date) -> Iterator[Finding]:
    if path is None:
        remedy = gettext("give `gazetteer=`, built by `bansong data build-gazetteer`; {data}", data=gettext(_DATA))
        yield Finding("gazetteer", "note", gettext("none was given, so addresses are not corrected"), remedy)
        return
    gazetteer = Gazetteer.open(path)
    gazetteer.check()
    age = (
        ""
        if gazetteer.source_date is None
        else gettext(", addresses of {age_of}", age_of=_age_of(gazetteer.source_date, today))
    )
    said = gettext("{path}: version {version}{age}", path=gazetteer.path, version=gazetteer.version, age=age)
    yield Finding("gazetteer", "ok", said)
    for caution in gazetteer.cautions(today):
        yield Finding("gazetteer", "warning", caution)


def look_at_folder(what: str, folder: Path, remedy: str) -> Iterator[Finding]:
    """Check that a folder, or the one it will be made in, is writable and has room.

    ``remedy``: if it is not writable.
    """
    there = next((one for one in (folder, *folder.absolute().parents) if one.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(what, "error", gettext("{there}: is no folder that can be written to", there=there), remedy)
        return
    free = shutil.disk_usage(there).free
    room = gettext("{free:,.1f} GB free", free=free / (1 << 30))
    said = f"{folder}: {room}" if there == folder else gettext("{path}: not made yet, {room}", path=folder, room=room)
    level: Level = "ok" if free >= _ROOM else "warning" if free >= _LEAST else "error"
    yield Finding(what, level, said, None if level == "ok" else gettext("free space on that disk"))


def look_at_mode(what: str, path: Path, mode: int) -> Iterator[Finding]:
    """Check that others cannot read a file or folder; ``mode``: the mode that prevents it."""
    found = stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0
    if found & 0o077:
        remedy = gettext("chmod {mode:o} {path}: what it holds is about people", mode=mode, path=path)
        yield Finding(
            what, "warning", gettext("{path}: others may look into it (mode {found:o})", path=path, found=found), remedy
        )


def _age_of(day: date, today: date) -> str:
    return ngettext("{day} ({count:,} day ago)", "{day} ({count:,} days ago)", (today - day).days, day=day)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
