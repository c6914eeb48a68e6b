"""CSV and TSV ⇄ frames: ``read`` and ``write`` side by side, with what they find out on the way.

``text``: encodings · ``dialect``: delimiter, header, quoting · ``lines``: ragged lines · ``repair``: files that polars
cannot read.
"""

from bizverify.tables.csv.dialect import Dialect
from bizverify.tables.csv.read import explain_error, read, written_rows
from bizverify.tables.csv.write import dialect_for, write

__all__ = ["Dialect", "dialect_for", "explain_error", "read", "write", "written_rows"]
