"""Options that several commands have, each written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bizverify.model import LANGS

if TYPE_CHECKING:
    _ParamType = click.ParamType[dict[str, str], str]
else:
    _ParamType = click.ParamType  # only newer versions of click can be subscripted

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH: Final = click.Path(path_type=Path)


class KeyValues(_ParamType):
    """``role=HEADER,role=HEADER``; a header that holds a comma goes into an option of its own."""

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
            if equals and role.strip() in self._roles:
                last = role.strip()
                found[last] = header.strip()
            elif last is not None:  # a comma inside a header
                found[last] += f",{part}"
            else:
                self.fail(f"{part!r} is not role=HEADER; the roles are {', '.join(self._roles)}", param, ctx)
        return found


def columns_option(roles: Iterable[str]) -> Decorator:
    """The option ``--columns``."""
    return click.option(
        "--columns",
        type=KeyValues(roles),
        help="Which header has which role; by default found from the headers. #3 means the third column.",
    )


registry_option: Final[Decorator] = click.option(
    "--registry", type=PATH, help="A registry built by `bizverify data build-registry`."
)
model_option: Final[Decorator] = click.option(
    "--model", type=PATH, help="A scorecard file, in place of the built-in one."
)
select_option: Final[Decorator] = click.option(
    "--select",
    multiple=True,
    metavar="COLUMNS",
    help="Which of your columns the output keeps, separated by commas; by default all. #3 means the third column.",
)
encoding_option: Final[Decorator] = click.option(
    "--encoding", metavar="NAME", help="The encoding of CSV inputs, where it is not found rightly."
)
json_option: Final[Decorator] = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."
)
lang_option: Final[Decorator] = click.option(
    "--lang",
    type=click.Choice(LANGS),
    default="en",
    show_default=True,
    help="The language of reasons and notes.",
)
