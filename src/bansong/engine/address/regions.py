"""The facts of ``regions.toml``, and heads: texts of a region with which addresses begin, also misspelt."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any, Final, NamedTuple

import polars as pl

from bansong.engine.address.batches import HOLE, TextIndex, TextTable, variants

SUFFIXES: Final = "시군구"
_NAME_SEPARATOR: Final = "|"
_Renames = dict[tuple[str, ...], tuple[str, ...]]


class Region(NamedTuple):
    """A province and one of its districts; an empty district means the whole province."""

    sido: str
    sigungu: str


@dataclass(frozen=True, slots=True)
class Province:
    """A province of today.

    ``written``: each spelling → (``abbreviated``, ``renamed`` or ``None``; the full present or former name).
    """

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
    """The facts of ``regions.toml``; ``today``: all present regions, a ward after its city (수원시 영통구)."""

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
    """Load the provinces and districts of ``regions.toml``, once a process."""
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
    """Return a district's name without suffix (수원시 → 수원); ``None`` if one syllable would be left (중구)."""
    return name[:-1] if name[-1:] in SUFFIXES and len(name) > 2 else None


def spellings(sigungu: str) -> Iterator[Spelling]:
    """Yield the ways in which people write a district."""
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
    """Return a province's number (UInt8), from which :func:`level_named` gets its level."""
    return _levels()[0].find(sido).cast(pl.UInt8)


def level_named(number: pl.Expr) -> pl.Expr:
    """Return the region level (String) for the number of a level."""
    return pl.lit(_levels()[1]).gather(number.cast(pl.UInt32))


@cache
def _levels() -> tuple[TextIndex, pl.Series]:
    levels = {province.name: province.level for province in regions().provinces}
    return TextIndex(levels), pl.Series(list(levels.values()), dtype=pl.String)


def present_day(sido: pl.Expr, sigungu: pl.Expr, emd: pl.Expr) -> pl.Expr:
    """Map names of an official file of any date to today's names: Struct(sido, sigungu, emd), all String."""
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


_SEJONG: Final = "세종특별자치시"
_BEFORE: Final = ("충청남도", "충청북도")
_MIN_TYPO_CHARS: Final = 3  # too little is left of 중구 with a wrong jamo


class Head(NamedTuple):
    """The region at the beginning of an address; ``sido`` is ``None`` if several provinces have the district."""

    sido: str | None
    sigungu: str | None
    given: bool
    change: str | None
    sido_typed: str | None
    bare: bool = False
    narrow: bool = False


class Heads(TextIndex):
    """An index of the region names that an address can begin with, such as 서울특별시 강남구 or 서울 강남.

    ``meanings`` maps each name to its region. Names without the ending 시, 군 or 구 (``bare``, as 서울 강남) start at
    position ``first_bare``, those without the ending 구 (``narrow``) at ``first_narrow``.
    """

    def __init__(self, meanings: dict[str, Head]) -> None:
        super().__init__(meanings)
        self.meanings = meanings
        self.first_bare = sum(not head.bare for head in meanings.values())
        self.first_narrow = sum(not head.narrow for head in meanings.values())


@cache
def heads() -> Heads:
    """Return all heads: a province, a district, or both, with the spaces that are usual."""
    found: dict[str, Head] = {}
    for province in regions().provinces:
        _add_province(found, province)
    for text, head in (*_heads_within_former_province().items(), *_district_heads().items()):
        found.setdefault(text, head)
    for text in ("광주", "광주시"):  # 광주광역시 or 경기도 광주시
        found[text] = Head(None, None, False, None, None, bare=True)
    return Heads(dict(sorted(found.items(), key=lambda item: (item[1].narrow, item[1].bare))))


def _add_province(found: dict[str, Head], province: Province) -> None:
    now = regions().renamed
    names = [
        place
        for place in (*regions().today, *_former_regions())
        if place.sigungu and province.name in (place.sido, now.get(place, place).sido)
    ]
    for text, (change, typed) in province.written.items():
        bare = change == "abbreviated" and text[-1] not in "시도"
        found.setdefault(text, Head(province.name, None, True, change, typed, bare=bare))
        for again in province.written:
            found.setdefault(f"{text} {again}", Head(province.name, None, True, change, typed))
    whole = dict.fromkeys([*names, *(Region(province.name, city) for city in province.cities if city)])
    for place in whole:
        for text, head in _heads_within_province(province, place).items():
            found.setdefault(text, head)


