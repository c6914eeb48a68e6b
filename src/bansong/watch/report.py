"""A check, a list and a history as people and scripts read them: reports, lines, a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong import business_number, charts
from bansong.column_words import KOREAN_WORDS, word_of
from bansong.errors import Problem, UsageError
from bansong.report_display import Shown, pad_text
from bansong.schema import GRADES, SEOUL
from bansong.translation import current_language, gettext, gettext_noop, ngettext
from bansong.watch.notifications import EVENT, SUMMARY, UNASKED
from bansong.watch.store import Change

if TYPE_CHECKING:
    from bansong.charts.library import Chart

HISTORY_EMPTY: Final = Problem(
    "watch.history_empty", "{title}: no change of grade whose time is known, nothing to draw"
)

SHOWN: Final = 5
"""Watches of a kind that the text of a report names."""

_LONGEST: Final = 60
"""Characters that a business's number and name may take in a line."""


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Shown):
    """One check of a local list. ``due``: watches that were to be looked at; ``checked``: those that were.

    ``first``: those of them that were checked, or whose status was found, for the first time. ``changes``, ``closures``
    (closed since the check before) and ``closed_already`` (closed when their status was first found) are frames:
    ``watch_id``, ``biz_no``, ``name``, ``address``, ``biz_status``, ``status_before``, ``grade_before``, ``grade``
    (String), ``bounce_prob`` (Float64). ``notices``: the notifications of this check, and those that an earlier one
    could not deliver any more, as the objects that a webhook gets: each closure, and in one object all that was closed
    already. ``undelivered``: what could not be delivered, each with ``id``, ``biz_no``, ``channel`` and ``error``.
    ``next_due`` is in seconds since 1970, ``None`` where nothing is watched. ``unasked``: numbers whose status was due
    and could not be asked; ``status_exit_code``: 3 where the key was refused, 5 where the next check asks.
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
    unasked: int = 0
    status_exit_code: int = 0

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to report."""
        return not self.unasked and self.changes.is_empty() and not self.notices and not self.undelivered

    @property
    def exit_code(self) -> int:
        """3 for a notification that could not be delivered or a refused key, 5 for statuses not asked yet, else 0."""
        return 3 if self.undelivered else self.status_exit_code

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "list": self.watches,
            "watched": self.watched,
            "due": self.due,
            "checked": self.checked,
            "unasked": self.unasked,
            "first_checks": self.first,
            "changes": self.changes.to_dicts(),
            "closures": [one for one in self.notices if one["event"] == EVENT],
            "closed_already": [number for one in self._summaries for number in one["biz_nos"]],
            "undelivered": list(self.undelivered),
            "next_check_at": seoul_iso(self.next_due),
            "seconds": round(self.seconds, 3),
            "warnings": list(map(str, self.warnings)),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the report as (what, how much) for people: progress, closures, changes of grade, undelivered."""
        return [self.progress_line, *self.news(), *self.undelivered_lines()]

    def __repr__(self) -> str:
        return str(self)

    @property
    def _summaries(self) -> list[dict[str, Any]]:
        return [one for one in self.notices if one["event"] == SUMMARY]

    @property
    def progress_line(self) -> tuple[str, str]:
        """How many were checked, or when the next is due."""
        return gettext("checked"), self._progress()

    def _progress(self) -> str:

        if self.due or self.next_due is None:
            return gettext("{checked:,} of {watched:,}", checked=self.checked, watched=self.watched)
        at = str(seoul_iso(self.next_due))[:16].replace("T", " ")
        return gettext("0 of {watched:,}: nothing was due; the next is due {at}", watched=self.watched, at=at)

    def news(self) -> Iterator[tuple[str, str]]:
        """The lines of closures and changes of grade; none where nothing happened."""
        yield from self._closed_lines()
        closed = [one["watch_id"] for one in self.notices if one["event"] == EVENT]
        others = self.changes.filter(~pl.col("watch_id").is_in(closed))
        for change in others.head(4 * SHOWN).iter_rows(named=True):
            yield gettext("grade"), f"{change['grade_before'] or '–'} → {change['grade'] or '–'}  {_business(change)}"
        if others.height > 4 * SHOWN:
            yield (
                gettext("grade"),
                gettext("… and {height:,} more; the report as JSON lists all", height=others.height - 4 * SHOWN),
            )

    def undelivered_lines(self) -> Iterator[tuple[str, str]]:
        """The lines of what could not be told."""
        for one in self.undelivered[:SHOWN]:
            what = format_number(one["biz_no"]) or _describe_notice(one["notice"])
            yield (
                gettext("undelivered"),
                gettext(
                    "{what} by {channel}: {error}",
                    what=what,
                    channel=one["channel"],
                    error=one["error"] or gettext("not tried yet"),
                ),
            )
        if len(self.undelivered) > SHOWN:
            yield (
                gettext("undelivered"),
                gettext(
                    "… and {undelivered:,} more; the next check tries again", undelivered=len(self.undelivered) - SHOWN
                ),
            )

    def _closed_lines(self) -> Iterator[tuple[str, str]]:
        """Yield the closures one by one, then in one line what was closed already."""
        for closure in self.notices:
            if closure["event"] == EVENT:
                before = (
                    gettext(" (was {status})", status=word_of(closure["status_before"], current_language()))
                    if closure["status_before"]
                    else ""
                )
                yield gettext("closed"), f"{_business(closure)}{before}"
        numbers = [number for one in self._summaries for number in one["biz_nos"]]
        if not numbers:
            return
        names = dict(self.closed_already.select("biz_no", "name").iter_rows())
        first = ", ".join(business_label(number, names.get(number)) for number in numbers[:SHOWN])
        more = " …" if len(numbers) > SHOWN else ""
        listed = f"{first}{more}"
        if len(names) != len(numbers):  # an earlier check found some of them
            yield (
                gettext("closed"),
                ngettext(
                    "{count:,} checked for the first time was closed already: {listed}",
                    "{count:,} checked for the first time were closed already: {listed}",
                    len(numbers),
                    listed=listed,
                ),
            )
            return
        yield (
            gettext("closed"),
            ngettext(
                "{count:,} of the {first:,} checked for the first time was closed already: {listed}",
                "{count:,} of the {first:,} checked for the first time were closed already: {listed}",
                len(numbers),
                first=self.first,
                listed=listed,
            ),
        )


def _describe_notice(notice: Mapping[str, Any]) -> str:
    """Return what a notification of several businesses says."""
    if notice["event"] == UNASKED:
        return ngettext(
            "{count:,} number not asked of the tax authority",
            "{count:,} numbers not asked of the tax authority",
            notice["numbers"],
        )
    return gettext("{closed:,} closed already", closed=notice["closed"])


def name_first(frame: pl.DataFrame) -> str:
    """Return the number of businesses, and the first few by number and name."""
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


_WIDE: Final = (
    r"[\u{1100}-\u{115f}\u{2e80}-\u{a4cf}\u{ac00}-\u{d7a3}\u{f900}-\u{faff}"
    r"\u{fe30}-\u{fe6f}\u{ff00}-\u{ff60}\u{ffe0}-\u{ffe6}\u{1f300}-\u{1faff}]"
)
"""Characters that take two columns of a terminal."""
_UNSEEN: Final = r"[\p{Cc}\p{Zl}\p{Zp}]+"
_LONGEST_CELL: Final = 24
"""Characters of a name or an address that a line has room for."""


def list_lines(frame: pl.DataFrame) -> list[str]:
    """The lines of :func:`bansong.watch.entries`, with a header, and a last one that counts."""
    if frame.is_empty():
        return [gettext("nothing is watched")]
    words = KOREAN_WORDS["biz_status"] if current_language() == "ko" else {}
    shown = with_local_times(frame).select(
        pl.coalesce(business_number.format_expr(pl.col("biz_no")), "biz_no").alias("number"),
        "name",
        pl.col("biz_status").replace(words).alias("status"),
        "grade",
        pl.col("checked_at").str.slice(0, 16).str.replace("T", " ").fill_null(gettext("not yet")).alias("checked"),
        "address",
        pl.col("watch_id").alias("watch id"),
    )
    total = gettext("{count:,} watched", count=frame.height)
    if closed := _count_closed(frame):
        total += gettext(", {closed:,} of them closed", closed=closed)
    if frame["checked_at"].null_count() + frame["created_at"].null_count() == 2 * frame.height:
        shown = shown.drop("checked")  # a service that tells no times
    return [*_columns(shown), total]


_HEADERS: Final = {
    "number": gettext_noop("number"),
    "name": gettext_noop("name"),
    "status": gettext_noop("status"),
    "grade": gettext_noop("grade"),
    "checked": gettext_noop("checked"),
    "address": gettext_noop("address"),
    "watch id": gettext_noop("watch id"),
}


def with_local_times(frame: pl.DataFrame) -> pl.DataFrame:
    """Times as ISO 8601 text in Korea's time zone."""
    # the rules of this machine's zone are known to Python alone
    times = [name for name, dtype in frame.schema.items() if dtype == pl.Datetime]
    return frame.with_columns(pl.col(times).map_elements(_in_seoul, return_dtype=pl.String)) if times else frame


