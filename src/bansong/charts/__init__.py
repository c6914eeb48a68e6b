"""Altair charts of counts: they display in a notebook and have ``.save("x.html")`` and ``.to_dict()`` (Vega-Lite).

Altair is the extra ``notebook``; without it a :class:`~bansong.errors.UsageError` says so. Titles are in the current
language.
"""

from bansong.charts.figures import grade_history, grades, reasons, regions, reliability, waterfall
from bansong.charts.library import as_svg

__all__ = ["as_svg", "grade_history", "grades", "reasons", "regions", "reliability", "waterfall"]
