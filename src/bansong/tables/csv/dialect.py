"""The dialect of a CSV file: found from its first part, used again for the output."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from bansong.errors import InputError, Problem, UsageError
from bansong.tables.csv.encoding import MARKED_UTF8, Coding
from bansong.tables.csv.line_check import bare_cr
from bansong.tables.heading import LOOK, Heading, find_heading, headless
from bansong.tables.size_limits import limits, or_raise_limit
from bansong.translation import advise, gettext, parameter

HEADER_LINE_MISSING: Final = Problem(
    "csv.header_line_missing", "{path}: has no header line, or its quotes do not match"
)
SEPARATOR_INVALID: Final = Problem(
    "csv.separator_invalid",
    "{option}: must be one character of ASCII that stands between cells, such as ; ^ \\t or \\x01",
)
TOO_MANY_COLUMNS: Final = Problem(
    "csv.too_many_columns",
    "{path}: has {columns:,} columns, more than {most:,}; take out those that are not needed{or_raise}",
)
SEPARATOR_UNCLEAR: Final = Problem(
    "csv.separator_unclear",
    "{path}: the cells seem to be divided by {character}; put a line sep={character} above the header, "
    "as Excel understands it, {advice}",
)

_DELIMITERS: Final = (",", ";", "\t", "|")
_NAMED: Final = re.compile(r'"?sep=([!#-/:-@[-`{-~\x01-\t\x1c-\x1f])"?\n?', re.IGNORECASE)
_ESCAPE: Final = re.compile(r"\\(?:t|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_ODD: Final = "^~:#!&\x01\x02\x03\x04\x05\x06\x07\x08\x1c\x1d\x1e\x1f"
"""Delimiters that are not assumed, since cells hold them, too."""
_REGULAR: Final = 0.9
_JUDGED: Final = 200

LineEnd = Literal["\n", "\r\n", "\r"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The encoding, delimiter, line ends, header lines and quoting of a CSV file.

    ``prolog``: the lines above the last line of the header, as they are; the first ``titles`` of them stand above the
    header's first. ``header``: the cells of that last line.
    ``quoted``: the positions of the columns whose cells are quoted without need, and whether the header's are.
    ``line_end`` is what ends most lines, ``ended`` whether the last line has it too. ``headed``: whether the file has a
    header line at all; an output always has one.
    """

    coding: Coding = MARKED_UTF8
    delimiter: str = ","
    line_end: LineEnd = "\n"
    ended: bool = True
    headed: bool = True
    prolog: str = ""
    header: tuple[str, ...] = ()
    quoted: frozenset[int] = frozenset()
    quoted_header: bool = False
    titles: int = 0

    @property
    def encoding(self) -> str:
        """The name of the encoding, as ``--encoding`` takes it."""
        return self.coding.codec

    @property
    def skip(self) -> int:
        """The number of lines above the last line of the header."""
        return self.prolog.count("\n")


def read_delimiter(given: str) -> str:
    r"""Return the character that is meant, by itself or as an escape (``\t``, ``\x01``) as a command line has it.

    Raises :class:`UsageError` for what divides no cells.
    """
    found = unescape(given)
    if len(found) != 1 or not found.isascii() or found.isalnum() or found in '"\r\n\0 ':
        option = parameter("delimiter", given)
        raise UsageError(SEPARATOR_INVALID, option=option)
    return found


def unescape(text: str) -> str:
    r"""Return a text with the characters that its escapes (``\t``, ``\x01``) stand for."""
    return _ESCAPE.sub(lambda found: "\t" if found[0] == "\\t" else chr(int(found[0][2:], 16)), text)


