"""Read an address as people write it: region, road or lot, number, building, detail."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.base.business_number import first_code
from bansong.engine.address import road_lot as lot
from bansong.engine.address import road_lot as road
from bansong.engine.address.batches import PreparedStep, fill_few, for_few, scatter, where, with_groups
from bansong.engine.address.region_split import split_region
from bansong.engine.address.words import (
    HIDDEN,
    MOST_BYTES,
    NO_LEGAL_DONG,
    PROVINCES,
    USUAL_ROAD,
    WHOLE_ROAD,
    compact,
    normalise,
    plain_numbers,
    rewrite_spellings,
)

_OPEN, _CLOSE, _UNIT_OPEN, _UNIT_CLOSE, _DONG_OPEN, _DONG_CLOSE = (chr(0xE000 + place) for place in range(6))
CLOSING: Final = _CLOSE + _UNIT_CLOSE
LETTER: Final = f"{_OPEN}[가-힣]{_CLOSE}"
_COMPANY: Final = r"\(([주유사재합])\)"
_LETTER: Final = r"\(([가-힣])\)"
_PLAIN: Final = r"^[가-힣]{1,6}(?:[0-9]{0,2}[동리읍면]|[0-9]{1,2}가)(?:[,/ ][^()]*)?\)$"
NOT_PLAIN: Final = "^(?:상가|[가나다라마바사아자차카타파하])동(?:[ ,/]|.$)"
_REFERENCE: Final = r"\(((?:[가-힣]{2,6}[0-9]?[동리읍면]|[가-힣]{1,5}[0-9]가)(?:[,/ ][^()]*)?)\)"
_IN_UNITS: Final = (
    r"\(((?:(?:(?:지하|지상|옥상|제|[BbFf]) ?)?[0-9A-Za-z]{1,5}(?: ?[-~,.·/] ?[0-9]+)* ?[층호동]"
    r"|[가나다라마바사아자차카타파하]동 ?[0-9]|[A-Z]동|상가동|지하|지층|옥상)"
    r"(?:[^()동리]|[0-9A-Za-z]동|[동리][^ ,()/])*)\)"
)
_UNIT: Final = rf"([0-9]동|[^ (로길동리가읍면산]) ?{_IN_UNITS}"
_WITHIN: Final = r"((?:[^0-9-][0-9]+호|[^번]지|[0-9]동|[^0-9 ()지호로길동리가읍면산]) ?)\(([^()]*)\)( ?[^ ,)])"
_TO_HIDE: Final = (
    rf"{_COMPANY}|{_LETTER}|\( ?(?:[0-9A-Za-z]|지|옥상|제|.동|상가동)|[^ 0-9] ?\([^()]+\) ?[^ ,]|호\([^()]+\)$"
)
_BEHIND_UNIT: Final = r"([0-9]{3,}호)\(([^()]+)\)$"
_HEAD: Final = "^([^0-9]*)(.*)$"
_FRONT: Final = f"^((?:{LETTER}|주식회사) ?[^ ]+|[^ 0-9]+(?:{LETTER}| ?주식회사))[ ,]+(.*[0-9].*)$"


def read_brackets(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Split ``_peeled`` into ``brackets`` (references), ``_front`` (a company's name) and ``_body`` (the rest)."""
    peeled, plain, body = pl.col("_peeled"), pl.col("_plain"), pl.col("_body")
    company = pl.when(body.str.contains(_OPEN, literal=True) | body.str.contains("주식회사", literal=True)).then(body)
    any_bracket = peeled.str.contains("(", literal=True) | peeled.str.contains(")", literal=True)
    odd = {"brackets": pl.String, "_odd_body": pl.String}
    return (
        frame.with_columns(_parts=peeled.str.splitn("(", 2))
        .with_columns(_before=pl.col("_parts").struct[0], _inner=pl.col("_parts").struct[1])
        .with_columns(_plain=(pl.col("_inner").str.contains(_PLAIN) & ~pl.col("_inner").str.contains(NOT_PLAIN)))
        .with_columns(
            _plain_body=pl.when(plain).then("_before").str.strip_chars_end(" "),
            _plain_brackets=pl.when(plain).then("_inner").str.strip_suffix(")").str.strip_chars(" ,"),
            _bracketed=where(any_bracket & ~plain.fill_null(False), peeled),
        )
        .drop("_parts", "_before", "_inner", "_plain")
        .pipe(for_few, pl.col("_bracketed").is_not_null(), _read_odd, ("_bracketed",), odd)
        .with_columns(
            brackets=pl.coalesce("_plain_brackets", "brackets"),
            _body=pl.coalesce("_plain_body", "_odd_body", "_peeled"),
        )
        .pipe(with_groups, company, _FRONT, "_front", "_behind")
        .with_columns(_body=pl.coalesce("_behind", "_body"))
        .drop("_behind", "_plain_brackets", "_plain_body", "_bracketed", "_odd_body", "_peeled")
    )


