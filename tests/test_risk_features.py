"""The features of the risk: when each level holds, that all of them add up, and that unknown stays unknown."""

from __future__ import annotations

import random
import re
from datetime import date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.address.regions import regions
from bansong.engine.registry import MORE
from bansong.engine.risk.features import levels
from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Scorecard
from bansong.engine.text import names_differ
from conftest import SAMPLE, write

TODAY = date(2026, 11, 21)
GOLDEN = Path(__file__).parent / "golden"
ADDRESS = "경기도 수원시 영통구 삼성로 129"
SCHEMA = dict.fromkeys(
    ("name", "address", "zipcode", "kind", "biz_status", "match_level", "form", "unit", "postal_match"), pl.String
) | {
    **dict.fromkeys(("zipcode_given", "changes", "fixed_zipcode", "fixed_address"), pl.String),
    **dict.fromkeys(("registry_name", "history", "region"), pl.String),
    **dict.fromkeys(("check_digit_ok", "covered", "supported", "region_given", "numbered", "beside"), pl.Boolean),
    **dict.fromkeys(("merged", "crowded", "several_addresses"), pl.Boolean),
    **dict.fromkeys(("since", "opened", "as_of", "confirmed"), pl.Date),
    "taxation": MORE["taxation"],
}
PLAIN = dict.fromkeys(SCHEMA) | {
    "name": "가나다",
    "address": ADDRESS,
    "check_digit_ok": True,
    "covered": False,
    "region_given": True,
    "numbered": True,
    "beside": False,
    "as_of": TODAY,
}


def test_each_level_holds_where_the_golden_file_says_so() -> None:
    """Where it holds, where it just does not, and where nothing is known; a cell without a value is as in PLAIN."""
    golden = pl.read_csv(GOLDEN / "levels.csv", schema_overrides=SCHEMA | {"taxation": pl.String})
    given = golden.drop("feature", "level").cast({"taxation": SCHEMA["taxation"]})
    plain = pl.DataFrame([PLAIN] * golden.height, schema=SCHEMA)
    frame = plain.with_columns(pl.coalesce(given[name], name).alias(name) for name in given.columns)
    possible = levels(TODAY, registry=True, gazetteer=True, columns=SCHEMA)
    found = Scorecard.load().assess(frame.lazy(), possible, "en").collect()
    codes = [found[f"level:{feature}"][row] for row, feature in enumerate(golden["feature"])]
    named = [FEATURES[of][code - 1] if code else None for of, code in zip(golden["feature"], codes, strict=True)]
    assert golden.with_columns(found=pl.Series(named)).filter(pl.col("found").ne_missing(pl.col("level"))).rows() == []


def test_names_differ_only_where_they_are_clearly_two() -> None:
    """Whichever comes first, in any batch: another spelling is no other name, what cannot be compared is not known."""
    golden = pl.read_csv(
        GOLDEN / "names.csv", schema=dict.fromkeys(("one", "other"), pl.String) | {"differ": pl.Boolean}
    )
    turned = golden.select(one="other", other="one", differ="differ")
    pairs = pl.concat([golden, turned, golden])
    found = pairs.lazy().with_columns(found=names_differ(pl.col("one"), pl.col("other"))).collect(engine="streaming")
    assert found.filter(pl.col("found").ne_missing(pl.col("differ"))).rows() == []
    assert found.lazy().select(names_differ(pl.col("one"), pl.col("other"))).filter(pl.lit(False)).collect().is_empty()


