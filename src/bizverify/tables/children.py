"""Processes of our own in which a file is read that may be hostile: how much memory they may take, and take."""

from __future__ import annotations

import os
from pathlib import Path


def resident(process: int) -> int:
    """The memory that a process holds, in bytes; 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def limit_memory(size: int) -> None:
    """Let this process reserve twice ``size`` bytes at most, where the system can see to it, and leave no core file."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    size *= 2  # reserved is not yet used; what is used, the parent looks at
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
