"""Which regions of the gazetteer the words of an address allow: one, several, all (no word at all) or none."""

from __future__ import annotations

from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

import polars as pl

from bizverify.engine.address.match.index import ROW, Index, built_once, text_key
from bizverify.engine.address.match.lookups import Lookups
from bizverify.engine.address.regions import members

_lock: Final = Lock()
_made: Final[WeakKeyDictionary[Lookups, Scopes]] = WeakKeyDictionary()


def scopes_of(lookups: Lookups) -> Scopes:
    """Return the scopes of a gazetteer, made once for its lookups."""
    with _lock:
        if lookups not in _made:
            _made[lookups] = Scopes(lookups)
        return _made[lookups]


class Scopes:
    """The regions by every pair of words that may stand for them.

    ``수원시 영통구`` is also meant by ``수원시`` (with others) and by ``영통구``, each with and without the province;
    where districts were split, by the names of before.
    """

    def __init__(self, lookups: Lookups) -> None:
        self._regions = lookups.tables.regions

    @built_once
    def _words(self) -> pl.DataFrame:
        words = pl.col("sigungu").str.split(" ")
        spellings = [pl.col("sigungu"), words.list.first(), words.list.last(), pl.lit("")]
        provinces = [pl.col("sido"), pl.lit("")]
        pairs = [
            self._regions.select("region", province.alias("sido"), spelling.alias("sigungu"))
            for province in provinces
            for spelling in spellings
        ]
        of_other_times = members().join(
            self._regions, left_on=["member_sido", "member_sigungu"], right_on=["sido", "sigungu"]
        )
        pairs.append(of_other_times.select("region", "sido", "sigungu"))
        return pl.concat(pairs).filter((pl.col("sido") != "") | (pl.col("sigungu") != "")).unique()

    @built_once
    def regions(self) -> Index:
        """(sido, sigungu), "" for a word that is missing → regions."""
        return Index.of(self._words, text_key("sido", "sigungu"), "region")

    def settled(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add ``scope`` (the key of the words, null without any), ``region`` (if it is one), ``covered``.

        Districts are founded, split and abolished more often than files are renewed, so a district that the gazetteer
        does not know means those of its city, or its parts (see :func:`~bizverify.engine.address.regions.members`).
        """
        words = ["sido", "sido_typed", "sigungu", "region_conflict"]
        settled = self._settled(rows.select(words).unique().with_row_index(ROW)).drop(ROW)
        return rows.join(settled, on=words, how="left", nulls_equal=True, maintain_order="left")

    def _settled(self, words: pl.DataFrame) -> pl.DataFrame:
        # A province of before, alone, means its own districts only; where province and district contradict each other,
        # the district counts, which is the more particular.
        alone = pl.when(pl.col("sigungu").is_null()).then("sido_typed")
        conflict = pl.col("region_conflict").fill_null(False)
        sido = pl.when(~conflict).then(pl.coalesce(alone, "sido")).fill_null("")
        sigungu = pl.col("sigungu").fill_null("")
        words = words.with_columns(scope=pl.when((sido != "") | (sigungu != "")).then(text_key(sido, sigungu)))
        words = words.with_columns(covered=self.regions.holds(words["scope"].fill_null(0)))
        found = self.regions.find(words, pl.col("scope"), "region")
        single = found.group_by(ROW).agg(pl.col("region").first(), n=pl.len()).filter(pl.col("n") == 1)
        return words.join(single.select(ROW, "region"), on=ROW, how="left", maintain_order="left")

    @built_once
    def _pairs(self) -> Index:
        return Index.of(self._words, text_key(text_key("sido", "sigungu"), "region"), "region")

    def allow(self, frame: pl.DataFrame) -> pl.Series:
        """Tell for each row whether its region ``home`` is within its ``scope`` (always, where there is none)."""
        keys = frame.select(text_key("scope", "home")).to_series()
        return frame.select(pl.col("scope").is_null() | pl.lit(self._pairs.holds(keys.fill_null(0)))).to_series()