WORDS: dict[str, list[object]] = {
    "name": ["가나다", "라마바", None, "홍**", ""],
    "address": [
        *(ADDRESS, ADDRESS + ", 3층", "서울특별시 강남구", "(137-070) 서울 서초동 1", None, "", "역삼로 ***"),
        "129, Samsung-ro, Suwon-si",
    ],
    "zipcode": [None, "06236", "137-070", "6236"],
    "kind": [None, "company", "public", "non_profit", "sole_trader", "sole_trader"],
    "biz_status": [None, "active", "suspended", "closed", "closed", "unregistered"],
    "match_level": [
        *("exact", "lot_to_road", "region_repaired", "typo_repaired", "building_only", "road_only", "region_only"),
        *("region_only", "ambiguous", "none", None, "renumbered", "abolished"),
    ],
    "form": [None, "road", "lot", "neither", "english"],
    "unit": [None, "given", "missing"],
    "postal_match": [None, None, "right", "neighbouring", "other_district"],
    "zipcode_given": [None, "06236", "30100"],
    "changes": [None, "region 서울 → 부산"],
    "fixed_zipcode": [None, "06236"],
    "fixed_address": [None, "서울특별시 강남구 테헤란로 1"],
    "registry_name": [None, "가나다", "라마바", "가**"],
    "history": [None, *FEATURES["history"]],
    "region": [None, *FEATURES["region"]],
    "taxation": [None, "general", "simplified", "exempt"],
    **{name: [True, False, None] for name in SCHEMA if SCHEMA[name] == pl.Boolean},
    **{
        name: [None, *(TODAY - timedelta(days=days) for days in (-3, 10, 100, 200, 400, 800, 1500, 5000))]
        for name in ("since", "opened", "as_of", "confirmed")
    },
}


def test_all_levels_of_all_features_add_up_in_every_row() -> None:
    chance, card = random.Random(11), Scorecard.load()
    frame = pl.DataFrame({name: chance.choices(WORDS[name], k=4_000) for name in SCHEMA}, schema=SCHEMA)
    points = pl.element().str.extract(r"^\[[a-z_]+ ([+-][0-9]+)\] ").cast(pl.Int32)
    seen: set[str] = set()
    for sources, numbers in ((True, True), (False, True), (False, False)):
        possible = levels(TODAY, registry=sources, gazetteer=sources, columns=SCHEMA, numbers=numbers)
        found = card.assess(frame.lazy(), possible, "en").collect()
        for feature, names in FEATURES.items():
            seen |= {f"{feature}.{names[code - 1]}" for code in found[f"level:{feature}"].unique() if code}
        assessed = found.filter(pl.col("bounce_prob").is_not_null())
        assert assessed.height > 1_000
        summed = assessed.select(pl.col("reasons").str.split(" | ").list.eval(points).list.sum()).to_series()
        assert summed.to_list() == assessed["score"].to_list()
    assert seen == {f"{feature}.{name}" for feature, names in FEATURES.items() for name in names}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    rows = """b_no,b_stt,b_stt_cd,tax_type,tax_type_cd,end_dt,utcc_yn,rbf_tax_type,상호,기준일자
1248100998,계속사업자,01,부가가치세 일반과세자,01,,N,해당없음,삼성전자(주),2026-01-01
2208162517,폐업자,03,,,20200101,Y,,네이버 주식회사,2026-01-01
1018109147,폐업자,03,부가가치세 일반과세자,01,20200101,N,,현대*** ,2026-01-01
6038129936,,,국세청에 등록되지 않은 사업자등록번호입니다.,,,,,,2026-01-01
3015857580,계속사업자,01,부가가치세 간이과세자,02,,N,해당없음,가람상회,2026-01-01
4146089630,계속사업자,01,면허세,77,,?,해당없음,,2026-01-01
"""
    report = bs.build_registry([write(folder / "nts.csv", rows)], folder / "r.parquet")
    assert (report.businesses, report.strange_words, "면허세 1" in str(report)) == (6, {"면허세": 1}, True)
    assert report.known_besides == {"taxation": 3, "merged": 4, "name": 3}
    return folder / "r.parquet"


def sample() -> pl.DataFrame:
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).head(100)
    frame = frame.select(b_no="사업자등록번호", name="상호", address="주소", zipcode="우편번호")
    days = [TODAY - timedelta(days=7 * place) for place in range(frame.height)]
    place = pl.int_range(pl.len())
    return frame.with_columns(pl.Series("confirmed", days), crowded=place % 3 == 0, several_addresses=place % 5 == 0)


