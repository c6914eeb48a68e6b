"""What is missing, old or broken, each with its remedy: for a user's runs, and for a server before it is started.

``run_check`` looks at what a run needs, ``service_check`` at what `bizverify serve` is given (it needs the extra
`server`). ``checks`` are those of both, ``findings`` what they return.
"""

from bizverify.diagnosis.checks import EXTRAS
from bizverify.diagnosis.findings import Diagnosis, Finding
from bizverify.diagnosis.run_check import DoctorOptions, diagnose

__all__ = ["EXTRAS", "Diagnosis", "DoctorOptions", "Finding", "diagnose"]
