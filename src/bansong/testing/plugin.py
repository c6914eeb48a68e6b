"""Fixtures of the fakes for pytest, in tests of jobs that call bansong.

pytest loads them only when asked: ``pytest_plugins = ["bansong.testing.plugin"]`` in the topmost ``conftest.py``, or
``pytest -p bansong.testing.plugin``. They need pytest and uvicorn.
"""

# ruff: noqa: ARG001 - `bansong_state` is asked for since it empties the environment before

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bansong.testing.fake_nts import FakeNts
from bansong.testing.fake_service import FakeService, serve


@pytest.fixture
def bansong_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder below ``tmp_path``; all other variables of bansong are unset, except ``BANSONG_LANG``."""
    for name in [*os.environ]:
        if name.startswith(("BANSONG_", "BIZVERIFY_")) and name != "BANSONG_LANG":
            monkeypatch.delenv(name)
    folder = tmp_path / "bansong-state"
    monkeypatch.setenv("BANSONG_STATE_DIR", str(folder))
    return folder


@pytest.fixture
def bansong_service(bansong_state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A :class:`FakeService` on a port of this machine; ``BANSONG_BASE_URL`` and ``BANSONG_API_KEY`` lead there."""
    service = FakeService()
    with serve(service) as url:
        monkeypatch.setenv("BANSONG_BASE_URL", url)
        monkeypatch.setenv("BANSONG_API_KEY", service.api_key)
        yield service


@pytest.fixture
def bansong_nts(bansong_state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNts]:
    """A :class:`FakeNts` on a port of this machine; ``BANSONG_NTS_URL`` and ``BANSONG_NTS_KEY`` lead there."""
    fake = FakeNts()
    with serve(fake) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        monkeypatch.setenv("BANSONG_NTS_KEY", fake.api_key)
        yield fake
