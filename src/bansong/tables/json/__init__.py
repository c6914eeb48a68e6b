"""JSON ⇄ frames: an array of objects, an array inside a document, or one object after the other (NDJSON).

The text of each object is carried along (:data:`~bansong.tables.table.RAW`), so that JSON → JSON appends our
fields to the user's objects and leaves everything else in them as it was: order and absence of keys, nesting, ``1.10``.

- ``read``, ``write``: files → tables, enriched tables → files
- ``locate``: the array of records; ``scan``: its values in a stream, and the words of errors
- ``lossless_types``: column types that give back every value as it stands
"""

from bansong.tables.json.locate import Document
from bansong.tables.json.read import count, read
from bansong.tables.json.write import not_finite, write

__all__ = ["Document", "count", "not_finite", "read", "write"]
