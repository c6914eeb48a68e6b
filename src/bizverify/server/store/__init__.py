"""The server's one SQLite file: keys, usage, jobs, labels, watches, notices. One module each.

A rollback journal, not a write-ahead log: ``bizverify keys`` writes the file while the server runs, and releases of
SQLite before 3.51.3 can lose commits when two connections check a log point at once. What a commit costs more
is shared out by the one writer, which commits what has come in meanwhile as one group.
"""

from bizverify.server.store.group_writer import Store
from bizverify.server.store.schema import SERVER_FILE, lock_server_file, open_server_file

__all__ = ["SERVER_FILE", "Store", "lock_server_file", "open_server_file"]
