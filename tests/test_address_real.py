"""Real rows of a public register against a gazetteer made of themselves: never a wrong answer, hardly one missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace

import pytest

from conftest import ROOT, SHARED

REGISTER = SHARED / "address" / "localdata_vet_half.csv"

pytestmark = pytest.mark.skipif(not REGISTER.is_file(), reason=f"the shared evaluation data is not at {SHARED}")


@pytest.fixture(scope="module")
def register(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        bench = import_module("address_real")
        every = bench.rows()
        chosen = bench.drawn(bench.agreed(every)[0], 0.7, 1)
        gazetteer = bench.built(chosen, tmp_path_factory.mktemp("real"))
        yield SimpleNamespace(bench=bench, every=every, chosen=chosen, gazetteer=gazetteer)


@pytest.mark.parametrize(("lot", "zipcodes", "share"), [(True, True, 0.99), (False, False, 0.98)])
def test_a_row_leads_to_its_own_building(register: SimpleNamespace, lot: bool, zipcodes: bool, share: float) -> None:
    figures = register.bench.own(register.chosen, register.gazetteer, lot=lot, zipcodes=zipcodes)
    assert figures.wrong == []
    assert figures.answered >= share * figures.rows


def test_what_the_gazetteer_lacks_is_not_bent_to_what_it_has(register: SimpleNamespace) -> None:
    for lot in (True, False):
        figures = register.bench.others(register.every, register.chosen, register.gazetteer, lot=lot)
        assert figures.wrong == []
        assert figures.answered <= 0.06 * figures.rows


def test_the_two_forms_of_a_row_never_lead_to_different_buildings(register: SimpleNamespace) -> None:
    classes, listed = register.bench.disagreements(register.chosen, register.gazetteer)
    assert "the two forms give different buildings" not in classes, listed
