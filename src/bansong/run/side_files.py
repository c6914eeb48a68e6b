"""Split files, letters and reviews beside an output."""

from __future__ import annotations

import filecmp
import shutil
import zipfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.errors import Notice, Problem, UsageError
from bansong.base.files import RemotePath, as_path
from bansong.base.messages import Lang, Option, current_language, gettext, ngettext
from bansong.base.publish import publish_file
from bansong.base.remote import fetch_file, look_at_output
from bansong.base.schema import ACTIONS, HEADERS, WAITING, role_word, word_of
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import NUMBER
from bansong.engine.records import ROW_ID, look_up
from bansong.engine.text import is_blank, is_masked, postal_digits
from bansong.reference.reviews import check_review, write_review
from bansong.run import accounting
from bansong.run.accounting import OTHER
from bansong.run.columns import FIRST, Target
from bansong.run.options import WriteOptions
from bansong.tables import frames
from bansong.tables.detect import output_format, write_table
from bansong.tables.streams import unpacked_name
from bansong.tables.table import Enriched, Section, unique_names

LETTER_COST_IMPOSSIBLE: Final = Problem(
    "options.letter_cost_impossible", "`letter_cost=`: {cost!r} cannot be won a letter; give 500, say"
)

LETTER: Final = "bv:letter"  # whether a row gets a letter (Boolean)
CARRIED: Final = "bv:carried:"  # before the header of a user's column that the list of letters has, too
CARRIED_KEY: Final = "bv:key:"  # so for the column of customers' keys: the list has those of all rows of a letter

_LINE_CHARS: Final = 30  # characters of an address line in a window envelope
# groups of an official address: up to the building's number; the unit; or the reference in brackets
_BUILDING: Final = r"^(.+?[0-9])(?:, (.+)| (\(.+))$"
_WORDS: Final = rf"^(.{{1,{_LINE_CHARS}}})\s(.+)$"
_UNPRINTABLE: Final = r"[\s\p{C}]+"
# needed cells of a letter → the count of empty ones
_GAPS: Final = {"name": "without_name", "line1": "without_address", "code": "without_postal_code"}


@dataclass(frozen=True, slots=True)
class LetterCounts:
    """Counts of rows: those that get a letter, and the others by reason; they add up to ``rows``."""

    rows: int
    letters: int
    repeated: int  # rows with `send` whose letter another row gets
    stopped: int  # `do_not_send`
    waiting: int  # `confirm`, `fix_address` or `hold`
    cost: float | None = None  # price of a letter in won
    without_name: int = 0  # letters without this cell in the list, as the next two
    without_address: int = 0
    without_postal_code: int = 0

    @property
    def unanswered(self) -> int:
        return self.rows - self.letters - self.repeated - self.stopped - self.waiting

    @property
    def fewer(self) -> int:
        """Rows without a letter because they repeat one or must not be sent."""
        return self.repeated + self.stopped

    @property
    def saved(self) -> float | None:
        """Saved postage in won; ``None`` if the price is not given."""
        return None if self.cost is None else self.fewer * self.cost

    def as_dict(self) -> dict[str, object]:
        names = ("letters", "fewer", "repeated", "stopped", "waiting", "unanswered", "cost", "saved", *_GAPS.values())
        return {name: getattr(self, name) for name in names}

    def lines(self) -> list[tuple[str, str]]:
        fewer = ngettext("{count:,} letter fewer", "{count:,} letters fewer", self.fewer)
        if self.saved is not None:
            fewer = gettext("{fewer}, ₩{saved:,.0f} saved", fewer=fewer, saved=self.saved)
        counts = {name: getattr(self, name) for name in ("letters", "repeated", "stopped", "waiting", "unanswered")}
        why = gettext("repeat another {repeated:,} · not to be sent {stopped:,}", **counts)
        rest = gettext("to be sent {letters:,} · waiting {waiting:,} · without an answer {unanswered:,}", **counts)
        lines = [(gettext("letters"), rest), (gettext("saved"), f"{fewer} ({why})")]
        gaps = dict(zip(("names", "addresses", "codes"), (getattr(self, gap) for gap in _GAPS.values()), strict=True))
        if any(gaps.values()):
            missing = gettext(
                "letters without a name {names:,} · without an address {addresses:,} · without a postal code "
                "{codes:,}; their cells are empty in the list: fill them in the input, and run again",
                **gaps,
            )
            lines.append((gettext("incomplete"), missing))
        return lines


