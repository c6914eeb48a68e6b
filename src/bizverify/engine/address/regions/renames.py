"""The names that regions bear today, for names of any date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import polars as pl

from bizverify.engine.address.regions.heads import enum
from bizverify.engine.address.regions.names import Region, regions

_BETWEEN: Final = "|"


@dataclass(frozen=True)
class _Renames:
    """Old names as a dtype, and what each is today: one line a category."""

    keys: pl.DataTypeExpr
    today: dict[str, pl.Series]

    def of(self, key: pl.Expr, name: str) -> pl.Expr:
        return pl.lit(self.today[name]).gather(key.cast(self.keys, strict=False).to_physical().cast(pl.UInt32))


def present_day(sido: pl.Expr, sigungu: pl.Expr, emd: pl.Expr) -> pl.Expr:
    """Return the names of today for names of an official file of any date: Struct(sido, sigungu, emd), all String.

    A name is changed only where one name of today takes its place: 강원도 → 강원특별자치도, 경상북도 군위군 →
    대구광역시 군위군. A district that was split keeps its name unless ``emd`` (읍면동) decides: 인천광역시 중구 운서동
    is in 영종구. Nulls stay; an unknown name stays as it is.
    """
    provinces, districts, towns = _renames()
    district = pl.concat_str(sido, sigungu.fill_null(""), separator=_BETWEEN)
    town = pl.concat_str(district, emd, separator=_BETWEEN)
    names = {"sido": sido, "sigungu": sigungu, "emd": emd}
    found = {"sido": [towns, districts, provinces], "sigungu": [towns, districts], "emd": [towns]}
    keys = {id(provinces): sido, id(districts): district, id(towns): town}
    return pl.struct(
        pl.coalesce(*(table.of(keys[id(table)], name) for table in found[name]), given).alias(name)
        for name, given in names.items()
    )


@cache
def _renames() -> tuple[_Renames, _Renames, _Renames]:
    """Return what has another name today: provinces, districts, towns (읍면동)."""
    table = regions()
    names = {full: province.name for province in table.provinces for _, full in province.written.values()}
    districts: dict[str, tuple[str, ...]] = {}
    towns: dict[str, tuple[str, ...]] = {}
    for written, today in names.items():
        for old, new in table.renamed.items():
            if old.sido == today:
                districts[_key(written, old.sigungu)] = new
        for old, parts in table.parts.items():
            if old.sido == today:
                towns |= {_key(written, old.sigungu, emd): (*new, emd) for emd, new in parts.items()}
        for (old, emd), (new, renamed) in table.moved.items():
            if old.sido == today:
                towns[_key(written, old.sigungu, emd)] = (*new, renamed)
    provinces = {written: (today,) for written, today in names.items()}
    return _table(provinces, "sido"), _table(districts, "sido", "sigungu"), _table(towns, "sido", "sigungu", "emd")


def _key(*names: str) -> str:
    return _BETWEEN.join(names)


def _table(renames: Mapping[str, tuple[str, ...]], *names: str) -> _Renames:
    lines = list(renames.values())
    columns = {name: pl.Series([line[place] for line in lines], dtype=pl.String) for place, name in enumerate(names)}
    return _Renames(enum(renames), columns)


def districts() -> pl.DataFrame:
    """Return the regions of today: ``sido``, ``sigungu`` (a ward with its city; "" where there is none)."""
    return pl.DataFrame(regions().today, schema=["sido", "sigungu"], orient="row")


def members() -> pl.DataFrame:
    """Return which regions a typed region may mean: ``sido``, ``sigungu`` → ``member_sido``, ``member_sigungu``.

    Names of today and of before: 수원시 means its four wards, 인천광역시 중구 today's 제물포구 or 영종구, and a ward
    may be its city in a gazetteer from before there were wards. ``sido`` may be a province of before, with
    ``sigungu`` "": 강원도 means the districts of today, 전라남도 its own and not those of 광주광역시. Each name is a
    member of itself.
    """
    table = regions()
    cities = [Region(place.sido, place.sigungu.split(" ")[0]) for place in table.today]
    whole = [Region(province.name, "") for province in table.provinces]
    names = dict.fromkeys([*table.today, *cities, *table.parts, *whole])
    rows = [(*name, *member) for name in names for member in table.members(name)]
    for province in table.provinces:
        today = tuple(place.sigungu for place in table.today if place.sido == province.name)
        for former in {full for _, full in province.written.values()} - {province.name}:
            rows += [(former, "", province.name, district) for district in province.former.get(former, today)]
    return pl.DataFrame(rows, schema=["sido", "sigungu", "member_sido", "member_sigungu"], orient="row")
