"""Regions at the head of an address, the names that regions bear today, and the postal codes that belong to them.

The facts are in ``regions.toml``; where each comes from is in ``docs/decisions/012-regions.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Final

import polars as pl

from bizverify.engine.address.region_heads import (
    Head,
    Heads,
    alone,
    district_words,
    enum,
    following,
    glued,
    heads,
    province_words,
)
from bizverify.engine.address.region_postal import postal_fits
from bizverify.engine.address.region_today import city_of, districts, members, present_day
from bizverify.engine.address.region_typos import district_typos, find_province, province_typos
from bizverify.engine.risk.features import is_blank, is_masked
from bizverify.model import Lang

__all__ = [
    "ADDED",
    "city_of",
    "districts",
    "members",
    "postal_fits",
    "present_day",
    "split_region",
    "without_gazetteer",
]

ADDED: Final = (
    "sido",
    "sigungu",
    "sido_given",
    "region_conflict",
    "region_change",
    "region_typed",
    "sido_typed",
    "rest",
)
"""The columns of :func:`split_region`."""

_NATION: Final = "대한민국"
_NO_DISTRICTS: Final = "세종특별자치시"
_NOT_AFTER_STEM: Final = "^(?:[0-9]|(?:대?로|길)(?:[0-9]|$))"
_NOT_AFTER_NARROW: Final = "^중앙로(?:[0-9]|$)"
_STATE: Final = "r:"
_CODE: Final = "^[0-9]{5}$"
_CODE_FIRST: Final = (
    r"^[^0-9가-힣]*(?:우편번호|우)?[^0-9가-힣]*(?:[0-9]{5}|[0-9]{3}-[0-9]{3})(?:[^0-9가-힣-][^0-9가-힣]*|$)"
)
_CODE_INSIDE: Final = r"(?:^|[(\[<우]) ?([0-9]{5})(?:$|[)\]> ,])"
_USUAL: Final = r"^[가-힣]+ [가-힣0-9]+ \S"
_LONG_ENOUGH: Final = 300
"""Nobody's address is longer, and what follows says nothing of the region."""


def split_region(frame: pl.LazyFrame, text: str = "text") -> pl.LazyFrame:
    """Take the region off the head of each address; rows and order stay, nothing is computed yet.

    ``frame`` has a String column named ``text`` with single spaces. Added:

    - ``sido`` String: the province of today, as typed or because one province alone has the district; else null;
    - ``sigungu`` String: the district of today (``수원시 영통구``, ``수원시``); "" where the province has none, null
      where none is named; as typed, with ``sido`` null, where several provinces have it;
    - ``sido_given`` Boolean: a province was typed;
    - ``region_conflict`` Boolean: a district was typed that the typed province does not have;
    - ``region_change`` String: ``typo``, ``renamed``, ``abbreviated``, null for the full name of today;
    - ``region_typed`` String: the words taken off, null if none;
    - ``sido_typed`` String: the full name of the typed province at its time (``전라남도``), null if none was typed;
    - ``rest`` String: what follows, the whole text if there is no region.
    """
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
class _Catalogue:
    """The lookup tables side by side: a place in one of them plus its offset is a line of ``columns``."""

    offsets: dict[str, int]
    columns: dict[str, pl.Series]

    def find(self, table: Heads, name: str, text: pl.Expr) -> pl.Expr:
        return table.find(text) + self.offsets[name]

    def value(self, name: str, place: pl.Expr) -> pl.Expr:
        return pl.lit(self.columns[name]).gather(place)

    def among(self, name: str, place: pl.Expr) -> pl.Expr:
        """Whether a place is in a table."""
        names = list(self.offsets)
        after = names[names.index(name) + 1 :]
        below = place < self.offsets[after[0]] if after else pl.lit(True)
        return (place >= self.offsets[name]) & below


