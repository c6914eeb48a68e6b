"""The charts of a page as SVG, drawn by Altair and vl-convert (extra ``notebook``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from bansong import charts
from bansong.errors import UsageError
from bansong.report_page.page_figures import PageFigures
from bansong.report_page.tags import Markup

_ROOT: Final = re.compile(r"<svg ")


def draw_charts(figures: PageFigures) -> list[tuple[str, Markup]]:
    """Return the charts as (name, SVG): grades, reasons, provinces; an empty list where nothing draws.

    The tables of the page say the same, so the drawings are hidden from screen readers.
    """
    wanted: dict[str, Callable[[], Any]] = {
        "grades": lambda: charts.grades(figures.counts["grade"], figures.rows),
        "reasons": lambda: charts.reasons(figures.reasons.select("reason", "rows")),
        "regions": lambda: charts.regions(figures.regions.select("region", "rows", "expected")),
    }
    try:
        return [(name, _svg(chart())) for name, chart in wanted.items()]
    except (UsageError, ImportError, ValueError):  # Altair says ValueError where vl-convert is missing
        return []


def _svg(chart: Any) -> Markup:
    return Markup(_ROOT.sub('<svg aria-hidden="true" ', charts.as_svg(chart), count=1))
