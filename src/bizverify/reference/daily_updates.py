"""Applies the daily changes of the official files: the last word on a building, and on an additional lot, counts.

What a change abolishes is kept: letters still go to such addresses, and some of them have a successor.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.reference.juso import DAY, DELETE, ID, INSERT, LOT

_DELETES = [int(reason) for reason in DELETE]
_INSERTS = [int(reason) for reason in INSERT]
_HEIR: Final = {"id_high": "heir_high", "id_low": "heir_low"}
_PLACE: Final = (*LOT, DAY)


def changed_rows(rows: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, int]]:
    """Buildings after ``events``, which are in the order in which they happened; what went; counts of the changes.

    ``events`` have the legal dong's ``dong_code`` and the ``day`` of the change, too. What went has the columns of the
    buildings and ``heir_high``, ``heir_low``: the management number of the successor, null where none is certain.

    An update of a building that is not there inserts it, an insert of one that is there replaces it: a day may be
    applied twice. The deletion of one that is not there is counted and does nothing else.
    """
    last = _last(events, ID)
    there = last.join(rows.select(ID), on=list(ID), how="semi")
    gone = last["reason"].is_in(_DELETES)
    goes_from_here = there["reason"].is_in(_DELETES)
    counts = {
        "inserted": last.height - int(gone.sum()) - int((~goes_from_here).sum()),
        "updated": int((~goes_from_here).sum()),
        "deleted": int(goes_from_here.sum()),
        "deleted but not there": int(gone.sum()) - int(goes_from_here.sum()),
    }
    kept = rows.join(last.select(ID), on=list(ID), how="anti", maintain_order="left")
    came = last.filter(~gone)
    moved = rows.join(came.select(ID), on=list(ID), how="semi").with_columns(
        *(pl.col(name).alias(heir) for name, heir in _HEIR.items())
    )
    return pl.concat([kept, came.select(rows.columns)]), pl.concat([_abolished_rows(last), moved]), counts


def _abolished_rows(last: pl.DataFrame) -> pl.DataFrame:
    """What was deleted, with the one building that came on the same day to the same lot as its successor."""
    gone, came = (last.filter(pl.col("reason").is_in(reasons)) for reasons in (_DELETES, _INSERTS))
    alone = came.filter((pl.col("lot_main") > 0) & (pl.len().over(_PLACE) == 1))
    heirs = alone.select(*_PLACE, *(pl.col(name).alias(heir) for name, heir in _HEIR.items()))
    return gone.join(heirs, on=list(_PLACE), how="left", maintain_order="left").drop("dong_code", DAY)


def changed_lots(lots: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Additional lots after ``events``; each is a pair of a building and a lot."""
    pair = (*ID, *LOT)
    last = _last(events, pair)
    kept = lots.join(last.select(pair), on=list(pair), how="anti", maintain_order="left")
    return pl.concat([kept, last.filter(~pl.col("reason").is_in(_DELETES))])


def _last(events: pl.DataFrame, key: tuple[str, ...]) -> pl.DataFrame:
    return events.unique(list(key), keep="last", maintain_order=True)
