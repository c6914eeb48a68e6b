"""Compare a watch list with a file, and make it equal."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from bansong.base import business_number
from bansong.base.display import Progress, Shown
from bansong.base.errors import LimitError, NotFoundError, RejectedError, ServiceError
from bansong.base.messages import count_rows, current_language, gettext, gettext_of, ngettext
from bansong.base.schema import Choice
from bansong.client.dispatcher import Dispatcher, Halt, HaltReason, OutgoingRequest, Slot, Task
from bansong.client.errors import Action, error_action
from bansong.engine.local import ROW_PROBLEM, ROW_PROBLEMS
from bansong.engine.records import DIGITS, RIGHT, ROW_ID
from bansong.engine.text import is_blank
from bansong.notify.queue import korean_iso
from bansong.watch.report import SHOWN, format_number, name_first
from bansong.watch.store import Business

if TYPE_CHECKING:
    from bansong.base.options import ServiceOptions
    from bansong.client.client import Client
    from bansong.client.responses import WatchEntry


WATCH_TIMES: Final = {
    "created": ("created_at", "created", "added_at", "createdAt"),
    "checked": ("checked_at", "checked", "last_checked_at", "checkedAt"),
    "due": ("next_check_at", "next_check", "nextCheckAt"),
    "closed": ("closed_at", "closedAt"),
}


def watch_time(entry: WatchEntry, of: str) -> float | None:
    """Return a time of a watch (a key of :data:`WATCH_TIMES`) in seconds since 1970; ``None`` if unknown."""
    more = entry.model_extra or {}
    return next((parse_time(more[name]) for name in WATCH_TIMES[of] if name in more), None)


_MIN_MILLISECONDS: Final = 1e11  # larger numbers are milliseconds; as seconds they would be in the year 5138


def parse_time(text: object) -> float | None:
    """Parse a service's time (ISO 8601, seconds, milliseconds) as seconds since 1970; ``None`` for other values."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    if isinstance(text, str) and re.fullmatch(r"\s*\d{1,4}-\d.*", text, flags=re.A | re.S):
        try:
            read = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or not 0 <= number < _MIN_MILLISECONDS * 1000:
        return None
    return number / 1000 if number >= _MIN_MILLISECONDS else number


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps to take on a list: additions, changes (watch_id and new values), removals (watch_ids)."""

    add: Sequence[Business] = ()
    change: Sequence[tuple[str, Business]] = ()
    remove: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.add) + len(self.change) + len(self.remove)


@dataclass(slots=True)
class Done:
    """The result of :class:`Steps`. ``doubts`` are business numbers, or watch_ids of removals, with unknown result."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)  # numbers and reasons
    doubts: list[str] = field(default_factory=list)
    halt: Halt | None = None  # why the rest was left
    first_check_by: float | None = None  # when the last added business is first checked (seconds since 1970)

    @property
    def settled(self) -> int:
        return self.added + self.changed + self.removed + len(self.refused) + len(self.doubts)


class ServiceSync:
    """Carry out the steps of one sync at the service."""

    def __init__(self, client: Client, terms: ServiceOptions, done: Done, total: int, progress: Progress) -> None:
        self.dispatcher = Dispatcher(rate=terms.rate, drain=terms.drain)
        self._client = client
        self._concurrency = terms.concurrency
        self._done = done
        self._total = total
        self._progress = progress
        self._refusal: ServiceError | None = None
        self._postponed: list[_StepRequest] = []

    async def put(self, add: Sequence[Business], change: Sequence[tuple[str, Business]]) -> None:
        """Add and change watches. A change is a POST; if that makes a new watch, the old one is removed."""
        added = [_StepRequest(self, "add", entry.biz_no, partial(self._add, entry)) for entry in add]
        changed = [_StepRequest(self, "change", entry.biz_no, self._change(id_, entry)) for id_, entry in change]
        await self._carry_out([*added, *changed])

    async def remove(self, watch_ids: Sequence[str]) -> None:
        """Remove watches, then repeat the additions that were refused because the list was full."""
        await self._carry_out([_StepRequest(self, "remove", id_, partial(self._remove, id_)) for id_ in watch_ids])
        postponed, self._postponed = self._postponed, []
        # removals do not help additions that were refused because the month's changes are used up
        is_full = self._refusal is not None and _is_list_full(self._refusal)
        if watch_ids and is_full and not self.dispatcher.is_cancelled:
            self._refusal = None
            await self._carry_out(postponed)
        if self._refusal is not None:
            why: HaltReason = "quota" if _is_list_full(self._refusal) else "limit"
            self.dispatcher.cancel(Halt(why, str(self._refusal), self._refusal))

    async def _carry_out(self, steps: Sequence[_StepRequest]) -> None:
        source = iter(steps)

        def next_task() -> Task | None:
            step = next(source, None)
            return None if step is None else partial(self.dispatcher.deliver, step)

        if steps:
            await self.dispatcher.run(next_task, self._concurrency, min(self._concurrency, len(steps)))

    async def _add(self, entry: Business) -> None:
        made = await self._client.watch_add(entry.biz_no, entry.name, entry.address)
        self._done.added += 1
        checked, due = (watch_time(made, of) for of in ("checked", "due"))
        if checked is None and due is not None:
            self._done.first_check_by = max(due, self._done.first_check_by or due)

    def _change(self, watch_id: str, entry: Business) -> Callable[[], Awaitable[None]]:
        made: WatchEntry | None = None

        async def change() -> None:
            nonlocal made  # if only the removal failed, a retry must not add the watch again
            made = made or await self._client.watch_add(entry.biz_no, entry.name, entry.address)
            if made.watch_id != watch_id:
                await self._remove_watch(watch_id)
            self._done.changed += 1

        return change

    async def _remove(self, watch_id: str) -> None:
        await self._remove_watch(watch_id)
        self._done.removed += 1

    async def _remove_watch(self, watch_id: str) -> None:
        try:
            await self._client.watch_remove(watch_id)
        except NotFoundError:
            log.info("a watch that was to be removed is gone already")


