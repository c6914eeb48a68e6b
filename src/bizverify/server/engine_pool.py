"""The engines that answer: one for each scope, since each learns from its own outcomes.

An engine is made anew only when what it answers from has changed: the registry's or gazetteer's file, the scope's
scorecard or label store, or the day. Until then callers get the same object, so that they may keep what they derive
from it. One that was given out stays usable, also when its files have been replaced.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Final

import anyio.to_thread
import polars as pl

from bizverify.engine import LocalEngine, Scorecard
from bizverify.engine.address.match.open_lookups import FEW
from bizverify.engine.letter_history import HISTORY_SCHEMA
from bizverify.errors import BizverifyError
from bizverify.labels.label_store import LabelStore
from bizverify.model_store import ModelStore, resolve_model
from bizverify.schema import RECORD_COLUMNS
from bizverify.server.clock import Clock
from bizverify.server.reference_files import DAMAGED, FileStamp, ReferenceData, ReferenceFiles, stamp_of
from bizverify.server.settings import Settings

_log = logging.getLogger(__name__)

_SCOPES: Final = 256
"""Scopes that are kept loaded at most, those used last."""
_LOOKS: Final = 5
"""How often a label store that was changed while it was read is read once more."""
_MOST_LETTERS: Final = 5_000_000
"""Letters in the histories of the scopes kept, together, beyond which the one not used for longest is let go."""


class ServedEngine(LocalEngine):
    """An engine that keeps the files readable that it answers from."""

    def __init__(
        self, data: ReferenceData, card: Scorecard, settings: Settings, today: date, history: pl.LazyFrame | None
    ):
        super().__init__(
            data.registry, gazetteer=data.gazetteer, model=card, lang=settings.lang, today=today, history=history
        )
        self.data = data


@dataclass(slots=True)
class _Learned:
    """What a scope's outcomes have come to: its scorecard, what became of its letters, and the engines made of both."""

    card: Scorecard
    history: pl.DataFrame | None
    stamps: tuple[FileStamp | None, ...]
    engines: dict[bool, ServedEngine] = field(default_factory=dict)

    @property
    def letters(self) -> int:
        return 0 if self.history is None else self.history.height

    def same(self, other: _Learned) -> bool:
        """Whether both answer alike."""
        if self.card != other.card or (self.history is None) != (other.history is None):
            return False
        return self.history is None or (other.history is not None and self.history.equals(other.history))


