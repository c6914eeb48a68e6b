"""Count the rows of a run: planned lookups, answers, the check that no row is lost, and alerts from the counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from operator import xor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.errors import AccountingError, Notice, Problem
from bansong.base.messages import Lang, Listed, Option, Phrase, gettext_noop
from bansong.base.schema import ACTIONS, BIZ_STATUSES, GRADES, HEADERS, ROW_STATUSES, CodeWord, code_expr, seoul_day
from bansong.engine.local import ADDRESS_LIST, NUMBER, ROW_PROBLEM, ROW_PROBLEMS, how_to_check_statuses
from bansong.engine.protocol import GARBLED, GARBLED_FIRST, LOOKUP, UNCHECKED_SENDS
from bansong.engine.records import RIGHT, ROW_ID
from bansong.engine.text import is_blank
from bansong.tables.earlier_columns import EarlierColumns
from bansong.tables.table import contract_name

if TYPE_CHECKING:
    from bansong.engine.protocol import Engine

ROWS_NOT_BALANCED: Final = Problem(
    "outputs.rows_not_balanced", "nothing was published, the rows do not balance: {faults}"
)

PROBLEMS: Final = (*business_number.PROBLEMS, *ROW_PROBLEMS)  # reasons why a row is not asked about

OTHER: Final = "other"  # counts words of the service that are not in our vocabulary

_OUT_ID: Final = "out_id"


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """Counts of a planned run; ``rows`` = ``invalid`` + ``suspect`` + ``lookups`` + ``duplicates``."""

    rows: int
    lookups: int  # distinct records of valid rows
    duplicates: int  # repeated records
    invalid: int  # rows without a usable business number
    invalid_by_problem: dict[str, int]  # invalid rows by code of PROBLEMS
    wrong_check_digits: int  # of valid rows
    without_address: int  # of valid rows
    suspect: int = 0  # rows with a wrong check digit, which are not bought


def plan(rows: pl.LazyFrame) -> LookupPlan:
    """Count the lookups of records (:func:`bansong.engine.records.records`) in one streaming pass."""
    return plan_of(with_plan_columns(rows).select(*PLAN_COUNTS).collect(engine="streaming").row(0, named=True))


def with_plan_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns ``plan:…`` for :data:`PLAN_COUNTS`. Rows without ``LOOKUP`` get a cheap hash in its place."""
    names = rows.collect_schema().names()
    if "b_no" not in names:
        nothing = {"b_no": pl.String, NUMBER: pl.UInt64, RIGHT: pl.Boolean, ROW_PROBLEM: pl.String}
        rows = rows.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in nothing.items())
    address = pl.col("address").cast(pl.String) if "address" in names else pl.lit(None, pl.String)
    asked = pl.col(NUMBER).is_not_null()
    if ADDRESS_LIST in names:
        asked |= pl.col(ADDRESS_LIST).fill_null(False)
    rows = rows.with_columns((asked & pl.col(ROW_PROBLEM).is_null()).alias("plan:valid"))
    valid = pl.col("plan:valid")
    problem = pl.coalesce(ROW_PROBLEM, business_number.problem_expr(pl.when(~valid).then("b_no")))
    return rows.with_columns(
        pl.when(~valid).then(problem).alias("plan:problem"),
        (valid & ~pl.col(RIGHT)).alias("plan:wrong_check_digit"),
        (valid & is_blank(address)).alias("plan:without_address"),
        pl.when(pl.col(LOOKUP).is_not_null() if LOOKUP in names else valid)
        .then(_lookup_key(names))
        .alias("plan:lookup"),
    )


def _lookup_key(names: list[str]) -> pl.Expr:
    if LOOKUP in names:
        return pl.col(LOOKUP).hash(seed=0)
    texts = [
        pl.col(name).cast(pl.String).str.strip_chars().fill_null("") for name in ("name", "address") if name in names
    ]
    return reduce(xor, (text.hash(seed=place) for place, text in enumerate([pl.col(NUMBER), *texts])))


