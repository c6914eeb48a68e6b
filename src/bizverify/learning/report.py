"""What learning did and why, for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from bizverify.display import Shown
from bizverify.learning.challenger import Saving
from bizverify.learning.gate import ENOUGH
from bizverify.learning.quarantine import Audit
from bizverify.schema import counted

_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, repr=False)
class Calibrated(Shown):
    """The outcome of one calibration. Displays as a table in a notebook and as text elsewhere.

    ``labels`` letters were used, of which ``bounced`` came back and ``expected`` would have by the ``champion``.
    ``version`` is the challenger's, ``promoted`` whether it answers from now on (in a dry run: would). ``e_value`` is
    the most that the evidence ever came to, ``required`` what is enough, ``needed`` after how many of the contest
    labels it was (``None``: not yet).
    ``frame``: points before and after, see :func:`bizverify.learning.challenger.points_frame`. ``left_out``: letters by
    why they are not used; ``set_aside``: quarantined mailings, with their letters and why.
    """

    champion: str
    version: str
    promoted: bool
    dry_run: bool
    mailings: int
    labels: int
    bounced: int
    expected: float
    false_bounces: float
    ceiling: tuple[float, float]
    e_value: float
    contest: int
    needed: int | None
    required: float
    doubts: tuple[str, ...]
    frame: pl.DataFrame
    saving: Saving
    left_out: Mapping[str, int]
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]
    warnings: tuple[str, ...] = ()
    audit: Audit | None = None

    @property
    def exit_code(self) -> int:
        """0, or 3 where labels are quarantined: somebody has to look at them."""
        return 3 if self.set_aside or self.doubts else 0

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, as ``--json`` prints it."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("frame", "saving", "audit")}
        return plain | {
            "set_aside": {name: {"letters": n, "why": list(why)} for name, (n, why) in self.set_aside.items()},
            "ceiling": {"before": self.ceiling[0], "after": self.ceiling[1]},
            "saving": asdict(self.saving),
            "audit": self.audit.as_dict() if self.audit else None,
            "points": self.frame.to_dicts(),
        }

    def lines(self) -> list[tuple[str, str]]:
        """The report as (what, how much) for people."""
        found = []
        if self.audit is not None:
            found.append(("audit", self._audit(self.audit)))
        found.append(("labels", f"{counted(self.labels, 'letter')} of {counted(self.mailings, 'mailing')}"))
        found += [("left out", f"{count:,} {why}") for why, count in self.left_out.items()]
        found += [
            ("quarantined", f"{counted(letters, 'letter')} of mailing {mailing}: {'; '.join(why)}")
            for mailing, (letters, why) in self.set_aside.items()
        ]
        if not self.labels:
            return [*found, ("decision", f"{self.champion} stays: there is nothing to learn from")]
        return [*found, *self._findings()]

    @staticmethod
    def _audit(audit: Audit) -> str:
        verdict = "they are released" if audit.releases else "they stay in quarantine"
        share = f"at most {audit.most:.1%} of all with 95 % confidence"
        remedy = "; correct the wrong ones with `bizverify label … --replace`" if audit.wrong else ""
        return f"wrong: {audit.wrong} of {counted(audit.checked, 'label')}, {share}: {verdict}{remedy}"

    def _findings(self) -> list[tuple[str, str]]:
        ratio = self.bounced / self.expected if self.expected else float("nan")
        found = [
            ("came back", f"{self.bounced:,}; {self.expected:,.1f} were expected ({ratio:.2f} of it)"),
            ("false returns", f"{self.false_bounces:.1%} of the letters that arrived, by estimate"),
            ("evidence", self._evidence()),
            ("decision", self._decision()),
        ]
        moved = self._moved()
        if moved.is_empty() and self.ceiling[0] == self.ceiling[1]:
            return [*found, ("points", "none would move")]
        verb = "move" if self.promoted and not self.dry_run else "would move"
        shown = [self._shown(row) for row in moved.head(_SHOWN).iter_rows(named=True)]
        found.append(("points", f"{counted(moved.height, 'level')} {verb}; the most:"))
        found += [("", line) for line in shown]
        if self.ceiling[0] != self.ceiling[1]:
            found.append(("ceiling", f"{self.ceiling[0]:.3f} → {self.ceiling[1]:.3f}"))
        return [*found, ("effect", self._effect())]

    def _evidence(self) -> str:
        value = f"{self.e_value:,.1f}" if self.e_value < 1e6 else f"{self.e_value:.0e}"
        after = f", reached after {counted(self.needed, 'letter')}" if self.needed else ""
        again = ", more than the usual 20 because labels judged before were changed" if self.required > ENOUGH else ""
        needed = f"{self.required:,.0f} is needed{again}{after}"
        return f"e-value {value} over {counted(self.contest, 'letter')} of the contest; {needed}"

    def _decision(self) -> str:
        if self.doubts:
            return f"{self.champion} stays, the labels are quarantined: {'; '.join(self.doubts)}"
        if not self.promoted:
            return f"{self.champion} stays: it is not surely worse yet; more labels decide"
        return f"{'would be' if self.dry_run else 'is'} replaced: {self.champion} → {self.version}"

    def _moved(self) -> pl.DataFrame:
        change = pl.col("after") - pl.col("before")
        return self.frame.filter(change != 0).sort(pl.col("letters") > 0, change.abs(), "letters", descending=True)

    def _shown(self, row: Mapping[str, object]) -> str:
        name = f"{row['feature']} {row['level']}".replace("_", " ").strip()
        known = f"{row['bounced']:,} of {row['letters']:,} letters came back, {row['expected']:,.1f} expected"
        return f"{name:<34}{row['before']:+4d} → {row['after']:+4d}   {known}"

    def _effect(self) -> str:
        saving = self.saving
        if not saving.held and not saving.mailed:
            return f"of {counted(saving.letters, 'letter')} like these none would be treated otherwise"
        return (
            f"of {counted(saving.letters, 'letter')} like these {saving.held:,} more would be held (about "
            f"{saving.held_bouncing:,.0f} of them would come back), {saving.mailed:,} held ones mailed (about "
            f"{saving.mailed_bouncing:,.0f} would come back)"
        )

    def __repr__(self) -> str:
        return f"<bizverify.Calibrated {self.champion}: {counted(self.labels, 'letter')}, promoted {self.promoted}>"
