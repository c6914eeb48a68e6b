"""Verify one business or a frame; fetch statuses only."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

import polars as pl

from bansong.base import business_number, schema
from bansong.base.cancel import CancelToken, run_async
from bansong.base.display import (
    AskedProgress,
    Progress,
    facts_table,
    grade_badge,
    pad_text,
    progress_asked,
    reason_bars,
)
from bansong.base.errors import AuthenticationError, ColumnError, InputError, Problem, UsageError
from bansong.base.files import new_run_id
from bansong.base.forking import refuse_after_fork
from bansong.base.messages import Lang, Option, current_language, gettext
from bansong.base.option import choose_options, take_options
from bansong.base.options import ReadOptions, StatusOptions, WriteOptions, check_keywords
from bansong.base.publish import same_file
from bansong.engine.local import ROW_PROBLEM
from bansong.engine.protocol import Purchase, Records, RunContext
from bansong.engine.records import ROW_ID, with_digits
from bansong.history.labels import history_of, read_history
from bansong.reference.fetch import StatusFetch, fetch_statuses
from bansong.reference.registry import FetchedRegistry, check_registry_name, fetch_registry
from bansong.reference.status_store import StatusStore
from bansong.reference.statuses import TaxAuthority, numbers_of
from bansong.run import accounting
from bansong.run.accounting import RowCounts, statuses_of
from bansong.run.charts import waterfall
from bansong.run.columns import keep_apart, unknown_extra_columns, with_duplicates, with_extra_columns
from bansong.run.enrich import AnyEngine, FrameKeywords, VerifyKeywords, take_request
from bansong.run.survey import PreparedTable, prepare_table
from bansong.run.table import AnsweredRecords, EngineStep
from bansong.tables import frames
from bansong.tables.detect import open_table, reading
from bansong.tables.frames import as_known_frame, collect_like
from bansong.tables.table import Enriched, with_copies

if TYPE_CHECKING:
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


LOCAL_ENGINE_ONLY: Final = Problem(
    "options.local_engine_only", "{option} is for the local engine, not for {name}: the service is not told of it"
)

_MAX_SILENCE_S: Final = 10.0  # without a reply of the tax authority, while a person waits for one answer


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
    check_keywords(verify, options, VerifyKeywords)
    keywords: dict[str, Any] = {**options}
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


Frame = TypeVar("Frame")  # polars, pandas or pyarrow; the result has the type of the argument


def verify_frame(frame: Frame, *, engine: AnyEngine = "local", **options: Unpack[FrameKeywords]) -> Frame:
    """Verify a frame: return one of the same type with the nine columns added, and the rows in the same order.

    ``frame``: polars (also lazy, which is verified at once), pandas or pyarrow; a pyarrow Table is returned for any
    other object that gives Arrow data (``__arrow_c_stream__``: a reader of batches, a relation of duckdb). The user's
    own columns are returned as they were: a pandas index, dtypes, attrs, metadata. Headers of several levels are joined
    to find the columns, and the nine stand on the first level. ``reasons`` holds lists of strings. Arguments as for
    :func:`enrich`; warnings are Python warnings.
    Raises :class:`bansong.errors.BansongError`.
    """
    check_keywords(verify_frame, options, FrameKeywords)
    keywords: dict[str, Any] = {**options}
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
    return cast(Frame, result)


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


NUMBERS_NOT_FOUND: Final = Problem(
    "inputs.numbers_not_found",
    "{path}: holds no business number that could be asked for; name the column with `columns=`",
)
NUMBERS_TYPE_WRONG: Final = Problem(
    "inputs.numbers_type_wrong", "a {name} is no list of business numbers; give a list, a Series or a frame"
)
REGISTRY_IS_INPUT: Final = Problem(
    "outputs.registry_is_input", "{output}: is one of the files; give the registry a name of its own"
)
SERIES_TYPE_WRONG: Final = Problem(
    "inputs.series_type_wrong", "a Series of {dtype} holds no business numbers; give texts or whole numbers"
)
NUMBER_COLUMN_MISSING: Final = Problem(
    "inputs.number_column_missing", "the frame has no column of business numbers; give the column itself"
)

COLUMNS: Final = ("b_no", "biz_status", "since", "taxation", "merged", "as_of", "note")  # result of `fetch_status`

_IN_VAIN: Final[dict[Lang, str]] = {
    "en": "the tax authority gave no answer for this number today; ask again tomorrow",
    "ko": "오늘은 국세청에서 이 번호의 답을 받지 못했습니다. 내일 다시 조회해 주세요",
}


@dataclass(frozen=True, slots=True)
class FetchedStatuses:
    """Statuses of the given numbers, one row for each (:data:`COLUMNS`), and the report of their fetch."""

    frame: pl.DataFrame
    fetch: StatusFetch


def fetch_status(
    numbers: Any,
    options: StatusOptions | None = None,
    *,
    lang: Lang | None = None,
    progress: AskedProgress = True,
    cancel: CancelToken | None = None,
) -> pl.DataFrame:
    """Fetch the status of business numbers from the tax authority, free of charge; only numbers are sent.

    ``numbers``: a list, a polars Series, or a frame (polars, pandas, pyarrow) whose column of numbers is found as by
    :func:`bansong.enrich`. Statuses of the last ``options.max_age`` days (30) come from the status store. The key is in
    ``BANSONG_NTS_KEY``, a file ``BANSONG_NTS_KEY_FILE``, or in the options.

    One row a number, in order: ``b_no`` (ten digits as text; null if invalid), ``biz_status`` (active, suspended,
    closed, unregistered; null if unknown), ``since`` (Date), ``taxation`` (general, simplified, exempt), ``merged``
    (closed by a merger into unit taxation), ``as_of`` (Date in Korea), ``note`` (why the status is missing or old).
    An incomplete answer is a warning and a note. Raises :class:`bansong.errors.UsageError` without a key,
    :class:`~bansong.errors.AuthenticationError` for a refused one.
    """
    token = cancel or CancelToken()
    with progress_asked(progress, "numbers", "asking nts") as shown:
        return _frame_of(run_async(lambda: _fetch(numbers, options, lang, shown, token), token))


async def afetch_status(
    numbers: Any,
    options: StatusOptions | None = None,
    *,
    lang: Lang | None = None,
    progress: AskedProgress = True,
    cancel: CancelToken | None = None,
) -> pl.DataFrame:
    """Fetch statuses as :func:`fetch_status`, in a running event loop (asyncio or trio)."""
    with progress_asked(progress, "numbers", "asking nts") as shown:
        return _frame_of(await _fetch(numbers, options, lang, shown, cancel or CancelToken()))


def look_up_statuses(
    numbers: Any, options: StatusOptions | None = None, *, lang: Lang | None = None
) -> FetchedStatuses:
    """Fetch statuses as :func:`fetch_status`, but report failures, even a refused key, instead of raising."""
    token = CancelToken()
    return run_async(lambda: _fetch(numbers, options, lang, None, token), token)


def fetch_files(
    files: Sequence[Path],
    output: Path,
    options: StatusOptions,
    read: ReadOptions,
    watch: Callable[[StatusFetch], None] | None = None,
) -> FetchedRegistry:
    """Fetch the statuses of the numbers in files and write them as a registry to ``output``."""
    check_registry_name(output)
    for path in files:
        if same_file(path, output):
            raise UsageError(REGISTRY_IS_INPUT, output=output)
    keep_apart(TaxAuthority(options).files(), {"output": output}, in_place=False)
    found = pl.concat([_numbers_in(path, read) for path in files]).unique()
    return fetch_registry(found, output, [path.name for path in files], options, watch=watch)


def _numbers_in(path: Path, read: ReadOptions) -> pl.Series:
    with open_table(path, read) as table:
        rows = prepare_table(table, read).rows
        with reading(table):
            found = numbers_of(rows)
    if found.is_empty():
        raise InputError(NUMBERS_NOT_FOUND, path=path)
    return found


def _frame_of(found: FetchedStatuses) -> pl.DataFrame:
    if found.fetch.halt is not None:
        if found.fetch.exit_code == AuthenticationError.exit_code:
            raise AuthenticationError(found.fetch.halt)
        warnings.warn(f"bansong: {found.fetch.halt}", stacklevel=3)
    return found.frame


async def _fetch(
    numbers: Any, options: StatusOptions | None, lang: Lang | None, progress: Progress | None, cancel: CancelToken
) -> FetchedStatuses:
    refuse_after_fork()
    options = choose_options("options", options, StatusOptions())
    given = _texts(numbers)
    rows = pl.DataFrame([given]).select(
        business_number.key_expr(pl.col("given")).alias("b_no"),
        business_number.problem_expr(pl.col("given")).alias("p"),
    )
    distinct = rows["b_no"].drop_nulls().unique(maintain_order=True)
    fetch = StatusFetch(numbers=len(distinct))
    if options.source != "none":
        fetch = await fetch_statuses(distinct, options, progress=progress, cancel=cancel, tries_spent=True)
    with StatusStore(options.store) as store:
        known = store.read(distinct)
        in_vain = store.find_unanswered(distinct, schema.seoul_day())
    return FetchedStatuses(_answer_rows(rows, known, in_vain, fetch, options, lang or current_language()), fetch)


def _answer_rows(
    rows: pl.DataFrame, known: pl.DataFrame, in_vain: pl.Series, fetch: StatusFetch, options: StatusOptions, lang: Lang
) -> pl.DataFrame:
    found = rows.join(known, on="b_no", how="left", maintain_order="left")
    age = (pl.lit(schema.seoul_day()) - pl.col("as_of")).dt.total_days()
    is_old = pl.col("b_no").is_not_null() & ~(age <= options.max_age).fill_null(value=False)
    note = (
        pl.when(pl.col("p").is_not_null())
        .then(business_number.note_expr(pl.col("p"), lang))
        .when(is_old & pl.col("b_no").is_in(in_vain.implode()))
        .then(pl.lit(_IN_VAIN[lang]))
        .when(is_old)
        .then(pl.lit(fetch.halt, pl.String))
    )
    digits = business_number.digits_expr(pl.col("b_no")).alias("b_no")
    return found.with_columns(note.alias("note"), digits).select(*COLUMNS)


def _texts(numbers: Any) -> pl.Series:
    if isinstance(numbers, pl.Series):
        if numbers.dtype.is_nested() or numbers.dtype == pl.Object:
            raise UsageError(SERIES_TYPE_WRONG, dtype=numbers.dtype)
        return numbers.alias("given")
    if isinstance(numbers, str | int):
        return pl.Series("given", [str(numbers)], pl.String)
    if hasattr(numbers, "columns") or hasattr(numbers, "column_names") or isinstance(numbers, pl.LazyFrame):
        rows = prepare_table(frames.read(numbers)).rows
        if "b_no" not in rows.collect_schema().names():
            raise ColumnError(NUMBER_COLUMN_MISSING)
        return rows.select(pl.col("b_no").alias("given")).collect().to_series()
    if not isinstance(numbers, Iterable):
        raise UsageError(NUMBERS_TYPE_WRONG, name=type(numbers).__name__)
    return pl.Series("given", [None if number is None else str(number) for number in numbers], pl.String)
