"""The server's one SQLite file: keys, usage, jobs, labels, watches, notices. One module each.

A rollback journal, not a write-ahead log: ``bizverify keys`` writes the file while the server runs, and releases of
SQLite before 3.51.3 can lose commits when two connections check a log point at once. What a commit costs more
is shared out by the one writer, which commits what has come in meanwhile as one group.
"""

from bizverify.server.store.opening import connected, server_lock, store_errors
from bizverify.server.store.writer import Store

__all__ = ["Store", "connected", "server_lock", "store_errors"]
