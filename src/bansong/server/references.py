"""Reference files held open, and letters of scopes."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import anyio.to_thread
import polars as pl

from bansong.base import business_number
from bansong.base.errors import BansongError
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import ROW_PROBLEM, LocalEngine
from bansong.engine.overlays import HISTORY_SCHEMA, TRUSTED_MONTHS
from bansong.engine.registry import Registry
from bansong.engine.risk.reason_parser import LEVEL
from bansong.history.labels import LabelStore
from bansong.learning.gate import RIPE_DAYS

_log = logging.getLogger(__name__)


class _Index(Protocol):
    def check(self) -> None: ...


T = TypeVar("T", bound=_Index)
DAMAGED: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, RuntimeError, OSError)
"""Errors of reading a damaged file; a panic is no Exception."""

FileStamp = tuple[int, ...]
"""Device, inode, size and modification time (ns): changes when a file is replaced."""


def stamp_of(file: Path | int) -> FileStamp | None:
    """Return the stamp of a path or descriptor; ``None`` if it does not exist."""
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class OpenFile:
    """A file that stays readable under :attr:`path` while this object lives, even if its name is reused.

    Where the system has no paths for open files (Windows) it is read by its name and not held: holding it would prevent
    its replacement.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, descriptor)
        self.stamp = stamp_of(descriptor)
        # by the process's number, so that a process begun by this one finds it, too
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        if not self.path.exists():
            self.path = path
            self.close()


class ReferenceFile(Generic[T]):
    """An index and its open file. The constructor raises what ``open_`` raises."""

    def __init__(self, path: Path, open_: Callable[[Path], T]) -> None:
        self._path = path
        self._open = open_
        self._refused: FileStamp | None = ()
        self.index, self.held = self._open_file()

    @property
    def is_refused(self) -> bool:
        """Whether the current file of this name could not be opened."""
        return self._refused != ()

    def look(self) -> bool:
        """Switch to a newer file of the same name, if there is one that can be opened; return whether it did."""
        stamp = stamp_of(self._path)
        if stamp == self.held.stamp:
            self._refused = ()
            return False
        try:
            index, held = self._open_file()
            index.check()
        except (BansongError, *DAMAGED) as error:
            if stamp != self._refused:
                why = error if isinstance(error, BansongError) else f"{self._path}: {type(error).__name__}"
                _log.warning("the newer file cannot be used, the one before goes on serving: %s", why)
                self._refused = stamp
            return False
        self.index, self.held, self._refused = index, held, ()
        _log.info("%s: a newer file is used from now on", self._path)
        return True

    def _open_file(self) -> tuple[T, OpenFile]:
        try:
            held = OpenFile(self._path)
        except OSError:
            self._open(self._path)  # says better what is wrong
            raise
        try:
            return self._open(held.path), held
        except BansongError as error:
            raise type(error)(str(error).replace(str(held.path), str(self._path))) from error


@dataclass(frozen=True, slots=True)
class ReferenceData:
    """Registry and gazetteer at one time; keep it to keep their files readable."""

    registry: Registry | None
    gazetteer: Gazetteer | None
    held: tuple[OpenFile, ...]


class ReferenceFiles:
    """Registry and gazetteer of a server, as far as it has them."""

    def __init__(self, registry: Path | None, gazetteer: Path | None) -> None:
        self._registry = None if registry is None else ReferenceFile(registry, Registry.open)
        self._gazetteer = None if gazetteer is None else ReferenceFile(gazetteer, Gazetteer.open)

    def look(self) -> bool:
        """Switch to newer files, read whole; return whether there were any."""
        looked = [file.look() for file in (self._registry, self._gazetteer) if file is not None]
        return any(looked)

    def refused_files(self) -> dict[str, bool]:
        files = {"registry": self._registry, "gazetteer": self._gazetteer}
        return {name: file.is_refused for name, file in files.items() if file is not None}

    def now(self) -> ReferenceData:
        held = tuple(file.held for file in (self._registry, self._gazetteer) if file is not None)
        return ReferenceData(
            None if self._registry is None else self._registry.index,
            None if self._gazetteer is None else self._gazetteer.index,
            held,
        )


class StatusSource(Protocol):
    """Answers rows with an engine and better statuses than those of its registry."""

    @property
    def live(self) -> bool:
        """Whether it uses the network, which ``offline`` forbids."""

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """As :meth:`bansong.engine.local.LocalEngine.answer`; called in a thread."""


@runtime_checkable
class FetchingSource(StatusSource, Protocol):
    """A source that asks for the statuses of rows before it answers them."""

    async def fetch(self, numbers: pl.Series, max_age: float | None = None) -> None:
        """Fetch statuses of ``numbers`` (UInt64, unique) that are unknown or older than ``max_age`` days.

        ``max_age``: by default that of its settings. Raises nothing if nobody can be asked. Cancelled, it
        keeps the answers so far.
        """