def _heads_within_former_province() -> dict[str, Head]:
    # 충남 세종시
    written = {province.name: province.written for province in regions().provinces}
    return {
        f"{text} {city}": Head(_SEJONG, None, True, "renamed", _SEJONG, bare=not city.endswith("시"))
        for before in _BEFORE
        for text in written[before]
        for city in written[_SEJONG]
    }


def _heads_within_province(province: Province, place: Region) -> dict[str, Head]:
    today = regions().renamed.get(place, place)
    moved = None if today == place else "renamed"
    ways = [(way.text, way.bare) for way in spellings(place.sigungu) if not (moved and way.bare)]
    if ward := place.sigungu.partition(" ")[2]:
        ways.append((ward, False))
    found: dict[str, Head] = {}
    for sido_text, (change, typed) in province.written.items():
        for text, bare in ways:
            short = "abbreviated" if bare else None
            kind = moved or change or short
            narrow = bare and place.sigungu.endswith("구")
            found[f"{sido_text} {text}"] = Head(today.sido, today.sigungu, True, kind, typed, bare, narrow)
    return found


def _former_regions() -> list[Region]:
    return [*regions().renamed, *regions().parts]


@cache
def _district_heads() -> dict[str, Head]:
    full: dict[str, set[Region]] = defaultdict(set)
    short: dict[str, set[Region]] = defaultdict(set)
    old = set(_former_regions())
    cities = [Region(province.name, city) for province in regions().provinces for city in province.cities if city]
    for place in dict.fromkeys([*regions().today, *_former_regions(), *cities]):
        if not place.sigungu:
            continue
        for way in spellings(place.sigungu):
            (short if way.bare else full)[way.text].add(place)
        if ward := place.sigungu.partition(" ")[2]:
            full[ward].add(place)
    full.pop("진구", None)
    found = {text: _resolve_district(text, places) for text, places in full.items()}
    for text, places in short.items():
        living = places - old
        name, *others = {place.sigungu for place in living} or {""}
        if living and not others and not (name.endswith("구") and " " in name):
            head = _resolve_district(name, living)
            narrow = bool(head.sigungu and head.sigungu.endswith("구"))
            found.setdefault(text, head._replace(bare=True, narrow=narrow, change="abbreviated"))
    return found


def _resolve_district(text: str, places: set[Region]) -> Head:
    living = {regions().renamed.get(place, place) for place in places}
    if len(living) > 1:
        return Head(None, text, False, None, None)
    place = living.pop()
    change = None if place in places else "renamed"
    return Head(place.sido, place.sigungu, False, change, None)


@cache
def districts_alone() -> Heads:
    """Return the districts that are written without their province."""
    return Heads({text: head for text, head in _district_heads().items() if not head.bare})


@dataclass(frozen=True)
class Following:
    """Finds heads by a province, or a city with wards, and the words after it, without concatenating them."""

    first: dict[str, int]
    words: TextIndex
    width: int
    places: pl.Series

    def find(self, first: pl.Expr, words: pl.Expr) -> pl.Expr:
        return pl.lit(self.places).gather(first * self.width + self.words.find(words))


@cache
def following() -> Following:
    """Return the heads that begin with a province of today or with a city of wards, suffix included."""
    today = regions().today
    cities = {f"{place.sido} {place.sigungu.split(' ')[0]}" for place in today if " " in place.sigungu}
    first = {name: number for number, name in enumerate(sorted({place.sido for place in today} | cities))}
    found: dict[tuple[str, str], int] = {}
    for place, (text, head) in enumerate(heads().meanings.items()):
        parts = text.split(" ")
        for cut in (1, 2):
            begin, end = " ".join(parts[:cut]), " ".join(parts[cut:])
            if begin in first and end and head.sigungu is not None and not head.bare:
                found[begin, end] = place
    words = {word: number for number, word in enumerate(dict.fromkeys(end for _, end in found))}
    table: list[int | None] = [None] * (len(first) * len(words))
    for (begin, end), place in found.items():
        table[first[begin] * len(words) + words[end]] = place
    return Following(first, TextIndex(words), len(words), pl.Series(table, dtype=pl.UInt32))


@cache
def unspaced_heads() -> Heads:
    """Return the spellings of regions without spaces between their words."""
    found: dict[str, Head] = {}
    for text, head in heads().meanings.items():
        if not head.bare and head.sigungu is not None:
            found.setdefault(text.replace(" ", ""), head)
    return Heads(found)


