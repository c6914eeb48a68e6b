"""Forms of roads and lots: the pieces of patterns that all readers share, and the fast reader of the usual forms.

The usual forms are what most write, and are unambiguous: a name of letters that ends in 로 or 길, perhaps with one
number in it, or in 동 or 리, perhaps a 읍 or 면 before it, the number, and more after a comma. They are split at blanks
(:func:`read_usual_road`, :func:`read_usual_lot`), a fraction of the work of a pattern with groups; other forms are left
to :mod:`.road` and :mod:`.lot`, which read the usual forms in the same way. :func:`plain_numbers` reads the number
alone, for questions where no answer is better than a wrong one.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bansong.engine.address.parse.normalise import MAX_CHARS

LETTER: Final = "[가나다라마바사아자차카타파하]"
BRANCHING: Final = rf"(?:번[가-힣0-9]{{0,6}}?|{LETTER}|[동서남북상중옆]|[가-힣&&[^층호동]][0-9]{{1,3}}번?)?안?길"
"""Words after the number of a branch: 12길, 12번길, 12번다길, 69번서길, 126번1길, 87번월촌길, 14남길, 1수2번길."""
NUMBER: Final = r"([0-9]{1,5})(?: ?[-의] ?([0-9]{1,5}))?"
COMPLEXES: Final = "단지|아파트|아파아트|빌라|맨션|맨숀|타운|마을|주공|연립|상가|빌딩"
"""Words before a 동 that is a house of a complex, not a legal dong."""
ANNEXES: Final = "관리|주민|본관|별관|사무|공장|창고|연구|기숙사"
"""Words before a 동 that is a house by its use."""
ROAD_LIKE_DONGS: Final = ("세종로", "남성로", "시장북로")
"""Legal dongs of 서울 종로구 and 대구 중구 named like roads: a number after them may be a lot's."""
NOT_A_NUMBER: Final = (
    r"^(?:[0-9]|가(?:동|[ 0-9,]|$)|(?:[.·,][0-9])+가|(?:[.·][0-9])+동|층|번출구|호선|공구|단지|학년"
    rf"|{BRANCHING}|[동차통반로](?:[ 0-9,.]|$))"
)
"""Words after digits that are no building or lot number: a floor, ``N가``, ``N번길``, ``N동`` …"""
DOOR: Final = "^ ?호(?:[ ,0-9]|$)"
FLOOR_OR_HOUSE: Final = "^(?:층|동(?:[ 0-9,]|$))"
"""Words after the number of a unit."""
AFTER_NUMBER: Final = "^ ?(?:번지(?: ?[내호](?:[ ,(]|$))?|번(?:[ ,(]|$))"
"""Words for "number"."""

_SYLLABLE: Final = "[가-힣&&[^읍면]]"
_WORDS: Final = "|".join(f"{first}[가-힣&&[^읍면{last}]]|{first}{last}{_SYLLABLE}" for first, last in ("거리", "대로"))
_STEM: Final = f"(?:[가-힣&&[^읍면거대]]{_SYLLABLE}|{_WORDS}){_SYLLABLE}*"
"""At least two syllables, and more than 거리 or 대로: those may belong to the word before them."""
_NUMBERED: Final = f"[0-9]{{1,4}}번?{LETTER}?길"
_TOWN: Final = "(?:[가-힣]{1,6}[읍면] )?"
_USUAL_NUMBER: Final = "[0-9]{1,5}(?:-[0-9]{1,5})?"
_ROAD: Final = f"^{_TOWN}{_STEM}(?:(?:로|길)(?:{_NUMBERED})?|{_NUMBERED}|[0-9]{{1,4}}로) {_USUAL_NUMBER}(?:, .*)?$"
_NO_ROAD: Final = "[^로길리]*"  # 어진동 671, 도움6로 11 has a road, and that is what counts
_LOT: Final = f"^{_TOWN}{_SYLLABLE}*(?:{_SYLLABLE}동|[가-힣&&[^읍면거]]리) (?:산 ?)?{_USUAL_NUMBER}(?:, {_NO_ROAD})?$"
_NO_DONG: Final = f"(?:{COMPLEXES})제?[가나다라마바사]?동 |(?:{ANNEXES})동 "


