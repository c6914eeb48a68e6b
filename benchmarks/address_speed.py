"""How fast addresses are matched against a nationwide gazetteer, and in how much memory.

    python benchmarks/address_speed.py NATION_DIR GAZETTEER [--rows 1000000] [--runs 3] [--big 10] [--folder DIR]

NATION_DIR is what ``benchmarks/nationwide.py`` wrote, GAZETTEER what ``bansong data build-gazetteer`` made of it.
Four sets of ``--rows`` addresses are drawn from it, seeded: *road* and *lot*, officially written; *repair*, a tenth of
which need it (a syllable of the road wrong or missing, no region but a postal code, a number beside the real one,
another district's postal code) and the rest are road forms, lot forms and road forms with detail; *hard*, all of which
need it. Every process scans Parquet and sinks Parquet, streaming. Baselines: the same read and write with ten constant
columns, and a plain polars join of the whole strings to all official ones. Measured: ``attach`` alone and the whole
engine, with and without the gazetteer; its loading apart. The last table: the *repair* set once and ``--big`` times
over, from Parquet and from CSV. Goals: 100,000 rows/s for road and lot, 40,000 for repair, 3 GB, flat memory.

    python benchmarks/address_speed.py --plain CUSTOMERS GAZETTEER

prints the share of plain addresses (decision 070), and CPU microseconds a row with and without their own way, in turn,
by the size of a batch. CUSTOMERS: a CSV or Parquet file with ``address``, ``zipcode`` or 주소, 우편번호, such as that
of ``normal_run.py``; without ``--plain``, this table is printed for the *repair* set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl

PLAIN_ROWS = 200_000
PLAIN_BATCHES = (15_000, 50_000, 200_000)
SETS = ("road", "lot", "repair", "hard")
CONSTANT = {
    "match_level": "exact",
    "covered": True,
    "form": "road",
    "unit": None,
    "region_given": True,
    "numbered": True,
    "beside": False,
    "postal_match": "right",
    "zipcode_given": "30098",
    "zipcode_right": "30098",
    "changes": None,
    "fixed_zipcode": "30098",
    "fixed_address": "세종특별자치시 조치원읍 세종로 2449, 3층 301호 (서창리)",
}


# --- the addresses, made in a process of their own -------------------------------------------------------------------


def make(nation: str, folder: str, rows: int, parts: int) -> None:
    """Write the sets as Parquet, the *repair* set ``parts`` times with other draws, and all official strings."""
    import nationwide

    target = Path(folder)
    files = sorted(Path(nation).glob("rnaddrkor_*.txt"))
    official = [nationwide.official(file).select(nationwide.written().alias("address"), "zipcode") for file in files]
    pl.concat(official).unique("address").write_parquet(target / "official.parquet")
    del official
    for part in range(parts):
        made = typed(nationwide.truth(nation, rows, seed=1000 * part))
        if not part:
            for name in SETS[:2]:
                made.select(address=name, zipcode="zipcode", b_no="b_no").write_parquet(target / f"{name}.parquet")
            made.select("b_no", address="broken", zipcode="broken_zip").write_parquet(target / "hard.parquet")
        tenth = pl.col("place") % 10 == 7
        mixed = pl.when(tenth).then("broken").when(pl.col("place") % 3 == 0).then("lot")
        detail = pl.when(pl.col("place") % 3 == 1).then(pl.col("road")).otherwise(pl.col("detailed"))
        zipcode = pl.when(tenth).then("broken_zip").when(pl.col("place") % 2 == 0).then("zipcode")
        repair = made.select("b_no", mixed.otherwise(detail).alias("address"), zipcode.alias("zipcode"))
        repair.write_parquet(target / f"repair-{part}.parquet")


def typed(truth: pl.DataFrame) -> pl.DataFrame:
    """The ways to write each building: ``road``, ``lot``, ``detailed``, and ``broken`` with its postal code."""
    rows = truth.sample(fraction=1.0, shuffle=True, seed=1).with_row_index("place")
    main, region = pl.col("main"), pl.concat_str("sido", pl.lit(" "), "sigungu").str.strip_chars_end()
    sub = pl.when(pl.col("sub") == "0").then(pl.lit("")).otherwise("-" + pl.col("sub"))
    lot_sub = pl.when(pl.col("lot_sub") == "0").then(pl.lit("")).otherwise("-" + pl.col("lot_sub"))
    town = pl.when(pl.col("emd").str.contains("[읍면]$")).then(pl.col("emd") + " ").otherwise(pl.lit(""))
    hill = pl.when(pl.col("san") == "1").then(pl.lit("산 ")).otherwise(pl.lit(""))
    ri = pl.when(pl.col("ri") == "").then(pl.lit("")).otherwise(pl.col("ri") + " ")
    wrong = [
        region + " " + town + "갸" + pl.col("road").str.slice(1) + " " + main + sub,
        region + " " + town + pl.col("road").str.slice(1) + " " + main + sub,
        pl.col("road") + " " + main + sub,
        region + " " + town + pl.col("road") + " " + main + "-97",
        region + " " + town + pl.col("road") + " " + main + sub,
    ]
    broken = wrong[0]
    kind = pl.col("place") // 10 % len(wrong)
    for turn, way in enumerate(wrong):
        broken = pl.when(kind == turn).then(way).otherwise(broken)
    return rows.select(
        "place",
        (pl.lit(1_000_000_000, pl.UInt64) + pl.col("place") * 7919 % 8_999_999_999).alias("b_no"),
        pl.col("address").alias("road"),
        (region + " " + pl.col("emd") + " " + ri + hill + pl.col("lot_main") + lot_sub).alias("lot"),
        (pl.col("address").str.split(" (").list.first() + ", 3층 301호").alias("detailed"),
        broken.alias("broken"),
        pl.col("zipcode"),
        pl.when(kind == len(wrong) - 1)
        .then(pl.col("zipcode").shift(1, fill_value="30098"))
        .otherwise("zipcode")
        .alias("broken_zip"),
    )


# --- one measured process --------------------------------------------------------------------------------------------


def child(how: str, sources: list[str], gazetteer: str, target: str, runs: int) -> None:
    """Run one query ``runs`` times; print its seconds, those of loading (lazy parts too) and the peak memory."""
    started = time.perf_counter()
    frame = scanned(sources)
    query = asked(how, frame, gazetteer)
    if "gazetteer" in how:
        asked(how, frame.head(20_000), gazetteer).collect()
    loaded = time.perf_counter() - started
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        query.sink_parquet(target)
        seconds.append(time.perf_counter() - started)
    levels = dict(pl.scan_parquet(target).group_by("match_level").len().collect().rows()) if "attach" in how else {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "loading": loaded, "peak": peak, "levels": levels}))


def scanned(sources: list[str]) -> pl.LazyFrame:
    if sources[0].endswith(".csv"):
        return pl.scan_csv(sources, infer_schema=False)
    return pl.scan_parquet(sources)


def asked(how: str, frame: pl.LazyFrame, gazetteer: str) -> pl.LazyFrame:
    if how == "read and write":
        return frame.with_columns(pl.lit(value).alias(name) for name, value in CONSTANT.items())
    if how == "join of whole strings":
        official = pl.scan_parquet(Path(gazetteer)).rename({"zipcode": "fixed_zipcode"})
        return frame.join(official, on="address", how="left", maintain_order="left")
    from bansong import LocalEngine
    from bansong.engine.address.attach import attach
    from bansong.engine.address.gazetteer import Gazetteer

    if how.startswith("attach"):
        return attach(frame, Gazetteer.open(gazetteer) if how.endswith("gazetteer") else None, "en")
    return LocalEngine(gazetteer=gazetteer if how.endswith("gazetteer") else None).answer(frame)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of the runs in a process, its seconds for loading, its peak memory in MB, the match levels."""

    seconds: list[float]
    loading: float
    peak: float
    levels: dict[str, int]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measured(how: str, sources: list[Path], gazetteer: Path, folder: Path, runs: int) -> Figures:
    arguments = [
        how,
        json.dumps([str(source) for source in sources]),
        str(gazetteer),
        str(folder / "out.parquet"),
        str(runs),
    ]
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


