"""Show runs: progress as bars and lines; reports as text, tables and HTML."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from bansong.base.messages import current_language, end_sentence, gettext, gettext_noop, gettext_noops
from bansong.base.schema import BETTER, GRADE_COLOURS, GRADES, NEUTRAL, WORSE, word_of

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_DARK_INK: Final = ("C", "D")  # grades whose colour is too light for white letters
_MIN_LABELLED_SHARE: Final = 0.05  # share of the bar from which a part has room for its letter


def facts_table(lines: Iterable[tuple[str, str]]) -> str:
    """Return pairs of texts as an HTML table of two columns."""
    rows = "".join(
        f"<tr><th style='text-align:left;white-space:nowrap'>{escape(what)}</th>"
        f"<td style='text-align:left;white-space:pre-wrap'>{escape(value)}</td></tr>"
        for what, value in lines
    )
    return f"<table>{rows}</table>"


def grade_bar(counts: Mapping[str, int], rows: int) -> str:
    """Return an HTML bar of the rows by grade, with rows without a grade in grey; empty without rows."""
    known = {grade: counts[grade] for grade in GRADES if counts.get(grade)}
    others = rows - sum(known.values())
    parts = known | ({gettext("no grade"): others} if others > 0 else {})
    if not parts:
        return ""
    bar = "".join(_segment(name, count, rows) for name, count in parts.items())
    words = ", ".join(f"{name} {count:,}" for name, count in parts.items())
    style = "display:flex;max-width:40em;height:1.6em;border-radius:.3em;overflow:hidden;margin:.4em 0"
    return f'<div role="img" aria-label="{escape(words)}" style="{style}">{bar}</div>'


def _segment(name: str, count: int, rows: int) -> str:
    colour, ink = GRADE_COLOURS.get(name, NEUTRAL), "#202124" if name in _DARK_INK else "#fff"
    label = name if name in GRADE_COLOURS and count / rows >= _MIN_LABELLED_SHARE else ""
    style = f"flex:{count} 0 0;background:{colour};color:{ink};text-align:center;line-height:1.6em;font-weight:600"
    return f'<span title="{escape(f"{name} {count:,} ({count / rows:.1%})")}" style="{style}">{escape(label)}</span>'


def grade_badge(grade: str | None, probability: float | None) -> str:
    """Return a grade in its colour, with the return risk, as HTML; empty without a grade."""
    if grade is None:
        return ""
    colour, ink = GRADE_COLOURS.get(grade, NEUTRAL), "#202124" if grade in _DARK_INK else "#fff"
    risk = "" if probability is None else gettext("return risk {risk:.1%}", risk=probability)
    style = f"background:{colour};color:{ink};padding:.1em .6em;border-radius:.3em;font-weight:600"
    return f'<p><span style="{style}">{escape(grade)}</span> {escape(risk)}</p>'


def reason_bars(title: str, reasons: Sequence[tuple[str, int]], signed: bool = False) -> str:
    """Return an HTML table of reasons, with a bar for the number of each."""
    # ``signed``: the numbers are points; the first is the base, and later positive ones raise the risk
    if not reasons:
        return ""
    most = max(abs(count) for _, count in reasons) or 1
    rows = []
    for place, (reason, count) in enumerate(reasons):
        colour = NEUTRAL if not signed or place == 0 else WORSE if count > 0 else BETTER
        style = f"width:{100 * abs(count) / most:.0f}%;height:.7em;border-radius:.2em;background:{colour}"
        rows.append(
            f"<tr><td style='text-align:left'>{escape(reason)}</td>"
            f"<td style='text-align:right'>{f'{count:+d}' if signed else f'{count:,}'}</td>"
            f"<td style='text-align:left;width:12em'><div style=\"{style}\"></div></td></tr>"
        )
    return f"<p style='margin:.6em 0 0;font-weight:600'>{escape(title)}</p><table>{''.join(rows)}</table>"


class Shown(ABC):
    """A report of lines (label, value), shown as text or, in a notebook, as a table."""

    __slots__ = ()

    WIDTH: ClassVar[int] = 16  # columns of the labels in text

    def lines(self) -> list[tuple[str, str]]:
        return list(self._describe())

    @abstractmethod
    def _describe(self) -> Iterable[tuple[str, str]]: ...

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        table = [f"{pad_text(what, self.WIDTH)}{value}" for what, value in self.lines()]
        return "\n".join([*table, *self._notes()])

    def _repr_html_(self) -> str:
        return facts_table(self.lines()) + "".join(f"<p>{escape(note)}</p>" for note in self._notes())

    def _notes(self) -> list[str]:
        shown = {value for _, value in self.lines()}
        warnings = (str(warning) for warning in getattr(self, "warnings", ()))
        return [f"⚠ {end_sentence(text)}" for text in warnings if text not in shown]


def pad_text(text: str, width: int) -> str:
    """Pad a text to a width in terminal columns (two for a Korean letter), by at least one blank."""
    from rich.cells import cell_len

    return text + " " * max(1, width - cell_len(text))


def aligned_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return each row as one line, padded in terminal columns; columns at the positions ``right`` are right-aligned."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = (" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        pairs = enumerate(zip(row, blanks, strict=True))
        lines.append("  ".join(blank + cell if at in right else cell + blank for at, (cell, blank) in pairs).rstrip())
    return lines


def listed_counts(counts: Mapping[str, int]) -> str:
    """Return the nonzero counts, such as ``active 12 · closed 3``, or ``none``."""
    lang = current_language()
    listed = " · ".join(f"{word_of(name, lang)} {count:,}" for name, count in counts.items() if count)
    return listed or gettext("none")


UNITS: Final = gettext_noops("rows", "lookups", "numbers", "verifying", "reading")


class FetchReport(Protocol):
    """The figures of a running fetch (:class:`bansong.reference.fetch.StatusFetch`)."""

    @property
    def answered(self) -> int: ...
    @property
    def left(self) -> int: ...
    @property
    def rate(self) -> float:
        """Business numbers answered per second."""

    @property
    def budget_left(self) -> int | None:
        """Business numbers that the day's budget still allows; ``None`` without a budget."""


