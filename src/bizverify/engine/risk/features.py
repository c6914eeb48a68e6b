"""What is known about a row, as expressions: each feature has at most one level that holds."""

from __future__ import annotations

from datetime import date
from typing import Final

import polars as pl

Levels = dict[str, pl.Expr]

FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "status": (
        "closed_under_3_months",
        "closed_3_to_12_months",
        "closed_over_12_months",
        "closed_undated",
        "suspended",
        "unregistered",
        "active",
        "not_found",
        "not_checked",
    ),
    "number": ("wrong_check_digit",),
    "kind": ("corporation", "public_or_non_profit"),
    "age": ("under_1_year", "from_1_to_3_years", "over_10_years"),
    "name": ("missing", "masked"),
    "address": ("blank", "masked", "no_number"),
    "postal": ("old_six_digits", "malformed"),
}
"""The features and their levels; a scorecard gives points to exactly these."""

WITHOUT_ASSESSMENT: Final = ("status", "number", "address")
"""The features that are told even where no risk can be given."""

_BLANK: Final = r"^[\s\-.]*$|^\s*(?i:null|none|nan|n/a|na|없음|미상|미등록|주소없음|주소불명)\s*$"
_MASK: Final = "[*＊○●◯]"
_DIGIT: Final = "[0-9０-９]"
_STARTS_LIKE_POSTAL: Final = r"^\W*[0-9]{3}"
_POSTAL_AT_HEAD: Final = r"^\W*(?:[0-9]{3}-[0-9]{3}|[0-9]{5,6})\b"
_OLD_POSTAL_AT_HEAD: Final = r"^\W*[0-9]{3}-[0-9]{3}\b"
_POSTAL: Final = "^[0-9]{5}$"
_OLD_POSTAL: Final = "^[0-9]{3}-?[0-9]{3}$"


def is_blank(text: pl.Expr) -> pl.Expr:
    """Whether a text says nothing: null, white space, dashes, or a word for it (with white space around it)."""
    return text.is_null() | text.str.contains(_BLANK)


def is_masked(text: pl.Expr) -> pl.Expr:
    """Whether parts of a text were hidden for privacy (``홍**``, ``역삼로 *** *층``)."""
    return text.str.contains(_MASK).fill_null(False)


def is_assessable() -> pl.Expr:
    """Whether a risk can be given: there is an address and it can be read."""
    return ~is_blank(pl.col("address")) & ~is_masked(pl.col("address"))


def levels(today: date, *, registry: bool) -> dict[str, Levels]:
    """Return for each feature its levels as Boolean expressions; of several that hold, the first counts.

    The frame must have ``name``, ``address``, ``zipcode`` (String), ``kind`` (String), ``check_digit_ok`` (Boolean)
    and the registry's ``biz_status``, ``since``, ``opened``. A level whose columns are null does not hold.
    """
    return {
        "status": _status(today, registry),
        "number": {"wrong_check_digit": ~pl.col("check_digit_ok")},
        "kind": {
            "corporation": pl.col("kind") == "company",
            "public_or_non_profit": (pl.col("kind") == "public") | (pl.col("kind") == "non_profit"),
        },
        "age": {
            "under_1_year": pl.col("opened") > _months_before(today, 12),
            "from_1_to_3_years": pl.col("opened") > _months_before(today, 36),
            "over_10_years": pl.col("opened") <= _months_before(today, 120),
        },
        "name": {"missing": is_blank(pl.col("name")), "masked": is_masked(pl.col("name"))},
        "address": _address(),
        "postal": _postal(),
    }


def _status(today: date, registry: bool) -> Levels:
    closed = pl.col("biz_status") == "closed"
    since = pl.col("since")
    return {
        "closed_under_3_months": closed & (since > _months_before(today, 3)),
        "closed_3_to_12_months": closed & (since > _months_before(today, 12)),
        "closed_over_12_months": closed & since.is_not_null(),
        "closed_undated": closed,
        "suspended": pl.col("biz_status") == "suspended",
        "unregistered": pl.col("biz_status") == "unregistered",
        "active": pl.col("biz_status") == "active",
        "not_found": pl.lit(registry),
        "not_checked": pl.lit(not registry),
    }


def _address() -> Levels:
    address = pl.col("address")
    blank = is_blank(address)
    coded = pl.when(address.str.contains(_STARTS_LIKE_POSTAL)).then(address)
    numbered = pl.coalesce(coded.str.replace(_POSTAL_AT_HEAD, ""), address).str.contains(_DIGIT)
    return {
        "blank": blank & ~is_blank(pl.col("name")),  # with the number alone, no address was asked about
        "masked": is_masked(address),
        "no_number": ~blank & ~numbered,
    }


def _postal() -> Levels:
    written = pl.col("zipcode")
    odd = pl.when(~written.str.contains(_POSTAL)).then(written)  # null for most, and on nulls patterns cost nothing
    code = odd.str.strip_chars().str.strip_suffix(".0")
    blank = written.is_null() | code.str.contains(_BLANK).fill_null(False)
    return {
        "old_six_digits": (blank & pl.col("address").str.contains(_OLD_POSTAL_AT_HEAD))
        | code.str.contains(_OLD_POSTAL),
        "malformed": ~blank & ~code.str.contains(_POSTAL),
    }


def _months_before(today: date, months: int) -> pl.Expr:
    return pl.lit(today).dt.offset_by(f"-{months}mo")
