"""Files of jobs; rows answered in slices, sorted by risk, rendered as JSON. Memory depends on the slice alone."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import polars as pl
import pyarrow.parquet as pq

from bansong import business_number
from bansong.engine import LocalEngine
from bansong.schema import ANSWER_COLUMNS, REASON_SEPARATOR
from bansong.server.payloads import JobResult
from bansong.server.reference_files import StatusSource
from bansong.storage.filesystem import list_folder
from bansong.tables import publish_file


def uploads_folder(files: Path) -> Path:
    return files / "uploads"


def job_folder(files: Path, job_id: str) -> Path:
    return files / "jobs" / job_id


def records_path(files: Path, job_id: str) -> Path:
    """The rows of a job: :func:`bansong.server.jobs.isolated_reader.write_records`."""
    return job_folder(files, job_id) / "records.parquet"


def results_path(files: Path, job_id: str) -> Path:
    return job_folder(files, job_id) / "results.parquet"


def remove_unfinished(files: Path, job_id: str) -> None:
    """Remove what an interrupted attempt has left of a job; keep the records."""
    kept = records_path(files, job_id)
    for left in [path for path in kept.parent.iterdir() if path != kept]:
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def remove_job_folders(files: Path, job_ids: Collection[str]) -> None:
    for job_id in job_ids:
        shutil.rmtree(job_folder(files, job_id), ignore_errors=True)


def remove_leftovers(files: Path, known: Collection[str]) -> None:
    """Remove what a killed server has left: uploads, and folders of jobs that were never accepted."""
    shutil.rmtree(uploads_folder(files), ignore_errors=True)
    for left in [path for path in list_folder(files / "jobs") if path.name not in known]:
        shutil.rmtree(left, ignore_errors=True)


Rows = TypeVar("Rows", pl.DataFrame, pl.LazyFrame)

ROWS: Final = 20_000
"""Rows of a slice, and of a row group."""
RENDERED: Final = 500
"""Results rendered at a time: what a slow reader keeps in memory."""
NO_GRADE: Final = "none"
_RISK: Final = ("bounce_prob", "row_id")
_ITEM: Final = list(JobResult.__struct_fields__)

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
"""Columns of a job's results: the items of ``GET /batch/{job_id}``, and ``row_status``.

``b_no``: ten digits, or the original text if invalid; then ``error`` says why there is no answer.
"""
SHOWN_NUMBER: Final = 100
"""Characters shown of a longer cell that is no business number."""
_CUT: Final = "… (cut: "


class ResultCounts:
    """Rows of a job by grade (``none`` without one), and rows that could not be looked up."""

    def __init__(self) -> None:
        self.grades: Counter[str] = Counter()
        self.without_answer = 0

    def take(self, answers: pl.DataFrame) -> None:
        for grade, count in answers["grade"].fill_null(NO_GRADE).value_counts().iter_rows():
            self.grades[grade] += count
        self.without_answer += int((answers["row_status"] == "invalid").sum())


def scan_slice(records: Path, first: int) -> pl.LazyFrame:
    return pl.scan_parquet(records).slice(first, ROWS)


def answer_slice(source: StatusSource, engine: LocalEngine, records: Path, first: int, part: Path) -> pl.DataFrame:
    """Answer the slice of the records that begins with row ``first``; write it to ``part``, and return it."""
    rows = scan_slice(records, first)
    valid = pl.col("row_status") != "invalid"
    written = shorten_number(pl.col("b_no").cast(pl.String))
    with engine.running():
        answers = source.answer(engine, rows).select(
            pl.col("row_id").cast(pl.UInt32),
            pl.when(valid).then(business_number.compact_expr(pl.col("b_no"))).otherwise(written).alias("b_no"),
            *(name for name in ANSWER_COLUMNS if name != "reasons"),
            pl.col("reasons").str.split(REASON_SEPARATOR).fill_null([]),
            pl.col("row_note").alias("error"),
            "row_status",
        )
        found = answers.collect(engine="streaming")
    found = sort_by_risk(found.select(list(RESULTS)))
    found.write_parquet(part)
    return found


def shorten_number(text: pl.Expr) -> pl.Expr:
    """Cut a text that is too long for a number and append its length; cut ones stay as they are."""
    length = text.str.len_chars()
    cut = pl.format("{}… (cut: {} characters)", text.str.head(SHOWN_NUMBER), length)
    is_long = (length > SHOWN_NUMBER) & ~text.str.contains(_CUT, literal=True)
    return pl.when(is_long).then(cut).otherwise(text)


def merge_slices(parts: list[Path], target: Path) -> None:
    """Merge answered slices into ``target``, highest risk first; raise as ``publish_file``.

    Parts are sorted already, so that each slice of the result is one stretch of each part.
    """
    with publish_file(target) as temporary:
        schema = pl.DataFrame(schema=RESULTS).to_arrow().schema
        with pq.ParquetWriter(temporary, schema) as writer:
            for slice_ in _iterate_merged(parts):
                writer.write_table(slice_.to_arrow().cast(schema), row_group_size=ROWS)


def _iterate_merged(parts: list[Path]) -> Iterator[pl.DataFrame]:
    if not parts:
        return
    keys = pl.concat(
        [
            pl.scan_parquet(part).select(*_RISK, pl.lit(place, pl.UInt32).alias("part"))
            for place, part in enumerate(parts)
        ]
    ).collect(engine="streaming")
    of_slice = sort_by_risk(keys).select("part", (pl.int_range(pl.len()) // ROWS).alias("slice"))
    taken = [0] * len(parts)
    for stretch in of_slice.partition_by("slice", maintain_order=True):
        counts = dict(stretch["part"].value_counts().iter_rows())
        yield sort_by_risk(
            pl.concat(
                [pl.scan_parquet(parts[place]).slice(taken[place], count).collect() for place, count in counts.items()]
            )
        )
        for place, count in counts.items():
            taken[place] += count


def sort_by_risk(answers: Rows) -> Rows:
    return answers.sort(_RISK, descending=[True, False], nulls_last=True)


async def stream_items(head: bytes, path: Path, rows: int, limiter: anyio.CapacityLimiter) -> AsyncIterator[bytes]:
    """Stream a JSON answer: ``head``, which ends in an open list, and the first ``rows`` results.

    The first part is rendered before this returns, so that an error can still be answered as one. Raises
    :class:`FileNotFoundError` if the results are gone.
    """

    async def render(first: int) -> bytes:
        return await anyio.to_thread.run_sync(render_items, path, first, min(RENDERED, rows - first), limiter=limiter)

    async def stream(begin: bytes) -> AsyncIterator[bytes]:
        yield begin
        for first in range(RENDERED, rows, RENDERED):
            yield b"," + await render(first)
        yield b"]}"

    return stream(head + await render(0))


def render_items(path: Path, first: int, count: int) -> bytes:
    frame = pl.scan_parquet(path).select(_ITEM).slice(first, count).collect()
    return frame.write_json().encode()[1:-1]
