"""What is missing, old or broken, each with its remedy: for a user's runs, and for a server before it is started.

``run_check`` looks at what a run needs, ``service_check`` at what `bansong serve` is given (it needs the extra
`server`). ``checks`` are those of both, ``findings`` what they return.
"""

from bansong.diagnosis.checks import EXTRAS
from bansong.diagnosis.findings import Diagnosis, Finding
from bansong.diagnosis.run_check import DoctorOptions, diagnose

__all__ = ["EXTRAS", "Diagnosis", "DoctorOptions", "Finding", "diagnose"]
