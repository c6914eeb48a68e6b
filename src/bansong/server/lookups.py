"""Answer single lookups in small batches, and charge them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import polars as pl
from polars.io.plugins import register_io_source

from bansong.base.errors import BansongError
from bansong.base.messages import gettext
from bansong.base.schema import ANSWER_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS
from bansong.engine.local import Known, LocalEngine
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.registry import STATUS_SCHEMA
from bansong.server import job_table
from bansong.server import keys as key_table
from bansong.server.engines import EnginePool, KeyLetters, ServedEngine
from bansong.server.job_table import EarlierRequest, IdempotentRequests, identity_of, mismatch
from bansong.server.keys import Key, decrease
from bansong.server.payloads import Refusal, VerificationPayload, VerifyRequest, busy, encode, quota_exceeded
from bansong.server.settings import Clock
from bansong.server.store import Store

if TYPE_CHECKING:
    from bansong.server.statuses import NtsStatuses


class KnownStatus(NamedTuple):
    """A row of :data:`bansong.engine.registry.STATUS_SCHEMA`."""

    b_no: int
    biz_status: str
    since: date | None
    opened: date | None
    as_of: date
    taxation: str | None
    merged: bool | None


Statuses = Mapping[int, KnownStatus]


class StoredStatuses(NamedTuple):
    """The statuses that are stored (``known``), and the numbers whose status must be fetched (``stale``)."""

    known: Statuses
    stale: frozenset[int]


def read_statuses(statuses: pl.DataFrame) -> dict[int, KnownStatus]:
    return {row[0]: KnownStatus(*row) for row in statuses.iter_rows()}


_SCHEMA: Final = pl.Schema(dict.fromkeys(RECORD_COLUMNS, pl.String))
# for a few rows, other optimisations cost more than they save
_PRUNED: Final = pl.QueryOptFlags.none(projection_pushdown=True)
_ANSWERS: Final = [pl.col(name) for name in ANSWER_COLUMNS]


class PreparedQuery:
    """A query built once for many small batches. One thread may use it at a time."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._rows = pl.DataFrame(schema=_SCHEMA)
        self._letters: pl.DataFrame | None = None
        letters = None
        if engine.history is not None:
            self._history = KeyLetters(engine.history.select(list(HISTORY_SCHEMA)).collect().sort("b_no"))
            letters = _source(self._select_letters, pl.Schema(HISTORY_SCHEMA))
        inner = LocalEngine(
            engine.registry,
            status=engine.status,
            gazetteer=engine.gazetteer,
            model=engine.model,
            lang=engine.lang,
            today=engine.today,
            history=letters,
        )
        self._query = inner.answer(_source(lambda: self._rows, _SCHEMA)).select(_ANSWERS)
        self._query.collect_schema()  # polars keeps the plan that it makes here

    def answers(
        self,
        lookups: Sequence[VerifyRequest],
        statuses: Iterable[KnownStatus] = (),
        letters: pl.DataFrame | None = None,
    ) -> list[VerificationPayload]:
        """Return the answers in the order of ``lookups``. ``letters`` replaces the engine's letter history."""
        columns = {"b_no": [one.b_no for one in lookups], "name": [one.name for one in lookups]}
        columns |= {"address": [one.address for one in lookups], "zipcode": [None] * len(lookups)}
        self._rows, self._letters = pl.DataFrame(columns, schema=_SCHEMA), letters
        if self._engine.status is not None:
            self._engine.status.exchange(_status_frame(statuses))
        with self._engine.running():
            # starting the streaming engine takes longer than so few rows
            found = self._query.collect(engine="in-memory", optimizations=_PRUNED)
        return [
            VerificationPayload(**row | {"reasons": row["reasons"].split(REASON_SEPARATOR) if row["reasons"] else []})
            for row in found.iter_rows(named=True)
        ]

    def _select_letters(self) -> pl.DataFrame:
        if self._letters is not None:
            return self._letters
        return self._history.of(self._rows["b_no"].cast(pl.UInt64).unique())


