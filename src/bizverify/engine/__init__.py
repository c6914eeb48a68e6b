"""The embedded engine: LazyFrame in, LazyFrame out. No network, and no files but its Parquet indexes."""

from bizverify.engine.address.gazetteer import Gazetteer
from bizverify.engine.local import LocalEngine
from bizverify.engine.registry import Registry
from bizverify.engine.risk.scorecard import Scorecard

__all__ = ["Gazetteer", "LocalEngine", "Registry", "Scorecard"]