def show_brackets(text: pl.Expr) -> pl.Expr:
    """Put the brackets back that were replaced during parsing."""
    odd = where(text.str.contains(_OPEN, literal=True) | text.str.contains(_UNIT_OPEN, literal=True), text)
    odd = odd.str.replace(f"^{_UNIT_OPEN}([^{_UNIT_CLOSE}]*){_UNIT_CLOSE} ?", "$1 ").str.strip_chars(" ,")
    back = {_OPEN: "(", _CLOSE: ")", _UNIT_OPEN: "(", _UNIT_CLOSE: ")"}
    return pl.coalesce(odd.str.replace_many(list(back), list(back.values())), text)


def _hide_brackets(frame: pl.LazyFrame) -> pl.LazyFrame:
    tail = pl.col("_tail")
    units = tail.str.replace_all(_LETTER, f"{_OPEN}$1{_CLOSE}").str.replace_all(
        _UNIT, f"$1 {_UNIT_OPEN}$2{_UNIT_CLOSE}"
    )
    within = units.str.replace_all(_REFERENCE, f"{_DONG_OPEN}$1{_DONG_CLOSE}").str.replace_all(
        _WITHIN, f"$1{_OPEN}$2{_CLOSE}$3"
    )
    within = within.str.replace(_BEHIND_UNIT, f"$1{_OPEN}$2{_CLOSE}")
    bracketed = pl.col("_bracketed")
    odd = pl.when(bracketed.str.contains(_TO_HIDE)).then(bracketed).str.replace_all(_COMPANY, f"{_OPEN}$1{_CLOSE}")
    return (
        with_groups(frame, odd, _HEAD, "_head", "_tail")
        .with_columns(_tail=within.str.replace_many([_DONG_OPEN, _DONG_CLOSE], ["(", ")"]))
        .with_columns(_bracketed=pl.coalesce(pl.col("_head") + pl.col("_tail"), "_bracketed"))
        .with_columns(_unbracketed=where(~bracketed.str.contains("[()]"), bracketed))
        .with_columns(_bracketed=pl.when(pl.col("_unbracketed").is_null()).then("_bracketed"))
        .drop("_head", "_tail")
    )


_REGION_IN_BRACKETS: Final = (
    r"^\(([가-힣]+(?:시|도|군|구)|서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충[남북]|전[남북]|경[남북]|제주)\)"
)
_REGION_BEHIND: Final = (
    rf" ?\(((?:[가-힣]{{1,4}}[시군구]|(?:{PROVINCES})(?:특별시|광역시|특별자치[시도]|시|도)?)"
    r"(?:[ ,]+[가-힣]{1,4}[시군구])*)\) ?"
)
_PROVINCE: Final = f"^(?:{PROVINCES})"
_NUMBER: Final = "[로길동리가] ?(?:산|지하)? ?[0-9]"
_ONE: Final = r"^([^()]*)\(([^()]*)\)?([^()]*)$"
_ANY: Final = r"\((?:[^()]|\([^()]*\))*\)?"


