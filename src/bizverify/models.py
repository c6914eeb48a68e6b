"""The user's scorecards: the champion that answers, those it replaced, and what was decided when."""

from __future__ import annotations

from pathlib import Path

from bizverify.engine.risk.scorecard import Scorecard


def resolved(model: str | Path | Scorecard | None) -> Scorecard:
    """The scorecard that is meant: a file, ``builtin``, the version of a stored one; ``None`` is the champion."""
    return model if isinstance(model, Scorecard) else Scorecard.load(model)
