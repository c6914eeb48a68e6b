"""Read an address as people write it: region, road or lot, number, building, detail."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.business_number import first_code
from bansong.engine.address import regions
from bansong.engine.address.batches import fill_few, where
from bansong.engine.address.parse import lot, road
from bansong.engine.address.parse.detail import read_brackets, read_detail
from bansong.engine.address.parse.normalise import MOST_BYTES, normalise, rewrite_spellings

PARSED: Final[dict[str, pl.DataType]] = {
    "text": pl.String(),
    "kind": pl.String(),
    "zipcode_given": pl.String(),
    "zipcode_inside": pl.String(),
    "sido": pl.String(),
    "sigungu": pl.String(),
    "sido_given": pl.Boolean(),
    "sido_typed": pl.String(),
    "region_conflict": pl.Boolean(),
    "region_change": pl.String(),
    "region_typed": pl.String(),
    "emd": pl.String(),
    "ri": pl.String(),
    "road": pl.String(),
    "road_pre": pl.String(),
    "under": pl.UInt8(),
    "main": pl.UInt32(),
    "sub": pl.UInt32(),
    "lot_dong": pl.String(),
    "san": pl.UInt8(),
    "lot_main": pl.UInt32(),
    "lot_sub": pl.UInt32(),
    "lot_ho": pl.Boolean(),
    "loose_road": pl.String(),
    "loose_main": pl.UInt32(),
    "loose_sub": pl.UInt32(),
    "hint_dong": pl.String(),
    "building": pl.String(),
    "detail": pl.String(),
    "ahead": pl.String(),
    "brackets": pl.String(),
    "has_unit": pl.Boolean(),
    "moved_from": pl.String(),
}
"""Columns of `parse` and their types."""

_OTHER_PLACE: Final = "맞은 ?편|건너 ?편|길 ?건너|옆|앞|뒤|뒷|인근|근처|부근|주변"
_BESIDE: Final = "|".join(
    (
        rf"(?:^|[^가-힣])(?:{_OTHER_PLACE})(?:에|쪽|편)?(?:$|[^가-힣]| ?(?:건물|집|상가|빌딩|가게)에?(?:$|[^가-힣]))",
        rf"[가-힣](?:{_OTHER_PLACE})(?:에|쪽|편)?(?: *$|[^가-힣 ]| +[^가-힣 ])",  # 시청앞 지하상가, 역앞빌딩 are names
        r"(?:^|[^가-힣])(?:윗집|아랫집|뒷골목|옆골목|옆창고|맞은편길)(?:$|[^가-힣])",
        r"(?:^|[ ,(])(?:건너|일대|일원|입구|[정후]문|[사삼]거리|미상|확인 ?필요|이사감|폐업) *(?:$|[),.])",
    )
)
_ROAD_AND_NUMBER: Final = "(?:로|길) *[0-9]{1,5}(?:-[0-9]{1,5})?"
_NUMBER_OF_ANY: Final = "(?:로|길|리|가|[가-힣]동) *[0-9]{1,5}(?:-[0-9]{1,5})?(?: *번지)?"
_OTHER_ROAD: Final = "(?:(?:[가-힣]+ +)*[가-힣]+[시군구] +[가-힣0-9]+(?:로|길)|[가-힣]+(?:대로|[0-9]번?길))"
_END: Final = "(?: *번지)?(?:$|[ ,()])"
_NOT_ONE_NUMBER: Final = "|".join(
    (
        rf"{_NUMBER_OF_ANY}[ ,(]*(?:또는|혹은|및) *(?:[가-힣]+[로길동리] *)?[0-9-]+{_END}",
        rf"{_NUMBER_OF_ANY} *[~∼～] *[0-9-]+{_END}",  # 101동 101~103호 are units
        rf"(?:로|길|리|[가-힣]동) *(?:산 *)?0+(?:-[0-9]+)?{_END}",
        rf"{_ROAD_AND_NUMBER} *[,/] *{_OTHER_ROAD} *[0-9-]+{_END}",
    )
)
_TWO_NUMBERS: Final = r"(?:로|길) *([0-9]{1,5}) *[,/·] *([0-9]{1,5})(?:$| *\(| +[^, ])"  # 93, 101,102호 are units
_MAX_NEIGHBOUR_DISTANCE: Final = 20  # 152, 154 are neighbours; 152, 1203 is a building and its room
_ENGLISH: Final = r"(?i)[a-z]-?(?:ro|gil|daero|gu|si|dong|myeon|eup)(?:[ ,.0-9]|$)"
_PO_BOX: Final = r"사서함|(?i)\bp\.? ?o\.? ?box\b"


def parse(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Read the String columns ``address`` and ``zipcode``; add the columns of `PARSED`, null for what is not found.

    ``kind`` is ``korean``, ``english`` (``123, Teheran-ro, Gangnam-gu``), ``po_box`` (사서함) or ``none``; only Korean
    addresses are read. Other columns, rows and their order stay; every step is an expression of linear time.
    """
    kept = [name for name in frame.collect_schema().names() if name not in PARSED]
    return (
        frame.select(kept)
        .pipe(normalise)
        .pipe(rewrite_spellings)
        .pipe(read_brackets)
        .pipe(regions.split_region, "_body")
        .pipe(_with_words_before_region)
        .pipe(road.read_road)
        .pipe(_with_words_before_road)
        .pipe(lot.read_lot)
        .pipe(_read_unnumbered)
        .pipe(read_detail)
        .with_columns(kind=_kind())
        .select(*kept, *(pl.col(name).cast(dtype) for name, dtype in PARSED.items()))
    )


