"""The server's one SQLite file: keys and quotas, jobs and outcomes, watches and notifications.

``schema`` has the tables and opens the file, ``group_writer`` writes to it,
``key_table`` and ``job_table`` have the queries.

A rollback journal, not a write-ahead log: ``bansong keys`` writes the file while the server runs, and releases of
SQLite before 3.51.3 can lose commits when two connections check a log point at once. What a commit costs more
is shared out by the one writer, which commits what has come in meanwhile as one group.
"""

from bansong.server.store.group_writer import Store
from bansong.server.store.schema import SERVER_FILE, lock_server_file, open_server_file, refuse_lost_file

__all__ = ["SERVER_FILE", "Store", "lock_server_file", "open_server_file", "refuse_lost_file"]
