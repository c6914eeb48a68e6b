"""Engines of a server, one per scope, since each scope learns from its own outcomes.

A scope (:attr:`bansong.server.keys.Key.scope`) is a key, inside or outside the pool. An engine is replaced
only when its data changes: an index file, the scorecard or label store, the pool's agreement, or the day. So callers
may cache what they derive from it. An engine that was handed out stays usable.
"""

from __future__ import annotations

import logging
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Final

import anyio.to_thread
import msgspec
import polars as pl

from bansong.base.errors import BansongError, ModelError, Problem
from bansong.base.schema import RECORD_COLUMNS
from bansong.engine.address.lookups import FEW
from bansong.engine.local import LocalEngine
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore, resolve_model
from bansong.server.keys import IN_POOL
from bansong.server.references import (
    DAMAGED,
    AgreedLetters,
    FileStamp,
    PoolAgreement,
    ReferenceData,
    ReferenceFiles,
    ScopeLetters,
    stamp_of,
)
from bansong.server.settings import Clock, Settings

POOL_VERSION_FOREIGN: Final = Problem(
    "server.pool_version_foreign", "{version}: is no version of the pool's; those begin with {of_pool}"
)

_log = logging.getLogger(__name__)

_MAX_SCOPES: Final = 256
POOL: Final = "pool"
"""Folder of the pool's scorecards; no key has this id."""
POOL_TRAINING: Final = "pool-training"
"""Temporary folder with the letters of all pool keys while the pool's scorecard is learned."""
_OF_POOL: Final = "pool-"
_READ_RETRIES: Final = 5
_MAX_LETTERS: Final = 5_000_000
"""Letters in all loaded histories; beyond that the least recently used scopes are unloaded."""


class ServedEngine(LocalEngine):
    """An engine that keeps its index files readable."""

    def __init__(
        self, data: ReferenceData, card: Scorecard, settings: Settings, today: date, letters: ScopeLetters | None
    ):
        history = None if letters is None else letters.history()
        super().__init__(
            data.registry, gazetteer=data.gazetteer, model=card, lang=settings.lang, today=today, history=history
        )
        self.data = data
        self.letters = letters

    def without_letters(self) -> ServedEngine:
        """Return a copy without history, which scopes can share."""
        other = copy(self)
        other.letters, other.history = None, None if self.history is None else pl.LazyFrame(schema=HISTORY_SCHEMA)
        return other

    def is_of(self, data: ReferenceData, today: date, agreed: AgreedLetters | None) -> bool:
        """Return whether the engine uses these files, this day and this agreement of the pool."""
        of = None if self.letters is None else self.letters.agreed
        return self.today == today and self.data is data and of is agreed


