"""Every way in which an address may begin with a region, as one table from the words to what they mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import polars as pl

from bizverify.engine.address.regions.names import Province, Region, regions, spellings

_SEJONG: Final = "세종특별자치시"
_BEFORE: Final = ("충청남도", "충청북도")


class Head(NamedTuple):
    """What a head means. ``sido`` may be null (several provinces have such a district), as may ``sigungu``."""

    sido: str | None
    sigungu: str | None
    given: bool
    change: str | None
    sido_typed: str | None
    bare: bool = False
    narrow: bool = False


def enum(texts: Iterable[str]) -> pl.DataTypeExpr:
    """Return a dtype of texts, prepared for many casts: preparing one takes milliseconds."""
    return pl.Enum(list(texts)).to_dtype_expr()


class Heads:
    """Head texts, one space between words, with their meanings; those that end without a suffix come last.

    ``dtype``: the texts as a dtype, since a cast to it is the fastest lookup there is, and it streams. ``first_bare``:
    the place of the first head without a suffix. ``first_narrow``: that of the first that is the stem of a 구, which
    roads are named after too (서초중앙로).
    """

    def __init__(self, meanings: dict[str, Head]) -> None:
        self.meanings = meanings
        self.dtype = enum(meanings)
        self.first_bare = sum(not head.bare for head in meanings.values())
        self.first_narrow = sum(not head.narrow for head in meanings.values())

    def find(self, text: pl.Expr) -> pl.Expr:
        """Return the place of a head (UInt32), null for a text that is none."""
        return text.cast(self.dtype, strict=False).to_physical().cast(pl.UInt32)


@cache
def heads() -> Heads:
    """Return all heads: a province, a district, or both, with the spaces that are usual."""
    found: dict[str, Head] = {}
    for province in regions().provinces:
        _add_province(found, province)
    for text, head in _within_former_province().items():
        found.setdefault(text, head)
    for text, head in _districts_alone().items():
        found.setdefault(text, head)
    for text in ("광주", "광주시"):  # 광주광역시 or 경기도 광주시: by itself it does not say which
        found[text] = Head(None, None, False, None, None, bare=True)
    return Heads(dict(sorted(found.items(), key=lambda item: (item[1].narrow, item[1].bare))))


def _add_province(found: dict[str, Head], province: Province) -> None:
    now = regions().renamed
    names = [
        place
        for place in (*regions().today, *_former())
        if place.sigungu and province.name in (place.sido, now.get(place, place).sido)
    ]
    for text, (change, typed) in province.written.items():
        bare = change == "abbreviated" and text[-1] not in "시도"
        found.setdefault(text, Head(province.name, None, True, change, typed, bare=bare))
        for again in province.written:
            found.setdefault(f"{text} {again}", Head(province.name, None, True, change, typed))
    whole = dict.fromkeys([*names, *(Region(province.name, city) for city in province.cities if city)])
    for place in whole:
        for text, head in _within_province(province, place).items():
            found.setdefault(text, head)


def _within_former_province() -> dict[str, Head]:
    """Return the heads of 세종시 behind a province that it was a part of: 충남 세종시."""
    written = {province.name: province.written for province in regions().provinces}
    return {
        f"{text} {city}": Head(_SEJONG, None, True, "renamed", _SEJONG, bare=not city.endswith("시"))
        for before in _BEFORE
        for text in written[before]
        for city in written[_SEJONG]
    }


def _within_province(province: Province, place: Region) -> dict[str, Head]:
    """Return the heads with a province in front of a district."""
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


def _former() -> list[Region]:
    return [*regions().renamed, *regions().parts]


@cache
def _districts_alone() -> dict[str, Head]:
    """Return the heads without a province: resolved where one region alone bears the name."""
    full: dict[str, set[Region]] = defaultdict(set)
    short: dict[str, set[Region]] = defaultdict(set)
    old = set(_former())
    cities = [Region(province.name, city) for province in regions().provinces for city in province.cities if city]
    for place in dict.fromkeys([*regions().today, *_former(), *cities]):
        if not place.sigungu:
            continue
        for way in spellings(place.sigungu):
            (short if way.bare else full)[way.text].add(place)
        if ward := place.sigungu.partition(" ")[2]:
            full[ward].add(place)
    full.pop("진구", None)
    found = {text: _alone(text, places) for text, places in full.items()}
    for text, places in short.items():
        living = places - old
        names = {place.sigungu for place in living}
        if len(names) == 1 and not (names.copy().pop().endswith("구") and " " in names.copy().pop()):
            head = _alone(names.pop(), living)
            narrow = bool(head.sigungu and head.sigungu.endswith("구"))
            found.setdefault(text, head._replace(bare=True, narrow=narrow, change="abbreviated"))
    return found


def _alone(text: str, places: set[Region]) -> Head:
    """Return what a district's name without a province means."""
    living = {regions().renamed.get(place, place) for place in places}
    if len(living) > 1:
        return Head(None, text, False, None, None)
    place = living.pop()
    change = None if place in places else "renamed"
    return Head(place.sido, place.sigungu, False, change, None)


@cache
def alone() -> Heads:
    """Return the districts without a province, suffix included."""
    return Heads({text: head for text, head in _districts_alone().items() if not head.bare})


@dataclass(frozen=True)
class Following:
    """Which head a province or a city (of wards) makes with the words after it, without putting texts together."""

    first: dict[str, int]
    words: pl.DataTypeExpr
    width: int
    places: pl.Series

    def find(self, first: pl.Expr, words: pl.Expr) -> pl.Expr:
        """Return the place in :func:`heads` for the number of a first part and the words after it, else null."""
        word = words.cast(self.words, strict=False).to_physical().cast(pl.UInt32)
        return pl.lit(self.places).gather(first * self.width + word)


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
    return Following(first, enum(words), len(words), pl.Series(table, dtype=pl.UInt32))


@cache
def glued() -> Heads:
    """Return the heads with a suffix at their end, all spaces taken out."""
    found: dict[str, Head] = {}
    for text, head in heads().meanings.items():
        if not head.bare and head.sigungu is not None:
            found.setdefault(text.replace(" ", ""), head)
    return Heads(found)


def district_words() -> tuple[str, ...]:
    """Return the districts' names as words for a pattern, the longest first, spaces in them optional."""
    names = {
        way.text for place in (*regions().today, *_former()) for way in spellings(place.sigungu or "-") if not way.bare
    }
    names |= {place.sigungu.partition(" ")[2] for place in regions().today}
    names |= {city for province in regions().provinces for city in province.cities}
    return tuple(name.replace(" ", " ?") for name in sorted(names - {"", "-"}, key=len, reverse=True))


def province_words() -> tuple[str, ...]:
    """Return the ways to write a province, the longest first."""
    names = {text for province in regions().provinces for text in province.written}
    return tuple(sorted(names, key=len, reverse=True))
