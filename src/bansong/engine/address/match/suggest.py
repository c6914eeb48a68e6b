"""Possible places of an address, for a person to choose from; nothing is decided here."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address.batches import ROW
from bansong.engine.address.match.candidates import split_joined_numbers
from bansong.engine.address.match.decide import drop_repeated, hear_witnesses
from bansong.engine.address.match.format import format_match
from bansong.engine.address.match.gazetteer_lookups import Lookups
from bansong.engine.address.match.matcher import READINGS, open_rows, with_narrowed_regions
from bansong.schema import Lang

SUGGESTED: Final = {"row": pl.UInt32, "address": pl.String, "zipcode": pl.String, "changes": pl.String}
"""Columns of :func:`suggest_places`."""


def suggest_places(lookups: Lookups, parsed: pl.DataFrame, most: int, lang: Lang) -> pl.DataFrame:
    """Return the likeliest places of each address, at most ``most`` a row, the best first: :data:`SUGGESTED`.

    ``parsed``: the columns of :data:`bansong.engine.address.parse.PARSED`; ``row`` counts its lines. Any reading may
    propose a place, for the address as written or with a region from its other words. Places are ordered by the number
    of witnesses, then by the reading. ``address``: the official one with the row's unit; ``changes``: the differences,
    in words of ``lang``.
    """
    rows = open_rows(lookups, split_joined_numbers(lookups, parsed.with_row_index(ROW)))
    narrowed = with_narrowed_regions(lookups, rows)
    proposed = [
        reading.propose(lookups, each).select(ROW, "place", rank=pl.lit(rank, pl.UInt32))
        for rank, reading in enumerate(READINGS)
        for each in (rows, narrowed)
    ]
    ranks = pl.concat(proposed).group_by(ROW, "place").agg(pl.col("rank").min())
    if ranks.is_empty():
        return pl.DataFrame(schema=SUGGESTED)
    heard = hear_witnesses(lookups, narrowed, drop_repeated(lookups, ranks)).select(ROW, "place", "pro")
    best = (
        heard.join(ranks, on=[ROW, "place"])
        .sort(ROW, pl.col("pro"), "rank", "place", descending=[False, True, False, False])
        .group_by(ROW, maintain_order=True)
        .head(most)
    )
    lines = best.select(pl.col(ROW).alias("of_row"), pl.col("place").cast(pl.UInt32)).join(
        rows.rename({ROW: "of_row"}), on="of_row", how="left", maintain_order="left"
    )
    named = lines.drop("of_row").with_row_index(ROW)  # steps are prepared for the columns of a match only
    matched = named.with_columns(match_level=pl.lit("exact"), postal_only=pl.lit(None, pl.UInt32))
    found = format_match(lookups, matched, lang)
    return pl.DataFrame(
        {
            "row": lines["of_row"],
            "address": found["fixed_address"],
            "zipcode": found["fixed_zipcode"],
            "changes": found["changes"],
        },
        schema=SUGGESTED,
    )
