"""What a worker process of the distributed tests runs; polars is imported by nobody but the verifier that arrives."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa


def verify_parts(pickled: bytes, parts: list[pa.Table], files: list[str]) -> dict[str, Any]:
    """Verify tables in a process that has seen nothing yet, the verifier unpickled anew for each, as tasks do.

    Once the first one is answered the reference files are gone.
    """
    loaded_before = "polars" in sys.modules
    pickle.loads(pickled)
    import polars as pl

    from bansong.distributed import batches as worker_engine

    opened = count_openings(worker_engine.WorkerEngine)
    answers = []
    for part in parts:
        answers.append(pickle.loads(pickled)(part))
        for file in files:
            Path(file).unlink(missing_ok=True)
    return {
        "answers": answers,
        "opened": len(opened),
        "loaded_before": loaded_before,
        "threads": pl.thread_pool_size(),
        "pid": os.getpid(),
    }


def look_into_worker(verifier: Any, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Verify a partition of Spark's and say who did it: process, partition, polars' threads, engines it ever opened."""
    import polars as pl
    from pyspark import TaskContext

    from bansong.distributed import batches as worker_engine

    if not hasattr(worker_engine, "counted"):  # one process has several tasks
        worker_engine.counted = count_openings(worker_engine.WorkerEngine)  # type: ignore[attr-defined]
    rows = sum(batch.num_rows for batch in verifier.map_batches(batches))
    told = {"pid": os.getpid(), "partition": TaskContext.get().partitionId(), "threads": pl.thread_pool_size()}
    told |= {"opened": len(worker_engine.counted), "rows": rows}
    yield pa.record_batch({name: [value] for name, value in told.items()})


def count_openings(engine: Any) -> list[int]:
    """Return a list that gets an item whenever an engine is opened in this process."""
    open_engine, opened = engine._open, []

    def open_and_count(self: Any) -> Any:
        opened.append(1)
        return open_engine(self)

    engine._open = open_and_count
    return opened
