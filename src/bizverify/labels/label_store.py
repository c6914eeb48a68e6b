"""The label store: the outcomes of each mailing, and what was known when it went out."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from bizverify import business_number
from bizverify.engine.letter_history import HISTORY_SCHEMA
from bizverify.engine.risk.reason_parser import EVIDENCE_DTYPES, KNOWN_DTYPES
from bizverify.errors import LabelError
from bizverify.labels.mailing_terms import MailingTerms
from bizverify.labels.matching import LABEL_SCHEMA, merge_labels
from bizverify.storage.filesystem import state_directory
from bizverify.tables import is_unfinished, publish_file, remove_unfinished
from bizverify.translation import gettext

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
"""A row of a mailing's file: the evidence, what an outcome said (``said``, null for silence), and whose letter it was.

``address_key``, ``fixed_key``: its address as written, and as corrected if it was. ``doubt``: outcomes of it could
not be used, so its silence says nothing.
"""

KNOWN: Final = (*KNOWN_DTYPES, "unread", "b_no", "address_key", "fixed_key")
"""The columns of a row that come from the enriched file."""

_LABEL: Final[dict[str, Any]] = LABEL_SCHEMA | {"doubt": pl.Boolean}
_HISTORY: Final = {"moved": "moved", "absent": "absent"}
_WAIT: Final = 60.0


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


@dataclass(frozen=True, slots=True)
class Mailing:
    """A recorded mailing: its metadata, and how many of its rows came back, arrived, or are not known."""

    id: str
    path: Path
    about: MailingMetadata
    rows: int
    bounced: int
    arrived: int

    @property
    def declaration(self) -> MailingTerms:
        """The terms of the mailing."""
        return self.about.declaration


@dataclass(frozen=True, slots=True)
class LabelBatch:
    """Labels of one mailing, to be recorded.

    ``labels``: :data:`bizverify.labels.matching.LABEL_SCHEMA`. ``known``: returns for row numbers (UInt32)
    what the enriched file says of them: ``row_id`` and :data:`KNOWN`. ``sent``: returns for a declaration ``row_id``
    and ``letter`` of all letters that were mailed by it. ``doubtful``: ``row_id`` and ``letter`` of those of which
    outcomes could not be used: their silence is no delivery.
    """

    about: MailingMetadata
    labels: pl.DataFrame
    doubtful: pl.DataFrame
    known: Callable[[pl.Series], pl.DataFrame]
    sent: Callable[[MailingTerms], pl.DataFrame]
    now: datetime


@dataclass(frozen=True, slots=True)
class RecordResult:
    """The outcome of recording: how many labels were ``new``, ``known`` before or ``replaced`` others.

    ``clashing``: row numbers whose recorded label was kept. ``silent``: mailed rows without an outcome that are kept,
    too. ``unmailed``: labels of rows that, by what was declared, were not mailed: nothing is learned from these.
    ``frame``: the mailing's rows now.
    """

    id: str
    path: Path
    new: int
    known: int
    replaced: int
    silent: int
    unmailed: int
    clashing: pl.Series
    declaration: MailingTerms
    frame: pl.DataFrame


class LabelStore:
    """A folder with one Parquet file a mailing, by default ``labels/`` in the state directory (mode 0700, files 0600).

    Raises :class:`LabelError` where a file is damaged, naming it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else state_directory() / "labels"

    def record(self, batch: LabelBatch, *, replace: bool = False, dry_run: bool = False) -> RecordResult:
        """Merge labels with what is recorded of their mailing; the same ones again change nothing.

        A label that contradicts a recorded one is not taken, unless ``replace``. Rows keep what was known of them when
        they were first recorded. Where the declaration says that silence is delivery, letters without an outcome are
        kept as well. Another process that records waits. ``dry_run`` writes nothing.
        """
        if dry_run:
            return self._merge_batch(batch, replace)[0]
        with self._lock():
            recorded, about = self._merge_batch(batch, replace)
            self._write(recorded, about)
        return recorded

    def mailings(self) -> list[Mailing]:
        """All mailings, the earliest first."""
        found = []
        for path in self._files():
            about = _read_metadata(path)
            counts = _scan(path).select(
                pl.len().alias("rows"),
                pl.col("bounced").sum().alias("bounced"),
                (~pl.col("bounced")).sum().alias("arrived"),
            )
            found.append(Mailing(about.id, path, about, **_collect(counts, path).row(0, named=True)))
        return sorted(found, key=lambda mailing: (mailing.declaration.mailed, mailing.id))

    def paid_mailings(self) -> list[str]:
        """The ids of the mailings whose rows were charged."""
        return [path.stem for path in self._files() if _read_metadata(path).paid]

    def read(self, path: Path) -> tuple[pl.DataFrame, MailingMetadata]:
        """The rows (:data:`STORE_SCHEMA`) and the metadata of a mailing's file, of this store or of another."""
        return _collect(_scan(path), path), _read_metadata(path)

    def put(self, rows: pl.DataFrame, about: MailingMetadata) -> None:
        """Write the rows (:data:`STORE_SCHEMA`) of a mailing, in place of those that are recorded of it."""
        with self._lock():
            self._publish(self.path(about.id), rows, about)

    def path(self, mailing: str) -> Path:
        """The file of a mailing."""
        return self.folder / f"{mailing}.parquet"

    def evidence(
        self, mailings: Iterable[str] | None = None, *, unread: bool = False, addressee: bool = False
    ) -> pl.LazyFrame:
        """The letters with an assessed risk: EVIDENCE_DTYPES, ``mailing`` (String), ``recorded`` (Datetime, UTC).

        ``mailings``: their ids, by default all. ``unread``: with the rows of which no scorecard gave the reasons (the
        hosted service's), and a column ``unread`` that tells them; probabilities are there, levels are null.
        ``addressee``: with ``b_no`` and ``address_key``. Raises :class:`LabelError` for a copy, whose letters would
        count twice.
        """
        wanted = None if mailings is None else set(mailings)
        paths = [path for path in self._files() if wanted is None or path.stem in wanted]
        for path in paths:
            _refuse_other_name(path)
        parts = [_scan(path).with_columns(pl.lit(path.stem).alias("mailing")) for path in paths]
        empty = pl.LazyFrame(schema=STORE_SCHEMA | {"mailing": pl.String})
        rows = pl.concat([empty, *parts]).filter(pl.col("bounce_prob").is_not_null())
        if not unread:
            rows = rows.filter(~pl.col("unread"))
        more = [*(["unread"] if unread else []), *(["b_no", "address_key"] if addressee else [])]
        return rows.select(*EVIDENCE_DTYPES, "mailing", "recorded", *more)

    def outcomes(self) -> pl.LazyFrame:
        """The newest outcome of each addressee, by number and address.

        Columns: ``b_no`` (UInt64), ``address_key``, ``bounced`` (Boolean, as was said; silence only where it is
        delivery), ``bounce_reason``, ``bounced_at`` (Date), ``mailed`` (Date).
        """
        rows = self._outcomes().with_columns(
            pl.coalesce("said", "bounced").alias("bounced"),
            pl.coalesce("reason", "reason_code").alias("bounce_reason"),
            pl.col("returned").alias("bounced_at"),
        )
        return _newest(rows).select("b_no", "address_key", "bounced", "bounce_reason", "bounced_at", "mailed")

    def history(
        self, b_no: str | None = None, *, mailings: Collection[str] | None = None, assessed: bool = False
    ) -> pl.LazyFrame | None:
        """Return what the engine may know of each addressee (:data:`HISTORY_SCHEMA`); ``None`` for an empty store.

        ``b_no``: ten digits, to read one business alone. ``mailings``: their ids, by default all. ``assessed``: only
        letters whose risk was assessed.

        ``moved`` and ``absent`` as the return reason said; ``delivered`` where a letter has surely arrived. Other
        outcomes say nothing here, and hide no older one.
        """
        if not self._files():
            return None
        came = pl.col("said").fill_null(False)
        outcome = (
            pl.when(came)
            .then(pl.col("reason_code").replace_strict(_HISTORY, default=None, return_dtype=pl.String))
            .when(~pl.col("bounced"))
            .then(pl.lit("delivered"))
        )
        rows = self._outcomes(b_no, mailings, assessed=assessed)
        rows = rows.with_columns(outcome.alias("outcome")).filter(pl.col("outcome").is_not_null())
        return _newest(rows).select(list(HISTORY_SCHEMA))

    def _outcomes(
        self, b_no: str | None = None, mailings: Collection[str] | None = None, *, assessed: bool = False
    ) -> pl.LazyFrame:
        """Rows with number and address of which something is known: one for the address as written, one as corrected.

        A corrected address is the same place, and the one that the user's next list may have.
        """
        names = ["row_id", "mailed", "bounced", "said", "reason_code", "reason", "returned", "b_no"]
        both = ["address_key", "fixed_key"]
        empty = pl.LazyFrame(schema={name: STORE_SCHEMA[name] for name in [*names, *both]})
        files = [path for path in self._files() if mailings is None or path.stem in mailings]
        is_wanted = pl.col("bounce_prob").is_not_null() if assessed else pl.lit(True)
        rows = pl.concat([empty, *(_scan(path).filter(is_wanted).select(*names, *both) for path in files)])
        has_outcome = pl.col("said").is_not_null() | pl.col("bounced").is_not_null()
        wanted = pl.col("b_no").is_not_null() if b_no is None else pl.col("b_no") == b_no
        keys = pl.concat_list(both).list.unique(maintain_order=True).alias("address_key")
        found = rows.filter(has_outcome, wanted).select(*names, keys).explode("address_key")
        return found.filter(pl.col("address_key").is_not_null()).with_columns(pl.col("b_no").cast(pl.UInt64))

    def holdings(self, numbers: Collection[str]) -> dict[Path, int]:
        """Return how many letters each mailing's file holds of numbers (ten digits); files without any are left out."""
        counts = {path: int(_collect(_scan(path).select(_is_of(numbers).sum()), path).item()) for path in self._files()}
        return {path: count for path, count in counts.items() if count}

    def erase(self, numbers: Collection[str]) -> None:
        """Erase the letters of numbers (ten digits), also where names of files hold them; such files are written anew.

        What a record that was killed has left is removed.
        """
        if not self.folder.is_dir():
            return
        with self._lock():
            remove_unfinished(self.folder)
            held = self.holdings(numbers)
            for path in self._files():
                before = _read_metadata(path)
                about = _without(before, numbers)
                if path in held or about != before:
                    self._publish(path, _collect(_scan(path).filter(~_is_of(numbers)), path), about)

    def purge(self, before: date) -> int:
        """Delete the files of mailings that went out before a day; return how many. What was learned of them stays."""
        old = [path for path in self._files() if _read_metadata(path).declaration.mailed < before]
        if old:
            with self._lock():
                for path in old:
                    path.unlink(missing_ok=True)
        return len(old)

    def is_own(self, path: Path) -> bool:
        """Whether a path is that of a file of the store, or would be."""
        return path.suffix == ".parquet" and path.resolve().parent == self.folder.resolve()

    def _files(self) -> list[Path]:
        try:  # a folder that cannot be read is none without files, to which `glob` makes it
            found = list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            if not self.folder.exists():  # a folder above it is a file
                return []
            raise LabelError(gettext("{folder}: is a file; a label store is a folder", folder=self.folder)) from error
        except OSError as error:
            raise LabelError(
                gettext(
                    "{folder}: cannot be read: {strerror}; make it readable",
                    folder=self.folder,
                    strerror=error.strerror,
                )
            ) from error
        return sorted(path for path in found if path.suffix == ".parquet" and not is_unfinished(path))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(self.folder / ".lock", timeout=_WAIT, mode=0o600):
                yield
        except Timeout as error:
            raise LabelError(
                gettext(
                    "{folder}: another process has been recording for {wait:.0f} s; try again",
                    folder=self.folder,
                    wait=_WAIT,
                )
            ) from error
        except OSError as error:
            why = error.strerror or str(error)
            raise LabelError(
                gettext("{folder}: the label store cannot be written: {why}", folder=self.folder, why=why)
            ) from error

    def _merge_batch(self, batch: LabelBatch, replace: bool) -> tuple[RecordResult, MailingMetadata]:
        """Return a mailing's rows and metadata with those of a batch; nothing is written."""
        path = self.path(batch.about.id)
        before, about = pl.DataFrame(schema=STORE_SCHEMA), batch.about
        if path.exists():
            before, about = _collect(_scan(path), path), _merge_metadata(_read_metadata(path), batch.about, replace)
        known = before.filter(pl.col("said").is_not_null())
        labels, clashing, replaced = _merge_labels(known, batch.labels, replace)
        again = batch.labels.join(known, on="row_id", how="semi").height - clashing.len() - replaced
        doubts = pl.concat([before.filter("doubt").select("row_id", "letter"), batch.doubtful])
        doubtful = _silent_letters(doubts, labels, doubt=True)
        mailed = batch.sent(about.declaration)
        if about.declaration.tells_who_was_sent:
            labels = labels.with_columns(doubt=~pl.col("letter").is_in(mailed["letter"].implode()))
        silent = _silent_letters(mailed, pl.concat([labels, doubtful]), doubt=False)
        frame = _add_known(pl.concat([labels, doubtful, silent]), before, batch, about.declaration)
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
        """Write the mailing's file in one step, unless nothing has changed."""
        path = recorded.path
        if path.exists() and _read_metadata(path) == about and _collect(_scan(path), path).equals(recorded.frame):
            return
        self._publish(path, recorded.frame, about)

    @staticmethod
    def _publish(path: Path, frame: pl.DataFrame, about: MailingMetadata) -> None:
        with publish_file(path) as temporary:
            frame.write_parquet(temporary, metadata={METADATA_KEY: msgspec.json.encode(about).decode()})


