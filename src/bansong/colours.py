"""The colours of charts, pages and notebooks."""

from __future__ import annotations

from typing import Final

GRADE_COLOURS: Final = {"A": "#2166ac", "B": "#67a9cf", "C": "#f4c542", "D": "#ef8a62", "E": "#b2182b"}
"""A colour a grade, told apart by the colour-blind, too."""

NEUTRAL: Final = "#9aa0a6"
BETTER: Final = GRADE_COLOURS["A"]
WORSE: Final = GRADE_COLOURS["E"]
LINE: Final = "#1f6fb2"
