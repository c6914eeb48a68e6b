"""What stands after the number: unit, building name, the 동 named in brackets."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.text import compact, where, with_groups

_DONG: Final = r"[가-힣]{1,5}[0-9]?(?:동|리)|[가-힣]{1,5}[0-9]가"
_HINT_AND_NAME: Final = rf"^({_DONG})(?:[,/ ]+([^0-9]+))?$"
_HINT: Final = rf"(?:^|[,/( ])({_DONG})(?:[,/) ]|$)"
_HINT_AT_HEAD: Final = rf"^(?:{_DONG})(?:[,/ ]+|$)"
_HINT_JOINED: Final = "^([가-힣]{2,4}동)[가-힣A-Za-z0-9]+(?:빌딩|아파트|타워|상가|빌라|플라자|프라자|센터)$"
_NO_HINT: Final = (
    "(?:아파트|빌라|상가|빌딩|관리|주민|사무|공장|창고|연구|기숙사|경비|생산|복지|본관|별관|신관|구관|차|단지)[0-9]*동$"
    "|^[가나다라마바사본별에비]동$"
)
_UNIT: Final = (
    r"([가-힣A-Za-z] ?[0-9]+ ?(?:차|단지))"
    r"|(?:지하|지상|제|[BbFf]|비)* ?[0-9A-Za-z]*(?: ?[-~,.·/] ?[0-9]+)* ?(?:층|호실|호|동|통|반)(?:[ ,0-9]|$)"
    r"|외 ?[0-9]* ?필지?|[0-9][0-9~,.· -]*|지하|지층|일부|전부"
)
_DETAIL_UNIT: Final = (
    r"[0-9](?: ?,)? ?(?:층|호|동(?:[ ,0-9]|$))|지층|지하|(?:^|[ ,])[BbF][0-9]|(?:^|[ ,(])[A-Za-z가나다라마바사]동"
)
_BRACKET_UNIT: Final = (
    r"[0-9] ?(?:층|호)|[0-9]{2} ?동|지층|지하|(?:^|[ ,])[BbF][0-9]|(?:^|[ ,(])[A-Za-z가나다라마바사]동"
)


def read(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``detail``, ``hint_dong``, ``building`` (String), ``has_unit`` (Boolean) from ``_tail`` and ``brackets``."""
    detail = pl.col("_tail").str.strip_chars(" ,./:;-")
    return (
        frame.with_columns(detail=pl.when(detail != "").then(detail))
        .pipe(_with_hint)
        .with_columns(_name=pl.coalesce("_name", _building(pl.col("_name").is_null(), pl.col("_left"))))
        .with_columns(
            building=pl.coalesce("_name", _building(pl.col("_name").is_null(), pl.col("detail"))),
            has_unit=pl.when(pl.col("text").is_not_null()).then(
                pl.col("detail").str.contains(_DETAIL_UNIT).fill_null(False)
                | pl.col("brackets").str.contains(_BRACKET_UNIT).fill_null(False)
            ),
        )
        .drop("_name", "_left")
    )


def _with_hint(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``hint_dong``, ``_name`` (the building, where the brackets are plain) and ``_left`` (brackets but the 동)."""
    brackets, odd = pl.col("brackets"), pl.col("_odd")
    after = pl.when(pl.col("road").is_not_null()).then("detail")
    hints = {
        "_plain": pl.col("_plain"),
        "_hint_in": odd.str.extract(_HINT),
        "_hint_joined": odd.str.extract(_HINT_JOINED),
        "_hint_after": after.str.extract(_HINT),
        "_hint_before": pl.col("_before_road").str.extract(_HINT),
    }
    return (
        with_groups(frame, brackets, _HINT_AND_NAME, "_plain", "_name")
        .with_columns(_odd=where(pl.col("_plain").is_null(), brackets))
        .with_columns(_name=compact(pl.col("_name")), _left=odd.str.replace(_HINT_AT_HEAD, ""), **hints)
        .with_columns(pl.when(~pl.col(hint).str.contains(_NO_HINT)).then(hint).alias(hint) for hint in hints)
        .with_columns(hint_dong=pl.coalesce(list(hints)))
        .drop("_odd", *hints)
    )


def _building(wanted: pl.Expr, words: pl.Expr) -> pl.Expr:
    """Return what is left of the words without units and numbers, where it is wanted."""
    name = where(wanted, words).str.replace_all(_UNIT, "$1 ").str.replace_all("[ ,()]", "")
    return pl.when(name.str.len_chars() > 1).then(name)
