"""Registry and gazetteer files held open and exchanged for newer ones; sources of the registration status."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import anyio.to_thread
import polars as pl

from bansong import business_number
from bansong.engine import Gazetteer, LocalEngine, Registry
from bansong.engine.local import ROW_PROBLEM
from bansong.errors import BansongError

_log = logging.getLogger(__name__)


class _Index(Protocol):
    def check(self) -> None:
        """Raise where the file is damaged."""


T = TypeVar("T", bound=_Index)
DAMAGED: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, RuntimeError, OSError)
"""What reading a damaged file can raise; a panic is no Exception."""

FileStamp = tuple[int, ...]
"""What tells one file of a name from the next: device, inode, size, time of its last change in nanoseconds."""


def stamp_of(file: Path | int) -> FileStamp | None:
    """The stamp of a path or an open file; ``None`` where there is none."""
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class OpenFile:
    """A file that can be read under :attr:`path` for as long as this object lives, whatever takes its name.

    Where the system shows no open files as paths it is read under its name, and not held open: Windows would let no
    other file take that name.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, descriptor)
        self.stamp = stamp_of(descriptor)
        # by the process's number, so that a process begun by this one finds it, too
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        if not self.path.exists():
            self.path = path
            self.close()


class ReferenceFile(Generic[T]):
    """An index and the file it was opened from. Raises what ``open_`` raises when it is made."""

    def __init__(self, path: Path, open_: Callable[[Path], T]) -> None:
        self._path = path
        self._open = open_
        self._refused: FileStamp | None = ()
        self.index, self.held = self._open_file()

    @property
    def is_refused(self) -> bool:
        """Whether what has the name now could not be opened when it was looked at last."""
        return self._refused != ()

    def look(self) -> bool:
        """Whether another file has taken the name, and could be opened; else the one there was goes on serving."""
        stamp = stamp_of(self._path)
        if stamp == self.held.stamp:
            self._refused = ()
            return False
        try:
            index, held = self._open_file()
            index.check()
        except (BansongError, *DAMAGED) as error:
            if stamp != self._refused:
                why = error if isinstance(error, BansongError) else f"{self._path}: {type(error).__name__}"
                _log.warning("the newer file cannot be used, the one before goes on serving: %s", why)
                self._refused = stamp
            return False
        self.index, self.held, self._refused = index, held, ()
        _log.info("%s: a newer file is used from now on", self._path)
        return True

    def _open_file(self) -> tuple[T, OpenFile]:
        try:
            held = OpenFile(self._path)
        except OSError:
            self._open(self._path)  # says better what is wrong
            raise
        try:
            return self._open(held.path), held
        except BansongError as error:
            raise type(error)(str(error).replace(str(held.path), str(self._path))) from error


@dataclass(frozen=True, slots=True)
class ReferenceData:
    """One state of both; whoever works with it keeps it, so that its files stay readable."""

    registry: Registry | None
    gazetteer: Gazetteer | None
    held: tuple[OpenFile, ...]


class ReferenceFiles:
    """Registry and gazetteer of a server, as far as it has them."""

    def __init__(self, registry: Path | None, gazetteer: Path | None) -> None:
        self._registry = None if registry is None else ReferenceFile(registry, Registry.open)
        self._gazetteer = None if gazetteer is None else ReferenceFile(gazetteer, Gazetteer.open)

    def look(self) -> bool:
        """Whether a newer file of either is used from now on; reads a new file whole."""
        looked = [file.look() for file in (self._registry, self._gazetteer) if file is not None]
        return any(looked)

    def refused_files(self) -> dict[str, bool]:
        """Whether what has the name of the registry, the gazetteer cannot be used; of those that the server has."""
        files = {"registry": self._registry, "gazetteer": self._gazetteer}
        return {name: file.is_refused for name, file in files.items() if file is not None}

    def now(self) -> ReferenceData:
        """What is used now."""
        held = tuple(file.held for file in (self._registry, self._gazetteer) if file is not None)
        return ReferenceData(
            None if self._registry is None else self._registry.index,
            None if self._gazetteer is None else self._gazetteer.index,
            held,
        )


class StatusSource(Protocol):
    """Answers rows with an engine, and with statuses that the source knows better than the engine's registry."""

    @property
    def live(self) -> bool:
        """Whether it asks over the network, which ``offline`` forbids."""

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Do what :meth:`bansong.engine.LocalEngine.answer` does; called in a thread."""


@runtime_checkable
class FetchingSource(StatusSource, Protocol):
    """A source that asks for the statuses of rows before it answers them."""

    async def fetch(self, numbers: pl.Series, max_age: float | None = None) -> None:
        """Ask for what it does not know of ``numbers`` (UInt64, each once), or for longer than ``max_age`` days.

        ``max_age``: by default what its own settings say. It raises nothing where nobody can be asked. Cancelled, it
        keeps the answers that it has.
        """


async def fetch_statuses_of(source: StatusSource, rows: pl.LazyFrame, max_age: float | None = None) -> None:
    """Let a source that fetches ask for the businesses of ``rows``, which are about to be answered."""
    if isinstance(source, FetchingSource):
        await source.fetch(await anyio.to_thread.run_sync(numbers_of, rows), max_age)


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the business numbers of ``rows`` that can be looked up: UInt64, each once, in their order."""
    return _keys_of(rows).unique(maintain_order=True).collect().to_series()


def count_lookups(rows: pl.LazyFrame) -> int:
    """Return how many of ``rows`` can be looked up."""
    return int(_keys_of(rows).select(pl.len()).collect().item())


def _keys_of(rows: pl.LazyFrame) -> pl.LazyFrame:
    if ROW_PROBLEM in rows.collect_schema():
        rows = rows.filter(pl.col(ROW_PROBLEM).is_null())
    return rows.select(business_number.key_expr(pl.col("b_no"))).drop_nulls()


class RegistrySnapshot:
    """The engine's own registry: what was known when its file was built."""

    live = False

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Answer from the registry alone."""
        return engine.answer(rows)


class StatusSources:
    """The sources of a server, the best first; the snapshot is always there, and comes last."""

    def __init__(self, *better: StatusSource) -> None:
        self._sources: tuple[StatusSource, ...] = (*better, RegistrySnapshot())

    def source(self, *, offline: bool) -> StatusSource:
        """The best source that may be asked."""
        return next(source for source in self._sources if not (offline and source.live))
