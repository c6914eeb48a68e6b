"""The embedded engine: verify a LazyFrame of businesses, without network and without a loop over rows."""

from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import LocalEngine
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard

__all__ = ["Gazetteer", "LocalEngine", "Registry", "Scorecard"]
