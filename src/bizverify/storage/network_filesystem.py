"""Which file system a folder is on: SQLite's locks and its log are not to be trusted across a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TABLE: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    (
        *("afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse"),
        *("fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncp", "ncpfs", "nfs"),
        *("nfs4", "orangefs", "pvfs2", "smb2", "smb3", "smbfs"),
    )
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def mount_table() -> str:
    """The kernel's list of mounts; empty where there is none (other platforms)."""
    try:
        return _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def network_file_system(folder: Path, table: str) -> str | None:
    """Return the kind of network file system that ``folder`` (absolute, without links) is on, or ``None``.

    The mount with the longest path above it counts, and of two at one path the later: it hides the earlier.
    """
    above = {str(folder), *map(str, folder.parents)}
    longest, kind = "", ""
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        if point in above and len(point) >= len(longest):
            longest, kind = point, kinds[0]
    return kind if kind in _NETWORK else None
