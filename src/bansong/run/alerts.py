"""Alerts of a run, and the counts of statuses behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base.errors import Notice, Problem
from bansong.base.messages import Listed, Option, Phrase, gettext_noop
from bansong.base.schema import CodeWord, seoul_day
from bansong.engine.local import how_to_check_statuses
from bansong.purchase.lookups import GARBLED, GARBLED_FIRST, UNCHECKED_SENDS
from bansong.run.accounting import LookupPlan, RowCounts

if TYPE_CHECKING:
    from bansong.engine.protocol import Engine

COMMON_FAILURE: Final = "common_failure"

FAILURE_COUNTS: Final = (  # the most frequent note of failed rows, as an aggregation over a run's rows
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
    "no gazetteer was given, so no address is looked up or corrected, and one that does not exist is not noticed; "
    "make one with `bansong data build-gazetteer FILES… -o gazetteer.parquet` from the official address files, "
    "and run this again with {gazetteer}",
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
    "{invalid:,} of {count:,} row invalid, most of them ({problem}) in the column {header!r}: {cause}",
    "{invalid:,} of {count:,} rows invalid, most of them ({problem}) in the column {header!r}: {cause}",
)
ROWS_MOSTLY_INVALID: Final = Problem(
    "alert.rows_mostly_invalid",
    "{invalid:,} of {count:,} row invalid, most of them ({problem}): {cause}",
    "{invalid:,} of {count:,} rows invalid, most of them ({problem}): {cause}",
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
    return Notice(GAZETTEER_MISSING, gazetteer=Option("gazetteer", "gazetteer.parquet"))


def is_majority(part: int, rows: int) -> bool:
    return 2 * part > rows


def answer_alerts(tallied: Mapping[str, int], first_row: int) -> Iterator[Notice]:
    # first_row: number of the first row
    if found := int(tallied.get(UNCHECKED_SENDS) or 0):
        yield Notice(STATUS_UNCHECKED, count=found)
    if found := int(tallied.get(GARBLED) or 0):
        yield Notice(ANSWERS_GARBLED, count=found, first=tallied[GARBLED_FIRST] + first_row)
    if found := int(tallied.get("choice:vanished") or 0):
        yield Notice(CHOICES_VANISHED, count=found, option=Option("review", "review.xlsx"))


def invalid_alert(plan: LookupPlan, header: str | None) -> Notice | None:
    # header: of the column with the business numbers
    if not is_majority(plan.invalid, plan.rows):
        return None
    problem = max(plan.invalid_by_problem, key=plan.invalid_by_problem.__getitem__, default="missing")
    counts = {"invalid": plan.invalid, "problem": CodeWord(problem)}
    cause = Phrase(_LIKELY_CAUSES.get(problem, _UNREAD_COLUMN))
    if header:
        return Notice(COLUMN_MOSTLY_INVALID, count=plan.rows, header=header, cause=cause, **counts)
    return Notice(ROWS_MOSTLY_INVALID, count=plan.rows, cause=cause, **counts)


def failure_alert(account: RowCounts, note: str | None) -> Notice | None:
    failed = account.by_row_status.get("failed", 0)
    if not is_majority(failed, account.rows):
        return None
    return Notice(ROWS_MOSTLY_FAILED, count=account.rows, failed=failed, note=note or Phrase("no reason is known"))


def emptied_alert(path: Path, backup: Path) -> Notice:
    return Notice(FILE_EMPTIED, path=path, backup=backup, option=Option("allow_empty", True))


def kept_alert(path: Path, backup: Path) -> Notice:
    return Notice(FILE_KEPT, path=path, backup=backup)


STATUSES_UNCHECKED: Final = Problem("alert.statuses_unchecked", "{summary}")


@dataclass(frozen=True, slots=True)
class NtsCounts:
    """The tax authority's statuses in a run."""

    rows: int  # with such a status
    oldest: str | None  # day of the oldest one (ISO)
    aged: int  # rows with a status of any source that shows its age because it could not be renewed
    age: int | None  # days of the oldest of these
    halt: str | None  # why not all were asked

    @property
    def caution(self) -> str:
        """Age of statuses that could not be renewed, and why; empty if there are none."""
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
    """Numbers of rows with a business number, by the check of their status."""

    rows: int
    checked: int
    stale: int  # checked more than `stale_after` days ago
    stale_after: int
    registry: str | None  # its version
    bought: bool = False  # the service was asked
    nts: NtsCounts | None = None  # the tax authority's part, if asked
    sends: int = 0  # rows with the action `send`

    @property
    def summary(self) -> str:
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
        # most rows have no fresh status, or not all numbers were asked
        halted = self.nts is not None and self.nts.halt is not None
        return halted or is_majority(self.rows - self.checked + self.stale, self.rows)


def statuses_of(
    engine: Engine, counts: RowCounts, tallied: Mapping[str, Any], halt: str | None = None
) -> StatusCounts | None:
    """Return the status counts of a run, ``None`` without numbers; ``tallied``: with ``LocalEngine.counts``."""
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
