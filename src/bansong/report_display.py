"""How reports look: their lines as text, and as a table in notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from bansong.column_words import word_of
from bansong.report_html import facts_table, warning_list
from bansong.translation import current_language, gettext


class Shown(ABC):
    """A report that says itself in lines of (what, how much); ``WIDTH``: characters of the first column as text."""

    __slots__ = ()

    WIDTH: ClassVar[int] = 16

    @abstractmethod
    def lines(self) -> Sequence[tuple[str, str]]:
        """The report as (what, how much) for people."""

    def __str__(self) -> str:
        return "\n".join(f"{pad_text(what, self.WIDTH)}{value}" for what, value in self.lines())

    def _repr_html_(self) -> str:
        lines = self.lines()
        shown = {value for _, value in lines}
        warnings = (warning for warning in map(str, getattr(self, "warnings", ())) if warning not in shown)
        return facts_table(lines) + warning_list(warnings)


def pad_text(text: str, width: int) -> str:
    """A text with blanks up to a width on a terminal, where Korean letters take two places; one blank at least."""
    from rich.cells import cell_len

    return text + " " * max(1, width - cell_len(text))


def aligned_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows of cells as lines: columns two blanks apart, each as wide on a terminal as its widest cell.

    ``right``: places of columns that are set to the right, as numbers are.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = (" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        pairs = enumerate(zip(row, blanks, strict=True))
        lines.append("  ".join(blank + cell if at in right else cell + blank for at, (cell, blank) in pairs).rstrip())
    return lines


def listed_counts(counts: Mapping[str, int]) -> str:
    """Counts that are not 0, as ``active 12 · closed 3``, in words of the language; ``none`` where there are none."""
    lang = current_language()
    listed = " · ".join(f"{word_of(name, lang)} {count:,}" for name, count in counts.items() if count)
    return listed or gettext("none")
