"""Options of writing, of the local engine and of a run; the list of all option classes."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from bansong.base.files import installed_path
from bansong.base.messages import LANGS, Lang, gettext, gettext_noop, ngettext
from bansong.base.option import Options, Rule, option
from bansong.base.options import (
    ENGINE_KINDS,
    ReadOptions,
    ServiceOptions,
    StatusOptions,
    StatusSource,
    is_list_of_texts,
    is_text,
)
from bansong.base.schema import seoul_day

if TYPE_CHECKING:
    from bansong.base.display import AskedProgress
    from bansong.engine.address.gazetteer import Gazetteer
    from bansong.engine.registry import Registry
    from bansong.engine.risk.scorecard import Scorecard


_TEXTS = Rule(is_list_of_texts, gettext_noop("a list of columns, all texts"))


def parse_won(text: str) -> float:
    """Return the number of an amount as people write it, ``1,000`` or ``500원``; raise ``ValueError`` for others."""
    plain = unicodedata.normalize("NFKC", text).strip().removeprefix("₩").removesuffix("원").strip()
    if not re.fullmatch(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?", plain):
        raise ValueError(gettext("{value!r} is no amount in won; write 500, 1,000 or 500원", value=text))
    return float(plain.replace(",", ""))


@dataclass(frozen=True, slots=True)
class WriteOptions(Options):
    """How to write an output file; see :func:`bansong.enrich` for each field."""

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
        rule=Rule(is_text, gettext_noop("a text; an empty one for none")),
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
        configurable=True,
        rule=_TEXTS,
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
    letter_columns: Sequence[str] = option(
        (),
        flag="--letter-columns COLUMNS",
        configurable="letters.columns",
        rule=_TEXTS,
        help="With --letters: further columns of yours for the list, separated by commas; it has the customers' keys.",
    )
    letter_cost: float | None = option(
        flag="--letter-cost WON",
        configurable="letters.cost",
        parse=parse_won,
        help="What a letter costs, as 500, 1,000 or 500원: the report says what is saved.",
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
    decisions: str | Path | Literal[False] | None = option(
        flag="--decisions FILE",
        off="--no-decisions",
        help="Keep what people decided in this earlier output: their actions, addresses and columns; by default in the "
        "output that is replaced.",
        off_help="Keep nothing that people changed in the output that is replaced.",
    )
    headers: Lang | None = option(
        flag="--headers",
        choices=LANGS,
        job="output.headers",
        configurable=True,
        help="ko: Korean headers for the added columns of a CSV file or workbook, and Korean words in them.",
    )
    merge: bool = option(
        False,
        flag="--merge",
        help="Write one file with the rows of all inputs, -o OUT: the column `file` says which input a row is from. "
        "--split and --review are of this file then.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions(Options):
    """Options of the local engine that a run opens, see :class:`bansong.LocalEngine`."""

    registry: str | Path | Registry | None = option(
        flag="--registry",
        off="--no-registry",
        job="reference.registry",
        configurable=True,
        help="A registry built by `bansong data build-registry`; by default the installed one.",
        off_help="Use no registry, not even the installed one.",
    )
    gazetteer: str | Path | Gazetteer | None = option(
        flag="--gazetteer",
        off="--no-gazetteer",
        job="reference.gazetteer",
        configurable=True,
        help="The official addresses, built by `bansong data build-gazetteer`: addresses and postal codes are "
        "corrected. By default the installed ones.",
        off_help="Use no gazetteer, not even the installed one.",
    )
    model: str | Path | Scorecard | None = option(
        flag="--model PATH|VERSION",
        parse=str,
        job="reference.model",
        help="A scorecard file, a version of `bansong model history`, or builtin; default: the one promoted last.",
    )
    lang: Lang | None = None
    today: date | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """Options of a run that do not concern its engine; see :func:`bansong.enrich` for each field."""

    status: StatusSource | StatusOptions = "auto"
    max_status_age: float | None = None
    labels: str | Path | Literal[False] | None = option(
        flag="--labels",
        off="--no-labels",
        job="reference.labels",
        help="The folder of recorded labels: what came back of earlier letters; by default labels in the state "
        "directory.",
        off_help="Do not use what came back of earlier letters.",
    )
    choices: str | Path | Literal[False] | None = option(
        flag="--choices",
        off="--no-choices",
        help="The file of addresses chosen in reviews; by default BANSONG_CHOICES, else in the state directory.",
        off_help="Do not use the addresses that were chosen in reviews.",
    )
    keep_going: bool = option(
        False, flag="--keep-going", help="Of several inputs, leave out those that cannot be enriched: exit code 3."
    )
    progress: AskedProgress = True


class IfPresent(tuple[str, ...]):
    """Headers for ``letter_columns`` that were remembered: a list may lack some of them."""

    __slots__ = ()


OPTION_KINDS = (ReadOptions, WriteOptions, LocalOptions, RunOptions, ServiceOptions, StatusOptions)

REFERENCE_FILES: Final = ("registry", "gazetteer")
NOT_USED: Final = "none"  # as a path in job files and config.toml


def with_installed(given: Mapping[str, Any], engine: str = "local") -> dict[str, Any]:
    """Return options of the local engine with the installed reference files in place of those that were not given.

    The command line, jobs and the server call it; for Python, ``registry=None`` means none (decision 073).
    """
    chosen = {**given}
    for name in REFERENCE_FILES:
        path = given.get(name)
        if path is None and ENGINE_KINDS[engine].answers_locally and os.path.isfile(installed_path(name)):  # noqa: PTH113
            chosen[name] = installed_path(name)
        elif path is False or str(path) == NOT_USED:
            chosen[name] = None
    return chosen


def installed_lines(used: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a report's line on the installed files among the ``used`` options: which, how old; none without them."""
    from bansong.engine.address.gazetteer import Gazetteer
    from bansong.engine.registry import Registry

    said = []
    if (path := used.get("registry")) == installed_path("registry"):
        said.append(gettext("statuses of {age}", age=describe_age(Registry.open(path).newest)))
    if (path := used.get("gazetteer")) == installed_path("gazetteer"):
        said.append(gettext("addresses of {age}", age=describe_age(Gazetteer.open(path).source_date)))
    return [(gettext("installed"), ", ".join(said))] if said else []


def describe_age(day: date | None, today: date | None = None) -> str:
    """Return a day and how long ago it was."""
    if day is None:
        return gettext("a day that is not known")
    ago = ((today or seoul_day()) - day).days
    return ngettext("{day} ({count:,} day ago)", "{day} ({count:,} days ago)", ago, day=day)
