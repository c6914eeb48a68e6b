"""Score, probability, grade, action and reasons of a batch of rows, looked up in tables made beforehand.

All reasons that there can be stand in one order, that of their points. Cut into groups of a few side by side, the text
of a group depends on few features: it has some hundreds of different ones, so all are made beforehand, with the points
they come to (:class:`ReasonTable`). A row's text is then one look-up for each table, joined; nothing grows with the
rows or with the number of different patterns among them. What follows from the score has one line a possible score.
Only what is put into the placeholders of a text is the row's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate
from math import prod
from operator import add, mul
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify.engine.risk.features import FEATURES, WITHOUT_ASSESSMENT, WRITING, Levels, is_assessable, with_writing
from bizverify.engine.risk.reason_texts import BASE, PLACEHOLDERS, Term, list_reasons
from bizverify.engine.text_values import is_blank
from bizverify.schema import GRADES, REASON_SEPARATOR, Lang

if TYPE_CHECKING:
    from bizverify.engine.risk.scorecard import Scorecard

ASSESSABLE: Final = "assessable"
_MOST: Final = 1024
"""How many different texts a run may have: enough for half a dozen runs, few enough to make in milliseconds."""

_MOST_PLACEHOLDERS: Final = 2
_MARK: Final = "\x00"
"""Stands around a placeholder's name in a text of a run; the texts of a scorecard hold no control characters."""

_NAMES: Final = pl.Enum(list(PLACEHOLDERS))
POINTS: Final = ("score", "repair", "others", "at_best")
MILDEST: Final = ("send", "confirm", "hold")
"""Actions that a level can set as the mildest one; their places are the values of ``at_best``."""


def column_of(term: Term) -> str:
    """Return the column that says whether a reason holds: the codes of its feature's levels."""
    return f"level:{term.feature}"


def code_of(term: Term) -> int:
    """Return the value that the column has where the reason holds."""
    return FEATURES[str(term.feature)].index(term.name) + 1


