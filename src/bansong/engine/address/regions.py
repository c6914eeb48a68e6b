"""The facts of ``regions.toml``: the regions of today, their spellings, former names and parts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, Final, NamedTuple

import polars as pl

from bansong.engine.address.batches import TextIndex, TextTable

SUFFIXES: Final = "시군구"
_NAME_SEPARATOR: Final = "|"
_Renames = dict[tuple[str, ...], tuple[str, ...]]


class Region(NamedTuple):
    """A province and a district of it; without a district the whole province."""

    sido: str
    sigungu: str


@dataclass(frozen=True, slots=True)
class Province:
    """A province of today; ``written``: each spelling → (its oddity, the full name meant)."""

    name: str
    postal: frozenset[str]
    written: dict[str, tuple[str | None, str]]
    cities: dict[str, tuple[str, ...]]
    prefixes: dict[str, frozenset[str]]
    left: dict[str, frozenset[str]]
    former: dict[str, tuple[str, ...]]  # provinces that are parts of this one today, with their districts
    level: str  # its name in the scorecard


@dataclass(frozen=True, slots=True)
class Regions:
    """The facts of the file; ``today``: the regions of addresses, a ward with its city in front."""

    provinces: tuple[Province, ...]
    today: tuple[Region, ...]
    renamed: dict[Region, Region]
    parts: dict[Region, dict[str, Region]] = field(default_factory=dict)
    moved: dict[tuple[Region, str], tuple[Region, str]] = field(default_factory=dict)

    def members(self, region: Region) -> tuple[Region, ...]:
        """Return the regions of today that a present or former name may mean, including the name itself."""
        inside = [place for place in self.today if place.sido == region.sido and _is_within(place, region)]
        inside += self.parts.get(region, {}).values()
        if " " in region.sigungu:  # before there were wards, a ward is the city
            inside.append(Region(region.sido, region.sigungu.split(" ")[0]))
        inside += [old for old, parts in self.parts.items() if region in parts.values()]
        return tuple(dict.fromkeys([region, *inside]))


def _is_within(place: Region, region: Region) -> bool:
    return region.sigungu in ("", place.sigungu) or place.sigungu.startswith(region.sigungu + " ")


@cache
def regions() -> Regions:
    text = files("bansong.engine.address").joinpath("regions.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    provinces = tuple(_parse_province(entry) for entry in content["province"])
    today = tuple(
        Region(province.name, f"{city} {ward}" if ward else city)
        for province in provinces
        for city, wards in province.cities.items()
        for ward in wards or ("",)
    )
    names = {full: province.name for province in provinces for _, full in province.written.values()}

    def read(text: str) -> Region:
        sido, _, sigungu = text.partition(" ")
        return Region(names[sido], sigungu)

    renamed = {
        read(line["from"]): read(line["to"]) for line in (*content["renamed"], *content["split"]) if "to" in line
    }
    parts = {
        read(line["from"]): {emd: read(to) for to, emds in line.get("into", {}).items() for emd in emds}
        for line in content["split"]
    }
    moved = {
        (read(source), old): (read(line["to"]), new)
        for line in content["moved"]
        for old, new in line["names"].items()
        for source in (line["from"], line["to"])
    }
    return Regions(provinces, today, renamed, parts, moved)


def _parse_province(entry: dict[str, Any]) -> Province:
    written: dict[str, tuple[str | None, str]] = {entry["name"]: (None, entry["name"])}
    written |= dict.fromkeys(entry["short"], ("abbreviated", entry["name"]))
    for former in entry.get("former", ()):
        written[former["name"]] = ("renamed", former["name"])
        written |= dict.fromkeys(former.get("short", ()), ("abbreviated", former["name"]))
    districts: dict[str, Any] = {
        name: given if isinstance(given, dict) else {"postal": given} for name, given in entry["districts"].items()
    }
    return Province(
        entry["name"],
        _parse_ranges(entry["postal"]),
        written,
        {name: tuple(given.get("wards", ())) for name, given in districts.items()},
        {name: _parse_ranges(given["postal"]) for name, given in districts.items()},
        {name: _parse_ranges(given.get("left", "")) for name, given in districts.items()},
        {one["name"]: tuple(one["districts"]) for one in entry.get("former", ()) if "districts" in one},
        entry["level"],
    )


def _parse_ranges(ranges: str) -> frozenset[str]:
    # 044-046, 049 → 044, 045, 046, 049
    found: set[str] = set()
    for item in filter(None, ranges.split(", ")):
        first, _, last = item.partition("-")
        found |= {str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)}
    return frozenset(found)


class Spelling(NamedTuple):
    """A spelling of a district; ``bare``: without the suffix (시, 군, 구) of its last word."""

    text: str
    bare: bool


def stem(name: str) -> str | None:
    """Return ``수원`` of ``수원시``; ``None`` for ``중구``: a single syllable is too little."""
    return name[:-1] if name[-1:] in SUFFIXES and len(name) > 2 else None


def spellings(sigungu: str) -> Iterator[Spelling]:
    city, _, ward = sigungu.partition(" ")
    if not ward:
        yield Spelling(city, False)
        if short := stem(city):
            yield Spelling(short, True)
        if city == "부산진구":
            yield Spelling("진구", False)
        return
    firsts = [city, *filter(None, [stem(city)])]
    seconds = [(ward, False), *((short, True) for short in [stem(ward)] if short)]
    for first, (second, bare) in product(firsts, seconds):
        yield Spelling(f"{first} {second}", bare)
        if not bare:
            yield Spelling(first + second, bare)


def level_of(sido: pl.Expr) -> pl.Expr:
    """Return the level (String) of the feature ``region`` for the full name of a province of today."""
    return level_named(level_number(sido))


def level_number(sido: pl.Expr) -> pl.Expr:
    """Return a province's number (UInt8): smaller than its level's name."""
    return _levels()[0].find(sido).cast(pl.UInt8)


def level_named(number: pl.Expr) -> pl.Expr:
    return pl.lit(_levels()[1]).gather(number.cast(pl.UInt32))


@cache
def _levels() -> tuple[TextIndex, pl.Series]:
    levels = {province.name: province.level for province in regions().provinces}
    return TextIndex(levels), pl.Series(list(levels.values()), dtype=pl.String)


def present_day(sido: pl.Expr, sigungu: pl.Expr, emd: pl.Expr) -> pl.Expr:
    """Return today's names for names of an official file of any date: Struct(sido, sigungu, emd), all String."""
    # a split district keeps its name unless `emd` (읍면동) decides; unknown names stay
    provinces, districts, towns = _renames()
    district = pl.concat_str(sido, sigungu.fill_null(""), separator=_NAME_SEPARATOR)
    town = pl.concat_str(district, emd, separator=_NAME_SEPARATOR)
    by_town = {name: towns.look_up(town, name) for name in ("sido", "sigungu", "emd")}
    by_district = {name: districts.look_up(district, name) for name in ("sido", "sigungu")}
    return pl.struct(
        sido=pl.coalesce(by_town["sido"], by_district["sido"], provinces.look_up(sido, "sido"), sido),
        sigungu=pl.coalesce(by_town["sigungu"], by_district["sigungu"], sigungu),
        emd=pl.coalesce(by_town["emd"], emd),
    )