def reasons_of(frame: pl.DataFrame, **sources: object) -> list[str]:
    answers = bs.LocalEngine(today=TODAY, **sources).answer(frame.lazy()).collect()
    return answers["reasons"].str.split(" | ").explode().drop_nulls().to_list()


def against(frame: pl.DataFrame, source: str, **sources: object) -> set[str]:
    """The labels of reasons that add points and name this source."""
    said = [reason for reason in reasons_of(frame, **sources) if reason.endswith(f"({source})")]
    return {reason[1:].split()[0] for reason in said if re.match(r"\[[a-z_]+ \+[1-9]", reason)}


def test_a_source_that_is_missing_gives_no_points_against_anybody(registry: Path) -> None:
    sources = {"registry": registry, "gazetteer": SAMPLE / "gazetteer.parquet"}
    for name, source in (("registry", "registry"), ("gazetteer", "juso")):
        kept = {other: path for other, path in sources.items() if other != name}
        assert against(sample(), source, **sources)
        assert not against(sample(), source, **kept)
    columns = {"freshness", "place"}
    assert against(sample(), "file", **sources) >= columns
    bare = sample().drop("confirmed", "crowded", "several_addresses")
    assert not against(bare, "file") & columns
    assert not columns & set(levels(TODAY, registry=True, gazetteer=True))


def test_columns_that_say_nothing_change_nothing(registry: Path) -> None:
    frame = sample().drop("confirmed", "crowded", "several_addresses")
    engine = bs.LocalEngine(registry, today=TODAY)
    plain = engine.answer(frame.lazy()).collect()
    nulls = {"confirmed": pl.Date, "crowded": pl.Boolean, "several_addresses": pl.Boolean}
    strange = {"confirmed": True, "crowded": "Y", "several_addresses": 3, "merged": True, "region": "seoul"}
    for more in (
        [pl.lit(None, dtype).alias(name) for name, dtype in nulls.items()],
        [pl.lit(value).alias(name) for name, value in strange.items()],
    ):
        answers = engine.answer(frame.lazy().with_columns(more)).collect()
        assert answers.select(plain.columns).equals(plain)


def test_the_day_an_address_was_confirmed_is_read_as_people_write_it() -> None:
    """Dates, times, numbers and texts; what is no day says nothing."""
    texts = ["2024-01-31", "2024.1.31", "2024. 1. 31.", "20240131", "20240131.0", "2024-01-31 12:00", " 2024/01/31 "]
    none = ["", "모름", "2024", "31/01/2024", "2024-13-01", "2024-02-30"]
    for written in ([date(2024, 1, 31)], [datetime(2024, 1, 31, 12)], [20240131], texts, none):
        frame = pl.DataFrame({"confirmed": written}).with_columns(
            b_no=pl.lit("1248100998"), name=pl.lit("가"), address=pl.lit(ADDRESS)
        )
        days = [reason for reason in reasons_of(frame) if reason.startswith("[freshness +14]")]
        assert len(days) == (0 if written is none else len(written))


def test_every_district_of_today_has_a_region_of_the_scorecard() -> None:
    names = pl.DataFrame(regions().today, schema=["sido", "sigungu"], orient="row")
    frame = names.select(
        address=pl.concat_str("sido", "sigungu", pl.lit("중앙로 1"), separator=" "), zipcode=pl.lit("")
    )
    alone = attach(frame.lazy(), None, "en").collect()["region"]
    assert set(alone) == set(FEATURES["region"])
    with_gazetteer = attach(frame.lazy(), Gazetteer.open(SAMPLE / "gazetteer.parquet"), "en").collect()["region"]
    assert with_gazetteer.equals(alone)


def test_the_region_is_the_province_of_today() -> None:
    """Former names and short forms lead to it; a district that several provinces have says nothing."""
    regions_of: dict[str | None, str | None] = {
        "광주광역시 북구 용봉로 77": "jeonnam_gwangju",
        "전라북도 전주시 완산구 효자로 225": "jeonbuk",
        "경북 군위군 군위읍 중앙길 1": "daegu",
        "수원시 영통구 삼성로 129": "gyeonggi",
        "서울강남구테헤란로1": "seoul",
        "중구 세종대로 110": None,
        "": None,
        None: None,
    }
    frame = pl.LazyFrame({"address": list(regions_of)}).with_columns(zipcode=pl.lit(None, pl.String))
    found = attach(frame, None, "en").collect()["region"]
    assert dict(zip(regions_of, found, strict=True)) == regions_of


