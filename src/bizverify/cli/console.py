"""What the commands share: logging, printing, progress."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import click

from bizverify.errors import OutputError

if TYPE_CHECKING:
    from bizverify.model import Choice

INTERRUPTED: Final = 130
_LINE_EVERY: Final = 5.0
"""Seconds between progress lines where there is no terminal."""


def set_up_logging() -> None:
    """Log to stderr at the level that ``BIZVERIFY_LOG`` names, warnings by default."""
    level = os.environ.get("BIZVERIFY_LOG", "warning").upper()
    known = level in logging.getLevelNamesMapping()
    logging.basicConfig(
        level=level if known else "WARNING",
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if not known:
        logging.getLogger("bizverify").warning("BIZVERIFY_LOG=%s is no level; use debug, info, warning", level)


def say(text: str) -> None:
    """Print to stderr, where people's text goes."""
    click.echo(text, err=True)


def say_table(lines: Iterable[tuple[str, str]]) -> None:
    """Print (what, how much) in two columns to stderr."""
    for what, value in lines:
        say(f"{click.style(f'{what:<16}', dim=True)}{value}")


def say_columns(chosen: Mapping[str, Choice]) -> None:
    """Print which header was chosen for which role, and how sure that is."""
    reason = {
        "given": "given",
        "header": "by its header",
        "similar": "by a similar header",
        "content": "by its content",
    }
    say_table(
        (
            role,
            f"{choice.header!r}, column {choice.column + 1} ({reason[choice.why]}, confidence {choice.confidence:.0%})",
        )
        for role, choice in chosen.items()
    )


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to stderr."""
    for warning in warnings:
        say(f"{click.style('note', fg='yellow')}: {warning}")


class Reported(Protocol):
    """What a run over a file reports."""

    @property
    def warnings(self) -> Sequence[str]:
        """What the user should know besides."""

    @property
    def columns(self) -> Mapping[str, Choice]:
        """The header chosen for each role."""

    def lines(self) -> Iterable[tuple[str, str]]:
        """The report as (what, how much)."""

    def as_dict(self) -> Mapping[str, object]:
        """The report as plain values."""


def show_report(report: Reported, as_json: bool) -> None:
    """Print warnings and report: for people to stderr, or as one JSON object to stdout."""
    warn(report.warnings)
    if as_json:
        print_json(report.as_dict())
    else:
        say_columns(report.columns)
        say_table(report.lines())


def print_json(value: object) -> None:
    """Print one JSON object to stdout."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a terminal without Hangul, or a file's name that is no text
        text = json.dumps(value, default=str)
    print_out(text)


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their names to stdout, one line each however long; Hangul takes two columns."""
    from rich.cells import cell_len

    cells = [names, *(["".join(one if one.isprintable() else " " for one in cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        print_out("  ".join(padded).rstrip())


def print_out(text: str) -> None:
    """Print to stdout, where results go; raise :class:`OutputError` where that fails (a full disk, say)."""
    try:
        click.echo(text)
    except BrokenPipeError:  # click's to handle: the reader has seen enough
        raise
    except OSError as error:
        raise OutputError(f"stdout: cannot be written: {error.strerror}") from error


@contextmanager
def progress_shown(
    mode: str, unit: str = "rows", doing: str = "verifying"
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a progress callback: a live bar on a terminal, one line every few seconds elsewhere, or none."""
    if mode == "none":
        yield None
    elif mode == "plain" or not sys.stderr.isatty():
        yield _plain_progress(unit)
    else:
        with _bar(unit, doing) as advance:
            yield advance


def _plain_progress(unit: str) -> Callable[[int, int], None]:
    started = last = time.monotonic()
    lock = threading.Lock()

    def advance(done: int, total: int) -> None:
        nonlocal last
        with lock:
            now = time.monotonic()
            if now - last < _LINE_EVERY:
                return
            last = now
        say(f"{done:,} of {total:,} {unit} ({done / max(total, 1):.0%}), {done / (now - started):,.0f} {unit}/s")

    return advance


@contextmanager
def _bar(unit: str, doing: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(doing),
        BarColumn(24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("in"),
        TimeElapsedColumn(),  # moves while an upload is waited for
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
