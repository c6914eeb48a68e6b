"""Finds the region where it is not at the head: behind a name (가나상사 부산 해운대구 …), or at the end of the address.

An address whose region is overlooked is taken for one without, and may then be filled in with another than is written.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from bizverify.engine.address.misspellings import variants
from bizverify.engine.address.regions.heads import alone, enum, province_words
from bizverify.engine.address.regions.split import ADDED, split
from bizverify.engine.address.regions.unspaced import province_and_district

_BETWEEN: Final = r"[,/:.()]"
_NUMBERED: Final = r"(?:[로길리가]|[^0-9]동) ?(?:산|지하|공중)? ?[0-9]"
_MOST_BYTES: Final = 1200  # nobody's address is longer
_MOST_WORDS: Final = 8
_SHORT: Final = 2
_LABEL: Final = r"^(?:(?:[신구새현]|도로명|지번|사업장|본점|본사) ?)?(?:주소지?|소재지)$|^[0-9]{1,2}$"
_EDGES: Final = " ,/:.()-·"


def split_anywhere(texts: pl.Series) -> pl.DataFrame:
    """Return the columns of :data:`~.split.ADDED` for texts with single spaces, wherever the region stands."""
    frame = pl.DataFrame({"text": texts})
    told = split(frame.lazy(), "text").collect().select(*ADDED)
    lines = told.with_row_index("line")
    readable = texts.str.len_bytes() <= _MOST_BYTES
    without = frame.hstack(lines.select("line", "sigungu")).filter(told["sido"].is_null() & readable)
    words = _words(without)
    if words.is_empty():
        return told
    found = _told(pl.concat([_behind_a_name(words), _at_the_end(words), _province_at_the_end(words)]))
    kept = lines.join(found, on="line", how="anti")
    return pl.concat([kept, found.select(lines.columns)]).sort("line").drop("line")


def names_region(word: pl.Expr) -> pl.Expr:
    """Whether a word (String) names a province or a district, of today or of before."""
    return _among(word, _provinces()) | _among(word, _districts())


def _words(texts: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each word behind the first that may begin a region, with the text before and from it on."""
    word, length = pl.col("word"), pl.col("word").str.len_chars()
    words = texts.with_columns(word=pl.col("text").str.replace_all(_BETWEEN, " ").str.split(" ")).explode("word")
    words = words.with_columns(place=(length + 1).cum_sum().over("line") - length - 1).filter(word != "")
    words = words.with_columns(
        following=word.shift(-1).over("line"), end=(pl.col("place") + length).shift(-1).over("line")
    ).with_columns(
        is_province=_among(word, _provinces()),
        is_district=_among(word, _districts()),
        follows_province=_among(pl.col("following"), _provinces()),
    )
    glued = word.str.contains(province_and_district())
    words = words.filter((pl.col("place") > 0) & (pl.col("is_province") | pl.col("is_district") | glued))
    words = words.filter(pl.int_range(pl.len()).over("line") < _MOST_WORDS)
    return words.with_columns(
        before=pl.col("text").str.head(pl.col("place")).str.strip_chars_end(_EDGES),
        after=pl.col("text").str.slice(pl.col("place")),
    ).with_columns(
        numbered=pl.col("before").str.contains(_NUMBERED), numbered_after=pl.col("after").str.contains(_NUMBERED)
    )


def _behind_a_name(words: pl.DataFrame) -> pl.DataFrame:
    """``가나상사 부산 해운대구 센텀중앙로 90``: what comes first is no part of the address, and is kept."""
    lead = pl.col("before").str.strip_chars(_EDGES)
    region = names_region(lead) | lead.is_in(_mistyped()) | lead.str.replace_all(" ", "").str.contains(_broken())
    said = ~region & ~lead.str.contains(_LABEL)
    return words.filter(pl.col("sigungu").is_null() & ~pl.col("numbered")).select(
        "line",
        "place",
        head="after",
        lead=pl.when(said).then(lead).otherwise(pl.lit("")),
        body=pl.lit(None, pl.String),
        behind=pl.lit(None, pl.String),
        sure=pl.lit(True),
    )


