"""Answers back to every row, and the account that must balance before anything is published."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from bizverify.errors import AccountingError
from bizverify.run.records import ROW_ID
from bizverify.schema import ACTIONS, ADDED_COLUMNS, BIZ_STATUSES, GRADES, ROW_STATUSES, counted

OTHER: Final = "other"
"""Under which words are counted that are not in the local vocabulary: the service may have its own."""

_OUT_ID: Final = "out_id"


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The counts of a finished run, taken from the very rows that were written."""

    rows: int
    in_order: bool
    by_row_status: dict[str, int]
    by_biz_status: dict[str, int]
    by_grade: dict[str, int]
    by_action: dict[str, int]


def layout(
    headers: Sequence[str],
    prefix: str,
    ours: Mapping[str, int],
    kept: Collection[int],
    names: Sequence[str] = ADDED_COLUMNS,
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the output's columns as (column, header), and warnings.

    The file's columns at the positions ``kept`` come first, in their order, ``names``, by default the nine, behind
    them. Columns of an earlier enrichment or labelling (``ours``: contract name → position) are replaced where they
    stand. Where a column of the user's that is kept bears our name, in upper or lower case, ours is called
    ``<name>_bv``; if that is taken too, ``<name>_bv2`` and so on.
    """
    replaced = {place: name for name, place in ours.items()}
    columns = [(replaced.get(place, f"c{place}"), header) for place, header in enumerate(headers) if place in kept]
    taken = {header.casefold() for _, header in columns}  # an Excel table, as SQL, has no `Grade` beside `grade`
    warnings = []
    for name in names:
        if name in ours:
            continue
        header, again = f"{prefix}{name}", 1
        while header.casefold() in taken:
            header, again = f"{prefix}{name}_bv{again if again > 1 else ''}", again + 1
        if again > 1:
            warnings.append(f"the file has a column {prefix + name!r} of its own; it is kept, ours is {header!r}")
        columns.append((name, header))
    return tuple(columns), tuple(warnings)


def numbered_out(answered: pl.LazyFrame) -> pl.LazyFrame:
    """Number the answered rows as they leave, to be held against the number they came in with."""
    return answered.with_row_index(_OUT_ID)


def row_counts() -> tuple[pl.Expr, pl.Expr]:
    """Aggregations over rows of :func:`numbered_out`: how many (``rows``), and whether ``in_order``."""
    return pl.len().alias("rows"), (pl.col(ROW_ID) == pl.col(_OUT_ID)).all().alias("in_order")


def tally(answered: pl.LazyFrame, more: Collection[pl.Expr] = ()) -> pl.LazyFrame:
    """Return a one-row query that counts rows of :func:`numbered_out`, with more aggregations beside.

    Rows by each known word, and in all (``biz_status:``): what is left over are the service's own words. There is no
    other ``row_status``.
    """
    counted = {
        "row_status": ROW_STATUSES,
        "biz_status": BIZ_STATUSES,
        "grade": GRADES,
        "action": ACTIONS,
    }
    return answered.select(
        *row_counts(),
        *(
            (pl.col(name) == value).sum().alias(f"{name}:{value}")
            for name, values in counted.items()
            for value in values
        ),
        *(pl.col(name).count().alias(f"{name}:") for name in counted if name != "row_status"),
        *more,
    )


def row_counts_of(tallied: Mapping[str, int | bool]) -> RowCounts:
    """Return the account that a tally says."""

    def by(name: str) -> dict[str, int]:
        counts = {key.partition(":")[2]: int(count) for key, count in tallied.items() if key.startswith(f"{name}:")}
        in_all = counts.pop("", None)
        others = 0 if in_all is None else in_all - sum(counts.values())
        return counts | ({OTHER: others} if others else {})

    return RowCounts(
        rows=int(tallied["rows"]),
        in_order=bool(tallied["in_order"]),
        by_row_status=by("row_status"),
        by_biz_status=by("biz_status"),
        by_grade=by("grade"),
        by_action=by("action"),
    )


def balance(rows_in: int, account: RowCounts, rows_written: int) -> None:
    """Raise :class:`AccountingError` unless every row that came in went out, once, in order, with one status."""
    faults = []
    if sum(account.by_row_status.values()) != rows_in:
        faults.append(f"{counted(rows_in, 'row')} in, {sum(account.by_row_status.values()):,} with a row_status")
    balance_rows(rows_in, account.rows, rows_written, *faults, in_order=account.in_order)


def balance_rows(rows_in: int, rows_out: int, rows_written: int, *faults: str, in_order: bool) -> None:
    """Raise :class:`AccountingError` where rows were lost, added or moved, or other ``faults`` are known already."""
    faults = (
        *([f"{counted(rows_in, 'row')} in, {rows_out:,} answered"] if rows_out != rows_in else []),
        *([f"{counted(rows_in, 'row')} in, {rows_written:,} in the output file"] if rows_written != rows_in else []),
        *faults,
        *(() if in_order else ("rows left in another order than they came",)),
    )
    if faults:
        raise AccountingError(f"nothing was published, the rows do not balance: {'; '.join(faults)}")
