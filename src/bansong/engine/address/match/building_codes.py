"""The official numbers of buildings, from the gazetteer's street codes and numbers."""

from __future__ import annotations

from functools import partial

import polars as pl

from bansong.engine.address.gazetteer import Gazetteer, unpack_numbers
from bansong.engine.address.match.open_lookups import lookups_of


def building_code(gazetteer: Gazetteer, place: pl.Expr) -> pl.Expr:
    """Return the 26 digits of 도로명주소관리번호 (String) of buildings (UInt32, by place), null if unknown."""
    return place.map_batches(partial(_look_up_codes, gazetteer), return_dtype=pl.String, is_elementwise=True)


def _look_up_codes(gazetteer: Gazetteer, places: pl.Series) -> pl.Series:
    tables = lookups_of(gazetteer, 0).tables
    found = pl.DataFrame({"street": tables.building_street[places], "key": tables.building_key[places]})
    under, main, sub = unpack_numbers(pl.col("key"))
    parts = ((pl.col("street"), 15), (under, 1), (main, 5), (sub, 5))
    code = pl.concat_str(part.cast(pl.String).str.zfill(width) for part, width in parts)
    return found.select(code.alias(places.name)).to_series()
