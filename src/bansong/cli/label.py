"""`label` and `calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bansong.base.display import aligned_rows
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import current_language, gettext
from bansong.base.options import ServiceOptions
from bansong.base.schema import word_of
from bansong.cli.console import end_with, pair_lines, print_result, warn
from bansong.cli.options import PATH, account_options, given_options, json_option, options_of
from bansong.labels.options import LabelOptions

if TYPE_CHECKING:
    import polars as pl

    from bansong.learning.report import Calibration

_ROLES: Final = ("b_no", "address", "bounced", "reason", "returned", "mailed", "row_id")


@click.command(short_help="Record what came back of a mailing, and why.")
@click.argument("outcomes", type=PATH)
@options_of(LabelOptions, roles=_ROLES)
@click.option(
    "--first-row", type=click.IntRange(0, 2), help="What the service calls a job's first row, where it does not say."
)
@account_options
@options_of(ServiceOptions, "ledger", "known_as", "rate", "concurrency")
@click.option("--dry-run", is_flag=True, help="Match only: record, write and send nothing.")
@json_option
def label(outcomes: Path, as_json: bool, **options: Any) -> None:
    """Record which letters of a mailing came back, and why, so that the risk can be learned from it.

    OUTCOMES is any table that `enrich` reads: with a business number, best with the address or the row's number from 0
    (row_id), and columns such as 반송여부, 반송사유, 반송일자. A list of only what came back needs no 반송여부.

    The same outcomes may be given again, in parts, in any order: each letter counts once. What fits no row, or
    contradicts, is listed and never guessed; the exit code is then 3.
    """
    from bansong.labels.label import label as record

    report = record(outcomes, **given_options(options))
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
@json_option
def calibrate(
    files: tuple[Path, ...],
    labels: Path | None,
    dry_run: bool,
    report_only: bool,
    as_json: bool,
) -> None:
    """Relearn the scorecard from the letters whose outcome is known, and let it answer if it is surely better.

    The labels are those that `bansong label` recorded. What is learned replaces the champion only when the
    evidence for it is overwhelming; labels that look wrong are quarantined until they are corrected (exit code 3).
    See `bansong model` for what was decided, and for the way back.

    With --report-only, LABELLED are enriched files with outcomes, as `bansong label --output` writes them; without
    any, the report is of the recorded labels. The probabilities may be the service's as well.
    """
    if report_only and dry_run:
        raise UsageError(OPTION_NEEDS_LEARNING, chosen="--report-only", option="--dry-run")
    if files and not report_only:
        raise UsageError(FILES_WITHOUT_REPORT)
    if report_only:
        if files and labels is not None:
            raise UsageError(REPORT_SOURCE_UNCLEAR)
        _report(files, labels, as_json)
    else:
        from bansong.learning.calibrate import calibrate as learn

        result = learn(labels=labels, dry_run=dry_run)
        warn(result.warnings)
        print_result(as_json, result.as_dict(), pair_lines(result.lines()))
        click.get_current_context().exit(result.exit_code)


def _report(files: tuple[Path, ...], labels: Path | None, as_json: bool) -> None:
    from bansong.learning.report import file_calibration, store_calibration

    reports = {str(path): file_calibration(path) for path in files} or dict([store_calibration(labels)])
    for name, report in reports.items():
        warn(f"{name}: {warning}" for warning in report.warnings)
    value = {"reports": [{"labels": name, **report.as_dict()} for name, report in reports.items()]}
    print_result(as_json, value, (line for name, report in reports.items() for line in _report_lines(name, report)))


def _report_lines(name: str, report: Calibration) -> list[str]:
    lines = [*pair_lines([(gettext("labels"), name), *report.lines()])]
    lines += _frame_lines(gettext("reliability, by tenths of the rows"), report.frame)
    for column, frame in report.groups.items():
        lines += _frame_lines(gettext("by {column}", column=gettext(column)), frame)
    return [*lines, ""]


def _frame_lines(title: str, frame: pl.DataFrame) -> list[str]:
    if frame.is_empty():
        return []
    from bansong.learning.report import ABBREVIATIONS

    header = [gettext(ABBREVIATIONS.get(name, name)) for name in frame.columns]
    rows = [["" if value is None else _cell(value) for value in row] for row in frame.iter_rows()]  # a report has few
    right = [at for at, dtype in enumerate(frame.dtypes) if dtype.is_numeric()]
    return ["", title, *aligned_rows([header, *rows], right)]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return word_of(str(value), current_language())
