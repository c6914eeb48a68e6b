"""Row groups of a gazetteer's buildings and lots, read for a few lookups.

Reading all buildings and lots of the nation takes most of a second, a row group a few hundredths.
"""

from __future__ import annotations

import polars as pl

from bansong.engine.address.gazetteer import SCHEMA, Gazetteer, key_range_error, read_key_ranges, read_section


class StoredSection:
    """A section of the file, sorted by ``key``; a row's place is its number within the section.

    Row groups are read at their first use and kept. The footer says which of them may hold a key; it has no checksum,
    so it is checked against the data, and for a key between two row groups both are read.
    """

    def __init__(self, gazetteer: Gazetteer, name: str) -> None:
        self._gazetteer, self._name = gazetteer, name
        self._ranges = read_key_ranges(gazetteer, name)
        self._starts = self._ranges["rows"].cum_sum() - self._ranges["rows"]
        self._read: dict[tuple[int, str], pl.Series] = {}

    def column(self, name: str) -> pl.Series:
        """Return the whole column."""
        return self._read_groups(name, range(self._ranges.height))

    def gather(self, name: str, places: pl.Series) -> pl.Series:
        """Return a column's value at each place (UInt32), null for null."""
        if places.null_count() == len(places):
            return pl.Series(name, [None], SCHEMA[name]).new_from_index(0, len(places))
        group = self._starts.search_sorted(places.fill_null(strategy="min"), side="right") - 1
        groups = group.unique().sort()
        lines = self._ranges["rows"][groups]
        shift = self._starts[groups] - (lines.cum_sum() - lines)
        return self._read_groups(name, groups)[places - shift[groups.search_sorted(group)]]

    def between(self, first: pl.Series, last: pl.Series) -> pl.DataFrame:
        """Return ``place`` (UInt32) and ``key`` of the row groups that may hold a key of the ranges, in order.

        ``first``, ``last`` (UInt64, not null): bounds of each range.
        """
        lows, highs, count = self._ranges["first"], self._ranges["last"], self._ranges.height
        before_first, behind_last = lows.search_sorted(first, side="right"), lows.search_sorted(last, side="right")
        span = pl.select(
            begin=pl.min_horizontal(highs.search_sorted(first), before_first.clip(1) - 1),
            end=pl.max_horizontal(highs.search_sorted(last) + 1, behind_last).clip(upper_bound=count),
        )
        groups = span.select(pl.int_ranges("begin", "end", dtype=pl.UInt32).explode().drop_nulls().unique().sort())
        parts = [
            pl.DataFrame({"key": self._group("key", group)}).with_row_index("place", int(self._starts[group]))
            for group in groups.to_series()
        ]
        return pl.concat([pl.DataFrame(schema={"place": pl.UInt32, "key": pl.UInt64}), *parts])

    def _read_groups(self, name: str, groups: pl.Series | range) -> pl.Series:
        return pl.concat([self._group(name, group) for group in groups])

    def _group(self, name: str, group: int) -> pl.Series:
        if (found := self._read.get((group, name))) is None:
            found = read_section(self._gazetteer, self._name, (name,), [group]).to_series()
            first, last, rows = self._ranges.row(group)
            if len(found) != rows or (name == "key" and (found[0], found[-1]) != (first, last)):
                raise key_range_error(self._gazetteer)
            self._read[group, name] = found
        return found


class StoredColumn:
    """A column of a stored section, read only where it is needed."""

    def __init__(self, section: StoredSection, name: str) -> None:
        self._section, self._name = section, name

    def __getitem__(self, places: pl.Series) -> pl.Series:
        """Return the value at each place (UInt32), null for null."""
        return self._section.gather(self._name, places)


class StoredTables:
    """The tables of :class:`~bansong.engine.address.gazetteer.Tables`; buildings and lots stay in the file."""

    def __init__(self, gazetteer: Gazetteer) -> None:
        self.regions = read_section(gazetteer, "region")
        self.dongs = read_section(gazetteer, "dong")
        self.admins = read_section(gazetteer, "admin")
        self.roads = read_section(gazetteer, "road").rename({"road_key": "key"})
        self.buildings = StoredSection(gazetteer, "building")
        self.lots = StoredSection(gazetteer, "lot")
        self.gone = StoredSection(gazetteer, "gone")
        self.building_key = StoredColumn(self.buildings, "key")
        self.building_zip = StoredColumn(self.buildings, "zipcode")
        self.building_dong = StoredColumn(self.buildings, "dong")
        self.building_apartment = StoredColumn(self.buildings, "apartment")
        self.building_name = StoredColumn(self.buildings, "name")
        self.building_street = StoredColumn(self.buildings, "street_code")
