"""The road or the lot of an address, with its number."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address.batches import fill_few, for_few, where, with_groups
from bansong.engine.address.words import (
    AFTER_NUMBER,
    ANNEXES,
    BRANCHING,
    COMPLEXES,
    DOOR,
    FLOOR_OR_HOUSE,
    HIDDEN,
    NOT_A_NUMBER,
    NUMBER,
    ROAD_LIKE_DONGS,
    compact,
    take_numbers_back,
)

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
LAST_WORD: Final = (  # the name of the road at the end of the words before a number: 만남 1북로, 정부 2청사로
    rf"(?:^|[ ,/:])((?:[^ ,/:]*[^ ,/:읍면리가시도군구동] [0-9]+[가-힣][^ ,/:]*|[^ ,/:]+)(?: {_JOINED})*{_BRANCH})$"
)
_NUMBERED_NAME: Final = "[읍면] ([0-9]{1,2}번[가-힣]{2,6}길)$"  # 왜관읍 2번도로길: a name of its own, not a branch
_CORNER: Final = "[읍면] ?[^ ]*거리$"  # villages (삼거리, 문거리); roads named 거리 are in towns
_TOWN: Final = "^([가-힣]{1,6}[읍면]) "
_ROAD: Final = "((?:[^내대로길]|내[^로길]|대[^로]).+)"  # what can follow 읍 or 면: not the end of 읍내길 or 남면로
_JOINED_TOWN: Final = f"^([가-힣&&[^면]]{{1,4}}?읍){_ROAD}$"
_JOINED_TOWNSHIP: Final = f"^([가-힣]{{1,4}}?면){_ROAD}$"


def read_road(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Read a road from ``rest``, else ``brackets``: add its columns, ``_town``, and ``_tail`` (after the number)."""
    maybe = pl.col("rest").str.contains("[로길리]") | pl.col("brackets").is_not_null()
    read = for_few(frame, maybe, _read_anywhere, ("rest", "brackets", "_body"), _ROAD_COLUMNS)
    return read.with_columns(pl.col("_aside").fill_null(False))


_ROAD_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(("_pre", "_town", "road", "road_pre", "_tail"), pl.String),
    **{"under": pl.UInt8, "main": pl.UInt32, "sub": pl.UInt32, "_aside": pl.Boolean},
}


def _read_anywhere(frame: pl.LazyFrame) -> pl.LazyFrame:
    maybe = pl.when(pl.col("rest").str.contains("[로길리]")).then("rest")
    return (
        with_groups(frame, maybe, _NUMBERED, *_FOUND)
        .pipe(_without_false_numbers)
        .pipe(_behind_block)
        .pipe(_with_name)
        .pipe(_with_numbers)
    )


def read_bare(frame: pl.LazyFrame) -> pl.LazyFrame:
    """If no road or lot was found, read a road without number, or with it after a comma (``서초대로50길, 18``)."""
    left = pl.col("road").is_null() & pl.col("lot_main").is_null()
    rest = pl.when(left & pl.col("rest").str.contains("[로길리]")).then("rest")
    numbered = pl.when(pl.col("_main").is_not_null())
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
            under=pl.coalesce("under", numbered.then(pl.lit(0, pl.UInt8))),
            main=pl.coalesce("main", pl.col("_main").cast(pl.UInt32)),
            sub=pl.coalesce("sub", numbered.then(pl.col("_sub").cast(pl.UInt32).fill_null(0))),
            _behind=numbered.then("_after").otherwise("_behind"),
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