def check_letter_cost(cost: float | None) -> None:
    """Raise :class:`UsageError` unless ``cost`` can be the price of a letter in won."""
    if cost is not None and not 0 <= cost < 1e9:
        raise UsageError(LETTER_COST_IMPOSSIBLE, cost=cost)


def mark_letters(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Add the column :data:`LETTER`, true for one of equal rows (``FIRST``) to send, preferably one with a name."""
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


def count_letters(answers: pl.LazyFrame, cost: float | None, *, listed: bool) -> LetterCounts:
    """Count the letters of rows with :data:`LETTER`; if they are ``listed`` in a file, also its empty cells."""
    action = pl.col("action")
    counts = {
        "rows": pl.len(),
        "letters": pl.col(LETTER).sum(),
        "repeated": ((action == "send") & ~pl.col(LETTER)).sum(),
        "stopped": (action == "do_not_send").sum(),
        "waiting": action.is_in(WAITING).sum(),
    }
    found = answers.select(**counts).collect(engine="streaming").row(0, named=True)
    lacking = [pl.col(name).null_count().alias(gap) for name, gap in _GAPS.items()]
    gaps = _letter_rows(answers).select(lacking).collect(engine="streaming").row(0, named=True) if listed else {}
    return LetterCounts(**found, **gaps, cost=cost)


def letters_of(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Return a row for each letter, sorted by postal code: name, two address lines, postal code, id and more texts."""
    # ``answers``: with LETTER, and columns CARRIED and CARRIED_KEY to be taken along
    from bansong.history.letters import letter_ids, salutation

    names = answers.collect_schema().names()
    number = pl.col(NUMBER) if NUMBER in names else pl.lit(None, pl.UInt64)
    ids = look_up(letter_ids(answers, number)).alias("letter_id")
    carried = carried_columns(names)
    rows = _letter_rows(answers, ids, salutation(_recipient(names), number).alias("salutation"), *carried)
    for key in [name for name in carried if name.startswith(CARRIED_KEY)]:
        rows = rows.drop(key).join(_keys_by_letter(answers, key), on=ROW_ID, how="left")
    headers = [*_headers(), *(name.removeprefix(CARRIED).removeprefix(CARRIED_KEY) for name in carried)]
    columns = ("name", "line1", "line2", "code", "letter_id", "salutation", *carried)
    named = zip(columns, unique_names(headers), strict=True)
    return rows.sort("code", ROW_ID, nulls_last=True).select(pl.col(name).alias(header) for name, header in named)


def carried_columns(names: Collection[str]) -> list[str]:
    """Return the columns that a list of letters takes along, the customers' keys first."""
    return [name for mark in (CARRIED_KEY, CARRIED) for name in names if name.startswith(mark)]


def _keys_by_letter(answers: pl.LazyFrame, column: str) -> pl.LazyFrame:
    from bansong.history.letters import KEY_SEPARATOR

    sent = answers.filter(pl.col("action") == "send")
    same = pl.coalesce(FIRST, pl.col(ROW_ID).cast(pl.UInt32)).alias("same")
    keys = _one_line(pl.col(column)).sort_by(ROW_ID).drop_nulls().unique(maintain_order=True)
    joined = sent.group_by(same).agg(_one_line(keys.str.join(KEY_SEPARATOR)).alias(column))
    return sent.filter(LETTER).select(ROW_ID, same).join(joined, on="same").drop("same")


def _letter_rows(answers: pl.LazyFrame, *more: str | pl.Expr) -> pl.LazyFrame:
    names = answers.collect_schema().names()
    nothing = pl.lit(None, pl.String)
    address, zipcode = (pl.col(name).cast(pl.String) if name in names else nothing for name in ("address", "zipcode"))
    address = _one_line(pl.coalesce("fixed_address", address))
    first, second = _address_lines(address, pl.col("fixed_address").is_not_null())
    return answers.filter(LETTER).select(
        ROW_ID,
        _recipient(names).alias("name"),
        first.alias("line1"),
        second.alias("line2"),
        postal_digits(_one_line(pl.coalesce("fixed_zipcode", zipcode))).alias("code"),
        *more,
    )


def replaces_other(path: Path, temporary: Path) -> bool:
    """Whether ``path`` has other content than ``temporary``, which will replace it."""
    if not (look_at_output(path) is not None if isinstance(path, RemotePath) else path.exists()):
        return False
    with fetch_file(path) as earlier:
        if all(map(zipfile.is_zipfile, (earlier.path, temporary))):
            return _parts_of(earlier.path) != _parts_of(temporary)
        return not filecmp.cmp(earlier.path, temporary, shallow=False)


def _parts_of(workbook: Path) -> dict[str, int]:
    # without the part that contains the time of writing
    with zipfile.ZipFile(workbook) as parts:
        return {part.filename: part.CRC for part in parts.infolist() if part.filename != "docProps/core.xml"}


def _headers() -> tuple[str, ...]:
    own = gettext("recipient"), gettext("address 1"), gettext("address 2"), gettext("postal code")
    return *own, role_word("letter_id", current_language()), gettext("salutation")


def _count_areas(letters: pl.DataFrame) -> Section:
    """Count the letters by the first three digits of their postal code, by which the post sorts and gives discounts."""
    area = letters[gettext("postal code")].str.extract("^([0-9]{3})[0-9]{2}$").fill_null(gettext("(blank)"))
    counts = area.value_counts(name="letters").sort(area.name)
    title = gettext("letters by postal area: the first three digits of the postal code")
    return Section(title, ((gettext("all letters"), letters.height), *counts.iter_rows()))


def _one_line(text: pl.Expr) -> pl.Expr:
    tidy = text.str.replace_all(_UNPRINTABLE, " ").str.strip_chars()
    return pl.when(tidy != "").then(tidy)


def _address_lines(address: pl.Expr, official: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    # a short address is one line; a long one breaks behind the building's number if official, else at a space
    long = address.str.len_chars() > _LINE_CHARS
    road, unit, reference = (address.str.extract(_BUILDING, group) for group in (1, 2, 3))
    head, rest = (address.str.extract(_WORDS, group) for group in (1, 2))
    by_building = official & road.is_not_null()
    first = pl.when(by_building).then(road).otherwise(head)
    second = pl.when(by_building).then(pl.coalesce(unit, reference)).otherwise(rest)
    return pl.when(long).then(pl.coalesce(first, address)).otherwise(address), pl.when(long).then(second)


SPLIT_COLUMN_INVALID: Final = Problem(
    "outputs.split_column_invalid", "`split=`: {by!r} is nothing to split by; use `split='action'`"
)

PARTS: Final = (*ACTIONS, OTHER)  # one file each; `other` for rows without one of our actions

KOREAN_SPLIT: Final = HEADERS["ko"]["action"]


def split_paths(output: Path, lang: Lang) -> dict[str, Path]:
    """Return the path beside ``output`` of the file for each action."""
    # OUT.csv.gz → OUT.send.csv.gz, OUT.발송.csv.gz; empty ones are written, too, to replace those of an earlier run
    plain = unpacked_name(output)
    format = output_format(plain)
    suffix = format.extensions[0] if plain.suffix.lower() in format.can.spliced_only else plain.suffix
    packed = output.name.removeprefix(plain.name)
    return {
        part: output.with_name(f"{plain.stem}.{word_of(part, lang).replace(' ', '_')}{suffix}{packed}")
        for part in PARTS
    }


def _write_parts(result: Enriched, paths: Mapping[str, Path], target: Target, rows: int) -> dict[str, int]:
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
    """Files written beside an output."""

    parts: Mapping[str, tuple[Path, int]] = field(default_factory=dict)  # file and number of rows, by action
    letters: LetterCounts | None = None
    letter_list: Path | None = None  # list of letters for the mail house
    page: Path | None = None
    review: Path | None = None
    unsure: int = 0  # number of addresses in the review
    kept_letters: Path | None = None  # earlier list of letters, kept because the new one would be empty
    kept: Mapping[Path, Path] = field(default_factory=dict)  # copies of replaced files that people may have edited
    emptied: Path | None = None  # file of the action `send` that became empty

    @property
    def lacks_letters(self) -> bool:
        return self.kept_letters is not None or self.emptied is not None

    @property
    def alerts(self) -> tuple[Notice, ...]:
        if self.kept_letters is None:
            return ()
        return (Notice(LETTERS_KEPT, path=self.kept_letters, option=Option("allow_empty", True)),)

    def as_dict(self) -> dict[str, object]:
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
    """Requested files beside an output."""

    parts: Mapping[str, Path] = field(default_factory=dict)
    letters: Path | None = None
    letter_cost: float | None = None
    allow_empty: bool = False
    page: Path | None = None
    unmask: bool = False
    review: Path | None = None
    gazetteer: Gazetteer | None = None
    at: Mapping[Path, Path] = field(default_factory=dict)  # the temporary file of each, once reserved

    @classmethod
    def of(cls, write: WriteOptions, target: Target, gazetteer: Gazetteer | None) -> SideFiles:
        """Choose the paths of the requested files; a review needs the ``gazetteer`` that corrects addresses."""
        if write.split not in (None, "action", KOREAN_SPLIT):
            raise UsageError(SPLIT_COLUMN_INVALID, by=write.split)
        korean = write.headers == "ko" or write.split == KOREAN_SPLIT
        parts = split_paths(target.path, "ko" if korean else "en") if write.split else {}
        review = as_path(write.review) if write.review is not None else None
        if review is not None:
            check_review(review, gazetteer)
        return replace(cls.of_run(write), parts=parts, review=review, gazetteer=gazetteer)

    @classmethod
    def of_run(cls, write: WriteOptions) -> SideFiles:
        """Choose the files of which a run over several tables has one: letters and page."""
        check_letter_cost(write.letter_cost)
        page = as_path(write.report) if write.report is not None else None
        if write.unmask and page is None:
            raise UsageError(UNMASK_WITHOUT_REPORT)
        letters = as_path(write.letters) if write.letters is not None else None
        if letters is not None and letters.suffix.lower() in output_format(letters).can.spliced_only:
            raise UsageError(LETTERS_NOT_WORKBOOK, path=letters)
        cost, unmask, allow_empty = write.letter_cost, write.unmask, write.allow_empty
        return cls(letters=letters, letter_cost=cost, allow_empty=allow_empty, page=page, unmask=unmask)

    @property
    def counts_letters(self) -> bool:
        return self.letters is not None or self.letter_cost is not None

    @property
    def wanted(self) -> bool:
        return bool(self.parts) or self.counts_letters or self.page is not None or self.review is not None

    def paths_by_use(self) -> dict[str, Path | None]:
        words = {word_of(part, current_language()): path for part, path in self.parts.items()}
        return {gettext("output of {part}", part=part): path for part, path in words.items()} | {
            "letter list": self.letters,
            "report": self.page,
            "review": self.review,
        }

    def reserve(self, files: ExitStack) -> SideFiles:
        """Reserve a temporary file for each file; all are published when ``files`` closes without an error."""
        single = (self.letters, self.page, self.review)
        paths = [path for path in (*self.parts.values(), *single) if path is not None]
        return replace(self, at={path: files.enter_context(publish_file(path)) for path in paths})

    def write(self, result: Enriched, target: Target, rows: int) -> WrittenSides:
        at = {part: self.at[path] for part, path in self.parts.items()}
        counts = _write_parts(result, at, target, rows) if at else {}
        written, unsure = self.write_letters(result.frame) if self.counts_letters else WrittenSides(), 0
        if self.review is not None and self.gazetteer is not None:
            unsure = write_review(result.frame, self.at[self.review], self.gazetteer, result.table.first_row)
        parts = {part: (self.parts[part], count) for part, count in counts.items()}
        sent, emptied = self.parts.get("send"), None
        if sent and not (counts["send"] or self.allow_empty) and replaces_other(sent, self.at[sent]):
            emptied = sent
        return replace(written, parts=parts, page=self.page, review=self.review, unsure=unsure, emptied=emptied)

    def write_letters(self, answers: pl.LazyFrame) -> WrittenSides:
        """Count the letters and write their list, but keep an earlier list that would become empty."""
        listed = self.letters
        counts = count_letters(answers, self.letter_cost, listed=listed is not None)
        if listed is None or self._write_list(answers, listed, counts.letters):
            return WrittenSides(letters=counts, letter_list=listed)
        return WrittenSides(letters=counts, kept_letters=listed)

    def _write_list(self, answers: pl.LazyFrame, path: Path, letters: int) -> bool:
        # whether the list replaces the earlier one
        temporary = self.at[path]
        rows, format = letters_of(answers).collect(engine="streaming"), output_format(temporary)
        sections = (_count_areas(rows),) if format.can.summary else ()
        tallied, count_written = frames.write_frame(rows, temporary, format, rows.columns, sections)
        accounting.check_rows(letters, int(tallied["rows"].item()), count_written(), in_order=True)
        if letters or self.allow_empty or not replaces_other(path, temporary):
            return True
        with fetch_file(path) as earlier:
            shutil.copy2(earlier.path, temporary)
        return False
