"""The drawing library (Altair, extra ``notebook``) and the common style of charts."""

from __future__ import annotations

from io import StringIO
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bansong.errors import Problem, UsageError

if TYPE_CHECKING:
    import altair as alt

    Chart: TypeAlias = alt.LayerChart
    """What the methods that draw return."""

ALTAIR_MISSING: Final = Problem("charts.altair_missing", "charts need Altair: pip install 'bansong[notebook]'")

FONTS: Final = "'Apple SD Gothic Neo', 'Malgun Gothic', 'Noto Sans KR', 'Noto Sans CJK KR', NanumGothic, sans-serif"
"""Fonts with Hangul: those of macOS, Windows and Linux, in this order."""
WIDTH: Final = 460


def altair() -> ModuleType:
    """Return Altair; raise :class:`UsageError` where it is not installed."""
    try:
        import altair
    except ImportError as error:
        raise UsageError(ALTAIR_MISSING) from error
    return altair


def apply_style(chart: Any) -> alt.LayerChart:
    """Return a chart with fonts that have Hangul, and without a frame around it."""
    axis = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 420, "grid": False}
    title = {"anchor": "start", "fontSize": 14, "subtitleFontSize": 12, "subtitleColor": "#5f6368", "offset": 10}
    styled: alt.LayerChart = (
        chart.configure(font=FONTS)
        .configure_axis(**axis)
        .configure_title(**title)
        .configure_view(strokeWidth=0)
        .configure_legend(titleFontWeight="normal")
    )
    return styled


def as_svg(chart: Any) -> str:
    """Return a chart as SVG; raise :class:`ValueError` or :class:`ImportError` where vl-convert is missing."""
    text = StringIO()
    chart.save(text, format="svg")
    return text.getvalue()
