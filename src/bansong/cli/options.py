"""Options that several commands have, each written once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from bansong.cloud.remote_path import as_path
from bansong.column_words import role_code, role_word
from bansong.options import STATUS_SOURCES, ServiceKeywords, StatusOptions
from bansong.translation import current_language, gettext

if TYPE_CHECKING:
    _ColumnsBase = click.ParamType[dict[str, str], str]
    _RateBase = click.ParamType[float, str]
    _BandBase = click.ParamType[tuple[float, float], str]
    _DurationBase = click.ParamType[float, str]
    _PathBase = click.Path[Path]
else:  # only newer versions of click can be subscripted
    _ColumnsBase = _RateBase = _BandBase = _DurationBase = click.ParamType
    _PathBase = click.Path

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class PathType(_PathBase):
    """The type of files: a path, or the URL of a remote file, which a path alone would misspell."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        return as_path(os.fsdecode(super().convert(value, param, ctx)))


PATH: Final = PathType()


class ColumnsType(_ColumnsBase):
    """The type of ``--columns``: ``role=HEADER,role=HEADER``; a header with a comma goes into an option of its own."""

    name = "role=HEADER,…"

    def __init__(self, roles: Iterable[str]) -> None:
        self._roles = tuple(roles)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """Read the roles; fail with the usage message for anything else."""
        if isinstance(value, dict):
            return value
        found: dict[str, str] = {}
        last = None
        for part in str(value).split(","):
            role, equals, header = part.partition("=")
            if equals and role_code(role.strip()) in self._roles:
                last = role_code(role.strip())
                found[last] = header.strip()
            elif last is not None:  # a comma inside a header
                found[last] += f",{part}"
            else:
                self.fail(
                    gettext(
                        "{part!r} is not role=HEADER; the roles are {listed}",
                        part=part,
                        listed=", ".join(role_word(role, current_language()) for role in self._roles),
                    ),
                    param,
                    ctx,
                )
        return found


def columns_option(roles: Iterable[str]) -> Decorator:
    """The option ``--columns``."""
    return click.option(
        "--columns",
        type=ColumnsType(roles),
        help="Which header has which role; by default found from the headers. #3 means the third column; several "
        "headers with + between are one value: address=기본주소+상세주소; with | between, each row takes the first "
        "that is filled: 'address=도로명주소|지번주소'.",
    )


class RateType(_RateBase):
    """The type of ``--rate``: ``50`` or ``50/s``."""

    name = "N/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number; fail with the usage message for anything else."""
        try:
            return float(str(value).removesuffix("/s"))
        except ValueError:
            self.fail(gettext("{value!r} is no rate; give requests per second, as 50 or 50/s", value=value), param, ctx)


class BandType(_BandBase):
    """The type of ``--band``: ``0.08-0.5``."""

    name = "LOW-HIGH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """Read two probabilities; fail with the usage message for anything else."""
        low, _, high = str(value).partition("-")
        try:
            return float(low), float(high)
        except ValueError:
            self.fail(
                gettext("{value!r} is no band; give two probabilities, the lower first, as 0.08-0.5", value=value),
                param,
                ctx,
            )


class DurationType(_DurationBase):
    """The type of ``--overlap``, a length of time: ``7d``, ``12h``, ``30m``, ``45s``, or ``0``; a year at most."""

    name = "TIME"
    _UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    _MOST: Final = 366 * 86_400

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; fail with the usage message for anything else."""
        found = re.fullmatch(r"0+|([0-9]{1,9})([dhms])", str(value), re.ASCII)
        if found is None:
            self.fail(gettext("{value!r} is no length of time; write 7d, 12h, 30m, 45s, or 0", value=value), param, ctx)
        seconds = float(int(found[1] or 0) * self._UNITS[found[2] or "s"])
        if seconds > self._MOST:
            self.fail(gettext("{value!r} is longer than a year (366d)", value=value), param, ctx)
        return seconds


