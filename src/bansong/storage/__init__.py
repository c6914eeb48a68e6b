"""Files of ours on this machine: where they lie, how they are made private, and the one kind of SQLite file."""
