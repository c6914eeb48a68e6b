"""Parts of reports in notebooks: tables, a bar of grades, reasons. They fit light and dark themes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from bansong.colours import BETTER, GRADE_COLOURS, NEUTRAL, WORSE
from bansong.schema import GRADES
from bansong.translation import end_sentence, gettext

_DARK_INK: Final = ("C", "D")
"""Grades whose colour is too light for white letters."""
_MIN_LABELLED_SHARE: Final = 0.05
"""Share of the bar from which a part has room for its letter."""


def facts_table(lines: Iterable[tuple[str, str]]) -> str:
    """Return (what, how much) as a table."""
    rows = "".join(
        f"<tr><th style='text-align:left;white-space:nowrap'>{escape(what)}</th>"
        f"<td style='text-align:left;white-space:pre-wrap'>{escape(value)}</td></tr>"
        for what, value in lines
    )
    return f"<table>{rows}</table>"


def warning_list(warnings: Iterable[str]) -> str:
    """Return warnings as paragraphs."""
    return "".join(f"<p>⚠ {escape(end_sentence(str(warning)))}</p>" for warning in warnings)


def grade_bar(counts: Mapping[str, int], rows: int) -> str:
    """Return rows by grade as one bar, those without a grade in grey; empty without rows."""
    known = {grade: counts[grade] for grade in GRADES if counts.get(grade)}
    others = rows - sum(known.values())
    parts = known | ({gettext("no grade"): others} if others > 0 else {})
    if not parts:
        return ""
    bar = "".join(_segment(name, count, rows) for name, count in parts.items())
    words = ", ".join(f"{name} {count:,}" for name, count in parts.items())
    style = "display:flex;max-width:40em;height:1.6em;border-radius:.3em;overflow:hidden;margin:.4em 0"
    return f'<div role="img" aria-label="{escape(words)}" style="{style}">{bar}</div>'


def _segment(name: str, count: int, rows: int) -> str:
    colour, ink = GRADE_COLOURS.get(name, NEUTRAL), "#202124" if name in _DARK_INK else "#fff"
    label = name if name in GRADE_COLOURS and count / rows >= _MIN_LABELLED_SHARE else ""
    style = f"flex:{count} 0 0;background:{colour};color:{ink};text-align:center;line-height:1.6em;font-weight:600"
    return f'<div title="{escape(f"{name} {count:,} ({count / rows:.1%})")}" style="{style}">{escape(label)}</div>'


def grade_badge(grade: str | None, probability: float | None) -> str:
    """Return a grade in its colour, with the return risk; empty without a grade."""
    if grade is None:
        return ""
    colour, ink = GRADE_COLOURS.get(grade, NEUTRAL), "#202124" if grade in _DARK_INK else "#fff"
    risk = "" if probability is None else gettext("return risk {risk:.1%}", risk=probability)
    style = f"background:{colour};color:{ink};padding:.1em .6em;border-radius:.3em;font-weight:600"
    return f'<p><span style="{style}">{escape(grade)}</span> {escape(risk)}</p>'


def reason_bars(title: str, reasons: Sequence[tuple[str, int]], signed: bool = False) -> str:
    """Return reasons with a bar each; ``signed``: points, positive ones after the base are worse."""
    if not reasons:
        return ""
    most = max(abs(count) for _, count in reasons) or 1
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(reason)}</td>"
        f"<td style='text-align:right'>{f'{count:+d}' if signed else f'{count:,}'}</td>"
        f"<td style='text-align:left;width:12em'>{_bar(count, most, _colour(count, signed and place > 0))}</td></tr>"
        for place, (reason, count) in enumerate(reasons)
    )
    return f"<p style='margin:.6em 0 0;font-weight:600'>{escape(title)}</p><table>{rows}</table>"


def _colour(points: int, judged: bool) -> str:
    return (WORSE if points > 0 else BETTER) if judged else NEUTRAL


def _bar(count: int, most: int, colour: str) -> str:
    width = 100 * abs(count) / most
    return f'<div style="width:{width:.0f}%;height:.7em;border-radius:.2em;background:{colour}"></div>'
