"""Read regions at the head of an address; their names of today and their postal codes."""

from __future__ import annotations

import polars as pl

from bansong.engine.address.regions.postal import postal_fits, region_level, without_gazetteer
from bansong.engine.address.regions.reader import names_region, split_batch
from bansong.engine.address.regions.region_table import districts, level_of, members, present_day
from bansong.engine.address.regions.split import ADDED

__all__ = [
    "ADDED",
    "districts",
    "level_of",
    "members",
    "names_region",
    "postal_fits",
    "present_day",
    "region_level",
    "split_region",
    "without_gazetteer",
]


def split_region(frame: pl.LazyFrame, text: str = "text") -> pl.LazyFrame:
    """Take the region out of each address, usually off its head; rows and order stay, nothing is computed yet.

    ``frame`` has a String column named ``text`` with single spaces. Added:

    - ``sido`` String: the province of today, typed or the only one with the district; else null;
    - ``sigungu`` String: the district of today (``수원시 영통구``, ``수원시``); "" in a province without districts,
    null if none is named; as typed, with ``sido`` null, if several provinces have it;
    - ``sido_given`` Boolean: a province was typed;
    - ``region_conflict`` Boolean: the typed province does not have the typed district;
    - ``region_change`` String: ``typo``, ``renamed``, ``abbreviated``, null for the full name of today;
    - ``region_typed`` String: the words taken off, null if none;
    - ``sido_typed`` String: the full name of the typed province at its time (``전라남도``), null if none was typed;
    - ``rest`` String: the text after the region, or the whole text;
    - ``lead`` String: null for a region at the head, else the words before it that are no part of the address.
    """
    region = pl.col(text).map_batches(split_batch, return_dtype=pl.Struct(ADDED), is_elementwise=True)
    work = frame.with_columns(region.alias("r:region"))
    return work.with_columns(pl.col("r:region").struct.field(*ADDED)).drop("r:region")
