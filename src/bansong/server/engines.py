"""Keep local engines by API key, and replace an engine only when its data or the date has changed."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

import anyio.to_thread
import polars as pl

from bansong.base import business_number
from bansong.base.errors import BansongError
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import ROW_PROBLEM, LocalEngine, warm_up
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore, resolve_model
from bansong.server.settings import Clock, Settings

_log = logging.getLogger(__name__)


class _Index(Protocol):
    def check(self) -> None: ...


T = TypeVar("T", bound=_Index)
# raised for damaged files; a panic is no Exception
DAMAGED: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, RuntimeError, OSError)

FileStamp = tuple[int, ...]  # device, inode, size and modification time (ns): changes when a file is replaced


def _stamp_of(file: Path | int) -> FileStamp | None:
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _OpenFile:
    """A file that stays readable while this object lives, even if it is replaced (not on Windows)."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, descriptor)
        self.stamp = _stamp_of(descriptor)
        # with the process id, so that child processes find it, too
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        if not self.path.exists():
            self.path = path
            self.close()


class _ReferenceFile(Generic[T]):
    """A registry or gazetteer that is reopened when its file is replaced."""

    def __init__(self, path: Path, open_: Callable[[Path], T]) -> None:
        self._path = path
        self._open = open_
        self._refused: FileStamp | None = ()
        self.index, self.held = self._open_file()

    @property
    def is_refused(self) -> bool:
        return self._refused != ()

    def look(self) -> bool:
        """Reopen the file if it was replaced; return whether the new one is used now."""
        stamp = _stamp_of(self._path)
        if stamp == self.held.stamp:
            self._refused = ()
            return False
        try:
            index, held = self._open_file(check=True)
        except (BansongError, *DAMAGED) as error:
            if stamp != self._refused:
                why = error if isinstance(error, BansongError) else f"{self._path}: {type(error).__name__}"
                _log.warning("the newer file cannot be used, the one before goes on serving: %s", why)
                self._refused = stamp
            return False
        self.index, self.held, self._refused = index, held, ()
        _log.info("%s: a newer file is used from now on", self._path)
        return True

    def _open_file(self, *, check: bool = False) -> tuple[T, _OpenFile]:
        try:
            held = _OpenFile(self._path)
        except OSError:
            self._open(self._path)  # its error says more
            raise
        try:
            index = self._open(held.path)
            if check:
                index.check()
            return index, held
        except BansongError as error:
            raise type(error)(str(error).replace(str(held.path), str(self._path))) from error


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceData:
    """The registry and the gazetteer in use."""

    registry: Registry | None
    gazetteer: Gazetteer | None
    held: tuple[_OpenFile, ...]  # keeps the files readable


class StatusSource(Protocol):
    """A source of business statuses for answers."""

    @property
    def live(self) -> bool:
        """Whether the source uses the network, which ``offline`` forbids."""

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Answer rows like :meth:`bansong.engine.local.LocalEngine.answer`; called in a thread."""


@runtime_checkable
class FetchingSource(StatusSource, Protocol):
    """A source that fetches missing statuses before it answers."""

    async def fetch(self, numbers: pl.Series, max_age: float | None = None) -> None:
        """Fetch statuses of ``numbers`` (UInt64, unique) that are missing or over ``max_age`` days old; never raise."""


async def fetch_statuses_of(source: StatusSource, rows: pl.LazyFrame, max_age: float | None = None) -> None:
    """Fetch the rows' statuses that are missing or over ``max_age`` days old, if the source can fetch."""
    if isinstance(source, FetchingSource):
        await source.fetch(await anyio.to_thread.run_sync(numbers_of, rows), max_age)


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the distinct valid business numbers of rows, as UInt64."""
    return _keys_of(rows).unique(maintain_order=True).collect().to_series()


def count_lookups(rows: pl.LazyFrame) -> int:
    """Count the rows with a valid business number."""
    return int(_keys_of(rows).select(pl.len()).collect().item())


def _keys_of(rows: pl.LazyFrame) -> pl.LazyFrame:
    if ROW_PROBLEM in rows.collect_schema():
        rows = rows.filter(pl.col(ROW_PROBLEM).is_null())
    return rows.select(business_number.key_expr(pl.col("b_no"))).drop_nulls()


class RegistrySnapshot:
    """A status source that uses the registry only."""

    live = False

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        return engine.answer(rows)


def choose_source(sources: Sequence[StatusSource], *, offline: bool) -> StatusSource:
    """Return the first source; with ``offline``, the first that does not use the network."""
    return next(source for source in sources if not (offline and source.live))


_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class KeyLetters:
    """An API key's letter history (:data:`HISTORY_SCHEMA`), sorted by ``b_no``."""

    frame: pl.DataFrame
    # key for caches, which must not keep the letters in memory
    number: int = field(init=False, default_factory=lambda: next(_numbers))

    def mentions(self, number: int) -> bool:
        """Return whether the history has a letter to this business."""
        numbers = self.frame["b_no"]
        place = bisect_left(numbers, number)  # for one number, thirty times as fast as `search_sorted`
        return place < numbers.len() and numbers[place] == number

    def of(self, numbers: pl.Series) -> pl.DataFrame:
        """Return the letters to these businesses."""
        first = self.frame["b_no"].search_sorted(numbers, "left")
        last = self.frame["b_no"].search_sorted(numbers, "right")
        lines = pl.select(pl.int_ranges(first, last, dtype=pl.UInt32).list.explode(empty_as_null=False)).to_series()
        return self.frame[lines]


