"""Reviews of unsure addresses: write the workbook, read the choices back, store them."""

from __future__ import annotations

import getpass
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import polars as pl

from bansong.base import business_number
from bansong.base.after_fork import refuse_after_fork
from bansong.base.display import Shown
from bansong.base.errors import InputError, OutputError, Problem, StoreError, UsageError
from bansong.base.files import as_path
from bansong.base.messages import (
    LANGS,
    Lang,
    current_language,
    gettext,
    gettext_noop,
    gettext_of,
    ngettext,
    use_language,
)
from bansong.base.schema import seoul_day
from bansong.base.sqlite import FileKind, rewrite_file
from bansong.engine.address.attach import SUGGESTED, suggest
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import NUMBER, UNSURE
from bansong.engine.overlays import CHOICE_SCHEMA, address_key
from bansong.engine.records import ROW_ID
from bansong.engine.text import day_given
from bansong.tables.detect import open_table

REVIEW_NOT_WORKBOOK: Final = Problem("outputs.review_not_workbook", "{path}: a review is a workbook; call it .xlsx")
REVIEW_WITHOUT_GAZETTEER: Final = Problem(
    "options.review_without_gazetteer", "`review=` lists what the gazetteer holds; give `gazetteer=`"
)
REVIEW_TOO_LONG: Final = Problem("outputs.review_too_long", "{path}: {count:,} addresses are more than a sheet holds")

CANDIDATES: Final = 5

COLUMNS: Final = {
    "row": gettext_noop("row"),
    "b_no": gettext_noop("business number"),
    "name": gettext_noop("business name"),
    "address": gettext_noop("address"),
    "zipcode": gettext_noop("postal code"),
    "why": gettext_noop("what is not sure"),
    "choice": gettext_noop("choice"),
    **{f"candidate{place}": gettext_noop("candidate {place}") for place in range(1, CANDIDATES + 1)},
    "none": gettext_noop("none of them"),
    "changes": gettext_noop("what differs"),
}
ACCEPT: Final = gettext_noop("accept all single candidates")  # label of a cell for `yes`, above the choices
_ANSWERS: Final = (gettext_noop("yes"), gettext_noop("no"))

_CANDIDATES: Final = tuple(f"candidate{place}" for place in range(1, CANDIDATES + 1))
_WHY: Final = {
    "ambiguous": gettext_noop("fits several places"),
    "unsupported": gettext_noop("corrected, and nothing else in the row confirms it"),
}
_WIDTHS: Final = {
    "row": 7,
    "b_no": 14,
    "name": 20,
    "address": 40,
    "zipcode": 10,
    "why": 22,
    "choice": 44,
    "none": 14,
    "changes": 60,
}
_CANDIDATE_WIDTH: Final = 36
_EMPTY_CANDIDATE_WIDTH: Final = 12
_RECORD: Final = ("name", "address", "zipcode")
_UNPRINTABLE: Final = r"[\s\p{C}]+"
_ROWS_OF_A_SHEET: Final = 1_048_574


def check_review(path: Path, gazetteer: Gazetteer | None) -> None:
    """Raise :class:`OutputError` unless the name ends in ``.xlsx``, :class:`UsageError` without a gazetteer."""
    if path.suffix.lower() != ".xlsx":
        raise OutputError(REVIEW_NOT_WORKBOOK, path=path)
    if gazetteer is None:
        raise UsageError(REVIEW_WITHOUT_GAZETTEER)


def headers() -> dict[str, str]:
    """Return the headers of a review in the current language."""
    return {name: gettext(text, place=name[-1]) for name, text in COLUMNS.items()}


def write_review(answers: pl.LazyFrame, target: Path, gazetteer: Gazetteer, first_row: int = 1) -> int:
    """Write a workbook with a line for each unsure address of answered rows; return the number of lines."""
    # ``first_row``: number of the first row in the user's sheet
    unsure = _unsure_addresses(answers)
    lines = unsure.hstack(_candidates(unsure, gazetteer))
    if lines.height > _ROWS_OF_A_SHEET:
        raise OutputError(REVIEW_TOO_LONG, path=target, count=lines.height)
    none = pl.lit(gettext(COLUMNS["none"])).alias("none")
    _write_sheet(lines.with_columns(pl.col("row") + (first_row - 1), none).select(*COLUMNS), target)
    return lines.height


