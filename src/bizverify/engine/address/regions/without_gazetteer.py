"""What can be said of an address from its region and postal code alone, without a gazetteer."""

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from bizverify.engine.address.regions.level import level_named, level_number
from bizverify.engine.address.regions.postal import fits_numbers, postal_fits, region_numbers
from bizverify.engine.address.regions.prefixes import scattered, split_batch, usual
from bizverify.engine.address.regions.split import NO_DISTRICTS, catalogue
from bizverify.engine.risk.features import is_blank, is_masked
from bizverify.schema import Lang

_JUDGED: Final = {
    "region": pl.UInt8,
    "zipcode_given": pl.String,
    "match_level": pl.String,
    "postal_match": pl.String,
}
_NOTHING: Final = ("form", "unit", "zipcode_right", "changes", "fixed_zipcode", "fixed_address")
_STATE: Final = "r:judged"
_CODE: Final = "^[0-9]{5}$"
_LOST_ZERO: Final = "^([1-9][0-9]{3})$"
_CODE_FIRST: Final = (
    r"^[^0-9가-힣]*(?:우편번호|우)?[^0-9가-힣]*(?:[0-9]{5}|[0-9]{3}-[0-9]{3})(?:[^0-9가-힣-][^0-9가-힣]*|$)"
)
_CODE_INSIDE: Final = r"(?:^|[(\[<우]) ?([0-9]{5})(?:$|[)\]> ,])"
_PERHAPS_CODE: Final = r"[0-9]{5}|[^\x00-\x7F가-힣]"
_USUAL: Final = r"^[가-힣]+ [가-힣0-9]+ \S"
_LONG_ENOUGH: Final = 300
"""Nobody's address is longer, and what follows says nothing of the region."""


def without_gazetteer(frame: pl.LazyFrame, lang: Lang) -> pl.LazyFrame:
    """Add what can be said of an address from its region and postal code alone.

    ``frame`` has ``address`` and ``zipcode`` (String). Added are the columns that a match with a gazetteer adds:
    ``match_level`` is ``region_only`` or ``none``, null where the address is blank or masked; ``postal_match`` is
    ``other_district`` where the code is one of another region, else null; ``zipcode_given`` is the code of the
    column, or of the address; ``region`` is the province's level; ``covered`` is false; the others are null. ``lang``
    is not needed here.
    """
    del lang
    judged = pl.struct("address", "zipcode").map_batches(_judged, return_dtype=pl.Struct(_JUDGED), is_elementwise=True)
    work = frame.with_columns(judged.alias(_STATE), pl.lit(False).alias("covered"))
    work = work.with_columns(pl.col(_STATE).struct.field(*_JUDGED)).drop(_STATE)
    work = work.with_columns(region=level_named(pl.col("region")))
    return work.with_columns(
        pl.lit(None, pl.Boolean).alias("supported"), *(pl.lit(None, pl.String).alias(name) for name in _NOTHING)
    )


def region_level(address: pl.Expr) -> pl.Expr:
    """Return the level (String) of the feature ``region`` for an address (String) as it is written; else null."""
    alone = pl.struct(address.alias("address"), pl.lit(None, pl.String).alias("zipcode"))
    judged = alone.map_batches(_judged, return_dtype=pl.Struct(_JUDGED), is_elementwise=True)
    return level_named(judged.struct.field("region"))


def _judged(addresses: pl.Series) -> pl.Series:
    """Return the columns of ``_JUDGED`` as a Struct, for a batch: first what the usual heads say, then what is left."""
    frame = addresses.struct.unnest()
    without_codes = frame["zipcode"].null_count() == len(frame)
    frame = frame.with_columns(usual(frame["address"]), _NO_CODE if without_codes else _given())
    uncoded = frame.select(_perhaps_inside()).to_series()
    if uncoded.any():
        inside = frame.filter(uncoded).select(_code_inside()).to_series()
        frame = frame.with_columns(zipcode_given=pl.coalesce("zipcode_given", scattered(inside, uncoded)))
    judged = frame.select(_of_place())
    left = frame["place"].is_null() & frame["address"].is_not_null()
    if left.any():
        other = _unusual(frame.filter(left).select("address", "zipcode_given"))
        judged = judged.with_columns(pl.coalesce(column.name, scattered(column, left)) for column in other)
    return judged.select(pl.struct(*_JUDGED)).to_series()


