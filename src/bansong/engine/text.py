"""Expressions that read texts: blanks, masks, postal codes, dates; comparison of business names."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import date, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

import polars as pl

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Option

DATE_INVALID: Final = Problem(
    "options.date_invalid", "{parameter}: is no day; give it as 2026-10-05, or as a datetime.date"
)

_BLANK: Final = r"^[\s\-.]*$|^\s*(?i:null|none|nan|n/a|na|없음|미상|미등록|주소없음|주소불명)\s*$"
_MASK: Final = "[*＊○●◯]"
_LOST_ZERO: Final = "^([1-9][0-9]{3})$"  # spreadsheets drop the first zero of postal codes in Seoul
_SPLIT_CODE: Final = "^([0-9]{3})-([0-9]{2})$"


def is_blank(text: pl.Expr) -> pl.Expr:
    """Whether a text is null, white space, dashes, or a word such as ``없음`` or ``n/a``."""
    return text.is_null() | text.str.contains(_BLANK)


def is_masked(text: pl.Expr) -> pl.Expr:
    """Whether a text has masked characters (``홍**``, ``역삼로 *** *층``)."""
    return text.str.contains(_MASK).fill_null(False)


def without_space(text: pl.Expr) -> pl.Expr:
    """Remove white space, since different spacing does not count as an edit."""
    # literal blanks first: the pattern alone takes five times as long
    return text.str.replace_all(" ", "", literal=True).str.replace_all(r"\s", "")


def postal_digits(code: pl.Expr) -> pl.Expr:
    """Complete a postal code to five digits: ``4524`` to 04524, ``301-49`` to 30149; other texts stay."""
    return code.str.strip_suffix(".0").str.replace(_LOST_ZERO, "0$1").str.replace(_SPLIT_CODE, "$1$2")


def is_plain(address: pl.Expr) -> pl.Expr:
    """Whether an address begins with Hangul and has a digit and no mask, as most do; null for null."""
    return (address >= "가") & (address < "\ud7a4") & address.str.contains("[0-9]") & ~is_masked(address)


_DIGITS: Final = r"^([0-9]{4})[^0-9]*([0-9]{1,2})[^0-9]+([0-9]{1,2})(?:[^0-9].*)?$"


def day_given(name: str, value: date | str | None) -> date | None:
    """Convert a date, a datetime or an ISO 8601 text to a date; raise :class:`UsageError` for other values."""
    if isinstance(value, datetime):
        return value.date()
    if value is None or isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value.strip())
    except (ValueError, AttributeError) as error:
        raise UsageError(DATE_INVALID, parameter=Option(name, value)) from error


def may_be_days(dtype: pl.DataType) -> bool:
    """Whether columns of a dtype may contain dates: Date, Datetime, String, and integers such as ``20240131``."""
    return dtype in (pl.Date, pl.String) or dtype == pl.Datetime or dtype.is_integer()


def day_expr(column: pl.Expr, dtype: pl.DataType | None = None) -> pl.Expr:
    """Parse dates: ``2024-01-31``, ``2024.1.31``, ``20240131``, also if a time follows; null for other texts."""
    if dtype == pl.Date:
        return column
    if dtype == pl.Datetime:
        return column.dt.date()
    text = column.cast(pl.String).str.strip_chars()
    packed = text.str.replace(r"\.0$", "")
    dashed = text.str.replace(_DIGITS, "$1-$2-$3")
    return pl.coalesce(packed.str.to_date("%Y%m%d", strict=False), dashed.str.to_date("%Y-%m-%d", strict=False))


def parse_json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; return an empty one for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_HANGUL: Final = "[가-힣]"
_LATIN: Final = r"\p{Latin}"
_OTHER: Final = r"[\p{L}&&[^가-힣\p{Latin}]]"
_COMMONEST: Final = dict.fromkeys(["주식회사", "(주)", "㈜", " "], "")
_MIN_SYLLABLES: Final = 2
_MIN_LATIN_LETTERS: Final = 5  # fewer letters may be an abbreviation


def names_differ(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Whether two names (String) are clearly those of different businesses (Boolean; null if undecidable)."""
    # Ignored are legal form, branch (강남점) and trade (건설) at the end. Names are alike if one contains the other, or
    # if they share half of one's syllables. Undecidable are blank, masked and short names, and 삼성 against Samsung.
    pair = pl.struct(one.alias("a"), other.alias("b"))
    return pair.map_batches(_compare_batch, return_dtype=pl.Boolean, is_elementwise=True)