@dataclass(eq=False)
class _StepRequest(OutgoingRequest[None]):
    """One step of a sync. ``name`` is the business number, or the watch_id of a removal."""

    sync: ServiceSync
    kind: Literal["add", "change", "remove"]
    name: str
    go: Callable[[], Awaitable[None]]

    async def skip(self) -> bool:
        is_refused = self.sync._refusal is not None and self._fails_for_all(self.sync._refusal)
        if is_refused:
            self.sync._postponed.append(self)
        return is_refused

    async def send(self, slot: Slot) -> None:
        del slot
        await self.go()

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        del attempt
        if self._fails_for_all(error):
            return Action.DROP
        action = error_action(error)
        return Action.RETRY_OR_HOLD if action is Action.HOLD and self.kind == "remove" else action

    async def record_reply(self, reply: None, slot: Slot) -> None:
        del reply, slot
        self._report_progress()

    def give_up(self, error: ServiceError, action: Action) -> None:
        if action is Action.DROP:
            self.sync._refusal = error
            self.sync._postponed.append(self)
        elif action is Action.REFUSE:
            self.sync._done.refused.append((self.name, str(error)))
        elif action in (Action.HOLD, Action.RETRY_OR_HOLD):
            self.sync._done.doubts.append(self.name)
        self._report_progress()

    def _fails_for_all(self, error: ServiceError) -> bool:
        """Return whether `bansong serve` will refuse all additions (or changes) with this error."""
        changes_are_spent = isinstance(error, LimitError) and "watch_changes" in (error.detail or "")
        return (self.kind == "add" and _is_list_full(error)) or (self.kind != "remove" and changes_are_spent)

    def _report_progress(self) -> None:
        self.sync._progress(self.sync._done.settled, self.sync._total)


def _is_list_full(error: ServiceError) -> bool:
    is_conflict = isinstance(error, RejectedError) and error.status == HTTPStatus.CONFLICT
    return is_conflict and "watch_limit" in (error.detail or "")


# times in seconds since 1970; ``shows_…``: whether the list shows that field: others are not compared
LISTED: Final[dict[str, type[pl.DataType]]] = {
    **dict.fromkeys(("watch_id", "biz_no", "name", "address", "biz_status", "grade"), pl.String),
    **dict.fromkeys(("created", "checked", "due", "closed"), pl.Float64),
    **dict.fromkeys(("shows_name", "shows_address"), pl.Boolean),
}
BUSINESS: Final = {"biz_no": pl.String, "name": pl.String, "address": pl.String}
CHANGE: Final = {"watch_id": pl.String, **BUSINESS, "name_before": pl.String, "address_before": pl.String}
REMOVAL: Final = {"watch_id": pl.String, **BUSINESS}
_PLACE: Final = "place"


