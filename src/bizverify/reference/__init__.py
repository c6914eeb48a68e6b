"""What is made before a run: registry snapshots, and the gazetteer of official addresses."""

from bizverify.reference.gazetteer_builder import GazetteerReport, build_gazetteer
from bizverify.reference.registry_builder import ROLES, RegistryReport, build_registry

__all__ = ["ROLES", "GazetteerReport", "RegistryReport", "build_gazetteer", "build_registry"]