@dataclass(slots=True)
class _Learned:
    """What a scope's outcomes have come to: its scorecard, what became of its own letters, and the engines of both."""

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
    """Hand out engines by scope; thread-safe.

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
        self._agreed: AgreedLetters | None = None
        self._apart: dict[str, AgreedLetters | None] = {}
        self._customers: Mapping[str, str] = {}
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

    def folder(self, scope: str) -> Path:
        """Return the folder with ``labels`` and ``models`` of a scope's key, or of :data:`POOL`."""
        return learning_folder(self._settings.files) / scope.removesuffix(IN_POOL)

    def label_store(self, scope: str) -> LabelStore:
        return LabelStore(self.folder(scope) / "labels")

    def store(self, scope: str) -> ModelStore:
        return ModelStore(self.folder(scope) / "models")

    def share(self, agreement: PoolAgreement, day: date) -> None:
        apart = {whose: _renew(self._apart.get(whose), frame, day) for whose, frame in agreement.apart.items()}
        self._agreed = _renew(self._agreed, agreement.frame, day)
        self._apart, self._customers = apart, agreement.customers

    def ready(self, scope: str) -> bool:
        return scope in self._learned

    def engine(self, scope: str, *, paid: bool = True) -> LocalEngine:
        """Return the current engine of a scope; with ``paid=False`` one without lookups.

        The first call for a scope reads files: on the event loop use :meth:`open_engine`.
        """
        learned = self._find_loaded(scope) or self._keep(scope, self._load(scope))
        today, data = self._clock.today(), self._data if paid else _NOTHING
        agreed = self._agreed_for(scope) if paid and scope.endswith(IN_POOL) else None
        with self._lock:
            made = learned.engines.get(paid)
            if made is None or not made.is_of(data, today, agreed):
                letters = ScopeLetters(learned.history, agreed) if paid else None
                made = ServedEngine(data, learned.card, self._settings, today, letters)
                learned.engines[paid] = made
            return made

    def _agreed_for(self, scope: str) -> AgreedLetters | None:
        customer = self._customers.get(scope.removesuffix(IN_POOL))
        return None if customer is None else self._apart.get(customer, self._agreed)

    async def open_engine(self, scope: str, *, paid: bool = True) -> LocalEngine:
        """Return the engine as :meth:`engine` does, but read files in a thread."""
        if not self.ready(scope):
            await anyio.to_thread.run_sync(lambda: self._keep(scope, self._load(scope)))
        return self.engine(scope, paid=paid)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._settings.refresh_seconds)
            await self.look()

    async def look(self) -> None:
        async with self._looking:
            await anyio.to_thread.run_sync(self._look)

    async def refresh(self, key_id: str) -> None:
        """Reload the loaded scopes that use what a key, or :data:`POOL`, has learned."""
        for scope in list(self._learned):
            if key_id == scope.removesuffix(IN_POOL) or (key_id == POOL and scope.endswith(IN_POOL)):
                await anyio.to_thread.run_sync(self._refresh, scope)

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
        for scope, learned in list(self._learned.items()):
            if self._stamps(scope) != learned.stamps:
                self._refresh(scope)

    def _let_go(self) -> None:
        """Drop engines of replaced files, which idle scopes would keep for ever."""
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

    def _find_loaded(self, scope: str) -> _Learned | None:
        with self._lock:
            if (found := self._learned.get(scope)) is not None:
                self._learned.move_to_end(scope)
            return found

    def _keep(self, scope: str, learned: _Learned) -> _Learned:
        with self._lock:
            kept = self._learned.setdefault(scope, learned)
            letters = sum(one.letters for one in self._learned.values())
            while len(self._learned) > _MAX_SCOPES or (letters > _MAX_LETTERS and len(self._learned) > 1):
                letters -= self._learned.popitem(last=False)[1].letters
            return kept

    def _refresh(self, scope: str) -> None:
        newer = self._load(scope)
        with self._lock:
            before = self._learned.get(scope)
            if before is None:
                return
            if before.same(newer):
                before.stamps = newer.stamps
            else:
                self._learned[scope] = newer

    def _load(self, scope: str) -> _Learned:
        stamps = self._stamps(scope)  # before reading: what changes meanwhile is seen at the next look
        before = self._learned.get(scope)
        try:
            card = self.fixed or self._champion(scope)
        except BansongError as error:
            _log.error("scope %s: its scorecard cannot be used: %s", scope, error)
            card = before.card if before is not None else Scorecard.load()
        try:
            history = self._history(scope)
        except (BansongError, *DAMAGED) as error:
            why = error if isinstance(error, BansongError) else type(error).__name__
            _log.error("scope %s: its outcomes cannot be used: %s", scope, why)
            history = before.history if before is not None else None
        return _Learned(card, history, stamps)

    def _champion(self, scope: str) -> Scorecard:
        """Return a scope's scorecard; in the pool, its own or the pool's, whichever was learned from more letters."""
        own = self.store(scope).champion()
        if not scope.endswith(IN_POOL):
            return own
        try:
            pooled = self.pool_scorecard()
        except BansongError as error:
            _log.error("the pool's scorecard cannot be used: %s", error)
            return own
        return pooled if _letters_behind(pooled) > _letters_behind(own) else own

    def pool_scorecard(self, version: str | None = None) -> Scorecard:
        """Return the pool's scorecard of a version, by default its champion; raise :class:`ModelError`.

        Versions of the pool are prefixed, since those of keys count from one, too.
        """
        if version is not None and not version.startswith(_OF_POOL):
            raise ModelError(POOL_VERSION_FOREIGN, version=version, of_pool=_OF_POOL)
        stored = self.store(POOL)
        card = stored.champion() if version is None else stored.load(version.removeprefix(_OF_POOL))
        return card if card.learned is None else msgspec.structs.replace(card, version=f"{_OF_POOL}{card.version}")

    def _history(self, scope: str) -> pl.DataFrame | None:
        """Read the history of a label store; retry if files vanish because the store is being written."""
        for again in range(_READ_RETRIES, -1, -1):
            stamps = self._stamps(scope)
            try:
                found = self.label_store(scope).history()
                return None if found is None else found.select(list(HISTORY_SCHEMA)).sort("b_no").collect()
            except (BansongError, *DAMAGED):
                if not again or self._stamps(scope) == stamps:
                    raise
        raise AssertionError("the last time it returns or raises")

    def _stamps(self, scope: str) -> tuple[FileStamp | None, ...]:
        """Return stamps that change whenever a scope's scorecards or label store do: both are replaced by renames."""
        journals = [scope, POOL] if scope.endswith(IN_POOL) else [scope]
        return *(stamp_of(self.store(one).path) for one in journals), stamp_of(self.folder(scope) / "labels")


def learning_folder(files: Path) -> Path:
    return files / "learning"


def make_learning_folder(files: Path, name: str) -> Path:
    """Make and return a folder below the learning folder (mode 0700)."""
    home = learning_folder(files)
    for folder in (home, home / name):
        folder.mkdir(mode=0o700, exist_ok=True)
    return home / name


def remove_training_folder(files: Path) -> None:
    """Remove :data:`POOL_TRAINING`, which a killed server may have left; raise OSError on failure."""
    with suppress(FileNotFoundError):
        shutil.rmtree(learning_folder(files) / POOL_TRAINING)


def _renew(before: AgreedLetters | None, frame: pl.DataFrame, day: date) -> AgreedLetters | None:
    """Return the letters of a frame; reuse the object before if nothing changed, ``None`` if the frame is empty."""
    if before is not None and before.day == day and before.frame.equals(frame):
        return before
    return None if frame.is_empty() else AgreedLetters(frame, day)


def _letters_behind(card: Scorecard) -> int:
    return 0 if card.learned is None else card.learned.labels


_NOTHING: Final = ReferenceData(None, None, ())
