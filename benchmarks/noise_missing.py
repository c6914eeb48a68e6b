"""Buildings that a gazetteer does not hold: a tenth of the buildings, sub-lots or roads is taken out and asked for.

A gazetteer is older than the newest buildings, and the right answer about what it does not hold is silence. Each one is
asked for in the forms in which people write it, with and without its postal code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import polars as pl
from noise_format import DETAILS
from noise_truth import Building, Truth, written

from bansong import LocalEngine, build_registry
from bansong.reference.gazetteer import build_gazetteer

MISSING = ("buildings", "sub-lots", "roads")
SHARE = 10
DONG_DIGITS = 8
"""What a management number begins with; behind it stand the road's number and the building's."""
NUMBER = "1248100998"

Right = Callable[[Building, str, str], bool]


@dataclass(slots=True)
class Tally:
    """What became of the questions of one form: ``wrong`` of the answered, ``sent`` of the wrong."""

    missing: str
    form: str
    coded: bool | None
    rows: int = 0
    answered: int = 0
    wrong: int = 0
    sent: int = 0

    def count(self, answered: bool, wrong: bool, sent: bool) -> None:
        self.rows += 1
        self.answered += answered
        self.wrong += wrong
        self.sent += sent

    def add(self, other: Tally) -> None:
        self.rows += other.rows
        self.answered += other.answered
        self.wrong += other.wrong
        self.sent += other.sent

    def __str__(self) -> str:
        code = {True: "with", False: "without", None: "both"}[self.coded]
        return (
            f"{self.missing:<10}{self.form:<24}{code:<9}{self.rows:7,}{self.answered:9,}{self.wrong:7,}"
            f"{100 * self.wrong / max(self.rows, 1):8.3f}%{self.sent:6,}"
        )


HEADER = f"{'missing':<10}{'form':<24}{'postal':<9}{'rows':>7}{'answered':>9}{'wrong':>7}{'':>9}{'sent':>6}"


@dataclass(frozen=True, slots=True)
class Question:
    """One address of a building that was taken out, and what the engine said to it."""

    missing: str
    form: str
    building: Building
    address: str
    zipcode: str | None


def taken_out(truth: Truth, missing: str, rng: random.Random) -> list[Building]:
    """A tenth of the buildings; all on a tenth of the sub-lots; all on a tenth of the roads."""
    key = {
        "buildings": lambda one: one.identity,
        "sub-lots": lambda one: (one.emd, one.ri, one.san, one.lot),
        "roads": lambda one: one.road,
    }[missing]
    pool = [one for one in truth.buildings if missing != "sub-lots" or one.lot[1]]
    keys = sorted({key(one) for one in pool})
    chosen = set(rng.sample(keys, len(keys) // SHARE))
    return [one for one in pool if key(one) in chosen]


def forms(one: Building, truth: Truth, rng: random.Random) -> Iterator[tuple[str, str]]:
    """The address in each form that fits the building: by its road always, by its lot where it is alone there."""
    number = written(one.number)
    bracket = ", ".join(filter(None, (one.dong, one.name)))
    yield "road", one.official
    yield "road, short region", f"세종시 {' '.join(filter(None, (one.area, one.road)))} {number}"
    yield "road, no town", f"{one.region} {one.road} {number}, {rng.choice(DETAILS)}"
    yield "road (dong)", f"{one.official} ({one.dong})"
    yield "road (dong, name)", f"{one.official} ({bracket})"
    if len(truth.lots(one.emd, one.dong, one.san, one.lot)) != 1 or not one.lot[0]:
        return
    main, sub = one.lot
    place = " ".join(filter(None, (one.region, one.emd, one.ri))) + (" 산" if one.san else "")
    yield "lot", f"{place} {written(one.lot)}"
    yield "lot, 번지", f"{place} {written(one.lot)}번지, {rng.choice(DETAILS)}"
    if sub:
        yield "번지 호", f"{place} {main}번지 {sub}호"
        yield "번지 호, name", f"{place} {main}번지 {sub}호 {one.name or '한솔상사'}"
        yield "번지 호 (dong)", f"{place} {main}번지{sub}호 ({one.dong})"


def questions(truth: Truth, missing: str, gone: list[Building], rng: random.Random) -> list[Question]:
    return [
        Question(missing, form, one, address, zipcode)
        for one in gone
        for form, address in forms(one, truth, rng)
        for zipcode in (None, one.zipcode)
    ]


def same_address(truth: Truth, one: Building) -> list[Building]:
    """The building, and others of its number on the very road (not one of its name): roads cross borders of towns."""
    road_and_number = one.identity[DONG_DIGITS:]
    return [other for other in truth.roads(one.road, one.number) if other.identity[DONG_DIGITS:] == road_and_number]


def engine_without(official: Path, gone: list[Building], folder: Path) -> LocalEngine:
    """The engine with a gazetteer that lacks these buildings, and a registry in which the business is active."""
    identities = {one.identity for one in gone}
    kept = [
        line
        for line in official.read_bytes().splitlines(keepends=True)
        if line.partition(b"|")[0].decode() not in identities
    ]
    rest = folder / "rnaddrkor_rest.txt"
    rest.write_bytes(b"".join(kept))
    build_gazetteer([rest], folder / "gazetteer.parquet")
    source = folder / "status.csv"
    source.write_text(f"b_no,status\n{NUMBER},계속사업자\n", encoding="utf-8")
    build_registry([source], folder / "registry.parquet", as_of=date.today())
    return LocalEngine(folder / "registry.parquet", gazetteer=folder / "gazetteer.parquet")


def answered(engine: LocalEngine, asked: list[Question]) -> pl.DataFrame:
    """The engine's ``fixed_address``, ``fixed_zipcode``, ``action`` and ``reasons`` for each question."""
    columns = {"address": [one.address for one in asked], "zipcode": [one.zipcode for one in asked]}
    frame = pl.DataFrame(columns, schema={"address": pl.String, "zipcode": pl.String})
    frame = frame.with_columns(b_no=pl.lit(NUMBER), name=pl.lit("한솔상사"))
    return engine.answer(frame.lazy()).select("fixed_address", "fixed_zipcode", "action", "reasons").collect()


@dataclass(frozen=True, slots=True)
class Missing:
    """What the engine answered to all questions about what was taken out."""

    tallies: list[Tally]
    wrong: list[tuple[Question, str, str, str]]
    """Of each wrong answer: the question, the address that was answered, the action, the reasons."""

    def total(self, missing: str) -> Tally:
        whole = Tally(missing, "all", None)
        for one in self.tallies:
            if one.missing == missing:
                whole.add(one)
        return whole


def measured(official: Path, truth: Truth, folder: Path, seed: int, right: Right) -> Missing:
    """Take out each kind in turn and ask for what is gone; ``right``: whether an answer is that building."""
    found = Missing([], [])
    for missing in MISSING:
        rng = random.Random(f"{seed} {missing}")
        gone = taken_out(truth, missing, rng)
        asked = questions(truth, missing, gone, rng)
        answers = answered(engine_without(official, gone, folder), asked)
        tallies: dict[tuple[str, bool], Tally] = {}
        for one, (address, zipcode, action, reasons) in zip(asked, answers.iter_rows(), strict=True):
            coded = one.zipcode is not None
            tally = tallies.setdefault((one.form, coded), Tally(missing, one.form, coded))
            wrong = address is not None and not any(
                right(building, address, zipcode) for building in same_address(truth, one.building)
            )
            tally.count(address is not None, wrong, wrong and action == "send")
            if wrong:
                found.wrong.append((one, address, action, reasons))
        found.tallies.extend(tallies.values())
    return found
