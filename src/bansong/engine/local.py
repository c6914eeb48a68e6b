"""The local engine: one lazy query that verifies every row of a frame, without network and without a row loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final, Self

import polars as pl

from bansong.base import business_number
from bansong.base.after_fork import refuse_after_fork
from bansong.base.business_number import first_code
from bansong.base.errors import GazetteerError, Notice, Problem, RegistryError, UsageError
from bansong.base.messages import LANGS, Lang, Option, Phrase, current_language
from bansong.base.schema import ADDED_COLUMNS, ANSWER_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS, seoul_day
from bansong.engine.address.attach import attach, load
from bansong.engine.address.batches import for_few
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.address.matcher import LEVELS
from bansong.engine.overlays import CHOICE, CHOICE_COUNTS, AddressChoices, StatusOverlay, attach_history
from bansong.engine.registry import Registry, without_registry
from bansong.engine.risk.features import levels, restored_zipcode
from bansong.engine.risk.reasons import BY_NTS, FEATURES, StatusOrigin
from bansong.engine.risk.scorecard import Scorecard
from bansong.engine.text import day_expr, day_given, may_be_days

UNKNOWN_LANGUAGE: Final = Problem("options.unknown_language", "unknown language {lang!r}; use {known}")
NUMBER_COLUMN_MISSING: Final = Problem(
    "columns.number_column_missing", "the frame has no column 'b_no'; it has {names}"
)
ADDED_COLUMN_EXISTS: Final = Problem(
    "columns.added_column_exists", "the frame already has a column {clash!r}; drop or rename it"
)
COLUMN_TYPE_UNUSABLE: Final = Problem(
    "columns.column_type_unusable", "the column {name!r} holds {schema}; give text or numbers"
)

_HOME: Final = "row:"  # before the caller's columns while the engine works, so that none can be one of its own

# beside the answer: counted, or shown for review, and not written
MATCH_LEVEL: Final = "bv:match_level"
DISTRICT_CODE: Final = "bv:district_code"  # of the legal dong of a row's building (String)
PLACE: Final = "bv:place"  # which of the gazetteer's buildings a row's is (UInt32)
UNSURE: Final = "bv:unsure"  # reason to review a row's address: `ambiguous`, `unsupported`, else null
STATUS_STALE: Final = "bv:status_stale"  # whether a row's status was checked too long ago (Boolean)
STATUS_BY_NTS: Final = "bv:status_by_nts"  # whether a row's status is the one of `status` (Boolean)
STATUS_DAY: Final = "bv:status_day"  # the day on which a row's status was known (Date)

# aggregations over rows of `LocalEngine.answer`
MATCH_COUNTS: Final = tuple((pl.col(MATCH_LEVEL) == level).sum().alias(f"match:{level}") for level in LEVELS)
STATUS_COUNTS: Final = (pl.col(STATUS_STALE).sum().alias("status:stale"),)

# optional columns of a run's rows
ROW_PROBLEM: Final = "row_problem"  # code of a totals or header row, found in the whole file
NUMBER: Final = "bv:number"  # the result of `business_number.key_expr`
ADDRESS_LIST: Final = "bv:address_list"  # Boolean: the list has no business numbers, its rows are names and addresses

ROW_PROBLEMS: Final[dict[str, dict[Lang, str]]] = {  # codes of `ROW_PROBLEM` → text in each language
    "totals_row": {"en": "a totals row, not a business", "ko": "합계 행으로, 사업자가 아닙니다"},
    "header_row": {"en": "the header again, not a business", "ko": "중간에 반복된 제목 행으로, 사업자가 아닙니다"},
}

_VALID: Final = "valid"  # whether a row gets an answer: it has a number, or the list has none and it is no totals row
_PROBLEMS: Final = business_number.PROBLEMS | ROW_PROBLEMS  # a number's, where its cell was cut


@dataclass(frozen=True, slots=True)
class Known:
    """History, statuses and address choices of a run, for an engine that has none (see :class:`LocalEngine`)."""

    history: pl.LazyFrame | None = None
    statuses: StatusOverlay | None = None
    choices: pl.DataFrame | None = None


class LocalEngine:
    """Verifies frames against a local registry, the official addresses and the scorecard.

    ``registry``: a file built by ``bansong data build-registry`` (without one ``biz_status`` is ``unknown``).
    ``status``: the tax authority's statuses, as :func:`bansong.fetch_status` returns them or as a registry; beside
    ``registry`` the newer status of a number counts, on a tie this one.
    ``gazetteer``: one built by ``bansong data build-gazetteer`` (without one no address is corrected, and a postal
    code is only compared to the district of the address).
    ``model``: a scorecard file, by default the built-in one. ``lang``: the language of reasons and notes, by default
    the current one. ``today``: the date to which ages are counted, by default today in Korea.
    ``history``: outcomes of earlier letters (:data:`bansong.engine.overlays.HISTORY_SCHEMA`). ``choices``: addresses
    that a person chose in a review (:data:`bansong.engine.overlays.CHOICE_SCHEMA`).

    Raises :class:`bansong.errors.RegistryError`, :class:`~bansong.errors.GazetteerError`,
    :class:`~bansong.errors.ModelError`, :class:`~bansong.errors.UsageError`.
    """

    def __init__(
        self,
        registry: str | Path | Registry | None = None,
        *,
        status: StatusOverlay | pl.DataFrame | Registry | str | Path | None = None,
        gazetteer: str | Path | Gazetteer | None = None,
        model: str | Path | Scorecard | None = None,
        lang: Lang | None = None,
        today: date | str | None = None,
        history: pl.LazyFrame | None = None,
        choices: pl.DataFrame | None = None,
    ) -> None:
        refuse_after_fork()
        if lang not in (None, *LANGS):
            raise UsageError(UNKNOWN_LANGUAGE, lang=lang, known=" / ".join(LANGS))
        self.registry = registry if registry is None or isinstance(registry, Registry) else Registry.open(registry)
        self.status = status if status is None or isinstance(status, StatusOverlay) else StatusOverlay(status)
        self.gazetteer = gazetteer if isinstance(gazetteer, Gazetteer | None) else Gazetteer.open(gazetteer)
        self.model = model if isinstance(model, Scorecard) else Scorecard.load(model)
        self.lang: Lang = lang or current_language()
        self.today = day_given("today", today)
        self.history = history
        self.choices = self._look_up(choices)

    def __repr__(self) -> str:
        sources = {name: getattr(self, name) for name in ("registry", "status", "gazetteer", "model", "lang", "today")}
        shown = ", ".join(f"{name}={source!r}" for name, source in sources.items() if source is not None)
        return f"LocalEngine({shown}, history={self.history is not None}, choices={self.choices is not None})"

    def with_known(self, known: Known) -> Self:
        """Return a copy that takes the history, statuses or choices it lacks from ``known``."""
        other = copy(self)
        other.history = known.history if self.history is None else self.history
        other.status = self.status or known.statuses
        other.choices = self.choices or self._look_up(known.choices)
        return other

    def _look_up(self, choices: pl.DataFrame | None) -> AddressChoices | None:
        if choices is None or self.gazetteer is None or choices.is_empty():
            return None
        return AddressChoices.look_up(choices, self.gazetteer)

    def verify(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Add the nine result columns (:data:`ADDED_COLUMNS`) to each row.

        ``frame`` has ``b_no`` (text, or a number of any dtype) and, as far as known, ``name``, ``address``,
        ``zipcode``, ``confirmed`` (date of the address's last confirmation), ``crowded`` (many businesses at the
        address), ``several_addresses`` (of the number; both Boolean); other columns pass through, rows and order stay.
        A row whose ``row_problem`` (String) is a code of :data:`ROW_PROBLEMS`, or of a number's problems, is invalid.
        The new columns are String, but ``bounce_prob`` Float64 (a fraction) and ``reasons`` List of String. Nothing is
        computed before the frame is collected or sunk.

        Raises :class:`UsageError` if ``b_no`` is missing, if a result column exists already, or if a column that is
        read holds lists, structs or bytes.
        """
        return self._add_answers(frame, numbered=False).with_columns(pl.col("reasons").str.split(REASON_SEPARATOR))

    def answer(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Do what :meth:`verify` does, but with ``reasons`` as one text (cheaper than a list), and with more columns.

        These are :data:`STATUS_STALE` with a registry or ``status``; :data:`STATUS_BY_NTS` and :data:`STATUS_DAY` with
        ``status``; :data:`MATCH_LEVEL` (null without a readable address), :data:`DISTRICT_CODE`, :data:`UNSURE` and
        :data:`PLACE` with a gazetteer; :data:`bansong.engine.overlays.CHOICE` with choices. If the frame has
        :data:`NUMBER` (UInt64), ``b_no`` is not parsed.
        """
        beside = []
        if self.registry or self.status:
            active = pl.col("level:status") == FEATURES["status"].index("active_stale") + 1
            stale = pl.col("key").is_not_null() & (active | (pl.col("level:status_age") == 1))
            beside.append(stale.alias(STATUS_STALE))
        if self.status:
            by_nts = pl.col("key").is_not_null() & pl.col(BY_NTS["status"])
            day = pl.when(pl.col("key").is_not_null()).then("as_of")
            beside += [by_nts.alias(STATUS_BY_NTS), day.alias(STATUS_DAY)]
        if self.gazetteer:
            names = {"match_level": MATCH_LEVEL, "district_code": DISTRICT_CODE, "place": PLACE}
            beside += [*(pl.col(name).alias(ours) for name, ours in names.items()), _unsure()]
        if self.choices:
            beside.append(pl.col(CHOICE))
        return self._add_answers(frame, *beside, numbered=True)

    def counts(self) -> tuple[pl.Expr, ...]:
        """Return aggregations over the rows of :meth:`answer`, for the counts by match level in a report."""
        return (
            *(STATUS_COUNTS if self.registry or self.status else ()),
            *(_nts_counts(self.status) if self.status else ()),
            *(MATCH_COUNTS if self.gazetteer else ()),
            *(CHOICE_COUNTS if self.choices else ()),
        )

    def _add_answers(self, frame: pl.LazyFrame, *more: pl.Expr, numbered: bool) -> pl.LazyFrame:
        refuse_after_fork()
        today = self.today or seoul_day()
        schema = frame.collect_schema()
        names = schema.names()
        has_numbers = ADDRESS_LIST not in names
        if "b_no" not in names and has_numbers:
            raise UsageError(NUMBER_COLUMN_MISSING, names=", ".join(names))
        if clash := [name for name in ADDED_COLUMNS if name in names]:
            raise UsageError(ADDED_COLUMN_EXISTS, clash=clash[0])
        for name in RECORD_COLUMNS:
            if name in schema and (schema[name].is_nested() or schema[name] in (pl.Binary, pl.Object)):
                raise UsageError(COLUMN_TYPE_UNUSABLE, name=name, schema=schema[name])
        work = frame.select(
            pl.all().name.prefix(_HOME), *_record(schema, numbered), _row_problem(schema), **_optional_columns(schema)
        )
        work = work.with_columns(pl.when(pl.col(ROW_PROBLEM).is_null()).then("key").alias("key"))
        work = work.with_columns(
            (pl.col("key").is_not_null() if has_numbers else pl.col(ROW_PROBLEM).is_null()).alias(_VALID),
            business_number.checksum_expr(pl.col("key")).alias("check_digit_ok"),
            business_number.kind_of_key_expr(pl.col("key")).alias("kind"),
        )
        work = self._attach_statuses(work, names="name" in schema)
        # no work goes to rows without an answer
        work = work.with_columns(pl.when(_VALID).then(name).alias(name) for name in ("address", "zipcode"))
        work = attach_history(work, self.history, today)
        work = self._attach_addresses(work)
        possible = levels(
            today,
            registry=bool(self.registry),
            gazetteer=bool(self.gazetteer),
            stale_after=self.model.stale_after,
            columns=self._known_besides(schema),
            numbers=has_numbers,
        )
        origin = StatusOrigin(today, self.status.aged_before) if self.status else None
        work = self.model.assess(work, possible, self.lang, origin, every_row=not has_numbers)
        work = for_few(work, ~pl.col(_VALID), self._note, ("b_no", ROW_PROBLEM), {"row_note": pl.String})
        return work.select(
            *(pl.col(f"{_HOME}{name}").alias(name) for name in names), *self._select_answers(), "row_note", *more
        )

    def _attach_statuses(self, work: pl.LazyFrame, *, names: bool) -> pl.LazyFrame:
        if self.status is not None:
            return self.status.attach(work, "key", self.registry, names=names)
        return self.registry.attach(work, "key", names=names) if self.registry else without_registry(work)

    def _attach_addresses(self, work: pl.LazyFrame) -> pl.LazyFrame:
        if self.choices is None:
            return attach(work, self.gazetteer, self.lang)
        return self.choices.tell(attach(self.choices.replace(work), self.gazetteer, self.lang), self.lang)

    def _note(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        problem = pl.coalesce(ROW_PROBLEM, business_number.problem_expr(pl.col("b_no")))
        return rows.with_columns(business_number.note_expr(problem, self.lang, _PROBLEMS).alias("row_note"))

    def _known_besides(self, schema: pl.Schema) -> set[str]:
        known = {"region", *_optional_columns(schema)}
        known.update(*(source.more for source in (self.registry, self.status) if source))
        if self.history is not None:
            known.add("history")
        return known if "name" in schema else known - {"registry_name"}  # it is compared to the name

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run queries in this context: a damaged file raises :class:`RegistryError` or :class:`GazetteerError`."""
        try:
            yield
        except (GazetteerError, RegistryError) as error:  # polars adds the expression it came from, which says nothing
            raise type(error)(str(error).partition("\n\nThis error occurred in")[0]) from error
        except (pl.exceptions.PolarsError, RuntimeError):
            for index in (self.registry, self.status, self.gazetteer):
                if index is not None:
                    index.check()
            raise

    def _select_answers(self) -> list[pl.Expr]:
        valid = pl.col(_VALID)
        answers = {
            "biz_status": pl.col("biz_status").cast(pl.String).fill_null("unknown"),
            "fixed_zipcode": pl.coalesce("fixed_zipcode", restored_zipcode()),
        }
        seven = [pl.when(valid).then(answers.get(name, pl.col(name))).alias(name) for name in ANSWER_COLUMNS]
        return [*seven, first_code({"verified": valid}, "invalid").alias("row_status")]


def warm_up(engine: LocalEngine) -> None:
    """Load the whole gazetteer in this thread; else several of polars' threads would each load it."""
    record = {"b_no": "1248100998", "name": "가", "address": "서울특별시 중구 세종대로 110", "zipcode": None}
    frame = pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))
    with engine.running():
        if engine.gazetteer is not None:
            load(engine.gazetteer)
        engine.answer(frame).collect(engine="in-memory")


