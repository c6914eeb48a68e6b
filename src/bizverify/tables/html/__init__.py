"""Web pages → frames: what portals and ERPs send as ``.xls`` is often a table in HTML; pages are only read."""

from bizverify.tables.html.read import read

__all__ = ["read"]
