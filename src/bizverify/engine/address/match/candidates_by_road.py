"""Which buildings the road form of an address may mean: each function reads it in one more way.

All take rows with the columns of the grammar, ``row``, ``region`` (UInt32, null while it is open) and ``scope``, and
return candidates: ``row``, ``place`` (of a building), a line for each.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.gazetteer import building_key
from bizverify.engine.address.match.index import ROW, text_key
from bizverify.engine.address.match.lookups import Lookups, number_range, without_digits
from bizverify.engine.address.match.scope import Scopes
from bizverify.engine.address.match.typos import gaps, holes, swaps

_NUMBER: Final = ("under", "main", "sub")
_NAMED: Final = (*_NUMBER, "region", "scope")
_LONGEST_PREFIX: Final = 10
_SECOND_NUMBER: Final = (
    r"^((?:[가-힣]{0,4}(?:길|로)|번?[가-하])?) ?([0-9]{1,5})(?:-([0-9]{1,5}))?"
    r"((?:[^0-9층호동차번단세개F-].*)?)$"
)
_ENDS: Final = ("길", "번길", "로")
OLD: Final = "(?:^|[ ,])(?:구|종전|옛)(?:[ :]|주소|도로명)"
_ANOTHER: Final = r"([가-힣0-9·]+(?:로|길|거리)) ?([0-9]{1,5})(?:-([0-9]{1,5}))?(?:[ ,(]|$)"


def regrouped(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Read ``부강1 13`` as 13 on a road 부강1…, and ``만남로6석길 5`` as 5 on 만남로6석길: not as number 1, or 6.

    Of a road's name with a number stuck to it and a second number behind, the second is the building's, unless no road
    is called so; the words that were taken for the detail, if they are stuck to it too, then belong to the name
    (``loose_road``): ``상도로15카 9`` is 9 on 상도로15카길.
    """
    name, main = pl.coalesce("road", "loose_road"), pl.coalesce("main", "loose_main").cast(pl.String)
    sub = pl.coalesce("sub", "loose_sub").fill_null(0)
    stuck = pl.col("text").str.replace_all(" ", "").str.contains(pl.concat_str(name, main), literal=True)
    suspects = rows.filter((sub == 0) & pl.col("detail").str.contains(_SECOND_NUMBER))
    if suspects.is_empty():
        return rows
    spaced = pl.col("text").str.contains(pl.concat_str(name, pl.lit(" "), main), literal=True)
    parts = pl.col("detail").str.extract_groups(_SECOND_NUMBER).struct
    joined = pl.col("text").str.contains(pl.concat_str(main, parts[0]), literal=True)
    suspects = suspects.filter(stuck & ~spaced & joined).with_columns(
        loose_road=pl.concat_str(name, main, parts[0]),
        loose_main=parts[1].cast(pl.UInt32),
        loose_sub=parts[2].cast(pl.UInt32).fill_null(0),
        detail=parts[3].str.strip_chars(" ,"),
        suffixed=parts[0].str.contains("[길로]$"),
    )
    called_so = pl.concat([lookups.roads_anywhere.find(_longer(suspects, end), text_key("name"), "_") for end in _ENDS])
    real = pl.col("suffixed") | pl.col("road").is_null() | pl.col(ROW).is_in(called_so[ROW].implode())
    suspects = suspects.filter(real).with_columns(
        road=pl.lit(None, pl.String),
        main=pl.lit(None, pl.UInt32),
        sub=pl.lit(None, pl.UInt32),
        detail=pl.when(pl.col("detail") != "").then("detail"),
    )
    return rows.update(suspects.select(rows.columns), on=ROW, how="left", include_nulls=True)


def _longer(rows: pl.DataFrame, end: str) -> pl.DataFrame:
    return rows.with_columns(name=pl.col("loose_road") + end)


