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
from bansong.base.schema import RECORD_COLUMNS, Alert
from bansong.errors import ColumnError
from bansong.tables.columns import Chosen
from bansong.tables.detect import open_table
from bansong.tables.nested import choose_nested
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


def text_of(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def saved(path: Path, records: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pl.DataFrame(records).write_parquet(path)
    elif path.suffix == ".ndjson":
        path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), encoding="utf-8")
    elif path.suffix == ".csv":
        texts = [
            {k: json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict) else v for k, v in row.items()}
            for row in records
        ]
        path.write_text(pl.DataFrame(texts).write_csv(), encoding="utf-8")
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


def theirs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in NINE} for row in rows]


def chosen(path: Path, columns: dict[str, str] | None = None) -> Chosen:
    with open_table(path) as table:
        return choose_nested(table, RECORD_COLUMNS, columns, address_list=True)[1]


def headers_of(found: Chosen) -> dict[str, str]:
    return {role: choice.header for role, choice in found.columns.items()}


@pytest.fixture(scope="module")
def flat() -> list[dict[str, Any]]:
    """What records without objects get."""
    return ours(bs.verify_frame(pl.DataFrame(FLAT), labels=False).to_dicts())


@pytest.mark.parametrize(
    ("name", "records"),
    [("in.json", RECORDS), ("in.ndjson", SEVERAL_SHAPES), ("in.parquet", RECORDS)],
)
def test_keys_within_objects_can_be_named_and_the_objects_stay(
    tmp_path: Path, name: str, records: list[dict[str, Any]], flat: list[dict[str, Any]]
) -> None:
    """Objects of several shapes are a column of text; a record without the object has no number."""
    report = bs.enrich(saved(tmp_path / name, records), tmp_path / f"out.{name}", columns=COLUMNS)
    rows = answers(tmp_path / f"out.{name}")
    assert (ours(rows)[:2], theirs(rows)) == (flat, records)
    assert [row["row_status"] for row in rows[2:]] == ["invalid"] * (len(records) - 2)
    choice = report.columns["b_no"]
    assert (choice.header, choice.column, choice.why) == ("biz.number", 1, "given")


@pytest.mark.parametrize("frame", [pl.DataFrame(RECORDS), pd.DataFrame(RECORDS), pl.DataFrame(RECORDS).to_arrow()])
def test_struct_columns_of_frames_are_looked_into(frame: Any, flat: list[dict[str, Any]]) -> None:
    result = bs.verify_frame(frame, columns=COLUMNS, labels=False)
    assert type(result) is type(frame)
    found = pl.DataFrame(result)
    assert ours(found.to_dicts()) == flat
    assert found["biz"].to_list() == [record["biz"] for record in RECORDS]


@pytest.mark.parametrize("name", ["in.json", "in.parquet"])
def test_what_is_surely_meant_is_found_and_said(tmp_path: Path, name: str) -> None:
    """The number by its key, name and address in the same object; nothing of another object."""
    biz = {"사업자등록번호": N, "상호": "삼성전자", "위치": {"도로명주소": ROAD}}
    found = chosen(saved(tmp_path / name, [{"거래처": biz, "담당자": {"name": "홍길동", "address": "서울 1"}}] * 3))
    wanted = {"b_no": "거래처.사업자등록번호", "name": "거래처.상호", "address": "거래처.위치.도로명주소"}
    assert headers_of(found) == wanted
    assert {choice.why for choice in found.columns.values()} == {"header"}
    assert [note for note in found.notes if all(repr(header) in note for header in wanted.values())]


@pytest.mark.parametrize(
    ("record", "columns", "wanted"),
    [
        ({"biz.number": str(M), "biz": {"number": "no"}}, {"b_no": "biz.number"}, {"b_no": "biz.number"}),
        ({"b_no": N, "name": "가", "ceo": {"name": "나", "b_no": str(M)}}, None, {"b_no": "b_no", "name": "name"}),
        ({"supplier": {"b_no": N}, "buyer": {"b_no": str(M)}}, None, "'supplier.b_no' and 'buyer.b_no' fit equally"),
        ({"supplier": {"b_no": N}, "buyer": {"b_no": str(M)}}, {"b_no": "buyer.b_no"}, {"b_no": "buyer.b_no"}),
        (RECORDS[0], {"b_no": "biz.no"}, "no column is headed 'biz.no'; the headers are: "),
        ({"b_no": N, "l": [{"road": ROAD}]}, {"address": "l.5.road"}, "no column is headed 'l.5.road'"),
        ({"l": [{"사업자번호": N}], "memo": "가"}, None, "no column with business numbers was found"),
    ],
)
def test_a_column_goes_before_a_key_and_equal_keys_are_the_users_choice(
    tmp_path: Path, record: dict[str, Any], columns: dict[str, str] | None, wanted: dict[str, str] | str
) -> None:
    path = saved(tmp_path / "in.json", [record])
    if isinstance(wanted, dict):
        found = chosen(path, columns)
        assert headers_of(found) == wanted
        assert found.columns["b_no"].column == 0 or columns == {"b_no": "buyer.b_no"}
        return
    with pytest.raises(ColumnError) as caught:
        chosen(path, columns)
    assert wanted in str(caught.value)


