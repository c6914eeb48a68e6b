"""The header of a table is found below titles and over two lines, and a row of data is never taken for it."""

from __future__ import annotations

import csv

from hypothesis import given
from hypothesis import strategies as st

from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import InputError
from bansong.tables.headers import find_heading
from conftest import ROOT
from examples import examples

NUMBER = "124-81-00998"


def found(case: dict[str, str]) -> list[str]:
    """The header lines and headers of the rows of a golden line: cells divided by bars, rows by slashes."""
    rows = [
        [cell.strip("-") or None for cell in row.split("|")]
        for row in case["rows"].replace("NUMBER", NUMBER).split(" / ")
    ]
    merges = [tuple(map(int, merge.split("."))) for merge in case["merges"].split()]
    try:
        heading = find_heading([row if any(row) else [] for row in rows], merges)  # type: ignore[arg-type]
    except InputError as error:
        return [error.code, ""]
    return [f"{heading.first}-{heading.last}", "|".join(heading.headers)]


def test_headers_are_found() -> None:
    with (ROOT / "tests/golden/heading.csv").open(encoding="utf-8", newline="") as file:
        cases = list(csv.DictReader(file))
    differing = {case["case"]: found(case) for case in cases if found(case) != [case["lines"], case["headers"]]}
    assert differing == {}


CELL = st.one_of(
    st.none(),
    st.sampled_from([NUMBER, "b_no", "주소", "상호", "", "공급자", "1", *ADDED_COLUMNS[:2]]),
    st.text(max_size=5),
)


@examples(100)
@given(st.lists(st.lists(CELL, max_size=4), max_size=6), st.booleans())
def test_whatever_the_rows_hold_no_number_is_above_or_in_the_header(rows: list[list[str | None]], merged: bool) -> None:
    try:
        heading = find_heading(rows, [(0, 0, 1, 0), (1, 1, 1, 2)] if merged else [])
    except InputError:
        return
    above = rows[: heading.last + 1]
    assert all(NUMBER not in row for row in rows[heading.first : heading.last + 1])
    assert all(set(row) & {"b_no", "주소", "상호", "공급자", "biz_status"} for row in above if NUMBER in row)
    assert len(heading.headers) == max(len(row) for row in rows[heading.first : heading.last + 1])
