"""The truth behind the noise bench: the official address file in plain dictionaries, read without the library.

What an address can mean is looked up here by brute force, so that the bench never asks the matcher about itself.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Number = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Building:
    """One row of the official file: a building, its road address, its lot, its postal code."""

    identity: str
    sido: str
    sigungu: str
    emd: str
    ri: str
    san: bool
    lot: Number
    road: str
    number: Number
    admin: str
    zipcode: str
    name: str

    @property
    def rural(self) -> bool:
        """Whether a road address names the 읍 or 면 (a 동 is not part of it)."""
        return self.emd.endswith(("읍", "면"))

    @property
    def area(self) -> str:
        return self.emd if self.rural else ""

    @property
    def dong(self) -> str:
        return self.ri or self.emd

    @property
    def region(self) -> str:
        return " ".join(filter(None, (self.sido, self.sigungu)))

    @property
    def official(self) -> str:
        """The road address without detail and reference."""
        return " ".join(filter(None, (self.region, self.area, self.road, written(self.number))))


def written(number: Number) -> str:
    return f"{number[0]}-{number[1]}" if number[1] else str(number[0])


def read(path: Path) -> Iterator[Building]:
    """Buildings of an official road-name address file (CP949, 24 columns), those above ground."""
    with path.open(encoding="cp949") as lines:
        for line in lines:
            c = line.rstrip("\r\n").split("|")
            if c[11] == "0":
                lot, number = (int(c[7]), int(c[8])), (int(c[12]), int(c[13]))
                name = c[21] or c[22]
                yield Building(c[0], c[2], c[3], c[4], c[5], c[6] == "1", lot, c[10], number, c[15], c[16], name)


class Truth:
    """Every building by road, by number and by lot, for questions about what a typed address can mean."""

    def __init__(self, buildings: Iterable[Building]) -> None:
        self.buildings = list(buildings)
        self.by_road: dict[tuple[str, Number], list[Building]] = defaultdict(list)
        self.along: dict[str, list[Building]] = defaultdict(list)
        self.by_number: dict[Number, list[Building]] = defaultdict(list)
        self.by_place: dict[tuple[str, bool, Number], list[Building]] = defaultdict(list)
        self.lots_of_emd: dict[tuple[str, bool, Number], list[Building]] = defaultdict(list)
        self.lots_of_admin: dict[tuple[str, bool, Number], list[Building]] = defaultdict(list)
        self.by_name: dict[tuple[str, str], list[Building]] = defaultdict(list)
        self.subs: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.last: dict[str, int] = defaultdict(int)
        self._near_roads: dict[str, list[list[Building]]] = {}
        self._nearest: dict[str, int] = {}
        for one in self.buildings:
            self.by_road[one.road, one.number].append(one)
            self.along[one.road].append(one)
            self.by_number[one.number].append(one)
            self.lots_of_emd[one.emd, one.san, one.lot].append(one)
            self.lots_of_admin[one.admin, one.san, one.lot].append(one)
            self.by_place[one.dong, one.san, one.lot].append(one)
            self.by_name[one.emd, compact(one.name)].append(one)
            self.subs[one.road, one.number[0]].add(one.number[1])
            self.last[one.road] = max(self.last[one.road], one.number[0])
        self.emds = sorted({one.emd for one in self.buildings})
        self.zipcodes = sorted({one.zipcode for one in self.buildings})
        self.names = {one.road for one in self.buildings}
        self.places = {(one.emd, one.dong) for one in self.buildings}
        self.dongs = {one.dong for one in self.buildings}
        zips: dict[str, set[str]] = defaultdict(set)
        for one in self.buildings:
            zips[one.emd].add(one.zipcode)
        self.zips_of_emd = {emd: sorted(codes) for emd, codes in zips.items()}

    def roads(self, road: str, number: Number) -> list[Building]:
        """Buildings with this very road and number."""
        return self.by_road.get((compact(road), number), [])

    def roads_near(self, road: str, number: Number) -> list[Building]:
        """Buildings with this number on a road whose name is one edit away, a left-out 로, 길 or 대로 among them."""
        key = compact(road)
        return [
            one
            for one in self.by_number.get(number, [])
            if one_edit(key, one.road) or one.road in (key + "로", key + "길", key + "대로")
        ]

    def near_roads(self, road: str) -> list[list[Building]]:
        """The buildings of each other road whose name is one edit away."""
        if road not in self._near_roads:
            names = sorted(name for name in self.names if name != road and one_edit(name, road))
            self._near_roads[road] = [self.along[name] for name in names]
        return self._near_roads[road]

    def near_dongs(self, emd: str, dong: str) -> list[str]:
        """The other 리 of the 읍면 (or the other 동) whose name is one edit away."""
        return sorted(name for of, name in self.places if of == emd and name != dong and one_edit(name, dong))

    def lots(self, emd: str, dong: str, san: bool, lot: Number) -> list[Building]:
        """Buildings on this lot; ``emd`` may be empty, when only the last word is known."""
        return [one for one in self.by_place.get((dong, san, lot), []) if not emd or emd == one.emd]

    def lots_near(self, emd: str, dong: str, san: bool, lot: Number) -> list[Building]:
        """Buildings on a lot of this number in a 동 or 리 whose name is one edit away, or of this administrative 동."""
        there = self.lots_of_emd.get((emd, san, lot), [])
        of_admin = [] if dong in self.dongs else self.lots_of_admin.get((dong, san, lot), [])
        return of_admin or [one for one in there if one_edit(dong, one.dong)]

    def road_is_near_none(self, road: str) -> bool:
        """Whether every road's name is more than two edits away."""
        if road not in self._nearest:
            likely = [name for name in self.names if len(set(name) - set(road)) < 3 and len(set(road) - set(name)) < 3]
            self._nearest[road] = min((distance(road, name) for name in likely), default=3)
        return self._nearest[road] > 2


def chosen(candidates: list[Building], area: str, zipcode: str | None) -> set[str]:
    """Official addresses left when the 읍/면 that was typed and the postal code have had their say."""
    candidates = [one for one in candidates if one.emd == area] or candidates
    candidates = [one for one in candidates if one.zipcode == zipcode] or candidates
    return {one.official for one in candidates}


def compact(text: str) -> str:
    """The text without white space, punctuation and width, for comparison only."""
    return "".join(letter for letter in unicodedata.normalize("NFKC", text) if letter.isalnum())


def one_edit(left: str, right: str) -> bool:
    """Whether one syllable put in, taken out or replaced makes the one of the other (or none is needed)."""
    if abs(len(left) - len(right)) > 1:
        return False
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    one, other = left[start:], right[start:]
    return one[1:] == other[1:] or one[1:] == other or one == other[1:]


def distance(left: str, right: str) -> int:
    """The number of syllables to put in, take out or replace."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
