"""Misspelt names: names one slip apart, and whether a difference is a slip or distinguishes two roads.

A slip is one wrong, missing or extra syllable, or two that changed places; a wrong jamo is a wrong syllable. Digits are
never touched: 새내6길 and 새내7길 are two streets.

- :func:`holes`, :func:`gaps`, :func:`slips` find slips among the many names of a gazetteer without comparing all pairs:
  a name with one syllable unreadable (``한?리대로``) equals another name with the same syllable unreadable exactly when
  the two differ in that syllable; a name with one syllable left out equals a shorter one exactly when that lacks it.
  Both sides are spelled out and compared as keys.
- :func:`variants` lists the slips of one of the few names of regions.
- :func:`compare_names` judges a difference. A road that an old gazetteer lacks looks like a misspelling of the road
  beside it, with the same dong, postal code and numbers. So what tells such roads apart is no slip: 가, 나, 다 after a
  number, and syllables such as 동 and 서, 상 and 하, 안. Nor is a syllable that has nothing in common with the other
  one, or one of a name of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from typing import Final

import polars as pl

from bansong.engine.address.batches import PreparedStep, text_key

HOLE: Final = "?"
"""Stands for an unreadable syllable."""

_PLACE: Final = "_at"
_AT: Final = pl.col(_PLACE)
_COMPARED_LENGTHS: Final = (2, 16)
_MIN_LENGTH_WITH_GAP: Final = 3  # too little is left of 중구 without a syllable

_HANGUL: Final = "^[가-힣]$"
_LETTERS: Final = "가나다라마바사아자차카타파하"
_TELLING: Final = tuple(_LETTERS + "안동서남북천중윗웃아랫구신새상하앞뒤옆내외원본큰")
_BRANCH: Final = f"[0-9]번?[{_LETTERS}]"
_GREAT: Final = "대"
_MAX_PREFIX_CHARS: Final = 17
_NUMBERS: Final = "[0-9]+번?"
_ROAD_END: Final = "[로길]$"
_SHORT_STEM_CHARS: Final = 2
_FIRST_SYLLABLE: Final = 0xAC00
_JAMO_COUNTS: Final = (19, 21, 28)  # initials, medials and finals (or none) of Hangul syllables, in Unicode's order


class NameDifference(IntEnum):
    """Distance of two names."""

    SLIP = 0
    """A jamo, or a missing, doubled or misplaced syllable of a long name."""
    DOUBTFUL = 1
    """A slip if other words of the row confirm it."""
    TWO_ROADS = 2
    """Names of different roads, as with another digit."""


def holes(frame: pl.DataFrame, name: str, *keep: str) -> pl.DataFrame:
    """Return a line for each Hangul syllable of ``name``, with it unreadable: ``keep`` and ``pattern``."""
    return _spell_out(frame.lazy(), name).select(*keep, pattern=_hole(name)).collect(engine="in-memory")


def gaps(frame: pl.DataFrame, name: str, *keep: str) -> pl.DataFrame:
    """Return a line for each Hangul syllable of ``name``, without it: ``keep`` and ``pattern``."""
    return _spell_out(frame.lazy(), name).select(*keep, pattern=_gap(name)).collect(engine="in-memory")


def slips(frame: pl.DataFrame, name: str, *keep: str) -> pl.DataFrame:
    """Return a line for each Hangul syllable of ``name``: ``keep``, and ``hole``, ``gap``, ``swap``.

    These are keys of the region and the name: with the syllable unreadable, without it, and swapped with the Hangul
    syllable after it (else null).
    """
    return _slips_of(name, keep).run(frame[list(dict.fromkeys(("region", name, *keep)))])


@cache
def _slips_of(name: str, keep: tuple[str, ...]) -> PreparedStep:
    text = pl.col(name)
    swapped = pl.concat_str(text.str.head(_AT), text.str.slice(_AT + 1, 1), _syllable(name), text.str.slice(_AT + 2))
    spelled = {"hole": _hole(name), "gap": _gap(name), "swap": swapped}
    keys = {slip: text_key("region", pattern) for slip, pattern in spelled.items()}
    keys["swap"] = pl.when(text.str.slice(_AT + 1, 1).str.contains(_HANGUL)).then(keys["swap"])
    return PreparedStep(lambda rows: _spell_out(rows, name).select(*keep, **keys))


def _hole(name: str) -> pl.Expr:
    return pl.concat_str(pl.col(name).str.head(_AT), pl.lit(HOLE), pl.col(name).str.slice(_AT + 1))


def _gap(name: str) -> pl.Expr:
    return pl.concat_str(pl.col(name).str.head(_AT), pl.col(name).str.slice(_AT + 1))


def _syllable(name: str) -> pl.Expr:
    return pl.col(name).str.slice(_AT, 1)


def _spell_out(rows: pl.LazyFrame, name: str) -> pl.LazyFrame:
    length = pl.col(name).str.len_chars()
    return (
        rows.filter(length.is_between(*_COMPARED_LENGTHS))
        .with_columns(pl.int_ranges(0, length, dtype=pl.UInt32).alias(_PLACE))
        .explode(_PLACE)
        .filter(_syllable(name).str.contains(_HANGUL))
    )


def variants(name: str) -> Iterator[str]:
    """Yield a name with one jamo wrong, or one syllable missing or doubled; the last syllable is only doubled."""
    yield name + name[-1]
    for place, syllable in enumerate(name[:-1]):
        before, after = name[:place], name[place + 1 :]
        if not "가" <= syllable <= "힣":
            continue
        yield before + syllable + syllable + after
        if len(name) > _MIN_LENGTH_WITH_GAP:
            yield before + after
        for other in _change_jamo(syllable):
            yield before + other + after


@cache
def _change_jamo(syllable: str) -> tuple[str, ...]:
    _, medials, finals = _JAMO_COUNTS
    rest, final = divmod(ord(syllable) - _FIRST_SYLLABLE, finals)
    jamo = (*divmod(rest, medials), final)
    changed = (
        (*jamo[:at], other, *jamo[at + 1 :])
        for at, count in enumerate(_JAMO_COUNTS)
        for other in range(count)
        if other != jamo[at]
    )
    return tuple(chr(_FIRST_SYLLABLE + (one * medials + two) * finals + three) for one, two, three in changed)


def compare_names(written: pl.Series, official: pl.Series) -> pl.DataFrame:
    """Return ``difference`` (a :class:`NameDifference`, null for equal names) and ``short`` (Boolean) of each pair.

    ``short``: the shorter name without numbers and 로 or 길 has at most two syllables, and the written one ends like a
    road.
    """
    one, other, head = pl.col("written"), pl.col("official"), pl.col("head")
    names = pl.DataFrame({"written": written, "official": official}).with_columns(
        head=pl.sum_horizontal((one.str.head(count) == other.str.head(count)) for count in range(1, _MAX_PREFIX_CHARS))
    )
    longer = pl.when(one.str.len_chars() > other.str.len_chars()).then(one).otherwise(other)
    names = names.with_columns(
        short=(pl.min_horizontal(_stem_length(one), _stem_length(other)) <= _SHORT_STEM_CHARS)
        & one.str.contains(_ROAD_END),
        a=one.str.slice(head, 1),
        b=other.str.slice(head, 1),
        extra=longer.str.slice(head, 1),
    )
    same_length = one.str.len_chars() == other.str.len_chars()
    exchanged = same_length & (one.str.slice(head + 1) == other.str.slice(head + 1))
    telling = pl.col("a").is_in(_TELLING) & pl.col("b").is_in(_TELLING)
    two_roads = (_branch_letters(one) != _branch_letters(other)) | (same_length & telling)
    slip = exchanged & (_jamo_apart("a", "b") == 1)
    doubtful = exchanged | pl.col("short") | (~same_length & pl.col("extra").is_in([*_TELLING, _GREAT]))
    kind = (
        pl.when(two_roads)
        .then(NameDifference.TWO_ROADS)
        .when(~slip & doubtful)
        .then(NameDifference.DOUBTFUL)
        .otherwise(NameDifference.SLIP)
    )
    return names.select(pl.when(one != other).then(kind).alias("difference"), "short")


def _stem_length(name: pl.Expr) -> pl.Expr:
    return name.str.replace_all(_NUMBERS, "").str.replace(_ROAD_END, "").str.len_chars()


def _branch_letters(name: pl.Expr) -> pl.Expr:
    # 라 of 28라길
    return name.str.extract_all(_BRANCH).list.join("")


def _jamo_apart(one: str, other: str) -> pl.Expr:
    jamo = [pl.col(column).str.normalize("NFD") for column in (one, other)]
    places = ((0, 1), (1, 1), (2, None))
    return pl.sum_horizontal(jamo[0].str.slice(*place) != jamo[1].str.slice(*place) for place in places)
