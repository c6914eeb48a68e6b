"""Private folders hold copies of people's data: what a run that was killed has left does not stay for ever."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bansong.base import files as filesystem
from bansong.base.files import make_folders, private_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows locks no folders, so none is removed there")

HOLDING = """
import sys
from bansong.base.files import private_folder
with private_folder() as folder:
    (folder / "data").write_text("people's addresses")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a private folder, until it is told to end."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def make_old(folder: Path) -> None:
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(folder, (two_days_ago, two_days_ago))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    filesystem._sweep_private.cache_clear()
    return tmp_path


def test_what_a_killed_run_has_left_is_removed_after_a_day(place: Path) -> None:
    """A day later by the next run, whatever it does; before, somebody may look at what it left."""
    with holding(place) as (process, left):
        process.send_signal(signal.SIGKILL)
    assert (left / "data").exists()
    with private_folder():
        assert left.exists()
    make_old(left)
    filesystem._sweep_private.cache_clear()
    with private_folder() as folder:
        assert [*place.iterdir()] == [folder]
    assert not [*place.iterdir()]


def test_a_folder_that_a_process_has_stays_however_old(place: Path) -> None:
    """A run of three days keeps its copies, and takes them away itself."""
    with holding(place) as (process, folder):
        make_old(folder)
        with private_folder():
            assert (folder / "data").read_text() == "people's addresses"
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    assert not [*place.iterdir()]


def test_nothing_else_is_removed(place: Path) -> None:
    """Neither a folder of another name, nor a file or a link of ours, nor what it leads to."""
    others = [place / "bansong-lists", place / "private"]
    for folder in others:
        folder.mkdir()
        (folder / "data").write_text("mine")
        make_old(folder)
    file, link = place / "bansong-private-file0000", place / "bansong-private-link0000"
    file.write_text("mine")
    make_old(file)
    link.symlink_to(others[0])
    with private_folder():
        pass
    assert {path.name for path in place.iterdir()} == {*(folder.name for folder in others), file.name, link.name}
    assert all((folder / "data").exists() for folder in others)


def test_all_folders_that_are_made_are_the_owners_alone(tmp_path: Path) -> None:
    """Those above the last one, too: `mkdir` gives its mode to the last alone."""
    make_folders(tmp_path / "state" / "deep" / "jobs")
    made = [tmp_path / "state", tmp_path / "state" / "deep", tmp_path / "state" / "deep" / "jobs"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3
    make_folders(made[-1])
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "below")
