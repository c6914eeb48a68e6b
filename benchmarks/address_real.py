"""Real addresses: how many are read, and how many answers from a gazetteer made of a register's own rows are right.

    python benchmarks/address_real.py [--share 0.7] [--seed 1] [--dump FILE]

Needs the shared evaluation data. Three tables:

- *read*: rows of ``localdata_vet_half.csv`` (both address columns) and of the four ``gisman_*.txt`` lists in which a
  road and its number, or a dong and a lot number, are found; and how many of those agree with a strict reading by two
  regular expressions (``real_rows.py``) where that can read them.
- *fixed*: a seeded ``--share`` of the buildings whose road address, lot address and postal code agree becomes a
  national gazetteer; asked are the lot forms and the road forms of its rows, as they stand in the register, and all
  other rows, which it mostly does not hold. *right*: the road, number and postal code of the row's own building;
  *wrong*: any other answer.
- *disagreements*: rows whose lot form and road form lead to different answers, by class.

``--dump`` writes what was answered wrongly, for developers: addresses may be people's homes, so keep it to yourself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from real_rows import ADDRESSES, Place, Row, agreed, drawn, rows, write_official

from bansong.engine.address import parse
from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer

Answer = tuple[str | None, str | None, str | None]
"""Match level, postal code, address."""
Key = tuple[str, str, str, bool, int, int]
"""Region, 동 or 리, whether 산, lot number."""


def frame_of(addresses: Iterable[str], zipcodes: Iterable[str | None] | None = None) -> pl.DataFrame:
    texts = list(addresses)
    codes = [None] * len(texts) if zipcodes is None else [code or None for code in zipcodes]
    return pl.DataFrame({"address": texts, "zipcode": codes}, schema={"address": pl.String, "zipcode": pl.String})


# --- read ---------------------------------------------------------------------------------------------------------


def lists() -> dict[str, list[str]]:
    """The lists of address strings by file name, without their comments."""
    found = {}
    for path in sorted(ADDRESSES.glob("gisman_*.txt")):
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        found[path.name] = [line for line in lines if line and not line.startswith("#")]
    return found


def parsed(addresses: list[str]) -> pl.DataFrame:
    road = pl.col("road").is_not_null() & pl.col("main").is_not_null()
    lot = pl.col("lot_dong").is_not_null() & pl.col("lot_main").is_not_null()
    return parse.parse(frame_of(addresses).lazy()).with_columns(has_road=road, has_lot=lot).collect()


def same_road(read: dict[str, object], strict: Place) -> bool:
    name = str(read["road"] or "").replace("·", "")
    return (name, read["main"], read["sub"]) == (strict.road.replace("·", ""), strict.main, strict.sub)


def same_lot(read: dict[str, object], strict: Place) -> bool:
    numbers = [(read["lot_main"], read["lot_sub"])] + ([(read["lot_main"], 0)] if read["lot_ho"] else [])
    same = (strict.main, strict.sub) in numbers and bool(read["san"]) == bool(strict.road)
    return same and read["lot_dong"] == (strict.ri or strict.emd)


def table_of_reading(every: list[Row]) -> list[str]:
    sources: dict[str, list[tuple[str, Place | None]]] = {
        "register, road addresses": [(row.road_text, row.road) for row in every if row.road_text],
        "register, lot addresses": [(row.lot_text, row.lot) for row in every if row.lot_text],
        **{name: [(line, None) for line in lines] for name, lines in lists().items()},
    }
    out = [
        "| source | rows | road + number | dong + lot number | read | same as the strict reading |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, pairs in sources.items():
        found = parsed([text for text, _ in pairs])
        held = [
            (same_road if name.endswith("road addresses") else same_lot)(read, strict)
            for read, (_, strict) in zip(found.iter_rows(named=True), pairs, strict=True)
            if strict
        ]
        either = pl.any_horizontal("has_road", "has_lot").sum().alias("either")
        road, lot, both = found.select(pl.col("has_road", "has_lot").sum(), either).row(0)
        strictly = f"{sum(held):,} of {len(held):,}" if held else "–"
        out.append(f"| {name} | {len(pairs):,} | {road:,} | {lot:,} | {share(both, len(pairs))} | {strictly} |")
    return out


# --- fixed --------------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What became of the queries of one kind."""

    name: str
    rows: int = 0
    answered: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        levels = ", ".join(f"{level} {count:,}" for level, count in self.levels.most_common())
        answered = share(self.answered, self.rows)
        right = f"{self.right:,} of {self.answered:,}"
        return f"| {self.name} | {self.rows:,} | {answered} | {right} | {len(self.wrong)} | {levels} |"


def answers(gazetteer: Gazetteer, addresses: list[str], zipcodes: list[str] | None = None) -> list[Answer]:
    asked = attach(frame_of(addresses, zipcodes).lazy(), gazetteer, "en")
    return asked.select("match_level", "fixed_zipcode", "fixed_address").collect().rows()


def is_building(answer: Answer, place: Place, zipcode: str | None) -> bool:
    """Whether the answer is this road and number (the region's name may be a newer one) and postal code."""
    head, _, _ = (answer[2] or "").partition(",")
    words = head.partition(" (")[0].split()
    number = [word for word in words if word != "지하"][-2:]
    return number == [place.road, place.number] and (zipcode is None or answer[1] == zipcode)


