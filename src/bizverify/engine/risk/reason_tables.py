"""The reasons of a row in a few pieces, each made once for whatever can be known and then looked up.

All reasons that there can be stand in one order, that of their points. Cut into **runs** of a few neighbours each, the
text of a run depends on few features: it has some hundreds of different ones, so all are made beforehand, with the
points they come to. A row's text is then one look-up for each run, joined; nothing grows with the rows or with
the number of different patterns among them.
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

from bizverify.engine.risk.features import FEATURES
from bizverify.engine.risk.reasons import PLACEHOLDERS, Term
from bizverify.schema import REASON_SEPARATOR, Lang

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
class Run:
    """Neighbouring reasons, and what all their combinations come to.

    ``digits``: for each column the part of the combination's number that each of its codes gives. ``table``: one line
    a combination: ``score``, ``repair`` and ``others`` (the points in all, and the most that one reason gives for and
    against a repair), ``at_best`` (the place in :data:`MILDEST` of the mildest action that its levels allow),
    ``text:0``, ``name:1``, ``text:2`` …: the text, cut at its placeholders. ``names``: the placeholders that can stand
    at each ``name:…``.
    """

    digits: dict[str, pl.Series]
    table: pl.DataFrame
    names: dict[str, list[str]]

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the line of the table for each row."""
        # by index, not .gather(), which is a query of its own each time: most of the work where rows are few
        parts = [digits[rows[column].cast(pl.UInt32)] for column, digits in self.digits.items()]
        return self.table[reduce(add, parts)]


def runs(terms: Sequence[Term], lang: Lang, repairs: Iterable[str]) -> list[Run]:
    """Cut the reasons, in their order, into runs; ``repairs``: the features that speak for a repair of the address."""
    cut: list[list[Term]] = []
    for term in terms:
        if cut and _is_small([*cut[-1], term], lang):
            cut[-1].append(term)
        else:
            cut.append([term])
    return [_run(each, lang, frozenset(repairs)) for each in cut]


def _by_column(terms: Sequence[Term]) -> dict[str, list[Term]]:
    columns: dict[str, list[Term]] = {}
    for term in terms:
        columns.setdefault(column_of(term), []).append(term)
    return columns


def _is_small(terms: Sequence[Term], lang: Lang) -> bool:
    columns = _by_column(terms).values()
    placeholders = sum(max(len(term.placeholders(lang)) for term in column) for column in columns)
    return prod(len(column) + 1 for column in columns) <= _MOST and placeholders <= _MOST_PLACEHOLDERS


def _run(terms: Sequence[Term], lang: Lang, repairs: frozenset[str]) -> Run:
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
    return Run(digits, cut, names)


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
        pl.when(there).then(pl.lit(REASON_SEPARATOR + term.marked(_MARK, lang)))
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
