"""One calibration: labels, scorecards and clock brought together, the decision carried out, and its report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any, Final

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.engine.text_values import day_given
from bizverify.errors import LabelError
from bizverify.labels.label_store import LabelStore
from bizverify.learning.challenger import Saving, held_share, points_frame, saving
from bizverify.learning.fit import count_patterns
from bizverify.learning.gate import ENOUGH, Decision, JudgedLabels, continue_test, evaluate_challenger, last_test
from bizverify.learning.quarantine import Audit, distrust
from bizverify.learning.significance import level_counts, overall_calibration, stability_index
from bizverify.learning.training_data import RIPE_AT, TrainingData, select_training_rows
from bizverify.models.journal import DECIDING, PROMOTED
from bizverify.models.model_store import ModelStore
from bizverify.models.scorecard_levels import levels_of
from bizverify.report_display import Shown, pad_text
from bizverify.translation import current_language, gettext, gettext_noop, join_clauses, ngettext

_SHOWN: Final = 8
_NO_SAVING: Final = Saving(0, 0, 0.0, 0, 0.0)
_TO_RELEASE: Final = gettext_noop(
    "docs/labels.md says what each reason points at; rows to look up, by which they may be released: "
    "`bizverify calibrate --audit-sample PATH`"
)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Calibrated(Shown):
    """The outcome of one calibration. Displays as a table in a notebook and as text elsewhere.

    ``labels`` letters were used, of which ``bounced`` came back and ``expected`` would have by the ``champion``.
    ``version`` is the challenger's, ``promoted`` whether it answers from now on (in a dry run: would). ``e_value`` is
    the most that the evidence ever came to, ``required`` what is enough, ``needed`` after how many of the contest
    labels it was (``None``: not yet).
    ``frame``: points before and after, see :func:`bizverify.learning.challenger.points_frame`. ``left_out``: letters by
    why they are not used; ``set_aside``: quarantined mailings, with their letters and why. ``unproven``: whether all
    returns are recorded cannot be said yet (see ``warnings``), so no risk is lowered.
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
            found.append((gettext("audit"), _describe_audit(self.audit)))
        found.append(
            (
                gettext("labels"),
                gettext(
                    "{letters} of {mailings}",
                    letters=ngettext("{count:,} letter", "{count:,} letters", self.labels),
                    mailings=ngettext("{count:,} mailing", "{count:,} mailings", self.mailings),
                ),
            )
        )
        found += [
            (gettext("left out"), gettext("{count:,} {why}", count=count, why=gettext(why)))
            for why, count in self.left_out.items()
        ]
        found += [
            (
                gettext("quarantined"),
                gettext(
                    "{letters} of mailing {mailing}: {names}",
                    letters=ngettext("{count:,} letter", "{count:,} letters", letters),
                    mailing=mailing,
                    names=join_clauses(*why),
                ),
            )
            for mailing, (letters, why) in self.set_aside.items()
        ]
        if self.set_aside:
            found.append(("", gettext(_TO_RELEASE)))
        if not self.labels:
            return [
                *found,
                (
                    gettext("decision"),
                    gettext("{champion} stays: there is nothing to learn from", champion=self.champion),
                ),
            ]
        return [*found, *self._findings()]

    def _findings(self) -> list[tuple[str, str]]:
        ratio = self.bounced / self.expected if self.expected else float("nan")
        found = [
            (
                gettext("came back"),
                gettext(
                    "{bounced:,}; {expected:,.1f} were expected ({ratio:.2f} of it)",
                    bounced=self.bounced,
                    expected=self.expected,
                    ratio=ratio,
                ),
            ),
            (
                gettext("false returns"),
                gettext(
                    "{false_bounces:.1%} of the letters that arrived, by estimate", false_bounces=self.false_bounces
                ),
            ),
            (gettext("evidence"), self._evidence()),
            (gettext("decision"), self._decision()),
        ]
        moved = self._moved_levels()
        if moved.is_empty() and self.ceiling[0] == self.ceiling[1]:
            return [*found, (gettext("points"), gettext("none would move"))]
        shown = [_format_level(row) for row in moved.head(_SHOWN).iter_rows(named=True)]
        found.append(
            (
                gettext("points"),
                ngettext("{count:,} level moves; the most:", "{count:,} levels move; the most:", moved.height)
                if self.promoted and not self.dry_run
                else ngettext(
                    "{count:,} level would move; the most:", "{count:,} levels would move; the most:", moved.height
                ),
            )
        )
        found += [("", line) for line in shown]
        if self.ceiling[0] != self.ceiling[1]:
            found.append((gettext("ceiling"), f"{self.ceiling[0]:.3f} → {self.ceiling[1]:.3f}"))
        return [*found, (gettext("effect"), self._effect())]

    def _evidence(self) -> str:
        value = f"{self.e_value:,.1f}" if self.e_value < 1e6 else f"{self.e_value:.0e}"
        after = (
            gettext(", reached after {letters}", letters=ngettext("{count:,} letter", "{count:,} letters", self.needed))
            if self.needed
            else ""
        )
        again = (
            gettext(", more than the usual 20 because labels judged before were changed")
            if self.required > ENOUGH
            else ""
        )
        needed = gettext("{required:,.0f} is needed{again}{after}", required=self.required, again=again, after=after)
        return gettext(
            "e-value {value} over {letters} of the contest; {needed}",
            value=value,
            letters=ngettext("{count:,} letter", "{count:,} letters", self.contest),
            needed=needed,
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
        saving = self.saving
        if not saving.held and not saving.mailed:
            return gettext(
                "of {letters} like these none would be treated otherwise",
                letters=ngettext("{count:,} letter", "{count:,} letters", saving.letters),
            )
        return gettext(
            "of {letters} like these {held:,} more would be held (about {held_bouncing:,.0f} of them would "
            "come back), {mailed:,} held ones mailed (about {mailed_bouncing:,.0f} would come back)",
            letters=ngettext("{count:,} letter", "{count:,} letters", saving.letters),
            held=saving.held,
            held_bouncing=saving.held_bouncing,
            mailed=saving.mailed,
            mailed_bouncing=saving.mailed_bouncing,
        )

    def __repr__(self) -> str:
        letters = ngettext("{count:,} letter", "{count:,} letters", self.labels)
        return f"<bizverify.Calibrated {self.champion}: {letters}, promoted {self.promoted}>"


def _describe_audit(audit: Audit) -> str:
    verdict = gettext("they are released") if audit.releases else gettext("they stay in quarantine")
    share = gettext("at most {most:.1%} of all with 95 % confidence", most=audit.most)
    remedy = gettext("; correct the wrong ones with `bizverify label … --replace`") if audit.wrong else ""
    return gettext(
        "wrong: {wrong} of {labels}, {share}: {verdict}{remedy}",
        wrong=audit.wrong,
        labels=ngettext("{count:,} label", "{count:,} labels", audit.checked),
        share=share,
        verdict=verdict,
        remedy=remedy,
    )


_FILLED: Final = re.compile(r"\([^()]*\{[^()]*\)|:.*|\s*\{\w+\}")
"""What a reason's text says of one row: no part of the name of its level."""


def _level_name(feature: str, level: str) -> str:
    """Return what a level is called: in Korean by the text of its reason, in English by its codes."""
    texts = {name: one.ko for name, one in levels_of(Scorecard.load())} if current_language() == "ko" else {}
    known = texts.get(f"{feature}.{level}")
    return f"{feature} {level}".replace("_", " ").strip() if known is None else _FILLED.sub("", known)


def _format_level(row: Mapping[str, object]) -> str:
    name = _level_name(str(row["feature"]), str(row["level"]))
    known = gettext(
        "{bounced:,} of {letters:,} letters came back, {expected:,.1f} expected",
        bounced=row["bounced"],
        letters=row["letters"],
        expected=row["expected"],
    )
    return f"{pad_text(name, 34)}{row['before']:+4d} → {row['after']:+4d}   {known}"


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """The inputs of a calibration: the labels, the scorecards, the champion and since when it answers."""

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
        """Look up the champion; raises :class:`bizverify.errors.ModelError` where it cannot be read."""
        models = models or ModelStore()
        deciding = [event for event in models.history() if event.kind in DECIDING]
        return cls(
            labels=labels,
            models=models,
            champion=models.champion(),
            since=deciding[-1].at if deciding else None,
            promotions=sum(event.kind == PROMOTED for event in deciding),
            today=day_given("today", today) or now.date(),
            now=now,
        )

    def auditable(self) -> Sequence[str]:
        """The quarantined mailings that an audit can release; those released before would only thin its sample."""
        data = self._training_data(self._released_mailings())
        if data.set_aside and not data.auditable:
            why = join_clauses(*(f"{mailing}: {join_clauses(*why)}" for mailing, (_, why) in data.set_aside.items()))
            raise LabelError(gettext("no quarantined labels can be released by an audit ({why})", why=why))
        return data.auditable

    def finish(self, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        """Decide whether the challenger replaces the champion, carry that out unless ``dry_run``, and report it."""
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
        """The mailings that audits have released so far, with the letters and returns that they were of."""
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
        """Record a note unless it is recorded: a scheduled job that learns nothing new need not say so every night."""
        if dict(event) not in [dict(earlier.data) for earlier in self.models.history() if earlier.kind == kind]:
            self.models.note(kind, event)

    def _report(self, decision: Decision, data: TrainingData, audit: Audit | None, *, dry_run: bool) -> Calibrated:
        patterns = count_patterns(data.rows.lazy())
        frame = points_frame(patterns, Scorecard.load(), self.champion, decision.challenger)
        return Calibrated(
            champion=self.champion.version,
            version=decision.challenger.version,
            promoted=decision.promotes,
            dry_run=dry_run,
            mailings=data.rows["mailing"].n_unique(),
            labels=int(frame["letters"][0]),
            bounced=int(frame["bounced"][0]),
            expected=float(frame["expected"][0]),
            false_bounces=decision.fit.false_bounces,
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
            warnings=(
                *data.missing,
                *([decision.unproven] if decision.unproven else ()),
                *_drift_warnings(data.mailed, frame),
                *_exploration_warning(patterns, self.champion),
            ),
            unproven=decision.unproven is not None,
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


def _drift_warnings(rows: pl.DataFrame, frame: pl.DataFrame) -> tuple[str, ...]:
    """Warn where the newest mailing is of other letters than those before, and where too much comes back."""
    newest = rows.filter(pl.col(RIPE_AT) == pl.col(RIPE_AT).max())["mailing"][-1]
    of_newest = pl.col("mailing") == newest
    found = []
    if not (older := rows.filter(~of_newest)).is_empty():
        shifts = stability_index(level_counts(older.lazy()), level_counts(rows.filter(of_newest).lazy()))
        found += [
            gettext(
                "the letters have changed: {feature} {level} was {before:.0%} of them, in mailing {newest} it is "
                "{after:.0%} (PSI {psi:.2f})",
                feature=row["feature"],
                level=row["level"],
                before=row["before"],
                newest=newest,
                after=row["after"],
                psi=row["psi"],
            )
            for row in shifts.filter("shifted").iter_rows(named=True)
        ]
    letters, bounced, expected = (frame[name][0] for name in ("letters", "bounced", "expected"))
    overall = overall_calibration(letters, bounced, expected)
    if overall is not None and overall.significant:
        found.append(
            gettext(
                "{letters} came back where {expected:,.1f} were expected ({ratio:.2f} of it, 99 % interval "
                "{low:.2f} to {high:.2f})",
                letters=ngettext("{count:,} letter", "{count:,} letters", bounced),
                expected=expected,
                ratio=overall.ratio,
                low=overall.low,
                high=overall.high,
            )
        )
    return tuple(found)


def _exploration_warning(patterns: pl.DataFrame, champion: Scorecard) -> tuple[str, ...]:
    """A warning where no letters are labelled that would be held: whether they would have arrived cannot be learned."""
    if held_share(patterns, champion) >= 0.01:
        return ()
    return (
        gettext(
            "less than 1 % of the labelled letters are of rows that the scorecard holds back, so whether it "
            "holds back too many cannot be learned; mail 2 to 10 % of them all the same now and then"
        ),
    )
