"""The display that a call of the library shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bansong.progress.display import Progress
from bansong.progress.notebook_bar import is_notebook, notebook_bar
from bansong.progress.terminal_bar import terminal_bar

AskedProgress = bool | Progress | None
"""``True``: a bar in a notebook or on a terminal; ``False`` or ``None``: none."""


@contextmanager
def progress_asked(asked: AskedProgress, unit: str = "rows", doing: str = "verifying") -> Iterator[Progress | None]:
    """Yield the display that a call was given, or a bar in a notebook or on a terminal."""
    if asked is not True:
        yield asked or None
    elif is_notebook():
        with notebook_bar(unit, doing) as bar:
            yield bar
    elif sys.stderr is not None and sys.stderr.isatty():
        with terminal_bar(unit, doing) as display:
            yield display
    else:
        yield None
