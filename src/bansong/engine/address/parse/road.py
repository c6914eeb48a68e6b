"""The road form of an address: ``[읍|면] 도로명 [지하|공중] 본번[-부번]``."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address.batches import fill_few, with_groups
from bansong.engine.address.parse.forms import (
    AFTER_NUMBER,
    BRANCHING,
    DOOR,
    FLOOR_OR_HOUSE,
    NOT_A_NUMBER,
    NUMBER,
    read_usual_road,
    take_numbers_back,
)
from bansong.engine.address.parse.normalise import compact

_BRANCH: Final = rf"(?: ?제?[0-9]{{1,4}}(?:{BRANCHING}|로| 번?길))*"
_NAME: Final = rf"(?:로|길|거리){_BRANCH}"
_UNDER: Final = r"(?: ?(지하|공중))? ?"
_NUMBERED: Final = rf"^(.*?{_NAME}){_UNDER}{NUMBER}(.*)$"
_NUMBERED_IN_BRACKETS: Final = rf"(?:^|[ ,/:(])([^ ,/:(]+{_NAME}){_UNDER}{NUMBER}(?:번지?)?(?:[ ,/)]|$)"
_BEHIND_BLOCK: Final = (
    r"^(.*?[가-힣]로) ?([0-9])(가[ ,]+(?:[0-9-]+(?:번지)?[ ,]+)?[^0-9].*(?:로|길) ?(?:지하|공중)? ?[0-9].*)$"
)
_NUMBERED_BEHIND: Final = rf"^(.*?로[0-9]가.*?{_NAME}){_UNDER}{NUMBER}(.*)$"
_AFTER_COMMA: Final = "^([0-9]{1,5})(?:-([0-9]{1,5}))?(,.*)?$"
_BARE: Final = (
    rf"^((?:[^ ,]+[읍면] ?)?(?:[^ ,]+[동리] )?[가-힣0-9][^ ,]*?(?:로|길|거리)"
    rf"(?: ?제?[0-9]{{1,4}}{BRANCHING})?)(?:[ ,.]+(.*))?$"
)
_JOINED: Final = rf"(?:대로|로|길|거리|제?[0-9]+{BRANCHING}|[0-9]+로)"
LAST_WORD: Final = (
    rf"(?:^|[ ,/:])((?:[^ ,/:]*[^ ,/:읍면리가시도군구동] [0-9]+[가-힣][^ ,/:]*|[^ ,/:]+)(?: {_JOINED})*{_BRANCH})$"
)
"""The name of the road at the end of the words before a number: 만남 1북로, 정부 2청사로."""
_NUMBERED_NAME: Final = "[읍면] ([0-9]{1,2}번[가-힣]{2,6}길)$"  # 왜관읍 2번도로길: a name of its own, not a branch
_CORNER: Final = "[읍면] ?[^ ]*거리$"  # villages (삼거리, 문거리); roads named 거리 are in towns
_TOWN: Final = "^([가-힣]{1,6}[읍면]) "
_ROAD: Final = "((?:[^내대로길]|내[^로길]|대[^로]).+)"  # what can follow 읍 or 면: not the end of 읍내길 or 남면로
_JOINED_TOWN: Final = f"^([가-힣&&[^면]]{{1,4}}?읍){_ROAD}$"
_JOINED_TOWNSHIP: Final = f"^([가-힣]{{1,4}}?면){_ROAD}$"


def read_road(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``road``, ``road_pre``, ``under``, ``main``, ``sub``, ``_town`` and ``_tail`` (the text after the number).

    Reads ``rest``, the address after its region and without brackets, or else ``brackets``. Columns are null if there
    is none; a road without a number is left to `read_bare`.
    """
    maybe = pl.col("rest").str.contains("[로길리]") | pl.col("brackets").is_not_null()
    unread = pl.col("road").is_null() & ~pl.col("_lot") & maybe
    return (
        read_usual_road(frame)
        .with_columns(_aside=pl.lit(False))
        .pipe(fill_few, unread, _read_unusual, ("rest", "brackets", "_body"), _FILLED)
    )


_FILLED: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(("_pre", "_town", "road", "road_pre", "_tail"), pl.String),
    **{"under": pl.UInt8, "main": pl.UInt32, "sub": pl.UInt32, "_aside": pl.Boolean},
}


def _read_unusual(frame: pl.LazyFrame) -> pl.LazyFrame:
    maybe = pl.when(pl.col("rest").str.contains("[로길리]")).then("rest")
    return (
        with_groups(frame, maybe, _NUMBERED, *_FOUND)
        .pipe(_without_false_numbers)
        .pipe(_behind_block)
        .pipe(_with_name)
        .pipe(_with_numbers)
    )


