"""Files of jobs: uploads read in a child process, results in slices, limits of disk use."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.from_thread
import anyio.to_thread
import polars as pl
import pyarrow.parquet as pq

from bansong.base import business_number
from bansong.base.errors import BansongError, ColumnError, OutputError
from bansong.base.files import list_folder
from bansong.base.isolation import IsolationError, limits, run_isolated
from bansong.base.messages import CLIENT, gettext, gettext_noop, join_clauses, use_audience
from bansong.base.publish import publish_file
from bansong.base.schema import ANSWER_COLUMNS, CONTEXT_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS
from bansong.engine.local import ROW_PROBLEM, LocalEngine
from bansong.engine.records import CROWDED, ROW_ID, SEVERAL, with_cross_row_features
from bansong.run.survey import prepare_table
from bansong.server.bodies import ReceivedUpload, disk_full, unsupported_file
from bansong.server.engines import StatusSource, learning_folder
from bansong.server.job_table import LARGEST_OUTCOME, JobOnDisk
from bansong.server.keys import decrease
from bansong.server.payloads import JobResult, Refusal, invalid, limit_exceeded, too_large
from bansong.server.settings import ServicePlan
from bansong.tables.detect import open_table, reading


def uploads_folder(files: Path) -> Path:
    """Return the folder of uploads that are being received."""
    return files / "uploads"


def job_folder(files: Path, job_id: str) -> Path:
    """Return a job's folder."""
    return files / "jobs" / job_id


def records_path(files: Path, job_id: str) -> Path:
    """Return the path of a job's records."""
    return job_folder(files, job_id) / "records.parquet"


def results_path(files: Path, job_id: str) -> Path:
    """Return the path of a job's results."""
    return job_folder(files, job_id) / "results.parquet"


def remove_unfinished(files: Path, job_id: str) -> None:
    """Delete all files in a job's folder but its records, after an unfinished attempt."""
    kept = records_path(files, job_id)
    for left in [path for path in kept.parent.iterdir() if path != kept]:
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def remove_job_folders(files: Path, job_ids: Collection[str]) -> None:
    """Delete the folders of jobs."""
    for job_id in job_ids:
        shutil.rmtree(job_folder(files, job_id), ignore_errors=True)


def remove_leftovers(files: Path, known: Collection[str]) -> None:
    """Delete all uploads, and the folders of unknown jobs."""
    shutil.rmtree(uploads_folder(files), ignore_errors=True)
    for left in [path for path in list_folder(files / "jobs") if path.name not in known]:
        shutil.rmtree(left, ignore_errors=True)


Rows = TypeVar("Rows", pl.DataFrame, pl.LazyFrame)

ROWS: Final = 20_000  # rows of a slice, and of a row group
RENDERED: Final = 500  # results rendered at a time: a slow reader keeps so many in memory
NO_GRADE: Final = "none"
_RISK: Final = ("bounce_prob", "row_id")
_ITEM: Final = list(JobResult.__struct_fields__)

_TEXTS: Final[dict[str, pl.DataType]] = {name: pl.String() for name in ANSWER_COLUMNS}
# ``b_no``: ten digits, or the text of an invalid cell; ``error``: the reason for a missing answer
RESULTS: Final[dict[str, pl.DataType]] = (
    {"row_id": pl.UInt32(), "b_no": pl.String()}
    | _TEXTS
    | {"bounce_prob": pl.Float64(), "reasons": pl.List(pl.String()), "error": pl.String(), "row_status": pl.String()}
)
SHOWN_NUMBER: Final = 100  # characters shown of a longer cell that is no business number
_CUT: Final = "… (cut: "


class ResultCounts:
    """Count a job's results by grade, and those without an answer."""

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
    """Answer the :data:`ROWS` records from ``first`` on, and write them to ``part``, sorted by risk."""
    rows = scan_slice(records, first)
    valid = pl.col("row_status") != "invalid"
    written = _shorten_number(pl.col("b_no").cast(pl.String))
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