def _unsure_addresses(answers: pl.LazyFrame) -> pl.DataFrame:
    there = answers.collect_schema().names()
    text = {name: pl.col(name).cast(pl.String) if name in there else pl.lit(None, pl.String) for name in _RECORD}
    rows = answers.filter(pl.col(UNSURE).is_not_null()).select(
        ROW_ID,
        (pl.col(ROW_ID) + 1).alias("row"),
        business_number.digits_expr(pl.col(NUMBER)).alias("b_no"),
        *(text[name].str.replace_all(_UNPRINTABLE, " ").str.strip_chars().alias(name) for name in _RECORD),
        pl.col(UNSURE).replace_strict({code: gettext(why) for code, why in _WHY.items()}).alias("why"),
        address_key(text["address"]).alias("key"),
    )
    found = rows.collect(engine="streaming").sort(ROW_ID)
    return found.unique(["b_no", "key"], keep="first", maintain_order=True).drop(ROW_ID, "key")


def _candidates(unsure: pl.DataFrame, gazetteer: Gazetteer) -> pl.DataFrame:
    found = pl.DataFrame(schema=SUGGESTED)
    if not unsure.is_empty():
        found = suggest(unsure, gazetteer, current_language(), CANDIDATES)
    place = pl.int_range(1, pl.len() + 1).over("row")
    text = pl.format("{} [{}]", "address", "zipcode")
    differs = pl.format("{}: {}", place, pl.col("changes").fill_null(gettext("fits what is written")))
    by_row = (
        found.with_columns(text.alias("text"), differs.alias("differs"))
        .group_by("row", maintain_order=True)
        .agg("text", pl.col("differs").str.join("\n").alias("changes"))
    )
    every = pl.DataFrame({"row": pl.int_range(unsure.height, dtype=pl.UInt32, eager=True)})
    joined = every.join(by_row, on="row", how="left", maintain_order="left")
    return joined.select(
        *(pl.col("text").list.get(place, null_on_oob=True).alias(name) for place, name in enumerate(_CANDIDATES)),
        pl.col("changes"),
        pl.lit(None, pl.String).alias("choice"),
    )


def _width(column: pl.Series) -> int:
    is_empty = column.name.startswith("candidate") and column.null_count() == len(column)
    return _EMPTY_CANDIDATE_WIDTH if is_empty else _WIDTHS.get(column.name, _CANDIDATE_WIDTH)


def _write_sheet(lines: pl.DataFrame, target: Path) -> None:
    from bansong.tables.excel.create import ChoiceSheet, write_choice_sheet  # few runs need workbooks

    sheet = ChoiceSheet(
        title=gettext("review"),
        headers=tuple(headers().values()),
        widths=tuple(_width(lines[name]) for name in COLUMNS),
        lines=lines,
        choice="choice",
        offered=(*_CANDIDATES, "none"),
        prompt=gettext("Choose the right address; leave the cell empty if none is."),
        refusal=gettext("Choose one of the candidates of this line, or leave the cell empty."),
        switch=gettext(ACCEPT),
        answers=(gettext(_ANSWERS[0]), gettext(_ANSWERS[1])),
    )
    write_choice_sheet(sheet, target)


CHOICE_FILE_MISSING: Final = Problem("reviews.choice_file_missing", "{path}: there is no such file; check `choices=`")

CHOICE_FILE: Final = FileKind(
    gettext_noop("a store of address choices"),
    "choices",
    0x62764143,  # "bvAC"
    """
CREATE TABLE choices (
    b_no INTEGER NOT NULL,
    address_key TEXT NOT NULL,
    address TEXT NOT NULL,
    zipcode TEXT NOT NULL,
    chosen_by TEXT NOT NULL,
    chosen_on INTEGER NOT NULL,
    PRIMARY KEY (b_no, address_key)
) STRICT, WITHOUT ROWID;
""",
    {},
    StoreError,
    variable="BANSONG_CHOICES",
    default="choices.sqlite",
)

Choices = str | Path | Literal[False] | None  # None: the user's store, if it exists; False: no store

