"""How many noisy addresses are answered, and how many answers are right: one official file as gazetteer and truth.

    python benchmarks/address_noise.py OFFICIAL.txt [--rows 2000] [--seed 1] [--classes A,B] [--gazetteer G]
                                       [--dump CLASS] [--missing]

OFFICIAL.txt is a ``rnaddrkor_*.txt`` file; without ``--gazetteer`` the library builds one from it. For each class of
noise: *answered* (``fixed_address`` is given), with and without a postal code beside the address; *right* (that road,
number, 읍 or 면 and region, and the postal code of the building) among the answered; *zip only* (the postal code alone)
and how many are right; *doubtful* (answered of those that fit several buildings); whether the detail survived; the
match levels. What an address can mean is decided by ``noise_truth``, not by the library. Goals: right 99.9 % over all
classes; answered 99.5 % for format noise, 95 % for one wrong character in the road's name beside a postal code, 99 %
for a wrong postal code, at most 0.1 % of what exists nowhere. ``--dump CLASS`` prints what was answered wrongly or not
at all, for developers; ``--engine`` asks the whole engine too, whose answers must be the same.

``--missing`` takes a tenth of the buildings, sub-lots and roads out of the gazetteer and asks for them (see
``noise_missing``). Goals: at most 0.1 % answered, and none of these with the action ``send``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from pathlib import Path

import noise
import noise_missing
import polars as pl
from noise_truth import Building, Truth, compact, read

from bansong import LocalEngine
from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer

GOALS = {"format": 0.995, "character": 0.95, "postal": 0.99}
WITNESSED = "character"
"""A group that nobody can repair without a witness: its goal is for the rows with a postal code."""
SILENT = ("nowhere", "undecidable")
COMBINED = {"two classes together": 2, "three classes together": 3}


@dataclass(frozen=True, slots=True)
class Answer:
    level: str | None
    zipcode: str | None
    address: str | None


@dataclass
class Figures:
    """What became of the addresses of one noise class."""

    name: str
    group: str
    rows: int = 0
    answered: int = 0
    right: int = 0
    only_zip: int = 0
    only_zip_right: int = 0
    with_zip: list[int] = field(default_factory=lambda: [0, 0])
    without_zip: list[int] = field(default_factory=lambda: [0, 0])
    doubtful: list[int] = field(default_factory=lambda: [0, 0])
    details: list[int] = field(default_factory=lambda: [0, 0])
    levels: Counter[str] = field(default_factory=Counter)

    def count(self, one: noise.Sample, answer: Answer) -> None:
        answered = answer.address is not None
        self.rows += 1
        self.answered += answered
        self.levels[answer.level or "blank"] += 1
        for tally in (self.with_zip if one.zipcode else self.without_zip, self.doubtful if one.doubtful else None):
            if tally is not None:
                tally[0] += 1
                tally[1] += answered
        if answer.address is not None:
            self.right += self.group not in SILENT and right(one.building, answer)
            if one.kept:
                self.details[0] += 1
                self.details[1] += all(compact(word) in compact(answer.address) for word in one.kept)
        elif answer.zipcode is not None:
            self.only_zip += 1
            self.only_zip_right += answer.zipcode == one.building.zipcode

    @property
    def passed(self) -> bool | None:
        """Whether the class reaches the goal of its group, None where there is none."""
        if self.group in SILENT:
            return self.answered <= 0.001 * self.rows
        goal = GOALS.get(self.group)
        whole, part = self.with_zip if self.group == WITNESSED else self.decided
        return None if goal is None else part >= goal * whole

    @property
    def decided(self) -> tuple[int, int]:
        """How many of the addresses can be decided at all, and how many of these were answered."""
        return self.rows - self.doubtful[0], self.answered - self.doubtful[1]

    def __str__(self) -> str:
        fields = [
            f"{self.name:<24}{self.group:<12}{self.rows:6,}",
            f"{share(self.answered, self.rows)} ({share(*self.with_zip[::-1])}/{share(*self.without_zip[::-1])})",
            f"{self.right:5}/{self.answered:<5}{share(self.right, self.answered)}",
            f"{self.only_zip_right:4}/{self.only_zip:<4}",
            f"{self.doubtful[1]:4}/{self.doubtful[0]:<4}",
            share(*self.details[::-1]),
            {True: "pass", False: "FAIL", None: "    "}[self.passed],
            " ".join(f"{level} {count}" for level, count in self.levels.most_common()),
        ]
        return "  ".join(fields)


HEADER = (
    f"{'class':<24}{'group':<12}{'rows':>6}  answered (with/without zip)  right of answered    zip only   doubtful  "
    "detail  goal  levels"
)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.2f}%" if whole else "      -"


def right(building: Building, answer: Answer) -> bool:
    """Whether the answer is this building: its whole road address up to the number, and its postal code."""
    address = answer.address or ""
    rest = address[len(building.official) :]
    same = address.startswith(building.official) and not rest[:1].isdigit() and rest[:1] != "-"
    return same and answer.zipcode == building.zipcode


def drawn(truth: Truth, seed: int) -> list[Building]:
    """The buildings in random order, one of a 동 after three of a 읍 or 면: they are few, their letters many."""
    pool = random.Random(seed).sample(truth.buildings, len(truth.buildings))
    urban = cycle([one for one in pool if not one.rural])
    turns = zip(*[iter(one for one in pool if one.rural)] * 3, urban, strict=False)
    return list(chain.from_iterable(turns))


def samples(truth: Truth, pool: list[Building], name: str, rows: int, seed: int) -> list[noise.Sample]:
    """So many addresses of a class, or of classes combined; fewer where the class suits few buildings."""
    rng = random.Random(f"{seed} {name}")
    start, seen = rng.randrange(len(pool)), set()
    found: list[noise.Sample] = []
    for building in islice(chain(pool[start:], pool[:start]), 60 * rows):
        if building.identity in seen:
            continue
        seen.add(building.identity)
        size = COMBINED.get(name)
        names = noise.combination(rng, size) if size else (name,)
        if one := noise.sample(names, building, rng, truth):
            found.append(one)
            if len(found) == rows:
                break
    return found


def answers(queries: list[noise.Sample], gazetteer: Gazetteer) -> list[Answer]:
    frame = framed(queries)
    found = attach(frame.lazy(), gazetteer, "en").select("match_level", "fixed_zipcode", "fixed_address").collect()
    return [Answer(*row) for row in found.iter_rows()]


def framed(queries: list[noise.Sample]) -> pl.DataFrame:
    columns = {"address": [one.address for one in queries], "zipcode": [one.zipcode for one in queries]}
    return pl.DataFrame(columns, schema={"address": pl.String, "zipcode": pl.String})


def engine_differs(queries: list[noise.Sample], found: list[Answer], gazetteer: Path) -> int:
    """How many answers of the whole engine are not those of the address part alone."""
    frame = framed(queries).with_columns(b_no=pl.lit("1248100998"))
    whole = LocalEngine(gazetteer=gazetteer).answer(frame.lazy()).select("fixed_zipcode", "fixed_address").collect()
    return sum(row != (one.zipcode, one.address) for row, one in zip(whole.iter_rows(), found, strict=True))


def measured(truth: Truth, gazetteer: Gazetteer, names: list[str], rows: int, seed: int) -> list[Outcome]:
    """Each class's addresses and what the library says to them, asked in one go."""
    pool = drawn(truth, seed)
    queries = {name: samples(truth, pool, name, rows, seed) for name in names}
    found = iter(answers([one for part in queries.values() for one in part], gazetteer))
    outcomes = []
    for name, part in queries.items():
        group = "combined" if name in COMBINED else noise.KINDS[name].group
        outcome = Outcome(Figures(name, group), part, [next(found) for _ in part])
        for one, answer in zip(outcome.queries, outcome.answers, strict=True):
            outcome.figures.count(one, answer)
        outcomes.append(outcome)
    return outcomes


