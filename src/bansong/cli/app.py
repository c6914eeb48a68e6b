"""The command group, its language and signals."""

from __future__ import annotations

import gettext as catalogues
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import FrameType
from typing import Any, Final
from unicodedata import east_asian_width

import click

from bansong._version import __version__
from bansong.base.cancel import StopRequest
from bansong.base.errors import BansongError
from bansong.base.messages import (
    LANGS,
    LOCALE_DIR,
    VARIABLE,
    Lang,
    current_language,
    gettext,
    join_clauses,
    set_audience,
    set_language,
)
from bansong.cli.console import INTERRUPTED, escape_what_stdout_lacks, open_closed_streams, say, set_up_logging
from bansong.cli.options import COMMAND_LINE, SETTINGS, read_settings, settings_in_effect

catalogues.bindtextdomain("click", str(LOCALE_DIR))
catalogues.textdomain("click")  # the domain that click's own messages are looked up in

_FILLER: Final = "\ue000"  # padding after a wide letter (private use), since click counts letters, not their width


class WideLetterFormatter(click.HelpFormatter):
    """Wrap help by display width: Korean letters take two columns."""

    def write_text(self, text: str) -> None:
        super().write_text(_fill_wide(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, _fill_wide(text)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_FILLER, "")


def _fill_wide(text: str) -> str:
    return "".join(letter + _FILLER if east_asian_width(letter) in "WF" else letter for letter in text)


_UNCONFIGURED: Final = {"config", "setup", "serve"}  # a server's settings must not depend on who starts it


class LocalizedContext(click.Context):
    """A click context whose help is wrapped by display width, and whose ``default_map`` is config.toml."""

    formatter_class = WideLetterFormatter

    def lookup_default(self, name: str, call: bool = True) -> Any:
        # read late: help works with a damaged file
        if self.default_map is None and call and not self.resilient_parsing:
            is_apart = self.parent is None or {self.command.name, self.parent.command.name} & _UNCONFIGURED
            settings = {} if is_apart else settings_in_effect()
            self.default_map = {SETTINGS[key].parameter: value for key, value in settings.items()}
        return super().lookup_default(name, call)  # type: ignore[call-overload]


class CommandsOnUse(Mapping[str, click.Command]):
    """A mapping of commands by name. Each is made at its first use, as a run needs only one."""

    def __init__(self, names: Iterable[str], make: Callable[[str], click.Command]) -> None:
        self._names = tuple(names)
        self._make = cache(make)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LocalizedGroup(click.Group):
    """A command group in the language of ``--lang``, which may stand anywhere on the command line."""

    def main(self, args: Sequence[str] | None = None, *names: Any, **extra: Any) -> Any:
        with language_of(sys.argv[1:] if args is None else args), command_line_reads():
            translated = translate_command(self)
            return super(LocalizedGroup, translated).main(args, *names, **extra)  # type: ignore[misc]


@contextmanager
def command_line_reads() -> Iterator[None]:
    """Let messages within the block name options as the command line spells them."""
    before = set_audience(COMMAND_LINE)
    try:
        yield
    finally:
        set_audience(before)


@contextmanager
def language_of(words: Sequence[str]) -> Iterator[None]:
    """Use the language of ``--lang`` during the block, also in child processes."""
    before = {name: os.environ.get(name) for name in (VARIABLE, "LANGUAGE")}
    set_language(_named_language(words) or _configured_language(words) or current_language())
    os.environ["LANGUAGE"] = current_language()  # click reads it for each of its messages
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _configured_language(words: Sequence[str]) -> Lang | None:
    if os.environ.get(VARIABLE) or "serve" in words[:1]:
        return None
    with suppress(BansongError):  # the command says what is wrong with the file
        return read_settings().get("lang")
    return None


def add_language_option(command: click.Command) -> None:
    """Add ``--lang`` to a command; :class:`LocalizedGroup` reads its value."""
    option = click.Option(
        ["--lang"],
        type=click.Choice(LANGS),
        expose_value=False,
        help="The language of all texts; by default BANSONG_LANG, else as in `bansong config`, else the locale.",
    )
    command.params.append(option)
    command.context_class = LocalizedContext
    if isinstance(command, click.Group) and command is not app:
        for child in command.commands.values():
            add_language_option(child)


def translate_command(command: click.Command) -> click.Command:
    """Return a copy of a command with its help in the current language."""
    translated = copy(command)
    translated.help = _translate(command.help)
    translated.short_help = _translate(command.short_help)
    translated.options_metavar = gettext("[OPTIONS]")
    translated._help_option = None  # click caches the option with its help in the earlier language
    translated.params = list(map(copy, command.params))
    for option in translated.params:
        if isinstance(option, click.Option):
            option.help = _translate(option.help)
    if isinstance(command, click.Group) and isinstance(translated, click.Group):
        translated.subcommand_metavar = gettext("COMMAND [ARGS]...")
        own = command.commands
        translated.commands = CommandsOnUse(own, lambda name: translate_command(own[name]))  # type: ignore[assignment]
    return translated


def _translate(help: str | None) -> str | None:
    return help and gettext(inspect.cleandoc(help))  # the docstring of a command has its margin still


def _named_language(words: Sequence[str]) -> Lang | None:
    named = [
        following if word == "--lang" else word.removeprefix("--lang=")
        for word, following in pairwise([*words, ""])
        if word[:6] == "--lang"
    ]
    return next((lang for name in named for lang in LANGS if name == lang), None)


def let_stop_signals_interrupt() -> StopRequest:
    """Let SIGTERM and SIGHUP act like Ctrl-C, so that a stopped job cleans up; return the stop request."""
    # Python handlers run only after a query, and polars handles only SIGINT. So the two signals are blocked in all
    # threads but one, which turns them into SIGINT. Ignored signals stay ignored: SIGHUP under ``nohup``, SIGINT in a
    # background job (also blocked, because polars traps it). This must precede the import of polars, whose handler
    # calls the earlier one.
    stop = StopRequest(interrupt_main_thread)
    ignored = {one for one in (signal.SIGINT,) if signal.getsignal(one) == signal.SIG_IGN}
    if not hasattr(signal, "pthread_sigmask"):  # Windows has neither these signals nor masks
        if not ignored:
            signal.signal(signal.SIGINT, stop.handle_signal)
        return stop
    stopping = {one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN}
    signal.signal(signal.SIGINT, stop.handle_signal)
    if ignored:
        signal.signal(signal.SIGURG, _wake)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping | ignored)
    interrupt = _interrupt_though_blocked if ignored else _interrupt
    arguments = (stop, stopping, ignored, interrupt)
    threading.Thread(target=_forward, args=arguments, name="stop-signals", daemon=True).start()
    return stop


