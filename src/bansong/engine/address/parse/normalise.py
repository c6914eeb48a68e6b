"""Uniform text of an address: characters, postal code, spellings.

:func:`normalise` makes the characters uniform and takes the postal code out. :func:`rewrite_spellings` rewrites a few
spellings that the readers do not know: ``서울특별시, 강남구, 테헤란로, 152``, ``보통리-100번지``, ``원동(763-3)``,
``원동 3통 2반 764``, ``152번지의 3``, ``(명동 1가)``. Of an address that plainly states a move the new one is taken.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address.batches import for_few, where, with_groups
from bansong.engine.text_values import is_blank, is_masked, postal_digits

MAX_CHARS: Final = 300
"""Longer addresses are not read."""

MOST_BYTES: Final = 4000  # decomposed Hangul takes nine bytes a syllable; longer texts exceed MAX_CHARS
_ODD: Final = r"[^가-힣0-9A-Za-z ,.()\-]"
_DASHES: Final = "‐‑‒–—―−﹣－─━ㅡ"
_DOTS: Final = "ㆍ・‧•∙⋅･"
_OPENING: Final = "[{<〈《「『【〔〖［｛＜（"
_CLOSING: Final = "]}>〉》」』】〕〗］｝＞）"
_QUOTES: Final = "\"'`´‘’“”＂＇"
_UNIFORM: Final[dict[str, str]] = {
    **dict.fromkeys(_DASHES, "-"),
    **dict.fromkeys(_DOTS, "·"),
    **dict.fromkeys(_OPENING, "("),
    **dict.fromkeys(_CLOSING, ")"),
    **dict.fromkeys(_QUOTES, ""),
}
_OF_WEB: Final = r"(?i)<br ?/?>|&nbsp;?|&#(?:160|xa0);"
_NAMED_OF_WEB: Final = {
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&#39;": "'",
    "&#40;": "(",
    "&#41;": ")",
    "&middot;": "·",
}
_INVISIBLE: Final = r"[\p{Cf}\p{Co}\x00-\x08\x0e-\x1f\x7f\x{FE00}-\x{FE0F}]"
HIDDEN: Final = r"\x{E000}-\x{E003}"
"""Private characters, for brackets that are part of a name or hold a unit (see `brackets`)."""
_BETWEEN: Final = f"[ .·,/:{HIDDEN}]"
_LABEL: Final = r"^(?:도로명|지번|신|구|새|사업장|본점|본사)? ?(?:주소지?|소재지|도로명|지번) ?: ?"

PROVINCES: Final = "서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충청?[남북]|전라?[남북]|경상?[남북]|제주"
"""Beginnings of the names of provinces."""

_FIVE: Final = "^[0-9]{5}$"
_MAYBE_POSTAL: Final = "[0-9]{5}|[0-9]{3}-[0-9]{3}"
_WORD: Final = r"(?:\(? ?(?:우편번호|우|〒)\)? ?[:.]? ?)"
_CODE: Final = "(?:([0-9]{5})|[0-9]{3}-[0-9]{3}|[0-9]{6})"
_UNSPACED_CODE: Final = (
    rf"^({_WORD}?\(?(?:[0-9]{{5,6}}|[0-9]{{3}}-[0-9]{{3}})\)?)"
    rf"((?:{PROVINCES}).*)$"
)
_POSTAL_HEAD: Final = rf"^{_WORD}?\(?{_CODE}\)?(?:[ ,:)]+(.*))?$"
_POSTAL_TAIL: Final = rf"^(.*[0-9].*?)(?:[ ,]*{_WORD}\(?|[ ,]*\(){_CODE} ?\)*$"
_POSTAL_BARE_TAIL: Final = rf"^(.*(?:[ 가-힣][0-9][0-9-]*(?:번지|호|층)?|[로길동리가] ?[0-9].*\)),? ){_CODE}$"


def normalise(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the uniform text of ``address`` and what is taken out of it.

    ``text`` (String: NFKC, single spaces, round brackets, plain dashes, no quotes; null if the address is blank,
    masked, longer than 300 characters or without Hangul), ``zipcode_inside`` and ``zipcode_given`` (String: five digits
    or null) and ``_peeled`` (String: the text without postal code).
    """
    return frame.pipe(_uniform).pipe(_without_postal_code)


