"""A gazetteer given to the engine, to a run, to a frame and on the command line: answers, account, report, refusals."""

from __future__ import annotations

import json
import pickle
import re
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
from conftest import NINE, NOTHING_CHECKED, SAMPLE, json_of, write

TODAY = date(2026, 11, 22)
GAZETTEER, REGISTRY = SAMPLE / "gazetteer.parquet", SAMPLE / "registry.parquet"
ADDRESS = "경기도 수원시 영통구 삼성로 129"
OFFICIAL = "경기도 수원시 영통구 삼성로 129 (매탄동)"
FIXED = ["fixed_zipcode", "fixed_address"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def engine() -> bs.LocalEngine:
    return bs.LocalEngine(gazetteer=GAZETTEER, today=TODAY)


def rows(*records: tuple[object, ...], columns: str = "b_no name address zipcode") -> pl.LazyFrame:
    return pl.LazyFrame(list(records), schema=dict.fromkeys(columns.split(), pl.String), orient="row")


def test_the_official_address_and_code_are_given_and_each_change_is_told(engine: bs.LocalEngine) -> None:
    asked = rows(
        ("1248100998", "삼성전자(주)", ADDRESS, "16677"),
        ("1248100998", "삼성전자(주)", "수원시 영통구 매탄동 100-1", "30100"),
        ("1248100998", "삼성전자(주)", "경기도 수원시 영통구 삼송로 129, 3층 가나상사", "16677"),
        ("1248100998", "삼성전자(주)", "경기도 수원시 영통구 삼송로 129, 3층 가나상사", None),
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


@pytest.mark.parametrize("number", [None, "", "1.248E+09", "9001011234567"])
def test_a_row_without_a_number_gets_no_address_either(engine: bs.LocalEngine, number: str | None) -> None:
    found = engine.verify(rows((number, "가", ADDRESS, "16677"))).collect()
    assert found["row_status"].to_list() == ["invalid"]
    assert found.select(NINE[:7]).null_count().row(0) == (1,) * 7


@pytest.mark.parametrize("address", ["부산광역시 해운대구 없는로 77", "세종특별자치시 한누리대로 1811"])
def test_a_postal_code_of_another_district_counts_the_same_where_no_building_is_found(
    engine: bs.LocalEngine, address: str
) -> None:
    """A gazetteer that does not hold the building, or the whole district, must not take away what is known without."""
    asked = rows(("1248100998", "가", address, "06236"))
    said = "[postal +13] postal code 06236 belongs to another district than the address (postal)"
    for one in (engine, bs.LocalEngine(today=TODAY)):
        assert said in one.verify(asked).collect()["reasons"][0]


def test_a_defect_of_the_address_engine_is_not_laid_to_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> pl.DataFrame:
        return pl.DataFrame({"a": [1]}).select(pl.col("a").gather(7))

    monkeypatch.setattr("bansong.engine.address.attach.format_match", fails)
    source = write(tmp_path / "in.csv", f"사업자번호,주소\n1248100998,{ADDRESS}\n")
    with pytest.raises(RuntimeError, match="the address engine failed: "):
        bs.enrich(source, tmp_path / "out.csv", gazetteer=GAZETTEER)
    assert not (tmp_path / "out.csv").exists()


def test_a_row_that_is_no_row_of_the_list_gets_no_address(engine: bs.LocalEngine) -> None:
    totals = rows(("1248100998", "합계", ADDRESS, "totals_row"), columns=f"b_no name address {ROW_PROBLEM}")
    assert engine.answer(totals).select(*FIXED, MATCH_LEVEL).collect().row(0) == (None, None, None)


@pytest.mark.parametrize(
    "address", [None, "", "서울특별시 강남구 역삼로 *** *층", "사서함 12호", "😀" * 40, "=1+1", "\0"]
)
def test_what_is_no_address_gets_none(engine: bs.LocalEngine, address: str | None) -> None:
    found = engine.verify(rows(("1248100998", "가", address, None))).collect()
    assert found.select(FIXED).row(0) == (None, None)
    assert found["row_status"].to_list() == ["verified"]


def test_the_callers_columns_may_have_any_name(engine: bs.LocalEngine) -> None:
    names = ("match_level", "form", "unit", "covered", "changes", "text", "place", "zipcode_given", "row", MATCH_LEVEL)
    frame = rows(("1248100998", "가", ADDRESS, "16677")).with_columns(pl.lit("mine").alias(name) for name in names)
    found = engine.verify(frame).collect()
    assert found.columns == ["b_no", "name", "address", "zipcode", *names, *NINE]
    assert found.select(names).row(0) == ("mine",) * len(names)
    assert found["fixed_zipcode"].to_list() == ["16677"]


def test_an_engine_with_a_gazetteer_can_be_sent_to_another_process(engine: bs.LocalEngine) -> None:
    engine.verify(rows(("1248100998", "가", ADDRESS, None))).collect()
    again = pickle.loads(pickle.dumps(engine))
    assert len(pickle.dumps(engine)) < 100_000, "the gazetteer itself stays in its file"
    assert again.verify(rows(("1248100998", "가", ADDRESS, None))).collect()["fixed_address"].to_list() == [OFFICIAL]


def test_matching_addresses_streams(engine: bs.LocalEngine) -> None:
    """No step holds all rows in memory."""
    query = engine.verify(rows(("1248100998", "가", ADDRESS, None)))
    plan = query.show_graph(plan_stage="physical", engine="streaming", raw_output=True) or ""
    kinds = dict(re.findall(r'label="([a-z-]+)[^"]*"(?:,style=filled,fillcolor="([0-9.]+) )?', plan))
    assert kinds
    assert [kind for kind, colour in kinds.items() if colour == "0.0"] == []


def test_rows_keep_their_order_and_their_own_answers_in_a_long_file(engine: bs.LocalEngine) -> None:
    """Over several batches and threads: each row has what it would have alone."""
    sample = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    few = sample.select(b_no="사업자등록번호", name="상호", address="주소", zipcode="우편번호").fill_null("")
    many = pl.concat([few] * 350).with_row_index("n")
    found = engine.answer(many.lazy()).collect(engine="streaming")
    assert found["n"].equals(many["n"])
    alone = engine.answer(few.lazy()).collect().select("address", *NINE)
    assert found.select("address", *NINE).equals(pl.concat([alone] * 350))


# ── runs, frames, single lookups ─────────────────────────────────────────────────────────────────────────────────


def test_a_run_reports_how_well_addresses_were_understood(tmp_path: Path) -> None:
    """Counted in the pass that writes; no column of the file tells the level."""
    out = tmp_path / "out.csv"
    report = bs.enrich(SAMPLE / "customers.csv", out, gazetteer=GAZETTEER, registry=REGISTRY)
    written = pl.read_csv(out, infer_schema=False)
    assert written.columns[-9:] == list(NINE)
    assert len(written.columns) == 8 + 9
    levels = report.addresses
    assert levels["exact"] > 200
    assert min(levels[name] for name in ("lot_to_road", "typo_repaired", "road_only", "region_only")) >= 3
    readable = written.filter(pl.col("bounce_prob").is_not_null()).height
    assert sum(levels.values()) == readable
    fixed = sum(levels[name] for name in ("exact", "lot_to_road", "region_repaired", "typo_repaired"))
    assert written["fixed_address"].count() >= fixed
    assert dict(report.lines())["addresses"].startswith(f"exact {levels['exact']} · lot_to_road")
    record = json_of(Path(report.manifest))
    assert record["match_level"] == levels
    assert record["versions"]["gazetteer"] == bs.Gazetteer.open(GAZETTEER).version


def test_the_summary_sheet_has_the_addresses_too(tmp_path: Path) -> None:
    out = tmp_path / "out.xlsx"
    report = bs.enrich(SAMPLE / "customers.csv", out, gazetteer=GAZETTEER, summary=True)
    cells = [
        row[:2] for sheet in openpyxl.load_workbook(out).worksheets[1:] for row in sheet.iter_rows(values_only=True)
    ]
    assert ("lot_to_road", report.addresses["lot_to_road"]) in cells


def test_without_a_gazetteer_a_run_says_so_once(tmp_path: Path) -> None:
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", registry=REGISTRY)
    (alert,) = report.warnings
    assert report.addresses == {}
    assert report.versions.gazetteer is None
    assert dict(report.lines())["addresses"] == alert
    bare = write(tmp_path / "bare.csv", "b_no\n1248100998\n")
    assert "addresses" not in dict(bs.enrich(bare).lines())


@NOTHING_CHECKED
def test_frames_and_single_lookups_take_a_gazetteer() -> None:
    one = bs.verify("124-81-00998", name="삼성전자", address="경기 수원시 영통구 삼성로 129", gazetteer=GAZETTEER)
    assert (one.fixed_zipcode, one.fixed_address) == ("16677", OFFICIAL)
    frame = pl.DataFrame({"사업자번호": ["124-81-00998"], "상호": ["가"], "주소": [ADDRESS]})
    found = bs.verify_frame(frame, gazetteer=bs.Gazetteer.open(GAZETTEER))
    assert found["fixed_address"].to_list() == [OFFICIAL]
    assert found.columns == [*frame.columns, *NINE]


def test_the_commands_take_a_gazetteer(run: Run, tmp_path: Path) -> None:
    one = run("verify", "124-81-00998", "--address", ADDRESS, "--gazetteer", GAZETTEER, "--json")
    assert json.loads(one.stdout)["fixed_zipcode"] == "16677"
    source = write(tmp_path / "in.csv", f"b_no,name,주소,우편번호\n1248100998,가,{ADDRESS},30100\n")
    assert run("plan", source, "--gazetteer", GAZETTEER).returncode == 0
    done = run("enrich", source, "--gazetteer", GAZETTEER, "--lang", "ko")
    assert "도로명주소 일치 1" in done.stderr + done.stdout
    assert f"{OFFICIAL}," in (tmp_path / "in.enriched.csv").read_text(encoding="utf-8")


def test_where_the_service_answers_a_gazetteer_is_refused_or_said_to_be_idle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`gazetteer=` is for the local engine, not for verify"):
        bs.verify("1248100998", engine="verify", base_url="http://localhost:9", gazetteer=GAZETTEER)
    source = write(tmp_path / "in.csv", f"b_no,주소\n1248100998,{ADDRESS}\n")
    planned = bs.plan(source, engine="batch", base_url="http://localhost:9", gazetteer=GAZETTEER)
    assert any("the gazetteer answers nothing here" in warning for warning in planned.warnings)


def test_the_gazetteer_is_never_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "g.parquet"
    mine.write_bytes(GAZETTEER.read_bytes())
    source = write(tmp_path / "in.csv", f"b_no,주소\n1248100998,{ADDRESS}\n")
    for written in ({"output": mine}, {"output": tmp_path / "out.csv", "manifest": mine}):
        with pytest.raises(UsageError, match="is the gazetteer itself; give another"):
            bs.enrich(source, gazetteer=mine, **written)
    assert mine.read_bytes() == GAZETTEER.read_bytes()


def test_the_sample_gazetteer_is_what_its_source_gives(tmp_path: Path) -> None:
    bs.build_gazetteer(SAMPLE.glob("*rnaddrkor_sample.txt"), tmp_path / "g.parquet")
    assert pl.read_parquet(tmp_path / "g.parquet").equals(pl.read_parquet(GAZETTEER))
    assert bs.Gazetteer.open(tmp_path / "g.parquet").version == bs.Gazetteer.open(GAZETTEER).version


def test_what_is_no_gazetteer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GazetteerError, match="there is no such gazetteer"):
        bs.LocalEngine(gazetteer=tmp_path / "none.parquet")
    with pytest.raises(GazetteerError, match="build one with"):
        bs.LocalEngine(gazetteer=REGISTRY)


def test_a_damaged_gazetteer_is_blamed_and_not_the_input(tmp_path: Path) -> None:
    data = bytearray(GAZETTEER.read_bytes())
    data[4:4000] = b"\xff" * 3996
    path = tmp_path / "g.parquet"
    path.write_bytes(data)
    source = write(tmp_path / "in.csv", f"b_no,주소\n1248100998,{ADDRESS}\n")
    for ask in (
        lambda: bs.enrich(source, gazetteer=path),
        lambda: bs.verify("1248100998", address=ADDRESS, gazetteer=path),
        lambda: bs.verify_frame(pl.read_csv(source), gazetteer=path),
    ):
        with pytest.raises(GazetteerError, match=r"g\.parquet: the gazetteer is damaged"):
            ask()
    assert not (tmp_path / "in.enriched.csv").exists()


def test_the_report_says_of_what_month_the_addresses_are_and_warns_of_old_ones(tmp_path: Path) -> None:
    """Month and number of addresses in a row of their own, in the manifest as a date; old sources are a warning."""
    source = write(tmp_path / "in.csv", f"b_no,주소\n1248100998,{ADDRESS}\n")
    report = bs.enrich(source, gazetteer=GAZETTEER, output=tmp_path / "out.csv", manifest=tmp_path / "m.json")
    assert dict(report.lines())["gazetteer"] == "juso 2026-10, 266 addresses"
    versions = json.loads((tmp_path / "m.json").read_text())["versions"]
    assert (versions["gazetteer_date"], versions["gazetteer_addresses"]) == ("2026-10-31", 266)
    line = (SAMPLE / "rnaddrkor_sample.txt").read_bytes().split(b"\r\n")[0].replace(b"20261031", b"20240229")
    (tmp_path / "rnaddrkor_old.txt").write_bytes(line + b"\r\n")
    bs.build_gazetteer([tmp_path / "rnaddrkor_old.txt"], tmp_path / "old.parquet")
    report = bs.enrich(source, gazetteer=tmp_path / "old.parquet", output=tmp_path / "out2.csv")
    assert dict(report.lines())["gazetteer"] == "juso 2024-02, 1 address"
    old, lots = (warning for warning in report.warnings if "old.parquet" in warning)
    assert "of 2024-02, older than 3 months" in old
    assert "without the files of additional lots" in lots
