"""Cases in ``golden/*.csv``: a line each, what is given first, then what is expected; nothing is null, ``-`` is empty.

``GOLDEN=write pytest …`` writes what is found in place of what is expected: look at the difference before it is kept.
"""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

GOLDEN = Path(__file__).parent / "golden"


def cases(name: str) -> pl.DataFrame:
    return pl.read_csv(GOLDEN / name, infer_schema=False).with_columns(pl.all().replace("-", ""))


def check(name: str, found: pl.DataFrame, inputs: int) -> None:
    """Hold a frame of one query against all cases; ``inputs``: columns of a case that say what was asked."""
    expected = cases(name)
    told = found.select(pl.col(column).cast(pl.String) for column in expected.columns)
    if os.environ.get("GOLDEN") == "write":
        told.with_columns(pl.all().replace("", "-")).write_csv(GOLDEN / name)
    wrong = [
        f"{' | '.join(map(str, want[:inputs]))}: {column} is {got[place]!r}, not {want[place]!r}"
        for want, got in zip(expected.iter_rows(), told.iter_rows(), strict=True)
        for place, column in enumerate(expected.columns)
        if want[place] != got[place]
    ]
    assert not wrong, "\n".join(["", *wrong])
