"""The language of the command line, chosen before anything is parsed, so that help and usage errors use it."""

from __future__ import annotations

import gettext as catalogues
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unicodedata import east_asian_width

import click

from bansong.cli.flags import COMMAND_LINE
from bansong.schema import LANGS, Lang
from bansong.translation import LOCALE_DIR, VARIABLE, current_language, gettext, set_audience, set_language

catalogues.bindtextdomain("click", str(LOCALE_DIR))
catalogues.textdomain("click")  # the domain that click's own messages are looked up in

_help_in_english: Final[dict[int, tuple[str | None, str | None]]] = {}
"""Help and short help of commands and options by identity."""


_FILLER: Final = "\ue000"
"""Padding after a wide letter (private use), since click counts letters, not their width."""


class WideLetterFormatter(click.HelpFormatter):
    """Wraps help by the display width of letters: Korean ones take two columns."""

    def write_text(self, text: str) -> None:
        super().write_text(_fill_wide(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, _fill_wide(text)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_FILLER, "")


def _fill_wide(text: str) -> str:
    return "".join(letter + _FILLER if east_asian_width(letter) in "WF" else letter for letter in text)


class LocalizedContext(click.Context):
    """A context with help for wide letters."""

    formatter_class = WideLetterFormatter


class LocalizedGroup(click.Group):
    """A command line in the language that ``--lang`` names anywhere."""

    def main(self, args: Sequence[str] | None = None, *names: Any, **extra: Any) -> Any:
        with language_of(sys.argv[1:] if args is None else args), command_line_reads():
            translate_help(self)
            return super().main(args, *names, **extra)


@contextmanager
def command_line_reads() -> Iterator[None]:
    """Let messages name options of the command line during the block, in all threads."""
    before = set_audience(COMMAND_LINE)
    try:
        yield
    finally:
        set_audience(before)


@contextmanager
def language_of(words: Sequence[str]) -> Iterator[None]:
    """Use the language that ``--lang`` names during the block, also in processes started in it."""
    before = {name: os.environ.get(name) for name in (VARIABLE, "LANGUAGE")}
    set_language(_named_language(words) or current_language())
    os.environ["LANGUAGE"] = current_language()  # click asks for it at each of its own messages
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def add_language_option(command: click.Command) -> None:
    """Add ``--lang`` to a command and its subcommands; :class:`LocalizedGroup` reads its value."""
    option = click.Option(
        ["--lang"],
        type=click.Choice(LANGS),
        expose_value=False,
        help="The language of all texts; by default BANSONG_LANG, else the locale.",
    )
    command.params.append(option)
    command.context_class = LocalizedContext
    for child in _children(command):
        add_language_option(child)


def translate_help(command: click.Command) -> None:
    """Translate the help of a command, its options and its subcommands."""
    _translate_one(command)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            _translate_one(parameter)
    for child in _children(command):
        translate_help(child)


def _translate_one(one: click.Command | click.Option) -> None:
    short = getattr(one, "short_help", None)
    help, short_help = _help_in_english.setdefault(id(one), (one.help, short))
    one.help = help and gettext(inspect.cleandoc(help))  # the docstring of a command has its margin still
    if isinstance(one, click.Command):
        one._help_option = None  # click's own, in the language of the call that made it
        one.options_metavar = gettext("[OPTIONS]")
        if isinstance(one, click.Group):
            one.subcommand_metavar = gettext("COMMAND [ARGS]...")
        one.short_help = short_help and gettext(short_help)


def _children(command: click.Command) -> Iterable[click.Command]:
    return command.commands.values() if isinstance(command, click.Group) else ()


def _named_language(words: Sequence[str]) -> Lang | None:
    pairs = zip(words, [*words[1:], ""], strict=True)
    named = [
        following if word == "--lang" else word.removeprefix("--lang=")
        for word, following in pairs
        if word[:6] == "--lang"
    ]
    return next((lang for name in named for lang in LANGS if name == lang), None)