PLAN_COUNTS: Final = (  # aggregations over rows of `with_plan_columns`
    pl.col("plan:valid").len().alias("plan:rows"),
    pl.col("plan:valid").sum().alias("plan:valid"),
    pl.col("plan:lookup").count().alias("plan:asked"),
    pl.col("plan:lookup").drop_nulls().n_unique().alias("plan:lookups"),
    pl.col("plan:wrong_check_digit").sum().alias("plan:wrong_check_digits"),
    pl.col("plan:without_address").sum().alias("plan:without_addresses"),
    *((pl.col("plan:problem") == code).sum().alias(f"plan:problem:{code}") for code in PROBLEMS),
)


def plan_of(counts: Mapping[str, int]) -> LookupPlan:
    """Return the planned lookups from the tally of :data:`PLAN_COUNTS`."""
    rows, valid, asked, lookups = (counts[f"plan:{name}"] for name in ("rows", "valid", "asked", "lookups"))
    problems = {code: counts[f"plan:problem:{code}"] for code in PROBLEMS}
    return LookupPlan(
        rows=rows,
        lookups=lookups,
        duplicates=asked - lookups,
        invalid=rows - valid,
        invalid_by_problem={code: count for code, count in problems.items() if count},
        wrong_check_digits=counts["plan:wrong_check_digits"],
        without_address=counts["plan:without_addresses"],
        suspect=valid - asked,
    )


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of a finished run, from the rows that were written."""

    rows: int
    in_order: bool
    by_row_status: dict[str, int]
    by_biz_status: dict[str, int]
    by_grade: dict[str, int]
    by_action: dict[str, int]


def number_rows(answered: pl.LazyFrame) -> pl.LazyFrame:
    """Add each row's place in the output, for :func:`order_counts`."""
    return answered.with_row_index(_OUT_ID)


def order_counts() -> tuple[pl.Expr, pl.Expr]:
    """Return aggregations: the number of ``rows``, and whether numbered rows are still ``in_order``."""
    return pl.len().alias("rows"), (pl.col(ROW_ID) == pl.col(_OUT_ID)).all().alias("in_order")


def tally(answered: pl.LazyFrame, more: Collection[pl.Expr] = ()) -> pl.LazyFrame:
    """Count numbered rows by word (``<column>:<word>``) and by filled cells (``<column>:``), as one row."""
    counted = {"row_status": ROW_STATUSES, "biz_status": BIZ_STATUSES, "grade": GRADES, "action": ACTIONS}
    return answered.select(
        *order_counts(),
        *(
            (pl.col(name) == value).sum().alias(f"{name}:{value}")
            for name, values in counted.items()
            for value in values
        ),
        *(pl.col(name).count().alias(f"{name}:") for name in counted if name != "row_status"),
        *more,
    )


def row_counts_of(tallied: Mapping[str, int | bool]) -> RowCounts:
    """Read the result of :func:`tally`; words outside our vocabulary count as :data:`OTHER`."""

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


def check_balance(rows_in: int, account: RowCounts, rows_written: int) -> None:
    """Raise :class:`AccountingError` unless each input row was answered and written once, in order."""
    faults = []
    counted = sum(account.by_row_status.values())
    if counted != rows_in:
        faults.append(_fault(rows_in, Phrase("{count:,} with a row_status", count=counted)))
    check_rows(rows_in, account.rows, rows_written, *faults, in_order=account.in_order)


def check_rows(rows_in: int, rows_out: int, rows_written: int, *faults: Phrase, in_order: bool) -> None:
    """Raise :class:`AccountingError` if rows were lost, added or moved, or if ``faults`` are given."""
    found = []
    if rows_out != rows_in:
        found.append(_fault(rows_in, Phrase("{count:,} answered", count=rows_out)))
    if rows_written != rows_in:
        found.append(_fault(rows_in, Phrase("{count:,} in the output file", count=rows_written)))
    found += faults
    if not in_order:
        found.append(Phrase("rows left in another order than they came"))
    if found:
        raise AccountingError(ROWS_NOT_BALANCED, faults=Listed(found))


