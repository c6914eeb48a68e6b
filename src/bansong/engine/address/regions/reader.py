"""Read the regions of a batch of addresses: usual heads once for each distinct beginning, the others one by one.

:func:`find_usual_heads` looks up each of the few distinct beginnings of a batch once and gathers the places back to the
rows. Other texts are left to :func:`.split.split_head`, which agrees on every text that is decided here. A region that
is not at the head is searched for behind a name (가나상사 부산 해운대구 …) and at the end: an overlooked region could
be filled in with another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from secrets import randbits
from typing import Final, cast

import polars as pl

from bansong.engine.address.batches import TextIndex, scatter
from bansong.engine.address.misspellings import variants
from bansong.engine.address.regions.heads import districts_alone, heads, province_words
from bansong.engine.address.regions.region_table import regions
from bansong.engine.address.regions.split import ADDED, NO_DISTRICTS, catalogue, province_and_district, split_head
from bansong.engine.memo import KEY, Memo

_SHORT_CHARS: Final = 11  # 서울특별시 동대문구 고: a province and a district; few different ones in a batch
_LONG_CHARS: Final = 18  # 경상남도 창원시 마산합포구 완: a ward, or 세종특별자치시 조치원읍

_NO_DISTRICT: Final = "^[가-힣0-9]*[가-힣0-9--시군구]$"


@dataclass(frozen=True)
class _UsualHeads:
    keys: TextIndex
    places: pl.Series
    whole: int
    """Number of whole heads; those after them need a look at the next word."""
    taken: TextIndex
    """Words that may belong to a head before them."""

    def find(self, words: list[pl.Expr]) -> pl.Expr:
        known = []
        for count in (3, 2, 1):
            text = words[0] if count == 1 else pl.concat_str(words[:count], separator=" ")
            number = self.keys.find(pl.when(words[count].is_not_null()).then(text))
            following = pl.when(words[count + 1].is_not_null()).then(words[count])
            free = ~self.taken.holds(following) & following.str.contains(_NO_DISTRICT)
            known.append(pl.when((number < self.whole) | free).then(number))
        return pl.lit(self.places).gather(pl.coalesce(known))


@cache
def _usual_heads() -> _UsualHeads:
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
    words = {word for text in (*texts, *districts_alone().meanings) for word in text.split(" ")}
    words |= {text for province in regions().provinces for text in province.written}
    found = whole | open_ended
    return _UsualHeads(TextIndex(found), pl.Series(list(found.values()), dtype=pl.UInt32), len(whole), TextIndex(words))


@cache
def _find_usual() -> pl.Expr:
    # made once, for batches of a few rows
    return _usual_heads().find([pl.col(f"field_{place}") for place in range(6)])


def find_usual_heads(texts: pl.Series) -> pl.Series:
    """Return the place of each text's head in :func:`~.heads.heads` (UInt32), null for an unusual one."""
    short = _SHORT_BEGINNINGS.find(texts)
    if not short.null_count():
        return short
    left = short.is_null() & texts.is_not_null()
    long = _LONG_BEGINNINGS.find(texts.filter(left))
    return pl.select(pl.coalesce(short, scatter(long, left)).alias("place")).to_series()


def split_batch(texts: pl.Series) -> pl.Series:
    """Return the columns of :data:`~.split.ADDED` as a Struct, for a batch of texts with single spaces."""
    place = find_usual_heads(texts)
    frame = pl.DataFrame({"text": texts, "place": place})
    if not place.null_count():
        return frame.select(_describe_place()).to_series()
    left = place.is_null()
    slow = split_anywhere(texts.filter(left)).select(pl.struct(*ADDED).alias("slow"))
    if len(slow) == len(texts):
        return slow.to_series()
    lines = left.cum_sum().cast(pl.UInt32) + (len(texts) - 1)
    lines = lines.zip_with(left, pl.int_range(len(texts), dtype=pl.UInt32, eager=True))
    return pl.concat([frame.select(_describe_place()).to_series(), slow.to_series()]).gather(lines)


@cache
def _describe_place() -> pl.Expr:
    """Return what a head in ``place`` says, and what follows it in ``text``."""
    place = pl.col("place")
    value = catalogue().value
    columns = {
        "sido": value("sido", place),
        "sigungu": value("sigungu", place),
        "sido_given": value("sido_typed", place).is_not_null(),
        "region_conflict": pl.lit(False),
        "region_change": value("change", place),
        "region_typed": value("text", place),
        "sido_typed": value("sido_typed", place),
        "rest": pl.col("text").str.slice(value("length", place)).str.strip_chars_start(" ,"),
        "lead": pl.lit(None, pl.String),
    }
    return pl.struct(columns[name].alias(name) for name in ADDED).alias("region")