def _forward(
    stop: StopRequest, stopping: set[signal.Signals], ignored: set[signal.Signals], interrupt: Callable[[int], None]
) -> None:
    main_thread = threading.main_thread().ident
    while main_thread is not None and stopping | ignored:
        if signal.sigwait(stopping | ignored) in stopping:
            stop.note()
            if not stop.is_held:
                interrupt(main_thread)


def interrupt_main_thread() -> None:
    """Send SIGINT to the main thread, also in a background job that ignores Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        signal.raise_signal(signal.SIGINT)
    elif (main_thread := threading.main_thread().ident) is not None:
        is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        (_interrupt_though_blocked if is_blocked else _interrupt)(main_thread)


def _interrupt(main_thread: int) -> None:
    signal.pthread_kill(main_thread, signal.SIGINT)


def _interrupt_though_blocked(main_thread: int) -> None:
    """Unblock and raise SIGINT in this thread, as all others block it, and wake the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.pthread_kill(main_thread, signal.SIGURG)


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing. Any Python handler ends a wait, so that pending handlers run."""


@click.group(cls=LocalizedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bansong", help="Show the version and exit.")
def app() -> None:
    """Verify a file of Korean business customers before you mail it.

    bansong finds business number, name and address in a CSV, Excel, JSON or Parquet file, verifies every row and
    writes the same file back with status, bounce probability, grade, action and reasons.

    Exit codes: 0 done, every row accounted for; 2 usage or unreadable input; 3 finished, but rows failed or in doubt;
    4 refused; 5 paused, resumable; 130 interrupted, nothing published. 1 is a defect of bansong: nothing published.
    """


_MODULES: Final = {  # of :mod:`bansong.cli`, with the names of their commands
    "enrich": ("enrich", "letters", "plan", "verify", "status", "report"),
    "run": ("run", "runs"),
    "learning": ("label", "calibrate", "model"),
    "watch": ("watch",),
    "upkeep": ("me", "ledger", "resolve", "doctor", "forget"),
    "data": ("sample", "data"),
    "settings": ("config", "setup"),
    "serve": ("serve", "app", "notices"),
    "keys": ("keys",),
}
_HOMES: Final = {command: module for module, commands in _MODULES.items() for command in commands}


def _import_command(name: str) -> click.Command:
    command: click.Command = getattr(import_module(f"bansong.cli.{_HOMES[name]}"), name)
    add_language_option(command)
    return command


app.commands = CommandsOnUse(_HOMES, _import_command)  # type: ignore[assignment]
add_language_option(app)


def main() -> None:
    """Run the command line. An expected error becomes one line on stderr and an exit code."""
    open_closed_streams()
    escape_what_stdout_lacks()
    set_up_logging()
    with language_of(sys.argv[1:]), command_line_reads():
        _run()


def _run() -> None:
    stdout = sys.stdout
    try:
        code = app.main(standalone_mode=False, obj=let_stop_signals_interrupt()) or 0
    except SystemExit as error:  # click's end, with another stdout, when the reader of its help is gone: no failure
        code = error.code if sys.stdout is stdout else 0
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        bought = str(error.__cause__ or "")  # click's Abort hides the original text
        _fail(join_clauses(gettext("interrupted; nothing was published"), bought), INTERRUPTED)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        code = 2
    except BansongError as error:
        _fail(str(error), error.exit_code)
    sys.exit(code)


def _fail(message: str, code: int) -> None:
    say(f"bansong: {message}")
    sys.exit(code)
