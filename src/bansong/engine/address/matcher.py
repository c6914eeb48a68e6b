"""Match addresses to buildings: try readings, the surest first, until a row is decided or ambiguous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bansong.base.business_number import first_code
from bansong.engine.address import candidates
from bansong.engine.address.batches import ROW, PreparedStep, lacks_any, text_key
from bansong.engine.address.decide import Trust, decide_candidates, find_outvoted
from bansong.engine.address.lookups import Lookups
from bansong.engine.address.region_split import split_batch
from bansong.engine.address.words import PROVINCES

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
REGION_AND_NUMBER: Final = rf"[가-힣][시도군구울산천전종주기원남북][ ,][^ ].*{_NUMBERED}"


def find_two_addresses(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose address also gives another building (two addresses in one cell)."""
    # a lot found only under another name of its dong must lie in another dong and postal district
    by_lot = pl.concat([_find_part_of_lot(lookups, rows, decided), _find_other_lot(lookups, rows, decided)])
    if not rows["perhaps_two"].any():
        return by_lot
    rows = rows.filter(rows["perhaps_two"]).join(decided.rename({"place": "_place"}), on=ROW)
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


def _find_doubts(rows: pl.LazyFrame) -> pl.LazyFrame:
    # what may be a second address of a row, whatever reading finds the first: looked for once a batch
    detail, brackets = pl.col("detail"), pl.col("brackets")
    current = pl.when(~brackets.str.contains(candidates.OLD_ADDRESS)).then(brackets)
    beside = pl.concat_str(detail, current, separator=" , ", ignore_nulls=True)
    behind = pl.concat_str(detail, brackets, separator=", ", ignore_nulls=True)
    by_lot = pl.col("main").is_null() & pl.col("lot_main").is_not_null()
    part = (pl.col("lot_sub") == 0) & detail.str.contains(_PART) & ~detail.str.contains(_FLOORS)
    second = pl.col("lot_main").is_not_null() | candidates.names_further_road()
    return rows.select(
        part_of_lot=(pl.col("main").is_null() & part).fill_null(False),
        beside_lot=pl.when(by_lot & beside.str.contains(_OTHER_LOT)).then(beside),
        perhaps_two=(pl.col("main").is_not_null() & second).fill_null(False),
        region_behind=pl.when(behind.str.contains(REGION_AND_NUMBER)).then(behind),
        region_ahead=pl.when(pl.col("ahead").str.contains(_REGION)).then("ahead"),
    )


_DOUBTS: Final = PreparedStep(_find_doubts)


def _with_region_of(lookups: Lookups, rows: pl.DataFrame, place: str) -> pl.DataFrame:
    home = lookups.describe(rows.select(place=place))["home"]
    return rows.with_columns(region=pl.coalesce("region", home))


