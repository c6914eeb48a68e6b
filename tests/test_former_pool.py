"""A server's file with keys of a pool, from a release that had pools: each learns for itself, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bansong.engine.risk.scorecard import Scorecard
from bansong.history.scorecards import ModelStore
from bansong.server.store import open_server_file
from handclock import HandClock
from outcome_scene import Asking, scene
from serving import make_key, read_here, rows_of


@pytest.fixture(scope="module", autouse=True)
def quickly_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        yield


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keys_of_a_pool_learn_for_themselves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning for each names the pool's folder, which stays as it is; one key's outcome changes no other's answer."""
    clock, db = HandClock(), tmp_path / "db.sqlite"
    first, second, _, alone = (make_key(db) for _ in range(4))
    pool = Path(f"{db}.files") / "learning" / "pool"
    ModelStore(pool / "models").promote(msgspec.structs.replace(Scorecard.load(), version="strange"), {"labels": 9})
    (pool / "labels").mkdir()
    (pool / "labels" / "job.parquet").write_bytes(b"letters of all keys")
    with closing(open_server_file(db)) as file:
        (one, two, three, _) = (id_ for (id_,) in file.execute("SELECT key_id FROM secrets ORDER BY number"))
        file.execute("UPDATE keys SET pool = 1, customer = 'mill' WHERE id IN (?, ?, ?)", (one, two, three))
        file.execute("UPDATE keys SET revoked = 1 WHERE id = ?", (three,))
    before = contents(pool)
    with scene(tmp_path, clock, learn_hours=1) as here:
        asking, other, outsider = (Asking(here.server.url, secret) for secret in (first, second, alone))
        warned = [record.getMessage() for record in caplog.records if "pool" in record.getMessage()]
        assert sorted(warned) == sorted(
            f"key {id_} was in the pool, which is withdrawn: it learns for itself; what the pool learned is not used: "
            f"{pool}"
            for id_ in (one, two)
        )
        untold = other.verify()
        assert asking.verify() == untold == outsider.verify()
        job = asking.batch(clock)
        assert asking.label(job, 0, True, "이사불명").status_code == 201
        here.learned()
        assert asking.verify()["bounce_prob"] > untold["bounce_prob"]
        clock.forward(hours=2)
        assert other.verify() == outsider.verify() == untold
        assert [path.parent.parent.name for path in here.learning.glob(f"*/labels/{job}.parquet")] == [one]
    assert contents(pool) == before
    assert rows_of(db, "SELECT pool, customer FROM keys WHERE id = ?", one) == [(1, "mill")]
