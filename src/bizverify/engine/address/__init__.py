"""Find the official address and postal code of an address as people type it.

- ``parse``: region, road or lot, number, building, detail
- ``regions``: provinces and districts, their names of today, their postal codes
- ``match``: the building that is meant, looked up in the gazetteer
- ``gazetteer``: the file of official addresses (``bizverify.reference.gazetteer`` builds it)
- ``misspellings``: which names are one slip apart
- ``batches``: tools for batches of rows
"""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from bizverify.engine.address import parse, regions
from bizverify.engine.address.batches import PreparedStep, lacks_any
from bizverify.engine.address.gazetteer import Gazetteer
from bizverify.engine.address.match import (
    LEVELS,
    SUGGESTED,
    building_code,
    format_match,
    lookups_of,
    match_addresses,
    suggest_places,
)
from bizverify.engine.address.regions import postal_fits
from bizverify.schema import Lang
from bizverify.translation import gettext

__all__ = ["ADDED", "LEVELS", "SUGGESTED", "Gazetteer", "attach", "building_code", "suggest"]

ADDED: Final[dict[str, type[pl.DataType]]] = {
    "match_level": pl.String,
    "region": pl.String,
    "covered": pl.Boolean,
    "form": pl.String,
    "unit": pl.String,
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
    """Add to each row what its address means: the columns of :data:`ADDED`.

    ``frame`` has ``address`` and ``zipcode`` (String). Number and order of the rows stay. ``match_level`` is one of
    :data:`LEVELS`, null where there is no readable address; ``region``: the province of today, as a level of the
    feature ``region``, the building's if one was found; ``covered``: the gazetteer holds the region that is named, so
    that what it does not find does not exist; ``form``: road or lot; ``unit``: given, or missing though the building
    is an apartment complex; ``postal_match``: right, neighbouring (a code of the same dong or road), other_district;
    ``supported``: whether other words of the row bear out what was repaired, null where nothing was;
    ``zipcode_given``, ``zipcode_right``: five digits; ``changes``: what was corrected, in words of ``lang``;
    ``fixed_zipcode``, ``fixed_address``: null where they are not sure; ``district_code``: the ten digits of the
    building's legal dong (법정동코드), ``place``: which of the gazetteer's buildings it is; null where none was found.

    Without a gazetteer only the region is recognised and the postal code held against it, as it is with one where no
    building is found. With one, a batch of rows at a time is matched: the query streams, and engines that call it from
    several threads may.
    """
    if gazetteer is None:
        names = frame.collect_schema().names()
        return regions.without_gazetteer(frame).select(*names, *ADDED)
    matched = pl.struct("address", "zipcode").map_batches(
        partial(_match_batch, gazetteer, lang), return_dtype=pl.Struct(ADDED), is_elementwise=True
    )
    return frame.with_columns(matched.alias("bv:address")).unnest("bv:address")


_PARSING: Final = PreparedStep(parse.parse)


def _match_batch(gazetteer: Gazetteer, lang: Lang, addresses: pl.Series) -> pl.Series:
    lookups = lookups_of(gazetteer, len(addresses))
    try:
        parsed = _PARSING.run(addresses.struct.unnest())
        answers = format_match(lookups, match_addresses(lookups, parsed), lang)
        return _with_postal_conflict(answers, parsed)[list(ADDED)].to_struct("address")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # else it is laid to the user's file
        raise RuntimeError(gettext("the address engine failed: {error}", error=error)) from error


def suggest(addresses: pl.DataFrame, gazetteer: Gazetteer, lang: Lang, most: int = 5) -> pl.DataFrame:
    """Return the likeliest places of each address for a person to choose from, the best first.

    ``addresses`` has ``address`` and ``zipcode`` (String). The answer has the columns of :data:`SUGGESTED`: ``row``,
    the address's line; ``address`` and ``zipcode`` of the place, with the unit that was written; ``changes``, what
    differs from what was written, in words of ``lang``. At most ``most`` a line; none for an address like no other.
    """
    parsed = parse.parse(addresses.lazy().select("address", "zipcode")).collect()
    return suggest_places(lookups_of(gazetteer, len(parsed)), parsed, most, lang)


def _with_postal_conflict(answers: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    """Where no building was found, hold the postal code against the region, as is done without a gazetteer."""
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