def test_a_registry_of_the_tax_authoritys_answers_knows_taxation_and_merging(registry: Path) -> None:
    """Its fields are found by their names; an unregistered number is told by its taxation, a masked name is none."""
    found = {row[0]: row[1:] for row in pl.read_parquet(registry).select("b_no", "biz_status", *MORE).iter_rows()}
    assert found == {
        1248100998: ("active", "general", False, "삼성전자(주)"),
        2208162517: ("closed", None, True, "네이버 주식회사"),
        1018109147: ("closed", "general", False, None),
        6038129936: ("unregistered", None, None, None),
        3015857580: ("active", "simplified", False, "가람상회"),
        4146089630: ("active", None, None, None),
    }


def test_what_a_registry_knows_besides_becomes_a_reason(registry: Path) -> None:
    merged = "[status +20] merged into unit taxation: the number is no longer used (registry, 2026-01-01)"
    closed = "[status +66] closed more than 12 months ago (2020-01-01) (registry, 2026-01-01)"
    for b_no, name, reason in (
        ("2208162517", "네이버", merged),
        ("1018109147", "현대", closed),
        ("3015857580", "가람상회", "[kind +3] a simplified taxpayer (registry)"),
        ("1248100998", "전혀 다른", "[name +14] the name is not the one in the registry (registry)"),
    ):
        assert reason in bs.verify(b_no, name=name, address=ADDRESS, registry=registry, today=TODAY).reasons


def test_a_registry_without_them_has_no_such_columns_and_an_older_file_still_opens(tmp_path: Path) -> None:
    """What no source says costs nothing; the sample's registry is of format 1."""
    source = write(tmp_path / "s.csv", "b_no,상태,과세유형,상호\n1248100998,계속사업자,,홍**\n")
    bs.build_registry([source], tmp_path / "r.parquet")
    assert pl.read_parquet_schema(tmp_path / "r.parquet").names() == ["b_no", "biz_status", "since", "opened", "as_of"]
    assert bs.LocalEngine(SAMPLE / "registry.parquet").registry.more == ()
    assert bs.LocalEngine(tmp_path / "r.parquet").registry.more == ()


def test_the_newest_row_that_says_so_gives_taxation_and_name_and_the_status_its_merging(tmp_path: Path) -> None:
    older = "1248100998,폐업자,간이과세자,Y,옛이름,2025-01-01\n"
    newer = "1248100998,계속사업자,,,,2026-01-01\n"
    source = write(tmp_path / "s.csv", f"b_no,상태,과세유형,utcc_yn,상호,기준일자\n{newer}{older}")
    bs.build_registry([source], tmp_path / "r.parquet")
    found = pl.read_parquet(tmp_path / "r.parquet").row(0, named=True)
    assert (found["biz_status"], found["taxation"], found["name"]) == ("active", "simplified", "옛이름")
    assert "merged" not in found


def test_names_of_files_enriched_before_are_not_the_registrys(registry: Path, tmp_path: Path) -> None:
    """A customer list's own names would be held against themselves; with --columns they are taken all the same."""
    customers = write(tmp_path / "c.csv", "b_no,상호\n1248100998,내가 부르는 이름\n")
    bs.enrich(customers, tmp_path / "e.csv", registry=registry)
    bs.build_registry([tmp_path / "e.csv"], tmp_path / "r.parquet")
    assert "name" not in pl.read_parquet_schema(tmp_path / "r.parquet")
    bs.build_registry([tmp_path / "e.csv"], tmp_path / "n.parquet", columns={"name": "상호"})
    assert pl.read_parquet(tmp_path / "n.parquet")["name"].to_list() == ["내가 부르는 이름"]
