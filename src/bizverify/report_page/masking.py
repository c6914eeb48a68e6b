"""What a page shows of people: enough to find a row in the list, too little to write to anybody."""

from __future__ import annotations

import polars as pl

_HIDDEN = "…"
_COMPANY = r"^(?:\s*(?:주식회사|유한회사|㈜|\((?:주|유|재|사)\)))*\s*"
_WORD = 7
"""Characters of a word of an address that are shown, as many as 전북특별자치도 has: an address may be one word."""


def mask_number(number: pl.Expr) -> pl.Expr:
    """The first three digits of a business number: ``124-**-*****``."""
    return pl.concat_str(number.str.slice(0, 3), pl.lit("-**-*****"))


def mask_name(name: pl.Expr) -> pl.Expr:
    """The first character of a name, behind words for a company: ``삼○○``."""
    return pl.concat_str(name.str.replace(_COMPANY, "").str.slice(0, 1), pl.lit("○○"))


def mask_digits(text: pl.Expr) -> pl.Expr:
    """A text with its digits hidden: ``지번 범어동 ***-*``."""
    return text.str.replace_all(r"\p{N}", "*")


def mask_address(address: pl.Expr) -> pl.Expr:
    """The first three words of an address, without digits: ``서울특별시 종로구 종로 …``."""
    words = address.str.strip_chars().str.replace_all(r"\s+", " ").str.split(" ").list.head(3)
    short = words.list.eval(mask_digits(pl.element()).str.slice(0, _WORD))
    return pl.concat_str(short.list.join(" "), pl.lit(f" {_HIDDEN}"))
