"""What became of earlier letters: which of them counts for a row, and how a run uses and tells it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.engine.overlays import HISTORY, HISTORY_SCHEMA, address_key, attach_history
from bansong.errors import LabelError, UsageError
from bansong.history.labels import LabelStore
from bansong.labels.label import label
from conftest import NINE, NOTHING_CHECKED, json_of, write

TODAY = date(2026, 11, 22)
NUMBER = 1248100998
ADDRESS = "경기도 수원시 영통구 삼성로 129"

Letter = tuple[int, str, str, date]


def key_of(address: str | None) -> str | None:
    found: str | None = pl.select(address_key(pl.lit(address, pl.String))).item()
    return found


def told(*letters: Letter, number: int | None = NUMBER, address: str | None = ADDRESS) -> str | None:
    """What a history of (number, address, outcome, day of mailing) says of one row."""
    rows = [(b_no, key_of(written), outcome, mailed) for b_no, written, outcome, mailed in letters]
    history = pl.LazyFrame(rows, schema=HISTORY_SCHEMA, orient="row")
    frame = pl.LazyFrame({"key": [number], "address": [address]}, schema={"key": pl.UInt64, "address": pl.String})
    found: str | None = attach_history(frame, history, TODAY).collect(engine="streaming")[HISTORY].item()
    return found


def letter(outcome: str, year: int, month: int, day: int) -> Letter:
    return NUMBER, ADDRESS, outcome, date(year, month, day)


# letters to one address (newest last) → what they say today; in whatever order they were recorded
SAID: list[tuple[list[Letter], str | None]] = [
    ([letter("moved", 2021, 1, 1)], "moved"),  # what came back is remembered for good
    ([letter("absent", 2021, 1, 1)], "absent"),
    ([letter("delivered", 2025, 11, 23)], "delivered"),  # what arrived, for a year
    ([letter("delivered", 2025, 11, 22)], None),
    ([letter("moved", 2025, 1, 1), letter("delivered", 2026, 6, 1)], "delivered"),
    ([letter("delivered", 2025, 12, 1), letter("moved", 2026, 6, 1)], "moved"),
    ([letter("moved", 2023, 1, 1), letter("delivered", 2024, 1, 1)], None),  # an older return is out of date, too
    ([letter(outcome, 2026, 6, 1) for outcome in ("absent", "moved", "delivered")], "moved"),  # says the most
    ([letter("moved", 2026, 11, 23)], None),  # of the future
]


@pytest.mark.parametrize(("letters", "outcome"), SAID)
def test_the_newest_letter_counts_while_it_is_valid(letters: list[Letter], outcome: str | None) -> None:
    assert told(*letters) == told(*reversed(letters)) == outcome


def test_a_letter_is_of_its_number_and_address_alone() -> None:
    moved = letter("moved", 2026, 6, 1)
    assert told(moved, number=1208147521) is None
    for address in ("서울특별시 강남구 테헤란로 152", None, "", "-", "경기도 수원시 영통구 삼성로 1**"):
        assert told(moved, address=address) is None


def test_rows_keep_their_order_and_their_number() -> None:
    pair = pl.LazyFrame({"key": [NUMBER, 1], "address": [ADDRESS, "다른 곳"]}, schema_overrides={"key": pl.UInt64})
    rows = pl.concat([pair] * 2_500).with_row_index("row")
    letters = [(NUMBER, key_of(ADDRESS), "moved", date(2026, month, 1)) for month in range(1, 11)]
    history = pl.LazyFrame(letters, schema=HISTORY_SCHEMA, orient="row")
    found = attach_history(rows, history, TODAY).collect(engine="streaming").select("row", HISTORY)
    assert found.rows() == list(enumerate(["moved", None] * 2_500))


def test_spellings_of_one_address_have_one_key() -> None:
    """Spaces, punctuation, case, width and Unicode's forms make no other address; another number or unit does."""
    for one, other in (
        ("서울특별시 강남구 테헤란로 152, 3층", "서울특별시  강남구 테헤란로152(3층)"),
        ("강남구 테헤란로 １５２", "강남구 테헤란로 152"),
        ("TOWER 3층, 센텀로 97", "tower 3층 센텀로 97"),
        ("강남구 테헤란로\u00a0152\u200b", "강남구 테헤란로 152"),
        ("\u1100\u1161\u11bc남구 1", "강남구 1"),
    ):
        assert key_of(one) == key_of(other) is not None
    assert len({key_of(address) for address in (ADDRESS, f"{ADDRESS}, 3층", "경기도 수원시 영통구 삼성로 130")}) == 3
    assert [key_of(address) for address in (None, " - ", "없음", "삼성로 ***", "()")] == [None] * 5


def test_two_numbers_are_not_one() -> None:
    """Whatever parts two numbers of an address is one dash in its key, so that 12-3 is not 123."""
    keys: dict[str | None, str | None] = {
        "연동 123": "연동123",
        "연동 1 2 3": "연동1-2-3",
        "연동 １２－３": "연동12-3",
        "연동 12 , - 3번지": "연동12-3번지",
        "- 연동 12-3 -": "연동12-3",
        "연동 12 가 3-1": "연동12가3-1",
    }
    assert {written: key_of(written) for written in keys} == keys


HEAD = "사업자번호,상호,주소\n"
CAME_BACK = f"124-81-00998,삼성전자,{ADDRESS}\n"
ARRIVED = "120-81-47521,카카오,제주특별자치도 제주시 첨단로 242\n"
UNKNOWN = "220-81-62517,네이버,경기도 성남시 분당구 정자일로 95\n"
THREE = ("bounced", "bounce_reason", "bounced_at")


