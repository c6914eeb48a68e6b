"""One calibration: book, store and clock brought together, the decision carried out and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.engine.text_values import day_given
from bizverify.errors import LabelError
from bizverify.labels.label_store import Book
from bizverify.learning import drift
from bizverify.learning.audit import Audit
from bizverify.learning.decision import Decision, decided
from bizverify.learning.gate import ENOUGH
from bizverify.learning.impact import Saving, held_share, points_frame, saving
from bizverify.learning.patterns import patterns
from bizverify.learning.quarantine import distrust
from bizverify.learning.report import Calibrated
from bizverify.learning.sequential_test import Past, judged, last_judged
from bizverify.learning.training_data import RIPE_AT, Material, sifted
from bizverify.model_store import ModelStore
from bizverify.model_store.journal import DECIDING, PROMOTED
from bizverify.schema import counted

Released = Mapping[str, tuple[int, int]]
"""Mailings that an audit released, with the letters and returns that it was of."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What a calibration works on: the book, the store, the champion and since when it answers."""

    book: Book
    store: ModelStore
    champion: Scorecard
    since: datetime | None
    promotions: int
    today: date
    now: datetime

    @classmethod
    def of(cls, book: Book, store: ModelStore | None, today: date | str | None, now: datetime) -> Learning:
        """Look up the champion; raises :class:`bizverify.errors.ModelError` where it cannot be read."""
        store = store or ModelStore()
        deciding = [event for event in store.history() if event.kind in DECIDING]
        return cls(
            book=book,
            store=store,
            champion=store.champion(),
            since=deciding[-1].at if deciding else None,
            promotions=sum(event.kind == PROMOTED for event in deciding),
            today=day_given("today", today) or now.date(),
            now=now,
        )

    def released(self) -> dict[str, tuple[int, int]]:
        """What audits have released so far."""
        found: dict[str, tuple[int, int]] = {}
        for event in self.store.history():
            if event.kind == "released":
                found |= {mailing: (letters, bounced) for mailing, (letters, bounced) in event.data["mailings"].items()}
        return found

    def auditable(self) -> Sequence[str]:
        """The quarantined mailings that an audit can release; those released before would only thin its sample."""
        material = self._material(self.released())
        if material.set_aside and not material.auditable:
            why = "; ".join(f"{mailing}: {'; '.join(why)}" for mailing, (_, why) in material.set_aside.items())
            raise LabelError(f"no quarantined labels can be released by an audit ({why})")
        return material.auditable

    def concluded(self, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        """Decide, carry it out unless ``dry_run``, and say what was done."""
        released = self.released() | (dict(audit.mailings) if audit is not None and audit.releases else {})
        material = self._material(released)
        if material.rows.is_empty():
            if not dry_run:
                self._set_aside(material)
            return self._nothing(material, audit, dry_run=dry_run)
        version = f"{Scorecard.load().version}+{self.promotions + 1}"
        expert = Scorecard.load()
        past = judged(material.rows, expert.version, last_judged(self.store.history()))
        decision = decided(
            material.rows,
            self.champion,
            expert,
            self.since,
            version,
            self.now,
            past.required,
            distrust(material.suspicious, material.suspicious + material.mailed.height),
        )
        report = self._report(decision, material, audit, dry_run=dry_run)
        if not dry_run:
            self._carried_out(decision, report, past)
            self._set_aside(material)
        return report

    def _material(self, released: Released) -> Material:
        return sifted(self.book, self.today, self.champion, Scorecard.load(), released)

    def _carried_out(self, decision: Decision, report: Calibrated, past: Past) -> None:
        learned = {"labels": report.labels, "bounced": report.bounced, "e_value": round(report.e_value, 3)}
        if decision.promotes:
            self.store.promote(decision.challenger, learned)
        else:
            why = list(decision.doubts) or [f"an e-value of {past.required:,.0f} is needed"]
            kind = "quarantined" if decision.doubts else "refused"
            self._noted(kind, learned | {"why": why} | past.as_event())

    def _set_aside(self, material: Material) -> None:
        for mailing, (letters, why) in material.set_aside.items():
            self._noted("quarantined", {"mailing": mailing, "letters": letters, "why": list(why)})

    def _noted(self, kind: str, event: Mapping[str, Any]) -> None:
        """Record a note, once: a scheduled job that learns nothing new need not say so every night."""
        told = [dict(earlier.data) for earlier in self.store.history() if earlier.kind == kind]
        if dict(event) not in told:
            self.store.note(kind, event)

    def _report(self, decision: Decision, material: Material, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        counted = patterns(material.rows.lazy())
        frame = points_frame(counted, Scorecard.load(), self.champion, decision.challenger)
        contest = decision.gate.steps[-1].labels if decision.gate.steps else 0
        return Calibrated(
            champion=self.champion.version,
            version=decision.challenger.version,
            promoted=decision.promotes,
            dry_run=dry_run,
            mailings=material.rows["mailing"].n_unique(),
            labels=int(frame["letters"][0]),
            bounced=int(frame["bounced"][0]),
            expected=float(frame["expected"][0]),
            false_bounces=decision.fit.false_bounces,
            ceiling=(self.champion.ceiling, decision.challenger.ceiling),
            e_value=decision.gate.e_value,
            contest=contest,
            needed=decision.labels_needed,
            required=decision.required,
            doubts=decision.doubts,
            frame=frame,
            saving=saving(counted, self.champion, decision.challenger),
            left_out=material.left_out,
            set_aside=material.set_aside,
            warnings=(*self._drifted(material.mailed, frame), *_unexplored(counted, self.champion)),
            audit=audit,
        )

    def _nothing(self, material: Material, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        counted = patterns(material.rows.lazy())
        return Calibrated(
            champion=self.champion.version,
            version=self.champion.version,
            promoted=False,
            dry_run=dry_run,
            mailings=0,
            labels=0,
            bounced=0,
            expected=0.0,
            false_bounces=0.0,
            ceiling=(self.champion.ceiling, self.champion.ceiling),
            e_value=1.0,
            contest=0,
            needed=None,
            required=ENOUGH,
            doubts=(),
            frame=points_frame(counted, Scorecard.load(), self.champion, self.champion),
            saving=Saving(0, 0, 0.0, 0, 0.0),
            left_out=material.left_out,
            set_aside=material.set_aside,
            audit=audit,
        )

    def _drifted(self, rows: pl.DataFrame, frame: pl.DataFrame) -> tuple[str, ...]:
        """Whether the newest mailing is of other letters than those before, and whether too much comes back."""
        newest = rows.filter(pl.col(RIPE_AT) == pl.col(RIPE_AT).max())["mailing"][-1]
        of_newest = pl.col("mailing") == newest
        found = []
        if not (older := rows.filter(~of_newest)).is_empty():
            shifts = drift.drift(drift.level_counts(older.lazy()), drift.level_counts(rows.filter(of_newest).lazy()))
            found += [
                f"the letters have changed: {row['feature']} {row['level']} was {row['before']:.0%} of them, in "
                f"mailing {newest} it is {row['after']:.0%} (PSI {row['psi']:.2f})"
                for row in shifts.filter("alarm").iter_rows(named=True)
            ]
        letters, bounced, expected = (frame[name][0] for name in ("letters", "bounced", "expected"))
        large = drift.large_alarm(letters, bounced, expected)
        if large is not None and large.alarm:
            found.append(
                f"{counted(bounced, 'letter')} came back where {expected:,.1f} were expected ({large.ratio:.2f} of it, "
                f"99 % interval {large.low:.2f} to {large.high:.2f})"
            )
        return tuple(found)


def _unexplored(counted: pl.DataFrame, champion: Scorecard) -> tuple[str, ...]:
    """A word where no letters are labelled that would be held: whether they would have arrived cannot be learned."""
    if held_share(counted, champion) >= 0.01:
        return ()
    return (
        "less than 1 % of the labelled letters are of rows that the scorecard holds back, so whether it holds back too "
        "many cannot be learned; mail 2 to 10 % of them all the same now and then",
    )
