"""Names of regions with one thing wrong, wherever exactly one name can have been meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import polars as pl

from bizverify.engine.address.misspellings import variants
from bizverify.engine.address.regions.heads import Head, Heads, enum, heads
from bizverify.engine.address.regions.names import regions

_SHORTEST: Final = 3
"""Of 중구 with a wrong jamo nothing is left to go by."""

_HOLE: Final = "?"


@cache
def provinces_of_typos() -> Heads:
    """Return what a mistyped province means, by the full name that was meant."""
    return Heads({text: Head(province, None, True, "typo", text) for text, province in _full_names().items()})


@cache
def _province_typos() -> _Lookup:
    """Return full names of provinces with one jamo wrong, one syllable missing, twice or (its first two) unreadable.

    The first two syllables by themselves are there too, for names with one of the later syllables unreadable: only
    what :func:`_unreadable` lets through is looked up by them.
    """
    return _Lookup.of(_unique(_mistyped_provinces()) | {text[:2]: text for text in _told_by_two()})


def _mistyped_provinces() -> Iterator[tuple[str, str]]:
    for text in _full_names():
        holes = (_hole(text, 0), _hole(text, 1)) if len(text) > _SHORTEST else ()
        yield from ((variant, text) for variant in (*variants(text), *holes))


@cache
def _district_typos() -> _Lookup:
    """Return names of cities, counties and districts with one thing wrong, and the right name of each."""
    table = regions()
    places = (*table.today, *table.renamed, *table.parts)
    names = {word for place in places for word in place.sigungu.split(" ") if len(word) >= _SHORTEST}
    names |= {city for province in table.provinces for city in province.cities if city}
    return _Lookup.of(_unique((variant, name) for name in sorted(names) for variant in variants(name)))


def _unique(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Keep what can mean one name only and is no name itself."""
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


def mistyped_province(word: pl.Expr) -> pl.Expr:
    """Return the place in :func:`provinces_of_typos` (UInt32) of a word with one thing wrong; null for most words."""
    two = pl.when(word.str.contains(_unreadable())).then(word).str.head(2)
    first = pl.lit(_HOLE) + word.str.slice(1)
    second = word.str.head(1) + pl.lit(_HOLE) + word.str.slice(2)
    names = pl.coalesce(*(_looked_up(text, _province_typos) for text in (word, two, first, second)))
    return provinces_of_typos().find(names)


def fixed_district(word: pl.Expr) -> pl.Expr:
    """Return the district (String) that a word with one thing wrong must be; null for most words."""
    return _looked_up(pl.when(word.str.contains("^[가-힣]{2,6}[시군구]$")).then(word), _district_typos)


@dataclass(frozen=True)
class _Lookup:
    keys: pl.DataTypeExpr
    names: pl.Series

    @classmethod
    def of(cls, table: Mapping[str, str]) -> _Lookup:
        return cls(enum(table), pl.Series(list(table.values())))


def _looked_up(text: pl.Expr, table: Callable[[], _Lookup]) -> pl.Expr:
    return text.map_batches(partial(_names, table), return_dtype=pl.String, is_elementwise=True)


def _names(table: Callable[[], _Lookup], texts: pl.Series) -> pl.Series:
    """Look texts up; the table takes a while to make, and most batches have nothing to look up."""
    if texts.null_count() == len(texts):
        return texts
    found = table()
    keys = pl.col(texts.name).cast(found.keys, strict=False).to_physical().cast(pl.UInt32)
    return texts.to_frame().select(pl.lit(found.names).gather(keys).alias(texts.name)).to_series()