@dataclass(frozen=True, slots=True)
class ReasonTable:
    """Neighbouring reasons, and what all their combinations come to.

    ``digits``: for each column the part of the combination's number that each of its codes gives. ``combinations``:
    one line each: ``score``, ``repair`` and ``others`` (the points in all, and the most that one reason gives for and
    against a repair), ``at_best`` (the place in :data:`MILDEST` of the mildest action that its levels allow),
    ``text:0``, ``name:1``, ``text:2`` …: the text, cut at its placeholders. ``names``: the placeholders that can stand
    at each ``name:…``.
    """

    digits: dict[str, pl.Series]
    combinations: pl.DataFrame
    names: dict[str, list[str]]

    def look_up(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the line of the table for each row."""
        # by index, not .gather(), which is a query of its own each time: most of the work where rows are few
        parts = [digits[rows[column].cast(pl.UInt32)] for column, digits in self.digits.items()]
        return self.combinations[reduce(add, parts)]


def make_reason_tables(terms: Sequence[Term], lang: Lang, repairs: Iterable[str]) -> list[ReasonTable]:
    """Cut the reasons, in their order, into runs; ``repairs``: the features that speak for a repair of the address."""
    cut: list[list[Term]] = []
    for term in terms:
        if cut and _is_small([*cut[-1], term], lang):
            cut[-1].append(term)
        else:
            cut.append([term])
    return [_make_reason_table(each, lang, frozenset(repairs)) for each in cut]


def _by_column(terms: Sequence[Term]) -> dict[str, list[Term]]:
    columns: dict[str, list[Term]] = {}
    for term in terms:
        columns.setdefault(column_of(term), []).append(term)
    return columns


def _is_small(terms: Sequence[Term], lang: Lang) -> bool:
    columns = _by_column(terms).values()
    placeholders = sum(max(len(term.placeholders(lang)) for term in column) for column in columns)
    return prod(len(column) + 1 for column in columns) <= _MOST and placeholders <= _MOST_PLACEHOLDERS


def _make_reason_table(terms: Sequence[Term], lang: Lang, repairs: frozenset[str]) -> ReasonTable:
    columns = _by_column(terms)
    sizes = [len(column) + 1 for column in columns.values()]
    strides = list(accumulate(sizes, mul, initial=1))
    digits, codes = {}, []
    for (column, there), size, stride in zip(columns.items(), sizes, strides, strict=False):
        numbers = [0] * (len(FEATURES[str(there[0].feature)]) + 1)
        for digit, term in enumerate(there, 1):
            numbers[code_of(term)] = digit * stride
        digits[column] = pl.Series(numbers, dtype=pl.UInt32)
        codes.append((pl.int_range(strides[-1]) // stride % size).alias(column))
    holds = [pl.col(column_of(term)) == columns[column_of(term)].index(term) + 1 for term in terms]
    table = pl.select(codes).select(*_points(terms, holds, repairs), _text(terms, holds, lang).alias("text"))
    cut = _cut(table)
    named = [column for column in cut.columns if column.startswith("name:")]
    names = {column: cut[column].drop_nulls().unique().cast(pl.String).sort().to_list() for column in named}
    return ReasonTable(digits, cut, names)


def _points(terms: Sequence[Term], holds: list[pl.Expr], repairs: frozenset[str]) -> list[pl.Expr]:
    zero = pl.lit(0, pl.Int32)
    points = [
        pl.when(there).then(pl.lit(term.level.points, pl.Int32)).otherwise(zero)
        for term, there in zip(terms, holds, strict=True)
    ]
    speaking = list(zip(terms, points, strict=True))
    repair = [value for term, value in speaking if term.feature in repairs]
    others = [value for term, value in speaking if term.feature not in repairs]
    mildest = [
        pl.when(there).then(pl.lit(MILDEST.index(term.at_best), pl.Int32)).otherwise(zero)
        for term, there in zip(terms, holds, strict=True)
        if term.at_best
    ]
    most = [pl.max_horizontal(zero, *values) for values in (repair, others, mildest)]
    return [value.alias(name) for name, value in zip(POINTS, (pl.sum_horizontal(points), *most), strict=True)]


def _text(terms: Sequence[Term], holds: list[pl.Expr], lang: Lang) -> pl.Expr:
    """The reasons that hold, one behind another, each with the separator before it; null if there are none."""
    texts = [
        pl.when(there).then(pl.lit(REASON_SEPARATOR + term.text_with_marks(_MARK, lang)))
        for term, there in zip(terms, holds, strict=True)
    ]
    return pl.when(pl.any_horizontal(holds)).then(pl.concat_str(texts, ignore_nulls=True))


def _cut(table: pl.DataFrame) -> pl.DataFrame:
    """Cut the texts at their marks: what stands at even places is text, at odd ones the name of a placeholder."""
    parts = pl.col("text").str.split(_MARK)
    count = table.select(parts.list.len().max().fill_null(1)).item()
    places = [parts.list.get(place, null_on_oob=True) for place in range(count)]
    cut = [
        part.cast(_NAMES).alias(f"name:{place}") if place % 2 else part.alias(f"text:{place}")
        for place, part in enumerate(places)
    ]
    return table.select(*POINTS, *cut)


ADDED: Final[dict[str, type[pl.DataType]]] = {
    "score": pl.Int32,
    "bounce_prob": pl.Float64,
    "grade": pl.String,
    "action": pl.String,
    "reasons": pl.String,
}
"""The columns that :func:`assess` adds, beside ``assessable`` and the levels."""

_ACTIONS: Final = {"usual": pl.String, "action": pl.String}
_GIVEN: Final = "given"
_RESTRAINED: Final = "restrained"
"""Whether a level has kept a row from being sent (Boolean)."""


def assess(card: Scorecard, frame: pl.LazyFrame, levels: dict[str, Levels], lang: Lang) -> pl.LazyFrame:
    """Add ``assessable``, the code of each level (``level:<feature>``, UInt8) and the columns of :data:`ADDED`.

    A code is the level's place in :data:`FEATURES` from 1, 0 where none holds. See :meth:`Scorecard.assess`.
    """
    answers = _assessor_of(card, tuple((feature, tuple(names)) for feature, names in levels.items()), lang)
    frame = with_writing(frame).with_columns(is_assessable().alias(ASSESSABLE))
    # null for most rows, and on nulls patterns cost nothing
    name, address = (pl.when(~pl.col(ASSESSABLE)).then(pl.col(column)) for column in ("name", "address"))
    frame = frame.with_columns(*_level_codes(levels), (~is_blank(name) | ~is_blank(address)).alias(_GIVEN))
    answered = pl.struct(answers.columns).map_batches(answers, return_dtype=pl.Struct(ADDED), is_elementwise=True)
    frame = frame.with_columns(answered.alias("bv:risk"))
    return frame.with_columns(pl.col("bv:risk").struct.field(*ADDED)).drop("bv:risk", WRITING, _GIVEN)


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
def _assessor_of(card: Scorecard, possible: tuple[tuple[str, tuple[str, ...]], ...], lang: Lang) -> _Assessor:
    """The tables of a card: made once, for whoever asks about one business after another."""
    return _Assessor(card, dict(possible), lang)


class _Assessor:
    """Assesses batches of rows by one card in one language; called with Struct(:attr:`columns`).

    ``possible``: for each feature the levels that can hold at all.
    """

    def __init__(self, card: Scorecard, possible: Mapping[str, Collection[str]], lang: Lang) -> None:
        terms = list_reasons(card, possible)
        names = [name for term in terms for name in term.placeholders(lang)]
        self.lang: Lang = lang
        self.placeholders = {name: PLACEHOLDERS[name] for name in dict.fromkeys(names)}
        deciding = [term for term in terms if term.at_best == "confirm" and not term.level.points]
        repairs = card.actions.repair_features
        self.tables = make_reason_tables(deciding, lang, repairs)
        self._deciding = range(len(self.tables))
        self.tables += make_reason_tables([term for term in terms if term not in deciding], lang, repairs)
        self.base = Term(None, BASE, card.base)
        bounds = pl.concat(
            table.combinations.select(low=pl.min("score"), high=pl.max("score")) for table in self.tables
        ).sum()
        self.lowest = bounds["low"].item() + card.base.points
        self.outcomes = _outcomes(card, self.lowest, bounds["high"].item() + card.base.points)
        sources = [placeholder.column for placeholder in self.placeholders.values()]
        self.columns = list(dict.fromkeys([ASSESSABLE, _GIVEN, *map(column_of, terms), *sources]))
        # made once: for a few rows, making the expressions would take as long as computing them
        self._prefixed = [
            {name: f"{at}:{name}" for name in table.combinations.columns} for at, table in enumerate(self.tables)
        ]
        self._sums = self._sum_tables()
        self._reasons = self._join_reasons()

    def __call__(self, rows: pl.Series) -> pl.Series:
        """Return Struct(:data:`ADDED`)."""
        try:
            return self._answers(rows.struct.unnest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # else it is laid to the user's file
            raise RuntimeError(f"the risk could not be worked out: {error}") from error

    def _answers(self, rows: pl.DataFrame) -> pl.Series:
        looked_up = [
            table.look_up(rows).rename(names) for table, names in zip(self.tables, self._prefixed, strict=True)
        ]
        frame = pl.concat([rows, *looked_up], how="horizontal").with_columns(self._sums)
        outcomes = self.outcomes[frame.select(self._place())["place"]]
        frame = pl.concat([frame, outcomes], how="horizontal").with_columns(self._reasons)
        return frame.select(pl.struct(*ADDED)).to_series()

    def _sum_tables(self) -> list[pl.Expr]:
        """Return the sums over the lines of all tables, and the values of the placeholders."""
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

    def _join_reasons(self) -> pl.Expr:
        """The reasons as one text: what kept a row from being sent, the largest effect first, the base last."""
        deciding = [piece for at in self._deciding for piece in self._pieces(at, self.tables[at])]
        weighing = [
            piece
            for at, table in enumerate(self.tables)
            if at not in self._deciding
            for piece in self._pieces(at, table)
        ]
        first, later = (
            [pl.when(pl.col(_RESTRAINED) == restrained).then(piece) for piece in deciding]
            for restrained in (True, False)
        )
        base = pl.when(ASSESSABLE).then(pl.lit(REASON_SEPARATOR + self.base.text(self.lang)))
        pieces = [*first, *weighing, *later, base]
        return pl.concat_str(pieces, ignore_nulls=True).str.slice(len(REASON_SEPARATOR)).alias("reasons")

    def _every(self, name: str) -> list[pl.Expr]:
        return [pl.col(f"{at}:{name}") for at in range(len(self.tables))]

    def _values(self) -> list[pl.Expr]:
        """Return the text for each placeholder in the rows that have it; null elsewhere, as nulls cost nothing."""
        named = [pl.col(f"{at}:{name}") for at, table in enumerate(self.tables) for name in table.names]
        return [
            placeholder.fill(pl.any_horizontal(column == name for column in named), self.lang).alias(f"value:{name}")
            for name, placeholder in self.placeholders.items()
        ]

    def _pieces(self, at: int, table: ReasonTable) -> list[pl.Expr]:
        """The texts of a run with the values between."""
        pieces = []
        for column in table.combinations.columns[len(POINTS) :]:
            piece = pl.col(f"{at}:{column}")
            if column.startswith("name:"):
                value = pl.lit(None, pl.String)
                for name in table.names[column]:
                    value = pl.when(piece == name).then(pl.col(f"value:{name}")).otherwise(value)
                piece = value
            pieces.append(piece)
        return pieces


def _outcomes(card: Scorecard, lowest: int, highest: int) -> pl.DataFrame:
    """Return the outcome of each score: without an assessment, no address given and one given; then two lines a score.

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
    return every.select("bounce_prob", "grade", _restrict_action(), restrained.alias(_RESTRAINED)).collect()


def _restrict_action() -> pl.Expr:
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
