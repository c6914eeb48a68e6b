"""Every road of Korea: the real addresses of the post office's list of 2021, as gazetteer and as queries.

    pip install kozip; python benchmarks/address_nation.py [--every] [--folder DIR] [--keep DIR]

The package `kozip` (for postal code → addresses) holds the list of 2021-11-03: 6.34 million buildings, without lots and
without the underground flag. Reshaped into `zipcode_DB` files it is built into a gazetteer, and asked without codes:
one address of each of the 165,081 roads (`--every`: all buildings). Right: the same road, number and postal code.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import polars as pl

from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer

HEAD = (
    "우편번호|시도|시도영문|시군구|시군구영문|읍면|읍면영문|도로명코드|도로명|도로명영문|지하여부|건물번호본번|건물번호부번|건물관리번호|다량배달처명|"
    "시군구용건물명|법정동코드|법정동명|리명|행정동명|산여부|지번본번|읍면동일련번호|지번부번|구우편번호|우편일련번호"
)
LINE = re.compile(r"^(.+?) (\d+)(?:-(\d+))?\|?(.*)$")


def rows(source: Path) -> Iterator[dict[str, str]]:
    """The buildings of the list, with codes made up for districts, roads and dongs."""
    districts: dict[tuple[str, str], str] = {}
    roads: dict[tuple[str, str, str], str] = {}
    dongs: dict[tuple[str, str, str], str] = {}
    for zipcode, provinces in json.loads(source.read_text(encoding="utf-8")).items():
        for sido, inside in provinces.items():
            for sigungu, lines in inside.items():
                district = districts.setdefault((sido, sigungu), f"{10000 + len(districts)}")
                for line in sorted(set(lines)):
                    if found := LINE.match(line):
                        road, main, sub, place = found.groups(default="")
                        emd, _, ri = place.partition(" ")
                        code = roads.setdefault((sido, sigungu, road), f"{district}{3000000 + len(roads):07d}")
                        dong = dongs.setdefault((sido, sigungu, place), f"{district}{len(dongs) % 90000 + 10000}")
                        yield {
                            "zipcode": zipcode,
                            "sido": sido,
                            "sigungu": sigungu,
                            "emd": emd,
                            "ri": ri,
                            "road": road,
                            "main": main,
                            "sub": sub or "0",
                            "road_code": code,
                            "dong_code": dong,
                        }


def written(found: pl.DataFrame, target: Path) -> None:
    town, empty = pl.col("emd").str.contains("[읍면]$"), pl.lit("")
    number = pl.concat_str("dong_code", pl.int_range(pl.len()).cast(pl.String).str.zfill(15))
    columns = dict.fromkeys(HEAD.split("|"), empty) | {
        "우편번호": pl.col("zipcode"),
        "시도": pl.col("sido"),
        "시군구": pl.col("sigungu"),
        "도로명코드": pl.col("road_code"),
        "읍면": pl.when(town).then("emd").otherwise(empty),
        "도로명": pl.col("road"),
        "지하여부": pl.lit("0"),
        "건물번호본번": pl.col("main"),
        "건물번호부번": pl.col("sub"),
        "건물관리번호": number,
        "법정동코드": pl.col("dong_code"),
        "법정동명": pl.when(town).then(empty).otherwise("emd"),
        "리명": pl.col("ri"),
        "산여부": pl.lit("0"),
        "지번본번": pl.lit("1"),
        "읍면동일련번호": pl.lit("01"),
        "지번부번": pl.lit("0"),
    }
    for (sido,), part in found.group_by("sido"):
        frame = part.select(**columns)
        frame.write_csv(target / f"{sido}.txt", separator="|", quote_style="never", include_bom=True)


def build_nation(folder: Path) -> tuple[Path, Path]:
    """Return the gazetteer and its buildings (columns of :func:`rows`), made in ``folder`` unless they are there."""
    gazetteer, buildings = folder / "nation.parquet", folder / "buildings.parquet"
    if not gazetteer.exists():
        package = find_spec("kozip")
        if package is None or package.origin is None:
            sys.exit("skipped: pip install kozip")
        found = pl.DataFrame(rows(Path(package.origin).with_name("new_zip.json")))
        found.write_parquet(buildings)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            written(found, Path(name))
            build_gazetteer([name], gazetteer)
    return gazetteer, buildings


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", action="store_true", help="ask all buildings, not one a road")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", type=Path, help="where the gazetteer is kept between runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-", dir=options.folder) as name:
        gazetteer, buildings = build_nation(options.keep or Path(name))
        found = pl.read_parquet(buildings)
        asked = found if options.every else found.unique("road_code", keep="first", maintain_order=True)
        town = pl.when(pl.col("emd").str.contains("[읍면]$")).then(pl.col("emd")).otherwise(pl.lit(""))
        number = pl.col("main") + pl.when(pl.col("sub") == "0").then(pl.lit("")).otherwise("-" + pl.col("sub"))
        asked = asked.with_columns(tail=pl.concat_str(pl.lit(" "), "road", pl.lit(" "), number))
        asked = asked.with_columns(
            address=pl.concat_str("sido", "sigungu", town, "road", number, separator=" ").str.replace_all(" +", " "),
            right_zip="zipcode",
            zipcode=pl.lit(None, pl.String),
        )
        answered = attach(asked.lazy(), Gazetteer.open(gazetteer), "en").collect(engine="streaming")
    same = pl.col("fixed_address").str.split(" (").list.first().str.ends_with(pl.col("tail"))
    right = same & (pl.col("fixed_zipcode") == pl.col("right_zip"))
    given = pl.col("fixed_address").is_not_null()
    counts = answered.select(pl.len(), given.sum().alias("given"), right.sum().alias("right")).row(0)
    print("| asked | answered | right | levels |", "| --- | --- | --- | --- |", sep="\n")
    levels = Counter(answered["match_level"].to_list()).most_common()
    words = ", ".join(f"{level} {count:,}" for level, count in levels)
    print(f"| {counts[0]:,} | {counts[1]:,} | {counts[2]:,} | {words} |")
    for row in answered.filter(given & ~right).select("address", "fixed_address").head(50).iter_rows():
        print(*row, sep="  →  ")


if __name__ == "__main__":
    main()
