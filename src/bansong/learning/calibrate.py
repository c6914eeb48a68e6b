"""Learn a scorecard from labels, and promote it if it is certainly better."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.after_fork import refuse_after_fork
from bansong.base.display import Shown, pad_text
from bansong.base.errors import LabelError, Problem
from bansong.base.messages import (
    Phrase,
    count_letters,
    current_language,
    gettext,
    gettext_noop,
    gettext_of,
    join_clauses,
    ngettext,
)
from bansong.base.schema import seoul_day
from bansong.engine.risk.scorecard import Scorecard
from bansong.engine.text import day_given
from bansong.history.labels import LabelStore
from bansong.history.scorecards import DECIDING, PROMOTED, Event, ModelStore, levels_of
from bansong.learning.checks import WIDE, distrust, interval, judge_prediction, level_counts, stability_index
from bansong.learning.fit import Saving, count_patterns, held_share, numpy, points_frame, saving
from bansong.learning.gate import (
    ENOUGH,
    RIPE_AT,
    Decision,
    JudgedLabels,
    TrainingData,
    continue_test,
    evaluate_challenger,
    last_test,
    select_training_rows,
)

_SHOWN: Final = 8
_NO_SAVING: Final = Saving(0, 0, 0.0, 0, 0.0)
_TO_CORRECT: Final = gettext_noop(
    "docs/labels.md says what each reason points at; correct wrong labels with `bansong label … --replace`"
)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Calibrated(Shown):
    """The result of a calibration. Displays as a table in a notebook and as text elsewhere."""

    champion: str
    version: str  # of the challenger
    promoted: bool  # the challenger is in use from now on (in a dry run: would be)
    dry_run: bool
    mailings: int = 0
    labels: int = 0
    bounced: int = 0
    expected: float = 0.0  # returns that the champion expected
    false_bounces: float = 0.0
    ceiling: tuple[float, float]
    e_value: float = 1.0  # highest of the contest
    contest: int = 0
    needed: int | None = None  # labels after which the e-value was enough; `None`: not yet
    required: float = ENOUGH  # e-value for a promotion
    doubts: tuple[str, ...] = ()
    unproven: bool = False  # missing returns are possible, so no risk is lowered
    frame: pl.DataFrame  # see :func:`bansong.learning.fit.points_frame`
    saving: Saving = _NO_SAVING
    left_out: Mapping[str, int]  # unused letters by reason
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]  # quarantined mailings: their letters, and why
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """3 if labels are quarantined, else 0."""
        return 3 if self.set_aside or self.doubts else 0

    @property
    def headline(self) -> str:
        """Plain sentences: whether the prediction agrees with what came back, and whether it was changed."""
        if self.doubts:
            return gettext("The recorded returns look wrong, so nothing was learned from them. Nothing was changed.")
        changed = gettext("Nothing was changed.")
        if self.promoted:
            would, was = gettext("The points would be corrected."), gettext("The points were corrected.")
            changed = would if self.dry_run else was
        return f"{judge_prediction(self.labels, self.bounced, self.expected)} {changed}"

    def as_dict(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("frame", "saving")}
        return plain | {
            "set_aside": {name: {"letters": n, "why": list(why)} for name, (n, why) in self.set_aside.items()},
            "ceiling": {"before": self.ceiling[0], "after": self.ceiling[1]},
            "saving": asdict(self.saving),
            "points": self.frame.to_dicts(),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        mailings = ngettext("{count:,} mailing", "{count:,} mailings", self.mailings)
        letters = count_letters(self.labels)
        yield gettext("labels"), gettext("{letters} of {mailings}", letters=letters, mailings=mailings)
        for why, count in self.left_out.items():
            yield gettext("left out"), gettext("{count:,} {why}", count=count, why=gettext(why))
        for mailing, (size, reasons) in self.set_aside.items():
            about = {"letters": count_letters(size), "mailing": mailing, "names": join_clauses(*reasons)}
            yield gettext("quarantined"), gettext("{letters} of mailing {mailing}: {names}", **about)
        if self.set_aside:
            yield "", gettext(_TO_CORRECT)
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
        change = pl.col("after") - pl.col("before")
        moved = self.frame.filter(change != 0).sort(pl.col("letters") > 0, change.abs(), "letters", descending=True)
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


# parts of a reason's text that differ by row
_FILLED: Final = re.compile(r"\([^()]*\{[^()]*\)|:.*|\s*\{\w+\}")


def _format_level(row: Mapping[str, object]) -> str:
    texts = {name: one.ko for name, one in levels_of(Scorecard.load())} if current_language() == "ko" else {}
    name = texts.get("{feature}.{level}".format(**row).removesuffix("."))  # the base has no level
    name = "{feature} {level}".format(**row).replace("_", " ").strip() if name is None else _FILLED.sub("", name)
    known = gettext("{bounced:,} of {letters:,} letters came back, {expected:,.1f} expected", **row)
    return f"{pad_text(name, 34)}{row['before']:+4d} → {row['after']:+4d}   {known}"


def _record_decision(models: ModelStore, decision: Decision, report: Calibrated, past: JudgedLabels) -> None:
    learned = {"labels": report.labels, "bounced": report.bounced, "e_value": round(report.e_value, 3)}
    if decision.promotes:
        models.promote(decision.challenger, learned)
    else:
        why = list(decision.doubts) or [
            decision.unproven or gettext("an e-value of {required:,.0f} is needed", required=past.required)
        ]
        kind = "quarantined" if decision.doubts else "refused"
        _note_once(models, kind, learned | {"why": why} | past.as_event())


def _note_once(models: ModelStore, kind: str, event: Mapping[str, Any]) -> None:
    if dict(event) not in [dict(earlier.data) for earlier in models.history() if earlier.kind == kind]:
        models.note(kind, event)


def _report(decision: Decision, data: TrainingData, *, dry_run: bool) -> Calibrated:
    patterns = count_patterns(data.rows.lazy())
    frame = points_frame(patterns, Scorecard.load(), decision.champion, decision.challenger)
    unproven = (decision.unproven,) if decision.unproven else ()
    drift = (*_drift_warnings(data.mailed, frame), *_exploration_warning(patterns, decision.champion))
    return Calibrated(
        champion=decision.champion.version,
        version=decision.challenger.version,
        promoted=decision.promotes,
        dry_run=dry_run,
        mailings=data.rows["mailing"].n_unique(),
        labels=int(frame["letters"][0]),
        bounced=int(frame["bounced"][0]),
        expected=float(frame["expected"][0]),
        false_bounces=decision.gate.fit.false_bounces,
        ceiling=(decision.champion.ceiling, decision.challenger.ceiling),
        e_value=decision.gate.e_value,
        contest=decision.gate.steps[-1].labels if decision.gate.steps else 0,
        needed=decision.labels_needed,
        required=decision.required,
        doubts=decision.doubts,
        frame=frame,
        saving=saving(patterns, decision.champion, decision.challenger),
        left_out=data.left_out,
        set_aside=data.set_aside,
        warnings=(*data.missing, *unproven, *drift),
        unproven=bool(unproven),
    )


def _report_nothing(champion: Scorecard, data: TrainingData, *, dry_run: bool) -> Calibrated:
    patterns = count_patterns(data.rows.lazy())
    return Calibrated(
        champion=champion.version,
        version=champion.version,
        promoted=False,
        dry_run=dry_run,
        ceiling=(champion.ceiling, champion.ceiling),
        frame=points_frame(patterns, Scorecard.load(), champion, champion),
        left_out=data.left_out,
        set_aside=data.set_aside,
        warnings=data.missing,
    )


def _released_mailings(events: Sequence[Event]) -> dict[str, tuple[int, int]]:
    """Return counts (letters, returns) of mailings that older versions of bansong released from quarantine."""
    found: dict[str, tuple[int, int]] = {}
    for event in events:
        if event.kind == "released":
            found |= {mailing: (letters, bounced) for mailing, (letters, bounced) in event.data["mailings"].items()}
    return found


def _drift_warnings(rows: pl.DataFrame, frame: pl.DataFrame) -> Iterator[str]:
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
    letters, bounced, expected = (frame[name][0] for name in ("letters", "bounced", "expected"))
    low, high = (bound * letters / expected for bound in interval(bounced, letters, WIDE)) if letters else (1.0, 1.0)
    if not low <= 1 <= high:
        yield gettext(
            "{letters} came back where {expected:,.1f} were expected ({ratio:.2f} of it, 99 % interval "
            "{low:.2f} to {high:.2f})",
            letters=count_letters(bounced),
            expected=expected,
            ratio=bounced / expected,
            low=low,
            high=high,
        )


def _exploration_warning(patterns: pl.DataFrame, champion: Scorecard) -> Iterator[str]:
    if held_share(patterns, champion) < 0.01:
        yield Phrase(
            "less than 1 % of the labelled letters are of rows that the scorecard holds back, so whether it "
            "holds back too many cannot be learned; mail 2 to 10 % of them all the same now and then"
        )


LABELS_MISSING: Final = Problem(
    "learning.labels_missing", "{folder}: no labels are recorded there; record outcomes with `bansong label`"
)


def calibrate(
    *,
    labels: str | Path | None = None,
    store: ModelStore | None = None,
    today: date | str | None = None,
    dry_run: bool = False,
    now: datetime | None = None,
) -> Calibrated:
    """Learn a scorecard from the label store, and put it into use if it is certainly better.

    ``labels``: the folder of the label store; ``store``: that of scorecards; both by default in the state directory.
    ``today``: the day for which labels are old enough. ``dry_run`` decides, but neither promotes nor records anything.
    ``now``: the time of learning, as written into the scorecard. Raises :class:`bansong.errors.LabelError`,
    :class:`~bansong.errors.ModelError`, and, without numpy, :class:`~bansong.errors.UsageError`; the scorecard in use
    stays then.
    """
    numpy()  # raise at once if it is missing
    book, models = _open_store(labels), store or ModelStore()
    now, expert = now or datetime.now(UTC), Scorecard.load()
    day = day_given("today", today) or seoul_day(now.timestamp())
    events, champion = models.history(), models.champion()
    data = select_training_rows(book, day, champion, expert, _released_mailings(events))
    if data.rows.is_empty():
        report = _report_nothing(champion, data, dry_run=dry_run)
    else:
        past = continue_test(data.rows, expert.version, last_test(events))
        deciding = [event for event in events if event.kind in DECIDING]
        decision = evaluate_challenger(
            data.rows,
            champion,
            expert,
            deciding[-1].at if deciding else None,
            f"{expert.version}+{sum(event.kind == PROMOTED for event in deciding) + 1}",
            now,
            past.required,
            distrust(data.suspicious, data.suspicious + data.mailed.height),
            data.unproven,
            data.false_bounces,
        )
        report = _report(decision, data, dry_run=dry_run)
        if not dry_run:
            _record_decision(models, decision, report, past)
    if not dry_run:
        for mailing, (letters, why) in data.set_aside.items():
            _note_once(models, "quarantined", {"mailing": mailing, "letters": letters, "why": list(why)})
    return report


def _open_store(folder: str | Path | None) -> LabelStore:
    refuse_after_fork()
    store = LabelStore(None if folder is None else Path(folder))
    if not store.mailings():
        raise LabelError(LABELS_MISSING, folder=store.folder)
    return store
