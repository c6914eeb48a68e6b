"""The number of the building or lot in addresses that are plain: a fraction of the work of reading all of them.

For questions where no answer is better than a wrong one. What the grammar reads with care (two roads or a road in
brackets, ``지하``, words for a floor or a unit right behind the number, what may be a lot in 세종로) is not plain.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.parse.text import LONGEST

_BRACKETS: Final = r"\([^()]*\)"
_BRANCH: Final = "[0-9]+(?:번[가-힣]?)?[가-하]?안?길"
"""The end of a road's name: 12길, 12번길, 69번서길, 12가길. Without it what is left is one name and one number."""

_ROADS: Final = r"(?:로|길|거리) *(?:지하|공중)? *[0-9]"
_LIKE_ROADS: Final = "(?:세종|남성|시장북)로"
"""Names of roads that are legal dongs, too: a number behind them may be a lot's."""

_NUMBER: Final = "([1-9][0-9]{0,3})(?:-[0-9]{1,4})?"  # five digits are a postal code
_BEHIND: Final = "(?: ?번지| *$|, *[^0-9 ]|, [0-9]| +[0-9]+층| +[^-~0-9동호층길가번차단통반로지외일])"
_BUILDING: Final = rf"(?:로|길) *{_NUMBER}{_BEHIND}"
_LOT: Final = rf"[시군구읍면] +[가-힣]{{0,5}}[가-힣&&[^가]][0-9]{{0,2}}(?:동|리|가) *{_NUMBER}{_BEHIND}"


def plain_numbers(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Add ``building`` and ``lot`` (UInt32): the number on the road or of the lot in ``address`` (String).

    Null where the address is not plain or of the other form; a second part (``-3``) is left out.
    """
    bare, roads = pl.col("_bare"), pl.col("_roads")
    address = pl.when(pl.col("address").str.len_chars() <= LONGEST).then("address")
    of_road = pl.when((roads == 1) & ~bare.str.contains(_LIKE_ROADS)).then(bare)
    of_lot = pl.when(roads == 0).then(bare)
    return (
        frame.with_columns(_bare=address.str.replace_all(_BRACKETS, "").str.replace_all(_BRANCH, "길"))
        .with_columns(_roads=bare.str.count_matches(_ROADS))
        .with_columns(
            building=of_road.str.extract(_BUILDING).cast(pl.UInt32), lot=of_lot.str.extract(_LOT).cast(pl.UInt32)
        )
        .drop("_bare", "_roads")
    )
