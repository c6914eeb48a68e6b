"""The business number: one rule, for a value and for a column, and nothing guessed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.base import business_number
from bansong.errors import NumberError
from examples import examples

SPELLINGS = [
    "124-81-00998",
    "1248100998",
    "124 81 00998",
    "124.81.00998",
    "１２４－８１－００９９８",
    "124–81–00998",
    " 124-81-00998\t",
    "124\u00a081\u00a000998",
    "'1248100998",
    "1248100998.0",
    "\ufeff124-81-00998",
    "124-8100998",
    "124 - 81 - 00998",
    " '124 81-00998 ",
    "124 . 81 . 00998",
    "1,248,100,998",
    "1,248,100,998.00",
    "１，２４８，１００，９９８",
    1248100998,
    1248100998.0,
]
HOPELESS = {
    "": "missing",
    "   ": "missing",
    "-": "missing",
    "null": "missing",
    "없음": "missing",
    "1.248E+09": "scientific",
    "1.248100998e9": "scientific",
    "248100998": "nine_digits",
    "24-81-00998": "nine_digits",
    "248100998.0": "nine_digits",
    "9001011234567": "thirteen_digits",
    "900101-1234567": "thirteen_digits",
    "1234": "too_short",
    "12481009981": "too_long",
    "확인중": "letters",
    "T1248100998": "letters",
    "-1248100998": "letters",
    "1248100998.5": "fraction",
    "12481009.98": "fraction",
    "124.8100998": "fraction",
    "12481.00998": "fraction",
    "031-222-3333": "grouping",
    "02-1234-5678": "grouping",
    "02 1234 5678": "grouping",
    "031\u3000222 3333": "grouping",
    "900101 1234567": "thirteen_digits",
    "248,100,998": "nine_digits",
    "9,001,011,234,567": "thirteen_digits",
    "124,810,0998": "letters",
    "1248,100,998": "letters",
    "1,248,100,998.5": "letters",
    "0000000000": "zeros",
    "000-00-00000": "zeros",
}


def check_digit(nine: str) -> int:
    """The rule of the tax service in plain Python, to hold the expressions against."""
    weights = (1, 3, 7, 1, 3, 7, 1, 3, 5)
    total = sum(int(digit) * weight for digit, weight in zip(nine, weights, strict=True))
    return (10 - (total + int(nine[8]) * 5 // 10) % 10) % 10


nine_digits = st.integers(1, 999_999_999).map(lambda n: f"{n:09d}")


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_every_spelling_of_a_number_is_read_as_that_number(spelling: object) -> None:
    assert business_number.compact(spelling) == "1248100998"
    assert business_number.is_valid(spelling)
    assert business_number.format(spelling) == "124-81-00998"
    assert business_number.kind(spelling) == "company"


@pytest.mark.parametrize(("value", "problem"), HOPELESS.items())
def test_what_cannot_be_a_number_is_refused_with_its_reason_and_never_guessed(value: str, problem: str) -> None:
    assert business_number.problem(value) == problem
    assert not business_number.is_valid(value)
    with pytest.raises(NumberError) as error:
        business_number.compact(value)
    assert error.value.problem == problem


def test_an_error_does_not_repeat_thirteen_digits_that_may_be_a_person() -> None:
    with pytest.raises(NumberError) as error:
        business_number.compact("900101-1234567")
    assert "1234567" not in str(error.value)


def test_none_is_a_missing_number() -> None:
    assert business_number.problem(None) == "missing"
    assert business_number.is_valid(None) is False


@examples(100)
@given(nine_digits)
def test_exactly_one_tenth_digit_is_right(nine: str) -> None:
    right = [digit for digit in range(10) if business_number.is_valid(f"{nine}{digit}")]
    assert right == [check_digit(nine)]


@given(st.one_of(st.text(max_size=16), st.text("0123456789-. E'", max_size=16), st.integers(), st.floats()))
def test_a_value_has_ten_digits_or_a_problem_and_never_both(value: object) -> None:
    problem = business_number.problem(value)
    if problem is None:
        digits = business_number.compact(value)
        assert len(digits) == 10
        assert digits.isdecimal()
        assert digits.isascii()
        assert business_number.compact(business_number.format(value)) == digits
    else:
        assert problem in business_number.PROBLEMS
        assert not business_number.is_valid(value)


@examples(100)
@given(
    st.lists(st.one_of(st.none(), st.text(max_size=14), st.sampled_from([s for s in SPELLINGS if isinstance(s, str)])))
)
def test_a_column_gives_what_its_values_give_one_by_one(values: list[str | None]) -> None:
    found = pl.DataFrame({"v": values}, schema={"v": pl.String}).select(
        problem=pl.col("v").brn.problem(),
        valid=pl.col("v").brn.is_valid(),
        digits=pl.col("v").brn.compact(),
    )
    for value, (problem, valid, digits) in zip(values, found.rows(), strict=True):
        assert problem == business_number.problem(value)
        assert valid == business_number.is_valid(value)
        assert digits == (None if problem else business_number.compact(value))


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64, pl.Float64, pl.Decimal(12, 1), pl.String])
def test_the_namespace_reads_columns_of_any_dtype_that_prints_as_a_number(dtype: pl.DataType) -> None:
    frame = pl.DataFrame({"v": pl.Series([1248100998, None]).cast(dtype)})
    assert frame.select(pl.col("v").brn.format())["v"].to_list() == ["124-81-00998", None]


def test_a_32_bit_float_is_refused_since_it_has_rounded_the_number_to_that_of_another() -> None:
    rows = pl.LazyFrame({"v": pl.Series([1248100998.0, None, 1234.0], dtype=pl.Float32)})
    found = rows.select(digits=pl.col("v").brn.compact(), problem=pl.col("v").brn.problem()).collect()
    assert found.rows() == [(None, "rounded"), (None, "missing"), (None, "too_short")]
    assert business_number.problem(np.float32(1248100998)) == "rounded"
    assert not business_number.is_valid(np.float32(1248100998))


@pytest.mark.parametrize(
    ("middle", "kind"),
    [
        ("01", "sole_trader"),
        ("79", "sole_trader"),
        ("80", "unincorporated"),
        ("81", "company"),
        ("82", "non_profit"),
        ("83", "public"),
        ("84", "foreign"),
        ("85", "branch"),
        ("86", "company"),
        ("88", "company"),
        ("89", "religious"),
        ("90", "tax_exempt"),
        ("99", "tax_exempt"),
        ("00", None),
    ],
)
def test_the_middle_digits_tell_the_kind_of_business(middle: str, kind: str | None) -> None:
    assert business_number.kind(f"124{middle}00998") == kind


def test_problem_texts_stand_in_both_languages() -> None:
    for texts in business_number.PROBLEMS.values():
        assert set(texts) == {"en", "ko"}
        assert all(texts.values())


def test_known_companies_and_numbers_found_online_are_judged_rightly(shared: Path) -> None:
    for file, right in (("known_companies.csv", 21), ("stdnum_found_online_234.csv", 231)):
        with (shared / "status" / file).open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        judged = [business_number.is_valid(row["b_no"]) for row in rows]
        assert judged == [row["checksum_ok"] == "True" for row in rows]
        assert sum(judged) == right
