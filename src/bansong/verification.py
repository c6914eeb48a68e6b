"""The answer for one business, as text, as a table in a notebook, and as a picture of its score."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong import charts
from bansong.column_words import HEADERS, KOREAN_WORDS, word_of
from bansong.errors import Problem, UsageError
from bansong.report_display import pad_text
from bansong.report_html import facts_table, grade_badge, reason_bars
from bansong.translation import current_language, gettext

if TYPE_CHECKING:
    from bansong.charts.library import Chart

POINTS_MISSING: Final = Problem(
    "report.points_missing", "the reasons of this verification carry no points, so there is nothing to draw"
)

_REASON: Final = re.compile(r"\[(?P<label>\S+) (?P<points>[+-]\d+)\] (?P<text>.*)", re.DOTALL)
_BASE: Final = "base"
"""Label of the reason that a score starts from, in any language."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer for one business (INTERFACE §2.2). Unknown fields are ``None``.

    ``bounce_prob`` is a fraction between 0 and 1.
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
        """Return how the score adds up: a bar for each reason's points, from the base to the score.

        Raises :class:`UsageError` if the reasons carry no points (the hosted service's own), or Altair is missing.
        """
        frame = self.points_frame
        if frame.is_empty():
            raise UsageError(POINTS_MISSING)
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
        facts = [*self._facts(), *((gettext("reason"), reason) for reason in self.reasons)]
        return "\n".join(f"{pad_text(name, 14)}{value}" for name, value in facts)

    def _repr_html_(self) -> str:
        points = list(self.points_frame.iter_rows())
        said = reason_bars(gettext("reasons"), points, signed=True) if points else ""
        others = [] if points else [(gettext("reasons"), "\n".join(self.reasons))]
        return grade_badge(self.grade, self.bounce_prob) + facts_table([*self._facts(), *others]) + said

    def _facts(self) -> list[tuple[str, str]]:
        lang = current_language()
        headers, facts = {**HEADERS[lang], "b_no": gettext("b_no")}, []
        for name in _FACTS:
            value = getattr(self, name)
            if isinstance(value, float):
                facts.append((headers[name], f"{value:.1%}"))
            elif value is not None:
                facts.append((headers[name], word_of(str(value), lang) if name in KOREAN_WORDS else str(value)))
        return facts


_FACTS: Final = (
    *("b_no", "biz_status", "bounce_prob", "grade", "action"),
    *("fixed_zipcode", "fixed_address", "row_status", "row_note"),
)
