"""Which postal codes belong to which region, by their first digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import polars as pl

from bizverify.engine.address.regions.heads import enum
from bizverify.engine.address.regions.names import Region, regions

_BETWEEN: Final = "|"


@dataclass(frozen=True)
class _Table:
    """Names and prefixes as numbers, and for each pair whether they fit: nothing is put together row by row."""

    names: pl.DataTypeExpr
    prefixes: pl.Series
    """The number of each prefix, at the place that its digits are; null where it is nobody's."""
    width: int
    fits: pl.Series

    def number(self, name: pl.Expr) -> pl.Expr:
        return name.cast(self.names, strict=False).to_physical().cast(pl.UInt32)

    def find(self, number: pl.Expr, prefix: pl.Expr) -> pl.Expr:
        """Return whether a prefix fits a name (Boolean), null where it cannot be said or either is not known."""
        return pl.lit(self.fits).gather(number * self.width + pl.lit(self.prefixes).gather(prefix))


def postal_fits(zipcode: pl.Expr, sido: pl.Expr, sigungu: pl.Expr) -> pl.Expr:
    """Tell whether a postal code may belong to a region (Boolean); null where that cannot be said.

    ``zipcode``: five digits (String); ``sido``, ``sigungu``: as of :func:`~.regions.split_region`, both Strings. The
    first three digits are those of one district: true if they are this one's, false if they are another's. Where
    the district or the digits are not known, the first two digits are held against the province: false if they are
    another's, true if no district was named and they are this one's.
    """
    code = pl.when(zipcode.str.contains("^[0-9]{5}$")).then(zipcode)
    return fits_numbers(code, region_numbers(sido, sigungu))


def region_numbers(sido: pl.Expr, sigungu: pl.Expr) -> list[pl.Expr]:
    """Return what :func:`fits_numbers` must know of a region: the numbers that its names have in the tables."""
    districts, provinces, left = _tables()
    name = pl.concat_str(sido, sigungu.fill_null(""), separator=_BETWEEN)
    numbers = {
        "district": districts.number(name),
        "province": provinces.number(sido),
        "left": left.number(name),
        "whole": sigungu.is_null(),
    }
    return [number.alias(key) for key, number in numbers.items()]


def fits_numbers(code: pl.Expr, region: list[pl.Expr]) -> pl.Expr:
    """Tell as :func:`postal_fits` whether a code of five digits (or null) fits a region of :func:`region_numbers`."""
    districts, provinces, left = _tables()
    district, province, gave_up, whole = region
    three = code.cast(pl.UInt32, strict=False) // 100
    by_three = districts.find(district, three)
    by_two = provinces.find(province, three // 10)
    by_province = pl.when(~by_two | whole).then(by_two)
    return pl.when(~left.find(gave_up, three).fill_null(False)).then(pl.coalesce(by_three, by_province))


@cache
def _tables() -> tuple[_Table, _Table, _Table]:
    """Return the tables of districts by three digits, of provinces by two, and of what districts gave up."""
    digits: dict[str, frozenset[str]] = {}
    gone: dict[str, frozenset[str]] = {}
    for province in regions().provinces:
        for name in _names(province.name):
            places = _within(name)
            digits[_BETWEEN.join(name)] = frozenset().union(*(_of(place, left=False) for place in places))
            gone[_BETWEEN.join(name)] = frozenset().union(*(_of(place, left=True) for place in places))
    known = {name: prefixes for name, prefixes in digits.items() if prefixes}
    provinces = {province.name: province.postal for province in regions().provinces}
    return _table(known), _table(provinces), _table({name: prefixes for name, prefixes in gone.items() if prefixes})


def _table(fitting: dict[str, frozenset[str]]) -> _Table:
    prefixes = {prefix: number for number, prefix in enumerate(sorted(frozenset().union(*fitting.values())))}
    fits = pl.Series([prefix in of_name for of_name in fitting.values() for prefix in prefixes])
    digits = len(next(iter(prefixes)))
    numbers = [prefixes.get(str(place).zfill(digits)) for place in range(10**digits)]
    return _Table(enum(fitting), pl.Series(numbers, dtype=pl.UInt32), len(prefixes), fits)


def _names(sido: str) -> list[Region]:
    """Return the districts of a province that an address can name: wards, their cities, and what was split."""
    names = [place for place in regions().today if place.sido == sido]
    names += [Region(sido, place.sigungu.split(" ")[0]) for place in names if " " in place.sigungu]
    names += [place for place in regions().parts if place.sido == sido]
    return list(dict.fromkeys(names))


def _within(name: Region) -> list[Region]:
    """Return the cities and districts of the file that a name stands for."""
    cities = [Region(place.sido, place.sigungu.split(" ")[0]) for place in regions().members(name)]
    return list(dict.fromkeys(cities))


def _of(place: Region, *, left: bool) -> frozenset[str]:
    for province in regions().provinces:
        if province.name == place.sido:
            return (province.left if left else province.prefixes).get(place.sigungu, frozenset())
    return frozenset()