_WHO: Final = (
    click.option("--base-url", metavar="URL", help="The service's address; by default BANSONG_BASE_URL."),
    click.option(
        "--key-file",
        type=PATH,
        help="A file that holds the API key; by default the key is BANSONG_API_KEY. It is never an argument.",
    ),
    click.option(
        "--allow-http", is_flag=True, help="Allow plain http to another machine: the key can be read on its way."
    ),
)
ledger_option: Final[Decorator] = click.option(
    "--ledger",
    type=PATH,
    help="The file that records what was paid; by default BANSONG_LEDGER, else in the state directory.",
)
known_as_option: Final[Decorator] = click.option(
    "--known-as",
    metavar="URL",
    help="The address under which the ledger knows the service, where it was another one then. Nothing is sent there.",
)
_HOW: Final = (
    ledger_option,
    known_as_option,
    click.option("--max-age", type=float, metavar="DAYS", help="How long a paid answer is used again; default 30."),
    click.option("--buy-suspect", is_flag=True, help="Buy numbers whose check digit is wrong, too."),
    click.option(
        "--retry-trial",
        is_flag=True,
        help="Try once more to buy from a service that has answered nothing: one more upload of 100 rows.",
    ),
)
_HOW_MUCH: Final = (
    click.option("--budget", type=int, metavar="N", help="Buy N lookups at most, the most useful first."),
    click.option(
        "--priority",
        metavar="COLUMN",
        help="With a budget: the rows with the largest value here come first. Default: those least sure.",
    ),
    click.option("--rate", type=RateType(), help="Requests per second; default 50."),
    click.option("--concurrency", type=int, metavar="N", help="Requests under way at once; default 16."),
    click.option(
        "--band", type=BandType(), help="hybrid: buy where the local probability lies here; default 0.08-0.5."
    ),
    click.option("--offline/--no-offline", default=None, help="batch: passed on to the service as given."),
    click.option("--paid/--no-paid", default=None, help="batch: passed on to the service as given."),
)


def engine_option(*engines: str) -> Decorator:
    """The option ``--engine``."""
    return click.option(
        "--engine",
        type=click.Choice(engines),
        default="local",
        show_default=True,
        help="Who answers: the embedded engine at no cost, or the hosted service, paid (hybrid: both).",
    )


def account_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which service, and as whom."""
    return _all(_WHO, command)


def single_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an engine that buys one lookup."""
    return _all((*_WHO, *_HOW), command)


def service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the engines that buy for a file."""
    return _all((*_WHO, *_HOW, *_HOW_MUCH), command)


def _all(options: Iterable[Decorator], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(tuple(options)):
        command = option(command)
    return command


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those of the service that were not given: their defaults are the library's."""

    def is_given(name: str, value: object) -> bool:
        return name not in _SERVICE or (value is not None and (value is not False or name in _YES_OR_NO))

    return {name: value for name, value in options.items() if is_given(name, value)}


def chosen_labels(labels: Path | None, no_labels: bool) -> Path | Literal[False] | None:
    """Return the library's ``labels`` for the two options. Raises :class:`click.UsageError` where both were given."""
    if labels is not None and no_labels:
        raise click.UsageError(gettext("--labels and --no-labels exclude each other."))
    return False if no_labels else labels


def chosen_choices(options: dict[str, Any]) -> Path | Literal[False] | None:
    """Take the two options about choices out of a command's; return the library's ``choices``.

    Raises :class:`click.UsageError` where both were given.
    """
    choices, none = options.pop("choices"), options.pop("no_choices")
    if choices is not None and none:
        raise click.UsageError(gettext("--choices and --no-choices exclude each other."))
    return False if none else choices


_SERVICE: Final = frozenset(ServiceKeywords.__annotations__)
_YES_OR_NO: Final = ("offline", "paid")

