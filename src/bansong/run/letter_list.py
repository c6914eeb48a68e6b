"""The list for the mail house: a row for each letter; and the number of letters."""

from __future__ import annotations

import filecmp
import shutil
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from bansong.cloud.remote_files import fetch_file, look_at_output
from bansong.cloud.remote_path import RemotePath
from bansong.engine.text_values import is_blank, is_masked, postal_digits
from bansong.errors import Problem, UsageError
from bansong.run import accounting
from bansong.run.duplicates import FIRST, look_up
from bansong.run.records import ROW_ID
from bansong.tables import Enriched, frames, write_table
from bansong.tables.csv.write import escape_formula
from bansong.tables.detect import output_format
from bansong.translation import gettext, ngettext

LETTER_COST_IMPOSSIBLE: Final = Problem(
    "options.letter_cost_impossible", "`letter_cost=`: {cost!r} cannot be won a letter; give 500, say"
)

LETTER: Final = "bv:letter"
"""Whether a row gets a letter (Boolean)."""

_LINE_CHARS: Final = 30  # of an address that fit on one line of a window envelope
# an official address: up to the building's number; then the unit, or the reference in brackets
_BUILDING: Final = r"^(.+?[0-9])(?:, (.+)| (\(.+))$"
_WORDS: Final = rf"^(.{{1,{_LINE_CHARS}}})\s(.+)$"
_UNPRINTABLE: Final = r"[\s\p{C}]+"
_GAPS: Final = {"name": "without_name", "line1": "without_address", "code": "without_postal_code"}
"""Needed cells of a letter, and the name of the count of those that are empty."""


@dataclass(frozen=True, slots=True)
class LetterCounts:
    """Number of letters, and of the other rows; they add up to ``rows``.

    ``repeated``: rows with ``send`` that repeat another letter; ``stopped``: ``do_not_send``; ``waiting``: ``confirm``,
    ``fix_address`` or ``hold``; ``unanswered``: other actions or none. ``cost``: won a letter, if given.
    ``without_name``, ``without_address``, ``without_postal_code``: letters of a list with an empty cell.
    """

    rows: int
    letters: int
    repeated: int
    stopped: int
    waiting: int
    cost: float | None = None
    without_name: int = 0
    without_address: int = 0
    without_postal_code: int = 0

    @property
    def unanswered(self) -> int:
        """Rows without a usable action."""
        return self.rows - self.letters - self.repeated - self.stopped - self.waiting

    @property
    def fewer(self) -> int:
        """Letters saved against mailing each row."""
        return self.repeated + self.stopped

    @property
    def saved(self) -> float | None:
        """Cost of the saved letters, in won."""
        return None if self.cost is None else self.fewer * self.cost

    def as_dict(self) -> dict[str, object]:
        """Return the counts as plain values for JSON."""
        names = ("letters", "fewer", "repeated", "stopped", "waiting", "unanswered", "cost", "saved", *_GAPS.values())
        return {name: getattr(self, name) for name in names}

    def lines(self) -> list[tuple[str, str]]:
        """Return the counts as (label, text) for people."""
        fewer = ngettext("{count:,} letter fewer", "{count:,} letters fewer", self.fewer)
        if self.saved is not None:
            fewer = gettext("{fewer}, ₩{saved:,.0f} saved", fewer=fewer, saved=self.saved)
        counts = {name: getattr(self, name) for name in ("letters", "repeated", "stopped", "waiting", "unanswered")}
        why = gettext("repeat another {repeated:,} · not to be sent {stopped:,}", **counts)
        rest = gettext("to be sent {letters:,} · waiting {waiting:,} · without an answer {unanswered:,}", **counts)
        lines = [(gettext("letters"), rest), (gettext("saved"), f"{fewer} ({why})")]
        if any(getattr(self, gap) for gap in _GAPS.values()):
            lines.append((gettext("incomplete"), self._gaps_line()))
        return lines

    def _gaps_line(self) -> str:
        return gettext(
            "letters without a name {names:,} · without an address {addresses:,} · without a postal code {codes:,}; "
            "their cells are empty in the list: fill them in the input, and run again",
            names=self.without_name,
            addresses=self.without_address,
            codes=self.without_postal_code,
        )


def check_letter_cost(cost: float | None) -> None:
    """Raise :class:`UsageError` for an impossible cost."""
    if cost is not None and not 0 <= cost < 1e9:
        raise UsageError(LETTER_COST_IMPOSSIBLE, cost=cost)


