"""Official address files as the agency publishes them, and gazetteers of a few invented buildings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer
from golden_cases import cases

GANGNAM, JONGNO = ("11680", "서울특별시", "강남구"), ("11110", "서울특별시", "종로구")


def put(path: Path, *lines: str, encoding: str = "cp949") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path


def row(
    number: int,
    *,
    sub: int = 0,
    road: str = "한누리대로",
    road_code: str = "361102000002",
    emd: str = "반곡동",
    ri: str = "",
    dong: str = "3611010100",
    sido: str = "세종특별자치시",
    sigungu: str = "",
    lot: str = "0|47|1",
    admin: str = "반곡동",
    zipcode: str = "30145",
    apartment: int = 0,
    reason: str = "",
    register: str = "",
    building: str = "",
) -> str:
    """A line of the official file of buildings."""
    key = f"{dong[:8]}{road_code[5:]}0{number:05d}{sub:05d}"
    return (
        f"{key}|{dong}|{sido}|{sigungu}|{emd}|{ri}|{lot}|{road_code}|{road}|0|{number}|{sub}|3611055600|{admin}|"
        f"{zipcode}||20181204|{apartment}|{reason}|{register}|{building}|"
    )


def official_line(place: int, building: Sequence[Any]) -> str:
    (code, sido, sigungu), emd, ri, lot, road, under, number, zipcode, admin, apartment, name = building
    main, _, sub = number.partition("-")
    lot_main, _, lot_sub = lot.removeprefix("산").partition("-")
    legal = f"{code}{sum(map(ord, emd)) % 100 + 101:03d}{sum(map(ord, ri)) % 90 if ri else 0:02d}"
    road_code = f"{code}{sum(map(ord, road)) % 10**7:07d}"
    fields = [f"{legal}{place:016d}", legal, sido, sigungu, emd, ri]
    fields += [str(int(lot.startswith("산"))), lot_main, lot_sub or "0", road_code, road, str(under), main, sub or "0"]
    fields += [legal[:8] + "00", admin, zipcode, "", "20200101", str(apartment), "", name, name, ""]
    return "|".join(fields)


def gazetteer_of(buildings: Iterable[Sequence[Any]], folder: Path) -> Gazetteer:
    """The gazetteer of some buildings, from a file a province in the form of the official ones."""
    by_province: dict[str, list[str]] = {}
    for place, building in enumerate(buildings):
        by_province.setdefault(building[0][1], []).append(official_line(place, building))
    for number, lines in enumerate(by_province.values()):
        put(folder / f"rnaddrkor_{number}.txt", *lines)
    build_gazetteer([folder], folder / "gazetteer.parquet")
    return Gazetteer.open(folder / "gazetteer.parquet")


def buildings(*worlds: str) -> list[tuple[Any, ...]]:
    lines = cases("buildings.csv").filter(pl.col("world").is_in(worlds)).with_columns(pl.all().fill_null(""))
    return [((code, sido, sigungu), *others) for _, code, sido, sigungu, *others in lines.iter_rows()]


def matched(
    gazetteer: Gazetteer | None, rows: Iterable[tuple[str | None, str | None]], lang: Any = "en"
) -> pl.DataFrame:
    frame = pl.LazyFrame(list(rows), schema={"address": pl.String, "zipcode": pl.String}, orient="row")
    return attach(frame, gazetteer, lang).collect()


def official_addresses(shared: Path) -> pl.DataFrame:
    """Each road and number of a province: ``town``, ``name``, ``main``, ``sub``; as written: ``road``, ``lot``."""
    file = shared / "address" / "rnaddrkor_sejong.txt"
    names = {4: "emd", 5: "ri", 6: "san", 7: "lot", 8: "lot_sub", 10: "name", 12: "main", 13: "sub"}
    raw = pl.read_csv(file, separator="|", has_header=False, encoding="cp949", infer_schema=False, quote_char=None)
    rows = raw.select(pl.nth(place).fill_null("").alias(name) for place, name in names.items())
    sub, lot_sub = (
        pl.when(pl.col(name) != "0").then("-" + pl.col(name)).otherwise(pl.lit("")) for name in ("sub", "lot_sub")
    )
    rows = rows.with_columns(town=pl.when(pl.col("emd").str.contains("[읍면]$")).then("emd")).filter(
        pl.col("lot") != "0"
    )
    hill = pl.when(pl.col("san") == "1").then(pl.lit("산 ")).otherwise(pl.lit(""))
    ri = pl.when(pl.col("ri") != "").then("ri")
    road, lot = pl.concat_str("main", sub), pl.concat_str(hill, "lot", lot_sub)
    return rows.with_columns(
        road=pl.concat_str("town", "name", road, separator=" ", ignore_nulls=True),
        lot=pl.concat_str("emd", ri, lot, separator=" ", ignore_nulls=True),
    ).unique("road", maintain_order=True)
