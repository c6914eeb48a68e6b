"""Doubts about a chosen building: rows that name another one just as well."""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address import regions
from bansong.engine.address.batches import ROW, lacks_any
from bansong.engine.address.match import candidates
from bansong.engine.address.match.decide import find_outvoted
from bansong.engine.address.match.gazetteer_lookups import Lookups
from bansong.engine.address.parse.normalise import PROVINCES

_NUMBERED: Final = "[로길동리가] ?(?:산 ?|지하 ?)?[0-9]"
_REGION: Final = f"(?:^| )(?:[가-힣]+[시도군구]|{PROVINCES})(?: |$)"
_SHORT_NAME_CHARS: Final = 2
_PART: Final = r"^\(?제? ?([0-9]{1,4})(?: ?호(?:[^실기점]|$)|\)?(?:[ ,/.(]|$))"
_FLOORS: Final = r"^[0-9]+(?: ?[,/.] ?[0-9]+)* ?(?:층|동(?:[ ,0-9]|$)|[Ff](?:[ ,]|$))"
_MIN_UNIT: Final = 100
_OTHER_LOT: Final = (
    r"(?:([가-힣]{1,6}[읍면]) ?)?([가-힣]{1,6}[0-9]{0,2}[동리]|[가-힣]{1,5}[0-9]가) ?(산)? ?"
    r"([0-9]{1,4})(?:-([0-9]{1,4}))?(?: ?번지)?(?:[^0-9가-힣층호-]|에서|[으로]|$)"
)
_REGION_AND_NUMBER: Final = rf"[가-힣][시도군구울산천전종주기원남북][ ,][^ ].*{_NUMBERED}"


