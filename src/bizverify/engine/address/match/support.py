"""What bears a correction out besides the likeness of names: the row's other words, which nothing was changed in."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.match.decide import hear_witnesses
from bizverify.engine.address.match.index import ROW
from bizverify.engine.address.match.lookups import Lookups
from bizverify.engine.address.match.misspelling import Difference, differences

REPAIRED: Final = ("region_repaired", "typo_repaired", "building_only", "renumbered")
_NEAR: Final = ("right", "neighbouring")
_TOWN: Final = "[읍면]$"


def keep_tenable(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Return those of the ``decided`` (``row``, ``place``) whose road may be taken for the one that is written.

    The more the names differ, the more the other words must say: see :func:`_is_tenable`.
    """
    if decided.is_empty():
        return decided
    return _compare_names(lookups, rows, decided).filter(_is_tenable()).select(decided.columns)


def judge_support(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    """Tell for each row of :meth:`Matcher.match` whether other words bear out what was repaired.

    The rows have their ``level``, ``postal_match`` and the building's ``of_emd``, too.
    Null where nothing was repaired, or an address was renumbered and all else is right.
    A witness is the postal code, or one of the neighbourhood; the 동 or 리, and where
    no road was repaired the 읍 or 면; the building's name, where it is not all there is; the city, where only its
    district was filled in. None is the region of a road that was repaired, nor that nothing else is like it; and the
    buildings of a complex share the name that was found on another lot than the one that is written.
    """
    repaired = rows.filter(pl.col("level").is_in(REPAIRED) & pl.col("place").is_not_null())
    nothing = pl.Series("supported", [], pl.Boolean)
    if repaired.is_empty():
        return nothing.extend_constant(None, rows.height)
    compared = _compare_names(lookups, repaired, repaired.select(ROW, "place"))
    besides = repaired.select(
        *(ROW, "level", "lot_main"),
        postal=pl.col("postal_match").is_in(_NEAR).fill_null(False),
        city=_city_stands(lookups),
        as_written=_all_else_right(),
        far=(pl.col("postal_match") == "other_district").fill_null(False),
    )
    answer = compared.join(besides, on=ROW).select(ROW, supported=_is_supported())
    return rows.select(ROW).join(answer, on=ROW, how="left", maintain_order="left")["supported"]


def _compare_names(lookups: Lookups, rows: pl.DataFrame, decided: pl.DataFrame) -> pl.DataFrame:
    """Add what the witnesses say, and how the road differs from the one that is written."""
    pairs = hear_witnesses(lookups, rows, decided)
    written = rows.select(ROW, written=pl.coalesce("road", "loose_road"))
    pairs = pairs.join(written, on=ROW, how="left", maintain_order="left")
    official = lookups.tables.roads["key"].gather(pairs["road_id"])
    return pairs.hstack(differences(pairs["written"], official))


def _witness() -> pl.Expr:
    """A word of the row that is the building's: postal code, 동 or 리, name. A whole 읍 or 면 has too many roads."""
    dong = pl.col("emd_pro") & ~pl.col("emd").str.contains(_TOWN)
    return pl.any_horizontal(
        word.fill_null(False) for word in (pl.col("postal_pro"), dong, pl.col("dong_pro"), pl.col("building_pro"))
    )


def _is_tenable() -> pl.Expr:
    """A slip in a long name stands by itself, other differences need a witness, two roads the building's own name."""
    named = pl.col("building_pro").fill_null(False)
    slip = (pl.col("difference") == Difference.SLIP) & (~pl.col("short") | _witness())
    return named | slip | ((pl.col("difference") == Difference.DOUBTFUL) & _witness())


def _is_supported() -> pl.Expr:
    misspelt = (pl.col("level") == "typo_repaired") & pl.col("difference").is_not_null()
    contradicted = pl.col("emd_elsewhere") | pl.col("dong_elsewhere")
    slip = (pl.col("difference") == Difference.SLIP) & _witness()
    return (
        pl.when(pl.col("level") == "building_only")
        .then(pl.col("postal") & pl.col("lot_main").is_null())
        .when(misspelt)
        .then((slip | pl.col("building_pro").fill_null(False)) & ~contradicted)
        .when((pl.col("level") == "renumbered") & (pl.col("far") | pl.col("as_written")))
        .then(pl.when("far").then(False))
        .otherwise(_witness() | pl.col("postal") | pl.col("emd_pro").fill_null(False) | pl.col("city"))
    )


def _all_else_right() -> pl.Expr:
    """Whether region and 읍·면·동 before the road are the successor's, and nothing was filled in."""
    repaired = pl.any_horizontal(
        pl.col("narrowed"),
        pl.col("region_conflict").fill_null(False),
        (pl.col("region_change") == "typo").fill_null(False),
        (pl.col("emd") != pl.col("of_emd")).fill_null(False),
        pl.col("moved_from").is_not_null(),
    )
    return ~repaired


def _city_stands(lookups: Lookups) -> pl.Expr:
    """Whether the city or district is written and is the building's: what was filled in is within it, or above.

    Beside a province that is misspelt the district must be the only one of its name.
    """
    sole = lookups.tables.regions.filter(pl.len().over("sigungu") == 1, pl.col("sigungu") != "")["sigungu"]
    as_written = pl.col("region_typed").str.contains(pl.col("of_sigungu"), literal=True)
    misspelt = (pl.col("region_change") == "typo").fill_null(False)
    stands = pl.when(misspelt).then(as_written & pl.col("of_sigungu").is_in(sole.implode())).otherwise(True)
    same_town = pl.col("emd").is_null() | (pl.col("emd") == pl.col("of_emd"))
    untouched = ~pl.col("region_conflict").fill_null(False) & same_town & stands
    return (pl.col("sigungu").is_not_null() & untouched & (pl.col("level") == "region_repaired")).fill_null(False)