_BLOCK: Final = r"[가-힣] ?[0-9](?:[.·,]?[0-9])*가(?: ?제?[0-9]{1,2}동|동)?"  # 성수2가3동
_DONG: Final = rf"(?:{_BLOCK}|동(?: ?[0-9]{{1,2}}리)?|리|읍|면)"
_NUMBERED_LOT: Final = rf"^(.*?{_DONG})(?: ?(산)(?:번지)?)?[ ,]*{NUMBER}(.*)$"
STRICT_LOT: Final = (
    r"(?:^|[ ,/:(])([가-힣]{1,6}[0-9]{0,2}(?:동|리)|[가-힣]{1,6}[0-9]가)(?: ?(산) ?| )?([0-9]{1,4})"
    r"(?:-([0-9]{1,4}))?(번지)?(?:[ ,/)]|$)"
)
_LOT_IN_BRACKETS: Final = "^[가-힣]{1,5}(?:동|[0-9]가) ?[0-9]{1,4}(?:번지)?(?:[ ,/]|$)"
_LAST_WORD: Final = (
    r"(?:^|[ ,/:])([^ ,/:]+ [0-9](?:[.·,]?[0-9])*가(?: ?제?[0-9]{1,2}동|동)?|[^ ,/:]+ 제?[0-9]{1,2}[동리]"
    r"|종로1,2,3,4가?동?|[^ ,/:]+)$"
)
_WITH_BLOCK: Final = {"종로1234동": "종로1234가동", "종로56동": "종로56가동"}
_TOWN_OF_LOT: Final = "^(?:.*[ ,/:])?([가-힣]{1,6}[읍면])[ ,]"
_JOINED_TOWN_OF_LOT: Final = "^([가-힣]{1,5}?[읍면])([가-힣]+[0-9]?리)$"
_NO_DONG: Final = (
    r"(?:[^로0-9]|^)[0-9]{3,}동$"
    rf"|(?:[0-9]차|{COMPLEXES})제?[0-9]*[가나다라마바사]?동$"
    rf"|^(?:[^가-힣].*|.*(?:상가|{ANNEXES}))동$"
)
# from 100 up only the plain form: the words of 제101호 or (101호) must stay as written
_HO: Final = (
    r"^ ?번지 ?(?:의 ?([0-9]{1,4})호?|([0-9]{1,4}) ?호)((?:[^실기].*)?)$"
    rf"|^ ?번지[ ,({HIDDEN}]*제? ?([0-9]{{1,2}}) ?호[){HIDDEN}]?((?:[^실기점].*)?)$"
    r"|^ ?번지 ?([0-9]{1,2})$"
)
_NAMED: Final = (
    r"^(?:([가-힣]{1,6}[읍면]) ?)?"
    r"([가-힣][^ ,]*? ?(?:[0-9](?:[.·,]?[0-9])*가동?)|[가-힣][^ ,]*?(?:동|리))(?:[ ,]+(.*))?$"
)
_TOWN_ONLY: Final = "^([가-힣]{1,6}[읍면])(?:[ ,]+(.*))?$"
_LOOSE: Final = r"^(|.*?[^0-9,]),? ?([0-9]{1,5})(?: ?- ?([0-9]{1,5}))?((?:[^0-9가-힣-].*|번지.*)?)$"
_NO_LOOSE: Final = (  # words before a unit's or a plot's number: no road has such a name
    "아파트|아파|빌라|맨션|연립|주공|단지|블[록럭]|지구|사서함|@|[0-9]차|통$|반$|빌딩|타워|오피스텔|상가|센[터타]|[프플]라[자쟈]"
    "|하이츠|맨숀|캐슬|스퀘어|회관|[A-Za-z]-?$"
)


