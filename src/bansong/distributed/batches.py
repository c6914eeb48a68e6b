"""A picklable verifier of Arrow tables, for cluster frameworks that send Python objects to workers."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import threading
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack

import polars as pl
import pyarrow as pa

from _bansong_start import build_with_threads
from bansong.base.after_fork import refuse_after_fork
from bansong.base.errors import BansongError, GazetteerError, InputError, Problem, RegistryError, UsageError
from bansong.base.messages import Option, Phrase, gettext, parameter
from bansong.base.option import take_options
from bansong.base.options import ReadOptions, check_keywords, shows_keywords
from bansong.base.schema import ADDED_COLUMNS, seoul_day
from bansong.engine.address.batches import BYTES_AT_ONCE, ROWS_AT_ONCE
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import LocalEngine
from bansong.engine.overlays import StatusOverlay
from bansong.engine.records import CROWDED, KEYS, SEVERAL, row_keys, with_given_features
from bansong.engine.registry import ATTACHED, Registry
from bansong.history.labels import read_history
from bansong.run import accounting
from bansong.run.enrich import AnyEngine, BatchKeywords, take_request
from bansong.run.options import OPTION_KINDS, WriteOptions
from bansong.run.survey import RowReader, prepare_table
from bansong.tables import frames
from bansong.tables.table import Table, contract_name, unique_names, written_column

FindFile = Callable[[str], Path]  # path on the program's machine → path on the worker; picklable

_KEPT: Final = 2
_lock: Final = threading.Lock()
_opened: Final[dict[str, LocalEngine]] = {}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Path and version of a registry or gazetteer file on the driver's machine."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class WorkerEngine:
    """A picklable engine: registry and gazetteer by path and version, everything else as pickled bytes.

    ``find_file`` maps a path on the driver's machine to the path on the worker.
    """

    registry: FileVersion | None
    gazetteer: FileVersion | None
    rest: bytes
    find_file: FindFile = Path

    @classmethod
    def of(cls, engine: LocalEngine) -> WorkerEngine:
        """Make an engine picklable. If it has no fixed date, it gets today's, so that all workers use the same."""
        other = copy(engine)
        other.today = engine.today or seoul_day()
        other.registry = other.gazetteer = None
        if engine.status is not None and engine.status.path is not None:  # the few statuses are pickled, not the file
            other.status = StatusOverlay(
                pl.read_parquet(engine.status.path, glob=False), aged_before=engine.status.aged_before
            )
        registry, gazetteer = engine.registry, engine.gazetteer
        return cls(
            FileVersion(str(registry.path.absolute()), registry.version) if registry else None,
            FileVersion(str(gazetteer.path.absolute()), gazetteer.version) if gazetteer else None,
            pickle.dumps(other),
        )

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.path for file in (self.registry, self.gazetteer) if file is not None)

    def open(self) -> LocalEngine:
        """Return the engine, which is opened at the first call; a process keeps its last two engines open."""
        key = hashlib.sha256(repr((self.registry, self.gazetteer)).encode() + self.rest).hexdigest()
        with _lock:  # a cluster may call from several threads, none of which is a thread of polars
            if key not in _opened:
                while len(_opened) >= _KEPT:
                    _opened.pop(next(iter(_opened)))
                _opened[key] = self._open()
            return _opened[key]

    def _open(self) -> LocalEngine:
        engine: LocalEngine = pickle.loads(self.rest)  # noqa: S301 - our own, see WorkerEngine.of
        if self.registry is not None:
            engine.registry = Registry.open(self.find_file(self.registry.path))
            if engine.registry.version != self.registry.version:
                raise RegistryError(_other_version("registry", engine.registry, self.registry))
            engine.registry.find(ATTACHED, pl.Series(dtype=pl.UInt64))  # read now, by one thread
        if self.gazetteer is not None:
            engine.gazetteer = Gazetteer.open(self.find_file(self.gazetteer.path))
            if engine.gazetteer.version != self.gazetteer.version:
                raise GazetteerError(_other_version("gazetteer", engine.gazetteer, self.gazetteer))
            _ = engine.gazetteer.tables
        return engine


def _other_version(kind: str, here: Registry | Gazetteer, wanted: FileVersion) -> str:
    return gettext(
        "{path}: the {kind} of this worker is version {version}, and version {wanted_version} "
        "where the program runs: rows would be answered by two of them; put the same file on "
        "every machine, and start the session again where the engine keeps what it has copied",
        path=here.path,
        kind=kind,
        version=here.version,
        wanted_version=wanted.version,
    )


THREADS_INVALID: Final = Problem("distributed.threads_invalid", "{parameter}: must be a number of threads, 1 or more")
ENGINE_BUYS_LOOKUPS: Final = Problem(
    "distributed.engine_buys_lookups",
    "{parameter} buys lookups, and a cluster runs a task again when a machine fails or is "
    "slow: each run of it would buy; verify the file with bansong.enrich on one machine, "
    "where the ledger knows what was paid, or use the local engine here",
)
COLUMNS_UNEXPECTED: Final = Problem(
    "distributed.columns_unexpected",
    "the columns are {headers}, and not {expected}; give verify_batches a sample of the very data",
)
BATCH_FAILED: Final = Problem(
    "distributed.batch_failed",
    "{where}: could not be verified ({name}: {reason}); verify these rows alone with "
    "bansong.verify_frame to see which row it is, or give the worker more memory where "
    "that ran out",
)

