"""Which kinds of engines exist, and what all engines of one name have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bansong.errors import Problem, UsageError

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


ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    kind.name: kind
    for kind in (
        EngineKind("local", answers_locally=True, buys=False),
        EngineKind("verify"),
        EngineKind("batch", uploads=True, has_jobs=True, own_options=frozenset({"offline", "paid"})),
        EngineKind("hybrid", answers_locally=True, has_jobs=True, own_options=frozenset({"band"})),
    )
}
"""The kinds of engines by their names: nowhere else is an engine known by its name."""


def engine_kind(name: str) -> EngineKind:
    """Return the kind of engine of that name; raise :class:`UsageError` where there is none."""
    if name not in ENGINE_KINDS:
        raise UsageError(ENGINE_UNKNOWN, name=name, listed=" or ".join(ENGINE_KINDS))
    return ENGINE_KINDS[name]