class EnginePool:
    """Hands out the engine of a scope (see :attr:`bizverify.server.store.key_table.Key.scope`). For all threads.

    Raises :class:`bizverify.errors.BizverifyError` where registry, gazetteer or ``settings.model`` cannot be opened.
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
        """Whether scorecards may be learned: not where the server was started with one."""
        return self.fixed is None

    @property
    def data(self) -> ReferenceData:
        """The registry and gazetteer that are used now."""
        return self._data

    def refused_files(self) -> dict[str, bool]:
        """Whether what is under the name of the registry, the gazetteer cannot be used: by the name of the option."""
        return self._files.refused_files()

    def folder(self, scope: str) -> Path:
        """Where a scope keeps its ``labels`` and ``models``: laid out as a state directory."""
        return self._settings.files / "learning" / scope

    def label_store(self, scope: str) -> LabelStore:
        """A scope's label store."""
        return LabelStore(self.folder(scope) / "labels")

    def store(self, scope: str) -> ModelStore:
        """Where a scope's scorecards are kept."""
        return ModelStore(self.folder(scope) / "models")

    def ready(self, scope: str) -> bool:
        """Whether :meth:`engine` answers at once, without reading a file."""
        return scope in self._learned

    def engine(self, scope: str, *, paid: bool = True) -> LocalEngine:
        """The engine that answers a scope now; with ``paid=False`` one that looks nothing up.

        The first time for a scope its scorecard and label store are read: on the event loop use :meth:`open_engine`.
        """
        learned = self._find_loaded(scope) or self._keep(scope, self._load(scope))
        today, data = self._clock.today(), self._data if paid else _NOTHING
        with self._lock:
            made = learned.engines.get(paid)
            if made is None or made.today != today or made.data is not data:
                history = learned.history.lazy() if learned.history is not None and paid else None
                made = ServedEngine(data, learned.card, self._settings, today, history)
                learned.engines[paid] = made
            return made

    async def open_engine(self, scope: str, *, paid: bool = True) -> LocalEngine:
        """The same, for the event loop: where a scope must be read first, that is done in a thread."""
        if not self.ready(scope):
            await anyio.to_thread.run_sync(lambda: self._keep(scope, self._load(scope)))
        return self.engine(scope, paid=paid)

    async def run(self) -> None:
        """Look every ``refresh_seconds`` whether something is newer."""
        while True:
            await self._clock.sleep(self._settings.refresh_seconds)
            await self.look()

    async def look(self) -> None:
        """Use newer files where there are some."""
        async with self._looking:
            await anyio.to_thread.run_sync(self._look)

    async def refresh(self, scope: str) -> None:
        """Use what a scope has learned, if it is in use."""
        if self.ready(scope):
            await anyio.to_thread.run_sync(self._refresh, scope)

    def _look(self) -> None:
        if self._files.look():
            data = self._files.now()
            try:
                self._warm(data)
            except (BizverifyError, *DAMAGED) as error:
                why = error if isinstance(error, BizverifyError) else type(error).__name__
                _log.warning("the newer files cannot be used, those before go on serving: %s", why)
            else:
                # those before stay readable one time longer, for a query that was planned but not begun
                self._before, self._data = self._data, data
                self._let_go()
        for scope, learned in list(self._learned.items()):
            if self._stamps(scope) != learned.stamps:
                self._refresh(scope)

    def _let_go(self) -> None:
        """Forget engines of files that were replaced: a scope that asks for nothing would keep these for ever."""
        with self._lock:
            for learned in self._learned.values():
                for paid, made in list(learned.engines.items()):
                    if all(made.data is not used for used in (self._data, self._before, _NOTHING)):
                        del learned.engines[paid]

    def _warm(self, data: ReferenceData) -> None:
        """Answer more rows than are looked up in parts of a gazetteer, so that no request waits until it is read."""
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
        """Keep what was loaded, unless another thread was faster, within the bounds."""
        with self._lock:
            kept = self._learned.setdefault(scope, learned)
            letters = sum(one.letters for one in self._learned.values())
            while len(self._learned) > _SCOPES or (letters > _MOST_LETTERS and len(self._learned) > 1):
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
        """Read a scope's scorecard and label store; what is damaged is said, and the answers do without."""
        stamps = self._stamps(scope)  # before reading: what changes meanwhile is seen at the next look
        before = self._learned.get(scope)
        try:
            card = self.fixed or self.store(scope).champion()
        except BizverifyError as error:
            _log.error("scope %s: its scorecard cannot be used: %s", scope, error)
            card = before.card if before is not None else Scorecard.load()
        try:
            history = self._history(scope)
        except (BizverifyError, *DAMAGED) as error:
            why = error if isinstance(error, BizverifyError) else type(error).__name__
            _log.error("scope %s: its outcomes cannot be used: %s", scope, why)
            history = before.history if before is not None else None
        return _Learned(card, history, stamps)

    def _history(self, scope: str) -> pl.DataFrame | None:
        """What a scope's label store knows; while it is written to, a file that was listed may be gone when it is read.

        Raises :class:`BizverifyError` or one of :data:`DAMAGED` where it cannot be read.
        """
        for again in range(_LOOKS, -1, -1):
            stamps = self._stamps(scope)
            try:
                found = self.label_store(scope).history()
                return None if found is None else found.select(list(HISTORY_SCHEMA)).sort("b_no").collect()
            except (BizverifyError, *DAMAGED):
                if not again or self._stamps(scope) == stamps:
                    raise
        raise AssertionError("the last time it returns or raises")

    def _stamps(self, scope: str) -> tuple[FileStamp | None, ...]:
        """Return the stamps that change with a scope's scorecard or label store: each is replaced by a rename."""
        return stamp_of(self.store(scope).path), stamp_of(self.folder(scope) / "labels")


_NOTHING: Final = ReferenceData(None, None, ())
