"""Reads the region off the head of an address, whatever is odd about how it is written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Final

import polars as pl

from bizverify.engine.address.regions.heads import Head, Heads, alone, following, glued, heads
from bizverify.engine.address.regions.typos import fixed_district, mistyped_province, provinces_of_typos
from bizverify.engine.address.regions.unspaced import find_glued

ADDED: Final = {
    "sido": pl.String,
    "sigungu": pl.String,
    "sido_given": pl.Boolean,
    "region_conflict": pl.Boolean,
    "region_change": pl.String,
    "region_typed": pl.String,
    "sido_typed": pl.String,
    "rest": pl.String,
    "lead": pl.String,
}
"""The columns of :func:`split`."""

_NATION: Final = "대한민국"
NO_DISTRICTS: Final = "세종특별자치시"
_NOT_AFTER_STEM: Final = "^(?:[0-9]|(?:대?로|길)(?:[0-9]|$))"
_NOT_AFTER_NARROW: Final = "^중앙로(?:[0-9]|$)"
_STATE: Final = "r:"


def split(frame: pl.LazyFrame, text: str) -> pl.LazyFrame:
    """Add the columns of :data:`ADDED`; nothing is computed yet. Slow: for what :mod:`.quick` leaves over."""
    work = frame.with_columns(_set(text=_without_nation(pl.col(text))))
    work = _exact(work)
    work = _glued(work)
    work = _mistyped_province(work)
    work = _district_after(work)
    work = _meant(work, text)
    return work.select(pl.exclude(f"^{_STATE}.*$"))


def _c(name: str) -> pl.Expr:
    return pl.col(_STATE + name)


def _set(**columns: pl.Expr) -> list[pl.Expr]:
    return [value.alias(_STATE + name) for name, value in columns.items()]


def _without_nation(text: pl.Expr) -> pl.Expr:
    abroad = pl.when(text.str.starts_with(_NATION)).then(text)
    return pl.coalesce(abroad.str.strip_prefix(_NATION).str.strip_chars_start(" ,"), text)


@dataclass(frozen=True)
class Catalogue:
    """The lookup tables side by side: a place in one of them plus its offset is a line of ``columns``."""

    offsets: dict[str, int]
    columns: dict[str, pl.Series]

    def find(self, table: Heads, name: str, text: pl.Expr) -> pl.Expr:
        """Return the place of a text that is in one of the tables, null for another."""
        return table.find(text) + self.offsets[name]

    def value(self, name: str, place: pl.Expr) -> pl.Expr:
        """Return what a column says of a place."""
        return pl.lit(self.columns[name]).gather(place)

    def among(self, name: str, place: pl.Expr) -> pl.Expr:
        """Whether a place is in a table."""
        names = list(self.offsets)
        after = names[names.index(name) + 1 :]
        below = place < self.offsets[after[0]] if after else pl.lit(True)
        return (place >= self.offsets[name]) & below


@cache
def catalogue() -> Catalogue:
    """Return the lookup tables (made once a process)."""
    tables = {
        "heads": heads(),
        "glued": glued(),
        "alone": alone(),
        "provinces": provinces_of_typos(),
    }
    sizes = [len(table.meanings) for table in tables.values()]
    rows = [head for table in tables.values() for head in table.meanings.values()]
    columns = {
        name: pl.Series([getattr(row, name) for row in rows], dtype=pl.String)
        for name in ("sido", "sigungu", "change", "sido_typed")
    }
    columns["given"] = pl.Series([row.given for row in rows])
    columns["prefix"] = pl.Series([_prefix(row) for row in rows], dtype=pl.UInt32)
    columns["text"] = pl.Series([text for table in tables.values() for text in table.meanings])
    columns["lonely"] = pl.Series([row.sigungu is None for row in rows])
    columns["length"] = pl.Series([len(text) for table in tables.values() for text in table.meanings], dtype=pl.UInt32)
    return Catalogue(dict(zip(tables, accumulate([0, *sizes]), strict=False)), columns)


def _prefix(head: Head) -> int | None:
    """Return the number of what a district must follow in a head, null where none is missing."""
    if head.sido is None or head.sido == NO_DISTRICTS:
        return None
    return following().first.get(head.sido if head.sigungu is None else f"{head.sido} {head.sigungu}")


def _exact(work: pl.LazyFrame) -> pl.LazyFrame:
    """Look up the first three, two, one words: what nearly every address begins with."""
    known = heads()
    work = work.with_columns(_set(words=_c("text").str.splitn(" ", 4)))
    words = [_c("words").struct.field(f"field_{place}") for place in range(4)]
    two = words[0] + " " + words[1]
    work = work.with_columns(
        _set(p1=known.find(words[0]), p2=known.find(two), p3=known.find(two + " " + words[2]), word=words[0])
    )
    work = work.with_columns(_set(place=pl.coalesce(*(_unless_road(known, _c(f"p{n}"), words[n]) for n in (3, 2, 1)))))
    work = work.drop(_STATE + name for name in ("words", "p1", "p2", "p3"))
    return work.with_columns(_set(exact=_c("place"), length=catalogue().value("length", _c("place"))))


def _unless_road(known: Heads, place: pl.Expr, following: pl.Expr) -> pl.Expr:
    """Drop a head without a suffix that may be the beginning of a road: 종로 5길, 강남 대로, 서초 중앙로."""
    bare = pl.when(place >= known.first_bare)
    nothing = following.is_null() & ~catalogue().value("given", bare.then(place))
    road = bare.then(following).str.contains(_NOT_AFTER_STEM)
    narrow = pl.when(place >= known.first_narrow).then(following).str.contains(_NOT_AFTER_NARROW)
    out = nothing.fill_null(False) | road.fill_null(False) | narrow.fill_null(False)
    return pl.when(~out).then(place)


def _lonely() -> pl.Expr:
    """Whether no district was found yet."""
    return catalogue().value("lonely", _c("place")).fill_null(True)


def _glued(work: pl.LazyFrame) -> pl.LazyFrame:
    """Find regions that are written without the usual spaces: 경기도오산시오산로, 서울서초구법원로1길."""
    sido = catalogue().value("sido", _c("place"))
    text = pl.when(_lonely() & (sido.is_null() | (sido != NO_DISTRICTS))).then(_c("text"))
    work = find_glued(work, text, _c("place").is_null())
    place = catalogue().find(glued(), "glued", _c("found").str.replace_all(" ", "", literal=True))
    other = catalogue().find(heads(), "heads", pl.when(_c("place").is_null()).then(_c("found")))
    work = work.with_columns(_set(hit=pl.coalesce(place, other)))
    return _override(work, _c("found").str.len_chars()).drop(_STATE + "found")


def _override(work: pl.LazyFrame, length: pl.Expr) -> pl.LazyFrame:
    """Take the place ``hit``, where there is one, instead of what was found before."""
    return work.with_columns(
        _set(
            place=pl.coalesce(_c("hit"), _c("place")),
            length=pl.when(_c("hit").is_not_null()).then(length).otherwise(_c("length")),
        )
    ).drop(_STATE + "hit")


def _mistyped_province(work: pl.LazyFrame) -> pl.LazyFrame:
    """Read 경상븍도 as 경상북도."""
    word = pl.when(_c("place").is_null() & _c("word").str.contains("^[가-힣]{2,9}[시도]$")).then(_c("word"))
    work = work.with_columns(_set(hit=mistyped_province(word) + catalogue().offsets["provinces"]))
    return _override(work, _c("word").str.len_chars())


def _district_after(work: pl.LazyFrame) -> pl.LazyFrame:
    """Look for a district after a province that was typed twice or wrongly, for one of another province, for a typo."""
    prefix = catalogue().value("prefix", _c("place"))
    waiting = pl.when(_lonely() | prefix.is_not_null())
    tail = waiting.then(_c("text")).str.slice(_c("length").fill_null(0)).str.strip_chars_start(" ")
    work = work.with_columns(_set(prefix=prefix, tail=tail))
    work = work.with_columns(_set(words=_c("tail").str.splitn(" ", 3)))
    words = [_c("words").struct.field(f"field_{place}") for place in range(2)]
    work = work.with_columns(_set(**{f"fixed{n}": fixed_district(word) for n, word in enumerate(words)}))
    best = [pl.coalesce(_c(f"fixed{n}"), word) for n, word in enumerate(words)]
    work = work.with_columns(_set(one=best[0], two=best[0] + " " + best[1]))
    elsewhere = _lonely() & catalogue().value("sido", _c("place")).is_not_null() & _c("fixed0").is_null()
    alone_ok = pl.when(elsewhere | (_c("place").is_null() & _c("fixed0").is_not_null()))
    hits = []
    for names in (_c("two"), _c("one")):
        exact = following().find(_c("prefix"), names)
        hits.append(pl.coalesce(exact, catalogue().find(alone(), "alone", alone_ok.then(names))))
    work = work.with_columns(_set(base=_c("place"), both=hits[0].is_not_null(), hit=pl.coalesce(*hits)))
    lengths = [word.str.len_chars() for word in words]
    skipped = _c("text").str.len_chars() - _c("tail").str.len_chars()
    taken = skipped + lengths[0] + pl.when("r:both").then(lengths[1] + 1).otherwise(0)
    fixed = _c("fixed0").is_not_null() | (_c("both") & _c("fixed1").is_not_null())
    work = work.with_columns(_set(mistyped=(fixed & _c("hit").is_not_null()).fill_null(False)))
    return _override(work, taken)


def _meant(work: pl.LazyFrame, text: str) -> pl.LazyFrame:
    """Read the columns off the places found."""
    place, base = _c("place"), _c("base")
    conflict = (catalogue().among("alone", place) & base.is_not_null()).fill_null(False)
    typo = catalogue().among("provinces", base).fill_null(False) | _c("mistyped")
    typed = pl.coalesce(catalogue().value("sido_typed", base), catalogue().value("sido_typed", place))
    sido = pl.when(conflict).then(catalogue().value("sido", base)).otherwise(catalogue().value("sido", place))
    change = pl.coalesce(catalogue().value("change", place), catalogue().value("change", base))
    sigungu = catalogue().value("sigungu", place)
    exact = (place == _c("exact")).fill_null(False)  # the words looked up are the words typed
    words = pl.when(place.is_not_null() & ~exact).then(_c("text")).str.head(_c("length"))
    return work.with_columns(
        sido.alias("sido"),
        pl.when(sigungu.is_null() & (sido == NO_DISTRICTS)).then(pl.lit("")).otherwise(sigungu).alias("sigungu"),
        typed.is_not_null().alias("sido_given"),
        conflict.alias("region_conflict"),
        pl.when(typo).then(pl.lit("typo")).otherwise(change).alias("region_change"),
        pl.when(exact).then(catalogue().value("text", place)).otherwise(words).alias("region_typed"),
        typed.alias("sido_typed"),
        pl.when(place.is_null())
        .then(pl.col(text))
        .otherwise(_c("text").str.slice(_c("length")).str.strip_chars_start(" ,"))
        .alias("rest"),
        pl.lit(None, pl.String).alias("lead"),
    )
