"""CSV and TSV ⇄ frames.

- ``read``, ``write``: files → tables, enriched tables → files
- ``encoding``: UTF-8, UTF-16, CP949; ``dialect``: delimiter, header lines, quoting
- ``line_check``: lines with too few or too many fields; a repaired copy of files that polars cannot read
"""

from bansong.tables.csv.dialect import Dialect
from bansong.tables.csv.read import explain_error, read, written_rows
from bansong.tables.csv.write import dialect_for, write

__all__ = ["Dialect", "dialect_for", "explain_error", "read", "write", "written_rows"]