@cache
def _catalogue() -> _Catalogue:
    tables = {
        "heads": heads(),
        "glued": glued(),
        "alone": alone(),
        "provinces": province_typos(),
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
    return _Catalogue(dict(zip(tables, accumulate([0, *sizes]), strict=False)), columns)


def _prefix(head: Head) -> int | None:
    """Return the number of what a district must follow in a head, null where none is missing."""
    if head.sido is None or head.sido == _NO_DISTRICTS:
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
    return work.with_columns(_set(exact=_c("place"), length=_catalogue().value("length", _c("place"))))


def _unless_road(known: Heads, place: pl.Expr, following: pl.Expr) -> pl.Expr:
    """Drop a head without a suffix that may be the beginning of a road: 종로 5길, 강남 대로, 서초 중앙로."""
    bare = pl.when(place >= known.first_bare)
    nothing = following.is_null() & ~_catalogue().value("given", bare.then(place))
    road = bare.then(following).str.contains(_NOT_AFTER_STEM)
    narrow = pl.when(place >= known.first_narrow).then(following).str.contains(_NOT_AFTER_NARROW)
    out = nothing.fill_null(False) | road.fill_null(False) | narrow.fill_null(False)
    return pl.when(~out).then(place)


def _lonely() -> pl.Expr:
    """Whether no district was found yet."""
    return _catalogue().value("lonely", _c("place")).fill_null(True)


def _glued(work: pl.LazyFrame) -> pl.LazyFrame:
    """Find regions that are written without the usual spaces: 경기도오산시오산로, 서울서초구법원로1길."""
    catalogue = _catalogue()
    within, by_itself, province = _patterns()
    sido = catalogue.value("sido", _c("place"))
    text = pl.when(_lonely() & (sido.is_null() | (sido != _NO_DISTRICTS))).then(_c("text"))
    work = work.with_columns(_set(found=_first(text, within)))
    text = pl.when(_c("place").is_null() & _c("found").is_null()).then(_c("text"))
    work = work.with_columns(_set(found=pl.coalesce(_c("found"), _first(text, by_itself))))
    text = pl.when(_c("place").is_null() & _c("found").is_null()).then(_c("text"))
    work = work.with_columns(_set(found=pl.coalesce(_c("found"), _first(text, province))))
    # what matched ends with the character after the region, unless the text ends there
    hits = []
    for words in (_c("found").str.head(-1), _c("found")):
        place = catalogue.find(glued(), "glued", words.str.replace_all(" ", "", literal=True))
        hits += [place, catalogue.find(heads(), "heads", pl.when(_c("place").is_null()).then(words))]
    shorter = hits[0].is_not_null() | hits[1].is_not_null()
    work = work.with_columns(
        _set(
            hit=pl.coalesce(*hits),
            taken=_c("found").str.len_chars() - pl.when(shorter).then(1).otherwise(0).cast(pl.UInt32),
        )
    )
    return _override(work, _c("taken")).drop(_STATE + "found", _STATE + "taken")


def _first(text: pl.Expr, pattern: str) -> pl.Expr:
    """Return what matches at the head: several times faster than extracting a group of so many words."""
    return text.str.extract_all(pattern).list.first()


def _override(work: pl.LazyFrame, length: pl.Expr) -> pl.LazyFrame:
    """Take the place ``hit``, where there is one, instead of what was found before."""
    return work.with_columns(
        _set(
            place=pl.coalesce(_c("hit"), _c("place")),
            length=pl.when(_c("hit").is_not_null()).then(length).otherwise(_c("length")),
        )
    ).drop(_STATE + "hit")


@cache
def _patterns() -> tuple[str, str, str]:
    """Return the patterns of a province with a district, a district alone, a province alone, glued to what follows.

    What follows must not make another word of it: 중구로, 남구청로, 여주시장길, 세종시청로.
    """
    provinces, districts = "|".join(province_words()), district_words()
    by_itself = "|".join(word for word in districts if len(word) > 2)
    full = "|".join(word for word in province_words() if len(word) > 2 and word[-1] in "시도")
    within = f"^(?:{provinces}) ?(?:{'|'.join(districts)})(?:$|[^로길청역장민시0-9])"
    strict = "(?:$|[^로길청역장민시립내외계의0-9])"
    return within, f"^(?:{by_itself}){strict}", f"^(?:{full}){strict}"


def _mistyped_province(work: pl.LazyFrame) -> pl.LazyFrame:
    """Read 경상븍도 as 경상북도."""
    word = pl.when(_c("place").is_null() & _c("word").str.contains("^[가-힣]{2,9}[시도]$")).then(_c("word"))
    work = work.with_columns(_set(hit=find_province(word) + _catalogue().offsets["provinces"]))
    return _override(work, _c("word").str.len_chars())


def _district_after(work: pl.LazyFrame) -> pl.LazyFrame:
    """Look for a district after a province that was typed twice or wrongly, for one of another province, for a typo."""
    catalogue = _catalogue()
    prefix = catalogue.value("prefix", _c("place"))
    waiting = pl.when(_lonely() | prefix.is_not_null())
    tail = waiting.then(_c("text")).str.slice(_c("length").fill_null(0)).str.strip_chars_start(" ")
    work = work.with_columns(_set(prefix=prefix, tail=tail))
    work = work.with_columns(_set(words=_c("tail").str.splitn(" ", 3)))
    words = [_c("words").struct.field(f"field_{place}") for place in range(2)]
    work = work.with_columns(_set(**{f"fixed{n}": _fixed(word) for n, word in enumerate(words)}))
    best = [pl.coalesce(_c(f"fixed{n}"), word) for n, word in enumerate(words)]
    work = work.with_columns(_set(one=best[0], two=best[0] + " " + best[1]))
    elsewhere = _lonely() & catalogue.value("sido", _c("place")).is_not_null() & _c("fixed0").is_null()
    alone_ok = pl.when(elsewhere | (_c("place").is_null() & _c("fixed0").is_not_null()))
    hits = []
    for names in (_c("two"), _c("one")):
        exact = following().find(_c("prefix"), names)
        hits.append(pl.coalesce(exact, catalogue.find(alone(), "alone", alone_ok.then(names))))
    work = work.with_columns(_set(base=_c("place"), both=hits[0].is_not_null(), hit=pl.coalesce(*hits)))
    lengths = [word.str.len_chars() for word in words]
    skipped = _c("text").str.len_chars() - _c("tail").str.len_chars()
    taken = skipped + lengths[0] + pl.when("r:both").then(lengths[1] + 1).otherwise(0)
    fixed = _c("fixed0").is_not_null() | (_c("both") & _c("fixed1").is_not_null())
    work = work.with_columns(_set(mistyped=(fixed & _c("hit").is_not_null()).fill_null(False)))
    return _override(work, taken)


def _fixed(word: pl.Expr) -> pl.Expr:
    """Return the district that a word with one thing wrong must be."""
    keys, names = _district_names()
    place = pl.when(word.str.contains("^[가-힣]{2,6}[시군구]$")).then(word).cast(keys, strict=False)
    return pl.lit(names).gather(place.to_physical().cast(pl.UInt32))


@cache
def _district_names() -> tuple[pl.DataTypeExpr, pl.Series]:
    table = district_typos()
    return enum(table), pl.Series(list(table.values()))


def _meant(work: pl.LazyFrame, text: str) -> pl.LazyFrame:
    """Read the columns off the places found."""
    catalogue = _catalogue()
    place, base = _c("place"), _c("base")
    conflict = (catalogue.among("alone", place) & base.is_not_null()).fill_null(False)
    typo = catalogue.among("provinces", base).fill_null(False) | _c("mistyped")
    typed = pl.coalesce(catalogue.value("sido_typed", base), catalogue.value("sido_typed", place))
    sido = pl.when(conflict).then(catalogue.value("sido", base)).otherwise(catalogue.value("sido", place))
    change = pl.coalesce(catalogue.value("change", place), catalogue.value("change", base))
    sigungu = catalogue.value("sigungu", place)
    exact = (place == _c("exact")).fill_null(False)  # the words looked up are the words typed
    words = pl.when(place.is_not_null() & ~exact).then(_c("text")).str.head(_c("length"))
    return work.with_columns(
        sido.alias("sido"),
        pl.when(sigungu.is_null() & (sido == _NO_DISTRICTS)).then(pl.lit("")).otherwise(sigungu).alias("sigungu"),
        typed.is_not_null().alias("sido_given"),
        conflict.alias("region_conflict"),
        pl.when(typo).then(pl.lit("typo")).otherwise(change).alias("region_change"),
        pl.when(exact).then(catalogue.value("text", place)).otherwise(words).alias("region_typed"),
        typed.alias("sido_typed"),
        pl.when(place.is_null())
        .then(pl.col(text))
        .otherwise(_c("text").str.slice(_c("length")).str.strip_chars_start(" ,"))
        .alias("rest"),
    )


def without_gazetteer(frame: pl.LazyFrame, lang: Lang) -> pl.LazyFrame:
    """Add what can be said of an address from its region and postal code alone.

    ``frame`` has ``address`` and ``zipcode`` (String). Added are the columns that a match with a gazetteer adds:
    ``match_level`` is ``region_only`` or ``none``, null where the address is blank or masked; ``postal_match`` is
    ``other_district`` where the code is one of another region, else null; ``zipcode_given`` is the code of the
    column, or of the address; ``covered`` is false; the others are null. ``lang`` is not needed here.
    """
    del lang
    address = pl.col("address")
    readable = pl.when(~is_blank(address) & ~is_masked(address)).then(address)
    work = frame.with_columns(_set(readable=readable, head=_plain(readable)))
    work = work.with_columns(_set(code=_five_digits(pl.col("zipcode"))))
    other = pl.when(_c("code").is_null()).then(_c("head"))
    inside = pl.when(other.str.contains(_CODE_INSIDE)).then(other).str.extract(_CODE_INSIDE, 1)
    work = work.with_columns(
        pl.coalesce(_c("code"), inside).alias("zipcode_given"),
        *_set(head=pl.coalesce(_without_code(_c("head")), _c("head"))),
    )
    work = work.with_columns(_set(known=_c("readable").is_not_null())).drop(_STATE + "readable")
    work = work.rename({_STATE + "known": "bv:known"})
    work = split_region(work.with_columns(_c("head").alias("bv:text")), "bv:text")
    fits = postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu"))
    found = pl.col("sido").is_not_null() | pl.col("sigungu").is_not_null()
    nothing = pl.lit(None, pl.String)
    return work.with_columns(
        pl.when("bv:known")
        .then(pl.when(found).then(pl.lit("region_only")).otherwise(pl.lit("none")))
        .alias("match_level"),
        pl.lit(False).alias("covered"),
        pl.when(~fits & ~pl.col("region_conflict")).then(pl.lit("other_district")).alias("postal_match"),
        *(
            nothing.alias(name)
            for name in ("form", "unit", "zipcode_right", "changes", "fixed_zipcode", "fixed_address")
        ),
    ).drop("bv:known", "bv:text", *ADDED)


def _plain(address: pl.Expr) -> pl.Expr:
    """Normalise characters and spaces where the address does not begin as usual."""
    unusual = pl.when(~address.str.contains(_USUAL)).then(address)
    odd = unusual.str.head(_LONG_ENOUGH).str.normalize("NFKC").str.replace_all(r"\s+", " ").str.strip_chars()
    return pl.coalesce(odd, address)


def _without_code(head: pl.Expr) -> pl.Expr:
    return pl.when(head.str.contains(_CODE_FIRST)).then(head.str.replace(_CODE_FIRST, ""))


def _five_digits(written: pl.Expr) -> pl.Expr:
    """Return a postal code of five digits, as text or as a number that became text; null for anything else."""
    other = pl.when(~written.str.contains(_CODE)).then(written)
    odd = other.str.strip_chars(" '\u00a0").str.strip_suffix(".0")
    return pl.coalesce(pl.when(written.str.contains(_CODE)).then(written), pl.when(odd.str.contains(_CODE)).then(odd))
