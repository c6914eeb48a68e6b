"""From parsed words to the one building that is meant: one reading after another, the surest first.

Each reading proposes candidates for the rows that are left, and :mod:`.decide` decides; decided and ambiguous rows
leave. So the ordinary address costs two lookups, and only unread rows are repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bansong.business_number import first_code
from bansong.engine.address.batches import ROW, lacks_any, text_key
from bansong.engine.address.match import ambiguity, candidates
from bansong.engine.address.match.decide import Trust, decide_candidates, keep_tenable
from bansong.engine.address.match.gazetteer_lookups import Lookups

LEVELS: Final = (
    *("exact", "lot_to_road", "region_repaired", "typo_repaired", "renumbered", "building_only", "abolished"),
    *("road_only", "region_only", "ambiguous", "none"),
)
"""Quality of a match, the best first.

``renumbered``: abolished, with its successor; ``abolished``: without a certain successor.
"""


def match_addresses(lookups: Lookups, parsed: pl.DataFrame) -> pl.DataFrame:
    """Return a line for each row, in order: ``row``, ``match_level``, ``covered``, ``place`` (null if uncertain).

    ``parsed``: the columns of :data:`bansong.engine.address.parse.PARSED`. Also added: ``region``, ``narrowed`` (a
    witness filled in the region), ``postal_only`` (UInt32, the code of all buildings with that main number, if no
    building is certain).
    """
    rows = open_rows(lookups, candidates.split_joined_numbers(lookups, parsed.with_row_index(ROW)))
    progress = _Progress(rows)
    if not lacks_any(rows, "moved_from"):
        progress.leave_undecided(rows.filter(pl.col("moved_from") == ""))
    _apply_readings(lookups, progress, _AS_WRITTEN)
    if not progress.left.is_empty():
        progress.narrow(_narrow_regions(lookups, progress.left))
        _apply_readings(lookups, progress, _REPAIRS)
    return progress.combine(_describe_rest(lookups, progress.left))


def open_rows(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Return parsed rows with their region and scope, ready for readings."""
    rows = lookups.settle_scope(rows)
    return rows.with_columns(needs_witness=pl.lit(False), narrowed=_has_sole_district(lookups, rows))


def with_narrowed_regions(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the region filled in where postal code or dong leaves one."""
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
        self.left = rows
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

    def leave_undecided(self, rows: pl.DataFrame) -> None:
        if not rows.is_empty():
            self.add(rows.clear().with_columns(place=pl.lit(None, pl.UInt32)), rows, "none")

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
        rows = rows.with_columns(candidates.is_road_anywhere(lookups, rows).alias("needs_witness"))
    decided, ambiguous = decide_candidates(lookups, rows, proposed, reading.trust)
    if reading.renames:
        decided = keep_tenable(lookups, rows, decided)
    doubts = [ambiguity.find_two_regions, ambiguity.find_two_addresses]
    if reading.level != "renumbered":  # the road that is written is the successor's of before
        doubts.append(ambiguity.find_other_road)
    if reading.trust is Trust.GIVEN:
        doubts.append(ambiguity.find_better_elsewhere)
    doubtful = pl.concat(doubt(lookups, rows, decided) for doubt in doubts)
    if not doubtful.is_empty():
        doubtful = doubtful.unique()
        decided = decided.join(doubtful, on=ROW, how="anti")
        ambiguous = pl.concat([ambiguous, doubtful])
    progress.add(decided, ambiguous, reading.level)


def _drop_existing_elsewhere(lookups: Lookups, left: pl.DataFrame, proposed: pl.DataFrame) -> pl.DataFrame:
    # rows that name no one region, if what is written exists in another region
    narrowed = left.filter("narrowed")
    if narrowed.is_empty():
        return proposed
    opened = narrowed.join(proposed.select(ROW).unique(), on=ROW, how="semi")
    return proposed.join(candidates.find_road_in_scope(lookups, opened), on=ROW, how="anti")


def _has_sole_district(lookups: Lookups, rows: pl.DataFrame) -> pl.Expr:
    # a province alone is written, of which the gazetteer has one district: there may be others
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
    named, gone = candidates.find_named_roads(lookups, left), candidates.find_abolished(lookups, left)
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


# ── the readings ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
_REPAIRS: Final = (
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
"""Another way to read an address: a function in :mod:`.candidates`, and a line here."""

READINGS: Final = (*_AS_WRITTEN, *_REPAIRS)
"""All readings, the surest first."""
