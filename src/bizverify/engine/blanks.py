"""Texts that say nothing: blanks and masks."""

from __future__ import annotations

from typing import Final

import polars as pl

_BLANK: Final = r"^[\s\-.]*$|^\s*(?i:null|none|nan|n/a|na|없음|미상|미등록|주소없음|주소불명)\s*$"
_MASK: Final = "[*＊○●◯]"


def is_blank(text: pl.Expr) -> pl.Expr:
    """Whether a text says nothing: null, white space, dashes, or a word for it (with white space around it)."""
    return text.is_null() | text.str.contains(_BLANK)


def is_masked(text: pl.Expr) -> pl.Expr:
    """Whether parts of a text were hidden for privacy (``홍**``, ``역삼로 *** *층``)."""
    return text.str.contains(_MASK).fill_null(False)
