"""Set polars' threads in a worker process before polars is imported.

This module must not import polars, directly or not.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from bansong.base.messages import gettext

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from bansong.distributed.batches import BatchVerifier


log = logging.getLogger(__name__)

THREADS: Final = "POLARS_MAX_THREADS"


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


def describe_process() -> str:
    """Return the number of this process and the name of its machine, for messages."""
    return gettext("process {process} on {machine}", process=os.getpid(), machine=platform.node())
