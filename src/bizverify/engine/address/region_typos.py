"""Names of regions with one thing wrong, wherever exactly one name can have been meant."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, TypeVar

import polars as pl

from bizverify.engine.address.region_heads import Head, Heads, heads
from bizverify.engine.address.region_names import regions

_T = TypeVar("_T")
_FIRST: Final = 0xAC00
_LAST: Final = 0xD7A3
_MEDIALS: Final = 21
_FINALS: Final = 28
_SHORTEST: Final = 3
"""Of 중구 with a wrong jamo nothing is left to go by."""

_HOLE: Final = "?"


@cache
def province_typos() -> Heads:
    """Return full names of provinces with one jamo wrong, one syllable missing, twice or (its first two) unreadable.

    The first two syllables by themselves are there too, for names with one of the later syllables unreadable: only
    what :func:`_unreadable` lets through is looked up by them.
    """
    found: dict[str, dict[str, Head]] = defaultdict(dict)
    for text, province in _full_names().items():
        head = Head(province, None, True, "typo", text)
        for variant in (*variants(text), *(hole for hole in (_hole(text, 0), _hole(text, 1)) if len(text) > _SHORTEST)):
            found[variant][text] = head
    by_two = {text[:2]: Head(_full_names()[text], None, True, "typo", text) for text in _told_by_two()}
    return Heads(_unique(found) | by_two)


@cache
def district_typos() -> dict[str, str]:
    """Return names of cities, counties and districts with one thing wrong, and the right name of each."""
    table = regions()
    places = (*table.today, *table.renamed, *table.parts)
    names = {word for place in places for word in place.sigungu.split(" ") if len(word) >= _SHORTEST}
    names |= {city for province in table.provinces for city in province.cities if city}
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(names):
        for variant in variants(name):
            found[variant][name] = name
    return {text: name for text, name in _unique(found).items() if text not in names}


def _unique(found: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Keep what can mean one name only and is no name itself."""
    real = heads().meanings
    return {text: next(iter(of.values())) for text, of in found.items() if len(of) == 1 and text not in real}


@cache
def _full_names() -> dict[str, str]:
    """Return the full names of provinces, of today and of before, with the province of today."""
    return {
        text: province.name
        for province in regions().provinces
        for text, (change, _) in province.written.items()
        if change != "abbreviated"
    }


def _told_by_two() -> list[str]:
    """Return the long names that no other long name begins like: 서울특별시, but not 경상북도 and 경상남도."""
    long = [text for text in _full_names() if len(text) > _SHORTEST + 1]
    starts = Counter(text[:2] for text in long)
    return [text for text in long if starts[text[:2]] == 1]


@cache
def _unreadable() -> str:
    """Return the pattern of names that are told by their first two syllables, with one of the others wrong."""
    holes = [
        _hole(text, place).replace(_HOLE, "[가-힣]") for text in _told_by_two() for place in range(2, len(text) - 1)
    ]
    return f"^(?:{'|'.join(holes)})$"


def _hole(name: str, place: int) -> str:
    return name[:place] + _HOLE + name[place + 1 :]


def find_province(word: pl.Expr) -> pl.Expr:
    """Return the place in :func:`province_typos` of a word with one thing wrong; null for most words."""
    typos = province_typos()
    two = pl.when(word.str.contains(_unreadable())).then(word).str.head(2)
    first = pl.lit(_HOLE) + word.str.slice(1)
    second = word.str.head(1) + pl.lit(_HOLE) + word.str.slice(2)
    return pl.coalesce(*(typos.find(text) for text in (word, two, first, second)))


def variants(name: str) -> Iterator[str]:
    """Return a name with one jamo wrong, or one syllable missing or twice; its last syllable is only ever doubled."""
    yield name + name[-1]
    for place, syllable in enumerate(name[:-1]):
        before, after = name[:place], name[place + 1 :]
        if not _FIRST <= ord(syllable) <= _LAST:
            continue
        yield before + syllable + syllable + after
        if len(name) > _SHORTEST:
            yield before + after
        for other in _one_jamo_off(syllable):
            yield before + other + after


def _one_jamo_off(syllable: str) -> Iterator[str]:
    """Return the syllables that differ in the initial, the medial or the final (which may be missing)."""
    rest, final = divmod(ord(syllable) - _FIRST, _FINALS)
    initial, medial = divmod(rest, _MEDIALS)
    places = [(other, medial, final) for other in range(19)]
    places += [(initial, other, final) for other in range(_MEDIALS)]
    places += [(initial, medial, other) for other in range(_FINALS)]
    for one, two, three in places:
        if (one, two, three) != (initial, medial, final):
            yield chr(_FIRST + (one * _MEDIALS + two) * _FINALS + three)
