"""What the tax authority told of one number, as single lookups carry it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

import polars as pl


class KnownStatus(NamedTuple):
    """What the tax authority told of a number: a row of :data:`bansong.reference.nts.STATUS_SCHEMA`."""

    b_no: int
    biz_status: str
    since: date | None
    opened: date | None
    as_of: date
    taxation: str | None
    merged: bool | None


Statuses = Mapping[int, KnownStatus]


class StoredStatuses(NamedTuple):
    """The statuses that are stored of some numbers, and the numbers that should be asked for."""

    known: Statuses
    stale: frozenset[int]


def read_statuses(statuses: pl.DataFrame) -> dict[int, KnownStatus]:
    """Return the rows of a frame of statuses by their numbers."""
    return {row[0]: KnownStatus(*row) for row in statuses.iter_rows()}
