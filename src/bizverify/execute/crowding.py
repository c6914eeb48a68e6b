"""What only the whole file tells of a row: many businesses at its address, several addresses of its number.

Both cost points, and points that are not deserved do more harm than points that are missed: where the file is not
plain, nothing is found. Two passes at most look at few columns, and hold 16 bytes a row while they do; what stays are
two Booleans a row.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from bizverify import number
from bizverify.engine.address import grammar
from bizverify.engine.blanks import is_masked
from bizverify.engine.history import address_key
from bizverify.execute.rows import ROW_ID

CROWDED: Final = "crowded"
SEVERAL: Final = "several_addresses"

CROWD: Final = 10
"""From how many businesses on an address is crowded.

The recipe says "many". A family with its firms, or a firm with its branches under one roof, has a handful of numbers;
shared offices and addresses for hire, where nobody may know the addressee, have dozens.
"""

ALIKE: Final = 3
"""How many businesses must spell an address in the very same way before other spellings of it are looked for.

So the costly comparison is only for the few addresses that may be crowded at all.
"""

_NUMBER: Final = "number"
_PLACE: Final = "place"
_TEXT: Final = "text"
_FOUND: Final = "whole_file"
_BUILDINGS: Final = ("main", "lot_main")
"""What :func:`bizverify.engine.address.grammar.parse` calls the number of a building on its road, and of a lot."""

_FACTS: Final = pl.Struct({CROWDED: pl.Boolean, SEVERAL: pl.Boolean})


def with_whole_file(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add :data:`CROWDED` and :data:`SEVERAL` (Boolean) to rows of :func:`bizverify.execute.rows.records`.

    The rows are read for it, at once; without a number or an address column nothing is read or added. Null in rows that
    have no number or no address.

    *Crowded*: :data:`CROWD` different businesses (numbers with the right check digit) at one
    :func:`~bizverify.engine.history.address_key`, at least :data:`ALIKE` of them in one spelling. *Several addresses*:
    the number stands in the file with two building numbers, or with two lot numbers; so neither another spelling, a
    missing province, unit or postal code, nor the lot address beside the road address counts as another place.
    """
    names = rows.collect_schema().names()
    if "b_no" not in names or "address" not in names:
        return rows
    found = _hashed(rows)
    known = found.drop_nulls()
    says = pl.all_horizontal(pl.col(_NUMBER, _PLACE).is_not_null())
    marks = {CROWDED: _crowded(rows, found, known), SEVERAL: _several(rows, found, known)}
    facts = found.select(
        pl.when(says).then(pl.repeat(False, found.height, eager=True).scatter(ids, True)).alias(name)
        for name, ids in marks.items()
    )
    looked_up = pl.col(ROW_ID).map_batches(partial(_of_rows, facts), return_dtype=_FACTS, is_elementwise=True)
    return rows.with_columns(looked_up.alias(_FOUND)).unnest(_FOUND)


def _hashed(rows: pl.LazyFrame) -> pl.DataFrame:
    """Each row's number and the hash of its address as it is written (UInt64 both), null where there is none.

    Numbers that are equal are equal here, whatever their spelling; some that are none are here as well.
    """
    digits = pl.col(_TEXT).str.replace_all("-", "", literal=True).cast(pl.UInt64, strict=False)
    address = pl.col("address").cast(pl.String)
    work = rows.select(
        pl.col("b_no").cast(pl.String).alias(_TEXT),
        pl.when(address.is_not_null()).then(address.hash()).alias(_PLACE),
    )
    work = work.with_columns(digits.alias(_NUMBER))
    odd = pl.when(pl.col(_NUMBER).is_null()).then(pl.col(_TEXT))  # few, and on nulls the rule costs nothing
    work = work.with_columns(pl.coalesce(_NUMBER, number.key_expr(number.compact_expr(odd))).alias(_NUMBER))
    return work.select(_NUMBER, _PLACE).collect(engine="streaming")


def _crowded(rows: pl.LazyFrame, found: pl.DataFrame, known: pl.DataFrame) -> pl.Series:
    """The ``row_id`` of the rows at a crowded address."""
    pairs = known.filter(_among(_PLACE, _repeated(known[_PLACE], ALIKE))).unique()
    alike = _repeated(pairs[_PLACE], ALIKE)
    keyed = _asked(rows, found, _among(_PLACE, alike)).select(ROW_ID, address_key(pl.col("address")).alias(_PLACE))
    places = keyed.drop_nulls().with_columns(pl.col(_PLACE).hash()).collect(engine="streaming")
    businesses = _with_numbers(places, found).drop_nulls().unique([_NUMBER, _PLACE])
    return places.filter(_among(_PLACE, _repeated(businesses[_PLACE], CROWD)))[ROW_ID]


def _several(rows: pl.LazyFrame, found: pl.DataFrame, known: pl.DataFrame) -> pl.Series:
    """The ``row_id`` of the rows whose number has several addresses."""
    pairs = known.filter(_among(_NUMBER, _repeated(known[_NUMBER], 2))).unique()
    respelled = _repeated(pairs[_NUMBER], 2)
    address = pl.col("address").cast(pl.String)
    asked = _asked(rows, found, _among(_NUMBER, respelled)).select(
        ROW_ID, pl.when(~is_masked(address)).then(address).alias("address"), pl.lit(None, pl.String).alias("zipcode")
    )
    read = grammar.parse(asked).select(ROW_ID, *_BUILDINGS).collect(engine="streaming")
    read = _with_numbers(read, found).drop_nulls(_NUMBER)
    apart = [_repeated(read.select(_NUMBER, name).drop_nulls().unique()[_NUMBER], 2) for name in _BUILDINGS]
    return read.filter(_among(_NUMBER, pl.concat(apart)))[ROW_ID]


def _with_numbers(rows: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Add each row's number, null where it is none: with a wrong check digit, or, as telephone numbers, from 0 on."""
    numbered = rows.with_columns(found[_NUMBER].gather(rows[ROW_ID]))
    key = pl.col(_NUMBER)
    right = number.checksum_expr(key) & key.is_between(10**9, 10**10 - 1)
    return numbered.with_columns(pl.when(right).then(key).alias(_NUMBER))


def _repeated(values: pl.Series, times: int) -> pl.Series:
    """The values that stand there at least so often, sorted: to sort them costs half of what it costs to count them."""
    ordered = values.sort()
    return ordered.filter(ordered == ordered.shift(times - 1)).unique()


def _among(column: str, values: pl.Series) -> pl.Expr:
    return pl.col(column).is_in(values.implode())


def _asked(rows: pl.LazyFrame, found: pl.DataFrame, which: pl.Expr) -> pl.LazyFrame:
    """The rows of the file for which ``which`` holds of what was found; none, without reading, where it never does."""
    holds = found.select(which.fill_null(False)).to_series()
    if not holds.any():
        return rows.select(ROW_ID, "address").clear()
    wanted = pl.col(ROW_ID).map_batches(partial(_gathered, holds), pl.Boolean, is_elementwise=True)
    return rows.select(ROW_ID, "address").filter(wanted)


def _gathered(values: pl.Series, ids: pl.Series) -> pl.Series:
    return values.gather(ids)


def _of_rows(facts: pl.DataFrame, ids: pl.Series) -> pl.Series:
    return facts.select(pl.all().gather(ids)).to_struct()
