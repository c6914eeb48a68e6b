"""What was known about a letter when it was mailed, and what became of it: the rows that learning learns from."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.risk.features import FEATURES

LEVEL: Final = "level:"
"""What goes before a feature's name in the columns that hold its level."""

LEVEL_DTYPES: Final[dict[str, pl.Enum]] = {f"{LEVEL}{feature}": pl.Enum(levels) for feature, levels in FEATURES.items()}
"""One column a feature: the name of the level that held, null where none did."""

KNOWN_DTYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "score": pl.Int32,
    "bounce_prob": pl.Float64,
    "grade": pl.String,
    "model": pl.String,
    **LEVEL_DTYPES,
}
"""What a row of an enriched file says of the model's view of it; ``model`` is the scorecard's version, if known."""

OUTCOME_DTYPES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "row_id": pl.UInt32,
    "mailed": pl.Date,
    "bounced": pl.Boolean,
    "reason_code": pl.String,
}
"""What became of the letter: ``bounced`` is null where nobody can say; ``reason_code`` of ``return_reasons.toml``."""

EVIDENCE_DTYPES: Final = OUTCOME_DTYPES | KNOWN_DTYPES
"""A row of evidence: one letter."""