def _fault(rows_in: int, found: Phrase) -> Phrase:
    return Phrase("{count:,} row in, {found}", "{count:,} rows in, {found}", count=rows_in, found=found)


ANSWERS_REPLACED: Final = Problem(
    "alert.answers_replaced",
    "the input is an earlier output, and its answers were replaced by others: {counts}; if somebody typed "
    "them, they are in the input as it was",
)

# columns that people edit; the others are computed from these, and change with each run
_TYPED: Final = ("biz_status", "grade", "action", "fixed_zipcode", "fixed_address", "row_note")
_COUNT: Final = "replaced "


def replaced_counts(earlier: EarlierColumns) -> list[pl.Expr]:
    """Return aggregations that count the cells of an earlier output that this run changes."""
    found = []
    for name in _TYPED:
        places = [place for column, place in earlier.nine.items() if contract_name(column) == name]
        if places:
            changed = pl.any_horizontal(_differs(name, pl.col(f"c{place}")) for place in places)
            found.append(changed.sum().alias(_COUNT + name))
    return found


def replaced_rows(tallied: Mapping[str, Any]) -> dict[str, int]:
    """Read the result of :func:`replaced_counts`: changed cells by column, without zeros."""
    return {
        name.removeprefix(_COUNT): int(count) for name, count in tallied.items() if name.startswith(_COUNT) and count
    }


def replaced_alert(rows: Mapping[str, int], lang: Lang) -> Notice | None:
    """Return an alert, with column names in ``lang``, if the run changed answers of an earlier output."""
    if not rows:
        return None
    counts = [
        Phrase("{name} in {count:,} row", "{name} in {count:,} rows", count=count, name=HEADERS[lang][name])
        for name, count in rows.items()
    ]
    return Notice(ANSWERS_REPLACED, counts=Listed(counts, ", "))


def _differs(name: str, cell: pl.Expr) -> pl.Expr:
    before, now = (code_expr(value.cast(pl.String).str.strip_chars(), name) for value in (cell, pl.col(name)))
    if name == "fixed_zipcode":  # a spreadsheet drops the zero in front
        before = before.str.zfill(5)
    return (before != "") & before.ne_missing(now)


COMMON_FAILURE: Final = "common_failure"
DIGEST: Final = "written:"  # prefix of lists in a tally: digests of all rows

FAILURE_COUNTS: Final = (  # aggregation: the most frequent note of failed rows
    pl.col("row_note").filter(pl.col("row_status") == "failed").mode().sort().first().alias(COMMON_FAILURE),
)

_UNREAD_COLUMN: Final = gettext_noop(
    "another column holds the numbers, or the rows are not what they seem; name it with `columns=`"
)
_LIKELY_CAUSES: Final = {
    "missing": gettext_noop("the column of the numbers is mostly empty; name another with `columns=`"),
    "scientific": gettext_noop("a spreadsheet rounded the column; export it again with the column formatted as text"),
    "rounded": gettext_noop("the column was stored as 32-bit numbers; export it again as text"),
    "nine_digits": gettext_noop("leading zeros were dropped; export the column again as text"),
    "thirteen_digits": gettext_noop(
        "the column holds resident or corporate registration numbers; name another with `columns=`"
    ),
    "grouping": gettext_noop("the column seems to hold telephone numbers; name another with `columns=`"),
}

