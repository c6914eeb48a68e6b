"""The answer for one business, as text, as a table in a notebook, and as a picture of its score."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify import charts
from bizverify.errors import UsageError
from bizverify.translation import gettext

if TYPE_CHECKING:
    from bizverify.charts.library import Chart

_REASON: Final = re.compile(r"\[(?P<label>\S+) (?P<points>[+-]\d+)\] (?P<text>.*)", re.DOTALL)
_BASE: Final = "base"
"""The label of the reason that a score starts from, in any language."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer for one business (INTERFACE §2.2), with what became of the row.

    ``bounce_prob`` is a fraction between 0 and 1. Fields that are not known are ``None``.
    """

    b_no: str | None
    biz_status: str | None
    bounce_prob: float | None
    grade: str | None
    action: str | None
    fixed_zipcode: str | None
    fixed_address: str | None
    reasons: tuple[str, ...]
    row_status: str
    row_note: str | None

    def waterfall(self) -> Chart:
        """Return how the score comes about: a bar for each reason's points, from the base down to the score.

        Raises :class:`UsageError` where the reasons carry no points (the hosted service's own), or Altair is missing.
        """
        frame = self.points_frame
        if frame.is_empty():
            raise UsageError(gettext("the reasons of this verification carry no points, so there is nothing to draw"))
        subtitle = "" if self.bounce_prob is None else gettext("return risk {risk:.1%}", risk=self.bounce_prob)
        return charts.waterfall(frame, self.b_no or "", subtitle)

    @property
    def points_frame(self) -> pl.DataFrame:
        """Reasons that carry points, the base first: ``reason`` (String), ``points`` (Int64)."""
        found = [match for match in map(_REASON.fullmatch, self.reasons) if match]
        found.sort(key=lambda match: match["label"] != _BASE)
        rows = [(match["text"], int(match["points"])) for match in found]
        return pl.DataFrame(rows, schema={"reason": pl.String, "points": pl.Int64}, orient="row")

    def __str__(self) -> str:
        lines = [f"{name:<14}{value}" for name, value in self._facts()]
        return "\n".join([*lines, *(f"{'reason':<14}{reason}" for reason in self.reasons)])

    def _repr_html_(self) -> str:
        facts = [*self._facts(), ("reasons", "\n".join(self.reasons))]
        cells = "".join(
            f"<tr><th style='text-align:left'>{name}</th>"
            f"<td style='text-align:left;white-space:pre-line'>{escape(value)}</td></tr>"
            for name, value in facts
        )
        return f"<table>{cells}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        shown = {
            "b_no": self.b_no,
            "biz_status": self.biz_status,
            "bounce_prob": None if self.bounce_prob is None else f"{self.bounce_prob:.1%}",
            "grade": self.grade,
            "action": self.action,
            "fixed_zipcode": self.fixed_zipcode,
            "fixed_address": self.fixed_address,
            "row_status": self.row_status,
            "row_note": self.row_note,
        }
        return [(name, value) for name, value in shown.items() if value is not None]
