"""Charts for notebooks, by Altair."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from textwrap import wrap
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import polars as pl

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Lang, current_language, gettext, ngettext
from bansong.base.schema import BETTER, GRADE_COLOURS, GRADES, LINE, NEUTRAL, SEOUL, WORSE

if TYPE_CHECKING:
    import altair as alt

    Chart: TypeAlias = alt.LayerChart  # result of the methods that draw

ALTAIR_MISSING: Final = Problem("charts.altair_missing", "charts need Altair: pip install 'bansong[notebook]'")

# fonts with Hangul: those of macOS, Windows and Linux, in this order
FONTS: Final = "'Apple SD Gothic Neo', 'Malgun Gothic', 'Noto Sans KR', 'Noto Sans CJK KR', NanumGothic, sans-serif"
WIDTH: Final = 460


def altair() -> ModuleType:
    """Import Altair; raise :class:`UsageError` without it."""
    try:
        import altair
    except ImportError as error:
        raise UsageError(ALTAIR_MISSING) from error
    return altair


def apply_style(chart: Any) -> alt.LayerChart:
    """Return the chart with the fonts and axes that all charts share."""
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


class Tile(NamedTuple):
    """The tile of a province: its column and row from the north-west, its short names."""

    column: int
    row: int
    en: str
    ko: str

    def name(self, lang: Lang) -> str:
        return self.ko if lang == "ko" else self.en


TILES: Final = {  # tile of each level of the feature `region`
    "incheon": Tile(0, 0, "Incheon", "인천"),
    "seoul": Tile(1, 0, "Seoul", "서울"),
    "gyeonggi": Tile(2, 0, "Gyeonggi", "경기"),
    "gangwon": Tile(3, 0, "Gangwon", "강원"),
    "chungnam": Tile(0, 1, "Chungnam", "충남"),
    "sejong": Tile(1, 1, "Sejong", "세종"),
    "chungbuk": Tile(2, 1, "Chungbuk", "충북"),
    "gyeongbuk": Tile(3, 1, "Gyeongbuk", "경북"),
    "jeonbuk": Tile(0, 2, "Jeonbuk", "전북"),
    "daejeon": Tile(1, 2, "Daejeon", "대전"),
    "daegu": Tile(2, 2, "Daegu", "대구"),
    "ulsan": Tile(3, 2, "Ulsan", "울산"),
    "jeonnam_gwangju": Tile(0, 3, "Jeonnam·Gwangju", "전남·광주"),
    "gyeongnam": Tile(2, 3, "Gyeongnam", "경남"),
    "busan": Tile(3, 3, "Busan", "부산"),
    "jeju": Tile(0, 4, "Jeju", "제주"),
}

_TILE: Final = 108
_BAR: Final = 24  # pixels of a tile's side, and of a horizontal bar with its gap
_LINE: Final = 14  # pixels of a label's further line
_LETTERS: Final = 52  # in a line of a label, so that none is cut
_HYPHEN: Final = "replace(datum.label, '\u2212', '-')"  # many Korean fonts have no minus sign


def grades(counts: Mapping[str, int], rows: int | None = None) -> alt.LayerChart:
    """Draw rows by grade as bars; ``rows``: total, to show the rows without a grade."""
    alt = altair()
    known = {grade: counts.get(grade, 0) for grade in (*GRADES, *(name for name in counts if name not in GRADES))}
    without = 0 if rows is None else rows - sum(known.values())
    shown = known | ({gettext("no grade"): without} if without else {})
    total = sum(shown.values()) or 1
    frame = pl.DataFrame({"grade": list(shown), "rows": list(shown.values())}).with_columns(
        share=pl.col("rows") / total
    )
    colours = [GRADE_COLOURS.get(grade, NEUTRAL) for grade in shown]
    base = alt.Chart(frame).encode(
        alt.X("grade:N", sort=list(shown), title=gettext("grade"), axis=alt.Axis(labelAngle=0)),
        alt.Y("rows:Q", title=gettext("rows"), axis=alt.Axis(format=",d", tickMinStep=1)),
        tooltip=[
            alt.Tooltip("grade:N", title=gettext("grade")),
            alt.Tooltip("rows:Q", title=gettext("rows"), format=","),
            alt.Tooltip("share:Q", title=gettext("share"), format=".1%"),
        ],
    )
    bars = base.mark_bar().encode(alt.Color("grade:N", scale=alt.Scale(domain=list(shown), range=colours), legend=None))
    labels = base.mark_text(dy=-7, fontSize=12).encode(alt.Text("rows:Q", format=","))
    return apply_style((bars + labels).properties(width=WIDTH, height=220, title=gettext("Rows by grade")))


def regions(frame: pl.DataFrame) -> alt.LayerChart:
    """Draw the return risk by province as tiles, from ``region`` (null: no province), ``rows``, ``expected``."""
    alt = altair()
    places = pl.DataFrame(
        [(level, tile.column, tile.row, tile.name(current_language())) for level, tile in TILES.items()],
        schema=["region", "column", "row", "name"],
        orient="row",
    )
    tiles = places.join(frame.select("region", "rows", "expected"), on="region", how="left").with_columns(
        pl.col("rows").fill_null(0), risk=pl.when(pl.col("rows") > 0).then(pl.col("expected") / pl.col("rows"))
    )
    tooltip = [
        alt.Tooltip("name:N", title=gettext("province")),
        alt.Tooltip("rows:Q", title=gettext("rows"), format=","),
        alt.Tooltip("expected:Q", title=gettext("expected back"), format=",.1f"),
        alt.Tooltip("risk:Q", title=gettext("return risk"), format=".1%"),
    ]
    base = alt.Chart(tiles).encode(alt.X("column:O", axis=None), alt.Y("row:O", axis=None), tooltip=tooltip)
    known = base.transform_filter("isValid(datum.risk)")
    colour = alt.Color(
        "risk:Q",
        scale=alt.Scale(scheme="orangered", domainMin=0),
        legend=alt.Legend(title=gettext("return risk"), format=".0%", gradientLength=160),
    )
    dark = 0.6 * (tiles.select(pl.col("risk").max()).item() or 1.0)
    ink = alt.condition(f"datum.risk > {dark}", alt.value("white"), alt.value("#202124"))
    shape = {"stroke": "white", "strokeWidth": 3, "cornerRadius": 6}
    empty, squares = base.mark_rect(color="#eceff1", **shape), known.mark_rect(**shape).encode(color=colour)
    names = base.mark_text(dy=-18, fontSize=13).encode(alt.Text("name:N"), color=ink)
    risks = known.mark_text(dy=4, fontSize=16, fontWeight="bold").encode(alt.Text("risk:Q", format=".1%"), color=ink)
    counts = base.mark_text(dy=26, fontSize=11).encode(alt.Text("rows:Q", format=","), color=ink)
    lost = int(frame.filter(~pl.col("region").is_in(list(TILES)).fill_null(False))["rows"].sum())
    subtitle = [gettext("The lower number counts the rows.")]
    if lost:
        subtitle.append(ngettext("{count:,} row without a province.", "{count:,} rows without a province.", lost))
    title = alt.TitleParams(gettext("Return risk by province"), subtitle=subtitle)
    size = {"width": 4 * _TILE, "height": 5 * _TILE}
    return apply_style((empty + squares + names + risks + counts).properties(title=title, **size))


def reliability(frame: pl.DataFrame) -> alt.LayerChart:
    """Draw predicted against actual returns with 95 % intervals, from bins of :attr:`Calibration.frame`."""
    alt = altair()
    ends = frame.select(pl.max_horizontal("mean_p", "high").max()).item() or 1.0
    scale = alt.Scale(domain=[0, min(1.0, ends * 1.08)], nice=False)
    diagonal = alt.Chart(pl.DataFrame({"p": [0.0, scale.domain[1]]})).mark_line(color=NEUTRAL, strokeDash=[5, 4])
    base = alt.Chart(frame.select("mean_p", "rate", "low", "high", "n")).encode(
        alt.X("mean_p:Q", scale=scale, title=gettext("predicted return rate"), axis=alt.Axis(format="%")),
        tooltip=[
            alt.Tooltip("mean_p:Q", title=gettext("predicted"), format=".1%"),
            alt.Tooltip("rate:Q", title=gettext("came back"), format=".1%"),
            alt.Tooltip("low:Q", title=gettext("95 % interval from"), format=".1%"),
            alt.Tooltip("high:Q", title=gettext("to"), format=".1%"),
            alt.Tooltip("n:Q", title=gettext("rows"), format=","),
        ],
    )
    rate = {"scale": scale, "title": gettext("came back"), "axis": alt.Axis(format="%")}
    chart = (
        diagonal.encode(alt.X("p:Q", scale=scale), alt.Y("p:Q", scale=scale))
        + base.mark_rule(color=LINE).encode(alt.Y("low:Q", **rate), alt.Y2("high:Q"))
        + base.mark_point(color=LINE, filled=True, size=70, opacity=1).encode(alt.Y("rate:Q", **rate))
    )
    subtitle = gettext("On the dashed line as many letters came back as were expected.")
    return apply_style(
        chart.properties(width=340, height=340, title=alt.TitleParams(gettext("Reliability"), subtitle=subtitle))
    )


def waterfall(frame: pl.DataFrame, title: str, subtitle: str = "") -> alt.LayerChart:
    """Draw how points add up to a score, from ``reason`` and ``points`` in order: a bar each, then the score."""
    alt = altair()
    steps = waterfall_steps(frame)
    reasons = [wrap(reason, _LETTERS) or [""] for reason in steps["reason"]]
    bare = {"ticks": False, "domain": False}
    base = alt.Chart(steps).encode(
        alt.Y("step:O", title=None, sort=None, axis=alt.Axis(labelExpr=_labels(reasons), labelLimit=0, **bare)),
        tooltip=[
            alt.Tooltip("reason:N", title=gettext("reason")),
            alt.Tooltip("points:Q", title=gettext("points"), format="+d"),
        ],
    )
    kinds = {"total": NEUTRAL, "worse": WORSE, "better": BETTER}
    colour = alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=list(kinds.values())), legend=None)
    bars = base.mark_bar(height=16).encode(
        alt.X("start:Q", title=gettext("points (+10 doubles the odds of a return)"), axis=alt.Axis(labelExpr=_HYPHEN)),
        alt.X2("end:Q"),
        colour,
    )
    labels = base.mark_text(align="left", dx=4, fontSize=12).encode(alt.X("right:Q"), alt.Text("written:N"))
    zero = alt.Chart(pl.DataFrame({"at": [0]})).mark_rule(color="#bdc1c6").encode(alt.X("at:Q"))
    size = {"width": WIDTH - 120, "height": (_BAR + _LINE * (max(map(len, reasons)) - 1)) * steps.height}
    return apply_style((zero + bars + labels).properties(title=alt.TitleParams(title, subtitle=subtitle), **size))


def waterfall_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the bars of a waterfall: each starts where the previous one ends; the last is the score."""
    end = pl.col("points").cum_sum()
    moves = frame.select("reason", pl.col("points").cast(pl.Int64)).with_columns(start=end - pl.col("points"), end=end)
    kind = pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("total")).when(pl.col("points") > 0).then(pl.lit("worse"))
    moves = moves.with_columns(kind=kind.otherwise(pl.lit("better")))
    score = int(frame["points"].sum())
    total = {"reason": gettext("score"), "points": score, "start": 0, "end": score, "kind": "total"}
    steps = pl.concat([moves, pl.DataFrame([total], schema=moves.schema)])
    sign = pl.when(pl.col("points") >= 0).then(pl.lit("+")).otherwise(pl.lit(""))
    return steps.with_row_index("step").with_columns(
        right=pl.max_horizontal("start", "end"), written=sign + pl.col("points").cast(pl.String)
    )


