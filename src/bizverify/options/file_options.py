"""How a run reads its input and writes its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bizverify.schema import Lang

ALL_SHEETS: Final = "*"
"""Instead of a sheet's name: every sheet that holds business numbers."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How an input file is read; see :func:`bizverify.enrich` for each field.

    Several names of sheets, or :data:`ALL_SHEETS`, are for inputs that are given in a list. ``input_format``: that of
    standard input, where its content leaves it open.
    """

    columns: Mapping[str, str | Sequence[str]] | None = None
    sheet: str | Sequence[str] | None = None
    encoding: str | None = None
    json_path: str | None = None
    has_header: bool = True
    input_format: str | None = None
    delimiter: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How an output file is written; see :func:`bizverify.enrich` for each field."""

    output_encoding: str | None = None
    in_place: bool = False
    backup: bool = True
    select: Sequence[str] | None = None
    prefix: str = ""
    summary: bool = False
    with_outcomes: bool = False
    manifest: str | Path | None = None
    extra_columns: Sequence[str] = ()
    split: str | None = None
    letters: str | Path | None = None
    letter_cost: float | None = None
    report: str | Path | None = None
    unmask: bool = False
    review: str | Path | None = None
    headers: Lang | None = None
