"""A job's rows answered slice by slice, and the answers put in order of risk: memory depends on the slice alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow.parquet as pq

from bizverify import business_number
from bizverify.engine import LocalEngine
from bizverify.schema import ANSWER_COLUMNS, REASON_SEPARATOR
from bizverify.server.sources import StatusSource
from bizverify.tables import publish_file

ROWS: Final = 20_000
"""Rows of a slice, and of a row group of the results."""
NO_GRADE: Final = "none"
_RISK: Final = ("bounce_prob", "row_id")

_TEXTS: Final[dict[str, pl.DataType]] = {name: pl.String() for name in ANSWER_COLUMNS}
RESULTS: Final[dict[str, pl.DataType]] = (
    {"row_id": pl.UInt32(), "b_no": pl.String()}
    | _TEXTS
    | {
        "bounce_prob": pl.Float64(),
        "reasons": pl.List(pl.String()),
        "error": pl.String(),
        "row_status": pl.String(),
    }
)
"""The columns of a job's results: those of an item of ``GET /batch/{job_id}``, and what became of the row.

``b_no``: ten digits, or as it was written where it is no business number; ``error`` says then why there is no answer.
"""


class Tally:
    """What a job's rows came to: rows by grade (``none`` without one), and rows that could not be looked up."""

    def __init__(self) -> None:
        self.grades: Counter[str] = Counter()
        self.without_answer = 0

    def take(self, answers: pl.DataFrame) -> None:
        """Count a slice of answers."""
        for grade, count in answers["grade"].fill_null(NO_GRADE).value_counts().iter_rows():
            self.grades[grade] += count
        self.without_answer += int((answers["row_status"] == "invalid").sum())


def answered(source: StatusSource, engine: LocalEngine, records: Path, first: int, part: Path) -> pl.DataFrame:
    """Answer the slice of the records that begins with row ``first``; write it to ``part``, and return it."""
    rows = pl.scan_parquet(records).slice(first, ROWS)
    valid = pl.col("row_status") != "invalid"
    texts = pl.col("b_no").cast(pl.String)
    with engine.running():
        answers = source.answer(engine, rows).select(
            pl.col("row_id").cast(pl.UInt32),
            pl.when(valid).then(business_number.compact_expr(pl.col("b_no"))).otherwise(texts).alias("b_no"),
            *(name for name in ANSWER_COLUMNS if name != "reasons"),
            pl.col("reasons").str.split(REASON_SEPARATOR).fill_null([]),
            pl.col("row_note").alias("error"),
            "row_status",
        )
        found = answers.collect(engine="streaming")
    found = _by_risk(found.select(list(RESULTS)))
    found.write_parquet(part)
    return found


def put_in_order(parts: list[Path], target: Path) -> None:
    """Merge answered slices into ``target``, the highest risk first, rows without one last; raises as ``published``.

    Each part is in that order already, so a slice of the result is one stretch of each part.
    """
    with publish_file(target) as temporary:
        schema = pl.DataFrame(schema=RESULTS).to_arrow().schema
        with pq.ParquetWriter(temporary, schema) as writer:
            for slice_ in _merged(parts):
                writer.write_table(slice_.to_arrow().cast(schema), row_group_size=ROWS)


def _merged(parts: list[Path]) -> Iterator[pl.DataFrame]:
    if not parts:
        return
    keys = pl.concat(
        [
            pl.scan_parquet(part).select(*_RISK, pl.lit(place, pl.UInt32).alias("part"))
            for place, part in enumerate(parts)
        ]
    ).collect(engine="streaming")
    of_slice = _by_risk(keys).select("part", (pl.int_range(pl.len()) // ROWS).alias("slice"))
    taken = [0] * len(parts)
    for stretch in of_slice.partition_by("slice", maintain_order=True):
        counts = dict(stretch["part"].value_counts().iter_rows())
        yield _by_risk(
            pl.concat(
                [pl.scan_parquet(parts[place]).slice(taken[place], count).collect() for place, count in counts.items()]
            )
        )
        for place, count in counts.items():
            taken[place] += count


def _by_risk(answers: pl.DataFrame) -> pl.DataFrame:
    return answers.sort(_RISK, descending=[True, False], nulls_last=True)