def _is_of(numbers: Collection[str]) -> pl.Expr:
    """Return whether a row's letter went to one of the numbers (Boolean, never null)."""
    return pl.col("b_no").is_in(list(numbers)).fill_null(value=False)


def _without(about: MailingMetadata, numbers: Collection[str]) -> MailingMetadata:
    """Return a mailing's metadata with ``…`` where the name of a file holds one of the numbers."""
    spellings = [re.escape(spelling) for b_no in numbers for spelling in (b_no, business_number.format(b_no))]
    blank = partial(re.compile("|".join(spellings)).sub, "…")
    sources = tuple(msgspec.structs.replace(source, name=blank(source.name)) for source in about.sources)
    return msgspec.structs.replace(about, file=blank(about.file), sources=sources)


def _merge_labels(known: pl.DataFrame, new: pl.DataFrame, replace: bool) -> tuple[pl.DataFrame, pl.Series, int]:
    """Recorded and new labels as one; the row numbers where they differ and the recorded one stays; those replaced."""
    known, new = (frame.select(list(_LABEL)) for frame in (known, new.with_columns(doubt=pl.lit(False))))
    both = known.select("row_id", was="said", was_code="reason_code").join(new, on="row_id")
    differs = (pl.col("was") != pl.col("said")) | (pl.col("was_code") != pl.col("reason_code"))
    clashing = both.filter(differs.fill_null(False))["row_id"]
    agreeing = ~pl.col("row_id").is_in(clashing.implode())
    parts = [known.filter(agreeing), new] if replace else [known, new.filter(agreeing)]
    labels = merge_labels(pl.concat(parts)).with_columns(doubt=pl.lit(False)).select(list(_LABEL))
    return (labels, clashing.clear(), clashing.len()) if replace else (labels, clashing, 0)


