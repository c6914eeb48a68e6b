"""Find the buildings that an address may mean. Each function reads its road or lot in one way."""

# all take rows of `PARSED` with `row`, `region` (null if open) and `scope`, and return lines of `row` and `place`

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from bansong.engine.address.batches import ROW, Index, lacks_any, remember_last, slips, text_key
from bansong.engine.address.gazetteer import NUMBER_LIMIT, building_key, lot_key
from bansong.engine.address.lookups import Lookups, bears_name, compact_building, without_digits, without_number

NO_CANDIDATES: Final = pl.DataFrame(schema={ROW: pl.UInt32, "place": pl.UInt32})
_ROAD_NUMBER: Final = ("under", "main", "sub")
_ROAD_KEPT: Final = (*_ROAD_NUMBER, "region", "scope")
_BUILDING_KEY: Final = building_key(pl.col("road_id"), *(pl.col(part) for part in _ROAD_NUMBER))
_CUTS: Final = pl.DataFrame({"_cut": range(2, 10)}, schema={"_cut": pl.UInt32})  # characters of a dong before a road
_SECOND_NUMBER: Final = (
    r"^((?:[가-힣]{0,4}(?:길|로)|번?[가-하])?) ?([0-9]{1,5})(?:-([0-9]{1,5}))?"
    r"((?:[^0-9층호동차번단세개F-].*)?)$"
)
OLD_ADDRESS: Final = "(?:^|[ ,])(?:구|종전|옛)(?:[ :]|주소|도로명)"
_FURTHER_ROAD: Final = r"([가-힣0-9·]+(?:로|길|거리)) ?([0-9]{1,5})(?:-([0-9]{1,5}))?(?:[ ,(]|$)"