GAZETTEER_MISSING: Final = Problem(
    "alert.gazetteer_missing",
    "no gazetteer is used, so no address is looked up or corrected, and one that does not exist is not noticed; "
    "make one with `bansong data build-gazetteer FILES…` from the official address files, and run this again (with "
    "{gazetteer} where it is not found by itself)",
)
STATUS_UNCHECKED: Final = Problem(
    "alert.status_unchecked",
    "{count:,} row with the action `send` of the service, though its status is closed or unknown: what was "
    "bought is stored as received; check them before mailing",
    "{count:,} rows with the action `send` of the service, though its status is closed or unknown: what was "
    "bought is stored as received; check them before mailing",
)
ANSWERS_GARBLED: Final = Problem(
    "alert.answers_garbled",
    "{count:,} row with answers that are not all UTF-8, the first is row {first:,} of the data: � stands for "
    "what was lost, and `row_note` says in which columns; do not mail to such addresses",
    "{count:,} rows with answers that are not all UTF-8, the first is row {first:,} of the data: � stands for "
    "what was lost, and `row_note` says in which columns; do not mail to such addresses",
)
CHOICES_VANISHED: Final = Problem(
    "alert.choices_vanished",
    "{count:,} row with an address that was chosen in a review and is not in the gazetteer any more: the "
    "choice is not used; review it again with {option}",
    "{count:,} rows with addresses that were chosen in a review and are not in the gazetteer any more: the "
    "choices are not used; review them again with {option}",
)
COLUMN_MOSTLY_INVALID: Final = Problem(
    "alert.column_mostly_invalid",
    "{invalid:,} of {count:,} row invalid, {why}, in the column {header!r}: {cause}",
    "{invalid:,} of {count:,} rows invalid, {why}, in the column {header!r}: {cause}",
)
ROWS_MOSTLY_INVALID: Final = Problem(
    "alert.rows_mostly_invalid",
    "{invalid:,} of {count:,} row invalid, {why}: {cause}",
    "{invalid:,} of {count:,} rows invalid, {why}: {cause}",
)
ROWS_MOSTLY_FAILED: Final = Problem(
    "alert.rows_mostly_failed",
    "{failed:,} of {count:,} row failed, most of them so: {note}",
    "{failed:,} of {count:,} rows failed, most of them so: {note}",
)
FILE_EMPTIED: Final = Problem(
    "alert.file_emptied",
    "{path} is empty, because no row gets a letter now; the earlier list is kept as {backup}; with {option} no "
    "copy is kept",
)
FILE_KEPT: Final = Problem(
    "alert.file_kept", "{path} was not as bansong wrote it last: what somebody wrote there is kept as {backup}"
)


def no_gazetteer() -> Notice:
    """Return the alert of a run without a gazetteer."""
    return Notice(GAZETTEER_MISSING, gazetteer=Option("gazetteer", "gazetteer.parquet"))


def is_majority(part: int, rows: int) -> bool:
    """Return whether ``part`` is more than half of the rows."""
    return 2 * part > rows


def answer_alerts(tallied: Mapping[str, int], first_row: int) -> Iterator[Notice]:
    """Yield alerts about doubtful answers; ``first_row`` is the number of the first row in messages."""
    if found := int(tallied.get(UNCHECKED_SENDS) or 0):
        yield Notice(STATUS_UNCHECKED, count=found)
    if found := int(tallied.get(GARBLED) or 0):
        yield Notice(ANSWERS_GARBLED, count=found, first=tallied[GARBLED_FIRST] + first_row)
    if found := int(tallied.get("choice:vanished") or 0):
        yield Notice(CHOICES_VANISHED, count=found, option=Option("review", "review.xlsx"))


def invalid_alert(plan: LookupPlan, header: str | None) -> Notice | None:
    """Return an alert, with the ``header`` of the number column, if most rows are invalid."""
    if not is_majority(plan.invalid, plan.rows):
        return None
    problem = max(plan.invalid_by_problem, key=plan.invalid_by_problem.__getitem__, default="missing")
    if is_majority(plan.invalid_by_problem.get(problem, 0), plan.invalid):
        why, cause = Phrase("most of them ({problem})", problem=CodeWord(problem)), _LIKELY_CAUSES.get(problem)
    else:
        why, cause = Phrase("for several reasons"), None
    counts = {"invalid": plan.invalid, "why": why, "cause": Phrase(cause or _UNREAD_COLUMN)}
    if header:
        return Notice(COLUMN_MOSTLY_INVALID, count=plan.rows, header=header, **counts)
    return Notice(ROWS_MOSTLY_INVALID, count=plan.rows, **counts)