def mark_letters(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Add :data:`LETTER` to rows with :data:`bansong.run.duplicates.FIRST`, which are read at once.

    Of equal rows with ``send``, the first with a name gets the letter, or the first if all lack one.
    """
    same = pl.coalesce(FIRST, pl.col(ROW_ID).cast(pl.UInt32)).alias("same")
    sent = (pl.col("action") == "send").fill_null(False)
    nameless = _recipient(answers.collect_schema().names()).is_null().alias("nameless")
    found = answers.select(sent.alias("sent"), same, nameless).collect(engine="streaming")
    rows = found.with_row_index(ROW_ID).filter("sent").sort("nameless", maintain_order=True)
    places = rows.filter(pl.col("same").is_first_distinct())[ROW_ID]
    marks = pl.repeat(False, found.height, dtype=pl.Boolean, eager=True).scatter(places, True)
    return answers.with_columns(look_up(marks).alias(LETTER))


def _recipient(names: Collection[str]) -> pl.Expr:
    name = pl.col("name").cast(pl.String) if "name" in names else pl.lit(None, pl.String)
    return _one_line(pl.when(~is_blank(name) & ~is_masked(name)).then(name))


def _letter_counts() -> tuple[pl.Expr, ...]:
    action = pl.col("action")
    waits = action.is_in(["confirm", "fix_address", "hold"])
    return (
        pl.len().alias("rows"),
        pl.col(LETTER).sum().alias("letters"),
        ((action == "send") & ~pl.col(LETTER)).sum().alias("repeated"),
        (action == "do_not_send").sum().alias("stopped"),
        waits.sum().alias("waiting"),
    )


def count_letters(answers: pl.LazyFrame, cost: float | None, *, listed: bool) -> LetterCounts:
    """Count the letters of rows of :func:`mark_letters`; if they are ``listed``, also the empty cells of the list."""
    found = answers.select(*_letter_counts()).collect(engine="streaming").row(0, named=True)
    lacking = [pl.col(name).null_count().alias(gap) for name, gap in _GAPS.items()]
    gaps = _letter_rows(answers).select(lacking).collect(engine="streaming").row(0, named=True) if listed else {}
    return LetterCounts(**found, **gaps, cost=cost)


def letters_of(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Return a row for each letter of rows of :func:`mark_letters`: name, two lines of address, postal code (texts).

    Sorted by postal code, those without one last; within a code in the order of the rows.
    """
    headers = dict(zip(("name", "line1", "line2", "code"), _headers(), strict=True))
    return _letter_rows(answers).sort("code", ROW_ID, nulls_last=True).drop(ROW_ID).rename(headers)


def _letter_rows(answers: pl.LazyFrame) -> pl.LazyFrame:
    names = answers.collect_schema().names()
    given = {
        name: pl.col(name).cast(pl.String) if name in names else pl.lit(None, pl.String)
        for name in ("address", "zipcode")
    }
    address = _one_line(pl.coalesce("fixed_address", given["address"]))
    first, second = _address_lines(address, pl.col("fixed_address").is_not_null())
    return answers.filter(LETTER).select(
        ROW_ID,
        _recipient(names).alias("name"),
        first.alias("line1"),
        second.alias("line2"),
        postal_digits(_one_line(pl.coalesce("fixed_zipcode", given["zipcode"]))).alias("code"),
    )


def _write_letters(answers: pl.LazyFrame, target: Path, letters: int) -> None:
    # no cell begins a formula, and postal codes are texts
    rows, format = letters_of(answers), output_format(target)
    if format == "csv":
        rows = rows.with_columns(pl.coalesce(escape_formula(pl.col(name)), name).alias(name) for name in _headers())
    result: Enriched = frames.as_written(rows)
    tallied, count_written = write_table(result, target, format, "utf-8-sig" if format == "csv" else None)
    accounting.check_rows(letters, int(tallied["rows"].item()), count_written(), in_order=True)


def publish_letters(answers: pl.LazyFrame, path: Path, temporary: Path, letters: int, *, allow_empty: bool) -> bool:
    """Write the letters to the temporary file that replaces ``path``; return whether they are in it.

    An earlier list that would become empty is kept instead, unless ``allow_empty``.
    """
    _write_letters(answers, temporary, letters)
    if letters or allow_empty or not replaces_other(path, temporary):
        return True
    with fetch_file(path) as earlier:
        shutil.copy2(earlier.path, temporary)
    return False


def replaces_other(path: Path, temporary: Path) -> bool:
    """Whether ``path`` has an earlier file that differs from the finished one."""
    if not (look_at_output(path) is not None if isinstance(path, RemotePath) else path.exists()):
        return False
    with fetch_file(path) as earlier:
        if all(map(zipfile.is_zipfile, (earlier.path, temporary))):
            return _parts_of(earlier.path) != _parts_of(temporary)
        return not filecmp.cmp(earlier.path, temporary, shallow=False)


def _parts_of(workbook: Path) -> dict[str, int]:
    # without the part that holds the time of writing
    with zipfile.ZipFile(workbook) as parts:
        return {part.filename: part.CRC for part in parts.infolist() if part.filename != "docProps/core.xml"}


def _headers() -> tuple[str, str, str, str]:
    return gettext("recipient"), gettext("address 1"), gettext("address 2"), gettext("postal code")


def _one_line(text: pl.Expr) -> pl.Expr:
    tidy = text.str.replace_all(_UNPRINTABLE, " ").str.strip_chars()
    return pl.when(tidy != "").then(tidy)


def _address_lines(address: pl.Expr, official: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    # road and number, then the unit; other addresses break at a space; one line if all fits on it
    long = address.str.len_chars() > _LINE_CHARS
    road, unit, reference = (address.str.extract(_BUILDING, group) for group in (1, 2, 3))
    head, rest = (address.str.extract(_WORDS, group) for group in (1, 2))
    by_building = official & road.is_not_null()
    first = pl.when(by_building).then(road).otherwise(head)
    second = pl.when(by_building).then(pl.coalesce(unit, reference)).otherwise(rest)
    return pl.when(long).then(pl.coalesce(first, address)).otherwise(address), pl.when(long).then(second)
