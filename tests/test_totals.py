"""Rows that are no businesses, totals and headers again: kept, marked, never asked about."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.run.accounting import PROBLEMS
from conftest import SAMPLE, write

HEADER = "순번,사업자등록번호,상호,금액"
GOOD = "1,124-81-00998,삼성전자,100"
NOTE = "a totals row, not a business"


def enriched(tmp_path: Path, *lines: str, header: str = HEADER) -> pl.DataFrame:
    path = write(tmp_path / "x.csv", "\n".join([header, *lines, ""]))
    bs.enrich(path, tmp_path / "y.csv")
    found = pl.read_csv(tmp_path / "y.csv", infer_schema=False)
    given = pl.read_csv(path, infer_schema=False)
    assert found.select(given.columns).equals(given)
    return found


LABELS = [
    *("합계", "총계", "소계", "총합계", "계", "누계", "total", "Grand Total", "SUBTOTAL", "sub-total", "Sum", "합계:"),
    *("합 계", " 합  계 ", "[합계]", "** 합계 **", "◆ 소 계 ◆", "<TOTAL>", "합계 120건", "합계(1,234건)", "합계 120"),
    *("총 120건", "총1,200개", "(총 3곳)", "Total: 120 rows"),
]
NAMES = [
    "합계상사",
    "계림",
    "총무부",
    "합계금액",
    "(주)토탈",
    "totally",
    "sumit",
    "총 120",
    "3건",
    "소계획",
    "합계 외 3",
]
AGAIN, OTHER = "the header again, not a business", "holds other characters than digits and separators"


def test_a_totals_row_is_kept_marked_and_never_asked_about(tmp_path: Path) -> None:
    """Whatever its spelling, in the first column, the number's or the name's; names that hold such a word are names."""
    rows = [",".join(f'"{label}"' if place == at else "" for at in range(3)) for label in LABELS for place in range(3)]
    found = enriched(tmp_path, GOOD, *(f"{row},100" for row in rows), *(f",,{name},100" for name in NAMES))
    assert found["row_status"].to_list() == ["verified", *["invalid"] * (found.height - 1)]
    assert found["row_note"][1:].to_list() == [NOTE] * len(rows) + ["no business number"] * len(NAMES)


def test_a_business_may_be_called_total(tmp_path: Path) -> None:
    """A number with a right check digit is a business, whatever its name; one with a wrong digit is none then."""
    found = enriched(tmp_path, "계,124-81-00998,합계,1", "계,124-81-00999,합계,1", "1,124-81-00999,삼성전자,1")
    assert found["row_status"].to_list() == ["verified", "invalid", "verified"]
    assert found["row_note"].to_list() == [None, NOTE, None]


def test_a_header_among_the_rows_is_marked(tmp_path: Path) -> None:
    rows = [GOOD, HEADER, " 순번 ,사업자등록번호,상호,금액", "순번,사업자등록번호,상호,0", GOOD]
    assert enriched(tmp_path, *rows)["row_note"].to_list() == [None, AGAIN, AGAIN, OTHER, None]
    bs.enrich(tmp_path / "y.csv", tmp_path / "z.csv")
    assert (tmp_path / "z.csv").read_bytes() == (tmp_path / "y.csv").read_bytes()


def test_labels_behind_the_number_and_a_blank_below_a_blank_header_are_none(tmp_path: Path) -> None:
    found = enriched(tmp_path, "1,,가,합계", header="순번,사업자등록번호,상호,비고")
    assert found["row_note"].to_list() == ["no business number"]
    found = enriched(tmp_path, "a,124-81-00998", "a,220-81-62517", "a,120-81-47521", "메모,", header="메모,")
    assert found["row_note"].to_list()[3] == "no business number"


def test_the_plan_counts_them_apart(tmp_path: Path) -> None:
    rows = [GOOD, HEADER, "합계,,,100", "계,124-81-00999,,1", "2,,x,1"]
    path = write(tmp_path / "x.csv", "\n".join([HEADER, *rows, ""]))
    planned, done = bs.plan(path).plan, bs.enrich(path).plan
    assert planned == done
    assert planned.invalid_by_problem == {"missing": 1, "totals_row": 2, "header_row": 1}
    assert (planned.rows, planned.lookups, planned.invalid) == (5, 1, 4)
    assert (planned.wrong_check_digits, planned.without_address) == (0, 1)
    assert set(planned.invalid_by_problem) <= set(PROBLEMS)


@pytest.mark.parametrize("type", [pl.String, pl.Categorical, pl.Enum(["합계", "1"])])
def test_frames_are_looked_at_in_the_same_way(type: pl.DataType) -> None:
    frame = pl.DataFrame(
        {"no": pl.Series(["1", "합계"], dtype=type), "b_no": [1248100998, 3345], "address": ["서울 강남구 1", None]}
    )
    found = bs.verify_frame(frame, registry=SAMPLE / "registry.parquet")
    assert found["row_note"].to_list() == [None, NOTE]
    assert found.row(1)[3:10] == (None,) * 7


def test_the_engine_takes_what_the_file_said_of_a_row() -> None:
    """`row_problem` makes a row invalid whatever its number; another column of that name is the caller's own."""
    engine = bs.LocalEngine()
    frame = pl.LazyFrame({"b_no": ["1248100998"] * 3, "row_problem": ["totals_row", None, "late payer"]})
    found = engine.verify(frame).collect()
    assert found["row_status"].to_list() == ["invalid", "verified", "verified"]
    assert found["row_problem"].to_list() == ["totals_row", None, "late payer"]
    numbers = engine.verify(pl.LazyFrame({"b_no": ["1248100998"], "row_problem": [7]})).collect()
    assert numbers["row_status"].to_list() == ["verified"]
