"""Match outcomes to mailed rows, and list those that could not be used. Nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from bansong.engine.letter_history import address_key
from bansong.translation import gettext_noop

WAYS: Final = ("row_id", gettext_noop("number and address"), gettext_noop("number"))

PROBLEMS: Final[dict[str, str]] = {
    "not_understood": gettext_noop("what it says of the letter is not understood"),
    "no_row_id": gettext_noop("the row_id is not a row's number from 0"),
    "contradicts_itself": gettext_noop("says that the letter did not come back, and why or when it did"),
    "date_not_read": gettext_noop("the return date cannot be read; the outcome is used without it"),
    "no_number": gettext_noop("has no business number"),
    "unknown_number": gettext_noop("its number is not in the mailed file"),
    "row_absent": gettext_noop("the mailed file has no row of this row_id"),
    "number_differs": gettext_noop("the mailed file's row of this row_id has another business number"),
    "ambiguous": gettext_noop("its number stands in the mailed file with several addresses, none of them this one"),
    "other_mailing": gettext_noop("was mailed on another day"),
    "returned_before_mailing": gettext_noop("came back before it was mailed"),
    "contradictory": gettext_noop("another outcome says something else of the same row"),
    "known_otherwise": gettext_noop("contradicts what was recorded before, which was kept unless it is to be replaced"),
}
"""Words for problem codes. An outcome with ``date_not_read`` is used all the same."""

_KINDS = (
    gettext_noop("not understood"),
    gettext_noop("unmatched"),
    gettext_noop("ambiguous"),
    gettext_noop("contradictory"),
)
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "not_understood": ("not_understood", "no_row_id", "date_not_read"),
    "unmatched": ("no_number", "unknown_number", "row_absent", "number_differs", "other_mailing"),
    "ambiguous": ("ambiguous",),
    "contradictory": ("contradicts_itself", "returned_before_mailing", "contradictory", "known_otherwise"),
}
"""Groups in which a report counts problems."""

LABEL_SCHEMA: Final = {
    "row_id": pl.UInt32,
    "letter": pl.UInt32,
    "said": pl.Boolean,
    "reason_code": pl.String,
    "reason": pl.String,
    "returned": pl.Date,
}
"""One labelled row; ``letter`` is the first row of the file with the same number and address."""


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Labels (:data:`LABEL_SCHEMA`, one a mailed row) and the outcomes behind them.

    ``matches``: used outcomes with their row as ``target``. ``listed``: outcomes with a problem, in file order.
    ``doubtful``: rows (``row_id``, ``letter``) that unusable outcomes may mean, so that their silence is no delivery.
    ``ways``: outcomes by how they found their row; ``repeated``: outcomes that repeat another one.
    """

    labels: pl.DataFrame
    matches: pl.DataFrame
    listed: pl.DataFrame
    doubtful: pl.DataFrame
    ways: dict[str, int]
    repeated: int


