"""A file's businesses held against a watch list: what to add, to change, to remove. Frames in, frames out."""

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
from bansong.translation import current_language, gettext, ngettext
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
"""A watch list as a frame, in its order. Times are seconds since 1970. ``shows_…``: whether the list says what it holds
there at all; of what it does not say nothing can differ."""

BUSINESS: Final = {"biz_no": pl.String, "name": pl.String, "address": pl.String}
CHANGE: Final = {"watch_id": pl.String, **BUSINESS, "name_before": pl.String, "address_before": pl.String}
REMOVAL: Final = {"watch_id": pl.String, **BUSINESS}

_PLACE: Final = "place"


@dataclass(frozen=True, slots=True)
class Businesses:
    """The businesses of a table, and the rows that are none.

    ``frame``: :data:`BUSINESS`, one row a number, in file order; where a number stands in several rows name and address
    are the first that are given. ``unusable``: ``row_id`` (from 0) and ``problem``, a code, of each row without a
    number. ``repeated``: ``biz_no``, ``rows`` (how many) and ``differing`` (Boolean: with several names or addresses).
    ``suspect``: numbers whose check digit is wrong; they are watched all the same.
    """

    frame: pl.DataFrame
    rows: int
    unusable: pl.DataFrame
    repeated: pl.DataFrame
    suspect: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The steps that would make the list that of the file.

    ``add``: :data:`BUSINESS`. ``change``: :data:`CHANGE`, with name and address of the file, null where it has none.
    ``remove``: :data:`REMOVAL`, not in the file. ``repeated``: :data:`REMOVAL`, a business's second watch and further
    ones. ``unchanged``: watches that are as the file says; ``unnumbered``: watches that the list shows without a
    business number, which are left alone. ``watched``: businesses on the list.
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
    read = rows.select(
        ROW_ID,
        pl.when(pl.col(ROW_PROBLEM).is_null()).then(DIGITS).alias("biz_no"),
        pl.coalesce(ROW_PROBLEM, business_number.problem_expr(pl.col("b_no"))).alias("problem"),
        pl.col(RIGHT).alias("right"),
        *(_sent_text(name, names) for name in ("name", "address")),
    ).collect(engine="streaming")
    given = read.drop_nulls("biz_no").sort(ROW_ID)
    texts = [pl.col(name).drop_nulls() for name in ("name", "address")]
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
    """Hold the businesses of a file (:data:`BUSINESS`) against a list (:data:`LISTED`).

    Names and addresses are compared as they are read: white space and Unicode's ways to write a syllable aside. What
    the file does not give, and what the list does not show, is no difference. Of several watches of one business the
    first that is as the file says stays, else the first.
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
        "watch_id",
        "biz_no",
        name="name_in",
        address="address_in",
        name_before="name",
        address_before="address",
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
    """Whether the file gives something else than what the list shows."""
    given = pl.col(f"{name}_in")
    return pl.col(f"shows_{name}") & given.is_not_null() & _normalise(pl.col(name)).ne_missing(_normalise(given))


def _normalise(text: pl.Expr) -> pl.Expr:
    return text.str.normalize("NFC").str.replace_all(r"\s+", " ").str.strip_chars()


def _sent_text(name: str, names: list[str]) -> pl.Expr:
    """A cell as it is sent: without outer white space, null where it says nothing (``없음``, a dash)."""
    if name not in names:
        return pl.lit(None, pl.String).alias(name)
    text = pl.col(name).cast(pl.String)
    return pl.when(~is_blank(text)).then(text.str.strip_chars()).alias(name)


def _unusable(read: pl.DataFrame) -> pl.DataFrame:
    schema = {ROW_ID: pl.Int64, "problem": pl.String}
    if read.is_empty():
        return pl.DataFrame(schema=schema)
    return (
        read.filter(pl.col("biz_no").is_null())
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .sort(ROW_ID)
    )


@dataclass(frozen=True, slots=True, repr=False)
class SyncReport(Shown):
    """A file held against a watch list, and what was done about it.

    ``rows`` and ``businesses`` are the file's; ``unusable`` (``row_id``, ``problem``) and ``repeated`` (``biz_no``,
    ``rows``, ``differing``) its rows without a number, and numbers in several rows. ``add``, ``change``, ``remove`` and
    ``repeated_watches`` are the watches that differ (see :class:`bansong.watch.reconcile.SyncPlan`), ``kept`` those
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
        """The number of watches that are not as they should be."""
        return self.plan.add.height + self.plan.change.height + self.to_remove.height

    @property
    def left(self) -> int:
        """The number of them that still are not, after what was done."""
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
            "first_check_by": seoul_iso(self.done.first_check_by),
            "left": self.left if self.applied else self.to_do,
            "refused": [{"watch": name, "note": note} for name, note in self.done.refused],
            "in_doubt": list(self.done.doubts),
            "paused": self.done.halt.note if self.done.halt else None,
            "warnings": list(map(str, self.warnings)),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the report as (what, how much) for people: the list, the differences, what was done."""
        return list(self._describe())

    def __repr__(self) -> str:
        return str(self)

    def _describe(self) -> Iterator[tuple[str, str]]:
        yield (
            gettext("list"),
            f"{self.watches}: " + ngettext("{count:,} business", "{count:,} businesses", self.plan.watched),
        )
        yield (
            gettext("file"),
            gettext(
                "{height:,} different numbers in {rows}",
                height=self.found.frame.height,
                rows=ngettext("{count:,} row", "{count:,} rows", self.found.rows),
            ),
        )
        yield from self._rows_left_out()
        yield gettext("unchanged"), f"{self.plan.unchanged:,}"
        yield gettext("to add"), name_first(self.plan.add)
        yield gettext("to change"), name_first(self.plan.change)
        if self.kept:
            yield (
                gettext("kept"),
                gettext("{name_first}; they are not in the file", name_first=name_first(self.plan.remove)),
            )
        else:
            yield gettext("to remove"), name_first(self.plan.remove)
        if self.plan.repeated.height:
            first = name_first(self.plan.repeated)
            yield (
                gettext("watched twice"),
                gettext("{first}; the second watch is left", first=first)
                if self.kept
                else gettext("{first}; the second watch is removed, too", first=first),
            )
        yield from self._outcome()

    def _rows_left_out(self) -> Iterator[tuple[str, str]]:
        problems = self.found.unusable.group_by("problem", maintain_order=True).agg(ROW_ID).rows()
        for problem, rows in problems:
            words = {**business_number.PROBLEMS, **ROW_PROBLEMS}.get(problem, {}).get(current_language(), problem)
            places = ", ".join(f"{row + 1:,}" for row in rows[:SHOWN])
            more = " …" if len(rows) > SHOWN else ""
            yield (
                gettext("no number"),
                ngettext("{count:,} row", "{count:,} rows", len(rows)) + f" ({places}{more}): {words}",
            )

    def _outcome(self) -> Iterator[tuple[str, str]]:
        if not self.applied:
            yield (
                "",
                gettext("nothing was changed; `apply=True` does it")
                if self.to_do
                else gettext("nothing is to be done"),
            )
            return
        yield (
            gettext("done"),
            gettext(
                "{added:,} added, {changed:,} changed, {removed:,} removed",
                added=self.done.added,
                changed=self.done.changed,
                removed=self.done.removed,
            ),
        )
        if self.done.first_check_by is not None:
            by = seoul_iso(self.done.first_check_by)
            yield (
                gettext("first check"),
                gettext("by {by} at the latest; until then what was added has no status", by=by),
            )
        for name, note in self.done.refused[:SHOWN]:
            yield gettext("refused"), f"{format_number(name)}: {note}"
        if len(self.done.refused) > SHOWN:
            yield gettext("refused"), gettext("… and {count:,} more", count=len(self.done.refused) - SHOWN)
        if self.done.doubts:
            names = ", ".join(map(format_number, self.done.doubts[:SHOWN]))
            yield (
                gettext("in doubt"),
                gettext(
                    "{doubts:,} ({names}); the same command looks first, and goes on",
                    doubts=len(self.done.doubts),
                    names=names,
                ),
            )
        if self.done.halt is not None:
            yield gettext("stopped"), gettext("{left:,} left: {note}", left=self.left, note=self.done.halt.note)
