"""Postal codes held against regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import polars as pl

from bansong.engine.address.batches import TextIndex, scatter
from bansong.engine.address.region_split import ADDED, catalogue, find_usual_heads, split_batch
from bansong.engine.address.regions import Region, level_named, level_number, regions
from bansong.engine.text import is_blank, is_masked, postal_digits

_BETWEEN: Final = "|"


@dataclass(frozen=True)
class _PrefixTable:
    # names and prefixes as numbers, and whether each pair fits: no concatenation row by row
    names: TextIndex
    prefixes: pl.Series  # the number of each prefix, by its digits; null for an unused one
    width: int
    fits: pl.Series  # one of the constants below, null for a name without known prefixes

    def find(self, number: pl.Expr, prefix: pl.Expr) -> pl.Expr:
        return pl.lit(self.fits).gather(number * self.width + pl.lit(self.prefixes).gather(prefix))


_OTHER, _FITS, _GIVEN_UP = range(3)  # another's prefix, this one's, a former one of this one (undecidable)


def postal_fits(zipcode: pl.Expr, sido: pl.Expr, sigungu: pl.Expr) -> pl.Expr:
    """Whether a postal code (five digits) may belong to a region of :func:`split_region`; null if undecidable."""
    # the first three digits belong to one district; if it is unknown, the first two are compared to the province
    code = pl.when(zipcode.str.contains("^[0-9]{5}$")).then(zipcode)
    return fits_numbers(code.cast(pl.UInt32, strict=False), region_numbers(sido, sigungu))


def region_numbers(sido: pl.Expr, sigungu: pl.Expr) -> list[pl.Expr]:
    districts, provinces = _prefix_tables()
    name = pl.concat_str(sido, sigungu.fill_null(""), separator=_BETWEEN)
    numbers = {
        "district": districts.names.find(name),
        "province": provinces.names.find(sido),
        "whole": sigungu.is_null(),
    }
    return [number.alias(key) for key, number in numbers.items()]


def fits_numbers(code: pl.Expr, region: list[pl.Expr]) -> pl.Expr:
    """Do what :func:`postal_fits` does, for a code as a number and a region of :func:`region_numbers`."""
    districts, provinces = _prefix_tables()
    district, province, whole = region
    by_three = districts.find(district, code // 100)
    by_two = provinces.find(province, code // 1000)
    by_province = pl.when((by_two == _OTHER) | whole).then(by_two)
    fits = pl.coalesce(by_three, by_province)
    return pl.when(fits != _GIVEN_UP).then(fits == _FITS)


@cache
def _prefix_tables() -> tuple[_PrefixTable, _PrefixTable]:
    provinces = regions().provinces
    prefixes = {Region(of.name, city): given for of in provinces for city, given in of.prefixes.items()}
    left = {Region(of.name, city): given for of in provinces for city, given in of.left.items()}
    digits: dict[str, frozenset[str]] = {}
    gone: dict[str, frozenset[str]] = {}
    for province in provinces:
        for name in _list_districts(province.name):
            places = [Region(place.sido, place.sigungu.split(" ")[0]) for place in regions().members(name)]
            digits[_BETWEEN.join(name)] = frozenset().union(*(prefixes.get(place, ()) for place in places))
            gone[_BETWEEN.join(name)] = frozenset().union(*(left.get(place, ()) for place in places))
    return _make_table(digits, gone), _make_table({province.name: province.postal for province in provinces})


def _make_table(
    fitting: Mapping[str, frozenset[str]], gone: Mapping[str, frozenset[str]] | None = None
) -> _PrefixTable:
    known = frozenset().union(*fitting.values())
    every = known.union(*gone.values()) if gone else known
    prefixes = {prefix: number for number, prefix in enumerate(sorted(every))}
    others: list[int | None] = [_OTHER if prefix in known else None for prefix in prefixes]
    fits: list[int | None] = []
    for name, of_name in fitting.items():
        line: list[int | None] = others.copy() if of_name else [None] * len(prefixes)
        for prefix in of_name:
            line[prefixes[prefix]] = _FITS
        for prefix in gone[name] if gone else ():
            line[prefixes[prefix]] = _GIVEN_UP
        fits += line
    digits = len(next(iter(prefixes)))
    numbers = [prefixes.get(str(place).zfill(digits)) for place in range(10**digits)]
    columns = pl.Series(numbers, dtype=pl.UInt32), len(prefixes), pl.Series(fits, dtype=pl.UInt8)
    return _PrefixTable(TextIndex(fitting), *columns)


def _list_districts(sido: str) -> list[Region]:
    # wards, their cities, and split districts
    names = [place for place in regions().today if place.sido == sido]
    names += [Region(sido, place.sigungu.split(" ")[0]) for place in names if " " in place.sigungu]
    names += [place for place in regions().parts if place.sido == sido]
    return list(dict.fromkeys(names))


_JUDGED_COLUMNS: Final = {
    "region": pl.UInt8,
    "zipcode_given": pl.String,
    "match_level": pl.String,
    "postal_match": pl.String,
}
_NOTHING: Final = ("form", "unit", "zipcode_right", "changes", "fixed_zipcode", "fixed_address", "district_code")
_STATE: Final = "r:judged"
_CODE: Final = "^([0-9]{5})$"
_CODE_FIRST: Final = (
    r"^[^0-9가-힣]*(?:우편번호|우)?[^0-9가-힣]*(?:[0-9]{5}|[0-9]{3}-[0-9]{3})(?:[^0-9가-힣-][^0-9가-힣]*|$)"
)
_CODE_INSIDE: Final = r"(?:^|[(\[<우]) ?([0-9]{5})(?:$|[)\]> ,])"
_PERHAPS_CODE: Final = r"[0-9]{5}|[^\x00-\x7F가-힣]"
_USUAL_BEGINNING: Final = r"^[가-힣]+ [가-힣0-9]+ \S"
_MAX_CHARS: Final = 300  # the region stands before


def without_gazetteer(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns of a match with a gazetteer, as far as region and postal code alone decide them."""
    judged = _judge(pl.col("address"), pl.col("zipcode"))
    work = frame.with_columns(judged.alias(_STATE), pl.lit(False).alias("covered"))
    work = work.with_columns(pl.col(_STATE).struct.field(*_JUDGED_COLUMNS)).drop(_STATE)
    work = work.with_columns(region=level_named(pl.col("region")))
    return work.with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in _NOTHING),
        supported=pl.lit(None, pl.Boolean),
        place=pl.lit(None, pl.UInt32),
    )