ADDRESSES = [{"kind": "배송지", "line": ROAD}, {"kind": "본사", "line": "서울 중구 세종대로 110"}]


@pytest.mark.parametrize("name", ["in.json", "in.parquet", "in.csv"])
@pytest.mark.parametrize(
    ("value", "key"), [({"floor": "1", "road": ROAD}, "address.road"), (ADDRESSES, "address.0.line")]
)
def test_objects_under_the_header_of_a_role_are_no_text_and_the_alert_names_a_key(
    tmp_path: Path, name: str, value: Any, key: str
) -> None:
    path = saved(tmp_path / name, [{"b_no": N, "address": value}, {"b_no": str(M), "address": None}])
    found = chosen(path)
    assert "address" not in found.columns
    assert [one for one in found.notes if isinstance(one, Alert) and f"`columns={{'address': '{key}'}}`" in one]
    assert headers_of(chosen(path, {"address": key}))["address"] == key
    path = saved(tmp_path / name, [{"name": "가나", "address": value}])  # a list of addresses alone
    with pytest.raises(ColumnError) as refused:
        chosen(path)
    assert f"`columns={{'address': '{key}'}}`" in str(refused.value)


@pytest.mark.parametrize("name", ["in.ndjson", "in.csv"])
def test_the_values_of_a_list_are_verified_by_their_place(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / name, [{"b_no": N, "addresses": ADDRESSES}])
    for place, each in enumerate(ADDRESSES):
        bs.enrich(path, tmp_path / "out.parquet", columns={"address": f"addresses.{place}.line"})
        reasons = pl.read_parquet(tmp_path / "out.parquet")["reasons"][0].to_list()
        assert reasons == list(bs.verify(N, None, each["line"]).reasons)


def test_a_cell_of_json_among_addresses_is_no_address() -> None:
    """Nor is it in a frame, where it is not looked into; a postal code in brackets is part of an address."""
    object_ = json.dumps({"road": ROAD}, ensure_ascii=False)
    frame = pl.DataFrame({"b_no": [N] * 4, "address": [ROAD, f"[16677] {ROAD}", object_, "[]"]})
    blank = list(bs.verify(N, None, None).reasons)
    assert [one == blank for one in bs.verify_frame(frame)["reasons"].to_list()] == [False, False, True, True]


@pytest.mark.parametrize("numbers", [True, False])
def test_objects_among_the_texts_of_an_address_column_are_told(tmp_path: Path, numbers: bool) -> None:
    rows: list[dict[str, Any]] = [{"name": "가", "address": ROAD}, {"name": "나", "address": {"zip": 1, "road": ROAD}}]
    path = saved(tmp_path / "in.json", [row | ({"b_no": N} if numbers else {}) for row in rows])
    remedy = "`columns={'address': 'address|address.road'}`"
    assert [one for one in chosen(path).notes if isinstance(one, Alert) and remedy in one]
    assert not [one for one in chosen(path, {"address": "address|address.road"}).notes if remedy in one]


def test_outcomes_find_the_business_within_an_object(tmp_path: Path) -> None:
    report = bs.enrich(saved(tmp_path / "in.json", RECORDS), tmp_path / "out.json", columns=COLUMNS)
    outcomes = tmp_path / "returned.csv"
    outcomes.write_text("사업자번호,반송사유\n124-81-00998,이사\n", encoding="utf-8")
    output = tmp_path / "labelled.json"
    terms: dict[str, Any] = {"mailed": date.today(), "returns_requested": True}
    labelled = bs.label(outcomes, run=report.run_id, output=output, **terms)
    assert dict(labelled.ways) == {"number": 1}
    assert [row["bounced"] for row in json_of(output)["data"]["items"]] == [True, None]
