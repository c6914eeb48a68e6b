"""Record the answers of a run while they are written, in whatever format."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

import polars as pl

from bansong.errors import ColumnError, Problem
from bansong.run.changes import GONE, KEY, SNAPSHOT, key_expr, status_code_expr
from bansong.run.records import DIGITS, ROW_ID

ROW_KEY_MISSING: Final = Problem(
    "jobs.row_key_missing",
    "{input}: has none of the columns by which rows are known again ({names}), so all would be one; "
    "name it with `columns` of the input, or choose another `key` in [changes]",
)

_RECORD: Final = ("b_no", "name", "address", "zipcode")
_TABLE: Final = "table"


class AnswerRecorder:
    """Records the rows of one input: :meth:`observe` goes into the query, :meth:`snapshot` returns them."""

    def __init__(self, input: str, key: Sequence[str]) -> None:
        self._input = input
        self._key = tuple(key)
        self._parts: list[pl.DataFrame] = []
        self._tables = 0
        self._lock = threading.Lock()

    def observe(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        """Return the same rows; they are recorded as they pass, from any thread and in any order."""
        names = set(answers.collect_schema().names())
        if not names.intersection(self._key) and not (DIGITS in names and "b_no" in self._key):
            raise ColumnError(ROW_KEY_MISSING, input=self._input, names=", ".join(self._key))
        digits = pl.col(DIGITS) if DIGITS in names else pl.lit(None, pl.String)
        cells = {name: pl.col(name).cast(pl.String) if name in names else pl.lit(None, pl.String) for name in _RECORD}
        cells["b_no"] = pl.coalesce(digits, cells["b_no"])
        answer = [
            pl.col(name) for name in SNAPSHOT.names() if name in names and name not in (*_RECORD, KEY, "input", GONE)
        ]
        self._tables += 1  # sheets of a workbook come one after another, and each counts its rows from 0
        taken = pl.struct(pl.col(ROW_ID), *(cell.alias(name) for name, cell in cells.items()), *answer)
        index = pl.get_index_type()
        return answers.with_columns(
            taken.map_batches(partial(self._take, self._tables), return_dtype=index, is_elementwise=True).alias(ROW_ID)
        )

    def _take(self, table: int, rows: pl.Series) -> pl.Series:
        frame = rows.struct.unnest().with_columns(pl.lit(table).alias(_TABLE))
        with self._lock:
            self._parts.append(frame)
        return frame[ROW_ID]

    def snapshot(self) -> pl.DataFrame:
        """Return the recorded rows, one a key: :data:`SNAPSHOT`, in the order of the file."""
        if not self._parts:
            return pl.DataFrame(schema=SNAPSHOT)
        rows = pl.concat(self._parts).sort(_TABLE, ROW_ID).with_columns(key_expr(self._key).alias(KEY))
        codes = _status_codes(rows["biz_status"])
        return (
            rows.filter(pl.col(KEY).hash().is_first_distinct())
            .with_columns(
                pl.lit(self._input).alias("input"), pl.col("biz_status").replace(codes), pl.lit(None).alias(GONE)
            )
            .select(pl.col(name).cast(dtype) for name, dtype in SNAPSHOT.items())
        )


def _status_codes(words: pl.Series) -> dict[str, str]:
    """Map service-specific status words to our codes: ``폐업자`` is a closure as well."""
    found = pl.DataFrame({"word": words.drop_nulls().unique()}, schema={"word": pl.String})
    return dict(
        found.with_columns(status_code_expr(pl.col("word")).alias("code"))
        .filter(pl.col("word") != pl.col("code"))
        .iter_rows()
    )
