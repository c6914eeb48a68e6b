"""Reads the usual heads of addresses: what nearly all begin with, told by their first characters alone.

A batch has few different beginnings, so the work is done once for each of them and not once for each row. What is not
usual is left to :mod:`.split` and :mod:`.inside`, which say the same of every text that is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import polars as pl

from bizverify.engine.address.regions.heads import alone, enum, heads
from bizverify.engine.address.regions.names import regions
from bizverify.engine.address.regions.search import split_anywhere
from bizverify.engine.address.regions.split import ADDED, NO_DISTRICTS, catalogue

_SHORT: Final = 11
"""서울특별시 동대문구 고: enough for a province and a district, and few different ones in a batch."""

_LONG: Final = 18
"""경상남도 창원시 마산합포구 완: enough for a ward and for 세종특별자치시 조치원읍."""

_NO_DISTRICT: Final = "^[가-힣0-9]*[가-힣0-9--시군구]$"


@dataclass(frozen=True)
class _Usual:
    """Heads that nothing after them can change, with their places in :func:`~.heads.heads`."""

    keys: pl.DataTypeExpr
    places: pl.Series
    whole: int
    """The number of heads that are whole; those after them need a look at the next word."""
    taken: pl.DataTypeExpr
    """The words that may belong to a head before them."""

    def find(self, words: list[pl.Expr]) -> pl.Expr:
        """Return the places of heads of one to three words (UInt32), null where more must be known."""
        known = []
        for count in (3, 2, 1):
            text = words[0] if count == 1 else pl.concat_str(words[:count], separator=" ")
            number = pl.when(words[count].is_not_null()).then(text).cast(self.keys, strict=False)
            number = number.to_physical().cast(pl.UInt32)
            following = pl.when(words[count + 1].is_not_null()).then(words[count])
            free = following.cast(self.taken, strict=False).is_null() & following.str.contains(_NO_DISTRICT)
            known.append(pl.when((number < self.whole) | free).then(number))
        return pl.lit(self.places).gather(pl.coalesce(known))


@cache
def _usual() -> _Usual:
    texts = heads().meanings
    begun = {" ".join(words[:count]) for words in map(str.split, texts) for count in range(1, len(words))}
    prefix = catalogue().columns["prefix"]
    whole: dict[str, int] = {}
    open_ended: dict[str, int] = {}
    for place, (text, head) in enumerate(texts.items()):
        if head.bare or head.sido is None:  # which 중구 it is may be said further on
            continue
        if head.sigungu is not None and prefix[place] is None and text not in begun:
            whole[text] = place
        elif (head.sigungu is not None and prefix[place] is not None) or head.sido == NO_DISTRICTS:
            open_ended[text] = place
    words = {word for text in (*texts, *alone().meanings) for word in text.split(" ")}
    words |= {text for province in regions().provinces for text in province.written}
    found = whole | open_ended
    return _Usual(enum(found), pl.Series(list(found.values()), dtype=pl.UInt32), len(whole), enum(sorted(words)))


@cache
def _found() -> pl.Expr:
    """The places of the heads whose words are in ``field_0`` to ``field_5``; made once, for batches of a few rows."""
    return _usual().find([pl.col(f"field_{place}") for place in range(6)])


def usual(texts: pl.Series) -> pl.Series:
    """Return the place of each text's head in :func:`~.heads.heads` (UInt32), null for what is not usual."""
    short = _by_beginning(texts, _SHORT)
    if not short.null_count():
        return short
    left = short.is_null() & texts.is_not_null()
    long = _by_beginning(texts.filter(left), _LONG)
    return pl.select(pl.coalesce(short, scattered(long, left)).alias("place")).to_series()


def scattered(values: pl.Series, at: pl.Series) -> pl.Series:
    """Return values at the rows where ``at`` (Boolean) is true, one after the other, and null at the others."""
    lines = at.cum_sum().cast(pl.UInt32) - 1
    return values.gather(lines.zip_with(at, pl.Series([None], dtype=pl.UInt32)))


def split_batch(texts: pl.Series) -> pl.Series:
    """Return the columns of :data:`~.split.ADDED` as a Struct, for a batch of texts with single spaces."""
    place = usual(texts)
    frame = pl.DataFrame({"text": texts, "place": place})
    if not place.null_count():
        return frame.select(_told()).to_series()
    left = place.is_null()
    slow = split_anywhere(texts.filter(left)).select(pl.struct(*ADDED).alias("slow"))
    if len(slow) == len(texts):
        return slow.to_series()
    lines = left.cum_sum().cast(pl.UInt32) + (len(texts) - 1)
    lines = lines.zip_with(left, pl.int_range(len(texts), dtype=pl.UInt32, eager=True))
    return pl.concat([frame.select(_told()).to_series(), slow.to_series()]).gather(lines)


def _told() -> pl.Expr:
    """Return what a head in ``place`` says, and what follows it in ``text``."""
    place = pl.col("place")
    value = catalogue().value
    columns = {
        "sido": value("sido", place),
        "sigungu": pl.coalesce(value("sigungu", place), pl.lit("")),
        "sido_given": value("sido_typed", place).is_not_null(),
        "region_conflict": pl.lit(False),
        "region_change": value("change", place),
        "region_typed": value("text", place),
        "sido_typed": value("sido_typed", place),
        "rest": pl.col("text").str.slice(value("length", place)).str.strip_chars_start(" ,"),
        "lead": pl.lit(None, pl.String),
    }
    return pl.struct(columns[name].alias(name) for name in ADDED).alias("region")


def _by_beginning(texts: pl.Series, length: int) -> pl.Series:
    beginnings = texts.str.head(length)
    each = beginnings.unique().drop_nulls().alias("each")
    split = each.str.splitn(" ", 5).struct.unnest().with_columns(field_5=pl.lit(None, pl.String))
    places = split.select(_found()).to_series()
    return places.gather(beginnings.cast(pl.Enum(each)).to_physical()).alias("place")