async def fetch_statuses_of(source: StatusSource, rows: pl.LazyFrame, max_age: float | None = None) -> None:
    if isinstance(source, FetchingSource):
        await source.fetch(await anyio.to_thread.run_sync(numbers_of, rows), max_age)


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the unique valid business numbers of ``rows`` (UInt64), in their order."""
    return _keys_of(rows).unique(maintain_order=True).collect().to_series()


def count_lookups(rows: pl.LazyFrame) -> int:
    return int(_keys_of(rows).select(pl.len()).collect().item())


def _keys_of(rows: pl.LazyFrame) -> pl.LazyFrame:
    if ROW_PROBLEM in rows.collect_schema():
        rows = rows.filter(pl.col(ROW_PROBLEM).is_null())
    return rows.select(business_number.key_expr(pl.col("b_no"))).drop_nulls()


class RegistrySnapshot:
    """The engine's own registry, as of when its file was built."""

    live = False

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        return engine.answer(rows)


class StatusSources:
    """The status sources of a server, best first; the registry comes last."""

    def __init__(self, *better: StatusSource) -> None:
        self._sources: tuple[StatusSource, ...] = (*better, RegistrySnapshot())

    def source(self, *, offline: bool) -> StatusSource:
        return next(source for source in self._sources if not (offline and source.live))


_ADDRESSEE: Final = ["b_no", "address_key"]
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class AgreedLetters:
    """What the keys of a pool agree on, as of ``day``; one object for all members.

    ``frame``: :data:`bansong.engine.overlays.HISTORY_SCHEMA`, one row per addressee, sorted by ``b_no``.
    """

    frame: pl.DataFrame
    day: date
    number: int = field(init=False, default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True, eq=False)
class ScopeLetters:
    """The letters of a scope. An addressee with own outcomes takes nothing from the pool.

    So a member never sees an agreement that it is part of. ``own``: as :attr:`AgreedLetters.frame`, with all rows of an
    addressee. ``number``: equal for scopes with equal letters.
    """

    own: pl.DataFrame | None
    agreed: AgreedLetters | None = None
    number: int = field(init=False)

    def __post_init__(self) -> None:
        shared = self.agreed is not None and (self.own is None or self.own.is_empty())
        object.__setattr__(self, "number", self.agreed.number if shared and self.agreed else next(_numbers))

    def history(self) -> pl.LazyFrame | None:
        if self.own is None or self.agreed is None:
            alone = self.own if self.agreed is None else self.agreed.frame
            return None if alone is None else alone.lazy()
        return _own_first(self.own.lazy(), self.agreed.frame.lazy(), self.agreed.day)

    def mentions(self, number: int) -> bool:
        frames = (self.own, None if self.agreed is None else self.agreed.frame)
        return any(_has(frame["b_no"], number) for frame in frames if frame is not None)

    def of(self, numbers: pl.Series) -> pl.DataFrame:
        """Return the letters to businesses (UInt64) by binary search."""
        own = None if self.own is None else _rows_of(self.own, numbers)
        agreed = None if self.agreed is None else _rows_of(self.agreed.frame, numbers)
        if own is None or agreed is None or self.agreed is None:
            found = own if agreed is None else agreed
            return pl.DataFrame(schema=HISTORY_SCHEMA) if found is None else found
        return _own_first(own.lazy(), agreed.lazy(), self.agreed.day).collect(engine="in-memory")


def _own_first(own: pl.LazyFrame, agreed: pl.LazyFrame, day: date) -> pl.LazyFrame:
    """Combine own and agreed letters; own ones win unless they were too old at the day of the agreement."""
    counts = (pl.col("outcome") != "delivered") | (pl.col("mailed") > pl.lit(day).dt.offset_by(f"-{TRUSTED_MONTHS}mo"))
    return pl.concat([own, agreed.join(own.filter(counts), on=_ADDRESSEE, how="anti")])


def _has(ordered: pl.Series, number: int) -> bool:
    place = bisect_left(ordered, number)  # of one number, a thirtieth of the time of `search_sorted`
    return place < ordered.len() and ordered[place] == number


