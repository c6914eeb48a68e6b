"""Join the ledger's answers to the rows of a run, as the answer columns (ADDED_COLUMNS)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl
import pyarrow as pa

from bansong.base import business_number
from bansong.base.messages import Lang
from bansong.base.schema import ADDED_COLUMNS, ANSWER_COLUMNS
from bansong.engine.local import ROW_PROBLEM, ROW_PROBLEMS, STATUS_STALE
from bansong.engine.protocol import LOOKUP
from bansong.engine.registry import meaning_expr
from bansong.purchase.lookups import KEY, SHORT, seed_without_collisions, short_expr

if TYPE_CHECKING:
    from bansong.purchase.ledger import Ledger

CHOSEN: Final = "chosen"  # whether this run chose the lookup to be bought (Boolean)

BEFORE: Final = "local:"  # prefix of the local engine's answers beside those of the service (hybrid)

Unchosen = Literal["unchosen", "unaffordable"] | None

_LOOKUPS_A_PART: Final = 50_000
_PLACE: Final = "outcome_place"
_FOUND: Final = "outcome"

_SCHEMA: Final = dict.fromkeys(ADDED_COLUMNS, pl.String) | {"bounce_prob": pl.Float64}

_NOTES: Final[dict[str, dict[Lang, str]]] = {
    "in_doubt": {
        "en": "sent, but the answer is not known; settle it with `bansong resolve`: ",
        "ko": "조회를 요청했으나 결과를 알 수 없음. `bansong resolve`로 정리해 주세요: ",
    },
    "unreadable": {
        "en": "answered, but not readable; it is not bought again: ",
        "ko": "서비스의 응답을 읽을 수 없음(다시 조회하지 않음): ",
    },
    "missing": {
        "en": "sent in an upload, but no answer came back; the same command looks for it again for free, and if that "
        "does not help `bansong resolve` settles it; it is not bought again: ",
        "ko": "일괄 조회에서 이 행의 결과가 오지 않음. 같은 명령을 다시 실행하면 과금 없이 다시 확인하고, "
        "그래도 없으면 `bansong resolve`로 정리해 주세요(다시 과금하지 않음): ",
    },
    "lost": {
        "en": "given up with `bansong resolve`; it is not bought again: ",
        "ko": "`bansong resolve`로 포기함(다시 조회하지 않음): ",
    },
    "refused": {"en": "the service refused it, nothing was paid: ", "ko": "서비스에서 거절됨(과금 없음): "},
    "running": {
        "en": "the service is still working on it; the same command goes on waiting",
        "ko": "서비스에서 처리 중. 같은 명령을 다시 실행하면 이어서 기다립니다",
    },
    "unaffordable": {
        "en": "not bought: beyond what was left of the quota",
        "ko": "조회하지 않음: 남은 조회 한도를 넘음",
    },
    "unchosen": {"en": "not bought: beyond the budget of this run", "ko": "조회하지 않음: 이번 실행의 예산을 넘음"},
    "halted": {
        "en": "not bought yet; the same command goes on: ",
        "ko": "아직 조회하지 않음. 같은 명령을 다시 실행하면 이어서 진행합니다: ",
    },
    "stopped": {"en": "not bought: ", "ko": "조회하지 않음: "},
    "suspect": {
        "en": "the check digit is wrong, so it is not bought unless buy_suspect is set",
        "ko": "검증번호가 맞지 않아 조회하지 않음(`buy_suspect=True`를 주면 조회함)",
    },
}
_REPLACED: Final = "\ufffd"
_GARBLED: Final[dict[Lang, str]] = {
    "en": "the answer came in bytes that are not UTF-8, which are � in: ",
    "ko": "응답의 글자가 깨져 �로 바뀐 항목: ",
}
_STATUS: Final = {
    "answered": "verified",
    "cached": "cached",
    "in_doubt": "in_doubt",
    **dict.fromkeys(("unreadable", "missing", "lost", "refused"), "failed"),
    **dict.fromkeys(("running", "unaffordable", "unchosen", "halted", "stopped"), "pending"),
}


def find_outcomes(
    ledger: Ledger,
    lookups: pl.DataFrame,
    *,
    run_id: str,
    since: float,  # unix seconds of the earliest usable answer
    halted: str,  # why the run did not buy all chosen lookups
    unchosen: Unchosen,  # why the other lookups were not chosen; None: they get no outcome
    lang: Lang,
    stopped: bool = False,  # repeating the command would not buy the rest
) -> pl.DataFrame:
    """Return :data:`LOOKUP` and ADDED_COLUMNS of the lookups with an outcome: answered, in doubt, not bought …"""
    parts = [_select_standing(part, run_id, since) for part in ledger.entries(lookups[KEY])]
    known = pl.concat(
        [pl.DataFrame(schema=_SCHEMA | {"place": pl.get_index_type(), "stands": pl.String}), *parts], how="diagonal"
    )
    asked = lookups.select(pl.int_range(pl.len(), dtype=pl.get_index_type()).alias("place"), LOOKUP, CHOSEN)
    found = asked.join(known, on="place", how="left", maintain_order="left")
    rest = pl.when(CHOSEN).then(pl.lit("stopped" if stopped else "halted")).otherwise(pl.lit(unchosen, pl.String))
    found = found.with_columns(pl.coalesce("stands", rest).alias("stands")).drop_nulls("stands")
    stands = pl.col("stands")
    detail = pl.when(stands.is_in(["halted", "stopped"])).then(pl.lit(halted)).otherwise(pl.col("row_note"))
    detail = pl.when(stands != "running").then(detail).fill_null("")
    note = pl.coalesce(business_number.note_expr(stands, lang, _NOTES) + detail, _garbled_expr(lang))
    status = stands.replace_strict(_STATUS, return_dtype=pl.String)
    return found.select(LOOKUP, *ANSWER_COLUMNS, status.alias("row_status"), note.alias("row_note"))


def _garbled_expr(lang: Lang) -> pl.Expr:
    texts = [name for name in ANSWER_COLUMNS if _SCHEMA[name] == pl.String]
    holds = [pl.when(pl.col(name).str.contains(_REPLACED, literal=True)).then(pl.lit(name)) for name in texts]
    columns = pl.concat_str(holds, separator=", ", ignore_nulls=True)
    return pl.when(columns != "").then(pl.lit(_GARBLED[lang]) + columns)


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """Outcomes of lookups in memory-mapped files, and a small index from lookups to outcomes."""

    places: pl.LazyFrame  # hash of a lookup (SHORT), and index of its row in `answers`
    answers: pl.DataFrame
    seed: int  # of the hash

    def join_to(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add ADDED_COLUMNS to rows with the column :data:`LOOKUP`, null without an outcome; rows keep their order."""
        numbered = rows.with_columns(short_expr(self.seed))
        placed = numbered.join(self.places, on=SHORT, how="left", maintain_order="left")

        def gather(places: pl.Series) -> pl.Series:
            return self.answers.select(pl.all().gather(places)).to_struct()

        dtype = pl.Struct(self.answers.schema)
        answer = pl.col(_PLACE).map_batches(gather, return_dtype=dtype, is_elementwise=True)
        return placed.with_columns(answer.alias(_FOUND)).drop(_PLACE).unnest(_FOUND)


