"""The SQLite file that remembers every lookup paid: cache, resume point and quota book in one."""
