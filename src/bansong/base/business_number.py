"""The Korean business registration number: nine digits and a check digit.

The functions for a single value evaluate the polars expressions for columns. After ``import bansong`` the expressions
are also the polars namespace ``brn``, of expressions and of Series; :func:`brn` is the same for type checkers::

    df.with_columns(ok=pl.col("사업자번호").brn.is_valid())
    df.with_columns(ok=bs.brn(pl.col("사업자번호")).is_valid())

Every expression takes a column of any dtype that prints as a number (String, integers, Float64, Decimal). A Float32
holds seven digits, so none of its values is read: the problem is ``rounded``.

>>> compact("124-81-00998")
'1248100998'
>>> compact("１２４－８１－００９９８"), compact(1248100998.0)
('1248100998', '1248100998')
>>> is_valid("124-81-00998"), is_valid("124-81-00999")
(True, False)
>>> format("1248100998"), kind("1248100998")
('124-81-00998', 'company')
>>> problem("1.248E+09")
'scientific'

Nothing is guessed: nine digits are not padded; rounded numbers and other groupings than 3-2-5 (ten digits may be a
telephone number) are refused, each with its own ``problem``. The thousands separators of a spreadsheet are read,
since only ten digits are grouped 1-3-3-3:

>>> compact("5,768,133,138"), problem("576,813,313")
('5768133138', 'nine_digits')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, Generic, TypeVar

import polars as pl

from bansong.base.after_fork import refuse_after_fork
from bansong.base.errors import NumberError, Problem
from bansong.base.messages import Lang, current_language

NUMBER_INVALID: Final = Problem("number.number_invalid", "not a business number: {problem}")

PROBLEMS: Final[dict[str, dict[Lang, str]]] = {
    "missing": {"en": "no business number", "ko": "사업자등록번호가 없습니다"},
    "scientific": {
        "en": "the number was rounded to scientific notation and cannot be recovered; take it from the source",
        "ko": "엑셀 지수 표기(1.248E+09)로 저장되어 원래 번호를 알 수 없습니다. "
        "원본에서 텍스트 형식으로 다시 받아 주세요",
    },
    "rounded": {
        "en": "a 32-bit float, which holds seven digits: the number was rounded; take it from the source as text",
        "ko": "7자리까지만 담는 숫자 형식(32비트 실수)으로 저장되어 원래 번호를 알 수 없습니다. "
        "원본에서 텍스트 형식으로 다시 받아 주세요",
    },
    "thirteen_digits": {
        "en": "13 digits: a resident or corporate registration number, never sent anywhere",
        "ko": "13자리라서 주민등록번호나 법인등록번호로 보입니다. 이 번호는 어디에도 보내지 않습니다",
    },
    "letters": {
        "en": "holds other characters than digits and separators",
        "ko": "숫자와 하이픈(-) 외의 문자가 있습니다",
    },
    "fraction": {
        "en": "a number with decimals, not a business number",
        "ko": "소수점이 있는 숫자로, 사업자등록번호가 아닙니다",
    },
    "nine_digits": {
        "en": "nine digits: a digit is missing, often a leading zero; not padded on a guess",
        "ko": "9자리입니다. 한 자리가 빠졌으며(맨 앞의 0이 지워졌을 수 있음) 임의로 채우지 않습니다",
    },
    "too_short": {"en": "fewer than ten digits", "ko": "10자리보다 짧습니다"},
    "too_long": {"en": "more than ten digits", "ko": "10자리보다 깁니다"},
    "grouping": {
        "en": "not grouped 3-2-5 (a telephone number?)",
        "ko": "3-2-5자리로 나뉘어 있지 않습니다(전화번호일 수 있음)",
    },
    "zeros": {"en": "all zeros", "ko": "모두 0입니다"},
}
"""Reasons why a value cannot be a business number, by code and language."""

_KIND_OF_MIDDLE: Final = (
    # (from, to, kind): 국세청 사업자등록번호 구성, the fourth and fifth digit
    (1, 79, "sole_trader"),
    (80, 80, "unincorporated"),
    (81, 81, "company"),
    (82, 82, "non_profit"),
    (83, 83, "public"),
    (84, 84, "foreign"),
    (85, 85, "branch"),
    (86, 88, "company"),
    (89, 89, "religious"),
    (90, 99, "tax_exempt"),
)

KINDS: Final = tuple(dict.fromkeys(kind for *_, kind in _KIND_OF_MIDDLE))

_KINDS_BY_MIDDLE: Final = pl.Series(
    [next((kind for first, last, kind in _KIND_OF_MIDDLE if first <= middle <= last), None) for middle in range(100)],
    dtype=pl.String,
)

_WEIGHTS: Final = (1, 3, 7, 1, 3, 7, 1, 3, 5)

_CANONICAL: Final = {
    **dict(zip("０１２３４５６７８９．，＝＂＇", "0123456789.,=\"'", strict=True)),
    **dict.fromkeys("－‐‑‒–—―−─﹣", "-"),  # dashes: full-width, hyphens, en, em, bar, minus, box drawing, small
    **dict.fromkeys("\t\r\n\u00a0\u2002\u2003\u2009\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),  # without width, so separating nothing
}
_BLANKS: Final = ["", "-", ".", "null", "none", "nan", "n/a", "na", "#n/a", "없음", "미등록", "미상"]

_VALUE: Final = "value"
_GUARD: Final = r"""^\s*=\s*"([^"]*)"\s*$"""
_USUAL: Final = r"^[0-9]{3}-?[0-9]{2}-?[0-9]{5}$"  # nearly all numbers: they become integers without other patterns
# a dot comes twice or not at all: 124.8100998 is a fraction
_PLAIN: Final = r"^[0-9]{3}[- ]*[0-9]{2}[- ]*[0-9]{5}$|^[0-9]{3} *\. *[0-9]{2} *\. *[0-9]{5}$"
# ten digits as spreadsheets write amounts: with decimals that are zeros, with thousands separators, or both
_AMOUNT: Final = r"^(?:[0-9]{10}\.0*|[1-9](?:,[0-9]{3}){3}(?:\.0*)?)$"
_SEPARATED: Final = r"^[0-9]{1,3}(?:,[0-9]{3})+(?:\.0*)?$"
_FRACTION: Final = r"^[0-9]+\.[0-9]*[1-9][0-9]*$"
_SCIENTIFIC: Final = r"^[0-9]+(\.[0-9]*)?[eE][+]?[0-9]+$"
_DIGITS: Final = r"^[0-9][0-9. -]*$"
_TELEPHONE: Final = r"^0[0-9]{1,2}[. -]+[0-9]{3,4}[. -]+[0-9]{4}$"  # nine to eleven digits


