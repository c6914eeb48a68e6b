"""The characters of an address made uniform, and its postal code taken out."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.parse.few import for_few
from bizverify.engine.risk.features import is_blank, is_masked

LONGEST: Final = 300
"""An address of more characters than this is not read."""

MOST_BYTES: Final = 4000  # decomposed Hangul takes nine bytes a syllable; beyond this nothing can come to LONGEST
_ODD: Final = r"[^가-힣0-9A-Za-z ,.()\-]"
_DASHES: Final = "‐‑‒–—―−﹣－─━ㅡ"
_DOTS: Final = "ㆍ・‧•∙⋅･"
_OPENING: Final = "[{<〈《「『【〔〖［｛＜（"
_CLOSING: Final = "]}>〉》」』】〕〗］｝＞）"
_QUOTES: Final = "\"'`´‘’“”＂＇"
_UNIFORM: Final[dict[str, str]] = {
    **dict.fromkeys(_DASHES, "-"),
    **dict.fromkeys(_DOTS, "·"),
    **dict.fromkeys(_OPENING, "("),
    **dict.fromkeys(_CLOSING, ")"),
    **dict.fromkeys(_QUOTES, ""),
}
_OF_WEB: Final = r"(?i)<br ?/?>|&nbsp;?|&#(?:160|xa0);"
_NAMED_OF_WEB: Final = {
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&#39;": "'",
    "&#40;": "(",
    "&#41;": ")",
    "&middot;": "·",
}
_INVISIBLE: Final = r"[\p{Cf}\p{Co}\x00-\x08\x0e-\x1f\x7f\x{FE00}-\x{FE0F}]"
HIDDEN: Final = r"\x{E000}-\x{E003}"
"""Private characters, for brackets that are part of a name or hold a unit (see `brackets`)."""
_BETWEEN: Final = f"[ .·,/:{HIDDEN}]"
_LABEL: Final = r"^(?:도로명|지번|신|구|새|사업장|본점|본사)? ?(?:주소지?|소재지|도로명|지번) ?: ?"

PROVINCES: Final = "서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충청?[남북]|전라?[남북]|경상?[남북]|제주"
"""How the names of provinces begin."""

_FIVE: Final = "^[0-9]{5}$"
_LOST_ZERO: Final = "^([1-9][0-9]{3})$"
"""A spreadsheet drops the zero that a postal code of Seoul begins with."""
_MAYBE_POSTAL: Final = "[0-9]{5}|[0-9]{3}-[0-9]{3}"
_WORD: Final = r"(?:\(? ?(?:우편번호|우|〒)\)? ?[:.]? ?)"
_CODE: Final = "(?:([0-9]{5})|[0-9]{3}-[0-9]{3}|[0-9]{6})"
_GLUED_CODE: Final = (
    rf"^({_WORD}?\(?(?:[0-9]{{5,6}}|[0-9]{{3}}-[0-9]{{3}})\)?)"
    rf"((?:{PROVINCES}).*)$"
)
_POSTAL_HEAD: Final = rf"^{_WORD}?\(?{_CODE}\)?(?:[ ,:)]+(.*))?$"
_POSTAL_TAIL: Final = rf"^(.*[0-9].*?)(?:[ ,]*{_WORD}\(?|[ ,]*\(){_CODE} ?\)*$"
_POSTAL_BARE_TAIL: Final = rf"^(.*(?:[ 가-힣][0-9][0-9-]*(?:번지|호|층)?|[로길동리가] ?[0-9].*\)),? ){_CODE}$"


def normalised(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add the uniform text of ``address`` and what can be taken out of it.

    Adds ``text`` (String: NFKC, single spaces, round brackets, plain dashes, no quotes; null when the address is
    blank, masked, longer than 300 characters or without Hangul), ``zipcode_inside`` and ``zipcode_given``
    (String: five digits or null) and ``_peeled`` (String: the text without postal code).
    """
    return frame.pipe(_uniform).pipe(_without_postal_code)


def with_groups(frame: pl.LazyFrame, source: pl.Expr, pattern: str, *names: str) -> pl.LazyFrame:
    """Add the capture groups of a pattern as String columns of these names, null where it does not match.

    Source and match become columns first: polars would compute them once for every group.
    """
    found = pl.col("_found")
    return (
        frame.with_columns(_found=source)
        .with_columns(_found=found.str.extract_groups(pattern))
        .with_columns(found.struct[place].alias(name) for place, name in enumerate(names))
        .drop("_found")
    )


