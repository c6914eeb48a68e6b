"""The embedded engine: verify a LazyFrame of businesses, without network and without a loop over rows.

- ``local``: :class:`LocalEngine`, one lazy query from numbers, names and addresses to answers
- ``registry``: statuses by business number, from one Parquet file
- ``status_overlay``: statuses that the tax authority told, laid over those of a registry
- ``address``: official address and postal code
- ``risk``: features, scorecard, reasons
- ``business_names``, ``letter_history``, ``text_values``: whether two names differ, earlier letters, blanks and days

No files are read but its two Parquet indexes.
"""

from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import Known, LocalEngine
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard

__all__ = ["Gazetteer", "Known", "LocalEngine", "Registry", "Scorecard"]
