"""The label history that one run uses, read once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import polars as pl

from bansong.errors import LabelError, Problem
from bansong.labels.label_store import LabelStore
from bansong.tables.compression import refuse_url

STORE_MISSING: Final = Problem(
    "labels.store_missing", "{folder}: there is no such folder; give `labels=` the folder of a label store"
)

Labels = str | Path | Literal[False] | None
"""Folder of a label store; ``None``: the user's own, if there is one; ``False``: none."""


@dataclass(frozen=True, slots=True)
class LabelHistory:
    """The history that one run takes from a label store; what is recorded meanwhile is for the next run.

    ``letters`` of ``mailings`` have an outcome; ``recorded``: the newest recording; ``history``:
    :data:`bansong.engine.letter_history.HISTORY_SCHEMA`.
    """

    store: LabelStore
    letters: int
    mailings: int
    recorded: datetime
    history: pl.LazyFrame

    def outcomes(self) -> pl.LazyFrame:
        """Return the three label columns of the last letter to each ``b_no`` (UInt64) and ``address_key``."""
        columns = ("b_no", "address_key", "bounced", "bounce_reason", "bounced_at")
        return self.store.outcomes().select(columns).collect(engine="streaming").lazy()


def read_history(labels: Labels) -> LabelHistory | None:
    """Read a label store; ``None`` if it is empty or not wanted.

    Raises :class:`LabelError` if a given folder does not exist, or a file is damaged.
    """
    store = _open_store(labels)
    history, mailings = (None, []) if store is None else (store.history(), store.mailings())
    if store is None or history is None or not mailings:
        return None
    letters = sum(mailing.letters for mailing in mailings)
    recorded = max(source.recorded_at for mailing in mailings for source in mailing.about.sources)
    known = history.collect(engine="streaming").lazy()
    return LabelHistory(store, letters, len(mailings), recorded, known)


def history_of(labels: Labels, b_no: str) -> pl.LazyFrame | None:
    """Return the history of one business (ten digits) without reading the others; raises as :func:`read_history`."""
    store = _open_store(labels)
    return None if store is None else store.history(b_no)


def _open_store(labels: Labels) -> LabelStore | None:
    if labels is False:
        return None
    store = LabelStore(None if labels is None else Path(labels))
    if labels is not None and not store.folder.is_dir():
        refuse_url(store.folder, LabelError)
        raise LabelError(STORE_MISSING, folder=store.folder)
    return store
