"""Starts of processes that must do something before polars is imported: the command, workers of a cluster, children.

``import bansong`` imports polars, unless this module was imported before it (decision 003). So nothing here imports
bansong or polars at the top level.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from bansong.distributed.batches import BatchVerifier

log = logging.getLogger("bansong.distributed")

THREADS: Final = "POLARS_MAX_THREADS"


def main() -> None:
    """Run the command ``bansong``, which imports polars once it handles the stop signals, and only if it needs it."""
    from bansong.cli.app import main

    main()


def build_with_threads(threads: int, build: bytes) -> Any:
    """Set polars' threads, then unpickle and call ``build``; log if polars is already loaded with more threads."""
    if "polars" not in sys.modules:
        os.environ[THREADS] = str(threads)
    else:
        import polars as pl

        if pl.thread_pool_size() > threads:
            log.info(
                "polars was loaded before in process %d, with %d threads and not %d; set %s=%d for the workers",
                os.getpid(),
                pl.thread_pool_size(),
                threads,
                THREADS,
                threads,
            )
    return pickle.loads(build)()  # noqa: S301 - a part of what is being unpickled


def map_partition(verifier: BatchVerifier, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """Call :meth:`BatchVerifier.map_batches`. Pickling the bound method would load polars too early."""
    return verifier.map_batches(batches)


def map_partition_keys(
    verifier: BatchVerifier, beside: Sequence[str], batches: Iterable[RecordBatch]
) -> Iterator[RecordBatch]:
    """Yield the row keys of a partition, followed by its columns ``beside``."""
    return verifier.map_keys(batches, beside)
