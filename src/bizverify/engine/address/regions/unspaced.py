"""Finds regions that are written without the usual spaces: 경기도오산시오산로 254."""

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from bizverify.engine.address.regions.heads import district_words, province_words
from bizverify.engine.address.regions.names import regions

# What follows must not make another word of a region: 중구로, 남구청로, 여주시장길, 세종시청로 …
_NOT_AFTER: Final = "^[로길청역장민시0-9]"
_NOT_AFTER_ONE: Final = "^[로길청역장민시립내외계의0-9]"
# … unless it is long enough to be a place of its own: 장군면평기길154-1, 청진동 1, 장안읍좌천리 산12, 시청대로 78
_PLACE: Final = (
    r"^[길청역장민시립내외계의][가-힣]+(?:[읍면동리가]|[0-9][동리])(?:[^가-힣]|$|산 ?[0-9]|[가-힣]+(?:로|길)[0-9 ])"
    r"|^길동(?:[^가-힣]|$)"
)
_OF_CITY: Final = "^시[청장민립][가-힣]*(?:로|길) ?[0-9]"
_SHORT_PLACE: Final = "^[길장시내계외]동(?:[^가-힣]|$)"
_ROAD: Final = "^[길청역장민시립내외계의][가-힣0-9]{2,}(?:로|길) ?[0-9]"
_NO_ROAD: Final = "^(?:청[사역앞뒤년소]|역[전앞사]|장[앞뒤역]|시장|민[회의]|립|의[회료])"

_TWO: Final = 2
_TEXT: Final = "r:whole_text"
_FOUND: Final = "r:found"
_WORDS: Final = "r:found_words"
_AFTER: Final = "r:found_after"
_DOUBT: Final = "r:found_doubt"


def find_glued(frame: pl.LazyFrame, text: pl.Expr, nothing_before: pl.Expr) -> pl.LazyFrame:
    """Add ``r:found`` (String): the words of a region at the head of a text that run into what follows, or null.

    A province with a district is looked for in every text, a district or a province by itself only where
    ``nothing_before`` (Boolean) tells that no region was found yet.
    """
    both, alone, province = _patterns()
    whole, without_districts = _whole()
    work = frame.with_columns(text.alias(_TEXT), pl.lit(None, pl.String).alias(_FOUND))
    work = _look(work, both, _NOT_AFTER, whole, short_too=True)
    work = work.with_columns(pl.when(nothing_before).then(pl.col(_TEXT)).alias(_TEXT))
    work = _look(work, alone, _NOT_AFTER_ONE)
    work = _look(work, province, _NOT_AFTER_ONE, without_districts)
    return work.drop(_TEXT, _WORDS, _AFTER)


def _look(
    work: pl.LazyFrame, pattern: str, not_after: str, whole: str | None = None, *, short_too: bool = False
) -> pl.LazyFrame:
    """Look for one kind of region where none was found; a step at a time, as a step within a step is done twice."""
    left = pl.when(pl.col(_FOUND).is_null()).then(pl.col(_TEXT))
    work = work.with_columns(_first(left, pattern).alias(_WORDS))
    words, after = pl.col(_WORDS), pl.col(_AFTER)
    work = work.with_columns(pl.col(_TEXT).str.slice(words.str.len_chars()).alias(_AFTER))
    work = work.with_columns(after.str.contains(not_after).alias(_DOUBT))
    doubtful = pl.when(_DOUBT).then(after)
    long = doubtful.str.contains(_PLACE) | (words.str.ends_with("시") & doubtful.str.contains(_OF_CITY))
    if whole:
        official = pl.when(words.str.contains(whole)).then(doubtful)
        road = official.str.contains(_ROAD) & ~official.str.contains(_NO_ROAD)
        long = long | (road | official.str.contains(_SHORT_PLACE) if short_too else road).fill_null(False)
    work = work.with_columns(pl.when(~pl.col(_DOUBT) | long).then(words).alias(_WORDS)).drop(_DOUBT)
    return work.with_columns(pl.coalesce(_FOUND, _WORDS).alias(_FOUND))


def _first(text: pl.Expr, pattern: str) -> pl.Expr:
    """Return what matches at the head: several times faster than extracting a group of so many words."""
    return text.str.extract_all(pattern).list.first()


def province_and_district() -> str:
    """Return the pattern of a province with a district at the head of a text, with or without a space."""
    return _patterns()[0]


@cache
def _patterns() -> tuple[str, str, str]:
    """Return the patterns of a province with a district, of a district alone, of a province alone."""
    provinces, districts = province_words(), district_words()
    by_itself = [word for word in districts if len(word) > _TWO]
    full = [word for word in provinces if len(word) > _TWO and word[-1] in "시도"]
    return (
        f"^(?:{'|'.join(provinces)}) ?(?:{'|'.join(districts)})",
        f"^(?:{'|'.join(by_itself)})",
        f"^(?:{'|'.join(full)})",
    )


@cache
def _whole() -> tuple[str, str]:
    """Return the patterns of the whole name of a province, and of one that has no districts and nothing after it."""
    whole = {
        text
        for province in regions().provinces
        for text, (change, _) in province.written.items()
        if change != "abbreviated"
    }
    without = [province.name for province in regions().provinces if "" in province.cities]
    return f"^(?:{'|'.join(sorted(whole))})", f"^(?:{'|'.join(without)})$"