def _once(rule: Callable[..., pl.Expr], *values: pl.Expr) -> pl.Expr:
    # polars computes a part of an expression each time it occurs, but a field of a struct once
    names = [f"x{place}" for place in range(len(values))]
    fields = pl.struct(value.alias(name) for value, name in zip(values, names, strict=True))
    return fields.struct.with_fields(rule(*map(pl.field, names)).alias("y")).struct.field("y")


def _text(value: pl.Expr) -> pl.Expr:
    # a leading apostrophe, or ="…" around the digits, keeps Excel from reading a number
    narrow = value.cast(pl.String).str.replace_many(list(_CANONICAL), list(_CANONICAL.values()))
    return narrow.str.replace(_GUARD, "$1").str.strip_chars_end(" ").str.strip_chars_start(" '’`")


def _digits(text: pl.Expr) -> pl.Expr:
    for separator in "-. ":
        text = text.str.replace_all(separator, "", literal=True)
    return text


def compact_expr(value: pl.Expr) -> pl.Expr:
    """Return the ten digits (String), null if :func:`problem_expr` gives a reason."""
    return pl.when(~_is_short_float(value)).then(_once(_compact_text, _text(value)))


def _is_short_float(value: pl.Expr) -> pl.Expr:
    return pl.dtype_of(value) == pl.Float32  # known when the query is planned: no cost per row


def _compact_text(text: pl.Expr) -> pl.Expr:
    return _once(_compact_plain, text, text.str.contains(_PLAIN))


def _compact_plain(text: pl.Expr, plain: pl.Expr) -> pl.Expr:
    # plain texts become null: patterns cost nothing on null
    amount = _once(_compact_amount, pl.when(~plain).then(text))
    return pl.when(text.str.contains("[1-9]")).then(pl.when(plain).then(_digits(text)).otherwise(amount))


def _compact_amount(text: pl.Expr) -> pl.Expr:
    return pl.when(text.str.contains(_AMOUNT)).then(text.str.replace_all(",", "", literal=True).str.slice(0, 10))


