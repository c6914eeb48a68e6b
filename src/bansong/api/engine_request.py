"""The engine that a call asks for."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from bansong.engine import Known, LocalEngine
from bansong.errors import Problem, UsageError
from bansong.forking import refuse_after_fork
from bansong.models.model_store import resolve_model
from bansong.options import (
    ENGINE_KINDS,
    EngineKind,
    EngineName,
    LocalOptions,
    ServiceKeywords,
    StatusOptions,
    StatusSource,
    engine_kind,
    service_options,
    specs_of,
)
from bansong.reference.choice_store import Choices, read_choices
from bansong.run.engine import Engine, LocalEngineAdapter
from bansong.translation import Listed, Option, gettext_noop

OPTION_TOO_LATE: Final = Problem(
    "engines.option_too_late", "{option} is said when an engine is made; it is given as {engine}"
)
ENGINE_UNKNOWN: Final = Problem(
    "engines.engine_unknown", "unknown engine {engine!r}; use {listed}, or an engine object"
)

AnyEngine = EngineName | LocalEngine | Engine
"""The name of an engine, or one itself."""

Status = StatusSource | StatusOptions
"""Whether the tax authority is asked for statuses, or how."""


class EngineRequest:
    """The engine that a call asks for: refused when this is made if it cannot be, opened by :meth:`open`.

    Raises :class:`UsageError` for an unknown name, and for options that are not of this engine.
    """

    def __init__(self, engine: AnyEngine, service: ServiceKeywords, local: LocalOptions) -> None:
        refuse_after_fork()
        self._of_local: dict[str, Any] = {spec.name: getattr(local, spec.name) for spec in specs_of(LocalOptions)}
        self.given: Engine | None = None
        if isinstance(engine, str):
            self.kind = engine_kind(engine)
            self._service = service_options(engine, service)
            return
        said = [*service, *(name for name, value in self._of_local.items() if value is not None)]
        if said:
            raise UsageError(OPTION_TOO_LATE, option=Option(said[0]), engine=Option("engine"))
        given = LocalEngineAdapter(engine) if isinstance(engine, LocalEngine) else engine
        kind = getattr(given, "kind", None)
        if isinstance(engine, type) or not isinstance(kind, EngineKind):
            raise UsageError(ENGINE_UNKNOWN, engine=engine, listed=Listed(ENGINE_KINDS, gettext_noop(" or ")))
        self.given, self.kind = given, kind

    def open(self, history: pl.LazyFrame | None, choices: Choices = None) -> Engine:
        """Return the engine, with its indexes opened and what is known of earlier letters and of chosen addresses.

        Those that buy are imported only then, since they bring the network with them.
        """
        if self.given is not None:
            return self.given.with_known(Known(history))
        of_local = self._of_local | {"model": resolve_model(self._of_local["model"]), "history": history}
        local = LocalEngine(**of_local, choices=read_choices(choices) if self.kind.answers_locally else None)
        if not self.kind.buys:
            return LocalEngineAdapter(local)
        from bansong.purchase.paid_engines import paid_engine

        return paid_engine(self.kind, self._service, local)


def progress_unit(kind: EngineKind) -> str:
    """What progress counts."""
    return "lookups" if kind.buys else "rows"
