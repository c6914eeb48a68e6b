"""The user's scorecards: the champion that answers, earlier ones, and the journal (all in ``scorecard_store``)."""

from __future__ import annotations

from bizverify.model_store.scorecard_store import (
    BUILTIN,
    Event,
    ModelStore,
    ScorecardDifference,
    add_missing_levels,
    differences,
    points_table,
    resolve_model,
)

__all__ = [
    "BUILTIN",
    "Event",
    "ModelStore",
    "ScorecardDifference",
    "add_missing_levels",
    "differences",
    "points_table",
    "resolve_model",
]