def problem_expr(value: pl.Expr) -> pl.Expr:
    """Return why a value cannot be a business number, a key of :data:`PROBLEMS` (String), or null if it can be one."""
    return _once(_problem_of_text, _text(value), _is_short_float(value))


def _problem_of_text(text: pl.Expr, short_float: pl.Expr) -> pl.Expr:
    bad = _compact_text(text).is_null()
    # good texts become "": patterns cost nothing on it
    problem = _once(_problem_of_bad_text, pl.when(bad).then(text).otherwise(pl.lit("")))
    return pl.when(bad).then(problem).when(short_float).then(pl.lit("rounded"))


def _problem_of_bad_text(text: pl.Expr) -> pl.Expr:
    ungrouped = text.str.replace_all(",", "", literal=True)
    text = pl.when(text.str.contains(_SEPARATED)).then(ungrouped).otherwise(text)
    return _once(_problem_of_digits, text, _digits(text.str.replace(r"^([0-9]+)\.0*$", "$1")))


def _problem_of_digits(text: pl.Expr, digits: pl.Expr) -> pl.Expr:
    length = digits.str.len_bytes()
    rules = {
        "missing": text.is_null() | text.str.replace_all(" ", "", literal=True).str.to_lowercase().is_in(_BLANKS),
        "scientific": text.str.contains(_SCIENTIFIC),
        "letters": ~text.str.contains(_DIGITS),
        "thirteen_digits": length == 13,
        "fraction": text.str.contains(_FRACTION),
        "grouping": text.str.contains(_TELEPHONE),
        "nine_digits": length == 9,
        "too_short": length < 10,
        "too_long": length > 10,
        "zeros": digits == "0000000000",
    }
    return first_code(rules, "grouping")


def key_expr(value: pl.Expr) -> pl.Expr:
    """Return the business number as UInt64, else null; several times faster than :func:`compact_expr`."""
    return pl.when(~_is_short_float(value)).then(_once(_key_of_text, value.cast(pl.String)))


def _key_of_text(text: pl.Expr) -> pl.Expr:
    return _once(_key_of_usual, text, pl.when(text.str.contains(_USUAL)).then(text))


def _key_of_usual(text: pl.Expr, usual: pl.Expr) -> pl.Expr:
    # usual texts become null: patterns cost nothing on null
    odd = _once(_compact_text, _text(pl.when(usual.is_null()).then(text)))
    key = pl.coalesce(usual.str.replace_all("-", "", literal=True), odd).cast(pl.UInt64, strict=False)
    return _once(lambda number: pl.when(number > 0).then(number), key)


def digits_expr(key: pl.Expr) -> pl.Expr:
    """Return a UInt64 number as ten digits (String)."""
    return key.cast(pl.String).str.zfill(10)


