"""Which kinds of engines exist, and what all engines of one name have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bansong.errors import Problem, UsageError
from bansong.options.option_rules import specs_of
from bansong.options.purchase_options import ServiceKeywords, ServiceOptions, hide_key, refuse_foreign
from bansong.translation import Option

BUYING_ENGINES_ONLY: Final = Problem(
    "options.buying_engines_only", "{option} is for the engines {buying}, not for {engine}"
)
ENGINE_UNKNOWN: Final = Problem("options.engine_unknown", "unknown engine {name!r}; use {listed}")

EngineName = Literal["local", "verify", "batch", "hybrid"]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What all engines of one name have in common.

    ``answers_locally``: whether the local engine answers every row; ``buys``: whether lookups are paid for;
    ``uploads``: whether they are bought in uploads instead of a request each; ``has_jobs``: whether rows may belong to
    jobs of the service; ``own_options``: fields of :class:`ServiceOptions` that engines of no other name take.
    """

    name: str
    answers_locally: bool = False
    buys: bool = True
    uploads: bool = False
    has_jobs: bool = False
    own_options: frozenset[str] = frozenset()


def _options_of(engine: str) -> frozenset[str]:
    return frozenset(spec.name for spec in specs_of(ServiceOptions) if engine in spec.engines)


ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    kind.name: kind
    for kind in (
        EngineKind("local", answers_locally=True, buys=False),
        EngineKind("verify"),
        EngineKind("batch", uploads=True, has_jobs=True, own_options=_options_of("batch")),
        EngineKind("hybrid", answers_locally=True, has_jobs=True, own_options=_options_of("hybrid")),
    )
}
"""The kinds of engines by their names: nowhere else is an engine known by its name."""


def engine_kind(name: str) -> EngineKind:
    """Return the kind of engine of that name; raise :class:`UsageError` where there is none."""
    if name not in ENGINE_KINDS:
        raise UsageError(ENGINE_UNKNOWN, name=name, listed=" or ".join(ENGINE_KINDS))
    return ENGINE_KINDS[name]


def service_options(engine: str, keywords: ServiceKeywords) -> ServiceOptions:
    """Return the options of a run; raise :class:`UsageError` for what makes no sense or is for another engine."""
    kind = engine_kind(engine)
    if keywords and not kind.buys:
        buying = ", ".join(one.name for one in ENGINE_KINDS.values() if one.buys)
        raise UsageError(BUYING_ENGINES_ONLY, option=Option(next(iter(keywords))), buying=buying, engine=engine)
    hide_key(keywords)
    refuse_foreign(kind, [name for name, value in keywords.items() if value is not None])
    return ServiceOptions(**keywords)
