"""The report of labelling, and the list of outcomes that could not be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import polars as pl

from bansong import business_number
from bansong.errors import OutputError, Problem
from bansong.labels.mailing_terms import MailingTerms, name_actions
from bansong.labels.matching import KINDS, PROBLEMS
from bansong.report_display import Shown, listed_counts
from bansong.schema import Choice
from bansong.tables import publish_file
from bansong.translation import gettext, ngettext

if TYPE_CHECKING:
    from bansong.labels.label_sender import SendReport

REPORT_UNWRITABLE: Final = Problem("labels.report_unwritable", "{path}: cannot be written: {error}")

SHOWN: Final = 20
"""Outcomes that could not be used: so many are listed in the text of a report."""

OTHER_MAILING: Final = "other_mailing"


@dataclass(frozen=True, slots=True)
class UnusedOutcome:
    """An outcome that could not be used as it is: its row, a code of PROBLEMS, and the cell that shows it.

    ``row``: from 1; of a workbook, the one that Excel shows.
    """

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
    ``by_reason`` those that came back by reason code (``none`` where no reason was given). ``new``, ``known``,
    ``replaced``: labelled rows by whether the store had them before. ``silent``: mailed rows without an outcome that
    the store keeps as delivered. ``unmailed``: labelled rows that, by what was declared, were not mailed, so that
    nothing is learned from them. ``unread``: rows of which no scorecard gave the reasons.
    ``listed``: outcomes that could not be used, ``problems`` counts them; those of other mailings are only counted.
    ``usable``: rows of the mailing from which can be learned now.
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
        """0, or 3 when outcomes could not be used or understood; 5 when labels are still to be sent."""
        sending: int = self.sent.exit_code if self.sent is not None else 0
        return sending or (3 if self.listed else 0)

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, as ``--json`` prints it."""
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

    def lines(self) -> list[tuple[str, str]]:
        """The report as (what, how much) for people."""
        return [*self._outcome_lines(), *self._unused_lines(), *self._book_lines()]

    def _outcome_lines(self) -> list[tuple[str, str]]:
        """What the outcomes say, and of which rows they are."""
        rows = ngettext("{count:,} row", "{count:,} rows", self.rows)
        blank = gettext(", {blank:,} blank", blank=self.blank) if self.blank else ""
        mailed = gettext(
            "{file}: {rows}, {terms}",
            file=self.file,
            rows=ngettext("{count:,} row", "{count:,} rows", self.mailed_rows),
            terms=_describe_terms(self.declaration),
        )
        ways = {gettext("by {way}", way=gettext(way)): count for way, count in self.ways.items()}
        reasons = listed_counts({gettext(code): count for code, count in self.by_reason.items()})
        found = [
            (gettext("outcomes"), f"{self.outcomes}: {rows}{blank}"),
            (gettext("mailing"), mailed),
            (gettext("matched"), listed_counts(ways)),
            (gettext("bounced"), f"{self.bounced:,} ({reasons})" if self.by_reason else f"{self.bounced:,}"),
            (gettext("not bounced"), f"{self.not_bounced:,}"),
        ]
        if self.repeated:
            outcomes = ngettext("{count:,} outcome", "{count:,} outcomes", self.repeated)
            again = gettext("{outcomes} of a row that another one is of", outcomes=outcomes)
            found.append((gettext("said again"), again))
        return found

    def _unused_lines(self) -> list[tuple[str, str]]:
        """The outcomes that could not be used, by kind, and the first of them."""
        kinds = {kind: sum(self.problems.get(code, 0) for code in codes) for kind, codes in KINDS.items()}
        found = [(gettext(kind.replace("_", " ")), f"{count:,}") for kind, count in kinds.items() if count]
        found += [("", str(one)) for one in self.listed[:SHOWN]]
        if len(self.listed) > SHOWN:
            rest = gettext("{count:,} more", count=len(self.listed) - SHOWN)
            found.append(
                ("", rest if self.unmatched else gettext("{rest}; `unmatched='PATH'` writes them all", rest=rest))
            )
        if others := self.problems.get(OTHER_MAILING):
            found.append((gettext("other mailings"), ngettext("{count:,} row", "{count:,} rows", others)))
        return found

    def _book_lines(self) -> list[tuple[str, str]]:
        kept = {gettext("new"): self.new, gettext("known before"): self.known, gettext("replaced"): self.replaced}
        would = gettext("would record") if self.dry_run else gettext("recorded")
        found = [(would, listed_counts(kept))]
        if self.silent:
            found.append(
                (
                    gettext("silent"),
                    gettext(
                        "{mailed_rows} without an outcome, taken as delivered",
                        mailed_rows=ngettext("{count:,} mailed row", "{count:,} mailed rows", self.silent),
                    ),
                )
            )
        if self.unmailed:
            found.append(
                (
                    gettext("not mailed"),
                    gettext(
                        "{outcomes} of rows that `sent=` leaves out: not learned from",
                        outcomes=ngettext("{count:,} outcome", "{count:,} outcomes", self.unmailed),
                    ),
                )
            )
        if self.unread:
            found.append(
                (
                    gettext("unread"),
                    gettext(
                        "{rows} of which no scorecard gave the reasons: not learned from",
                        rows=ngettext("{count:,} row", "{count:,} rows", self.unread),
                    ),
                )
            )
        found.append(
            (
                gettext("to learn from"),
                gettext("{rows} of this mailing", rows=ngettext("{count:,} row", "{count:,} rows", self.usable)),
            )
        )
        if self.sent is not None:
            found += [(gettext("service"), line) for line in self.sent.lines()]
        paths = {
            gettext("unmatched in"): self.unmatched,
            gettext("output"): self.output,
            gettext("book"): self.book,
        }
        return [*found, *((what, path) for what, path in paths.items() if path)]

    def __repr__(self) -> str:
        return f"<bansong.LabelReport {self.mailing}: {self.bounced:,} bounced, {self.not_bounced:,} not>"


