"""Find the official address and postal code of an address as people type it."""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from bansong.engine.address import parse, regions
from bansong.engine.address.batches import PreparedStep, lacks_any, scatter
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.address.match import (
    LEVELS,
    SUGGESTED,
    building_code,
    format_match,
    lookups_of,
    match_addresses,
    suggest_places,
)
from bansong.engine.address.parse.forms import NO_LEGAL_DONG, USUAL_ROAD, plain_numbers
from bansong.engine.address.regions import postal_fits
from bansong.schema import Lang
from bansong.translation import gettext

__all__ = ["ADDED", "LEVELS", "SUGGESTED", "Gazetteer", "attach", "building_code", "suggest"]

ADDED: Final[dict[str, type[pl.DataType]]] = {
    "match_level": pl.String,
    "region": pl.String,
    "covered": pl.Boolean,
    "form": pl.String,
    "unit": pl.String,
    "region_given": pl.Boolean,
    "numbered": pl.Boolean,
    "beside": pl.Boolean,
    "postal_match": pl.String,
    "supported": pl.Boolean,
    "zipcode_given": pl.String,
    "zipcode_right": pl.String,
    "changes": pl.String,
    "fixed_zipcode": pl.String,
    "fixed_address": pl.String,
    "district_code": pl.String,
    "place": pl.UInt32,
}
"""The columns that :func:`attach` adds."""


def attach(frame: pl.LazyFrame, gazetteer: Gazetteer | None, lang: Lang) -> pl.LazyFrame:
    """Add the columns of :data:`ADDED`, the meaning of each row's address.

    ``frame`` has ``address`` and ``zipcode`` (String); its rows and their order stay. Without a gazetteer only the
    region is recognised and compared to the postal code. With one, batches are matched: the query streams, also from
    several threads.

    - ``match_level``: one of :data:`LEVELS`, null without a readable address
    - ``region``: province of today (level of the feature ``region``), the building's if one was found
    - ``covered``: the gazetteer holds the named region, so that unfound addresses do not exist
    - ``form``: road or lot; ``unit``: given, or missing in an apartment complex
    - ``postal_match``: right, neighbouring (a code of the same dong or road), other_district
    - ``supported``: other words of the row confirm the repair, null without one
    - ``region_given``: the address names one province, or a district of a single province; ``numbered``: a road or lot
      with its number; ``beside``: a place by another one (맞은편, 옆 건물, 앞)
    - ``zipcode_given``, ``zipcode_right``: five digits; ``changes``: corrections, in words of ``lang``
    - ``fixed_zipcode``, ``fixed_address``: null if uncertain
    - ``district_code``: ten digits of the building's legal dong (법정동코드), ``place``: its place in the gazetteer,
      null without a building
    """
    if gazetteer is None:
        names = frame.collect_schema().names()
        return _with_number(regions.without_gazetteer(frame)).select(*names, *ADDED)
    matched = pl.struct("address", "zipcode").map_batches(
        partial(_match_batch, gazetteer, lang), return_dtype=pl.Struct(ADDED), is_elementwise=True
    )
    return frame.with_columns(matched.alias("bv:address")).unnest("bv:address")


def _with_number(frame: pl.LazyFrame) -> pl.LazyFrame:
    read = pl.struct("address", "zipcode").map_batches(
        _read_number_batch, return_dtype=pl.Struct(_READ), is_elementwise=True
    )
    frame = frame.with_columns(read.alias("bv:number"), region_given=pl.col("region").is_not_null())
    return frame.unnest("bv:number")


_READ: Final = {"numbered": pl.Boolean, "beside": pl.Boolean}


def _read_number_batch(addresses: pl.Series) -> pl.Series:
    # only addresses that are not plain are parsed, as that is slow
    frame = addresses.struct.unnest()
    read = frame.select(
        numbered=pl.col("address").str.contains(USUAL_ROAD), beside=parse.describes_by_other(pl.col("address"))
    )
    for look in (_PLAIN_NUMBER, _PARSED_NUMBER):
        left = (~read["numbered"]).fill_null(False)
        if left.any():
            found = look.run(frame.filter(left))
            read = read.with_columns(pl.coalesce(scatter(found[name], left), name).alias(name) for name in _READ)
    several = frame.select(parse.names_several(pl.col("address"))).to_series()
    return read.with_columns(numbered=pl.col("numbered") & ~several).to_struct()


def _plain_number(rows: pl.LazyFrame) -> pl.LazyFrame:
    lot = pl.when(~pl.col("address").str.contains(NO_LEGAL_DONG)).then("lot")
    return plain_numbers(rows).select(
        numbered=pl.coalesce("building", lot).is_not_null(), beside=pl.lit(None, pl.Boolean)
    )


_PLAIN_NUMBER: Final = PreparedStep(_plain_number)
_PARSED_NUMBER: Final = PreparedStep(
    lambda rows: parse.parse(rows).select(numbered=parse.is_numbered(), beside=parse.describes_by_other(pl.col("text")))
)
_PARSING: Final = PreparedStep(parse.parse)


def _match_batch(gazetteer: Gazetteer, lang: Lang, addresses: pl.Series) -> pl.Series:
    lookups = lookups_of(gazetteer, len(addresses))
    try:
        parsed = _PARSING.run(addresses.struct.unnest())
        answers = format_match(lookups, match_addresses(lookups, parsed), lang)
        return _with_postal_conflict(answers, parsed)[list(ADDED)].to_struct("address")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # else the user's file is blamed
        raise RuntimeError(gettext("the address engine failed: {error}", error=error)) from error


def suggest(addresses: pl.DataFrame, gazetteer: Gazetteer, lang: Lang, most: int = 5) -> pl.DataFrame:
    """Return the likeliest places of each address for a person to choose from, the best first.

    ``addresses`` has ``address`` and ``zipcode`` (String). Columns of :data:`SUGGESTED`: ``row``, the address's line;
    ``address`` and ``zipcode`` of the place, with the written unit; ``changes``, the differences in words of ``lang``.
    At most ``most`` for each address; none for one like no other.
    """
    parsed = parse.parse(addresses.lazy().select("address", "zipcode")).collect()
    return suggest_places(lookups_of(gazetteer, len(parsed)), parsed, most, lang)


def _with_postal_conflict(answers: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    # where no building was found, compare the postal code to the region, as without a gazetteer
    if lacks_any(answers, "zipcode_given"):
        return answers
    unjudged = answers["fixed_zipcode"].is_null() & answers["zipcode_given"].is_not_null()
    if not unjudged.any():
        return answers
    named = parsed.select("zipcode_given", "sido", "sigungu", "region_conflict", line=pl.int_range(pl.len()))
    fits = postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu")) | pl.col("region_conflict")
    elsewhere = named.filter(unjudged).filter(~fits).select("line", elsewhere=True)
    if elsewhere.is_empty():
        return answers
    marks = named.select("line").join(elsewhere, on="line", how="left", maintain_order="left")["elsewhere"]
    other = pl.when(marks).then(pl.lit("other_district"))
    return answers.with_columns(pl.coalesce("postal_match", other).alias("postal_match"))
