"""One service a session for each of the targets; a job and its results are paid for once and shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.services import FAKES, FOREIGN, OURS, USUAL, target_of
from conformance.target import LOOKUPS, Target, finished, found, upload

ONLY_OURS = {"conformance.test_ours", "conformance.test_command"}
"""What INTERFACE.md leaves open, and we decided: nobody else need have decided it so."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    own = f"conformance.{collection_path.stem}" in ONLY_OURS
    return True if own and config.getoption("base_url") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("base_url"):
        names: list[Any] = [FOREIGN]
    elif metafunc.module.__name__ in ONLY_OURS:
        names = [OURS]
    else:
        names = [OURS, *(name if name in USUAL else pytest.param(name, marks=pytest.mark.fuzz) for name in FAKES)]
    metafunc.parametrize("target", names, indirect=True, scope="session")


def pytest_report_header(config: pytest.Config) -> str | None:
    spends = f"conformance: spends {LOOKUPS} lookups of the key, and those that --small-quota-key has left"
    return spends if config.getoption("base_url") else None


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target_of(request.param, tmp_path_factory.mktemp("service"), request.config) as service:
        yield service


@pytest.fixture(scope="session")
def job(target: Target) -> dict[str, Any]:
    """The answer that a job of three rows was created with."""
    answer = target.account.ask("POST", "/batch", files=upload())
    assert answer.is_success, answer.text
    return dict(answer.json())


@pytest.fixture(scope="session")
def job_id(job: dict[str, Any]) -> str:
    """Its identifier."""
    return str(found(job, "job_id"))


@pytest.fixture(scope="session")
def record(target: Target, job_id: str) -> dict[str, Any]:
    """Its status record once it is done, with two results."""
    return finished(target.account, job_id, target.pause, preview=2)
