"""The names of regions, read from ``regions.toml``: what there is today, how it is written, what it was called."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any, Final, NamedTuple

SUFFIXES: Final = "시군구"


class Region(NamedTuple):
    """A province and a district of it; an empty district is the province as a whole, or one without districts."""

    sido: str
    sigungu: str


@dataclass(frozen=True, slots=True)
class Province:
    """A province of today: ``written`` maps each way to write it to (what is odd about it, the full name meant)."""

    name: str
    postal: frozenset[str]
    written: dict[str, tuple[str | None, str]]
    cities: dict[str, tuple[str, ...]]
    prefixes: dict[str, frozenset[str]]
    left: dict[str, frozenset[str]]
    former: dict[str, tuple[str, ...]]
    """Provinces that are parts of this one today, with their districts."""
    level: str
    """What the scorecard calls it."""


@dataclass(frozen=True, slots=True)
class Regions:
    """All that the file says; ``today`` are the regions of addresses, a ward with its city in front."""

    provinces: tuple[Province, ...]
    today: tuple[Region, ...]
    renamed: dict[Region, Region]
    parts: dict[Region, dict[str, Region]] = field(default_factory=dict)
    moved: dict[tuple[Region, str], tuple[Region, str]] = field(default_factory=dict)

    def members(self, region: Region) -> tuple[Region, ...]:
        """Return the regions of today that a name of today or of before may mean, the name itself among them."""
        inside = [place for place in self.today if place.sido == region.sido and _within(place, region)]
        inside += self.parts.get(region, {}).values()
        if " " in region.sigungu:  # a ward, in a file from before there were wards, is the city
            inside.append(Region(region.sido, region.sigungu.split(" ")[0]))
        inside += [old for old, parts in self.parts.items() if region in parts.values()]
        return tuple(dict.fromkeys([region, *inside]))


def _within(place: Region, region: Region) -> bool:
    return region.sigungu in ("", place.sigungu) or place.sigungu.startswith(region.sigungu + " ")


@cache
def regions() -> Regions:
    """Read ``regions.toml`` (once a process)."""
    text = files("bizverify.engine.address.regions").joinpath("regions.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    provinces = tuple(_province(entry) for entry in content["province"])
    today = tuple(
        Region(province.name, f"{city} {ward}" if ward else city)
        for province in provinces
        for city, wards in province.cities.items()
        for ward in wards or ("",)
    )
    names = {full: province.name for province in provinces for _, full in province.written.values()}
    renamed = {_region(line["from"], names): _region(line["to"], names) for line in content["renamed"]}
    renamed |= {_region(line["from"], names): _region(line["to"], names) for line in content["split"] if "to" in line}
    parts = {
        _region(line["from"], names): {
            emd: _region(to, names) for to, emds in line.get("into", {}).items() for emd in emds
        }
        for line in content["split"]
    }
    moved = {
        (source, old): (_region(line["to"], names), new)
        for line in content["moved"]
        for old, new in line["names"].items()
        for source in (_region(line["from"], names), _region(line["to"], names))
    }
    return Regions(provinces, today, renamed, parts, moved)


def _region(text: str, names: dict[str, str]) -> Region:
    sido, _, sigungu = text.partition(" ")
    return Region(names[sido], sigungu)


def _province(entry: dict[str, Any]) -> Province:
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
        _digits(entry["postal"]),
        written,
        {name: tuple(given.get("wards", ())) for name, given in districts.items()},
        {name: _digits(given["postal"]) for name, given in districts.items()},
        {name: _digits(given.get("left", "")) for name, given in districts.items()},
        {one["name"]: tuple(one["districts"]) for one in entry.get("former", ()) if "districts" in one},
        entry["level"],
    )


def _digits(ranges: str) -> frozenset[str]:
    """``044-046, 049`` → 044, 045, 046, 049."""
    found: set[str] = set()
    for item in filter(None, ranges.split(", ")):
        first, _, last = item.partition("-")
        found |= {str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)}
    return frozenset(found)


class Spelling(NamedTuple):
    """A way to write a district; ``bare`` when the suffix (시, 군, 구) of its last word is left out."""

    text: str
    bare: bool


def stem(name: str) -> str | None:
    """Return ``수원`` of ``수원시``; nothing of ``중구``: a single syllable is too little to go by."""
    return name[:-1] if name[-1:] in SUFFIXES and len(name) > 2 else None


def spellings(sigungu: str) -> Iterator[Spelling]:
    """Return the ways to write a district, as words with one space between them."""
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
