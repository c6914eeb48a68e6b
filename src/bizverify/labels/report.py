"""The report of labelling, and the list of outcomes that could not be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import polars as pl

from bizverify import business_number
from bizverify.errors import OutputError
from bizverify.labels.mailing_terms import MailingTerms
from bizverify.labels.matching import KINDS, PROBLEMS
from bizverify.report_display import Shown, listed_counts
from bizverify.schema import Choice, pluralize
from bizverify.tables import publish_file

if TYPE_CHECKING:
    from bizverify.labels.label_sender import SendReport

SHOWN: Final = 20
"""Outcomes that could not be used: so many are listed in the text of a report."""

OTHER_MAILING: Final = "other_mailing"


@dataclass(frozen=True, slots=True)
class UnusedOutcome:
    """An outcome that could not be used as it is: its row (from 1), a code of PROBLEMS, and the cell that shows it."""

    row: int
    problem: str
    value: str | None

    def __str__(self) -> str:
        value = f" ({self.value})" if self.value else ""
        return f"row {self.row:,}{value}: {PROBLEMS[self.problem]}"


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
            "warnings": list(self.warnings),
        }

    def lines(self) -> list[tuple[str, str]]:
        """The report as (what, how much) for people."""
        kinds = {kind: sum(self.problems.get(code, 0) for code in codes) for kind, codes in KINDS.items()}
        found = [
            (
                "outcomes",
                f"{self.outcomes}: {pluralize(self.rows, 'row')}" + (f", {self.blank:,} blank" * bool(self.blank)),
            ),
            ("mailing", f"{self.file}: {pluralize(self.mailed_rows, 'row')}, {_describe_terms(self.declaration)}"),
            ("matched", listed_counts({f"by {way}": count for way, count in self.ways.items()})),
            ("bounced", f"{self.bounced:,}" + (f" ({listed_counts(self.by_reason)})" if self.by_reason else "")),
            ("not bounced", f"{self.not_bounced:,}"),
        ]
        if self.repeated:
            found.append(("said again", f"{pluralize(self.repeated, 'outcome')} of a row that another one is of"))
        found += [(kind.replace("_", " "), f"{count:,}") for kind, count in kinds.items() if count]
        found += [("", str(one)) for one in self.listed[:SHOWN]]
        if len(self.listed) > SHOWN:
            rest = f"{len(self.listed) - SHOWN:,} more"
            found.append(("", rest if self.unmatched else f"{rest}; `unmatched='PATH'` writes them all"))
        if others := self.problems.get(OTHER_MAILING):
            found.append(("other mailings", pluralize(others, "row")))
        return [*found, *self._book_lines()]

    def _book_lines(self) -> list[tuple[str, str]]:
        kept = {"new": self.new, "known before": self.known, "replaced": self.replaced}
        would = "would record" if self.dry_run else "recorded"
        found = [(would, listed_counts(kept))]
        if self.silent:
            found.append(("silent", f"{pluralize(self.silent, 'mailed row')} without an outcome, taken as delivered"))
        if self.unmailed:
            found.append(
                (
                    "not mailed",
                    f"{pluralize(self.unmailed, 'outcome')} of rows that `sent=` leaves out: not learned from",
                )
            )
        if self.unread:
            found.append(
                (
                    "unread",
                    f"{pluralize(self.unread, 'row')} of which no scorecard gave the reasons: not learned from",
                )
            )
        found.append(("to learn from", f"{pluralize(self.usable, 'row')} of this mailing"))
        if self.sent is not None:
            found += [("service", line) for line in self.sent.lines()]
        paths = {"unmatched in": self.unmatched, "output": self.output, "book": self.book}
        return [*found, *((what, path) for what, path in paths.items() if path)]

    def __repr__(self) -> str:
        return f"<bizverify.LabelReport {self.mailing}: {self.bounced:,} bounced, {self.not_bounced:,} not>"


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
    why = pl.col("problem").replace_strict(PROBLEMS, return_dtype=pl.String)
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
            raise OutputError(f"{path}: cannot be written: {error}") from error


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
    words = [
        f"mailed {declaration.mailed}",
        declaration.mail_class or "",
        "returns requested" if declaration.returns_requested else "returns not requested",
        "complete" if declaration.complete else "partial",
        f"sent: {', '.join(declaration.sent)}" if declaration.sent else "",
    ]
    return ", ".join(filter(None, words))