def _rows_of(letters: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    first = letters["b_no"].search_sorted(numbers, "left")
    last = letters["b_no"].search_sorted(numbers, "right")
    lines = pl.select(pl.int_ranges(first, last, dtype=pl.UInt32).list.explode(empty_as_null=False)).to_series()
    return letters[lines]


_ADDRESSEE_KEY: Final = ("b_no", "address_key")
_HISTORY: Final = f"{LEVEL}history"


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A key of the pool: its label store, and whose key it is."""

    store: LabelStore
    customer: str


Members = Mapping[str, PoolMember]


@dataclass(frozen=True, slots=True)
class PoolAgreement:
    """What a pool agrees on, as :data:`bansong.engine.overlays.HISTORY_SCHEMA`, sorted by ``b_no``.

    ``frame``: one row per addressee. ``customers``: customer by key id. ``apart``: the frame for a customer with
    several keys, without the addressees that any of them voted on.
    """

    frame: pl.DataFrame
    customers: Mapping[str, str]
    apart: Mapping[str, pl.DataFrame]


def find_agreed(members: Members, quorum: int, day: date) -> PoolAgreement:
    """Find the addressees with equal outcomes of at least ``quorum`` customers, and of a majority.

    A customer votes with its newest paid letter within :data:`TRUSTED_MONTHS` before ``day``; on one day, a bounced one
    wins. ``mailed`` is ``day``, to hide the days of single letters. Damaged stores are logged and skipped.
    """
    recent = (pl.col("mailed") <= day) & (pl.col("mailed") > pl.lit(day).dt.offset_by(f"-{TRUSTED_MONTHS}mo"))

    def voices_of(store: LabelStore) -> pl.LazyFrame | None:
        found = store.history(mailings=store.paid_mailings(), assessed=True)
        return None if found is None else found.filter(recent).select(list(HISTORY_SCHEMA))

    heard = [
        pl.DataFrame(schema=HISTORY_SCHEMA | {"key": pl.String, "customer": pl.String}),
        *(_read(members, voices_of)),
    ]
    voices = (
        pl.concat(heard)
        .sort("mailed", pl.col("outcome") != "delivered", "outcome")
        .unique(["customer", *_ADDRESSEE_KEY], keep="last")
    )
    counted = voices.group_by(*_ADDRESSEE_KEY, "outcome").agg(pl.len().alias("customers"))
    agrees = (pl.col("customers") >= quorum) & (
        2 * pl.col("customers") > pl.col("customers").sum().over(_ADDRESSEE_KEY)
    )
    agreed = counted.filter(agrees).with_columns(pl.lit(day).alias("mailed"))
    agreed = agreed.select(list(HISTORY_SCHEMA)).sort(_ADDRESSEE_KEY)
    customers = {id_: member.customer for id_, member in members.items()}
    return PoolAgreement(agreed, customers, _leave_out_own(agreed, voices, Counter(customers.values())))


def _leave_out_own(agreed: pl.DataFrame, voices: pl.DataFrame, keys: Counter[str]) -> dict[str, pl.DataFrame]:
    """Return :attr:`PoolAgreement.apart`; customers with one key need none."""
    several = [customer for customer, count in keys.items() if count > 1]
    spoken = voices.filter(pl.col("customer").is_in(several)).join(agreed, on=_ADDRESSEE_KEY, how="semi")
    return {
        str(customer): agreed.join(rows, on=_ADDRESSEE_KEY, how="anti", maintain_order="left")
        for (customer,), rows in spoken.group_by("customer")
    }


def write_training_store(members: Members, target: LabelStore, quorum: int, today: date) -> int:
    """Write the letters from which a pool scorecard may be learned to an empty store; return their number.

    The n-th letter of a customer counts once ``quorum`` customers have an n-th letter, so that no customer ever has
    more than 1/quorum of them. Letters of a customer to one addressee with the same history count once.
    """
    ripe = (pl.col("mailed") + pl.duration(days=RIPE_DAYS)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")

    def letters_of(store: LabelStore) -> pl.LazyFrame | None:
        if not (paid := store.paid_mailings()):
            return None
        rows = store.evidence(paid, addressee=True).filter(
            pl.col("mailed") <= today - timedelta(days=RIPE_DAYS), pl.col("bounced", *_ADDRESSEE_KEY).is_not_null()
        )
        ready = pl.max_horizontal("recorded", ripe).alias("ready")
        return rows.select("mailing", "row_id", *_ADDRESSEE_KEY, _HISTORY, ready)

    found = list(_read(members, letters_of))
    if not found:
        return 0
    letters = _admit(pl.concat(found), quorum)
    for (key, mailing), rows in letters.group_by("key", "mailing", maintain_order=True):
        store = members[str(key)].store
        frame, about = store.read(store.path(str(mailing)))
        kept = frame.drop("recorded").join(rows.select("row_id", recorded="ready"), on="row_id")
        target.put(kept.select(frame.columns).sort("row_id"), about)
    return letters.height


def _admit(letters: pl.DataFrame, quorum: int) -> pl.DataFrame:
    """Keep the letters that count; ``ready`` becomes the time from which each counts."""
    same = ("customer", *_ADDRESSEE_KEY, _HISTORY)
    ordered = letters.sort("ready", "mailing", "row_id").unique(same, keep="first", maintain_order=True)
    numbered = ordered.with_columns(pl.int_range(pl.len()).over("customer").alias("nth"))
    admitted = numbered.filter(pl.len().over("nth") >= quorum)  # of each customer at most one
    opened = pl.col("ready").get(quorum - 1).over("nth")
    return admitted.with_columns(pl.max_horizontal("ready", opened).alias("ready"))


def _read(members: Members, query: Callable[[LabelStore], pl.LazyFrame | None]) -> Iterator[pl.DataFrame]:
    for key, member in members.items():
        try:
            found = query(member.store)
            if found is not None:
                whose = {"key": pl.lit(key), "customer": pl.lit(member.customer)}
                yield found.with_columns(**whose).collect(engine="streaming")
        except (BansongError, *DAMAGED) as error:
            why = error if isinstance(error, BansongError) else type(error).__name__
            _log.error("the outcomes of key %s teach nobody: %s", key, why)
