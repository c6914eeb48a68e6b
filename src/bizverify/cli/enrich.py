"""``bizverify enrich`` and ``bizverify plan``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bizverify.cli.console import columns_option, print_json, progress_shown, say_columns, say_table, warn
from bizverify.model import LANGS, RECORD_COLUMNS

if TYPE_CHECKING:
    from bizverify.report import Report

_PATH = click.Path(path_type=Path)


def _reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: list[Callable[..., Any]] = [
        click.argument("input", type=_PATH),
        click.option(
            "--engine",
            type=click.Choice(["local"]),
            default="local",
            show_default=True,
            help="Who answers: the embedded engine.",
        ),
        columns_option(RECORD_COLUMNS),
        click.option(
            "--sheet", metavar="NAME", help="The sheet of a workbook; by default the first that is not empty."
        ),
        click.option("--encoding", metavar="NAME", help="The encoding of a CSV input, where it is not found rightly."),
        click.option("--registry", type=_PATH, help="A registry built by `bizverify data build-registry`."),
        click.option("--model", type=_PATH, help="A scorecard file, in place of the built-in one."),
        click.option("--prefix", default="", metavar="P", help="What goes before the names of the added columns."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object on stdout."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="Verify a file and write it back with status, risk, action and reasons.")
@_reading_options
@click.option(
    "-o",
    "--output",
    type=_PATH,
    help="Default: INPUT.enriched.EXT beside it. Its extension chooses the format.",
)
@click.option("--in-place", is_flag=True, help="Replace the input by the enriched file.")
@click.option("--output-encoding", metavar="NAME", help="The encoding of a CSV output; by default the input's.")
@click.option(
    "--lang",
    type=click.Choice(LANGS),
    default="en",
    show_default=True,
    help="The language of reasons and notes.",
)
@click.option("--manifest", type=_PATH, help="Where the run's record goes; by default into the state directory.")
@click.option("--dry-run", is_flag=True, help="Plan only: write nothing, spend nothing.")
@click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "none"]),
    default="auto",
    show_default=True,
    help="How progress is shown.",
)
def enrich(as_json: bool, progress: str, **options: Any) -> None:
    """Verify every row of INPUT (CSV, TSV, XLSX, JSON, NDJSON, Parquet) and write the file back, nine columns wider.

    Every row stays, in its order, with its cells as they were. An existing output is replaced in one step when the new
    one is complete; after an error or an interruption it is what it was.
    """
    from bizverify import pipeline

    with progress_shown(progress) as advance:
        report = pipeline.enrich(**options, progress=advance)
    _show(report, as_json)
    click.get_current_context().exit(report.exit_code)


@click.command(short_help="Say what enrich would do and what it would cost.")
@_reading_options
def plan(as_json: bool, **options: Any) -> None:
    """Say what `enrich` would do with INPUT and what it would cost. Spends nothing and writes nothing."""
    from bizverify import pipeline

    _show(pipeline.plan(**options), as_json)


def _show(report: Report, as_json: bool) -> None:
    warn(report.warnings)
    if as_json:
        print_json(report.as_dict())
    else:
        say_columns(report.columns)
        say_table(report.lines())