@cache
def _given() -> pl.Expr:
    # expressions of a whole batch are made once: where rows are few, making them takes as long as computing them
    return _five_digits(pl.col("zipcode")).alias("zipcode_given")


_NO_CODE: Final = pl.lit(None, pl.String).alias("zipcode_given")


@cache
def _perhaps_inside() -> pl.Expr:
    """Whether there is no code but something in the address that may become one, if only when it is normalised."""
    return pl.col("zipcode_given").is_null() & pl.col("address").str.contains(_PERHAPS_CODE).fill_null(False)


@cache
def _code_inside() -> pl.Expr:
    return _inside(_plain(_readable()))


@cache
def _of_place() -> list[pl.Expr]:
    """The columns of ``_JUDGED`` where the head is a usual one."""
    fits = fits_numbers(pl.col("zipcode_given"), [pl.lit(numbers).gather(pl.col("place")) for numbers in _numbers()])
    level, postal = _answer(pl.col("place").is_not_null() & ~is_masked(pl.col("address")), fits)
    region = pl.lit(_provinces()).gather(pl.col("place")).alias("region")
    return [region, pl.col("zipcode_given"), level, postal]


def _unusual(frame: pl.DataFrame) -> pl.DataFrame:
    """Judge what begins in no usual way: normalised, without a postal code in front."""
    frame = frame.with_columns(head=_plain(_readable()))
    frame = frame.with_columns(head=pl.coalesce(_without_code(pl.col("head")), pl.col("head")))
    frame = frame.hstack(split_batch(frame["head"]).struct.unnest().select("sido", "sigungu", "region_conflict"))
    fits = postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu"))
    found = pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
    level, postal = _answer(found, fits | pl.col("region_conflict"))
    none = pl.when(pl.col("head").is_not_null()).then(pl.lit("none"))
    return frame.select(
        level_number(pl.col("sido")).alias("region"), pl.coalesce(level, none).alias("match_level"), postal
    )


def _answer(found: pl.Expr, fits: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    level = pl.when(found).then(pl.lit("region_only")).alias("match_level")
    return level, pl.when(found & ~fits).then(pl.lit("other_district")).alias("postal_match")


@cache
def _provinces() -> pl.Series:
    """Return the province's number for each place in the catalogue."""
    return pl.select(level_number(pl.lit(catalogue().columns["sido"]))).to_series()


@cache
def _numbers() -> list[pl.Series]:
    """Return what :func:`~.postal.fits_numbers` needs, for each place in the catalogue."""
    sido, sigungu = (catalogue().columns[name] for name in ("sido", "sigungu"))
    whole = pl.when(pl.col("sigungu").is_null() & (pl.col("sido") == NO_DISTRICTS)).then(pl.lit(""))
    names = pl.DataFrame({"sido": sido, "sigungu": sigungu}).with_columns(sigungu=pl.coalesce("sigungu", whole))
    return names.select(region_numbers(pl.col("sido"), pl.col("sigungu"))).get_columns()


def _readable() -> pl.Expr:
    address = pl.col("address")
    return pl.when(~is_blank(address) & ~is_masked(address)).then(address)


def _inside(text: pl.Expr) -> pl.Expr:
    return pl.when(text.str.contains(_CODE_INSIDE)).then(text).str.extract(_CODE_INSIDE, 1)


def _plain(address: pl.Expr) -> pl.Expr:
    """Normalise characters and spaces where the address does not begin as usual."""
    unusual = pl.when(~address.str.contains(_USUAL)).then(address)
    odd = unusual.str.head(_LONG_ENOUGH).str.normalize("NFKC").str.replace_all(r"\s+", " ").str.strip_chars()
    return pl.coalesce(odd, address)


def _without_code(head: pl.Expr) -> pl.Expr:
    return pl.when(head.str.contains(_CODE_FIRST)).then(head.str.replace(_CODE_FIRST, ""))


def _five_digits(written: pl.Expr) -> pl.Expr:
    """Return a postal code of five digits, as text or as a number that became text; null for anything else.

    Four digits are a code of Seoul, the zero in front of which a spreadsheet dropped.
    """
    other = pl.when(~written.str.contains(_CODE)).then(written)
    odd = other.str.strip_chars(" '\u00a0").str.strip_suffix(".0").str.replace(_LOST_ZERO, "0$1")
    return pl.coalesce(pl.when(written.str.contains(_CODE)).then(written), pl.when(odd.str.contains(_CODE)).then(odd))
