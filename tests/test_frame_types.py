"""verify_frame gives back what it was given: library, index, dtypes and headers of the user's columns."""

from __future__ import annotations

import datetime as dt
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import ColumnError, InputError, UsageError
from examples import examples

NINE = list(ADDED_COLUMNS)
NUMBERS = ["124-81-00998", "220-81-62517", None, "no number"]
pytestmark = pytest.mark.filterwarnings("ignore:0 of .* statuses checked", "ignore:no address column")

_DAYS = st.one_of(st.none(), st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2040, 1, 1)))
_DTYPES: dict[str, st.SearchStrategy[Any]] = {
    "object": st.one_of(st.none(), st.text(max_size=4), st.integers(-9, 9), st.booleans()),
    "string": st.one_of(st.none(), st.text(max_size=4)),
    "category": st.one_of(st.none(), st.sampled_from(["서울", "부산"])),
    "Int64": st.one_of(st.none(), st.integers(-(2**62), 2**62)),
    "int8": st.integers(-128, 127),
    "float32": st.floats(width=32, allow_infinity=False),
    "boolean": st.one_of(st.none(), st.booleans()),
    "datetime64[ns, Asia/Seoul]": _DAYS,
    "datetime64[us]": _DAYS,
    "timedelta64[ns]": st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    "int64[pyarrow]": st.one_of(st.none(), st.integers(-9, 9)),
    "string[pyarrow]": st.one_of(st.none(), st.text(max_size=4)),
}


@st.composite
def pandas_frames(draw: st.DrawFn) -> pd.DataFrame:
    """Frames with a column of business numbers among columns of any dtype, under any index."""
    rows = draw(st.integers(0, 4))
    kinds = draw(st.lists(st.sampled_from(sorted(_DTYPES)), max_size=4))
    columns = {
        f"열 {place}": (kind, draw(st.lists(_DTYPES[kind], min_size=rows, max_size=rows)))
        for place, kind in enumerate(kinds)
    }
    index = draw(
        st.sampled_from(
            [
                pd.RangeIndex(5, 5 + rows),
                pd.Index(["같은"] * rows, dtype=object, name="키"),
                pd.MultiIndex.from_tuples([("a", place) for place in range(rows)], names=["반", None]),
                pd.date_range("2026-01-01", periods=rows, tz="Asia/Seoul", name="날")[::-1],
            ]
        )
    )
    made = {name: pd.Series(pd.array(values, dtype=kind), index=index) for name, (kind, values) in columns.items()}
    numbers = pd.Series(NUMBERS[:rows], dtype=draw(st.sampled_from(["object", "string", "category"])))
    numbers.index = index
    place = draw(st.integers(0, len(made)))
    names = [*list(made)[:place], "사업자번호", *list(made)[place:]]
    return pd.DataFrame(made | {"사업자번호": numbers}, index=index)[names]


@examples(80)
@given(pandas_frames())
def test_a_pandas_frame_comes_back_as_it_was(frame: pd.DataFrame) -> None:
    before = frame.copy(deep=True)
    found = bs.verify_frame(frame, columns={"b_no": "사업자번호"}, labels=False)
    assert isinstance(found, pd.DataFrame)
    pd.testing.assert_frame_equal(found[list(before.columns)], before)
    pd.testing.assert_frame_equal(frame, before)
    assert found.columns.to_list() == [*before.columns, *NINE]
    verified = [value in NUMBERS[:2] for value in NUMBERS[: len(frame)]]
    assert [status == "verified" for status in found["row_status"]] == verified


def test_headers_of_several_levels_are_understood_and_kept() -> None:
    columns = pd.MultiIndex.from_tuples(
        [("고객", "상호"), ("고객", "사업자등록번호"), ("소재지", "주소"), ("비고", "Unnamed: 3_level_1")],
        names=["큰", None],
    )
    frame = pd.DataFrame([["삼성전자", "124-81-00998", "경기 수원시 영통구 삼성로 129", 1]], columns=columns)
    found = bs.verify_frame(frame, labels=False)
    assert found.columns.to_list() == [*columns, *((name, "") for name in NINE)]
    assert found.columns.names == ["큰", None]
    assert found["row_status"].to_list() == ["verified"]
    assert found["bounce_prob"].item() > 0
    pd.testing.assert_frame_equal(found[list(columns)], frame)


