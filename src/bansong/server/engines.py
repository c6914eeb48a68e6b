"""Engines of a server, one per key, since each key learns from its own outcomes.

An engine is replaced only when its data changes: an index file, the scorecard or label store, or the day. So callers
may cache what they derive from it. An engine that was handed out stays usable.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from copy import copy
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Final

import anyio.to_thread
import polars as pl

from bansong.base.errors import BansongError
from bansong.base.schema import RECORD_COLUMNS
from bansong.engine.address.lookups import FEW
from bansong.engine.local import LocalEngine
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore, resolve_model
from bansong.server.references import DAMAGED, FileStamp, KeyLetters, ReferenceData, ReferenceFiles, stamp_of
from bansong.server.settings import Clock, Settings

_log = logging.getLogger(__name__)

_MAX_KEYS: Final = 256
_READ_RETRIES: Final = 5
_MAX_LETTERS: Final = 5_000_000
"""Letters in all loaded histories; beyond that the least recently used keys are unloaded."""


class ServedEngine(LocalEngine):
    """An engine that keeps its index files readable."""

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
        """Return a copy without history, which keys can share."""
        other = copy(self)
        other.letters, other.history = None, None if self.history is None else pl.LazyFrame(schema=HISTORY_SCHEMA)
        return other


@dataclass(slots=True)
class _Learned:
    """What a key has learned, and its engines: paid and unpaid."""

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
    """Hand out engines by key; thread-safe.

    Raises :class:`bansong.errors.BansongError` if registry, gazetteer or ``settings.model`` cannot be opened.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._files = ReferenceFiles(settings.registry, settings.gazetteer)
        self._data = self._files.now()
        self._before = self._data
        self.fixed = None if settings.model is None else resolve_model(settings.model)
        self._learned: OrderedDict[str, _Learned] = OrderedDict()
        self._lock = Lock()
        self._looking = anyio.Lock()

    @property
    def learns(self) -> bool:
        """Whether scorecards may be learned: not if the server was started with one."""
        return self.fixed is None

    @property
    def data(self) -> ReferenceData:
        return self._data

    def refused_files(self) -> dict[str, bool]:
        return self._files.refused_files()

    def folder(self, key_id: str) -> Path:
        """Return a key's folder with ``labels`` and ``models``."""
        return learning_folder(self._settings.files) / key_id

    def label_store(self, key_id: str) -> LabelStore:
        return LabelStore(self.folder(key_id) / "labels")

    def store(self, key_id: str) -> ModelStore:
        return ModelStore(self.folder(key_id) / "models")

    def ready(self, key_id: str) -> bool:
        return key_id in self._learned

    def engine(self, key_id: str, *, paid: bool = True) -> LocalEngine:
        """Return the current engine of a key; with ``paid=False`` one without lookups.

        The first call for a key reads files: on the event loop use :meth:`open_engine`.
        """
        learned = self._find_loaded(key_id) or self._keep(key_id, self._load(key_id))
        today, data = self._clock.today(), self._data if paid else _NOTHING
        with self._lock:
            made = learned.engines.get(paid)
            if made is None or made.data is not data or made.today != today:
                letters = KeyLetters(learned.history) if paid and learned.history is not None else None
                made = ServedEngine(data, learned.card, self._settings, today, letters)
                learned.engines[paid] = made
            return made

    async def open_engine(self, key_id: str, *, paid: bool = True) -> LocalEngine:
        """Return the engine as :meth:`engine` does, but read files in a thread."""
        if not self.ready(key_id):
            await anyio.to_thread.run_sync(lambda: self._keep(key_id, self._load(key_id)))
        return self.engine(key_id, paid=paid)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._settings.refresh_seconds)
            await self.look()

    async def look(self) -> None:
        async with self._looking:
            await anyio.to_thread.run_sync(self._look)

    async def refresh(self, key_id: str) -> None:
        """Reload what a key has learned, if it is loaded."""
        if self.ready(key_id):
            await anyio.to_thread.run_sync(self._refresh, key_id)

    def _look(self) -> None:
        if self._files.look():
            data = self._files.now()
            try:
                self._warm(data)
            except (BansongError, *DAMAGED) as error:
                why = error if isinstance(error, BansongError) else type(error).__name__
                _log.warning("the newer files cannot be used, those before go on serving: %s", why)
            else:
                # those before stay readable one time longer, for a query that was planned but not begun
                self._before, self._data = self._data, data
                self._let_go()
        for key_id, learned in list(self._learned.items()):
            if self._stamps(key_id) != learned.stamps:
                self._refresh(key_id)

    def _let_go(self) -> None:
        """Drop engines of replaced files, which idle keys would keep for ever."""
        with self._lock:
            for learned in self._learned.values():
                for paid, made in list(learned.engines.items()):
                    if all(made.data is not used for used in (self._data, self._before, _NOTHING)):
                        del learned.engines[paid]

    def _warm(self, data: ReferenceData) -> None:
        """Read the whole gazetteer before a request needs it: small queries read parts only."""
        record = {"b_no": "1248100998", "name": "가", "address": "서울특별시 중구 세종대로 110", "zipcode": None}
        frame = pl.LazyFrame([record] * (FEW + 1), schema=dict.fromkeys(RECORD_COLUMNS, pl.String))
        engine = ServedEngine(data, Scorecard.load(), self._settings, self._clock.today(), None)
        with engine.running():
            engine.answer(frame).collect()

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
        stamps = self._stamps(key_id)  # before reading: what changes meanwhile is seen at the next look
        before = self._learned.get(key_id)
        try:
            card = self.fixed or self.store(key_id).champion()
        except BansongError as error:
            _log.error("key %s: its scorecard cannot be used: %s", key_id, error)
            card = before.card if before is not None else Scorecard.load()
        try:
            history = self._history(key_id)
        except (BansongError, *DAMAGED) as error:
            why = error if isinstance(error, BansongError) else type(error).__name__
            _log.error("key %s: its outcomes cannot be used: %s", key_id, why)
            history = before.history if before is not None else None
        return _Learned(card, history, stamps)

    def _history(self, key_id: str) -> pl.DataFrame | None:
        """Read the history of a label store; retry if files vanish because the store is being written."""
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
        """Return stamps that change whenever a key's scorecards or label store do: both are replaced by renames."""
        return stamp_of(self.store(key_id).path), stamp_of(self.folder(key_id) / "labels")


def learning_folder(files: Path) -> Path:
    return files / "learning"


def make_learning_folder(files: Path, name: str) -> Path:
    """Make and return a folder below the learning folder (mode 0700)."""
    home = learning_folder(files)
    for folder in (home, home / name):
        folder.mkdir(mode=0o700, exist_ok=True)
    return home / name


_NOTHING: Final = ReferenceData(None, None, ())