def take_numbers_back(
    frame: pl.LazyFrame, false: pl.Expr, unit: pl.Expr, found: tuple[str, ...], behind: str
) -> pl.LazyFrame:
    """Null what was ``found`` where it is ``false``; return a unit's ``_sub`` to ``behind`` (``12-3층``)."""
    is_unit = pl.col("_unit")
    return (
        frame.with_columns(_false=false.fill_null(False), _unit=unit.fill_null(False))
        .with_columns(
            pl.when(is_unit).then(pl.concat_str("_sub", behind)).otherwise(behind).alias(behind),
            _sub=pl.when(~is_unit).then("_sub"),
        )
        .with_columns(pl.when(~pl.col("_false")).then(name).alias(name) for name in (*found, behind))
        .drop("_false", "_unit")
    )


def read_usual_road(frame: pl.LazyFrame) -> pl.LazyFrame:
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


def read_usual_lot(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``emd``, ``ri``, ``lot_dong``, ``san``, ``lot_main``, ``lot_sub``, ``lot_ho``, ``_tail`` of the lot.

    Where ``_lot`` is false, ``emd`` is ``_town``.
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


USUAL_ROAD: Final = r"[시군구읍면] [가-힣]+(?:로|길)(?:[0-9]{1,4}번?길)? [0-9]{1,5}(?:-[0-9]{1,5})?(?:$|, | \()"
"""A region, a road and its number, anywhere in an address: one look at most addresses."""

NO_LEGAL_DONG: Final = f"(?:{COMPLEXES}|{ANNEXES})제?[가나다라마바사]?동"
"""A house of a complex, or one by its use."""

_ANY_BRACKETS: Final = r"\([^()]*\)"
_PLAIN_BRANCH: Final = "[0-9]+(?:번[가-힣]?)?[가-하]?안?길"
"""End of a road's name: 12길, 12번길, 69번서길, 12가길. Without it one name and one number are left."""

_ROADS: Final = r"(?:로|길|거리) *(?:지하|공중)? *[0-9]"
_LIKE_ROADS: Final = "|".join(ROAD_LIKE_DONGS)
_PLAIN_NUMBER: Final = "([1-9][0-9]{0,3})(?:-[0-9]{1,4})?"  # five digits are a postal code
_BEHIND: Final = "(?: ?번지| *$|, *[^0-9 ]|, [0-9]| +[0-9]+층| +[^-~0-9동호층길가번차단통반로지외일])"
_PLAIN_BUILDING: Final = rf"(?:로|길) *{_PLAIN_NUMBER}{_BEHIND}"
_PLAIN_LOT: Final = rf"[시군구읍면] +[가-힣]{{0,5}}[가-힣&&[^가]][0-9]{{0,2}}(?:동|리|가) *{_PLAIN_NUMBER}{_BEHIND}"


def plain_numbers(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``building`` and ``lot`` (UInt32): the main number on the road or of the lot in ``address`` (String).

    Null if the address is not plain or of the other form.
    """
    bare, roads = pl.col("_bare"), pl.col("_roads")
    address = pl.when(pl.col("address").str.len_chars() <= MAX_CHARS).then("address")
    of_road = pl.when((roads == 1) & ~bare.str.contains(_LIKE_ROADS)).then(bare)
    of_lot = pl.when(roads == 0).then(bare)
    return (
        frame.with_columns(_bare=address.str.replace_all(_ANY_BRACKETS, "").str.replace_all(_PLAIN_BRANCH, "길"))
        .with_columns(_roads=bare.str.count_matches(_ROADS))
        .with_columns(
            building=of_road.str.extract(_PLAIN_BUILDING).cast(pl.UInt32),
            lot=of_lot.str.extract(_PLAIN_LOT).cast(pl.UInt32),
        )
        .drop("_bare", "_roads")
    )
