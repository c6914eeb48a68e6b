"""How the name of a road that is written differs from the one that it is taken for: by a slip, or as two roads do.

A gazetteer is older than the newest roads, and a road that it lacks looks like a misspelling of its neighbour, with
which it shares dong, postal code and numbers. What tells neighbours apart is therefore no slip: 가, 나, 다 behind a
number, and syllables such as 동 and 서, 상 and 하, 안. Nor is a syllable that has nothing in common with the one that
it stands for, or one of a name of two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import polars as pl

_LETTERS: Final = "가나다라마바사아자차카타파하"
_TELLING: Final = tuple(_LETTERS + "안동서남북천중윗웃아랫구신새상하앞뒤옆내외원본큰")
_BRANCH: Final = f"[0-9]번?[{_LETTERS}]"
_GREAT: Final = "대"
_LONGEST: Final = 17
_NUMBERS: Final = "[0-9]+번?"
_ROAD: Final = "[로길]$"
_SHORT: Final = 2


class Difference(IntEnum):
    """How far apart two names are."""

    SLIP = 0
    """As fingers slip: a jamo, or a syllable of a long name that is missing, doubled or in the wrong place."""
    DOUBTFUL = 1
    """A slip if something besides the name says so."""
    TWO_ROADS = 2
    """As neighbouring roads differ: like a digit."""


def differences(written: pl.Series, official: pl.Series) -> pl.DataFrame:
    """Return for each pair of names ``difference`` (of :class:`Difference`, null where equal) and ``short`` (Boolean).

    ``short``: what is left of the shorter name without numbers and 로 or 길 has two syllables at most, and the written
    one ends as roads do: one that does not is no other road's.
    """
    names = pl.DataFrame({"written": written, "official": official})
    one, other = pl.col("written"), pl.col("official")
    head = pl.sum_horizontal((one.str.head(count) == other.str.head(count)) for count in range(1, _LONGEST))
    names = names.with_columns(head=head)
    names = names.with_columns(
        longer=pl.when(one.str.len_chars() > other.str.len_chars()).then(one).otherwise(other),
        short=(pl.min_horizontal(_stem(one), _stem(other)) <= _SHORT) & one.str.contains(_ROAD),
        a=one.str.slice(pl.col("head"), 1),
        b=other.str.slice(pl.col("head"), 1),
    ).with_columns(extra=pl.col("longer").str.slice(pl.col("head"), 1))
    same_length = one.str.len_chars() == other.str.len_chars()
    exchanged = same_length & (one.str.slice(pl.col("head") + 1) == other.str.slice(pl.col("head") + 1))
    telling = pl.col("a").is_in(_TELLING) & pl.col("b").is_in(_TELLING)
    other_branch = _branch(one) != _branch(other)
    kind = (
        pl.when(other_branch | (same_length & telling))
        .then(Difference.TWO_ROADS)
        .when(exchanged & (_jamo_apart("a", "b") == 1))
        .then(Difference.SLIP)
        .when(exchanged | pl.col("short"))
        .then(Difference.DOUBTFUL)
        .when(~same_length & pl.col("extra").is_in([*_TELLING, _GREAT]))
        .then(Difference.DOUBTFUL)
        .otherwise(Difference.SLIP)
    )
    return names.select(pl.when(one != other).then(kind).alias("difference"), "short")


def _stem(name: pl.Expr) -> pl.Expr:
    return name.str.replace_all(_NUMBERS, "").str.replace(_ROAD, "").str.len_chars()


def _branch(name: pl.Expr) -> pl.Expr:
    """The letters behind numbers: 라 of 28라길."""
    return name.str.extract_all(_BRANCH).list.join("")


def _jamo_apart(one: str, other: str) -> pl.Expr:
    """In how many of its two or three jamo a syllable differs from another."""
    jamo = [pl.col(column).str.normalize("NFD") for column in (one, other)]
    places = ((0, 1), (1, 1), (2, None))
    return pl.sum_horizontal(jamo[0].str.slice(*place) != jamo[1].str.slice(*place) for place in places)
