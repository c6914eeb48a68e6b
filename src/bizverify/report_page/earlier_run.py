"""What changed since an earlier run over the same list, for its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from bizverify import business_number
from bizverify.errors import BizverifyError
from bizverify.labels.mailing import Enrichment, last_runs, open_mailing
from bizverify.report_page.masking import mask_name, mask_number
from bizverify.run.changes import (
    ANSWER,
    CHANGE,
    CHANGES,
    KEY,
    RECORD,
    SNAPSHOT,
    compare,
    count_kinds,
    key_expr,
    recognize,
    settle,
    status_code_expr,
)
from bizverify.tables.publish import same_file

SHOWN: Final = 20
"""Rows of the list: the worst kinds first."""
BESIDES: Final = ("name", "biz_status", "row_status", "fixed_zipcode")
"""Columns of an enriched file that its letters do not have by themselves, and a comparison needs."""
_SEEN, _KEY_HASH = "seen", "key_hash"


@dataclass(frozen=True, slots=True)
class RunChanges:
    """What is another than in an earlier run: ``counts`` of rows by kind, and the first ``rows`` of them.

    ``run``: the earlier run, ``None`` where only its file is known; ``file``: its output. ``rows``: ``b_no``, ``name``,
    ``changes`` (List of kinds), and status and action before and now, masked unless asked otherwise.
    """

    file: Path
    run: Enrichment | None
    counts: Mapping[str, int]
    rows: pl.DataFrame


def find_changes(
    after: pl.LazyFrame,
    source: str,
    run_id: str | None,
    *,
    earlier: Path | None = None,
    besides: Path | None = None,
    unmask: bool = False,
) -> RunChanges | None:
    """Return what changed in the rows of a run since an earlier one, ``None`` where there is none to compare with.

    ``after``: the columns of a record and of the answers. ``earlier``: the enriched file of the run before; by default
    that of the last run before ``run_id`` over the same ``source`` whose output is still there, and not ``besides``.
    """
    run, file = None, earlier
    if file is None:
        runs = last_runs(source, before=run_id)
        run = next((one for one in runs if besides is None or not same_file(Path(one.output), besides)), None)
        file = Path(run.output) if run is not None else None
    if file is None:
        return None
    try:
        with open_mailing(run.id if run else None, file, besides=BESIDES) as mailing:
            changed = _compare(_snapshot(mailing.letters), _snapshot(after))
            return RunChanges(file, run or mailing.by, count_kinds(changed), _worst(changed, unmask))
    except BizverifyError:  # no enriched file, or one that was edited since
        return None


def _snapshot(rows: pl.LazyFrame) -> pl.LazyFrame:
    there = rows.collect_schema().names()
    texts = [name for name in (*RECORD, *ANSWER, "row_status") if name != "b_no"]
    cells = [pl.col(name).cast(pl.String) if name in there else pl.lit(None, pl.String).alias(name) for name in texts]
    number = business_number.compact_expr(pl.col("b_no").cast(pl.String)).alias("b_no")
    record = rows.select(number, *cells, pl.col("bounce_prob").cast(pl.Float64), input=pl.lit(""))
    codes = status_code_expr(pl.col("biz_status")).alias("biz_status")
    return record.with_columns(key_expr(RECORD).alias(KEY), codes).select(SNAPSHOT.names())


def _compare(before: pl.LazyFrame, after: pl.LazyFrame) -> pl.DataFrame:
    """Return what :func:`bizverify.run.changes.compare` says, with no more rows in memory than those that differ."""
    seen = pl.struct(KEY, *ANSWER, "row_status").hash().alias(_SEEN)
    hashes = [rows.select(pl.struct(KEY).hash().alias(_KEY_HASH), seen) for rows in (before, after)]
    old, new = pl.collect_all(hashes, engine="streaming")
    moved = new.filter(~pl.col(_SEEN).is_in(old[_SEEN].implode()))[_KEY_HASH]
    gone = old.filter(~pl.col(_KEY_HASH).is_in(new[_KEY_HASH].implode()))[_KEY_HASH]
    touched = pl.col(KEY).pipe(lambda key: pl.struct(key).hash()).is_in(pl.concat([moved, gone]).unique().implode())
    was, now = pl.collect_all([rows.filter(touched) for rows in (before, after)], engine="streaming")
    was = recognize(was, now)
    changed = compare(was, settle(now, was))
    return changed.filter(pl.col(CHANGE).list.len() > 0)


def _worst(changed: pl.DataFrame, unmask: bool) -> pl.DataFrame:
    order = pl.col(CHANGE).list.first().replace_strict(CHANGES, range(len(CHANGES)), return_dtype=pl.Int8)
    rows = changed.sort(order, maintain_order=True).head(SHOWN)
    masked = [] if unmask else [mask_number(pl.col("b_no")).alias("b_no"), mask_name(pl.col("name")).alias("name")]
    return rows.with_columns(masked)