def own(chosen: list[Row], gazetteer: Gazetteer, *, lot: bool, zipcodes: bool) -> Figures:
    name = f"{'lot' if lot else 'road'} forms of its rows, {'with' if zipcodes else 'without'} the postal code"
    figures = Figures(name)
    texts = [row.lot_text if lot else row.road_text for row in chosen]
    found = answers(gazetteer, texts, [row.zipcode for row in chosen] if zipcodes else None)
    for row, text, answer in zip(chosen, texts, found, strict=True):
        assert row.road
        tally(figures, text, answer, is_building(answer, row.road, row.zipcode))
    return figures


def tally(figures: Figures, text: str, answer: Answer, right: bool) -> None:
    figures.rows += 1
    figures.levels[answer[0] or "blank"] += 1
    if answer[2] is None:
        figures.unanswered.append(f"{answer[0]} | {text}")
        return
    figures.answered += 1
    figures.right += right
    if not right:
        figures.wrong.append(f"{answer[0]} | {text} | {answer[2]} | {answer[1]}")


def others(every: list[Row], chosen: list[Row], gazetteer: Gazetteer, *, lot: bool) -> Figures:
    """All rows outside; an answer is right when the address, read strictly, is that building of the gazetteer."""
    figures = Figures(f"{'lot' if lot else 'road'} forms of all other rows")
    inside = {id(row) for row in chosen}
    on_lot: dict[Key, list[Place]] = defaultdict(list)
    for row in chosen:
        if row.lot and row.road:
            on_lot[key(row.lot)].append(row.road)
    asked = [row for row in every if id(row) not in inside and (row.lot_text if lot else row.road_text)]
    texts = [row.lot_text if lot else row.road_text for row in asked]
    found = answers(gazetteer, texts, [row.zipcode for row in asked])
    for row, text, answer in zip(asked, texts, found, strict=True):
        places = [row.road] if row.road else []
        if lot and row.lot:
            places += on_lot[key(row.lot)]
        right = any(is_building(answer, place, None) for place in places)
        tally(figures, f"{text} ({row.road_text}) {row.zipcode}", answer, right)
    return figures


def key(lot: Place) -> Key:
    return lot.sido, lot.sigungu, lot.ri or lot.emd, bool(lot.road), lot.main, lot.sub


def disagreements(chosen: list[Row], gazetteer: Gazetteer) -> tuple[Counter[str], list[str]]:
    """Rows whose two forms do not lead to the same building, by what became of each."""
    by_lot = answers(gazetteer, [row.lot_text for row in chosen])
    by_road = answers(gazetteer, [row.road_text for row in chosen])
    classes: Counter[str] = Counter()
    listed = []
    for row, lot, road in zip(chosen, by_lot, by_road, strict=True):
        assert row.road
        if lot[2] and road[2]:
            same = is_building(lot, row.road, row.zipcode) == is_building(road, row.road, row.zipcode)
            kind = "" if same else "the two forms give different buildings"
        else:
            kind = "" if not lot[2] and not road[2] else f"only the {'lot' if lot[2] else 'road'} form is answered"
            kind += f" (the other is {(road if lot[2] else lot)[0]})" if kind else ""
        if kind:
            classes[kind] += 1
            listed.append(f"{kind} | {row.lot_text} | {row.road_text} | {row.zipcode} | {lot} | {road}")
    return classes, listed


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"


def built(chosen: list[Row], folder: Path) -> Gazetteer:
    write_official(chosen, folder)
    build_gazetteer([folder / "rnaddrkor_all.txt", folder / "jibun_rnaddrkor_all.txt"], folder / "gazetteer.parquet")
    return Gazetteer.open(folder / "gazetteer.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dump", type=Path)
    options = parser.parse_args()
    if not ADDRESSES.is_dir():
        sys.exit(f"skipped: the shared evaluation data is not at {ADDRESSES}")
    every = rows()
    print(*table_of_reading(every), "", sep="\n")
    usable, contradicted = agreed(every)
    chosen = drawn(usable, options.share, options.seed)
    faults = Counter(row.fault for row in every if row.fault)
    print(f"{len(every):,} rows; {len(usable):,} agree in road, lot and postal code; left out:")
    print(*(f"- {count:,}: {words}" for words, count in faults.most_common()), sep="\n")
    print(f"- {len(contradicted)}: another row of the same building has another 읍면동 or postal code\n")
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as folder:
        gazetteer = built(chosen, Path(folder))
        print(f"{len(chosen):,} rows in the gazetteer, {gazetteer.buildings:,} buildings\n")
        print("| asked | rows | answered | right | wrong | levels |", "| --- | --- | --- | --- | --- | --- |", sep="\n")
        figures = [own(chosen, gazetteer, lot=lot, zipcodes=zips) for lot in (True, False) for zips in (True, False)]
        figures += [others(every, chosen, gazetteer, lot=lot) for lot in (True, False)]
        print(*figures, "", sep="\n")
        classes, listed = disagreements(chosen, gazetteer)
    print("| the two forms of a row | rows |", "| --- | --- |", sep="\n")
    print(f"| lead to the same building, or neither to any | {len(chosen) - sum(classes.values()):,} |")
    print(*(f"| {words} | {count:,} |" for words, count in classes.most_common()), sep="\n")
    if options.dump:
        lines = [f"WRONG {one.name}: {line}" for one in figures for line in one.wrong]
        lines += [f"SILENT {one.name}: {line}" for one in figures[:4] for line in one.unanswered]
        options.dump.write_text("\n".join([*lines, *listed]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
