"""The control group: letters to firms closed for over a year must come back; if few do, returns are missing.

Unrecorded returns look like a lower base rate; only letters that must come back tell the two apart. Since somebody may
take in the mail of closed firms, every other level and the highest ranked letters speak for the returns as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import polars as pl

from bansong.learning.fit import TERMS, design
from bansong.learning.significance import USUAL, interval
from bansong.translation import gettext, gettext_noop, gettext_of

CONTROL: Final = ("status", "closed_over_12_months")
_MIN_SHARE, _USUAL_SHARE = 0.5, 0.8
"""Share of the control group that must come back, and that usually does if all returns are recorded."""
_MIN_CONTROL_LETTERS: Final = 5
LEVEL: Final = 20
"""Letters from which another group is judged."""
_LIKELY_CONFIDENCE: Final = 0.8
_RECORDED, _LEFT = 0.7, 0.33
_TIMES_AS_LIKELY, _SHOWN = 5.0, 0.4
"""Likelihood ratio of the rates above, and share, at which a group shows that returns are recorded."""
_LETTERS_WITHOUT_CONTROL: Final = 2_500
"""Letters after which a control group is no longer required."""

REMEDY: Final = gettext_noop(
    "ask the mail room or the post whether returned letters were left out or lost, record them with "
    "`bansong label`, or have a sample audited with `bansong calibrate --audit-sample`"
)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Of ``letters`` to firms closed for over a year ``returned`` came back, among ``of`` letters in all.

    ``riskiest``: the highest ranked letters, and their returns. ``complete``: more than half of some group surely came
    back, so at most half of the returns are missing.
    """

    letters: int
    returned: int
    of: int
    riskiest: tuple[int, int]
    complete: bool

    @classmethod
    def count(cls, patterns: pl.DataFrame, riskiest: tuple[int, int] = (0, 0)) -> ControlGroup:
        """Count the group in patterns of :func:`bansong.learning.fit.count_patterns`."""
        n, bounced = (patterns[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
        levels = design(patterns)
        counts = [
            (round(letters), round(returned))
            for letters, returned in zip(levels.sums(n), levels.sums(bounced), strict=True)
        ]
        complete = any(
            letters >= LEVEL and interval(returned, letters)[0] > _MIN_SHARE
            for letters, returned in (*counts, riskiest)
        )
        return cls(*counts[TERMS.index(CONTROL)], round(n.sum()), riskiest, complete)

    def describe_loss(self, confidence: float = USUAL) -> str | None:
        """Return why returns are missing, with figures and remedy; ``None`` if that is not sure.

        Give :data:`bansong.learning.significance.WIDE` as ``confidence`` when judging one of many mailings.
        """
        ranked, of_ranked = self.riskiest
        possible = ranked > 0 and interval(of_ranked, ranked)[1] > _MIN_SHARE
        if self.complete or possible or interval(self.returned, self.letters, confidence)[1] >= _MIN_SHARE:
            return None
        share = self.returned / self.letters
        return gettext_of(
            self,
            "returns seem to be missing: of {letters:,} letters to firms closed for over a year only "
            "{returned:,} came back ({share:.0%}; at least {half:.0%} must), and of no other group more than "
            "half did, so about {value:.0%} of all returns are not recorded; {remedy}",
            share=share,
            half=_MIN_SHARE,
            value=max(0.0, 1 - share / _USUAL_SHARE),
            remedy=gettext(REMEDY),
        )

    def describe_uncertainty(self) -> str | None:
        """Return why missing returns cannot be excluded yet, and what to do; ``None`` if they can."""
        groups = [(self.letters, self.returned)]
        if (
            self.letters < _MIN_CONTROL_LETTERS
            or interval(self.returned, self.letters, _LIKELY_CONFIDENCE)[1] >= _MIN_SHARE
        ):
            groups.append(self.riskiest)  # where the control group speaks against it, they do not outweigh it
        if self.complete or any(_shows_returns(returned, letters) for letters, returned in groups):
            return None
        if self.letters < _MIN_CONTROL_LETTERS:
            if self.of >= _LETTERS_WITHOUT_CONTROL:
                return None
            return gettext(
                "whether all returns are recorded is not known: only {letters:,} letters went to firms closed "
                "for over a year, {enough} are needed, or {at_least:,} letters in all; mail some of the held rows",
                letters=self.letters,
                enough=_MIN_CONTROL_LETTERS,
                at_least=_LETTERS_WITHOUT_CONTROL,
            )
        return gettext_of(
            self,
            "whether all returns are recorded is not known: of {letters:,} letters to firms closed for over "
            "a year {returned:,} came back, and most must; {remedy}",
            remedy=gettext(REMEDY),
        )


def _shows_returns(returned: int, letters: int) -> bool:
    arrived = letters - returned
    likelier = returned * math.log(_RECORDED / _LEFT) + arrived * math.log((1 - _RECORDED) / (1 - _LEFT))
    return likelier >= math.log(_TIMES_AS_LIKELY) or interval(returned, letters)[0] > _SHOWN
