"""The store of address choices made in reviews: one for each business and spelling of its address."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Literal

import polars as pl

from bansong.engine.address_choices import CHOICE_SCHEMA
from bansong.errors import Problem, StoreError
from bansong.storage.sqlite import FileKind, rewrite_file
from bansong.translation import gettext_noop

CHOICE_FILE_MISSING: Final = Problem("reviews.choice_file_missing", "{path}: there is no such file; check `choices=`")

CHOICE_FILE: Final = FileKind(
    gettext_noop("a store of address choices"),
    "choices",
    0x62764143,  # "bvAC"
    """
CREATE TABLE choices (
    b_no INTEGER NOT NULL,
    address_key TEXT NOT NULL,
    address TEXT NOT NULL,
    zipcode TEXT NOT NULL,
    chosen_by TEXT NOT NULL,
    chosen_on INTEGER NOT NULL,
    PRIMARY KEY (b_no, address_key)
) STRICT, WITHOUT ROWID;
""",
    {},
    StoreError,
    variable="BANSONG_CHOICES",
    default="choices.sqlite",
)

Choices = str | Path | Literal[False] | None
"""A store of choices; ``None``: the user's own, if there is one; ``False``: none."""

_PUT: Final = """
INSERT INTO choices VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (b_no, address_key) DO UPDATE SET
    address = excluded.address, zipcode = excluded.zipcode,
    chosen_by = excluded.chosen_by, chosen_on = excluded.chosen_on
"""


def read_choices(choices: Choices) -> pl.DataFrame | None:
    """Read a store as :data:`~bansong.engine.address_choices.CHOICE_SCHEMA`; ``None`` without a store.

    Raises :class:`StoreError` if a given file does not exist, or the store cannot be read.
    """
    if choices is False:
        return None
    path = CHOICE_FILE.find(choices)
    with CHOICE_FILE.errors(path):
        there = path.exists()
    if there:
        return ChoiceStore(path).read()
    if choices is None:
        return None
    raise StoreError(CHOICE_FILE_MISSING, path=path)


class ChoiceStore:
    """A store of choices at ``path``, ``BANSONG_CHOICES``, or ``choices.sqlite`` in the state directory.

    It is made, mode 0600, by the first choice. All methods raise :class:`StoreError`.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = CHOICE_FILE.find(path)

    def read(self) -> pl.DataFrame:
        """Return all choices: :data:`~bansong.engine.address_choices.CHOICE_SCHEMA`."""
        with self._use() as db:
            rows = db.execute("SELECT * FROM choices").fetchall()
        schema = CHOICE_SCHEMA | {"chosen_on": pl.Int32}
        return pl.DataFrame(rows, schema=schema, orient="row").cast({"chosen_on": pl.Date})

    def put(self, choices: pl.DataFrame) -> None:
        """Store choices in one step, replacing earlier ones for the same business and address."""
        rows = choices.select(*CHOICE_SCHEMA).with_columns(pl.col("chosen_on").to_physical())
        with CHOICE_FILE.errors(self.path):
            if not self.path.exists():
                CHOICE_FILE.prepare_folder(self.path)
                CHOICE_FILE.make(self.path)
        with self._use() as db, db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(_PUT, rows.iter_rows())

    def holdings(self, number: int) -> int:
        """Return how many choices are stored for a number."""
        with self._use() as db:
            return int(db.execute("SELECT count(*) FROM choices WHERE b_no = ?", (number,)).fetchone()[0])

    def forget(self, *numbers: int) -> None:
        """Erase numbers, and write the file anew."""
        with self._use() as db:
            with db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("DELETE FROM choices WHERE b_no = ?", [(number,) for number in numbers])
            rewrite_file(db)

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with CHOICE_FILE.errors(self.path), closing(CHOICE_FILE.open(self.path)) as db:
            yield db