def _columns(shown: pl.DataFrame) -> list[str]:
    """The rows under their headers, each column as wide as its widest cell."""
    texts = shown.select(_cell(name) for name in shown.columns)
    headed = pl.concat([pl.DataFrame({name: [gettext(_HEADERS[name])] for name in shown.columns}), texts])
    padded = headed.select(_pad(name) for name in headed.columns)
    return padded.select(pl.concat_str(pl.all(), separator="  ").str.strip_chars_end()).to_series().to_list()


def _cell(name: str) -> pl.Expr:
    text = pl.col(name).cast(pl.String).fill_null("").str.replace_all(_UNSEEN, " ")
    if name not in ("name", "address"):
        return text
    return pl.when(text.str.len_chars() > _LONGEST_CELL).then(text.str.head(_LONGEST_CELL - 1) + "…").otherwise(text)


def _pad(name: str) -> pl.Expr:
    width = pl.col(name).str.len_chars() + pl.col(name).str.count_matches(_WIDE)
    return pl.col(name) + pl.lit(" ").repeat_by(width.max() - width).list.join("")


def _count_closed(frame: pl.DataFrame) -> int:
    return frame.filter(pl.col("biz_status") == "closed").height


def _in_seoul(at: datetime) -> str:
    return at.astimezone(SEOUL).isoformat(timespec="seconds")


