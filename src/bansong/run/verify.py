"""Verify one business, or a frame."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, Unpack, overload

import polars as pl

from bansong.base import business_number, schema
from bansong.base.display import (
    facts_table,
    grade_badge,
    pad_text,
    progress_asked,
    reason_bars,
)
from bansong.base.errors import Problem, UsageError
from bansong.base.files import new_run_id
from bansong.base.messages import Option, current_language, gettext
from bansong.base.option import take_options
from bansong.base.options import ReadOptions, ShortTraceback, check_keywords, shows_keywords
from bansong.engine.local import ROW_PROBLEM
from bansong.engine.protocol import Purchase, Records, RunContext
from bansong.engine.records import ROW_ID, with_digits
from bansong.history.labels import history_of, read_history
from bansong.run import accounting
from bansong.run.accounting import RowCounts, statuses_of
from bansong.run.charts import waterfall
from bansong.run.columns import unknown_extra_columns, with_duplicates, with_extra_columns
from bansong.run.enrich import AnyEngine, BatchKeywords, FrameKeywords, VerifyKeywords, take_request
from bansong.run.options import OPTION_KINDS, WriteOptions
from bansong.run.survey import PreparedTable, prepare_table
from bansong.run.table import AnsweredRecords, EngineStep
from bansong.tables import frames
from bansong.tables.frames import as_known_frame, collect_like
from bansong.tables.table import SAMPLE_ROWS, Enriched, with_copies

if TYPE_CHECKING:
    import pyarrow

    from bansong.run.charts import Chart

POINTS_MISSING: Final = Problem(
    "report.points_missing", "the reasons of this verification carry no points, so there is nothing to draw"
)

_REASON: Final = re.compile(r"\[(?P<label>\S+) (?P<points>[+-]\d+)\] (?P<text>.*)", re.DOTALL)
_BASE: Final = "base"  # label of the starting points' reason, in any language


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer for one business (INTERFACE §2.2); unknown fields are ``None``.

    ``bounce_prob`` is a fraction between 0 and 1.
    """

    b_no: str | None
    biz_status: str | None
    bounce_prob: float | None
    grade: str | None
    action: str | None
    fixed_zipcode: str | None
    fixed_address: str | None
    reasons: tuple[str, ...]
    row_status: str
    row_note: str | None

    def as_dict(self) -> dict[str, object]:
        """Return the fields as plain values, ``reasons`` as a list, as ``--json`` prints them."""
        return {**asdict(self), "reasons": [*self.reasons]}

    def waterfall(self) -> Chart:
        """Draw how the points add up to the score: a bar for each reason, the base first.

        Raises :class:`UsageError` if the reasons have no points (as from the hosted service), or without Altair.
        """
        frame = self.points_frame
        if frame.is_empty():
            raise UsageError(POINTS_MISSING)
        subtitle = "" if self.bounce_prob is None else gettext("return risk {risk:.1%}", risk=self.bounce_prob)
        return waterfall(frame, self.b_no or "", subtitle)

    @property
    def points_frame(self) -> pl.DataFrame:
        """Reasons with points, the base first: ``reason`` (String), ``points`` (Int64)."""
        found = [match for match in map(_REASON.fullmatch, self.reasons) if match]
        found.sort(key=lambda match: match["label"] != _BASE)
        rows = [(match["text"], int(match["points"])) for match in found]
        return pl.DataFrame(rows, schema={"reason": pl.String, "points": pl.Int64}, orient="row")

    def __str__(self) -> str:
        facts = [*self._facts(), *((gettext("reason"), reason) for reason in self.reasons)]
        return "\n".join(f"{pad_text(name, 14)}{value}" for name, value in facts)

    def _repr_html_(self) -> str:
        points = list(self.points_frame.iter_rows())
        said = reason_bars(gettext("reasons"), points, signed=True) if points else ""
        others = [] if points else [(gettext("reasons"), "\n".join(self.reasons))]
        return grade_badge(self.grade, self.bounce_prob) + facts_table([*self._facts(), *others]) + said

    def _facts(self) -> list[tuple[str, str]]:
        lang = current_language()
        headers, facts = {**schema.HEADERS[lang], "b_no": gettext("b_no")}, []
        for name in ("b_no", *(name for name in schema.ADDED_COLUMNS if name != "reasons")):
            value = getattr(self, name)
            if isinstance(value, float):
                facts.append((headers[name], f"{value:.1%}"))
            elif value is not None:
                word = schema.word_of(str(value), lang) if name in schema.KOREAN_WORDS else str(value)
                facts.append((headers[name], word))
        return facts


LAZY_BUYS_NOTHING: Final = Problem(
    "options.lazy_buys_nothing",
    "{engine} buys lookups, and a lazy query may run twice; give the local engine here, or buy with verify_frame()",
)
LOCAL_ENGINE_ONLY: Final = Problem(
    "options.local_engine_only", "{option} is for the local engine, not for {name}: the service is not told of it"
)