def checksum_expr(key: pl.Expr) -> pl.Expr:
    """Whether the check digit of a UInt64 number is right (Boolean, null for null).

    Weights 1,3,7,1,3,7,1,3,5, plus ⌊ninth digit × 5 / 10⌋; the tenth digit is (10 − sum mod 10) mod 10.
    It is a flag, not a verdict: a few numbers in use fail, and 0000000000 passes.
    """

    def digit(place: int) -> pl.Expr:
        divisor: int = 10 ** (9 - place)
        return key // divisor % 10

    weighted = pl.sum_horizontal(digit(place) * weight for place, weight in enumerate(_WEIGHTS))
    expected = (10 - (weighted + digit(8) * 5 // 10) % 10) % 10
    return digit(9) == expected


def kind_of_key_expr(key: pl.Expr) -> pl.Expr:
    """Return the kind of business of a UInt64 number, one of :data:`KINDS` (String); null if digits 4 and 5 are 00."""
    return pl.lit(_KINDS_BY_MIDDLE).gather(key // 100_000 % 100)


def is_valid_expr(value: pl.Expr) -> pl.Expr:
    """Whether a value is ten digits with the right check digit (Boolean, false for null)."""
    return _once(checksum_expr, key_expr(value)).fill_null(False)


def kind_expr(value: pl.Expr) -> pl.Expr:
    """Return the kind of business, one of :data:`KINDS` (String, null if unknown)."""
    return _once(kind_of_key_expr, key_expr(value))


def format_expr(value: pl.Expr) -> pl.Expr:
    """Return the number as ``124-81-00998`` (String), null if it cannot be a business number."""
    return _once(_group_digits, compact_expr(value))


def _group_digits(digits: pl.Expr) -> pl.Expr:
    return pl.concat_str([digits.str.slice(0, 3), digits.str.slice(3, 2), digits.str.slice(5, 5)], separator="-")


def first_code(rules: dict[str, pl.Expr], otherwise: str | None = None) -> pl.Expr:
    """Return the name of the first condition that is true (String), else ``otherwise``."""
    code = pl.lit(otherwise, pl.String)
    for name, condition in reversed(rules.items()):
        code = pl.when(condition).then(pl.lit(name)).otherwise(code)
    return code


def note_expr(problem: pl.Expr, lang: Lang, problems: Mapping[str, Mapping[Lang, str]] = PROBLEMS) -> pl.Expr:
    """Return the text (String) of a problem code in a language, null for other codes."""
    return _once(lambda found: first_code({texts[lang]: found == code for code, texts in problems.items()}), problem)


Column = TypeVar("Column", pl.Expr, pl.Series)


@pl.api.register_series_namespace("brn")
@pl.api.register_expr_namespace("brn")
class BusinessNumbers(Generic[Column]):
    """The namespace ``brn`` of an expression or a Series of business numbers. What it returns has the same name."""

    def __init__(self, values: Column) -> None:
        self._values: Column = values

    def _apply(self, rule: Callable[[pl.Expr], pl.Expr]) -> Column:
        if isinstance(self._values, pl.Series):
            return _of_values(rule, self._values.alias(_VALUE)).alias(self._values.name)
        name = self._values.meta.output_name(raise_if_undetermined=False)
        return rule(self._values) if name is None else rule(self._values).alias(name)

    def compact(self) -> Column:
        """Ten digits (String), or null; see :func:`compact_expr`."""
        return self._apply(compact_expr)

    def is_valid(self) -> Column:
        """Ten digits with the right check digit (Boolean); see :func:`is_valid_expr`."""
        return self._apply(is_valid_expr)

    def format(self) -> Column:
        """``124-81-00998`` (String), or null; see :func:`format_expr`."""
        return self._apply(format_expr)

    def kind(self) -> Column:
        """Kind of business (String), or null; see :func:`kind_expr`."""
        return self._apply(kind_expr)

    def problem(self) -> Column:
        """Why a value is no business number (key of :data:`PROBLEMS`), or null; see :func:`problem_expr`."""
        return self._apply(problem_expr)


def brn(values: Column) -> BusinessNumbers[Column]:
    """Return the namespace ``values.brn`` in a form that type checkers know: ``brn(pl.col("번호")).is_valid()``.

    Checkers see no namespace that a package registers with polars.
    """
    return BusinessNumbers(values)


def compact(value: object) -> str:
    """Return the ten digits of a business number; raise :class:`NumberError` if the value cannot be one."""
    found = problem(value)
    if found is not None:
        raise NumberError(found, NUMBER_INVALID, problem=PROBLEMS[found][current_language()])
    return str(_of_one(compact_expr, value))


def is_valid(value: object) -> bool:
    """Whether a value is ten digits with the right check digit."""
    return bool(_of_one(is_valid_expr, value))


def format(value: object) -> str:
    """Return the number as ``124-81-00998``; raise :class:`NumberError` if it cannot be a business number."""
    return str(_of_one(format_expr, compact(value)))


def kind(value: object) -> str | None:
    """Return the kind of business, one of :data:`KINDS`; raise :class:`NumberError` if the value is no number."""
    found = _of_one(kind_expr, compact(value))
    return None if found is None else str(found)


def problem(value: object) -> str | None:
    """Return why a value cannot be a business number, a key of :data:`PROBLEMS`, or ``None`` if it can be one."""
    found = _of_one(problem_expr, value)
    return None if found is None else str(found)


def _of_one(rule: Callable[[pl.Expr], pl.Expr], value: object) -> object:
    return _of_values(rule, _series(value)).item()


def _of_values(rule: Callable[[pl.Expr], pl.Expr], values: pl.Series) -> pl.Series:
    refuse_after_fork()
    return pl.DataFrame([values]).select(_on_value(rule)).to_series()


def _series(value: object) -> pl.Series:
    if str(getattr(value, "dtype", "")) == "float32":  # of numpy: rounded, like a Float32 column
        return pl.Series(_VALUE, [value], pl.Float32)
    return pl.Series(_VALUE, [None if value is None else str(value)], pl.String)


@cache
def _on_value(rule: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    return rule(pl.col(_VALUE))
