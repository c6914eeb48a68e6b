"""Spellings that the readings do not know, rewritten as ones that they know; done for the few rows that have them.

``서울특별시, 강남구, 테헤란로, 152``, ``보통리-100번지``, ``원동(763-3)``, ``원동 3통 2반 764``, ``152번지의 3``,
``(명동 1가)``. Of an address that tells of a move the new one is taken, where it is plain which one that is.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.parse.few import for_few
from bizverify.engine.address.parse.text import PROVINCES, with_groups

_LOT: Final = "(?:산 ?)?[0-9]{1,4}(?:-[0-9]{1,4})?(?: ?번지(?: ?[0-9]{1,4} ?호)?)?"
_DONG: Final = "[가-힣][0-9]{0,2}[동리]|[가-힣] ?[0-9]가"
_TO_DONG: Final = rf"[^0-9(]*(?:{_DONG})"
_ARROW: Final = "(?:→|⇒|➔|➜|➡|▶|►|[-=]+[>)])"  # of -> the uniform text makes -)
_MOVED: Final = (
    "(?:^|[^가-힣]|[로서지실점장소])이전(?:[^가-힣]|$|함|됨|완료|예정|했|하였|되었|된|한 |주소|지(?:[^가-힣]|$))"
)
_OF_NAME: Final = "이전 ?(?:상호|회사|업체|명칭|이름|대표|건물명)"
"""What was before is a name, and not the address."""
_GONE: Final = "로 ?이사(?:[^가-힣]|$|함|했|하였|감|갔)"

_COMMAS: Final = rf"^(?:[가-힣]+,? )?(?:(?:{PROVINCES})[가-힣]{{0,5}}|[가-힣]+[시군구]) ?, ?[가-힣]"
_TO_NUMBER: Final = "^(.*?[로길동리가])([ ,]+산?[0-9].*)$"
_PROVINCE: Final = rf"(?:{PROVINCES})(?:특별자치[시도]|특별시|광역시|시|도)?"
_BEHIND_REGION: Final = (
    rf"(?:(?:{_PROVINCE}|[가-힣]{{1,4}}[시군구])[ ,]+)+(?:[가-힣]{{1,6}}[읍면] ?)?[가-힣]*(?:{_DONG})"
)
_TIED: Final = rf"^({_BEHIND_REGION}) ?- ?(산?[0-9].*)$"
_ENCLOSED: Final = rf"^({_BEHIND_REGION}) ?\(({_LOT})\)(.*)$"
_WITH_ROAD: Final = "(?:로|길) ?(?:지하 ?)?[0-9]"
"""The number beside a name, ``홍길동(8279)``, is no lot's: neither before the region nor where a road is written."""
_WARD: Final = "제? ?[0-9]{1,3} ?통(?: ?제? ?[0-9]{1,3} ?반)?|제? ?[0-9]{1,3} ?반"
"""통 and 반, the neighbourhood and its part."""
_BEHIND_WARD: Final = rf"^({_TO_DONG}) ?({_WARD})[ ,]+({_LOT})([ ,(].*)?$"
_OF: Final = r"([0-9]) ?번지 ?(?:의 ?([0-9]{1,4})|- ?([0-9]{1,2}))(?: ?호)?([ ,()]|$)"
_OF_ROAD: Final = "([로길] ?[0-9]{1,5}) ?번지 ?([0-9]{1,2}) ?호([ ,(]|$)"
_BLOCK: Final = r"(\([가-힣]{1,5}) ([0-9]가[ ,)])"
_DOUBLED: Final = "(?:" + "|".join(f"([가-힣]{n}가) {n}가" for n in range(1, 10)) + ")([ ,)]|$)"
_ONCE: Final = "".join(f"${{{group}}}" for group in range(1, 11))

_FEW: Final = "|".join(
    [
        _COMMAS,
        "(?:동|리|[0-9]가) ?[-(] ?산? ?[0-9]",
        "[통반][ ,]+산? ?[0-9]",
        "[0-9] ?번지 ?(?:의|-|[0-9]{1,2} ?호)",
        r"\([가-힣]{1,5} [0-9]가",
        "[0-9]가 [0-9]가",
        _ARROW,
        "이전|로 ?이사",
    ]
)