_MAX_SILENCE_S: Final = 10.0  # without a reply of the tax authority, while a person waits for one answer


@shows_keywords(VerifyKeywords, OPTION_KINDS)
def verify(
    b_no: str | int,
    name: str | None = None,
    address: str | None = None,
    zipcode: str | None = None,
    *,
    engine: AnyEngine = "local",
    **options: Unpack[VerifyKeywords],
) -> Verification:
    """Verify one business; a value that is no business number gives ``row_status`` invalid.

    ``engine`` and ``options`` as for :func:`enrich`; an answer bought before comes from the ledger. ``zipcode``,
    ``registry``, ``gazetteer``, ``model`` and ``labels`` are for the local engine; other engines refuse them. If the
    tax authority does not reply within 10 seconds, there is a warning, and the stored status is used.
    Raises :class:`bansong.errors.BansongError`.
    """
    keywords = check_keywords(verify, options)
    request, local, own = take_request(engine, keywords)
    asking, answers_locally = request.status_options(own), request.kind.answers_locally
    for_local = {"zipcode": zipcode, "registry": local.registry, "gazetteer": local.gazetteer, "model": local.model}
    given = [option for option, value in (for_local | {"labels": own.labels or None}).items() if value is not None]
    if given and not answers_locally:
        raise UsageError(LOCAL_ENGINE_ONLY, option=Option(given[0]), name=request.kind.name)
    digits = None if business_number.problem(b_no) else business_number.compact(b_no)
    answering = request.open(history_of(own.labels, digits) if digits and answers_locally else None, own.choices)
    with ExitStack() as resources, answering.local.running():
        context = RunContext("one lookup", new_run_id(datetime.now(UTC)), resources=resources)
        step = EngineStep(answering, answering.prepare(_record((str(b_no), name, address, zipcode))), context)
        if asking is not None:
            asking = replace(asking, patience=min(asking.patience, _MAX_SILENCE_S), drain=min(asking.drain, 1.0))
            step = step.with_statuses(asking)
            if step.halt is not None:
                warnings.warn(gettext("the tax authority could not be asked: {halt}", halt=step.halt), stacklevel=2)
        answers = step.engine.answer(step.records, context)
        answer = answers.of(step.records.rows).collect().row(0, named=True)
    fields = {key: answer[key] for key in schema.ADDED_COLUMNS if key != "reasons"}
    reasons = tuple(answer["reasons"].split(schema.REASON_SEPARATOR)) if answer["reasons"] else ()
    return Verification(b_no=None if answer["row_status"] == "invalid" else digits, reasons=reasons, **fields)


def _record(cells: tuple[str | None, ...]) -> Records:
    record = dict(zip(schema.RECORD_COLUMNS, cells, strict=True))
    rows = with_digits(pl.LazyFrame([record], schema=dict.fromkeys(schema.RECORD_COLUMNS, pl.String)))
    return Records(rows.with_row_index(ROW_ID).with_columns(pl.lit(None, pl.String).alias(ROW_PROBLEM)), 1)


class PandasFrame(Protocol):
    """A pandas DataFrame, of any subclass, for type checkers."""

    @property
    def iloc(self) -> Any: ...
    @property
    def columns(self) -> Any: ...


class ArrowTable(Protocol):
    """A pyarrow Table or RecordBatch, for type checkers."""

    @property
    def column_names(self) -> Any: ...
    def rename_columns(self, names: Any) -> Any: ...


