"""The label store, and the history of letters that a run reads from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import polars as pl

from bansong.base import business_number
from bansong.base.errors import LabelError, Problem
from bansong.base.files import make_folders, state_directory
from bansong.base.messages import describe_os_error
from bansong.base.publish import is_unfinished, publish_file, remove_unfinished
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.reasons import EVIDENCE_DTYPES
from bansong.history.mailings import (
    METADATA_KEY,
    STORE_SCHEMA,
    LabelBatch,
    MailingMetadata,
    MailingTerms,
    add_known,
    collect_rows,
    merge_metadata,
    merge_recorded,
    read_metadata,
    refuse_other_name,
    scan_rows,
    silent_letters,
)
from bansong.tables.streams import refuse_url

STORE_IS_FILE: Final = Problem("labels.store_is_file", "{folder}: is a file; a label store is a folder")
STORE_UNREADABLE: Final = Problem("labels.store_unreadable", "{folder}: cannot be read: {strerror}; make it readable")
STORE_BUSY: Final = Problem(
    "labels.store_busy", "{folder}: another process has been recording for {wait:.0f} s; try again"
)
STORE_UNWRITABLE: Final = Problem("labels.store_unwritable", "{folder}: the label store cannot be written: {why}")

_HISTORY: Final = {"moved": "moved", "absent": "absent"}
_HAS_OUTCOME: Final = pl.col("said").is_not_null() | pl.col("bounced").is_not_null()
_WAIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Mailing:
    """A recorded mailing, and counts of its rows and letters."""

    id: str
    path: Path
    about: MailingMetadata
    rows: int  # all rows in the file
    bounced: int  # rows that certainly came back
    arrived: int  # rows that certainly arrived
    letters: int  # letters with an outcome; one may stand in several rows

    @property
    def declaration(self) -> MailingTerms:
        return self.about.declaration


@dataclass(frozen=True, slots=True)
class RecordResult:
    """Result of recording a batch of labels, with the counts of labelled rows."""

    id: str
    path: Path
    new: int
    known: int  # labels that were recorded before
    replaced: int  # labels that replaced another one
    silent: int  # recorded rows without an outcome
    unmailed: int  # labels of rows declared as not mailed
    clashing: pl.Series  # row_id of contradicted labels that were kept
    declaration: MailingTerms
    frame: pl.DataFrame  # recorded rows of the mailing


class LabelStore:
    """A folder (0700) with a Parquet file (0600) for each mailing; by default ``labels/`` in the state directory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else state_directory() / "labels"

    def record(self, batch: LabelBatch, *, replace: bool = False, dry_run: bool = False) -> RecordResult:
        """Merge new labels of a mailing into the store; those that contradict old ones count only with ``replace``."""
        if dry_run:
            return self._merge_batch(batch, replace)[0]
        with self._lock():
            recorded, about = self._merge_batch(batch, replace)
            self._write(recorded, about)
        return recorded

    def mailings(self) -> list[Mailing]:
        found = []
        for path in self._files():
            about = read_metadata(path)
            counts = scan_rows(path).select(
                pl.len().alias("rows"),
                pl.col("bounced").sum().alias("bounced"),
                (~pl.col("bounced")).sum().alias("arrived"),
                pl.col("letter").filter(_HAS_OUTCOME, ~pl.col("doubt")).n_unique().alias("letters"),
            )
            found.append(Mailing(about.id, path, about, **collect_rows(counts, path).row(0, named=True)))
        return sorted(found, key=lambda mailing: (mailing.declaration.mailed, mailing.id))

    def read(self, path: Path) -> tuple[pl.DataFrame, MailingMetadata]:
        return collect_rows(scan_rows(path), path), read_metadata(path)

    def put(self, rows: pl.DataFrame, about: MailingMetadata) -> None:
        with self._lock():
            self._publish(self.path(about.id), rows, about)

    def path(self, mailing: str) -> Path:
        return self.folder / f"{mailing}.parquet"

    def evidence(
        self,
        mailings: Iterable[str] | None = None,
        *,
        unread: bool = False,  # also rows with reasons of no known scorecard, and the column `unread`
        addressee: bool = False,  # also the columns b_no and address_key
    ) -> pl.LazyFrame:
        """Return labelled rows that have a probability: EVIDENCE_DTYPES, ``mailing``, ``recorded`` (Datetime, UTC)."""
        wanted = None if mailings is None else set(mailings)
        paths = [path for path in self._files() if wanted is None or path.stem in wanted]
        for path in paths:
            refuse_other_name(path)  # rows of a copied file would count twice
        parts = [scan_rows(path).with_columns(pl.lit(path.stem).alias("mailing")) for path in paths]
        empty = pl.LazyFrame(schema=STORE_SCHEMA | {"mailing": pl.String})
        rows = pl.concat([empty, *parts]).filter(pl.col("bounce_prob").is_not_null())
        if not unread:
            rows = rows.filter(~pl.col("unread"))
        more = [*(["unread"] if unread else []), *(["b_no", "address_key"] if addressee else [])]
        return rows.select(*EVIDENCE_DTYPES, "mailing", "recorded", *more)

    def outcomes(self) -> pl.LazyFrame:
        """Return the last outcome of each ``b_no`` and ``address_key``."""
        rows = self._outcomes().with_columns(
            pl.coalesce("said", "bounced").alias("bounced"),
            pl.coalesce("reason", "reason_code").alias("bounce_reason"),
            pl.col("returned").alias("bounced_at"),
        )
        return _newest(rows).select("b_no", "address_key", "bounced", "bounce_reason", "bounced_at", "mailed")

    def history(self, b_no: str | None = None) -> pl.LazyFrame | None:
        """Return the last known outcome for each addressee (:data:`HISTORY_SCHEMA`), or only for those of ``b_no``."""
        # counts only moved, absent and certainly delivered; other outcomes do not hide an older one of these
        if not self._files():
            return None
        why = pl.col("reason_code").replace_strict(_HISTORY, default=None, return_dtype=pl.String)
        arrived = pl.when(~pl.col("bounced")).then(pl.lit("delivered"))
        outcome = pl.when(pl.col("said").fill_null(False)).then(why).otherwise(arrived)
        rows = self._outcomes(b_no)
        rows = rows.with_columns(outcome.alias("outcome")).filter(pl.col("outcome").is_not_null())
        return _newest(rows).select(list(HISTORY_SCHEMA))

    def _outcomes(self, b_no: str | None = None) -> pl.LazyFrame:
        """Return a row for each outcome and key of its address: the written one, and the corrected if it differs."""
        names = ["row_id", "mailed", "bounced", "said", "reason_code", "reason", "returned", "b_no"]
        both = ["address_key", "fixed_key"]
        empty = pl.LazyFrame(schema={name: STORE_SCHEMA[name] for name in [*names, *both]})
        rows = pl.concat([empty, *(scan_rows(path).select(*names, *both) for path in self._files())])
        wanted = pl.col("b_no").is_not_null() if b_no is None else pl.col("b_no") == b_no
        keys = pl.concat_list(both).list.unique(maintain_order=True).alias("address_key")
        found = rows.filter(_HAS_OUTCOME, wanted).select(*names, keys).explode("address_key")
        return found.filter(pl.col("address_key").is_not_null()).with_columns(pl.col("b_no").cast(pl.UInt64))

    def holdings(self, numbers: Collection[str]) -> dict[Path, int]:
        """Count the rows of business numbers (ten digits) by file of a mailing, without zeros."""
        counts = {
            path: int(collect_rows(scan_rows(path).select(_is_of(numbers).sum()), path).item())
            for path in self._files()
        }
        return {path: count for path, count in counts.items() if count}

    def erase(self, numbers: Collection[str]) -> None:
        """Erase numbers (ten digits) from all mailings and their metadata."""
        if not self.folder.is_dir():
            return
        with self._lock():
            remove_unfinished(self.folder)
            held = self.holdings(numbers)
            for path in self._files():
                before = read_metadata(path)
                about = _without(before, numbers)
                if path in held or about != before:
                    self._publish(path, collect_rows(scan_rows(path).filter(~_is_of(numbers)), path), about)

    def purge(self, before: date) -> int:
        """Delete the files of mailings before a day, and return how many; learned scorecards stay."""
        old = [path for path in self._files() if read_metadata(path).declaration.mailed < before]
        if old:
            with self._lock():
                for path in old:
                    path.unlink(missing_ok=True)
        return len(old)

    def is_own(self, path: Path) -> bool:
        return path.suffix == ".parquet" and path.resolve().parent == self.folder.resolve()

    def _files(self) -> list[Path]:
        try:  # unlike iterdir, glob finds nothing in an unreadable folder, without an error
            found = list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            if not self.folder.exists():  # a file stands where a folder above it should be
                return []
            raise LabelError(STORE_IS_FILE, folder=self.folder) from error
        except OSError as error:
            raise LabelError(STORE_UNREADABLE, folder=self.folder, strerror=describe_os_error(error)) from error
        return sorted(path for path in found if path.suffix == ".parquet" and not is_unfinished(path))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            make_folders(self.folder)
            with FileLock(self.folder / ".lock", timeout=_WAIT, mode=0o600):
                yield
        except Timeout as error:
            raise LabelError(STORE_BUSY, folder=self.folder, wait=_WAIT) from error
        except OSError as error:
            why = describe_os_error(error)
            raise LabelError(STORE_UNWRITABLE, folder=self.folder, why=why) from error

    def _merge_batch(self, batch: LabelBatch, replace: bool) -> tuple[RecordResult, MailingMetadata]:
        path = self.path(batch.about.id)
        before, about = pl.DataFrame(schema=STORE_SCHEMA), batch.about
        if path.exists():
            before, earlier = self.read(path)
            about = merge_metadata(earlier, batch.about, replace)
        known = before.filter(pl.col("said").is_not_null())
        labels, clashing, replaced = merge_recorded(known, batch.labels, replace)
        again = batch.labels.join(known, on="row_id", how="semi").height - clashing.len() - replaced
        doubts = pl.concat([before.filter("doubt").select("row_id", "letter"), batch.doubtful])
        doubtful = silent_letters(doubts, labels, doubt=True)
        mailed = batch.sent(about.declaration)
        if about.declaration.tells_who_was_sent:
            labels = labels.with_columns(doubt=~pl.col("letter").is_in(mailed["letter"].implode()))
        quiet = mailed.clear() if batch.unplaced else mailed
        silent = silent_letters(quiet, pl.concat([labels, doubtful]), doubt=False)
        frame = add_known(pl.concat([labels, doubtful, silent]), before, batch, about.declaration)
        result = RecordResult(
            id=about.id,
            path=path,
            new=batch.labels.height - clashing.len() - replaced - again,
            known=again,
            replaced=replaced,
            silent=silent.height,
            unmailed=int(labels["doubt"].sum()),
            clashing=clashing,
            declaration=about.declaration,
            frame=frame,
        )
        return result, about

    def _write(self, recorded: RecordResult, about: MailingMetadata) -> None:
        path = recorded.path
        if path.exists():
            rows, known = self.read(path)
            if known == about and rows.equals(recorded.frame):
                return
        self._publish(path, recorded.frame, about)

    @staticmethod
    def _publish(path: Path, frame: pl.DataFrame, about: MailingMetadata) -> None:
        with publish_file(path) as temporary:
            frame.write_parquet(temporary, metadata={METADATA_KEY: msgspec.json.encode(about).decode()})


