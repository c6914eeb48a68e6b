"""The two things that `label` does with an enriched file that it has open, for tests that have its path."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from bansong.labels import sender as label_sender
from bansong.labels.sender import SendReport
from bansong.run import columns as output_columns
from bansong.tables.detect import open_table


def write_labelled(
    path: Path, output: Path, labels: pl.DataFrame, *, warned: Callable[[str], None] | None = None, **options: Any
) -> Path:
    """Write the file with label columns; what the user should know is a Python warning unless ``warned`` takes it."""
    warned = warned or functools.partial(warnings.warn, stacklevel=2)
    with open_table(path) as table:
        output_columns.write_labels(table, output, labels, warned=warned, **options)
    return output


def send_labels(labels: pl.DataFrame, path: str | Path, **options: Any) -> SendReport:
    """Send the labels of an enriched file's rows."""
    with open_table(Path(path)) as table:
        found = label_sender.labels_with_lookups(labels, table)
    return label_sender.send_labels(found, Path(path), **options)
