"""Indexes over a gazetteer, whole or for a few addresses."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from itertools import product
from secrets import randbits
from typing import Any, Final, Literal, cast

import polars as pl

from bansong.engine.address.batches import (
    ROW,
    Index,
    PreparedStep,
    built_once,
    drop_repeats,
    lacks_any,
    patterns,
    text_key,
)
from bansong.engine.address.gazetteer import Gazetteer, StoredSection, StoredTables, Tables
from bansong.engine.address.regions import members
from bansong.engine.registry import KEY, Memo

_NUMBERED_DONG: Final = r"^(.*[가-힣])제?[0-9]+(동|리)$"
_ROAD_BITS: Final = 36
_ZIP_BITS: Final = 32
_SCOPE_WORDS: Final = ["sido", "sido_typed", "sigungu", "region_conflict"]
_MAX_SCOPES_KEPT: Final = 1 << 14
_SEED: Final = randbits(64)


def without_number(dong: pl.Expr) -> pl.Expr:
    """Return the legal dong in the name of a numbered administrative one (상계1동 → 상계동), else null."""
    return pl.when(dong.str.contains(_NUMBERED_DONG)).then(dong.str.replace(_NUMBERED_DONG, "$1$2"))


def without_digits(name: pl.Expr) -> pl.Expr:
    """Replace each number in a road's name by ``#`` (새내6길 → 새내#길)."""
    return name.str.replace_all("[0-9]+", "#")


def _index_numbered(roads: pl.DataFrame) -> Index:
    numbered = roads.filter(pl.col("key").str.contains("[0-9]"))
    return Index.of(numbered, text_key("region", without_digits(pl.col("key"))), "road")


def _index_slips(slip: Literal["hole", "gap"], name: str, value: str, names: pl.DataFrame) -> Index:
    return Index.of(patterns(names, name, slip, value, "region"), text_key("region", "pattern"), value)