# --- the tables ------------------------------------------------------------------------------------------------------


def table_of_sets(folder: Path, gazetteer: Path, rows: int, runs: int) -> None:
    ways = ("read and write", "join of whole strings", "attach", "attach, gazetteer", "engine", "engine, gazetteer")
    print(f"\n{rows:,} rows, median of {runs}; rows/s (and times the read and write), peak memory of the process\n")
    print("| addresses |", " | ".join(ways), "|")
    print("| --- " * (len(ways) + 1) + "|")
    levels, loading = {}, []
    for name in SETS:
        source = folder / (f"{name}-0.parquet" if name == "repair" else f"{name}.parquet")
        cells, base = [], 0.0
        for how in ways:
            table = folder / "official.parquet" if how.startswith("join") else gazetteer
            figures = measured(how, [source], table, folder, runs)
            base = base or figures.median
            cells.append(f"{rows / figures.median:,.0f} ({figures.median / base:.1f}x), {figures.peak:,.0f} MB")
            if how == "attach, gazetteer":
                levels[name] = figures.levels
                loading.append(figures.loading)
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    print(f"\nloading (imports, gazetteer, first 20,000 rows): {statistics.median(loading):.1f} s; match levels:\n")
    for name, counts in levels.items():
        most = sorted(counts.items(), key=lambda item: -item[1])
        print(f"- {name}: " + ", ".join(f"{level} {100 * count / rows:.1f} %" for level, count in most))


