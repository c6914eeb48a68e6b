"""The status of one number, for single lookups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

import polars as pl


class KnownStatus(NamedTuple):
    """A row of :data:`bansong.reference.nts.STATUS_SCHEMA`."""

    b_no: int
    biz_status: str
    since: date | None
    opened: date | None
    as_of: date
    taxation: str | None
    merged: bool | None


Statuses = Mapping[int, KnownStatus]


class StoredStatuses(NamedTuple):
    """Stored statuses of some numbers, and the numbers to ask for."""

    known: Statuses
    stale: frozenset[int]


def read_statuses(statuses: pl.DataFrame) -> dict[int, KnownStatus]:
    return {row[0]: KnownStatus(*row) for row in statuses.iter_rows()}