def where(condition: pl.Expr, text: pl.Expr) -> pl.Expr:
    """Return the text, stripped, where the condition holds, else null.

    Stripping writes the column anew: polars replaces in what a null has covered too, and that costs as much as text.
    """
    return pl.when(condition).then(text).str.strip_chars(" ")


def compact(text: pl.Expr) -> pl.Expr:
    """Return a text without spaces, dots, commas, slashes, colons and hidden brackets."""
    odd = where(text.str.contains(_BETWEEN), text)
    return pl.coalesce(odd.str.replace_all(_BETWEEN, ""), text)


def _uniform(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``text``. One step a column: polars computes an expression anew for each place that uses it."""
    address, plain, text = pl.col("address"), pl.col("_plain"), pl.col("text")
    spaced = where(text.str.contains("  ", literal=True), text).str.replace_all(" {2,}", " ")
    readable = (text.str.len_chars() <= LONGEST) & text.str.contains("[가-힣]") & ~is_blank(text) & ~is_masked(plain)
    return (
        frame.with_columns(_plain=pl.when(address.str.len_bytes() <= MOST_BYTES).then(address))
        .pipe(for_few, plain.str.contains(_ODD), _without_odd, ("_plain",), {"_odd": pl.String})
        .with_columns(text=pl.coalesce("_odd", "_plain").str.strip_chars(" "))
        .with_columns(_spaced=spaced)
        .with_columns(text=pl.coalesce("_spaced", "text"))
        .with_columns(text=pl.when(readable).then("text"))
        .drop("_plain", "_odd", "_spaced")
    )


def _without_odd(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``_odd``: ``_plain`` with uniform characters and spaces."""
    plain, odd = pl.col("_plain"), pl.col("_odd")
    of_web = pl.when(plain.str.contains("[<&]")).then(plain).str.replace_all(_OF_WEB, " ")
    of_web = of_web.str.replace_many(list(_NAMED_OF_WEB), list(_NAMED_OF_WEB.values()))
    uniform = odd.str.replace_many(list(_UNIFORM), list(_UNIFORM.values())).str.normalize("NFKC")
    return frame.with_columns(_odd=pl.coalesce(of_web, plain)).with_columns(
        _odd=uniform.str.replace_all(r"\s", " ").str.replace_all(_INVISIBLE, "")
    )


def _without_postal_code(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``_peeled``, ``zipcode_inside`` and ``zipcode_given``."""
    text, peeled, written = pl.col("text"), pl.col("_peeled"), pl.col("_written")
    odd = pl.when(~written.str.contains(_FIVE)).then(written).str.normalize("NFKC").str.strip_chars(" \t'’‘")
    added = {"zipcode_inside": pl.String, "_without": pl.String}
    return (
        frame.with_columns(_written=pl.col("zipcode"))
        .pipe(for_few, text.str.contains(_MAYBE_POSTAL), _read_postal_code, ("text",), added)
        .with_columns(
            _written=pl.coalesce(odd.str.strip_suffix(".0").str.replace(_LOST_ZERO, "0$1"), written),
            _peeled=pl.coalesce("_without", "text"),
        )
        .with_columns(
            zipcode_given=pl.coalesce(pl.when(written.str.contains(_FIVE)).then(written), "zipcode_inside"),
            _peeled=pl.coalesce(where(peeled.str.contains(":", literal=True), peeled).str.replace(_LABEL, ""), peeled),
        )
        .drop("_written", "_without")
    )


def _read_postal_code(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``zipcode_inside`` and ``_without``: the ``text`` without it; null where there is none."""
    coded = pl.col("_coded")
    return (
        frame.with_columns(_coded=pl.col("text").str.replace(_GLUED_CODE, "$1 $2"))
        .pipe(with_groups, coded, _POSTAL_HEAD, "_zip_head", "_after_head")
        .pipe(with_groups, coded, _POSTAL_TAIL, "_before_tail", "_zip_tail")
        .pipe(with_groups, coded, _POSTAL_BARE_TAIL, "_before_bare", "_zip_bare")
        .with_columns(
            zipcode_inside=pl.coalesce("_zip_head", "_zip_tail", "_zip_bare"),
            _without=pl.coalesce("_after_head", "_before_tail", "_before_bare"),
        )
    )