registry_option: Final[Decorator] = click.option(
    "--registry", type=PATH, help="A registry built by `bansong data build-registry`."
)
max_status_age_option: Final[Decorator] = click.option(
    "--max-status-age", type=float, metavar="DAYS", help="How long a stored status is not asked again; default 30."
)
status_budget_option: Final[Decorator] = click.option(
    "--status-budget",
    type=int,
    metavar="N",
    help="Ask the tax authority for N numbers a day at most; by default as many as it allows.",
)
status_store_option: Final[Decorator] = click.option(
    "--status-store",
    type=PATH,
    help="The file of fetched statuses; by default BANSONG_STATUS_STORE, else in the state directory.",
)
nts_key_file_option: Final[Decorator] = click.option(
    "--nts-key-file",
    type=PATH,
    help="A file that holds the tax authority's free key; by default the key is BANSONG_NTS_KEY. Never an argument.",
)
_STATUS: Final = {
    "max_status_age": "max_age",
    "status_budget": "budget",
    "status_store": "store",
    "nts_key_file": "key_file",
}
"""Options of the command line → fields of :class:`bansong.options.StatusOptions`."""


def status_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say whether and how the tax authority is asked for statuses."""
    source = click.option(
        "--status",
        type=click.Choice(STATUS_SOURCES),
        default="auto",
        show_default=True,
        help="Ask the tax authority's free API for statuses that are not stored: nts, none, or auto, with a key set.",
    )
    more = (max_status_age_option, status_budget_option, status_store_option, nts_key_file_option)
    return _all((source, *more), command)


def fetch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how the tax authority is asked, to a command that asks it whatever else is said."""
    budget = click.option(
        "--budget",
        "status_budget",
        type=click.IntRange(min=0),
        metavar="N",
        help="Ask for N numbers a day at most, unknown ones and the oldest first; by default as many as it allows.",
    )
    return _all((max_status_age_option, budget, status_store_option, nts_key_file_option), command)


def chosen_status(options: dict[str, Any]) -> StatusOptions:
    """Take the options of :func:`status_options` or :func:`fetch_options` out of a command's; return what they say."""
    given = {field: options.pop(name) for name, field in _STATUS.items()}
    return StatusOptions(
        source=options.pop("status", "nts"), **{field: value for field, value in given.items() if value is not None}
    )


gazetteer_option: Final[Decorator] = click.option(
    "--gazetteer",
    type=PATH,
    help="The official addresses, built by `bansong data build-gazetteer`: addresses and postal codes are corrected.",
)
model_option: Final[Decorator] = click.option(
    "--model",
    metavar="PATH|VERSION",
    help="A scorecard file, a version of `bansong model history`, or builtin; default: the one promoted last.",
)
labels_option: Final[Decorator] = click.option(
    "--labels",
    type=PATH,
    help="The folder of recorded labels: what came back of earlier letters; by default labels in the state directory.",
)
no_labels_option: Final[Decorator] = click.option(
    "--no-labels", is_flag=True, help="Do not use what came back of earlier letters."
)
choices_option: Final[Decorator] = click.option(
    "--choices",
    type=PATH,
    help="The file of addresses chosen in reviews; by default BANSONG_CHOICES, else in the state directory.",
)
no_choices_option: Final[Decorator] = click.option(
    "--no-choices", is_flag=True, help="Do not use the addresses that were chosen in reviews."
)
select_option: Final[Decorator] = click.option(
    "--select",
    multiple=True,
    metavar="COLUMNS",
    help="Which of your columns the output keeps, separated by commas; by default all. #3 means the third column.",
)
encoding_option: Final[Decorator] = click.option(
    "--encoding", metavar="NAME", help="The encoding of CSV inputs; by default it is detected."
)
delimiter_option: Final[Decorator] = click.option(
    "--delimiter",
    metavar="CHAR",
    help=r"What stands between the cells of CSV inputs, such as ^ or \t or \x01; by default it is detected.",
)
json_option: Final[Decorator] = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."
)