def unused_outcomes(frame: pl.DataFrame) -> tuple[UnusedOutcome, ...]:
    """Return the outcomes with a problem (``listed`` of a match), but for those of other mailings."""
    found = (
        frame.filter(pl.col("problem") != OTHER_MAILING)
        .sort("place")
        .select("place", "problem", _shown_cell().alias("value"))
    )
    return tuple(UnusedOutcome(*row) for row in found.iter_rows())


def write_unused(frame: pl.DataFrame, path: Path) -> None:
    """Write what could not be used as CSV: row, problem, why, and the cells that were read; raises OutputError."""
    roles = {name: name.partition(":")[2] for name in frame.columns if name.startswith("written:")}
    words = {code: gettext(text) for code, text in PROBLEMS.items()}
    why = pl.col("problem").replace_strict(words, return_dtype=pl.String)
    cells = frame.sort("place").select(
        pl.col("place").alias("row"),
        "problem",
        why.alias("why"),
        *(pl.col(cell).alias(role) for cell, role in roles.items()),
    )
    with publish_file(path) as temporary:
        try:
            cells.write_csv(temporary, include_bom=True)
        except pl.exceptions.PolarsError as error:
            raise OutputError(REPORT_UNWRITABLE, path=path, error=error) from error


def _shown_cell() -> pl.Expr:
    """The cell that shows a problem: never an address, and a number only where it is a business number's ten digits."""
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
    """A declaration in words."""
    actions = name_actions(declaration.sent or ())
    words = [
        gettext("mailed {mailed}", mailed=declaration.mailed),
        declaration.mail_class or "",
        gettext("returns requested") if declaration.returns_requested else gettext("returns not requested"),
        gettext("complete") if declaration.complete else gettext("partial"),
        gettext("sent: {actions}", actions=actions) if actions else "",
    ]
    return ", ".join(filter(None, words))