Progress = Callable[[int, int], None]  # called with (done, total), from any thread


class ProgressDisplay(Protocol):
    """A display of a run's progress (rows or lookups), and of the status fetch before it."""

    def __call__(self, done: int, total: int, /) -> None: ...
    def watch(self, fetch: FetchReport) -> None: ...


def describe_progress(done: int, total: int, unit: str, seconds: float) -> str:
    """Return the share done and the speed in words, in the current language."""
    return gettext(
        "{done:,} of {total:,} {unit} ({part:.0%}), {rate:,.0f} {unit}/s",
        done=done,
        total=total,
        unit=gettext(unit),
        part=done / max(total, 1),
        rate=done / max(seconds, 1e-9),
    )


def describe_fetch(fetch: FetchReport) -> str:
    """Return the progress of fetching statuses in words, in the current language."""
    total = fetch.answered + fetch.left
    part = fetch.answered / max(total, 1)
    said = gettext_noop("{answered:,} of {total:,} numbers answered ({part:.0%})")
    parts = [gettext(said, answered=fetch.answered, total=total, part=part)]
    if fetch.rate:
        parts.append(gettext("{rate:,.0f} numbers/s", rate=fetch.rate))
        parts.append(gettext("about {time} to go", time=timedelta(seconds=round(fetch.left / fetch.rate))))
    if fetch.budget_left is not None:
        parts.append(gettext("{count:,} left of the day's budget", count=fetch.budget_left))
    return ", ".join(parts)


_LINE_INTERVAL_S: Final = 5.0


class ProgressLines:
    """Print a line of progress every few seconds."""

    def __init__(self, unit: str, say: Callable[[str], None]) -> None:
        self._unit, self._say = unit, say
        self._started = self._last = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int, /) -> None:
        now = time.monotonic()
        if self._is_due(now):
            self._say(describe_progress(done, total, self._unit, now - self._started))

    def watch(self, fetch: FetchReport) -> None:
        self._started = time.monotonic()
        if self._is_due(self._started):
            self._say(gettext("statuses: {progress}", progress=describe_fetch(fetch)))

    def _is_due(self, now: float) -> bool:
        with self._lock:
            if now - self._last < _LINE_INTERVAL_S:
                return False
            self._last = now
            return True


_FIRST_UPDATE_S: Final = 0.5  # before a bar appears; shorter runs leave no output
_UPDATE_INTERVAL_S: Final = 0.2  # seconds between two updates, sent to the browser
_BAR: Final = (
    '<div role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent:.0f}" '
    'style="display:flex;gap:.7em;align-items:center"><span>{doing}</span>'
    '<span style="flex:0 0 16em;height:.6em;border-radius:.3em;background:rgba(128,128,128,.3)">'
    '<span style="display:block;width:{percent:.1f}%;height:100%;border-radius:.3em;background:#2f7ed8"></span></span>'
    "<span>{figures}</span></div>"
)


