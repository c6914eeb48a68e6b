"""The local engine on many machines.

:func:`verify_batches` chooses the columns once, on the driver, and returns a :class:`BatchVerifier`: a
picklable callable over Arrow tables. Any engine that sends Python objects to its workers can use it (``ray.data``,
Daft, :mod:`concurrent.futures`). :mod:`bansong.distributed.spark` uses it for Spark DataFrames.

Nothing here imports polars before :mod:`.worker_process` has set its number of threads.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bansong.distributed.batches import ADDED_SCHEMA as ADDED_SCHEMA
    from bansong.distributed.batches import KEYS_SCHEMA as KEYS_SCHEMA
    from bansong.distributed.batches import BatchVerifier as BatchVerifier
    from bansong.distributed.batches import verify_batches as verify_batches
    from bansong.engine.records import ALIKE as ALIKE
    from bansong.engine.records import CROWD as CROWD

_HOMES = dict.fromkeys(("ALIKE", "CROWD"), "bansong.engine.records")

__all__ = ["ADDED_SCHEMA", "ALIKE", "CROWD", "KEYS_SCHEMA", "BatchVerifier", "verify_batches"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "bansong.distributed.batches")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