_MAX_KEYS: Final = 256
_READ_RETRIES: Final = 5
_MAX_LETTERS: Final = 5_000_000  # in all loaded histories; beyond that the least recently used keys are unloaded


class ServedEngine(LocalEngine):
    """The local engine of one API key, with the key's scorecard and letter history."""

    def __init__(
        self, data: ReferenceData, card: Scorecard, settings: Settings, today: date, letters: KeyLetters | None
    ):
        history = None if letters is None else letters.frame.lazy()
        super().__init__(
            data.registry, gazetteer=data.gazetteer, model=card, lang=settings.lang, today=today, history=history
        )
        self.data = data
        self.letters = letters

    def without_letters(self) -> ServedEngine:
        other = copy(self)
        other.letters, other.history = None, None if self.history is None else pl.LazyFrame(schema=HISTORY_SCHEMA)
        return other


@dataclass(slots=True)
class _Learned:
    card: Scorecard
    history: pl.DataFrame | None
    stamps: tuple[FileStamp | None, ...]
    engines: dict[bool, ServedEngine] = field(default_factory=dict)

    @property
    def letters(self) -> int:
        return 0 if self.history is None else self.history.height

    def same(self, other: _Learned) -> bool:
        if self.card != other.card or (self.history is None) != (other.history is None):
            return False
        return self.history is None or (other.history is not None and self.history.equals(other.history))