class NotebookBar:
    """A progress bar in the output of the running notebook cell; empty after :meth:`close`."""

    def __init__(self, unit: str, doing: str) -> None:
        self._unit, self._doing = unit, gettext(doing)
        self._started = time.monotonic()
        self._due = self._started + _FIRST_UPDATE_S
        self._handle: Any = None
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int, /) -> None:
        figures = describe_progress(done, total, self._unit, time.monotonic() - self._started)
        self._update(self._doing, done / max(total, 1), figures)

    def watch(self, fetch: FetchReport) -> None:
        self._started = time.monotonic()
        done = fetch.answered / max(fetch.answered + fetch.left, 1)
        self._update(gettext("asking nts"), done, describe_fetch(fetch))

    def close(self) -> None:
        with self._lock:
            self._due = float("inf")
            if self._handle is not None:
                self._show("", "")

    def _update(self, doing: str, part: float, figures: str) -> None:
        now = time.monotonic()
        if now < self._due or not self._lock.acquire(blocking=False):  # another thread is updating
            return
        try:
            if now >= self._due:
                self._due = now + _UPDATE_INTERVAL_S
                bar = _BAR.format(percent=100 * min(part, 1), doing=escape(doing), figures=escape(figures))
                self._show(bar, f"{doing} {figures}")
        finally:
            self._lock.release()

    def _show(self, html: str, text: str) -> None:
        from IPython.display import display

        data = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def is_notebook() -> bool:
    """Whether this process runs a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


_FIGURES: Final = {
    "rows": gettext_noop("{done}/{total} rows"),
    "lookups": gettext_noop("{done}/{total} lookups"),
    "numbers": gettext_noop("{done}/{total} numbers"),
    "watches": gettext_noop("{done}/{total} watches"),
    "MB": "{done}/{total} MB",
}  # by unit: Korean counts units with other words than headings use


class TerminalBar:
    """A live progress bar of :mod:`rich`."""

    def __init__(self, progress: RichProgress, doing: str, unit: str) -> None:
        self._progress = progress
        self._doing, self._figures = gettext(doing), gettext(_FIGURES[unit])
        self._task = progress.add_task("", total=None, doing=self._doing, figures="")
        self._is_fetching = False

    def __call__(self, done: int, total: int, /) -> None:
        if self._is_fetching:
            self._is_fetching = False
            self._progress.reset(self._task)
        figures = self._figures.format(done=_align(done, total), total=total)
        self._progress.update(self._task, completed=done, total=total, doing=self._doing, figures=figures)

    def watch(self, fetch: FetchReport) -> None:
        self._is_fetching = True
        done, total = fetch.answered, fetch.answered + fetch.left
        count = {"done": _align(done, total), "total": total, "rate": fetch.rate}
        if fetch.budget_left is None:
            figures = gettext("{done}/{total} numbers, {rate:,.0f}/s", **count)
        else:
            figures = gettext(
                "{done}/{total} numbers, {rate:,.0f}/s, {left:,} left today", left=fetch.budget_left, **count
            )
        self._progress.update(self._task, completed=done, total=total, doing=gettext("asking nts"), figures=figures)


def _align(done: int, total: int) -> str:
    # padded to the width of the total, so that the text after it does not move
    return f"{done:>{len(str(total))}}"


@contextmanager
def terminal_bar(unit: str, doing: str) -> Iterator[TerminalBar]:
    """Yield a progress bar on stderr, removed at the end of the block."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(24),
        TextColumn("{task.fields[figures]}", style="progress.download"),
        TextColumn(gettext("in")),
        TimeElapsedColumn(),  # moves while an upload is waited for
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield TerminalBar(progress, doing, unit)


AskedProgress = bool | Progress | None  # `True`: a bar in a notebook or on a terminal


@contextmanager
def progress_asked(asked: AskedProgress, unit: str = "rows", doing: str = "verifying") -> Iterator[Progress | None]:
    """Yield what reports progress: a bar if ``asked`` is ``True``, the function if it is one, else ``None``.

    Without a notebook or a terminal there is no bar: ``None``.
    """
    if asked is not True:
        yield asked or None
    elif is_notebook():
        with closing(NotebookBar(unit, doing)) as bar:
            yield bar
    elif sys.stderr is not None and sys.stderr.isatty():
        with terminal_bar(unit, doing) as display:
            yield display
    else:
        yield None
