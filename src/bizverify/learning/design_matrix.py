"""Evidence as numbers: letters counted by pattern, and the levels of each pattern as a matrix of zeros and ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.engine.risk.features import FEATURES
from bizverify.engine.risk.reason_parser import LEVEL_DTYPES
from bizverify.engine.risk.scorecard import Scorecard
from bizverify.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]
    Codes = np.ndarray[Any, np.dtype[np.intp]]


def numpy() -> ModuleType:
    """Return the module numpy (the extra ``learn``); raise :class:`UsageError` where it is not installed."""
    try:
        import numpy as np
    except ImportError as error:
        raise UsageError('learning needs numpy: pip install "bizverify[learn]"') from error
    return np


LEVELS: Final = tuple(LEVEL_DTYPES)
"""The columns that make a pattern: ``level:<feature>``."""

COUNTS: Final = ("n", "bounced")


def usable(evidence: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of evidence that say something: the outcome is known, and all reasons could be read."""
    known = pl.col("bounced").is_not_null() & pl.col("score").is_not_null()
    if "unread" in evidence.collect_schema().names():
        known &= ~pl.col("unread")
    return evidence.filter(known)


def count_patterns(evidence: pl.LazyFrame) -> pl.DataFrame:
    """Count usable evidence by pattern: ``level:<feature>`` (Enum), ``n`` and ``bounced`` (UInt32), any order."""
    counted = usable(evidence).group_by(LEVELS).agg(pl.len().alias("n"), pl.col("bounced").sum())
    return counted.collect(engine="streaming")


def merge_patterns(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Patterns of several parts as one."""
    return pl.concat(parts).group_by(LEVELS).agg(pl.col(COUNTS).sum())


TERMS: Final = tuple((feature, level) for feature, levels in FEATURES.items() for level in levels)
"""Every level of every feature: the columns of a design."""

_ROWS: Final = 1 << 16
_SIZES: Final = tuple(map(len, FEATURES.values()))


def expert_points(card: Scorecard) -> list[int]:
    """A scorecard's points in the order of :data:`TERMS`."""
    return [card.features[feature][level].points for feature, level in TERMS]


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """One row a pattern, one column a term: 1 where the level holds. Of a feature one level holds at most.

    ``codes`` has an array for each feature: the place of the level that holds, one beyond the last where none does.
    """

    codes: tuple[Codes, ...]

    def __len__(self) -> int:
        return len(self.codes[0])

    def __matmul__(self, weights: Array) -> Array:
        """The sum of the weights of the levels that hold, for each row."""
        np = numpy()
        total: Array = np.zeros(len(self))
        for codes, part in zip(self.codes, self._parts(weights), strict=True):
            total += np.append(part, 0.0)[codes]
        return total

    def sums(self, values: Array) -> Array:
        """The sum of the rows' values over those in which a level holds, for each term."""
        np = numpy()
        counts = [
            np.bincount(codes, weights=values, minlength=size + 1)[:size]
            for codes, size in zip(self.codes, _SIZES, strict=True)
        ]
        found: Array = np.concatenate(counts)
        return found

    def products(self, weights: Array, sides: Array) -> tuple[Array, Array]:
        """For each two terms the sum of the weights of rows in which both hold; for each term the sums of the sides.

        ``sides`` has a column for each of several values of the rows. In single precision: this steers the steps of a
        fit and does not decide where it ends.
        """
        np = numpy()
        width = len(TERMS) + len(_SIZES)
        pairs: Array = np.zeros((width, width))
        sums: Array = np.zeros((width, sides.shape[1]))
        for first in range(0, len(self), _ROWS):
            rows = slice(first, first + _ROWS)
            block = self._dense_rows(rows)
            sums += block.T @ sides[rows].astype(np.float32)
            pairs += block.T @ (block * weights[rows, None].astype(np.float32))
        kept = _term_columns()
        return pairs[np.ix_(kept, kept)], sums[kept]

    def matrix(self) -> Array:
        """Return the whole matrix (for benchmarks of other models)."""
        np = numpy()
        whole: Array = self._dense_rows(slice(0, len(self)))[:, _term_columns()].astype(np.float64)
        return whole

    def _dense_rows(self, rows: slice) -> Any:
        """Rows of the matrix, in single precision, with one column more behind each feature: none of its levels."""
        np = numpy()
        width = len(TERMS) + len(_SIZES)
        length = len(self.codes[0][rows])
        block = np.zeros((length, width), dtype=np.float32)
        flat, starts, first = block.reshape(-1), np.arange(length) * width, 0
        for codes, size in zip(self.codes, _SIZES, strict=True):
            flat[starts + first + codes[rows]] = 1.0
            first += size + 1
        return block

    def _parts(self, weights: Array) -> Iterator[Array]:
        first = 0
        for size in _SIZES:
            yield weights[first : first + size]
            first += size


def design(patterns: pl.DataFrame) -> Design:
    """The design of a frame with ``level:<feature>`` columns."""
    return Design(
        tuple(
            patterns[column].to_physical().cast(pl.Int64).fill_null(size).to_numpy()
            for column, size in zip(LEVELS, _SIZES, strict=True)
        )
    )


def _term_columns() -> list[int]:
    """The columns of terms among those of :meth:`Design._dense_rows`."""
    kept, first = list[int](), 0
    for size in _SIZES:
        kept += range(first, first + size)
        first += size + 1
    return kept