def compact(text: pl.Expr) -> pl.Expr:
    """Return a text without spaces, dots, commas, slashes, colons and hidden brackets."""
    odd = where(text.str.contains(_BETWEEN), text)
    return pl.coalesce(odd.str.replace_all(_BETWEEN, ""), text)


def _uniform(frame: pl.LazyFrame) -> pl.LazyFrame:
    # one step a column: polars computes an expression for each place that uses it
    address, plain, text = pl.col("address"), pl.col("_plain"), pl.col("text")
    spaced = where(text.str.contains("  ", literal=True), text).str.replace_all(" {2,}", " ")
    readable = (text.str.len_chars() <= MAX_CHARS) & text.str.contains("[가-힣]") & ~is_blank(text) & ~is_masked(plain)
    return (
        frame.with_columns(_plain=pl.when(address.str.len_bytes() <= MOST_BYTES).then(address))
        .pipe(for_few, plain.str.contains(_ODD), _without_odd, ("_plain",), {"_odd": pl.String})
        .with_columns(text=pl.coalesce("_odd", "_plain").str.strip_chars(" "))
        .with_columns(_spaced=spaced)
        .with_columns(text=pl.coalesce("_spaced", "text"))
        .with_columns(text=pl.when(readable).then("text"))
        .drop("_plain", "_odd", "_spaced")
    )


def _without_odd(frame: pl.LazyFrame) -> pl.LazyFrame:
    plain, odd = pl.col("_plain"), pl.col("_odd")
    of_web = pl.when(plain.str.contains("[<&]")).then(plain).str.replace_all(_OF_WEB, " ")
    of_web = of_web.str.replace_many(list(_NAMED_OF_WEB), list(_NAMED_OF_WEB.values()))
    uniform = odd.str.replace_many(list(_UNIFORM), list(_UNIFORM.values())).str.normalize("NFKC")
    return frame.with_columns(_odd=pl.coalesce(of_web, plain)).with_columns(
        _odd=uniform.str.replace_all(r"\s", " ").str.replace_all(_INVISIBLE, "")
    )


def _without_postal_code(frame: pl.LazyFrame) -> pl.LazyFrame:
    text, peeled, written = pl.col("text"), pl.col("_peeled"), pl.col("_written")
    odd = pl.when(~written.str.contains(_FIVE)).then(written).str.normalize("NFKC").str.strip_chars(" \t'’‘")
    added = {"zipcode_inside": pl.String, "_without": pl.String}
    return (
        frame.with_columns(_written=pl.col("zipcode"))
        .pipe(for_few, text.str.contains(_MAYBE_POSTAL), _read_postal_code, ("text",), added)
        .with_columns(_written=pl.coalesce(postal_digits(odd), written), _peeled=pl.coalesce("_without", "text"))
        .with_columns(
            zipcode_given=pl.coalesce(pl.when(written.str.contains(_FIVE)).then(written), "zipcode_inside"),
            _peeled=pl.coalesce(where(peeled.str.contains(":", literal=True), peeled).str.replace(_LABEL, ""), peeled),
        )
        .drop("_written", "_without")
    )


def _read_postal_code(frame: pl.LazyFrame) -> pl.LazyFrame:
    coded = pl.col("_coded")
    return (
        frame.with_columns(_coded=pl.col("text").str.replace(_UNSPACED_CODE, "$1 $2"))
        .pipe(with_groups, coded, _POSTAL_HEAD, "_zip_head", "_after_head")
        .pipe(with_groups, coded, _POSTAL_TAIL, "_before_tail", "_zip_tail")
        .pipe(with_groups, coded, _POSTAL_BARE_TAIL, "_before_bare", "_zip_bare")
        .with_columns(
            zipcode_inside=pl.coalesce("_zip_head", "_zip_tail", "_zip_bare"),
            _without=pl.coalesce("_after_head", "_before_tail", "_before_bare"),
        )
    )