def _silent_letters(letters: pl.DataFrame, labels: pl.DataFrame, *, doubt: bool) -> pl.DataFrame:
    """Rows without an outcome for letters of which no row has a label."""
    quiet = letters.unique("row_id").join(labels, on="letter", how="anti").join(labels, on="row_id", how="anti")
    nothing = [pl.lit(None, dtype).alias(name) for name, dtype in _LABEL.items() if name not in ("row_id", "letter")]
    return quiet.with_columns(nothing).with_columns(doubt=pl.lit(doubt)).select(list(_LABEL))


def _add_known(rows: pl.DataFrame, before: pl.DataFrame, batch: LabelBatch, terms: MailingTerms) -> pl.DataFrame:
    """Add to labels what is known of their rows: as recorded before, else as the enriched file says it."""
    fresh = rows.join(before, on="row_id", how="anti")["row_id"]
    known = pl.concat([before.select("row_id", *KNOWN), batch.known(fresh).select("row_id", *KNOWN)])
    when = before.select("row_id", was_said="said", was_bounced="bounced", was_recorded="recorded")
    frame = rows.join(known, on="row_id", how="left").join(when, on="row_id", how="left")
    frame = frame.with_columns(
        pl.lit(terms.mailed).alias("mailed"),
        pl.when(~pl.col("doubt")).then(terms.certain_outcome()).alias("bounced"),
    )
    # a declaration can make an old word certain: learning takes it as news of today, so that its past never changes
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"was_{name}")) for name in ("said", "bounced"))
    frame = frame.with_columns(pl.when(same).then("was_recorded").fill_null(batch.now).alias("recorded"))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in STORE_SCHEMA.items()).sort("row_id")


