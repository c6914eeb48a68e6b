"""The built-in scorecard as the text of one file, as a user's own is."""

from __future__ import annotations

from pathlib import Path

from bansong.engine import risk

TEXT = "\n".join(
    (Path(risk.__path__[0]) / name).read_text(encoding="utf-8") for name in ("scorecard.toml", "reasons.toml")
)
