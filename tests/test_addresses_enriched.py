"""A gazetteer given to the engine, to a run, to a frame and on the command line: answers, account, report, refusals."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.engine.local import MATCH_LEVEL, ROW_PROBLEM
from bansong.errors import GazetteerError, UsageError
from conftest import NINE, SAMPLE, json_of, write

TODAY = date(2026, 11, 22)
GAZETTEER, REGISTRY = SAMPLE / "gazetteer.parquet", SAMPLE / "registry.parquet"
ADDRESS = "경기도 수원시 영통구 삼성로 129"
OFFICIAL = "경기도 수원시 영통구 삼성로 129 (매탄동)"
FIXED = ["fixed_zipcode", "fixed_address"]
LIST = f"b_no,name,주소,우편번호\n1248100998,가,{ADDRESS},30100\n"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def engine() -> bs.LocalEngine:
    return bs.LocalEngine(gazetteer=GAZETTEER, today=TODAY, lang="en")


def rows(*records: tuple[object, ...]) -> pl.LazyFrame:
    columns = ("b_no", "address", "zipcode", ROW_PROBLEM)
    padded = [(*record, *[None] * (len(columns) - len(record))) for record in records]
    return pl.LazyFrame(padded, schema=dict.fromkeys(columns, pl.String), orient="row").with_columns(name=pl.lit("가"))


def test_the_official_address_and_code_are_given_and_each_change_is_told(engine: bs.LocalEngine) -> None:
    asked = rows(
        ("1248100998", ADDRESS, "16677"),
        ("1248100998", "수원시 영통구 매탄동 100-1", "30100"),
        ("1248100998", "경기도 수원시 영통구 삼송로 129, 3층 가나상사", "16677"),
        ("1248100998", "경기도 수원시 영통구 삼송로 129, 3층 가나상사", None),
    )
    found = engine.verify(asked).collect()
    assert found["fixed_zipcode"].to_list() == ["16677"] * 3 + [None]  # 삼송로 may be a new road
    assert found["fixed_address"].to_list()[:2] == [OFFICIAL] * 2
    assert found["fixed_address"][2].startswith("경기도 수원시 영통구 삼성로 129, 3층 가나상사")
    assert "[address +0] the address is an official one (juso)" in found["reasons"][0]
    wrong = "postal code 30100 does not belong to this address, should be 16677"
    assert f"[postal +13] {wrong} (juso)" in found["reasons"][1]
    assert any("매탄동 100-1 → 삼성로 129" in reason for reason in found["reasons"][1])
    assert any("corrected automatically: " in reason and "삼송로" in reason for reason in found["reasons"][2])


def test_a_row_without_a_number_or_an_address_gets_none(engine: bs.LocalEngine) -> None:
    invalid = [(number, ADDRESS, "16677") for number in (None, "", "1.248E+09", "9001011234567")]
    totals = ("1248100998", ADDRESS, "16677", "totals_row")
    no_address = [("1248100998", text) for text in (None, "", "사서함 12호", "😀" * 40, "=1+1", "\0")]
    found = engine.answer(rows(*invalid, totals, *no_address)).collect()
    assert found.select(FIXED).null_count().row(0) == (found.height,) * 2
    assert found["row_status"].to_list() == ["invalid"] * 5 + ["verified"] * 6
    assert found.head(5).select(MATCH_LEVEL, *NINE[:7]).null_count().row(0) == (5,) * 8


def test_a_postal_code_of_another_district_counts_the_same_where_no_building_is_found(engine: bs.LocalEngine) -> None:
    places = ["부산광역시 해운대구 없는로 77", "세종특별자치시 한누리대로 1811"]
    asked = rows(*(("1248100998", address, "06236") for address in places))
    said = "[postal +13] postal code 06236 belongs to another district than the address (postal)"
    for one in (engine, bs.LocalEngine(today=TODAY, lang="en")):
        assert one.verify(asked).collect()["reasons"].list.contains(said).all()


def test_the_callers_columns_may_have_any_name(engine: bs.LocalEngine) -> None:
    names = ("match_level", "form", "unit", "covered", "changes", "text", "place", "zipcode_given", "row", MATCH_LEVEL)
    frame = rows(("1248100998", ADDRESS, "16677")).with_columns(pl.lit("mine").alias(name) for name in names)
    found = engine.verify(frame).collect()
    assert found.columns == [*frame.collect_schema().names(), *NINE]
    assert found.select(names).row(0) == ("mine",) * len(names)
    assert found["fixed_zipcode"].to_list() == ["16677"]


def test_a_run_reports_how_well_addresses_were_understood(tmp_path: Path) -> None:
    out = tmp_path / "out.xlsx"
    report = bs.enrich(SAMPLE / "customers.csv", out, gazetteer=GAZETTEER, registry=REGISTRY, summary=True)
    written, summary, _ = ([*sheet.iter_rows(values_only=True)] for sheet in openpyxl.load_workbook(out).worksheets)
    assert written[0][8:] == NINE
    levels = report.addresses
    assert levels["exact"] > 200
    assert min(levels[name] for name in ("lot_to_road", "typo_repaired", "road_only", "region_only")) >= 3
    answered = [dict(zip(NINE, line[8:], strict=True)) for line in written[1:]]
    assert sum(levels.values()) == sum(one["bounce_prob"] is not None for one in answered)
    fixed = sum(levels[name] for name in ("exact", "lot_to_road", "region_repaired", "typo_repaired"))
    assert sum(one["fixed_address"] is not None for one in answered) >= fixed
    assert dict(report.lines())["addresses"].startswith(f"exact {levels['exact']} · lot_to_road")
    assert ("lot_to_road", levels["lot_to_road"]) in [line[:2] for line in summary]
    record = json_of(Path(report.manifest))
    assert record["match_level"] == levels
    assert record["versions"]["gazetteer"] == bs.Gazetteer.open(GAZETTEER).version


def test_where_the_service_answers_a_gazetteer_is_refused_or_said_to_be_idle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`gazetteer=` is for the local engine, not for verify"):
        bs.verify("1248100998", engine="verify", base_url="http://localhost:9", gazetteer=GAZETTEER)
    source = write(tmp_path / "in.csv", LIST)
    planned = bs.plan(source, engine="batch", base_url="http://localhost:9", gazetteer=GAZETTEER)
    assert any("the gazetteer answers nothing here" in warning for warning in planned.warnings)


def test_the_gazetteer_is_never_written_over(tmp_path: Path) -> None:
    mine, source = tmp_path / "g.parquet", write(tmp_path / "in.csv", LIST)
    mine.write_bytes(GAZETTEER.read_bytes())
    for written in ({"output": mine}, {"output": tmp_path / "out.csv", "manifest": mine}):
        with pytest.raises(UsageError, match="is the gazetteer itself; give another"):
            bs.enrich(source, gazetteer=mine, **written)
    assert mine.read_bytes() == GAZETTEER.read_bytes()


def test_the_sample_gazetteer_is_what_its_source_gives(tmp_path: Path) -> None:
    bs.build_gazetteer(SAMPLE.glob("*rnaddrkor_sample.txt"), tmp_path / "g.parquet")
    assert pl.read_parquet(tmp_path / "g.parquet").equals(pl.read_parquet(GAZETTEER))
    assert bs.Gazetteer.open(tmp_path / "g.parquet").version == bs.Gazetteer.open(GAZETTEER).version


def test_a_damaged_gazetteer_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, path, source = bytearray(GAZETTEER.read_bytes()), tmp_path / "g.parquet", write(tmp_path / "in.csv", LIST)
    data[4:4000] = b"\xff" * 3996
    path.write_bytes(data)
    for ask in (
        lambda: bs.enrich(source, gazetteer=path),
        lambda: bs.verify("1248100998", address=ADDRESS, gazetteer=path),
        lambda: bs.verify_frame(pl.read_csv(source), gazetteer=path),
    ):
        with pytest.raises(GazetteerError, match=r"g\.parquet: the gazetteer is damaged"):
            ask()
    failing = pl.DataFrame({"a": [1]}).lazy().select(pl.col("a").gather(7))
    monkeypatch.setattr("bansong.engine.address.attach.format_match", lambda *_: failing.collect())
    with pytest.raises(RuntimeError, match="the address engine failed: "):
        bs.enrich(source, gazetteer=GAZETTEER)
    assert not (tmp_path / "in.enriched.csv").exists()


def test_the_report_says_of_what_month_the_addresses_are_and_warns_of_old_ones(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", LIST)
    report = bs.enrich(source, gazetteer=GAZETTEER, manifest=tmp_path / "m.json")
    assert dict(report.lines())["gazetteer"] == "juso 2026-10, 266 addresses"
    versions = json.loads((tmp_path / "m.json").read_text())["versions"]
    assert (versions["gazetteer_date"], versions["gazetteer_addresses"]) == ("2026-10-31", 266)
    line = (SAMPLE / "rnaddrkor_sample.txt").read_bytes().split(b"\r\n")[0].replace(b"20261031", b"20240229")
    (tmp_path / "rnaddrkor_old.txt").write_bytes(line + b"\r\n")
    bs.build_gazetteer([tmp_path / "rnaddrkor_old.txt"], tmp_path / "old.parquet")
    planned = bs.plan(source, gazetteer=tmp_path / "old.parquet")
    old, lots = (warning for warning in planned.warnings if "old.parquet" in warning)
    assert "of 2024-02, older than 3 months" in old
    assert "without the files of additional lots" in lots