def _shorten_number(text: pl.Expr) -> pl.Expr:
    """Cut texts of more than :data:`SHOWN_NUMBER` characters and append their length; leave texts cut before."""
    length = text.str.len_chars()
    cut = pl.format("{}… (cut: {} characters)", text.str.head(SHOWN_NUMBER), length)
    is_long = (length > SHOWN_NUMBER) & ~text.str.contains(_CUT, literal=True)
    return pl.when(is_long).then(cut).otherwise(text)


def merge_slices(parts: list[Path], target: Path) -> None:
    """Merge slices that are sorted by risk into one sorted file, with one slice in memory at a time."""
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
    """Stream ``head`` and results as JSON. Errors of the first results are raised before streaming begins."""

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


RESULT_BYTES: Final = 200  # reserved per row until a job ends: twice the size of a result, since parts are merged
_BLOCK_BYTES: Final = 4_096
_RETRY_SOON_S: Final = 5
_RETRY_LATER_S: Final = 3_600  # expired jobs are purged every hour


@dataclass(slots=True)
class _JobBytes:
    key_id: str
    files: int = 0
    outcomes: int = 0


class DiskUse:
    """Disk bytes used by each key. Only for the event loop's thread, so that check and reservation are atomic."""

    def __init__(self, files: Path, jobs: Iterable[JobOnDisk] = ()) -> None:
        self._files = files
        self._jobs: dict[str, _JobBytes] = {}
        self._learned = self.measure_learned()
        self._at_rest: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        for job in jobs:
            self._set(job.id, job.key_id, self.measure(job.id, job.total if job.is_active else 0))
            self.add_outcomes(job.id, job.outcome_bytes)

    def total_bytes(self, key_id: str) -> int:
        return self._bytes_at_rest(key_id) + self._coming[key_id]

    def measure(self, job_id: str, rows: int = 0) -> int:
        return folder_bytes(job_folder(self._files, job_id)) + rows * RESULT_BYTES

    def reserve(self, key_id: str, plan: ServicePlan, size: int) -> None:
        """Reserve bytes for an upload until :meth:`release`; raise like :meth:`put_job`."""
        self._refuse(key_id, plan, size)
        self._coming[key_id] += size

    def release(self, key_id: str, size: int) -> None:
        decrease(self._coming, key_id, size)

    def put_job(self, job_id: str, key_id: str, plan: ServicePlan, size: int) -> None:
        """Count a new job's bytes; raise :class:`Refusal` 429 if the plan has no room now, 413 if it never will."""
        self._refuse(key_id, plan, size)
        self._set(job_id, key_id, size)

    def update_job(self, job_id: str, size: int) -> None:
        if job_id in self._jobs:
            self._set(job_id, self._jobs[job_id].key_id, size)

    @contextmanager
    def hold_outcome(self, key_id: str, plan: ServicePlan) -> Iterator[None]:
        self.reserve(key_id, plan, LARGEST_OUTCOME)
        try:
            yield
        finally:
            self.release(key_id, LARGEST_OUTCOME)

    def add_outcomes(self, job_id: str, size: int) -> None:
        if (job := self._jobs.get(job_id)) is not None:
            job.outcomes += size
            self._add(job.key_id, size)

    def measure_learned(self) -> dict[str, int]:
        return {folder.name: folder_bytes(folder) for folder in list_folder(learning_folder(self._files))}

    def set_learned(self, sizes: Mapping[str, int]) -> None:
        self._learned = dict(sizes)

    def drop_jobs(self, job_ids: Collection[str]) -> None:
        for job_id in job_ids:
            if (job := self._jobs.pop(job_id, None)) is not None:
                self._add(job.key_id, -job.files - job.outcomes)

    def missing_jobs(self) -> list[str]:
        return [job_id for job_id in list(self._jobs) if not job_folder(self._files, job_id).exists()]

    def _set(self, job_id: str, key_id: str, size: int) -> None:
        job = self._jobs.setdefault(job_id, _JobBytes(key_id))
        self._add(key_id, size - job.files)
        job.files = size

    def _bytes_at_rest(self, key_id: str) -> int:
        return self._at_rest[key_id] + self._learned.get(key_id, 0)

    def _add(self, key_id: str, size: int) -> None:
        self._at_rest[key_id] += size
        if not self._at_rest[key_id]:
            del self._at_rest[key_id]

    def _refuse(self, key_id: str, plan: ServicePlan, size: int) -> None:
        limit, used = plan.disk_bytes, self.total_bytes(key_id)
        if used + size <= limit:
            return
        if size > limit:
            message = gettext(
                "this takes {size:,} bytes on the disk, and the plan allows a key {limit:,}; send it in parts",
                size=size,
                limit=limit,
            )
            raise Refusal(413, "too_large", message, bound="disk_bytes", limit=limit, used=used, unit="bytes")
        message = gettext(
            "jobs and outcomes of this key take {used:,} of the {limit:,} bytes that its plan allows, and this needs "
            "{size:,}; room comes when jobs are deleted, or expire",
            used=used,
            limit=limit,
            size=size,
        )
        passes = self._bytes_at_rest(key_id) + size <= limit
        raise limit_exceeded("disk_bytes", limit, used, message, _RETRY_SOON_S if passes else _RETRY_LATER_S)


