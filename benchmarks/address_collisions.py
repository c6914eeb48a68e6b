"""Two regions whose roads and numbers collide: is a given region ever crossed, is a missing one ever guessed?

    python benchmarks/address_collisions.py OFFICIAL.txt [--rows 2000] [--seed 1]

OFFICIAL.txt is the ``rnaddrkor_*.txt`` file of 세종. Its copy is renamed into another real district, 공주시 of
충청남도: every road and number exists twice, some 읍면동 are called alike and some are not, postal codes become those
of 공주시, and a tenth of the buildings is left out of the copy. The gazetteer holds both. For each case: what was
answered, how much of it was right, how much was in the region that was *not* given (*crossed*, must be none), and
whether silence was kept where nothing decides.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import polars as pl
from address_noise import Answer, right
from noise import KINDS, Typed
from noise_truth import Building, Truth, read

from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer

SIDO, SIGUNGU, CODE = "충청남도", "공주시", "44150"
RENAMED = {
    "조치원읍": "유구읍",
    "장군면": "이인면",
    "부강면": "탄천면",
    "고운동": "신관동",
    "아름동": "웅진동",
    "어진동": "월송동",
}
"""읍면동 of 세종 that the copy calls otherwise; all others are called alike in both."""


def write_copy(source: Path, target: Path) -> None:
    """The official file as one of 공주시, every tenth building left out."""
    with source.open(encoding="cp949") as lines, target.open("w", encoding="cp949", newline="") as out:
        for place, line in enumerate(lines):
            if place % 10:
                cells = line.rstrip("\r\n").split("|")
                for column in (0, 1, 9):  # identity, dong and road begin with the code of the district
                    cells[column] = CODE + cells[column][5:]
                cells[2:5] = SIDO, SIGUNGU, RENAMED.get(cells[4], cells[4])
                cells[15], cells[16] = RENAMED.get(cells[15], cells[15]), moved(cells[16])
                out.write("|".join(cells) + "\r\n")


def moved(zipcode: str) -> str:
    return f"325{int(zipcode) % 100:02}"


@dataclass(frozen=True, slots=True)
class Worlds:
    """The region that the file is of, and its renamed copy."""

    here: Truth
    there: Truth

    def home(self, one: Building) -> Truth:
        return self.there if one.sigungu == SIGUNGU else self.here

    def twin(self, one: Building) -> Building | None:
        """The building of the other region with the same road and number."""
        other = self.here if one.sigungu == SIGUNGU else self.there
        return next(iter(other.roads(one.road, one.number)), None)


@dataclass
class Query(Typed):
    """An address on its way to being typed, and the two regions where it may be."""

    worlds: Worlds = field(kw_only=True)


Change = Callable[[Query], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """How an address is typed, and what is right: an answer, an answer or silence, silence."""

    name: str
    expected: str
    change: Change


CASES: list[Case] = []


def case(name: str, expected: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        CASES.append(Case(name, expected, change))
        return change

    return register


def typo(typed: Typed) -> bool:
    kind = typed.rng.choice(("road_syllable_wrong", "road_jamo_wrong", "road_syllable_missing"))
    return KINDS[kind].apply(typed) and typed.road not in typed.truth.names


def colliding(typed: Query) -> bool:
    """Whether the other region has this road and number in a 읍면동 of the same name."""
    twin = typed.worlds.twin(typed.building)
    return twin is not None and twin.emd == typed.building.emd


@case("region given", "answer")
def given(typed: Query) -> bool:
    return typed.worlds.twin(typed.building) is not None


@case("region given, short", "answer")
def short(typed: Query) -> bool:
    if typed.building.sigungu:
        typed.sido, typed.area = "", f"{typed.rng.choice(('충남 공주시', '공주시', '충남 공주'))} {typed.area}".strip()
    else:
        typed.sido = typed.rng.choice(("세종시", "세종"))
    return True


@case("region given, lot", "answer")
def lot(typed: Query) -> bool:
    return KINDS["lot_form"].apply(typed)


@case("region given, typo in the road", "own")
def given_typo(typed: Query) -> bool:
    return typo(typed)


@case("region given, postal code of the twin", "own")
def twin_code(typed: Query) -> bool:
    twin = typed.worlds.twin(typed.building)
    typed.zipcode = twin.zipcode if twin else None
    return twin is not None


@case("region given, lot, postal code of the twin", "own")
def lot_twin_code(typed: Query) -> bool:
    return twin_code(typed) and KINDS["lot_form"].apply(typed)


@case("region given, typo, postal code of the twin", "own")
def typo_twin_code(typed: Query) -> bool:
    return twin_code(typed) and typo(typed)


@case("region given, building only in the other", "silence")
def only_other(typed: Query) -> bool:
    """세종 has it, 공주시 is named."""
    typed.sido, typed.area = f"{SIDO} {SIGUNGU}", RENAMED.get(typed.area, typed.area)
    absent = typed.worlds.twin(typed.building) is None and not typed.worlds.there.roads_near(typed.road, typed.number)
    return absent and not typed.building.sigungu


@case("the same, with the postal code of the other", "silence")
def only_other_code(typed: Query) -> bool:
    typed.zipcode = typed.building.zipcode
    return only_other(typed)


@case("the same, as a lot", "silence")
def only_other_lot(typed: Query) -> bool:
    one = typed.building
    emd = RENAMED.get(one.emd, one.emd)
    there = typed.worlds.there.lots(emd, one.ri or emd, one.san, one.lot)
    fits = KINDS["lot_form"].apply(typed) and not there and not one.sigungu
    typed.sido, typed.area = f"{SIDO} {SIGUNGU}", emd if one.ri else ""
    typed.road = one.ri or emd
    return fits


@case("region missing", "silence")
def missing(typed: Query) -> bool:
    typed.sido = typed.area = ""
    return typed.worlds.twin(typed.building) is not None


@case("region missing, 읍면 of both", "silence")
def missing_both(typed: Query) -> bool:
    typed.sido = ""
    return colliding(typed)


@case("region missing, lot in a 읍면동 of both", "silence")
def missing_lot_both(typed: Query) -> bool:
    one = typed.building
    fits = KINDS["lot_form"].apply(typed) and colliding(typed)
    typed.sido = ""
    other = typed.worlds.here if one.sigungu else typed.worlds.there
    return fits and bool(other.lots(one.emd, one.dong, one.san, one.lot))


@case("region missing, typo in the road", "silence")
def missing_typo(typed: Query) -> bool:
    typed.sido = ""
    return colliding(typed) and typo(typed)


@case("region missing, postal code of a third", "silence")
def missing_third_code(typed: Query) -> bool:
    typed.zipcode = "06236"
    return missing(typed)


@case("region missing, its postal code", "answer")
def missing_code(typed: Query) -> bool:
    typed.zipcode = typed.building.zipcode
    return missing(typed)


@case("region missing, 읍면 of one", "answer")
def missing_one(typed: Query) -> bool:
    typed.sido = ""
    names = RENAMED.values() if typed.building.sigungu else RENAMED
    return typed.area in names


@case("region missing, lot in a 읍면동 of one", "answer")
def missing_lot_one(typed: Query) -> bool:
    fits = KINDS["lot_form"].apply(typed)
    typed.sido = ""
    return fits and typed.building.emd in (RENAMED.values() if typed.building.sigungu else RENAMED)


@case("region missing, (동) of one in brackets", "answer")
def missing_reference(typed: Query) -> bool:
    one = typed.building
    typed.sido, typed.note = "", f" ({one.emd})"
    return not one.rural and one.emd in (RENAMED.values() if one.sigungu else RENAMED)


@case("region missing, building in one only", "own")
def missing_unique(typed: Query) -> bool:
    typed.sido = typed.area = ""
    return typed.worlds.twin(typed.building) is None


@dataclass
class Tally:
    name: str
    expected: str
    rows: int = 0
    answered: int = 0
    right: int = 0
    crossed: int = 0

    def count(self, one: Building, answer: Answer) -> None:
        self.rows += 1
        if answer.address is not None:
            self.answered += 1
            self.right += self.expected != "silence" and right(one, answer)
            self.crossed += not answer.address.startswith(one.region)

    def __str__(self) -> str:
        numbers = f"{self.rows:6,}  {self.answered:6,}  {self.right:6,}  {self.crossed:6,}"
        return f"{self.name:<46}{self.expected:<9}{numbers}"


Asked = tuple[str, str | None, Building]


def queries(worlds: Worlds, pool: list[Building], one: Case, rows: int, seed: int) -> list[Asked]:
    rng = random.Random(f"{seed} {one.name}")
    start = rng.randrange(len(pool))
    found: list[Asked] = []
    for building in chain(pool[start:], pool[:start]):
        parts = (building.sido, building.area, building.road, building.number, None)
        typed = Query(rng, worlds.home(building), building, *parts, worlds=worlds)
        if one.change(typed):
            found.append((typed.text(), typed.zipcode, building))
            if len(found) == rows:
                break
    return found


def measured(worlds: Worlds, gazetteer: Gazetteer, rows: int, seed: int) -> list[Tally]:
    """Each case's addresses and what the library says to them, asked in one go."""
    pool = worlds.here.buildings + worlds.there.buildings
    random.Random(seed).shuffle(pool)
    asked = {one: queries(worlds, pool, one, rows, seed) for one in CASES}
    columns = {
        "address": [text for part in asked.values() for text, _, _ in part],
        "zipcode": [code for part in asked.values() for _, code, _ in part],
    }
    frame = pl.DataFrame(columns, schema={"address": pl.String, "zipcode": pl.String})
    found = attach(frame.lazy(), gazetteer, "en").select("match_level", "fixed_zipcode", "fixed_address").collect()
    rows_found = found.iter_rows()
    tallies = []
    for one, part in asked.items():
        tally = Tally(one.name, one.expected)
        for _, _, building in part:
            elsewhere = one.change in (only_other, only_other_code, only_other_lot)  # it is 공주시 that was named
            meant = replace(building, sido=SIDO, sigungu=SIGUNGU) if elsewhere else building
            tally.count(meant, Answer(*next(rows_found)))
        tallies.append(tally)
    return tallies


def prepared(folder: Path, source: Path) -> tuple[Worlds, Path]:
    """Both regions, and the gazetteer that holds both, built in ``folder``."""
    copy, path = folder / "rnaddrkor_copy.txt", folder / "gazetteer.parquet"
    write_copy(source, copy)
    build_gazetteer([source, copy], path)
    return Worlds(Truth(read(source)), Truth(read(copy))), path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("official", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as folder:
        worlds, path = prepared(Path(folder), options.official)
        print(f"{'case':<46}{'right is':<9}  rows  answered  right  crossed")
        tallies = measured(worlds, Gazetteer.open(path), options.rows, options.seed)
    print(*tallies, sep="\n")
    wrong = sum(one.answered - one.right for one in tallies)
    print(f"crossed: {sum(one.crossed for one in tallies)}; wrong or guessed: {wrong}")


if __name__ == "__main__":
    main()
