"""The user's scorecards: the champion that answers, those it replaced, and what was decided when."""

from __future__ import annotations

from bizverify.model_store.compare import Difference, completed, differences, points_table
from bizverify.model_store.journal import Event
from bizverify.model_store.store import BUILTIN, ModelStore, resolved

__all__ = ["BUILTIN", "Difference", "Event", "ModelStore", "completed", "differences", "points_table", "resolved"]