def is_numbered() -> pl.Expr:
    """Whether a parsed address names a road or lot with its number; lots count anew in each 리 of a 읍 or 면."""
    road = pl.col("road").is_not_null() & pl.col("main").is_not_null()
    lot = pl.col("lot_main").is_not_null() & ~pl.col("lot_dong").str.contains("[읍면]$")
    return road | lot.fill_null(False)


def names_several(address: pl.Expr) -> pl.Expr:
    """Whether an address gives several numbers, or zero, in place of one: 152 또는 154, 152~154."""
    two = pl.when(address.str.contains(_TWO_NUMBERS)).then(address).str.extract_groups(_TWO_NUMBERS).struct
    apart = two[1].cast(pl.Int32) - two[0].cast(pl.Int32)
    near = apart.is_between(1, _MAX_NEIGHBOUR_DISTANCE).fill_null(False)
    return (address.str.contains(_NOT_ONE_NUMBER) | near).fill_null(False)


def describes_by_other(address: pl.Expr) -> pl.Expr:
    """Whether an address describes its place by another one: 맞은편, 옆 건물, 시청 앞; not 시청앞점."""
    return address.str.contains(_BESIDE)


def _with_words_before_region(frame: pl.LazyFrame) -> pl.LazyFrame:
    # the words before a region that is not at the head go to the name in front
    lead, inside = pl.col("lead"), pl.col("lead").is_not_null()
    front = pl.concat_str("_front", pl.when(lead != "").then(lead), separator=" ", ignore_nulls=True)
    return frame.with_columns(
        _front=pl.when(inside & (front != "")).then(front).otherwise("_front"),
        _body=pl.when(inside).then(pl.concat_str(pl.lit(" "), "rest")).otherwise("_body"),
    ).drop("lead")


def _with_words_before_road(frame: pl.LazyFrame) -> pl.LazyFrame:
    # `내자동` of `내자동 사직로12길 2`
    pre, apart = pl.col("_pre"), pl.concat_str(pl.col("_town").fill_null(""), "road").str.len_bytes()
    words = where(pre.str.contains("[동리가] "), pre)
    ahead = where(pl.col("road_pre").str.len_bytes() > apart, pre).str.replace(road.LAST_WORD, "")
    return frame.with_columns(_before_road=words.str.extract("^(.*) [^ ]+$"), _ahead=ahead).drop("_pre")


_LEFT: Final = ("rest", "_body", "_town", "_tail", "road", "road_pre", "under", "main", "sub", "lot_main", "emd", "ri")
_FILLED: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(("road", "road_pre", "emd", "ri", "_tail", "loose_road"), pl.String),
    **dict.fromkeys(("main", "sub", "loose_main", "loose_sub"), pl.UInt32),
    "under": pl.UInt8,
}


def _read_unnumbered(frame: pl.LazyFrame) -> pl.LazyFrame:
    # names without a number, or words before a bare one (`loose_*`)
    left = pl.col("road").is_null() & pl.col("lot_main").is_null()
    loose = {name: pl.lit(None, dtype) for name, dtype in _FILLED.items() if name.startswith("loose_")}
    return (
        frame.with_columns(**loose)
        .pipe(fill_few, left, lambda rows: lot.read_loose(lot.read_named(road.read_bare(rows))), _LEFT, _FILLED)
        .with_columns(emd=pl.coalesce("emd", "_town"), _tail=pl.coalesce("_tail", "rest"))
    )


def _kind() -> pl.Expr:
    numbered = pl.col("main").is_not_null() | pl.col("lot_main").is_not_null()
    left = pl.when(~numbered & (pl.col("address").str.len_bytes() <= MOST_BYTES)).then("address")
    rules = {"po_box": left.str.contains(_PO_BOX), "english": left.str.contains(_ENGLISH)}
    return first_code(rules | {"korean": pl.col("text").is_not_null()}, "none")
