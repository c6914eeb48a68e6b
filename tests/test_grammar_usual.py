"""The usual forms are read by splitting at blanks: what that says must be what the full reading says."""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bansong.engine.address import parse
from bansong.engine.address import words as forms

OFFICIAL = Path(__file__).parents[2] / "shared" / "data" / "address" / "rnaddrkor_sejong.txt"
ROADS = """
////조치원읍 /서면 /길상면 /읍면 /남면/로동읍 /정동 /대로면 /서면_
세종/종/대/가로수/길/읍내/남면/만남/새로/거리/거리두/거북/도/을지/길로/번/지하/종읍/새면소/
로/길/대로/거리/로12길/로3번길/로3가길/길5/5길/3로/12번길/로12북로/로5로7길/
 / / / / / / / // 지하/ 지하 /__
5/17/24-1/3000-22/77/5/12-3/134/99999/123456/1-2-3/7의 2/3 - 1/12번지/3가/5층/
//////, 지하1층/, 3층 301호/,3가/, 2가/, 12-1/ 101동 202호/호/층/, /,/(정동)/, (주)가나다/ 3호
"""
"""Town, name, its end, space (``_``), number, what follows: one of each makes an address."""
LOTS = """
////조치원읍 /서면 /동면 /동산읍 /남면/정동 /산내면 /서면_
세종/종/산/동산/상가/관리/아파트/미래타운/삼거/길/읍내/남면/대로/동리/로/본관/행복마을가/2차/신/
동/동/리/리/동/리/1동/12동/3리/가/3가/동산/읍/면/동리
 / / / / / / / // 산 / 산/산/ 산번지 /__
5/17/24-1/3000-22/77/159-1/12-3/134/99999/123456/1-2-3/7의 2/12번지/12번지 4호/3가/5층/101호/
//////, 지하1층/, 3층 301호/, 2가/ 101동 202호/호/, /(정동)/, (주)가나다/ 3호/번지/ 세종로 5/ (세종로 5)/(세종로 5)\
/, 세종로 5/, 3층 세종로2길 5/, 삼거리 7
"""
"""Town, name, its end, space or 산, number, what follows."""


def read(texts: pl.Series) -> pl.DataFrame:
    frame = pl.LazyFrame({"address": texts}).with_columns(zipcode=pl.lit(None, pl.String))
    return parse.parse(frame).collect()


def assert_same(texts: pl.Series, form: str, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Hold both readings of the texts against each other; at least this share of them must be of the usual form."""
    mine = read(texts)
    rest = mine["address"].str.split(" ").list.slice(2).list.join(" ")
    assert rest.str.contains(getattr(forms, form)).mean() >= share
    for each in ("_ROAD", "_LOT"):
        monkeypatch.setattr(forms, each, "^nothing is usual$")
    assert_frame_equal(mine, read(texts))


@pytest.mark.parametrize(("form", "parts"), [("_ROAD", ROADS), ("_LOT", LOTS)])
def test_it_says_what_the_full_reading_says(form: str, parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30,000 texts put together from what addresses are made of, both say the same."""
    dice = Random(7)
    choices = [line.split("/") for line in parts.strip("\n").split("\n")]
    texts = {"서울특별시 중구 " + "".join(map(dice.choice, choices)) for _ in range(30_000)}
    assert_same(pl.Series("address", sorted(texts)).str.replace_all("_", " "), form, monkeypatch, 0.05)


@pytest.mark.skipif(not OFFICIAL.exists(), reason=f"{OFFICIAL.name} is not here")
@pytest.mark.parametrize("form", ["_ROAD", "_LOT"])
def test_of_every_real_building_it_says_what_the_full_reading_says(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every building of a province, written officially, with a detail or without, both say the same."""
    names = {2: "sido", 4: "emd", 5: "ri", 6: "san", 7: "lot", 8: "lot_sub", 10: "road", 12: "main", 13: "sub"}
    raw = pl.read_csv(OFFICIAL, separator="|", has_header=False, encoding="cp949", infer_schema=False, quote_char=None)
    rows = raw.select(pl.nth(place).fill_null("").alias(name) for place, name in names.items())
    town = pl.when(pl.col("emd").str.contains("[읍면]$")).then(pl.col("emd") + " ").otherwise(pl.lit(""))
    ri = pl.when(pl.col("ri") != "").then(pl.col("ri") + " ").otherwise(pl.lit(""))
    hill = pl.when(pl.col("san") == "1").then(pl.lit("산 ")).otherwise(pl.lit(""))
    sub, lot_sub = (
        pl.when(pl.col(name) == "0").then(pl.lit("")).otherwise("-" + pl.col(name)) for name in ("sub", "lot_sub")
    )
    pieces = {"_ROAD": [town, "road", pl.lit(" "), "main", sub], "_LOT": ["emd", pl.lit(" "), ri, hill, "lot", lot_sub]}
    detail = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit(", 3층 301호")).otherwise(pl.lit(""))
    address = pl.concat_str(pl.lit("서울특별시 중구 "), *pieces[form], detail)
    assert_same(rows.select(address.alias("address")).to_series(), form, monkeypatch, 0.8)