def sniff_dialect(
    path: Path,
    name: Path,
    coding: Coding,
    sample: str,
    *,
    ended: bool,
    has_header: bool,
    delimiter: str | None = None,
) -> tuple[Dialect, tuple[str, ...]]:
    """Return the dialect and the headers of the file ``path`` from its first part, ``sample``, of whole lines.

    ``name``: the path without the suffix of its packing. ``delimiter``: the one that the user names.
    Lines that end in a bare CR end in LF in ``sample`` (see :attr:`Coding.bare_cr`). Raises :class:`InputError` when
    there is no header.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", sample)
    given = read_delimiter(delimiter) if delimiter is not None else None
    delimiter, records, starts, heading = _split(path, name, lines, has_header, given)
    headed = heading.last >= 0
    above = starts[heading.last] if headed else int(bool(lines and _named_delimiter(lines)))
    line_end: LineEnd = "\r" if coding.bare_cr else "\r\n" if 2 * sample.count("\r\n") > sample.count("\n") else "\n"
    own = records[heading.last] if headed else list(heading.headers)
    head = "" if headed else delimiter.join(own) + "\n"
    quoted, quoted_header = _quoting(head + "".join(lines[above:]), delimiter)
    header = (*own, *[""] * (len(heading.headers) - len(own)))
    dialect = Dialect(
        coding, delimiter, line_end, ended, headed, "".join(lines[:above]), header, quoted, quoted_header=quoted_header
    )
    return replace(dialect, titles=starts[heading.first] if headed else 0), heading.headers


def _split(
    path: Path, name: Path, lines: list[str], has_header: bool, given: str | None
) -> tuple[str, list[list[str]], list[int], Heading]:
    """The delimiter, the first records, the line (from 0) that each begins in, and the header among them.

    A delimiter that does not divide the header is none: the file has one column then.
    """
    alone = given or ("\t" if name.suffix.lower() in (".tsv", ".tab") else ",")
    for delimiter in (alone,) if given else (*_delimiters(lines), alone):
        records, starts = _records(lines, delimiter)
        if not records:
            break
        _refuse_wide(
            path, min(filter(None, map(len, records[:LOOK])), default=0)
        )  # finding a header looks at every cell
        rows = records[1:] if _named_delimiter(lines) else records
        heading = (None if has_header else headless(rows, name=str(path))) or find_heading(records, name=str(path))
        _refuse_wide(path, len(heading.headers))
        if delimiter == alone and not given and len(heading.headers) == 1:
            _refuse_odd(path, lines)
        if delimiter == alone or len(heading.headers if heading.last < 0 else records[heading.last]) > 1:
            return delimiter, records, starts, heading
    if lines and "\r" in lines[0].removesuffix("\n").removesuffix("\r"):
        raise bare_cr(path, 1)
    raise InputError(HEADER_LINE_MISSING, path=path)


def _refuse_odd(path: Path, lines: list[str]) -> None:
    for odd, (share, _) in _scores(lines, _ODD).items():
        if share >= _REGULAR:
            shown = odd if odd.isprintable() else f"\\x{ord(odd):02x}"
            named = gettext("or name it with {option}", option=parameter("delimiter", shown))
            commas = gettext("or divide the cells by commas")
            raise InputError(SEPARATOR_UNCLEAR, path=path, character=shown, advice=advise("delimiter", named, commas))


def _refuse_wide(path: Path, columns: int) -> None:
    """Refuse a table that is too wide: polars takes a minute for a million columns."""
    most = limits().columns
    if columns > most:
        raise InputError(
            TOO_MANY_COLUMNS, path=path, columns=columns, most=most, or_raise=or_raise_limit("columns", str(columns))
        )


def _delimiters(lines: list[str]) -> list[str]:
    """The one that Excel's line ``sep=`` names, else candidates: first what splits most lines equally, into more."""
    if lines and (named := _named_delimiter(lines)):
        return [named]
    scores = _scores(lines, _DELIMITERS)
    return sorted(scores, key=lambda delimiter: scores[delimiter], reverse=True)


def _scores(lines: list[str], delimiters: Iterable[str]) -> dict[str, tuple[float, int]]:
    """For each delimiter that divides any line: the share of lines with the usual number of fields, and that number."""
    scores = {}
    for delimiter in delimiters:
        widths = Counter(map(len, filter(None, _records(lines[:_JUDGED], delimiter)[0])))
        several = {width: count for width, count in widths.items() if width > 1}
        if several:
            width = max(several, key=lambda width: (several[width], width))
            scores[delimiter] = (several[width] / widths.total(), width)
    return scores


def _named_delimiter(lines: list[str]) -> str | None:
    named = _NAMED.fullmatch(unescape(lines[0].replace("\r", "")))
    return named[1] if named else None


def _records(lines: list[str], delimiter: str) -> tuple[list[list[str]], list[int]]:
    """The first records and the line (from 0) that each begins in, up to one that the csv module gives up."""
    records: list[list[str]] = []
    starts = [0]
    reader = csv.reader(lines, delimiter=delimiter)
    with suppress(csv.Error):
        for fields in islice(reader, max(LOOK, _JUDGED)):
            records.append(fields)
            starts.append(reader.line_num)
    return records, starts


def _quoting(sample: str, delimiter: str) -> tuple[frozenset[int], bool]:
    """The columns that are quoted without need, by their first cells, and whether the header is.

    A column is where every cell that holds anything is quoted, and one of them at least holds nothing that asks for it;
    a column without any cell is where all others are.
    """
    d = re.escape(delimiter)
    token = re.compile(rf'("(?:[^"]|"")*"|[^{d}\r\n]*)({d}|\r?\n|\r|\Z)')
    needful = re.compile(rf'[{d}\r\n]|""')
    cells: list[list[str]] = [[]]
    for found in islice(token.finditer(sample), 100 * _JUDGED):
        cells[-1].append(found[1])
        if found[2] != delimiter:
            if len(cells) > _JUDGED:
                break
            cells.append([])
    header, rows = cells[0], cells[1:]
    quoted_header = any(header) and all(cell.startswith('"') for cell in header if cell)
    always, bare = set(), set()
    for column in range(len(header)):
        held = [row[column] for row in rows if column < len(row) and row[column]]
        if not all(cell.startswith('"') for cell in held):
            bare.add(column)
        elif any(len(cell) > 2 and not needful.search(cell[1:-1]) for cell in held):
            always.add(column)
    if (always or (quoted_header and not any(map(any, rows)))) and not bare:
        always = set(range(len(header)))
    return frozenset(always), quoted_header