def _read_odd(frame: pl.LazyFrame) -> pl.LazyFrame:
    # most have one bracket, the others take a slower way
    several, inner = pl.col("_several"), pl.col("_inner")
    one = pl.concat_str(pl.col("_before").str.strip_chars_end(" "), pl.lit(" "), pl.col("_behind").str.strip_chars(" "))
    all_inner = several.str.extract_all(_ANY).list.join(", ").str.replace_all(r"\)?, \(", ", ")
    outer = several.str.replace_all(_ANY, " ").str.replace_all("[()]", " ").str.replace_all(" {2,}", " ")
    return (
        _hide_brackets(frame)
        .with_columns(
            _bracketed=pl.col("_bracketed").str.replace(_REGION_IN_BRACKETS, "$1 ").str.replace(_REGION_BEHIND, " $1 ")
        )
        .pipe(with_groups, pl.col("_bracketed"), _ONE, "_before", "_inner", "_behind")
        .with_columns(_several=where(inner.is_null(), pl.col("_bracketed")))
        .with_columns(
            brackets=pl.coalesce(inner, all_inner.str.replace(r"^\(", "").str.replace(r"\)$", "")).str.strip_chars(
                " ,"
            ),
            _odd_body=pl.coalesce(one, outer, "_unbracketed").str.strip_chars(" "),
        )
        .with_columns(brackets=pl.when(pl.col("brackets") != "").then("brackets"))
        .pipe(_with_address_in_brackets)
        .drop("_unbracketed", "_bracketed", "_before", "_inner", "_behind", "_several")
    )


def _with_address_in_brackets(frame: pl.LazyFrame) -> pl.LazyFrame:
    # 회관 (서울 종로구 세종대로 175)
    province = pl.when(pl.col("brackets").str.contains(_PROVINCE)).then("brackets")
    swapped = (province.str.contains(_NUMBER) & ~pl.col("_odd_body").str.contains(_NUMBER)).fill_null(False)
    return frame.with_columns(
        brackets=pl.when(swapped).then(pl.when(pl.col("_odd_body") != "").then("_odd_body")).otherwise("brackets"),
        _odd_body=pl.when(swapped).then("brackets").otherwise("_odd_body"),
    )


_DONG: Final = r"[가-힣]{1,5}[0-9]?(?:동|리)|[가-힣]{1,5}[0-9]가(?:[0-9]{1,2}동)?"
_HINT_AND_NAME: Final = rf"^({_DONG})(?:[,/ ]+([^0-9{HIDDEN}]+))?$"
HINT: Final = rf"(?:^|[,/( ])({_DONG})(?:[,/) ]|$)"
_HINT_AT_HEAD: Final = rf"^(?:{_DONG})(?:[,/ ]+|$)"
_HINT_JOINED: Final = "^([가-힣]{2,4}동)[가-힣A-Za-z0-9]+(?:빌딩|아파트|타워|상가|빌라|플라자|프라자|센터)$"
NO_HINT: Final = (
    "(?:아파트|빌라|상가|빌딩|관리|주민|사무|공장|창고|연구|기숙사|경비|생산|복지|본관|별관|구관|[0-9]차|단지)[0-9]*동$"
    "|^[가나다라마바사본별에비]동$"
)
_RANGE: Final = r"[0-9]+[A-Za-z]?(?: ?[-~,.·/] ?[0-9]+)*"
_ONE_UNIT: Final = rf"(?:제 ?)?(?:(?:지하|지상|옥상|비) ?|[A-Za-z]-?)?{_RANGE} ?(?:층|호실|호|동|통|반)[ ,]*"
_UNITS: Final = (
    rf"(?:{_ONE_UNIT})+(?:[0-9][-0-9]*)?(?:일부|전부)?(?:[ ,]|$)|(?:지하|[Bb])? ?{_RANGE} ?층|(?:{_ONE_UNIT}){{2,}}"
    r"|외 ?[0-9]* ?필지?|지[하상]층|지하|지층|일부|전부|[층호]$"
    r"|(?:^|[ ,])(?:[0-9][0-9~,.·-]*(?:[ ,]+|$))+|[0-9]+[-/][0-9]+$|[A-Za-z]?-?[0-9]{3,}$"
)
_UNITS_ONLY: Final = "^(?:(?:지하|지상|[Bb])?[0-9~-]+(?:층|호|동)?[ ,]*)+$"
_NO_NAME: Final = (
    "^(?:[A-Za-z0-9가-힣]|상가|관리|주민|사무|공장|창고|연구|기숙사|경비|생산|복지|본관|별관|신관|구관|에이)동$"
)
# 901-1203 are a house and a door; 1588-1234 and 865-1234 are not
_HOUSE: Final = "(?:[1-9](?:0[1-9]|[1-3][0-9])|(?:1[0-7]|[2-9][0-9])(?:0[1-9]|1[0-9]))"
_DOOR: Final = "[1-7]?[0-9](?:0[1-9]|1[0-9]|2[0-4])"
DETAIL_UNIT: Final = (
    r"[0-9](?: ?,)? ?(?:층|호|동(?:[ ,0-9]|$))|지층|지하|(?:^|[ ,])[BbF][0-9]|(?:^|[ ,(])[A-Za-z가나다라마바사]동"
    rf"|(?:[ ,가-힣A-Z]|^)(?:{_HOUSE}|[A-Za-z])[-/]{_DOOR}(?:[ ,]|$)"
)
# (다동), (마동) and (사동) are legal dongs: of 가동 to 사동 these three exist
BRACKET_UNIT: Final = (
    r"[0-9] ?(?:층|호)|[0-9]{2} ?동|지층|지하|(?:^|[ ,])[BbF][0-9]|^[A-Za-z가나라바]동|[ ,(][A-Za-z가나다라마바사]동"
    rf"|(?:^|,|[가-힣&&[^동리가]]) ?{_HOUSE}[-/]{_DOOR}(?:[ ,]|$)"
)

