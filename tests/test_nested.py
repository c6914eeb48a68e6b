"""What stands in objects within records, or in struct columns, is verified where it stands and comes back as it was."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import Alert
from bansong.errors import ColumnError
from conftest import NINE, json_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N, M = "124-81-00998", 2208162517
ROAD = "경기도 수원시 영통구 삼성로 129"
RECORDS: list[dict[str, Any]] = [
    {"id": 1, "biz": {"number": N, "title": "삼성전자", "addr": {"road": ROAD, "floor": "1.10"}}, "tags": ["a"]},
    {"id": 2, "biz": {"number": str(M), "title": "나", "addr": {"road": None, "floor": "2"}}, "tags": []},
]
SEVERAL_SHAPES: list[dict[str, Any]] = [
    {"id": 1, "biz": {"number": N, "title": "삼성전자", "addr": {"road": ROAD}}},
    {"id": 2, "biz": {"number": M, "title": "나", "more": 1.10}},
    {"id": 3, "biz": None},
]
COLUMNS = {"b_no": "biz.number", "name": "biz.title", "address": "biz.addr.road"}
FLAT = [{"b_no": N, "name": "삼성전자", "address": ROAD}, {"b_no": str(M), "name": "나", "address": None}]


def saved(path: Path, records: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pl.DataFrame(records).write_parquet(path)
    elif path.suffix == ".ndjson":
        path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), encoding="utf-8")
    else:
        path.write_text(json.dumps({"data": {"items": records}}, ensure_ascii=False), encoding="utf-8")
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dicts()
    if path.suffix == ".ndjson":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found: list[dict[str, Any]] = json_of(path)["data"]["items"]
    return found


def ours(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in NINE} for row in rows]


@pytest.fixture
def flat(tmp_path: Path) -> list[dict[str, Any]]:
    """What records without objects get."""
    bs.enrich(saved(tmp_path / "flat.ndjson", FLAT), tmp_path / "flat.out.ndjson")
    return ours(answers(tmp_path / "flat.out.ndjson"))


@pytest.mark.parametrize("name", ["in.json", "in.ndjson", "in.parquet"])
def test_keys_within_objects_can_be_named_and_the_objects_stay(
    tmp_path: Path, name: str, flat: list[dict[str, Any]]
) -> None:
    source = saved(tmp_path / name, RECORDS)
    report = bs.enrich(source, tmp_path / f"out.{name}", columns=COLUMNS)
    rows = answers(tmp_path / f"out.{name}")
    assert ours(rows) == flat
    assert [{key: value for key, value in row.items() if key not in NINE} for row in rows] == RECORDS
    choice = report.columns["b_no"]
    assert (choice.header, choice.column, choice.why) == ("biz.number", 1, "given")


@pytest.mark.parametrize("name", ["in.json", "in.ndjson"])
def test_objects_of_several_shapes_are_looked_into_all_the_same(
    tmp_path: Path, name: str, flat: list[dict[str, Any]]
) -> None:
    """Their column is text, since no type gives all of them back; a record without the object has no number."""
    source = saved(tmp_path / name, SEVERAL_SHAPES)
    bs.enrich(source, tmp_path / f"out.{name}", columns=COLUMNS)
    rows = answers(tmp_path / f"out.{name}")
    assert ours(rows)[:2] == flat
    assert rows[2]["row_status"] == "invalid"
    assert [{key: value for key, value in row.items() if key not in NINE} for row in rows] == SEVERAL_SHAPES


@pytest.mark.parametrize("frame", [pl.DataFrame(RECORDS), pd.DataFrame(RECORDS), pl.DataFrame(RECORDS).to_arrow()])
def test_struct_columns_of_frames_are_looked_into(frame: Any, flat: list[dict[str, Any]]) -> None:
    result = bs.verify_frame(frame, columns=COLUMNS)
    assert type(result) is type(frame)
    found = pl.DataFrame(result)
    assert ours(found.to_dicts()) == flat
    assert found["biz"].to_list() == [record["biz"] for record in RECORDS]


def test_a_header_that_is_spelled_with_dots_goes_before_the_object(tmp_path: Path) -> None:
    records = [{"biz.number": str(M), "biz": {"number": "no number"}}]
    report = bs.enrich(saved(tmp_path / "in.json", records), columns={"b_no": "biz.number"})
    assert report.columns["b_no"].column == 0
    assert report.account is not None
    assert report.account.by_row_status["verified"] == 1


def test_what_is_surely_meant_is_found_and_said(tmp_path: Path) -> None:
    """The number by its key, name and address where they stand in the same object; nothing of another object."""
    records = [
        {
            "거래처": {"사업자등록번호": N, "상호": "삼성전자", "위치": {"도로명주소": ROAD}},
            "담당자": {"name": "홍길동", "address": "서울시 어딘가 1"},
        }
    ] * 3
    for name in ("in.json", "in.parquet"):
        report = bs.enrich(saved(tmp_path / name, records), tmp_path / f"out.{name}")
        assert {role: (choice.header, choice.why) for role, choice in report.columns.items()} == {
            "b_no": ("거래처.사업자등록번호", "header"),
            "name": ("거래처.상호", "header"),
            "address": ("거래처.위치.도로명주소", "header"),
        }
        assert (
            "taken from within objects: b_no is '거래처.사업자등록번호', name is '거래처.상호', "
            "address is '거래처.위치.도로명주소'; `columns=` chooses others"
        ) in report.warnings


def test_a_column_goes_before_what_stands_within_an_object(tmp_path: Path) -> None:
    records = [{"b_no": N, "name": "삼성전자", "ceo": {"name": "이재용", "b_no": str(M)}}]
    report = bs.enrich(saved(tmp_path / "in.json", records))
    assert {role: choice.header for role, choice in report.columns.items()} == {"b_no": "b_no", "name": "name"}


def test_two_objects_that_fit_equally_well_are_an_error(tmp_path: Path) -> None:
    records = [{"supplier": {"b_no": N}, "buyer": {"b_no": str(M)}}]
    with pytest.raises(ColumnError, match=r"'supplier\.b_no' and 'buyer\.b_no' fit equally well .*'supplier\.b_no'}`"):
        bs.enrich(saved(tmp_path / "in.json", records))
    report = bs.enrich(saved(tmp_path / "in.json", records), columns={"b_no": "buyer.b_no"})
    assert report.columns["b_no"].header == "buyer.b_no"


def test_a_key_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"no column is headed 'biz\.no'; the headers are: .*biz\.number"):
        bs.enrich(saved(tmp_path / "in.json", RECORDS), columns={"b_no": "biz.no"})


@pytest.mark.parametrize("name", ["in.json", "in.parquet"])
def test_objects_under_the_header_of_a_role_are_not_taken_for_a_text(tmp_path: Path, name: str) -> None:
    records = [{"b_no": N, "address": {"road": ROAD, "floor": "1"}}]
    report = bs.enrich(saved(tmp_path / name, records), tmp_path / f"out.{name}")
    assert "address" not in report.columns
    said = "column 'address' holds objects and is not used; name the key that is the address: `columns={'address': '"
    assert f"{said}address.road'}}`" in report.warnings


ADDRESSES = [{"kind": "배송지", "line": ROAD}, {"kind": "본사", "line": "서울 중구 세종대로 110"}]


@pytest.mark.parametrize("name", ["in.json", "in.ndjson", "in.parquet", "in.csv"])
def test_the_values_of_a_list_can_be_named_and_the_alert_names_one(tmp_path: Path, name: str) -> None:
    """A list of objects, of JSON or of structs, is no address; its first address is named with its place."""
    if name == "in.csv":
        text = json.dumps(ADDRESSES, ensure_ascii=False).replace('"', '""')
        path = tmp_path / name
        path.write_text(f'b_no,addresses\n{N},"{text}"\n{M},\n', encoding="utf-8")
    else:
        path = saved(tmp_path / name, [{"b_no": N, "addresses": ADDRESSES}, {"b_no": str(M), "addresses": []}])
    report = bs.plan(path)
    assert "address" not in report.columns
    (alert,) = (one for one in report.warnings if "addresses.0.line" in one)
    assert isinstance(alert, Alert)
    for place, each in enumerate(ADDRESSES):
        report = bs.enrich(path, tmp_path / "out.parquet", columns={"address": f"addresses.{place}.line"})
        assert report.plan.without_address == 1
        reasons = pl.read_parquet(tmp_path / "out.parquet")["reasons"][0].to_list()
        assert reasons == list(bs.verify(N, None, each["line"]).reasons)
    with pytest.raises(ColumnError, match=r"addresses\.5"):
        bs.plan(path, columns={"address": "addresses.5.line"})


def test_a_cell_of_json_among_addresses_is_no_address(tmp_path: Path) -> None:
    """Nor is it in a frame, where it is not looked into; a postal code in brackets is part of an address."""
    object_ = json.dumps({"road": ROAD}, ensure_ascii=False)
    frame = pl.DataFrame({"b_no": [N, N, N, N], "address": [ROAD, f"[16677] {ROAD}", object_, "[]"]})
    blank = bs.verify(N, None, None)
    assert [one == list(blank.reasons) for one in bs.verify_frame(frame)["reasons"].to_list()] == [
        False,
        False,
        True,
        True,
    ]
    with pytest.warns(match="column 'address' holds objects and is not used as the address"):
        result = bs.verify_frame(pl.DataFrame({"b_no": [N], "address": [object_]}))
    assert result["bounce_prob"].to_list() == [None]


@pytest.mark.parametrize("name", ["in.json", "in.parquet", "in.csv"])
def test_a_list_whose_address_is_an_object_is_refused_with_the_key_to_name(tmp_path: Path, name: str) -> None:
    object_ = {"zip": "16677", "road": ROAD}
    if name == "in.csv":
        path = tmp_path / name
        rows = [{"name": "가나", "address": json.dumps(object_, ensure_ascii=False)}]
        path.write_text(pl.DataFrame(rows).write_csv(), encoding="utf-8")
    else:
        path = saved(tmp_path / name, [{"name": "가나", "address": object_}])
    with pytest.raises(ColumnError) as refused:
        bs.plan(path)
    assert "`columns={'address': 'address.road'}`" in str(refused.value)
    assert bs.plan(path, columns={"address": "address.road"}).rows == 1


@pytest.mark.parametrize("numbers", [True, False])
def test_objects_among_the_texts_of_an_address_column_are_told(tmp_path: Path, numbers: bool) -> None:
    rows: list[dict[str, Any]] = [{"name": "가", "address": ROAD}, {"name": "나", "address": {"zip": 1, "road": ROAD}}]
    path = saved(tmp_path / "in.json", [row | ({"b_no": N} if numbers else {}) for row in rows])
    remedy = "`columns={'address': 'address|address.road'}`"
    assert [one for one in bs.plan(path).warnings if isinstance(one, Alert) and remedy in one]
    report = bs.enrich(path, tmp_path / "out.parquet", columns={"address": "address|address.road"})
    assert not [one for one in report.warnings if remedy in one]
    assert pl.read_parquet(tmp_path / "out.parquet")["reasons"].n_unique() == 1


def test_outcomes_find_the_business_within_an_object(tmp_path: Path) -> None:
    """A mailing that was enriched by a nested key is labelled by the same key."""
    report = bs.enrich(saved(tmp_path / "in.json", RECORDS), tmp_path / "out.json", columns=COLUMNS)
    outcomes = tmp_path / "returned.csv"
    outcomes.write_text("사업자번호,반송사유\n124-81-00998,이사\n", encoding="utf-8")
    labelled = bs.label(
        outcomes, run=report.run_id, mailed=date.today(), returns_requested=True, output=tmp_path / "labelled.json"
    )
    assert dict(labelled.ways) == {"number": 1}
    assert [row["bounced"] for row in json_of(tmp_path / "labelled.json")["data"]["items"]] == [True, None]
