"""Which buildings the lot form of an address may mean; arguments and results as in :mod:`.roads`."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.gazetteer import NUMBER_LIMIT, lot_key
from bizverify.engine.address.match.index import ROW, Index, text_key
from bizverify.engine.address.match.lookups import Lookups, compact_building, without_number
from bizverify.engine.address.match.scope import Scopes
from bizverify.engine.address.match.typos import gaps, holes, swaps

_NUMBER: Final = ("san", "lot_main", "lot_sub", "lot_ho")
_NAMED: Final = (*_NUMBER, "region", "scope")
_LOWEST_UNIT: Final = 100
"""``712번지 4호`` is lot 712-4, and no unit where there is none: gazetteers are older than the newest lots.

``712번지 301호`` may as well be unit 301 on lot 712, unless that is known to be divided.
"""
_DIVIDED: Final = 4
_TOO_SHORT: Final = 2
_KIND_OF_BUILDING: Final = (
    "^(?:마을)?(?:마을회관|회관|경로당|노인정|어린이집|유치원|주민센터|행정복지센터|면사무소|읍사무소|사무소|보건진료소|보건지소|우체국|파출소|지구대|"
    "관리사무소|관리동|상가|창고|공장|교회|사찰|학교)$"
)


def as_written(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Legal dong and lot number as they stand, in the one region that is given."""
    rows = _with_lot(rows).filter(pl.col("region").is_not_null())
    return _numbered(lookups, lookups.dongs_here.find(rows, text_key("region", _legal_name()), "dong_id", _NAMED))


