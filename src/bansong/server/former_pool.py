"""Distribute the label store of a pool of earlier releases to the stores of its keys.

Any key of the pool could write there, even for free jobs, so nothing is trusted: its scorecard is rolled back, and
outcomes teach others only as their key's, if the job was paid. Outcomes of deleted jobs are kept but not used.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from bansong.errors import BansongError
from bansong.labels.label_store import LabelStore
from bansong.models.model_store import BUILTIN, ModelStore
from bansong.server.engine_pool import POOL, learning_folder, make_learning_folder
from bansong.server.store import job_table

_log = logging.getLogger(__name__)

FORMER_POOL: Final = "former-pool"
"""Folder of outcomes without a known key."""


def distribute_former_pool(files: Path, db: sqlite3.Connection) -> None:
    """Move a former pool's outcomes to their keys; interrupted, it is completed at the next start.

    ``files``: the server's folder. Damaged files stay where they are and are logged.
    """
    former, kept = (learning_folder(files) / name / "labels" for name in (POOL, FORMER_POOL))
    if former.is_dir():
        with _log_failure(former):
            _retire(former, make_learning_folder(files, FORMER_POOL) / "labels")
    for path in sorted(kept.glob("*.parquet")):
        if (owner := job_table.find_owner(db, path.stem)) is not None:
            key_id, paid = owner
            with _log_failure(path):
                _adopt(LabelStore(make_learning_folder(files, key_id) / "labels"), path, paid=paid)


def _retire(former: Path, kept: Path) -> None:
    models = ModelStore(former.parent / "models")
    if models.champion_version() != BUILTIN:
        models.rollback(BUILTIN)
    kept.mkdir(mode=0o700, exist_ok=True)
    for path in sorted(former.glob("*.parquet")):
        if (kept / path.name).exists():
            _adopt(LabelStore(kept), path, paid=False)
        else:
            path.replace(kept / path.name)
    for left in former.iterdir():  # the lock, and what a killed record has left
        left.unlink()
    former.rmdir()


def _adopt(store: LabelStore, path: Path, *, paid: bool) -> None:
    """Move a mailing's file to another store; of a row in both, the later outcome stays."""
    rows, about = store.read(path)
    if store.path(about.id).exists():
        known, _ = store.read(store.path(about.id))
        both = pl.concat([known, rows]).sort("row_id", "recorded", maintain_order=True)
        rows = both.unique("row_id", keep="last", maintain_order=True)
    store.put(rows, msgspec.structs.replace(about, paid=paid))
    path.unlink()


@contextmanager
def _log_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except (BansongError, OSError) as error:
        _log.error("%s: what the pool had learned is not brought to its keys: %s", path, error)