_LOT: Final = "(?:산 ?)?[0-9]{1,4}(?:-[0-9]{1,4})?(?: ?번지(?: ?[0-9]{1,4} ?호)?)?"
_DONG: Final = "[가-힣][0-9]{0,2}[동리]|[가-힣] ?[0-9]가"
_TO_DONG: Final = rf"[^0-9(]*(?:{_DONG})"
_ARROW: Final = "(?:→|⇒|➔|➜|➡|▶|►|[-=]+[>)])"  # of -> the uniform text makes -)
_MOVED: Final = (
    "(?:^|[^가-힣]|[로서지실점장소])이전(?:[^가-힣]|$|함|됨|완료|예정|했|하였|되었|된|한 |주소|지(?:[^가-힣]|$))"
)
_OF_NAME: Final = "이전 ?(?:상호|회사|업체|명칭|이름|대표|건물명)"  # a former name, not a former address
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

_TO_REWRITE: Final = "|".join(
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


def rewrite_spellings(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Rewrite ``_peeled``; add ``moved_from`` (String), the old address that was left out of it.

    It is "" for an unclear move, and null without one.
    """
    added = {"_respelled": pl.String, "moved_from": pl.String}
    return (
        frame.pipe(for_few, pl.col("_peeled").str.contains(_TO_REWRITE), _rewrite, ("_peeled",), added)
        .with_columns(_peeled=pl.coalesce("_respelled", "_peeled"))
        .drop("_respelled")
    )


def _rewrite(frame: pl.LazyFrame) -> pl.LazyFrame:
    text = pl.col("_respelled")
    return (
        frame.pipe(_take_new_address)
        .with_columns(_respelled=_without_commas(text))
        .with_columns(_respelled=_with_lot_apart(text))
        .with_columns(_respelled=text.str.replace(_BEHIND_WARD, "$1 $3, $2$4"))
        .with_columns(_respelled=text.str.replace(_OF, "$1-$2$3$4").str.replace(_OF_ROAD, "$1-$2$3"))
        .with_columns(_respelled=text.str.replace(_BLOCK, "$1$2").str.replace(_DOUBLED, _ONCE))
        .with_columns(_respelled=text.str.replace_all(" {2,}", " ").str.strip_chars(" "))
    )


def _take_new_address(frame: pl.LazyFrame) -> pl.LazyFrame:
    peeled = pl.col("_peeled")
    of_address = peeled.str.replace_all(_OF_NAME, "")
    moved = pl.any_horizontal(of_address.str.contains(pattern) for pattern in (_MOVED, _GONE, _TWO))
    return (
        frame.pipe(with_groups, peeled, _FROM_TO, "_old", "_new")
        .pipe(with_groups, pl.when(peeled.str.count_matches(_ARROW) == 1).then(peeled), _POINTED, "_left", "_right")
        .with_columns(_respelled=pl.coalesce("_new", "_right", "_peeled"))
        .with_columns(moved_from=pl.coalesce("_old", "_left", pl.when(moved).then(pl.lit(""))))
    )


def _with_lot_apart(text: pl.Expr) -> pl.Expr:
    # a lot that is tied to the dong or in brackets
    apart = text.str.replace(_TIED, "$1 $2").str.replace(_ENCLOSED, "$1 $2 $3")
    return pl.when(text.str.contains(_WITH_ROAD)).then(text).otherwise(apart)


def _without_commas(text: pl.Expr) -> pl.Expr:
    separated = text.str.contains(_COMMAS)
    parts = text.str.extract_groups(_TO_NUMBER).struct
    joined = parts[0].str.replace_all(" ?, ?", " ") + " " + parts[1].str.strip_chars_start(" ,")
    return pl.when(separated & joined.is_not_null()).then(joined).otherwise(text)