def read_lot(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Read a lot: add its columns; ``_tail`` becomes the text after its number."""
    # beside a road only the strict form counts: a word ending in 동, 리 or N가 and a number that cannot be a unit
    beside = pl.col("road").is_not_null() & _around().str.contains(_NUMBERED_BESIDE).fill_null(False)
    nothing = {name: pl.lit(None, dtype) for name, dtype in _LOT_COLUMNS.items() if name[0] != "_"}
    return (
        frame.with_columns(**nothing | {"emd": pl.col("_town")})
        .pipe(fill_few, _alone() | beside, _read_lot_anywhere, _NEEDED, _LOT_COLUMNS)
        .pipe(_with_road_like)
    )


_NEEDED: Final = ("rest", "road", "_aside", "_town", "_tail", "_ahead", "_before_road", "brackets")
_LOT_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(("emd", "ri", "lot_dong", "_town", "_tail", "_ahead"), pl.String),
    **{"san": pl.UInt8, "lot_main": pl.UInt32, "lot_sub": pl.UInt32, "lot_ho": pl.Boolean},
}


def _alone() -> pl.Expr:
    without_road = pl.col("road").is_null() | pl.col("_aside")
    return without_road & pl.col("rest").str.contains("[동리가읍면]").fill_null(False)


def _read_lot_anywhere(frame: pl.LazyFrame) -> pl.LazyFrame:
    return (
        with_groups(frame, pl.when(_alone()).then("rest"), _NUMBERED_LOT, *_FOUND_OF_LOT, "_behind")
        .with_columns(_word=pl.col("_pre").str.extract(_LAST_WORD))
        .pipe(_without_false_lots)
        .pipe(_with_ho)
        .pipe(_with_second_address)
        .pipe(_with_names)
    )


_FOUND_OF_LOT: Final = ("_pre", "_san", "_main", "_sub")
_STRICTLY: Final = ("_strict_word", "_strict_san", "_strict_main", "_strict_sub", "_strict_lot")


def _without_false_lots(frame: pl.LazyFrame) -> pl.LazyFrame:
    behind, sub, word = pl.col("_behind"), pl.col("_sub"), compact(pl.col("_word"))
    door = behind.str.contains(DOOR)
    false = (sub.is_null() & (behind.str.contains(NOT_A_NUMBER) | door)) | word.str.contains(_NO_DONG)
    unit = sub.is_not_null() & behind.str.contains(FLOOR_OR_HOUSE)
    return take_numbers_back(frame.with_columns(_word=word), false, unit, (*_FOUND_OF_LOT, "_word"), "_behind")


def _with_ho(frame: pl.LazyFrame) -> pl.LazyFrame:
    # 712번지 4호 is 712-4, as lots were written until the eighties
    behind = pl.col("_behind")
    maybe = pl.when(behind.str.contains("^ ?번지") & pl.col("_sub").is_null()).then(behind)
    return (
        with_groups(frame, maybe, _HO, "_of", "_ho", "_after_ho", "_odd_ho", "_after_odd", "_bare_ho")
        .with_columns(
            _ho=pl.coalesce("_ho", "_odd_ho", "_bare_ho"),
            _after_ho=pl.coalesce("_after_ho", "_after_odd", pl.col("_bare_ho").str.head(0)),
        )
        .with_columns(
            _sub=pl.coalesce("_sub", "_of", "_ho"),
            lot_ho=pl.when(pl.col("_main").is_not_null()).then(pl.col("_ho").is_not_null()),
            _tail=pl.coalesce("_tail", "_after_ho", behind.str.replace(f"{AFTER_NUMBER}|^ ?호(?:[ ,0-9]|$)", "")),
        )
        .drop("_of", "_ho", "_after_ho", "_odd_ho", "_after_odd", "_bare_ho", "_behind")
    )


_NUMBERED_BESIDE: Final = "(?:[동리]|[0-9]가) ?산? ?[0-9]"


def _around() -> pl.Expr:
    return pl.concat_str("_before_road", "_tail", "brackets", separator=" , ", ignore_nulls=True)


def _with_second_address(frame: pl.LazyFrame) -> pl.LazyFrame:
    maybe = pl.when(pl.col("_around").str.contains(_NUMBERED_BESIDE)).then("_around")
    word, in_brackets = pl.col("_strict_word"), pl.col("brackets").str.contains(_LOT_IN_BRACKETS).fill_null(False)
    sure = pl.any_horizontal(pl.col("_strict_san", "_strict_sub", "_strict_lot").is_not_null())
    sure = (sure | word.str.ends_with("리") | in_brackets) & ~word.str.contains(_NO_DONG)
    return (
        frame.with_columns(_around=pl.when(pl.col("_pre").is_null() & pl.col("road").is_not_null()).then(_around()))
        .pipe(with_groups, maybe, STRICT_LOT, *_STRICTLY)
        .with_columns(pl.when(sure).then(name).alias(name) for name in _STRICTLY)
        .with_columns(
            *(pl.coalesce(name, f"_strict{name}").alias(name) for name in ("_word", "_san", "_main", "_sub")),
            lot_ho=pl.coalesce("lot_ho", pl.col("_strict_main").is_not_null() & pl.lit(False)),
        )
        .drop("_around", *_STRICTLY)
    )


def _with_road_like(frame: pl.LazyFrame) -> pl.LazyFrame:
    # three 동 end in 로: the gazetteer decides between road and lot
    district = pl.col("sigungu").is_in(["종로구", "중구"]) & pl.col("lot_main").is_null()
    dong = district & pl.col("road").is_in(ROAD_LIKE_DONGS) & (pl.col("under") == 0)
    of_road: dict[str, str | pl.Expr] = {
        "lot_dong": "road",
        "san": "under",
        "lot_main": "main",
        "lot_sub": "sub",
        "lot_ho": pl.lit(False),
    }
    return frame.with_columns(pl.when(dong).then(value).otherwise(name).alias(name) for name, value in of_road.items())


def _with_names(frame: pl.LazyFrame) -> pl.LazyFrame:
    found = pl.when(pl.col("_main").is_not_null())
    return (
        with_groups(frame, pl.col("_word"), _JOINED_TOWN_OF_LOT, "_joined_town", "_joined_ri")
        .with_columns(
            _town=pl.coalesce("_town", pl.col("_pre").str.extract(_TOWN_OF_LOT), "_joined_town"),
            _ahead=pl.coalesce("_ahead", _ahead()),
            _word=pl.coalesce("_joined_ri", "_word").replace(_WITH_BLOCK),
        )
        .with_columns(ri=pl.when(pl.col("_word").str.ends_with("리")).then("_word"))
        .with_columns(
            emd=pl.coalesce("_town", pl.when(pl.col("ri").is_null()).then("_word")),
            lot_dong=found.then("_word"),
            san=found.then(pl.col("_san").is_not_null()).cast(pl.UInt8),
            lot_main=pl.col("_main").cast(pl.UInt32),
            lot_sub=found.then(pl.col("_sub").cast(pl.UInt32).fill_null(0)),
            lot_ho=found.then("lot_ho"),
        )
        .drop("_pre", "_word", "_san", "_main", "_sub", "_joined_town", "_joined_ri")
    )


def _ahead() -> pl.Expr:
    # its town, or a name that was put first
    pre = pl.col("_pre")
    return where(pre.str.len_bytes() > pl.col("_word").str.len_bytes() + 1, pre).str.replace(_LAST_WORD, "")


def read_named(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Fill ``emd`` and ``ri`` from a 동, 리, 읍 or 면 without a number; ``_tail`` becomes the text after it."""
    left = pl.col("road").is_null() & pl.col("lot_main").is_null()
    return (
        with_groups(frame, pl.when(left).then("rest"), _NAMED, "_before", "_word", "_behind")
        .with_columns(_word=compact(pl.col("_word")))
        .with_columns(_named=(~pl.col("_word").str.contains(_NO_DONG)).fill_null(False))
        .with_columns(pl.when("_named").then(name).alias(name) for name in ("_before", "_word", "_behind"))
        .pipe(with_groups, pl.when(left & ~pl.col("_named")).then("rest"), _TOWN_ONLY, "_only", "_after")
        .with_columns(
            ri=pl.coalesce("ri", pl.when(pl.col("_word").str.ends_with("리")).then("_word")),
            _tail=pl.when(pl.col("_named") | pl.col("_only").is_not_null())
            .then(pl.coalesce("_behind", "_after", pl.lit("")))
            .otherwise("_tail"),
        )
        .with_columns(emd=pl.coalesce("emd", "_before", pl.when(pl.col("ri").is_null()).then("_word"), "_only"))
        .drop("_before", "_word", "_behind", "_named", "_only", "_after")
    )


def read_loose(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``loose_road``, ``loose_main``, ``loose_sub``: words before a bare number, if nothing else was read."""
    left = pl.col("road").is_null() & pl.col("lot_main").is_null()
    words = pl.when(left).then(pl.coalesce("_tail", "rest"))
    names = ("_words", "_main", "_sub", "_behind")
    number = ~pl.col("_behind").str.contains(NOT_A_NUMBER) & ~pl.col("_words").str.contains(_NO_LOOSE)
    return (
        with_groups(frame, words, _LOOSE, *names)
        .with_columns(pl.when(number).then(name).alias(name) for name in names)
        .with_columns(
            loose_road=compact(pl.col("_words")),
            loose_main=pl.col("_main").cast(pl.UInt32),
            loose_sub=pl.when(pl.col("_main").is_not_null()).then(pl.col("_sub").cast(pl.UInt32).fill_null(0)),
            _tail=pl.coalesce(pl.col("_behind").str.strip_prefix("번지"), "_tail", "rest"),
        )
        .with_columns(loose_road=pl.when(pl.col("loose_road") != "").then("loose_road"))
        .drop(names)
    )