_MISSPELT: Final = "^ *[가-힣]{2} +([가-힣]+[시군구](?: |$))"  # 서을 종로구
_PLACE: Final = (
    rf"(?:[가-힣]*(?:시|도|군|구|읍|면|동|리)|[가-힣]+[0-9]+[동리가]|{PROVINCES}|대한민국"
    r"|(?:지번|도로명|신|구|새)? ?(?:주소|지번|도로명|소재지))"
)
_EXPLAINED: Final = rf"(?:^| ){_PLACE}(?: +산? *[0-9]+(?:-[0-9]+)?(?:번지)?)?(?: |$)"
_LIKE_A_PLACE: Final = f"(?:^| )(?:[가-힣]+[시도군구읍면동리]|{PROVINCES})(?: |$)"  # so does a name end: 홍길동, 신도시
_PERHAPS_ROAD: Final = "(?:^| )[가-힣]{1,3} *$"  # 서초 of 서초 중앙로
_OWN_DONG: Final = "^ *[가-힣]{1,4}동[ ,]+([가-힣A-Za-z])"


_ADDED: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(("detail", "hint_dong", "building", "ahead"), pl.String),
    "has_unit": pl.Boolean,
}
_NEEDED: Final = ("_tail", "brackets", "_ahead", "_front", "_before_road", "emd", "road")


