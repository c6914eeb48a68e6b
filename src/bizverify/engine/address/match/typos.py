"""One wrong, missing or extra syllable in a name, or two that changed places, without comparing it to every name.

A name with one syllable unreadable (``한?리대로``) equals another name with the same syllable unreadable exactly when
the two differ in that syllable; a name with one syllable left out equals a shorter one exactly when that lacks it. So
both sides are spelled out and compared as keys. Digits are never touched: 새내6길 and 새내7길 are two streets, not a
street and its misspelling. A wrong jamo is a wrong syllable.
"""

from __future__ import annotations

from typing import Final

import polars as pl

HOLE: Final = "?"
_LONGEST: Final = 16
_SHORTEST: Final = 2
_HANGUL: Final = "^[가-힣]$"
_TWO: Final = "^[가-힣]{2}$"


def holes(frame: pl.DataFrame, name: str, *keep: str) -> pl.DataFrame:
    """Return for each Hangul syllable of ``name`` a line with it unreadable: ``keep`` and ``pattern``."""
    return _spelled_out(frame, name, keep, HOLE)


def gaps(frame: pl.DataFrame, name: str, *keep: str) -> pl.DataFrame:
    """Return for each Hangul syllable of ``name`` a line without it: ``keep`` and ``pattern``."""
    return _spelled_out(frame, name, keep, "")


def swaps(frame: pl.DataFrame, name: str, *keep: str) -> pl.DataFrame:
    """Return for each two Hangul syllables of ``name`` side by side a line with them swapped: ``keep``, ``pattern``."""
    text = pl.col(name)
    usable = frame.filter(text.str.len_chars().is_between(_SHORTEST, _LONGEST))
    lines = [
        usable.filter(text.str.slice(place, 2).str.contains(_TWO)).select(
            *keep,
            pl.concat_str(
                text.str.head(place),
                text.str.slice(place + 1, 1),
                text.str.slice(place, 1),
                text.str.slice(place + 2),
            ).alias("pattern"),
        )
        for place in range(_longest(usable, name) - 1)
    ]
    return pl.concat(lines) if lines else usable.select(*keep, pl.lit(None, pl.String).alias("pattern"))


def _spelled_out(frame: pl.DataFrame, name: str, keep: tuple[str, ...], instead: str) -> pl.DataFrame:
    text = pl.col(name)
    usable = frame.filter(text.str.len_chars().is_between(_SHORTEST, _LONGEST))
    lines = [
        usable.filter(text.str.slice(place, 1).str.contains(_HANGUL)).select(
            *keep,
            pl.concat_str(text.str.head(place), pl.lit(instead), text.str.slice(place + 1)).alias("pattern"),
        )
        for place in range(_longest(usable, name))
    ]
    return pl.concat(lines) if lines else usable.select(*keep, pl.lit(None, pl.String).alias("pattern"))


def _longest(frame: pl.DataFrame, name: str) -> int:
    longest = frame.select(pl.col(name).str.len_chars().max()).item()
    return int(longest or 0)
