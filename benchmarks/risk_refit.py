"""How long it takes to learn from a million labelled letters, and how much memory.

``python benchmarks/risk_refit.py [ROWS]``. The refit: evidence in a Parquet file, counted by pattern and fitted. The
calibration: the whole of ``bansong.calibrate`` on a label store of one mailing, the gate's fits among it.
Baseline: polars reading the same columns and counting them by level. Whole processes, in turn, medians of three.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
from measure import alternate
from risk_worlds import World, draw, frame

from bansong.engine.risk.scorecard import Scorecard
from bansong.history.mailings import METADATA_KEY, STORE_SCHEMA, MailingMetadata, MailingTerms
from bansong.learning.fit import TERMS, design, predict

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BASELINE = """
import polars as pl, sys
rows = pl.scan_parquet(sys.argv[1])
names = [name for name in rows.collect_schema().names() if name.startswith("level:")]
print([rows.group_by(name).agg(pl.len(), pl.col("bounced").sum()).collect(engine="streaming").height for name in names])
"""
REFIT = """
import polars as pl, sys
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.fit import count_patterns, fit_points
counted = count_patterns(pl.scan_parquet(sys.argv[1]))
print(counted.height, fit_points(counted, Scorecard.load()).base)
"""
CALIBRATION = """
import sys
from datetime import date
from pathlib import Path
from bansong.learning import calibrate
from bansong.history.scorecards import ModelStore
book = Path(sys.argv[1]).parent
print(calibrate(labels=book, store=ModelStore(book / "models"), today=date(2026, 11, 21), dry_run=True))
"""


def book_file(folder: Path, rows: int) -> Path:
    """A label store of one mailing of so many letters; returns its only file."""
    rng = np.random.default_rng(1)
    drawn = draw(rng, rows)
    levels = frame(drawn)
    bounced = rng.random(rows) < World.of(1).probability(drawn)
    card = Scorecard.load()
    known = levels.with_columns(
        row_id=pl.int_range(pl.len(), dtype=pl.UInt32),
        letter=pl.int_range(pl.len(), dtype=pl.UInt32),
        mailed=pl.lit(date(2026, 6, 1)),
        bounced=pl.Series(bounced),
        said=pl.Series(bounced),
        score=pl.lit(card.base.points),
        bounce_prob=pl.Series(predict(card, design(levels))),
        unread=pl.lit(False),
        doubt=pl.lit(False),
        recorded=pl.lit(NOW),
    )
    columns = [
        (pl.col(name) if name in known.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in STORE_SCHEMA.items()
    ]
    declaration = MailingTerms(mailed=date(2026, 6, 1), returns_requested=True, complete=True)
    about = MailingMetadata("m1", "m1.csv", None, "local", card.version, declaration, (), NOW)
    path = folder / "m1.parquet"
    known.select(columns).write_parquet(path, metadata={METADATA_KEY: msgspec.json.encode(about).decode()})
    return path


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = book_file(Path(folder), rows)
        used = sum(bool(level) for level in TERMS)
        print(f"{rows:,} labelled letters, {used} levels of {len(Scorecard.load().features)} features")
        scripts = {"count each level (baseline)": BASELINE, "refit": REFIT, "calibration, gate and all": CALIBRATION}
        commands = {name: [sys.executable, "-c", script, str(path)] for name, script in scripts.items()}
        figures = alternate(commands)
        base = next(iter(figures.values())).median
        for each in figures.values():
            print(f"{each}  {each.median / base:.1f}x")


if __name__ == "__main__":
    main()
