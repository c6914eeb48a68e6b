"""Points → score → probability → grade → action, and the reasons that add up to the score.

Nothing is worked out row by row: what the levels of a row come to is looked up, in tables that are made before the
first row is seen (:mod:`.runs` for points and texts; one line a possible score for the rest). Only what is put into the
placeholders of a text is the row's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify.engine.risk.features import FEATURES, WITHOUT_ASSESSMENT, Levels, is_assessable, is_blank
from bizverify.engine.risk.reason_tables import ASSESSABLE, MILDEST, POINTS, Run, column_of, runs
from bizverify.engine.risk.reasons import BASE, PLACEHOLDERS, Term, told
from bizverify.schema import GRADES, REASON_SEPARATOR, Lang

if TYPE_CHECKING:
    from bizverify.engine.risk.scorecard import Scorecard

ADDED: Final[dict[str, type[pl.DataType]]] = {
    "score": pl.Int32,
    "bounce_prob": pl.Float64,
    "grade": pl.String,
    "action": pl.String,
    "reasons": pl.String,
}
"""What :func:`assess` adds, beside ``assessable`` and the levels."""

_ACTIONS: Final = {"usual": pl.String, "action": pl.String}
_GIVEN: Final = "given"
_RESTRAINED: Final = "restrained"
"""Whether a level has kept a row from being sent (Boolean)."""


def assess(card: Scorecard, frame: pl.LazyFrame, levels: dict[str, Levels], lang: Lang) -> pl.LazyFrame:
    """Add ``assessable``, the code of each level (``level:<feature>``, UInt8) and the columns of :data:`ADDED`.

    A code is the level's place in :data:`FEATURES` from 1, 0 where none holds. See :meth:`Scorecard.assess`.
    """
    answers = _answers(card, tuple((feature, tuple(names)) for feature, names in levels.items()), lang)
    frame = frame.with_columns(is_assessable().alias(ASSESSABLE))
    # null for most rows, and on nulls patterns cost nothing
    name, address = (pl.when(~pl.col(ASSESSABLE)).then(pl.col(column)) for column in ("name", "address"))
    frame = frame.with_columns(*_level_codes(levels), (~is_blank(name) | ~is_blank(address)).alias(_GIVEN))
    answered = pl.struct(answers.columns).map_batches(answers, return_dtype=pl.Struct(ADDED), is_elementwise=True)
    frame = frame.with_columns(answered.alias("bv:risk"))
    return frame.with_columns(pl.col("bv:risk").struct.field(*ADDED)).drop("bv:risk", _GIVEN)


def _level_codes(levels: dict[str, Levels]) -> list[pl.Expr]:
    """For each feature the place (from 1) of the level that holds, 0 for none, as ``level:<feature>``."""
    codes = []
    for feature, names in FEATURES.items():
        code = pl.lit(0, pl.UInt8)
        for place, name in reversed(list(enumerate(names, 1))):
            if name not in levels.get(feature, {}):
                continue
            code = pl.when(levels[feature][name]).then(pl.lit(place, pl.UInt8)).otherwise(code)
        if feature not in WITHOUT_ASSESSMENT:
            code = pl.when(ASSESSABLE).then(code).otherwise(pl.lit(0, pl.UInt8))
        codes.append(code.alias(f"level:{feature}"))
    return codes


@lru_cache(maxsize=8)
def _answers(card: Scorecard, possible: tuple[tuple[str, tuple[str, ...]], ...], lang: Lang) -> Answers:
    """The tables of a card: made once, for whoever asks about one business after another."""
    return Answers(card, dict(possible), lang)


class Answers:
    """What a card says in one language of a batch of rows: called with Struct(:attr:`columns`).

    ``possible``: for each feature the levels that can hold at all.
    """

    def __init__(self, card: Scorecard, possible: Mapping[str, Collection[str]], lang: Lang) -> None:
        terms = told(card, possible)
        names = [name for term in terms for name in term.placeholders(lang)]
        self.lang: Lang = lang
        self.placeholders = {name: PLACEHOLDERS[name] for name in dict.fromkeys(names)}
        deciding = [term for term in terms if term.at_best == "confirm" and not term.level.points]
        repairs = card.actions.repair_features
        self.runs = runs(deciding, lang, repairs)
        self._deciding = range(len(self.runs))
        self.runs += runs([term for term in terms if term not in deciding], lang, repairs)
        self.base = Term(None, BASE, card.base)
        bounds = pl.concat(run.table.select(low=pl.min("score"), high=pl.max("score")) for run in self.runs).sum()
        self.lowest = bounds["low"].item() + card.base.points
        self.outcomes = _outcomes(card, self.lowest, bounds["high"].item() + card.base.points)
        sources = [placeholder.column for placeholder in self.placeholders.values()]
        self.columns = list(dict.fromkeys([ASSESSABLE, _GIVEN, *map(column_of, terms), *sources]))
        # made once: for a few rows, making the expressions would take as long as computing them
        self._prefixed = [{name: f"{at}:{name}" for name in run.table.columns} for at, run in enumerate(self.runs)]
        self._sums = self._summed()
        self._reasons = self._joined()

    def __call__(self, rows: pl.Series) -> pl.Series:
        """Return Struct(:data:`ADDED`)."""
        try:
            return self._answers(rows.struct.unnest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # else it is laid to the user's file
            raise RuntimeError(f"the risk could not be worked out: {error}") from error

    def _answers(self, rows: pl.DataFrame) -> pl.Series:
        of_runs = [run.of(rows).rename(names) for run, names in zip(self.runs, self._prefixed, strict=True)]
        frame = pl.concat([rows, *of_runs], how="horizontal").with_columns(self._sums)
        outcomes = self.outcomes[frame.select(self._place())["place"]]
        frame = pl.concat([frame, outcomes], how="horizontal").with_columns(self._reasons)
        return frame.select(pl.struct(*ADDED)).to_series()

    def _summed(self) -> list[pl.Expr]:
        """What the lines of the runs come to in all, and the values of the placeholders."""
        score = pl.sum_horizontal(self._every("score")) + self.base.level.points
        return [
            score.cast(pl.Int32).alias("score"),
            *(pl.max_horizontal(self._every(name)).alias(name) for name in POINTS[1:]),
            *self._values(),
        ]

    def _place(self) -> pl.Expr:
        """The line of :attr:`outcomes`."""
        to_repair = (pl.col("repair") > 0) & (pl.col("repair") >= pl.col("others"))
        line = pl.when(ASSESSABLE).then(2 + 2 * (pl.col("score") - self.lowest) + to_repair).otherwise(_GIVEN)
        return (line * len(MILDEST) + pl.col("at_best")).cast(pl.UInt32).alias("place")

    def _joined(self) -> pl.Expr:
        """The reasons as one text: what kept a row from being sent, the largest effect first, the base last."""
        deciding = [piece for at in self._deciding for piece in self._pieces(at, self.runs[at])]
        weighing = [
            piece for at, run in enumerate(self.runs) if at not in self._deciding for piece in self._pieces(at, run)
        ]
        first, later = (
            [pl.when(pl.col(_RESTRAINED) == restrained).then(piece) for piece in deciding]
            for restrained in (True, False)
        )
        base = pl.when(ASSESSABLE).then(pl.lit(REASON_SEPARATOR + self.base.text(self.lang)))
        pieces = [*first, *weighing, *later, base]
        return pl.concat_str(pieces, ignore_nulls=True).str.slice(len(REASON_SEPARATOR)).alias("reasons")

    def _every(self, name: str) -> list[pl.Expr]:
        return [pl.col(f"{at}:{name}") for at in range(len(self.runs))]

    def _values(self) -> list[pl.Expr]:
        """What is put in for each placeholder, as text, in the rows that have it: nulls cost nothing."""
        named = [pl.col(f"{at}:{name}") for at, run in enumerate(self.runs) for name in run.names]
        return [
            placeholder.filled(pl.any_horizontal(column == name for column in named), self.lang).alias(f"value:{name}")
            for name, placeholder in self.placeholders.items()
        ]

    def _pieces(self, at: int, run: Run) -> list[pl.Expr]:
        """The texts of a run with the values between."""
        pieces = []
        for column in run.table.columns[len(POINTS) :]:
            piece = pl.col(f"{at}:{column}")
            if column.startswith("name:"):
                value = pl.lit(None, pl.String)
                for name in run.names[column]:
                    value = pl.when(piece == name).then(pl.col(f"value:{name}")).otherwise(value)
                piece = value
            pieces.append(piece)
        return pieces


def _outcomes(card: Scorecard, lowest: int, highest: int) -> pl.DataFrame:
    """What follows from the score: without an assessment, no address given and one given; then two lines a score.

    The second of the two is for rows in which nothing weighs more than what a repair of the address would mend. Of each
    line there is one for each of :data:`MILDEST`.
    """
    scores = pl.select(score=pl.int_range(lowest, highest + 1, dtype=pl.Int32)).lazy()
    doublings = -pl.col("score") / card.points_to_double
    scores = scores.with_columns(
        bounce_prob=(card.ceiling / (1 + (doublings * math.log(2)).exp())).round(4), grade=_grade(card)
    )
    assessed = pl.concat(
        scores.with_columns(usual=_action(card, repair=False), action=_action(card, repair), repair=repair)
        for repair in (False, True)
    )
    without = pl.LazyFrame({"usual": [None, "do_not_send"], "action": [None, "fix_address"]}, schema=_ACTIONS)
    lines = pl.concat([without, assessed.sort("score", "repair")], how="diagonal")
    every = lines.join(pl.LazyFrame({"mildest": MILDEST}), how="cross", maintain_order="left_right")
    restrained = (pl.col("mildest") == "confirm") & (pl.col("action") == "send").fill_null(False)
    return every.select("bounce_prob", "grade", _restricted(), restrained.alias(_RESTRAINED)).collect()


def _restricted() -> pl.Expr:
    """The action where it may be no milder than ``mildest``; ``usual``: what it is without a repair of the address."""
    mildest, action, usual = pl.col("mildest"), pl.col("action"), pl.col("usual")
    held = pl.when(usual.is_null() | usual.is_in(["hold", "do_not_send"])).then(usual).otherwise(pl.lit("hold"))
    return (
        pl.when(mildest == "hold")
        .then(held)
        .when((mildest == "confirm") & (action == "send"))
        .then(pl.lit("confirm"))
        .otherwise(action)
        .alias("action")
    )


def _grade(card: Scorecard) -> pl.Expr:
    grade = pl.lit(GRADES[-1])
    for name in reversed(GRADES[:-1]):
        grade = pl.when(pl.col("score") <= card.grades[name]).then(pl.lit(name)).otherwise(grade)
    return grade


def _action(card: Scorecard, repair: bool) -> pl.Expr:
    action = pl.lit(None, pl.String)
    for grade in GRADES:
        mended = repair and grade >= card.actions.repair_from
        usual = "fix_address" if mended else getattr(card.actions, grade)
        action = pl.when(pl.col("grade") == grade).then(pl.lit(usual)).otherwise(action)
    return action
