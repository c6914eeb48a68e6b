"""How much memory a process has held, in the tests and in the processes they start."""

from __future__ import annotations

from pathlib import Path

TESTS = str(Path(__file__).parent)
"""In PYTHONPATH it lets a process of its own import this."""
STEADY = {"PYTHONPATH": TESTS, "POLARS_MAX_THREADS": "2"}
"""What makes a process hold as much on a machine of many cores as on one of two."""


def peak(process: int | str = "self") -> int:
    """The most memory that a process has held since it began, in bytes.

    Not `ru_maxrss`: that begins with what the process held that started it, here all that the tests before have held.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except FileNotFoundError:  # not Linux, where it does begin at nothing
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