def find_candidates(letters: pl.LazyFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Return the mailed rows that outcomes may mean, by ``row_id`` or number.

    Columns: ``row_id``, ``b_no``, ``address_key``, ``fixed_key``, ``letter``; all rows of a number are there.
    """
    keys = letters.select("row_id", "b_no", "address", "fixed_address")
    rows = outcomes.lazy().select(pl.col("row_id").drop_nulls().unique())
    by_row = keys.join(rows, on="row_id", how="semi").collect(engine="streaming")
    numbers = pl.concat([by_row["b_no"], outcomes["digits"].alias("b_no")]).drop_nulls().unique()
    by_number = keys.join(numbers.to_frame().lazy(), on="b_no", how="semi").collect(engine="streaming")
    found = pl.concat([by_row, by_number]).unique("row_id").sort("row_id")
    return found.select("row_id", "b_no", *address_keys()).with_columns(letter_expr())


def address_keys() -> tuple[pl.Expr, pl.Expr]:
    """Return comparable forms of a letter's address, as written and as corrected."""
    return address_key(pl.col("address")).alias("address_key"), address_key(pl.col("fixed_address")).alias("fixed_key")


def letter_expr() -> pl.Expr:
    """Return the first row with the same number and address (UInt32): several rows may be one letter.

    A row without number or readable address is its own letter. The frame must hold all rows of a number.
    """
    same = pl.col("row_id").min().over("b_no", "address_key")
    return (
        pl.when(pl.all_horizontal(pl.col("b_no", "address_key").is_not_null()))
        .then(same)
        .otherwise(pl.col("row_id"))
        .alias("letter")
    )


def match(outcomes: pl.DataFrame, rows: pl.DataFrame, mailed: pl.Expr) -> MatchResult:
    """Match outcomes (:data:`bansong.labels.outcomes.OUTCOME_SCHEMA`) to mailed rows of :func:`find_candidates`.

    By ``row_id`` if given; else by number and address (written or corrected); else by a number whose rows are one
    letter. An outcome of several rows labels the first; contradicting outcomes label none. ``mailed``: the day of
    mailing.
    """
    numbers = (
        rows.filter(pl.col("b_no").is_not_null())
        .group_by("b_no")
        .agg(pl.col("letter").n_unique().alias("letters"), pl.col("letter").min().alias("by_number"))
    )
    found = (
        outcomes.join(rows.select("row_id", by_row="row_id", row_b_no="b_no"), on="row_id", how="left")
        .join(_index_by_address(rows), left_on=["digits", "key"], right_on=["b_no", "text_key"], how="left")
        .join(numbers, left_on="digits", right_on="b_no", how="left", maintain_order="left")
        .sort("place")
    )
    targeted = pl.col("row_id").is_not_null()
    found = found.with_columns(
        pl.when(targeted)
        .then("by_row")
        .otherwise(pl.coalesce("by_address", pl.when(pl.col("letters") == 1).then("by_number")))
        .alias("target"),
        pl.when(targeted)
        .then(pl.lit(WAYS[0]))
        .when(pl.col("by_address").is_not_null())
        .then(pl.lit(WAYS[1]))
        .otherwise(pl.lit(WAYS[2]))
        .alias("way"),
    )
    own = pl.when(pl.col("problem") != "date_not_read").then("problem")  # any other problem is worse
    found = found.with_columns(pl.coalesce(own, _match_problem(mailed), "problem").alias("problem"))
    clash = found.filter(_is_usable()).group_by("target").agg(_differs().alias("clash"))
    found = found.join(clash, on="target", how="left", maintain_order="left").with_columns(
        pl.when(_is_usable() & pl.col("clash")).then(pl.lit("contradictory")).otherwise("problem").alias("problem")
    )
    matches = found.filter(_is_usable())
    labels = merge_labels(
        matches.join(rows.select("row_id", "letter"), left_on="target", right_on="row_id").select(
            pl.col("target").alias("row_id"), *(name for name in LABEL_SCHEMA if name != "row_id")
        )
    )
    counted = dict(matches.group_by("way").len().iter_rows())
    return MatchResult(
        labels=labels,
        matches=matches,
        listed=found.filter(pl.col("problem").is_not_null()),
        doubtful=_doubtful_rows(found, rows),
        ways={way: counted[way] for way in WAYS if way in counted},
        repeated=matches.height - labels.height,
    )


def merge_labels(labels: pl.DataFrame) -> pl.DataFrame:
    """Merge agreeing labels of a row: gaps are filled, the earliest day wins."""
    parts = [pl.col(name).min() for name in LABEL_SCHEMA if name != "row_id"]
    return labels.group_by("row_id").agg(parts).sort("row_id").select(list(LABEL_SCHEMA)).cast(LABEL_SCHEMA)  # type: ignore[arg-type]


def _doubtful_rows(found: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    unused = found.filter(~_is_usable() & (pl.col("problem") != "other_mailing"))
    meant = rows.join(unused, left_on="row_id", right_on="target", how="semi")
    perhaps = rows.join(unused.filter(pl.col("target").is_null()), left_on="b_no", right_on="digits", how="semi")
    return pl.concat([meant, perhaps]).select("row_id", "letter").unique("row_id").sort("row_id")


def _index_by_address(rows: pl.DataFrame) -> pl.DataFrame:
    written, fixed = (
        rows.select("b_no", pl.col(key).alias("text_key"), by_address="letter", second=pl.lit(second))
        for second, key in enumerate(("address_key", "fixed_key"))
    )
    both = pl.concat([written, fixed]).drop_nulls(["b_no", "text_key"]).sort("second", "by_address")
    return both.unique(["b_no", "text_key"], keep="first", maintain_order=True).drop("second")


def _match_problem(mailed: pl.Expr) -> pl.Expr:
    other_number = pl.col("row_id").is_not_null() & (pl.col("digits") != pl.col("row_b_no"))
    conditions = {
        "other_mailing": pl.col("mailed_on") != mailed,
        "row_absent": pl.col("row_id").is_not_null() & pl.col("by_row").is_null(),
        "number_differs": other_number,
        "no_number": pl.col("row_id").is_null() & pl.col("digits").is_null(),
        "ambiguous": pl.col("target").is_null() & (pl.col("letters") > 1),
        "unknown_number": pl.col("target").is_null(),
        "returned_before_mailing": pl.col("returned") < mailed,
    }
    return pl.coalesce(pl.when(holds).then(pl.lit(name)) for name, holds in conditions.items())


def _is_usable() -> pl.Expr:
    return pl.col("problem").is_null() | (pl.col("problem") == "date_not_read")


def _differs() -> pl.Expr:
    return (pl.col("said").n_unique() > 1) | (pl.col("reason_code").drop_nulls().n_unique() > 1)
