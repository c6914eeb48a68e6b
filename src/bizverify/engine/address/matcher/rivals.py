"""Second thoughts on an address that is found as it is written: does it name another building just as well?"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address import regions
from bizverify.engine.address.grammar.text import PROVINCES
from bizverify.engine.address.matcher import lots, roads
from bizverify.engine.address.matcher.index import ROW
from bizverify.engine.address.matcher.judge import outvoted
from bizverify.engine.address.matcher.lookups import Lookups
from bizverify.engine.address.matcher.scope import Scopes

_NUMBERED: Final = "[로길동리가] ?(?:산 ?|지하 ?)?[0-9]"
_REGION: Final = f"(?:^| )(?:[가-힣]+[시도군구]|{PROVINCES})(?: |$)"
_SHORT: Final = 2
_REGION_AND_NUMBER: Final = rf"[가-힣][시도군구울산천전종주기원남북][ ,][^ ].*{_NUMBERED}"


def two_addresses(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Rows that name another building besides, in another dong and postal district: two addresses, one letter."""
    seconds = [lots.as_written(lookups, rows), lots.by_other_name(lookups, rows), roads.another(lookups, rows)]
    pairs = pl.concat(seconds).rename({"place": "other"}).join(decided, on=ROW)
    tables, place, other = lookups.tables, pairs["place"], pairs["other"]
    same_zip = tables.building_zip.gather(place) == tables.building_zip.gather(other)
    same_dong = tables.building_dong.gather(place) == tables.building_dong.gather(other)
    same = (place == other) | same_zip | same_dong
    agreed = pairs.with_columns(same.alias("same")).group_by(ROW).agg(pl.col("same").any())
    return agreed.filter(~pl.col("same")).select(ROW)


def in_two_regions(lookups: Lookups, scopes: Scopes, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Rows that name another region too, before the road or behind the number with a number: two addresses, one letter.

    Before the road it must be a district or the long name of a province: 부산 may be a name.
    """
    behind = pl.concat_str("detail", "brackets", separator=", ", ignore_nulls=True)
    numbered, district = pl.col("rest").str.contains(_NUMBERED), pl.col("sigungu") != ""
    long = pl.col("region_typed").str.len_chars() > _SHORT
    found = [
        _elsewhere(lookups, scopes, rows, decided, pl.when(text.str.contains(pattern)).then(text), counts)
        for text, pattern, counts in (
            (behind, _REGION_AND_NUMBER, numbered),
            (pl.col("ahead"), _REGION, district | long),
        )
    ]
    return pl.concat(found).unique()


def _elsewhere(
    lookups: Lookups, scopes: Scopes, rows: pl.DataFrame, decided: pl.DataFrame, text: pl.Expr, counts: pl.Expr
) -> pl.DataFrame:
    """Rows whose text names a region where what was decided on does not lie; ``counts``: of what is split off it."""
    pairs = rows.select(ROW, text=text).drop_nulls("text").join(decided, on=ROW)
    if pairs.is_empty():
        return pairs.select(ROW)
    seconds = lookups.described(scopes.settled(regions.split_region(pairs.lazy()).collect()))
    either = pl.col("scope").is_null() & pl.col("region_typed").is_not_null()  # 광주시: one of two
    other = ~pl.lit(scopes.allow(seconds)) | either
    return seconds.filter(other & counts).select(ROW)


def better_elsewhere(lookups: Lookups, scopes: Scopes, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Rows whose witnesses agree with the same road and number of another region, or with a road that is alike.

    ``경기도 성남시 우뜰면 회동1길 35`` may be in 성남시 or in 우뜰면: where both exist, one of the words is wrong, and
    nobody knows which.
    """
    suspects = _contradicted(lookups, rows, decided)
    if suspects.is_empty():
        return suspects.select(ROW)
    anywhere = suspects.with_columns(scope=pl.lit(None, pl.UInt64))
    rivals = pl.concat(
        [
            roads.in_scope(lookups, scopes, anywhere),
            roads.alike(lookups, suspects),
            lots.in_scope(lookups, scopes, anywhere.filter(pl.col("main").is_null())),
        ]
    )
    return outvoted(lookups, suspects, decided.join(suspects.select(ROW), on=ROW, how="semi"), rivals)


def _contradicted(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Rows of which a word, or the postal code, is not that of the building decided on."""
    tables = lookups.tables
    dong = tables.building_dong.gather(decided["place"])
    of_building = decided.select(
        ROW,
        zip=tables.building_zip.gather(decided["place"]),
        of_emd=tables.dongs["emd"].gather(dong),
        of_ri=tables.dongs["ri"].gather(dong),
    )
    other = [
        pl.col("zipcode_given").cast(pl.UInt32, strict=False) != pl.col("zip"),
        pl.col("emd") != pl.col("of_emd"),
        (pl.col("hint_dong") != pl.col("of_emd")) & (pl.col("hint_dong") != pl.col("of_ri")),
        pl.col("region_conflict"),
    ]
    pairs = rows.join(of_building, on=ROW)
    return pairs.filter(pl.any_horizontal(condition.fill_null(False) for condition in other)).select(rows.columns)
