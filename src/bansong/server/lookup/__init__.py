"""Single lookups: many answered by one query, each paid from its key's quota."""
