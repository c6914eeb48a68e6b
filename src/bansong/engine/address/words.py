"""Normalise the text of an address; patterns of roads and lots."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address.batches import for_few, where, with_groups
from bansong.engine.text import is_blank, is_masked, postal_digits

MAX_CHARS: Final = 300  # longer addresses are not read
MOST_BYTES: Final = 4000  # decomposed Hangul takes nine bytes a syllable; longer texts exceed MAX_CHARS
_ODD: Final = r"[^가-힣0-9A-Za-z ,.()\-]"
_UNIFORM: Final[dict[str, str]] = {
    **dict.fromkeys("‐‑‒–—―−﹣－─━ㅡ", "-"),
    **dict.fromkeys("ㆍ・‧•∙⋅･", "·"),
    **dict.fromkeys("[{<〈《「『【〔〖［｛＜（", "("),
    **dict.fromkeys("]}>〉》」』】〕〗］｝＞）", ")"),
    **dict.fromkeys("\"'`´‘’“”＂＇", ""),
}
_OF_WEB: Final = r"(?i)<br ?/?>|&nbsp;?|&#(?:160|xa0);"
_NAMED_OF_WEB: Final = {
    **{"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"'},
    **{"&#39;": "'", "&#40;": "(", "&#41;": ")", "&middot;": "·"},
}
_INVISIBLE: Final = r"[\p{Cf}\p{Co}\x00-\x08\x0e-\x1f\x7f\x{FE00}-\x{FE0F}]"
HIDDEN: Final = r"\x{E000}-\x{E003}"  # private characters, for brackets that are part of a name or hold a unit
_BETWEEN: Final = f"[ .·,/:{HIDDEN}]"
_LABEL: Final = r"^(?:도로명|지번|신|구|새|사업장|본점|본사)? ?(?:주소지?|소재지|도로명|지번) ?: ?"
# beginnings of the names of provinces
PROVINCES: Final = "서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충청?[남북]|전라?[남북]|경상?[남북]|제주"
_FIVE: Final = "^[0-9]{5}$"
MAYBE_POSTAL: Final = "[0-9]{5}|[0-9]{3}-[0-9]{3}"
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
    """Add ``text`` (NFKC; null if unreadable), ``_peeled`` (no postal code), ``zipcode_inside``, ``zipcode_given``."""
    return frame.pipe(_uniform).pipe(_without_postal_code)


def compact(text: pl.Expr) -> pl.Expr:
    """Return a text without spaces, dots, commas, slashes, colons, and characters that stand for brackets."""
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
        .pipe(for_few, text.str.contains(MAYBE_POSTAL), _read_postal_code, ("text",), added)
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


_LOT_NUMBER: Final = "(?:산 ?)?[0-9]{1,4}(?:-[0-9]{1,4})?(?: ?번지(?: ?[0-9]{1,4} ?호)?)?"
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
_ENCLOSED: Final = rf"^({_BEHIND_REGION}) ?\(({_LOT_NUMBER})\)(.*)$"
# the number beside a name, 홍길동(8279), is no lot's: neither before the region nor where a road is written
_WITH_ROAD: Final = "(?:로|길) ?(?:지하 ?)?[0-9]"
# 통 and 반, the neighbourhood and its part
_WARD: Final = "제? ?[0-9]{1,3} ?통(?: ?제? ?[0-9]{1,3} ?반)?|제? ?[0-9]{1,3} ?반"
_BEHIND_WARD: Final = rf"^({_TO_DONG}) ?({_WARD})[ ,]+({_LOT_NUMBER})([ ,(].*)?$"
_OF: Final = r"([0-9]) ?번지 ?(?:의 ?([0-9]{1,4})|- ?([0-9]{1,2}))(?: ?호)?([ ,()]|$)"
_OF_ROAD: Final = "([로길] ?[0-9]{1,5}) ?번지 ?([0-9]{1,2}) ?호([ ,(]|$)"
_BLOCK: Final = r"(\([가-힣]{1,5}) ([0-9]가[ ,)])"
_DOUBLED: Final = "(?:" + "|".join(f"([가-힣]{n}가) {n}가" for n in range(1, 10)) + ")([ ,)]|$)"
_ONCE: Final = "".join(f"${{{group}}}" for group in range(1, 11))

TO_REWRITE: Final = "|".join(
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

_NUMBERED_PLACE: Final = "(?:[로길리가]|[^0-9]동) ?(?:산|지하)? ?[0-9]"
_REGION: Final = rf"(?:(?:{PROVINCES})[가-힣]*|[가-힣]{{2,4}}[시군구]) "
_NEW: Final = rf"({_REGION}.*{_NUMBERED_PLACE}.*?)"
_DONE: Final = r"이[전사](?:함|됨|완료|했음|하였음|하였습니다|했습니다)?[ .]*"
_PLACE: Final = r"(?:[가-힣]{1,6}[읍면] ?)?[가-힣0-9·]*(?:로|길|동|리|[0-9]가)(?: ?[0-9]+번?[가-힣]?길)?"
_UNITS: Final = "(?:[ ,]*(?:번지|(?:지하 ?|제 ?)?[0-9-]+ ?(?:층|호|동)))*"
# an address and nothing else: a name beside the old address would be lost with it
_OLD: Final = rf"((?:(?:{_PROVINCE}|[가-힣]{{1,4}}[시군구]) )+{_PLACE} ?(?:산 ?|지하 ?)?[0-9]+(?:-[0-9]+)?{_UNITS})"
_FROM_TO: Final = rf"^{_OLD}[ ,]*에서[ ,]+{_NEW} ?(?:으|\(으\) ?)?로 ?{_DONE}$"
_POINTED: Final = rf"^{_OLD}[ ,]*{_ARROW} ?{_NEW}$"
_TWO: Final = rf"{_NUMBERED_PLACE}.*{_ARROW}.*{_NUMBERED_PLACE}"


def rewrite_spellings(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Rewrite odd spellings in ``_peeled``; move an old address to ``moved_from`` (String, "" if it is unclear)."""
    # such as 서울특별시, 강남구, 테헤란로, 152; 보통리-100번지; 원동(763-3); 원동 3통 2반 764; 152번지의 3; (명동 1가)
    added = {"_respelled": pl.String, "moved_from": pl.String}
    return (
        frame.pipe(for_few, pl.col("_peeled").str.contains(TO_REWRITE), _rewrite, ("_peeled",), added)
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


LETTER: Final = "[가나다라마바사아자차카타파하]"
# words after the number of a branch: 12길, 12번길, 12번다길, 69번서길, 126번1길, 87번월촌길, 14남길, 1수2번길
BRANCHING: Final = rf"(?:번[가-힣0-9]{{0,6}}?|{LETTER}|[동서남북상중옆]|[가-힣&&[^층호동]][0-9]{{1,3}}번?)?안?길"
NUMBER: Final = r"([0-9]{1,5})(?: ?[-의] ?([0-9]{1,5}))?"
# words before a 동 that is a house of a complex, not a legal dong
COMPLEXES: Final = "단지|아파트|아파아트|빌라|맨션|맨숀|타운|마을|주공|연립|상가|빌딩"
ANNEXES: Final = "관리|주민|본관|별관|사무|공장|창고|연구|기숙사"  # words before a 동 that is a house by its use
# legal dongs of 서울 종로구 and 대구 중구 named like roads: a number after them may be a lot's
ROAD_LIKE_DONGS: Final = ("세종로", "남성로", "시장북로")
NOT_A_NUMBER: Final = (  # words after digits that are no building or lot number: a floor, `N가`, `N번길`, `N동` …
    r"^(?:[0-9]|가(?:동|[ 0-9,]|$)|(?:[.·,][0-9])+가|(?:[.·][0-9])+동|층|번출구|호선|공구|단지|학년"
    rf"|{BRANCHING}|[동차통반로](?:[ 0-9,.]|$))"
)
DOOR: Final = "^ ?호(?:[ ,0-9]|$)"
FLOOR_OR_HOUSE: Final = "^(?:층|동(?:[ 0-9,]|$))"  # words after the number of a unit
AFTER_NUMBER: Final = "^ ?(?:번지(?: ?[내호](?:[ ,(]|$))?|번(?:[ ,(]|$))"  # words for "number"
_SYLLABLE: Final = "[가-힣&&[^읍면]]"
_WORDS: Final = "|".join(f"{first}[가-힣&&[^읍면{last}]]|{first}{last}{_SYLLABLE}" for first, last in ("거리", "대로"))
# at least two syllables, and more than 거리 or 대로: those may belong to the word before them
_STEM: Final = f"(?:[가-힣&&[^읍면거대]]{_SYLLABLE}|{_WORDS}){_SYLLABLE}*"
_NUMBERED: Final = f"[0-9]{{1,4}}번?{LETTER}?길"
_USUAL_NUMBER: Final = "[0-9]{1,5}(?:-[0-9]{1,5})?"
USUAL_ROAD_NAME: Final = f"{_STEM}(?:(?:로|길)(?:{_NUMBERED})?|{_NUMBERED}|[0-9]{{1,4}}로)"


def take_numbers_back(
    frame: pl.LazyFrame, false: pl.Expr, unit: pl.Expr, found: tuple[str, ...], behind: str
) -> pl.LazyFrame:
    """Set the columns ``found`` to null where ``false``; where ``unit``, move ``_sub`` back to ``behind`` (3 + 층)."""
    is_unit = pl.col("_unit")
    return (
        frame.with_columns(_false=false.fill_null(False), _unit=unit.fill_null(False))
        .with_columns(
            pl.when(is_unit).then(pl.concat_str("_sub", behind)).otherwise(behind).alias(behind),
            _sub=pl.when(~is_unit).then("_sub"),
        )
        .with_columns(pl.when(~pl.col("_false")).then(name).alias(name) for name in (*found, behind))
        .drop("_false", "_unit")
    )


# a region, a road and its number, anywhere in an address: one look at most addresses
USUAL_ROAD: Final = r"[시군구읍면] [가-힣]+(?:로|길)(?:[0-9]{1,4}번?길)? [0-9]{1,5}(?:-[0-9]{1,5})?(?:$|, | \()"
_ROAD_BRANCH: Final = "[0-9]{1,4}번?[가나다라마바사아자차카타파하안]?길"
_ROAD_UNITS: Final = "(?:,? (?:지하 ?|[A-Za-z])?[0-9]{1,4}[층동호]){0,3}"
# an address with nothing but region, road, number, units and brackets
WHOLE_ROAD: Final = (
    f"^[가-힣 ]+[시군구읍면] [가-힣]+(?:(?:로|길)(?:{_ROAD_BRANCH})?|{_ROAD_BRANCH}|[0-9]{{1,4}}로)"
    f" ?{_USUAL_NUMBER}{_ROAD_UNITS}"
    r"(?: \([가-힣0-9, ]+\))?$"
)
NO_LEGAL_DONG: Final = f"(?:{COMPLEXES}|{ANNEXES})제?[가나다라마바사]?동"  # a house of a complex, or one by its use
_ANY_BRACKETS: Final = r"\([^()]*\)"
# end of a road's name: 12길, 12번길, 69번서길, 12가길; without it one name and one number are left
_PLAIN_BRANCH: Final = "[0-9]+(?:번[가-힣]?)?[가-하]?안?길"
_ROADS: Final = r"(?:로|길|거리) *(?:지하|공중)? *[0-9]"
_LIKE_ROADS: Final = "|".join(ROAD_LIKE_DONGS)
_PLAIN_NUMBER: Final = "([1-9][0-9]{0,3})(?:-[0-9]{1,4})?"  # five digits are a postal code
_BEHIND: Final = "(?: ?번지| *$|, *[^0-9 ]|, [0-9]| +[0-9]+층| +[^-~0-9동호층길가번차단통반로지외일])"
_PLAIN_BUILDING: Final = rf"(?:로|길) *{_PLAIN_NUMBER}{_BEHIND}"
_PLAIN_LOT: Final = rf"[시군구읍면] +[가-힣]{{0,5}}[가-힣&&[^가]][0-9]{{0,2}}(?:동|리|가) *{_PLAIN_NUMBER}{_BEHIND}"


def plain_numbers(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``building`` and ``lot`` (UInt32): the main number after a road, or of a lot, if ``address`` has one."""
    bare, roads = pl.col("_bare"), pl.col("_roads")
    address = pl.when(pl.col("address").str.len_chars() <= MAX_CHARS).then("address")
    of_road = pl.when((roads == 1) & ~bare.str.contains(_LIKE_ROADS)).then(bare)
    of_lot = pl.when(roads == 0).then(bare)
    return (
        frame.with_columns(_bare=address.str.replace_all(_ANY_BRACKETS, "").str.replace_all(_PLAIN_BRANCH, "길"))
        .with_columns(_roads=bare.str.count_matches(_ROADS))
        .with_columns(
            building=of_road.str.extract(_PLAIN_BUILDING).cast(pl.UInt32),
            lot=of_lot.str.extract(_PLAIN_LOT).cast(pl.UInt32),
        )
        .drop("_bare", "_roads")
    )
