"""Outcomes of earlier letters to the same business at the same address, as a feature."""

from __future__ import annotations

from datetime import date
from typing import Final

import polars as pl

from bansong.engine.text_values import is_blank, is_masked

HISTORY: Final = "history"
"""Column of :func:`attach_history`: ``moved``, ``absent``, ``delivered`` or null."""

HISTORY_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "b_no": pl.UInt64,
    "address_key": pl.String,
    "outcome": pl.String,
    "mailed": pl.Date,
}
"""A row of a history: one letter with a known outcome (as :data:`HISTORY`)."""

TRUSTED_MONTHS: Final = 12
"""Age up to which a delivered letter counts: about a fifth of businesses move in a year."""

_OUTCOMES: Final = ("delivered", "absent", "moved")  # of two letters mailed on one day the later of these counts

_GAP: Final = r"[\s\p{P}\p{S}\p{Cc}\p{Cf}]+"
_DIGITS_APART: Final = rf"(\p{{N}}){_GAP}(\p{{N}})"
_APART: Final = "\ue000"  # for a gap between digits until other gaps are removed: of private use, so no gap itself
_STILL_APART: Final = rf"{_APART}\p{{N}}{_GAP}\p{{N}}"
_UNUSUAL: Final = "[^ -@\\[-~가-힣]"
_LETTER: Final = ("b_no", "address_key")
_NUMBER: Final = "letter:b_no"
_WRITTEN: Final = "letter:mailed_to"
_KEY: Final = "letter:address_key"


def address_key(address: pl.Expr) -> pl.Expr:
    """Return the text that spellings of one address share (String): its letters and digits, and gaps between digits.

    NFKC in lower case, without white space, punctuation, symbols and zero-width characters; between two digits any of
    these is one ``-``, for ``12-3`` is not ``123``. ``서울`` and ``서울특별시`` differ, and so do addresses with and
    without their unit. Null for a blank or masked address.
    """
    text = address.cast(pl.String)
    said = pl.when(~is_blank(text) & ~is_masked(text)).then(text)
    # as fields of structs each step is computed once, and the costly ones only on the few texts that need them
    key = pl.field("key")
    steps = pl.struct(said.alias("key"))
    for step in (
        _only(key.str.contains(_UNUSUAL), key.str.normalize("NFKC").str.to_lowercase()),
        key.str.replace_all(_DIGITS_APART, f"${{1}}{_APART}${{2}}"),
        # a digit that stands alone between two gaps was the end of one find and could not begin the next
        _only(key.str.contains(_STILL_APART), key.str.replace_all(_DIGITS_APART, f"${{1}}{_APART}${{2}}")),
        key.str.replace_all(_GAP, ""),
        _only(key.str.contains(_APART, literal=True), key.str.replace_all(_APART, "-", literal=True)),
    ):
        steps = steps.struct.with_fields(step.alias("key"))
    return steps.struct.with_fields(pl.when(key != "").then(key).alias("key")).struct.field("key")


def _only(needed: pl.Expr, changed: pl.Expr) -> pl.Expr:
    return pl.when(needed).then(changed).otherwise(pl.field("key"))


def attach_history(frame: pl.LazyFrame, history: pl.LazyFrame | None, today: date, number: str = "key") -> pl.LazyFrame:
    """Add :data:`HISTORY` (String) to a frame with ``address`` and the business number as UInt64 in ``number``.

    ``history``: as :data:`HISTORY_SCHEMA`. The newest letter to a business at an address counts, up to ``today``: a
    delivered one for :data:`TRUSTED_MONTHS`, a returned one until there is a newer one. Rows and their order stay.
    """
    if history is None:
        return frame.with_columns(pl.lit(None, pl.String).alias(HISTORY))
    return with_letters(frame, _newest_outcomes(history, today), number)


def with_letters(frame: pl.LazyFrame, letters: pl.LazyFrame, number: str) -> pl.LazyFrame:
    """Add the columns of ``letters`` for each row's business and address, null if there is none.

    ``frame`` has ``address`` and the business number as UInt64 in ``number``; ``letters`` has distinct pairs of
    ``b_no`` (UInt64) and ``address_key`` (String). Rows and their order stay.
    """
    # first by the number alone: most rows have no letters, and their address key is not needed
    businesses = letters.select(pl.col("b_no").alias(_NUMBER)).unique().with_columns(pl.lit(True).alias(_WRITTEN))
    known = frame.join(businesses, left_on=number, right_on=_NUMBER, how="left", maintain_order="left")
    keyed = known.with_columns(address_key(pl.when(_WRITTEN).then("address")).alias(_KEY))
    joined = keyed.join(letters, left_on=[number, _KEY], right_on=_LETTER, how="left", maintain_order="left")
    return joined.drop(_WRITTEN, _KEY)


def _newest_outcomes(history: pl.LazyFrame, today: date) -> pl.LazyFrame:
    # without those too old to count
    known = history.filter(pl.col("outcome").is_in(_OUTCOMES) & (pl.col("mailed") <= today)).drop_nulls(_LETTER)
    weight = pl.col("outcome").cast(pl.Enum(_OUTCOMES))
    newest = known.group_by(_LETTER).agg(
        pl.col("outcome").sort_by("mailed", weight).last().alias(HISTORY), pl.col("mailed").max()
    )
    recent = pl.col("mailed") > pl.lit(today).dt.offset_by(f"-{TRUSTED_MONTHS}mo")
    return newest.filter((pl.col(HISTORY) != "delivered") | recent).drop("mailed")
