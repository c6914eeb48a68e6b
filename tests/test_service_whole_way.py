"""The library's own client against the library's own server: the same file comes out as from the local engine.

In general they could differ where the engine sees more of a file than is uploaded (postal codes, several addresses of a
number). What an earlier run of the same command has bought is called ``cached``: the comparison reads it so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.client import ApiKey
from bansong.purchase.ledger import Ledger
from bansong.server.settings import load_plans
from crashing import check_digit
from serving import Served, ServedProcess, make_key, read_here, rows_of, served

ROWS = 160
ROADS = ("서울특별시 중구 세종대로", "경기도 수원시 영통구 삼성로", "부산광역시 해운대구 센텀중앙로")
STATUSES = ("active", "active", "active", "closed", "suspended")


def businesses(rows: int) -> pl.DataFrame:
    """Distinct businesses, each at an address of its own: some without name or address, some without number."""
    dice, made = Random(rows), list[tuple[str | None, ...]]()
    for place in range(rows):
        digits = f"{110_000_000 + place * 3_989:09d}"
        number = f"{digits[:3]}-{digits[3:5]}-{digits[5:]}{check_digit(digits)}"
        name = f"가나상사 {place}" if place % 11 else None
        address = f"{dice.choice(ROADS)} {place + 1}" if place % 13 else None
        if place % 17 == 3:
            address = "서울 ***"
        made.append(("미상" if place % 97 == 5 else number, name, address, f"고객 {place}"))
    return pl.DataFrame(made, schema=dict.fromkeys(("b_no", "name", "address", "customer"), pl.String), orient="row")


class Material:
    """A file, the registry that both sides look into, and what the local engine makes of the file."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.frame = businesses(rows)
        self.input, self.registry, self.local = folder / "in.csv", folder / "registry.parquet", folder / "local.csv"
        self.frame.write_csv(self.input)
        numbers = self.frame["b_no"].filter(self.frame["b_no"] != "미상")
        known = pl.DataFrame({"b_no": numbers, "status": [STATUSES[n % 5] for n in range(len(numbers))]})
        known.filter(pl.int_range(pl.len()) % 3 != 0).write_csv(folder / "statuses.csv")
        bs.build_registry([folder / "statuses.csv"], self.registry, as_of=None)
        assert bs.enrich(self.input, self.local, engine="local", registry=self.registry).exit_code == 0
        self.lookups = len(numbers)

    def bought(self, output: Path, url: str, key: str, engine: str, **more: Any) -> Any:
        options: dict[str, Any] = {"rate": 1e6, "poll": 0.05, "chunk": 500, "ledger": output.with_suffix(".ledger")}
        return bs.enrich(
            self.input,
            output,
            engine=engine,
            registry=self.registry if engine == "hybrid" else None,
            base_url=url,
            api_key=ApiKey(key),
            **options | more,
        )

    def is_same(self, output: Path) -> None:
        """Every cell is the local engine's: the user's own columns, the seven, the status and the note, in order."""
        bought, local = (pl.read_csv(path, infer_schema=False) for path in (output, self.local))
        assert bought.columns == local.columns == [*self.frame.columns, *ADDED_COLUMNS]
        bought = bought.with_columns(pl.col("row_status").replace("cached", "verified"))
        for name in local.columns:
            differ = bought[name].ne_missing(local[name])
            assert not differ.any(), f"{name}: {bought.filter(differ).head(2)} {local.filter(differ).head(2)}"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Material]:
    folder = tmp_path_factory.mktemp("material")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        yield Material(folder, ROWS)


