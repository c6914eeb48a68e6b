"""How many examples the tests draw that draw many: an eighth in the default suite, all behind the marker `fuzz`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings

ALL: Final = os.environ.get("EXAMPLES") == "all"
"""`EXAMPLES=all pytest -m fuzz` draws all; each such test then bears the marker, so that those alone are run."""


Test = TypeVar("Test", bound=Callable[..., Any])


def few(count: int) -> int:
    """What is drawn in place of so many examples."""
    return count if ALL else max(count // 8, 3)


def examples(count: int, default: int | None = None) -> Callable[[Test], Test]:
    """Draw so many examples of a test, or an eighth (or ``default``); they may share a ``tmp_path``."""
    shared = [HealthCheck.function_scoped_fixture]

    def bounded(test: Test) -> Test:
        drawn = settings(max_examples=default if default and not ALL else few(count), suppress_health_check=shared)(
            test
        )
        return pytest.mark.fuzz(drawn) if ALL else drawn

    return bounded
