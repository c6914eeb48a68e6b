"""Files beside an output: a file for each action, the list for the mail house, the page, the review."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.cloud.remote_path import as_path
from bansong.column_words import HEADERS, word_of
from bansong.engine.address import Gazetteer
from bansong.errors import Notice, Problem, UsageError
from bansong.options import WriteOptions
from bansong.run import accounting
from bansong.run.accounting import OTHER
from bansong.run.letter_list import LetterCounts, check_letter_cost, count_letters, publish_letters, replaces_other
from bansong.run.output_layout import Target
from bansong.run.records import ROW_ID
from bansong.run.review_list import check_review, write_review
from bansong.schema import ACTIONS, Lang
from bansong.tables import Enriched, publish_file, write_table
from bansong.tables.compression import unpacked_name
from bansong.tables.detect import output_format
from bansong.translation import Option, current_language, gettext, ngettext

SPLIT_COLUMN_INVALID: Final = Problem(
    "outputs.split_column_invalid", "`split=`: {by!r} is nothing to split by; use `split='action'`"
)

PARTS: Final = (*ACTIONS, OTHER)
"""Names of the files: the actions, and ``other`` for rows with none of them."""

KOREAN_SPLIT: Final = HEADERS["ko"]["action"]


def _check_split(by: str | None) -> None:
    if by not in (None, "action", KOREAN_SPLIT):
        raise UsageError(SPLIT_COLUMN_INVALID, by=by)


def _split_paths(output: Path, lang: Lang) -> dict[str, Path]:
    # OUT.csv.gz → OUT.send.csv.gz, OUT.발송.csv.gz; all are written, so that no file of an earlier run stays among them
    plain = unpacked_name(output)
    format = output_format(plain)
    suffix = format.extensions[0] if plain.suffix.lower() in format.can.spliced_only else plain.suffix
    packed = output.name.removeprefix(plain.name)
    return {
        part: output.with_name(f"{plain.stem}.{word_of(part, lang).replace(' ', '_')}{suffix}{packed}")
        for part in PARTS
    }


def _write_parts(result: Enriched, paths: Mapping[str, Path], target: Target, rows: int) -> dict[str, int]:
    """Write the rows of an enriched table to the file of their action; return the number of rows of each.

    Raises :class:`AccountingError` unless each row is in one file, in order.
    """
    action = pl.col("action")
    part_of = pl.when(action.is_in(ACTIONS)).then(action).otherwise(pl.lit(OTHER))
    counts = {part: _write_part(result, part_of == part, path, target) for part, path in paths.items()}
    accounting.check_rows(rows, sum(counts.values()), sum(counts.values()), in_order=True)
    return counts


def _write_part(result: Enriched, which: pl.Expr, path: Path, target: Target) -> int:
    rows = result.frame.filter(which)
    ascending = (pl.col(ROW_ID).diff().fill_null(1) > 0).all()
    tally = rows.select(pl.len().alias("rows"), ascending.alias("in_order"))
    part = replace(result, frame=rows, tally=tally, summary=None)
    counts, count_written = write_table(part, path, target.format, target.encoding, anew=True)
    found = counts.row(0, named=True)
    accounting.check_rows(found["rows"], found["rows"], count_written(), in_order=bool(found["in_order"]))
    return int(found["rows"])


LETTERS_KEPT: Final = Problem(
    "alert.letters_kept",
    "{path}: the earlier list of letters was kept, because no row gets a letter now; {option} replaces it by "
    "an empty list",
)
LETTERS_NOT_WORKBOOK: Final = Problem(
    "outputs.letters_not_workbook", "{path}: the list of letters is a new workbook; call it .xlsx"
)
UNMASK_WITHOUT_REPORT: Final = Problem(
    "options.unmask_without_report", "`unmask=True` is for `report=`: nothing else masks people's data"
)


@dataclass(frozen=True, slots=True)
class WrittenSides:
    """Files written beside an output.

    ``parts``: file and number of rows of each action; ``letters``: counts, if asked for; ``letter_list``: file for the
    mail house; ``kept_letters``: an earlier one, kept because the new one would be empty; ``review``: file of the
    ``unsure`` addresses; ``kept``: edited files, and their copies; ``emptied``: list of letters that became empty.
    """

    parts: Mapping[str, tuple[Path, int]]
    letters: LetterCounts | None
    letter_list: Path | None
    page: Path | None = None
    review: Path | None = None
    unsure: int = 0
    kept_letters: Path | None = None
    kept: Mapping[Path, Path] = field(default_factory=dict)
    emptied: Path | None = None

    @property
    def lacks_letters(self) -> bool:
        """Whether no row gets a letter now, though earlier ones did."""
        return self.kept_letters is not None or self.emptied is not None

    @property
    def alerts(self) -> tuple[Notice, ...]:
        """Alerts about the files."""
        if self.kept_letters is None:
            return ()
        return (Notice(LETTERS_KEPT, path=self.kept_letters, option=Option("allow_empty", True)),)

    def as_dict(self) -> dict[str, object]:
        """Return the files and counts as plain values for JSON, without those that were not asked for."""
        found: dict[str, Any] = {}
        if self.parts:
            found["split"] = {part: {"path": str(path), "rows": rows} for part, (path, rows) in self.parts.items()}
        if self.letters is not None:
            found["letters"] = {"path": str(self.letter_list) if self.letter_list else None} | self.letters.as_dict()
        if self.kept_letters is not None:
            found["letters"]["kept"] = str(self.kept_letters)
        if self.page is not None:
            found["page"] = str(self.page)
        if self.review is not None:
            found["review"] = {"path": str(self.review), "addresses": self.unsure}
        return found

    def lines(self) -> list[tuple[str, str]]:
        """Return the files and counts as (label, text) for people."""
        files = " · ".join(f"{path.name} {rows:,}" for path, rows in self.parts.values())
        return [
            *(self.letters.lines() if self.letters else []),
            *([(gettext("letter list"), str(self.letter_list))] if self.letter_list else []),
            *([(gettext("by action"), files)] if files else []),
            *([(gettext("page"), str(self.page))] if self.page else []),
            *([(gettext("review"), self._review_line())] if self.review else []),
        ]

    def _review_line(self) -> str:
        if not self.unsure:
            return gettext("{path}: no address is left to be decided on", path=self.review)
        return ngettext(
            "{path}: {count:,} address to be decided on; choose, then `bansong data apply-review {path}`",
            "{path}: {count:,} addresses to be decided on; choose, then `bansong data apply-review {path}`",
            self.unsure,
            path=self.review,
        )


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Files asked for beside an output; ``at``: the temporary file of each."""

    parts: Mapping[str, Path] = field(default_factory=dict)
    letters: Path | None = None
    letter_cost: float | None = None
    allow_empty: bool = False
    page: Path | None = None
    unmask: bool = False
    review: Path | None = None
    gazetteer: Gazetteer | None = None
    at: Mapping[Path, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, write: WriteOptions, target: Target, gazetteer: Gazetteer | None) -> SideFiles:
        """Return the files that the options ask for; raise :class:`UsageError` or :class:`OutputError`.

        ``gazetteer``: the one by which addresses are corrected, if any.
        """
        _check_split(write.split)
        letters = letter_list_of(write)
        page = as_path(write.report) if write.report is not None else None
        if write.unmask and page is None:
            raise UsageError(UNMASK_WITHOUT_REPORT)
        korean = write.headers == "ko" or write.split == KOREAN_SPLIT
        parts = _split_paths(target.path, "ko" if korean else "en") if write.split else {}
        review = as_path(write.review) if write.review is not None else None
        if review is not None:
            check_review(review, gazetteer)
        return cls(parts, letters, write.letter_cost, write.allow_empty, page, write.unmask, review, gazetteer)

    @property
    def counts_letters(self) -> bool:
        """Whether rows with letters must be found."""
        return self.letters is not None or self.letter_cost is not None

    @property
    def wanted(self) -> bool:
        """Whether any file is asked for."""
        return bool(self.parts) or self.counts_letters or self.page is not None or self.review is not None

    def paths_by_use(self) -> dict[str, Path | None]:
        """Return the files by their use."""
        words = {word_of(part, current_language()): path for part, path in self.parts.items()}
        return {gettext("output of {part}", part=part): path for part, path in words.items()} | {
            "letter list": self.letters,
            "report": self.page,
            "review": self.review,
        }

    def reserve(self, files: ExitStack) -> SideFiles:
        """Return a copy with a temporary file for each, published when ``files`` closes without an error."""
        single = (self.letters, self.page, self.review)
        paths = [path for path in (*self.parts.values(), *single) if path is not None]
        return replace(self, at={path: files.enter_context(publish_file(path)) for path in paths})

    def write(self, result: Enriched, target: Target, rows: int) -> WrittenSides:
        """Write the files of an enriched table; raise :class:`AccountingError` if they do not balance."""
        at = {part: self.at[path] for part, path in self.parts.items()}
        counts = _write_parts(result, at, target, rows) if at else {}
        letters = None
        if self.counts_letters:
            letters = count_letters(result.frame, self.letter_cost, listed=self.letters is not None)
        listed, kept = self.letters, None
        if letters is not None and listed is not None:
            rows_of, count = result.frame, letters.letters
            if not publish_letters(rows_of, listed, self.at[listed], count, allow_empty=self.allow_empty):
                listed, kept = None, listed
        unsure = 0
        if self.review is not None and self.gazetteer is not None:
            unsure = write_review(result.frame, self.at[self.review], self.gazetteer)
        parts = {part: (self.parts[part], count) for part, count in counts.items()}
        sent, emptied = self.parts.get("send"), None
        if sent and not (counts["send"] or self.allow_empty) and replaces_other(sent, self.at[sent]):
            emptied = sent
        return WrittenSides(parts, letters, listed, self.page, self.review, unsure, kept, emptied=emptied)


def letter_list_of(write: WriteOptions) -> Path | None:
    """Return the path of the list for the mail house, if any; raise :class:`UsageError`, :class:`OutputError`."""
    check_letter_cost(write.letter_cost)
    letters = as_path(write.letters) if write.letters is not None else None
    if letters is not None and letters.suffix.lower() in output_format(letters).can.spliced_only:
        raise UsageError(LETTERS_NOT_WORKBOOK, path=letters)
    return letters