_PUT: Final = """
INSERT INTO choices VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (b_no, address_key) DO UPDATE SET
    address = excluded.address, zipcode = excluded.zipcode,
    chosen_by = excluded.chosen_by, chosen_on = excluded.chosen_on
"""


def read_choices(choices: Choices) -> pl.DataFrame | None:
    """Read stored choices (:data:`~bansong.engine.overlays.CHOICE_SCHEMA`); ``None`` without a store."""
    if choices is False:
        return None
    path = CHOICE_FILE.find(choices)
    with CHOICE_FILE.errors(path):
        there = path.exists()
    if there:
        return ChoiceStore(path).read()
    if choices is None:
        return None
    raise StoreError(CHOICE_FILE_MISSING, path=path)


class ChoiceStore:
    """The SQLite database of chosen addresses: at ``path``, ``BANSONG_CHOICES``, or in the state directory."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = CHOICE_FILE.find(path)

    def read(self) -> pl.DataFrame:
        with self._use() as db:
            rows = db.execute("SELECT * FROM choices").fetchall()
        schema = CHOICE_SCHEMA | {"chosen_on": pl.Int32}
        return pl.DataFrame(rows, schema=schema, orient="row").cast({"chosen_on": pl.Date})

    def put(self, choices: pl.DataFrame) -> None:
        """Store a review's choices in one transaction, in place of earlier ones for the same business and address."""
        rows = choices.select(*CHOICE_SCHEMA).with_columns(pl.col("chosen_on").to_physical())
        CHOICE_FILE.ensure(self.path)
        with self._use() as db, db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(_PUT, rows.iter_rows())

    def holdings(self, number: int) -> int:
        with self._use() as db:
            return int(db.execute("SELECT count(*) FROM choices WHERE b_no = ?", (number,)).fetchone()[0])

    def forget(self, *numbers: int) -> None:
        with self._use() as db:
            with db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("DELETE FROM choices WHERE b_no = ?", [(number,) for number in numbers])
            rewrite_file(db)

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with CHOICE_FILE.errors(self.path), closing(CHOICE_FILE.open(self.path)) as db:
            yield db


NOT_A_REVIEW: Final = Problem(
    "reviews.not_a_review", "{path}: is no review; give the workbook of addresses to be decided on that bansong wrote"
)
REVIEWER_NAME_INVALID: Final = Problem(
    "reviews.reviewer_name_invalid",
    "`by=`: {by!r} cannot stand in a reason; give a name of at most {most} characters without | ( )",
)

_NEEDED: Final = ("row", "b_no", "address", "choice", *_CANDIDATES)
_CHOSEN: Final = r"^(.+) \[([0-9]{5})\]$"
_SHOWN: Final = 5
_MAX_NAME_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class ReviewReport(Shown):
    """The report of storing a review, with counts of its choices."""

    path: str
    store: str
    by: str  # who chose
    new: int
    changed: int
    known: int  # choices that are stored already
    open: int  # addresses without a choice

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def _describe(self) -> list[tuple[str, str]]:
        counts = gettext_of(self, "new {new:,} · changed {changed:,} · as before {known:,} · without a choice {open:,}")
        return [(gettext("choices"), counts), (gettext("chosen by"), self.by), (gettext("kept in"), self.store)]