@cache
def _renames() -> tuple[TextTable, TextTable, TextTable]:
    table = regions()
    names = {full: province.name for province in table.provinces for _, full in province.written.values()}
    provinces: _Renames = {(written,): (today,) for written, today in names.items()}
    districts: _Renames = {}
    towns: _Renames = {}
    for written, today in names.items():
        districts |= {(written, old.sigungu): new for old, new in table.renamed.items() if old.sido == today}
        of_parts = {(old, emd): (new, emd) for old, parts in table.parts.items() for emd, new in parts.items()}
        for (old, emd), (new, renamed) in (of_parts | table.moved).items():
            if old.sido == today:
                towns[written, old.sigungu, emd] = (*new, renamed)
    return (
        _index_renames(provinces, "sido"),
        _index_renames(districts, "sido", "sigungu"),
        _index_renames(towns, "sido", "sigungu", "emd"),
    )


def _index_renames(renames: _Renames, *names: str) -> TextTable:
    columns = {name: pl.Series(values) for name, values in zip(names, zip(*renames.values(), strict=True), strict=True)}
    return TextTable(map(_NAME_SEPARATOR.join, renames), **columns)


def members() -> pl.DataFrame:
    """Return the regions that a typed region may mean: ``sido``, ``sigungu`` → ``member_sido``, ``member_sigungu``."""
    # 수원시 means its wards, a ward also its city (in an older gazetteer), a former province only its own districts
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