def folder_bytes(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk, in whole blocks."""
    size = _BLOCK_BYTES
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                blocks = -(-entry.stat().st_size // _BLOCK_BYTES)
                size += folder_bytes(Path(entry)) if entry.is_dir() else blocks * _BLOCK_BYTES
    except FileNotFoundError:  # it is being deleted
        return 0
    return size


_FUNCTION: Final = "bansong.server.job_files:write_records"
_THREADS: Final = 2
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_GROUP: Final = 20_000
LONGEST_CELL: Final = 2_000  # longer cells are cut: twice the longest address of the interface
_KNOWN_COLUMNS: Final = (ROW_ID, *RECORD_COLUMNS, *CONTEXT_COLUMNS, ROW_PROBLEM, CROWDED, SEVERAL)
_RENAME: Final = gettext_noop("here there is no such parameter: rename the column's header to b_no")
# refusals by the reason why the reading process was stopped
_ABANDONED: Final = {
    "memory": (413, "too_large", gettext_noop("takes too much memory to read; send its table as a CSV file")),
    "time": (413, "too_large", gettext_noop("takes too long to read; send its table as a CSV file, in parts")),
    "crash": (
        400,
        "unreadable_file",
        gettext_noop("is damaged, or takes too much memory to read; send its table as a CSV file"),
    ),
}


async def read_isolated(upload: ReceivedUpload, target: Path, most: int, memory: int, seconds: float) -> int:
    """Read an upload into ``target`` in a child process; return its number of rows.

    ``memory`` is in bytes. Raises :class:`Refusal` for unusable files, :class:`IsolationError` for a killed process.
    """
    call = partial(
        run_isolated,
        _FUNCTION,
        {"path": upload.path.name, "target": os.fspath(target.absolute()), "most": most},
        memory=memory,
        seconds=seconds,
        threads=_THREADS,
        folder=upload.folder,
        checkpoint=anyio.from_thread.check_cancelled,
    )
    try:
        found = await anyio.to_thread.run_sync(call)
    except BansongError as error:
        message = str(error).replace(upload.path.name, upload.name)
        if isinstance(error, ColumnError):
            raise invalid(join_clauses(message, gettext(_RENAME)), code="no_number_column") from None
        raise invalid(message, code="unreadable_file") from None
    if "disk" in found:
        raise disk_full()
    if "rows" in found:
        raise too_large(
            gettext("{name} has {rows:,} rows, so the file", name=upload.name, rows=found["rows"]), most, "rows"
        )
    if "kind" in found:
        raise unsupported_file(gettext("{kind} are not taken", kind=found["kind"]))
    return int(found["total"])


def shorten_cells(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Cut overlong cells: the engine needs twenty times their size in memory. Valid numbers stay."""
    texts = [name for name, dtype in rows.collect_schema().items() if dtype == pl.String]
    cut = {name: _cut_text(pl.col(name)) for name in texts if name not in ("b_no", ROW_PROBLEM)}
    return rows.with_columns(**cut, **(_cut_numbers(known=ROW_PROBLEM in texts) if "b_no" in texts else {}))


def _cut_numbers(*, known: bool) -> dict[str, pl.Expr]:
    long = pl.when(pl.col("b_no").str.len_chars() > LONGEST_CELL).then("b_no")  # null if shorter: costs little below
    inner = long.str.strip_chars()
    short = pl.when(inner.str.len_chars() > LONGEST_CELL).then(_shorten_number(inner)).otherwise(inner)
    problem = pl.when(long.is_not_null()).then(business_number.problem_expr(long))
    return {
        "b_no": pl.coalesce(business_number.compact_expr(long), short, "b_no"),
        ROW_PROBLEM: pl.coalesce(ROW_PROBLEM, problem) if known else problem,
    }


def _cut_text(text: pl.Expr) -> pl.Expr:
    long = pl.when(text.str.len_chars() > LONGEST_CELL).then(text)
    return pl.coalesce(long.str.replace_all(r"\s+", " ").str.strip_chars().str.head(LONGEST_CELL), text)


def write_records(path: str, target: str, most: int) -> dict[str, Any]:
    """Write a file's records to ``target`` (in the child process); return their ``total`` or why they are refused."""
    try:
        with use_audience(CLIENT):
            return _write_records(Path(path), Path(target), most)
    except (OutputError, OSError) as error:
        return {"disk": type(error).__name__}


def _write_records(path: Path, target: Path, most: int) -> dict[str, Any]:
    with path.open("rb") as file:
        if file.read(4).startswith(_COMPRESSED):
            return {"kind": gettext("packed files")}
    with open_table(path) as table:
        if not table.format.can.uploads:
            return {"kind": gettext("Parquet files")}
        prepared = prepare_table(table)
        with reading(table):
            total = table.count()
        if total > most:
            return {"rows": total}
        with publish_file(target) as temporary, reading(table):
            rows = with_cross_row_features(prepared.rows)
            names = rows.collect_schema().names()
            if "b_no" not in names:  # `[]`: no record, so no columns
                rows, names = rows.with_columns(pl.lit(None, pl.String).alias("b_no")), [*names, "b_no"]
            records = shorten_cells(rows.select(name for name in _KNOWN_COLUMNS if name in names))
            records.sink_parquet(temporary, row_group_size=_GROUP)
            return {"total": pl.scan_parquet(temporary).select(pl.len()).collect().item()}


SMALL_FILE: Final = 2_000_000  # reading such a file of any format takes 180 MB and two seconds
_SMALL_MEMORY: Final = 300_000_000
_SMALL_SECONDS: Final = 10.0
_LARGE_SECONDS: Final = 120.0


class ReadingSlots:
    """Slots for reading uploads, apart for small and large files. A small file that fails is read as a large one."""

    def __init__(self, slots: int) -> None:
        self._small = anyio.CapacityLimiter(slots)
        self._large = anyio.CapacityLimiter(slots)
        self._of_key: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    @property
    def total_tokens(self) -> int:
        return int(self._small.total_tokens + self._large.total_tokens)

    @property
    def borrowed_tokens(self) -> int:
        return self._small.borrowed_tokens + self._large.borrowed_tokens

    async def read(self, key_id: str, upload: ReceivedUpload, target: Path, most: int) -> int:
        async with self._of_key.setdefault(key_id, anyio.Lock()):
            memory, size = limits().memory, await anyio.to_thread.run_sync(lambda: upload.path.stat().st_size)
            if size <= SMALL_FILE:
                async with self._small:
                    with suppress(IsolationError):
                        return await read_isolated(upload, target, most, min(_SMALL_MEMORY, memory), _SMALL_SECONDS)
            async with self._large:
                try:
                    return await read_isolated(upload, target, most, memory, _LARGE_SECONDS)
                except IsolationError as error:
                    status, code, why = _ABANDONED[error.reason]
                    raise Refusal(status, code, f"{upload.name} {gettext(why)}") from None
