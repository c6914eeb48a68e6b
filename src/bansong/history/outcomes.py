"""Read a table of outcomes: which letters came back, when and why (words: ``return_reasons.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.errors import ColumnError, LabelError, Problem
from bansong.base.files import sha256_of
from bansong.base.messages import Listed, Option, count_rows, gettext_noop
from bansong.base.options import ReadOptions
from bansong.base.remote import fetch_file
from bansong.base.schema import NAMING_ROLES, OUTCOME_ROLES, Choice, role_code
from bansong.engine.local import ROW_PROBLEM
from bansong.engine.overlays import address_key
from bansong.engine.records import DIGITS, TOTALS, records
from bansong.history.letters import list_columns
from bansong.tables.columns import Chosen, choose_columns
from bansong.tables.detect import open_table, reading
from bansong.tables.headers import level_of
from bansong.tables.roles import role_cell
from bansong.tables.table import Table

MAILING_DATE_MISSING: Final = Problem(
    "labels.mailing_date_missing",
    "{name}: holds no mailing date; say with `mailed='DATE'` when the letters were mailed",
)
OUTCOMES_EMPTY: Final = Problem("labels.outcomes_empty", "{name}: of {rows} none says what became of a letter")
BOUNCED_NOT_UNDERSTOOD: Final = Problem(
    "labels.bounced_not_understood",
    "{name}: no value of the column {header!r} is understood: {values}; write Y or N, or name "
    "another column with `columns={{'bounced': 'HEADER'}}`",
)
RETURNED_IN_FUTURE: Final = Problem(
    "labels.returned_in_future",
    "{name}: row {place}: the return date {returned} is in the future; correct it, or name another "
    "column with `columns={{'returned': 'HEADER'}}`",
)
MAILING_DATE_AMBIGUOUS: Final = Problem(
    "labels.mailing_date_ambiguous",
    "{name}: holds {dates:,} mailing dates ({some}, …); say with `mailed='DATE'` which is meant",
)
OUTCOME_COLUMN_MISSING: Final = Problem(
    "labels.outcome_column_missing",
    "{name}: no column says whether a letter came back, why or when; the headers are: {names}; name one with "
    "`columns={{'bounced': 'HEADER'}}` or, if all came back, `columns={{'reason': 'HEADER'}}`",
)
ROW_COLUMN_MISSING: Final = Problem(
    "labels.row_column_missing",
    "{error}, or the letters' ids with `columns={{'letter_id': 'HEADER'}}`, the customers' keys with `columns={{'key': "
    "'HEADER'}}`, or the rows of the enriched file, from 0, with `columns={{'row_id': 'HEADER'}}`",
)
HEADER_AMBIGUOUS: Final = Problem(
    "labels.header_ambiguous",
    "{name}: {same} columns are headed {header!r}, and they may differ; say which is meant with {names}",
)

REASON_CODES: Final = (
    gettext_noop("moved"),
    gettext_noop("unknown_addressee"),
    gettext_noop("unknown_address"),
    gettext_noop("absent"),
    gettext_noop("refused"),
    gettext_noop("closed"),
    gettext_noop("other"),
)

SAYS_NOTHING: Final = ("refused",)  # reasons that say nothing about the address; learning leaves them out
# under a header with one of these words, `Y` means that the letter came back
_RETURNS: Final = ("반송", "반환", "bounce", "return")


def reason_code(text: pl.Expr) -> pl.Expr:
    """Return the code of a reason's text: ``other`` if no code or several fit, null for blank text."""
    plain = text.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"[^\p{L}]", "")
    words = _vocabulary()["reasons"]
    whole = {word: code for code, forms in words.items() for word in forms["exact"]}
    within = {code: forms["within"] for code, forms in words.items() if forms["within"]}
    parts = {code: plain.str.contains_any(found) for code, found in within.items()}
    only = pl.lit("other")
    for code, part in parts.items():
        only = pl.when(part).then(pl.lit(code)).otherwise(only)
    one = pl.sum_horizontal(part.cast(pl.UInt8) for part in parts.values()) == 1
    code = pl.coalesce(
        plain.replace_strict(list(whole), list(whole.values()), default=None, return_dtype=pl.String),
        pl.when(one).then(only).otherwise(pl.lit("other")),
    )
    return pl.when(text.str.contains(r"[\p{L}\p{N}]")).then(code)


