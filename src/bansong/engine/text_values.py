"""Texts of cells and files as values: blanks, masks, days, JSON objects."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any, Final

import polars as pl

from bansong.errors import Problem, UsageError
from bansong.translation import Option

DATE_INVALID: Final = Problem(
    "options.date_invalid", "{parameter}: is no day; give it as 2026-10-05, or as a datetime.date"
)

_BLANK: Final = r"^[\s\-.]*$|^\s*(?i:null|none|nan|n/a|na|없음|미상|미등록|주소없음|주소불명)\s*$"
_MASK: Final = "[*＊○●◯]"
_LOST_ZERO: Final = "^([1-9][0-9]{3})$"  # spreadsheets drop the first zero of Seoul's postal codes
_SPLIT_CODE: Final = "^([0-9]{3})-([0-9]{2})$"


def is_blank(text: pl.Expr) -> pl.Expr:
    """Whether a text has no content: null, white space, dashes, or a word for it."""
    return text.is_null() | text.str.contains(_BLANK)


def is_masked(text: pl.Expr) -> pl.Expr:
    """Whether parts of a text were hidden for privacy (``홍**``, ``역삼로 *** *층``)."""
    return text.str.contains(_MASK).fill_null(False)


def postal_digits(code: pl.Expr) -> pl.Expr:
    """Complete a postal code to five digits: ``4524`` is 04524, ``301-49`` is 30149; other texts stay as they are."""
    return code.str.strip_suffix(".0").str.replace(_LOST_ZERO, "0$1").str.replace(_SPLIT_CODE, "$1$2")


def is_plain(address: pl.Expr) -> pl.Expr:
    """Whether an address begins with a Hangul syllable, has a digit and no mask, as most do; null for null.

    So it is not blank, is in Korean, and has a number but no postal code in front. Patterns need to look only at the
    others: on nulls they cost nothing.
    """
    return (address >= "가") & (address < "\ud7a4") & address.str.contains("[0-9]") & ~is_masked(address)


_DIGITS: Final = r"^([0-9]{4})[^0-9]*([0-9]{1,2})[^0-9]+([0-9]{1,2})(?:[^0-9].*)?$"


def day_given(name: str, value: date | str | None) -> date | None:
    """Return the day given for a parameter: a date, a datetime, or ISO 8601 text (``2026-10-05``).

    Raises :class:`UsageError` for anything else.
    """
    if isinstance(value, datetime):
        return value.date()
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value.strip())
    except (ValueError, AttributeError) as error:
        raise UsageError(DATE_INVALID, parameter=Option(name, value)) from error


def may_be_days(dtype: pl.DataType) -> bool:
    """Whether a column of this dtype may hold days: dates, times, texts, and numbers as ``20240131``."""
    return dtype in (pl.Date, pl.String) or dtype == pl.Datetime or dtype.is_integer()


def day_expr(column: pl.Expr, dtype: pl.DataType | None = None) -> pl.Expr:
    """Read a column as days (Date): ``2024-01-31``, ``2024.1.31``, ``20240131``, each also with a time; else null.

    ``dtype``: the column's, if known; dates and times are taken unchanged.
    """
    if dtype == pl.Date:
        return column
    if dtype == pl.Datetime:
        return column.dt.date()
    text = column.cast(pl.String).str.strip_chars()
    packed = text.str.replace(r"\.0$", "")
    dashed = text.str.replace(_DIGITS, "$1-$2-$3")
    return pl.coalesce(packed.str.to_date("%Y%m%d", strict=False), dashed.str.to_date("%Y-%m-%d", strict=False))


def parse_json_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text; empty if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
