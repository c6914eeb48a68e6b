"""LibreOffice, where there is one: files made and opened by another program than ours."""

from __future__ import annotations

import atexit
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest


def converted(path: Path, to: str) -> Path:
    """Let LibreOffice write a file in another format (and filter options), beside it; skip the test without one."""
    soffice = shutil.which("soffice")
    if soffice is None:
        pytest.skip("LibreOffice is not installed")
    command = [soffice, f"-env:UserInstallation={_profile().as_uri()}", "--headless", "--convert-to", to]
    subprocess.run([*command, "--outdir", path.parent, path], check=True, capture_output=True, timeout=120)
    return path.with_suffix(f".{to.partition(':')[0]}")


@cache
def _profile() -> Path:
    """A profile of this process alone: made anew, it takes LibreOffice longer than the rest."""
    folder = Path(mkdtemp(prefix="office-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
