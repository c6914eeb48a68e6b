"""The commands `enrich`, `plan`, `report`, `verify` and `status`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from bansong.base.messages import current_language, gettext, gettext_noops
from bansong.base.options import ALL_SHEETS, ENGINE_KINDS, ReadOptions, ServiceOptions, StatusOptions
from bansong.base.schema import word_of
from bansong.cli.console import (
    end_with,
    freeze_imports,
    print_json,
    print_out,
    print_result,
    print_table,
    progress_shown,
    say,
    say_table,
    warn,
)
from bansong.cli.options import (
    PATH,
    ParsedType,
    account_options,
    add_all,
    chosen_status,
    engine_option,
    fetch_options,
    given_options,
    is_configured,
    json_option,
    local_options,
    options_of,
    progress_option,
)
from bansong.run.options import LocalOptions, RunOptions, WriteOptions, installed_lines, parse_won

_planned_options: Final = add_all(
    [
        click.argument("inputs", metavar="INPUT…", type=PATH, nargs=-1, required=True),
        engine_option(*ENGINE_KINDS),
        *(options_of(kind) for kind in (ReadOptions, LocalOptions, StatusOptions, RunOptions, ServiceOptions)),
        json_option,
    ]
)


@click.command(short_help="Verify a file and write it back with status, risk, action and reasons.")
@_planned_options
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="Default: INPUT.enriched.EXT beside it. Its extension chooses the format. Of several inputs, the folder for "
    "all outputs; of one workbook with several sheets, the file or a folder. -: standard output.",
)
@options_of(WriteOptions)
@click.option("--dry-run", is_flag=True, help="Plan only: write nothing, spend nothing.")
@progress_option
def enrich(as_json: bool, progress: str, **options: Any) -> None:
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
        from bansong.run import enrich as enrich_files

    given = _chosen_options(options)
    if as_json and _goes_to_stdout(given):
        raise click.UsageError(gettext("--json prints to standard output, and so goes the file; name the output."))
    with progress_shown(progress, "lookups" if ENGINE_KINDS[options["engine"]].buys else "rows") as advance:
        report = enrich_files.enrich(**given, progress=advance)
    end_with(report, as_json, installed_lines(given))


@click.command(short_help="Say what enrich would do and what it would cost.")
@_planned_options
@options_of(WriteOptions, "select", "prefix")
def plan(as_json: bool, **options: Any) -> None:
    """Say what `enrich` would do with INPUT and what it would cost. Spends nothing and writes nothing."""
    with freeze_imports():
        from bansong.run import enrich as enrich_files

    given = _chosen_options(options)
    report = enrich_files.plan(**given)
    end_with(report, as_json, installed_lines(given))


def _chosen_options(options: dict[str, Any]) -> dict[str, Any]:
    # one input that holds one table, for one output file, is passed alone, not in a list
    from bansong.tables.inputs import is_one_file

    status, given = chosen_status(options), local_options(options)
    inputs, sheets, output = given.pop("inputs"), given.pop("sheet", ()), given.get("output")
    if sheets:
        given["sheet"] = sheets if len(sheets) > 1 else sheets[0]
    if "headers" in given and is_configured("headers") and not _take_headers([output] if output else inputs):
        del given["headers"]
    into_folder = output is not None and (output.endswith(os.sep) or os.path.isdir(output))  # noqa: PTH112 - raises for no name
    is_one = len(inputs) == 1 and is_one_file(inputs[0]) and len(sheets) < 2 and ALL_SHEETS not in sheets
    is_alone = is_one and not into_folder and not given.get("keep_going") and not given.get("merge")
    return given | {"input": inputs[0] if is_alone else inputs, "status": status}


def _take_headers(outputs: Sequence[str | Path]) -> bool:
    # no remembered setting may refuse an output of JSON or Parquet
    from bansong.tables.detect import EXTENSIONS
    from bansong.tables.streams import unpacked_name

    formats = (EXTENSIONS.get(unpacked_name(Path(one)).suffix.lower()) for one in outputs)
    return all(format is None or format.can.korean_headers or not format.can.written for format in formats)


def _goes_to_stdout(given: Mapping[str, Any]) -> bool:
    if given["dry_run"] or given.get("in_place"):
        return False
    return given["output"] == "-" or (given["output"] is None and given["input"] == Path("-"))


@click.command(short_help="Write a run as one page to read, print and pass on.")
@click.argument("run", metavar="RUN|FILE")
@click.option("-o", "--output", type=PATH, required=True, help="Where the page goes: OUT.html.")
@click.option(
    "--letter-cost", type=ParsedType("WON", parse_won), help="What a letter costs: the page says what is at stake."
)
@click.option("--before", metavar="FILE", help="The enriched file of an earlier run, to say what changed since.")
@click.option("--unmask", is_flag=True, help="Show numbers, names and addresses in the clear.")
@click.option("--sheet", metavar="NAME", help="The sheet of an enriched workbook.")
@options_of(ReadOptions, "encoding", "delimiter")
@click.option("--json-path", metavar="PATH", help="Where the list is in an enriched JSON document.")
@json_option
def report(as_json: bool, **options: Any) -> None:
    """Write a run of `enrich` as one HTML page: figures, charts, the riskiest rows, corrections, and how it came about.

    RUN is the id that a report of `enrich` ends with, or the path of a manifest; FILE is an enriched file. The page
    loads nothing from any network, and masks people's data.
    """
    with freeze_imports():
        from bansong.run.page import report_page

    written = report_page(**options)
    print_result(as_json, {"page": str(written)}, [gettext("{path} written", path=written)])


@click.command(short_help="Write the list for the mail house from an enriched file as people left it.")
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "-o", "--output", type=PATH, required=True, help="Where the list goes: OUT.xlsx, .csv, .json or .parquet."
)
@options_of(WriteOptions, "letter_columns", "letter_cost", "allow_empty", "prefix")
@click.option("--sheet", metavar="NAME", help="The sheet of an enriched workbook.")
@options_of(ReadOptions, "columns", "encoding", "delimiter", "json_path")
@json_option
def letters(as_json: bool, **options: Any) -> None:
    """Write the list for the mail house from an enriched FILE as people left it.

    Their actions, corrected addresses and names count. FILE may be sorted and filtered, with columns added and rows
    removed. Rows that they set to send against bansong's own answer are counted and named.
    """
    with freeze_imports():
        from bansong.run.decisions import letters as write_letters

    end_with(write_letters(**given_options(options)), as_json)


_EXIT_CODES: Final = {"invalid": 2, "failed": 3, "in_doubt": 3, "pending": 5}


@click.command(short_help="Verify one business.")
@click.argument("b_no", metavar="B_NO")
@click.option("--name", help="The business's name.")
@click.option("--address", help="Its address; with it the risk of a bounce is assessed.")
@click.option("--zipcode", help="Its postal code.")
@engine_option("local", "verify")
@options_of(LocalOptions)
@options_of(StatusOptions)
@options_of(RunOptions, "labels", "no_labels", "choices", "no_choices")
@account_options
@options_of(ServiceOptions, "ledger", "known_as", "max_age", "buy_suspect", "retry_trial")
@json_option
def verify(as_json: bool, **options: Any) -> None:
    """Verify one business by its number, readable or as JSON.

    With `--engine verify` the hosted service is asked, unless the ledger has its answer. Exit code 2 if it cannot be a
    business number, 3 if the answer is in doubt or unusable, 5 if it is still to be had.
    """
    with freeze_imports():
        from bansong.run import verify as verify_business

    status, given = chosen_status(options), local_options(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        answer = verify_business.verify(**given, status=status)
    warn(str(warning.message) for warning in caught)
    if as_json:
        print_json(answer.as_dict())
    else:
        print_out(str(answer))
        say_table(installed_lines(given))
    click.get_current_context().exit(_EXIT_CODES.get(answer.row_status, 0))


_COLUMNS: Final = gettext_noops("b_no", "status", "since", "taxation", "as of", "note")


@click.command(short_help="Ask the tax authority for the status of businesses.")
@click.argument("numbers", nargs=-1, required=True, metavar="B_NO…")
@fetch_options
@json_option
def status(numbers: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Ask the tax authority's free API for the status of businesses by their numbers, readable or as JSON.

    What was fetched in the last `--max-status-age` days is not asked again. Exit code 2 if one cannot be a business
    number, 4 if the key is refused, 5 if not all could be asked.
    """
    from bansong.run.statuses import look_up_statuses

    found = look_up_statuses(numbers, chosen_status(options))
    rows = found.frame.to_dicts()
    if as_json:
        print_json({"statuses": rows, "halt": found.fetch.halt})
    else:
        print_table(_COLUMNS, map(_cells, rows))
    if found.fetch.halt is not None:
        say(f"bansong: {found.fetch.halt}")
    is_invalid = any(row["b_no"] is None for row in rows)
    click.get_current_context().exit(found.fetch.exit_code or (2 if is_invalid else 0))


def _cells(row: Mapping[str, Any]) -> list[str]:
    digits = row["b_no"]
    number = f"{digits[:3]}-{digits[3:5]}-{digits[5:]}" if digits else None
    status = word_of(row["biz_status"], current_language()) if row["biz_status"] else None
    if row["merged"]:
        status = gettext("{status} (merged)", status=status)
    return [str(value or "-") for value in (number, status, row["since"], row["taxation"], row["as_of"], row["note"])]
