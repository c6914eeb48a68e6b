"""The columns that bansong adds, their Korean headers and words, and values shared by packages."""
# Code computes with codes; ``headers="ko"`` writes the Korean words, and a file is read back with either.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final, Literal, get_args

from bansong.base.messages import Lang, current_language

if TYPE_CHECKING:
    import polars as pl

InputFormat = Literal["csv", "xlsx", "xls", "xlsb", "ods", "html", "json", "ndjson", "parquet"]
INPUT_FORMATS: Final[tuple[InputFormat, ...]] = get_args(InputFormat)

# no time zone database: Korea has had no summer time since 1988
SEOUL: Final = timezone(timedelta(hours=9), "Asia/Seoul")


def seoul_day(unix_time: float | None = None) -> date:
    """Return the date in Korea, today's or that of a Unix time."""
    return (datetime.now(SEOUL) if unix_time is None else datetime.fromtimestamp(unix_time, SEOUL)).date()


# in the order in which they are added to the user's file
ANSWER_COLUMNS: Final = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")

ROW_COLUMNS: Final = ("row_status", "row_note")

ADDED_COLUMNS: Final = (*ANSWER_COLUMNS, *ROW_COLUMNS)

LABEL_COLUMNS: Final = ("bounced", "bounce_reason", "bounced_at")  # the outcome of a row's letter: Boolean, text, date

# on request: first row (from 1) with this number and address, match level, legal dong, official building number
EXTRA_COLUMNS: Final = ("duplicate_of", "match_level", "district_code", "building_code")

OUR_COLUMNS: Final = (*ADDED_COLUMNS, *LABEL_COLUMNS, *EXTRA_COLUMNS)

FILE: Final = "file"  # with the rows of several inputs in one output: the input of each

RECORD_COLUMNS: Final = ("b_no", "name", "address", "zipcode")  # roles that the engine reads; only ``b_no`` is required

CONTEXT_COLUMNS: Final = ("confirmed",)  # for the local engine alone: the day when the address was last confirmed

NAMING_ROLES: Final = ("letter_id", "registered", "key", "recipient")  # what names a letter in a list of outcomes

# roles of outcomes; one of b_no, row_id and NAMING_ROLES is required
OUTCOME_ROLES: Final = (
    *("b_no", "address", "bounced", "reason", "returned", "mailed", "zipcode"),
    *NAMING_ROLES,
    "row_id",
)

BIZ_STATUSES: Final = ("active", "suspended", "closed", "unregistered", "unknown")
GRADES: Final = ("A", "B", "C", "D", "E")
ACTIONS: Final = ("send", "fix_address", "confirm", "hold", "do_not_send")
WAITING: Final = ("confirm", "fix_address", "hold")  # actions by which a row waits for somebody
ROW_STATUSES: Final = ("verified", "cached", "invalid", "pending", "in_doubt", "failed")

DECIDED_MARKS: Final[Mapping[Lang, str]] = {"en": "decided by hand", "ko": "직접 결정"}  # in `row_note`

REASON_SEPARATOR: Final = " | "  # in formats without lists (CSV, Excel)


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column that gives a part of a role's value: its position (from 0) and header."""

    column: int
    header: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The column that was chosen for a role: its position (from 0) and header."""

    # ``confidence``: 0 to 1 (1: named by the user or an exact synonym); ``joined``: further columns of the value, in
    # order; ``otherwise``: alternatives for rows where the value is blank.

    column: int
    header: str
    confidence: float
    why: Literal["given", "header", "similar", "content"]
    joined: tuple[JoinedColumn, ...] = ()
    otherwise: tuple[Choice, ...] = ()

    @property
    def alternatives(self) -> tuple[Choice, ...]:
        return (replace(self, otherwise=()), *self.otherwise)

    @property
    def parts(self) -> tuple[JoinedColumn, ...]:
        own = (JoinedColumn(self.column, self.header), *self.joined)
        return (*own, *(part for one in self.otherwise for part in one.parts))

    def spell(self, spell_part: Callable[[JoinedColumn], str], joint: str = "+", otherwise: str = "|") -> str:
        # ``joint`` between joined columns, ``otherwise`` between alternatives
        return otherwise.join(joint.join(map(spell_part, one.parts)) for one in self.alternatives)

    def move(self, place_of: Callable[[JoinedColumn], int]) -> Choice:
        joined = tuple(replace(part, column=place_of(part)) for part in self.joined)
        others = tuple(one.move(place_of) for one in self.otherwise)
        return replace(self, column=place_of(self.parts[0]), joined=joined, otherwise=others)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about one business: the seven fields of INTERFACE §2.2. Missing ones are ``None``."""

    biz_status: str | None = None
    bounce_prob: float | None = None
    grade: str | None = None
    action: str | None = None
    fixed_zipcode: str | None = None
    fixed_address: str | None = None
    reasons: tuple[str, ...] = ()