def _status_frame(statuses: Iterable[KnownStatus]) -> pl.DataFrame:
    newest = {status.b_no: status for status in sorted(statuses, key=lambda status: (status.b_no, status.as_of))}
    return pl.DataFrame(list(newest.values()), schema=STATUS_SCHEMA, orient="row")


def _source(rows: Callable[[], pl.DataFrame], schema: pl.Schema) -> pl.LazyFrame:

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch
        frame = rows()
        if columns is not None:
            frame = frame.select(columns)
        if predicate is not None:
            frame = frame.filter(predicate)
        yield frame if limit is None else frame.head(limit)

    return register_io_source(read, schema=schema)


_log = logging.getLogger(__name__)

_EXPECTED_WAIT_S: Final = 0.01  # how long a batch waits for announced items
_POLL_S: Final = 0.0005
_MAX_QUERY_LOOKUPS: Final = 256
SHARE: Final = 32  # lookups of one key per query while others ask
MAX_WAITING: Final = 1_024  # lookups waiting or in queries; beyond that, keys with their share are refused
_PATIENCE: Final = 0.5  # share of the last query's duration to wait for the callers of that query
_PARALLEL_QUERIES: Final = 2
_MAX_KEYS: Final = 256
_MAX_CACHED: Final = 10_000
_MAX_CACHED_LENGTH: Final = 500  # characters of a cached lookup, to bound the cache

Item = TypeVar("Item")
Result = TypeVar("Result")
_LookupValues = tuple[str, str | None, str | None]


class _Asked(NamedTuple):
    lookup: VerifyRequest
    status: KnownStatus | None
    letters: KeyLetters | None