def _is_of(numbers: Collection[str]) -> pl.Expr:
    return pl.col("b_no").is_in(list(numbers)).fill_null(value=False)


def _without(about: MailingMetadata, numbers: Collection[str]) -> MailingMetadata:
    spellings = [re.escape(spelling) for b_no in numbers for spelling in (b_no, business_number.format(b_no))]
    blank = partial(re.compile("|".join(spellings)).sub, "…")
    sources = tuple(msgspec.structs.replace(source, name=blank(source.name)) for source in about.sources)
    return msgspec.structs.replace(about, file=blank(about.file), sources=sources)


def _newest(rows: pl.LazyFrame) -> pl.LazyFrame:
    came = pl.col("said").fill_null(False)
    order = rows.with_columns(came.alias("came")).sort("mailed", "came", "row_id", descending=[False, False, True])
    return order.unique(["b_no", "address_key"], keep="last", maintain_order=True)


STORE_MISSING: Final = Problem(
    "labels.store_missing", "{folder}: there is no such folder; give `labels=` the folder of a label store"
)

Labels = str | Path | Literal[False] | None  # a folder; None: the user's store, if it exists; False: no store


@dataclass(frozen=True, slots=True)
class LabelHistory:
    """The history of letters as a run read it from the label store; later records do not change it."""

    store: LabelStore
    letters: int
    mailings: int
    recorded: datetime
    history: pl.LazyFrame

    def outcomes(self) -> pl.LazyFrame:
        """Return the label columns of the last letter to each ``b_no`` (UInt64) and ``address_key``."""
        columns = ("b_no", "address_key", "bounced", "bounce_reason", "bounced_at")
        return self.store.outcomes().select(columns).collect(engine="streaming").lazy()


def read_history(labels: Labels) -> LabelHistory | None:
    """Read a label store; ``None`` if it is empty or not wanted."""
    store = _open_store(labels)
    history, mailings = (None, []) if store is None else (store.history(), store.mailings())
    if store is None or history is None or not mailings:
        return None
    letters = sum(mailing.letters for mailing in mailings)
    recorded = max(source.recorded_at for mailing in mailings for source in mailing.about.sources)
    known = history.collect(engine="streaming").lazy()
    return LabelHistory(store, letters, len(mailings), recorded, known)


def history_of(labels: Labels, b_no: str) -> pl.LazyFrame | None:
    """Read the history of one business (ten digits) only; raises as :func:`read_history`."""
    store = _open_store(labels)
    return None if store is None else store.history(b_no)


def _open_store(labels: Labels) -> LabelStore | None:
    if labels is False:
        return None
    store = LabelStore(None if labels is None else Path(labels))
    if labels is not None and not store.folder.is_dir():
        refuse_url(store.folder, LabelError)
        raise LabelError(STORE_MISSING, folder=store.folder)
    return store
