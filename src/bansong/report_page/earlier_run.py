"""Changes since an earlier run over the same list, for its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from bansong import business_number
from bansong.errors import BansongError
from bansong.labels.enrichments import Enrichment, last_runs
from bansong.labels.mailing import open_mailing
from bansong.report_page.masking import mask_name, mask_number
from bansong.run.changes import (
    ANSWER,
    CHANGE,
    CHANGE_SCHEMA,
    CHANGES,
    GONE,
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
from bansong.storage.filesystem import private_folder
from bansong.tables.publish import same_file

SHOWN: Final = 20
"""Rows of the list, the worst kinds first."""
BESIDES: Final = ("name", "biz_status", "row_status", "fixed_zipcode")
"""Columns that letters lack and a comparison needs."""
_SEEN, _KEY_HASH, _PART = "seen", "key_hash", "part"
_TOGETHER: Final = 250_000
"""Differing rows that are compared at a time."""
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class RunChanges:
    """Changes since an earlier run: ``counts`` of rows by kind, and the first ``rows`` of them.

    ``run``: the earlier run, if known; ``file``: its output. ``rows``: ``b_no``, ``name``, ``changes`` (List of kinds),
    and status and action before and now, masked by default.
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
    """Return the changes of a run's rows since an earlier one, ``None`` without one to compare with.

    ``after``: the columns of record and answers. ``earlier``: an enriched file; by default that of the last run before
    ``run_id`` over the same ``source`` whose output still exists, other than ``besides``.
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
            counts, worst = _compare(_snapshot(mailing.letters), _snapshot(after))
            if not unmask:
                worst = worst.with_columns(b_no=mask_number(pl.col("b_no")), name=mask_name(pl.col("name")))
            return RunChanges(file, run or mailing.by, counts, worst)
    except BansongError:  # no enriched file, or one that was edited since
        return None


def _snapshot(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows as :data:`SNAPSHOT`; ``input`` is the padded place in the file, so that texts sort as rows stand."""
    there = rows.collect_schema().names()
    texts = [name for name in (*RECORD, *ANSWER, "row_status") if name != "b_no"]
    cells = [pl.col(name).cast(pl.String) if name in there else pl.lit(None, pl.String).alias(name) for name in texts]
    number = business_number.compact_expr(pl.col("b_no").cast(pl.String)).alias("b_no")
    place = pl.col("row_id").cast(pl.String).str.zfill(_DIGITS).alias("input")
    record = rows.select(number, *cells, pl.col("bounce_prob").cast(pl.Float64), place)
    codes = status_code_expr(pl.col("biz_status")).alias("biz_status")
    gone = pl.lit(None, pl.Date).alias(GONE)
    return record.with_columns(key_expr(RECORD).alias(KEY), codes, gone).select(SNAPSHOT.names())


def _compare(before: pl.LazyFrame, after: pl.LazyFrame) -> tuple[Mapping[str, int], pl.DataFrame]:
    """Count changes by kind, with the first rows; at most :data:`_TOGETHER` differing rows are in memory."""
    seen = pl.struct(KEY, *ANSWER, "row_status").hash().alias(_SEEN)
    hashes = [rows.select(pl.struct(KEY).hash().alias(_KEY_HASH), seen) for rows in (before, after)]
    old, new = pl.collect_all(hashes, engine="streaming")
    moved = new.filter(~pl.col(_SEEN).is_in(old[_SEEN].implode()))[_KEY_HASH]
    gone = old.filter(~pl.col(_KEY_HASH).is_in(new[_KEY_HASH].implode()))[_KEY_HASH]
    keys = pl.concat([moved, gone]).unique()
    touched = pl.col(KEY).pipe(lambda key: pl.struct(key).hash()).is_in(keys.implode())
    del old, new, moved, gone
    counts: dict[str, int] = dict.fromkeys(CHANGES, 0)
    worst = pl.DataFrame(schema=CHANGE_SCHEMA)
    with private_folder() as folder:
        sides = [rows.filter(touched) for rows in (before, after)]
        for was, now in _parts(sides, 1 + len(keys) // _TOGETHER, folder):
            known = recognize(was, now)
            changed = compare(known, settle(now, known)).filter(pl.col(CHANGE).list.len() > 0)
            counts = {kind: counts[kind] + count for kind, count in count_kinds(changed).items()}
            worst = _first(pl.concat([worst, changed]))
    return counts, worst


def _parts(sides: list[pl.LazyFrame], parts: int, folder: Path) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield rows of both sides in parts; those of one business are in one part, since edited rows are matched by it."""
    if parts == 1:
        was, now = pl.collect_all(sides, engine="streaming")
        yield was, now
        return
    places = [folder / "before", folder / "after"]
    for rows, place in zip(sides, places, strict=True):
        to = pl.PartitionBy(place, key={_PART: pl.col("b_no").hash() % parts}, include_key=False)
        rows.sink_ipc(to, compression="lz4", mkdir=True, engine="streaming")
    for part in range(parts):
        was, now = (_read_part(place / f"{_PART}={part}") for place in places)
        yield was, now


def _read_part(folder: Path) -> pl.DataFrame:
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    empty = pl.DataFrame(schema=SNAPSHOT)
    return pl.concat([empty, *(pl.read_ipc(file) for file in files)]).sort("input")


def _first(changed: pl.DataFrame) -> pl.DataFrame:
    order = pl.col(CHANGE).list.first().replace_strict(CHANGES, range(len(CHANGES)), return_dtype=pl.Int8)
    return changed.sort(order, "input", maintain_order=True).head(SHOWN)
