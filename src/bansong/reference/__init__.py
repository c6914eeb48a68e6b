"""Builds and fetches reference data: registry snapshots, statuses, and the gazetteer of official addresses.

- ``registry_builder``: files that say which business has which status → registry
- ``gazetteer_builder``, ``gazetteer_report``: official address files → gazetteer, its sections · what was read and kept
- ``source_files``: finds the official files (folders, zips), detects their kind, yields their lines
- ``juso``: layouts of the official files, rows checked and made numbers
- ``nts``: the client of the tax authority's open API; ``status_fetch``: asks it for many numbers
- ``fetch_run``: such a run under way; ``fetch_report``: what it came to; ``day_allowance``: what it may ask on a day
- ``status_store``: the file of fetched statuses; ``run_statuses``: those of a run's rows
- ``registry_fetch``: registries out of fetched statuses, and refreshed by them
- ``update``: what is refreshed from newer files, and what must be downloaded
- ``merge``: what is given twice, the post office's beside the agency's, the daily changes
"""

from bansong.reference.gazetteer_builder import build_gazetteer
from bansong.reference.gazetteer_report import GazetteerReport
from bansong.reference.registry_builder import ROLES, RegistryReport, build_registry

__all__ = ["ROLES", "GazetteerReport", "RegistryReport", "build_gazetteer", "build_registry"]