def read_bare(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Fill ``road``, ``road_pre`` and ``_tail`` from a road without a number, if no lot is given.

    ``서초대로50길, 18, 5층`` has its number after a comma.
    """
    left = pl.col("road").is_null() & pl.col("lot_main").is_null()
    rest = pl.when(left & pl.col("rest").str.contains("[로길리]")).then("rest")
    block = pl.col("_rest").str.contains("[가-힣] ?[0-9](?:[.·,]?[0-9])*가(?:동|[^길]|$)")
    return (
        frame.with_columns(_rest=rest)
        .pipe(with_groups, pl.when(~block).then("_rest"), _BARE, "_pre", "_behind")
        .with_columns(_last=pl.col("_pre").str.extract(LAST_WORD))
        .with_columns(_named=pl.col("_last").str.len_chars() > 1)
        .with_columns(_pre=pl.when("_named").then("_pre"), _last=pl.when("_named").then("_last"))
        .pipe(_with_town)
        .pipe(with_groups, pl.when("_named").then("_behind"), _AFTER_COMMA, "_main", "_sub", "_after")
        .with_columns(
            under=pl.coalesce("under", pl.when(pl.col("_main").is_not_null()).then(pl.lit(0, pl.UInt8))),
            main=pl.coalesce("main", pl.col("_main").cast(pl.UInt32)),
            sub=pl.coalesce(
                "sub", pl.when(pl.col("_main").is_not_null()).then(pl.col("_sub").cast(pl.UInt32).fill_null(0))
            ),
            _behind=pl.when(pl.col("_main").is_not_null()).then("_after").otherwise("_behind"),
            emd=pl.coalesce("emd", "_town"),
            road=pl.coalesce("road", compact(pl.col("_last"))),
            road_pre=pl.coalesce("road_pre", compact(pl.col("_pre"))),
        )
        .with_columns(
            _tail=pl.when(pl.col("_pre").is_not_null()).then(pl.col("_behind").fill_null("")).otherwise("_tail")
        )
        .drop("_rest", "_pre", "_behind", "_last", "_named", "_main", "_sub", "_after")
    )


def _behind_block(frame: pl.LazyFrame) -> pl.LazyFrame:
    # a dong that looks like a road: 을지로 3가 을지로 100
    block = pl.when(pl.col("_false_tail").str.contains("^가[ ,]")).then("rest")
    joined = pl.when(block.str.contains(_BEHIND_BLOCK)).then(block).str.replace(_BEHIND_BLOCK, "$1$2$3")
    again = [f"_again{name}" for name in _FOUND]
    number = ~pl.col("_again_tail").str.contains(NOT_A_NUMBER)
    return (
        with_groups(frame, joined, _NUMBERED_BEHIND, *again)
        .with_columns(
            pl.coalesce(name, pl.when(number).then(other)).alias(name)
            for name, other in zip(_FOUND, again, strict=True)
        )
        .drop(*again, "_false_tail")
    )


def _without_false_numbers(frame: pl.LazyFrame) -> pl.LazyFrame:
    # also units written as the second part of a number
    tail, sub = pl.col("_tail"), pl.col("_sub")
    door = tail.str.contains(DOOR)
    block = (pl.col("_main").str.len_chars() == 1) & tail.str.contains("^가[^길]")
    false = sub.is_null() & (tail.str.contains(NOT_A_NUMBER) | door | block)
    false = false | pl.col("_pre").str.contains(_CORNER)
    unit = sub.is_not_null() & (tail.str.contains(FLOOR_OR_HOUSE) | (door & (sub.str.len_chars() >= 3)))
    frame = frame.with_columns(_false_tail=pl.when(false).then(tail))
    return take_numbers_back(frame, false, unit, ("_pre", "_under", "_main", "_sub"), "_tail")


_FOUND: Final = ("_pre", "_under", "_main", "_sub", "_tail")


def _with_name(frame: pl.LazyFrame) -> pl.LazyFrame:
    # brackets are used if the text has no road
    bracketed = pl.when(pl.col("_pre").is_null() & pl.col("brackets").str.contains("[로길] ?(?:지하)? ?[0-9]"))
    aside = pl.col("_pre").is_null() & pl.col("_inner_pre").is_not_null()
    inner = ("_inner_pre", "_inner_under", "_inner_main", "_inner_sub")
    return (
        with_groups(frame, bracketed.then("brackets"), _NUMBERED_IN_BRACKETS, *inner)
        .with_columns(_aside=aside)
        .with_columns(pl.coalesce(name, f"_inner{name}").alias(name) for name in ("_pre", "_under", "_main", "_sub"))
        .with_columns(_last=pl.coalesce(pl.col("_pre").str.extract(p) for p in (_NUMBERED_NAME, LAST_WORD)))
        .drop(inner)
        .with_columns(_town=pl.lit(None, pl.String))
        .pipe(_with_town)
    )


def _with_town(frame: pl.LazyFrame) -> pl.LazyFrame:
    # `서면문화로` is a road: a 면 without a space is split off only if there is no space before it either
    pre = pl.col("_pre")
    joined = pl.when(~pre.str.contains(" ", literal=True))
    crowded = ~pl.col("_body").str.ends_with(pl.concat_str(pl.lit(" "), pl.col("rest"))) & (
        pl.col("_body") != pl.col("rest")
    )
    return (
        frame.with_columns(_spaced=pre.str.extract(_TOWN))
        .pipe(with_groups, joined.then("_last"), _JOINED_TOWN, "_town_a", "_road_a")
        .pipe(with_groups, joined.then(pl.when(crowded).then("_last")), _JOINED_TOWNSHIP, "_town_b", "_road_b")
        .with_columns(
            _town=pl.coalesce("_town", "_spaced", "_town_a", "_town_b"),
            _last=pl.coalesce("_road_a", "_road_b", "_last"),
        )
        .drop("_spaced", "_town_a", "_road_a", "_town_b", "_road_b")
    )


def _with_numbers(frame: pl.LazyFrame) -> pl.LazyFrame:
    named = pl.col("_last").is_not_null()
    under = pl.when(pl.col("_under") == "지하").then(1).when(pl.col("_under") == "공중").then(2).otherwise(0)
    return frame.with_columns(
        road=compact(pl.col("_last")),
        road_pre=compact(pl.col("_pre")),
        under=pl.when(named).then(under).cast(pl.UInt8),
        main=pl.when(named).then(pl.col("_main").cast(pl.UInt32)),
        sub=pl.when(named).then(pl.col("_sub").cast(pl.UInt32).fill_null(0)),
        _tail=pl.col("_tail").str.replace(AFTER_NUMBER, ""),
    ).drop("_last", "_under", "_main", "_sub")
