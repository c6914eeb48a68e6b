"""One calibration: select labels, hold the contest, record the decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import polars as pl

from bansong.engine.risk.scorecard import Scorecard
from bansong.engine.text_values import day_given
from bansong.errors import LabelError, Problem
from bansong.labels.label_store import LabelStore
from bansong.learning.calibration_outcome import Calibrated
from bansong.learning.challenger import held_share, points_frame, saving
from bansong.learning.fit import count_patterns
from bansong.learning.gate import Decision, JudgedLabels, continue_test, evaluate_challenger, last_test
from bansong.learning.quarantine import Audit, distrust
from bansong.learning.significance import level_counts, overall_calibration, stability_index
from bansong.learning.training_data import RIPE_AT, TrainingData, select_training_rows
from bansong.models.journal import DECIDING, PROMOTED
from bansong.models.model_store import ModelStore
from bansong.schema import seoul_day
from bansong.translation import Listed, Phrase, count_letters, gettext, gettext_of

AUDIT_CANNOT_RELEASE: Final = Problem(
    "learning.audit_cannot_release", "no quarantined labels can be released by an audit ({why})"
)


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """The inputs of a calibration; ``since``: when the champion was promoted."""

    labels: LabelStore
    models: ModelStore
    champion: Scorecard
    since: datetime | None
    promotions: int
    today: date
    now: datetime

    @classmethod
    def of(
        cls, labels: LabelStore, models: ModelStore | None, today: date | str | None, now: datetime
    ) -> CalibrationRun:
        """Look up the champion; raises :class:`bansong.errors.ModelError` where it cannot be read."""
        models = models or ModelStore()
        deciding = [event for event in models.history() if event.kind in DECIDING]
        return cls(
            labels=labels,
            models=models,
            champion=models.champion(),
            since=deciding[-1].at if deciding else None,
            promotions=sum(event.kind == PROMOTED for event in deciding),
            today=day_given("today", today) or seoul_day(now.timestamp()),
            now=now,
        )

    def auditable(self) -> Sequence[str]:
        """Return the quarantined mailings that an audit can release and none has yet."""
        data = self._training_data(self._released_mailings())
        if data.set_aside and not data.auditable:
            why = Listed(Listed([mailing, Listed(why)], ": ") for mailing, (_, why) in data.set_aside.items())
            raise LabelError(AUDIT_CANNOT_RELEASE, why=why)
        return data.auditable

    def finish(self, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        """Decide whether the challenger replaces the champion, record that unless ``dry_run``, and report it."""
        released = self._released_mailings() | (dict(audit.mailings) if audit is not None and audit.releases else {})
        data, expert = self._training_data(released), Scorecard.load()
        if data.rows.is_empty():
            report = self._report_nothing(data, audit, dry_run=dry_run)
        else:
            past = continue_test(data.rows, expert.version, last_test(self.models.history()))
            decision = evaluate_challenger(
                data.rows,
                self.champion,
                expert,
                self.since,
                f"{expert.version}+{self.promotions + 1}",
                self.now,
                past.required,
                distrust(data.suspicious, data.suspicious + data.mailed.height),
                data.unproven,
                data.false_bounces,
            )
            report = self._report(decision, data, audit, dry_run=dry_run)
            if not dry_run:
                self._record_decision(decision, report, past)
        if not dry_run:
            for mailing, (letters, why) in data.set_aside.items():
                self._note_once("quarantined", {"mailing": mailing, "letters": letters, "why": list(why)})
        return report

    def _released_mailings(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for event in self.models.history():
            if event.kind == "released":
                found |= {mailing: (letters, bounced) for mailing, (letters, bounced) in event.data["mailings"].items()}
        return found

    def _training_data(self, released: Mapping[str, tuple[int, int]]) -> TrainingData:
        return select_training_rows(self.labels, self.today, self.champion, Scorecard.load(), released)

    def _record_decision(self, decision: Decision, report: Calibrated, past: JudgedLabels) -> None:
        learned = {"labels": report.labels, "bounced": report.bounced, "e_value": round(report.e_value, 3)}
        if decision.promotes:
            self.models.promote(decision.challenger, learned)
        else:
            why = list(decision.doubts) or [
                decision.unproven or gettext("an e-value of {required:,.0f} is needed", required=past.required)
            ]
            kind = "quarantined" if decision.doubts else "refused"
            self._note_once(kind, learned | {"why": why} | past.as_event())

    def _note_once(self, kind: str, event: Mapping[str, Any]) -> None:
        if dict(event) not in [dict(earlier.data) for earlier in self.models.history() if earlier.kind == kind]:
            self.models.note(kind, event)

    def _report(self, decision: Decision, data: TrainingData, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        patterns = count_patterns(data.rows.lazy())
        frame = points_frame(patterns, Scorecard.load(), self.champion, decision.challenger)
        unproven = (decision.unproven,) if decision.unproven else ()
        drift = (*_drift_warnings(data.mailed, frame), *_exploration_warning(patterns, self.champion))
        return Calibrated(
            champion=self.champion.version,
            version=decision.challenger.version,
            promoted=decision.promotes,
            dry_run=dry_run,
            mailings=data.rows["mailing"].n_unique(),
            labels=int(frame["letters"][0]),
            bounced=int(frame["bounced"][0]),
            expected=float(frame["expected"][0]),
            false_bounces=decision.gate.fit.false_bounces,
            ceiling=(self.champion.ceiling, decision.challenger.ceiling),
            e_value=decision.gate.e_value,
            contest=decision.gate.steps[-1].labels if decision.gate.steps else 0,
            needed=decision.labels_needed,
            required=decision.required,
            doubts=decision.doubts,
            frame=frame,
            saving=saving(patterns, self.champion, decision.challenger),
            left_out=data.left_out,
            set_aside=data.set_aside,
            warnings=(*data.missing, *unproven, *drift),
            unproven=bool(unproven),
            audit=audit,
        )

    def _report_nothing(self, data: TrainingData, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        patterns = count_patterns(data.rows.lazy())
        return Calibrated(
            champion=self.champion.version,
            version=self.champion.version,
            promoted=False,
            dry_run=dry_run,
            ceiling=(self.champion.ceiling, self.champion.ceiling),
            frame=points_frame(patterns, Scorecard.load(), self.champion, self.champion),
            left_out=data.left_out,
            set_aside=data.set_aside,
            warnings=data.missing,
            audit=audit,
        )


def _drift_warnings(rows: pl.DataFrame, frame: pl.DataFrame) -> Iterator[str]:
    """Warn if the newest mailing is of other letters than those before, and if too much comes back."""
    newest = rows.filter(pl.col(RIPE_AT) == pl.col(RIPE_AT).max())["mailing"][-1]
    of_newest = pl.col("mailing") == newest
    if not (older := rows.filter(~of_newest)).is_empty():
        shifts = stability_index(level_counts(older.lazy()), level_counts(rows.filter(of_newest).lazy()))
        for row in shifts.filter("shifted").iter_rows(named=True):
            yield Phrase(
                "the letters have changed: {feature} {level} was {before:.0%} of them, in mailing {newest} it is "
                "{after:.0%} (PSI {psi:.2f})",
                newest=newest,
                **row,
            )
    overall = overall_calibration(*(frame[name][0] for name in ("letters", "bounced", "expected")))
    if overall is not None and overall.significant:
        yield gettext_of(
            overall,
            "{letters} came back where {expected:,.1f} were expected ({ratio:.2f} of it, 99 % interval "
            "{low:.2f} to {high:.2f})",
            letters=count_letters(overall.bounced),
        )


def _exploration_warning(patterns: pl.DataFrame, champion: Scorecard) -> Iterator[str]:
    if held_share(patterns, champion) < 0.01:
        yield Phrase(
            "less than 1 % of the labelled letters are of rows that the scorecard holds back, so whether it "
            "holds back too many cannot be learned; mail 2 to 10 % of them all the same now and then"
        )
