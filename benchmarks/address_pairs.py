"""Two addresses in one cell: answered where they are one building's, and not where they are two.

    python benchmarks/address_pairs.py OFFICIAL.txt

OFFICIAL.txt is a ``rnaddrkor_*.txt`` file, from which the library builds its gazetteer. Every building of it is written
with its own lot and with the lot or the road of another one, drawn at random (seeded). *own*: answered with the road
and number that were written; where a move is told of, with those of the new place.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import polars as pl

from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer

NAMES = {2: "sido", 4: "emd", 5: "ri", 6: "san", 7: "lot", 8: "lot_sub", 10: "road", 12: "main", 13: "sub"}


def buildings(file: Path) -> pl.DataFrame:
    """Return ``sido``, ``road`` (with its 읍 or 면 and the number) and ``lot`` of every building that has a lot."""
    raw = pl.read_csv(file, separator="|", has_header=False, encoding="cp949", infer_schema=False, quote_char=None)
    rows = raw.select(pl.nth(place).fill_null("").alias(name) for place, name in NAMES.items())
    town = pl.when(pl.col("emd").str.contains("[읍면]$")).then("emd")
    hill = pl.when(pl.col("san") == "1").then(pl.lit("산"))
    ri = pl.when(pl.col("ri") != "").then("ri")
    number, lot = (
        pl.when(pl.col(sub) == "0").then(main).otherwise(pl.col(main) + "-" + pl.col(sub))
        for main, sub in (("main", "sub"), ("lot", "lot_sub"))
    )
    road = pl.concat_str(town, "road", number, separator=" ", ignore_nulls=True)
    of_lot = pl.concat_str("emd", ri, hill, lot, separator=" ", ignore_nulls=True)
    return rows.filter(pl.col("lot") != "0").select("sido", road=road, lot=of_lot).unique("road", maintain_order=True)


def cells() -> dict[str, tuple[bool, pl.Expr]]:
    """Return the ways to write two addresses in one cell, and whether an answer is right; ``other_*``: another one."""
    written = {
        "road (its lot)": (True, "{sido} {road} ({lot})"),
        "lot (its road)": (True, "{sido} {lot} ({road})"),
        "road / its lot": (True, "{sido} {road} / {lot}"),
        "lot번지 2층 (its road)": (True, "{sido} {lot}번지 2층 ({road})"),
        "road (another's lot)": (False, "{sido} {road} ({other_lot})"),
        "lot (another's road)": (False, "{sido} {other_lot} ({road})"),
        "road (another road)": (False, "{sido} {road} ({other_road})"),
        "road, another road": (False, "{sido} {road}, {other_road}"),
        "another에서 road로 이전": (True, "{sido} {other_road}에서 {sido} {road}로 이전"),
        "another → road": (True, "{sido} {other_road} → {sido} {road}"),
        "road (이전: another)": (False, "{sido} {road} (이전: {sido} {other_road})"),
    }
    return {name: (right, composed(text)) for name, (right, text) in written.items()}


def composed(text: str) -> pl.Expr:
    pieces = [piece for part in text.split("{") for piece in part.split("}")]
    return pl.concat_str(pl.col(piece) if place % 2 else pl.lit(piece) for place, piece in enumerate(pieces))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("official", type=Path)
    file = parser.parse_args().official
    rows = buildings(file)
    others = rows.sample(fraction=1, shuffle=True, seed=1).select(other_road="road", other_lot="lot")
    rows = pl.concat([rows, others], how="horizontal")
    print("| written | what is right | answered | own |\n| --- | --- | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as folder:
        build_gazetteer([file], Path(folder) / "gazetteer.parquet")
        gazetteer = Gazetteer.open(Path(folder) / "gazetteer.parquet")
        for name, (right, text) in cells().items():
            asked = rows.select(address=text, zipcode=pl.lit(None, pl.String)).lazy()
            fixed = rows.with_columns(attach(asked, gazetteer, "en").collect()["fixed_address"])
            own = fixed.filter(pl.col("fixed_address").str.starts_with(pl.concat_str("sido", pl.lit(" "), "road")))
            answered = fixed["fixed_address"].count()
            print(f"| {name} | {'answer' if right else 'silence'} | {answered:,} of {len(rows):,} | {len(own):,} |")


if __name__ == "__main__":
    main()
