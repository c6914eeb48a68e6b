"""The list that goes to the mail house: a row for each letter that is to be sent; and how many letters that is."""

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
from bansong.tables import frames
from bansong.tables.detect import output_format
from bansong.translation import gettext, ngettext

LETTER_COST_IMPOSSIBLE: Final = Problem(
    "options.letter_cost_impossible", "`letter_cost=`: {cost!r} cannot be won a letter; give 500, say"
)

LETTER: Final = "bv:letter"
"""Whether a letter is to be sent for a row (Boolean)."""

_LINE: Final = 30
"""Characters of an address that stay on one line: what a window envelope has room for."""
_BUILDING: Final = r"^(.+?[0-9])(?:, (.+)| (\(.+))$"
"""An official address: up to the building's number; behind it the unit, or what stands in brackets."""
_WORDS: Final = rf"^(.{{1,{_LINE}}})\s(.+)$"
_UNPRINTABLE: Final = r"[\s\p{C}]+"
_GAPS: Final = {"name": "without_name", "line1": "without_address", "code": "without_postal_code"}
"""What a letter needs, and what it is called where it is not there."""


@dataclass(frozen=True, slots=True)
class LetterCounts:
    """How many letters are to be sent, and what becomes of the other rows: all in all they are the rows.

    ``repeated``: rows that would be sent, but repeat another letter; ``stopped``: rows with ``do_not_send``;
    ``waiting``: rows with ``confirm``, ``fix_address`` or ``hold``; ``unanswered``: rows without an action, or with one
    of the service's own. ``cost``: won a letter, ``None`` where it was not given. ``without_name``,
    ``without_address``, ``without_postal_code``: letters of a list whose cell for it is empty.
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
        """Rows of which nothing is known."""
        return self.rows - self.letters - self.repeated - self.stopped - self.waiting

    @property
    def fewer(self) -> int:
        """Letters fewer than if each row were mailed: those that repeat another, and those that are not to be sent."""
        return self.repeated + self.stopped

    @property
    def saved(self) -> float | None:
        """What the letters that are not sent would have cost, in won."""
        return None if self.cost is None else self.fewer * self.cost

    def as_dict(self) -> dict[str, object]:
        """The counts as plain values for JSON."""
        names = ("letters", "fewer", "repeated", "stopped", "waiting", "unanswered", "cost", "saved", *_GAPS.values())
        return {name: getattr(self, name) for name in names}

    def lines(self) -> list[tuple[str, str]]:
        """The counts as (what, how much) for people."""
        fewer = ngettext("{count:,} letter fewer", "{count:,} letters fewer", self.fewer)
        if self.saved is not None:
            fewer = gettext("{fewer}, ₩{saved:,.0f} saved", fewer=fewer, saved=self.saved)
        why = gettext("repeat another {repeated:,} · not to be sent {stopped:,}", **_parts(self))
        rest = gettext(
            "to be sent {letters:,} · waiting {waiting:,} · without an answer {unanswered:,}", **_parts(self)
        )
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


def _parts(counts: LetterCounts) -> dict[str, object]:
    return {name: getattr(counts, name) for name in ("letters", "repeated", "stopped", "waiting", "unanswered")}


def check_letter_cost(cost: float | None) -> None:
    """Raise :class:`UsageError` for a cost that cannot be one."""
    if cost is not None and not 0 <= cost < 1e9:
        raise UsageError(LETTER_COST_IMPOSSIBLE, cost=cost)


def mark_letters(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Add :data:`LETTER` to rows with :data:`bansong.run.duplicates.FIRST`, which are read for it, at once.

    Of rows that are the same and say ``send``, the first with a name gets the letter, or the first if all lack one.
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
    """The name on a letter, null where it is missing, blank or masked."""
    name = pl.col("name").cast(pl.String) if "name" in names else pl.lit(None, pl.String)
    return _tidy(pl.when(~is_blank(name) & ~is_masked(name)).then(name))


def letter_counts() -> tuple[pl.Expr, ...]:
    """Aggregations over rows of :func:`mark_letters`, to be read by :func:`letter_counts_of`."""
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
    """Count the letters of rows of :func:`mark_letters`; where they are ``listed``, also what their list lacks."""
    found = answers.select(*letter_counts()).collect(engine="streaming").row(0, named=True)
    lacking = [pl.col(name).null_count().alias(gap) for name, gap in _GAPS.items()]
    gaps = _letter_rows(answers).select(lacking).collect(engine="streaming").row(0, named=True) if listed else {}
    return LetterCounts(**found, **gaps, cost=cost)


def letters_of(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Return a row for each letter of rows of :func:`mark_letters`: name, two lines of address, postal code.

    Sorted by postal code, those without one last; of one code, in the order of the list. All are texts.
    """
    headers = dict(zip(("name", "line1", "line2", "code"), _headers(), strict=True))
    return _letter_rows(answers).sort("code", ROW_ID, nulls_last=True).drop(ROW_ID).rename(headers)