def _compare_batch(pairs: pl.Series) -> pl.Series:
    # step by step, each only for the pairs still open, so that equal names cost almost nothing
    frame = pairs.struct.unnest().with_row_index("line")
    said = [~is_blank(pl.col(name)) & ~is_masked(pl.col(name)) for name in ("a", "b")]
    rows = frame.filter(pl.col("a") != pl.col("b")).filter(*said)
    same = [frame.filter(pl.col("a") == pl.col("b")).filter(*said)]
    for step in (_strip_common_forms, _fold_name):
        rows = rows.with_columns(step(pl.col("a")).alias("one"), step(pl.col("b")).alias("other"))
        contained = rows.select(_contains("one", "other") | _contains("other", "one")).to_series()
        same.append(rows.filter(contained).select("line", "a", "b"))
        rows = rows.filter(~contained)
    lines = pl.concat([*(found["line"] for found in same), rows["line"]])
    judged = [pl.repeat(False, sum(map(len, same)), eager=True), rows.select(_are_clearly_different()).to_series()]
    return pl.repeat(None, len(pairs), dtype=pl.Boolean, eager=True).scatter(lines, pl.concat(judged))


def _contains(one: str, other: str) -> pl.Expr:
    return pl.col(one).str.contains(pl.col(other), literal=True)


def _strip_common_forms(name: pl.Expr) -> pl.Expr:
    # ten times as fast as _fold_name
    bare = name.str.replace_many(_COMMONEST)
    return pl.when(bare != "").then(bare).otherwise(name)


def _fold_name(name: pl.Expr) -> pl.Expr:
    legal, english, branch = _patterns()[:3]
    plain = name.str.normalize("NFKC").str.to_lowercase().str.replace_all(legal, " ").str.replace_all(english, " ")
    plain = plain.str.replace_all(r"[^\p{L}\p{N}]+", " ").str.strip_chars(" ").str.replace(branch, "")
    compact = plain.str.replace_all(" ", "", literal=True)
    return pl.when(compact != "").then(compact)


def _are_clearly_different() -> pl.Expr:
    # for folded names of which none contains the other
    a, b = pl.col("one"), pl.col("other")
    hangul = a.str.contains(_HANGUL)
    latin = a.str.contains(_LATIN)
    same_script = (hangul == b.str.contains(_HANGUL)) & (latin == b.str.contains(_LATIN)) & (hangul | latin)
    shortest = pl.when(hangul).then(_MIN_SYLLABLES).otherwise(_MIN_LATIN_LETTERS)
    long_enough = pl.min_horizontal(a.str.len_chars(), b.str.len_chars()) >= shortest
    comparable = same_script & long_enough & ~a.str.contains(_OTHER) & ~b.str.contains(_OTHER)
    by_syllable = [_without_trade(name, _MIN_SYLLABLES).str.extract_all(".") for name in (a, b)]
    few = pl.when(hangul).then(_few_common(*by_syllable)).otherwise(_few_common(_letters(a), _letters(b)))
    return pl.when(comparable).then(few)


def _few_common(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    common = a.list.set_intersection(b).list.len()
    return common * 2 < pl.min_horizontal(a.list.n_unique(), b.list.n_unique())


def _letters(name: pl.Expr) -> pl.Expr:
    own = _without_trade(name, _MIN_LATIN_LETTERS)  # pairs of letters, since single ones are in nearly every name
    return pl.concat_list(own.str.extract_all(".."), own.str.slice(1).str.extract_all(".."))


def _without_trade(name: pl.Expr, left: int) -> pl.Expr:
    return name.str.replace(f"^(.{{{left},}}?)(?:{_patterns()[3]})+$", "$1")


@cache
def _patterns() -> tuple[str, str, str, str]:
    # for folded names: legal form, English legal form, branch at the end, trades
    text = files("bansong.engine").joinpath("name_words.toml").read_text(encoding="utf-8")
    words: dict[str, list[str]] = tomllib.loads(text)
    any_of = {kind: "|".join(map(re.escape, sorted(of, key=len, reverse=True))) for kind, of in words.items()}
    legal = rf"[(\[<]\s*(?:{any_of['in_brackets']})\s*[)\]>]|{any_of['forms']}"
    return legal, rf"\b(?:{any_of['english']})\b", rf" \S{{0,12}}(?:{any_of['branches']})$", any_of["trades"]
