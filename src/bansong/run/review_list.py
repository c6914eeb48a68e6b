"""The list of addresses for a person to decide on: candidates of each, and a cell for the choice."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from bansong import business_number
from bansong.engine.address import SUGGESTED, Gazetteer, suggest
from bansong.engine.letter_history import address_key
from bansong.engine.local import NUMBER, UNSURE
from bansong.errors import OutputError, Problem, UsageError
from bansong.run.records import ROW_ID
from bansong.tables.excel.choice_sheet import ChoiceSheet, write_choice_sheet
from bansong.translation import current_language, gettext, gettext_noop

REVIEW_NOT_WORKBOOK: Final = Problem("outputs.review_not_workbook", "{path}: a review is a workbook; call it .xlsx")
REVIEW_WITHOUT_GAZETTEER: Final = Problem(
    "options.review_without_gazetteer", "`review=` lists what the gazetteer holds; give `gazetteer=`"
)
REVIEW_TOO_LONG: Final = Problem("outputs.review_too_long", "{path}: {count:,} addresses are more than a sheet holds")

CANDIDATES: Final = 5
"""Most candidates of an address."""

COLUMNS: Final = {
    "row": gettext_noop("row"),
    "b_no": gettext_noop("business number"),
    "name": gettext_noop("business name"),
    "address": gettext_noop("address"),
    "zipcode": gettext_noop("postal code"),
    "why": gettext_noop("what is not sure"),
    "choice": gettext_noop("choice"),
    **{f"candidate{place}": gettext_noop("candidate {place}") for place in range(1, CANDIDATES + 1)},
    "changes": gettext_noop("what differs"),
}
"""The columns of a review, with their headers."""

_WHY: Final = {
    "ambiguous": gettext_noop("fits several places"),
    "unsupported": gettext_noop("corrected, and nothing else in the row confirms it"),
}
_WIDTHS: Final = {
    "row": 7,
    "b_no": 14,
    "name": 20,
    "address": 40,
    "zipcode": 10,
    "why": 22,
    "choice": 44,
    "changes": 60,
}
_CANDIDATE_WIDTH: Final = 36
_EMPTY_CANDIDATE_WIDTH: Final = 12
_RECORD: Final = ("name", "address", "zipcode")
_UNPRINTABLE: Final = r"[\s\p{C}]+"
_ROWS_OF_A_SHEET: Final = 1_048_575


def check_review(path: Path, gazetteer: Gazetteer | None) -> None:
    """Raise :class:`OutputError` unless the name ends in ``.xlsx``, :class:`UsageError` without a gazetteer."""
    if path.suffix.lower() != ".xlsx":
        raise OutputError(REVIEW_NOT_WORKBOOK, path=path)
    if gazetteer is None:
        raise UsageError(REVIEW_WITHOUT_GAZETTEER)


def headers() -> dict[str, str]:
    """Return the headers of a review in the current language."""
    return {
        name: gettext(text, place=name[-1]) if "{place}" in text else gettext(text) for name, text in COLUMNS.items()
    }


def write_review(answers: pl.LazyFrame, target: Path, gazetteer: Gazetteer) -> int:
    """Write a workbook of the unsure addresses of answered rows; return their number.

    ``answers``: rows of :meth:`bansong.engine.LocalEngine.answer` with a gazetteer, the record's columns and
    ``row_id``. One line for each business and address, in the order of the rows.
    """
    unsure = _unsure_addresses(answers)
    lines = unsure.hstack(_candidates(unsure, gazetteer))
    if lines.height > _ROWS_OF_A_SHEET:
        raise OutputError(REVIEW_TOO_LONG, path=target, count=lines.height)
    write_choice_sheet(_as_sheet(lines.select(*COLUMNS)), target)
    return lines.height


def _unsure_addresses(answers: pl.LazyFrame) -> pl.DataFrame:
    there = answers.collect_schema().names()
    text = {name: pl.col(name).cast(pl.String) if name in there else pl.lit(None, pl.String) for name in _RECORD}
    rows = answers.filter(pl.col(UNSURE).is_not_null()).select(
        ROW_ID,
        (pl.col(ROW_ID) + 1).alias("row"),
        business_number.digits_expr(pl.col(NUMBER)).alias("b_no"),
        *(text[name].str.replace_all(_UNPRINTABLE, " ").str.strip_chars().alias(name) for name in _RECORD),
        pl.col(UNSURE).replace_strict({code: gettext(why) for code, why in _WHY.items()}).alias("why"),
        address_key(text["address"]).alias("key"),
    )
    found = rows.collect(engine="streaming").sort(ROW_ID)
    return found.unique(["b_no", "key"], keep="first", maintain_order=True).drop(ROW_ID, "key")


def _candidates(unsure: pl.DataFrame, gazetteer: Gazetteer) -> pl.DataFrame:
    found = (
        suggest(unsure, gazetteer, current_language(), CANDIDATES)
        if not unsure.is_empty()
        else pl.DataFrame(schema=SUGGESTED)
    )
    place = pl.int_range(1, pl.len() + 1).over("row")
    text = pl.format("{} [{}]", "address", "zipcode")
    differs = pl.format("{}: {}", place, pl.col("changes").fill_null(gettext("fits what is written")))
    by_row = (
        found.with_columns(text.alias("text"), differs.alias("differs"))
        .group_by("row", maintain_order=True)
        .agg("text", pl.col("differs").str.join("\n").alias("changes"))
    )
    every = pl.DataFrame({"row": pl.int_range(unsure.height, dtype=pl.UInt32, eager=True)})
    joined = every.join(by_row, on="row", how="left", maintain_order="left")
    return joined.select(
        *(
            pl.col("text").list.get(place, null_on_oob=True).alias(f"candidate{place + 1}")
            for place in range(CANDIDATES)
        ),
        pl.col("changes"),
        pl.lit(None, pl.String).alias("choice"),
    )


def _width(column: pl.Series) -> int:
    is_empty = column.name.startswith("candidate") and column.null_count() == len(column)
    return _EMPTY_CANDIDATE_WIDTH if is_empty else _WIDTHS.get(column.name, _CANDIDATE_WIDTH)


def _as_sheet(lines: pl.DataFrame) -> ChoiceSheet:
    return ChoiceSheet(
        title=gettext("review"),
        headers=tuple(headers().values()),
        widths=tuple(_width(lines[name]) for name in COLUMNS),
        lines=lines,
        choice="choice",
        offered=tuple(f"candidate{place}" for place in range(1, CANDIDATES + 1)),
        prompt=gettext("Choose the right address; leave the cell empty if none is."),
        refusal=gettext("Choose one of the candidates of this line, or leave the cell empty."),
    )
