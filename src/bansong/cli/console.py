"""Streams, logging, printing and progress of the command line."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import click

from bansong.base.display import ProgressDisplay, ProgressLines, aligned_rows, pad_text, terminal_bar
from bansong.base.errors import OutputError, Problem
from bansong.base.files import variable
from bansong.base.messages import current_language, describe_os_error, end_sentence, gettext, gettext_noop
from bansong.base.schema import SEOUL, Alert, role_word

if TYPE_CHECKING:
    from bansong.base.schema import Choice

STDOUT_UNWRITABLE: Final = Problem("cli.stdout_unwritable", "stdout: cannot be written: {reason}")
STDOUT_CLOSED: Final = Problem(
    "cli.stdout_closed", "stdout: was closed before all was printed; leave it open, and try again"
)

INTERRUPTED: Final = 130
_WHY_CHOSEN: Final = {
    "given": gettext_noop("given"),
    "header": gettext_noop("by its header"),
    "similar": gettext_noop("by a similar header"),
    "content": gettext_noop("by its content"),
}


@contextmanager
def freeze_imports() -> Iterator[None]:
    """Exempt the block's imports from garbage collection: its scans take a fifth of a small run."""
    if "polars" in sys.modules or not gc.isenabled():  # other code shares the process
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def set_up_logging() -> None:
    """Log to stderr at the level of ``BANSONG_LOG`` (default: warning)."""
    level = (variable("BANSONG_LOG") or "warning").upper()
    known = level in logging.getLevelNamesMapping()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level if known else "WARNING", handlers=[handler])
    if not known:
        message = gettext("BANSONG_LOG={level} is no level; use debug, info, warning", level=level)
        logging.getLogger("bansong").warning(message)


def say(text: str) -> None:
    """Print a sentence on stderr; a closed stderr does not stop the work."""
    with suppress(OSError):
        _echo(end_sentence(text), sys.stderr)


def say_table(lines: Iterable[tuple[str, str]]) -> None:
    """Print pairs of label and value on stderr."""
    for what, value in lines:
        say(f"{click.style(pad_text(what, 16), dim=True)}{value}")


def say_columns(chosen: Mapping[str, Choice]) -> None:
    """Print the chosen columns on stderr: headers, places, confidence."""
    for role, choice in chosen.items():
        headers = choice.spell(lambda part: repr(part.header), " + ", " | ")
        about = {
            "headers": headers,
            "places": choice.spell(lambda part: str(part.column + 1), " + ", " | "),
            "why": gettext(_WHY_CHOSEN[choice.why]),
            "confidence": choice.confidence,
        }
        if len(choice.parts) > 1:
            text = gettext("{headers}, columns {places} ({why}, confidence {confidence:.0%})", **about)
        else:
            text = gettext("{headers}, column {places} ({why}, confidence {confidence:.0%})", **about)
        say_table([(role_word(role, current_language()), text)])


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on stderr, alerts first."""
    for warning in sorted(warnings, key=lambda warning: not isinstance(warning, Alert)):
        if isinstance(warning, Alert):
            label = click.style(gettext("ATTENTION"), fg="red", bold=True)
        else:
            label = click.style(gettext("note"), fg="yellow")
        say(f"{label}: {warning}")


class Summary(Protocol):
    """A report that is printed as a table or as JSON."""

    def as_dict(self) -> Mapping[str, object]: ...
    def lines(self) -> Iterable[tuple[str, str]]: ...


class RunReport(Summary, Protocol):
    """The report of a run, with the column chosen for each role."""

    @property
    def exit_code(self) -> int: ...
    @property
    def warnings(self) -> Sequence[str]: ...
    @property
    def columns(self) -> Mapping[str, Choice]: ...


def end_with(report: RunReport, as_json: bool, more: Iterable[tuple[str, str]] = ()) -> None:
    """Print alerts, a report (on stderr, or as JSON on stdout) and other warnings; exit with its code.

    ``more``: further lines of the report, for people.
    """
    alerts = [warning for warning in report.warnings if isinstance(warning, Alert)]
    warn(alerts)
    if as_json:
        print_json(report.as_dict())
    else:
        say_table((what, value) for what, value in (*report.lines(), *more) if value not in alerts)
        say_columns(report.columns)
    warn(warning for warning in report.warnings if warning not in alerts)
    click.get_current_context().exit(report.exit_code)


def show_summary(report: Summary, as_json: bool) -> None:
    """Print a report: as JSON on stdout, or as lines on stderr."""
    if as_json:
        print_json(report.as_dict())
    else:
        say_table(report.lines())


def print_result(as_json: bool, value: Mapping[str, object], lines: Iterable[str]) -> None:
    """Print a result on stdout: as JSON, or as lines."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        print_out(line)


def print_json(value: object, *, needed: bool = False) -> None:
    """Print a value as JSON on stdout, escaped where the encoding requires that."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a terminal without Hangul, or a file name that is not valid text
        text = json.dumps(value, default=str)
    _print_as_is(text, needed)


def print_rows(
    as_json: bool, value: Mapping[str, object], names: Sequence[str], rows: Iterable[Sequence[str]], none: str
) -> None:
    """Print rows as a table, or the text ``none`` if there are none; with ``as_json``, print ``value``."""
    if as_json:
        print_json(value)
    elif cells := list(rows):
        print_table(names, cells)
    else:
        say(none)


def pair_lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return pairs of label and value as aligned lines."""
    return [f"{pad_text(what, 16)}{value}" for what, value in pairs]


def format_minute(seconds: float) -> str:
    """Return a time in seconds since 1970 as Korean date, hour and minute."""
    return f"{datetime.fromtimestamp(seconds, SEOUL):%Y-%m-%d %H:%M}"


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under translated headers on stdout, in aligned columns."""
    cells = [["".join(one if one.isprintable() else " " for one in cell) for cell in row] for row in rows]
    for line in aligned_rows([[gettext(name) if name else "" for name in names], *cells]):
        print_out(line)


def print_out(text: str, *, needed: bool = False) -> None:
    """Print to stdout; raise :class:`OutputError` if that fails (a full disk, say)."""
    # a closed stdout (``| head``) is no failure, unless the text is ``needed``
    _print_as_is(end_sentence(text), needed)


def _print_as_is(text: str, needed: bool) -> None:
    try:
        _echo(text, sys.stdout)
    except BrokenPipeError as error:
        if needed:
            raise OutputError(STDOUT_CLOSED) from error
    except OSError as error:
        raise OutputError(STDOUT_UNWRITABLE, reason=describe_os_error(error)) from error


def _echo(text: str, stream: TextIO) -> None:
    # a stream without a reader goes to devnull, so that later flushes succeed
    try:
        click.echo(text, file=stream)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        raise


@contextmanager
def progress_shown(mode: str, unit: str = "rows", doing: str = "verifying") -> Iterator[ProgressDisplay | None]:
    """Yield the progress display of ``--progress``: a bar, plain lines, or none."""
    if mode == "none":
        yield None
    elif mode == "plain" or not sys.stderr.isatty():
        yield ProgressLines(unit, say)
    else:
        with terminal_bar(unit, doing) as display:
            yield display


def open_closed_streams() -> None:
    """Open the null device for streams closed by ``2>&-``; else the next file opened would get their descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def escape_what_stdout_lacks() -> None:
    """Escape characters that stdout's encoding (CP949, CP1252) lacks, instead of failing."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