def failure_alert(account: RowCounts, note: str | None) -> Notice | None:
    """Return an alert, with the most frequent ``note`` of these rows, if most rows failed."""
    failed = account.by_row_status.get("failed", 0)
    if not is_majority(failed, account.rows):
        return None
    return Notice(ROWS_MOSTLY_FAILED, count=account.rows, failed=failed, note=note or Phrase("no reason is known"))


def emptied_alert(path: Path, backup: Path) -> Notice:
    """Return the alert that an empty list replaced a file, whose content is now in ``backup``."""
    return Notice(FILE_EMPTIED, path=path, backup=backup, option=Option("allow_empty", True))


def kept_alert(path: Path, backup: Path) -> Notice:
    """Return the alert that a file changed by people was replaced, and is kept as ``backup``."""
    return Notice(FILE_KEPT, path=path, backup=backup)


STATUSES_UNCHECKED: Final = Problem("alert.statuses_unchecked", "{summary}")


@dataclass(frozen=True, slots=True)
class NtsCounts:
    """Counts of a run's statuses that came from the tax authority."""

    rows: int  # rows with a status of the tax authority
    oldest: str | None  # day of the oldest of these statuses (ISO)
    aged: int  # rows whose status, of any source, could not be renewed and shows its age
    age: int | None  # age of the oldest such status, in days
    halt: str | None  # why not all numbers were asked

    @property
    def caution(self) -> str:
        """Sentence on statuses that could not be renewed: their number, their age, the cause; empty if all were."""
        age = Phrase("{count:,} day", "{count:,} days", count=self.age or 0)
        aged = Phrase(
            "{count:,} status up to {age} old", "{count:,} statuses up to {age} old", count=self.aged, age=age
        )
        parts = [aged] if self.aged else []
        if self.halt is not None:
            parts.append(Phrase("not all could be asked of the tax authority: {halt}", halt=self.halt))
        elif self.aged:
            parts = [Phrase("{aged}, because the tax authority gave no answer to these numbers", aged=aged)]
        return Listed(parts)


