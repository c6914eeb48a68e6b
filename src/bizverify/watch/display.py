"""A watch list as lines for people: columns that stand straight, Hangul in them or not."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import polars as pl

from bizverify import business_number

_WIDE: Final = (
    r"[\u{1100}-\u{115f}\u{2e80}-\u{a4cf}\u{ac00}-\u{d7a3}\u{f900}-\u{faff}"
    r"\u{fe30}-\u{fe6f}\u{ff00}-\u{ff60}\u{ffe0}-\u{ffe6}\u{1f300}-\u{1faff}]"
)
"""Characters that take two columns of a terminal."""
_UNSEEN: Final = r"[\p{Cc}\p{Zl}\p{Zp}]+"
_LONGEST: Final = 24
"""Characters of a name or an address that a line has room for."""


def list_lines(frame: pl.DataFrame) -> list[str]:
    """The lines of :func:`bizverify.watch.entries`, with a header, and a last one that counts."""
    shown = with_local_times(frame).select(
        pl.coalesce(business_number.format_expr(pl.col("biz_no")), "biz_no").alias("number"),
        "name",
        pl.col("biz_status").alias("status"),
        "grade",
        pl.col("checked_at").str.slice(0, 16).str.replace("T", " ").fill_null("not yet").alias("checked"),
        "address",
        pl.col("watch_id").alias("watch id"),
    )
    total = f"{frame.height:,} watched" + (f", {closed:,} of them closed" if (closed := _count_closed(frame)) else "")
    if frame.is_empty():
        return ["nothing is watched"]
    if frame["checked_at"].null_count() + frame["created_at"].null_count() == 2 * frame.height:
        shown = shown.drop("checked")  # a service that tells no times
    return [*_columns(shown), total]


def with_local_times(frame: pl.DataFrame) -> pl.DataFrame:
    """Times as ISO 8601 text in this machine's time zone."""
    # the rules of this machine's zone are known to Python alone
    times = [name for name, dtype in frame.schema.items() if dtype == pl.Datetime]
    return frame.with_columns(pl.col(times).map_elements(_local_iso, return_dtype=pl.String)) if times else frame


def _columns(shown: pl.DataFrame) -> list[str]:
    """The rows under their headers, each column as wide as its widest cell."""
    texts = shown.select(_cell(name) for name in shown.columns)
    headed = pl.concat([pl.DataFrame({name: [name] for name in shown.columns}), texts])
    padded = headed.select(_pad(name) for name in headed.columns)
    return padded.select(pl.concat_str(pl.all(), separator="  ").str.strip_chars_end()).to_series().to_list()


def _cell(name: str) -> pl.Expr:
    text = pl.col(name).cast(pl.String).fill_null("").str.replace_all(_UNSEEN, " ")
    if name not in ("name", "address"):
        return text
    return pl.when(text.str.len_chars() > _LONGEST).then(text.str.head(_LONGEST - 1) + "…").otherwise(text)


def _pad(name: str) -> pl.Expr:
    width = pl.col(name).str.len_chars() + pl.col(name).str.count_matches(_WIDE)
    return pl.col(name) + pl.lit(" ").repeat_by(width.max() - width).list.join("")


def _count_closed(frame: pl.DataFrame) -> int:
    return frame.filter(pl.col("biz_status") == "closed").height


def _local_iso(at: datetime) -> str:
    return at.astimezone().isoformat(timespec="seconds")
