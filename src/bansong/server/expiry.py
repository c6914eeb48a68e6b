"""Erase expired data in the background: old learned letters, and accounts of revoked keys.

Accounts that `bansong keys erase` requests are erased at once. Jobs expire in
:meth:`bansong.server.jobs.worker.JobWorker.purge`. Learned scorecards stay: no letter can be told apart in them.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import anyio.to_thread

from bansong.errors import BansongError
from bansong.labels.label_store import LabelStore
from bansong.server.account_erasure import ERASE, erase_rows, remove_files
from bansong.server.engine_pool import learning_folder
from bansong.server.former_pool import FORMER_POOL
from bansong.server.learning import OutcomeLearner
from bansong.server.settings import Clock, Settings
from bansong.server.store import Store, audit_table, job_table, key_table

_log = logging.getLogger(__name__)

_PURGE_INTERVAL_S: Final = 3600.0
_LOOK_INTERVAL_S: Final = 2.0
"""An operator waits for the erasure."""
_REVOKED_SETTLED_S: Final = 3.0
"""After that no new request of a revoked key is accepted."""


class Retention:
    """Erase what is older than ``keep_labels_days`` and ``keep_revoked_days`` of the settings."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        learner: OutcomeLearner,
        is_asking: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``is_asking``: return whether a key has requests under way."""
        self._is_asking = is_asking
        self._failed: dict[str, float] = {}
        self._settings = settings
        self._clock = clock
        self._store = store
        self._learner = learner

    async def run(self) -> None:
        while True:
            await self.purge_once()
            until = self._clock.now() + _PURGE_INTERVAL_S
            # the clock may have been set back
            while (now := self._clock.now()) < until <= now + _PURGE_INTERVAL_S:
                await self._clock.sleep(_LOOK_INTERVAL_S)
                if await self._erase_accounts():
                    await self._learner.share()

    async def purge_once(self) -> None:
        erased = await self._erase_accounts()
        scopes = [FORMER_POOL, *(key.id for key in await self._store.read(key_table.list_keys))]
        purged = await anyio.to_thread.run_sync(self._purge_labels, scopes)
        if erased or purged:
            await self._learner.share()

    async def _erase_accounts(self) -> int:
        now, erased = self._clock.now(), 0
        before = now - self._settings.keep_revoked_days * 86_400
        for key_id in await self._store.read(
            lambda db: key_table.keys_to_erase(db, before, now - _REVOKED_SETTLED_S, ERASE)
        ):
            if self._is_asking(key_id) or now < self._failed.get(key_id, 0.0):
                continue
            try:
                async with self._learner.writing:  # what is being recorded would come behind the erasure
                    await self._erase_account(key_id)
            except OSError as error:
                _log.error("key %s: its files cannot be removed, tried again in an hour: %s", key_id, error.strerror)
                self._failed[key_id] = now + _PURGE_INTERVAL_S
                continue
            _log.info("key %s: its account is erased", key_id)
            erased += 1
        return erased

    async def _erase_account(self, key_id: str) -> None:
        now, files = self._clock.now(), self._settings.files
        jobs = await self._store.read(lambda db: job_table.list_job_ids(db, key_id))
        await anyio.to_thread.run_sync(remove_files, files, key_id, jobs)

        def erase(db: sqlite3.Connection) -> None:
            erase_rows(db, key_id)
            key_table.mark_erased(db, key_id, now)
            audit_table.record_action(db, now, "account erased", key_id, {"jobs": len(jobs)})

        await self._store.write(erase)

    def _purge_labels(self, scopes: list[str]) -> int:
        before = self._clock.today() - timedelta(days=self._settings.keep_labels_days)
        purged = 0
        for scope in scopes:
            try:
                purged += LabelStore(learning_folder(self._settings.files) / scope / "labels").purge(before)
            except (BansongError, OSError) as error:
                _log.error("learned letters of %s cannot be purged, tried again in an hour: %s", scope, error)
        return purged
