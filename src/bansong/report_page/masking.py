"""Masks of personal data on a page: enough to find a row in the list, too little to write to anybody."""

from __future__ import annotations

import polars as pl

from bansong.engine.address.parse.normalise import PROVINCES
from bansong.engine.address.regions import names_region

_HIDDEN = "…"
_COMPANY = r"^(?:\s*(?:주식회사|유한회사|㈜|\((?:주|유|재|사)\)))*\s*"
_UNSPACED_REGION = f"^(?:{PROVINCES})[가-힣]*[시군구]"
_MAX_WORD_CHARACTERS = 7
"""Shown characters of a word of an address, as many as 전북특별자치도 has: an address may be one word."""


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
    """Return three words of an address from its region on, without digits: ``서울특별시 종로구 종로 …``.

    Text before the region may be somebody's name, so it is hidden, as is an address without a region.
    """
    words = address.str.strip_chars().str.replace_all(r"\s+", " ").str.split(" ")
    begins = words.list.eval(names_region(pl.element()) | pl.element().str.contains(_UNSPACED_REGION))
    short = words.list.slice(begins.list.arg_max(), pl.when(begins.list.any()).then(3).otherwise(0))
    hidden = short.list.eval(mask_digits(pl.element()).str.slice(0, _MAX_WORD_CHARACTERS))
    return pl.concat_str(hidden.list.join(" "), pl.lit(f" {_HIDDEN}")).str.strip_chars_start(" ")
