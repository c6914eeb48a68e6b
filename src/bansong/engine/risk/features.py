"""The levels of features, as expressions: a row has at most one level of each feature."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Collection
from datetime import MINYEAR, date, timedelta
from typing import Final

import polars as pl

from bansong.engine.risk.reasons import FEATURES
from bansong.engine.text import is_blank, is_masked, is_plain, names_differ

Levels = dict[str, pl.Expr]

STALE_AFTER: Final = 90  # days for which a status is valid, unless the scorecard says otherwise
_FOUND: Final = ("exact", "lot_to_road")
_REPAIRED: Final = ("region_repaired", "typo_repaired", "building_only", "renumbered")

_LAST_FILLER_DAY: Final = date(1970, 1, 1)  # machines fill in 0001-01-01, 1900-01-01, 1970-01-01

_HANGUL: Final = "[가-힣\u1100-\u11ff\u3131-\u318e]"
_DIGIT: Final = "[0-9０-９]"
_STARTS_LIKE_POSTAL: Final = r"^\W*[0-9]{3}"
_POSTAL_AT_HEAD: Final = r"^\W*(?:[0-9]{3}-[0-9]{3}|[0-9]{5,6})\b"
_OLD_POSTAL_AT_HEAD: Final = r"^\W*[0-9]{3}-[0-9]{3}\b"
_POSTAL: Final = "^[0-9]{5}$"
_OLD_POSTAL: Final = "^[0-9]{3}-?[0-9]{3}$"
_LOST_ZERO: Final = "^[1-9][0-9]{3}$"
_FIRST_POSTAL: Final = "01000"
_LAST_POSTAL: Final = "63999"
_SPLIT_POSTAL: Final = "^[0-9]{3}-[0-9]{2}$"

WRITING: Final = "writing"  # form of the written address (Enum): blank, masked, plain (`is_plain`), or odd
ODD_ZIPCODE: Final = "odd_zipcode"  # postal code as written (String), if it is not written as five digits
_WRITINGS: Final = pl.Enum(["blank", "masked", "odd", "plain"])
_OTHER: Final = "address:other"


def with_looks(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the form of the address (:data:`WRITING`), and :data:`ODD_ZIPCODE`: the postal code unless five digits."""
    address, other = pl.col("address"), pl.col(_OTHER)  # a column, since polars would compute a nested step twice
    writings = {"blank": address.is_null(), "plain": other.is_null(), "masked": is_masked(other)}
    writing = pl.when(is_blank(other)).then(pl.lit("blank", _WRITINGS)).otherwise(pl.lit("odd", _WRITINGS))
    for name, holds in reversed(writings.items()):
        writing = pl.when(holds).then(pl.lit(name, _WRITINGS)).otherwise(writing)
    odd_code = pl.when(pl.col("zipcode").ne_missing(pl.col("zipcode_given"))).then("zipcode").str.strip_chars()
    return (
        frame.with_columns(
            pl.when(~is_plain(address)).then(address).alias(_OTHER), odd_code.str.strip_suffix(".0").alias(ODD_ZIPCODE)
        )
        .with_columns(writing.alias(WRITING))
        .drop(_OTHER)
    )


def is_assessable() -> pl.Expr:
    """Whether the address is neither blank nor masked."""
    return ~pl.col(WRITING).is_in(["blank", "masked"])


def _odd_address() -> pl.Expr:
    return pl.when(pl.col(WRITING) == "odd").then("address")


def levels(
    today: date,
    *,
    registry: bool,
    gazetteer: bool,
    stale_after: int = STALE_AFTER,
    columns: Collection[str] = frozenset(),
    numbers: bool = True,
) -> dict[str, Levels]:
    """Return the possible levels of each feature as Boolean expressions; the first level that is true counts."""
    # `stale_after`: days for which a status is valid; `columns`: those of `_optional` that the frame has
    fresh = (pl.col("as_of") >= today - timedelta(days=stale_after)).fill_null(False)
    unchecked = "without_numbers" if not numbers else "not_found" if registry else "not_checked"
    possible = _status(today, fresh, unchecked) | _always(today, gazetteer=gazetteer, numbers=numbers)
    for column, feature, more in _optional(today):
        if column in columns:
            possible[feature] = possible.get(feature, {}) | more
    return possible