def apply_review(
    path: str | Path, *, by: str | None = None, store: str | Path | None = None, today: date | str | None = None
) -> ReviewReport:
    """Store the choices of a review that ``enrich(review=…)`` wrote, for the next runs.

    ``by``: who chose, as shown in the reasons; by default the user of this machine. ``store``: the file of choices, by
    default ``BANSONG_CHOICES``, else ``choices.sqlite`` in the state directory. A later choice for the same business
    and address replaces an earlier one. ``today``: the day of the choice. Raises :class:`InputError` for a file that is
    no review or a choice that is no candidate (nothing is stored then), :class:`UsageError`,
    :class:`bansong.errors.StoreError`.
    """
    refuse_after_fork()
    source, who = as_path(path), _name(by)
    with open_table(source) as table:
        lang, columns = _columns_of(table.headers, source)
        cells = {name: pl.col(table.ids[place]).cast(pl.String).alias(name) for name, place in columns.items()}
        lines = table.frame.select(**cells).with_row_index("line", offset=table.first_row).collect()
    with use_language(lang):
        none, accepts = gettext(COLUMNS["none"]), (gettext(ACCEPT), gettext(_ANSWERS[0]))
    accepted = any(accepts == pair for row in table.title_rows for pair in pairwise(row))
    filled = {name: (pl.col(name).str.strip_chars() != "").fill_null(False) for name in ("choice", *_CANDIDATES)}
    is_single = filled["candidate1"] & ~pl.any_horizontal(filled[name] for name in _CANDIDATES[1:]) & accepted
    choice = pl.when(filled["choice"]).then("choice").when(is_single).then("candidate1")
    lines = lines.with_columns(choice.alias("choice")).with_columns(pl.when(pl.col("choice") != none).then("choice"))
    chosen = lines.filter(pl.col("choice").is_not_null())
    choices = _read_choices(chosen, source).with_columns(
        pl.lit(who).alias("by"), pl.lit(day_given("today", today) or seoul_day()).alias("chosen_on")
    )
    kept = ChoiceStore(store)
    before = kept.read() if kept.path.exists() else pl.DataFrame(schema=CHOICE_SCHEMA)
    counts = _compare(choices, before)
    if not choices.is_empty():
        kept.put(choices)
    return ReviewReport(str(source), str(kept.path), who, open=lines.height - chosen.height, **counts)


def _name(by: str | None) -> str:
    given = " ".join((getpass.getuser() if by is None else by).split())
    if not given or len(given) > _MAX_NAME_CHARACTERS or any(mark in given for mark in "|()"):
        raise UsageError(REVIEWER_NAME_INVALID, by=by, most=_MAX_NAME_CHARACTERS)
    return given


def _columns_of(found: tuple[str, ...], path: Path) -> tuple[Lang, Mapping[str, int]]:
    for lang in LANGS:
        with use_language(lang):
            titles = headers()
        places = {name: found.index(title) for name, title in titles.items() if title in found}
        if all(name in places for name in _NEEDED):
            return lang, places
    raise InputError(NOT_A_REVIEW, path=path)


def _read_choices(chosen: pl.DataFrame, path: Path) -> pl.DataFrame:
    choice, offered = pl.col("choice").str.strip_chars(), pl.concat_list(_CANDIDATES)
    by_place = offered.list.get(choice.str.extract("^([1-9])$").cast(pl.Int64) - 1, null_on_oob=True)
    text = pl.coalesce(by_place, pl.when(offered.list.contains(choice)).then(choice))
    lines = chosen.with_columns(
        text.str.extract(_CHOSEN, 1).alias("chosen"),
        text.str.extract(_CHOSEN, 2).alias("code"),
        business_number.key_expr(pl.col("b_no")).alias("number"),
        address_key(pl.col("address")).alias("address_key"),
    )
    wrong = lines.filter(pl.any_horizontal(pl.col("chosen", "number", "address_key").is_null()))
    if not wrong.is_empty():
        listed = ", ".join(
            gettext("row {row}: {choice!r}", row=row, choice=what)
            for row, what in wrong.select("line", "choice").head(_SHOWN).rows()
        )
        message = ngettext(
            "{path}: {count:,} choice is none of the candidates in its line ({listed}); correct it, nothing was "
            "remembered",
            "{path}: {count:,} choices are none of the candidates in their lines ({listed}); correct them, nothing was "
            "remembered",
            wrong.height,
            path=path,
            listed=listed,
        )
        raise InputError(message)
    found = lines.select("address_key", b_no="number", address="chosen", zipcode="code")
    return found.unique(["b_no", "address_key"], keep="last", maintain_order=True)


def _compare(choices: pl.DataFrame, before: pl.DataFrame) -> dict[str, int]:
    keys = ["b_no", "address_key"]
    both = choices.join(before, on=keys, how="left", suffix="_before")
    same = (pl.col("address") == pl.col("address_before")).fill_null(False)
    new = pl.col("address_before").is_null()
    counts = both.select(new=new.sum(), changed=(~new & ~same).sum(), known=same.sum())
    return counts.row(0, named=True)