def test_a_frame_that_is_verified_again_has_the_nine_once() -> None:
    frame = pl.DataFrame({"사업자번호": NUMBERS, "주소": ["서울 중구 세종대로 110"] * 4, "메모": list("abcd")})
    for given_ in (frame, frame.to_pandas(), frame.to_arrow()):
        once = bs.verify_frame(given_, labels=False)
        moved = (
            once[[*NINE, *frame.columns]] if isinstance(once, pd.DataFrame) else once.select([*NINE, *frame.columns])
        )
        again = bs.verify_frame(moved, labels=False)
        assert type(again) is type(given_)
        assert pl.DataFrame(again).equals(pl.DataFrame(moved))


def test_an_arrow_table_keeps_its_columns_and_metadata() -> None:
    table = pa.table(
        {
            "사업자번호": pa.array(NUMBERS).dictionary_encode(),
            "금액": pa.array([1, 2, None, 4]).cast(pa.decimal128(30, 2)),
            "때": pa.array([0, 1, 2, None], pa.timestamp("ms", "Asia/Seoul")),
        }
    )
    fields = [table.schema.field(0).with_metadata({"a": "b"}), table.schema.field(1), table.schema.field(2)]
    table = table.cast(pa.schema(fields, metadata={"누가": "우리"}))
    for given_ in (table, table.to_batches()[0], table.slice(0, 0)):
        found = bs.verify_frame(given_, labels=False)
        assert type(found) is type(given_)
        assert found.select(given_.schema.names).equals(given_, check_metadata=True)
        assert found.schema.names == [*given_.schema.names, *NINE]


def test_the_answers_are_the_same_in_every_library() -> None:
    frame = pl.DataFrame({"사업자번호": NUMBERS, "주소": ["서울 중구 세종대로 110", "부산", None, ""]})
    answers = bs.verify_frame(frame, labels=False).select(NINE)
    assert pl.DataFrame(bs.verify_frame(frame.to_arrow(), labels=False)).select(NINE).equals(answers)
    as_pandas = pl.from_pandas(bs.verify_frame(frame.to_pandas(), labels=False)[NINE])
    assert as_pandas.cast(dict(answers.schema)).equals(answers)
    lazy = bs.verify_frame(frame.lazy(), labels=False)
    assert isinstance(lazy, pl.LazyFrame)
    assert lazy.select(NINE).collect().equals(answers)


class Subclass(pd.DataFrame):
    @property
    def _constructor(self) -> type[Subclass]:
        return Subclass


class Stream:
    """What duckdb's relations and others are: an object that gives Arrow data."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.filterwarnings("ignore:Passing a BlockManager:DeprecationWarning")  # pandas 2.2 of its own doing
def test_frames_of_other_kinds_are_taken() -> None:
    """A subclass of pandas' stays one, with its attrs; of what gives Arrow data a pyarrow Table is made."""
    table = pa.table({"사업자번호": ["124-81-00998"], "메모": ["가"]})
    frame = Subclass(table.to_pandas())
    frame.attrs["origin"] = "crm"
    verified = bs.verify_frame(frame)
    assert (type(verified), verified.attrs, frame.attrs) == (Subclass, {"origin": "crm"}, {"origin": "crm"})
    for given_frame in (Stream(table), table.to_reader()):
        verified = bs.verify_frame(given_frame)
        assert verified.select(table.column_names).equals(table)
        assert verified.column_names == ["사업자번호", "메모", *NINE]


def test_columns_that_polars_has_no_type_for_are_the_users_own() -> None:
    odd = {
        "complex": pd.Series([1 + 2j, 3j]),
        "sparse": pd.arrays.SparseArray([0, 1]),
        "large": pd.Series([2**70, 1], dtype=object),
        "period": pd.period_range("2026-01", periods=2, freq="M"),
    }
    frame = pd.DataFrame({"사업자번호": NUMBERS[:2], **odd})
    pd.testing.assert_frame_equal(bs.verify_frame(frame)[list(frame.columns)], frame)
    spans = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())
    table = pa.table({"기간": spans, "사업자번호": NUMBERS[:2]})
    assert bs.verify_frame(table).select(["기간", "사업자번호"]).equals(table)


def test_a_frame_given_to_enrich_is_sent_to_verify_frame() -> None:
    for frame in (pd.DataFrame({"b_no": NUMBERS}), pl.DataFrame({"b_no": NUMBERS}), Stream(pa.table({}))):
        with pytest.raises(UsageError, match=r"verify_frame\(\)"):
            bs.enrich(frame)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match=r"verify_frame\(\)"):
            bs.enrich([frame], "out.csv")


