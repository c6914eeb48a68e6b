"""``bizverify data …``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from bizverify.cli.console import print_json, say_columns, say_table
from bizverify.cli.options import PATH, columns_option, encoding_option, json_option


@click.group()
def data() -> None:
    """Build the local data that the embedded engine looks things up in."""


@data.command(short_help="Build a registry of businesses and their status.")
@click.argument("sources", type=PATH, nargs=-1, required=True, metavar="SRC…")
@click.option("-o", "--output", type=PATH, required=True, metavar="OUT.parquet", help="The registry file.")
@columns_option(("b_no", "status", "since", "opened", "as_of"))
@click.option(
    "--as-of",
    type=click.DateTime(["%Y-%m-%d"]),
    help="How fresh sources without a date column are; default: their file's date.",
)
@encoding_option
@json_option
def build_registry(
    sources: tuple[Path, ...],
    output: Path,
    columns: dict[str, str] | None,
    as_of: datetime | None,
    encoding: str | None,
    as_json: bool,
) -> None:
    """Build a registry from files, or folders of files, with a number and a status column.

    Any table that `enrich` reads will do: lists of statuses, the mail-order registry's CSVs, files enriched before. The
    newest row of a number wins. Statuses are understood in Korean and English; words that are not are listed.
    """
    from bizverify.data import build_registry

    report = build_registry(sources, output, columns=columns, as_of=as_of.date() if as_of else None, encoding=encoding)
    if as_json:
        print_json(report.as_dict())
        return
    for source, chosen in zip(report.sources, report.columns, strict=True):
        if len(report.sources) <= 10:
            say_table([("source", source)])
            say_columns(chosen)
    say_table(report.lines())
