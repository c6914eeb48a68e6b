"""What users do: a million customers with a registry and the nation's gazetteer, against the bare read → write.

    pip install kozip; python benchmarks/normal_run.py [--rows 1000000] [--runs 3] [--keep DIR]

The gazetteer is made of the package `kozip` as in ``address_nation.py`` (6.3 million real buildings), and kept with the
customers in ``--keep`` between runs. Of the addresses 85 % are written as people do, 10 % have one wrong letter and a
postal code, 5 % are nowhere. Baseline and stages are those of ``scale.py``. Goals: at most 8 times the baseline's CPU,
5 times its wall seconds, 2 GB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import polars as pl
from address_nation import build_nation
from measure import alternate, bansong, once, print_ratios
from scale import BASELINE, make_registry, numbers, print_stages, stages_of

SEED = 7
LETTERS = "가나다라마바사아자차카타파하"
PROVINCES = {
    "서울특별시": "서울",
    "부산광역시": "부산시",
    "대구광역시": "대구",
    "인천광역시": "인천",
    "광주광역시": "광주광역시",
    "대전광역시": "대전시",
    "울산광역시": "울산",
    "경기도": "경기",
    "강원도": "강원",
    "충청북도": "충북",
    "충청남도": "충남",
    "전라북도": "전북",
    "전라남도": "전남",
    "경상북도": "경북",
    "경상남도": "경남",
}


def written(buildings: pl.DataFrame) -> pl.DataFrame:
    """Write an address of each building: ``address``, ``zipcode``; the columns of ``address_nation.rows`` are read."""
    place = pl.int_range(pl.len(), dtype=pl.UInt64)
    turn = place * 2_654_435_761 % 2**32 // 128
    town = pl.when(pl.col("emd").str.contains("[읍면]$")).then("emd")
    province = pl.when(turn % 3 == 0).then(pl.col("sido").replace(PROVINCES)).otherwise("sido")
    number = pl.col("main") + pl.when(pl.col("sub") == "0").then(pl.lit("")).otherwise("-" + pl.col("sub"))
    kind = place * 7919 % 20  # 0: nowhere; 1, 2: one wrong letter and a postal code; the others: as people write
    letter = pl.lit(pl.Series(list(LETTERS))).gather(turn % len(LETTERS))
    misspelt = pl.concat_str(pl.col("road").str.slice(0, 1), letter, pl.col("road").str.slice(2))
    nowhere = pl.concat_str(pl.lit("없는"), letter, pl.lit("길"))
    road = pl.when(kind == 0).then(nowhere).when(kind <= 2).then(misspelt).otherwise("road")
    house = pl.concat_str((turn % 20 + 1).cast(pl.String), (turn % 9 + 1).cast(pl.String).str.zfill(2), pl.lit("호"))
    detail = pl.concat_str(
        pl.when(turn % 5 == 0).then(pl.lit("")).when(turn % 5 < 3).then(pl.lit(", ") + house).otherwise(" " + house),
        pl.when((turn % 7 < 3) & ~pl.col("emd").str.contains("[읍면]$"))
        .then(pl.concat_str(pl.lit(" ("), "emd", pl.lit(")")))
        .otherwise(pl.lit("")),
    )
    sigungu = pl.when(pl.col("sigungu") != "").then("sigungu")
    spaced = (
        pl.when(turn % 11 == 0).then(pl.concat_str(road, number)).otherwise(pl.concat_str(road, pl.lit(" "), number))
    )
    head = pl.concat_str(province, sigungu, town, spaced, separator=" ", ignore_nulls=True)
    code = pl.when((kind == 1) | (kind == 2) | (turn % 4 == 0)).then("zipcode")
    return buildings.select(address=pl.concat_str(head, detail), zipcode=code)


def make(folder: str, rows: int) -> None:
    """Make gazetteer, registry and customers where they are missing."""
    kept = Path(folder)
    _, buildings = build_nation(kept)
    if not (kept / f"registry_{rows}.parquet").exists():
        make_registry(kept, rows)
    if (kept / f"normal_{rows}.csv").exists():
        return
    pool = pl.read_parquet(buildings)
    asked = pool.sample(rows, with_replacement=rows > pool.height, shuffle=True, seed=SEED)
    number = numbers(0, rows)["b_no"].cast(pl.String)
    customers = pl.DataFrame({"사업자등록번호": number, "상호": ("주식회사 " + number.str.slice(3, 5) + "상사")})
    addresses = written(asked).rename({"address": "주소", "zipcode": "우편번호"})
    customers.hstack(addresses).write_csv(kept / f"normal_{rows}.csv")


def prepared(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Path, Path]:
    """Add the options of a normal run; return what was given, its customers and its registry, made if missing."""
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "bansong-nation"))
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    os.environ["BANSONG_STATE_DIR"] = str(given.keep / "state")
    code = f"import normal_run; normal_run.make({str(given.keep)!r}, {given.rows})"
    once([sys.executable, "-c", code], cwd=Path(__file__).parent)
    return given, given.keep / f"normal_{given.rows}.csv", given.keep / f"registry_{given.rows}.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given, source, registry = prepared(parser)
    gazetteer, output = given.keep / "nation.parquet", given.keep / "normal.enriched.csv"
    options = ["--registry", registry, "-o", output]
    figures = alternate(
        {
            "bare read → write": [sys.executable, "-c", BASELINE, str(source), str(given.keep / "base.csv")],
            "with registry and gazetteer": bansong("enrich", source, *options, "--gazetteer", gazetteer),
            "with registry": bansong("enrich", source, *options),
        },
        given.runs,
    )
    stages = stages_of(source, registry, output, given.runs, gazetteer)
    print(f"{given.rows:,} rows")
    print_stages(stages, print_ratios(figures))


if __name__ == "__main__":
    main()