def test_no_warning_about_a_frame_names_what_verify_frame_does_not_take() -> None:
    """Its columns may be called 0, 1, 2; it has no header row that could be one of the list."""
    frame = pd.DataFrame(
        [[number, "가", "서울 종로구 종로 1"] for number in (NUMBERS[0], "220-81-62517", "120-81-47521")]
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        bs.verify_frame(frame)
    assert [str(one.message) for one in warned if "chosen by what it holds" in str(one.message)]
    assert [str(one.message) for one in warned if "has_header" in str(one.message)] == []


def test_what_is_no_frame_yet_is_refused_with_the_remedy() -> None:
    lazy = type("DataFrame", (), {"__module__": "dask.dataframe.dask_expr"})()
    index = pd.DataFrame({"사업자번호": NUMBERS[:1]}).set_index("사업자번호")
    for given_, code in ((lazy, "files.dask_not_computed"), (index, "files.frame_without_columns")):
        with pytest.raises(InputError) as caught:
            bs.verify_frame(given_)
        assert caught.value.code == code


@pytest.mark.parametrize("empty", [pd.DataFrame(), pl.DataFrame(), pl.LazyFrame(), pa.table({})])
def test_a_frame_without_columns_comes_back_with_the_nine(empty: Any) -> None:
    found = bs.verify_frame(empty)
    if isinstance(found, pl.LazyFrame):
        found = found.collect()
    assert list(getattr(found, "column_names", found.columns)) == list(NINE)
    assert len(found) == 0


@pytest.mark.parametrize(
    ("frame", "columns"),
    [
        (pl.DataFrame({"사업자번호": [["1248100998"]]}), None),
        (pl.DataFrame({"번호": [b"1248100998"]}), None),
        (pd.DataFrame([["가", "나"]], columns=pd.Index([("a", "b"), 7])), None),
        (pl.DataFrame({"사업자번호": ["1248100998"], "상호": [["가"]]}), {"name": "상호"}),
    ],
    ids=["list", "bytes", "odd headers", "given"],
)
def test_no_message_names_a_column_that_the_frame_does_not_have(frame: Any, columns: dict[str, str] | None) -> None:
    with pytest.raises(ColumnError) as raised:
        bs.verify_frame(frame, columns=columns)
    assert not re.search(r"\bc[0-9]|row_id", str(raised.value))


def test_pandas_rows_have_reasons_of_their_own() -> None:
    frame = pd.DataFrame({"사업자번호": [*NUMBERS, NUMBERS[0]]})
    found = bs.verify_frame(frame, labels=False)
    first, *_, last = found["reasons"]
    assert (type(first), {type(text) for text in first}, found["reasons"][2]) == (list, {str}, None)
    assert first == last
    first.append("seen")
    assert first != last
    assert found["row_note"].dtype == pd.Series(["text"]).dtype


FRAME = pl.DataFrame({"사업자번호": NUMBERS, "주소": ["서울 중구 세종대로 110"] * 4})
WRONG = [
    *({option: FRAME} for option in ("columns", "engine", "registry", "model", "today", "labels", "status", "choices")),
    *({option: FRAME.to_pandas()} for option in ("lang", "prefix", "extra_columns", "progress", "gazetteer")),
    *({option: 3} for option in ("columns", "engine", "registry", "gazetteer", "model", "labels")),
    {"labels": True},
    {"engine": "verify", "budget": FRAME.lazy()},
    {"columns": {"b_no": "없는 열"}},
]


@pytest.mark.parametrize("options", WRONG, ids=lambda options: " ".join(options))
def test_a_wrong_argument_is_said_in_a_line_without_the_rows_of_a_frame(options: dict[str, Any]) -> None:
    with pytest.raises((UsageError, InputError)) as caught:
        bs.verify_frame(FRAME, **options)
    said = traceback.format_exception(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len("".join(said).splitlines()) <= 11
    assert "세종대로" not in str(caught.value)


def test_what_is_no_frame_or_no_file_is_refused_with_a_short_traceback() -> None:
    calls: dict[str, Callable[[], object]] = {
        "files.not_a_table": lambda: bs.verify_frame(3),  # type: ignore[call-overload]
        "options.enrich_type_wrong": lambda: bs.enrich("a.csv", FRAME),  # type: ignore[call-overload]
    }
    for code, call in calls.items():
        with pytest.raises((UsageError, InputError)) as caught:
            call()
        assert caught.value.code == code
        assert len("".join(traceback.format_exception(caught.value)).splitlines()) <= 14