@dataclass
class Outcome:
    figures: Figures
    queries: list[noise.Sample]
    answers: list[Answer]

    def dump(self) -> None:
        for one, answer in zip(self.queries, self.answers, strict=True):
            wrong = answer.address is not None and (self.figures.group in SILENT or not right(one.building, answer))
            lost = answer.address is not None and not all(compact(w) in compact(answer.address) for w in one.kept)
            if wrong or lost or (answer.address is None and self.figures.group not in SILENT and not one.doubtful):
                kind = "WRONG" if wrong else "lost" if lost else "silent"
                words = (one.building.official, one.building.zipcode, answer.address, answer.zipcode)
                print(kind, "+".join(one.noises), repr(one.address), one.zipcode, "|", *words, answer.level, sep="  ")


def totals(outcomes: list[Figures]) -> Iterator[str]:
    told = [one for one in outcomes if one.group not in (*SILENT, "beyond")]
    answered, sound = sum(one.answered for one in told), sum(one.right for one in told)
    silent = [one for one in outcomes if one.group in SILENT]
    heard, asked = sum(one.answered for one in silent), sum(one.rows for one in silent)
    yield f"right of answered: {sound:,}/{answered:,} = {share(sound, answered)} (goal 99.9 %)"
    yield f"with what is nowhere or undecidable: {sound:,}/{answered + heard:,} = {share(sound, answered + heard)}"
    yield f"nowhere or undecidable, answered: {heard:,}/{asked:,} = {share(heard, asked)} (goal at most 0.1 %)"
    for group, goal in GOALS.items():
        of = [one for one in outcomes if one.group == group]
        part, whole = sum(one.answered for one in of), sum(one.rows for one in of)
        decidable, decided = (sum(one.decided[place] for one in of) for place in (0, 1))
        coded, with_code = (sum(one.with_zip[place] for one in of) for place in (0, 1))
        yield (
            f"{group} noise, answered: {part:,}/{whole:,} = {share(part, whole)}, of what can be decided "
            f"{share(decided, decidable)}, with a postal code {share(with_code, coded)} (goal {goal:.1%}"
            f"{' with a postal code' if group == WITNESSED else ''})"
        )
    beyond = [one for one in outcomes if one.group == "beyond"]
    part, whole, sound = (sum(getattr(one, name) for one in beyond) for name in ("answered", "rows", "right"))
    yield f"too much wrong, answered all the same: {part:,}/{whole:,} = {share(part, whole)}, right {sound:,} of them"
    kept, given = (sum(one.details[place] for one in outcomes) for place in (1, 0))
    yield f"details kept: {kept:,}/{given:,} = {share(kept, given)} (goal 100 %)"


