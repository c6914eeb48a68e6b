"""Hostile addresses: what a row costs to read compared with an ordinary address, and the memory it takes.

    python benchmarks/address_hostile.py [--runs 3]

Each class has as many rows as make about 2 MB (at most 5,000); every class is read in turn with the ordinary list,
in a process of its own for the memory. The goal is linear time: nanoseconds a byte that stay near the ordinary ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import polars as pl
from measure import once

from bansong.engine.address import parse

BYTES, MOST_ROWS = 2_000_000, 5_000
ORDINARY = [
    "세종특별자치시 조치원읍 세종로 2449, 3층 (서창리)",
    "서울특별시 종로구 세종대로 175 (세종로)",
    "경기도 수원시 영통구 원천동 83-8번지 2층",
    "부산 연제구 법원남로 15번길 6, 2층(거제동)",
]
LONG = 100_000
HOSTILE = {
    "100 kB 로1로1": "로1" * (LONG // 4),
    "100 kB of (": "(" * LONG,
    "100 kB of ()": "()" * (LONG // 2),
    "100 kB digits": "1" * LONG,
    "100 kB spaces": "서울" + " " * LONG + "종로 1",
    "100 kB Hangul": "가" * (LONG // 3),
    "300 x 로1": "로1" * 150,
    "300 x 동1 ": "동1 " * 100,
    "300 x 길-": "길1-" * 100,
    "300 x (": "로" + "(" * 299,
    "300 x ((1)": "로 1" + "((1)" * 74,
    "300 digits": "로 " + "1" * 298,
    "300 x 번길": "로 " + "1번길" * 99,
    "300 x 번지 호": "동 " + "1번지 1호" * 42,
    "300 x 1층,": "로 1 " + "1층," * 98,
    "300 x 제1동": "가" + "제1동" * 99,
    "emoji": "🏠" * 75,
    "formula": '=HYPERLINK("http://x";"종로 1")',
    "NUL bytes": "종\x00로\x00 \x001" * 30,
    "NFD": "\u1109\u1165\u110b\u116e\u11af " * 40,
    "random bytes": "".join(chr(33 + (place * 7919) % 50_000) for place in range(280)),
}


def frame_of(addresses: list[str]) -> pl.DataFrame:
    rows = max(10, min(MOST_ROWS, BYTES // len(addresses[0].encode("utf-8", "replace"))))
    written = (addresses * (rows // len(addresses) + 1))[:rows]
    return pl.DataFrame({"address": written, "zipcode": [None] * rows}, schema_overrides={"zipcode": pl.String})


def seconds(frame: pl.DataFrame) -> float:
    started = time.perf_counter()
    parse.parse(frame.lazy()).collect()
    return time.perf_counter() - started


def only(name: str) -> None:
    """Read one class once, for the memory of the process."""
    seconds(frame_of(ORDINARY if name == "ordinary" else [HOSTILE[name]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        only(options.only)
        return
    ordinary = frame_of(ORDINARY)
    floor = seconds(ordinary.head(1)) and statistics.median(seconds(ordinary.head(1)) for _ in range(options.runs))
    print(f"a plan alone (one row): {floor * 1000:.0f} ms, taken off below")
    print(f"{'class':<16}{'rows':>7}{'bytes':>9}{'us/row':>10}{'x ordinary':>12}{'ns/byte':>9}{'MB':>6}")
    for name in ("ordinary", *HOSTILE):
        frame = frame_of(ORDINARY if name == "ordinary" else [HOSTILE[name]])
        times, usual = [], []
        for _ in range(options.runs):
            usual.append((seconds(ordinary) - floor) / ordinary.height)
            times.append((seconds(frame) - floor) / frame.height)
        row, base = max(statistics.median(times), 0), statistics.median(usual)
        size = len(frame["address"][0].encode("utf-8", "replace"))
        peak = once([sys.executable, __file__, "--only", name]).peak
        figures = f"{row * 1e6:>10.1f}{row / base:>12.2f}{row / size * 1e9:>9.1f}{peak:>6.0f}"
        print(f"{name:<16}{frame.height:>7}{size:>9}{figures}")


if __name__ == "__main__":
    main()
