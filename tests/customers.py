"""Lists of customers for runs that buy, the key and options of such a run, and whether its answers are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

import bansong as bs
from bansong.testing import FakeService

KEY = "bv_live_0123456789abcdef"
SEVEN = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")
QUICK: dict[str, Any] = {"api_key": bs.ApiKey(KEY), "rate": 1e5, "poll": 0.01}


def numbers(count: int) -> list[str]:
    """So many different numbers with the right check digit."""
    frame = pl.select(pl.int_range(1_010_000_000, 1_010_000_000 + 20 * count, dtype=pl.UInt64).alias("n"))
    right = frame.filter(bs.number.checksum_expr(pl.col("n")))["n"].cast(pl.String)
    return right.head(count).to_list()


def customers(path: Path, count: int, repeats: int = 0) -> Path:
    """A list of so many customers, the first ``repeats`` of them once more at its end."""
    rows = [f"{n},상사 {i},서울시 중구 세종대로 {i}" for i, n in enumerate(numbers(count))]
    path.write_bytes("\n".join(["사업자번호,상호,주소", *rows, *rows[:repeats], ""]).encode())
    return path


def answers(path: Path) -> pl.DataFrame:
    return pl.read_csv(
        path, schema_overrides={"사업자번호": pl.String, "fixed_zipcode": pl.String}, infer_schema_length=None
    )


def is_right(row: dict[str, Any], service: FakeService) -> bool:
    """Whether a row of :func:`answers` has the very answer that the service gives for its record."""
    wanted = service.verdict(row["사업자번호"], row["상호"], row["주소"])
    wanted |= {"reasons": " | ".join(wanted["reasons"])}
    return all(row[name] == wanted[name] for name in SEVEN)