@dataclass(frozen=True, slots=True)
class Businesses:
    """The businesses of a table, each with the first name and address given, and the table's unusable rows."""

    frame: pl.DataFrame
    rows: int
    unusable: pl.DataFrame  # ``row_id`` (from 0) and ``problem``, a code
    repeated: pl.DataFrame  # ``biz_no``, ``rows``, ``differing`` (several names or addresses)
    suspect: int  # numbers with a wrong check digit, watched all the same


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The steps that make the list equal to the file. ``repeated`` are surplus watches of the same business."""

    add: pl.DataFrame  # BUSINESS
    change: pl.DataFrame  # CHANGE, with the file's name and address
    remove: pl.DataFrame  # REMOVAL
    repeated: pl.DataFrame  # REMOVAL
    unchanged: int
    unnumbered: int  # watches shown without a number, left alone
    watched: int  # businesses


def businesses(rows: pl.LazyFrame) -> Businesses:
    """Group the rows of :attr:`bansong.run.survey.PreparedTable.rows` by business."""
    names = rows.collect_schema().names()
    if DIGITS not in names:  # `[]`: no record, so no columns
        nothing = pl.DataFrame(schema={"biz_no": pl.String, "rows": pl.UInt32, "differing": pl.Boolean})
        return Businesses(pl.DataFrame(schema=BUSINESS), 0, _unusable(pl.DataFrame()), nothing, 0)
    missing = pl.lit(None, pl.String)
    cells = {name: pl.col(name).cast(pl.String) if name in names else missing for name in ("name", "address")}
    texts = [pl.when(~is_blank(cell)).then(cell.str.strip_chars()).alias(name) for name, cell in cells.items()]
    read = rows.select(
        ROW_ID,
        pl.when(pl.col(ROW_PROBLEM).is_null()).then(DIGITS).alias("biz_no"),
        pl.coalesce(ROW_PROBLEM, business_number.problem_expr(pl.col("b_no"))).alias("problem"),
        pl.col(RIGHT).alias("right"),
        *texts,
    ).collect(engine="streaming")
    given = read.drop_nulls("biz_no").sort(ROW_ID)
    texts = [pl.col(name).drop_nulls() for name in cells]
    grouped = given.group_by("biz_no", maintain_order=True).agg(
        *(text.first() for text in texts),
        pl.len().cast(pl.UInt32).alias("rows"),
        pl.any_horizontal(_normalise(text).n_unique() > 1 for text in texts).alias("differing"),
        pl.col("right").first(),
    )
    return Businesses(
        frame=grouped.select(*BUSINESS),
        rows=read.height,
        unusable=_unusable(read),
        repeated=grouped.filter(pl.col("rows") > 1).select("biz_no", "rows", "differing"),
        suspect=grouped.select((~pl.col("right").fill_null(value=True)).sum()).item(),
    )


def reconcile(file: pl.DataFrame, listed: pl.DataFrame) -> SyncPlan:
    """Compare a file (:data:`BUSINESS`) with a list (:data:`LISTED`), except for white space and missing fields."""
    numbered = listed.with_columns(business_number.compact_expr(pl.col("biz_no")).alias("biz_no")).with_row_index(
        _PLACE
    )
    known = numbered.drop_nulls("biz_no")
    wanted = file.select("biz_no", pl.col("name").alias("name_in"), pl.col("address").alias("address_in"), known=True)
    joined = known.join(wanted, on="biz_no", how="left", maintain_order="left")
    judged = joined.with_columns(
        pl.col("known").fill_null(value=False), (_differs("name") | _differs("address")).alias("differs")
    )
    first = pl.col(_PLACE).sort_by("differs", _PLACE).first().over("biz_no")
    judged = judged.with_columns((pl.col(_PLACE) == first).alias("kept"))
    changed = judged.filter("known", "kept", "differs").select(
        "watch_id", "biz_no", name="name_in", address="address_in", name_before="name", address_before="address"
    )
    return SyncPlan(
        add=file.join(known, on="biz_no", how="anti", maintain_order="left").select(*BUSINESS),
        change=changed,
        remove=judged.filter(~pl.col("known")).select(*REMOVAL),
        repeated=judged.filter("known", ~pl.col("kept")).select(*REMOVAL),
        unchanged=judged.filter("known", "kept", ~pl.col("differs")).height,
        unnumbered=numbered.height - known.height,
        watched=known["biz_no"].n_unique(),
    )


def _differs(name: str) -> pl.Expr:
    given = pl.col(f"{name}_in")
    return pl.col(f"shows_{name}") & given.is_not_null() & _normalise(pl.col(name)).ne_missing(_normalise(given))


def _normalise(text: pl.Expr) -> pl.Expr:
    return text.str.normalize("NFC").str.replace_all(r"\s+", " ").str.strip_chars()


def _unusable(read: pl.DataFrame) -> pl.DataFrame:
    schema = {ROW_ID: pl.Int64, "problem": pl.String}
    if read.is_empty():
        return pl.DataFrame(schema=schema)
    return read.filter(pl.col("biz_no").is_null()).select(*schema).cast(schema).sort(ROW_ID)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, repr=False)
class SyncReport(Shown):
    """What :func:`sync` found in a file and a watch list, and what it changed in the list.

    ``found``: the file's businesses. ``plan``: the changes that they ask for. ``kept``: no watch is removed. ``done``:
    the changes that were made; none unless ``applied``.
    """

    watches: str
    file: str
    columns: Mapping[str, Choice]
    found: Businesses
    plan: SyncPlan
    kept: bool = False
    applied: bool = False
    done: Done = field(default_factory=Done)
    warnings: tuple[str, ...] = ()

    @property
    def to_remove(self) -> pl.DataFrame:
        """Watches to remove: missing in the file, then surplus ones; none if they are kept."""
        gone = pl.concat([self.plan.remove, self.plan.repeated])
        return gone.clear() if self.kept else gone

    @property
    def to_do(self) -> int:
        return self.plan.add.height + self.plan.change.height + self.to_remove.height

    @property
    def left(self) -> int:
        return max(0, self.to_do - self.done.added - self.done.changed - self.done.removed)

    @property
    def exit_code(self) -> int:
        """0; 3 if requests were refused or are in doubt; 4 for a refused key or plan; 5 if paused."""
        if self.done.halt is not None:
            return 4 if self.done.halt.why == "refused" else 5
        return 3 if self.done.refused or self.done.doubts else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "list": self.watches,
            "file": self.file,
            "applied": self.applied,
            "rows": self.found.rows,
            "businesses": self.found.frame.height,
            "watched_before": self.plan.watched,
            "unchanged": self.plan.unchanged,
            "add": self.plan.add.to_dicts(),
            "change": self.plan.change.to_dicts(),
            "remove": self.to_remove.to_dicts(),
            "kept": pl.concat([self.plan.remove, self.plan.repeated]).to_dicts() if self.kept else [],
            "unusable_rows": self.found.unusable.to_dicts(),
            "repeated": self.found.repeated.to_dicts(),
            "wrong_check_digits": self.found.suspect,
            "added": self.done.added,
            "changed": self.done.changed,
            "removed": self.done.removed,
            "first_check_by": korean_iso(self.done.first_check_by),
            "left": self.left if self.applied else self.to_do,
            "refused": [{"watch": name, "note": note} for name, note in self.done.refused],
            "in_doubt": list(self.done.doubts),
            "paused": self.done.halt.note if self.done.halt else None,
            "warnings": list(map(str, self.warnings)),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        watched = ngettext("{count:,} business", "{count:,} businesses", self.plan.watched)
        yield gettext("list"), f"{self.watches}: {watched}"
        numbers, rows = self.found.frame.height, count_rows(self.found.rows)
        yield gettext("file"), gettext("{height:,} different numbers in {rows}", height=numbers, rows=rows)
        yield from self._rows_left_out()
        yield gettext("unchanged"), f"{self.plan.unchanged:,}"
        yield gettext("to add"), name_first(self.plan.add)
        yield gettext("to change"), name_first(self.plan.change)
        gone = name_first(self.plan.remove)
        if self.kept:
            yield gettext("kept"), gettext("{name_first}; they are not in the file", name_first=gone)
        else:
            yield gettext("to remove"), gone
        if self.plan.repeated.height:
            first = name_first(self.plan.repeated)
            left = gettext("{first}; the second watch is left", first=first)
            gone = gettext("{first}; the second watch is removed, too", first=first)
            yield gettext("watched twice"), left if self.kept else gone
        yield from self._outcome()

    def _rows_left_out(self) -> Iterator[tuple[str, str]]:
        problems = self.found.unusable.group_by("problem", maintain_order=True).agg(ROW_ID).rows()
        for problem, rows in problems:
            words = {**business_number.PROBLEMS, **ROW_PROBLEMS}.get(problem, {}).get(current_language(), problem)
            places = ", ".join(f"{row + 1:,}" for row in rows[:SHOWN])
            more = " …" if len(rows) > SHOWN else ""
            yield gettext("no number"), f"{count_rows(len(rows))} ({places}{more}): {words}"

    def _outcome(self) -> Iterator[tuple[str, str]]:
        done = self.done
        if not self.applied:
            undone = gettext("nothing was changed; `apply=True` does it")
            yield "", undone if self.to_do else gettext("nothing is to be done")
            return
        yield gettext("done"), gettext_of(done, "{added:,} added, {changed:,} changed, {removed:,} removed")
        if done.first_check_by is not None:
            by = korean_iso(done.first_check_by)
            first = gettext("by {by} at the latest; until then what was added has no status", by=by)
            yield gettext("first check"), first
        for name, note in done.refused[:SHOWN]:
            yield gettext("refused"), f"{format_number(name)}: {note}"
        if len(done.refused) > SHOWN:
            yield gettext("refused"), gettext("… and {count:,} more", count=len(done.refused) - SHOWN)
        if done.doubts:
            about = {"doubts": len(done.doubts), "names": ", ".join(map(format_number, done.doubts[:SHOWN]))}
            open_ = gettext("{doubts:,} ({names}); the same command looks first, and goes on", **about)
            yield gettext("in doubt"), open_
        if done.halt is not None:
            yield gettext("stopped"), gettext("{left:,} left: {note}", left=self.left, note=done.halt.note)
