"""Reports of a check, a list and a history: as values, lines, and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.display import Shown, aligned_rows, pad_text
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import current_language, gettext, gettext_of, ngettext
from bansong.base.schema import GRADES, KOREAN_WORDS, SEOUL, word_of
from bansong.notify.queue import EVENT, SUMMARY, UNASKED, korean_iso
from bansong.run.charts import as_svg, grade_history
from bansong.watch.store import Change

if TYPE_CHECKING:
    from bansong.run.charts import Chart


HISTORY_EMPTY: Final = Problem(
    "watch.history_empty", "{title}: no change of grade whose time is known, nothing to draw"
)

SHOWN: Final = 5
_LONGEST: Final = 60  # characters of a business's number and name in a line


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Shown):
    """One check of a local list: of ``due`` watches ``checked`` were verified, ``first`` for the first time.

    ``changes``, ``closures`` (since the check before) and ``closed_already`` (at the first check) are frames:
    ``watch_id``, ``biz_no``, ``name``, ``address``, ``biz_status``, ``status_before``, ``grade_before``, ``grade``
    (String), ``bounce_prob`` (Float64). ``notices``: notifications of this check, and earlier undelivered ones, as a
    webhook gets them. ``undelivered``: failed deliveries: ``id``, ``biz_no``, ``channel``, ``error``. ``next_due`` in
    seconds since 1970. ``unasked``: numbers whose due status could not be fetched; ``status_exit_code``: 3 for a
    refused key, 5 if the next check fetches them.
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
        """3 for a failed notification or a refused key, 5 for statuses not fetched yet, else 0."""
        return 3 if self.undelivered else self.status_exit_code

    def as_dict(self) -> dict[str, Any]:
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
            "next_check_at": korean_iso(self.next_due),
            "seconds": round(self.seconds, 3),
            "warnings": list(map(str, self.warnings)),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        yield self.progress_line
        yield from self.news()
        yield from self.undelivered_lines()

    @property
    def _summaries(self) -> list[dict[str, Any]]:
        return [one for one in self.notices if one["event"] == SUMMARY]

    @property
    def progress_line(self) -> tuple[str, str]:
        if self.due or self.next_due is None:
            return gettext("checked"), gettext_of(self, "{checked:,} of {watched:,}")
        at = str(korean_iso(self.next_due))[:16].replace("T", " ")
        return gettext("checked"), gettext_of(self, "0 of {watched:,}: nothing was due; the next is due {at}", at=at)

    def news(self) -> Iterator[tuple[str, str]]:
        yield from self._closed_lines()
        closed = [one["watch_id"] for one in self.notices if one["event"] == EVENT]
        others = self.changes.filter(~pl.col("watch_id").is_in(closed))
        for change in others.head(4 * SHOWN).iter_rows(named=True):
            yield gettext("grade"), f"{change['grade_before'] or '–'} → {change['grade'] or '–'}  {_business(change)}"
        if (more := others.height - 4 * SHOWN) > 0:
            yield gettext("grade"), gettext("… and {height:,} more; the report as JSON lists all", height=more)

    def undelivered_lines(self) -> Iterator[tuple[str, str]]:
        for one in self.undelivered[:SHOWN]:
            what = format_number(one["biz_no"]) or _describe_notice(one["notice"])
            about = {"what": what, "channel": one["channel"], "error": one["error"] or gettext("not tried yet")}
            yield gettext("undelivered"), gettext("{what} by {channel}: {error}", **about)
        if (more := len(self.undelivered) - SHOWN) > 0:
            left = gettext("… and {undelivered:,} more; the next check tries again", undelivered=more)
            yield gettext("undelivered"), left

    def _closed_lines(self) -> Iterator[tuple[str, str]]:
        for closure in self.notices:
            if closure["event"] == EVENT:
                known = closure["status_before"]
                before = gettext(" (was {status})", status=word_of(known, current_language())) if known else ""
                yield gettext("closed"), f"{_business(closure)}{before}"
        numbers = [number for one in self._summaries for number in one["biz_nos"]]
        if not numbers:
            return
        names = dict(self.closed_already.select("biz_no", "name").iter_rows())
        first = ", ".join(_business_label(number, names.get(number)) for number in numbers[:SHOWN])
        listed = f"{first} …" if len(numbers) > SHOWN else first
        if len(names) != len(numbers):  # some are from an earlier check
            said = ngettext(
                "{count:,} checked for the first time was closed already: {listed}",
                "{count:,} checked for the first time were closed already: {listed}",
                len(numbers),
                listed=listed,
            )
        else:
            said = ngettext(
                "{count:,} of the {first:,} checked for the first time was closed already: {listed}",
                "{count:,} of the {first:,} checked for the first time were closed already: {listed}",
                len(numbers),
                first=self.first,
                listed=listed,
            )
        yield gettext("closed"), said