def measured_missing(official: Path, truth: Truth, folder: Path, seed: int) -> noise_missing.Missing:
    """What is answered about buildings that are not in the gazetteer."""

    def is_right(building: Building, address: str, zipcode: str) -> bool:
        return right(building, Answer(None, zipcode, address))

    return noise_missing.measured(official, truth, folder, seed, is_right)


def report_missing(official: Path, truth: Truth, seed: int, dump: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as folder:
        found = measured_missing(official, truth, Path(folder), seed)
    print(noise_missing.HEADER, *found.tallies, sep="\n")
    print(*(found.total(missing) for missing in noise_missing.MISSING), sep="\n")
    if dump:
        for one, address, action, reasons in found.wrong:
            meant = f"{one.building.official} {one.building.zipcode}"
            print(one.missing, repr(one.address), one.zipcode, "|", meant, "|", address, action, reasons, sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("official", type=Path)
    parser.add_argument("--gazetteer", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--classes", type=lambda text: text.split(","))
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--dump", action="append", default=[], metavar="CLASS")
    options = parser.parse_args()
    names = options.classes or [name for name in options.dump if name != "missing"] or [*noise.KINDS, *COMBINED]
    if unknown := [name for name in names if name not in noise.KINDS and name not in COMBINED]:
        sys.exit(f"no such class: {', '.join(unknown)}; there are {', '.join([*noise.KINDS, *COMBINED])}")
    truth = Truth(read(options.official))
    if options.missing:
        report_missing(options.official, truth, options.seed, "missing" in options.dump)
        return
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as folder:
        path = options.gazetteer or Path(folder) / "gazetteer.parquet"
        if options.gazetteer is None:
            build_gazetteer([options.official], path)
        outcomes = measured(truth, Gazetteer.open(path), names, options.rows, options.seed)
        figures = [outcome.figures for outcome in outcomes]
        print(HEADER, *figures, *totals(figures), sep="\n")
        for outcome in outcomes:
            if outcome.figures.name in options.dump:
                outcome.dump()
        if options.engine:
            queries = [one for outcome in outcomes for one in outcome.queries]
            found = [one for outcome in outcomes for one in outcome.answers]
            print(f"answers of the whole engine that differ: {engine_differs(queries, found, path)}")


if __name__ == "__main__":
    main()