class Alert(str):
    """A warning that changes how the output may be used; shown before all other lines."""

    __slots__ = ()


def written_warnings(warnings: Iterable[str]) -> dict[str, list[str]]:
    """Return ``warnings`` as texts in the current language, in which alerts stay alerts; and the ``alerts`` alone."""
    texts = [Alert(one) if isinstance(one, Alert) else str(one) for one in warnings]
    return {"warnings": texts, "alerts": [one for one in texts if isinstance(one, Alert)]}


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

FILE_HEADERS: Final[Mapping[Lang, str]] = {"en": FILE, "ko": "파일"}
HEADERS: Final[Mapping[Lang, Mapping[str, str]]] = {"en": {name: name for name in OUR_COLUMNS}, "ko": _KOREAN_HEADERS}

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
}  # by column; the hosted service may have other values, which stay

EARLIER_WORDS: Final = {"row_status": {"확인": "verified"}}  # in files of earlier releases


def language_of_columns(headers: Sequence[str], ours: Mapping[str, int]) -> Lang | None:
    """Return the language of an earlier run's columns, ``None`` without any; ``ours``: their positions by name."""
    for name, place in ours.items():
        return "ko" if _KOREAN_HEADERS[name] in headers[place] else "en"
    return None


def with_words(frame: pl.LazyFrame, lang: Lang | None) -> pl.LazyFrame:
    """Replace codes by Korean words in our columns if ``lang`` is ``ko``."""
    if lang != "ko":
        return frame
    import polars as pl  # help is shown without it

    there = frame.collect_schema()
    return frame.with_columns(
        _replace(pl.col(name), words).alias(name) for name, words in KOREAN_WORDS.items() if name in there
    )


def code_expr(value: pl.Expr, column: str) -> pl.Expr:
    """Replace the Korean words of a column by their codes."""
    codes = {word: code for code, word in KOREAN_WORDS.get(column, {}).items()} | EARLIER_WORDS.get(column, {})
    codes |= {word.replace(" ", ""): code for word, code in codes.items()}  # as people type them
    return _replace(value, codes) if codes else value


def _replace(value: pl.Expr, words: Mapping[str, str]) -> pl.Expr:
    # polars does not stream ``Expr.replace``
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
}  # of problems of numbers, in reports

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
    "letter_id": "봉투번호",
    "registered": "등기번호",
    "key": "고객코드",
    "recipient": "받는분",
}  # in messages and options


def role_word(role: str, lang: Lang) -> str:
    """Return the word for a role in a language."""
    return KOREAN_ROLES.get(role, role) if lang == "ko" else role


def role_code(word: str) -> str:
    """Return the role that a Korean word means; other words stay."""
    return next((role for role, korean in KOREAN_ROLES.items() if word == korean), word)


@dataclass(frozen=True, slots=True)
class CodeWord:
    """A code as a field of a message, translated for the message's reader."""

    code: str

    def __str__(self) -> str:
        return word_of(self.code, current_language())

    def __repr__(self) -> str:
        return repr(str(self))


def word_of(code: str, lang: Lang) -> str:
    """Return the word for a code in a language; unknown codes stay."""
    tables = (*KOREAN_WORDS.values(), _KOREAN_PROBLEMS)
    return next((words[code] for words in tables if code in words), code) if lang == "ko" else code


# for colour-blind people, too
GRADE_COLOURS: Final = {"A": "#2166ac", "B": "#67a9cf", "C": "#f4c542", "D": "#ef8a62", "E": "#b2182b"}

ACTIONS_BEST_FIRST: Final = ("send", "confirm", "fix_address", "hold", "do_not_send")
ACTION_COLOURS: Final = dict(zip(ACTIONS_BEST_FIRST, GRADE_COLOURS.values(), strict=True))

NEUTRAL: Final = "#9aa0a6"
BETTER: Final = GRADE_COLOURS["A"]
WORSE: Final = GRADE_COLOURS["E"]
LINE: Final = "#1f6fb2"
