"""The public functions on watch lists: synchronise one with a file, add, remove, list, show the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Unpack

import polars as pl

from bansong import business_number
from bansong.cloud.remote_path import as_path
from bansong.enrichment.prepared_table import NO_ADDRESS, PreparedTable, prepare_table
from bansong.errors import DoubtError, NotFoundError, Problem, RejectedError, ServiceError, UsageError
from bansong.options import check_keywords
from bansong.progress.asked import AskedProgress, progress_asked
from bansong.schema import Choice
from bansong.tables import open_table, reading
from bansong.translation import Phrase, gettext_noop
from bansong.watch.reconcile import BUSINESS, Businesses, SyncPlan, SyncReport, businesses, reconcile
from bansong.watch.report import History, seoul_iso
from bansong.watch.service_sync import Done, Steps
from bansong.watch.store import Business
from bansong.watch.stores import Local, ServiceTerms, WatchStore, open_store

CHANGE_TOO_LARGE: Final = Problem("watch.change_too_large", "{name}: {mistake}; nothing was done. {force}")
WATCH_AMBIGUOUS: Final = Problem(
    "watch.watch_ambiguous", "{name}: {which} is watched {height} times; give one of the watch ids {ids}"
)
CHANGE_IN_DOUBT: Final = Problem(
    "watch.change_in_doubt", "it is not known whether the service did it; look at `bansong watch list`, then try again"
)
WATCH_UNKNOWN: Final = Problem(
    "watch.watch_unknown", "{name}: {which} is neither a watch id nor a business number that is watched there"
)

_FORCE: Final = gettext_noop("If they shall all be removed, give `force=True`; `keep=True` removes nothing")
_SMALL: Final = 20
"""A list of fewer businesses may lose most of them by one sync."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A business on a watch list: what became of it, and the identifier of its watch.

    ``first_check_at``: when the service checks what was added for the first time (ISO 8601, in Korea's time
    zone), ``None`` where it does not say it, or does so at once.
    """

    watch_id: str
    biz_no: str
    state: Literal["added", "changed", "unchanged"]
    first_check_at: str | None = None


def sync(
    file: str | Path,
    *,
    apply: bool = False,
    keep: bool = False,
    force: bool = False,
    local: Local = None,
    columns: Mapping[str, str] | None = None,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    delimiter: str | None = None,
    prefix: str = "",
    progress: AskedProgress = True,
    **terms: Unpack[ServiceTerms],
) -> SyncReport:
    """Hold the businesses of a file against a watch list; with ``apply`` make the list that of the file.

    ``file`` is any table that :func:`bansong.enrich` reads, ``columns``, ``sheet``, ``encoding``, ``json_path``,
    ``delimiter`` and ``prefix`` as there. What is in the file and not on the list is added, name and address that
    differ are changed, what is not in the file is removed, at the end, and not at all with ``keep``. ``force`` allows
    what is refused otherwise: removing more than half of a list of 20 businesses or more, or all of any list.

    It may be called again at any time: it reads the list first, so what was done is not done again. ``local`` and
    ``terms`` choose the list. Raises :class:`bansong.errors.BansongError` where the file or the list cannot be
    read; what the service refuses afterwards is in the report.
    """
    check_keywords(sync, terms, ServiceTerms)
    watches = open_store(local, **terms)
    path = as_path(file)
    with open_table(path, sheet=sheet, encoding=encoding, json_path=json_path, delimiter=delimiter) as table:
        stages = prepare_table(table, columns, prefix)
        with reading(table):
            found = businesses(stages.rows)
    plan = reconcile(found.frame, watches.frame())
    mistake = None if keep else _likely_mistake(found, plan)
    notes = (*_warnings(stages, found, plan, keep), *([f"{mistake}. {_FORCE}"] if mistake and not apply else []))
    report = SyncReport(watches.name, str(path), _record_columns(stages), found, plan, keep, warnings=notes)
    if not apply:
        return report
    if mistake and not force:
        raise UsageError(CHANGE_TOO_LARGE, name=watches.name, mistake=mistake, force=Phrase(_FORCE))
    with progress_asked(progress, "watches", "syncing") as shown:
        done = watches.carry_out(_report_steps(report), shown or (lambda _done, _total: None))
    return replace(report, applied=True, done=_settle_doubts(watches, found.frame, done))


def add(
    b_no: str | int,
    name: str | None = None,
    address: str | None = None,
    *,
    local: Local = None,
    **terms: Unpack[ServiceTerms],
) -> Placed:
    """Put a business on a watch list; one that is there already gets the name and address that are given.

    Raises :class:`NumberError` for what is no business number, and what the service says.
    """
    check_keywords(add, terms, ServiceTerms)
    watches = open_store(local, **terms)
    entry = pl.DataFrame(
        [(business_number.compact(b_no), name or None, address or None)], schema=BUSINESS, orient="row"
    )
    plan = _plan_for_one(watches, entry)
    if plan.unchanged:
        return Placed(_watch_id(watches, entry), entry["biz_no"].item(), "unchanged")
    state: Literal["added", "changed"] = "changed" if plan.change.height else "added"
    done = _settle_doubts(watches, entry, watches.carry_out(_plan_steps(plan), lambda _done, _total: None))
    _raise_for(done)
    return Placed(_watch_id(watches, entry), entry["biz_no"].item(), state, seoul_iso(done.first_check_by))


def remove(which: str, *, local: Local = None, **terms: Unpack[ServiceTerms]) -> pl.DataFrame:
    """Take off a list the watch with this identifier, or all watches of this business number.

    Returns what was removed: ``watch_id``, ``biz_no``, ``name``, ``address``. Raises :class:`NotFoundError` where
    nothing is watched under that name.
    """
    check_keywords(remove, terms, ServiceTerms)
    watches = open_store(local, **terms)
    found = _find_watches(watches, which)
    _raise_for(watches.carry_out(Steps(remove=found["watch_id"].to_list()), lambda _done, _total: None))
    return found.select("watch_id", *BUSINESS)


def entries(*, local: Local = None, **terms: Unpack[ServiceTerms]) -> pl.DataFrame:
    """Return a watch list as a frame, in its order.

    Columns: ``watch_id``, ``biz_no`` (ten digits), ``name``, ``address``, ``biz_status``, ``grade`` (String);
    ``created_at``, ``checked_at``, ``next_check_at``, ``closed_at`` (Datetime, UTC), null where the list does not say.
    """
    check_keywords(entries, terms, ServiceTerms)
    return entries_frame(open_store(local, **terms).frame())


def history(which: str, *, local: Local = None, **terms: Unpack[ServiceTerms]) -> History:
    """Return how the grade of one watched business changed; displays as a plot and a table in a notebook.

    ``which`` is a watch's identifier, or a business number that is watched once. Raises :class:`NotFoundError`;
    :class:`PlanError` where the account's plan has no history.
    """
    check_keywords(history, terms, ServiceTerms)
    watches = open_store(local, **terms)
    found = _find_watches(watches, which)
    if found.height > 1:
        ids = ", ".join(found["watch_id"])
        raise UsageError(WATCH_AMBIGUOUS, name=watches.name, which=which, height=found.height, ids=ids)
    watch = found.row(0, named=True)
    return History(
        watch["watch_id"],
        watch["biz_no"],
        watch["name"],
        watch["grade"],
        watch["created"],
        tuple(watches.history(watch["watch_id"])),
    )


def history_frame(which: str, *, local: Local = None, **terms: Unpack[ServiceTerms]) -> pl.DataFrame:
    """Return :func:`history` as a frame: ``at`` (Datetime, UTC), ``before``, ``after``, ``biz_status`` (String)."""
    check_keywords(history_frame, terms, ServiceTerms)
    return history(which, local=local, **terms).frame


def entries_frame(listed: pl.DataFrame) -> pl.DataFrame:
    """A list (:data:`bansong.watch.reconcile.LISTED`) as users get it."""
    times = {"created_at": "created", "checked_at": "checked", "next_check_at": "due", "closed_at": "closed"}
    return listed.select(
        *("watch_id", "biz_no", "name", "address", "biz_status", "grade"),
        **{
            name: pl.from_epoch((pl.col(column) * 1e6).round().cast(pl.Int64), time_unit="us").dt.replace_time_zone(
                "UTC"
            )
            for name, column in times.items()
        },
    )


def _record_columns(stages: PreparedTable) -> dict[str, Choice]:
    """The columns that a watch is made of."""
    return {role: choice for role, choice in stages.chosen.items() if role in ("b_no", "name", "address")}


def _likely_mistake(found: Businesses, plan: SyncPlan) -> str | None:
    """Return the words for a likely mistake: most of a long list is to be removed, or all of any."""
    going = plan.remove["biz_no"].n_unique()
    most = plan.watched >= _SMALL and going * 2 > plan.watched
    if not most and not (going and going == plan.watched):
        return None
    unusable = found.unusable.height
    rows = (
        Phrase(
            "; {unusable:,} of its {rows} have no usable number",
            unusable=unusable,
            rows=Phrase("{count:,} row", "{count:,} rows", count=found.rows),
        )
        if unusable
        else ""
    )
    return Phrase(
        "{going:,} of {watched:,} watched businesses are not in the file{rows}",
        going=going,
        watched=plan.watched,
        rows=rows,
    )


def _report_steps(report: SyncReport) -> Steps:
    return replace(_plan_steps(report.plan), remove=report.to_remove["watch_id"].to_list())


def _plan_steps(plan: SyncPlan) -> Steps:
    """Additions and changes."""
    return Steps(
        add=[Business(*row) for row in plan.add.select(*BUSINESS).iter_rows()],
        change=[(watch_id, Business(*row)) for watch_id, *row in plan.change.select("watch_id", *BUSINESS).iter_rows()],
    )


def _settle_doubts(watches: WatchStore, file: pl.DataFrame, done: Done) -> Done:
    """Read the list again where it is not known what became of a request: what is as it should be was done."""
    if not done.doubts:
        return done
    try:
        now = watches.frame()
    except ServiceError:
        return done  # they stay in doubt: the same command reads the list first
    plan = reconcile(file, now)
    wanted, ids = set(file["biz_no"]), set(now["watch_id"])
    open_ = {*plan.add["biz_no"], *plan.change["biz_no"]}
    added = [name for name in done.doubts if name in wanted and name not in open_]
    removed = [name for name in done.doubts if name not in wanted and name not in ids]
    left = [name for name in done.doubts if name not in {*added, *removed}]
    return replace(done, added=done.added + len(added), removed=done.removed + len(removed), doubts=left)


def _raise_for(done: Done) -> None:
    """Raise what became of a single request, if it was not done."""
    if done.halt is not None:
        raise done.halt.error or ServiceError(done.halt.note)
    if done.refused:
        raise RejectedError(done.refused[0][1])
    if done.doubts:
        raise DoubtError(CHANGE_IN_DOUBT)


def _plan_for_one(watches: WatchStore, entry: pl.DataFrame) -> SyncPlan:
    listed = watches.frame()
    same = business_number.compact_expr(pl.col("biz_no")) == entry["biz_no"].item()
    return reconcile(entry, listed.filter(same.fill_null(value=False)))


def _watch_id(watches: WatchStore, entry: pl.DataFrame) -> str:
    return str(_find_watches(watches, entry["biz_no"].item())["watch_id"][0])


def _find_watches(watches: WatchStore, which: str) -> pl.DataFrame:
    """The watches that an identifier or a business number means."""
    listed = watches.frame().with_columns(
        pl.coalesce(business_number.compact_expr(pl.col("biz_no")), "biz_no").alias("biz_no")
    )
    found = listed.filter(pl.col("watch_id") == which)
    if found.is_empty() and business_number.problem(which) is None:
        found = listed.filter(pl.col("biz_no") == business_number.compact(which))
    if found.is_empty():
        raise NotFoundError(WATCH_UNKNOWN, name=watches.name, which=which)
    return found


def _warnings(stages: PreparedTable, found: Businesses, plan: SyncPlan, keep: bool) -> tuple[str, ...]:
    notes = [note for note in stages.warnings if note != Phrase(NO_ADDRESS)]
    if found.repeated.height:
        differing = int(found.repeated["differing"].sum())
        more = (
            Phrase(
                "; {differing:,} with different names or addresses: the first that are given count", differing=differing
            )
            if differing
            else ""
        )
        notes.append(
            Phrase(
                "in several rows: {numbers}{more}",
                numbers=Phrase("{count:,} number", "{count:,} numbers", count=found.repeated.height),
                more=more,
            )
        )
    if found.suspect:
        notes.append(
            Phrase(
                "with a wrong check digit: {numbers}, watched all the same",
                numbers=Phrase("{count:,} number", "{count:,} numbers", count=found.suspect),
            )
        )
    if found.unusable.height and plan.remove.height and not keep:
        notes.append(
            Phrase(
                "without a usable number: {rows}; if one of the watches to be removed is theirs, repair the row first",
                rows=Phrase("{count:,} row", "{count:,} rows", count=found.unusable.height),
            )
        )
    if plan.unnumbered:
        notes.append(
            Phrase(
                "shown without a business number: {unnumbered:,} on the list; they are left alone",
                unnumbered=plan.unnumbered,
            )
        )
    return tuple(notes)
