"""The options of :func:`bansong.label`, without an import of polars, since ``--help`` loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from bansong.base.option import Options, option, option_of
from bansong.base.options import ReadOptions, ServiceKeywords

if TYPE_CHECKING:
    from bansong.history.labels import LabelStore


class LabelKeywords(ServiceKeywords, total=False):
    """The keywords of :func:`bansong.label`."""

    run: str | Path | None
    file: str | Path | None
    mailed: date | str | None
    returns_requested: bool | None
    complete: bool
    mail_class: str | None
    sent: str | Sequence[str] | None
    columns: Mapping[str, str] | None
    sheet: str | None
    encoding: str | None
    json_path: str | None
    delimiter: str | None
    file_sheet: str | None
    file_encoding: str | None
    file_json_path: str | None
    file_delimiter: str | None
    output: str | Path | None
    output_encoding: str | None
    unmatched: str | Path | None
    replace: bool
    book: str | Path | LabelStore | None
    dry_run: bool
    today: date | str | None
    send: bool | None
    resend: bool
    first_row: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions(Options):
    """Options of reading, matching, recording and sending outcomes; see :func:`bansong.label` for each field."""

    run: str | Path | None = option(
        flag="--run ID", parse=str, help="The run that wrote the mailed file: its id, or the path of its manifest."
    )
    file: str | Path | None = option(
        flag="--file ENRICHED", help="The enriched file that was mailed, or its list of letters."
    )
    mailed: date | str | None = option(
        flag="--mailed DATE",
        help="The day of mailing, as 2026-10-05; may be left out where OUTCOMES have one and the same in all rows.",
    )
    returns_requested: bool | None = option(
        flag="--returns-requested/--returns-not-requested",
        help="Whether undeliverable letters were to come back (registered, or marked for return). Must be said.",
    )
    complete: bool = option(
        False, flag="--complete/--partial", help="Whether all that comes back has come back by now."
    )
    mail_class: str | None = option(
        flag="--mail-class WORD", help="How it was mailed, in a word: ordinary, registered, bulk."
    )
    sent: str | Sequence[str] | None = option(
        flag="--sent all|ACTION,…",
        parse=str,
        help="Which rows were mailed. With --complete those without an outcome then count as delivered.",
    )
    columns: Mapping[str, str] | None = option_of(ReadOptions, "columns")
    sheet: str | None = option(
        flag="--sheet NAME", help="The sheet of a workbook; by default the one with the number column."
    )
    encoding: str | None = option_of(ReadOptions, "encoding")
    delimiter: str | None = option_of(ReadOptions, "delimiter")
    json_path: str | None = option(
        flag="--json-path PATH", help="Where the list is in a JSON document; by default it is found."
    )
    file_sheet: str | None = option(
        flag="--file-sheet NAME", help="The sheet of the enriched file; by default found as --sheet."
    )
    file_encoding: str | None = option(
        flag="--file-encoding NAME", help="The encoding of an enriched CSV file, as --encoding."
    )
    file_delimiter: str | None = option(
        flag="--file-delimiter CHAR", help="The delimiter of an enriched CSV file, as --delimiter."
    )
    file_json_path: str | None = option(
        flag="--file-json-path PATH", help="Where the list is in an enriched JSON file, as --json-path."
    )
    output: str | Path | None = option(
        flag="--output", short="-o", help="Write the enriched file again, with what came back in three columns."
    )
    output_encoding: str | None = option(
        flag="--output-encoding NAME", help="The encoding of a CSV output; by default ENRICHED's."
    )
    unmatched: str | Path | None = option(
        flag="--unmatched PATH", help="Write a CSV of the outcomes that could not be used, and why."
    )
    replace: bool = option(
        False, flag="--replace", help="Where OUTCOMES contradict what was recorded before, take the new."
    )
    book: str | Path | LabelStore | None = option(
        flag="--book FOLDER", help="Where labels are kept; by default in the state directory."
    )
    dry_run: bool = False
    today: date | str | None = None
    send: bool | None = option(
        flag="--send/--no-send",
        help="Send the outcomes to the service's jobs, too; default: if the run bought in jobs and its address is "
        "known.",
    )
    resend: bool = option(False, flag="--resend", help="Send again what was refused or is in doubt.")
    first_row: int | None = None
