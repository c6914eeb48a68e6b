"""How a watched business's grade changed: as a frame, as lines, as a small plot in a notebook."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

import polars as pl

from bizverify.display import Shown
from bizverify.schema import GRADES
from bizverify.watch.report import business_label
from bizverify.watch.times import local_iso
from bizverify.watch.types import Change

_WIDTH: Final = 560
_LEFT: Final = 46
_RIGHT: Final = 16
_TOP: Final = 14
_STEP: Final = 22
_BOTTOM: Final = 26
_AFTER: Final = 0.06
"""How far the last grade is drawn on behind the last change, as a share of the width."""
_DAY: Final = 86400.0
_LEVELS: Final = 12
"""Grades that a plot has room for."""


@dataclass(frozen=True, slots=True, repr=False)
class History(Shown):
    """The changes of grade of one watched business, the oldest first; ``grade`` is the one it has now.

    ``created``: when it was put on the list, in seconds since 1970, where that is known. Displays as a plot and a table
    in a notebook.
    """

    watch_id: str
    biz_no: str
    name: str | None
    grade: str | None
    created: float | None
    changes: tuple[Change, ...]

    @property
    def frame(self) -> pl.DataFrame:
        """One row a change: ``at`` (Datetime, UTC; null if not known), ``before``, ``after``, ``biz_status``."""
        rows = [(None if math.isnan(c.at) else c.at, c.before, c.after, c.biz_status) for c in self.changes]
        names = ("at", "before", "after", "biz_status")
        frame = pl.DataFrame(
            rows, schema={name: pl.Float64 if name == "at" else pl.String for name in names}, orient="row"
        )
        at = (pl.col("at") * 1e6).round().cast(pl.Int64)
        return frame.with_columns(pl.from_epoch(at, time_unit="us").dt.replace_time_zone("UTC").alias("at"))

    @property
    def title(self) -> str:
        """Which business it is."""
        return business_label(self.biz_no, self.name)

    def lines(self) -> list[tuple[str, str]]:
        """What people read: (when, what) of each change, in this machine's time zone."""
        return [
            (
                local_iso(change.at) or "at an unknown time",
                f"{change.before or '–'} → {change.after or '–'}"
                + (f", {change.biz_status}" if change.biz_status else ""),
            )
            for change in self.changes
        ]

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        if not self.changes:
            return f"{self.title}: no change of grade{f', still {self.grade}' if self.grade else ''}"
        return "\n".join([self.title, *(f"{when:<28}{what}" for when, what in self.lines())])

    def _repr_html_(self) -> str:
        if not self.changes:
            return f"<p>{escape(repr(self))}</p>"
        return f"<div>{escape(self.title)}</div>{self._plot()}{Shown._repr_html_(self)}"

    def _plot(self) -> str:
        """Grades over time as steps; nothing where no time is known, or there are too many grades."""
        known = [change for change in self.changes if not math.isnan(change.at)]
        levels = _levels(known)
        if not known or len(levels) > _LEVELS:
            return ""
        begin = known[0].at if self.created is None else min(self.created, known[0].at)
        if begin == known[-1].at:
            begin -= _DAY
        end = known[-1].at + (known[-1].at - begin) * _AFTER
        height = _TOP + _STEP * (len(levels) - 1) + _BOTTOM

        def x(at: float) -> str:
            return f"{_LEFT + (at - begin) / (end - begin) * (_WIDTH - _LEFT - _RIGHT):.1f}"

        def y(grade: str | None) -> str:
            return f"{_TOP + _STEP * levels.index(grade or '–')}"

        path = f"M{x(begin)},{y(known[0].before)}"
        path += "".join(f" H{x(change.at)} V{y(change.after)}" for change in known) + f" H{x(end)}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" role="img" '
            f'aria-label="{escape(f"Grade of {self.title} over time")}" style="font:11px sans-serif">'
            + "".join(_grid(level, y(level)) for level in levels)
            + f'<path d="{path}" fill="none" stroke="#1f6fb2" stroke-width="2"/>'
            + "".join(_dot(change, x(change.at), y(change.after)) for change in known)
            + _date(begin, _LEFT, height, "start")
            + _date(known[-1].at, _WIDTH - _RIGHT, height, "end")
            + "</svg>"
        )


def _levels(changes: list[Change]) -> list[str]:
    """The grades on the axis, the best at the top: the usual five, or those of the service in their order."""
    seen = dict.fromkeys(grade or "–" for change in changes for grade in (change.before, change.after))
    return list(GRADES) if set(seen) <= set(GRADES) else sorted(seen, key=lambda grade: (grade == "–", grade))


def _grid(level: str, y: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#8884" stroke-width="1"/>'
        f'<text x="{_LEFT - 8}" y="{y}" dy="4" text-anchor="end" fill="currentColor">{escape(level[:6])}</text>'
    )


def _dot(change: Change, x: str, y: str) -> str:
    said = f"{local_iso(change.at)}: {change.before or '–'} → {change.after or '–'}"
    return f'<circle cx="{x}" cy="{y}" r="3.5" fill="#1f6fb2"><title>{escape(said)}</title></circle>'


def _date(at: float, x: float, height: int, anchor: str) -> str:
    day = f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d}"
    return f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}" fill="currentColor">{day}</text>'