class Microbatcher(Generic[Item, Result]):
    """Process items in batches, one batch at a time. Keys take turns with at most ``share`` items each."""

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]],  # results in order
        most: int,
        expected: Callable[[], int] = int,  # announced items: a batch waits for them, since another one costs much
        patience: float = 0,  # share of the last batch's duration to wait for its callers, who may ask again
        share: int | None = None,
    ) -> None:
        self._work = work
        self._most = most
        self._expected = expected
        self._patience = patience
        self._share = share or most
        self._before, self._wait_until = Counter[str](), 0.0
        self._waiting: dict[str, deque[tuple[Item, asyncio.Future[Result]]]] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, item: Item, key: str = "") -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), context=Context())  # it serves many requests
        return future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await self._wait_for_expected()
                if batch := self._next_batch():
                    began = loop.time()
                    await self._process(batch)
                    self._wait_until = loop.time() + self._patience * (loop.time() - began)
                    self._before.update({key: len(waiting) for key, waiting in self._waiting.items()})
        finally:
            self._task = None
            for waiting in self._waiting.values():  # not empty only if the event loop ends
                for _, future in waiting:
                    future.cancel()
            self._waiting.clear()

    async def _wait_for_expected(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _EXPECTED_WAIT_S
        while (now := loop.time()) < max(until, self._wait_until):
            share, lengths = self._share_of_key(), [len(waiting) for waiting in self._waiting.values()]
            ready = sum(min(length, share) for length in lengths)
            coming = self._expected() * (now < until and ready == sum(lengths))
            before = sum(min(count, share) for count in self._before.values()) * (now < self._wait_until)
            if ready >= min(max(coming, before), self._most):
                return
            await asyncio.sleep(_POLL_S)

    def _share_of_key(self) -> int:
        return self._share if len(self._before.keys() | self._waiting.keys()) > 1 else self._most

    def _next_batch(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        share, self._before = self._share_of_key(), Counter()
        for key in list(self._waiting):
            if len(batch) == self._most:
                break  # the other keys come first the next time
            taken, waiting = len(batch), self._waiting.pop(key)
            while waiting and len(batch) < min(taken + share, self._most):
                item, future = waiting.popleft()
                if not future.done():
                    batch.append((item, future))
            self._before[key] = len(batch) - taken
            if waiting:
                self._waiting[key] = waiting
        return batch

    async def _process(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | BaseException]
        try:
            results = await self._work([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except BaseException as error:  # a panic of polars is no Exception, and no caller may wait for ever
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


class LookupAnswerer:
    """Answer single lookups from a cache or a query. Keys with equal engines share a query."""

    def __init__(self, engines: EnginePool, statuses: NtsStatuses | None = None, *, waiting: int = MAX_WAITING) -> None:
        self._engines = engines
        self._statuses = statuses
        self.most_waiting = waiting
        self._waiting: Counter[str] = Counter()
        self._of_key: OrderedDict[tuple[str, bool], tuple[LocalEngine, _EngineQueue]] = OrderedDict()
        self._queues: WeakValueDictionary[tuple[object, ...], _EngineQueue] = WeakValueDictionary()
        self._cache: OrderedDict[tuple[int, _LookupValues, KnownStatus | None, int | None], VerificationPayload] = (
            OrderedDict()
        )
        self._reference_data: tuple[object, ...] = ()
        self._limiter = anyio.CapacityLimiter(_PARALLEL_QUERIES)

    @property
    def waiting(self) -> int:
        return self._waiting.total()

    def admit(self, key_id: str) -> None:
        """Raise :class:`Refusal` 503 if too many lookups wait and this key has its share of them."""
        if self._waiting.total() < self.most_waiting:
            return
        own = self._waiting.get(key_id, 0)
        if own >= max(1, self.most_waiting // (len(self._waiting) + (not own))):
            raise busy(gettext("too many lookups are waiting"), 1)

    @contextmanager
    def expect(self, key_id: str, *, offline: bool = False) -> Iterator[None]:
        """Announce a lookup that will be submitted soon: its batch waits a moment for it."""
        known = self._of_key.get((key_id, self._statuses is not None and not offline))
        if known is None:
            yield
            return
        queue = known[1]
        queue.expected += 1
        try:
            yield
        finally:
            queue.expected -= 1

    async def answer(self, key_id: str, lookup: VerifyRequest, *, offline: bool = False) -> VerificationPayload:
        self.admit(key_id)
        self._waiting[key_id] += 1
        try:
            statuses = None if offline else self._statuses
            status = None if statuses is None else await self._find_status(statuses, key_id, lookup)
            engine, queue = await self._queue(key_id, statuses)
            values = lookup.b_no, lookup.name, lookup.address
            letters = _letters_to(lookup, engine)
            place = queue.number, values, status, None if letters is None else letters.number
            found = self._cache.get(place)
            if found is not None:
                self._cache.move_to_end(place)
                return found
            found = await queue.batcher.submit(_Asked(lookup, status, letters), key_id)
            if len(values[1] or "") + len(values[2] or "") <= _MAX_CACHED_LENGTH:
                self._cache[place] = found
                if len(self._cache) > _MAX_CACHED:
                    self._cache.popitem(last=False)
            return found
        finally:
            decrease(self._waiting, key_id)

    async def _find_status(self, statuses: NtsStatuses, key_id: str, lookup: VerifyRequest) -> KnownStatus | None:
        known = self._of_key.get((key_id, True))
        if known is None:
            return await statuses.find(lookup.b_no)
        known[1].expected -= 1
        try:
            return await statuses.find(lookup.b_no)
        finally:
            known[1].expected += 1

    async def _queue(self, key_id: str, statuses: NtsStatuses | None) -> tuple[LocalEngine, _EngineQueue]:
        engine = await self._engines.open_engine(key_id)
        place = key_id, statuses is not None
        known = self._of_key.get(place)
        if known is not None and known[0] is engine:
            return known
        reference_data = engine.registry, engine.status, engine.gazetteer, engine.today
        if reference_data != self._reference_data:  # replaced files must not stay in memory
            self._reference_data = reference_data
            self._of_key.clear()
        identity = *_engine_identity(engine), statuses is not None
        queue = self._queues.get(identity)
        if queue is None:
            shared = engine.without_letters() if isinstance(engine, ServedEngine) else engine
            with_statuses = shared if statuses is None else shared.with_known(Known(statuses=statuses.exchangeable()))
            queue = self._queues[identity] = _EngineQueue(with_statuses, self._limiter)
        self._of_key[place] = engine, queue
        self._of_key.move_to_end(place)
        if len(self._of_key) > _MAX_KEYS:
            self._of_key.popitem(last=False)
        return engine, queue


class _EngineQueue:
    _numbers = itertools.count()

    def __init__(self, engine: LocalEngine, limiter: anyio.CapacityLimiter) -> None:
        self.number = next(self._numbers)
        self.expected = 0
        self.batcher: Microbatcher[_Asked, VerificationPayload] = Microbatcher(
            self._answer, _MAX_QUERY_LOOKUPS, lambda: self.expected, _PATIENCE, SHARE
        )
        self._engine = engine
        self._limiter = limiter
        self._query: PreparedQuery | None = None

    async def _answer(self, asked: Sequence[_Asked]) -> Sequence[VerificationPayload | BaseException]:
        return await anyio.to_thread.run_sync(self._run_query, asked, limiter=self._limiter)

    def _run_query(self, asked: Sequence[_Asked]) -> Sequence[VerificationPayload | BaseException]:
        results: dict[int, VerificationPayload | BaseException] = {}
        for part in _split_by_letters(asked):
            results |= zip(part, self._run_part([asked[place] for place in part]), strict=True)
        return [results[place] for place in range(len(asked))]

    def _run_part(self, asked: Sequence[_Asked]) -> Sequence[VerificationPayload | BaseException]:
        if self._query is None:
            self._query = PreparedQuery(self._engine)
        lookups = [one.lookup for one in asked]
        try:
            if self._engine.status is None and self._engine.history is None:
                return self._query.answers(lookups)
            statuses = [one.status for one in asked if one.status is not None]
            letters = _collect_letters(asked) if isinstance(self._engine, ServedEngine) else None
            return self._query.answers(lookups, statuses, letters)
        except BansongError:  # a damaged registry or gazetteer fails for all lookups
            raise
        except (Exception, pl.exceptions.PanicException) as error:  # a panic is no Exception
            if len(asked) == 1:
                return [error]
            _log.warning("a query of %d lookups failed and is done in parts: %s", len(asked), type(error).__name__)
            half = len(asked) // 2
            return [*self._run_part(asked[:half]), *self._run_part(asked[half:])]


def _engine_identity(engine: LocalEngine) -> tuple[object, ...]:
    """Return a key that is equal for engines whose answers are equal except for the letter history of an API key."""
    # the ids stay unique, as a queue keeps its engine alive
    files = id(engine.registry), id(engine.status), id(engine.gazetteer)
    of_key = isinstance(engine, ServedEngine)
    history = engine.history is None if of_key else id(engine.history)
    return *files, engine.model, engine.lang, engine.today, of_key, history


def _letters_to(lookup: VerifyRequest, engine: LocalEngine) -> KeyLetters | None:
    letters = engine.letters if isinstance(engine, ServedEngine) else None
    return letters if letters is not None and letters.mentions(int(lookup.b_no)) else None


def _split_by_letters(asked: Sequence[_Asked]) -> list[list[int]]:
    """Group lookups so that no group has two letter histories for one business; return the positions of each group."""
    parts: list[tuple[dict[str, int | None], list[int]]] = []
    for place, (lookup, _, letters) in enumerate(asked):
        number = None if letters is None else letters.number
        for seen, places in parts:
            if seen.setdefault(lookup.b_no, number) == number:
                places.append(place)
                break
        else:
            parts.append(({lookup.b_no: number}, [place]))
    return [places for _, places in parts]


def _collect_letters(asked: Sequence[_Asked]) -> pl.DataFrame:
    numbers: dict[KeyLetters, set[int]] = {}
    for lookup, _, letters in asked:
        if letters is not None:
            numbers.setdefault(letters, set()).add(int(lookup.b_no))
    found = [letters.of(pl.Series(sorted(of), dtype=pl.UInt64)) for letters, of in numbers.items()]
    return pl.concat([pl.DataFrame(schema=HISTORY_SCHEMA), *found])


_PAYMENTS_PER_COMMIT: Final = 1_024
_Answering = Callable[[], Awaitable[VerificationPayload]]


class PaidLookups:
    """Charge and answer single lookups. Charges that arrive during a commit share the next commit."""

    def __init__(self, store: Store, clock: Clock, answerer: LookupAnswerer, idempotent: IdempotentRequests) -> None:
        self.answerer = answerer
        self._store = store
        self._clock = clock
        self._idempotent = idempotent
        self._payments: Microbatcher[tuple[str, str, int], int | None] = Microbatcher(self._take, _PAYMENTS_PER_COMMIT)

    async def answer(self, key: Key, lookup: VerifyRequest, token: bytes | None, *, offline: bool = False) -> bytes:
        """Return the answer to one lookup as JSON. A cancelled lookup may stay charged."""
        answering = partial(self.answerer.answer, key.id, lookup, offline=offline)
        with self.answerer.expect(key.id, offline=offline):
            if token is None:
                return await self._answer_paid(key, answering)
            identity = identity_of("POST", "/verify?offline=True" if offline else "/verify", encode(lookup))
            return await self._idempotent.once(
                key.id, token, identity, lambda: self._answer_idempotent(key, answering, token, identity)
            )

    async def _take(self, payments: Sequence[tuple[str, str, int]]) -> list[int | None]:
        return await self._store.write(
            lambda db: [key_table.take_lookups(db, key_id, month, 1, limit) for key_id, month, limit in payments]
        )

    async def _answer_paid(self, key: Key, answering: _Answering) -> bytes:
        month = self._clock.month()
        used = await self._payments.submit((key.id, month, key.quota))
        if used is not None:
            raise self._quota_exceeded(key, used)
        try:
            return encode(await answering())
        except BaseException:
            await self._store.write(lambda db: key_table.give_back_lookups(db, key.id, month, 1))
            raise

    async def _answer_idempotent(self, key: Key, answering: _Answering, token: bytes, identity: bytes) -> bytes:
        """Return the stored answer, or charge and answer. Repeating an unfinished attempt is not charged again."""
        now = self._clock.now()

        def begin(db: sqlite3.Connection) -> EarlierRequest | None:
            earlier = job_table.begin_request(db, key.id, token, identity, now)
            if earlier is None:
                used = key_table.take_lookups(db, key.id, self._clock.month(now), 1, key.quota)
                if used is not None:
                    raise self._quota_exceeded(key, used)
            return earlier

        earlier = await self._store.write(begin)
        if earlier is not None and earlier.request != identity:
            raise mismatch()
        if earlier is not None and earlier.answer is not None:
            return earlier.answer
        month = self._clock.month(now if earlier is None else earlier.created)

        def undo(db: sqlite3.Connection) -> None:
            if job_table.forget_request(db, key.id, token):
                key_table.give_back_lookups(db, key.id, month, 1)

        try:
            answer = encode(await answering())
            await self._store.write(lambda db: job_table.finish_request(db, key.id, token, answer))
        except BaseException:
            await self._store.write(undo)
            raise
        return answer

    def _quota_exceeded(self, key: Key, used: int) -> Refusal:
        return quota_exceeded(1, key.quota, used, self._clock.month_ends(), self._clock.now())