def _merge_metadata(before: MailingMetadata, now: MailingMetadata, replace: bool) -> MailingMetadata:
    """Return the metadata of a mailing once outcomes of another source are recorded."""
    known = {source.sha256 for source in before.sources}
    return msgspec.structs.replace(
        before,
        declaration=before.declaration.merge(now.declaration, replace=replace),
        sources=(*before.sources, *(source for source in now.sources if source.sha256 not in known)),
    )


def _newest(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Keep one row an addressee: of the newest mailing, in it the one that came back, if any did."""
    came = pl.col("said").fill_null(False)
    order = rows.with_columns(came.alias("came")).sort("mailed", "came", "row_id", descending=[False, False, True])
    return order.unique(["b_no", "address_key"], keep="last", maintain_order=True)


def _read_metadata(path: Path) -> MailingMetadata:
    try:
        with path.open("rb") as file:  # a name would be taken for a glob where it has brackets
            text = pl.read_parquet_metadata(file)[METADATA_KEY]
        return msgspec.json.decode(text, type=MailingMetadata)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, KeyError, msgspec.MsgspecError, OSError) as error:
        raise _damaged_file(path, error) from error


def _refuse_other_name(path: Path) -> None:
    if (name := f"{_read_metadata(path).id}.parquet") != path.name:
        raise LabelError(
            gettext(
                "{path}: is a copy of {name} or was renamed; move it away, or, if {name} is gone, name it so",
                path=path,
                name=name,
            )
        )


def _scan(path: Path) -> pl.LazyFrame:
    """Return the rows of a mailing's file; raise :class:`LabelError` unless it has the columns of one."""
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


def _collect(frame: pl.LazyFrame, path: Path) -> pl.DataFrame:
    try:
        return frame.collect(engine="streaming")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged_file(path, error) from error


def _damaged_file(path: Path, error: BaseException) -> LabelError:
    lines = str(error).strip("'\"").splitlines()
    return LabelError(
        gettext(
            "{path}: is damaged, or no file of the label store ({value}); move it away and record that "
            "mailing's outcomes again with `bizverify label`",
            path=path,
            value=lines[0] if lines else type(error).__name__,
        )
    )
