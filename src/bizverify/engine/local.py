"""The embedded engine: one lazy query that verifies every row of a frame, without network and without a row loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from bizverify import number
from bizverify.engine.registry import Registry, without_registry
from bizverify.engine.risk.features import levels
from bizverify.engine.risk.scorecard import Scorecard
from bizverify.errors import UsageError
from bizverify.model import ADDED_COLUMNS, ANSWER_COLUMNS, LANGS, REASON_SEPARATOR, RECORD_COLUMNS, Lang

_HOME: Final = "bv:row"
"""Where the caller's columns wait while the engine works, so that no name of theirs can clash with one of its own."""


ROW_PROBLEM: Final = "row_problem"
"""An optional column of the engine's input: why a row is no row of the list, found by looking at the whole file."""

ROW_PROBLEMS: Final[dict[str, dict[Lang, str]]] = {
    "totals_row": {
        "en": "a totals row, not a business",
        "ko": "합계 행으로, 사업자가 아닙니다",
    },
    "header_row": {
        "en": "the header again, not a business",
        "ko": "머리글이 되풀이된 행으로, 사업자가 아닙니다",
    },
}
"""Codes of :data:`ROW_PROBLEM` → text in each language."""


class LocalEngine:
    """Verifies frames against a local registry and the scorecard.

    ``registry``: a file built by ``bizverify data build-registry`` (without one ``biz_status`` is ``unknown``).
    ``model``: a scorecard file, the built-in one by default. ``lang``: the language of reasons and notes.
    ``today``: the day on which ages are reckoned, default the current one.

    Raises :class:`bizverify.errors.RegistryError`, :class:`~bizverify.errors.ModelError`,
    :class:`~bizverify.errors.UsageError`.
    """

    def __init__(
        self,
        registry: str | Path | Registry | None = None,
        *,
        model: str | Path | Scorecard | None = None,
        lang: Lang = "en",
        today: date | None = None,
    ) -> None:
        if lang not in LANGS:
            raise UsageError(f"unknown language {lang!r}; use {' or '.join(LANGS)}")
        self.registry = registry if registry is None or isinstance(registry, Registry) else Registry.open(registry)
        self.model = model if isinstance(model, Scorecard) else Scorecard.load(model)
        self.lang: Lang = lang
        self.today = today

    def verify(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Add the nine columns of the contract to each row.

        ``frame`` has ``b_no`` (any dtype that prints as a number) and, as far as known, ``name``, ``address``,
        ``zipcode``; other columns pass through. A row whose ``row_problem`` (optional, String) is a code of
        :data:`ROW_PROBLEMS` is invalid whatever its number. Order and number of rows stay. Added: ``biz_status``,
        ``grade``, ``action``, ``fixed_zipcode``, ``fixed_address``, ``row_status``, ``row_note`` (String),
        ``bounce_prob`` (Float64, a fraction), ``reasons`` (List of String). Nothing is computed before the frame is
        collected or sunk.
        Raises :class:`UsageError` when there is no ``b_no``, one of the nine is there already, or a column that is
        read holds lists, structs or bytes.
        """
        answered = self.answer(frame)
        return answered.with_columns(pl.col("reasons").str.split(REASON_SEPARATOR))

    def answer(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Do what :meth:`verify` does, with the reasons of a row joined to one text (cheaper than a list)."""
        schema = frame.collect_schema()
        names = schema.names()
        if "b_no" not in names:
            raise UsageError(f"the frame has no column 'b_no'; it has {', '.join(names)}")
        if clash := [name for name in ADDED_COLUMNS if name in names]:
            raise UsageError(f"the frame already has a column {clash[0]!r}; drop or rename it")
        for name in RECORD_COLUMNS:
            if name in schema and (schema[name].is_nested() or schema[name] in (pl.Binary, pl.Object)):
                raise UsageError(f"the column {name!r} holds {schema[name]}; give text or numbers")
        work = frame.select(pl.struct(pl.all()).alias(_HOME), *_record(names), _row_problem(schema))
        digits = pl.when(pl.col(ROW_PROBLEM).is_null()).then(number.compact_expr(pl.col("b_no")))
        work = work.with_columns(digits.alias("compact"))
        work = work.with_columns(number.key_expr(pl.col("compact")).alias("key"))
        work = work.with_columns(
            number.checksum_expr(pl.col("key")).alias("check_digit_ok"),
            number.kind_of_key_expr(pl.col("key")).alias("kind"),
        )
        work = self.registry.attach(work, "key") if self.registry else without_registry(work)
        today = self.today or date.today()
        work = self.model.assess(work, levels(today, registry=self.registry is not None), self.lang)
        return work.select(_HOME, *self._added()).unnest(_HOME)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a query of :meth:`answer` runs: raise :class:`RegistryError` if it fails for a damaged registry."""
        try:
            yield
        except pl.exceptions.PolarsError:
            if self.registry is not None:
                self.registry.check()
            raise

    def _added(self) -> list[pl.Expr]:
        """The nine columns; the seven of the answer only where there is a number."""
        valid = pl.col("compact").is_not_null()
        answers = {
            "biz_status": pl.col("biz_status").cast(pl.String).fill_null("unknown"),
            "fixed_zipcode": pl.lit(None, pl.String),
            "fixed_address": pl.lit(None, pl.String),
        }
        seven = [pl.when(valid).then(answers.get(name, pl.col(name))).alias(name) for name in ANSWER_COLUMNS]
        status = pl.when(valid).then(pl.lit("verified")).otherwise(pl.lit("invalid")).alias("row_status")
        problem = pl.when(~valid).then(number.problem_expr(pl.when(~valid).then("b_no")))
        note = number.note_expr(problem, self.lang)
        of_row = number.note_expr(pl.col(ROW_PROBLEM), self.lang, ROW_PROBLEMS)
        return [*seven, status, pl.coalesce(of_row, note).alias("row_note")]


def _row_problem(schema: pl.Schema) -> pl.Expr:
    """The optional column, null where it says nothing that is known: it may be the caller's own."""
    if schema.get(ROW_PROBLEM) != pl.String:
        return pl.lit(None, pl.String).alias(ROW_PROBLEM)
    return pl.when(pl.col(ROW_PROBLEM).is_in(list(ROW_PROBLEMS))).then(pl.col(ROW_PROBLEM)).alias(ROW_PROBLEM)


def _record(names: list[str]) -> list[pl.Expr]:
    """The record's columns as text; the number as it is, since its dtype may say that it was rounded."""
    texts = [
        (pl.col(name).cast(pl.String) if name in names else pl.lit(None, pl.String)).alias(name)
        for name in RECORD_COLUMNS
        if name != "b_no"
    ]
    return [pl.col("b_no"), *texts]
