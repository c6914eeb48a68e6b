"""Korean headers for the columns that are added to a user's file, and Korean words for the codes in them.

They are written where the user asks for them (``headers="ko"``); the codes are what everything computes with. A file
is read back with either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bansong.schema import OUR_COLUMNS, Lang
from bansong.translation import current_language

if TYPE_CHECKING:
    import polars as pl

_KOREAN_HEADERS: Final = {
    "biz_status": "휴·폐업 상태",
    "bounce_prob": "반송 확률",
    "grade": "반송 등급",
    "action": "조치",
    "fixed_zipcode": "교정 우편번호",
    "fixed_address": "교정 주소",
    "reasons": "판정 근거",
    "row_status": "처리 상태",
    "row_note": "처리 메모",
    "bounced": "반송 여부",
    "bounce_reason": "반송 사유",
    "bounced_at": "반송일",
    "duplicate_of": "중복 기준 행",
    "match_level": "주소 확인 수준",
    "district_code": "법정동코드",
    "building_code": "도로명주소관리번호",
}

HEADERS: Final[Mapping[Lang, Mapping[str, str]]] = {"en": {name: name for name in OUR_COLUMNS}, "ko": _KOREAN_HEADERS}
"""The header of each of our columns, by language and contract name."""

KOREAN_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "biz_status": {
        "active": "영업 중",
        "suspended": "휴업",
        "closed": "폐업",
        "unregistered": "미등록",
        "unknown": "미확인",
    },
    "action": {
        "send": "발송",
        "fix_address": "주소 보완",
        "confirm": "확인 후 발송",
        "hold": "보류",
        "do_not_send": "발송 금지",
    },
    "row_status": {
        "verified": "판정함",
        "cached": "기존 조회",
        "invalid": "번호 오류",
        "pending": "미처리",
        "in_doubt": "결과 불명",
        "failed": "실패",
    },
    "match_level": {
        "exact": "도로명주소 일치",
        "lot_to_road": "지번을 도로명으로 변경",
        "region_repaired": "지역명 보정",
        "typo_repaired": "오타 보정",
        "renumbered": "바뀐 주소로 변경",
        "building_only": "건물 본번까지 확인",
        "abolished": "없어진 주소",
        "road_only": "도로까지 확인",
        "region_only": "지역까지 확인",
        "ambiguous": "후보 여럿",
        "none": "확인 불가",
    },
}
"""The word of each code, by column; other values, as the hosted service may give them, stay as they are."""


EARLIER_WORDS: Final = {"row_status": {"확인": "verified"}}
"""Words of earlier releases, which files of that time hold."""


def language_of_columns(headers: Sequence[str], ours: Mapping[str, int]) -> Lang | None:
    """Return the language of the columns of an earlier run (contract name → position), ``None`` without any."""
    for name, place in ours.items():
        return "ko" if _KOREAN_HEADERS[name] in headers[place] else "en"
    return None


def with_words(frame: pl.LazyFrame, lang: Lang | None) -> pl.LazyFrame:
    """Return a frame with words in the place of codes, where the language is Korean."""
    if lang != "ko":
        return frame
    import polars as pl  # help is shown without it

    there = frame.collect_schema()
    return frame.with_columns(
        _replace(pl.col(name), words).alias(name) for name, words in KOREAN_WORDS.items() if name in there
    )


def code_expr(value: pl.Expr, column: str) -> pl.Expr:
    """Return the codes (String) of a column that was read, whichever language it was written in."""
    codes = {word: code for code, word in KOREAN_WORDS.get(column, {}).items()} | EARLIER_WORDS.get(column, {})
    return _replace(value, codes) if codes else value


def _replace(value: pl.Expr, words: Mapping[str, str]) -> pl.Expr:
    """Return a text with some words replaced, all others as they are.

    ``Expr.replace`` does the same, but polars does not stream it: all columns of the query would be kept in memory.
    """
    import polars as pl

    found = value
    for word, other in words.items():
        found = pl.when(value == word).then(pl.lit(other)).otherwise(found)
    return found


_KOREAN_PROBLEMS: Final = {
    "missing": "번호 없음",
    "scientific": "지수 표기",
    "rounded": "반올림된 번호",
    "thirteen_digits": "열세 자리",
    "nine_digits": "아홉 자리",
    "grouping": "전화번호 형식",
    "letters": "다른 문자 포함",
    "fraction": "소수",
    "too_short": "열 자리 미만",
    "too_long": "열 자리 초과",
    "zeros": "모두 0",
    "totals_row": "합계 행",
    "header_row": "반복된 제목 행",
    "other": "기타",
}
"""Words for why a row is invalid, as reports count them."""


KOREAN_ROLES: Final = {
    "b_no": "사업자번호",
    "name": "상호",
    "address": "주소",
    "zipcode": "우편번호",
    "confirmed": "주소확인일",
    "status": "상태",
    "since": "변동일",
    "opened": "개업일",
    "as_of": "기준일",
    "bounced": "반송여부",
    "reason": "반송사유",
    "returned": "반송일",
    "mailed": "발송일",
    "row_id": "행번호",
}
"""Korean names of the roles of a user's columns, as messages use them and options take them."""


def role_word(role: str, lang: Lang) -> str:
    """Return what a role is called in a language."""
    return KOREAN_ROLES.get(role, role) if lang == "ko" else role


def role_code(word: str) -> str:
    """Return the role that a user names, in either language; any other text as it is."""
    return next((role for role, korean in KOREAN_ROLES.items() if word == korean), word)


@dataclass(frozen=True, slots=True)
class CodeWord:
    """A code as a field of a message; it is called as the reader calls it."""

    code: str

    def __str__(self) -> str:
        return word_of(self.code, current_language())

    def __repr__(self) -> str:
        return repr(str(self))


def word_of(code: str, lang: Lang) -> str:
    """Return what a code is called in a language; any other text as it is."""
    tables = (*KOREAN_WORDS.values(), _KOREAN_PROBLEMS)
    return next((words[code] for words in tables if code in words), code) if lang == "ko" else code