_NUMBERED: Final = "(?:[로길리가]|[^0-9]동) ?(?:산|지하)? ?[0-9]"
_REGION: Final = rf"(?:(?:{PROVINCES})[가-힣]*|[가-힣]{{2,4}}[시군구]) "
_NEW: Final = rf"({_REGION}.*{_NUMBERED}.*?)"
_DONE: Final = r"이[전사](?:함|됨|완료|했음|하였음|하였습니다|했습니다)?[ .]*"
_PLACE: Final = r"(?:[가-힣]{1,6}[읍면] ?)?[가-힣0-9·]*(?:로|길|동|리|[0-9]가)(?: ?[0-9]+번?[가-힣]?길)?"
_UNITS: Final = "(?:[ ,]*(?:번지|(?:지하 ?|제 ?)?[0-9-]+ ?(?:층|호|동)))*"
_OLD: Final = rf"((?:(?:{_PROVINCE}|[가-힣]{{1,4}}[시군구]) )+{_PLACE} ?(?:산 ?|지하 ?)?[0-9]+(?:-[0-9]+)?{_UNITS})"
"""An address and nothing else: a name beside the old address would be lost with it."""
_FROM_TO: Final = rf"^{_OLD}[ ,]*에서[ ,]+{_NEW} ?(?:으|\(으\) ?)?로 ?{_DONE}$"
_POINTED: Final = rf"^{_OLD}[ ,]*{_ARROW} ?{_NEW}$"
_TWO: Final = rf"{_NUMBERED}.*{_ARROW}.*{_NUMBERED}"


def read(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Rewrite ``_peeled``; add ``moved_from`` (String), the old address that was left out of it.

    It is "" where a move is told of, but not plainly from where to where, and null where none is.
    """
    added = {"_respelled": pl.String, "moved_from": pl.String}
    return (
        frame.pipe(for_few, pl.col("_peeled").str.contains(_FEW), _rewritten, ("_peeled",), added)
        .with_columns(_peeled=pl.coalesce("_respelled", "_peeled"))
        .drop("_respelled")
    )


def _rewritten(frame: pl.LazyFrame) -> pl.LazyFrame:
    text = pl.col("_respelled")
    return (
        frame.pipe(_after_move)
        .with_columns(_respelled=_without_commas(text))
        .with_columns(_respelled=_with_lot_apart(text))
        .with_columns(_respelled=text.str.replace(_BEHIND_WARD, "$1 $3, $2$4"))
        .with_columns(_respelled=text.str.replace(_OF, "$1-$2$3$4").str.replace(_OF_ROAD, "$1-$2$3"))
        .with_columns(_respelled=text.str.replace(_BLOCK, "$1$2").str.replace(_DOUBLED, _ONCE))
        .with_columns(_respelled=text.str.replace_all(" {2,}", " ").str.strip_chars(" "))
    )


def _after_move(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``_respelled``, the address that is meant, and ``moved_from``."""
    peeled = pl.col("_peeled")
    of_address = peeled.str.replace_all(_OF_NAME, "")
    told = pl.any_horizontal(of_address.str.contains(pattern) for pattern in (_MOVED, _GONE, _TWO))
    return (
        frame.pipe(with_groups, peeled, _FROM_TO, "_old", "_new")
        .pipe(with_groups, pl.when(peeled.str.count_matches(_ARROW) == 1).then(peeled), _POINTED, "_left", "_right")
        .with_columns(_respelled=pl.coalesce("_new", "_right", "_peeled"))
        .with_columns(moved_from=pl.coalesce("_old", "_left", pl.when(told).then(pl.lit(""))))
    )


def _with_lot_apart(text: pl.Expr) -> pl.Expr:
    """Return the text with a blank between a dong and the lot that is tied to it or stands in brackets."""
    apart = text.str.replace(_TIED, "$1 $2").str.replace(_ENCLOSED, "$1 $2 $3")
    return pl.when(text.str.contains(_WITH_ROAD)).then(text).otherwise(apart)


def _without_commas(text: pl.Expr) -> pl.Expr:
    """Return the text without commas between the words up to the number, where one follows the province."""
    separated = text.str.contains(_COMMAS)
    parts = text.str.extract_groups(_TO_NUMBER).struct
    joined = parts[0].str.replace_all(" ?, ?", " ") + " " + parts[1].str.strip_chars_start(" ,")
    return pl.when(separated & joined.is_not_null()).then(joined).otherwise(text)
