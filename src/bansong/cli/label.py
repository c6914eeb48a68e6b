"""`label` and `calibrate`."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.display import aligned_rows
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import current_language, gettext, ngettext
from bansong.base.options import ServiceOptions
from bansong.base.schema import word_of
from bansong.cli.console import end_with, pair_lines, print_result, warn
from bansong.cli.options import PATH, account_options, given_options, json_option, list_options, options_of

if TYPE_CHECKING:
    import polars as pl

    from bansong.learning.report import Calibration


@click.command(short_help="Record what came back of a mailing, and why.")
@click.argument("outcomes", type=PATH)
@click.option("--run", metavar="ID", help="The run that wrote the mailed file: its id, or the path of its manifest.")
@click.option("--file", type=PATH, metavar="ENRICHED", help="The enriched file that was mailed.")
@click.option(
    "--mailed",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="The day of mailing, as 2026-10-05; may be left out where OUTCOMES have one and the same in all rows.",
)
@click.option(
    "--returns-requested/--returns-not-requested",
    default=None,
    help="Whether undeliverable letters were to come back (registered, or marked for return). Must be said.",
)
@click.option(
    "--complete/--partial", default=False, show_default=True, help="Whether all that comes back has come back by now."
)
@click.option("--mail-class", metavar="WORD", help="How it was mailed, in a word: ordinary, registered, bulk.")
@click.option(
    "--sent",
    metavar="all|ACTION,…",
    help="Which rows were mailed. With --complete those without an outcome then count as delivered.",
)
@list_options("b_no", "address", "bounced", "reason", "returned", "mailed", "row_id")
@click.option("--file-sheet", metavar="NAME", help="The sheet of the enriched file; by default found as --sheet.")
@click.option("--file-encoding", metavar="NAME", help="The encoding of an enriched CSV file, as --encoding.")
@click.option("--file-delimiter", metavar="CHAR", help="The delimiter of an enriched CSV file, as --delimiter.")
@click.option("--file-json-path", metavar="PATH", help="Where the list is in an enriched JSON file, as --json-path.")
@click.option("-o", "--output", type=PATH, help="Write the enriched file again, with what came back in three columns.")
@click.option("--output-encoding", metavar="NAME", help="The encoding of a CSV output; by default ENRICHED's.")
@click.option(
    "--unmatched", type=PATH, metavar="PATH", help="Write a CSV of the outcomes that could not be used, and why."
)
@click.option("--replace", is_flag=True, help="Where OUTCOMES contradict what was recorded before, take the new.")
@click.option("--book", type=PATH, metavar="FOLDER", help="Where labels are kept; by default in the state directory.")
@click.option(
    "--send/--no-send",
    default=None,
    help="Send the outcomes to the service's jobs, too; default: if the run bought in jobs and its address is known.",
)
@click.option("--resend", is_flag=True, help="Send again what was refused or is in doubt.")
@click.option(
    "--first-row", type=click.IntRange(0, 2), help="What the service calls a job's first row, where it does not say."
)
@account_options
@options_of(ServiceOptions, "ledger", "known_as", "rate", "concurrency")
@click.option("--dry-run", is_flag=True, help="Match only: record, write and send nothing.")
@json_option
def label(outcomes: Path, as_json: bool, mailed: datetime | None, **options: Any) -> None:
    """Record which letters of a mailing came back, and why, so that the risk can be learned from it.

    OUTCOMES is any table that `enrich` reads: with a business number, best with the address or the row's number from 0
    (row_id), and columns such as 반송여부, 반송사유, 반송일자. A list of only what came back needs no 반송여부.

    The same outcomes may be given again, in parts, in any order: each letter counts once. What fits no row, or
    contradicts, is listed and never guessed; the exit code is then 3.
    """
    from bansong.labels.label import label as record

    day: date | None = mailed.date() if mailed else None
    report = record(outcomes, mailed=day, **given_options(options))
    end_with(report, as_json)


FILES_WITHOUT_REPORT: Final = Problem(
    "cli.files_without_report", "files are for --report-only; what is learned from was recorded with `bansong label`"
)
OPTION_NEEDS_LEARNING: Final = Problem(
    "cli.option_needs_learning", "{chosen} does not learn, so {option} says nothing with it; give one of them"
)
REPORT_SOURCE_UNCLEAR: Final = Problem(
    "cli.report_source_unclear", "give labelled files or --labels; a report is of one of them"
)


@click.command(short_help="Relearn the scorecard from the letters that came back.")
@click.argument("files", nargs=-1, type=PATH, metavar="[LABELLED]…")
@click.option("--labels", type=PATH, metavar="FOLDER", help="The folder of labels; by default the state directory's.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided; promote and record nothing.")
@click.option("--report-only", is_flag=True, help="Only compare the probabilities with what came back; learn nothing.")
@click.option("--audit-sample", type=PATH, metavar="PATH", help="Write the rows to be audited, and do nothing else.")
@click.option("--audited", type=PATH, metavar="PATH", help="The audited rows: they decide on quarantined labels.")
@json_option
def calibrate(
    files: tuple[Path, ...],
    labels: Path | None,
    dry_run: bool,
    report_only: bool,
    audit_sample: Path | None,
    audited: Path | None,
    as_json: bool,
) -> None:
    """Relearn the scorecard from the letters whose outcome is known, and let it answer if it is surely better.

    The labels are those that `bansong label` recorded. What is learned replaces the champion only when the
    evidence for it is overwhelming; labels that look wrong are quarantined until an audit releases them (exit code 3).
    See `bansong model` for what was decided, and for the way back.

    With --report-only, LABELLED are enriched files with outcomes, as `bansong label --output` writes them; without
    any, the report is of the recorded labels. The probabilities may be the service's as well.
    """
    _refuse(
        {"--report-only": report_only, "--audit-sample": audit_sample is not None},
        {"--dry-run": dry_run, "--audited": audited is not None},
    )
    if files and not report_only:
        raise UsageError(FILES_WITHOUT_REPORT)
    if audit_sample is not None:
        _audit_sample(audit_sample, labels, as_json)
    elif report_only:
        if files and labels is not None:
            raise UsageError(REPORT_SOURCE_UNCLEAR)
        _report(files, labels, as_json)
    else:
        from bansong.learning.calibrate import calibrate as learn

        result = learn(labels=labels, dry_run=dry_run, audited=audited)
        warn(result.warnings)
        print_result(as_json, result.as_dict(), pair_lines(result.lines()))
        click.get_current_context().exit(result.exit_code)


def _refuse(instead: dict[str, bool], learning: dict[str, bool]) -> None:
    chosen = [option for option, given in instead.items() if given]
    for option in [*chosen[1:], *(option for option, given in learning.items() if given and chosen)]:
        raise UsageError(OPTION_NEEDS_LEARNING, chosen=chosen[0], option=option)


def _audit_sample(path: Path, labels: Path | None, as_json: bool) -> None:
    from bansong.learning.calibrate import audit_sample

    rows = audit_sample(path, labels=labels)
    lines = [
        ngettext("{count:,} row to be audited: {path}", "{count:,} rows to be audited: {path}", rows, path=path),
        gettext("find out what became of each letter, write it into the file, and give it back with --audited"),
    ]
    print_result(as_json, {"audit_sample": str(path), "rows": rows}, lines)


def _report(files: tuple[Path, ...], labels: Path | None, as_json: bool) -> None:
    from bansong.learning.report import file_calibration, store_calibration

    reports = {str(path): file_calibration(path) for path in files} or dict([store_calibration(labels)])
    for name, report in reports.items():
        warn(f"{name}: {warning}" for warning in report.warnings)
    value = {"reports": [{"labels": name, **report.as_dict()} for name, report in reports.items()]}
    print_result(as_json, value, (line for name, report in reports.items() for line in _report_lines(name, report)))


def _report_lines(name: str, report: Calibration) -> list[str]:
    from bansong.learning.report import GROUP_WORDS

    lines = [*pair_lines([(gettext("labels"), name), *report.lines()])]
    lines += _frame_lines(gettext("reliability, by tenths of the rows"), report.frame)
    for column, frame in report.groups.items():
        lines += _frame_lines(gettext("by {column}", column=gettext(GROUP_WORDS.get(column, column))), frame)
    return [*lines, ""]


def _frame_lines(title: str, frame: pl.DataFrame) -> list[str]:
    if frame.is_empty():
        return []
    from bansong.learning.report import FIGURE_WORDS

    header = [gettext(FIGURE_WORDS.get(name, name)) for name in frame.columns]
    rows = [["" if value is None else _cell(value) for value in row] for row in frame.iter_rows()]  # a report has few
    right = [at for at, dtype in enumerate(frame.dtypes) if dtype.is_numeric()]
    return ["", title, *aligned_rows([header, *rows], right)]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return word_of(str(value), current_language())