def _always(today: date, *, gazetteer: bool, numbers: bool) -> dict[str, Levels]:
    address = _address(numbers) | (_match_levels() if gazetteer else {})
    filled = pl.col("fixed_zipcode").is_not_null() & pl.col("zipcode_given").is_null()
    return {
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
        "address": address,
        "form": {"lot_number": pl.col("form") == "lot"},
        "unit": {"missing": pl.col("unit") == "missing"} if gazetteer else {},
        "change": _change(),
        "completeness": _completeness(address, gazetteer=gazetteer),
        "postal": _postal(gazetteer),
        "postal_filled": {"filled": filled} if gazetteer else {},
    }


def _optional(today: date) -> list[tuple[str, str, Levels]]:
    sole_trader = pl.col("kind") == "sole_trader"
    return [
        ("merged", "status", {"merged": (pl.col("biz_status") == "closed") & pl.col("merged")}),
        ("taxation", "kind", {"simplified": sole_trader & (pl.col("taxation") == "simplified")}),
        ("registry_name", "name", {"differs": names_differ(pl.col("name"), pl.col("registry_name"))}),
        ("confirmed", "freshness", _freshness(today)),
        ("crowded", "place", {"crowded": pl.col("crowded")}),
        ("several_addresses", "spread", {"several_addresses": pl.col("several_addresses")}),
        *((name, name, {level: pl.col(name) == level for level in FEATURES[name]}) for name in ("history", "region")),
    ]


def _freshness(today: date) -> Levels:
    # future days and filler days are ignored
    known = (pl.col("confirmed") > _LAST_FILLER_DAY) & (pl.col("confirmed") <= today)
    confirmed = pl.when(known).then(pl.col("confirmed"))
    return {
        "under_6_months": confirmed > _months_before(today, 6),
        "from_12_to_24_months": _between(confirmed, today, 24, 12),
        "from_24_to_48_months": _between(confirmed, today, 48, 24),
        "over_48_months": confirmed <= _months_before(today, 48),
    }


def _between(day: pl.Expr, today: date, most: int, least: int) -> pl.Expr:
    return (day > _months_before(today, most)) & (day <= _months_before(today, least))


def _status(today: date, fresh: pl.Expr, unchecked: str) -> dict[str, Levels]:
    # `closed` is never stale, since a closed business does not open again
    status, since = pl.col("biz_status"), pl.col("since")
    closed = status == "closed"
    levels = {
        "closed_under_3_months": closed & (since > _months_before(today, 3)),
        "closed_3_to_12_months": closed & (since > _months_before(today, 12)),
        "closed_over_12_months": closed & since.is_not_null(),
        "closed_undated": closed,
        "suspended": status == "suspended",
        "unregistered": status == "unregistered",
        "active": (status == "active") & fresh,
        "active_stale": status == "active",
        unchecked: pl.lit(True),
    }
    return {"status": levels, "status_age": {"stale": status.is_in(["suspended", "unregistered"]) & ~fresh}}


def _address(numbers: bool) -> Levels:
    odd, blank = _odd_address(), pl.col(WRITING) == "blank"
    coded = pl.when(odd.str.contains(_STARTS_LIKE_POSTAL)).then(odd)
    numbered = pl.coalesce(coded.str.replace(_POSTAL_AT_HEAD, ""), odd).str.contains(_DIGIT)
    return {
        # a row with the number alone does not ask about an address
        "blank": ~is_blank(pl.when(blank).then("name")) if numbers else blank,
        "masked": pl.col(WRITING) == "masked",
        "not_korean": ~odd.str.contains(_HANGUL) | (pl.col("form") == "english").fill_null(False),
        "no_number": ~numbered,
    }


