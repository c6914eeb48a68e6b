"""The number of a building or lot, taken only out of addresses that are plain."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from bansong.engine.address import parse
from bansong.engine.address.words import plain_numbers


def numbers(address: str | None) -> tuple[int | None, int | None]:
    """Building and lot number of one address."""
    found: tuple[int | None, int | None] = (
        plain_numbers(pl.LazyFrame({"address": [address]}, schema={"address": pl.String}))
        .select("building", "lot")
        .collect()
        .row(0)
    )
    return found


@pytest.mark.parametrize(
    ("address", "building", "lot"),
    [
        ("서울특별시 강남구 테헤란로 152", 152, None),
        ("테헤란로152", 152, None),
        ("(06236) 서울 강남구 테헤란로 152-3, 3층 301호 (역삼동, 파이낸스로 7)", 152, None),
        ("서울 강남구 테헤란로 152 3층", 152, None),
        ("서울 종로구 사직로12길 2", 2, None),
        ("부산 해운대구 센텀중앙로 97번길 5", 5, None),
        ("경기 수원시 영통구 매탄동 416번지 2통", None, 416),
        ("서울 종로구 명륜2가 5-99", None, 5),
        ("충남 예산군 덕산면 읍내리 234-12번지", None, 234),
    ],
)
def test_plain_addresses_give_their_number(address: str, building: int | None, lot: int | None) -> None:
    """One road or one dong with one number behind it is plain, whatever follows a comma or stands in brackets."""
    assert numbers(address) == (building, lot)


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        "서울 강남구 테헤란로",
        "서울 강남구 강남대로 3층",
        "서울 강남구 강남대로 301호",
        "서울 강남구 강남대로 1,2층",
        "서울 강남구 강남대로 1~2층",
        "서울 강남구 강남대로 3번 출구",
        "서울 강남구 테헤란로 06236",
        "서울 중구 세종대로 지하 2",
        "서울 종로구 세종로 1-57",
        "서울 중구 을지로3가 15",
        "서울 강남구 테헤란로 12 길 5",
        "서울 강남구 테헤란로 152 / 부산 해운대구 센텀중앙로 97",
        "서울 강남구 테헤란로 1**",
        "경기 수원시 영통구 삼성아파트 101동 502호",
        "무지개아파트 가동 101",
        "경기 수원시 영통구 매탄동 산 12",
        "경기 수원시 영통구 매탄동 101 동 502",
        "152, Teheran-ro, Gangnam-gu, Seoul",
        "로" * 100_000,
        "(" * 100_000 + "테헤란로 152",
    ],
)
def test_what_is_not_plain_gives_no_number(address: str | None) -> None:
    """Floors, units, blocks, postal codes, two roads, and dongs named like roads: rather no number than a wrong one."""
    assert numbers(address) == (None, None)


def test_the_numbers_are_those_that_the_grammar_reads(shared: Path) -> None:
    """On real addresses no number differs from the grammar's, and nine in ten are found."""
    source = pl.scan_csv(shared / "address" / "localdata_vet_half.csv", infer_schema=False)
    texts = pl.concat([source.select(address=name) for name in ("소재지전체주소", "도로명전체주소")])
    texts = texts.filter(pl.col("address") != "").with_columns(zipcode=pl.lit(None, pl.String))
    read = parse.parse(texts).select("address", "main", "lot_main")
    for ours, its in (("building", "main"), ("lot", "lot_main")):
        found = plain_numbers(read).select(ours, its).collect().filter(pl.col(ours).is_not_null())
        assert found.filter(pl.col(ours).ne_missing(pl.col(its))).is_empty()
        alone = pl.col("main").is_null() if ours == "lot" else pl.lit(True)
        assert found.height > 0.9 * read.filter(alone).select(pl.col(its).count()).collect().item()
