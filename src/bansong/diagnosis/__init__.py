"""Checks of an installation: of runs (``run_check``), and of a server before its start (``service_check``)."""

from bansong.diagnosis.checks import EXTRAS
from bansong.diagnosis.findings import Diagnosis, Finding
from bansong.diagnosis.run_check import DoctorOptions, diagnose

__all__ = ["EXTRAS", "Diagnosis", "DoctorOptions", "Finding", "diagnose"]