def region_level(address: pl.Expr) -> pl.Expr:
    return level_named(_judge(address, pl.lit(None, pl.String)).struct.field("region"))


def _judge(address: pl.Expr, zipcode: pl.Expr) -> pl.Expr:
    rows = pl.struct(address.alias("address"), zipcode.alias("zipcode"))
    return rows.map_batches(_judge_batch, return_dtype=pl.Struct(_JUDGED_COLUMNS), is_elementwise=True)


def _judge_batch(addresses: pl.Series) -> pl.Series:
    # the usual heads first
    frame = addresses.struct.unnest()
    frame = frame.with_columns(find_usual_heads(frame["address"]), zipcode_given=_find_five_digits(frame["zipcode"]))
    uncoded = frame.select(_perhaps_inside()).to_series()
    if uncoded.any():
        inside = frame.filter(uncoded).select(_code_in_address()).to_series()
        frame = frame.with_columns(zipcode_given=pl.coalesce("zipcode_given", scatter(inside, uncoded)))
    judged = frame.with_columns(_describe_place()).select(_judge_place())
    left = frame["place"].is_null() & frame["address"].is_not_null()
    if left.any():
        other = _judge_unusual(frame.filter(left).select("address", "zipcode_given"))
        judged = judged.with_columns(pl.coalesce(column.name, scatter(column, left)) for column in other)
    return judged.select(pl.struct(*_JUDGED_COLUMNS)).to_series()


# expressions of a whole batch are made once: for few rows, making them takes as long as computing them


@cache
def _perhaps_inside() -> pl.Expr:
    # something in the address that may become a code when normalised
    uncoded = pl.when(pl.col("zipcode_given").is_null()).then("address")
    return uncoded.str.contains(_PERHAPS_CODE).fill_null(False)