def by_other_name(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """The dong by an administrative name that is no legal one, by its 리 alone, or without the number in its name."""
    rows = _with_lot(rows).filter(pl.col("region").is_not_null())
    last = pl.col("lot_dong")
    dongs = [
        lookups.aliases_here.find(rows.filter(~_is_legal(lookups, rows)), text_key("region", last), "dong_id", _NAMED),
        lookups.dongs_here.find(rows, text_key("region", last), "dong_id", _NAMED),
        lookups.dongs_here.find(rows, text_key("region", without_number(last)), "dong_id", _NAMED),
        lookups.dongs_here.find(
            rows, text_key("region", pl.col("emd") + " " + without_number(last)), "dong_id", _NAMED
        ),
    ]
    return _numbered(lookups, pl.concat(dongs))


def by_administrative_name(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """The dong by an administrative name that is also that of a legal dong, where the lot is not."""
    rows = _with_lot(rows).filter(pl.col("region").is_not_null() & pl.col("zipcode_given").is_not_null())
    return _numbered(lookups, lookups.aliases_here.find(rows, text_key("region", "lot_dong"), "dong_id", _NAMED))


def in_scope(lookups: Lookups, scopes: Scopes, rows: pl.DataFrame) -> pl.DataFrame:
    """Legal dong and lot number as they stand, wherever the words allow."""
    rows = _with_lot(rows)
    dongs = lookups.dongs_anywhere.find(rows, text_key(_legal_name()), "dong_id", _NAMED)
    dongs = dongs.with_columns(lookups.tables.dongs["region"].gather(dongs["dong_id"]).alias("home"))
    return _numbered(lookups, dongs.filter(scopes.allow(dongs)))


def by_building_on_lot(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """``712번지 4호 한빛빌딩`` as lot 712, where there is no lot 712-4 and the building on lot 712 is called so."""
    rows = rows.filter(pl.col("lot_ho").fill_null(False) & pl.col("building").is_not_null())
    found = as_written(lookups, rows.with_columns(lot_sub=pl.lit(0, pl.UInt32))).join(
        rows.select(ROW, "building"), on=ROW
    )
    return found.filter(lookups.bears_name(found)).select(ROW, "place")


def misspelt(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """A dong of the same region whose name differs in one syllable or in the order of two, where that lot exists.

    A dong that exists as it is written is not taken for another, and a name of two syllables is too short to be one
    with an error; nor is anything guessed where a second number follows.
    """
    rows = _with_lot(rows).filter(
        pl.col("region").is_not_null()
        & (pl.col("lot_dong").str.len_chars() > _TOO_SHORT)
        & ~pl.col("detail").str.contains("^[0-9]+(?:-[0-9]+)?(?:[ ,]|$)").fill_null(False)
    )
    rows = rows.filter(~_is_legal(lookups, rows))
    keep = (ROW, *_NAMED)
    key, pattern = text_key("region", "lot_dong"), text_key("region", "pattern")
    dongs = [
        lookups.dongs_with_hole.find(holes(rows, "lot_dong", *keep), pattern, "dong_id", _NAMED),
        lookups.dongs_with_gap.find(rows, key, "dong_id", _NAMED),
        lookups.dongs_here.find(gaps(rows, "lot_dong", *keep), pattern, "dong_id", _NAMED),
        lookups.dongs_here.find(swaps(rows, "lot_dong", *keep), pattern, "dong_id", _NAMED),
    ]
    return _numbered(lookups, pl.concat(dongs))


def by_building(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """A building of that name in the dong that is named, where no number is written.

    Words that say what it is and not which (마을회관) name no building.
    """
    rows = rows.filter(
        pl.col("region").is_not_null()
        & pl.col("building").is_not_null()
        & pl.all_horizontal(pl.col("main", "lot_main", "loose_main").is_null())
        & ~pl.col("building").str.contains(_KIND_OF_BUILDING)
    )
    named = rows.with_columns(
        dong_name=pl.coalesce("lot_dong", "ri", "hint_dong", "emd"),
        building=compact_building(pl.col("building")),
    )
    named = named.filter(~pl.col("dong_name").str.contains("[읍면]$"))
    dongs = lookups.dongs_here.find(named, text_key("region", "dong_name"), "dong_id", ("building",))
    return lookups.names_in_dong.find(dongs, text_key("dong_id", "building"), "place")


def known_dongs(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose dong exists in their region: ``row``, ``dong_id``."""
    return lookups.dongs_here.find(rows, text_key("region", "lot_dong"), "dong_id")


def _is_legal(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    """Whether a dong of the region bears the name as it is written."""
    return lookups.dongs_here.holds(rows.select(text_key("region", "lot_dong").fill_null(0)).to_series())


def _with_lot(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with a lot number in a 동·리·가; in a whole 읍 or 면 it says nothing: lots count anew in each 리."""
    return rows.filter(pl.col("lot_main").is_not_null() & ~pl.col("lot_dong").str.contains("[읍면]$"))


def _legal_name() -> pl.Expr:
    ri, emd = pl.col("ri"), pl.col("emd")
    return pl.when(ri.is_not_null() & emd.is_not_null()).then(emd + " " + ri).otherwise("lot_dong")


def _numbered(lookups: Lookups, dongs: pl.DataFrame) -> pl.DataFrame:
    may_be_unit = pl.col("lot_ho").fill_null(False) & (pl.col("lot_sub") >= _LOWEST_UNIT)
    high = dongs.filter(may_be_unit)
    whole = high.join(_divided(lookups, high), on=ROW, how="anti").with_columns(lot_sub=pl.lit(0, pl.UInt32))
    key = lot_key(pl.col("dong_id"), pl.col("san"), pl.col("lot_main"), pl.col("lot_sub"))
    index: Index = lookups.lots
    return index.find(pl.concat([dongs, whole]), key, "place").unique()


def _divided(lookups: Lookups, units: pl.DataFrame) -> pl.DataFrame:
    """Rows whose lot has another part with a quarter of the unit's number or more: the unit may be a part, too."""
    dong, san, main, unit = (pl.col(part) for part in ("dong_id", "san", "lot_main", "lot_sub"))
    spans = ((unit // _DIVIDED, unit - 1), (unit + 1, pl.lit(NUMBER_LIMIT - 1)))
    found = [
        lookups.lots.between(units, lot_key(dong, san, main, low), lot_key(dong, san, main, high), "place")
        for low, high in spans
    ]
    return pl.concat(found).select(ROW).unique()