def read_detail(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``detail``, ``hint_dong``, ``building`` (String), ``has_unit`` (Boolean) from ``_tail`` and ``brackets``."""
    # also `ahead`: words before the road or dong that look like places, for the gazetteer to decide
    unexplained = pl.col("_ahead") != pl.col("emd").fill_null("")
    words = pl.col("brackets", "_front", "_before_road").is_not_null()
    given = pl.any_horizontal(pl.col("_tail") != "", unexplained, words)
    return (
        frame.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in _ADDED.items())
        .pipe(fill_few, given, _read_words, _NEEDED, _ADDED | {"brackets": pl.String})
        .with_columns(has_unit=pl.when(pl.col("text").is_not_null()).then(pl.col("has_unit").fill_null(False)))
        .drop("_ahead", "_front")
    )


def _read_words(frame: pl.LazyFrame) -> pl.LazyFrame:
    detail, brackets, first = pl.col("detail"), pl.col("brackets"), pl.col("_first")
    unit = detail.str.contains(DETAIL_UNIT).fill_null(False) | brackets.str.contains(BRACKET_UNIT).fill_null(False)
    return (
        frame.with_columns(_written=pl.col("_tail").str.strip_chars_start(CLOSING).str.strip_chars(" ,./:;-"))
        .with_columns(_written=pl.when(pl.col("_written") != "").then("_written"))
        .with_columns(detail=show_brackets(pl.col("_written")), _ahead=_unexplained_words(), ahead=_like_places())
        .pipe(_with_hint)
        .pipe(_with_building)
        .with_columns(_first=pl.concat_str("_ahead", show_brackets(pl.col("_front")), separator=" ", ignore_nulls=True))
        .with_columns(
            has_unit=unit,
            brackets=show_brackets(brackets),
            detail=pl.when(first != "")
            .then(pl.concat_str(detail, first.str.strip_chars(" "), separator=", ", ignore_nulls=True))
            .otherwise(detail),
        )
    )


def _words_ahead() -> pl.Expr:
    ahead = where(pl.col("_ahead") != pl.col("emd").fill_null(""), pl.col("_ahead"))
    return ahead.str.replace_all("[ ,/:.]+", "  ").str.replace(_MISSPELT, "$1")


def _like_places() -> pl.Expr:
    words = _words_ahead().str.extract_all(_LIKE_A_PLACE).list.eval(pl.element().str.strip_chars(" ")).list.join(" ")
    return pl.when(words != "").then(words)


def _unexplained_words() -> pl.Expr:
    ahead = _words_ahead()
    by_road = where(pl.col("road").is_not_null(), ahead).str.replace(_PERHAPS_ROAD, "")
    left = pl.coalesce(by_road, ahead)
    return show_brackets(left.str.replace_all(_EXPLAINED, " ").str.replace_all(" {2,}", " ").str.strip_chars(" -"))


def _with_hint(frame: pl.LazyFrame) -> pl.LazyFrame:
    # `_name`: the building in plain brackets; `_left`: brackets without the 동
    brackets, odd = pl.col("brackets"), pl.col("_odd")
    after = pl.when(pl.col("road").is_not_null()).then("detail")
    hints = {
        "_plain": pl.col("_plain"),
        "_hint_in": odd.str.extract(HINT),
        "_hint_joined": odd.str.extract(_HINT_JOINED),
        "_hint_after": after.str.extract(HINT),
        "_hint_before": pl.col("_before_road").str.extract(HINT),
    }
    return (
        with_groups(frame, brackets, _HINT_AND_NAME, "_plain", "_name")
        .with_columns(_odd=where(pl.col("_plain").is_null(), brackets))
        .with_columns(_name=compact(pl.col("_name")), _left=odd.str.replace(_HINT_AT_HEAD, ""), **hints)
        .with_columns(pl.when(~pl.col(hint).str.contains(NO_HINT)).then(hint).alias(hint) for hint in hints)
        .with_columns(hint_dong=pl.coalesce(list(hints)))
        .drop("_odd", *hints)
    )


def _with_building(frame: pl.LazyFrame) -> pl.LazyFrame:
    unnamed, words = pl.col("_name").is_null(), pl.col("_words")
    units_only = pl.col("_written").str.contains(_UNITS_ONLY)
    return (
        frame.with_columns(_words=_without_units(where(unnamed, pl.col("_left"))))
        .with_columns(_name=pl.coalesce("_name", _keep_names(words)))
        .with_columns(_words=_without_units(where(unnamed & ~units_only, pl.col("_written"))))
        .with_columns(building=pl.coalesce("_name", _keep_names(words)))
        .drop("_name", "_left", "_words")
    )


def _without_units(words: pl.Expr) -> pl.Expr:
    hidden = where(words.str.contains(f"[(/{HIDDEN}]"), words)
    plain = hidden.str.replace_all(LETTER, "").str.replace_all(f"[()/{HIDDEN}]", " ")
    name = pl.coalesce(plain, words).str.replace_all(_UNITS, " ").str.replace(_OWN_DONG, "$1")
    return name.str.replace_all("[ ,]", "")


def _keep_names(words: pl.Expr) -> pl.Expr:
    return pl.when((words.str.len_chars() > 1) & ~words.str.contains(_NO_NAME)).then(words)


PARSED: Final[dict[str, pl.DataType]] = {  # columns of `parse` and their types
    **dict.fromkeys(("text", "kind", "zipcode_given", "zipcode_inside", "detail", "ahead", "brackets"), pl.String()),
    **dict.fromkeys(("sido", "sigungu", "sido_typed", "region_change", "region_typed", "moved_from"), pl.String()),
    **dict.fromkeys(("emd", "ri", "road", "road_pre", "lot_dong", "loose_road", "hint_dong", "building"), pl.String()),
    **dict.fromkeys(("main", "sub", "lot_main", "lot_sub", "loose_main", "loose_sub"), pl.UInt32()),
    **dict.fromkeys(("under", "san"), pl.UInt8()),
    **dict.fromkeys(("sido_given", "region_conflict", "lot_ho", "has_unit"), pl.Boolean()),
}

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
    """Read the String columns ``address`` and ``zipcode``; add the columns of :data:`PARSED`, null if not found."""
    # only `kind` korean is read, not english (123, Teheran-ro, Gangnam-gu), po_box (사서함) or none
    kept = [name for name in frame.collect_schema().names() if name not in PARSED]
    return (
        frame.select(kept)
        .pipe(normalise)
        .pipe(rewrite_spellings)
        .pipe(read_brackets)
        .pipe(split_region, "_body")
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
    """Whether a parsed address has a road or lot with its number; in a 읍 or 면, a lot needs its 리."""
    road = pl.col("road").is_not_null() & pl.col("main").is_not_null()
    lot = pl.col("lot_main").is_not_null() & ~pl.col("lot_dong").str.contains("[읍면]$")
    return road | lot.fill_null(False)


def names_several(address: pl.Expr) -> pl.Expr:
    """Whether an address gives two numbers (152 또는 154, 152~154), or the number 0, instead of one number."""
    two = pl.when(address.str.contains(_TWO_NUMBERS)).then(address).str.extract_groups(_TWO_NUMBERS).struct
    apart = two[1].cast(pl.Int32) - two[0].cast(pl.Int32)
    near = apart.is_between(1, _MAX_NEIGHBOUR_DISTANCE).fill_null(False)
    return (address.str.contains(_NOT_ONE_NUMBER) | near).fill_null(False)


def describes_by_other(address: pl.Expr) -> pl.Expr:
    """Whether an address is given relative to another place: 맞은편, 옆 건물, 시청 앞 (but not 시청앞점, a name)."""
    return address.str.contains(_BESIDE)


def read_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """Return if each ``address`` has a number (``numbered``), and if it is relative to another place (``beside``)."""
    # only addresses that are not plain are parsed, as that is slow
    usual = pl.col("address").str.contains(USUAL_ROAD) | pl.col("address").str.contains(WHOLE_ROAD)
    read = frame.select(numbered=usual, beside=describes_by_other(pl.col("address")))
    for look in (_PLAIN_NUMBER, _PARSED_NUMBER):
        left = (~read["numbered"]).fill_null(False)
        if left.any():
            found = look.run(frame.filter(left))
            read = read.with_columns(pl.coalesce(scatter(column, left), column.name) for column in found)
    several = frame.select(names_several(pl.col("address"))).to_series()
    return read.with_columns(numbered=pl.col("numbered") & ~several)


def _plain_number(rows: pl.LazyFrame) -> pl.LazyFrame:
    lot = pl.when(~pl.col("address").str.contains(NO_LEGAL_DONG)).then("lot")
    return plain_numbers(rows).select(
        numbered=pl.coalesce("building", lot).is_not_null(), beside=pl.lit(None, pl.Boolean)
    )


_PLAIN_NUMBER: Final = PreparedStep(_plain_number)
_PARSED_NUMBER: Final = PreparedStep(
    lambda rows: parse(rows).select(numbered=is_numbered(), beside=describes_by_other(pl.col("text")))
)


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
