"""The same noisy addresses to bansong and to what else can be installed or written for them.

    python benchmarks/address_compare.py OFFICIAL.txt [--rows 40] [--seed 1] [--gazetteer G] [--fuzzy-rows 300]

OFFICIAL.txt is a ``rnaddrkor_*.txt`` file: every method looks its addresses up in those buildings. The queries are
``--rows`` of each class of ``noise.py``, half of them with a postal code beside the address, and as many that are
officially written. A method answers with one building or not at all:

- *exact join*: polars, the address as it stands against the three official ways to write a building;
- *regex join*: what a careful analyst writes in some twenty lines: spaces out, road and number by a regular expression,
  lots likewise, joined on (road, number) and (dong, lot), none where the join gives several buildings;
- *rapidfuzz*: the best of all official strings by ``process.extractOne``, above a cut-off of 90 or 95, on a part of
  the queries because it is slow (``pip install rapidfuzz``);
- *libpostal*: its parse into road and house number, then the join of the analyst (``pip install libpypostal`` and
  ``LIBPOSTAL_DATA_DIR``: its 2 GB of models are no part of the package);
- *bansong*: the address part of the engine.

*answered*: of the addresses that can be decided. *right*: of those answered, the road, number and region of the
building that was meant. *nowhere*: answered of those that exist nowhere or fit several buildings. A method whose
package is missing is left out, saying so.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import noise
import polars as pl
from address_noise import Answer, right
from measure import bansong, once
from noise_truth import Building, Truth, read

SPEED_ROWS = 50_000
SILENT = ("nowhere", "undecidable")
OFFICIAL = "official"
ROAD = re.compile(r"([가-힣0-9·.]+(?:대로|로|길))(\d+)(?:-(\d+))?")
LOT = re.compile(r"([가-힣0-9]+[동리가])(산?)(\d+)(?:-(\d+))?")
Method = Callable[[list[str]], list[str | None]]


@dataclass(frozen=True, slots=True)
class Query:
    """An address and its truth; ``group`` of its noise class."""

    group: str
    address: str
    zipcode: str | None
    building: Building


@dataclass
class Figures:
    """How a method did on the queries of one group."""

    rows: int = 0
    answered: int = 0
    right: int = 0


def queries(truth: Truth, rows: int, seed: int) -> list[Query]:
    found = [Query(OFFICIAL, one.official, None, one) for one in random.Random(seed).sample(truth.buildings, rows)]
    for name, kind in noise.KINDS.items():
        if kind.group == "beyond":
            continue
        rng = random.Random(f"{seed} {name}")
        pool = rng.sample(truth.buildings, min(len(truth.buildings), 100 * rows))
        made = (noise.sample((name,), building, rng, truth) for building in pool)
        kept = (one for one in made if one and (not one.doubtful or kind.group in SILENT))
        found += [Query(kind.group, one.address, one.zipcode, one.building) for one in islice(kept, rows)]
    return random.Random(seed).sample(found, len(found))


def spellings(buildings: Iterable[Building]) -> dict[str, str | None]:
    """Each official way to write a building → its road address, None where several buildings share it (a lot)."""
    known: dict[str, str | None] = {}
    for one in buildings:
        san, lot = ("산 " if one.san else ""), f"{one.lot[0]}-{one.lot[1]}" if one.lot[1] else str(one.lot[0])
        place = " ".join(filter(None, (one.region, one.emd, one.ri)))
        ways = (one.official, f"{one.official} ({one.dong})", f"{place} {san}{lot}")
        for way in ways:
            known[way] = one.official if known.get(way, one.official) == one.official else None
    return known


def exact_join(truth: Truth) -> Method:
    known = spellings(truth.buildings)
    table = pl.DataFrame({"address": known.keys(), "found": known.values()})

    def answer(addresses: list[str]) -> list[str | None]:
        frame = pl.DataFrame({"address": addresses})
        return frame.join(table, on="address", how="left", maintain_order="left")["found"].to_list()

    return answer


def keys(address: str) -> Iterable[str]:
    """Road and number, else dong and lot, of an address without its spaces: the analyst's two regular expressions."""
    text = re.sub(r"\s+", "", address.split("(")[0])
    text = re.sub(r"^(?:세종특별자치시|세종시|세종)?", "", text)
    text = re.sub(r"^[가-힣]{1,3}[읍면](?=[가-힣])", "", text)
    if found := ROAD.search(text):
        return [f"{found[1]} {found[2]}-{found[3] or 0}"]
    if found := LOT.search(text):
        return [f"{found[1]} {found[2]}{found[3]}-{found[4] or 0}"]
    return []


def by_key(truth: Truth) -> dict[str, str | None]:
    """Road and number, dong and lot of each building → its road address, None where there are several."""
    known: dict[str, str | None] = {}
    for one in truth.buildings:
        lot = f"{one.dong} {'산' if one.san else ''}{one.lot[0]}-{one.lot[1]}"
        for key in (f"{one.road} {one.number[0]}-{one.number[1]}", lot):
            known[key] = one.official if known.get(key, one.official) == one.official else None
    return known


def regex_join(truth: Truth) -> Method:
    known = by_key(truth)
    return lambda addresses: [next((known.get(key) for key in keys(one)), None) for one in addresses]


