"""The engine's query, made once and run over a few lookups again and again.

Building the query takes longer than running it over a few rows. So the rows are a source that is exchanged, and of
the label store only the letters to the businesses that are asked about go into the query. What the tax authority told
of these is exchanged with the rows. The answers are those of the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import polars as pl
from polars.io.plugins import register_io_source

from bansong.engine import LocalEngine
from bansong.engine.letter_history import HISTORY_SCHEMA
from bansong.engine.registry import STATUS_SCHEMA
from bansong.schema import ANSWER_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS
from bansong.server.letters import ScopeLetters
from bansong.server.payloads import VerificationPayload, VerifyRequest
from bansong.server.status.known_status import KnownStatus

_SCHEMA: Final = pl.Schema(dict.fromkeys(RECORD_COLUMNS, pl.String))
_PRUNED: Final = pl.QueryOptFlags.none(projection_pushdown=True)
"""For a few rows all else that polars can optimise costs more than it saves."""
_ANSWERS: Final = [pl.col(name) for name in ANSWER_COLUMNS]


class PreparedQuery:
    """What an engine answers to a few lookups at a time; for one thread at a time.

    The engine's ``today`` must be given: the query is made for one day. So must its ``status``, if statuses are to be
    exchanged: :meth:`bansong.engine.StatusOverlay.exchangeable`.
    """

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._rows = pl.DataFrame(schema=_SCHEMA)
        self._letters: pl.DataFrame | None = None
        letters = None
        if engine.history is not None:
            self._history = ScopeLetters(engine.history.select(list(HISTORY_SCHEMA)).collect().sort("b_no"))
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
        self._query.collect_schema()  # polars keeps the plan that it made for this, and need not make it again

    def answers(
        self,
        lookups: Sequence[VerifyRequest],
        statuses: Iterable[KnownStatus] = (),
        letters: pl.DataFrame | None = None,
    ) -> list[VerificationPayload]:
        """Answer lookups in their order; ``statuses``: what the tax authority told of their numbers.

        ``letters``: earlier letters to these numbers (:data:`bansong.engine.letter_history.HISTORY_SCHEMA`), by
        default those of the engine's history; an engine without one uses none.

        Raises :class:`bansong.errors.RegistryError`, :class:`~bansong.errors.GazetteerError` where an index is
        damaged.
        """
        columns = {"b_no": [one.b_no for one in lookups], "name": [one.name for one in lookups]}
        columns |= {"address": [one.address for one in lookups], "zipcode": [None] * len(lookups)}
        self._rows, self._letters = pl.DataFrame(columns, schema=_SCHEMA), letters
        if self._engine.status is not None:
            self._engine.status.exchange(_status_frame(statuses))
        with self._engine.running():
            # the streaming engine's start costs more than so few rows take
            found = self._query.collect(engine="in-memory", optimizations=_PRUNED)
        return [_build_payload(*row) for row in found.iter_rows()]

    def _select_letters(self) -> pl.DataFrame:
        """Return the letters to the businesses that are asked about."""
        if self._letters is not None:
            return self._letters
        return self._history.of(self._rows["b_no"].cast(pl.UInt64).unique())


def _status_frame(statuses: Iterable[KnownStatus]) -> pl.DataFrame:
    """Return statuses sorted by number, of each number the newest."""
    newest = {status.b_no: status for status in sorted(statuses, key=lambda status: (status.b_no, status.as_of))}
    return pl.DataFrame(list(newest.values()), schema=STATUS_SCHEMA, orient="row")


def _source(rows: Callable[[], pl.DataFrame], schema: pl.Schema) -> pl.LazyFrame:
    """A query's source whose rows are those that ``rows()`` returns when the query runs."""

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


def _build_payload(
    biz_status: str,
    bounce_prob: float | None,
    grade: str | None,
    action: str | None,
    fixed_zipcode: str | None,
    fixed_address: str | None,
    reasons: str | None,
) -> VerificationPayload:
    said = reasons.split(REASON_SEPARATOR) if reasons else []
    return VerificationPayload(biz_status, bounce_prob, grade, action, fixed_zipcode, fixed_address, said)
