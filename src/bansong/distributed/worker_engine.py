"""A local engine that travels to workers: small, its files by name, opened once a process."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from bansong.engine import Gazetteer, LocalEngine, Registry
from bansong.engine.registry import ATTACHED
from bansong.engine.status_overlay import StatusOverlay
from bansong.errors import GazetteerError, RegistryError
from bansong.schema import seoul_day
from bansong.translation import gettext

FindFile = Callable[[str], Path]
"""Returns where a worker has a file that is known by its path where the program runs; picklable."""

_KEPT: Final = 2
_lock: Final = threading.Lock()
_opened: Final[dict[str, LocalEngine]] = {}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A registry or gazetteer: its path where the program runs, and the version that it has there."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class WorkerEngine:
    """What a worker needs to have the same engine: reference files by name and version, all else pickled.

    ``find_file``: where a worker has the files, by default at the same path.
    """

    registry: FileVersion | None
    gazetteer: FileVersion | None
    rest: bytes
    find_file: FindFile = Path

    @classmethod
    def of(cls, engine: LocalEngine) -> WorkerEngine:
        """Take an engine apart; a day is chosen for all workers where it has none."""
        other = copy(engine)
        other.today = engine.today or seoul_day()
        other.registry = other.gazetteer = None
        if engine.status is not None and engine.status.path is not None:  # of a file; statuses are few, and travel
            other.status = StatusOverlay(
                pl.read_parquet(engine.status.path, glob=False), aged_before=engine.status.aged_before
            )
        registry, gazetteer = engine.registry, engine.gazetteer
        return cls(
            FileVersion(str(registry.path.absolute()), registry.version) if registry else None,
            FileVersion(str(gazetteer.path.absolute()), gazetteer.version) if gazetteer else None,
            pickle.dumps(other),
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of its reference files, where the program runs."""
        return tuple(file.path for file in (self.registry, self.gazetteer) if file is not None)

    def open(self) -> LocalEngine:
        """Return the engine, opened and read once a process; those of the last two runs are kept.

        Raises :class:`RegistryError`, :class:`GazetteerError` where a worker has no such file, or another version.
        """
        key = hashlib.sha256(repr((self.registry, self.gazetteer)).encode() + self.rest).hexdigest()
        with _lock:  # the engine of a cluster may call from several threads; none of them is one of polars' own
            if key not in _opened:
                while len(_opened) >= _KEPT:
                    _opened.pop(next(iter(_opened)))
                _opened[key] = self._open()
            return _opened[key]

    def _open(self) -> LocalEngine:
        engine: LocalEngine = pickle.loads(self.rest)  # noqa: S301 - our own, see WorkerEngine.of
        if self.registry is not None:
            engine.registry = Registry.open(self.find_file(self.registry.path))
            if engine.registry.version != self.registry.version:
                raise RegistryError(_other_version("registry", engine.registry, self.registry))
            engine.registry.find(ATTACHED, pl.Series(dtype=pl.UInt64))  # read now, by one thread
        if self.gazetteer is not None:
            engine.gazetteer = Gazetteer.open(self.find_file(self.gazetteer.path))
            if engine.gazetteer.version != self.gazetteer.version:
                raise GazetteerError(_other_version("gazetteer", engine.gazetteer, self.gazetteer))
            _ = engine.gazetteer.tables
        return engine


def _other_version(kind: str, here: Registry | Gazetteer, wanted: FileVersion) -> str:
    return gettext(
        "{path}: the {kind} of this worker is version {version}, and version {wanted_version} "
        "where the program runs: rows would be answered by two of them; put the same file on "
        "every machine, and start the session again where the engine keeps what it has copied",
        path=here.path,
        kind=kind,
        version=here.version,
        wanted_version=wanted.version,
    )