def table_of_size(folder: Path, gazetteer: Path, rows: int, parts: int) -> None:
    print(f"\nthe engine on {rows:,} and {parts * rows:,} rows of the repair set, one run, the gazetteer loaded\n")
    print("| from | rows | seconds | rows/s | peak memory |", "| --- | --- | --- | --- | --- |", sep="\n")
    sources = [folder / f"repair-{part}.parquet" for part in range(parts)]
    tables = [folder / f"repair-{part}.csv" for part in range(parts)]
    for source, table in zip(sources, tables, strict=True):
        pl.scan_parquet(source).sink_csv(table)
    for kind, files in (("Parquet", sources), ("CSV", tables)):
        for some in (files[:1], files):
            figures = measured("engine, gazetteer", some, gazetteer, folder, 1)
            speed = len(some) * rows / figures.median
            cells = (kind, f"{len(some) * rows:,}", f"{figures.median:.1f}", f"{speed:,.0f}", f"{figures.peak:,.0f} MB")
            print("|", " | ".join(cells), "|", flush=True)


def table_of_plain(source: str, gazetteer: str, runs: int = 3) -> None:
    """Print the share of plain addresses and what their own way saves, in batches of some sizes."""
    from bansong.engine.address import attach, plain
    from bansong.engine.address.gazetteer import Gazetteer

    rows = scanned([source]).rename({"주소": "address", "우편번호": "zipcode"}, strict=False)
    rows = rows.select("address", "zipcode").head(PLAIN_ROWS).collect()
    opened, match, left = Gazetteer.open(gazetteer), attach.match_addresses, []

    def counted(lookups, parsed):  # type: ignore[no-untyped-def]
        left.append(parsed.height)
        return match(lookups, parsed)

    def cpu_of(batch: pl.DataFrame, fewest: int) -> float:
        plain.MIN_PLAIN_ROWS = fewest  # type: ignore[misc]
        started = time.process_time()
        attach._match_batch(opened, "en", batch.to_struct("address"))
        return time.process_time() - started

    fewest, attach.match_addresses = plain.MIN_PLAIN_ROWS, counted
    levels = attach._match_batch(opened, "en", rows.to_struct("address")).struct.field("match_level")
    exact = (levels == "exact").sum() or 0
    own = rows.height - sum(left)
    print(
        f"\n{rows.height:,} rows, plain {own / rows.height:.1%}, of those found as written {own / max(exact, 1):.1%}\n"
    )
    print("| rows in a batch | by the readings alone, CPU us a row | with plain addresses apart | ratio |")
    print("| --- " * 4 + "|")
    for size in (fewest, *(some for some in PLAIN_BATCHES if some <= rows.height)):
        batch = rows.sample(min(size, rows.height), seed=size)
        pairs = [(cpu_of(batch, rows.height + 1), cpu_of(batch, 0)) for _ in range(runs)]
        alone, apart = (statistics.median(side) / batch.height * 1e6 for side in zip(*pairs, strict=True))
        print(f"| {size:,} | {alone:.1f} | {apart:.1f} | {apart / alone:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nation", type=Path)
    parser.add_argument("gazetteer", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--big", type=int, default=10, help="parts of --rows for the memory table; 0 leaves it out")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-", dir=options.folder) as name:
        folder = Path(name)
        arguments = [str(options.nation), name, str(options.rows), str(max(options.big, 1))]
        subprocess.run([sys.executable, __file__, "--make", *arguments], check=True)
        print(f"{os.cpu_count()} CPUs, polars {pl.__version__}")
        table_of_sets(folder, options.gazetteer, options.rows, options.runs)
        command = [sys.executable, __file__, "--plain", str(folder / "repair-0.parquet"), str(options.gazetteer)]
        subprocess.run(command, check=True)
        if options.big:
            table_of_size(folder, options.gazetteer, options.rows, options.big)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
    elif sys.argv[1:2] == ["--plain"]:
        table_of_plain(sys.argv[2], sys.argv[3])
    else:
        main()
