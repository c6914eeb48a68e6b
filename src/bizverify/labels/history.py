"""What a run takes from the label book: the history of its addressees, and the outcomes beside its rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import polars as pl

from bizverify.errors import LabelError
from bizverify.labels.label_store import Book

Labels = str | Path | Literal[False] | None
"""The folder of a label book; ``None`` is the user's own, if there is one; ``False`` is none."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A label book as one run sees it, read once: what is recorded meanwhile is for the next run.

    ``letters``: addressees of whom something is known. ``recorded``: when something was recorded last. ``history``:
    :data:`bizverify.engine.letter_history.HISTORY_SCHEMA`.
    """

    book: Book
    letters: int
    mailings: int
    recorded: datetime
    history: pl.LazyFrame

    def outcomes(self) -> pl.LazyFrame:
        """What became of the last letter to each ``b_no`` (UInt64) and ``address_key``: the three label columns."""
        columns = ("b_no", "address_key", "bounced", "bounce_reason", "bounced_at")
        return self.book.outcomes().select(columns).collect(engine="streaming").lazy()


def remembered(labels: Labels) -> Remembered | None:
    """Read a label book; ``None`` where it has no mailing yet, or none is wanted.

    Raises :class:`LabelError` where a folder was given that does not exist, or a file of the book is damaged.
    """
    book = _book(labels)
    if book is None:
        return None
    history, mailings = book.history(), book.mailings()
    if history is None or not mailings:
        return None
    letters = history.collect(engine="streaming")
    recorded = max(source.recorded_at for mailing in mailings for source in mailing.about.sources)
    return Remembered(book, letters.height, len(mailings), recorded, letters.lazy())


def history_of(labels: Labels, b_no: str) -> pl.LazyFrame | None:
    """What a label book has of one business (ten digits), without reading the others; else as :func:`remembered`."""
    book = _book(labels)
    return None if book is None else book.history(b_no)


def _book(labels: Labels) -> Book | None:
    if labels is False:
        return None
    book = Book(None if labels is None else Path(labels))
    if labels is not None and not book.folder.is_dir():
        raise LabelError(f"{book.folder}: there is no such folder; give `labels=` the folder of a label book")
    return book