def zip_key(zipcode: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Combine a postal code with the number of a dong, road or region to one key (UInt64)."""
    return other + zipcode.cast(pl.UInt64) * pl.lit(2**_ZIP_BITS, pl.UInt64)


def _index_zips(other: str, places: pl.DataFrame) -> Index:
    return Index.of(places, zip_key(pl.col("zip"), pl.col(other)), other)


def _built(build: Callable[[Any], Index]) -> built_once[Index]:
    return built_once(build)


def _of_roads(build: Callable[[pl.DataFrame], Index]) -> built_once[Index]:
    return built_once(lambda own: own._index(own.tables.roads, build))


def _of_dongs(build: Callable[[pl.DataFrame], Index]) -> built_once[Index]:
    return built_once(lambda own: own._index(own.legal_names, build))


class Lookups(ABC):
    """Indexes over the tables of a gazetteer, each built when first needed."""

    buildings: built_once[Index]  # `building_key` → place of the building
    abolished_buildings: built_once[Index]  # `building_key` → place of the successor, null where none is certain
    lots: built_once[Index]  # `lot_key` → places of the buildings on the lot
    names_in_dong: built_once[Index]  # (dong, compact name of a building) → places

    def __init__(self, tables: Tables | StoredTables) -> None:
        self.tables = tables
        self._scopes = Memo(_MAX_SCOPES_KEPT)
        self._steps: dict[tuple[object, ...], PreparedStep] = {}

    def prepare(self, step: Callable[..., pl.LazyFrame], *arguments: Hashable) -> PreparedStep:
        """Return ``step(self, *arguments, rows)`` as a :class:`PreparedStep`, made once for these arguments."""
        known = self._steps.get((step, *arguments))
        return known or self._steps.setdefault((step, *arguments), PreparedStep(partial(step, self, *arguments)))

    @abstractmethod
    def _index(self, names: pl.DataFrame, build: Callable[[pl.DataFrame], Index]) -> Index: ...

    @abstractmethod
    def _index_postal(self, build: Callable[[pl.DataFrame], Index], zip_at: int) -> Index: ...

    def is_on_twin_road(self, place: pl.Series) -> pl.Series:
        """Whether the district of each building has another road of the same name."""
        several = self.tables.roads["several"][_road_of(self.tables.building_key[place])]
        return several.fill_null(False) if several.null_count() else several

    def describe(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add ``zip``, ``dong``, ``road_id`` and ``home`` (the region) of the building at ``place``."""
        place = frame["place"]
        road = _road_of(self.tables.building_key[place])
        known = {
            "zip": self.tables.building_zip[place],
            "dong": self.tables.building_dong[place],
            "road_id": road,
            "home": self.tables.roads["region"][road],
        }
        return frame.hstack([values.alias(name) for name, values in known.items()])

    roads_here = _of_roads(partial(Index.of, key=text_key("region", "key"), value="road"))
    roads_without_digits = _of_roads(_index_numbered)  # of roads that have digits
    roads_with_hole = _of_roads(partial(_index_slips, "hole", "key", "road"))
    roads_with_gap = _of_roads(partial(_index_slips, "gap", "key", "road"))
    roads_anywhere = _built(lambda own: Index.of(own.tables.roads, text_key("key"), "road"))
    dongs_here = _built(lambda own: Index.of(own.legal_names, text_key("region", "name"), "dong"))
    dongs_with_hole = _of_dongs(partial(_index_slips, "hole", "name", "dong"))
    dongs_with_gap = _of_dongs(partial(_index_slips, "gap", "name", "dong"))
    dongs_anywhere = _built(lambda own: Index.of(own.legal_names, text_key("name"), "dong"))
    dong_words = _built(lambda own: Index.of(own._all_names, text_key("name"), "dong"))
    aliases_here = _built(lambda own: Index.of(own.tables.admins, text_key("region", "name"), "dong"))
    names_of_dong = _built(lambda own: Index.of(own._all_names, text_key("dong", "name"), "dong"))
    _zip_dongs = _built(lambda own: own._index_postal(partial(_index_zips, "dong"), _ZIP_BITS))
    _zip_roads = _built(lambda own: own._index_postal(partial(_index_zips, "road"), _ZIP_BITS))
    zip_homes = _built(lambda own: own._index_postal(lambda of: _index_zips("region", own._with_region(of)), _ZIP_BITS))
    zip_regions = _built(
        lambda own: own._index_postal(lambda of: Index.of(own._with_region(of), pl.col("zip"), "region"), 0)
    )

    def build_for_many(self) -> None:
        """Build in this thread what most batches need: several of polars' threads would each build it."""
        for index in ("roads_with_hole", "roads_with_gap", "zip_regions", "zip_homes", "_zip_dongs", "_zip_roads"):
            getattr(self, index)

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
    def _all_names(self) -> pl.DataFrame:
        return pl.concat([self.legal_names, self.tables.admins.select("dong", "region", "name")])

    def is_dong_of(self, frame: pl.DataFrame, region: str, name: str) -> pl.Series:
        """Whether the region (column ``region``) has a dong of that name (column ``name``), legal or administrative."""
        as_written, plain = _keys_of_names(frame, region, name)
        here = self.dongs_here
        return here.holds(as_written) | here.holds(plain) | self.aliases_here.holds(as_written)

    def name_of_building(self, frame: pl.DataFrame) -> pl.Series:
        """Return the name of the building at ``place``; all null if no row has a ``building`` to compare it with."""
        if lacks_any(frame, "building"):  # names are read from the file at their first use
            return pl.Series([None], dtype=pl.String).new_from_index(0, frame.height)
        return self.tables.building_name[frame["place"]]

    def _with_region(self, places: pl.DataFrame) -> pl.DataFrame:
        return places.select(pl.col("zip").cast(pl.UInt64), region=self.tables.roads["region"][places["road"]])

    def is_neighbouring(self, frame: pl.DataFrame) -> pl.Series:
        """Whether a building of the ``dong`` or the road (``road_id``) has the postal code ``zip_given`` (UInt32)."""
        keys = frame.select(zip_key(pl.col("zip_given"), pl.col("dong", "road_id")))
        return self._zip_dongs.holds(keys["dong"]) | self._zip_roads.holds(keys["road_id"])

    # ── scopes: the regions that the words of an address allow: one, several, all (no word) or none ───────────────

    @built_once
    def _scope_words(self) -> pl.DataFrame:
        words = pl.col("sigungu").str.split(" ")
        spellings = [pl.col("sigungu"), words.list.first(), words.list.last(), pl.lit("")]
        provinces = [pl.col("sido"), pl.lit("")]
        pairs = [
            self.tables.regions.select("region", province.alias("sido"), spelling.alias("sigungu"))
            for province, spelling in product(provinces, spellings)
        ]
        of_other_times = members().join(
            self.tables.regions, left_on=["member_sido", "member_sigungu"], right_on=["sido", "sigungu"]
        )
        pairs.append(of_other_times.select("region", "sido", "sigungu"))
        return pl.concat(pairs).filter((pl.col("sido") != "") | (pl.col("sigungu") != "")).unique()

    # "" for a missing word; 수원시 and 영통구 mean 수원시 영통구, too
    scope_regions = _built(lambda own: Index.of(own._scope_words, text_key("sido", "sigungu"), "region"))
    _scope_pairs = _built(
        lambda own: Index.of(own._scope_words, text_key(text_key("sido", "sigungu"), "region"), "region")
    )

    def settle_scope(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add ``scope`` (key of province and district), ``region`` (if only one fits), ``covered`` (if any does)."""
        # an unknown district means those of its city, or its parts: districts change more often than files
        words = rows.select(*_SCOPE_WORDS, pl.struct(_SCOPE_WORDS).hash(_SEED).alias(KEY))
        found = self._scopes.look_up(words[KEY], lambda new: self._settle_words(words.filter(new).unique()))
        return rows.hstack(cast("pl.DataFrame", found))  # never None: each combination of words is worth keeping

    def _settle_words(self, distinct: pl.DataFrame) -> pl.DataFrame:
        # a former province, alone, means its own districts only; a contradicting district takes precedence
        alone = pl.when(pl.col("sigungu").is_null()).then("sido_typed")
        conflict = pl.col("region_conflict").fill_null(False)
        sido = pl.when(~conflict).then(pl.coalesce(alone, "sido")).fill_null("")
        sigungu = pl.col("sigungu").fill_null("")
        scope = pl.when((sido != "") | (sigungu != "")).then(text_key(sido, sigungu))
        words = distinct.with_row_index(ROW).select(ROW, KEY, scope=scope)
        words = words.with_columns(covered=self.scope_regions.holds(words["scope"].fill_null(0)))
        found = self.scope_regions.find(words, pl.col("scope"), "region")
        several = found.group_by(ROW).agg(pl.col("region").first(), n=pl.len())
        single = several.filter(pl.col("n") == 1).select(ROW, "region")
        return words.join(single, on=ROW, how="left").select(KEY, "scope", "covered", "region")

    def is_in_scope(self, frame: pl.DataFrame) -> pl.Series:
        """Whether each row's region ``home`` is within its ``scope`` (always without a scope)."""
        held = self._scope_pairs.holds(frame.select(text_key("scope", "home").fill_null(0)).to_series())
        return held | frame["scope"].is_null() if frame["scope"].null_count() else held


def _keys_of_names(frame: pl.DataFrame, within: str, name: str) -> list[pl.Series]:
    # as written, and without the number of an administrative dong
    keys = {"as_written": text_key(within, name), "plain": text_key(within, without_number(pl.col(name)))}
    return frame.select(key.fill_null(0).alias(spelling) for spelling, key in keys.items()).get_columns()


def compact_building(name: pl.Expr) -> pl.Expr:
    """Return a building's name for comparison: without spaces and signs, in lower case."""
    return name.str.replace_all(r"[^가-힣A-Za-z0-9]", "").str.to_lowercase()


def bears_name() -> pl.Expr:
    """Whether the official name ``of_building`` equals the written ``building``; null if none is written."""
    written = compact_building(pl.col("building"))
    same = compact_building(pl.col("of_building")) == written
    return pl.when(written != "").then(same.fill_null(False))


def index_building_names(named: pl.DataFrame) -> Index:
    """Return an index from dong and building name to buildings."""
    return Index.of(named.drop_nulls("name"), text_key("dong", compact_building(pl.col("name"))), "place")


def postal_places(zipcode: pl.Series, dong: pl.Series, building: pl.Series) -> pl.DataFrame:
    """Return the distinct combinations of postal code, dong and road."""
    places = pl.DataFrame({"zip": zipcode, "dong": dong, "road": _road_of(building)})
    return drop_repeats(places).unique()  # neighbours in the gazetteer mostly have the same


def _road_of(building: pl.Series) -> pl.Series:
    if building.null_count() == len(building):
        return pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(building))
    return building.to_frame("key").select((pl.col("key") // 2**_ROAD_BITS).cast(pl.UInt32)).to_series()


FEW: Final = 16  # rows of a process that are looked up in parts of a gazetteer's file, before it is read whole
_MAX_OPENED: Final = 2
_lock: Final = threading.Lock()
_opened: Final[dict[tuple[str, str], _Opened]] = {}


def lookups_of(gazetteer: Gazetteer, rows: int) -> Lookups:
    """Return shared lookups: for a process's first :data:`FEW` rows over parts of the file, then over all of it."""
    key = (str(gazetteer.path), gazetteer.version)
    with _lock:
        while len(_opened) >= _MAX_OPENED and key not in _opened:
            _opened.pop(next(iter(_opened)))
        opened = _opened.setdefault(key, _Opened(gazetteer))
        opened.rows += rows
    return opened.few if opened.rows <= FEW else opened.all


class _Opened:
    def __init__(self, gazetteer: Gazetteer) -> None:
        self._gazetteer = gazetteer
        self.rows = 0

    @built_once
    def few(self) -> Lookups:
        return _FewLookups(StoredTables(self._gazetteer))

    @built_once
    def all(self) -> Lookups:
        return _WholeLookups(self._gazetteer.tables)


class _WholeLookups(Lookups):
    tables: Tables
    buildings = _built(lambda own: Index(own.tables.building_key))
    abolished_buildings = _built(lambda own: Index(own.tables.gone_key, own.tables.gone_building))
    lots = _built(lambda own: Index(own.tables.lots["key"], own.tables.lots["building"]))

    @built_once
    def names_in_dong(self) -> Index:
        named = pl.DataFrame({"dong": self.tables.building_dong, "name": self.tables.building_name})
        return index_building_names(named.with_row_index("place"))

    def _index(self, names: pl.DataFrame, build: Callable[[pl.DataFrame], Index]) -> Index:
        return build(names)

    def _index_postal(self, build: Callable[[pl.DataFrame], Index], zip_at: int) -> Index:
        del zip_at
        return build(self._postal_places)

    @built_once
    def _postal_places(self) -> pl.DataFrame:
        return postal_places(self.tables.building_zip, self.tables.building_dong, self.tables.building_key)


class _FewLookups(Lookups):
    tables: StoredTables
    buildings = _built(lambda own: _FewIndex(partial(_index_section, own.tables.buildings, None)))
    abolished_buildings = _built(lambda own: _FewIndex(partial(_index_section, own.tables.gone, "building")))
    lots = _built(lambda own: _FewIndex(partial(_index_section, own.tables.lots, "building")))

    @built_once
    def names_in_dong(self) -> Index:
        def build(rows: pl.DataFrame | None, *_: pl.Series) -> Index:
            dong = self.tables.buildings.column("dong").to_frame().with_row_index("place")
            if rows is not None:
                dong = dong.filter(pl.col("dong").is_in(rows["dong_id"].implode()))
            return index_building_names(dong.with_columns(name=self.tables.building_name[dong["place"]]))

        return _FewIndex(build)

    def _index(self, names: pl.DataFrame, build: Callable[[pl.DataFrame], Index]) -> Index:
        whole = cache(lambda: build(names))

        def build_part(rows: pl.DataFrame | None, *_: pl.Series) -> Index:
            return whole() if rows is None else build(names.filter(pl.col("region").is_in(rows["region"].implode())))

        return _FewIndex(build_part)

    def _index_postal(self, build: Callable[[pl.DataFrame], Index], zip_at: int) -> Index:
        def build_part(_: pl.DataFrame | None, asked: pl.Series, __: pl.Series) -> Index:
            zips = self.tables.buildings.column("zipcode").alias("zip").to_frame().with_row_index("place")
            zips = zips.filter(pl.col("zip").is_in((asked // 2**zip_at).unique().implode()))
            place = zips["place"]
            dong, key = self.tables.building_dong[place], self.tables.building_key[place]
            return build(postal_places(zips["zip"], dong, key))

        return _FewIndex(build_part)


class _FewIndex(Index):
    def __init__(self, build: Callable[[pl.DataFrame | None, pl.Series, pl.Series], Index]) -> None:
        self._build = build

    def find(self, rows: pl.DataFrame, key: pl.Expr, value: str, keep: Sequence[str] = ()) -> pl.DataFrame:
        asked = _wanted_keys(rows, key)
        return self._index(rows, asked, asked).find(rows, key, value, keep)

    def between(
        self, rows: pl.DataFrame, first: pl.Expr, last: pl.Expr, value: str, keep: Sequence[str] = ()
    ) -> pl.DataFrame:
        known = rows.filter(first.is_not_null() & last.is_not_null())
        return self._index(rows, _wanted_keys(known, first), _wanted_keys(known, last)).between(
            rows, first, last, value, keep
        )

    def holds(self, keys: pl.Series) -> pl.Series:
        asked = keys.filter(keys != 0)  # 0 stands for null
        return self._index(None, asked, asked).holds(keys)

    def holding(self, key: pl.Expr) -> pl.Expr:
        return key.map_batches(self.holds, return_dtype=pl.Boolean, is_elementwise=True)

    def _index(self, rows: pl.DataFrame | None, first: pl.Series, last: pl.Series) -> Index:
        return _NOTHING if first.is_empty() else self._build(rows, first, last)


_NOTHING: Final = Index(pl.Series(dtype=pl.UInt64), pl.Series(dtype=pl.UInt32))


def _wanted_keys(rows: pl.DataFrame, key: pl.Expr) -> pl.Series:
    return rows.select(key.cast(pl.UInt64).alias("key")).to_series().drop_nulls()


def _index_section(
    section: StoredSection, value: str | None, _: pl.DataFrame | None, first: pl.Series, last: pl.Series
) -> Index:
    found = section.between(first, last)
    place = found["place"]
    return Index(found["key"].set_sorted(), place if value is None else section.gather(value, place))
