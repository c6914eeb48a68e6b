"""Alerts of a run: statuses that were not checked, rows that are mostly useless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import CodeWord
from bansong.engine import LocalEngine
from bansong.engine.registry import Registry, meaning_expr
from bansong.errors import Notice, Problem
from bansong.run.accounting import LookupPlan, RowCounts
from bansong.run.records import ROW_ID
from bansong.schema import SEOUL, seoul_day
from bansong.translation import Option, Phrase, gettext_noop

COMMON_FAILURE: Final = "common_failure"

FAILURE_COUNTS: Final = (
    pl.col("row_note").filter(pl.col("row_status") == "failed").mode().sort().first().alias(COMMON_FAILURE),
)
"""The most frequent note of failed rows, as an aggregation over a run's rows."""

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


REGISTRY_STALE: Final = Problem(
    "alert.registry_stale",
    "{path}: its newest status is of {day}, more than {days} days ago, so closures since then are not known "
    "and no row says `send`; build the registry again from newer lists",
)
REGISTRY_MISSING: Final = Problem("alert.registry_missing", "no registry was given, so {missing}; {remedy}")
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
KNOWN_ELSEWHERE: Final = Problem(
    "alert.known_elsewhere",
    "{known:,} of {count:,} lookup to be bought at {service} are in the ledger under the address {origin}, "
    "and are bought again, for a ledger tells services apart by their addresses; if both are the same "
    "service, stop and give {option}",
    "{known:,} of {count:,} lookups to be bought at {service} are in the ledger under the address {origin}, "
    "and are bought again, for a ledger tells services apart by their addresses; if both are the same "
    "service, stop and give {option}",
)
QUOTA_UNKNOWN: Final = Problem(
    "alert.quota_unknown",
    "how much of the quota is left is not known, so only the budget limits what is bought: {problem}",
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

UNCHECKED_SENDS: Final = "unchecked_sends"
GARBLED: Final = "garbled"
GARBLED_FIRST: Final = "garbled_first"
_GARBLED: Final = pl.col("row_status").is_in(["verified", "cached"]) & pl.col("row_note").is_not_null()
"""Answered rows have a note only where bytes of the answer were not UTF-8."""

BOUGHT_COUNTS: Final = (
    (
        (pl.col("action") == "send")
        & pl.col("row_status").is_in(["verified", "cached"])
        & meaning_expr(pl.when(pl.col("action") == "send").then(pl.col("biz_status")))
        .is_in(["closed", "unknown"])
        .fill_null(False)
    )
    .sum()
    .alias(UNCHECKED_SENDS),
    _GARBLED.sum().alias(GARBLED),
    pl.col(ROW_ID).filter(_GARBLED).min().alias(GARBLED_FIRST),
)
"""Rows with `send` that the service calls closed or unknown, and answers that are not all UTF-8 (and the first such
row), as aggregations over a run's rows."""


def how_to_check_statuses() -> Phrase:
    """Return how to get checked statuses."""
    return Phrase(
        "ask the tax authority with {status} and a free key of data.go.kr in BANSONG_NTS_KEY, or build a list of "
        "statuses with `bansong data build-registry LISTS… -o registry.parquet` and run this again with {registry}",
        status=Option("status", "nts"),
        registry=Option("registry", "registry.parquet"),
    )


def no_gazetteer() -> Notice:
    """Return the effect of a missing gazetteer, and how to get one."""
    return Notice(GAZETTEER_MISSING, gazetteer=Option("gazetteer", "gazetteer.parquet"))


def is_majority(part: int, rows: int) -> bool:
    """Whether a part of the rows is more than half of them."""
    return 2 * part > rows


def stale_registry_alert(registry: Registry | None, stale_after: int, today: date) -> Notice | None:
    """Alert if even the newest status of the registry is too old for sending."""
    if registry is None or registry.newest is None or registry.newest >= today - timedelta(days=stale_after):
        return None
    return Notice(REGISTRY_STALE, path=registry.path, day=registry.newest, days=stale_after)


def registry_alerts(local: LocalEngine, missing: str | None, *, planned: bool) -> tuple[Notice, ...]:
    """Alert if the registry is too old for a plan, or missing; not if the tax authority's statuses lie over it.

    ``missing``: effect of a missing registry, ``None`` for no alert.
    """
    if local.status is not None:
        return ()
    today = local.today or seoul_day()
    if planned and (stale := stale_registry_alert(local.registry, local.model.stale_after, today)):
        return (stale,)
    if local.registry is not None or missing is None:
        return ()
    return (Notice(REGISTRY_MISSING, missing=missing, remedy=how_to_check_statuses()),)


def bought_alert(tallied: Mapping[str, int]) -> Notice | None:
    """Alert if the service says `send` for businesses that it calls closed or unknown."""
    found = int(tallied.get(UNCHECKED_SENDS) or 0)
    if not found:
        return None
    return Notice(STATUS_UNCHECKED, count=found)


def garbled_alert(tallied: Mapping[str, int], first_row: int) -> Notice | None:
    """Alert if answers of the service are not all UTF-8; ``first_row``: number of the first row."""
    found = int(tallied.get(GARBLED) or 0)
    if not found:
        return None
    return Notice(ANSWERS_GARBLED, count=found, first=tallied[GARBLED_FIRST] + first_row)


def vanished_alert(tallied: Mapping[str, int]) -> Notice | None:
    """Alert if addresses chosen in a review have left the gazetteer."""
    found = int(tallied.get("choice:vanished") or 0)
    if not found:
        return None
    return Notice(CHOICES_VANISHED, count=found, option=Option("review", "review.xlsx"))


def invalid_alert(plan: LookupPlan, header: str | None) -> Notice | None:
    """Alert if most rows are invalid; ``header``: of the column with the business numbers."""
    if not is_majority(plan.invalid, plan.rows):
        return None
    problem = max(plan.invalid_by_problem, key=plan.invalid_by_problem.__getitem__, default="missing")
    counts = {"invalid": plan.invalid, "problem": CodeWord(problem)}
    cause = Phrase(_LIKELY_CAUSES.get(problem, _UNREAD_COLUMN))
    if header:
        return Notice(COLUMN_MOSTLY_INVALID, count=plan.rows, header=header, cause=cause, **counts)
    return Notice(ROWS_MOSTLY_INVALID, count=plan.rows, cause=cause, **counts)


def other_address_alert(address: str, name: str, known: Sequence[tuple[str, int]], wanted: int) -> Notice | None:
    """Alert before lookups are bought at ``address`` that the ledger holds under another origin.

    ``name``: the service's name in the ledger; ``known``: (origin, number of the ``wanted`` lookups).
    """
    if not known:
        return None
    origin, count = max(known, key=lambda one: one[1])
    service = address if name == address else Phrase("{address} (known as {name})", address=address, name=name)
    return Notice(
        KNOWN_ELSEWHERE, count=wanted, known=count, service=service, origin=origin, option=Option("known_as", origin)
    )


def continuation_note(answers: int, begun: float | None) -> tuple[str, ...]:
    """Note that answers are used though too old: they were bought since ``begun`` (unix time) of the continued run."""
    if not answers or begun is None:
        return ()
    day = datetime.fromtimestamp(begun, SEOUL)
    return (
        Phrase(
            "{count:,} answer older than {option} allows, used all the same: the run of this file that began on "
            "{day:%Y-%m-%d at %H:%M} did not finish, and this one continues it",
            "{count:,} answers older than {option} allows, used all the same: the run of this file that began on "
            "{day:%Y-%m-%d at %H:%M} did not finish, and this one continues it",
            count=answers,
            option=Option("max_age"),
            day=day,
        ),
    )


def unknown_quota_alert(problem: object) -> Notice:
    """Alert if ``/me`` cannot be read and a budget limits the run."""
    return Notice(QUOTA_UNKNOWN, problem=problem)


def failure_alert(account: RowCounts, note: str | None) -> Notice | None:
    """Alert if most rows failed; ``note``: :data:`COMMON_FAILURE`."""
    failed = account.by_row_status.get("failed", 0)
    if not is_majority(failed, account.rows):
        return None
    return Notice(ROWS_MOSTLY_FAILED, count=account.rows, failed=failed, note=note or Phrase("no reason is known"))


def emptied_alert(path: Path, backup: Path) -> Notice:
    """Alert for a file of letters to be sent that has no row now."""
    return Notice(FILE_EMPTIED, path=path, backup=backup, option=Option("allow_empty", True))


def kept_alert(path: Path, backup: Path) -> Notice:
    """Alert for a replaced file that somebody had edited."""
    return Notice(FILE_KEPT, path=path, backup=backup)
