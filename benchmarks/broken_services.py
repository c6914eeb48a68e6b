"""What broken services cost: the table of ``tests/broken_services.py``, each command given once and three times more.

    python benchmarks/broken_services.py [--engine batch|verify] [--only WORDS] [--markdown]

``spent`` are lookups paid over all runs, ``again`` those of them that had been paid before, ``answered`` and ``wrong``
rows of the last output, ``exit`` the code of each run, and the rest what the first run said first.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from broken_services import RIGHT, ROWS, TABLE, WRONG, Case, Engine, campaign

HEAD = ("engine", "service", "spent", "again", "answered", "wrong", "exit", "what the first run says")
WIDTH = 110


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=TABLE)
    parser.add_argument("--only", default="", metavar="WORDS", help="only services whose name holds these words")
    parser.add_argument("--markdown", action="store_true", help="as a table for docs/buying.md")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # the table says it, and asyncio's are about connections that break on purpose
    engines = [given.engine] if given.engine else list(TABLE)
    chosen = [(engine, name) for engine in engines for name in TABLE[engine] if given.only in name]
    print(f"{ROWS} customers a file\n")
    lines = (line(engine, name, TABLE[engine][name]) for engine, name in chosen)
    for cells in with_head(lines, markdown=given.markdown):
        print(cells, flush=True)


def line(engine: Engine, name: str, case: Case) -> tuple[str, ...]:
    """Run a campaign and return its cells."""
    with TemporaryDirectory() as folder:
        found = campaign(Path(folder), engine, case)
    last = found.outcomes[-1]
    codes = " ".join(str(outcome.code) for outcome in found.outcomes)
    wrong = max(outcome.count(WRONG) for outcome in found.outcomes)
    said = next(iter(found.outcomes[0].words), "").splitlines()[:1] or [""]
    figures = (found.spent, found.again, last.count(RIGHT), wrong)
    return engine, name, *map(str, figures), codes, said[0][:WIDTH]


def with_head(lines: Iterator[tuple[str, ...]], *, markdown: bool) -> Iterator[str]:
    """Put a head above the lines, and lay them out."""
    if markdown:
        yield f"| {' | '.join(HEAD)} |"
        yield f"|{' --- |' * len(HEAD)}"
        yield from (f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines)
        return
    layout = "{:<7}{:<50}{:>6}{:>6}{:>9}{:>6}  {:<12}{}"
    yield layout.format(*HEAD)
    yield from (layout.format(*cells) for cells in lines)


if __name__ == "__main__":
    main()
