"""Addresses as people type them, against the official file of a whole province: a bounded run of the noise bench.

The whole one is ``benchmarks/address_noise.py``. What an address can mean is decided by plain dictionaries over the
official file (``benchmarks/noise_truth.py``), never by the library.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.reference.gazetteer import build_gazetteer
from conftest import ROOT, SHARED

sys.path.insert(0, str(ROOT / "benchmarks"))

OFFICIAL = SHARED / "address" / "rnaddrkor_sejong.txt"
ROWS, SEED = 100, 7

pytestmark = pytest.mark.skipif(not OFFICIAL.is_file(), reason=f"the shared evaluation data is not at {SHARED}")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The bench's outcomes by class, measured once."""
    import address_noise
    import noise
    from noise_truth import Truth, read

    path = tmp_path_factory.mktemp("noise") / "gazetteer.parquet"
    build_gazetteer([OFFICIAL], path)
    names = [*noise.KINDS, *address_noise.COMBINED]
    truth = Truth(read(OFFICIAL))
    outcomes = address_noise.measured(truth, Gazetteer.open(path), names, ROWS, SEED)
    return SimpleNamespace(module=address_noise, outcomes=outcomes, path=path, truth=truth)


def of(bench: SimpleNamespace, *groups: str) -> list:
    return [one.figures for one in bench.outcomes if one.figures.group in groups]


def answered(figures: list) -> float:
    return sum(one.answered for one in figures) / sum(one.rows for one in figures)


def test_there_are_more_than_twenty_named_classes_and_each_has_rows(bench: SimpleNamespace) -> None:
    """A class that no address suits would pass unseen."""
    assert len(bench.outcomes) > 20
    assert all(one.figures.rows >= ROWS // 10 for one in bench.outcomes)


def test_an_answer_is_the_building_that_was_meant(bench: SimpleNamespace) -> None:
    """Road, number, region and postal code are right in at least 99.9 % of all answers, whatever the noise."""
    figures = [one.figures for one in bench.outcomes if one.figures.group not in (*bench.module.SILENT, "beyond")]
    assert sum(one.right for one in figures) >= 0.999 * sum(one.answered for one in figures)


@pytest.mark.parametrize(("group", "goal"), [("format", 0.995), ("postal", 0.99)])
def test_noise_that_can_be_undone_is_answered(bench: SimpleNamespace, group: str, goal: float) -> None:
    """Spacing, brackets and forms 99.5 %, a wrong postal code 99 %."""
    assert answered(of(bench, group)) >= goal


def test_one_wrong_character_in_the_road_is_answered_where_the_postal_code_bears_it_out(bench: SimpleNamespace) -> None:
    """95 %: names that differ as neighbouring roads do stay what they are."""
    figures = of(bench, "character")
    assert sum(one.with_zip[1] for one in figures) >= 0.95 * sum(one.with_zip[0] for one in figures)


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


def test_what_exists_nowhere_or_cannot_be_decided_is_not_answered(bench: SimpleNamespace) -> None:
    assert answered(of(bench, *bench.module.SILENT)) <= 0.001


def test_details_are_kept(bench: SimpleNamespace) -> None:
    """Floors, units, companies: whatever was written after the number is in the corrected address."""
    figures = [one.figures for one in bench.outcomes]
    assert sum(one.details[1] for one in figures) == sum(one.details[0] for one in figures) > 0


def test_the_whole_engine_answers_the_same(bench: SimpleNamespace) -> None:
    queries = [one for outcome in bench.outcomes for one in outcome.queries[::10]]
    found = [one for outcome in bench.outcomes for one in outcome.answers[::10]]
    assert bench.module.engine_differs(queries, found, bench.path) == 0


def test_a_corrected_address_is_its_own_answer(bench: SimpleNamespace) -> None:
    """What was corrected once stays as it is, or every run would change the file again."""
    given = [one for outcome in bench.outcomes for one in outcome.answers[::4] if one.address]
    frame = pl.DataFrame({"address": [one.address for one in given], "zipcode": [one.zipcode for one in given]})
    found = attach(frame.lazy(), Gazetteer.open(bench.path), "en").select("fixed_address", "fixed_zipcode").collect()
    same = [row == (one.address, one.zipcode) for row, one in zip(found.iter_rows(), given, strict=True)]
    assert sum(same) >= 0.999 * len(same)  # names with half a bracket stand in the official file


def test_the_dice_are_seeded(bench: SimpleNamespace) -> None:
    """The same seed makes the same addresses, so that a red run can be looked at."""
    pool, name = bench.module.drawn(bench.truth, SEED), "three classes together"
    first, again = (bench.module.samples(bench.truth, pool, name, 50, SEED) for _ in range(2))
    assert first == again == bench.module.samples(bench.truth, bench.module.drawn(bench.truth, SEED), name, 50, SEED)


def test_colliding_regions_are_never_crossed(tmp_path: Path) -> None:
    """Two regions with the same roads and numbers: a given region holds, a missing one is never guessed."""
    import address_collisions

    worlds, path = address_collisions.prepared(tmp_path, OFFICIAL)
    tallies = address_collisions.measured(worlds, Gazetteer.open(path), ROWS // 2, SEED)
    assert [one.name for one in tallies if one.crossed] == []
    assert [one.name for one in tallies if one.answered != one.right] == []
    assert all(one.rows >= ROWS // 2 for one in tallies)
    sure = [one for one in tallies if one.expected == "answer"]
    assert sum(one.answered for one in sure) >= 0.995 * sum(one.rows for one in sure)
