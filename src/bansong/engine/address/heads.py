"""Texts by which an address may begin with a region, each with its meaning; also misspelt names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, NamedTuple

import polars as pl

from bansong.engine.address.batches import HOLE, TextIndex, TextTable, variants
from bansong.engine.address.regions import Province, Region, regions, spellings

_SEJONG: Final = "세종특별자치시"
_BEFORE: Final = ("충청남도", "충청북도")
_MIN_TYPO_CHARS: Final = 3  # too little is left of 중구 with a wrong jamo


class Head(NamedTuple):
    """Meaning of a head; ``sido`` is null if several provinces have the district."""

    sido: str | None
    sigungu: str | None
    given: bool
    change: str | None
    sido_typed: str | None
    bare: bool = False
    narrow: bool = False


class Heads(TextIndex):
    """Head texts, one space between words, with their meanings; those without a suffix come last."""

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
    return Heads({text: head for text, head in _district_heads().items() if not head.bare})


@dataclass(frozen=True)
class Following:
    """Heads by a province or a city (of wards) and the words after it, without concatenating texts."""

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
    found: dict[str, Head] = {}
    for text, head in heads().meanings.items():
        if not head.bare and head.sigungu is not None:
            found.setdefault(text.replace(" ", ""), head)
    return Heads(found)


def district_words() -> tuple[str, ...]:
    """Return the districts' names as words for a pattern, the longest first, spaces in them optional."""
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
    names = {text for province in regions().provinces for text in province.written}
    return tuple(sorted(names, key=len, reverse=True))


@cache
def provinces_by_name() -> Heads:
    """Return the meanings of mistyped provinces, by the full name that was meant."""
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
    """Return the place in :func:`provinces_by_name` (UInt32) of a word with one error; null for most words."""
    two = pl.when(word.str.contains(_unreadable())).then(word).str.head(2)
    first = pl.lit(HOLE) + word.str.slice(1)
    second = word.str.head(1) + pl.lit(HOLE) + word.str.slice(2)
    names = pl.coalesce(*(_look_up_typos(text, _province_typos) for text in (word, two, first, second)))
    return provinces_by_name().find(names)


def fixed_district(word: pl.Expr) -> pl.Expr:
    """Return the district (String) that a word with one error must mean; null for most words."""
    return _look_up_typos(pl.when(word.str.contains("^[가-힣]{2,6}[시군구]$")).then(word), _district_typos)


def _look_up_typos(text: pl.Expr, table: Callable[[], TextTable]) -> pl.Expr:
    return text.map_batches(partial(_look_up_batch, table), return_dtype=pl.String, is_elementwise=True)


def _look_up_batch(table: Callable[[], TextTable], texts: pl.Series) -> pl.Series:
    # the table takes a while to make, and most batches have nothing to look up
    if texts.null_count() == len(texts):
        return texts
    return texts.to_frame().select(table().look_up(pl.col(texts.name), "name").alias(texts.name)).to_series()
