"""Applies the daily changes of the official files: the last word on a building, and on an additional lot, counts."""

from __future__ import annotations

import polars as pl

from bizverify.data.juso import DELETE, ID, LOT

_DELETES = [int(reason) for reason in DELETE]


def changed_rows(rows: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Buildings after ``events``, which are in the order in which they happened; how many came, changed, went.

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
    return pl.concat([kept, last.filter(~gone)]), counts


def changed_lots(lots: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Additional lots after ``events``; each is a pair of a building and a lot."""
    pair = (*ID, *LOT)
    last = _last(events, pair)
    kept = lots.join(last.select(pair), on=list(pair), how="anti", maintain_order="left")
    return pl.concat([kept, last.filter(~pl.col("reason").is_in(_DELETES))])


def _last(events: pl.DataFrame, key: tuple[str, ...]) -> pl.DataFrame:
    return events.unique(list(key), keep="last", maintain_order=True)