# Boolean columns of the cluster with features of the whole file → column of the engine
FOUND: Final[Mapping[str, str]] = {"bv_crowded": CROWDED, "bv_several_addresses": SEVERAL}

_OTHERS: Final = {"bounce_prob": pa.float64(), "reasons": pa.list_(pa.string())}
ADDED_SCHEMA: Final = pa.schema([(name, _OTHERS.get(name, pa.string())) for name in ADDED_COLUMNS])

TEXTS: Final = ("place", "key")
KEYS_SCHEMA: Final = pa.schema([(name, pa.string() if name in TEXTS else pa.int64()) for name in KEYS])

_LARGEST_BATCH: Final = 10_000  # rows of a returned batch: Spark's default


@shows_keywords(BatchKeywords, OPTION_KINDS)
def verify_batches(
    sample: Any, *, engine: AnyEngine = "local", threads: int = 1, **options: Unpack[BatchKeywords]
) -> BatchVerifier:
    """Return a picklable callable for workers, which adds the result columns (:data:`ADDED_SCHEMA`) to Arrow tables.

    ``sample``: the first rows of the data (polars, pandas or pyarrow); a thousand are enough, and without any the
    headers count. The sample decides for all workers which columns hold number, name and address; the date is fixed,
    too. Its optional Boolean columns ``bv_crowded`` and ``bv_several_addresses`` mark the rows with a crowded address,
    or with several addresses of the number, in the whole data; the output lacks them. ``registry`` and ``gazetteer``
    are passed by path: each worker needs the same files. ``threads``: polars' threads in a worker. Other arguments as
    for :func:`bansong.verify_frame`. No statuses are fetched from the tax authority; an ``engine`` may have them.

    Raises :class:`bansong.errors.BansongError`; :class:`bansong.errors.UsageError` for engines that buy lookups.
    """
    keywords = check_keywords(verify_batches, options)
    read, write = take_options(ReadOptions, keywords), take_options(WriteOptions, keywords)
    request, _, own = take_request(engine, keywords)
    if request.kind.buys:
        raise UsageError(ENGINE_BUYS_LOOKUPS, parameter=Option("engine", request.kind.name))
    if threads < 1:
        raise UsageError(THREADS_INVALID, parameter=Option("threads", threads))
    known = read_history(own.labels)
    adapter = request.open(known.history if known else None)
    table = frames.read(sample)
    found = tuple(name for name in FOUND if name in table.headers)
    prepared = prepare_table(_set_apart(table, found), read, write, request.kind)
    unchecked = () if adapter.local.registry or adapter.local.status else (_no_statuses_checked(),)
    of_statuses = () if prepared.is_address_list else unchecked or adapter.hints(planned=True)
    for warning in (*prepared.warnings, *of_statuses):
        python_warnings.warn(warning, stacklevel=2)
    return BatchVerifier(WorkerEngine.of(adapter.local), prepared.reader, prepared.layout, found, threads)


def _no_statuses_checked() -> str:
    return gettext(
        "no statuses checked: no registry was given, so no row will say `send`; build one with "
        "`bansong data build-registry LISTS… -o registry.parquet` and give it as {parameter}",
        parameter=parameter("registry", "registry.parquet"),
    )


def _set_apart(table: Table, found: Sequence[str]) -> Table:
    """Rename the cluster's columns ``found`` to the engine's (:data:`FOUND`), and leave them out of the headers."""
    kept = [(id_, header) for id_, header in zip(table.ids, table.headers, strict=True) if header not in found]
    users = [pl.col(id_).alias(f"c{place}") for place, (id_, _) in enumerate(kept)]
    given = [pl.col(table.ids[table.headers.index(name)]).cast(pl.Boolean).alias(FOUND[name]) for name in found]
    return replace(table, frame=table.frame.select(*users, *given), headers=tuple(header for _, header in kept))


def gather_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join record batches to tables of about :data:`ROWS_AT_ONCE` rows or :data:`BYTES_AT_ONCE` bytes."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def describe_process() -> str:
    """Return the number of this process and the name of its machine, for messages."""
    return gettext("process {process} on {machine}", process=os.getpid(), machine=platform.node())


