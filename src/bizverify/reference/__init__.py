"""What is made before a run: registry snapshots, and the gazetteer of official addresses."""

from bizverify.reference.gazetteer import GazetteerReport, build_gazetteer
from bizverify.reference.registry import ROLES, RegistryReport, build_registry

__all__ = ["ROLES", "GazetteerReport", "RegistryReport", "build_gazetteer", "build_registry"]
