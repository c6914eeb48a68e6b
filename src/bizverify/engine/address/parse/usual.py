"""The forms that most write, read by splitting at blanks: what :mod:`.road` and :mod:`.lot` say of them, but quickly.

Nothing in them can be read in two ways: a name of letters that ends in 로 or 길, perhaps with one number in it, or in
동 or 리, perhaps a 읍 or 면 before it, the number, and what follows a comma. All else is left to those two.
"""

from __future__ import annotations

from typing import Final

import polars as pl

LETTER: Final = "[가나다라마바사아자차카타파하]"
_SYLLABLE: Final = "[가-힣&&[^읍면]]"
_WORDS: Final = "|".join(f"{first}[가-힣&&[^읍면{last}]]|{first}{last}{_SYLLABLE}" for first, last in ("거리", "대로"))
_STEM: Final = f"(?:[가-힣&&[^읍면거대]]{_SYLLABLE}|{_WORDS}){_SYLLABLE}*"
"""Two syllables at least, and more than 거리 or 대로: those may belong to the word before them."""
_NUMBERED: Final = f"[0-9]{{1,4}}번?{LETTER}?길"
_TOWN: Final = "(?:[가-힣]{1,6}[읍면] )?"
_NUMBER: Final = "[0-9]{1,5}(?:-[0-9]{1,5})?"
_ROAD: Final = f"^{_TOWN}{_STEM}(?:(?:로|길)(?:{_NUMBERED})?|{_NUMBERED}|[0-9]{{1,4}}로) {_NUMBER}(?:, .*)?$"
_NO_ROAD: Final = "[^로길리]*"  # 어진동 671, 도움6로 11 has a road, and that is what counts
_LOT: Final = f"^{_TOWN}{_SYLLABLE}*(?:{_SYLLABLE}동|[가-힣&&[^읍면거]]리) (?:산 ?)?{_NUMBER}(?:, {_NO_ROAD})?$"
_NO_DONG: Final = (
    "(?:단지|아파트|아파아트|빌라|맨션|맨숀|타운|마을|주공|연립|상가|빌딩)제?[가나다라마바사]?동 "
    "|(?:관리|주민|본관|별관|사무|공장|창고|연구|기숙사)동 "
)


def read_road(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``_pre``, ``_town``, ``road``, ``road_pre``, ``under``, ``main``, ``sub``, ``_tail`` of the usual road form.

    And ``_lot`` (Boolean): it is the usual lot form, in which there is no road.
    """
    words, numbers = pl.col("_words").struct, pl.col("_numbers").struct
    with_town, road = words[2].is_not_null(), pl.col("road")
    return (
        frame.with_columns(_words=pl.when(pl.col("rest").str.contains(_ROAD)).then("rest"))
        .with_columns(_parts=pl.col("_words").str.splitn(", ", 2))
        .with_columns(_words=pl.col("_parts").struct[0].str.splitn(" ", 3))
        .with_columns(
            _town=pl.when(with_town).then(words[0]),
            road=pl.when(with_town).then(words[1]).otherwise(words[0]),
            _numbers=pl.when(with_town).then(words[2]).otherwise(words[1]).str.splitn("-", 2),
        )
        .with_columns(
            _pre=pl.when(road.is_not_null()).then(pl.concat_str("_town", road, separator=" ", ignore_nulls=True)),
            road_pre=pl.when(road.is_not_null()).then(pl.concat_str("_town", road, ignore_nulls=True)),
            under=pl.when(road.is_not_null()).then(pl.lit(0, pl.UInt8)),
            main=numbers[0].cast(pl.UInt32),
            sub=pl.when(road.is_not_null()).then(numbers[1].cast(pl.UInt32).fill_null(0)),
            _tail=pl.when(road.is_not_null()).then((pl.lit(", ") + pl.col("_parts").struct[1]).fill_null("")),
        )
        .with_columns(_lot=_is_lot())
        .drop("_words", "_parts", "_numbers")
    )


def _is_lot() -> pl.Expr:
    rest = pl.col("rest")
    lot = rest.str.contains(_LOT) & pl.col("brackets").is_null() & ~rest.str.contains(_NO_DONG)
    return lot.fill_null(False)


def read_lot(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``emd``, ``ri``, ``lot_dong``, ``san``, ``lot_main``, ``lot_sub``, ``lot_ho`` where ``_lot`` is true.

    ``_tail`` is filled there, and ``emd`` is ``_town`` elsewhere.
    """
    words, numbers, found = pl.col("_words").struct, pl.col("_numbers").struct, pl.col("_lot")
    with_town, dong = words[0].str.contains("[읍면]$"), pl.col("lot_dong")
    return (
        frame.with_columns(_parts=pl.when(found).then("rest").str.splitn(", ", 2))
        .with_columns(_words=pl.col("_parts").struct[0].str.replace(" 산 ?([0-9])", " 산$1").str.splitn(" ", 3))
        .with_columns(
            _town=pl.when(with_town).then(words[0]).otherwise("_town"),
            lot_dong=pl.when(with_town).then(words[1]).otherwise(words[0]),
            _numbers=pl.when(with_town).then(words[2]).otherwise(words[1]),
        )
        .with_columns(
            san=pl.col("_numbers").str.starts_with("산").cast(pl.UInt8),
            _numbers=pl.col("_numbers").str.strip_prefix("산").str.splitn("-", 2),
            ri=pl.when(dong.str.ends_with("리")).then(dong),
        )
        .with_columns(
            emd=pl.coalesce("_town", pl.when(pl.col("ri").is_null()).then(dong)),
            lot_main=numbers[0].cast(pl.UInt32),
            lot_sub=pl.when(found).then(numbers[1].cast(pl.UInt32).fill_null(0)),
            lot_ho=pl.when(found).then(pl.lit(False)),
            _tail=pl.when(found).then((pl.lit(", ") + pl.col("_parts").struct[1]).fill_null("")).otherwise("_tail"),
        )
        .drop("_words", "_parts", "_numbers")
    )
