"""The server's SQLite file: keys, quotas, jobs, outcomes, watches, notifications.

It has a rollback journal, no write-ahead log: ``bansong keys`` writes beside the server, and SQLite before 3.51.3 can
lose commits when two connections checkpoint at once. The one writer shares the cost of a commit by grouping changes.
"""

from bansong.server.store.group_writer import Store
from bansong.server.store.schema import (
    SERVER_FILE,
    hold_server_file,
    lock_server_file,
    open_server_file,
    refuse_lost_file,
)

__all__ = ["SERVER_FILE", "Store", "hold_server_file", "lock_server_file", "open_server_file", "refuse_lost_file"]
