"""What the tests share: a private state directory, the sample data, the command line as a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data"
SHARED = ROOT.parent / "shared" / "data"

NINE = (
    "biz_status",
    "bounce_prob",
    "grade",
    "action",
    "fixed_zipcode",
    "fixed_address",
    "reasons",
    "row_status",
    "row_note",
)


@pytest.fixture(autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("BIZVERIFY_STATE_DIR", str(folder))
    return folder


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the shared evaluation data is not at {SHARED}")
    return SHARED


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in ``tmp_path`` as its user does."""

    def command(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bizverify", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    return command


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def json_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
