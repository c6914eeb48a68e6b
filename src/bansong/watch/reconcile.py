"""Compare a file's businesses with a watch list: what to add, change, remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from bansong import business_number
from bansong.engine.local import ROW_PROBLEM, ROW_PROBLEMS
from bansong.engine.text_values import is_blank
from bansong.report_display import Shown
from bansong.run.records import DIGITS, RIGHT, ROW_ID
from bansong.schema import Choice
from bansong.translation import count_rows, current_language, gettext, gettext_of, ngettext
from bansong.watch.report import SHOWN, format_number, name_first, seoul_iso
from bansong.watch.service_sync import Done

LISTED: Final = {
    "watch_id": pl.String,
    "biz_no": pl.String,
    "name": pl.String,
    "address": pl.String,
    "biz_status": pl.String,
    "grade": pl.String,
    "created": pl.Float64,
    "checked": pl.Float64,
    "due": pl.Float64,
    "closed": pl.Float64,
    "shows_name": pl.Boolean,
    "shows_address": pl.Boolean,
}
"""A watch list as a frame, in its order; times in seconds since 1970. ``shows_…``: whether the list shows that field,
so that it can differ."""
BUSINESS: Final = {"biz_no": pl.String, "name": pl.String, "address": pl.String}
CHANGE: Final = {"watch_id": pl.String, **BUSINESS, "name_before": pl.String, "address_before": pl.String}
REMOVAL: Final = {"watch_id": pl.String, **BUSINESS}
_PLACE: Final = "place"


@dataclass(frozen=True, slots=True)
class Businesses:
    """The businesses of a table, and its unusable rows.

    ``frame``: :data:`BUSINESS`, one row a number, in file order, with the first name and address given. ``unusable``:
    ``row_id`` (from 0) and ``problem``, a code. ``repeated``: ``biz_no``, ``rows`` and ``differing`` (several names or
    addresses). ``suspect``: numbers with a wrong check digit; they are watched all the same.
    """

    frame: pl.DataFrame
    rows: int
    unusable: pl.DataFrame
    repeated: pl.DataFrame
    suspect: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The steps that make the list equal to the file.

    ``add``: :data:`BUSINESS`. ``change``: :data:`CHANGE`, with the file's name and address. ``remove``:
    :data:`REMOVAL`. ``repeated``: :data:`REMOVAL`, further watches of a business. ``unchanged``: matching watches;
    ``unnumbered``: watches shown without a number, left alone. ``watched``: businesses on the list.
    """

    add: pl.DataFrame
    change: pl.DataFrame
    remove: pl.DataFrame
    repeated: pl.DataFrame
    unchanged: int
    unnumbered: int
    watched: int


def businesses(rows: pl.LazyFrame) -> Businesses:
    """Return the businesses of :attr:`bansong.enrichment.PreparedTable.rows`; reads the file."""
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
    """Compare the businesses of a file (:data:`BUSINESS`) with a list (:data:`LISTED`).

    White space and Unicode forms do not count as differences, nor does what the file or the list lacks. Of several
    watches of one business the first matching one stays, else the first.
    """
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
    """A file compared with a watch list, and what was done (see :class:`SyncPlan` and :class:`Businesses`).

    ``kept``: nothing is removed. ``done`` is empty unless ``applied``.
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
        """Watches to remove: missing in the file, then repeated ones; none if they are kept."""
        gone = pl.concat([self.plan.remove, self.plan.repeated])
        return gone.clear() if self.kept else gone

    @property
    def to_do(self) -> int:
        """Number of watches that differ."""
        return self.plan.add.height + self.plan.change.height + self.to_remove.height

    @property
    def left(self) -> int:
        """Number of watches that still differ."""
        return max(0, self.to_do - self.done.added - self.done.changed - self.done.removed)

    @property
    def exit_code(self) -> int:
        """0; 3 if some were refused or are in doubt; 4 refused, 5 paused."""
        if self.done.halt is not None:
            return 4 if self.done.halt.why == "refused" else 5
        return 3 if self.done.refused or self.done.doubts else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
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
            "first_check_by": seoul_iso(self.done.first_check_by),
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
            yield (
                gettext("watched twice"),
                (left if self.kept else gettext("{first}; the second watch is removed, too", first=first)),
            )
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
            yield (
                "",
                (
                    gettext("nothing was changed; `apply=True` does it")
                    if self.to_do
                    else gettext("nothing is to be done")
                ),
            )
            return
        yield gettext("done"), gettext_of(done, "{added:,} added, {changed:,} changed, {removed:,} removed")
        if done.first_check_by is not None:
            by = seoul_iso(done.first_check_by)
            first = gettext("by {by} at the latest; until then what was added has no status", by=by)
            yield gettext("first check"), first
        for name, note in done.refused[:SHOWN]:
            yield gettext("refused"), f"{format_number(name)}: {note}"
        if len(done.refused) > SHOWN:
            yield gettext("refused"), gettext("… and {count:,} more", count=len(done.refused) - SHOWN)
        if done.doubts:
            about = {"doubts": len(done.doubts), "names": ", ".join(map(format_number, done.doubts[:SHOWN]))}
            yield (
                gettext("in doubt"),
                gettext("{doubts:,} ({names}); the same command looks first, and goes on", **about),
            )
        if done.halt is not None:
            yield gettext("stopped"), gettext("{left:,} left: {note}", left=self.left, note=done.halt.note)
