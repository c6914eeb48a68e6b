"""The local engine on many machines.

:func:`verify_batches` chooses the columns once, on the driver, and returns a :class:`BatchVerifier`: a
picklable callable over Arrow tables. Any engine that sends Python objects to its workers can use it (``ray.data``,
Daft, :mod:`concurrent.futures`). :mod:`bansong.distributed.spark` uses it for Spark DataFrames.
"""

from bansong.distributed.batches import ADDED_SCHEMA as ADDED_SCHEMA
from bansong.distributed.batches import KEYS_SCHEMA as KEYS_SCHEMA
from bansong.distributed.batches import BatchVerifier as BatchVerifier
from bansong.distributed.batches import verify_batches as verify_batches
from bansong.engine.records import ALIKE as ALIKE
from bansong.engine.records import CROWD as CROWD
