"""What messages call the parameters of the library on the command line: its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import click

from bansong.column_words import role_word
from bansong.translation import NO_VALUE, current_language

_PLAIN: Final = re.compile(r"[\w#.,/:%+=@-]*", re.ASCII)
"""A value that a shell takes as it stands."""


class CommandLineAudience:
    """Who types commands: ``--no-labels`` for ``labels=False``."""

    sets_limits = True

    def option(self, name: str, value: object = NO_VALUE) -> str | None:
        """See :meth:`bansong.translation.Audience.option`."""
        options = _options()
        if value is False and f"no_{name}" in options:
            return options[f"no_{name}"].opts[0]
        if name not in options:
            return None
        if value is False:
            turned_off = options[name].opts if options[name].flag_value is False else options[name].secondary_opts
            return next(iter(turned_off), None)
        flag = options[name].opts[0]
        return flag if value is NO_VALUE or value is None or value is True else f"{flag} {_spell_value(value)}"


COMMAND_LINE: Final = CommandLineAudience()


def _spell_value(value: object) -> str:
    """Return a value as it is written behind its option."""
    if isinstance(value, dict):
        lang = current_language()
        return ",".join(f"{role_word(key, lang)}={_spell_value(one)}" for key, one in value.items())
    text = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
    quote = '"' if "'" in text else "'"
    return text if _PLAIN.fullmatch(text) else f"{quote}{text}{quote}"


@cache
def _options() -> dict[str, click.Option]:
    """Return the options of all commands by their parameter; of several the one that bears its name."""
    from bansong.cli import app

    found: dict[str, click.Option] = {}
    for option in _all_options(app):
        name = str(option.name)
        if name not in found or f"--{name.replace('_', '-')}" in option.opts:
            found[name] = option
    return found


def _all_options(command: click.Command) -> Iterator[click.Option]:
    yield from (one for one in command.params if isinstance(one, click.Option))
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _all_options(child)
