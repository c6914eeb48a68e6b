"""Export what is stored of a key as files for people and programs, while a server may be running.

Each table is read at once and written afterwards, so that a writing server never waits long. Rows that the server
deletes meanwhile are missing; rows that it adds may be.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bansong.base.errors import OutputError, Problem, UsageError
from bansong.base.files import create_private, list_folder
from bansong.base.messages import describe_os_error
from bansong.history.labels import LabelStore
from bansong.server import job_files as results
from bansong.server import job_table
from bansong.server import keys as key_table
from bansong.server.engines import learning_folder
from bansong.server.erasure import list_mailings
from bansong.server.keys import Key
from bansong.server.settings import Settings, as_text
from bansong.server.store import SERVER_FILE, open_server_file
from bansong.watch import store as watch_store

EXPORT_EXISTS: Final = Problem(
    "server.export_exists", "{target}: exists already, and nothing is written over it; choose another name"
)
EXPORT_UNWRITABLE: Final = Problem(
    "server.export_unwritable", "{target}: the export cannot be written: {why}; choose another place"
)

GUIDE: Final = Path(__file__).with_name("account_export.txt")
"""The ``README.txt`` of every export."""
_DELIVERIES: Final = "SELECT channel, attempts, due, delivered, error FROM deliveries WHERE notice = ? ORDER BY channel"


def export_account(db: Path, key_id: str, target: Path) -> dict[str, int]:
    """Write the account of a key to a new folder, or to a ``.zip`` file; return the number of rows by kind.

    The folder (0700, files 0600) appears when it is complete. Secrets and digests are left out. Raises
    :class:`UsageError` for an unknown key or a target that exists, :class:`OutputError` if it cannot be written, and
    :class:`bansong.errors.BansongError` if stored data cannot be read.
    """
    with closing(open_server_file(db, create=False, writing=False)) as connection:
        with SERVER_FILE.errors(db):
            key = key_table.require_key(connection, key_id, db)
        if target.exists() or target.is_symlink():
            raise UsageError(EXPORT_EXISTS, target=target)
        try:
            with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as made:
                folder = Path(made) / "export"
                folder.mkdir(mode=0o700)
                with SERVER_FILE.errors(db):
                    counts = _AccountExport(connection, key, Settings(db=db).files, folder).write()
                _publish(folder, target)
        except OSError as error:
            why = describe_os_error(error)
            raise OutputError(EXPORT_UNWRITABLE, target=target, why=why) from error
    return counts


class _AccountExport:
    def __init__(self, db: sqlite3.Connection, key: Key, files: Path, folder: Path) -> None:
        self._db = db
        self._key = key
        self._files = files
        self._folder = folder

    def write(self) -> dict[str, int]:
        self._write_text("README.txt", GUIDE.read_text(encoding="utf-8"))
        self._write_text("account.json", json.dumps(self._account(), ensure_ascii=False, indent=2) + "\n")
        usage = self._db.execute(
            "SELECT month, used, watch_changes FROM usage WHERE key_id = ? ORDER BY month", (self._key.id,)
        )
        names = ("month", "lookups", "watch_changes")
        months = [dict(zip(names, row, strict=True)) for row in usage.fetchall()]
        answers = self._db.execute(
            "SELECT created, answer FROM idempotency WHERE key_id = ? AND answer IS NOT NULL ORDER BY created",
            (self._key.id,),
        )
        return {
            "months": self._write_lines("usage.jsonl", months),
            "jobs": self._write_jobs(),
            "watches": self._write_watches(),
            "notices": self._write_notices(),
            "repeatable answers": self._write_lines(
                "repeatable_answers.jsonl",
                ({"created_at": as_text(at), "answer": json.loads(answer)} for at, answer in answers.fetchall()),
            ),
            "learned mailings": self._write_learned(),
        }

    def _account(self) -> dict[str, object]:
        key = self._key
        times = {"created": key.created, "last_used": key.last_used, "revoked": key.revoked, "erased": key.erased}
        return {
            **{"id": key.id, "plan": key.plan, "quota": key.quota, "note": key.note},
            **{f"{name}_at": as_text(at) for name, at in times.items()},
            "webhook_url": key.webhook_url,
        }

    def _write_jobs(self) -> int:
        jobs = job_table.list_jobs(self._db, self._key.id, -1)
        rows = []
        for job in reversed(jobs):
            copied = self._copy_job(job.id)
            labels = self._db.execute(
                "SELECT row_id, bounced, reason, recorded FROM labels WHERE job = ? ORDER BY row_id", (job.id,)
            ).fetchall()
            outcomes = (
                {"row_id": row, "bounced": bool(came), "reason": why, "recorded_at": as_text(at)}
                for row, came, why, at in labels
            )
            if labels:
                self._write_lines(f"jobs/{job.id}/outcomes.jsonl", outcomes)
            about = {**asdict(job), "created_at": as_text(job.created), "finished_at": as_text(job.finished)}
            hidden = ("key_id", "created", "finished", "starts")
            kept = {name: value for name, value in about.items() if name not in hidden}
            rows.append({**kept, "files": copied, "outcomes": len(labels)})
        return self._write_lines("jobs.jsonl", rows)

    def _copy_job(self, job_id: str) -> list[str]:
        copied = []
        for source in (results.records_path(self._files, job_id), results.results_path(self._files, job_id)):
            name = f"jobs/{job_id}/{source.name}"
            try:
                self._copy(source, name)
            except FileNotFoundError:
                continue
            copied.append(name)
        return copied

    def _write_watches(self) -> int:
        rows = []
        for watch in watch_store.every(self._db, self._key.id):
            history = watch_store.history(self._db, self._key.id, watch.watch_id) or []
            about = asdict(watch)
            times = {f"{name}_at": as_text(about.pop(name)) for name in ("created", "checked", "due", "closed")}
            changes = [{**asdict(change), "at": as_text(change.at)} for change in history]
            rows.append({**about, **times, "history": changes})
        return self._write_lines("watches.jsonl", rows)

    def _write_notices(self) -> int:
        notices = self._db.execute(
            "SELECT number, id, payload, created FROM notices WHERE owner = ? ORDER BY number", (self._key.id,)
        ).fetchall()
        return self._write_lines("notices.jsonl", (self._notice(*row) for row in notices))

    def _notice(self, number: int, id_: str, payload: str, created: float) -> dict[str, object]:
        deliveries = [
            {
                "channel": channel,
                "attempts": attempts,
                "next_attempt_at": as_text(due),
                "delivered_at": as_text(delivered),
                "error": error,
            }
            for channel, attempts, due, delivered, error in self._db.execute(_DELIVERIES, (number,)).fetchall()
        ]
        return {"id": id_, "created_at": as_text(created), "notice": json.loads(payload), "deliveries": deliveries}

    def _write_learned(self) -> int:
        job_ids = job_table.list_job_ids(self._db, self._key.id)
        mailings = list_mailings(self._files, self._key.id, job_ids)
        for path in mailings:
            rows, _ = LabelStore(path.parent).read(path)
            with os.fdopen(self._make(f"learned/letters/{path.name}"), "wb") as file:
                rows.write_parquet(file)
        for path in list_folder(learning_folder(self._files) / self._key.id / "models"):
            if path.is_file() and path.suffix != ".lock" and not path.name.startswith("."):
                self._copy(path, f"learned/scorecards/{path.name}")
        return len(mailings)

    def _copy(self, source: Path, name: str) -> None:
        with source.open("rb") as given, os.fdopen(self._make(name), "wb") as file:
            shutil.copyfileobj(given, file)

    def _write_text(self, name: str, text: str) -> None:
        with os.fdopen(self._make(name), "w", encoding="utf-8") as file:
            file.write(text)

    def _write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> int:
        count = 0
        with os.fdopen(self._make(name), "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        return count

    def _make(self, name: str) -> int:
        path = self._folder / name
        for folder in reversed(path.relative_to(self._folder).parents[:-1]):
            (self._folder / folder).mkdir(mode=0o700, exist_ok=True)
        return create_private(path)


def _publish(folder: Path, target: Path) -> None:
    if target.suffix.lower() != ".zip":
        folder.rename(target)
        return
    packed = folder.with_name("packed")
    with os.fdopen(create_private(packed), "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
    packed.rename(target)