_SEED: Final = randbits(64)


class BeginningsRead:
    """Places of the heads of texts by their first characters, each distinct beginning read once a process.

    They are found by their hash, at a fraction of the cost of a batch's distinct values. The hash is seeded anew in
    each process, so that no crafted address is taken for another's.
    """

    def __init__(self, length: int, most: int = 1 << 16) -> None:
        self._beginning = pl.col("text").str.head(length)
        self._memo = Memo(most)

    def find(self, texts: pl.Series) -> pl.Series:
        """Return the place of each text's head (UInt32), null for an unusual one."""
        read = texts.to_frame("text").select(self._beginning, self._beginning.hash(_SEED).alias(KEY))
        found = self._memo.look_up(read[KEY], lambda new: _read_beginnings(read["text"].filter(new)))
        return cast("pl.DataFrame", found)["place"]  # never None: all that is read is worth keeping


def _read_beginnings(beginnings: pl.Series) -> pl.DataFrame:
    each = beginnings.unique().alias("each")
    words = each.str.splitn(" ", 5).struct.unnest().with_columns(field_5=pl.lit(None, pl.String))
    return words.select(each.hash(_SEED).alias(KEY), _find_usual().alias("place"))


_SHORT_BEGINNINGS: Final = BeginningsRead(_SHORT_CHARS)
_LONG_BEGINNINGS: Final = BeginningsRead(_LONG_CHARS)


_SEPARATORS: Final = r"[,/:.()]"
_NUMBERED: Final = r"(?:[로길리가]|[^0-9]동) ?(?:산|지하|공중)? ?[0-9]"
_MAX_BYTES: Final = 1200
_MAX_WORDS: Final = 8
_SHORT_NAME_CHARS: Final = 2
_LABEL: Final = r"^(?:(?:[신구새현]|도로명|지번|사업장|본점|본사) ?)?(?:주소지?|소재지)$|^[0-9]{1,2}$"
_EDGES: Final = " ,/:.()-·"


def split_anywhere(texts: pl.Series) -> pl.DataFrame:
    """Return the columns of :data:`~.split.ADDED` for texts with single spaces, with the region at any place."""
    frame = pl.DataFrame({"text": texts})
    found_at_head = split_head(frame.lazy(), "text").collect().select(*ADDED)
    lines = found_at_head.with_row_index("line")
    readable = texts.str.len_bytes() <= _MAX_BYTES
    without = frame.hstack(lines.select("line", "sigungu")).filter(found_at_head["sido"].is_null() & readable)
    words = _find_region_words(without)
    if words.is_empty():
        return found_at_head
    found = _choose_found(pl.concat([_behind_a_name(words), _at_the_end(words), _province_at_the_end(words)]))
    kept = lines.join(found, on="line", how="anti")
    return pl.concat([kept, found.select(lines.columns)]).sort("line").drop("line")


def names_region(word: pl.Expr) -> pl.Expr:
    """Whether a word (String) names a present or former province or district."""
    return _province_index().holds(word) | _district_index().holds(word)


def _find_region_words(texts: pl.DataFrame) -> pl.DataFrame:
    word, length = pl.col("word"), pl.col("word").str.len_chars()
    words = texts.with_columns(word=pl.col("text").str.replace_all(_SEPARATORS, " ").str.split(" ")).explode("word")
    words = words.with_columns(place=(length + 1).cum_sum().over("line") - length - 1).filter(word != "")
    words = words.with_columns(
        following=word.shift(-1).over("line"), end=(pl.col("place") + length).shift(-1).over("line")
    ).with_columns(
        is_province=_province_index().holds(word),
        is_district=_district_index().holds(word),
        follows_province=_province_index().holds(pl.col("following")),
    )
    unspaced = word.str.contains(province_and_district())
    words = words.filter((pl.col("place") > 0) & (pl.col("is_province") | pl.col("is_district") | unspaced))
    words = words.filter(pl.int_range(pl.len()).over("line") < _MAX_WORDS)
    return words.with_columns(
        before=pl.col("text").str.head(pl.col("place")).str.strip_chars_end(_EDGES),
        after=pl.col("text").str.slice(pl.col("place")),
    ).with_columns(
        numbered=pl.col("before").str.contains(_NUMBERED), numbered_after=pl.col("after").str.contains(_NUMBERED)
    )