def store_answers(ledger: Ledger, lookups: pl.DataFrame, folder: Path, **how: Any) -> StoredAnswers:
    """Find the outcomes of lookups (:func:`find_outcomes`) part by part, and write them to files in a folder."""
    seed, begins = seed_without_collisions(lookups), 0
    places, answers = list[pl.DataFrame](), list[pl.DataFrame]()
    for part in [*lookups.iter_slices(_LOOKUPS_A_PART)] or [lookups]:
        found = find_outcomes(ledger, part, **how)
        places.append(found.select(short_expr(seed)).with_row_index(_PLACE, begins))
        answers.append(_write_mapped(found.drop(LOOKUP), folder / f"{begins}.arrow"))
        begins += found.height
    return StoredAnswers(pl.concat(places).lazy(), pl.concat(answers, rechunk=False), seed)


def _write_mapped(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    # the system can drop mapped pages from memory
    frame.write_ipc(path, compression="uncompressed")
    with pa.memory_map(str(path)) as file:
        mapped = pl.from_arrow(pa.ipc.open_file(file).read_all(), rechunk=False)
    assert isinstance(mapped, pl.DataFrame)  # noqa: S101 - a table becomes a frame
    return mapped


def _select_standing(entries: pl.DataFrame, run_id: str, since: float) -> pl.DataFrame:
    # answers that are too old, and refusals of other runs, count as no outcome
    state, this_run = pl.col("state"), pl.col("run_id") == run_id
    stands = (
        pl.when((state == "done") & this_run)
        .then(pl.lit("answered"))
        .when((state == "done") & (pl.col("answered_at") >= since))
        .then(pl.lit("cached"))
        .when(state.is_in(["doubt", "asking"]))
        .then(pl.lit("in_doubt"))
        .when(state == "uploaded")
        .then(pl.lit("running"))
        .when(state.is_in(["unreadable", "missing", "lost"]) | ((state == "refused") & this_run))
        .then(state)
    )
    entries = entries.with_columns(stands.alias("stands")).filter(pl.col("stands").is_not_null())
    answered = pl.col("stands").is_in(["answered", "cached"])
    return entries.select(
        pl.col("place").cast(pl.get_index_type()),
        "stands",
        *(pl.when(answered).then(pl.col(name)).alias(name) for name in ANSWER_COLUMNS),
        pl.col("note").alias("row_note"),
    )


def attach_answers(rows: pl.LazyFrame, found: StoredAnswers, lang: Lang) -> pl.LazyFrame:
    """Add ADDED_COLUMNS from the ledger to rows with the column :data:`LOOKUP`; rows without a lookup are invalid."""
    invalid = pl.col(LOOKUP).is_null()
    return found.join_to(rows).with_columns(
        pl.when(invalid).then(pl.lit("invalid")).otherwise(pl.col("row_status")).alias("row_status"),
        pl.when(invalid).then(_invalid_note(rows, lang)).otherwise(pl.col("row_note")).alias("row_note"),
    )


def overlay_answers(rows: pl.LazyFrame, found: StoredAnswers) -> pl.LazyFrame:
    """Replace local answers by those of the service; an outcome without an answer replaces only status and note."""
    joined = found.join_to(rows.rename({name: BEFORE + name for name in ADDED_COLUMNS}))
    answered = pl.col("row_status").is_in(["verified", "cached"]).fill_null(False)
    status_columns = ("row_status", "row_note")
    known = pl.col("row_status").is_not_null()
    fields = [
        pl.when(condition).then(pl.col(name)).otherwise(pl.col(BEFORE + name)).alias(name)
        for condition, names in ((answered, ANSWER_COLUMNS), (known, status_columns))
        for name in names
    ]
    if STATUS_STALE in rows.collect_schema():  # true only where the local answer stays
        fields.append((pl.col(STATUS_STALE) & ~answered).alias(STATUS_STALE))
    return joined.with_columns(*fields, answered.alias(BEFORE + "both"))


def agreement_counts() -> tuple[pl.Expr, ...]:
    """Return aggregations that compare local answers with the service's: statuses, actions and probabilities."""
    both = pl.col(BEFORE + "both")
    status = pl.when(both).then(meaning_expr(pl.col("biz_status")))
    ours = pl.when(both & (pl.col(BEFORE + "biz_status") != "unknown")).then(pl.col(BEFORE + "biz_status"))
    apart = pl.when(both).then((pl.col("bounce_prob") - pl.col(BEFORE + "bounce_prob")).abs())
    return (
        both.sum().alias("agree:rows"),
        (status == ours).count().alias("agree:status_known"),
        (status == ours).sum().alias("agree:status_same"),
        (pl.when(both).then(pl.col("action") == pl.col(BEFORE + "action"))).sum().alias("agree:action_same"),
        apart.mean().alias("agree:prob_apart"),
    )


def _invalid_note(rows: pl.LazyFrame, lang: Lang) -> pl.Expr:
    names = rows.collect_schema().names()
    suspect = pl.lit(_NOTES["suspect"][lang])
    if "b_no" not in names:
        return suspect
    invalid = pl.when(pl.col(LOOKUP).is_null())
    problem = business_number.note_expr(business_number.problem_expr(invalid.then(pl.col("b_no"))), lang)
    of_row = business_number.note_expr(pl.col(ROW_PROBLEM), lang, ROW_PROBLEMS)
    return pl.coalesce(of_row, problem, suspect)