def _letter_rows(answers: pl.LazyFrame) -> pl.LazyFrame:
    """A row for each letter, in the order of the list: its row, name, two lines of address, postal code."""
    names = answers.collect_schema().names()
    given = {
        name: pl.col(name).cast(pl.String) if name in names else pl.lit(None, pl.String)
        for name in ("address", "zipcode")
    }
    address = _tidy(pl.coalesce("fixed_address", given["address"]))
    first, second = _address_lines(address, pl.col("fixed_address").is_not_null())
    return answers.filter(LETTER).select(
        ROW_ID,
        _recipient(names).alias("name"),
        first.alias("line1"),
        second.alias("line2"),
        _postal_code(pl.coalesce("fixed_zipcode", given["zipcode"])).alias("code"),
    )


def write_letters(answers: pl.LazyFrame, target: Path, letters: int) -> None:
    """Write the letters of rows of :func:`mark_letters` to a file of the format that its name asks for.

    No cell begins a formula in a spreadsheet, and postal codes are texts. Raises :class:`AccountingError` unless just
    so many ``letters`` are in the file.
    """
    tallied, count_written = frames.write_frame(letters_of(answers), target, output_format(target), _headers())
    accounting.check_rows(letters, int(tallied["rows"].item()), count_written(), in_order=True)


def publish_letters(answers: pl.LazyFrame, path: Path, temporary: Path, letters: int, *, allow_empty: bool) -> bool:
    """Write the letters to the temporary file that takes the place of ``path``; return whether they are in it.

    An earlier list that would become empty is put there instead, unless that is allowed.
    """
    write_letters(answers, temporary, letters)
    if letters or allow_empty or not replaces_other(path, temporary):
        return True
    with fetch_file(path) as earlier:
        shutil.copy2(earlier.path, temporary)
    return False


def replaces_other(path: Path, temporary: Path) -> bool:
    """Return whether an earlier file is at ``path`` that is not the same as the finished one."""
    if not (look_at_output(path) is not None if isinstance(path, RemotePath) else path.exists()):
        return False
    with fetch_file(path) as earlier:
        if all(map(zipfile.is_zipfile, (earlier.path, temporary))):
            return _parts_of(earlier.path) != _parts_of(temporary)
        return not filecmp.cmp(earlier.path, temporary, shallow=False)


def _parts_of(workbook: Path) -> dict[str, int]:
    """Checksums of a workbook's parts without the one that has the time of writing."""
    with zipfile.ZipFile(workbook) as parts:
        return {part.filename: part.CRC for part in parts.infolist() if part.filename != "docProps/core.xml"}


def _headers() -> tuple[str, str, str, str]:
    return gettext("recipient"), gettext("address 1"), gettext("address 2"), gettext("postal code")


def _tidy(text: pl.Expr) -> pl.Expr:
    """A text on one line: white space and what cannot be printed become one space."""
    tidy = text.str.replace_all(_UNPRINTABLE, " ").str.strip_chars()
    return pl.when(tidy != "").then(tidy)


def _postal_code(code: pl.Expr) -> pl.Expr:
    return postal_digits(_tidy(code))


def _address_lines(address: pl.Expr, official: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Two lines of an address: the road and number, then the unit; of one that is not official, after a word.

    The second is null where all of it has room on the first.
    """
    long = address.str.len_chars() > _LINE
    road, unit, reference = (address.str.extract(_BUILDING, group) for group in (1, 2, 3))
    head, rest = (address.str.extract(_WORDS, group) for group in (1, 2))
    by_building = official & road.is_not_null()
    first = pl.when(by_building).then(road).otherwise(head)
    second = pl.when(by_building).then(pl.coalesce(unit, reference)).otherwise(rest)
    return pl.when(long).then(pl.coalesce(first, address)).otherwise(address), pl.when(long).then(second)
