"""JSON ⇄ frames: an array of objects, an array inside a document, or one object after the other (NDJSON).

The text of each object is carried along (:data:`~bansong.tables.table.RAW`), so that JSON → JSON appends our
fields to the user's objects and leaves everything else in them as it was: order and absence of keys, nesting, ``1.10``.

- ``read``, ``write``: files → tables, enriched tables → files
- ``locate``: the array of records; ``scan``: its values in a stream, and the words of errors
- ``lossless_types``: column types that give back every value as it stands
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bansong.tables.compression import File, open_file, packing_of, sink
from bansong.tables.format import Planned, ReadAs, Verbs, Written
from bansong.tables.json.locate import Document
from bansong.tables.json.read import count, read
from bansong.tables.json.write import not_finite, write_document, write_lines
from bansong.tables.table import Enriched, Table, renamed_headers

__all__ = ["Document", "JsonVerbs", "NdjsonVerbs", "count", "write_document", "write_lines"]


class JsonVerbs(Verbs):
    """JSON documents; what stands around the records of one stands around them in the output."""

    def read(self, file: File, wanted: ReadAs, resources: ExitStack) -> Table:
        """Open a document, or lines of objects in a file that is called one."""
        return read(file, wanted.json_path, resources, lines=False)

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:
        """Return warnings about headers that repeat or are blank, and about NaN and infinity."""
        if isinstance(table.source, Document):
            return ()
        return (*renamed_headers(planned.headers, self.format), *not_finite(table))

    def render(self, result: Enriched, target: Path) -> Written:
        """Write an array of objects."""
        with sink(target, packing_of(target)) as stream:
            return Written(write_document(result, stream))

    def count(self, result: Enriched, path: Path) -> int:
        """Count the records of the array that was written."""
        source = result.table.source
        inner = source.path if isinstance(source, Document) else None
        with ExitStack() as resources:
            return count(open_file(path, resources), inner or None, resources, lines=False)


class NdjsonVerbs(JsonVerbs):
    """One object a line."""

    def read(self, file: File, wanted: ReadAs, resources: ExitStack) -> Table:
        """Open lines of objects, or a document in a file that is called so."""
        return read(file, wanted.json_path, resources, lines=True)

    def render(self, result: Enriched, target: Path) -> Written:
        """Write one object a line."""
        with sink(target, packing_of(target)) as stream:
            return Written(write_lines(result, stream))

    def count(self, _result: Enriched, path: Path) -> int:
        """Count the objects."""
        with ExitStack() as resources:
            return count(open_file(path, resources), None, resources, lines=True)
