"""Lookups of a gazetteer: opened whole, or for the few rows of a single lookup only as far as needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import polars as pl

from bansong.engine.address.batches import Index, built_once
from bansong.engine.address.gazetteer import Gazetteer, Tables
from bansong.engine.address.match.gazetteer_lookups import Lookups, index_building_names, postal_places
from bansong.engine.address.stored_section import StoredSection, StoredTables

FEW: Final = 16
"""Rows of a process that are looked up in parts of a gazetteer's file, before it is read whole."""

_MAX_OPENED: Final = 2
_lock: Final = threading.Lock()
_opened: Final[dict[tuple[str, str], _Opened]] = {}


def lookups_of(gazetteer: Gazetteer, rows: int) -> Lookups:
    """Return lookups for a number of rows, the same for all threads; those of the last two gazetteers are kept."""
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
    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._whole = tables

    @built_once
    def buildings(self) -> Index:
        return Index(self._whole.building_key)

    @built_once
    def abolished_buildings(self) -> Index:
        return Index(self._whole.gone_key, self._whole.gone_building)

    @built_once
    def lots(self) -> Index:
        return Index(self._whole.lot_key, self._whole.lot_building)

    @built_once
    def names_in_dong(self) -> Index:
        named = pl.DataFrame({"dong": self._whole.building_dong, "name": self._whole.building_name})
        return index_building_names(named.with_row_index("place"))

    def _index(self, names: pl.DataFrame, build: Callable[[pl.DataFrame], Index]) -> Index:
        return build(names)

    def _index_postal(self, build: Callable[[pl.DataFrame], Index], zip_at: int) -> Index:
        del zip_at
        return build(self._postal_places)

    @built_once
    def _postal_places(self) -> pl.DataFrame:
        return postal_places(self._whole.building_zip, self._whole.building_dong, self._whole.building_key)


class _FewLookups(Lookups):
    def __init__(self, tables: StoredTables) -> None:
        super().__init__(tables)
        self._stored = tables

    @built_once
    def buildings(self) -> Index:
        return _FewIndex(lambda _, first, last: _of_section(self._stored.buildings, first, last))

    @built_once
    def abolished_buildings(self) -> Index:
        return _FewIndex(lambda _, first, last: _of_section(self._stored.gone, first, last, "building"))

    @built_once
    def lots(self) -> Index:
        return _FewIndex(lambda _, first, last: _of_section(self._stored.lots, first, last, "building"))

    @built_once
    def names_in_dong(self) -> Index:
        def build(rows: pl.DataFrame | None, *_: pl.Series) -> Index:
            dong = self._stored.buildings.column("dong").to_frame().with_row_index("place")
            if rows is not None:
                dong = dong.filter(pl.col("dong").is_in(rows["dong_id"].implode()))
            return index_building_names(dong.with_columns(name=self.tables.building_name[dong["place"]]))

        return _FewIndex(build)

    def _index(self, names: pl.DataFrame, build: Callable[[pl.DataFrame], Index]) -> Index:
        whole: list[Index] = []

        def build_part(rows: pl.DataFrame | None, *_: pl.Series) -> Index:
            if rows is not None:
                return build(names.filter(pl.col("region").is_in(rows["region"].implode())))
            if not whole:
                whole.append(build(names))
            return whole[0]

        return _FewIndex(build_part)

    def _index_postal(self, build: Callable[[pl.DataFrame], Index], zip_at: int) -> Index:
        def build_part(_: pl.DataFrame | None, asked: pl.Series, __: pl.Series) -> Index:
            zips = self._stored.buildings.column("zipcode").alias("zip").to_frame().with_row_index("place")
            zips = zips.filter(pl.col("zip").is_in((asked // 2**zip_at).unique().implode()))
            place = zips["place"]
            dong, key = self._stored.building_dong[place], self._stored.building_key[place]
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
        return self._index(None, keys, keys).holds(keys)

    def _index(self, rows: pl.DataFrame | None, first: pl.Series, last: pl.Series) -> Index:
        return _NOTHING if first.is_empty() else self._build(rows, first, last)


_NOTHING: Final = Index(pl.Series(dtype=pl.UInt64), pl.Series(dtype=pl.UInt32))


def _wanted_keys(rows: pl.DataFrame, key: pl.Expr) -> pl.Series:
    return rows.select(key.cast(pl.UInt64).alias("key")).to_series().drop_nulls()


def _of_section(section: StoredSection, first: pl.Series, last: pl.Series, value: str | None = None) -> Index:
    found = section.between(first, last)
    place = found["place"]
    return Index(found["key"].set_sorted(), place if value is None else section.gather(value, place))