def _unsure() -> pl.Expr:
    unsupported = ~pl.col("supported") & pl.col("fixed_address").is_not_null()
    return first_code({"ambiguous": pl.col("match_level") == "ambiguous", "unsupported": unsupported}).alias(UNSURE)


def _nts_counts(status: StatusOverlay) -> list[pl.Expr]:
    day, by_nts = pl.col(STATUS_DAY), pl.col(STATUS_BY_NTS)
    aged = day < (status.aged_before or date.min)
    return [
        by_nts.sum().alias("status:nts"),
        day.filter(by_nts).min().alias("status:nts_oldest"),
        aged.sum().alias("status:aged"),
        day.filter(aged).min().alias("status:aged_oldest"),
    ]


def _row_problem(schema: pl.Schema) -> pl.Expr:
    # null for unknown codes: the column may be the caller's own
    if schema.get(ROW_PROBLEM) != pl.String:
        return pl.lit(None, pl.String).alias(ROW_PROBLEM)
    return pl.when(pl.col(ROW_PROBLEM).is_in(list(_PROBLEMS))).then(pl.col(ROW_PROBLEM)).alias(ROW_PROBLEM)


def _optional_columns(schema: pl.Schema) -> dict[str, pl.Expr]:
    # a column of another dtype is the caller's own
    found = {name: pl.col(name) for name in ("crowded", "several_addresses") if schema.get(name) == pl.Boolean}
    if "confirmed" in schema and may_be_days(schema["confirmed"]):
        found["confirmed"] = day_expr(pl.col("confirmed"), schema["confirmed"])
    return found


