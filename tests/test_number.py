"""The business number: one rule, for a value and for a column, and nothing guessed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base import business_number
from bansong.errors import NumberError
from examples import examples

GOLDEN = Path(__file__).parent / "golden" / "business_numbers.csv"
with GOLDEN.open(encoding="utf-8", newline="") as lines:
    NUMBERS = [(row["written"], row["digits"] or None, row["problem"] or None) for row in csv.DictReader(lines)]
NUMBERS += [  # with characters that are not seen
    ("\ufeff124-81-00998", "1248100998", None),
    ("124\u00a081\u00a000998", "1248100998", None),
    (" 124-81-00998\t", "1248100998", None),
    ("031\u3000222 3333", None, "grouping"),
]
SPELLINGS = [written for written, digits, _ in NUMBERS if digits]


def check_digit(nine: str) -> int:
    """The rule of the tax service in plain Python, to hold the expressions against."""
    weights = (1, 3, 7, 1, 3, 7, 1, 3, 5)
    total = sum(int(digit) * weight for digit, weight in zip(nine, weights, strict=True))
    return (10 - (total + int(nine[8]) * 5 // 10) % 10) % 10


nine_digits = st.integers(1, 999_999_999).map(lambda n: f"{n:09d}")


def test_every_spelling_is_read_and_what_cannot_be_a_number_is_refused_with_its_reason() -> None:
    """As a value and as a column; a number of fewer or more digits is never guessed."""
    column = pl.DataFrame({"v": [written for written, *_ in NUMBERS]})
    read = column.select("v", digits=pl.col("v").brn.compact(), problem=pl.col("v").brn.problem())
    assert [one for one, wanted in zip(read.rows(), NUMBERS, strict=True) if one != wanted] == []
    for written, digits, problem in NUMBERS:
        assert business_number.problem(written) == problem, written
        if digits:
            assert business_number.compact(written) == digits
            continue
        with pytest.raises(NumberError) as error:
            business_number.compact(written)
        assert error.value.problem == problem
    for spelling in ("124-81-00998", 1248100998, 1248100998.0):
        assert business_number.format(spelling) == "124-81-00998"
        assert business_number.is_valid(spelling)
        assert business_number.kind(spelling) == "company"


def test_an_error_does_not_repeat_thirteen_digits_that_may_be_a_person() -> None:
    with pytest.raises(NumberError) as error:
        business_number.compact("900101-1234567")
    assert "1234567" not in str(error.value)
    assert business_number.problem(None) == "missing"


@examples(20)
@given(nine_digits)
def test_exactly_one_tenth_digit_is_right(nine: str) -> None:
    right = [digit for digit in range(10) if business_number.is_valid(f"{nine}{digit}")]
    assert right == [check_digit(nine)]


@examples(30)
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


@examples(25)
@given(st.lists(st.one_of(st.none(), st.text(max_size=14), st.sampled_from(SPELLINGS)), max_size=12))
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


@pytest.mark.parametrize("name", ["사업자번호", "", "^v.*$"])
def test_a_series_has_the_namespace_of_expressions(name: str) -> None:
    values = pl.Series(name, ["124-81-00998", "220-81-62518", "1.2E9", None])
    for method in ("compact", "is_valid", "format", "kind", "problem"):
        (told,) = pl.DataFrame({"v": values}).select(getattr(pl.col("v").brn, method)())
        for namespace in (values.brn, bs.brn(values)):
            found = getattr(namespace, method)()
            assert (found.name, found.to_list(), found.dtype) == (name, told.to_list(), told.dtype)
        assert getattr(bs.brn(pl.col("v")), method)().meta.eq(getattr(pl.col("v").brn, method)())
    assert values.clear().brn.is_valid().to_list() == []
    assert pl.Series([1248100998.0], dtype=pl.Float32).brn.problem().to_list() == ["rounded"]


def test_a_32_bit_float_is_refused_since_it_has_rounded_the_number_to_that_of_another() -> None:
    rows = pl.LazyFrame({"v": pl.Series([1248100998.0, None, 1234.0], dtype=pl.Float32)})
    found = rows.select(digits=pl.col("v").brn.compact(), problem=pl.col("v").brn.problem()).collect()
    assert found.rows() == [(None, "rounded"), (None, "missing"), (None, "too_short")]
    assert business_number.problem(np.float32(1248100998)) == "rounded"
    assert not business_number.is_valid(np.float32(1248100998))


def test_the_middle_digits_tell_the_kind_of_business() -> None:
    kinds = {
        **{"01": "sole_trader", "79": "sole_trader", "80": "unincorporated", "81": "company", "82": "non_profit"},
        **{"83": "public", "84": "foreign", "85": "branch", "86": "company", "88": "company", "89": "religious"},
        **{"90": "tax_exempt", "99": "tax_exempt", "00": None},
    }
    assert {middle: business_number.kind(f"124{middle}00998") for middle in kinds} == kinds


def test_problem_texts_stand_in_both_languages() -> None:
    for texts in business_number.PROBLEMS.values():
        assert set(texts) == {"en", "ko"}
        assert all(texts.values())


def test_known_companies_and_numbers_found_online_are_judged_rightly(shared: Path) -> None:
    for file, right in (("known_companies.csv", 21), ("stdnum_found_online_234.csv", 231)):
        rows = pl.read_csv(shared / "status" / file, infer_schema=False)
        judged = rows.select(pl.col("b_no").brn.is_valid()).to_series()
        assert judged.to_list() == (rows["checksum_ok"] == "True").to_list()
        assert judged.sum() == right
