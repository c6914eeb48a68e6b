"""A file's businesses held against a watch list: what to add, to change, to remove. Frames in, frames out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from bizverify import business_number
from bizverify.engine.local import ROW_PROBLEM
from bizverify.engine.text_values import is_blank
from bizverify.run.records import DIGITS, RIGHT, ROW_ID

LISTED: Final = {
    "watch_id": pl.String,
    "biz_no": pl.String,
    "name": pl.String,
    "address": pl.String,
    "biz_status": pl.String,
    "grade": pl.String,
    "created": pl.Float64,
    "checked": pl.Float64,
    "due": pl.Float64,
    "closed": pl.Float64,
    "shows_name": pl.Boolean,
    "shows_address": pl.Boolean,
}
"""A watch list as a frame, in its order. Times are seconds since 1970. ``shows_…``: whether the list says what it holds
there at all; of what it does not say nothing can differ."""

BUSINESS: Final = {"biz_no": pl.String, "name": pl.String, "address": pl.String}
CHANGE: Final = {"watch_id": pl.String, **BUSINESS, "name_before": pl.String, "address_before": pl.String}
REMOVAL: Final = {"watch_id": pl.String, **BUSINESS}

_PLACE: Final = "place"


@dataclass(frozen=True, slots=True)
class Businesses:
    """The businesses of a table, and the rows that are none.

    ``frame``: :data:`BUSINESS`, one row a number, in file order; where a number stands in several rows name and address
    are the first that are given. ``unusable``: ``row_id`` (from 0) and ``problem``, a code, of each row without a
    number. ``repeated``: ``biz_no``, ``rows`` (how many) and ``differing`` (Boolean: with several names or addresses).
    ``suspect``: numbers whose check digit is wrong; they are watched all the same.
    """

    frame: pl.DataFrame
    rows: int
    unusable: pl.DataFrame
    repeated: pl.DataFrame
    suspect: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What would make the list that of the file.

    ``add``: :data:`BUSINESS`. ``change``: :data:`CHANGE`, with name and address of the file, null where it has none.
    ``remove``: :data:`REMOVAL`, not in the file. ``repeated``: :data:`REMOVAL`, a business's second watch and further
    ones. ``unchanged``: watches that are as the file says; ``unnumbered``: watches that the list shows without a
    business number, which are left alone. ``watched``: businesses on the list.
    """

    add: pl.DataFrame
    change: pl.DataFrame
    remove: pl.DataFrame
    repeated: pl.DataFrame
    unchanged: int
    unnumbered: int
    watched: int


def businesses(rows: pl.LazyFrame) -> Businesses:
    """Return the businesses of :attr:`bizverify.enrichment.PreparedTable.rows`; reads the file."""
    names = rows.collect_schema().names()
    if DIGITS not in names:  # `[]`: no record, so no columns
        nothing = pl.DataFrame(schema={"biz_no": pl.String, "rows": pl.UInt32, "differing": pl.Boolean})
        return Businesses(pl.DataFrame(schema=BUSINESS), 0, _unusable(pl.DataFrame()), nothing, 0)
    read = rows.select(
        ROW_ID,
        pl.when(pl.col(ROW_PROBLEM).is_null()).then(DIGITS).alias("biz_no"),
        pl.coalesce(ROW_PROBLEM, business_number.problem_expr(pl.col("b_no"))).alias("problem"),
        pl.col(RIGHT).alias("right"),
        *(_text(name, names) for name in ("name", "address")),
    ).collect(engine="streaming")
    given = read.drop_nulls("biz_no").sort(ROW_ID)
    texts = [pl.col(name).drop_nulls() for name in ("name", "address")]
    grouped = given.group_by("biz_no", maintain_order=True).agg(
        *(text.first() for text in texts),
        pl.len().cast(pl.UInt32).alias("rows"),
        pl.any_horizontal(_alike(text).n_unique() > 1 for text in texts).alias("differing"),
        pl.col("right").first(),
    )
    return Businesses(
        frame=grouped.select(*BUSINESS),
        rows=read.height,
        unusable=_unusable(read),
        repeated=grouped.filter(pl.col("rows") > 1).select("biz_no", "rows", "differing"),
        suspect=grouped.select((~pl.col("right").fill_null(value=True)).sum()).item(),
    )


def reconciled(file: pl.DataFrame, listed: pl.DataFrame) -> Reconciled:
    """Hold the businesses of a file (:data:`BUSINESS`) against a list (:data:`LISTED`).

    Names and addresses are compared as they are read: white space and Unicode's ways to write a syllable aside. What
    the file does not give, and what the list does not show, is no difference. Of several watches of one business the
    first that is as the file says stays, else the first.
    """
    numbered = listed.with_columns(business_number.compact_expr(pl.col("biz_no")).alias("biz_no")).with_row_index(
        _PLACE
    )
    known = numbered.drop_nulls("biz_no")
    wanted = file.select("biz_no", pl.col("name").alias("name_in"), pl.col("address").alias("address_in"), known=True)
    joined = known.join(wanted, on="biz_no", how="left", maintain_order="left")
    judged = joined.with_columns(
        pl.col("known").fill_null(value=False), (_differs("name") | _differs("address")).alias("differs")
    )
    first = pl.col(_PLACE).sort_by("differs", _PLACE).first().over("biz_no")
    judged = judged.with_columns((pl.col(_PLACE) == first).alias("kept"))
    changed = judged.filter("known", "kept", "differs").select(
        "watch_id",
        "biz_no",
        name="name_in",
        address="address_in",
        name_before="name",
        address_before="address",
    )
    return Reconciled(
        add=file.join(known, on="biz_no", how="anti", maintain_order="left").select(*BUSINESS),
        change=changed,
        remove=judged.filter(~pl.col("known")).select(*REMOVAL),
        repeated=judged.filter("known", ~pl.col("kept")).select(*REMOVAL),
        unchanged=judged.filter("known", "kept", ~pl.col("differs")).height,
        unnumbered=numbered.height - known.height,
        watched=known["biz_no"].n_unique(),
    )


def _differs(name: str) -> pl.Expr:
    """Whether the file gives something else than what the list shows."""
    given = pl.col(f"{name}_in")
    return pl.col(f"shows_{name}") & given.is_not_null() & _alike(pl.col(name)).ne_missing(_alike(given))


def _alike(text: pl.Expr) -> pl.Expr:
    return text.str.normalize("NFC").str.replace_all(r"\s+", " ").str.strip_chars()


def _text(name: str, names: list[str]) -> pl.Expr:
    """A cell as it is sent: without outer white space, null where it says nothing (``없음``, a dash)."""
    if name not in names:
        return pl.lit(None, pl.String).alias(name)
    text = pl.col(name).cast(pl.String)
    return pl.when(~is_blank(text)).then(text.str.strip_chars()).alias(name)


def _unusable(read: pl.DataFrame) -> pl.DataFrame:
    schema = {ROW_ID: pl.Int64, "problem": pl.String}
    if read.is_empty():
        return pl.DataFrame(schema=schema)
    return (
        read.filter(pl.col("biz_no").is_null())
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .sort(ROW_ID)
    )
