"""What watching did: the reports that people and scripts read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from bizverify import business_number
from bizverify.display import Shown
from bizverify.engine.local import ROW_PROBLEMS
from bizverify.run.records import ROW_ID
from bizverify.schema import Choice, counted
from bizverify.watch.notices import EVENT, SUMMARY
from bizverify.watch.reconcile import Businesses, SyncPlan
from bizverify.watch.service_sync import Done

SHOWN: Final = 5
"""How many watches of a kind the text of a report names."""

_LONGEST: Final = 60
"""Characters that a business's number and name may take in a line."""


@dataclass(frozen=True, slots=True, repr=False)
class SyncReport(Shown):
    """A file held against a watch list, and what was done about it.

    ``rows`` and ``businesses`` are the file's; ``unusable`` (``row_id``, ``problem``) and ``repeated`` (``biz_no``,
    ``rows``, ``differing``) its rows without a number, and numbers in several rows. ``add``, ``change``, ``remove`` and
    ``repeated_watches`` are the watches that differ (see :class:`bizverify.watch.reconcile.SyncPlan`), ``kept`` those
    of them that stay all the same. ``unchanged``: watches as the file says. ``done`` is ``None`` where nothing was to
    be done (``applied`` false).
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
        """The watches that go: those not in the file, then second ones of a business; none where they are kept."""
        gone = pl.concat([self.plan.remove, self.plan.repeated])
        return gone.clear() if self.kept else gone

    @property
    def to_do(self) -> int:
        """How many watches are not as they should be."""
        return self.plan.add.height + self.plan.change.height + self.to_remove.height

    @property
    def left(self) -> int:
        """How many of them still are not, after what was done."""
        return max(0, self.to_do - self.done.added - self.done.changed - self.done.removed)

    @property
    def exit_code(self) -> int:
        """0; 3 where the service refused some or it is not known what became of some; 4 refused, 5 paused."""
        if self.done.halt is not None:
            return 4 if self.done.halt.why == "refused" else 5
        return 3 if self.done.refused or self.done.doubts else 0

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
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
            "left": self.left if self.applied else self.to_do,
            "refused": [{"watch": name, "note": note} for name, note in self.done.refused],
            "in_doubt": list(self.done.doubts),
            "paused": self.done.halt.note if self.done.halt else None,
            "warnings": list(self.warnings),
        }

    def lines(self) -> list[tuple[str, str]]:
        """What people read: what is the case, what differs, what was done."""
        return list(self._said())

    def __repr__(self) -> str:
        return str(self)

    def _said(self) -> Iterator[tuple[str, str]]:
        yield "list", f"{self.watches}: {counted(self.plan.watched, 'business', 'businesses')}"
        yield "file", f"{self.found.frame.height:,} different numbers in {counted(self.found.rows, 'row')}"
        yield from self._rows_left_out()
        yield "unchanged", f"{self.plan.unchanged:,}"
        yield "to add", _some(self.plan.add)
        yield "to change", _some(self.plan.change)
        if self.kept:
            yield "kept", f"{_some(self.plan.remove)}; they are not in the file"
        else:
            yield "to remove", _some(self.plan.remove)
        if self.plan.repeated.height:
            what = "left" if self.kept else "removed, too"
            yield "watched twice", f"{_some(self.plan.repeated)}; the second watch is {what}"
        yield from self._outcome()

    def _rows_left_out(self) -> Iterator[tuple[str, str]]:
        problems = self.found.unusable.group_by("problem", maintain_order=True).agg(ROW_ID).rows()
        for problem, rows in problems:
            words = {**business_number.PROBLEMS, **ROW_PROBLEMS}.get(problem, {}).get("en", problem)
            places = ", ".join(f"{row + 1:,}" for row in rows[:SHOWN])
            more = " …" if len(rows) > SHOWN else ""
            yield "no number", f"{counted(len(rows), 'row')} ({places}{more}): {words}"

    def _outcome(self) -> Iterator[tuple[str, str]]:
        if not self.applied:
            yield "", "nothing was changed; `apply=True` does it" if self.to_do else "nothing is to be done"
            return
        yield "done", f"{self.done.added:,} added, {self.done.changed:,} changed, {self.done.removed:,} removed"
        for name, note in self.done.refused[:SHOWN]:
            yield "refused", f"{format_number(name)}: {note}"
        if len(self.done.refused) > SHOWN:
            yield "refused", f"… and {len(self.done.refused) - SHOWN:,} more"
        if self.done.doubts:
            names = ", ".join(map(format_number, self.done.doubts[:SHOWN]))
            yield "in doubt", f"{len(self.done.doubts):,} ({names}); the same command looks first, and goes on"
        if self.done.halt is not None:
            yield "stopped", f"{self.left:,} left: {self.done.halt.note}"


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Shown):
    """One check of a local list. ``due``: watches that were to be looked at; ``checked``: those that were.

    ``first``: those of them that were checked, or whose status was found, for the first time. ``changes``,
    ``closures`` (closed since the check before) and ``closed_already`` (closed when their status was first found) are
    frames: ``watch_id``, ``biz_no``, ``name``, ``address``, ``biz_status``, ``status_before``, ``grade_before``,
    ``grade`` (String), ``bounce_prob`` (Float64). ``notices``: what is told now, and what an earlier check could not
    tell any more, as the objects that a webhook gets: each closure, and in one object all that was closed already.
    ``undelivered``: what could not be delivered, each with ``id``, ``biz_no``, ``channel`` and ``error``.
    ``next_due`` is in seconds since 1970, ``None`` where nothing is watched.
    """

    watches: str
    watched: int
    due: int
    checked: int
    first: int
    changes: pl.DataFrame
    closures: pl.DataFrame
    closed_already: pl.DataFrame
    notices: tuple[dict[str, Any], ...]
    undelivered: tuple[dict[str, Any], ...]
    next_due: float | None
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to be told."""
        return self.changes.is_empty() and not self.notices and not self.undelivered

    @property
    def exit_code(self) -> int:
        """0, or 3 where a notice could not be delivered: the next check tries again."""
        return 3 if self.undelivered else 0

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        from bizverify.watch.times import local_iso

        return {
            "list": self.watches,
            "watched": self.watched,
            "due": self.due,
            "checked": self.checked,
            "first_checks": self.first,
            "changes": self.changes.to_dicts(),
            "closures": [notice for notice in self.notices if notice["event"] == EVENT],
            "closed_already": [number for notice in self._summaries for number in notice["biz_nos"]],
            "undelivered": list(self.undelivered),
            "next_check_at": local_iso(self.next_due),
            "seconds": round(self.seconds, 3),
            "warnings": list(self.warnings),
        }

    def lines(self) -> list[tuple[str, str]]:
        """What people read: how much was checked, closures, other changes of grade, what could not be told."""
        return [("checked", self._progress()), *self.news()]

    def __repr__(self) -> str:
        return str(self)

    @property
    def _summaries(self) -> list[dict[str, Any]]:
        return [notice for notice in self.notices if notice["event"] == SUMMARY]

    def _progress(self) -> str:
        from bizverify.watch.times import local_iso

        if self.due or self.next_due is None:
            return f"{self.checked:,} of {self.watched:,}"
        at = str(local_iso(self.next_due))[:16].replace("T", " ")
        return f"0 of {self.watched:,}: nothing was due; the next is due {at}"

    def news(self) -> Iterator[tuple[str, str]]:
        """The lines of what happened; none where nothing did."""
        yield from self._closed()
        told = [notice["watch_id"] for notice in self.notices if notice["event"] == EVENT]
        others = self.changes.filter(~pl.col("watch_id").is_in(told))
        for change in others.head(4 * SHOWN).iter_rows(named=True):
            yield "grade", f"{change['grade_before'] or '–'} → {change['grade'] or '–'}  {_business(change)}"
        if others.height > 4 * SHOWN:
            yield "grade", f"… and {others.height - 4 * SHOWN:,} more; the report as JSON lists all"
        for one in self.undelivered[:SHOWN]:
            what = format_number(one["biz_no"]) or f"{one['notice']['closed']:,} closed already"
            yield "undelivered", f"{what} by {one['channel']}: {one['error'] or 'not tried yet'}"
        if len(self.undelivered) > SHOWN:
            yield "undelivered", f"… and {len(self.undelivered) - SHOWN:,} more; the next check tries again"

    def _closed(self) -> Iterator[tuple[str, str]]:
        """What closed one by one, then in one line what was closed already."""
        for notice in self.notices:
            if notice["event"] == EVENT:
                before = f" (was {notice['status_before']})" if notice["status_before"] else ""
                yield "closed", f"{_business(notice)}{before}"
        numbers = [number for notice in self._summaries for number in notice["biz_nos"]]
        if not numbers:
            return
        names = dict(self.closed_already.select("biz_no", "name").iter_rows())
        first = ", ".join(business_label(number, names.get(number)) for number in numbers[:SHOWN])
        more = " …" if len(numbers) > SHOWN else ""
        some = f" of the {self.first:,}" if len(names) == len(numbers) else ""  # else an earlier check found them
        were = "was" if len(numbers) == 1 else "were"
        yield "closed", f"{len(numbers):,}{some} checked for the first time {were} closed already: {first}{more}"


def _some(frame: pl.DataFrame) -> str:
    """How many, and the first few by number and name."""
    if frame.is_empty():
        return "0"
    first = ", ".join(_business(row) for row in frame.head(SHOWN).iter_rows(named=True))
    return f"{frame.height:,}: {first}{' …' if frame.height > SHOWN else ''}"


def _business(row: Mapping[str, Any]) -> str:
    return business_label(row["biz_no"], row.get("name"))


def business_label(biz_no: str | None, name: str | None) -> str:
    """A business on a line for people: without what a terminal would obey, and not too long."""
    text = " ".join(part for part in (format_number(biz_no), name) if part)
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def format_number(text: str | None) -> str:
    """Ten digits with hyphens; anything else as it is."""
    return f"{text[:3]}-{text[3:5]}-{text[5:]}" if text and len(text) == 10 and text.isdecimal() else text or ""
