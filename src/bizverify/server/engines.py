"""The engines that answer: one for each scope, since each learns from its own outcomes."""

from __future__ import annotations

from bizverify.engine import Gazetteer, LocalEngine, Registry, Scorecard
from bizverify.models import resolved
from bizverify.server.settings import Settings


class Engines:
    """Hands out the engine of a scope (see :attr:`bizverify.server.store.keys.Key.scope`)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._registry = None if settings.registry is None else Registry.open(settings.registry)
        self._gazetteer = None if settings.gazetteer is None else Gazetteer.open(settings.gazetteer)
        self._model: Scorecard = resolved(settings.model)

    def engine(self, scope: str, *, paid: bool = True) -> LocalEngine:
        """The engine that answers a scope now; with ``paid=False`` one that looks nothing up."""
        del scope
        registry, gazetteer = (self._registry, self._gazetteer) if paid else (None, None)
        return LocalEngine(registry, gazetteer=gazetteer, model=self._model, lang=self._settings.lang)
