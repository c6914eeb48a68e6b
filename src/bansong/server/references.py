"""Reference files held open, status sources, and letters of keys."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import anyio.to_thread
import polars as pl

from bansong.base import business_number
from bansong.base.errors import BansongError
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import ROW_PROBLEM, LocalEngine
from bansong.engine.registry import Registry

_log = logging.getLogger(__name__)


class _Index(Protocol):
    def check(self) -> None: ...


T = TypeVar("T", bound=_Index)
DAMAGED: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, RuntimeError, OSError)
"""Errors of reading a damaged file; a panic is no Exception."""

FileStamp = tuple[int, ...]
"""Device, inode, size and modification time (ns): changes when a file is replaced."""


def stamp_of(file: Path | int) -> FileStamp | None:
    """Return the stamp of a path or descriptor; ``None`` if it does not exist."""
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class OpenFile:
    """A file that stays readable under :attr:`path` while this object lives, even if its name is reused.

    Where the system has no paths for open files (Windows) it is read by its name and not held: holding it would prevent
    its replacement.
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
    """An index and its open file. The constructor raises what ``open_`` raises."""

    def __init__(self, path: Path, open_: Callable[[Path], T]) -> None:
        self._path = path
        self._open = open_
        self._refused: FileStamp | None = ()
        self.index, self.held = self._open_file()

    @property
    def is_refused(self) -> bool:
        """Whether the current file of this name could not be opened."""
        return self._refused != ()

    def look(self) -> bool:
        """Switch to a newer file of the same name, if there is one that can be opened; return whether it did."""
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
    """Registry and gazetteer at one time; keep it to keep their files readable."""

    registry: Registry | None
    gazetteer: Gazetteer | None
    held: tuple[OpenFile, ...]


class ReferenceFiles:
    """Registry and gazetteer of a server, as far as it has them."""

    def __init__(self, registry: Path | None, gazetteer: Path | None) -> None:
        self._registry = None if registry is None else ReferenceFile(registry, Registry.open)
        self._gazetteer = None if gazetteer is None else ReferenceFile(gazetteer, Gazetteer.open)

    def look(self) -> bool:
        """Switch to newer files, read whole; return whether there were any."""
        looked = [file.look() for file in (self._registry, self._gazetteer) if file is not None]
        return any(looked)

    def refused_files(self) -> dict[str, bool]:
        files = {"registry": self._registry, "gazetteer": self._gazetteer}
        return {name: file.is_refused for name, file in files.items() if file is not None}

    def now(self) -> ReferenceData:
        held = tuple(file.held for file in (self._registry, self._gazetteer) if file is not None)
        return ReferenceData(
            None if self._registry is None else self._registry.index,
            None if self._gazetteer is None else self._gazetteer.index,
            held,
        )


class StatusSource(Protocol):
    """Answers rows with an engine and better statuses than those of its registry."""

    @property
    def live(self) -> bool:
        """Whether it uses the network, which ``offline`` forbids."""

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """As :meth:`bansong.engine.local.LocalEngine.answer`; called in a thread."""


@runtime_checkable
class FetchingSource(StatusSource, Protocol):
    """A source that asks for the statuses of rows before it answers them."""

    async def fetch(self, numbers: pl.Series, max_age: float | None = None) -> None:
        """Fetch statuses of ``numbers`` (UInt64, unique) that are unknown or older than ``max_age`` days.

        ``max_age``: by default that of its settings. Raises nothing if nobody can be asked. Cancelled, it
        keeps the answers so far.
        """


async def fetch_statuses_of(source: StatusSource, rows: pl.LazyFrame, max_age: float | None = None) -> None:
    if isinstance(source, FetchingSource):
        await source.fetch(await anyio.to_thread.run_sync(numbers_of, rows), max_age)


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the unique valid business numbers of ``rows`` (UInt64), in their order."""
    return _keys_of(rows).unique(maintain_order=True).collect().to_series()


def count_lookups(rows: pl.LazyFrame) -> int:
    return int(_keys_of(rows).select(pl.len()).collect().item())


def _keys_of(rows: pl.LazyFrame) -> pl.LazyFrame:
    if ROW_PROBLEM in rows.collect_schema():
        rows = rows.filter(pl.col(ROW_PROBLEM).is_null())
    return rows.select(business_number.key_expr(pl.col("b_no"))).drop_nulls()


class RegistrySnapshot:
    """The engine's own registry, as of when its file was built."""

    live = False

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        return engine.answer(rows)


class StatusSources:
    """The status sources of a server, best first; the registry comes last."""

    def __init__(self, *better: StatusSource) -> None:
        self._sources: tuple[StatusSource, ...] = (*better, RegistrySnapshot())

    def source(self, *, offline: bool) -> StatusSource:
        return next(source for source in self._sources if not (offline and source.live))


_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class KeyLetters:
    """The letters of a key: :data:`bansong.engine.overlays.HISTORY_SCHEMA`, sorted by ``b_no``."""

    frame: pl.DataFrame
    number: int = field(init=False, default_factory=lambda: next(_numbers))
    """Identifies the letters in a cache, which must not keep them alive."""

    def mentions(self, number: int) -> bool:
        numbers = self.frame["b_no"]
        place = bisect_left(numbers, number)  # of one number, a thirtieth of the time of `search_sorted`
        return place < numbers.len() and numbers[place] == number

    def of(self, numbers: pl.Series) -> pl.DataFrame:
        """Return the letters to businesses (UInt64) by binary search."""
        first = self.frame["b_no"].search_sorted(numbers, "left")
        last = self.frame["b_no"].search_sorted(numbers, "right")
        lines = pl.select(pl.int_ranges(first, last, dtype=pl.UInt32).list.explode(empty_as_null=False)).to_series()
        return self.frame[lines]
