"""Fetch statuses from the tax authority without verifying: of given numbers, or of the numbers in files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base import business_number, schema
from bansong.base.after_fork import refuse_after_fork
from bansong.base.cancel import CancelToken, run_async
from bansong.base.display import AskedProgress, Progress, progress_asked
from bansong.base.errors import AuthenticationError, ColumnError, InputError, Problem, UsageError
from bansong.base.messages import Lang, current_language
from bansong.base.option import choose_options
from bansong.base.options import ReadOptions, StatusOptions
from bansong.base.publish import same_file
from bansong.reference.fetch import StatusFetch, fetch_statuses
from bansong.reference.registry import FetchedRegistry, check_registry_name, fetch_registry
from bansong.reference.status_store import StatusStore
from bansong.reference.statuses import TaxAuthority, numbers_of
from bansong.run.columns import keep_apart
from bansong.run.survey import prepare_table
from bansong.tables import frames
from bansong.tables.detect import open_table, reading

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


def look_up_statuses(numbers: Any, options: StatusOptions | None = None) -> FetchedStatuses:
    """Fetch statuses as :func:`fetch_status`, but report failures, even a refused key, instead of raising."""
    token = CancelToken()
    return run_async(lambda: _fetch(numbers, options, None, None, token), token)


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
