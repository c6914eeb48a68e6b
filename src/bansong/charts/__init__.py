"""Charts of what was found, as Altair charts of small frames.

Each function takes counts that are already made, so that a chart's numbers are those of a report, and returns a chart
that a notebook shows, ``.save("x.html")`` writes and ``.to_dict()`` gives as a Vega-Lite specification. Altair is the
extra ``notebook``; without it a :class:`~bansong.errors.UsageError` says so. Titles are in the current language.
"""

from bansong.charts.figures import grade_history, grades, reasons, regions, reliability, waterfall
from bansong.charts.library import as_svg

__all__ = ["as_svg", "grade_history", "grades", "reasons", "regions", "reliability", "waterfall"]
