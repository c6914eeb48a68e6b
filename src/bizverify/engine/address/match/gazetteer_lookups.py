"""Indexes over the tables of a gazetteer: roads, dongs, lots, postal codes and regions by name and number."""

from __future__ import annotations

import threading
from typing import Final

import polars as pl

from bizverify.engine.address.batches import ROW, Index, built_once, text_key
from bizverify.engine.address.gazetteer import Gazetteer, Tables, building_key
from bizverify.engine.address.misspellings import gaps, holes
from bizverify.engine.address.regions import members

_NUMBERED_DONG: Final = r"^(.*[가-힣])제?[0-9]+(동|리)$"
_ROAD_BITS: Final = 36
_KEPT: Final = 2
_lock = threading.Lock()
_opened: dict[tuple[str, str], Lookups] = {}


def lookups_of(gazetteer: Gazetteer) -> Lookups:
    """Return the lookups of a gazetteer, the same ones for all threads; those of the last two are kept."""
    key = (str(gazetteer.path), gazetteer.version)
    if (found := _opened.get(key)) is not None:
        return found
    made = Lookups(gazetteer.tables)  # without the lock, see built_once
    with _lock:
        while len(_opened) >= _KEPT and key not in _opened:
            _opened.pop(next(iter(_opened)))
        return _opened.setdefault(key, made)


def without_number(dong: pl.Expr) -> pl.Expr:
    """Return the legal name that a numbered administrative one is mostly made of (상계1동 → 상계동), else null."""
    return pl.when(dong.str.contains(_NUMBERED_DONG)).then(dong.str.replace(_NUMBERED_DONG, "$1$2"))