def _describe_notice(notice: Mapping[str, Any]) -> str:
    if notice["event"] == UNASKED:
        return ngettext(
            "{count:,} number not asked of the tax authority",
            "{count:,} numbers not asked of the tax authority",
            notice["numbers"],
        )
    return gettext("{closed:,} closed already", closed=notice["closed"])


def name_first(frame: pl.DataFrame) -> str:
    """Return a text with the count of businesses and the first few of them."""
    if frame.is_empty():
        return "0"
    first = ", ".join(_business(row) for row in frame.head(SHOWN).iter_rows(named=True))
    return f"{frame.height:,}: {first}{' …' if frame.height > SHOWN else ''}"


def _business(row: Mapping[str, Any]) -> str:
    return _business_label(row["biz_no"], row.get("name"))


def _business_label(biz_no: str | None, name: str | None) -> str:
    """Return number and name of a business on one line, shortened, without control characters."""
    text = " ".join(part for part in (format_number(biz_no), name) if part)
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def format_number(text: str | None) -> str:
    """Format ten digits with hyphens; return anything else unchanged."""
    return f"{text[:3]}-{text[3:5]}-{text[5:]}" if text and len(text) == 10 and text.isdecimal() else text or ""


_UNSEEN: Final = r"[\p{Cc}\p{Zl}\p{Zp}]+"
_MAX_CELL_CHARACTERS: Final = 24


def list_lines(frame: pl.DataFrame) -> list[str]:
    """Return a watch list as aligned lines."""
    if frame.is_empty():
        return [gettext("nothing is watched")]
    words = KOREAN_WORDS["biz_status"] if current_language() == "ko" else {}
    checked = pl.col("checked_at").str.slice(0, 16).str.replace("T", " ").fill_null(gettext("not yet"))
    columns = [
        (gettext("number"), pl.coalesce(business_number.format_expr(pl.col("biz_no")), "biz_no")),
        (gettext("name"), _shorten("name")),
        (gettext("status"), pl.col("biz_status").replace(words)),
        (gettext("grade"), pl.col("grade")),
        (gettext("checked"), checked),
        (gettext("address"), _shorten("address")),
        (gettext("watch id"), pl.col("watch_id")),
    ]
    if frame["checked_at"].null_count() + frame["created_at"].null_count() == 2 * frame.height:
        del columns[4]  # the service sends no times
    cells = [text.fill_null("").str.replace_all(_UNSEEN, " ").alias(str(at)) for at, (_, text) in enumerate(columns)]
    rows = with_local_times(frame).select(cells).rows()
    total = gettext("{count:,} watched", count=frame.height)
    if closed := frame.filter(pl.col("biz_status") == "closed").height:
        total += gettext(", {closed:,} of them closed", closed=closed)
    return [*aligned_rows([[header for header, _ in columns], *rows]), total]


def _shorten(name: str) -> pl.Expr:
    text = pl.col(name).str.replace_all(_UNSEEN, " ")
    shortened = text.str.head(_MAX_CELL_CHARACTERS - 1) + "…"
    return pl.when(text.str.len_chars() > _MAX_CELL_CHARACTERS).then(shortened).otherwise(text)


def with_local_times(frame: pl.DataFrame) -> pl.DataFrame:
    """Turn the times of a frame into texts in Korean time."""
    times = [name for name, dtype in frame.schema.items() if dtype == pl.Datetime]

    def in_seoul(at: datetime) -> str:
        return at.astimezone(SEOUL).isoformat(timespec="seconds")

    return frame.with_columns(pl.col(times).map_elements(in_seoul, return_dtype=pl.String)) if times else frame