def _at_the_end(words: pl.DataFrame) -> pl.DataFrame:
    """``센텀중앙로 90, 해운대구, 부산``; a short name of a province amid other words is none (부산 횟집)."""
    apart = ~pl.col("text").str.head(pl.col("place")).str.ends_with(".")  # 643.경기 is cut off
    turned = pl.col("is_district") & pl.col("follows_province")
    province_first = pl.concat_str("following", pl.lit(" "), "word")
    rest = pl.col("text").str.slice(pl.col("end")).str.strip_chars(_EDGES)
    alone = pl.col("sigungu").is_null() & apart
    return words.filter(alone & pl.col("numbered") & ~pl.col("numbered_after")).select(
        "line",
        "place",
        head=pl.when(turned).then(pl.concat_str(province_first, rest, separator=" ")).otherwise("after"),
        lead=pl.lit(""),
        body="before",
        behind="text",
        sure=~pl.col("is_province") | (pl.col("word").str.len_chars() > _SHORT),
    )


def _province_at_the_end(words: pl.DataFrame) -> pl.DataFrame:
    """``중구 중앙로 3, 대구``: the province of a district that several have."""
    mine = pl.col("sigungu").is_not_null() & pl.col("is_province") & ~pl.col("numbered_after")
    last = pl.col("after").str.strip_chars_end(_EDGES) == pl.col("word")
    return words.filter(mine & (last | (pl.col("word").str.len_chars() > _SHORT))).select(
        "line",
        "place",
        head=pl.concat_str("word", pl.when(last).then("before").otherwise("text"), separator=" "),
        lead=pl.lit(""),
        body=pl.lit(None, pl.String),
        behind=pl.lit(None, pl.String),
        sure=pl.lit(True),
    )


def _told(found: pl.DataFrame) -> pl.DataFrame:
    """Return ``line`` and the columns of ADDED: what the best of the words found in a text means, if they mean any.

    ``head``: the text as if it began with its region. What follows the region is the rest of the address; where there
    is a ``body`` it is that, or the whole text (``behind``) if something stands behind the region.
    """
    found = found.with_columns(split(found.select("head").lazy(), "head").collect().select(*ADDED).drop("lead"))
    named = pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
    # 세종시, which has no districts, is as sure as one in front; at the end, or 세종 alone, it is not
    in_full = pl.col("body").is_null() & (pl.col("region_typed").str.len_chars() > _SHORT)
    district = pl.when(pl.col("sigungu") == "").then(in_full).otherwise(pl.col("sigungu").is_not_null())
    district = district.fill_null(False)
    last = pl.col("rest").str.strip_chars(_EDGES) == ""
    found = found.filter(named & (pl.col("sure") | district | last)).with_columns(
        rest=pl.coalesce(pl.when(last).then("body"), "behind", "rest")
    )
    return found.sort("line", ~district, "place").unique("line", keep="first", maintain_order=True)


def _among(word: pl.Expr, words: pl.DataTypeExpr) -> pl.Expr:
    return word.cast(words, strict=False).is_not_null()


@cache
def _provinces() -> pl.DataTypeExpr:
    return enum(province_words())


@cache
def _districts() -> pl.DataTypeExpr:
    return enum(dict.fromkeys(word for text in alone().meanings for word in text.split(" ")))


@cache
def _broken() -> str:
    """The pattern of what is left of a province's full name: 서울특별구, 울특별시."""
    begun = sorted({word[:4] for word in province_words() if len(word) > 4})
    return f"^(?:{'|'.join(begun)}).{{0,2}}$|^[가-힣]{{0,3}}(?:특별시|광역시|특별자치[시도])$"


@cache
def _mistyped() -> list[str]:
    """Short names of provinces with one jamo wrong: 서을 종로구 names no 서을."""
    short = [word for word in province_words() if len(word) == _SHORT]
    return sorted({other[:-1] for word in short for other in variants(word + "시") if len(other) > _SHORT} - set(short))