def as_written(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Road and number as they stand, in the one region that is given."""
    return _numbered(lookups, _roads(lookups, rows))


def in_scope(lookups: Lookups, scopes: Scopes, rows: pl.DataFrame) -> pl.DataFrame:
    """Road and number as they stand, wherever the words allow: a province, a city, or anywhere."""
    rows = rows.filter(pl.col("main").is_not_null())
    roads = lookups.roads_anywhere.find(rows, text_key("road"), "road_id", _NAMED)
    roads = roads.with_columns(lookups.tables.roads["region"].gather(roads["road_id"]).alias("home"))
    return _numbered(lookups, roads.filter(scopes.allow(roads)))


def glued(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """The road's name after the name of a dong without a space between (``거창읍하동1길``), or all of it the name."""
    rows = rows.filter(pl.col("region").is_not_null() & pl.col("main").is_not_null())
    whole = pl.col("road_pre")
    entire = rows.filter(whole != pl.col("road")).with_columns(name=whole)
    cut = [
        rows.filter(whole.str.len_chars() > place + 1).with_columns(
            prefix=whole.str.head(place), name=whole.str.slice(place)
        )
        for place in range(2, _LONGEST_PREFIX)
    ]
    pieces = pl.concat(cut)
    known = pieces.select(text_key("region", "prefix")).to_series().fill_null(0)
    explained = lookups.dongs_here.holds(known) | lookups.aliases_here.holds(known)
    pieces = pieces.filter(explained | (pieces["prefix"] == pieces["emd"]).fill_null(False))
    pieces = pl.concat([pieces.drop("prefix"), entire])
    return _numbered(lookups, lookups.roads_here.find(pieces, text_key("region", "name"), "road_id", _NAMED))


def underground(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """The same number below the ground or above it, where neither is written: 지하 is easily left out, not put in."""
    roads = _roads(lookups, rows.filter(pl.col("under") == 0))
    others = pl.concat(roads.with_columns(under=pl.lit(level, pl.UInt8)) for level in (1, 2))
    return _numbered(lookups, others)


def misspelt(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """A road of the same region whose name differs in one syllable or in the order of two, where that number exists.

    A road that exists as it is written is not taken for another: it may as well be the number that is wrong. Nor is one
    of a family (새내1길, 새내2길 …) whose members differ in a digit: it may be the digit.
    """
    name = pl.coalesce("road", "loose_road")
    known = lookups.roads_here.holds(rows.select(text_key("region", name).fill_null(0)).to_series())
    numbered = rows.select(pl.when(name.str.contains("[0-9]")).then(text_key("region", without_digits(name))))
    of_family = lookups.roads_without_digits.holds(numbered.to_series().fill_null(0))
    return alike(lookups, rows.filter(~known & ~of_family))


def alike(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Every road of the same region whose name differs in one syllable or in the order of two, with that number."""
    rows = rows.filter(pl.col("region").is_not_null()).with_columns(
        name=pl.coalesce("road", "loose_road"),
        main=pl.coalesce("main", "loose_main"),
        sub=pl.coalesce("sub", "loose_sub", pl.lit(0)),
        under=pl.col("under").fill_null(0),
    )
    rows = rows.filter(pl.col("main").is_not_null() & pl.col("name").is_not_null())
    keep = (ROW, *_NAMED)
    key, pattern = text_key("region", "name"), text_key("region", "pattern")
    roads = [
        lookups.roads_with_hole.find(holes(rows, "name", *keep), pattern, "road_id", _NAMED),
        lookups.roads_with_gap.find(rows, key, "road_id", _NAMED),
        lookups.roads_here.find(gaps(rows, "name", *keep), pattern, "road_id", _NAMED),
        lookups.roads_here.find(swaps(rows, "name", *keep), pattern, "road_id", _NAMED),
    ]
    return _numbered(lookups, pl.concat(roads))


def successors(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """The successor of an abolished road and number, in the one region that is given."""
    return abolished_rows(lookups, rows).drop_nulls("place")


def abolished_rows(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose road and number were abolished: ``row``, ``place`` (of the successor, null where none is certain)."""
    roads = _roads(lookups, rows)
    return lookups.gone.find(roads, _building_key(), "place")


def nearest(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Every building with the same road and main number, whatever follows it."""
    roads = _roads(lookups, rows)
    first, last = number_range(pl.col("road_id"), pl.col("under"), pl.col("main"))
    return lookups.buildings.between(roads, first, last, "place")


def others(lookups: Lookups, rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Each further road and number in what follows the first, or in brackets: two addresses in one cell."""
    found = rows.filter(names_another()).with_columns(
        others=pl.concat_list(text.str.extract_all(_ANOTHER).fill_null([]) for text in _holding_another())
    )
    most = found["others"].list.len().max() or 0
    return [as_written(lookups, _nth_other(found, place)) for place in range(int(str(most)))]


def _nth_other(rows: pl.DataFrame, place: int) -> pl.DataFrame:
    other = pl.col("others").list.get(place, null_on_oob=True)
    parts = other.str.extract_groups(_ANOTHER).struct
    return rows.filter(other.is_not_null()).with_columns(
        road=parts[0].str.replace_all("·", "", literal=True),
        main=parts[1].cast(pl.UInt32),
        sub=parts[2].cast(pl.UInt32).fill_null(0),
        under=pl.lit(0, pl.UInt8),
    )


def names_another() -> pl.Expr:
    """Whether what follows the number, or the brackets, hold a road and a number, too; an old one does not count."""
    return pl.any_horizontal(text.is_not_null() for text in _holding_another())


def _holding_another() -> list[pl.Expr]:
    beside = pl.when(~pl.col("brackets").str.contains(OLD)).then("brackets")
    return [pl.when(text.str.contains(_ANOTHER)).then(text) for text in (pl.col("detail"), beside)]


def known_roads(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose road exists in their region, with or without a number: ``row``, ``road_id``."""
    named = pl.coalesce("road", "loose_road")
    return lookups.roads_here.find(rows, text_key("region", named), "road_id")


def exists_somewhere(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    """Tell whether a road is called so in any region."""
    keys = rows.select(text_key(pl.coalesce("road", "loose_road"))).to_series()
    return lookups.roads_anywhere.holds(keys.fill_null(0))


def _roads(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.filter(pl.col("region").is_not_null() & pl.col("main").is_not_null())
    return lookups.roads_here.find(rows, text_key("region", "road"), "road_id", _NAMED)


def _numbered(lookups: Lookups, roads: pl.DataFrame) -> pl.DataFrame:
    return lookups.buildings.find(roads, _building_key(), "place")


def _building_key() -> pl.Expr:
    return building_key(pl.col("road_id"), *(pl.col(part) for part in _NUMBER))
