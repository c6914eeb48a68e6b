"""The outcome of one calibration, for people and scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.challenger import Saving
from bansong.learning.gate import ENOUGH
from bansong.learning.quarantine import Audit
from bansong.models.scorecard_levels import levels_of
from bansong.report_display import Shown, pad_text
from bansong.translation import (
    count_letters,
    current_language,
    gettext,
    gettext_noop,
    gettext_of,
    join_clauses,
    ngettext,
)

_SHOWN: Final = 8
_NO_SAVING: Final = Saving(0, 0, 0.0, 0, 0.0)
_TO_RELEASE: Final = gettext_noop(
    "docs/labels.md says what each reason points at; rows to look up, by which they may be released: "
    "`bansong calibrate --audit-sample PATH`"
)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Calibrated(Shown):
    """The outcome of one calibration. Displays as a table in a notebook and as text elsewhere.

    ``labels`` letters were used, ``bounced`` came back, ``expected`` by the ``champion``. ``version`` is the
    challenger's, ``promoted``: whether it answers from now on (in a dry run: would). ``e_value``: the highest so far,
    ``required``: what is enough, ``needed``: after how many contest labels it was (``None``: not yet). ``frame``: see
    :func:`bansong.learning.challenger.points_frame`. ``left_out``: unused letters by reason; ``set_aside``: quarantined
    mailings, with letters and reasons. ``unproven``: missing returns are possible, so no risk is lowered.
    """

    champion: str
    version: str
    promoted: bool
    dry_run: bool
    mailings: int = 0
    labels: int = 0
    bounced: int = 0
    expected: float = 0.0
    false_bounces: float = 0.0
    ceiling: tuple[float, float]
    e_value: float = 1.0
    contest: int = 0
    needed: int | None = None
    required: float = ENOUGH
    doubts: tuple[str, ...] = ()
    unproven: bool = False
    frame: pl.DataFrame
    saving: Saving = _NO_SAVING
    left_out: Mapping[str, int]
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]
    warnings: tuple[str, ...] = ()
    audit: Audit | None = None

    @property
    def exit_code(self) -> int:
        """0, or 3 where labels are quarantined: somebody has to look at them."""
        return 3 if self.set_aside or self.doubts else 0

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain values, as ``--json`` prints it."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("frame", "saving", "audit")}
        return plain | {
            "set_aside": {name: {"letters": n, "why": list(why)} for name, (n, why) in self.set_aside.items()},
            "ceiling": {"before": self.ceiling[0], "after": self.ceiling[1]},
            "saving": asdict(self.saving),
            "audit": self.audit.as_dict() if self.audit else None,
            "points": self.frame.to_dicts(),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        if self.audit is not None:
            yield gettext("audit"), _describe_audit(self.audit)
        mailings = ngettext("{count:,} mailing", "{count:,} mailings", self.mailings)
        letters = count_letters(self.labels)
        yield gettext("labels"), gettext("{letters} of {mailings}", letters=letters, mailings=mailings)
        for why, count in self.left_out.items():
            yield gettext("left out"), gettext("{count:,} {why}", count=count, why=gettext(why))
        for mailing, (size, reasons) in self.set_aside.items():
            about = {"letters": count_letters(size), "mailing": mailing, "names": join_clauses(*reasons)}
            yield gettext("quarantined"), gettext("{letters} of mailing {mailing}: {names}", **about)
        if self.set_aside:
            yield "", gettext(_TO_RELEASE)
        if self.labels:
            yield from self._findings()
        else:
            yield gettext("decision"), gettext_of(self, "{champion} stays: there is nothing to learn from")

    def _findings(self) -> Iterator[tuple[str, str]]:
        ratio = self.bounced / self.expected if self.expected else float("nan")
        counts = gettext_of(self, "{bounced:,}; {expected:,.1f} were expected ({ratio:.2f} of it)", ratio=ratio)
        yield gettext("came back"), counts
        wrong = gettext_of(self, "{false_bounces:.1%} of the letters that arrived, by estimate")
        yield gettext("false returns"), wrong
        yield gettext("evidence"), self._evidence()
        yield gettext("decision"), self._decision()
        moved = self._moved_levels()
        if moved.is_empty() and self.ceiling[0] == self.ceiling[1]:
            yield gettext("points"), gettext("none would move")
            return
        if self.promoted and not self.dry_run:
            count = ngettext("{count:,} level moves; the most:", "{count:,} levels move; the most:", moved.height)
        else:
            count = ngettext(
                "{count:,} level would move; the most:", "{count:,} levels would move; the most:", moved.height
            )
        yield gettext("points"), count
        yield from (("", _format_level(row)) for row in moved.head(_SHOWN).iter_rows(named=True))
        if self.ceiling[0] != self.ceiling[1]:
            yield gettext("ceiling"), f"{self.ceiling[0]:.3f} → {self.ceiling[1]:.3f}"
        yield gettext("effect"), self._effect()

    def _evidence(self) -> str:
        value = f"{self.e_value:,.1f}" if self.e_value < 1e6 else f"{self.e_value:.0e}"
        after = gettext(", reached after {letters}", letters=count_letters(self.needed)) if self.needed else ""
        repeated = gettext(", more than the usual 20 because labels judged before were changed")
        again = repeated if self.required > ENOUGH else ""
        needed = gettext_of(self, "{required:,.0f} is needed{again}{after}", again=again, after=after)
        contest = count_letters(self.contest)
        return gettext(
            "e-value {value} over {letters} of the contest; {needed}", value=value, letters=contest, needed=needed
        )

    def _decision(self) -> str:
        if self.doubts:
            return gettext(
                "{champion} stays, the labels are quarantined: {names}",
                champion=self.champion,
                names=join_clauses(*self.doubts),
            )
        if self.unproven and not self.promoted:
            return gettext(
                "{champion} stays until it is known whether all returns are recorded (see the warning)",
                champion=self.champion,
            )
        if not self.promoted:
            return gettext("{champion} stays: it is not surely worse yet; more labels decide", champion=self.champion)
        if self.dry_run:
            return gettext("would be replaced: {champion} → {version}", champion=self.champion, version=self.version)
        return gettext("is replaced: {champion} → {version}", champion=self.champion, version=self.version)

    def _moved_levels(self) -> pl.DataFrame:
        change = pl.col("after") - pl.col("before")
        return self.frame.filter(change != 0).sort(pl.col("letters") > 0, change.abs(), "letters", descending=True)

    def _effect(self) -> str:
        letters = count_letters(self.saving.letters)
        if not self.saving.held and not self.saving.mailed:
            return gettext("of {letters} like these none would be treated otherwise", letters=letters)
        return gettext_of(
            self.saving,
            "of {letters} like these {held:,} more would be held (about {held_bouncing:,.0f} of them would "
            "come back), {mailed:,} held ones mailed (about {mailed_bouncing:,.0f} would come back)",
            letters=letters,
        )

    def __repr__(self) -> str:
        letters = count_letters(self.labels)
        return f"<bansong.Calibrated {self.champion}: {letters}, promoted {self.promoted}>"


def _describe_audit(audit: Audit) -> str:
    return gettext_of(
        audit,
        "wrong: {wrong} of {labels}, {share}: {verdict}{remedy}",
        labels=ngettext("{count:,} label", "{count:,} labels", audit.checked),
        share=gettext_of(audit, "at most {most:.1%} of all with 95 % confidence"),
        verdict=gettext("they are released") if audit.releases else gettext("they stay in quarantine"),
        remedy=gettext("; correct the wrong ones with `bansong label … --replace`") if audit.wrong else "",
    )


_FILLED: Final = re.compile(r"\([^()]*\{[^()]*\)|:.*|\s*\{\w+\}")
"""What a reason's text says of one row: no part of the name of its level."""


def _level_name(feature: str, level: str) -> str:
    texts = {name: one.ko for name, one in levels_of(Scorecard.load())} if current_language() == "ko" else {}
    known = texts.get(f"{feature}.{level}")
    return f"{feature} {level}".replace("_", " ").strip() if known is None else _FILLED.sub("", known)


def _format_level(row: Mapping[str, object]) -> str:
    name = _level_name(str(row["feature"]), str(row["level"]))
    known = gettext("{bounced:,} of {letters:,} letters came back, {expected:,.1f} expected", **row)
    return f"{pad_text(name, 34)}{row['before']:+4d} → {row['after']:+4d}   {known}"