_AFTER: Final = 0.06
"""The length of the last grade's line behind the last change, as a share of the width."""
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True, repr=False)
class History(Shown):
    """The changes of grade of one watched business, the oldest first; ``grade`` is the one it has now.

    ``created``: when it was put on the list, in seconds since 1970, where that is known. Displays as a plot and a table
    in a notebook.
    """

    watch_id: str
    biz_no: str
    name: str | None
    grade: str | None
    created: float | None
    changes: tuple[Change, ...]

    @property
    def frame(self) -> pl.DataFrame:
        """One row a change: ``at`` (Datetime, UTC; null if not known), ``before``, ``after``, ``biz_status``."""
        rows = [(None if math.isnan(c.at) else c.at, c.before, c.after, c.biz_status) for c in self.changes]
        names = ("at", "before", "after", "biz_status")
        frame = pl.DataFrame(
            rows, schema={name: pl.Float64 if name == "at" else pl.String for name in names}, orient="row"
        )
        at = (pl.col("at") * 1e6).round().cast(pl.Int64)
        return frame.with_columns(pl.from_epoch(at, time_unit="us").dt.replace_time_zone("UTC").alias("at"))

    @property
    def title(self) -> str:
        """Which business it is."""
        return business_label(self.biz_no, self.name)

    def lines(self) -> list[tuple[str, str]]:
        """Return (when, what) of each change, in Korea's time zone."""
        lang = current_language()
        return [
            (
                seoul_iso(change.at) or gettext("at an unknown time"),
                f"{change.before or '–'} → {change.after or '–'}"
                + (f", {word_of(change.biz_status, lang)}" if change.biz_status else ""),
            )
            for change in self.changes
        ]

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        if not self.changes:
            return gettext(
                "{title}: no change of grade{value}",
                title=self.title,
                value=gettext(", still {grade}", grade=self.grade) if self.grade else "",
            )
        return "\n".join([self.title, *(f"{pad_text(when, 28)}{what}" for when, what in self.lines())])

    def _repr_html_(self) -> str:
        if not self.changes:
            return f"<p>{escape(repr(self))}</p>"
        return f"<div>{escape(self.title)}</div>{self._drawing()}{Shown._repr_html_(self)}"

    def chart(self) -> Chart:
        """Return grades over time as steps; raise :class:`UsageError` where no time is known, or without Altair."""
        known = [change for change in self.changes if not math.isnan(change.at)]
        if not known:
            raise UsageError(HISTORY_EMPTY, title=self.title)
        begin = known[0].at if self.created is None else min(self.created, known[0].at)
        if begin == known[-1].at:
            begin -= _DAY
        end = known[-1].at + (known[-1].at - begin) * _AFTER
        steps = [
            (begin, known[0].before, None),
            *((change.at, change.after, f"{change.before or '–'} → {change.after or '–'}") for change in known),
            (end, known[-1].after, None),
        ]
        frame = pl.DataFrame(steps, schema={"at": pl.Float64, "grade": pl.String, "said": pl.String}, orient="row")
        at = pl.from_epoch((pl.col("at") * 1e6).round().cast(pl.Int64), time_unit="us").dt.replace_time_zone("UTC")
        frame = frame.with_columns(at.alias("at"), pl.col("grade").fill_null("–"))
        return charts.grade_history(frame, _levels(known), gettext("Grade of {title} over time", title=self.title))

    def _drawing(self) -> str:
        """The chart as SVG, or a sentence where nothing draws."""
        try:
            return charts.as_svg(self.chart())
        except UsageError as error:
            return f"<p>{escape(str(error))}</p>"
        except (ImportError, ValueError):  # Altair says ValueError where vl-convert is missing
            sentence = gettext("charts need Altair: pip install 'bansong[notebook]'")
            return f"<p>{escape(sentence)}</p>"


def _levels(changes: list[Change]) -> list[str]:
    """The grades on the axis, the best at the top: the usual five, or those of the service in their order."""
    seen = dict.fromkeys(grade or "–" for change in changes for grade in (change.before, change.after))
    return list(GRADES) if set(seen) <= set(GRADES) else sorted(seen, key=lambda grade: (grade == "–", grade))


def seoul_iso(seconds: float | None) -> str | None:
    """A time as ISO 8601 in Korea's time zone, to the second; ``None`` where there is none."""
    if seconds is None or math.isnan(seconds):
        return None
    return datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")
