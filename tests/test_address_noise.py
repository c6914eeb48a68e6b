"""Addresses as people type them, against a whole province, and rows of a public register against themselves.

The whole benches are ``benchmarks/address_noise.py`` and ``address_real.py``. What an address can mean is decided by
plain dictionaries over the official file (``benchmarks/noise_truth.py``), never by the library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from bansong.engine.address import plain
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer
from conftest import ROOT, SHARED
from gazetteers import matched, official_addresses

sys.path.insert(0, str(ROOT / "benchmarks"))

OFFICIAL = SHARED / "address" / "rnaddrkor_sejong.txt"
ROWS, SEED = 30, 7

pytestmark = pytest.mark.skipif(not OFFICIAL.is_file(), reason=f"the shared evaluation data is not at {SHARED}")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    import address_noise
    import noise
    from noise_truth import Truth, read

    path = tmp_path_factory.mktemp("noise") / "gazetteer.parquet"
    report = build_gazetteer([OFFICIAL, *OFFICIAL.parent.glob("KIK*")], path)
    names = [*noise.KINDS, *address_noise.COMBINED]
    gazetteer = Gazetteer.open(path)
    outcomes = address_noise.measured(Truth(read(OFFICIAL)), gazetteer, names, ROWS, SEED)
    return SimpleNamespace(module=address_noise, outcomes=outcomes, path=path, gazetteer=gazetteer, report=report)


def of(bench: SimpleNamespace, *groups: str) -> list:
    return [one.figures for one in bench.outcomes if one.figures.group in groups]


def answered(figures: list) -> float:
    return sum(one.answered for one in figures) / sum(one.rows for one in figures)


def test_a_real_province_is_whole(bench: SimpleNamespace) -> None:
    report, tables = bench.report, bench.gazetteer.tables
    assert (report.buildings, report.refused, report.duplicates) == (27_335, {}, 0)
    assert tables.building_key.n_unique() == 27_322
    assert tables.building_zip.is_between(30_000, 30_999).all()
    assert tables.regions.rows() == [(0, "세종특별자치시", "")]
    assert {"보람동", "대평동", "소담동"} <= set(tables.admins["name"])


def test_noise_is_undone_where_it_can_be_and_the_answer_is_what_was_meant(bench: SimpleNamespace) -> None:
    assert len(bench.outcomes) > 20
    assert all(one.figures.rows >= ROWS // 10 for one in bench.outcomes), "a class that no address suits"
    figures = [one.figures for one in bench.outcomes if one.figures.group not in (*bench.module.SILENT, "beyond")]
    assert sum(one.right for one in figures) >= 0.999 * sum(one.answered for one in figures)
    assert answered(of(bench, "format")) >= 0.995
    assert answered(of(bench, "postal")) >= 0.99
    character = of(bench, "character")
    assert sum(one.with_zip[1] for one in character) >= 0.95 * sum(one.with_zip[0] for one in character)


def test_what_exists_nowhere_or_cannot_be_decided_is_not_answered(bench: SimpleNamespace) -> None:
    assert answered(of(bench, *bench.module.SILENT)) <= 0.001


def test_details_are_kept(bench: SimpleNamespace) -> None:
    figures = [one.figures for one in bench.outcomes]
    assert sum(one.details[1] for one in figures) == sum(one.details[0] for one in figures) > 0


def test_the_whole_engine_answers_the_same(bench: SimpleNamespace) -> None:
    queries = [one for outcome in bench.outcomes for one in outcome.queries[::10]]
    found = [one for outcome in bench.outcomes for one in outcome.answers[::10]]
    assert bench.module.engine_differs(queries, found, bench.path) == 0


def test_a_corrected_address_is_its_own_answer(bench: SimpleNamespace) -> None:
    """What was corrected once stays as it is, or every run would change the file again."""
    given = [(one.address, one.zipcode) for part in bench.outcomes for one in part.answers[::4] if one.address]
    found = matched(bench.gazetteer, given).select("fixed_address", "fixed_zipcode").rows()
    same = [mine == theirs for mine, theirs in zip(found, given, strict=True)]
    assert sum(same) >= 0.999 * len(same)  # names with half a bracket stand in the official file


def test_of_real_buildings_road_and_lot_in_one_cell_must_agree(bench: SimpleNamespace) -> None:
    pairs = official_addresses(SHARED)
    other = pairs.with_columns(pl.col("lot").shift(len(pairs) // 2, fill_value=pairs["lot"][-1]))
    beside, nothing = pl.format("세종특별자치시 {} ({})", "road", "lot"), pl.lit(None, pl.String)
    own, wrong = (
        matched(bench.gazetteer, rows.gather_every(12).select(beside, nothing).rows())["fixed_address"]
        for rows in (pairs, other)
    )
    assert own.null_count() == 0
    assert wrong.count() <= 0.001 * len(wrong)


@pytest.mark.fuzz
def test_colliding_regions_are_never_crossed(tmp_path: Path) -> None:
    import address_collisions

    worlds, path = address_collisions.prepared(tmp_path, OFFICIAL)
    tallies = address_collisions.measured(worlds, Gazetteer.open(path), ROWS // 2, SEED)
    assert [one.name for one in tallies if one.crossed or one.answered != one.right] == []
    assert all(one.rows >= ROWS // 2 for one in tallies)
    sure = [one for one in tallies if one.expected == "answer"]
    assert sum(one.answered for one in sure) >= 0.995 * sum(one.rows for one in sure)


@pytest.mark.fuzz
def test_what_the_gazetteer_lacks_is_not_answered_and_never_sent(tmp_path: Path) -> None:
    """A tenth of the buildings, sub-lots and roads taken out: at most 0.1 % answered wrongly, none of these `send`."""
    import address_noise
    from noise_truth import Truth, read

    found = address_noise.measured_missing(OFFICIAL, Truth(read(OFFICIAL)), tmp_path, SEED)
    totals = [found.total(missing) for missing in ("buildings", "sub-lots", "roads")]
    assert all(one.rows > 30_000 for one in totals)
    assert sum(one.wrong for one in totals) <= 0.001 * sum(one.rows for one in totals)
    assert [one.sent for one in totals] == [0, 0, 0]


def test_plain_addresses_are_answered_as_by_the_readings(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [(one.address, one.zipcode) for part in bench.outcomes for one in part.queries]
    by_readings = matched(bench.gazetteer, asked)
    monkeypatch.setattr(plain, "MIN_PLAIN_ROWS", 0)
    assert matched(bench.gazetteer, asked).equals(by_readings)


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
