"""``bansong enrich`` and ``bansong plan``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from bansong.cli.console import freeze_imports, progress_shown, show_report
from bansong.cli.options import (
    PATH,
    choices_option,
    chosen_choices,
    chosen_labels,
    chosen_status,
    columns_option,
    delimiter_option,
    encoding_option,
    engine_option,
    gazetteer_option,
    given_options,
    json_option,
    labels_option,
    model_option,
    no_choices_option,
    no_labels_option,
    registry_option,
    select_option,
    service_options,
    status_options,
)
from bansong.options import ALL_SHEETS, ENGINE_KINDS
from bansong.schema import CONTEXT_COLUMNS, INPUT_FORMATS, LANGS, RECORD_COLUMNS
from bansong.translation import gettext


def _reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options: list[Callable[..., Any]] = [
        click.argument("inputs", metavar="INPUT…", type=PATH, nargs=-1, required=True),
        engine_option(*ENGINE_KINDS),
        columns_option((*RECORD_COLUMNS, *CONTEXT_COLUMNS)),
        click.option(
            "--sheet",
            metavar="NAME",
            multiple=True,
            help="The sheet of a workbook; by default the one that holds the number column. Several may be given; '*' "
            "is every sheet with business numbers.",
        ),
        click.option(
            "--input-format",
            type=click.Choice(INPUT_FORMATS),
            help="Of standard input (-), where its content leaves the format open.",
        ),
        encoding_option,
        delimiter_option,
        click.option(
            "--json-path",
            metavar="PATH",
            help="Where the list is in a JSON document, as in data.items; by default it is found.",
        ),
        click.option(
            "--no-header",
            "has_header",
            is_flag=True,
            flag_value=False,
            default=True,
            help="The first row of a CSV file or workbook is a row of the list: columns are called #1, #2, …",
        ),
        registry_option,
        status_options,
        gazetteer_option,
        model_option,
        labels_option,
        no_labels_option,
        choices_option,
        no_choices_option,
        select_option,
        click.option(
            "--keep-going",
            is_flag=True,
            help="Of several inputs, leave out those that cannot be enriched: exit code 3.",
        ),
        click.option("--prefix", default="", metavar="P", help="What goes before the names of the added columns."),
        service_options,
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="Verify a file and write it back with status, risk, action and reasons.")
@_reading_options
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="Default: INPUT.enriched.EXT beside it. Its extension chooses the format. Of several inputs, the folder for "
    "all outputs; of one workbook with several sheets, the file or a folder. -: standard output.",
)
@click.option("--in-place", is_flag=True, help="Replace the input by the enriched file; the old one stays as NAME.bak.")
@click.option("--no-backup", is_flag=True, help="With --in-place: keep no NAME.bak.")
@click.option("--summary", is_flag=True, help="Add a sheet with the run's figures to a workbook that is made anew.")
@click.option(
    "--with-outcomes",
    is_flag=True,
    help="Add bounced, bounce_reason and bounced_at: what became of the last letter, as `bansong label` recorded it.",
)
@click.option(
    "--extra-columns",
    multiple=True,
    metavar="COLUMNS",
    help="Add columns behind the nine, separated by commas: duplicate_of, match_level, district_code, building_code.",
)
@click.option(
    "--split",
    type=click.Choice(["action", "조치"]),
    help="Write a file for each action beside the output, too: OUT.send.csv and so on, together with every row.",
)
@click.option(
    "--letters",
    type=PATH,
    metavar="OUT",
    help="Write the list for the mail house, too: name, address and postal code of each letter to be sent.",
)
@click.option(
    "--allow-empty",
    is_flag=True,
    help="With --letters, --split: let a list without a letter replace an earlier list, too.",
)
@click.option("--letter-cost", type=float, metavar="WON", help="What a letter costs: the report says what is saved.")
@click.option(
    "--report", type=PATH, metavar="OUT", help="Write a web page of the run, too: OUT.html, to read, print and pass on."
)
@click.option("--unmask", is_flag=True, help="With --report: show numbers, names and addresses in the clear.")
@click.option(
    "--review",
    type=PATH,
    metavar="OUT.xlsx",
    help="Write a workbook of the addresses that are not sure, too, to choose from: see `bansong data apply-review`.",
)
@click.option(
    "--headers",
    type=click.Choice(LANGS),
    help="ko: Korean headers for the added columns of a CSV file or workbook, and Korean words in them.",
)
@click.option("--output-encoding", metavar="NAME", help="The encoding of a CSV output; by default the input's.")
@click.option("--manifest", type=PATH, help="Where the run's record goes; by default into the state directory.")
@click.option("--dry-run", is_flag=True, help="Plan only: write nothing, spend nothing.")
@click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "none"]),
    default="auto",
    show_default=True,
    help="How progress is shown.",
)
def enrich(as_json: bool, progress: str, no_backup: bool, labels: Path | None, no_labels: bool, **options: Any) -> None:
    """Verify every row of INPUT and write the file back, nine columns wider.

    INPUT is CSV, TSV, JSON, NDJSON (all of them also as .gz or .zst), XLSX, XLSM or Parquet; XLS, XLSB and ODS are read
    and come back as XLSX. - is standard input. s3://, gs:// and az:// are read and written, https:// is read.

    Several inputs, a folder, a pattern ('in/*.csv') or a partitioned Parquet dataset are one run with one report: what
    is the same in several files is bought once. -o names the folder for the outputs then.

    Every row stays, in its order, with its cells as they were. An existing output is replaced in one step when the new
    one is complete; after an error or an interruption it is what it was.

    The engines verify, batch and hybrid buy from the hosted service. What was bought is in the ledger and is not bought
    again; a run that was stopped goes on where it was when the same command is given again.
    """
    with freeze_imports():
        from bansong.api import enrich_files

    status, choices = chosen_status(options), chosen_choices(options)
    given = _chosen_inputs(options)
    if as_json and _goes_to_stdout(given):
        raise click.UsageError(gettext("--json prints to standard output, and so goes the file; name the output."))
    with progress_shown(progress, "lookups" if ENGINE_KINDS[options["engine"]].buys else "rows") as advance:
        report = enrich_files.enrich(
            **given,
            status=status,
            labels=chosen_labels(labels, no_labels),
            choices=choices,
            backup=not no_backup,
            progress=advance,
        )
    show_report(report, as_json)
    click.get_current_context().exit(report.exit_code)


@click.command(short_help="Say what enrich would do and what it would cost.")
@_reading_options
def plan(as_json: bool, labels: Path | None, no_labels: bool, **options: Any) -> None:
    """Say what `enrich` would do with INPUT and what it would cost. Spends nothing and writes nothing."""
    with freeze_imports():
        from bansong.api import enrich_files

    status, choices = chosen_status(options), chosen_choices(options)
    report = enrich_files.plan(
        **_chosen_inputs(options), status=status, labels=chosen_labels(labels, no_labels), choices=choices
    )
    show_report(report, as_json)
    click.get_current_context().exit(report.exit_code)


def _chosen_inputs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for the library: one input by itself, where it is one table that goes into one file."""
    from bansong.tables.input_files import is_one_file

    given = given_options(options)
    inputs, sheets, output = given.pop("inputs"), given.pop("sheet"), given.get("output")
    given["sheet"] = sheets if len(sheets) > 1 else next(iter(sheets), None)
    into_folder = output is not None and (output.endswith(os.sep) or os.path.isdir(output))  # noqa: PTH112 - raises for no name
    is_one = len(inputs) == 1 and is_one_file(inputs[0]) and len(sheets) < 2 and ALL_SHEETS not in sheets
    return given | {"input": inputs[0] if is_one and not into_folder and not given["keep_going"] else inputs}


def _goes_to_stdout(given: Mapping[str, Any]) -> bool:
    """Whether the enriched file goes to standard output."""
    if given["dry_run"] or given["in_place"]:
        return False
    return given["output"] == "-" or (given["output"] is None and given["input"] == Path("-"))
