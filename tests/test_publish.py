"""A file is the old one or the new one, whole, whatever fails and whenever the process dies."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base import publish
from bansong.errors import InputError, OutputError
from conftest import NINE, SAMPLE, write


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    lines = (SAMPLE / "customers.csv").read_text(encoding="utf-8-sig").splitlines()[:31]
    source = write(folder / "in.csv", "\n".join([*lines, ""]))
    for format in ("csv", "csv.gz", "parquet", "xlsx"):
        bs.enrich(source, folder / f"list.{format}", prefix="before_", manifest=folder / "manifest.json")
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, nth: int, folder: Path) -> Iterator[list[int]]:
    """Let the nth use of an os function, for ``folder`` or a descriptor, fail as a full disk would; yield the uses."""
    used = [0]
    home, name = (Path, "replace") if call == "replace" else (publish.os, call)
    real: Callable[..., Any] = getattr(home, name)

    def perhaps(*arguments: Any, **options: Any) -> Any:
        counts = isinstance(arguments[0], int) or Path(arguments[0]).is_relative_to(folder)
        used[0] += counts
        if counts and used[0] == nth:
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(home, name, perhaps)
        yield used


BY_DEFAULT = [("csv", "open"), ("csv", "replace")]
IN_STAGE = [("csv", "fsync"), ("csv", "link"), ("csv", "chmod"), ("xlsx", "open"), ("xlsx", "replace")]
IN_STAGE += [("parquet", "open"), ("parquet", "replace")]


@pytest.mark.parametrize(
    ("format", "call"), BY_DEFAULT + [pytest.param(*one, marks=pytest.mark.crash) for one in IN_STAGE]
)
def test_whichever_call_fails_the_file_is_old_or_new_and_the_old_one_is_never_lost(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, call: str
) -> None:
    """The first, the second, … use of each call fails in turn, until a run gets through."""
    source, backup = tmp_path / f"list.{format}", tmp_path / f"list.{format}.bak"
    old = (lists / source.name).read_bytes()
    for nth in range(1, 50):
        for left in tmp_path.iterdir():
            left.unlink()
        source.write_bytes(old)
        said = "No space left on device"
        try:
            with failing(monkeypatch, call, nth, tmp_path) as used:
                bs.enrich(source, in_place=True, manifest=tmp_path / "m.json")
        except (OutputError, InputError) as error:
            said = str(error)
        assert "No space left on device" in said
        if replaced := source.read_bytes() != old:
            assert bs.plan(source, columns={"b_no": "사업자등록번호"}).rows == 30
            assert backup.read_bytes() == old
        assert set(names_in(tmp_path)) <= {source.name, "m.json", *([backup.name] if replaced else [])}
        if used[0] < nth:
            assert replaced
            return
    pytest.fail("it never got through")


@pytest.mark.parametrize(
    "format", ["csv", "xlsx", *(pytest.param(one, marks=pytest.mark.crash) for one in ("csv.gz", "parquet"))]
)
def test_wherever_the_disk_is_full_the_old_file_stays(lists: Path, tmp_path: Path, format: str) -> None:
    resource = pytest.importorskip("resource")
    source = shutil.copy(lists / f"list.{format}", tmp_path / f"list.{format}")
    old, manifest = source.read_bytes(), tmp_path / "m.json"
    bs.enrich(source, new := tmp_path / f"new.{format}", manifest=manifest)
    size = new.stat().st_size
    new.unlink()
    manifest.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (1, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises((OutputError, InputError), match=source.name):
                bs.enrich(source, in_place=True, manifest=manifest)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (source.read_bytes(), names_in(tmp_path)) == (old, [source.name]), f"at {limit} of {size} bytes"


@pytest.mark.parametrize("format", ["csv", "parquet", "xlsx", "ndjson"])
def test_a_full_disk_blames_the_output(lists: Path, tmp_path: Path, format: str) -> None:
    resource = pytest.importorskip("resource")
    output = tmp_path / f"out.{format}"
    bs.enrich(lists / "list.csv", output, manifest=tmp_path / "m.json")
    size = output.stat().st_size
    output.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 9 // 10, hard))
    try:
        with pytest.raises(OutputError, match=output.name):
            bs.enrich(lists / "list.csv", output, manifest=tmp_path / "m.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names_in(tmp_path) == ["m.json"]


@pytest.mark.crash
def test_killed_at_any_moment_the_file_is_old_or_new_and_the_next_run_gets_through(tmp_path: Path) -> None:
    """Runs in place are killed at moments of chance; what they leave disturbs nobody and is swept."""
    header, *lines = (SAMPLE / "customers.csv").read_text(encoding="utf-8-sig").splitlines()
    source = write(tmp_path / "big.csv", "\n".join([header, *lines * 100, ""]))
    old = source.read_bytes()
    command = [sys.executable, "-m", "bansong", "enrich", "big.csv", "--in-place", "--progress", "none"]
    started = time.monotonic()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    whole = time.monotonic() - started
    new, chance = source.read_bytes(), random.Random(1)
    assert (tmp_path / "big.csv.bak").read_bytes() == old
    for _ in range(6):
        for backup in tmp_path.glob("big.csv.bak*"):
            backup.unlink()
        source.write_bytes(old)
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 1.1) * whole)
        process.kill()
        process.wait(timeout=60)
        found = source.read_bytes()
        backups = [backup.read_bytes() for backup in tmp_path.glob("big.csv.bak*")]
        assert (found, backups) in ((old, [old]), (old, []), (new, [old]))
    source.write_bytes(old)
    for left in tmp_path.glob(".bansong-*"):
        os.utime(left, (0, 0))
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert bs.plan(source).rows == len(lines) * 100
    assert not [name for name in names_in(tmp_path) if name.startswith(".")]


def test_what_a_living_run_writes_is_not_swept_however_old_it_is(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    for name in (".bansong-0123abcd-out.csv", ".bansong-0123abcd-other.csv", ".bansong-mine-out.csv"):
        os.utime(write(tmp_path / name, "left"), (0, 0))
    write(tmp_path / ".bansong-4567abcd-out.csv", "of this hour")
    with publish.publish_file(target) as alive:
        os.utime(alive, (0, 0))
        with publish.publish_file(target) as second:
            write(second, "second")
        write(alive, "first")
    assert target.read_text() == "first"
    assert names_in(tmp_path) == [".bansong-4567abcd-out.csv", ".bansong-mine-out.csv", "out.csv"]


def _no_links(*_: Any, **__: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_the_backup_is_the_old_file_with_its_mode_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(publish.os, "link", _no_links)
    (real := tmp_path / "real").mkdir()
    source = write(real / "list.csv", text := "b_no\n1248100998\n")
    (tmp_path / "link.csv").symlink_to(source)
    source.chmod(0o640)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    write(real / "list.csv.bak", "precious")
    (real / "list.csv.bak2").mkdir()
    report = bs.enrich(tmp_path / "link.csv", in_place=True, manifest=real / "list.csv.bak3")
    kept = real / "list.csv.bak4"
    assert (report.backup, kept.read_text(), (real / "list.csv.bak").read_text()) == (str(kept), text, "precious")
    assert stat.S_IMODE(kept.stat().st_mode) == stat.S_IMODE(source.stat().st_mode) == 0o640
    assert kept.stat().st_mtime == 1_600_000_000
    assert (tmp_path / "link.csv").is_symlink()
    assert pl.read_csv(source, infer_schema=False).columns == ["b_no", *NINE]
    assert names_in(real) == ["list.csv", *(f"list.csv.bak{number}" for number in ("", 2, 3, 4))]


def test_a_backup_that_cannot_be_copied_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish.os, "link", _no_links)
    source = write(tmp_path / "list.csv", "old")
    for call in ("fsync", "replace", "chmod"):
        with (
            failing(monkeypatch, call, 1, tmp_path),
            pytest.raises(OutputError, match=r"list\.csv.*No space left"),
            publish.backed_up(source, tmp_path / "m.json"),
        ):
            pytest.fail("it was made")
        assert names_in(tmp_path) == ["list.csv"]


def test_a_name_as_long_as_the_file_system_allows_can_be_written(tmp_path: Path) -> None:
    """The temporary file's name is cut by bytes; a name too long for the system is an error of the output's."""
    target = tmp_path / ("가" * 83 + ".csv")
    with publish.publish_file(target) as temporary:
        temporary.write_bytes(b"x")
    assert target.read_bytes() == b"x"
    with pytest.raises(OutputError, match="too long"), publish.publish_file(tmp_path / ("가" * 90)):
        pass
    assert not publish.same_file(target, tmp_path / ("가" * 90))


def test_a_run_that_fails_does_not_wait_for_the_hash_of_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []

    def hash_slowly(path: Path, is_stopped: Callable[[], bool]) -> str:
        until = time.monotonic() + 60
        while not is_stopped() and time.monotonic() < until:
            time.sleep(0.01)
        stopped.append(is_stopped())
        return ""

    def fail(*_: object) -> None:
        raise OutputError("the disk is full")

    monkeypatch.setattr("bansong.run.outputs.sha256_of", hash_slowly)
    monkeypatch.setattr("bansong.run.table.write_table", fail)
    with pytest.raises(OutputError, match="the disk is full"):
        bs.enrich(write(tmp_path / "a.csv", "b_no\n1248100998\n"))
    assert stopped == [True]