@pytest.fixture(scope="module")
def mailed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and the state that each test has a copy of."""
    folder = tmp_path_factory.mktemp("mailed")
    (folder / "files").mkdir()
    source = write(folder / "files" / "in.csv", HEAD + CAME_BACK + ARRIVED + UNKNOWN)
    outcomes = write(folder / "outcomes.csv", "row_id,반송여부,반송사유,반송일자\n0,Y,이사불명,2026-10-12\n1,N,,\n")
    day = date(2026, 10, 1)
    told: dict[str, Any] = {"mailed": day, "returns_requested": True, "complete": True, "today": TODAY}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        out = bs.enrich(source, today=day).output
        assert label(outcomes, file=out, **told).exit_code == 0
    return folder


@pytest.fixture
def mailed(mailed_once: Path, tmp_path: Path, state_directory: Path) -> Path:
    """A list that was mailed on 1 October; one letter came back, one arrived, of one nothing is known."""
    shutil.copytree(mailed_once / "files", tmp_path, dirs_exist_ok=True)
    shutil.copytree(mailed_once / "state", state_directory, dirs_exist_ok=True)
    return tmp_path / "in.csv"


def points(frame: pl.DataFrame) -> list[list[str]]:
    """The history of each row as its reasons tell it."""
    split = [row.split(" | ") if isinstance(row, str) else row for row in frame["reasons"].to_list()]
    return [[reason.partition("]")[0] + "]" for reason in row if reason.startswith("[history ")] for row in split]


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def test_a_run_knows_what_became_of_earlier_letters(mailed: Path, tmp_path: Path) -> None:
    """The user's own book is used without being asked for; rows, report and manifest say so."""
    report = bs.enrich(mailed, today=TODAY)
    assert points(read(mailed.with_name("in.enriched.csv"))) == [["[history +38]"], ["[history -16]"], []]
    assert ("history", "2 letters of 1 mailing") in report.lines()
    told = json_of(Path(str(report.manifest)))
    assert (told["history"]["letters"], told["history"]["mailings"]) == (2, 1)
    assert told["versions"]["history"] == report.versions.history is not None
    (tmp_path / "empty").mkdir()
    for book in (False, tmp_path / "empty"):
        report = bs.enrich(mailed, today=TODAY, labels=book)
        assert points(read(mailed.with_name("in.enriched.csv"))) == [[], [], []]
        assert (report.history, report.versions.history, "history" in dict(report.lines())) == (None, None, False)
    with pytest.raises(LabelError, match="there is no such folder"):
        bs.enrich(mailed, labels=tmp_path / "nowhere")


@NOTHING_CHECKED
def test_frames_and_single_businesses_have_a_history_too(mailed: Path) -> None:
    assert points(bs.verify_frame(read(mailed), today=TODAY)) == [["[history +38]"], ["[history -16]"], []]
    for labels in (None, False):
        one = bs.verify("124-81-00998", address=ADDRESS, today=TODAY, labels=labels)
        assert any("[history +38]" in reason for reason in one.reasons) == (labels is None)


def test_outcomes_are_joined_back_and_stay_where_none_are_asked_for(mailed: Path, tmp_path: Path) -> None:
    """Three columns more, behind the nine, with what became of the row's last letter; all rows and cells stay."""
    once, twice, kept = (tmp_path / name for name in ("once.csv", "twice.csv", "kept.csv"))
    assert bs.enrich(mailed, once, today=TODAY, with_outcomes=True).counts["verified"] == 3
    found = read(once)
    assert found.columns == [*read(mailed).columns, *NINE, *THREE]
    assert found["상호"].to_list() == ["삼성전자", "카카오", "네이버"]
    assert found.select(THREE).rows() == [("true", "이사불명", "2026-10-12"), ("false", None, None), (None,) * 3]
    bs.enrich(once, twice, today=TODAY, with_outcomes=True)
    bs.enrich(once, kept, today=TODAY)
    assert twice.read_bytes() == kept.read_bytes() == once.read_bytes()


def test_outcomes_are_of_an_address_and_of_the_book(mailed: Path, tmp_path: Path) -> None:
    """A list of numbers alone gets the three columns, empty; without the book there are none to be had."""
    source = write(tmp_path / "numbers.csv", "사업자번호\n124-81-00998\n")
    bs.enrich(source, today=TODAY, with_outcomes=True)
    assert read(tmp_path / "numbers.enriched.csv").select(THREE).rows() == [(None, None, None)]
    with pytest.raises(UsageError, match="leave `labels=False` out"):
        bs.enrich("nothing.csv", labels=False, with_outcomes=True)


def test_the_command_line_has_the_same_options(mailed: Path, run: Callable[..., Any]) -> None:
    book = Path(os.environ["BANSONG_STATE_DIR"]) / "labels"
    found = [
        run("verify", "124-81-00998", "--address", ADDRESS, *options).stdout
        for options in ((), ("--labels", book), ("--no-labels",))
    ]
    assert ["[history" in said for said in found] == [True, True, False]
    both = run("enrich", mailed, "--labels", ".", "--no-labels")
    assert both.returncode == 2
    assert "exclude each other" in both.stderr


def test_one_business_is_looked_up_without_reading_the_others(mailed: Path) -> None:
    """What the book has of one number is what it has of it among all; of a number that is not there it has nothing."""
    every = LabelStore().history()
    assert every is not None
    for number, letters in ((NUMBER, 1), (1208147521, 1), (1234567891, 0)):
        alone = LabelStore().history(str(number))
        assert alone is not None
        assert alone.collect().equals(every.filter(pl.col("b_no") == number).collect())
        assert alone.collect().height == letters