def district_words() -> tuple[str, ...]:
    """Return the districts' names for a regular expression, the longest first, with optional spaces."""
    names = {
        way.text
        for place in (*regions().today, *_former_regions())
        for way in spellings(place.sigungu or "-")
        if not way.bare
    }
    names |= {place.sigungu.partition(" ")[2] for place in regions().today}
    names |= {city for province in regions().provinces for city in province.cities}
    return tuple(name.replace(" ", " ?") for name in sorted(names - {"", "-"}, key=len, reverse=True))


def province_words() -> tuple[str, ...]:
    """Return all spellings of provinces, the longest first."""
    names = {text for province in regions().provinces for text in province.written}
    return tuple(sorted(names, key=len, reverse=True))


@cache
def provinces_by_name() -> Heads:
    """Return the heads that stand for mistyped provinces, by the full name that was meant."""
    return Heads({text: Head(province, None, True, "typo", text) for text, province in _full_names().items()})


@cache
def _province_typos() -> TextTable:
    # one jamo wrong, one syllable missing, twice or (of the first two) unreadable; the first two syllables alone are
    # for names with a later syllable unreadable: only those that `_unreadable` passes are looked up by them
    misspelt = []
    for text in _full_names():
        holes = (_hole(text, 0), _hole(text, 1)) if len(text) > _MIN_TYPO_CHARS else ()
        misspelt += [(variant, text) for variant in (*variants(text), *holes)]
    return _make_typo_table(_keep_unique(misspelt) | {text[:2]: text for text in _names_unique_by_two()})


@cache
def _district_typos() -> TextTable:
    table = regions()
    places = (*table.today, *table.renamed, *table.parts)
    names = {word for place in places for word in place.sigungu.split(" ") if len(word) >= _MIN_TYPO_CHARS}
    names |= {city for province in table.provinces for city in province.cities if city}
    return _make_typo_table(_keep_unique((variant, name) for name in sorted(names) for variant in variants(name)))


def _make_typo_table(names: Mapping[str, str]) -> TextTable:
    return TextTable(names, name=pl.Series(list(names.values())))


def _keep_unique(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    # unambiguous ones that are no names themselves
    one: dict[str, str] = {}
    several: set[str] = set()
    for variant, name in found:
        if one.setdefault(variant, name) != name:
            several.add(variant)
    for text in several.union(heads().meanings):
        one.pop(text, None)
    return one


@cache
def _full_names() -> dict[str, str]:
    return {
        text: province.name
        for province in regions().provinces
        for text, (change, _) in province.written.items()
        if change != "abbreviated"
    }


def _names_unique_by_two() -> list[str]:
    # 서울특별시, but not 경상북도 and 경상남도
    long = [text for text in _full_names() if len(text) > _MIN_TYPO_CHARS + 1]
    starts = Counter(text[:2] for text in long)
    return [text for text in long if starts[text[:2]] == 1]


@cache
def _unreadable() -> str:
    holes = [
        _hole(text, place).replace(HOLE, "[가-힣]")
        for text in _names_unique_by_two()
        for place in range(2, len(text) - 1)
    ]
    return f"^(?:{'|'.join(holes)})$"


def _hole(name: str, place: int) -> str:
    return name[:place] + HOLE + name[place + 1 :]


def mistyped_province(word: pl.Expr) -> pl.Expr:
    """Return the position in :func:`provinces_by_name` (UInt32) of the province that a word misspells, else null."""
    two = pl.when(word.str.contains(_unreadable())).then(word).str.head(2)
    first = pl.lit(HOLE) + word.str.slice(1)
    second = word.str.head(1) + pl.lit(HOLE) + word.str.slice(2)
    names = pl.coalesce(*(_look_up_typos(text, _province_typos) for text in (word, two, first, second)))
    return provinces_by_name().find(names)


def fixed_district(word: pl.Expr) -> pl.Expr:
    """Return the district (String) that a word misspells by one error; null if there is none, or several."""
    return _look_up_typos(pl.when(word.str.contains("^[가-힣]{2,6}[시군구]$")).then(word), _district_typos)


def _look_up_typos(text: pl.Expr, table: Callable[[], TextTable]) -> pl.Expr:
    return text.map_batches(partial(_look_up_batch, table), return_dtype=pl.String, is_elementwise=True)


def _look_up_batch(table: Callable[[], TextTable], texts: pl.Series) -> pl.Series:
    # the table takes a while to make, and most batches have nothing to look up
    if texts.null_count() == len(texts):
        return texts
    return texts.to_frame().select(table().look_up(pl.col(texts.name), "name").alias(texts.name)).to_series()
