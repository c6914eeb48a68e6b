"""Real rows of a public register against a gazetteer made of themselves: never a wrong answer, hardly one missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@dataclass
class Register:
    """The bench's module, its rows, those in the gazetteer, the gazetteer."""

    bench: ModuleType
    every: list
    chosen: list
    gazetteer: object


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture
def register(shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Register:
    assert shared
    monkeypatch.syspath_prepend(BENCHMARKS)
    return built(folder)


@cache
def built(folder: Path) -> Register:
    bench = import_module("address_real")
    every = bench.rows()
    usable, _ = bench.agreed(every)
    chosen = bench.drawn(usable, 0.7, 1)
    return Register(bench, every, chosen, bench.built(chosen, folder))


@pytest.mark.parametrize(("lot", "zipcodes", "share"), [(1, 1, 0.99), (1, 0, 0.98), (0, 1, 0.999), (0, 0, 0.98)])
def test_a_row_leads_to_its_own_building(register: Register, lot: int, zipcodes: int, share: float) -> None:
    """Lot and road forms as they stand give the road form and postal code of the same row, or nothing."""
    figures = register.bench.own(register.chosen, register.gazetteer, lot=bool(lot), zipcodes=bool(zipcodes))
    assert figures.wrong == []
    assert figures.answered >= share * figures.rows


@pytest.mark.parametrize("lot", [True, False])
def test_what_the_gazetteer_lacks_is_not_bent_to_what_it_has(register: Register, lot: bool) -> None:
    """Of all other rows only those are answered that, read strictly, are a building of the gazetteer."""
    figures = register.bench.others(register.every, register.chosen, register.gazetteer, lot=lot)
    assert figures.wrong == []
    assert figures.answered <= 0.06 * figures.rows


def test_the_two_forms_of_a_row_never_lead_to_different_buildings(register: Register) -> None:
    """Where the lot form and the road form of a row disagree, one of them is silent."""
    classes, listed = register.bench.disagreements(register.chosen, register.gazetteer)
    assert "the two forms give different buildings" not in classes, listed


def test_nearly_every_real_address_is_read(register: Register) -> None:
    """Road addresses are read to the number, and agree with a strict reading wherever that can read them."""
    lines = register.bench.table_of_reading(register.every)
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines[2:]}
    shares = {name: float(row[4].removesuffix(" %")) for name, row in cells.items()}
    assert shares["register, road addresses"] == 100
    assert shares["register, lot addresses"] > 98.5
    assert shares["gisman_gb_offices.txt"] == shares["gisman_test3.txt"] == 100
    assert shares["gisman_test.txt"] > 98.5
    assert shares["gisman_hard.txt"] > 92
    for name in ("register, road addresses", "register, lot addresses"):
        same, _, strict = cells[name][5].replace(",", "").partition(" of ")
        assert int(same) >= int(strict) - 2
