"""How a run reads its input and writes its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bansong.options.option_rules import Options, Rule, option
from bansong.schema import INPUT_FORMATS, LANGS, Lang
from bansong.translation import gettext_noop

ALL_SHEETS: Final = "*"
"""Instead of a sheet's name: every sheet that holds business numbers."""


def _names_headers(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(one, str) for one in value))


def _names_columns(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_names_headers, value.values()))


def _is_list_of_texts(value: object) -> bool:
    return not isinstance(value, str) and _names_headers(value)


@dataclass(frozen=True, slots=True)
class ReadOptions(Options):
    """How an input file is read; see :func:`bansong.enrich` for each field.

    Several names of sheets, or :data:`ALL_SHEETS`, are for inputs that are given in a list. ``input_format``: that of
    standard input, where its content leaves it open.
    """

    columns: Mapping[str, str | Sequence[str]] | None = option(
        flag="--columns",
        job="inputs.columns",
        rule=Rule(
            _names_columns,
            gettext_noop('roles with headers, all texts, as {"b_no": "사업자번호", "address": ["주소", "상세주소"]}'),
        ),
        help="Which header has which role; by default found from the headers. #3 means the third column; several "
        "headers with + between are one value: address=기본주소+상세주소; with | between, each row takes the first "
        "that is filled: 'address=도로명주소|지번주소'.",
    )
    sheet: str | Sequence[str] | None = option(
        flag="--sheet NAME",
        job="inputs.sheet",
        rule=Rule(_names_headers, gettext_noop("the name of a sheet, or a list")),
        help="The sheet of a workbook; by default the one that holds the number column. Several may be given; '*' is "
        "every sheet with business numbers.",
    )
    encoding: str | None = option(
        flag="--encoding NAME", job="inputs.encoding", help="The encoding of CSV inputs; by default it is detected."
    )
    json_path: str | None = option(
        flag="--json-path PATH",
        job="inputs.json_path",
        help="Where the list is in a JSON document, as in data.items; by default it is found.",
    )
    has_header: bool = option(
        True,
        off="--no-header",
        job="inputs.has_header",
        help="The first row of a CSV file or workbook is a row of the list: columns are called #1, #2, …",
    )
    input_format: str | None = option(
        flag="--input-format",
        choices=INPUT_FORMATS,
        help="Of standard input (-), where its content leaves the format open.",
    )
    delimiter: str | None = option(
        flag="--delimiter CHAR",
        job="inputs.delimiter",
        help=r"What stands between the cells of CSV inputs, such as ^ or \t or \x01; by default it is detected.",
    )


@dataclass(frozen=True, slots=True)
class WriteOptions(Options):
    """How an output file is written; see :func:`bansong.enrich` for each field."""

    output_encoding: str | None = option(
        flag="--output-encoding NAME",
        job="output.encoding",
        help="The encoding of a CSV output; by default the input's.",
    )
    in_place: bool = option(
        False, flag="--in-place", help="Replace the input by the enriched file; the old one stays as NAME.bak."
    )
    backup: bool = option(True, off="--no-backup", help="With --in-place: keep no NAME.bak.")
    select: Sequence[str] | None = option(
        flag="--select COLUMNS",
        job="output.select",
        help="Which of your columns the output keeps, separated by commas; by default all. #3 means the third column.",
    )
    prefix: str = option(
        "",
        flag="--prefix P",
        job="output.prefix",
        rule=Rule(lambda value: isinstance(value, str), gettext_noop("a text; an empty one for none")),
        help="What goes before the names of the added columns.",
    )
    summary: bool = option(
        False,
        flag="--summary",
        job="output.summary",
        help="Add a sheet with the run's figures to a workbook that is made anew.",
    )
    with_outcomes: bool = option(
        False,
        flag="--with-outcomes",
        job="output.with_outcomes",
        help="Add bounced, bounce_reason and bounced_at: what became of the last letter, as `bansong label` recorded "
        "it.",
    )
    manifest: str | Path | None = option(
        flag="--manifest", help="Where the run's record goes; by default into the state directory."
    )
    extra_columns: Sequence[str] = option(
        (),
        flag="--extra-columns COLUMNS",
        rule=Rule(_is_list_of_texts, gettext_noop("a list of columns, all texts")),
        help="Add columns behind the nine, separated by commas: duplicate_of, match_level, district_code, "
        "building_code.",
    )
    split: str | None = option(
        flag="--split",
        choices=("action", "조치"),
        help="Write a file for each action beside the output, too: OUT.send.csv and so on, together with every row.",
    )
    letters: str | Path | None = option(
        flag="--letters OUT",
        help="Write the list for the mail house, too: name, address and postal code of each letter to be sent.",
    )
    letter_cost: float | None = option(
        flag="--letter-cost WON", help="What a letter costs: the report says what is saved."
    )
    allow_empty: bool = option(
        False,
        flag="--allow-empty",
        help="With --letters, --split: let a list without a letter replace an earlier list, too.",
    )
    report: str | Path | None = option(
        flag="--report OUT", help="Write a web page of the run, too: OUT.html, to read, print and pass on."
    )
    unmask: bool = option(False, flag="--unmask", help="With --report: show numbers, names and addresses in the clear.")
    review: str | Path | None = option(
        flag="--review OUT.xlsx",
        help="Write a workbook of the addresses that are not sure, too, to choose from: see `bansong data "
        "apply-review`.",
    )
    headers: Lang | None = option(
        flag="--headers",
        choices=LANGS,
        job="output.headers",
        help="ko: Korean headers for the added columns of a CSV file or workbook, and Korean words in them.",
    )