def _record(schema: pl.Schema, numbered: bool) -> list[pl.Expr]:
    # texts; the number as an integer, and as it is: its dtype may show that it was rounded
    b_no, *others = (pl.col(name) if name in schema else pl.lit(None, pl.String).alias(name) for name in RECORD_COLUMNS)
    texts = [column.cast(pl.String) for column in others]
    read_before = numbered and schema.get(NUMBER) == pl.UInt64
    key = pl.col(NUMBER) if read_before else business_number.key_expr(b_no)
    return [b_no, *texts, key.alias("key")]


REGISTRY_STALE: Final = Problem(
    "alert.registry_stale",
    "{path}: its newest status is of {day}, more than {days} days ago, so closures since then are not known "
    "and no row says `send`; build the registry again from newer lists",
)
REGISTRY_MISSING: Final = Problem("alert.registry_missing", "no registry is used, so {missing}; {remedy}")


def how_to_check_statuses() -> Phrase:
    """Return advice on how to get statuses."""
    return Phrase(
        "ask the tax authority with {status} and a free key of data.go.kr (`bansong setup` stores it; or put it into "
        "BANSONG_NTS_KEY), or build a list of statuses with `bansong data build-registry LISTS…` and run this again "
        "(with {registry} where it is not found by itself)",
        status=Option("status", "nts"),
        registry=Option("registry", "registry.parquet"),
    )


def stale_registry_alert(registry: Registry | None, stale_after: int, today: date) -> Notice | None:
    """Return an alert if the newest status of a registry is older than ``stale_after`` days."""
    if registry is None or registry.newest is None or registry.newest >= today - timedelta(days=stale_after):
        return None
    return Notice(REGISTRY_STALE, path=registry.path, day=registry.newest, days=stale_after)


def registry_alerts(local: LocalEngine, missing: str | None, *, planned: bool) -> tuple[Notice, ...]:
    """Return an alert if, without statuses of the tax authority, the registry is missing or (for a plan) too old.

    ``missing``: text on the effect of a missing registry; ``None`` suppresses that alert.
    """
    if local.status is not None:
        return ()
    today = local.today or seoul_day()
    if planned and (stale := stale_registry_alert(local.registry, local.model.stale_after, today)):
        return (stale,)
    if local.registry is not None or missing is None:
        return ()
    return (Notice(REGISTRY_MISSING, missing=missing, remedy=how_to_check_statuses()),)