def came_back(text: pl.Expr, header: str) -> pl.Expr:
    """Return whether a cell under ``header`` says that the letter came back; null for blank or unknown words."""
    # flags (Y, O, 1) count only under a header about returns; a reason (폐문부재) means a return
    words = _vocabulary()
    plain = text.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"[\s.\-_()\[\]]", "")
    exact = text.str.normalize("NFKC").str.to_lowercase().str.strip_chars()
    flags = any(word in header.lower() for word in _RETURNS)
    yes, no = (
        plain.is_in(words[kind]["words"]) | (exact.is_in(words[kind]["flags"]) & flags)
        for kind in ("bounced", "delivered")
    )
    code = reason_code(text)
    return pl.when(yes).then(True).when(no).then(False).when(code != "other").then(True)


@cache
def _vocabulary() -> dict[str, Any]:
    return tomllib.loads(files("bansong.history").joinpath("return_reasons.toml").read_text(encoding="utf-8"))


OUTCOME_SCHEMA: Final = {
    "place": pl.UInt32,  # row from 1; in a workbook, the row of the sheet
    "row_id": pl.UInt32,
    "digits": pl.String,
    "key": pl.String,
    "said": pl.Boolean,
    "reason_code": pl.String,
    "reason": pl.String,
    "returned": pl.Date,
    "mailed_on": pl.Date,
    "problem": pl.String,
}
_DAY: Final = r"^\s*([0-9]{4})\s*[-./년]\s*([0-9]{1,2})\s*[-./월]\s*([0-9]{1,2})\s*일?\s*\.?(?:[T ].*)?$"
_SHORT: Final = r"^\s*'?([0-9]{2})\s*[-./년]\s*([0-9]{1,2})\s*[-./월]\s*([0-9]{1,2})\s*일?\s*\.?$"
_WITHOUT_YEAR: Final = r"^\s*'?([0-9]{1,2})\s*[-./월]\s*([0-9]{1,2})\s*일?\s*\.?$"
# a workbook's day number, 1982 to 2064, in a cell that lost its date format
_SERIAL: Final = r"^\s*([345][0-9]{4})(?:\.[0-9]+)?\s*$"
_PACKED: Final = r"^\s*([0-9]{4})([0-9]{2})([0-9]{2})(?:\.0)?\s*$"
_SPOKEN: Final = ("bounced", "reason", "returned", "mailed")
_RETURN_DAYS: Final = ("returned", "written:returned")
_TEXTS: Final = ("b_no", "address", *_SPOKEN, "row_id", *NAMING_ROLES, "zipcode")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A parsed table of outcomes."""

    path: Path
    name: str
    columns: Mapping[str, Choice]
    frame: pl.DataFrame  # OUTCOME_SCHEMA, and the cells as text (`written:<role>`)
    rows: int
    blank: int  # rows without an outcome
    only_returns: bool  # without a column `bounced`, each row means a returned letter
    sha256: str
    notes: tuple[str, ...]


def read_outcomes(
    path: Path,
    read: ReadOptions,
    columns: Mapping[str, str] | None = None,
    *,
    mailed: date | None = None,  # day of mailing, if rows have none; dates without a year follow it
    key: str | None = None,  # header of the customer's key in the mailed file
) -> Outcomes:
    """Read a table of outcomes; roles (OUTCOME_ROLES) without a header in ``columns`` are found by the headers."""
    with fetch_file(path) as data, open_table(path, read, data=data.path) as table, reading(table):
        given = {role_code(role): header for role, header in (columns or {}).items()}
        keys = {"key": key} if key is not None and table.headers.count(key) == 1 else {}
        found = _choose_columns(table, keys | given)
        for role in keys.keys() - given.keys():
            found.columns[role] = replace(found.columns[role], why="header")
        chosen = found.columns
        if not {"bounced", "reason", "returned"} & set(chosen):
            names = ", ".join(header or "(blank)" for header in table.headers)
            raise LabelError(OUTCOME_COLUMN_MISSING, name=table.name, names=names)
        raw = _raw_cells(table, chosen).collect(engine="streaming")
        sha256 = sha256_of(data.path)
        rows = raw.height
    only_returns = "bounced" not in chosen
    spoken = raw.lazy().filter(pl.col(ROW_PROBLEM).is_null())
    frame = _parse_cells(spoken, chosen, mailed).with_columns(_problem_expr().alias("problem")).collect()
    blank = pl.col("said").is_null() & pl.col("problem").is_null()
    kept = frame.filter(~blank).drop(ROW_PROBLEM).cast(OUTCOME_SCHEMA)  # type: ignore[arg-type]
    if kept.is_empty():
        raise LabelError(OUTCOMES_EMPTY, name=table.name, rows=count_rows(rows))
    if not kept["said"].count() and not only_returns:
        header = chosen["bounced"].header
        values = ", ".join(map(repr, kept["written:bounced"].unique(maintain_order=True).head(5)))
        raise LabelError(BOUNCED_NOT_UNDERSTOOD, name=table.name, header=header, values=values)
    dropped, notes = rows - kept.height, (*table.notes, *found.notes)
    return Outcomes(path, table.name, chosen, kept, rows, dropped, only_returns, sha256, notes)


def refuse_future(outcomes: Outcomes, today: date) -> None:
    """Raise :class:`LabelError` if a letter came back after ``today``."""
    late = outcomes.frame.filter(pl.col("returned") > today).head(1)
    if late.height:
        row = late.row(0, named=True)
        raise LabelError(RETURNED_IN_FUTURE, name=outcomes.name, place=row["place"], returned=row["returned"])


def mailing_date(outcomes: Outcomes, given: date | None) -> date:
    """Return the day of mailing: ``given``, else that of all outcomes; raise :class:`LabelError` without one."""
    if given is not None:
        return given
    days = outcomes.frame["mailed_on"].drop_nulls().unique().sort()
    if days.len() == 1:
        day: date = days[0]
        return day
    if days.len():
        some = ", ".join(map(str, days.head(3)))
        raise LabelError(MAILING_DATE_AMBIGUOUS, name=outcomes.name, dates=days.len(), some=some)
    raise LabelError(MAILING_DATE_MISSING, name=outcomes.name)


def _choose_columns(table: Table, given: dict[str, str]) -> Chosen:
    if "row_id" not in given:
        places = [place for place, header in enumerate(table.headers) if level_of("row_id", header) == "sure"]
        if len(places) == 1:
            given["row_id"] = f"#{places[0] + 1}"
    roles = ("row_id", *OUTCOME_ROLES[:-1]) if "row_id" in given else OUTCOME_ROLES
    try:
        chosen = choose_columns(table, roles, given)
    except ColumnError as error:
        if error.missing != "b_no":
            raise
        headed = list_columns(table)
        first = next((role for role in NAMING_ROLES if role in given or role in headed), "")
        others = tuple(role for role in OUTCOME_ROLES[1:] if role != first)
        named = {first: f"#{headed[first].column + 1}"} if first in headed else {}
        chosen = choose_columns(table, (first, *others), named | given) if first else Chosen({})
        if (first == "recipient" and "address" not in chosen.columns) or not first:
            if table.frame.head(1).collect().is_empty():
                raise LabelError(OUTCOMES_EMPTY, name=table.name, rows=count_rows(0)) from error
            raise ColumnError(ROW_COLUMN_MISSING, error=error) from error
        chosen.columns.update({role: headed[role] for role in named if role not in given})  # they were not given
    for role in _SPOKEN:
        header = chosen.columns[role].header if role in chosen.columns and role not in given else ""
        same = [place for place, other in enumerate(table.headers, 1) if other == header != ""]
        if len(same) > 1:
            names = Listed([Option("columns", {role: f"#{place}"}) for place in same], gettext_noop(" or "))
            raise ColumnError(HEADER_AMBIGUOUS, name=table.name, same=len(same), header=header, names=names)
    return chosen


def _raw_cells(table: Table, chosen: Mapping[str, Choice]) -> pl.LazyFrame:
    rows = records(table, {role: choice for role, choice in chosen.items() if role == "b_no"})
    names = rows.collect_schema().names()
    nothing = pl.lit(None, pl.String)
    cells = {
        role: role_cell(table, role, chosen[role]).cast(pl.String) if role in chosen else nothing for role in _TEXTS
    }
    totals = pl.any_horizontal(cells[role].str.contains(TOTALS) for role in NAMING_ROLES)
    return rows.select(
        (pl.col("row_id") + table.first_row).alias("place"),
        (pl.col(DIGITS) if DIGITS in names else nothing).alias("digits"),
        pl.coalesce(
            pl.col(ROW_PROBLEM) if ROW_PROBLEM in names else nothing, pl.when(totals).then(pl.lit("totals_row"))
        ).alias(ROW_PROBLEM),
        *(cell.alias(f"written:{role}") for role, cell in cells.items()),
    )


def _parse_cells(raw: pl.LazyFrame, chosen: Mapping[str, Choice], mailed: date | None) -> pl.LazyFrame:
    """Parse the cells, each distinct text once."""
    spoken = [f"written:{role}" for role in _SPOKEN]
    code = reason_code(pl.col("reason")).alias("reason_code")
    words = raw.select(spoken).unique().with_columns(_parse_words(chosen, mailed)).with_columns(code)
    rows = raw.join(words, on=spoken, how="left", nulls_equal=True, maintain_order="left")
    cell = {role: _non_blank(pl.col(f"written:{role}")) for role in ("b_no", "row_id", *NAMING_ROLES)}
    said = pl.col("said")
    if "bounced" not in chosen:
        given = [*cell.values(), pl.col("reason"), _non_blank(pl.col("written:returned"))]
        said = pl.when(pl.any_horizontal(part.is_not_null() for part in given)).then(pl.lit(True))
    if "returned" in chosen and level_of("returned", chosen["returned"].header) != "sure":  # the day of any outcome
        rows = rows.with_columns(pl.when(said.fill_null(True)).then(name).alias(name) for name in _RETURN_DAYS)
    return rows.with_columns(
        said.alias("said"),
        cell["row_id"].str.replace(r"\.0+$", "").cast(pl.UInt32, strict=False).alias("row_id"),
        address_key(pl.col("written:address")).alias("key"),
    )


def _parse_words(chosen: Mapping[str, Choice], mailed: date | None) -> list[pl.Expr]:
    cell = {role: _non_blank(pl.col(f"written:{role}")) for role in _SPOKEN}
    why = cell["reason"].is_not_null() | cell["returned"].is_not_null()
    said, own = pl.lit(None, pl.Boolean), pl.lit(None, pl.String)
    if "bounced" in chosen:
        word = came_back(cell["bounced"], chosen["bounced"].header)
        said = pl.when(cell["bounced"].is_not_null()).then(word).when(why).then(pl.lit(True))
        # the cell may hold the reason instead of yes or no
        own = pl.when(word & (reason_code(cell["bounced"]) != "other")).then(cell["bounced"])
    begin = pl.lit(mailed, pl.Date)
    mailed_on = pl.coalesce(_parse_day(cell["mailed"]), _parse_without_year(cell["mailed"], begin.dt.truncate("1y")))
    returned = _parse_without_year(cell["returned"], pl.coalesce(mailed_on, begin))
    return [
        said.alias("said"),
        pl.coalesce(cell["reason"], own).alias("reason"),
        pl.coalesce(_parse_day(cell["returned"]), returned).alias("returned"),
        mailed_on.alias("mailed_on"),
    ]


def _problem_expr() -> pl.Expr:
    given = {role: _non_blank(pl.col(f"written:{role}")).is_not_null() for role in ("bounced", "row_id", "returned")}
    conditions = {
        "not_understood": given["bounced"] & pl.col("said").is_null(),
        "no_row_id": given["row_id"] & pl.col("row_id").is_null(),
        "contradicts_itself": ~pl.col("said") & pl.any_horizontal(pl.col("reason_code", "returned").is_not_null()),
        "date_not_read": given["returned"] & pl.col("returned").is_null(),
    }
    return pl.coalesce(pl.when(holds).then(pl.lit(name)) for name, holds in conditions.items())


def _non_blank(text: pl.Expr) -> pl.Expr:
    return pl.when(~text.str.contains(r"^[\s\-]*$")).then(text.str.strip_chars())


def _parse_day(text: pl.Expr) -> pl.Expr:
    """Parse a day as written in Korea: year first, with four or two digits, or a workbook's day number."""
    packed = text.str.replace(_PACKED, "$1-$2-$3").str.replace(_SHORT, "20$1-$2-$3")
    written = packed.str.replace(_DAY, "$1-$2-$3").str.to_date("%Y-%m-%d", strict=False)
    counted = text.str.extract(_SERIAL).cast(pl.Int64, strict=False) * pl.duration(days=1)
    return pl.coalesce(written, pl.lit(date(1899, 12, 30)) + counted)


def _parse_without_year(text: pl.Expr, begin: pl.Expr) -> pl.Expr:
    """Parse month and day, as the first such day from ``begin`` on."""
    month_and_day = text.str.replace(_WITHOUT_YEAR, "$1-$2")
    years = [pl.concat_str(begin.dt.year() + more, month_and_day, separator="-") for more in (0, 1)]
    this, following = (year.str.to_date("%Y-%m-%d", strict=False) for year in years)
    return pl.when(this >= begin).then(this).otherwise(following)