def _behind_a_name(words: pl.DataFrame) -> pl.DataFrame:
    # `가나상사 부산 해운대구 센텀중앙로 90`: the first words are no part of the address, and are kept
    lead = pl.col("before").str.strip_chars(_EDGES)
    compact = lead.str.replace_all(" ", "")
    region = names_region(lead) | lead.is_in(_mistyped_provinces()) | compact.str.contains(_broken_provinces())
    kept = pl.when(~region & ~lead.str.contains(_LABEL)).then(lead).otherwise(pl.lit(""))
    found = words.filter(pl.col("sigungu").is_null() & ~pl.col("numbered"))
    return _as_found(found, pl.col("after"), lead=kept)


def _at_the_end(words: pl.DataFrame) -> pl.DataFrame:
    # `센텀중앙로 90, 해운대구, 부산`; not a short name of a province amid other words (부산 횟집)
    apart = ~pl.col("text").str.head(pl.col("place")).str.ends_with(".")  # 643.경기 is cut off
    turned = pl.col("is_district") & pl.col("follows_province")
    province_first = pl.concat_str("following", pl.lit(" "), "word")
    rest = pl.col("text").str.slice(pl.col("end")).str.strip_chars(_EDGES)
    head = pl.when(turned).then(pl.concat_str(province_first, rest, separator=" ")).otherwise("after")
    found = words.filter(pl.col("sigungu").is_null() & apart & pl.col("numbered") & ~pl.col("numbered_after"))
    sure = ~pl.col("is_province") | (pl.col("word").str.len_chars() > _SHORT_NAME_CHARS)
    return _as_found(found, head, body=pl.col("before"), behind=pl.col("text"), sure=sure)


def _province_at_the_end(words: pl.DataFrame) -> pl.DataFrame:
    # `중구 중앙로 3, 대구`: the province of a district that several have
    of_district = pl.col("sigungu").is_not_null() & pl.col("is_province") & ~pl.col("numbered_after")
    last = pl.col("after").str.strip_chars_end(_EDGES) == pl.col("word")
    found = words.filter(of_district & (last | (pl.col("word").str.len_chars() > _SHORT_NAME_CHARS)))
    return _as_found(found, pl.concat_str("word", pl.when(last).then("before").otherwise("text"), separator=" "))


_NO_TEXT: Final = pl.lit(None, pl.String)
_EMPTY: Final = pl.lit("")
_ALWAYS: Final = pl.lit(True)


def _as_found(
    words: pl.DataFrame,
    head: pl.Expr,
    *,
    lead: pl.Expr = _EMPTY,
    body: pl.Expr = _NO_TEXT,
    behind: pl.Expr = _NO_TEXT,
    sure: pl.Expr = _ALWAYS,
) -> pl.DataFrame:
    return words.select("line", "place", head=head, lead=lead, body=body, behind=behind, sure=sure)


def _choose_found(found: pl.DataFrame) -> pl.DataFrame:
    # `head`: the text as if it began with its region; the rest of the address is `body`, if given, or the whole text
    # # (`behind`) if something stands after the region
    found = found.with_columns(split_head(found.select("head").lazy(), "head").collect().select(*ADDED).drop("lead"))
    named = pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
    # 세종시, which has no districts, is as sure as one in front; at the end, or 세종 alone, it is not
    in_full = pl.col("body").is_null() & (pl.col("region_typed").str.len_chars() > _SHORT_NAME_CHARS)
    district = pl.when(pl.col("sigungu") == "").then(in_full).otherwise(pl.col("sigungu").is_not_null())
    district = district.fill_null(False)
    last = pl.col("rest").str.strip_chars(_EDGES) == ""
    found = found.filter(named & (pl.col("sure") | district | last)).with_columns(
        rest=pl.coalesce(pl.when(last).then("body"), "behind", "rest")
    )
    return found.sort("line", ~district, "place").unique("line", keep="first", maintain_order=True)


@cache
def _province_index() -> TextIndex:
    return TextIndex(province_words())


@cache
def _district_index() -> TextIndex:
    return TextIndex(dict.fromkeys(word for text in districts_alone().meanings for word in text.split(" ")))


@cache
def _broken_provinces() -> str:
    # 서울특별구, 울특별시
    begun = sorted({word[:4] for word in province_words() if len(word) > 4})
    return f"^(?:{'|'.join(begun)}).{{0,2}}$|^[가-힣]{{0,3}}(?:특별시|광역시|특별자치[시도])$"


@cache
def _mistyped_provinces() -> list[str]:
    # 서을 종로구 names no 서을
    short = [word for word in province_words() if len(word) == _SHORT_NAME_CHARS]
    typos = {other[:-1] for word in short for other in variants(word + "시") if len(other) > _SHORT_NAME_CHARS}
    return sorted(typos - set(short))