def find_two_addresses(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return rows that also name another building: two addresses, one letter.

    A lot found only under another name of its dong counts only in another dong and postal district.
    """
    by_lot = pl.concat([_find_part_of_lot(lookups, rows, decided), _find_other_lot(lookups, rows, decided)])
    if lacks_any(rows, "main"):
        return by_lot
    rows = rows.filter(
        pl.col("main").is_not_null() & (pl.col("lot_main").is_not_null() | candidates.names_further_road())
    )
    if rows.is_empty():
        return by_lot
    rows = rows.join(decided.rename({"place": "_place"}), on=ROW)
    if rows.is_empty():
        return by_lot
    rows = _with_region_of(lookups, rows, "_place")
    written = [candidates.find_lot(lookups, rows), *candidates.find_further_roads(lookups, rows)]
    renamed = candidates.find_lot_by_other_name(lookups, rows).join(written[0], on=ROW, how="anti")
    pairs = pl.concat(
        found.select(ROW, "kind", other="place")
        for found in (part.with_columns(kind=pl.lit(kind)) for kind, part in enumerate((*written, renamed)))
    ).join(decided, on=ROW)
    tables, place, other = lookups.tables, pairs["place"], pairs["other"]
    same_zip = tables.building_zip[place] == tables.building_zip[other]
    same_dong = tables.building_dong[place] == tables.building_dong[other]
    same_key = tables.building_key[place] == tables.building_key[other]
    near = (pairs["kind"] == len(written)) & (same_zip | same_dong)
    agreed = pairs.select(ROW, "kind", same=same_key | near).group_by(ROW, "kind").agg(pl.col("same").any())
    return pl.concat([by_lot, agreed.filter(~pl.col("same")).select(ROW)]).unique()


def _with_region_of(lookups: Lookups, rows: pl.DataFrame, place: str) -> pl.DataFrame:
    home = lookups.describe(rows.select(place=place))["home"]
    return rows.with_columns(region=pl.coalesce("region", home))


def _find_other_lot(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    # by their lot, with other buildings on the other lot
    if lacks_any(rows, "lot_main"):
        return rows[[ROW]].clear()
    beside = pl.when(~pl.col("brackets").str.contains(candidates.OLD_ADDRESS)).then("brackets")
    text = pl.concat_str("detail", beside, separator=" , ", ignore_nulls=True)
    rows = rows.filter(pl.col("main").is_null() & pl.col("lot_main").is_not_null() & text.str.contains(_OTHER_LOT))
    rows = rows.join(decided.rename({"place": "_place"}), on=ROW)
    if rows.is_empty():
        return rows[[ROW]]
    rows = _with_region_of(lookups, rows, "_place").with_columns(_other=text.str.extract_all(_OTHER_LOT))
    rows = rows.explode("_other").with_row_index("_line")
    parts = pl.col("_other").str.extract_groups(_OTHER_LOT).struct
    lines = rows.with_columns(
        emd=pl.coalesce(parts[0], pl.when(~parts[1].str.ends_with("리")).then(parts[1])),
        ri=pl.when(parts[1].str.ends_with("리")).then(parts[1]),
        lot_dong=parts[1],
        san=parts[2].is_not_null().cast(pl.UInt8),
        lot_main=parts[3].cast(pl.UInt32),
        lot_sub=parts[4].cast(pl.UInt32).fill_null(0),
        lot_ho=pl.lit(False),
    )
    of_line = lines.with_columns(pl.col("_line").alias(ROW))
    found = candidates.find_lot(lookups, of_line).select(_line=ROW, other="place")
    pairs = found.join(rows.select(ROW, "_line", "_place"), on="_line")
    keys = lookups.tables.building_key
    same = keys[pairs["other"]] == keys[pairs["_place"]]
    agreed = pairs.select(ROW, "_line", same=same).group_by(ROW, "_line").agg(pl.col("same").any())
    return agreed.filter(~pl.col("same")).select(ROW).unique()


def _find_part_of_lot(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    # `12 3`, `12, 3호` may be unit 3 or lot 12-3; from 100 up it is a unit, unless the lot has such a part
    if lacks_any(rows, "lot_sub", "detail"):
        return rows[[ROW]].clear()
    detail = pl.col("detail")
    whole = pl.col("main").is_null() & (pl.col("lot_sub") == 0)
    rows = rows.filter(whole & detail.str.contains(_PART) & ~detail.str.contains(_FLOORS))
    rows = rows.join(decided, on=ROW).with_columns(lot_sub=detail.str.extract(_PART).cast(pl.UInt32))
    if rows.is_empty():
        return rows[[ROW]]
    parts = _with_region_of(lookups, rows, "place").drop("place")
    found = pl.concat([candidates.find_lot(lookups, parts), candidates.find_lot_by_other_name(lookups, parts)])
    low = rows.filter(pl.col("lot_sub") < _MIN_UNIT)
    return pl.concat([low.select(ROW), found.select(ROW)]).unique()


def find_other_road(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return rows found by their lot that also name a different road and number than the building's."""
    if lacks_any(rows, "road", "main", "lot_main"):
        return rows[[ROW]].clear()
    written = rows.filter(
        pl.all_horizontal(pl.col("road", "main", "lot_main").is_not_null()) & (pl.col("road") != pl.col("lot_dong"))
    )
    if written.is_empty():
        return written[[ROW]]
    pairs = lookups.describe(written.join(decided, on=ROW))
    alike = candidates.find_similar_roads(lookups, pairs.drop("place").with_columns(region="home")).join(
        decided, on=[ROW, "place"]
    )
    key, name = lookups.tables.building_key[pairs["place"]], lookups.tables.roads["key"][pairs["road_id"]]
    same_number = (key % 2**17 == pairs["sub"]) & (key // 2**17 % 2**17 == pairs["main"])
    same_name = pairs.select(pl.col("road").str.ends_with(pl.lit(name)) | (pl.col("road_pre") == pl.lit(name)))
    return pairs.filter(~(same_number & same_name.to_series())).join(alike, on=ROW, how="anti").select(ROW)


def find_two_regions(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return rows that also name another region, before the road or with a number behind it: two addresses, one letter.

    Before the road it must be a district or the long name of a province: 부산 may be a name.
    """
    behind = pl.concat_str("detail", "brackets", separator=", ", ignore_nulls=True)
    numbered, district = pl.col("rest").str.contains(_NUMBERED), pl.col("sigungu") != ""
    long = pl.col("region_typed").str.len_chars() > _SHORT_NAME_CHARS
    found = [
        _find_elsewhere(lookups, rows, decided, pl.when(text.str.contains(pattern)).then(text), counts)
        for given, text, pattern, counts in (
            (("detail", "brackets"), behind, _REGION_AND_NUMBER, numbered),
            (("ahead",), pl.col("ahead"), _REGION, district | long),
        )
        if not all(lacks_any(rows, name) for name in given)
    ]
    return pl.concat(found).unique() if found else rows[[ROW]].clear()


def _find_elsewhere(
    lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame, text: pl.Expr, counts: pl.Expr
) -> pl.DataFrame:
    # `counts`: whether the region that is split off the text counts
    pairs = rows.select(ROW, text=text).drop_nulls("text").join(decided, on=ROW)
    if pairs.is_empty():
        return pairs[[ROW]]
    seconds = lookups.describe(lookups.settle_scope(regions.split_region(pairs.lazy()).collect()))
    either = pl.col("scope").is_null() & pl.col("region_typed").is_not_null()  # 광주시: one of two
    other = ~pl.lit(lookups.is_in_scope(seconds)) | either
    return seconds.filter(other & counts).select(ROW)


def find_better_elsewhere(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return rows whose witnesses agree with the same road and number of another region, or with a similar road.

    ``경기도 성남시 우뜰면 회동1길 35`` may be in 성남시 or in 우뜰면: if both exist, one of the words is wrong.
    """
    suspects = _find_contradicted(lookups, rows, decided)
    if suspects.is_empty():
        return suspects[[ROW]]
    anywhere = suspects.with_columns(scope=pl.lit(None, pl.UInt64))
    others = pl.concat(
        [
            candidates.find_road_in_scope(lookups, anywhere),
            candidates.find_similar_roads(lookups, suspects),
            candidates.find_lot_in_scope(lookups, anywhere.filter(pl.col("main").is_null())),
        ]
    )
    return find_outvoted(lookups, suspects, decided.join(suspects.select(ROW), on=ROW, how="semi"), others)


def _find_contradicted(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    building, dongs = lookups.describe(decided[[ROW, "place"]]), lookups.tables.dongs
    of_dong = [dongs[name][building["dong"]].alias(f"of_{name}") for name in ("emd", "ri")]
    of_building = building[[ROW, "zip"]].hstack(of_dong)
    other = [
        pl.col("zipcode_given").cast(pl.UInt32, strict=False) != pl.col("zip"),
        pl.col("emd") != pl.col("of_emd"),
        (pl.col("hint_dong") != pl.col("of_emd")) & (pl.col("hint_dong") != pl.col("of_ri")),
        pl.col("region_conflict"),
    ]
    pairs = rows.join(of_building, on=ROW)
    return pairs.filter(pl.any_horizontal(condition.fill_null(False) for condition in other))[rows.columns]
