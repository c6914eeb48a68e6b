"""The report of labelling, and the list of unusable outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import polars as pl

from bansong.base import business_number
from bansong.base.display import Shown, listed_counts
from bansong.base.errors import OutputError, Problem
from bansong.base.messages import count_rows, gettext, gettext_of, ngettext
from bansong.base.publish import publish_file
from bansong.base.schema import Choice
from bansong.history.mailings import KINDS, PROBLEMS, MailingTerms, name_actions

if TYPE_CHECKING:
    from bansong.labels.sender import SendReport


REPORT_UNWRITABLE: Final = Problem("labels.report_unwritable", "{path}: cannot be written: {error}")

SHOWN: Final = 20
OTHER_MAILING: Final = "other_mailing"


@dataclass(frozen=True, slots=True)
class UnusedOutcome:
    """An unusable outcome: its row (from 1, or Excel's), a code of PROBLEMS, and the cell that shows it."""

    row: int
    problem: str
    value: str | None

    def __str__(self) -> str:
        value = f" ({self.value})" if self.value else ""
        return gettext(
            "row {row:,}{value}: {problem}", row=self.row, value=value, problem=gettext(PROBLEMS[self.problem])
        )


@dataclass(frozen=True, slots=True, repr=False)
class LabelReport(Shown):
    """The report of a table of outcomes. Displays as a table in a notebook and as text elsewhere.

    ``ways``: outcomes by how they found their row. ``bounced``, ``not_bounced``: labelled rows of these outcomes,
    ``by_reason``: returns by reason code (``none`` without one). ``new``, ``known``, ``replaced``: labelled rows by
    what the store had before. ``silent``: rows without an outcome, kept as delivered. Not learned from: ``unmailed``
    (declared as not mailed), ``unread`` (reasons of no scorecard). ``listed``: unusable outcomes, ``problems`` counts
    them; those of other mailings are only counted. ``usable``: rows of the mailing that learning can use now.
    """

    WIDTH: ClassVar[int] = 18

    outcomes: str
    rows: int
    blank: int
    only_returns: bool
    columns: Mapping[str, Choice]
    mailing: str
    file: str
    mailed_rows: int
    run_id: str | None
    engine: str | None
    model: str | None
    declaration: MailingTerms
    ways: Mapping[str, int]
    repeated: int
    bounced: int
    not_bounced: int
    by_reason: Mapping[str, int]
    new: int
    known: int
    replaced: int
    silent: int
    unmailed: int
    unread: int
    usable: int
    book: str
    listed: tuple[UnusedOutcome, ...] = ()
    problems: Mapping[str, int] = field(default_factory=dict)
    unmatched: str | None = None
    output: str | None = None
    sent: SendReport | None = None
    dry_run: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0; 3 if outcomes could not be used; 5 if labels are still to be sent."""
        sending: int = self.sent.exit_code if self.sent is not None else 0
        return sending or (3 if self.listed else 0)

    def as_dict(self) -> dict[str, object]:
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {
            "columns": {role: asdict(choice) for role, choice in self.columns.items()},
            "declaration": msgspec.to_builtins(self.declaration),
            "ways": dict(self.ways),
            "by_reason": dict(self.by_reason),
            "problems": dict(self.problems),
            "listed": [asdict(one) for one in self.listed],
            "sent": self.sent.as_dict() if self.sent is not None else None,
            "warnings": list(map(str, self.warnings)),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        yield from self._outcome_lines()
        yield from self._unused_lines()
        yield from self._book_lines()

    def _outcome_lines(self) -> Iterator[tuple[str, str]]:
        blank = gettext_of(self, ", {blank:,} blank") if self.blank else ""
        yield gettext("outcomes"), f"{self.outcomes}: {count_rows(self.rows)}{blank}"
        terms = _describe_terms(self.declaration)
        rows = count_rows(self.mailed_rows)
        yield gettext("mailing"), gettext_of(self, "{file}: {rows}, {terms}", rows=rows, terms=terms)
        ways = {gettext("by {way}", way=gettext(way)): count for way, count in self.ways.items()}
        yield gettext("matched"), listed_counts(ways)
        reasons = listed_counts({gettext(code): count for code, count in self.by_reason.items()})
        yield gettext("bounced"), f"{self.bounced:,} ({reasons})" if self.by_reason else f"{self.bounced:,}"
        yield gettext("not bounced"), f"{self.not_bounced:,}"
        if self.repeated:
            outcomes = ngettext("{count:,} outcome", "{count:,} outcomes", self.repeated)
            yield gettext("said again"), gettext("{outcomes} of a row that another one is of", outcomes=outcomes)

    def _unused_lines(self) -> Iterator[tuple[str, str]]:
        for kind, codes in KINDS.items():
            if count := sum(self.problems.get(code, 0) for code in codes):
                yield gettext(kind.replace("_", " ")), f"{count:,}"
        yield from (("", str(one)) for one in self.listed[:SHOWN])
        if len(self.listed) > SHOWN:
            rest = gettext("{count:,} more", count=len(self.listed) - SHOWN)
            yield "", rest if self.unmatched else gettext("{rest}; `unmatched='PATH'` writes them all", rest=rest)
        if others := self.problems.get(OTHER_MAILING):
            yield gettext("other mailings"), count_rows(others)

    def _book_lines(self) -> Iterator[tuple[str, str]]:
        kept = {gettext("new"): self.new, gettext("known before"): self.known, gettext("replaced"): self.replaced}
        yield gettext("would record") if self.dry_run else gettext("recorded"), listed_counts(kept)
        if self.silent:
            silent = ngettext("{count:,} mailed row", "{count:,} mailed rows", self.silent)
            yield gettext("silent"), gettext("{mailed_rows} without an outcome, taken as delivered", mailed_rows=silent)
        if self.unmailed:
            unmailed = ngettext("{count:,} outcome", "{count:,} outcomes", self.unmailed)
            left_out = gettext("{outcomes} of rows that `sent=` leaves out: not learned from", outcomes=unmailed)
            yield gettext("not mailed"), left_out
        if self.unread:
            rows = count_rows(self.unread)
            unread = gettext("{rows} of which no scorecard gave the reasons: not learned from", rows=rows)
            yield gettext("unread"), unread
        yield gettext("to learn from"), gettext("{rows} of this mailing", rows=count_rows(self.usable))
        if self.sent is not None:
            yield from ((gettext("service"), line) for line in self.sent.lines())
        paths = {gettext("unmatched in"): self.unmatched, gettext("output"): self.output, gettext("book"): self.book}
        yield from ((what, path) for what, path in paths.items() if path)

    def __repr__(self) -> str:
        return f"<bansong.LabelReport {self.mailing}: {self.bounced:,} bounced, {self.not_bounced:,} not>"


def unused_outcomes(frame: pl.DataFrame) -> tuple[UnusedOutcome, ...]:
    """Return the outcomes with a problem (``listed`` of a match), except those of other mailings."""
    listed = frame.filter(pl.col("problem") != OTHER_MAILING).sort("place")
    found = listed.select("place", "problem", _shown_cell().alias("value"))
    return tuple(UnusedOutcome(*row) for row in found.iter_rows())


def write_unused(frame: pl.DataFrame, path: Path) -> None:
    """Write unusable outcomes as CSV: row, problem, why, and the cells; raise :class:`OutputError`."""
    roles = {name: name.partition(":")[2] for name in frame.columns if name.startswith("written:")}
    words = {code: gettext(text) for code, text in PROBLEMS.items()}
    why = pl.col("problem").replace_strict(words, return_dtype=pl.String)
    texts = (pl.col(cell).alias(role) for cell, role in roles.items())
    cells = frame.sort("place").select(pl.col("place").alias("row"), "problem", why.alias("why"), *texts)
    with publish_file(path) as temporary:
        try:
            cells.write_csv(temporary, include_bom=True)
        except pl.exceptions.PolarsError as error:
            raise OutputError(REPORT_UNWRITABLE, path=path, error=error) from error


def _shown_cell() -> pl.Expr:
    """Return the cell that shows a problem: never an address, and a number only if it has ten digits."""
    cell = {
        "not_understood": pl.col("written:bounced"),
        "contradicts_itself": pl.col("written:bounced"),
        "date_not_read": pl.col("written:returned"),
        "no_row_id": pl.col("written:row_id"),
        "row_absent": pl.col("written:row_id"),
    }
    value = business_number.format_expr(pl.col("digits"))
    for problem, shown in cell.items():
        value = pl.when(pl.col("problem") == problem).then(shown.str.slice(0, 40)).otherwise(value)
    return value


def _describe_terms(declaration: MailingTerms) -> str:
    actions = name_actions(declaration.sent or ())
    words = [
        gettext("mailed {mailed}", mailed=declaration.mailed),
        declaration.mail_class or "",
        gettext("returns requested") if declaration.returns_requested else gettext("returns not requested"),
        gettext("complete") if declaration.complete else gettext("partial"),
        gettext("sent: {actions}", actions=actions) if actions else "",
    ]
    return ", ".join(filter(None, words))