class EnginePool:
    """The current engines of all API keys. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._files: dict[str, _ReferenceFile[Any]] = {}
        if settings.registry is not None:
            self._files["registry"] = _ReferenceFile(settings.registry, Registry.open)
        if settings.gazetteer is not None:
            self._files["gazetteer"] = _ReferenceFile(settings.gazetteer, Gazetteer.open)
        self.data = self._current_data()
        self.fixed = None if settings.model is None else resolve_model(settings.model)
        self._learned: OrderedDict[str, _Learned] = OrderedDict()
        self._lock = Lock()
        self._looking = anyio.Lock()

    def refused_files(self) -> dict[str, bool]:
        return {name: file.is_refused for name, file in self._files.items()}

    def _current_data(self) -> ReferenceData:
        index = {name: file.index for name, file in self._files.items()}
        held = tuple(file.held for file in self._files.values())
        return ReferenceData(index.get("registry"), index.get("gazetteer"), held)

    def folder(self, key_id: str) -> Path:
        return learning_folder(self._settings.files) / key_id

    def label_store(self, key_id: str) -> LabelStore:
        return LabelStore(self.folder(key_id) / "labels")

    def store(self, key_id: str) -> ModelStore:
        return ModelStore(self.folder(key_id) / "models")

    def ready(self, key_id: str) -> bool:
        return key_id in self._learned

    def engine(self, key_id: str, *, paid: bool = True) -> LocalEngine:
        """Return the key's current engine. The first call reads files; in an event loop, use :meth:`open_engine`."""
        learned = self._find_loaded(key_id) or self._keep(key_id, self._load(key_id))
        today, data = self._clock.today(), self.data if paid else _NOTHING
        with self._lock:
            made = learned.engines.get(paid)
            if made is None or made.data is not data or made.today != today:
                letters = KeyLetters(learned.history) if paid and learned.history is not None else None
                made = ServedEngine(data, learned.card, self._settings, today, letters)
                learned.engines[paid] = made
            return made

    async def open_engine(self, key_id: str, *, paid: bool = True) -> LocalEngine:
        if not self.ready(key_id):
            await anyio.to_thread.run_sync(lambda: self._keep(key_id, self._load(key_id)))
        return self.engine(key_id, paid=paid)

    async def look(self) -> None:
        async with self._looking:
            await anyio.to_thread.run_sync(self._look)

    async def refresh(self, key_id: str) -> None:
        if self.ready(key_id):
            await anyio.to_thread.run_sync(self._refresh, key_id)

    def _look(self) -> None:
        looked = [file.look() for file in self._files.values()]
        if any(looked):
            data = self._current_data()
            try:
                warm_up(ServedEngine(data, Scorecard.load(), self._settings, self._clock.today(), None))
            except (BansongError, *DAMAGED) as error:
                why = error if isinstance(error, BansongError) else type(error).__name__
                _log.warning("the newer files cannot be used, those before go on serving: %s", why)
            else:
                self.data = data
                self._drop_replaced_engines()
        for key_id, learned in list(self._learned.items()):
            if self._stamps(key_id) != learned.stamps:
                self._refresh(key_id)

    def _drop_replaced_engines(self) -> None:
        """Drop engines that use replaced files, as idle keys would keep these files open."""
        with self._lock:
            for learned in self._learned.values():
                for paid, made in list(learned.engines.items()):
                    if made.data not in (self.data, _NOTHING):
                        del learned.engines[paid]

    def _find_loaded(self, key_id: str) -> _Learned | None:
        with self._lock:
            if (found := self._learned.get(key_id)) is not None:
                self._learned.move_to_end(key_id)
            return found

    def _keep(self, key_id: str, learned: _Learned) -> _Learned:
        with self._lock:
            kept = self._learned.setdefault(key_id, learned)
            letters = sum(one.letters for one in self._learned.values())
            while len(self._learned) > _MAX_KEYS or (letters > _MAX_LETTERS and len(self._learned) > 1):
                letters -= self._learned.popitem(last=False)[1].letters
            return kept

    def _refresh(self, key_id: str) -> None:
        newer = self._load(key_id)
        with self._lock:
            before = self._learned.get(key_id)
            if before is None:
                return
            if before.same(newer):
                before.stamps = newer.stamps
            else:
                self._learned[key_id] = newer

    def _load(self, key_id: str) -> _Learned:
        stamps = self._stamps(key_id)  # before reading: the next look sees changes made meanwhile
        try:
            card = self.fixed or self.store(key_id).champion()
        except BansongError as error:
            _log.error("key %s: its scorecard cannot be used: %s", key_id, error)
            kept = self._learned.get(key_id)  # asked now: another thread may have loaded meanwhile
            card = kept.card if kept is not None else Scorecard.load()
        try:
            history = self._history(key_id)
        except (BansongError, *DAMAGED) as error:
            why = error if isinstance(error, BansongError) else type(error).__name__
            _log.error("key %s: its outcomes cannot be used: %s", key_id, why)
            kept = self._learned.get(key_id)
            history = kept.history if kept is not None else None
        return _Learned(card, history, stamps)

    def _history(self, key_id: str) -> pl.DataFrame | None:
        """Read a key's letter history; retry if the label store is rewritten meanwhile."""
        for again in range(_READ_RETRIES, -1, -1):
            stamps = self._stamps(key_id)
            try:
                found = self.label_store(key_id).history()
                return None if found is None else found.select(list(HISTORY_SCHEMA)).sort("b_no").collect()
            except (BansongError, *DAMAGED):
                if not again or self._stamps(key_id) == stamps:
                    raise
        raise AssertionError("the last time it returns or raises")

    def _stamps(self, key_id: str) -> tuple[FileStamp | None, ...]:
        """Return the file stamps of a key's scorecard store and label store, which change at each write."""
        return _stamp_of(self.store(key_id).path), _stamp_of(self.folder(key_id) / "labels")


def learning_folder(files: Path) -> Path:
    """Return the folder of all keys' labels and scorecards."""
    return files / "learning"


def make_learning_folder(files: Path, name: str) -> Path:
    """Create the folder of one key's labels and scorecards, and return it."""
    home = learning_folder(files)
    for folder in (home, home / name):
        folder.mkdir(mode=0o700, exist_ok=True)
    return home / name


_NOTHING: Final = ReferenceData(None, None, ())