class Lookups:
    """Indexes over the tables of a gazetteer. Each is built when it is first needed."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    # ── buildings and lots ───────────────────────────────────────────────────────────────────────────────────────

    @built_once
    def buildings(self) -> Index:
        """``building_key`` → place of the building."""
        return Index(self.tables.building_key)

    @built_once
    def abolished_buildings(self) -> Index:
        """``building_key`` of an abolished address → place of its successor, null where none is certain."""
        return Index(self.tables.gone_key, self.tables.gone_building)

    @built_once
    def on_twin_road(self) -> pl.Series:
        """By place of the building: whether its district has another road of that name."""
        road = (self.tables.building_key // 2**_ROAD_BITS).cast(pl.UInt32)
        return self.tables.roads["several"].fill_null(False).gather(road)

    @built_once
    def lots(self) -> Index:
        """``lot_key`` → places of the buildings on the lot."""
        return Index(self.tables.lot_key, self.tables.lot_building)

    @built_once
    def names_in_dong(self) -> Index:
        """(dong, compact name of a building) → places."""
        named = pl.DataFrame({"dong": self.tables.building_dong, "name": self.tables.building_name})
        named = named.with_row_index("place").drop_nulls("name")
        return Index.of(named, text_key("dong", compact_building(pl.col("name"))), "place")

    def describe(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add what is known of the building at ``place``: ``zip``, ``dong``, ``road_id``, ``home`` (its region)."""
        place = frame["place"]
        frame = frame.with_columns(
            self.tables.building_zip.gather(place).alias("zip"),
            self.tables.building_dong.gather(place).alias("dong"),
            (self.tables.building_key.gather(place) // 2**_ROAD_BITS).cast(pl.UInt32).alias("road_id"),
        )
        return frame.with_columns(self.tables.roads["region"].gather(frame["road_id"]).alias("home"))

    # ── roads ────────────────────────────────────────────────────────────────────────────────────────────────────

    @built_once
    def roads_here(self) -> Index:
        """(region, compact name) → road."""
        return Index.of(self.tables.roads, text_key("region", "key"), "road")

    @built_once
    def roads_anywhere(self) -> Index:
        """Compact name → roads."""
        return Index.of(self.tables.roads, text_key("key"), "road")

    @built_once
    def roads_without_digits(self) -> Index:
        """(region, name with its digits unreadable) → roads that have digits."""
        numbered = self.tables.roads.filter(pl.col("key").str.contains("[0-9]"))
        return Index.of(numbered, text_key("region", without_digits(pl.col("key"))), "road")

    @built_once
    def roads_with_hole(self) -> Index:
        """(region, name with one syllable unreadable) → roads."""
        return Index.of(holes(self.tables.roads, "key", "road", "region"), text_key("region", "pattern"), "road")

    @built_once
    def roads_with_gap(self) -> Index:
        """(region, name with one syllable left out) → roads."""
        return Index.of(gaps(self.tables.roads, "key", "road", "region"), text_key("region", "pattern"), "road")

    # ── dongs ────────────────────────────────────────────────────────────────────────────────────────────────────

    @built_once
    def legal_names(self) -> pl.DataFrame:
        """The legal names of dongs: ``dong``, ``region``, ``name`` (동·읍·면, 리, both)."""
        dongs = self.tables.dongs
        within = dongs.filter(pl.col("ri") != "")
        return pl.concat(
            [
                dongs.select("dong", "region", name="emd"),
                within.select("dong", "region", name="ri"),
                within.select("dong", "region", name=pl.col("emd") + " " + pl.col("ri")),
            ]
        ).unique()

    @built_once
    def dongs_here(self) -> Index:
        """(region, legal name) → dongs."""
        return Index.of(self.legal_names, text_key("region", "name"), "dong")

    @built_once
    def dongs_anywhere(self) -> Index:
        """Legal name → dongs."""
        return Index.of(self.legal_names, text_key("name"), "dong")

    @built_once
    def dong_words(self) -> Index:
        """Legal or administrative name → dongs."""
        names = pl.concat([self.legal_names.select("name", "dong"), self.tables.admins.select("name", "dong")])
        return Index.of(names, text_key("name"), "dong")

    @built_once
    def aliases_here(self) -> Index:
        """(region, administrative name) → dongs."""
        return Index.of(self.tables.admins, text_key("region", "name"), "dong")

    @built_once
    def dongs_with_hole(self) -> Index:
        """(region, name with one syllable unreadable) → dongs."""
        return Index.of(holes(self.legal_names, "name", "dong", "region"), text_key("region", "pattern"), "dong")

    @built_once
    def dongs_with_gap(self) -> Index:
        """(region, name with one syllable left out) → dongs."""
        return Index.of(gaps(self.legal_names, "name", "dong", "region"), text_key("region", "pattern"), "dong")

    @built_once
    def _names_of_dong(self) -> Index:
        names = pl.concat([self.legal_names, self.tables.admins.select("dong", "region", "name")])
        return Index.of(names, text_key("dong", "name"), "dong")

    def named_so(self, frame: pl.DataFrame, dong: str, name: str) -> pl.Series:
        """Tell for each row whether its ``dong`` goes by ``name``; null where nothing is named."""
        keys = frame.select(
            as_written=text_key(dong, name),
            plain=text_key(dong, without_number(pl.col(name))),
        )
        known = self._names_of_dong
        held = known.holds(keys["as_written"].fill_null(0)) | known.holds(keys["plain"].fill_null(0))
        return frame.select(pl.when(pl.col(name).is_not_null()).then(pl.lit(held))).to_series()

    def is_dong_of(self, frame: pl.DataFrame, region: str, name: str) -> pl.Series:
        """Tell for each row whether a dong of its ``region`` goes by ``name``, by law or administratively."""
        keys = frame.select(
            as_written=text_key(region, name).fill_null(0),
            plain=text_key(region, without_number(pl.col(name))).fill_null(0),
        )
        legal = self.dongs_here.holds(keys["as_written"]) | self.dongs_here.holds(keys["plain"])
        return legal | self.aliases_here.holds(keys["as_written"])

    def bears_name(self, frame: pl.DataFrame) -> pl.Series:
        """Tell for each row whether the building at ``place`` is called ``building``; null where nothing is named."""
        if frame["building"].null_count() == frame.height:
            return pl.Series("building_pro", [], pl.Boolean).extend_constant(None, frame.height)
        official = self.tables.building_name.gather(frame["place"]).alias("official")
        pair = frame.select(compact_building(pl.col("building")).alias("written")).with_columns(official)
        same = compact_building(pl.col("official")) == pl.col("written")
        return pair.select(pl.when(pl.col("written") != "").then(same.fill_null(False))).to_series()

    # ── regions and postal codes ─────────────────────────────────────────────────────────────────────────────────

    @built_once
    def _postal_places(self) -> pl.DataFrame:
        tables = self.tables
        return pl.DataFrame(
            {
                "zip": tables.building_zip,
                "dong": tables.building_dong,
                "road": (tables.building_key // 2**_ROAD_BITS).cast(pl.UInt32),
            }
        ).unique()

    @built_once
    def zip_regions(self) -> Index:
        """Postal code → regions that have it."""
        pairs = self._postal_places.select(
            "zip", region=self.tables.roads["region"].gather(self._postal_places["road"])
        )
        return Index.of(pairs, pl.col("zip").cast(pl.UInt64), "region")

    @built_once
    def _zip_in_dong(self) -> Index:
        return Index.of(self._postal_places, text_key("zip", "dong"), "dong")

    @built_once
    def _zip_on_road(self) -> Index:
        return Index.of(self._postal_places, text_key("zip", "road"), "road")

    def is_neighbouring(self, frame: pl.DataFrame) -> pl.Series:
        """Tell whether ``zip_given`` (UInt32, not null) occurs in the same ``dong`` or on the same ``road_id``."""
        keys = frame.select(dong=text_key("zip_given", "dong"), road=text_key("zip_given", "road_id"))
        return self._zip_in_dong.holds(keys["dong"]) | self._zip_on_road.holds(keys["road"])

    # ── scopes: the regions that the words of an address allow: one, several, all (no word) or none ───────────────

    @built_once
    def _scope_words(self) -> pl.DataFrame:
        words = pl.col("sigungu").str.split(" ")
        spellings = [pl.col("sigungu"), words.list.first(), words.list.last(), pl.lit("")]
        provinces = [pl.col("sido"), pl.lit("")]
        pairs = [
            self.tables.regions.select("region", province.alias("sido"), spelling.alias("sigungu"))
            for province in provinces
            for spelling in spellings
        ]
        of_other_times = members().join(
            self.tables.regions, left_on=["member_sido", "member_sigungu"], right_on=["sido", "sigungu"]
        )
        pairs.append(of_other_times.select("region", "sido", "sigungu"))
        return pl.concat(pairs).filter((pl.col("sido") != "") | (pl.col("sigungu") != "")).unique()

    @built_once
    def scope_regions(self) -> Index:
        """(sido, sigungu), "" for a word that is missing → regions.

        ``수원시 영통구`` is also meant by ``수원시`` (with others) and by ``영통구``, each with and without the
        province; where districts were split, by the names of before.
        """
        return Index.of(self._scope_words, text_key("sido", "sigungu"), "region")

    def settle_scope(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add ``scope`` (the key of the words, null without any), ``region`` (if it is one), ``covered``.

        Districts are founded, split and abolished more often than files are renewed, so a district that the gazetteer
        does not know means those of its city, or its parts (see :func:`~bizverify.engine.address.regions.members`).
        """
        words = ["sido", "sido_typed", "sigungu", "region_conflict"]
        found = self._settle_words(rows.select(words).unique().with_row_index(ROW)).drop(ROW)
        return rows.join(found, on=words, how="left", nulls_equal=True, maintain_order="left")

    def _settle_words(self, words: pl.DataFrame) -> pl.DataFrame:
        # A province of before, alone, means its own districts only; where province and district contradict each other,
        # the district counts, which is the more particular.
        alone = pl.when(pl.col("sigungu").is_null()).then("sido_typed")
        conflict = pl.col("region_conflict").fill_null(False)
        sido = pl.when(~conflict).then(pl.coalesce(alone, "sido")).fill_null("")
        sigungu = pl.col("sigungu").fill_null("")
        words = words.with_columns(scope=pl.when((sido != "") | (sigungu != "")).then(text_key(sido, sigungu)))
        words = words.with_columns(covered=self.scope_regions.holds(words["scope"].fill_null(0)))
        found = self.scope_regions.find(words, pl.col("scope"), "region")
        single = found.group_by(ROW).agg(pl.col("region").first(), n=pl.len()).filter(pl.col("n") == 1)
        return words.join(single.select(ROW, "region"), on=ROW, how="left", maintain_order="left")

    @built_once
    def _scope_pairs(self) -> Index:
        return Index.of(self._scope_words, text_key(text_key("sido", "sigungu"), "region"), "region")

    def is_in_scope(self, frame: pl.DataFrame) -> pl.Series:
        """Tell for each row whether its region ``home`` is within its ``scope`` (always, where there is none)."""
        keys = frame.select(text_key("scope", "home")).to_series()
        return frame.select(pl.col("scope").is_null() | pl.lit(self._scope_pairs.holds(keys.fill_null(0)))).to_series()


def without_digits(name: pl.Expr) -> pl.Expr:
    """Return a road's name with each number in it unreadable (새내6길 → 새내#길)."""
    return name.str.replace_all("[0-9]+", "#")


def compact_building(name: pl.Expr) -> pl.Expr:
    """Return a building's name as it is compared: no spaces, no signs, small letters."""
    return name.str.replace_all(r"[^가-힣A-Za-z0-9]", "").str.to_lowercase()


def number_range(road: pl.Expr, under: pl.Expr, main: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return the first and the last key of the buildings with this main number, whatever follows it."""
    return (
        building_key(road, under, main, pl.lit(0)),
        building_key(road, under, main, pl.lit(2**17 - 1)),
    )
