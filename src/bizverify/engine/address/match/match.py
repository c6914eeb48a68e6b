"""From the parsed words to the one building that is meant: a reading at a time, the surest first.

Each reading proposes candidates for the rows that are left; the judge decides; what is decided or ambiguous leaves. So
the ordinary address costs two look-ups, and only what nobody understood yet is repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bizverify.engine.address.match import ambiguity, candidates_by_lot, candidates_by_road
from bizverify.engine.address.match.decide import Trust, judged
from bizverify.engine.address.match.index import ROW, text_key
from bizverify.engine.address.match.lookups import Lookups
from bizverify.engine.address.match.scope import scopes_of
from bizverify.engine.address.match.support import keep_tenable

LEVELS: Final = (
    "exact",
    "lot_to_road",
    "region_repaired",
    "typo_repaired",
    "renumbered",
    "building_only",
    "abolished",
    "road_only",
    "region_only",
    "ambiguous",
    "none",
)
"""How well an address was understood, the best first.

``renumbered``: it was abolished and its successor is given; ``abolished``: no successor is certain.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read an address: what it proposes, how far that is trusted, the level of what it finds.

    ``renames``: it takes a road's name for another one, which needs a witness if a road elsewhere bears the name as
    written, or if the two differ as roads do (see :mod:`.misspelling`).
    """

    propose: Callable[[Lookups, pl.DataFrame], pl.DataFrame]
    trust: Trust
    level: str
    renames: bool = False


class Matcher:
    """Matches parsed addresses against one gazetteer; safe to use from several threads."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._scopes = scopes_of(lookups)
        self._before: Final = (
            Reading(candidates_by_road.as_written, Trust.GIVEN, "exact"),
            Reading(_lot_as_written, Trust.GIVEN, "lot_to_road"),
            Reading(self._road_in_scope, Trust.OPEN, "region_repaired"),
            Reading(self._lot_in_scope, Trust.OPEN, "region_repaired"),
        )
        self._after: Final = (
            Reading(candidates_by_road.successors, Trust.GIVEN, "renumbered"),
            Reading(candidates_by_road.as_written, Trust.OPEN, "exact"),
            Reading(candidates_by_road.glued, Trust.GIVEN, "exact"),
            Reading(candidates_by_lot.as_written, Trust.OPEN, "lot_to_road"),
            Reading(candidates_by_lot.by_other_name, Trust.OPEN, "lot_to_road"),
            Reading(candidates_by_lot.by_building_on_lot, Trust.OPEN, "building_only"),
            Reading(self._in_other_ward, Trust.CROSS, "region_repaired"),
            Reading(candidates_by_road.underground, Trust.WEAK, "typo_repaired"),
            Reading(candidates_by_road.misspelt, Trust.WEAK, "typo_repaired", renames=True),
            Reading(candidates_by_lot.misspelt, Trust.WEAK, "typo_repaired"),
            Reading(candidates_by_lot.by_administrative_name, Trust.CROSS, "lot_to_road"),
            Reading(self._elsewhere, Trust.CROSS, "region_repaired"),
            Reading(candidates_by_lot.by_building, Trust.OPEN, "building_only"),
        )

    def match(self, parsed: pl.DataFrame) -> pl.DataFrame:
        """Return a line for each row, in order: ``row``, ``match_level``, ``covered``, ``place`` (null if not sure).

        ``parsed``: the grammar's columns. Added too: ``region``, ``narrowed`` (a witness filled in the region),
        ``postal_only`` (UInt32, the code of all buildings with that main number, where no building is sure).
        """
        rows = candidates_by_road.regrouped(self._lookups, parsed.with_row_index(ROW))
        rows = self._scopes.settled(rows)
        rows = rows.with_columns(needs_witness=pl.lit(False), narrowed=self._sole_district(rows))
        found = Found(rows)
        found.leave(rows.filter(pl.col("moved_from") == ""))
        self._read(found, self._before)
        if not found.left.is_empty():
            found.narrow(self._narrowed(found.left))
            self._read(found, self._after)
        return self._finished(found)

    def _read(self, found: Found, readings: Sequence[Reading]) -> None:
        for reading in readings:
            if found.left.is_empty():
                return
            self._try(found, reading)

    def _try(self, found: Found, reading: Reading) -> None:
        candidates = reading.propose(self._lookups, found.left)
        if candidates.is_empty():
            return
        if reading.renames:
            candidates = self._not_elsewhere_as_written(found.left, candidates)
        rows = found.left.join(candidates.select(ROW).unique(), on=ROW, how="semi")
        if reading.renames:
            rows = rows.with_columns(candidates_by_road.exists_somewhere(self._lookups, rows).alias("needs_witness"))
        decided, ambiguous = judged(self._lookups, rows, candidates, reading.trust)
        if reading.renames:
            decided = keep_tenable(self._lookups, rows, decided)
        doubtful = self._doubtful(rows, decided, reading)
        decided = decided.join(doubtful, on=ROW, how="anti")
        found.add(decided, pl.concat([ambiguous, doubtful]), reading.level)

    def _doubtful(self, rows: pl.DataFrame, decided: pl.DataFrame, reading: Reading) -> pl.DataFrame:
        doubtful = [
            ambiguity.in_two_regions(self._lookups, self._scopes, rows, decided),
            ambiguity.two_addresses(self._lookups, rows, decided),
        ]
        if reading.level != "renumbered":  # the road that is written is the successor's of before
            doubtful.append(ambiguity.other_road(self._lookups, rows, decided))
        if reading.trust is Trust.GIVEN:
            doubtful.append(ambiguity.better_elsewhere(self._lookups, self._scopes, rows, decided))
        return pl.concat(doubtful).unique()

    def _road_in_scope(self, lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
        return candidates_by_road.in_scope(
            lookups, self._scopes, rows.filter(pl.col("region").is_null() & self._open())
        )

    def _lot_in_scope(self, lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
        return candidates_by_lot.in_scope(lookups, self._scopes, rows.filter(pl.col("region").is_null() & self._open()))

    def _not_elsewhere_as_written(self, left: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
        """Without those of rows that name no one region, where what is written exists in another as it is written."""
        opened = left.filter(pl.col("narrowed")).join(candidates.select(ROW).unique(), on=ROW, how="semi")
        as_written = candidates_by_road.in_scope(self._lookups, self._scopes, opened)
        return candidates.join(as_written, on=ROW, how="anti")

    def _sole_district(self, rows: pl.DataFrame) -> pl.Expr:
        """Whether a province alone is written, of which the gazetteer has one district: there may be others."""
        district = pl.lit(self._lookups.tables.regions["sigungu"].gather(rows["region"]))
        return (pl.col("sigungu").is_null() & (district != "")).fill_null(False)

    def _open(self) -> pl.Expr:
        """Whether the region may be filled in: words that the gazetteer does not know name a region all the same."""
        return pl.col("scope").is_null() | pl.col("covered")

    def _narrowed(self, left: pl.DataFrame) -> pl.DataFrame:
        """Return ``row``, ``region`` where the postal code or the dong leaves one region within the scope."""
        rows = left.filter(pl.col("region").is_null() & self._open())
        keep = ("scope",)
        by_zip = self._lookups.zip_regions.find(
            rows, pl.col("zipcode_given").cast(pl.UInt64, strict=False), "home", keep
        )
        dong = pl.coalesce("emd", "hint_dong", "lot_dong")
        dongs = self._lookups.dongs_anywhere.find(rows, text_key(dong), "dong_id", keep)
        by_dong = dongs.select(
            ROW, "scope", home=self._lookups.tables.dongs["region"].gather(dongs["dong_id"])
        ).unique()
        return pl.concat([_single(hint.filter(self._scopes.allow(hint))) for hint in (by_zip, by_dong)]).unique(
            ROW, keep="first", maintain_order=True
        )

    def _elsewhere(self, lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
        """Road and number in another region than the one that is written."""
        rows = rows.filter(pl.col("zipcode_given").is_not_null()).with_columns(scope=pl.lit(None, pl.UInt64))
        return pl.concat(
            [
                candidates_by_road.in_scope(lookups, self._scopes, rows),
                candidates_by_lot.in_scope(lookups, self._scopes, rows),
            ]
        )

    def _in_other_ward(self, lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
        """Road and number, or dong and lot, in another ward of the city that is written: their borders move."""
        city = pl.col("sigungu").str.extract("^([^ ]+) ")
        rows = rows.with_columns(scope=text_key(pl.col("sido"), city)).filter(pl.col("scope").is_not_null())
        return pl.concat(
            [
                candidates_by_road.in_scope(lookups, self._scopes, rows),
                candidates_by_lot.in_scope(lookups, self._scopes, rows),
            ]
        )

    def _finished(self, found: Found) -> pl.DataFrame:
        lookups, left = self._lookups, found.left
        near = candidates_by_road.nearest(lookups, left)
        zips = near.with_columns(lookups.tables.building_zip.gather(near["place"]).alias("zip"))
        near = zips.group_by(ROW).agg(pl.col("zip").first().alias("postal_only"), n=pl.col("zip").n_unique())
        near = near.with_columns(pl.when(pl.col("n") == 1).then("postal_only")).select(ROW, "postal_only")
        known = candidates_by_road.known_roads(lookups, left).select(ROW).unique()
        gone = candidates_by_road.abolished_rows(lookups, left)
        rest = left.select(ROW, "scope", "covered").join(near, on=ROW, how="left")
        has_near, has_road = rest[ROW].is_in(near[ROW].implode()), rest[ROW].is_in(known[ROW].implode())
        level = (
            pl.when(pl.lit(rest[ROW].is_in(gone[ROW].implode())))
            .then(pl.lit("abolished"))
            .when(pl.lit(has_near))
            .then(pl.lit("building_only"))
            .when(pl.lit(has_road))
            .then(pl.lit("road_only"))
            .when(pl.col("region_known"))
            .then(pl.lit("region_only"))
            .otherwise(pl.lit("none"))
        )
        named = left.select(
            region_known=pl.col("region").is_not_null() | pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
        )
        rest = rest.hstack(named).select(ROW, match_level=level, postal_only="postal_only")
        return found.all(rest)


class Found:
    """What the readings have found so far, and the rows that are left."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows
        self.left = rows
        self._decided: list[pl.DataFrame] = []
        self._narrowed = rows.select(ROW, _home=pl.lit(None, pl.UInt32)).clear()

    def add(self, decided: pl.DataFrame, ambiguous: pl.DataFrame, level: str) -> None:
        """Take these rows out of what is left."""
        self._decided += [
            decided.select(ROW, pl.col("place").cast(pl.UInt32), match_level=pl.lit(level)),
            ambiguous.select(ROW, place=pl.lit(None, pl.UInt32), match_level=pl.lit("ambiguous")),
        ]
        gone = pl.concat([decided.select(ROW), ambiguous.select(ROW)])
        self.left = self.left.join(gone, on=ROW, how="anti", maintain_order="left")

    def leave(self, rows: pl.DataFrame) -> None:
        """Take rows that may mean several places out of what is left, before they are read."""
        if not rows.is_empty():
            self.add(rows.clear().with_columns(place=pl.lit(None, pl.UInt32)), rows, "none")

    def narrow(self, regions: pl.DataFrame) -> None:
        """Fill in the region of rows that are left; ``regions``: ``row``, ``home``."""
        self._narrowed = regions.select(ROW, _home=pl.col("home").cast(pl.UInt32))
        self.left = _filled_in(self.left, self._narrowed)

    def all(self, rest: pl.DataFrame) -> pl.DataFrame:
        """Return all rows in order with what was found; ``rest``: ``row``, ``match_level``, ``postal_only``."""
        nothing = pl.lit(None, pl.UInt32)
        decided = [frame.with_columns(postal_only=nothing) for frame in self._decided]
        last = rest.select(ROW, nothing.alias("place"), "match_level", pl.col("postal_only").cast(pl.UInt32))
        rows = _filled_in(self._rows, self._narrowed)
        return rows.join(pl.concat([*decided, last]), on=ROW, how="left", maintain_order="left")


def _lot_as_written(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """The lot, but where an abolished road beside it has a successor, which then must lie on it."""
    candidates = candidates_by_lot.as_written(lookups, rows)
    both = rows.filter(pl.col("main").is_not_null()).join(candidates, on=ROW, how="semi")
    return candidates.join(candidates_by_road.successors(lookups, both), on=ROW, how="anti")


def _filled_in(rows: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    rows = rows.join(regions, on=ROW, how="left", maintain_order="left")
    return rows.with_columns(
        narrowed=pl.col("narrowed") | pl.col("_home").is_not_null(), region=pl.coalesce("region", "_home")
    ).drop("_home")


def _single(hint: pl.DataFrame) -> pl.DataFrame:
    """Rows for which ``home`` is one region: ``row``, ``home``."""
    regions = hint.group_by(ROW).agg(pl.col("home").unique())
    return regions.filter(pl.col("home").list.len() == 1).select(ROW, pl.col("home").list.first())
