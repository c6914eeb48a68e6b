"""``bansong label``."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import click

from bansong.cli.console import show_report
from bansong.cli.options import PATH, account_options, given_options, json_option, options_of
from bansong.options import ReadOptions, ServiceOptions

_ROLES: Final = ("b_no", "address", "bounced", "reason", "returned", "mailed", "row_id")


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
    "--complete/--partial",
    default=False,
    show_default=True,
    help="Whether all that comes back has come back by now.",
)
@click.option("--mail-class", metavar="WORD", help="How it was mailed, in a word: ordinary, registered, bulk.")
@click.option(
    "--sent",
    metavar="all|ACTION,…",
    help="Which rows were mailed. With --complete those without an outcome then count as delivered.",
)
@options_of(ReadOptions, "columns", roles=_ROLES)
@click.option("--sheet", metavar="NAME", help="The sheet of a workbook; by default the one with the number column.")
@options_of(ReadOptions, "encoding", "delimiter")
@click.option("--json-path", metavar="PATH", help="Where the list is in a JSON document; by default it is found.")
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
    from bansong.labels.labelling import label as record

    day: date | None = mailed.date() if mailed else None
    report = record(outcomes, mailed=day, **given_options(options))
    show_report(report, as_json)
    click.get_current_context().exit(report.exit_code)