_AFTER: Final = 0.06  # length of the line after the last change, as a share of the width
_DAY_S: Final = 86400.0


@dataclass(frozen=True, slots=True, repr=False)
class History(Shown):
    """The changes of grade of one watched business, oldest first. ``grade``: the current one.

    ``created``: when it was put on the list, in seconds since 1970. Displays as a plot and a table in a notebook.
    """

    watch_id: str
    biz_no: str
    name: str | None
    grade: str | None
    created: float | None
    changes: tuple[Change, ...]

    @property
    def frame(self) -> pl.DataFrame:
        """One row per change: ``at`` (Datetime, UTC; null if unknown), ``before``, ``after``, ``biz_status``."""
        rows = [(None if math.isnan(c.at) else c.at, c.before, c.after, c.biz_status) for c in self.changes]
        schema = {"at": pl.Float64, **dict.fromkeys(("before", "after", "biz_status"), pl.String)}
        return pl.DataFrame(rows, schema=schema, orient="row").with_columns(utc_expr("at"))

    @property
    def title(self) -> str:
        return _business_label(self.biz_no, self.name)

    def _describe(self) -> list[tuple[str, str]]:
        lang = current_language()
        return [
            (
                korean_iso(change.at) or gettext("at an unknown time"),
                f"{change.before or '–'} → {change.after or '–'}"
                + (f", {word_of(change.biz_status, lang)}" if change.biz_status else ""),
            )
            for change in self.changes
        ]

    def __repr__(self) -> str:
        if not self.changes:
            return gettext(
                "{title}: no change of grade{value}",
                title=self.title,
                value=gettext(", still {grade}", grade=self.grade) if self.grade else "",
            )
        return "\n".join([self.title, *(f"{pad_text(when, 28)}{what}" for when, what in self.lines())])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        if not self.changes:
            return f"<p>{escape(repr(self))}</p>"
        return f"<div>{escape(self.title)}</div>{self._drawing()}{Shown._repr_html_(self)}"

    def chart(self) -> Chart:
        """Return grades over time as steps; raise :class:`UsageError` without known times or Altair."""
        known = [change for change in self.changes if not math.isnan(change.at)]
        if not known:
            raise UsageError(HISTORY_EMPTY, title=self.title)
        begin = known[0].at if self.created is None else min(self.created, known[0].at)
        if begin == known[-1].at:
            begin -= _DAY_S
        end = known[-1].at + (known[-1].at - begin) * _AFTER
        steps = [
            (begin, known[0].before, None),
            *((change.at, change.after, f"{change.before or '–'} → {change.after or '–'}") for change in known),
            (end, known[-1].after, None),
        ]
        frame = pl.DataFrame(steps, schema={"at": pl.Float64, "grade": pl.String, "said": pl.String}, orient="row")
        frame = frame.with_columns(utc_expr("at"), pl.col("grade").fill_null("–"))
        return grade_history(frame, _levels(known), gettext("Grade of {title} over time", title=self.title))

    def _drawing(self) -> str:
        try:
            return as_svg(self.chart())
        except UsageError as error:
            return f"<p>{escape(str(error))}</p>"
        except (ImportError, ValueError):  # Altair raises ValueError if vl-convert is missing
            sentence = gettext("charts need Altair: pip install 'bansong[notebook]'")
            return f"<p>{escape(sentence)}</p>"


def _levels(changes: list[Change]) -> list[str]:
    seen = dict.fromkeys(grade or "–" for change in changes for grade in (change.before, change.after))
    return list(GRADES) if set(seen) <= set(GRADES) else sorted(seen, key=lambda grade: (grade == "–", grade))


def utc_expr(seconds: str) -> pl.Expr:
    """Turn a column of seconds since 1970 into Datetime (UTC)."""
    micros = (pl.col(seconds) * 1e6).round().cast(pl.Int64)
    return pl.from_epoch(micros, time_unit="us").dt.replace_time_zone("UTC")
