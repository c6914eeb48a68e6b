"""How a run reads its input and writes its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bansong.options.option_rules import Rule, check_fields
from bansong.schema import Lang
from bansong.translation import gettext_noop

ALL_SHEETS: Final = "*"
"""Instead of a sheet's name: every sheet that holds business numbers."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How an input file is read; see :func:`bansong.enrich` for each field.

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

    def __post_init__(self) -> None:
        check_fields(self, _READ_RULES)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How an output file is written; see :func:`bansong.enrich` for each field."""

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
    allow_empty: bool = False
    report: str | Path | None = None
    unmask: bool = False
    review: str | Path | None = None
    headers: Lang | None = None

    def __post_init__(self) -> None:
        check_fields(self, _WRITE_RULES)


def _names_headers(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(one, str) for one in value))


def _is_list_of_texts(value: object) -> bool:
    return not isinstance(value, str) and _names_headers(value)


_READ_RULES: Final[dict[str, Rule]] = {
    "columns": (
        lambda value: value is None or (isinstance(value, Mapping) and all(map(_names_headers, value.values()))),
        gettext_noop('roles with headers, all texts, as {"b_no": "사업자번호", "address": ["주소", "상세주소"]}'),
    ),
    "sheet": (lambda value: value is None or _names_headers(value), gettext_noop("the name of a sheet, or a list")),
}
_WRITE_RULES: Final[dict[str, Rule]] = {
    "prefix": (lambda value: isinstance(value, str), gettext_noop("a text; an empty one for none")),
    "extra_columns": (_is_list_of_texts, gettext_noop("a list of columns, all texts")),
}
