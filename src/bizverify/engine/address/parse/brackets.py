"""Brackets of an address: references beside it are taken out, parts of the words after the number are kept.

``(서창리, 세종빌딩)`` is a reference and taken out. The brackets of ``(주)대한상사``, ``쌍용(아)상가`` and ``(3층)``
are hidden: private characters stand for them until `shown` turns them back, so that the words keep their place.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.batches import for_few, where, with_groups
from bizverify.engine.address.parse.normalise import PROVINCES

_OPEN, _CLOSE, _UNIT_OPEN, _UNIT_CLOSE, _DONG_OPEN, _DONG_CLOSE = (chr(0xE000 + place) for place in range(6))
CLOSING: Final = _CLOSE + _UNIT_CLOSE
LETTER: Final = f"{_OPEN}[가-힣]{_CLOSE}"
_COMPANY: Final = r"\(([주유사재합])\)"
_LETTER: Final = r"\(([가-힣])\)"
_PLAIN: Final = r"^[가-힣]{1,6}(?:[0-9]{0,2}[동리읍면]|[0-9]{1,2}가)(?:[,/ ][^()]*)?\)$"
_NOT_PLAIN: Final = "^(?:상가|[가나다라마바사아자차카타파하])동(?:[ ,/]|.$)"
_REFERENCE: Final = r"\(((?:[가-힣]{2,6}[0-9]?[동리읍면]|[가-힣]{1,5}[0-9]가)(?:[,/ ][^()]*)?)\)"
_IN_UNITS: Final = (
    r"\(((?:(?:(?:지하|지상|옥상|제|[BbFf]) ?)?[0-9A-Za-z]{1,5}(?: ?[-~,.·/] ?[0-9]+)* ?[층호동]"
    r"|[가나다라마바사아자차카타파하]동 ?[0-9]|[A-Z]동|상가동|지하|지층|옥상)"
    r"(?:[^()동리]|[0-9A-Za-z]동|[동리][^ ,()/])*)\)"
)
_UNIT: Final = rf"([0-9]동|[^ (로길동리가읍면산]) ?{_IN_UNITS}"
_WITHIN: Final = r"((?:[^0-9-][0-9]+호|[^번]지|[0-9]동|[^0-9 ()지호로길동리가읍면산]) ?)\(([^()]*)\)( ?[^ ,)])"
_TO_HIDE: Final = (
    rf"{_COMPANY}|{_LETTER}|\( ?(?:[0-9A-Za-z]|지|옥상|제|.동|상가동)|[^ 0-9] ?\([^()]+\) ?[^ ,]|호\([^()]+\)$"
)
_BEHIND_UNIT: Final = r"([0-9]{3,}호)\(([^()]+)\)$"
_HEAD: Final = "^([^0-9]*)(.*)$"
_FRONT: Final = f"^((?:{LETTER}|주식회사) ?[^ ]+|[^ 0-9]+(?:{LETTER}| ?주식회사))[ ,]+(.*[0-9].*)$"


def read_brackets(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``brackets`` (String: the references, joined by ``, ``), ``_body`` and ``_front`` from ``_peeled``.

    ``_body`` is the text without references, other brackets hidden; ``_front`` a company's name before the address.
    """
    peeled, plain, body = pl.col("_peeled"), pl.col("_plain"), pl.col("_body")
    company = pl.when(body.str.contains(_OPEN, literal=True) | body.str.contains("주식회사", literal=True)).then(body)
    any_bracket = peeled.str.contains("(", literal=True) | peeled.str.contains(")", literal=True)
    return (
        frame.with_columns(_parts=peeled.str.splitn("(", 2))
        .with_columns(_before=pl.col("_parts").struct[0], _inner=pl.col("_parts").struct[1])
        .with_columns(_plain=(pl.col("_inner").str.contains(_PLAIN) & ~pl.col("_inner").str.contains(_NOT_PLAIN)))
        .with_columns(
            _plain_body=pl.when(plain).then("_before").str.strip_chars_end(" "),
            _plain_brackets=pl.when(plain).then("_inner").str.strip_suffix(")").str.strip_chars(" ,"),
            _bracketed=where(any_bracket & ~plain.fill_null(False), peeled),
        )
        .drop("_parts", "_before", "_inner", "_plain")
        .pipe(for_few, pl.col("_bracketed").is_not_null(), _read_odd, ("_bracketed",), _ODD)
        .with_columns(
            brackets=pl.coalesce("_plain_brackets", "brackets"),
            _body=pl.coalesce("_plain_body", "_odd_body", "_peeled"),
        )
        .pipe(with_groups, company, _FRONT, "_front", "_behind")
        .with_columns(_body=pl.coalesce("_behind", "_body"))
        .drop("_behind", "_plain_brackets", "_plain_body", "_bracketed", "_odd_body", "_peeled")
    )


_ODD: Final = {"brackets": pl.String, "_odd_body": pl.String}


