"""Erase what is stored of a key. Its id, plan, quota, dates and monthly usage stay for the books.

Each step may run again after a kill: what an earlier step reads is deleted last.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bansong.server.engine_pool import learning_folder, remove_training_folder
from bansong.server.former_pool import FORMER_POOL
from bansong.server.jobs import results
from bansong.server.settings import Settings
from bansong.server.store import SERVER_FILE, audit_table, hold_server_file, job_table, key_table
from bansong.storage.filesystem import list_folder
from bansong.storage.sqlite import rewrite_file, transaction
from bansong.translation import gettext_noop

OWNED: Final = {
    "watches": "owner",
    "watch_counts": "owner",
    "notices": "owner",
    "deliveries": "owner",
    "jobs": "key_id",
    "idempotency": "key_id",
    "secrets": "key_id",
}
"""Tables whose rows are erased with a key, and the column with its id. Rows that refer to these go by cascade."""
ERASE: Final = "keys erase"
"""Action in the audit log that begins, and later completes, an erasure."""
KEPT: Final = {"usage": "key_id", "audit": "key_id"}
"""Tables whose rows of a key stay."""
_BLANK: Final = (
    "UPDATE keys SET note = NULL, customer = NULL, pool = 0, last_used = NULL, webhook_url = NULL,"
    " webhook_secret = NULL"
)
_HELD: Final = {
    gettext_noop("jobs"): "SELECT count(*) FROM jobs WHERE key_id = ?",
    gettext_noop("outcomes"): "SELECT count(*) FROM labels JOIN jobs ON jobs.id = labels.job WHERE key_id = ?",
    gettext_noop("watches"): "SELECT count(*) FROM watches WHERE owner = ?",
    gettext_noop(
        "changes of grade"
    ): "SELECT count(*) FROM watch_history JOIN watches ON watches.number = watch WHERE owner = ?",
    gettext_noop("notices"): "SELECT count(*) FROM notices WHERE owner = ?",
    gettext_noop("repeatable answers"): "SELECT count(*) FROM idempotency WHERE key_id = ?",
}


def account_holdings(db: sqlite3.Connection, files: Path, key_id: str) -> dict[str, int]:
    found = {what: int(db.execute(query, (key_id,)).fetchone()[0]) for what, query in _HELD.items()}
    return found | {
        gettext_noop("learned mailings"): len(list_mailings(files, key_id, job_table.list_job_ids(db, key_id)))
    }


def list_mailings(files: Path, key_id: str, job_ids: Iterable[str]) -> list[Path]:
    """List the label files with outcomes of a key: its own, and those of its jobs in a former pool's store."""
    own = [path for path in list_folder(learning_folder(files) / key_id / "labels") if path.suffix == ".parquet"]
    former = {path.stem: path for path in list_folder(learning_folder(files) / FORMER_POOL / "labels")}
    return [*own, *(former[job_id] for job_id in job_ids if job_id in former)]


def erase_rows(db: sqlite3.Connection, key_id: str) -> None:
    """Delete all rows of a key but :data:`KEPT`, and its personal fields."""
    for table, column in OWNED.items():
        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (key_id,))  # noqa: S608 - names of this module
    db.execute(f"{_BLANK} WHERE id = ?", (key_id,))


def ask_for_erasure(db: sqlite3.Connection, key_id: str, now: float) -> None:
    """Revoke a key and request its erasure in the audit log; the server that runs, or starts next, carries it out."""
    key_table.revoke_key(db, key_id, now)
    audit_table.record_action(db, now, ERASE, key_id, {"begun": True})


def remove_files(files: Path, key_id: str, job_ids: Iterable[str]) -> None:
    """Remove the files of a key's jobs, its learned mailings and its scorecards; raise OSError on failure.

    Scorecards of the pool stay: they are sums in which no letter can be told apart.
    """
    jobs = list(job_ids)
    for mailing in list_mailings(files, key_id, jobs):
        mailing.unlink(missing_ok=True)
    for folder in (learning_folder(files) / key_id, *(results.job_folder(files, job_id) for job_id in jobs)):
        if folder.exists():
            shutil.rmtree(folder)


@contextmanager
def open_account(path: Path, key_id: str) -> Iterator[AccountErasure]:
    """Open a server's file, which no server may use meanwhile, to erase a key's account.

    Raises :class:`StoreError` if the file is missing or a server runs on it, :class:`UsageError` for an unknown key.
    """
    with hold_server_file(path) as db:
        with SERVER_FILE.errors(path):
            key_table.require_key(db, key_id, path)
        yield AccountErasure(path, db, key_id)


class AccountErasure:
    """Erases the account of a key; see :func:`open_account`."""

    def __init__(self, path: Path, db: sqlite3.Connection, key_id: str) -> None:
        self.path = path
        self.key_id = key_id
        self._db = db
        self._files = Settings(db=path).files

    def holdings(self) -> dict[str, int]:
        with SERVER_FILE.errors(self.path):
            return account_holdings(self._db, self._files, self.key_id)

    def erase(self, now: float) -> None:
        """Revoke the key and erase its account; after a kill, call it again. Raises StoreError."""
        held = self.holdings()
        with SERVER_FILE.errors(self.path):
            with transaction(self._db):
                ask_for_erasure(self._db, self.key_id, now)
            jobs = job_table.list_job_ids(self._db, self.key_id)
            remove_files(self._files, self.key_id, jobs)
            remove_training_folder(self._files)
            with transaction(self._db):
                erase_rows(self._db, self.key_id)
                key_table.mark_erased(self._db, self.key_id, now)
                counts = {what: count for what, count in held.items() if count}
                audit_table.record_action(self._db, now, ERASE, self.key_id, {"erased": counts})
            results.remove_leftovers(self._files, job_table.list_job_ids(self._db))
            rewrite_file(self._db)
