"""Reports as lines of text, and as a table in notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from bansong.column_words import word_of
from bansong.report_html import facts_table, warning_list
from bansong.translation import current_language, gettext


class Shown:
    """A report that consists of lines (what, how much); ``WIDTH``: characters of the first column as text."""

    __slots__ = ()

    WIDTH: ClassVar[int] = 16

    def lines(self) -> list[tuple[str, str]]:
        """Return the report as (what, how much) for people."""
        return list(self._describe())

    def _describe(self) -> Iterable[tuple[str, str]]:
        raise NotImplementedError  # unless a report overrides `lines`

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join(f"{pad_text(what, self.WIDTH)}{value}" for what, value in self.lines())

    def _repr_html_(self) -> str:
        lines = self.lines()
        shown = {value for _, value in lines}
        warnings = (warning for warning in map(str, getattr(self, "warnings", ())) if warning not in shown)
        return facts_table(lines) + warning_list(warnings)


def pad_text(text: str, width: int) -> str:
    """Pad a text to a terminal width, where Korean letters take two places; with one blank at least."""
    from rich.cells import cell_len

    return text + " " * max(1, width - cell_len(text))


def aligned_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Align rows of cells as lines of a terminal; ``right``: places of right-aligned columns."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = (" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        pairs = enumerate(zip(row, blanks, strict=True))
        lines.append("  ".join(blank + cell if at in right else cell + blank for at, (cell, blank) in pairs).rstrip())
    return lines


def listed_counts(counts: Mapping[str, int]) -> str:
    """Return counts other than 0, as ``active 12 · closed 3``, in words of the language; else ``none``."""
    lang = current_language()
    listed = " · ".join(f"{word_of(name, lang)} {count:,}" for name, count in counts.items() if count)
    return listed or gettext("none")
