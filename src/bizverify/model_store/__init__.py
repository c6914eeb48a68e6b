"""The user's scorecards: the champion that answers, those it replaced, and what was decided when."""

from __future__ import annotations

from bizverify.model_store.compare import ScorecardDifference, add_missing_levels, differences, points_table
from bizverify.model_store.journal import Event
from bizverify.model_store.store import BUILTIN, ModelStore, resolve_model

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
