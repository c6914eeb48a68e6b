"""The embedded engine: verify a LazyFrame of businesses, without network and without a loop over rows.

- ``local``: :class:`LocalEngine`, one lazy query from numbers, names and addresses to answers
- ``registry``: statuses by business number, from one Parquet file; ``status_overlay``: the tax authority's over them
- ``address``: official address and postal code; ``risk``: features, scorecard, reasons
- ``business_names``, ``letter_history``, ``text_values``: different names, earlier letters, blanks and days
"""

from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import LocalEngine
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard

__all__ = ["Gazetteer", "LocalEngine", "Registry", "Scorecard"]