def fuzzy(truth: Truth, scorer: str, cut_off: int) -> Method:
    from rapidfuzz import fuzz, process

    known = {way: found for way, found in spellings(truth.buildings).items() if found and not way.endswith(")")}
    names = list(known)

    def answer(addresses: list[str]) -> list[str | None]:
        best = (process.extractOne(one, names, scorer=getattr(fuzz, scorer), score_cutoff=cut_off) for one in addresses)
        return [known[found[0]] if found else None for found in best]

    return answer


def libpostal(truth: Truth) -> Method:
    from libpypostal import parser

    if not os.environ.get("LIBPOSTAL_DATA_DIR"):
        raise ImportError("LIBPOSTAL_DATA_DIR does not say where its models are")
    known = by_key(truth)

    def one_of(address: str) -> str | None:
        parts = parser.parse_address(address, merge_multiple_matches=False, language="ko", country_code="kr")
        said = {getattr(name, "value", name): "".join(words).replace(" ", "") for name, words in parts.items()}
        main, _, sub = said.get("house_number", "").partition("-")
        street = re.sub(r"^[가-힣]{1,3}[읍면](?=[가-힣])", "", said.get("road") or said.get("suburb", ""))
        return known.get(f"{street} {main}-{sub or 0}")

    return lambda addresses: [one_of(one) for one in addresses]


def figures_of(asked: list[Query], found: list[Answer]) -> dict[str, Figures]:
    counted: dict[str, Figures] = defaultdict(Figures)
    for query, answer in zip(asked, found, strict=True):
        figure = counted["nowhere" if query.group in SILENT else query.group]
        figure.rows += 1
        figure.answered += answer.address is not None
        figure.right += answer.address is not None and query.group not in SILENT and right(query.building, answer)
    return counted


def bansong_answers(asked: list[Query], gazetteer: Path) -> tuple[list[Answer], float]:
    from bansong.engine.address.attach import attach
    from bansong.engine.address.gazetteer import Gazetteer

    frame = pl.DataFrame(
        {"address": [one.address for one in asked], "zipcode": [one.zipcode for one in asked]},
        schema={"address": pl.String, "zipcode": pl.String},
    )

    def answered(times: int) -> pl.DataFrame:
        query = attach(pl.concat([frame] * times).lazy(), Gazetteer.open(gazetteer), "en")
        return query.select("match_level", "fixed_zipcode", "fixed_address").collect()

    found = answered(1)
    times = -(-SPEED_ROWS // len(asked))
    started = time.perf_counter()
    answered(times)
    seconds = (time.perf_counter() - started) / times
    return [Answer(*row) for row in found.iter_rows()], seconds


def timed(method: Method, asked: list[Query], *, slow: bool) -> tuple[list[Answer], float]:
    """The answers, and the seconds for all of them: over many repeats where the method is fast enough."""
    addresses = [one.address for one in asked]
    method(addresses[:1])
    times = 1 if slow else -(-SPEED_ROWS // len(asked))
    started = time.perf_counter()
    found = method(addresses * times)
    seconds = (time.perf_counter() - started) / times
    zips = [one.building.zipcode if way else None for one, way in zip(asked, found, strict=False)]
    return [Answer(None, code, way) for code, way in zip(zips, found, strict=False)], seconds


def line(name: str, asked: list[Query], found: list[Answer], seconds: float) -> str:
    counted = figures_of(asked, found)
    nowhere = counted.pop("nowhere", Figures())
    answered, true = (sum(getattr(one, what) for one in counted.values()) for what in ("answered", "right"))
    shares = [
        share(counted[group].answered, counted[group].rows) for group in (OFFICIAL, "format", "character", "postal")
    ]
    cells = [name, f"{len(asked):,}", *shares, share(answered, sum(one.rows for one in counted.values()))]
    cells += [f"{share(true, answered)} ({answered - true} wrong)", share(nowhere.answered, nowhere.rows)]
    return f"| {' | '.join(cells)} | {len(asked) / seconds:,.0f} |"


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def methods(fuzzy_rows: int) -> dict[str, tuple[Callable[[Truth], Method], int | None]]:
    return {
        "exact join (polars)": (exact_join, None),
        "regex join": (regex_join, None),
        "rapidfuzz token_sort_ratio ≥ 90": (lambda truth: fuzzy(truth, "token_sort_ratio", 90), fuzzy_rows),
        "rapidfuzz token_sort_ratio ≥ 95": (lambda truth: fuzzy(truth, "token_sort_ratio", 95), fuzzy_rows),
        "rapidfuzz WRatio ≥ 90": (lambda truth: fuzzy(truth, "WRatio", 90), fuzzy_rows),
        "libpostal parse, then join": (libpostal, None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("official", type=Path)
    parser.add_argument("--gazetteer", type=Path, help="built from OFFICIAL.txt before")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--fuzzy-rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not options.official.is_file():
        sys.exit(f"skipped: there is no {options.official}")
    truth = Truth(read(options.official))
    asked = queries(truth, options.rows, options.seed)
    print(
        "| method | rows | official | format noise | one character | wrong code | answered | right | nowhere | rows/s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (make, limit) in methods(options.fuzzy_rows).items():
        part = asked[:limit]
        try:
            method = make(truth)
        except ImportError as error:
            print(f"| {name} | left out: {error} |")
            continue
        print(line(name, part, *timed(method, part, slow=limit is not None)), flush=True)
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as folder:
        path = options.gazetteer or Path(folder) / "gazetteer.parquet"
        if options.gazetteer is None:
            once(bansong("data", "build-gazetteer", options.official, "-o", path))
        print(line("bansong", asked, *bansong_answers(asked, path)))


if __name__ == "__main__":
    main()