def _labels(reasons: list[list[str]]) -> str:
    # the axis holds places, since two reasons may have the same text
    import json

    return f"{json.dumps(reasons, ensure_ascii=False)}[datum.value]"


def grade_history(frame: pl.DataFrame, levels: list[str], title: str) -> alt.LayerChart:
    """Draw grades over time as steps."""
    # ``frame``: ``at`` (Datetime with a zone), ``grade``, ``said`` (text on a change, or null), lastly the line's end;
    # ``levels``: grades, the best first
    alt = altair()
    # Korean time without a zone: a browser draws it as it stands, in whatever zone it is
    frame = frame.with_columns(pl.col("at").dt.convert_time_zone(str(SEOUL)).dt.replace_time_zone(None))
    ticks = frame.head(-1).unique(pl.col("at").dt.truncate("1m"), keep="last", maintain_order=True)
    axis = alt.Axis(
        values=ticks["at"].dt.strftime("%Y-%m-%dT%H:%M:%S%.3f").to_list(),
        labelExpr="[timeFormat(datum.value, '%Y-%m-%d'), timeFormat(datum.value, '%H:%M')]",
        labelOverlap="greedy",
        labelAngle=0,
    )
    base = alt.Chart(frame).encode(
        alt.X("at:T", title=None, axis=axis),
        alt.Y("grade:N", scale=alt.Scale(domain=levels), sort=levels, title=gettext("grade"), axis=alt.Axis(grid=True)),
    )
    tooltip: Any = alt.Tooltip("said:N", title=gettext("change"))
    points = base.transform_filter("isValid(datum.said)").mark_point(color=LINE, filled=True, size=60, opacity=1)
    chart = base.mark_line(color=LINE, interpolate="step-after") + points.encode(tooltip=tooltip)
    return apply_style(chart.properties(width=WIDTH, height=26 * max(len(levels), 2), title=title))