def split_joined_numbers(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Give digits of the number to the road: ``부강1 13`` is 13 on 부강1…, ``만남로6석길 5`` is 5 on 만남로6석길."""
    # words between the numbers belong to the name: 상도로15카 9 is 9 on 상도로15카길
    if lacks_any(rows, "detail"):
        return rows
    name, main = pl.coalesce("road", "loose_road"), pl.coalesce("main", "loose_main").cast(pl.String)
    sub = pl.coalesce("sub", "loose_sub").fill_null(0)
    stuck = pl.col("text").str.replace_all(" ", "").str.contains(pl.concat_str(name, main), literal=True)
    suspects = rows.filter((sub == 0) & pl.col("detail").str.contains(_SECOND_NUMBER))
    if suspects.is_empty():
        return rows
    spaced = pl.col("text").str.contains(pl.concat_str(name, pl.lit(" "), main), literal=True)
    parts = pl.col("detail").str.extract_groups(_SECOND_NUMBER).struct
    joined = pl.col("text").str.contains(pl.concat_str(main, parts[0]), literal=True)
    suspects = suspects.filter(stuck & ~spaced & joined).with_columns(
        loose_road=pl.concat_str(name, main, parts[0]),
        loose_main=parts[1].cast(pl.UInt32),
        loose_sub=parts[2].cast(pl.UInt32).fill_null(0),
        detail=parts[3].str.strip_chars(" ,"),
        suffixed=parts[0].str.contains("[길로]$"),
    )
    longer = pl.concat(suspects.select(ROW, name=pl.col("loose_road") + end) for end in ("길", "번길", "로"))
    called_so = lookups.roads_anywhere.find(longer, text_key("name"), "_")
    real = pl.col("suffixed") | pl.col("road").is_null() | pl.col(ROW).is_in(called_so[ROW].implode())
    suspects = suspects.filter(real).with_columns(
        road=pl.lit(None, pl.String),
        main=pl.lit(None, pl.UInt32),
        sub=pl.lit(None, pl.UInt32),
        detail=pl.when(pl.col("detail") != "").then("detail"),
    )
    return rows.update(suspects.select(rows.columns), on=ROW, how="left", include_nulls=True)


def find_road(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by road and number as written, in the ``region`` of the address."""
    return _find_buildings(lookups, _find_roads(lookups, rows))


def find_road_in_scope(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by road and number as written, in the ``scope`` (province, city, or everywhere) of the address."""
    rows = _with_all(rows, "main")
    roads = lookups.roads_anywhere.find(rows, text_key("road"), "road_id", _ROAD_KEPT)
    return _find_buildings(lookups, _keep_in_scope(lookups, roads, lookups.tables.roads, "road_id"))


def find_unspaced_road(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings on a road whose name is joined to its dong (``거창읍하동1길``), or is that whole word."""
    whole, place = pl.col("road_pre"), pl.col("_cut")
    differs, is_long = whole != pl.col("road"), whole.str.len_chars() > _CUTS["_cut"][0] + 1
    rows = _with_all(rows, "region", "main").filter(differs | is_long)
    if rows.is_empty():
        return NO_CANDIDATES
    entire = rows.filter(differs).select(ROW, *_ROAD_KEPT, name=whole)
    cut = rows[[ROW, *_ROAD_KEPT, "road_pre", "emd"]].join(_CUTS, how="cross").filter(whole.str.len_chars() > place + 1)
    pieces = cut.with_columns(prefix=whole.str.head(place), name=whole.str.slice(place))
    known = pieces.select(text_key("region", "prefix").fill_null(0)).to_series()
    explained = lookups.dongs_here.holds(known) | lookups.aliases_here.holds(known)
    explained = explained | (pieces["prefix"] == pieces["emd"]).fill_null(False)
    pieces = pl.concat([pieces[entire.columns].filter(explained), entire])
    return _find_buildings(lookups, lookups.roads_here.find(pieces, text_key("region", "name"), "road_id", _ROAD_KEPT))


def find_on_other_level(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find the same number below (지하) or above (공중) the ground, if neither is written: people often omit it."""
    roads = _find_roads(lookups, rows)
    roads = roads.filter(roads["under"] == 0)
    if roads.is_empty():
        return NO_CANDIDATES
    others = pl.concat(roads.with_columns(under=pl.lit(level, pl.UInt8)) for level in (1, 2))
    return _find_buildings(lookups, others)


def find_misspelt_road(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find similar roads, unless the region has the road as written, or one that differs in its digits only."""
    # not if the road exists as written: the number may be wrong
    name = pl.coalesce("road", "loose_road")
    numbered = pl.when(name.str.contains("[0-9]")).then(text_key("region", without_digits(name)))
    keys = rows.select(whole=text_key("region", name).fill_null(0), numbered=numbered.fill_null(0))
    stands = lookups.roads_here.holds(keys["whole"]) | lookups.roads_without_digits.holds(keys["numbered"])
    return NO_CANDIDATES if stands.all() else find_similar_roads(lookups, rows.filter(~stands))


def find_similar_roads(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by the number on roads of the region that differ in one syllable, or by two swapped ones."""
    rows = rows.filter(_is_road_of_region())
    if rows.is_empty():
        return NO_CANDIDATES
    rows = rows.with_columns(
        name=pl.coalesce("road", "loose_road"),
        main=pl.coalesce("main", "loose_main"),
        sub=pl.coalesce("sub", "loose_sub", pl.lit(0)),
        under=pl.col("under").fill_null(0),
    )
    index = (lookups.roads_here, lookups.roads_with_hole, lookups.roads_with_gap)
    return _find_buildings(lookups, _find_similar_names(rows, "name", index, "road_id", _ROAD_KEPT))


@cache
def _is_road_of_region() -> pl.Expr:
    road, main = pl.coalesce("road", "loose_road"), pl.coalesce("main", "loose_main")
    return pl.all_horizontal(part.is_not_null() for part in (pl.col("region"), road, main))


def find_successors(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find the buildings that replaced abolished addresses."""
    found = find_abolished(lookups, rows)
    return found.drop_nulls("place") if found["place"].null_count() else found


@remember_last
def find_abolished(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find abolished addresses by road and number; ``place`` is that of the successor, null if uncertain."""
    roads = _find_roads(lookups, rows)
    return NO_CANDIDATES if roads.is_empty() else lookups.abolished_buildings.find(roads, _BUILDING_KEY, "place")


def find_same_main_number(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings on the written road with the same main number and any sub-number."""
    roads = _find_roads(lookups, rows)
    if roads.is_empty():
        return NO_CANDIDATES
    number = pl.col("road_id"), pl.col("under"), pl.col("main")
    first, last = (building_key(*number, pl.lit(sub)) for sub in (0, NUMBER_LIMIT - 1))
    return lookups.buildings.between(roads, first, last, "place")


def find_further_roads(lookups: Lookups, rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Find the buildings of other addresses in ``detail`` or brackets; item ``n`` has the ``n``-th of each row."""
    found = rows.filter(names_further_road()).with_columns(
        others=pl.concat_list(text.str.extract_all(_FURTHER_ROAD).fill_null([]) for text in _holding_further_road())
    )
    most = found["others"].list.len().max() or 0
    return [find_road(lookups, _nth_further(found, place)) for place in range(int(str(most)))]


def _nth_further(rows: pl.DataFrame, place: int) -> pl.DataFrame:
    other = pl.col("others").list.get(place, null_on_oob=True)
    parts = other.str.extract_groups(_FURTHER_ROAD).struct
    return rows.filter(other.is_not_null()).with_columns(
        road=parts[0].str.replace_all("·", "", literal=True),
        main=parts[1].cast(pl.UInt32),
        sub=parts[2].cast(pl.UInt32).fill_null(0),
        under=pl.lit(0, pl.UInt8),
    )


@cache
def names_further_road() -> pl.Expr:
    """Whether detail or brackets have another road and number; a former address in brackets does not count."""
    return pl.any_horizontal(text.is_not_null() for text in _holding_further_road())


def _holding_further_road() -> list[pl.Expr]:
    beside = pl.when(~pl.col("brackets").str.contains(OLD_ADDRESS)).then("brackets")
    return [pl.when(text.str.contains(_FURTHER_ROAD)).then(text) for text in (pl.col("detail"), beside)]


@remember_last
def _find_roads(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    rows = _with_all(rows, "region", "main")
    return lookups.roads_here.find(rows, text_key("region", "road"), "road_id", _ROAD_KEPT)


def _with_all(rows: pl.DataFrame, *names: str) -> pl.DataFrame:
    # counts of nulls show whether there is anything to do
    if lacks_any(rows, *names):
        return rows.clear()
    given = [pl.col(name).is_not_null() for name in names if rows[name].null_count()]
    return rows.filter(*given) if given else rows


def _find_buildings(lookups: Lookups, roads: pl.DataFrame) -> pl.DataFrame:
    return NO_CANDIDATES if roads.is_empty() else _find_buildings_on(lookups, roads)


@remember_last
def _find_buildings_on(lookups: Lookups, roads: pl.DataFrame) -> pl.DataFrame:
    return lookups.buildings.find(roads, _BUILDING_KEY, "place")


_LOT_NUMBER: Final = ("san", "lot_main", "lot_sub", "lot_ho")
_LOT_KEPT: Final = (*_LOT_NUMBER, "region", "scope")
_LOT_KEY: Final = lot_key(pl.col("dong_id"), pl.col("san"), pl.col("lot_main"), pl.col("lot_sub"))
# 712번지 4호 is lot 712-4, never a unit: gazetteers are older than the newest lots; 712번지 301호 may be unit 301 on
# lot 712, unless that is known to be divided
_LOWEST_UNIT: Final = 100
_PART_OF_UNIT: Final = 4  # a part with a quarter of the unit's number shows that the lot is divided
_MAX_SHORT_NAME_CHARS: Final = 2
_KIND_OF_BUILDING: Final = (
    "^(?:마을)?(?:마을회관|회관|경로당|노인정|어린이집|유치원|주민센터|행정복지센터|면사무소|읍사무소|사무소|보건진료소|보건지소|우체국|파출소|지구대|"
    "관리사무소|관리동|상가|창고|공장|교회|사찰|학교)$"
)


def find_lot(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by legal dong (법정동) and lot as written, in the ``region`` of the address."""
    rows = _with_lot(rows, pl.col("region").is_not_null())
    if rows.is_empty():
        return NO_CANDIDATES
    return _find_lots(lookups, lookups.dongs_here.find(rows, text_key("region", _legal_name()), "dong_id", _LOT_KEPT))


def find_lot_by_other_name(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by lot and another name of the dong: administrative (행정동), its 리 alone, or without number."""
    rows = _with_lot(rows, pl.col("region").is_not_null())
    if rows.is_empty():
        return NO_CANDIDATES
    last, plain = pl.col("lot_dong"), without_number(pl.col("lot_dong"))
    known_as = [
        (lookups.aliases_here, rows.filter(~_is_legal_dong(lookups, rows)), last),
        *((lookups.dongs_here, rows, name) for name in (last, plain, pl.col("emd") + " " + plain)),
    ]
    dongs = [index.find(asked, text_key("region", name), "dong_id", _LOT_KEPT) for index, asked, name in known_as]
    return _find_lots(lookups, pl.concat(dongs))


def find_lot_by_administrative_name(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by lot in an administrative dong (행정동), even if a legal dong has that name, too."""
    rows = _with_lot(rows, pl.col("region").is_not_null() & pl.col("zipcode_given").is_not_null())
    if rows.is_empty():
        return NO_CANDIDATES
    return _find_lots(lookups, lookups.aliases_here.find(rows, text_key("region", "lot_dong"), "dong_id", _LOT_KEPT))


def find_lot_in_scope(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by legal dong (법정동) and lot as written, in the ``scope`` of the address."""
    rows = _with_lot(rows)
    if rows.is_empty():
        return NO_CANDIDATES
    dongs = lookups.dongs_anywhere.find(rows, text_key(_legal_name()), "dong_id", _LOT_KEPT)
    return _find_lots(lookups, _keep_in_scope(lookups, dongs, lookups.tables.dongs, "dong_id"))


def find_building_on_whole_lot(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find ``712번지 4호 한빛빌딩`` on lot 712 instead of 712-4, if the building there has that name."""
    if lacks_any(rows, "lot_ho", "building"):
        return NO_CANDIDATES
    rows = rows.filter(pl.col("lot_ho").fill_null(False) & pl.col("building").is_not_null())
    if rows.is_empty():
        return NO_CANDIDATES
    found = find_lot(lookups, rows.with_columns(lot_sub=pl.lit(0, pl.UInt32))).join(
        rows.select(ROW, "building"), on=ROW
    )
    return found.with_columns(of_building=lookups.name_of_building(found)).filter(bears_name()).select(ROW, "place")


def find_misspelt_lot(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by lot in dongs with a similar name, unless the region has the dong as written."""
    rows = _with_lot(
        rows,
        pl.col("region").is_not_null()
        & (pl.col("lot_dong").str.len_chars() > _MAX_SHORT_NAME_CHARS)
        & ~pl.col("detail").str.contains("^[0-9]+(?:-[0-9]+)?(?:[ ,]|$)").fill_null(False),
    )
    if rows.is_empty():
        return NO_CANDIDATES
    rows = rows.filter(~_is_legal_dong(lookups, rows))
    index = (lookups.dongs_here, lookups.dongs_with_hole, lookups.dongs_with_gap)
    return _find_lots(lookups, _find_similar_names(rows, "lot_dong", index, "dong_id", _LOT_KEPT))


def find_building_in_dong(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find a building by name and dong, if no number is written, and if the name is not just a kind (마을회관)."""
    if lacks_any(rows, "region", "building"):
        return NO_CANDIDATES
    rows = rows.filter(
        pl.col("region").is_not_null()
        & pl.col("building").is_not_null()
        & pl.all_horizontal(pl.col("main", "lot_main", "loose_main").is_null())
        & ~pl.col("building").str.contains(_KIND_OF_BUILDING)
    )
    if rows.is_empty():
        return NO_CANDIDATES
    named = rows.with_columns(
        dong_name=pl.coalesce("lot_dong", "ri", "hint_dong", "emd"), building=compact_building(pl.col("building"))
    )
    named = named.filter(~pl.col("dong_name").str.contains("[읍면]$"))
    dongs = lookups.dongs_here.find(named, text_key("region", "dong_name"), "dong_id", ("building",))
    return lookups.names_in_dong.find(dongs, text_key("dong_id", "building"), "place")


def _find_similar_names(
    rows: pl.DataFrame, name: str, indexes: tuple[Index, Index, Index], value: str, keep: tuple[str, ...]
) -> pl.DataFrame:
    # `indexes`: of whole names, with one hole, with one gap
    if rows.is_empty():
        return rows.select(ROW, *keep).with_columns(pl.Series(value, dtype=pl.UInt32))
    here, with_hole, with_gap = indexes
    lines = rows[["region", name]].with_row_index(ROW)
    spelled = slips(lines, name)
    found = pl.concat(
        [
            with_hole.find(spelled, pl.col("hole"), value),
            with_gap.find(lines, text_key("region", name), value),
            *(here.find(spelled, pl.col(slip), value) for slip in ("gap", "swap")),
        ]
    )
    return rows[[ROW, *keep]][found[ROW]].hstack([found[value]])


def _keep_in_scope(lookups: Lookups, found: pl.DataFrame, table: pl.DataFrame, value: str) -> pl.DataFrame:
    if found.is_empty():
        return found
    found = found.hstack([table["region"][found[value]].alias("home")])
    return found.filter(lookups.is_in_scope(found))


def find_in_scope(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Find buildings by road or lot in every region that the address allows."""
    return pl.concat([find_road_in_scope(lookups, rows), find_lot_in_scope(lookups, rows)])


def _is_legal_dong(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    return lookups.dongs_here.holds(rows.select(text_key("region", "lot_dong").fill_null(0)).to_series())


_EVERY_ROW: Final = pl.lit(True)


def _with_lot(rows: pl.DataFrame, those: pl.Expr = _EVERY_ROW) -> pl.DataFrame:
    # not in a whole 읍 or 면: lots count anew in each 리
    if lacks_any(rows, "lot_main"):
        return rows.clear()
    return rows.filter(pl.col("lot_main").is_not_null() & those & ~pl.col("lot_dong").str.contains("[읍면]$"))


@cache
def _legal_name() -> pl.Expr:
    ri, emd = pl.col("ri"), pl.col("emd")
    return pl.when(ri.is_not_null() & emd.is_not_null()).then(emd + " " + ri).otherwise("lot_dong")


def _find_lots(lookups: Lookups, dongs: pl.DataFrame) -> pl.DataFrame:
    if dongs.is_empty():
        return NO_CANDIDATES
    may_be_unit = pl.col("lot_ho").fill_null(False) & (pl.col("lot_sub") >= _LOWEST_UNIT)
    high = dongs.filter(may_be_unit)
    if not high.is_empty():
        whole = high.join(_find_divided(lookups, high), on=ROW, how="anti").with_columns(lot_sub=pl.lit(0, pl.UInt32))
        dongs = pl.concat([dongs, whole])
    index: Index = lookups.lots
    return index.find(dongs, _LOT_KEY, "place").unique()


def _find_divided(lookups: Lookups, units: pl.DataFrame) -> pl.DataFrame:
    # another part of the lot with a quarter of the unit's number or more: the unit may be a part, too
    dong, san, main, unit = (pl.col(part) for part in ("dong_id", "san", "lot_main", "lot_sub"))
    spans = ((unit // _PART_OF_UNIT, unit - 1), (unit + 1, pl.lit(NUMBER_LIMIT - 1)))
    found = [
        lookups.lots.between(units, lot_key(dong, san, main, low), lot_key(dong, san, main, high), "place")
        for low, high in spans
    ]
    return pl.concat(found).select(ROW).unique()
