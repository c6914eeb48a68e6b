"""What a worker process of the distributed tests runs; polars is imported by nobody but the verifier that arrives."""

from __future__ import annotations

import os
import pickle
import sys
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


def count_openings(engine: Any) -> list[int]:
    """Return a list that gets an item whenever an engine is opened in this process."""
    open_engine, opened = engine._open, []

    def open_and_count(self: Any) -> Any:
        opened.append(1)
        return open_engine(self)

    engine._open = open_and_count
    return opened
