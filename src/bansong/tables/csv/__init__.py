"""CSV and TSV ⇄ frames.

- ``read``, ``write``: files → tables, enriched tables → files
- ``encoding``: UTF-8, UTF-16, CP949; ``dialect``: delimiter, header lines, quoting
- ``line_check``: lines with too few or too many fields; a repaired copy of files that polars cannot read
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bansong.errors import InputError
from bansong.tables.compression import File, open_file, packing_of, sink
from bansong.tables.csv.dialect import Dialect
from bansong.tables.csv.read import explain_error, read, written_rows
from bansong.tables.csv.write import dialect_for, write
from bansong.tables.format import ReadAs, Verbs, Written
from bansong.tables.table import Enriched, Table

__all__ = ["CsvVerbs", "Dialect", "dialect_for", "write", "written_rows"]


class CsvVerbs(Verbs):
    """CSV and TSV, in the dialect of the input."""

    def read(self, file: File, wanted: ReadAs, resources: ExitStack) -> Table:
        """Open a file; every cell is text."""
        return read(file, wanted, resources)

    def render(self, result: Enriched, target: Path) -> Written:
        """Write a file in the input's dialect if it was CSV."""
        with sink(target, packing_of(target)) as stream:
            return Written(write(result, target, stream))

    def count(self, result: Enriched, path: Path) -> int:
        """Count the rows in the dialect that was written, which is not looked for anew."""
        with ExitStack() as resources:
            file = open_file(path, resources)
            return written_rows(file, dialect_for(result.table, path, result.encoding), resources)

    def explain(self, table: Table, error: BaseException) -> InputError:
        """Name the line, where it can be found."""
        if table.file is None or not isinstance(table.source, Dialect):
            return super().explain(table, error)
        return explain_error(table.file, table.source, error)