class ArrowStream(Protocol):
    """An object that gives Arrow data: a reader of batches, a relation of duckdb."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object: ...


AnyFrame: TypeAlias = Any  # what `help()` shows; type checkers see the overloads
Frame = TypeVar("Frame", bound=pl.DataFrame | pl.LazyFrame | PandasFrame | ArrowTable)


@overload
def verify_frame(frame: Frame, *, engine: AnyEngine = "local", **options: Unpack[FrameKeywords]) -> Frame: ...


@overload
def verify_frame(
    frame: ArrowStream, *, engine: AnyEngine = "local", **options: Unpack[FrameKeywords]
) -> pyarrow.Table: ...


@shows_keywords(FrameKeywords, OPTION_KINDS)
def verify_frame(frame: AnyFrame, *, engine: AnyEngine = "local", **options: Unpack[FrameKeywords]) -> AnyFrame:
    """Verify the rows of a frame: return it in the same type and order, with nine answer columns added.

    ``frame``: polars (also lazy, which is verified at once; :func:`scan_verify` stays lazy), pandas or pyarrow; a
    pyarrow Table is returned for any other object that gives Arrow data (``__arrow_c_stream__``: a reader of batches, a
    relation of duckdb). The user's own columns are returned as they were: a pandas index, dtypes, attrs, metadata.
    Headers of several levels are joined to find the columns, and the nine columns stand on the first level. ``reasons``
    holds lists of strings. Arguments as for :func:`enrich`; warnings are Python warnings.
    Raises :class:`bansong.errors.BansongError`.
    """
    with ShortTraceback():
        keywords = check_keywords(verify_frame, options)
        read, write = take_options(ReadOptions, keywords), take_options(WriteOptions, keywords)
        request, _, own = take_request(engine, keywords)
        asking = request.status_options(own)
        given = as_known_frame(frame)
        # a lazy frame is collected, since its rows are read more than once and must stay the same
        table = frames.read(given.collect(engine="streaming") if isinstance(given, pl.LazyFrame) else given)
        prepared = prepare_table(table, read, write, request.kind)
    for warning in prepared.warnings:
        warnings.warn(warning, stacklevel=2)
    known = read_history(own.labels) if request.kind.answers_locally else None
    answering = request.open(known.history if known else None, own.choices)
    shows = progress_asked(own.progress, request.progress_unit)
    with ExitStack() as resources, shows as shown, answering.local.running():
        context = RunContext("a frame", new_run_id(datetime.now(UTC)), progress=shown, resources=resources)
        step = EngineStep(answering, prepared.records_for(answering), context)
        if asking is not None and not prepared.is_address_list:
            step = step.with_statuses(asking)
        answers = step.answer(table.count())
        result, rows_out, tallies = collect_like(_lay_out(prepared, step, answers), given)
    tallied, purchase = tallies.row(0, named=True), answers.answers.purchase
    counts = accounting.row_counts_of(tallied)
    for note in _notes_on(prepared, step, counts, tallied, purchase):
        warnings.warn(note, stacklevel=2)
    accounting.check_balance(table.count(), counts, rows_out)
    return result


@shows_keywords(BatchKeywords, OPTION_KINDS)
def scan_verify(frame: pl.LazyFrame, *, engine: AnyEngine = "local", **options: Unpack[BatchKeywords]) -> pl.LazyFrame:
    """Add the nine answer columns to a lazy frame, as a part of its query: nothing is verified before that runs.

    Only the first thousand rows are collected, and a gazetteer is loaded, at once: with the headers these rows decide
    which columns hold number, name and address; ``columns`` names others. The query streams (``sink_parquet``,
    ``collect(engine="streaming")``) and keeps the rows and their order. ``engine``: ``local`` or a
    :class:`LocalEngine`; other arguments as for :func:`verify_frame`.

    Left out is what needs all rows before the first answer: crowded addresses and numbers with several addresses among
    the reasons, ``duplicate_of``, statuses fetched from the tax authority (an ``engine`` may have its ``status``),
    lookups that are bought, and the check that every row is accounted for. :func:`verify_frame` does all of these.

    Raises :class:`bansong.errors.BansongError`; a damaged registry or gazetteer fails when the query runs.
    """
    with ShortTraceback():
        keywords = check_keywords(scan_verify, options)
        read, write = take_options(ReadOptions, keywords), take_options(WriteOptions, keywords)
        request, _, own = take_request(engine, keywords)
        if request.kind.buys:
            raise UsageError(LAZY_BUYS_NOTHING, engine=Option("engine", request.kind.name))
        table = frames.read(frame)
        sample = replace(table, frame=table.head(SAMPLE_ROWS).collect(engine="streaming").lazy())
        prepared = prepare_table(sample, read, write, request.kind)
    for warning in prepared.warnings:
        warnings.warn(warning, stacklevel=2)
    known = read_history(own.labels)
    answering = request.open(known.history if known else None)
    records = answering.prepare(Records(prepared.reader.read(table)))
    rows = answering.answer(records, RunContext("a frame", new_run_id(datetime.now(UTC)))).of(records.rows)
    rows = schema.with_words(with_extra_columns(rows, prepared.extras, answering.local.gazetteer), prepared.lang)
    worded = with_copies(rows, prepared.layout)
    return Enriched(table, worded, prepared.layout, tally=worded).with_titles(lists=True)


def _lay_out(prepared: PreparedTable, step: EngineStep, answers: AnsweredRecords) -> Enriched:
    rows = answers.of(step.records.rows)
    if prepared.extras:
        kept = with_duplicates(rows.collect(engine="streaming").lazy())
        rows = with_extra_columns(kept, prepared.extras, step.engine.local.gazetteer)
    answered = accounting.number_rows(rows)
    worded = with_copies(schema.with_words(answered, prepared.lang), prepared.layout)
    return Enriched(prepared.table, worded, prepared.layout, accounting.tally(answered, step.engine.counts()))


def _notes_on(
    prepared: PreparedTable, step: EngineStep, counts: RowCounts, tallied: dict[str, Any], purchase: Purchase | None
) -> Iterator[str]:
    if not prepared.is_address_list:
        statuses = statuses_of(step.engine, counts, tallied, step.halt)
        if statuses is not None and statuses.is_alarming:
            yield statuses.summary
    yield from unknown_extra_columns(prepared.extras, step.engine.local.gazetteer)
    if purchase is not None:
        yield from purchase.notes
        if purchase.paused:
            yield gettext("paused: {paused}", paused=purchase.paused)
