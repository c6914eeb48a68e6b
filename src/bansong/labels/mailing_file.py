"""The file of a mailing in the label store: its rows and its metadata."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from bansong.engine.risk.reason_parser import EVIDENCE_DTYPES, KNOWN_DTYPES
from bansong.errors import LabelError, Problem
from bansong.labels.mailing_terms import MailingTerms
from bansong.translation import gettext

MAILING_FILE_DAMAGED: Final = Problem(
    "labels.mailing_file_damaged",
    "{path}: is damaged, or no file of the label store ({value}); move it away and record that "
    "mailing's outcomes again with `bansong label`",
)
MAILING_FILE_RENAMED: Final = Problem(
    "labels.mailing_file_renamed",
    "{path}: is a copy of {name} or was renamed; move it away, or, if {name} is gone, name it so",
)

METADATA_KEY: Final = "bizverify.labels"
STORE_SCHEMA: Final[dict[str, Any]] = {
    **EVIDENCE_DTYPES,
    "unread": pl.Boolean,
    "said": pl.Boolean,
    "doubt": pl.Boolean,
    "letter": pl.UInt32,
    "b_no": pl.String,
    "address_key": pl.String,
    "fixed_key": pl.String,
    "reason": pl.String,
    "returned": pl.Date,
    "recorded": pl.Datetime("us", "UTC"),
}
"""A row of a mailing's file: the evidence, the outcome (``said``, null for silence), and the letter.

``address_key``, ``fixed_key``: its address as written and as corrected. ``doubt``: outcomes could not be used, so
silence is no delivery.
"""
KNOWN: Final = (*KNOWN_DTYPES, "unread", "b_no", "address_key", "fixed_key")
"""Columns of a row that come from the enriched file."""


class OutcomeSource(msgspec.Struct, frozen=True):
    """A table of outcomes that was recorded."""

    sha256: str
    name: str
    recorded_at: datetime


class MailingMetadata(msgspec.Struct, frozen=True):
    """The metadata of a mailing's file; ``paid``: of a job of the server whose lookups were charged."""

    id: str
    file: str
    run_id: str | None
    engine: str | None
    model: str | None
    declaration: MailingTerms
    sources: tuple[OutcomeSource, ...]
    recorded_at: datetime
    paid: bool = False


def read_metadata(path: Path) -> MailingMetadata:
    """Return the metadata of a mailing's file; raise :class:`LabelError`."""
    try:
        with path.open("rb") as file:  # a name would be taken for a glob where it has brackets
            text = pl.read_parquet_metadata(file)[METADATA_KEY]
        return msgspec.json.decode(text, type=MailingMetadata)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, KeyError, msgspec.MsgspecError, OSError) as error:
        raise _damaged_file(path, error) from error


def refuse_other_name(path: Path) -> None:
    """Raise :class:`LabelError` for a file not named after its mailing, since its rows may be there twice."""
    if (name := f"{read_metadata(path).id}.parquet") != path.name:
        raise LabelError(MAILING_FILE_RENAMED, path=path, name=name)


def scan_rows(path: Path) -> pl.LazyFrame:
    """Return the rows of a mailing's file; raise :class:`LabelError` if it lacks columns."""
    try:
        frame = pl.scan_parquet(path, glob=False)
        schema = frame.collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged_file(path, error) from error
    for name, dtype in STORE_SCHEMA.items():
        if name not in schema:
            raise _damaged_file(path, KeyError(gettext("it has no column {name!r}", name=name)))
        frame = frame.with_columns(pl.col(name).cast(dtype)) if schema[name] != dtype else frame
    return frame.select(list(STORE_SCHEMA))


def collect_rows(frame: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Collect a query over :func:`scan_rows`; raise :class:`LabelError`."""
    try:
        return frame.collect(engine="streaming")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged_file(path, error) from error


def _damaged_file(path: Path, error: BaseException) -> LabelError:
    lines = str(error).strip("'\"").splitlines()
    return LabelError(MAILING_FILE_DAMAGED, path=path, value=lines[0] if lines else type(error).__name__)
