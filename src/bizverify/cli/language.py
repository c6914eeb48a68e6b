"""The language of the command line: chosen before anything is read, so that help and usage errors speak it, too."""

from __future__ import annotations

import gettext as catalogues
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from bizverify.schema import LANGS, Lang
from bizverify.translation import LOCALE_DIR, VARIABLE, current_language, gettext, set_language

catalogues.bindtextdomain("click", str(LOCALE_DIR))
catalogues.textdomain("click")  # the domain that click's own messages are looked up in

_help_in_english: Final[dict[int, tuple[str | None, str | None]]] = {}
"""Help and short help of a command or option, by its identity, as the code has them."""


class LocalizedGroup(click.Group):
    """A command line that speaks the language that ``--lang`` names, anywhere among the arguments."""

    def main(self, args: Sequence[str] | None = None, *names: Any, **extra: Any) -> Any:
        """Choose the language, translate the help, and run."""
        with language_of(sys.argv[1:] if args is None else args):
            translate_help(self)
            return super().main(args, *names, **extra)


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
    """Add ``--lang`` to a command and to all below it; its value is read by :class:`LocalizedGroup`."""
    option = click.Option(
        ["--lang"],
        type=click.Choice(LANGS),
        expose_value=False,
        help="The language of all texts; by default BIZVERIFY_LANG, else the locale.",
    )
    command.params.append(option)
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
    one.help = help and gettext(help)
    if isinstance(one, click.Command):
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