@dataclass(frozen=True, slots=True)
class StatusCounts:
    """Counts of the rows with a business number: all, with a checked status, and checked too long ago."""

    rows: int
    checked: int
    stale: int  # checked more than `stale_after` days ago
    stale_after: int
    registry: str | None  # version of the registry
    bought: bool = False  # the service was asked
    nts: NtsCounts | None = None  # the tax authority's part, if asked
    sends: int = 0  # rows with the action `send`

    @property
    def summary(self) -> str:
        """Sentence on the checked statuses: their number, sources and age, and the remedy if few."""
        counts = {"checked": self.checked, "rows": self.rows, "sources": self._sources()}
        checked = Phrase("{checked:,} of {rows:,} statuses checked{sources}", **counts)
        caution = self.nts.caution if self.nts is not None else ""
        if why := self._why_unchecked(caution):
            said = Phrase("{checked}, so no row says `send`", checked=checked)
            return Listed([said, why]) if self.nts is not None else Phrase("{said}: {why}", said=said, why=why)
        stale = self._stale(with_remedy=not caution) if self.stale else ""
        missing = 0 if self.bought else self.rows - self.checked
        return Listed([Listed([checked, stale], ""), self._missing(missing) if missing else "", caution])

    def _why_unchecked(self, caution: str) -> str:
        if self.bought or (self.checked and (self.registry or self.nts is not None)):
            return ""
        if self.nts is not None:
            return caution or Phrase("the tax authority gave no answer: try again later")
        if not self.registry:
            return how_to_check_statuses()
        return Phrase("none of the numbers is in the registry; is it the right one?")

    def _stale(self, *, with_remedy: bool) -> str:
        said = Phrase(
            ", {stale:,} of them more than {days} days ago, so not to be relied on",
            stale=self.stale,
            days=self.stale_after,
        )
        if not self.sends and not self.bought:
            said = Phrase("{said}, and no row says `send`", said=said)
        if not with_remedy:
            return said
        if self.nts is None:
            return Listed([said, Phrase("build the registry again from newer lists")], ": ")
        option = Option("max_status_age", self.stale_after)
        return Listed([said, Phrase("ask again with {option}", option=option)], ": ")

    def _missing(self, count: int) -> str:
        if self.nts is not None:
            return Phrase("{count:,} number without a status", "{count:,} numbers without a status", count=count)
        return Phrase("{count:,} number not in the registry", "{count:,} numbers not in the registry", count=count)

    def _sources(self) -> str:
        registry = Phrase("registry {version}", version=self.registry) if self.registry else ""
        if self.nts is None:
            return Listed([" (", registry, ")"], "") if registry else ""
        count = self.nts.rows
        text = Phrase("{count:,} by nts", count=count)
        if self.nts.oldest:
            text = Phrase("{count:,} by nts, the oldest of {day}", count=count, day=self.nts.oldest)
        others = Phrase("{count:,} by {registry}", count=self.checked - count, registry=registry)
        return Listed([" (", Listed([text, others]) if registry else text, ")"], "")

    @property
    def alert(self) -> Notice | None:
        return Notice(STATUSES_UNCHECKED, summary=self.summary) if self.is_alarming else None

    @property
    def is_alarming(self) -> bool:
        """Whether most rows have no fresh status, or the tax authority was not asked for all numbers."""
        halted = self.nts is not None and self.nts.halt is not None
        return halted or is_majority(self.rows - self.checked + self.stale, self.rows)


def statuses_of(
    engine: Engine, counts: RowCounts, tallied: Mapping[str, Any], halt: str | None = None
) -> StatusCounts | None:
    """Return the status counts of a tallied run; ``None`` for a list without business numbers."""
    local, rows = engine.local, sum(counts.by_biz_status.values())
    if not rows:
        return None
    return StatusCounts(
        rows,
        rows - counts.by_biz_status.get("unknown", 0),
        int(tallied.get("status:stale") or 0),
        stale_after=local.model.stale_after,
        registry=local.registry.version if local.registry and engine.kind.answers_locally else None,
        bought=engine.kind.buys,
        nts=_nts_counts(tallied, local.today or seoul_day(), halt) if "status:nts" in tallied else None,
        sends=counts.by_action.get("send", 0),
    )


def sum_statuses(counted: Sequence[StatusCounts]) -> StatusCounts | None:
    """Add up the status counts of several tables; ``None`` without any."""
    if not counted:
        return None
    of_nts = [one.nts for one in counted if one.nts is not None]
    nts = None
    if of_nts:
        nts = NtsCounts(
            sum(one.rows for one in of_nts),
            min((one.oldest for one in of_nts if one.oldest), default=None),
            sum(one.aged for one in of_nts),
            max((one.age for one in of_nts if one.age is not None), default=None),
            of_nts[0].halt,
        )
    sums = {name: sum(getattr(one, name) for one in counted) for name in ("rows", "checked", "stale", "sends")}
    return replace(counted[0], nts=nts, **sums)


def _nts_counts(tallied: Mapping[str, Any], today: date, halt: str | None) -> NtsCounts:
    oldest, aged = tallied["status:nts_oldest"], tallied["status:aged_oldest"]
    return NtsCounts(
        int(tallied["status:nts"] or 0),
        oldest.isoformat() if oldest else None,
        int(tallied["status:aged"] or 0),
        max(0, (today - aged).days) if aged else None,
        halt,
    )