@pytest.fixture
def at(material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """Start a server with the registry, in this process."""
    read_here(monkeypatch)
    with ExitStack() as stack:
        yield lambda *given, **more: stack.enter_context(
            served(tmp_path / "server.sqlite", *given, registry=material.registry, **more)
        )


def used(db: Path) -> int:
    return int(rows_of(db, "SELECT coalesce(sum(used), 0) FROM usage")[0][0])


@pytest.mark.parametrize("engine", ["batch", "verify", "hybrid"])
def test_what_the_service_answers_is_what_the_local_engine_answers(
    material: Material, at: Callable[..., Served], tmp_path: Path, engine: str
) -> None:
    server = at()
    report = material.bought(tmp_path / "out.csv", server.url, server.key(quota=10_000), engine)
    assert report.exit_code == 0
    material.is_same(tmp_path / "out.csv")
    taken = used(server.db)
    assert taken == report.purchase.paid
    assert taken == material.lookups if engine != "hybrid" else 0 < taken < material.lookups


_COMMAND = """
import json, sys
import bansong as bs
try:
    sys.exit(bs.enrich(**json.loads(sys.argv[1])).exit_code)
except bs.errors.BansongError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


class Command:
    """``enrich`` in a process of its own, to be killed and given again."""

    def __init__(self, material: Material, folder: Path, url: str, key: str, **more: Any) -> None:
        self.output, self.ledger, self.log = folder / "out.csv", folder / "ledger.sqlite", folder / "client.log"
        call = {
            **{"input": material.input, "output": self.output, "engine": "batch", "base_url": url},
            **{"ledger": self.ledger, "rate": 1e6, "poll": 0.05} | more,
        }
        self._arguments = [sys.executable, "-c", _COMMAND, json.dumps(call, default=str)]
        self._env = os.environ | {"BANSONG_API_KEY": key, "BANSONG_STATE_DIR": str(folder / "state")}

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._arguments, env=self._env, stdout=log, stderr=log)

    def finish(self, seconds: float = 100) -> int:
        """Give the command until it ends done: a pause (5) and doubts (3) ask for nothing but the same again."""
        code = -1
        for _ in range(5):
            code = self.start().wait(seconds)
            if code == 0:
                return code
        return code


def wait_for(what: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is true of another process."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def jobs(db: Path, state: str = "%") -> int:
    return int(rows_of(db, "SELECT count(*) FROM jobs WHERE state LIKE ?", state)[0][0])


def kill(client: subprocess.Popen[bytes]) -> None:
    client.send_signal(signal.SIGKILL)
    assert client.wait(30) == -signal.SIGKILL


def all_paid_once(db: Path, lookups: int) -> None:
    """Each lookup is in one job, and taken out of the quota once."""
    assert rows_of(db, "SELECT sum(total), sum(charged) FROM jobs") == [(lookups, lookups)]
    assert used(db) == lookups
    assert jobs(db) == jobs(db, "done")


@pytest.mark.crash
def test_kills_on_both_sides_change_nothing(tmp_path: Path) -> None:
    """Server killed while uploads come in and in the middle of a job, client killed while it polls: the same file."""
    material = Material(tmp_path, 4_000)
    server = ServedProcess(tmp_path / "server.sqlite", "--registry", material.registry)
    key = make_key(server.db, quota=8_000)
    command = Command(material, tmp_path, server.start(), key, chunk=400)
    client = command.start()
    try:
        for moment in (lambda: jobs(server.db) > 1, lambda: jobs(server.db, "running") > 0):
            wait_for(moment)
            server.kill()
            time.sleep(0.3)  # the client meets a server that is not there, in the middle of whatever it does
            server.start()
        while jobs(server.db, "done") <= 3:
            if client.poll() is not None:  # it met too much of this to wait any longer: the same command goes on
                assert client.returncode in (3, 5), command.log.read_text()[-2000:]
                client = command.start()
            time.sleep(0.01)
        kill(client)
        assert not command.output.exists()
        assert command.finish() == 0, command.log.read_text()[-2000:]
    finally:
        client.kill()
        client.wait()
        server.stop()
    material.is_same(command.output)
    all_paid_once(server.db, material.lookups)
    with Ledger.open(command.ledger) as ledger:
        assert ledger.doubts() == []


def test_larger_uploads_than_the_plan_takes_are_halved(
    material: Material, at: Callable[..., Served], tmp_path: Path
) -> None:
    """413 for 100 rows: the client halves them until they are taken; 503 for a third job delays it, without a doubt."""
    server = at(plans={"business": msgspec.structs.replace(load_plans()["business"], rows=80, jobs=2)})
    report = material.bought(tmp_path / "out.csv", server.url, server.key(quota=10_000), "batch", jobs=4)
    assert report.exit_code == 0
    material.is_same(tmp_path / "out.csv")
    assert rows_of(server.db, "SELECT max(total) <= 80, sum(total) FROM jobs") == [(1, material.lookups)]
    assert used(server.db) == material.lookups
