"""Build and fetch reference data: registries, statuses, and the gazetteer of official addresses."""

from bansong.reference.gazetteer_builder import build_gazetteer
from bansong.reference.gazetteer_report import GazetteerReport
from bansong.reference.registry_builder import ROLES, RegistryReport, build_registry

__all__ = ["ROLES", "GazetteerReport", "RegistryReport", "build_gazetteer", "build_registry"]