def _read_odd(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.pipe(_hide_brackets).pipe(_without_references)


def show_brackets(text: pl.Expr) -> pl.Expr:
    """Return a text with its hidden brackets as they were written."""
    odd = where(text.str.contains(_OPEN, literal=True) | text.str.contains(_UNIT_OPEN, literal=True), text)
    odd = odd.str.replace(f"^{_UNIT_OPEN}([^{_UNIT_CLOSE}]*){_UNIT_CLOSE} ?", "$1 ").str.strip_chars(" ,")
    back = {_OPEN: "(", _CLOSE: ")", _UNIT_OPEN: "(", _UNIT_CLOSE: ")"}
    return pl.coalesce(odd.str.replace_many(list(back), list(back.values())), text)


def _hide_brackets(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Hide the brackets in ``_bracketed`` that are no references."""
    tail = pl.col("_tail")
    units = tail.str.replace_all(_LETTER, f"{_OPEN}$1{_CLOSE}").str.replace_all(
        _UNIT, f"$1 {_UNIT_OPEN}$2{_UNIT_CLOSE}"
    )
    within = units.str.replace_all(_REFERENCE, f"{_DONG_OPEN}$1{_DONG_CLOSE}").str.replace_all(
        _WITHIN, f"$1{_OPEN}$2{_CLOSE}$3"
    )
    within = within.str.replace(_BEHIND_UNIT, f"$1{_OPEN}$2{_CLOSE}")
    bracketed = pl.col("_bracketed")
    odd = pl.when(bracketed.str.contains(_TO_HIDE)).then(bracketed).str.replace_all(_COMPANY, f"{_OPEN}$1{_CLOSE}")
    return (
        with_groups(frame, odd, _HEAD, "_head", "_tail")
        .with_columns(_tail=within.str.replace_many([_DONG_OPEN, _DONG_CLOSE], ["(", ")"]))
        .with_columns(_bracketed=pl.coalesce(pl.col("_head") + pl.col("_tail"), "_bracketed"))
        .with_columns(_unbracketed=where(~bracketed.str.contains("[()]"), bracketed))
        .with_columns(_bracketed=pl.when(pl.col("_unbracketed").is_null()).then("_bracketed"))
        .drop("_head", "_tail")
    )


_REGION_IN_BRACKETS: Final = (
    r"^\(([가-힣]+(?:시|도|군|구)|서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충[남북]|전[남북]|경[남북]|제주)\)"
)
_REGION_BEHIND: Final = (
    rf" ?\(((?:[가-힣]{{1,4}}[시군구]|(?:{PROVINCES})(?:특별시|광역시|특별자치[시도]|시|도)?)"
    r"(?:[ ,]+[가-힣]{1,4}[시군구])*)\) ?"
)
_PROVINCE: Final = f"^(?:{PROVINCES})"
_NUMBER: Final = "[로길동리가] ?(?:산|지하)? ?[0-9]"
_ONE: Final = r"^([^()]*)\(([^()]*)\)?([^()]*)$"
_ANY: Final = r"\((?:[^()]|\([^()]*\))*\)?"


def _without_references(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``brackets`` and ``_odd_body`` from ``_bracketed``: most have one bracket, the others take a slower way."""
    several, inner = pl.col("_several"), pl.col("_inner")
    one = pl.concat_str(pl.col("_before").str.strip_chars_end(" "), pl.lit(" "), pl.col("_behind").str.strip_chars(" "))
    all_inner = several.str.extract_all(_ANY).list.join(", ").str.replace_all(r"\)?, \(", ", ")
    outer = several.str.replace_all(_ANY, " ").str.replace_all("[()]", " ").str.replace_all(" {2,}", " ")
    return (
        frame.with_columns(
            _bracketed=pl.col("_bracketed").str.replace(_REGION_IN_BRACKETS, "$1 ").str.replace(_REGION_BEHIND, " $1 ")
        )
        .pipe(with_groups, pl.col("_bracketed"), _ONE, "_before", "_inner", "_behind")
        .with_columns(_several=where(inner.is_null(), pl.col("_bracketed")))
        .with_columns(
            brackets=pl.coalesce(inner, all_inner.str.replace(r"^\(", "").str.replace(r"\)$", "")).str.strip_chars(
                " ,"
            ),
            _odd_body=pl.coalesce(one, outer, "_unbracketed").str.strip_chars(" "),
        )
        .with_columns(brackets=pl.when(pl.col("brackets") != "").then("brackets"))
        .pipe(_with_address_in_brackets)
        .drop("_unbracketed", "_bracketed", "_before", "_inner", "_behind", "_several")
    )


def _with_address_in_brackets(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Let text and brackets change places where a name comes first: ``회관 (서울 종로구 세종대로 175)``."""
    province = pl.when(pl.col("brackets").str.contains(_PROVINCE)).then("brackets")
    swapped = (province.str.contains(_NUMBER) & ~pl.col("_odd_body").str.contains(_NUMBER)).fill_null(False)
    return frame.with_columns(
        brackets=pl.when(swapped).then(pl.when(pl.col("_odd_body") != "").then("_odd_body")).otherwise("brackets"),
        _odd_body=pl.when(swapped).then("brackets").otherwise("_odd_body"),
    )
