"""Texts and points of all combinations of neighbouring reasons, made beforehand.

All reasons that there can be stand in one order, that of their points. Cut into groups of a few side by side, the text
of a group depends on few features: it has some hundreds of different ones, so all are made, with the points they come
to. Nothing grows with the rows, or with the number of different patterns among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from math import prod
from operator import add, mul
from typing import Final

import polars as pl

from bansong.engine.risk.features import FEATURES
from bansong.engine.risk.reason_texts import Term
from bansong.schema import REASON_SEPARATOR, Lang

_MOST: Final = 1024
"""How many different texts a group may have: enough for half a dozen groups, few enough to make in milliseconds."""

MARK: Final = "\x00"
"""Stands around a placeholder's name in a text; the texts of a scorecard hold no control characters."""

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
    against a repair), ``at_best`` (the place in :data:`MILDEST` of the mildest action that its levels allow), ``text``
    (a separator before each reason, marks around the names of placeholders; null without a reason).
    """

    digits: dict[str, pl.Series]
    combinations: pl.DataFrame

    def look_up(self, patterns: pl.DataFrame) -> pl.DataFrame:
        """Return the line of the table for each row of a frame with the columns of the levels."""
        # by index, not .gather(), which is a query of its own each time: most of the work where rows are few
        parts = [digits[patterns[column]] for column, digits in self.digits.items()]
        return self.combinations[reduce(add, parts)]


def make_reason_tables(
    terms: Sequence[Term], lang: Lang, repairs: Iterable[str], *, by_nts: bool = False
) -> list[ReasonTable]:
    """Cut the reasons, in their order, into groups; ``repairs``: the features that speak for a repair.

    ``by_nts``: see :meth:`~bansong.engine.risk.reason_texts.Term.identifying_text`.
    """
    cut: list[list[Term]] = []
    for term in terms:
        if cut and prod(len(of) + 1 for of in _by_column([*cut[-1], term]).values()) <= _MOST:
            cut[-1].append(term)
        else:
            cut.append([term])
    return [_make_reason_table(each, lang, frozenset(repairs), by_nts) for each in cut]


def _by_column(terms: Sequence[Term]) -> dict[str, list[Term]]:
    columns: dict[str, list[Term]] = {}
    for term in terms:
        columns.setdefault(column_of(term), []).append(term)
    return columns


def _make_reason_table(terms: Sequence[Term], lang: Lang, repairs: frozenset[str], by_nts: bool) -> ReasonTable:
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
    table = pl.select(codes).select(*_points(terms, holds, repairs), _text(terms, holds, lang, by_nts).alias("text"))
    return ReasonTable(digits, table)


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


def _text(terms: Sequence[Term], holds: list[pl.Expr], lang: Lang, by_nts: bool) -> pl.Expr:
    """The reasons that hold, one behind another, each with the separator before it; null if there are none."""
    texts = [
        pl.when(there).then(pl.lit(REASON_SEPARATOR + term.text_with_marks(MARK, lang, by_nts=by_nts)))
        for term, there in zip(terms, holds, strict=True)
    ]
    return pl.when(pl.any_horizontal(holds)).then(pl.concat_str(texts, ignore_nulls=True))
