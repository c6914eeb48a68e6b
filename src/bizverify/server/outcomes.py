"""Outcomes of a job's rows as labels of its mailing: what was known of each letter is read from the job's own files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl

from bizverify import business_number
from bizverify.engine.risk.reason_parser import parse_reasons as known_from
from bizverify.engine.risk.scorecard import Scorecard
from bizverify.errors import ModelError
from bizverify.labels.label_store import LabelBatch, MailingMetadata
from bizverify.labels.mailing import LETTER_SCHEMA
from bizverify.labels.mailing_terms import MailingTerms
from bizverify.labels.matching import LABEL_SCHEMA, address_keys, find_candidates
from bizverify.labels.outcomes import reason_code
from bizverify.model_store import ModelStore
from bizverify.schema import REASON_SEPARATOR
from bizverify.server.clock import SEOUL
from bizverify.server.jobs import files
from bizverify.server.store.labels import Told, Waiting

_TOLD: Final = {"row_id": pl.UInt32, "said": pl.Boolean, "reason": pl.String, "recorded": pl.Float64}
_SILENT: Final = {"row_id": pl.UInt32, "letter": pl.UInt32}


def batch_of(folder: Path, job: Waiting, told: Sequence[Told], cards: Sequence[Scorecard], now: float) -> LabelBatch:
    """The batch that records outcomes of a job in a label book; ``folder`` is the server's, with the jobs' files.

    What is declared of the mailing is only what the interface tells: an outcome is said letter by letter, so that
    ``bounced: false`` is a delivery and a row without an outcome is nothing at all. The day of mailing is not told; it
    is taken to be the day on which the job was done. Raises :class:`FileNotFoundError` where the files are gone.
    """
    letters = letters_of(files.records(folder, job.job), files.results(folder, job.job))
    declaration = MailingTerms(
        mailed=datetime.fromtimestamp(job.finished, SEOUL).date(), returns_requested=True, complete=True
    )
    at = datetime.fromtimestamp(now, UTC)
    about = MailingMetadata(job.job, str(files.folder(folder, job.job)), None, "local", job.model, declaration, (), at)

    def known(rows: pl.Series) -> pl.DataFrame:
        wanted = letters.join(rows.alias("row_id").to_frame().lazy(), on="row_id", how="semi")
        wanted = wanted.with_columns(pl.lit(job.model, pl.String).alias("model"))
        found = known_from(wanted, "reasons", address="address", cards=cards).collect(engine="streaming")
        return found.with_columns(address_keys())

    def sent(by: MailingTerms) -> pl.DataFrame:
        del by  # whatever is declared: nobody said which rows were mailed, so none is silent
        return pl.DataFrame(schema=_SILENT)

    return LabelBatch(about, _labels(letters, told), pl.DataFrame(schema=_SILENT), known, sent, at)


def letters_of(records: Path, results: Path) -> pl.LazyFrame:
    """The rows of a job with their answers, as :data:`bizverify.labels.mailing.LETTER_SCHEMA`, by ``row_id``."""
    for path in (records, results):
        path.stat()
    asked, answered = pl.scan_parquet(records, glob=False), pl.scan_parquet(results, glob=False)
    written = asked.collect_schema()
    address = pl.col("address").cast(pl.String) if "address" in written else pl.lit(None, pl.String)
    reasons = pl.col("reasons")
    if isinstance(answered.collect_schema()["reasons"], pl.List):
        reasons = reasons.list.join(REASON_SEPARATOR)
    rows = asked.select(
        pl.col("row_id").cast(pl.UInt32),
        business_number.compact_expr(pl.col("b_no")).alias("b_no"),
        address.alias("address"),
    ).join(
        answered.select(
            pl.col("row_id").cast(pl.UInt32),
            pl.col("fixed_address", "grade", "action").cast(pl.String),
            pl.col("bounce_prob").cast(pl.Float64),
            pl.when(reasons != "").then(reasons).alias("reasons"),
        ),
        on="row_id",
        how="left",
        maintain_order="left",
    )
    return rows.select(list(LETTER_SCHEMA))


def cards_of(store: ModelStore, version: str | None, fixed: Scorecard | None) -> list[Scorecard]:
    """The scorecards that may have given a job's reasons: the one of its ``version`` if it is there, else all."""
    if fixed is not None and fixed.version == version:
        return [fixed]
    if version is not None:
        try:
            return [store.load(version)]
        except ModelError:  # a card of another scope, or one that --model gave at that time
            pass
    return [Scorecard.load(), *(store.load(known) for known in store.versions())]


def _labels(letters: pl.LazyFrame, told: Sequence[Told]) -> pl.DataFrame:
    said = pl.DataFrame(told, schema=_TOLD, orient="row")
    rows = find_candidates(letters, said.select("row_id", pl.lit(None, pl.String).alias("digits")))
    code = reason_code(pl.col("reason"))
    return (
        said.join(rows.select("row_id", "letter"), on="row_id")
        .with_columns(pl.when("said").then(code).alias("reason_code"), pl.lit(None, pl.Date).alias("returned"))
        .select(pl.col(name).cast(dtype) for name, dtype in LABEL_SCHEMA.items())
        .sort("row_id")
    )
