"""LibreOffice, where there is one: files made and opened by another program than ours."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
from collections.abc import Sequence
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


Cells = list[list[str]]


def sorted_in_every_way(files: Sequence[tuple[Path, str]]) -> list[list[Cells]]:
    """The cells of each file's first sheet as they are, after each sort of a range that it declares, and after a click.

    The ranges of its filter and its tables are sorted by the column of the given cell, ascending; then "sort
    descending" is clicked in that cell, for which LibreOffice itself decides what is sorted along.
    One LibreOffice sorts all. Skip the test without one, or without a Python that can talk to it.
    """
    if shutil.which("soffice") is None:
        pytest.skip("LibreOffice is not installed")
    python = _python_with_uno()
    if python is None:
        pytest.skip("no Python has LibreOffice's module uno (Debian: python3-uno)")
    asked = {
        "profile": _profile().as_uri(),
        "files": [{"path": str(path.absolute()), "cell": cell} for path, cell in files],
    }
    script = Path(__file__).with_name("office_sort.py")
    done = subprocess.run([python, script], input=json.dumps(asked).encode(), capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found: list[list[Cells]] = json.loads(done.stdout)
    return found


@cache
def _python_with_uno() -> str | None:
    """A Python that has LibreOffice's module: the system's, or the one that LibreOffice brings along."""
    brought = [str(path) for path in Path("/").glob("opt/libreoffice*/program/python")]
    for python in ("/usr/bin/python3", *brought, shutil.which("python3")):
        if python and shutil.which(python):
            tried = subprocess.run([python, "-c", "import uno"], capture_output=True, check=False)
            if tried.returncode == 0:
                return python
    return None


@cache
def _profile() -> Path:
    """A profile of this process alone: made anew, it takes LibreOffice longer than the rest."""
    folder = Path(mkdtemp(prefix="office-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
