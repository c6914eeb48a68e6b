"""The language of the command line: chosen before anything is read, so that help and usage errors speak it, too."""

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
"""Help and short help of a command or option, by its identity, as the code has them."""


_FILLER: Final = "\ue000"
"""Stands behind a wide letter while click, which counts letters and not their width, breaks lines: of private use."""


class WideLetterFormatter(click.HelpFormatter):
    """Breaks the lines of help by the width that letters have on a terminal: Korean ones take two places."""

    def write_text(self, text: str) -> None:
        """See :meth:`click.HelpFormatter.write_text`."""
        super().write_text(_fill_wide(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """See :meth:`click.HelpFormatter.write_dl`."""
        super().write_dl([(name, _fill_wide(text)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        """See :meth:`click.HelpFormatter.getvalue`."""
        return super().getvalue().replace(_FILLER, "")


def _fill_wide(text: str) -> str:
    return "".join(letter + _FILLER if east_asian_width(letter) in "WF" else letter for letter in text)


class LocalizedContext(click.Context):
    """The context of a command whose help may be Korean."""

    formatter_class = WideLetterFormatter


class LocalizedGroup(click.Group):
    """A command line that speaks the language that ``--lang`` names, anywhere among the arguments."""

    def main(self, args: Sequence[str] | None = None, *names: Any, **extra: Any) -> Any:
        """Choose the language, translate the help, and run."""
        with language_of(sys.argv[1:] if args is None else args), command_line_reads():
            translate_help(self)
            return super().main(args, *names, **extra)


@contextmanager
def command_line_reads() -> Iterator[None]:
    """Have messages name the options of the command line within the block, in all threads."""
    before = set_audience(COMMAND_LINE)
    try:
        yield
    finally:
        set_audience(before)


@contextmanager
def language_of(words: Sequence[str]) -> Iterator[None]:
    """Speak the language that ``--lang`` names among the words of a command line, in processes started here, too."""
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
    """Add ``--lang`` to a command and to all below it, whose help may be Korean then.

    The option's value is read by :class:`LocalizedGroup`.
    """
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
    """Put the help of a command, of its options and of all commands below it into the current language."""
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
    """Return the language that ``--lang`` names; of other values click complains."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    named = [
        following if word == "--lang" else word.removeprefix("--lang=")
        for word, following in pairs
        if word[:6] == "--lang"
    ]
    return next((lang for name in named for lang in LANGS if name == lang), None)
