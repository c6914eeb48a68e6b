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
    if (soffice := shutil.which("soffice")) is None:
        pytest.skip("LibreOffice is not installed")
    command = [soffice, f"-env:UserInstallation={_profile()}", "--headless", "--convert-to", to]
    subprocess.run([*command, "--outdir", path.parent, path], check=True, capture_output=True, timeout=120)
    return path.with_suffix(f".{to.partition(':')[0]}")


def sorted_in_every_way(files: Sequence[tuple[Path, str]]) -> list[list[list[list[str]]]]:
    """The cells of each file's first sheet before, after each sort of a range that it declares, and after a click.

    Sorts by the column of the given cell: declared ranges ascending, then whatever a click on "sort descending" takes.
    """
    brought = map(str, Path("/").glob("opt/libreoffice*/program/python"))
    pythons = [one for one in ("/usr/bin/python3", *brought, shutil.which("python3")) if one and shutil.which(one)]
    able = (one for one in pythons if subprocess.run([one, "-c", "import uno"], capture_output=True).returncode == 0)
    python = next(able, None)
    if python is None or shutil.which("soffice") is None:
        pytest.skip("no LibreOffice, or no Python with its module uno (Debian: python3-uno)")
    asked = {"profile": _profile(), "files": [(path.absolute().as_uri(), cell) for path, cell in files]}
    script = Path(__file__).with_name("office_sort.py")
    done = subprocess.run([python, script], input=json.dumps(asked).encode(), capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found: list[list[list[list[str]]]] = json.loads(done.stdout)
    return found


@cache
def _profile() -> str:
    """A profile of this process alone: made anew, it takes LibreOffice longer than the rest."""
    folder = Path(mkdtemp(prefix="office-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder.as_uri()
