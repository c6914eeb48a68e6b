"""Read the region of an address and compare it with the postal code, without a gazetteer."""

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from bansong.base.business_number import first_code
from bansong.engine.address import parse
from bansong.engine.address.batches import scatter
from bansong.engine.address.decide import fits_numbers, region_numbers
from bansong.engine.address.region_split import catalogue, find_usual_heads, split_batch
from bansong.engine.address.regions import level_named, level_number
from bansong.engine.text import is_blank, is_masked, postal_digits

JUDGED: Final = ("match_level", "region", "numbered", "beside", "postal_match", "zipcode_given")  # by the text alone


def judge_batch(addresses: pl.Series) -> pl.Series:
    """Return the columns :data:`JUDGED` as a Struct, for a Struct of ``address`` and ``zipcode``."""
    frame = addresses.struct.unnest()
    return _judge_regions(frame).hstack(parse.read_numbers(frame))[list(JUDGED)].to_struct("address")


_CODE: Final = "^([0-9]{5})$"
_CODE_FIRST: Final = (
    r"^[^0-9가-힣]*(?:우편번호|우)?[^0-9가-힣]*(?:[0-9]{5}|[0-9]{3}-[0-9]{3})(?:[^0-9가-힣-][^0-9가-힣]*|$)"
)
_CODE_INSIDE: Final = r"(?:^|[(\[<우]) ?([0-9]{5})(?:$|[)\]> ,])"
_PERHAPS_CODE: Final = r"[0-9]{5}|[^\x00-\x7F가-힣]"
_USUAL_BEGINNING: Final = r"^[가-힣]+ [가-힣0-9]+ \S"
_MAX_HEAD_CHARS: Final = 300  # the region stands before


def region_level(address: pl.Expr) -> pl.Expr:
    """Return the level (String) of the feature ``region`` for the province in an address; null without one."""
    return address.map_batches(_find_level, return_dtype=pl.String, is_elementwise=True)


def _find_level(addresses: pl.Series) -> pl.Series:
    frame = addresses.to_frame("address").with_columns(zipcode=pl.lit(None, pl.String))
    return _judge_regions(frame)["region"].alias(addresses.name)


def _judge_regions(frame: pl.DataFrame) -> pl.DataFrame:
    # usual heads are facts of a table; the others are split off their text
    frame = frame.with_columns(find_usual_heads(frame["address"]), zipcode_given=_find_five_digits(frame["zipcode"]))
    uncoded = frame.select(_perhaps_inside()).to_series()
    if uncoded.any():
        inside = frame.filter(uncoded).select(_code_in_address()).to_series()
        frame = frame.with_columns(zipcode_given=pl.coalesce("zipcode_given", scatter(inside, uncoded)))
    read = frame.select(_facts_of_usual())
    left = frame["place"].is_null() & frame["address"].is_not_null()
    if left.any():
        other = _read_unusual(frame.filter(left))
        read = read.with_columns(pl.coalesce(column.name, scatter(column, left)) for column in other)
    return read.hstack([frame["zipcode_given"]]).select(_judgement())


# expressions of a whole batch are made once: for few rows, making them takes as long as computing them


@cache
def _perhaps_inside() -> pl.Expr:
    # something in the address that may become a code when normalised
    uncoded = pl.when(pl.col("zipcode_given").is_null()).then("address")
    return uncoded.str.contains(_PERHAPS_CODE).fill_null(False)


@cache
def _code_in_address() -> pl.Expr:
    text = _readable()
    return pl.when(text.str.contains(_CODE_INSIDE)).then(text).str.extract(_CODE_INSIDE, 1)


def _region_facts() -> list[pl.Expr]:
    sido, sigungu = pl.col("sido"), pl.col("sigungu")
    numbers = zip(region_numbers(sido, sigungu), ("district", "province", "whole"), strict=True)
    return [level_number(sido).alias("level"), *(number.alias(name) for number, name in numbers)]


@cache
def _facts_of_usual() -> list[pl.Expr]:
    place = pl.col("place")
    facts = catalogue().columns.select(_region_facts())
    return [
        *(pl.lit(fact).gather(place).alias(fact.name) for fact in facts),
        pl.when(place.is_not_null()).then(~is_masked(pl.col("address"))).alias("found"),
        pl.when(place.is_not_null()).then(False).alias("readable"),
        pl.when(place.is_not_null()).then(False).alias("conflict"),
    ]


def _read_unusual(frame: pl.DataFrame) -> pl.DataFrame:
    frame = frame.select(head=_readable())
    coded = pl.when(pl.col("head").str.contains(_CODE_FIRST)).then("head")
    frame = frame.with_columns(head=pl.coalesce(coded.str.replace(_CODE_FIRST, ""), "head"))
    frame = frame.hstack(split_batch(frame["head"]).struct.unnest().select("sido", "sigungu", "region_conflict"))
    return frame.select(
        *_region_facts(),
        found=pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null(),
        readable=pl.col("head").is_not_null(),
        conflict="region_conflict",
    )


@cache
def _judgement() -> list[pl.Expr]:
    code = pl.col("zipcode_given").cast(pl.UInt32, strict=False)
    fits = fits_numbers(code, *(pl.col(name) for name in ("district", "province", "whole"))) | pl.col("conflict")
    levels = {"region_only": pl.col("found"), "none": pl.col("readable")}
    return [
        level_named(pl.col("level")).alias("region"),
        pl.col("zipcode_given"),
        first_code(levels).alias("match_level"),
        first_code({"other_district": pl.col("found") & ~fits}).alias("postal_match"),
    ]


def _readable() -> pl.Expr:
    # characters and spaces are normalised if it begins oddly
    address = pl.col("address")
    readable = pl.when(~is_blank(address) & ~is_masked(address)).then(address)
    unusual = pl.when(~readable.str.contains(_USUAL_BEGINNING)).then(readable)
    odd = unusual.str.head(_MAX_HEAD_CHARS).str.normalize("NFKC").str.replace_all(r"\s+", " ").str.strip_chars()
    return pl.coalesce(odd, readable)


def _find_five_digits(written: pl.Series) -> pl.Series:
    # four digits are a code of Seoul without its first zero; some write `301-49`
    odd = (~written.str.contains(_CODE)).fill_null(False)
    if not odd.any():
        return written
    bare = written.filter(odd).str.strip_chars(" '\u00a0").alias("code")
    other = bare.to_frame().select(postal_digits(pl.col("code"))).to_series()
    return scatter(other.str.extract(_CODE), odd).zip_with(odd, written)