def _find_other_lot(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    # by their lot, with other buildings on the other lot
    if lacks_any(rows, "beside_lot"):
        return rows[[ROW]].clear()
    rows = rows.filter(rows["beside_lot"].is_not_null()).join(decided.rename({"place": "_place"}), on=ROW)
    if rows.is_empty():
        return rows[[ROW]]
    rows = _with_region_of(lookups, rows, "_place").with_columns(
        _other=pl.col("beside_lot").str.extract_all(_OTHER_LOT)
    )
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
    if not rows["part_of_lot"].any():
        return rows[[ROW]].clear()
    rows = rows.filter(rows["part_of_lot"]).join(decided, on=ROW)
    if rows.is_empty():
        return rows[[ROW]]
    rows = rows.with_columns(lot_sub=pl.col("detail").str.extract(_PART).cast(pl.UInt32))
    parts = _with_region_of(lookups, rows, "place").drop("place")
    found = pl.concat([candidates.find_lot(lookups, parts), candidates.find_lot_by_other_name(lookups, parts)])
    low = rows.filter(pl.col("lot_sub") < _MIN_UNIT)
    return pl.concat([low.select(ROW), found.select(ROW)]).unique()


def find_other_road(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return the rows found by their lot whose address gives another road or number than the building's."""
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
    """Return the rows whose address names a second region, before the road or followed by a number."""
    # before the road it must be a district or the long name of a province: 부산 may be a name
    long = pl.col("region_typed").str.len_chars() > _SHORT_NAME_CHARS
    counts = {"region_behind": pl.col("rest").str.contains(_NUMBERED), "region_ahead": (pl.col("sigungu") != "") | long}
    found = [
        _find_elsewhere(lookups, rows, decided, name, counts[name]) for name in counts if not lacks_any(rows, name)
    ]
    return pl.concat(found).unique() if found else rows[[ROW]].clear()


def _find_elsewhere(
    lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame, text: str, counts: pl.Expr
) -> pl.DataFrame:
    # `counts`: whether the region that is split off the text counts
    pairs = rows.select(ROW, text=text).drop_nulls("text").join(decided, on=ROW)
    if pairs.is_empty():
        return pairs[[ROW]]
    seconds = lookups.describe(lookups.settle_scope(pairs.hstack(split_batch(pairs["text"]).struct.unnest())))
    either = pl.col("scope").is_null() & pl.col("region_typed").is_not_null()  # 광주시: one of two
    other = ~pl.lit(lookups.is_in_scope(seconds)) | either
    return seconds.filter(other & counts).select(ROW)


def find_better_elsewhere(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose witnesses give more support to the same address elsewhere, or to a similar road."""
    # 경기도 성남시 우뜰면 회동1길 35 may be in 성남시 or in 우뜰면: if both exist, one of the words is wrong
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


# quality of a match, the best first; `renumbered`: abolished, with its successor; `abolished`: without a certain one
LEVELS: Final = (
    *("exact", "lot_to_road", "region_repaired", "typo_repaired", "renumbered", "building_only", "abolished"),
    *("road_only", "region_only", "ambiguous", "none"),
)


def match_addresses(lookups: Lookups, parsed: pl.DataFrame) -> pl.DataFrame:
    """Match parsed addresses (columns of ``PARSED``): a line for each row, in order; ``place`` is null if uncertain."""
    # `narrowed`: a witness filled in the region; `postal_only`: the postal code of all buildings with that main number
    rows = open_rows(lookups, candidates.split_joined_numbers(lookups, parsed.with_row_index(ROW)))
    progress = _Progress(rows)
    if not lacks_any(rows, "moved_from"):
        unclear = progress.left.filter(pl.col("moved_from") == "")
        progress.add(unclear.clear().with_columns(place=pl.lit(None, pl.UInt32)), unclear, "none")
    _apply_readings(lookups, progress, _AS_WRITTEN)
    if not progress.left.is_empty():
        progress.narrow(_narrow_regions(lookups, progress.left))
        _apply_readings(lookups, progress, _REPAIRS)
    return progress.combine(_describe_rest(lookups, progress.left))


def open_rows(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that the readings need beside those of the parser."""
    rows = lookups.settle_scope(rows)
    return rows.with_columns(needs_witness=pl.lit(False), narrowed=_has_sole_district(lookups, rows))


def with_narrowed_regions(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in ``region`` where the address leaves it open, and postal code or dong allow only one."""
    regions = _narrow_regions(lookups, rows)
    return _fill_in_region(rows, regions.select(ROW, _home=pl.col("home").cast(pl.UInt32)))


Propose = Callable[[Lookups, pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class _Reading:
    # `propose`: its candidates; `level`: of its finds; `renames`: it replaces a road's name, which needs a witness if
    # another region has a road as written, or if the two differ as roads do (see misspellings)

    propose: Propose
    trust: Trust
    level: str
    renames: bool = False


class _Progress:
    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows
        self.left = rows.hstack(_DOUBTS.run(rows))
        self._decided: list[pl.DataFrame] = []
        self._narrowed = pl.DataFrame(schema={ROW: pl.UInt32, "_home": pl.UInt32})

    def add(self, decided: pl.DataFrame, ambiguous: pl.DataFrame, level: str) -> None:
        nothing = pl.lit(None, pl.UInt32)
        found = [
            decided.select(ROW, pl.col("place").cast(pl.UInt32), match_level=pl.lit(level), postal_only=nothing),
            ambiguous.select(ROW, place=nothing, match_level=pl.lit("ambiguous"), postal_only=nothing),
        ]
        self._decided += [rows for rows in found if not rows.is_empty()]
        gone = pl.concat([decided[[ROW]], ambiguous[[ROW]]])
        if gone[ROW].n_unique() == self.left.height:
            self.left = self.left.clear()
        elif not gone.is_empty():
            self.left = self.left.join(gone, on=ROW, how="anti", maintain_order="left")

    def narrow(self, regions: pl.DataFrame) -> None:
        if regions.is_empty():
            return
        self._narrowed = regions.select(ROW, _home=pl.col("home").cast(pl.UInt32))
        self.left = _fill_in_region(self.left, self._narrowed)

    def combine(self, rest: pl.DataFrame) -> pl.DataFrame:
        rows = _fill_in_region(self._rows, self._narrowed)
        return rows.join(pl.concat([*self._decided, rest]), on=ROW, how="left", maintain_order="left")


def _fill_in_region(rows: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    if regions.is_empty():
        return rows
    rows = rows.join(regions, on=ROW, how="left", maintain_order="left")
    return rows.with_columns(
        narrowed=pl.col("narrowed") | pl.col("_home").is_not_null(), region=pl.coalesce("region", "_home")
    ).drop("_home")


def _apply_readings(lookups: Lookups, progress: _Progress, readings: Sequence[_Reading]) -> None:
    for reading in readings:
        if progress.left.is_empty():
            return
        proposed = reading.propose(lookups, progress.left)
        if not proposed.is_empty():
            _decide_reading(lookups, progress, reading, proposed)


def _decide_reading(lookups: Lookups, progress: _Progress, reading: _Reading, proposed: pl.DataFrame) -> None:
    if reading.renames:
        proposed = _drop_existing_elsewhere(lookups, progress.left, proposed)
    rows = progress.left.join(proposed[[ROW]], on=ROW, how="semi", maintain_order="left")
    if reading.renames:
        roads = rows.select(text_key(pl.coalesce("road", "loose_road")).fill_null(0)).to_series()
        rows = rows.with_columns(needs_witness=lookups.roads_anywhere.holds(roads))
    decided, ambiguous = decide_candidates(lookups, rows, proposed, reading.trust, renames=reading.renames)
    if decided.is_empty():
        progress.add(decided, ambiguous, reading.level)
        return
    doubts = [find_two_regions, find_two_addresses]
    if reading.level != "renumbered":  # the road that is written is the successor's of before
        doubts.append(find_other_road)
    if reading.trust is Trust.GIVEN:
        doubts.append(find_better_elsewhere)
    doubtful = pl.concat(doubt(lookups, rows, decided) for doubt in doubts)
    if not doubtful.is_empty():
        doubtful = doubtful.unique()
        decided = decided.join(doubtful, on=ROW, how="anti")
        ambiguous = pl.concat([ambiguous, doubtful])
    progress.add(decided, ambiguous, reading.level)


def _drop_existing_elsewhere(lookups: Lookups, left: pl.DataFrame, proposed: pl.DataFrame) -> pl.DataFrame:
    # rows without a single region, if the written address exists in another region
    narrowed = left.filter("narrowed")
    if narrowed.is_empty():
        return proposed
    opened = narrowed.join(proposed.select(ROW).unique(), on=ROW, how="semi")
    return proposed.join(candidates.find_road_in_scope(lookups, opened), on=ROW, how="anti")


def _has_sole_district(lookups: Lookups, rows: pl.DataFrame) -> pl.Expr:
    # only a province is written; the gazetteer has one district of it, but others may exist
    district = pl.lit(lookups.tables.regions["sigungu"][rows["region"]])
    return (pl.col("sigungu").is_null() & (district != "")).fill_null(False)


def _select_open(rows: pl.DataFrame) -> pl.DataFrame:
    # unknown words name a region all the same
    return rows.filter(_IS_OPEN) if rows["region"].null_count() else rows.clear()


_IS_OPEN: Final = pl.col("region").is_null() & (pl.col("scope").is_null() | pl.col("covered"))


def _narrow_regions(lookups: Lookups, left: pl.DataFrame) -> pl.DataFrame:
    rows = _select_open(left)
    if rows.is_empty():
        return pl.DataFrame(schema={ROW: pl.UInt32, "home": pl.UInt32})
    zipcode, dong = pl.col("zipcode_given"), pl.coalesce("emd", "hint_dong", "lot_dong")
    by_zip = lookups.zip_regions.find(rows, zipcode.cast(pl.UInt64, strict=False), "home", ["scope"])
    dongs = lookups.dongs_anywhere.find(rows, text_key(dong), "dong_id", ["scope"])
    by_dong = dongs.select(ROW, "scope", home=lookups.tables.dongs["region"][dongs["dong_id"]]).unique()
    hints = [_keep_single(hint.filter(lookups.is_in_scope(hint))) for hint in (by_zip, by_dong)]
    return pl.concat(hints).unique(ROW, keep="first", maintain_order=True)


def _keep_single(hint: pl.DataFrame) -> pl.DataFrame:
    regions = hint.group_by(ROW).agg(pl.col("home").unique())
    return regions.filter(pl.col("home").list.len() == 1).select(ROW, pl.col("home").list.first())


def _describe_rest(lookups: Lookups, left: pl.DataFrame) -> pl.DataFrame:
    nothing = pl.lit(None, pl.UInt32)
    if left.is_empty():
        return left.select(
            ROW, nothing.alias("place"), pl.lit(None, pl.String).alias("match_level"), postal_only=nothing
        )
    near = _postal_of_same_number(lookups, candidates.find_same_main_number(lookups, left))
    road = text_key("region", pl.coalesce("road", "loose_road"))
    named, gone = lookups.roads_here.find(left, road, "road_id"), candidates.find_abolished(lookups, left)
    rules = {"abolished": _is_among(gone), "building_only": _is_among(near), "road_only": _is_among(named)}
    level = first_code(rules | {"region_only": _HAS_REGION}, "none")
    if near.is_empty():
        return left.select(ROW, place=nothing, match_level=level, postal_only=nothing)
    return left.select(ROW, place=nothing, match_level=level).join(near, on=ROW, how="left")


_HAS_REGION: Final = pl.any_horizontal(pl.col("region", "sido", "sigungu").is_not_null())


def _is_among(found: pl.DataFrame) -> pl.Expr:
    return pl.lit(False) if found.is_empty() else pl.col(ROW).is_in(pl.lit(found[ROW]).implode())


def _postal_of_same_number(lookups: Lookups, near: pl.DataFrame) -> pl.DataFrame:
    # null for several codes
    if near.is_empty():
        return pl.DataFrame(schema={ROW: pl.UInt32, "postal_only": pl.UInt32})
    zips = near.hstack([lookups.tables.building_zip[near["place"]].alias("zip")])
    near = zips.group_by(ROW).agg(pl.col("zip").first().alias("postal_only"), n=pl.col("zip").n_unique())
    return near.select(ROW, pl.when(pl.col("n") == 1).then("postal_only"))


def _read_lot(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    # unless an abolished road beside it has a successor, which then must lie on it
    found = candidates.find_lot(lookups, rows)
    if found.is_empty():
        return found
    both = rows.filter(pl.col("main").is_not_null()).join(found, on=ROW, how="semi")
    return found.join(candidates.find_successors(lookups, both), on=ROW, how="anti")


def _if_open(propose: Propose) -> Propose:
    return lambda lookups, rows: propose(lookups, _select_open(rows))


def _read_in_other_ward(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    # borders of wards move
    if lacks_any(rows, "sido", "sigungu"):
        return candidates.NO_CANDIDATES
    rows = rows.filter(pl.col("sido").is_not_null() & pl.col("sigungu").str.contains(" ", literal=True))
    if rows.is_empty():
        return candidates.NO_CANDIDATES
    city = pl.col("sigungu").str.extract("^([^ ]+) ")
    rows = rows.with_columns(scope=text_key(pl.col("sido"), city))
    return candidates.find_in_scope(lookups, rows)


def _read_elsewhere(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    if lacks_any(rows, "zipcode_given"):
        return candidates.NO_CANDIDATES
    rows = rows.filter(pl.col("zipcode_given").is_not_null())
    return candidates.find_in_scope(lookups, rows.with_columns(scope=pl.lit(None, pl.UInt64)))


_AS_WRITTEN: Final = (
    _Reading(candidates.find_road, Trust.GIVEN, "exact"),
    _Reading(_read_lot, Trust.GIVEN, "lot_to_road"),
    _Reading(_if_open(candidates.find_road_in_scope), Trust.OPEN, "region_repaired"),
    _Reading(_if_open(candidates.find_lot_in_scope), Trust.OPEN, "region_repaired"),
)
_REPAIRS: Final = (  # for another way to read an address, add a function in `candidates` and a line here
    _Reading(candidates.find_successors, Trust.GIVEN, "renumbered"),
    _Reading(candidates.find_road, Trust.OPEN, "exact"),
    _Reading(candidates.find_unspaced_road, Trust.GIVEN, "exact"),
    _Reading(candidates.find_lot, Trust.OPEN, "lot_to_road"),
    _Reading(candidates.find_lot_by_other_name, Trust.OPEN, "lot_to_road"),
    _Reading(candidates.find_building_on_whole_lot, Trust.OPEN, "building_only"),
    _Reading(_read_in_other_ward, Trust.CROSS, "region_repaired"),
    _Reading(candidates.find_on_other_level, Trust.WEAK, "typo_repaired"),
    _Reading(candidates.find_misspelt_road, Trust.WEAK, "typo_repaired", renames=True),
    _Reading(candidates.find_misspelt_lot, Trust.WEAK, "typo_repaired"),
    _Reading(candidates.find_lot_by_administrative_name, Trust.CROSS, "lot_to_road"),
    _Reading(_read_elsewhere, Trust.CROSS, "region_repaired"),
    _Reading(candidates.find_building_in_dong, Trust.OPEN, "building_only"),
)

READINGS: Final = (*_AS_WRITTEN, *_REPAIRS)  # all readings, the surest first