@dataclass(frozen=True)
class BatchVerifier:
    """Adds the result columns to Arrow tables with the columns of the sample; see :func:`verify_batches`."""

    engine: WorkerEngine
    reader: RowReader
    layout: tuple[tuple[str, str], ...]
    found: tuple[str, ...]
    threads: int = 1
    place: Callable[[], str] = describe_process

    def __reduce__(self) -> tuple[Any, ...]:
        build = partial(BatchVerifier, *(getattr(self, field.name) for field in fields(self)))
        # as bytes, so that nothing of it is unpickled, and polars loaded, before the threads are set
        return build_with_threads, (self.threads, pickle.dumps(build))

    def for_keys(self) -> BatchVerifier | None:
        """Return a verifier for :meth:`map_keys` that reads only number and address; ``None`` if either is missing."""
        chosen = {role: self.reader.chosen[role] for role in ("b_no", "address") if role in self.reader.chosen}
        if len(chosen) < 2:
            return None
        places = sorted({part.column for choice in chosen.values() for part in choice.parts})
        if places[-1] >= len(self.reader.headers):  # within objects, which are read whole
            return replace(self, reader=replace(self.reader, chosen=chosen), found=())
        moved = {role: choice.move(lambda part: places.index(part.column)) for role, choice in chosen.items()}
        headers = tuple(self.reader.headers[place] for place in places)
        return replace(self, reader=RowReader(headers, moved, frozenset()), found=())

    def at(self, *, find_file: FindFile, place: Callable[[], str]) -> BatchVerifier:
        """Return a copy that finds a worker's files by ``find_file``, and names the task in errors by ``place``."""
        return replace(self, engine=replace(self.engine, find_file=find_file), place=place)

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(unique_names([header for _, header in self.layout]))

    def __call__(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return the table with the result columns (:data:`ADDED_SCHEMA`) added."""
        return self._at_place(self._verify, table, 0)

    def map_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Verify the record batches of a partition; a function for Spark's ``mapInArrow``."""
        first = 0
        for table in gather_batches(batches):
            yield from self._at_place(self._verify, table, first).to_batches(max_chunksize=_LARGEST_BATCH)
            first += table.num_rows

    def read_keys(self, table: pa.Table, first: int = 0) -> pa.Table:
        """Return the keys (:data:`KEYS_SCHEMA`) of each row. Call this on the result of :meth:`for_keys`."""
        return self._at_place(self._read_keys, table, first)

    def map_keys(self, batches: Iterable[pa.RecordBatch], beside: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Do what :meth:`read_keys` does for the batches of a partition; the columns ``beside`` pass through unread."""
        first = 0
        for table in gather_batches(batches):
            keys = self.read_keys(table.drop_columns(list(beside)), first)
            both = [keys.column(name) for name in KEYS] + [table.column(name) for name in beside]
            yield from pa.table(both, names=[*KEYS, *beside]).to_batches(max_chunksize=_LARGEST_BATCH)
            first += table.num_rows

    def _at_place(self, act: Callable[[pa.Table], pa.Table], table: pa.Table | pa.RecordBatch, first: int) -> pa.Table:
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        where = Phrase(
            "{place}, rows {first:,} to {last:,} of it",
            place=self.place(),
            first=first,
            last=first + table.num_rows - 1,
        )
        try:
            refuse_after_fork()
            return act(table)
        except BansongError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            reason = (str(error) or repr(error)).splitlines()[0]
            raise InputError(BATCH_FAILED, where=where, name=type(error).__name__, reason=reason) from error

    def _read(self, table: pa.Table) -> tuple[Table, pl.LazyFrame]:
        read = frames.read(table)
        users = _set_apart(read, [name for name in self.found if name in read.headers])
        if users.headers != self.reader.headers or len(users.headers) + len(self.found) != len(read.headers):
            raise InputError(
                COLUMNS_UNEXPECTED,
                headers=", ".join(read.headers),
                expected=", ".join((*self.reader.headers, *self.found)),
            )
        rows = self.reader.read(users)
        return users, with_given_features(rows, [FOUND[name] for name in self.found]) if self.found else rows

    def _verify(self, table: pa.Table) -> pa.Table:
        users, rows = self._read(table)
        answers = _answer(self.engine.open(), rows, table.num_rows)
        theirs = [place for place, name in enumerate(table.column_names) if name not in self.found]
        columns = {id_: table.column(place) for id_, place in zip(users.ids, theirs, strict=True)}
        columns |= dict(zip(ADDED_COLUMNS, answers.columns, strict=True))
        cells = [columns[contract_name(column)] for column, _ in self.layout]
        return pa.table(cells, names=list(self.headers))

    def _read_keys(self, table: pa.Table) -> pa.Table:
        _, rows = self._read(table)
        return row_keys(rows).collect(engine="streaming").to_arrow().cast(KEYS_SCHEMA)


def _answer(engine: LocalEngine, rows: pl.LazyFrame, rows_in: int) -> pa.Table:
    """Return the result columns of each row; raise :class:`AccountingError` if rows are lost or out of order."""
    with engine.running():
        answered = accounting.number_rows(engine.answer(rows))
        nine = answered.select(written_column(name, lists=True) for name in ADDED_COLUMNS)
        found, tallied = pl.collect_all([nine, accounting.tally(answered)], engine="streaming")
    accounting.check_balance(rows_in, accounting.row_counts_of(tallied.row(0, named=True)), found.height)
    return found.to_arrow().cast(ADDED_SCHEMA)