def _match_levels() -> Levels:
    # a missing road or number counts only in a region that the gazetteer covers
    level, covered = pl.col("match_level"), pl.col("covered")
    found = level.is_in(_FOUND)
    without_building = (level == "region_only") & covered
    return {
        "ambiguous": level == "ambiguous",
        "corrected_unsupported": _is_corrected() & ~pl.col("supported"),
        "corrected": _is_corrected(),
        "exact_with_unit": found & (pl.col("unit") == "given"),
        "found": found,
        "building_only": level == "building_only",
        "abolished": level == "abolished",
        "number_absent": (level == "road_only") & covered,
        "road_absent": without_building & (pl.col("form") == "road"),
        "lot_unknown": without_building & (pl.col("form") == "lot"),
        "no_road_or_lot": covered & level.is_in(("region_only", "none")) & (pl.col("form") == "neither"),
        "not_covered": (level == "region_only") & ~covered,
        "not_found": (pl.col(WRITING) != "blank") & ~level.is_in(_REPAIRED).fill_null(False),  # found, but in doubt
    }


def _is_corrected() -> pl.Expr:
    # the fixed address is that of another building than the written one; `building_only`: found by its name
    return pl.col("match_level").is_in(_REPAIRED) & pl.col("fixed_address").is_not_null()


def _change() -> Levels:
    # changes that no level of `address` states: `changed` in the fixed address, `read_as` only to read the written one
    changed = pl.col("changes").is_not_null()
    written = pl.col("fixed_address").is_not_null()
    return {
        "changed": changed & written & ~pl.col("match_level").is_in(_REPAIRED),
        "read_as": changed & ~written & (pl.col("match_level") != "building_only"),
    }


def _completeness(address: Levels, *, gazetteer: bool) -> Levels:
    # deficiencies that no level of `address` states; a postal code can replace the region; with a gazetteer, it must
    # have the road in a district of the code
    said = pl.any_horizontal(address[name] for name in ("not_korean", "no_number", "no_road_or_lot") if name in address)
    code = pl.col("zipcode_given")
    odd = pl.col(ODD_ZIPCODE)
    as_written = odd.is_null() | is_blank(odd) | odd.str.contains(_POSTAL)
    coded = (code >= _FIRST_POSTAL) & (code <= _LAST_POSTAL) & as_written & ~_is_elsewhere()
    if gazetteer:
        coded &= ~pl.col("match_level").is_in(["region_only", "none"])
    return {
        "beside": pl.col("beside"),
        "no_place": ~pl.col("numbered") & ~said.fill_null(False),
        "no_region": ~pl.col("region_given") & ~coded.fill_null(False),
    }


def restored_zipcode() -> pl.Expr:
    """Return the five digits of a postal code that lost its first zero or is written as ``301-49``; else null."""
    return pl.when((_lost_zero() | _is_split()) & ~_is_elsewhere()).then("zipcode_given")


def _lost_zero() -> pl.Expr:
    return pl.col(ODD_ZIPCODE).str.contains(_LOST_ZERO).fill_null(False)


def _is_split() -> pl.Expr:
    return pl.col(ODD_ZIPCODE).str.contains(_SPLIT_POSTAL).fill_null(False)


def _is_elsewhere() -> pl.Expr:
    return (pl.col("postal_match") == "other_district").fill_null(False)


def _postal(gazetteer: bool) -> Levels:
    # four digits have lost a zero if the address is in Seoul
    written, code = pl.col("zipcode"), pl.col(ODD_ZIPCODE)
    blank = written.is_null() | (is_blank(code) & code.is_not_null())
    elsewhere, lost = _is_elsewhere(), _lost_zero()
    judged = {
        "other_district": elsewhere & ~lost & pl.col("fixed_zipcode").is_not_null(),
        "neighbouring": pl.col("postal_match") == "neighbouring",
        "differs": pl.col("postal_match").is_null() & (pl.col("fixed_zipcode") != pl.col("zipcode_given")),
    }
    return (judged if gazetteer else {}) | {
        "outside_region": elsewhere & ~lost,
        "old_six_digits": (blank & _odd_address().str.contains(_OLD_POSTAL_AT_HEAD)) | code.str.contains(_OLD_POSTAL),
        "malformed": (~blank & ~code.str.contains(_POSTAL) & ~lost & ~_is_split()) | (lost & elsewhere),
    }


def _months_before(today: date, months: int) -> pl.Expr:
    # in a shorter month, its last day
    year, month = divmod(today.year * 12 + today.month - 1 - months, 12)
    year, month = max(year, MINYEAR), month + 1
    return pl.lit(date(year, month, min(today.day, monthrange(year, month)[1])))