@cache
def _code_in_address() -> pl.Expr:
    text = _readable()
    return pl.when(text.str.contains(_CODE_INSIDE)).then(text).str.extract(_CODE_INSIDE, 1)


@cache
def _describe_place() -> list[pl.Expr]:
    # each is a column: polars would compute a nested step twice
    place = pl.col("place")
    provinces = pl.select(level_number(pl.lit(catalogue().columns["sido"]))).to_series()
    return [
        (place.is_not_null() & ~is_masked(pl.col("address"))).alias("found"),
        pl.col("zipcode_given").cast(pl.UInt32, strict=False).alias("code"),
        pl.lit(provinces).gather(place).alias("region"),
        *(pl.lit(numbers).gather(place).alias(numbers.name) for numbers in _region_number_columns()),
    ]


@cache
def _judge_place() -> list[pl.Expr]:
    fits = fits_numbers(pl.col("code"), [pl.col(numbers.name) for numbers in _region_number_columns()])
    return [pl.col("region", "zipcode_given"), *_levels_and_fits(pl.col("found"), fits)]


def _judge_unusual(frame: pl.DataFrame) -> pl.DataFrame:
    frame = frame.with_columns(head=_readable())
    coded = pl.when(pl.col("head").str.contains(_CODE_FIRST)).then("head")
    frame = frame.with_columns(head=pl.coalesce(coded.str.replace(_CODE_FIRST, ""), "head"))
    frame = frame.hstack(split_batch(frame["head"]).struct.unnest().select("sido", "sigungu", "region_conflict"))
    fits = postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu"))
    found = pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
    level, postal = _levels_and_fits(found, fits | pl.col("region_conflict"))
    none = pl.when(pl.col("head").is_not_null()).then(pl.lit("none"))
    return frame.select(
        level_number(pl.col("sido")).alias("region"), pl.coalesce(level, none).alias("match_level"), postal
    )


def _levels_and_fits(found: pl.Expr, fits: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    level = pl.when(found).then(pl.lit("region_only")).alias("match_level")
    return level, pl.when(found & ~fits).then(pl.lit("other_district")).alias("postal_match")


@cache
def _region_number_columns() -> list[pl.Series]:
    return catalogue().columns.select(region_numbers(pl.col("sido"), pl.col("sigungu"))).get_columns()


def _readable() -> pl.Expr:
    # characters and spaces are normalised if it begins oddly
    address = pl.col("address")
    readable = pl.when(~is_blank(address) & ~is_masked(address)).then(address)
    unusual = pl.when(~readable.str.contains(_USUAL_BEGINNING)).then(readable)
    odd = unusual.str.head(_MAX_CHARS).str.normalize("NFKC").str.replace_all(r"\s+", " ").str.strip_chars()
    return pl.coalesce(odd, readable)


def _find_five_digits(written: pl.Series) -> pl.Series:
    # four digits are a code of Seoul without its first zero; some write `301-49`
    odd = (~written.str.contains(_CODE)).fill_null(False)
    if not odd.any():
        return written
    bare = written.filter(odd).str.strip_chars(" '\u00a0").alias("code")
    other = bare.to_frame().select(postal_digits(pl.col("code"))).to_series()
    return scatter(other.str.extract(_CODE), odd).zip_with(odd, written)


def split_region(frame: pl.LazyFrame, text: str = "text") -> pl.LazyFrame:
    """Take the region out of each ``text`` (String, single spaces), usually off its head; rows and order stay.

    ``sido``, ``sigungu``: today's names, typed or the only possible; ``sigungu`` is "" in a province without districts,
    null if none is named. ``sido_given``: a province was typed; ``region_conflict``: it does not have the district.
    ``region_change``: ``typo``, ``renamed``, ``abbreviated`` or null. ``region_typed``: the words taken off;
    ``sido_typed``: the typed province's full name of its time. ``rest``, ``lead``: the text after and before it.
    """
    region = pl.col(text).map_batches(split_batch, return_dtype=pl.Struct(ADDED), is_elementwise=True)
    work = frame.with_columns(region.alias("r:region"))
    return work.with_columns(pl.col("r:region").struct.field(*ADDED)).drop("r:region")
