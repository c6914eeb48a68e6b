"""Files that polars would not read right, read by the csv module into a copy that it does.

Such a file has quotes within cells that are not quoted (``5" pipe``), delimiters behind the last column, or a last
header line narrower than the table. This goes row by row in Python, two seconds or so for a million rows: the price is
paid by these files alone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from bizverify.errors import InputError
from bizverify.tables.csv.line_check import LineNumbers, bare_cr, nul_byte
from bizverify.tables.table import column_ids


@dataclass(slots=True)
class Repaired:
    """Rows below the header; lines that are short, whose surplus fields are all blank, and that are too long."""

    rows: int = 0
    short: LineNumbers = field(default_factory=LineNumbers)
    surplus: LineNumbers = field(default_factory=LineNumbers)
    long: LineNumbers = field(default_factory=LineNumbers)
    fields: int = 0

    def add(self, line: int, fields: list[str], width: int) -> None:
        """Note a row that begins in a line."""
        self.rows += 1
        if len(fields) > width:
            if width == 1 or any(fields[width:]):  # of one column, nobody knows what its delimiter is
                self.fields = self.fields or len(fields)
                self.long.add(line)
            else:
                self.surplus.add(line)
        elif fields and len(fields) < width:
            self.short.add(line)


def repair(
    path: Path, plain: Path, copy: Path, *, delimiter: str, width: int, skip: int, headed: bool = True
) -> Repaired:
    """Write ``copy`` from the UTF-8 file ``plain``: one header line, and every row within ``width`` columns.

    ``path`` is what messages call the file; ``headed``: whether ``plain`` has a header line below ``skip`` others.
    Raises :class:`InputError` for lines with more fields than the header that are not blank, for quotes that do not
    match, and for what :class:`~bizverify.tables.csv.line_check.Survey` refuses.
    """
    found = Repaired()
    with plain.open(encoding="utf-8-sig", newline="\n") as text, copy.open("w", encoding="utf-8", newline="") as out:
        minimal = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        quoting = csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        minimal.writerow(column_ids(width))
        records = _records(path, text, delimiter, skip)
        if headed:
            next(records)
        for line, fields in records:
            found.add(line, fields, width)
            writer = quoting if any("\r" in cell for cell in fields) else minimal
            writer.writerow(fields[:width])
    if found.long.count:
        raise _too_long(path, found, width, delimiter, "the header" if headed else "the first ones")
    return found


def _records(path: Path, text: TextIO, delimiter: str, skip: int) -> Iterator[tuple[int, list[str]]]:
    """Each record and the line it begins in; lines end in LF, so that a CR elsewhere is one too many."""
    for _ in range(skip):
        text.readline()
    reader = csv.reader(_lines(path, text, skip), delimiter=delimiter, strict=True)
    line = skip + 1
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + skip + 1
    except csv.Error as error:
        if "new-line" in str(error):
            raise bare_cr(path, reader.line_num + skip) from error
        endless = f", or it is longer than {csv.field_size_limit():,} characters" if "limit" in str(error) else ""
        raise InputError(
            f"{path}: line {line}: the quotes of a cell do not match{endless}; put the whole cell in quotes and write "
            "a quote in it twice"
        ) from error


def _lines(path: Path, text: TextIO, skip: int) -> Iterator[str]:
    for number, line in enumerate(text, skip + 1):
        if "\0" in line:
            raise nul_byte(path, number, line.index("\0") + 1)
        if line.endswith("\r\r\n"):
            raise bare_cr(path, number)
        yield line


def _too_long(path: Path, found: Repaired, width: int, delimiter: str, others: str) -> InputError:
    line = found.long.first[0]
    more = f" ({found.long.count:,} such lines: {found.long})" if found.long.count > 1 else ""
    return InputError(
        f"{path}: line {line} has {found.fields} fields, {others} {width}{more}; quote cells that hold {delimiter!r}"
    )
