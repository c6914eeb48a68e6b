"""Private folders hold copies of people's data: what a run that was killed has left does not stay for ever."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bansong.base import files as filesystem
from bansong.base.files import make_folders, private_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows locks no folders, so none is removed there")

HOLDING = """
from bansong.base.files import private_folder
with private_folder() as folder:
    (folder / "data").write_text("people's addresses")
    print(folder, flush=True)
    input()
"""


@contextmanager
def holding(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a private folder, until it is told to end."""
    command, pipes = [sys.executable, "-c", HOLDING], dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env={**os.environ, "TMPDIR": str(place)}, **pipes) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    filesystem._sweep_private.cache_clear()
    return tmp_path


def test_what_a_killed_run_has_left_is_removed_after_a_day(place: Path) -> None:
    """A day later by the next run, whatever it does; before, somebody may look at what it left."""
    with holding(place) as (process, left):
        process.kill()
    assert (left / "data").exists()
    with private_folder():
        assert left.exists()
    os.utime(left, (0, 0))
    filesystem._sweep_private.cache_clear()
    with private_folder() as folder:
        assert [*place.iterdir()] == [folder]
    assert not [*place.iterdir()]


def test_a_folder_that_a_process_has_stays_however_old(place: Path) -> None:
    """A run of three days keeps its copies, and takes them away itself."""
    with holding(place) as (process, folder):
        os.utime(folder, (0, 0))
        with private_folder():
            assert (folder / "data").read_text() == "people's addresses"
        process.communicate("\n")
    assert not [*place.iterdir()]


def test_nothing_else_is_removed(place: Path) -> None:
    """Neither a folder of another name, nor a file or a link of ours, nor what it leads to."""
    link, others = place / "bansong-private-link0000", [place / "bansong-lists", place / "private"]
    for folder in others:
        folder.mkdir()
        (folder / "data").write_text("mine")
    link.symlink_to(others[0])
    (place / "bansong-private-file0000").write_text("mine")
    for one in (before := {*place.iterdir()}):
        os.utime(one, (0, 0))
    with private_folder():
        pass
    assert {*place.iterdir()} == before
    assert all((folder / "data").exists() for folder in others)


def test_all_folders_that_are_made_are_the_owners_alone(tmp_path: Path) -> None:
    """Those above the last one, too: `mkdir` gives its mode to the last alone."""
    folders = [tmp_path / "state", tmp_path / "state" / "deep", tmp_path / "state" / "deep" / "jobs"]
    for _ in range(2):
        make_folders(folders[-1])
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "below")
