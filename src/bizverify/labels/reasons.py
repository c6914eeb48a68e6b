"""What is written about a letter: why it came back, and whether it did. The words are in ``return_reasons.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Final

import polars as pl

REASON_CODES: Final = ("moved", "unknown_addressee", "unknown_address", "absent", "refused", "closed", "other")
"""Why a letter came back, as codes."""

SAYS_NOTHING: Final = ("refused",)
"""Codes of letters that came back and say nothing about the address: learning leaves them out."""

_RETURNS: Final = ("반송", "반환", "bounce", "return")
"""A header with one of these asks whether a letter came back, so that a bare ``Y`` means yes."""


def reason_code(text: pl.Expr) -> pl.Expr:
    """Return the code of a reason as written (String, one of :data:`REASON_CODES`), null where the text is blank.

    White space, case, digits and punctuation do not count. ``other`` where no code fits, or several do.
    """
    plain = _letters_only(text)
    words = _vocabulary()["reasons"]
    whole = {word: code for code, forms in words.items() for word in forms["exact"]}
    within = {code: forms["within"] for code, forms in words.items() if forms["within"]}
    parts = {code: plain.str.contains_any(found) for code, found in within.items()}
    only = pl.lit("other")
    for code, part in parts.items():
        only = pl.when(part).then(pl.lit(code)).otherwise(only)
    one = pl.sum_horizontal(part.cast(pl.UInt8) for part in parts.values()) == 1
    code = pl.coalesce(
        plain.replace_strict(list(whole), list(whole.values()), default=None, return_dtype=pl.String),
        pl.when(one).then(only).otherwise(pl.lit("other")),
    )
    return pl.when(text.str.contains(r"[\p{L}\p{N}]")).then(code)


def came_back(text: pl.Expr, header: str) -> pl.Expr:
    """Whether a letter came back, as a cell of a column under ``header`` says (Boolean).

    Null for blank cells and for what is not understood. Flags (``Y``, ``O``, ``1``, ``true``) are only read under a
    header that speaks of returns. The word of a reason (``폐문부재``) says that it came back.
    """
    words = _vocabulary()
    plain = text.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"[\s.\-_()\[\]]", "")
    exact = text.str.normalize("NFKC").str.to_lowercase().str.strip_chars()
    flags = any(word in header.lower() for word in _RETURNS)
    yes, no = (
        plain.is_in(words[kind]["words"]) | (exact.is_in(words[kind]["flags"]) & flags)
        for kind in ("bounced", "delivered")
    )
    code = reason_code(text)
    return pl.when(yes).then(True).when(no).then(False).when(code != "other").then(True)


def _letters_only(text: pl.Expr) -> pl.Expr:
    return text.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"[^\p{L}]", "")


@cache
def _vocabulary() -> dict[str, Any]:
    return tomllib.loads(files("bizverify.labels").joinpath("return_reasons.toml").read_text(encoding="utf-8"))
