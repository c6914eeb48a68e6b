"""``bansong report``."""

from __future__ import annotations

from pathlib import Path

import click

from bansong.cli.console import freeze_imports, print_result
from bansong.cli.options import PATH, json_option, options_of
from bansong.options import ReadOptions
from bansong.translation import gettext


@click.command(short_help="Write a run as one page to read, print and pass on.")
@click.argument("run", metavar="RUN|FILE")
@click.option("-o", "--output", type=PATH, required=True, help="Where the page goes: OUT.html.")
@click.option("--letter-cost", type=float, metavar="WON", help="What a letter costs: the page says what is at stake.")
@click.option("--before", metavar="FILE", help="The enriched file of an earlier run, to say what changed since.")
@click.option("--unmask", is_flag=True, help="Show numbers, names and addresses in the clear.")
@click.option("--sheet", metavar="NAME", help="The sheet of an enriched workbook.")
@options_of(ReadOptions, "encoding", "delimiter")
@click.option("--json-path", metavar="PATH", help="Where the list is in an enriched JSON document.")
@json_option
def report(
    run: str,
    output: Path,
    letter_cost: float | None,
    before: str | None,
    unmask: bool,
    sheet: str | None,
    encoding: str | None,
    json_path: str | None,
    delimiter: str | None,
    as_json: bool,
) -> None:
    """Write a run of `enrich` as one HTML page: figures, charts, the riskiest rows, corrections, and how it came about.

    RUN is the id that a report of `enrich` ends with, or the path of a manifest; FILE is an enriched file. The page
    loads nothing from any network, and masks people's data.
    """
    with freeze_imports():
        from bansong.report_page import report_page

    written = report_page(
        run,
        output,
        letter_cost=letter_cost,
        before=before,
        unmask=unmask,
        sheet=sheet,
        encoding=encoding,
        json_path=json_path,
        delimiter=delimiter,
    )
    print_result(as_json, {"page": str(written)}, [gettext("{path} written", path=written)])
