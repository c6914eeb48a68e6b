"""Mailings of the label store: their terms and files, and how labels are matched and merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from bansong.base import business_number
from bansong.base.errors import LabelError, OutputError, Problem
from bansong.base.messages import Option, Phrase, current_language, gettext, gettext_noop
from bansong.base.publish import publish_file
from bansong.base.schema import KOREAN_WORDS, role_word
from bansong.engine.overlays import address_key
from bansong.engine.risk.reasons import EVIDENCE_DTYPES, KNOWN_DTYPES
from bansong.history.letters import WAYS, place_key
from bansong.history.outcomes import SAYS_NOTHING

DATE_IN_FUTURE: Final = Problem(
    "mailings.date_in_future", "{parameter}: is in the future, so nothing of it can have come back yet"
)
DATE_TOO_EARLY: Final = Problem(
    "mailings.date_too_early", "{parameter}: is before {first_year}; give the day as 2026-10-05"
)
RETURNS_NOT_DECLARED: Final = Problem(
    "mailings.returns_not_declared",
    "say whether undeliverable letters were to come back: `returns_requested=True` (marked 반환, or "
    "registered mail) or `returns_requested=False`; it decides whether silence means delivered",
)
ACTIONS_MISSING: Final = Problem(
    "mailings.actions_missing", "{parameter}: names no action; give all, or actions as in send,confirm"
)
ACTIONS_CONTRADICTORY: Final = Problem(
    "mailings.actions_contradictory", "{parameter}: is either all, or a list of actions"
)
REPORT_UNWRITABLE: Final = Problem("labels.report_unwritable", "{path}: cannot be written: {error}")
MAILING_DECLARED_OTHERWISE: Final = Problem(
    "mailings.mailing_declared_otherwise",
    "the mailing of {mailed} was declared before with {name} {before}, now with "
    "{now}; say the same, or give `replace=True` if the earlier was wrong",
)

ALL: Final = "all"
_KOREAN_ACTIONS: Final = {"전체": ALL} | {word: action for action, word in KOREAN_WORDS["action"].items()}
_FIRST_YEAR: Final = 2000


class MailingTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terms of a mailing, as the user declares them."""

    mailed: date
    returns_requested: bool  # undeliverable letters were to come back (in Korea bulk letters do only if marked)
    complete: bool = False  # all returns are recorded
    mail_class: str | None = None  # any word: ordinary, registered, bulk
    sent: tuple[str, ...] | None = None  # actions whose rows were mailed, or ("all",); None: not declared

    @property
    def silence_is_delivery(self) -> bool:
        """Whether a mailed row without an outcome counts as delivered."""
        return self.returns_requested and self.complete

    @property
    def tells_who_was_sent(self) -> bool:
        """Whether only rows with the actions ``sent`` were mailed, and count as delivered without an outcome."""
        return self.silence_is_delivery and self.sent is not None and ALL not in self.sent

    def certain_outcome(self) -> pl.Expr:
        """Return whether a letter certainly came back, or arrived (Boolean); null if neither is certain."""
        # a letter that did not come back arrived only if returns were requested and are complete
        came = pl.col("said").fill_null(False)
        silent = pl.col("reason_code").is_in(SAYS_NOTHING).fill_null(False)
        return pl.when(came & ~silent).then(True).when(~came & pl.lit(self.silence_is_delivery)).then(False)

    def was_sent(self) -> pl.Expr:
        """Return whether a row was mailed, from its ``action`` (Boolean)."""
        if self.sent is None:
            return pl.lit(False)
        return pl.lit(True) if ALL in self.sent else pl.col("action").is_in(self.sent).fill_null(False)

    def merge(self, later: MailingTerms, *, replace: bool) -> MailingTerms:
        """Merge with later terms: fill gaps, refuse contradictions; with ``replace`` the later terms count."""
        if replace:
            return msgspec.structs.replace(
                later, mail_class=later.mail_class or self.mail_class, sent=later.sent or self.sent
            )
        for name, before, now in (
            (Phrase("returns requested"), self.returns_requested, later.returns_requested),
            (Phrase("mail class"), self.mail_class, later.mail_class),
            (Phrase("sent"), self.sent, later.sent),
        ):
            if before is not None and now is not None and before != now:
                said = {"before": _format_value(before), "now": _format_value(now)}
                raise LabelError(MAILING_DECLARED_OTHERWISE, mailed=self.mailed, name=name, **said)
        return msgspec.structs.replace(
            self,
            complete=self.complete or later.complete,
            mail_class=self.mail_class or later.mail_class,
            sent=self.sent or later.sent,
        )


def parse_terms(
    mailed: date,
    returns_requested: bool | None,
    complete: bool,
    mail_class: str | None,
    sent: str | Sequence[str] | None,
    today: date,
) -> MailingTerms:
    """Check the terms of a mailing; raise :class:`LabelError` for impossible or missing ones."""
    if mailed > today:
        raise LabelError(DATE_IN_FUTURE, parameter=Option("mailed", str(mailed)))
    if mailed.year < _FIRST_YEAR:
        raise LabelError(DATE_TOO_EARLY, parameter=Option("mailed", str(mailed)), first_year=_FIRST_YEAR)
    if returns_requested is None:
        raise LabelError(RETURNS_NOT_DECLARED)
    words = (mail_class or "").strip() or None
    return MailingTerms(mailed, returns_requested, complete, words, _parse_actions(sent))


def _parse_actions(sent: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if sent is None:
        return None
    items = sent.split(",") if isinstance(sent, str) else list(sent)
    actions = tuple(sorted({_KOREAN_ACTIONS.get(item.strip(), item.strip()) for item in items} - {""}))
    if not actions:
        raise LabelError(ACTIONS_MISSING, parameter=Option("sent", sent))
    if ALL in actions and len(actions) > 1:
        raise LabelError(ACTIONS_CONTRADICTORY, parameter=Option("sent", ",".join(actions)))
    return actions


def name_actions(actions: Sequence[str]) -> str:
    """List actions in the current language."""
    korean = current_language() == "ko"
    words = {action: word for word, action in _KOREAN_ACTIONS.items()} if korean else {}
    return ", ".join(words.get(action, action) for action in actions)


def _format_value(value: object) -> object:
    if isinstance(value, tuple):
        return name_actions(value)
    if isinstance(value, bool):
        return Phrase("yes") if value else Phrase("no")
    return repr(value)


MAILING_FILE_DAMAGED: Final = Problem(
    "labels.mailing_file_damaged",
    "{path}: is damaged, or no file of the label store ({value}); move it away and record that "
    "mailing's outcomes again with `bansong label`",
)
MAILING_FILE_RENAMED: Final = Problem(
    "labels.mailing_file_renamed",
    "{path}: is a copy of {name} or was renamed; move it away, or, if {name} is gone, name it so",
)

METADATA_KEY: Final = "bizverify.labels"
STORE_SCHEMA: Final[dict[str, Any]] = {
    **EVIDENCE_DTYPES,
    "unread": pl.Boolean,
    "said": pl.Boolean,  # whether the letter came back, as the outcome says; null without an outcome
    "doubt": pl.Boolean,  # unusable outcomes may concern the row, so it does not count as delivered
    "letter": pl.UInt32,
    "b_no": pl.String,
    "address_key": pl.String,  # of the address as written
    "fixed_key": pl.String,  # of the corrected address
    "reason": pl.String,
    "returned": pl.Date,
    "recorded": pl.Datetime("us", "UTC"),
}
KNOWN: Final = (*KNOWN_DTYPES, "unread", "b_no", "address_key", "fixed_key")


class OutcomeSource(msgspec.Struct, frozen=True):
    """A recorded table of outcomes."""

    sha256: str
    name: str
    recorded_at: datetime


class MailingMetadata(msgspec.Struct, frozen=True):
    """Metadata in the file of a mailing: run, terms and recorded tables."""

    id: str
    file: str
    run_id: str | None
    engine: str | None
    model: str | None
    declaration: MailingTerms
    sources: tuple[OutcomeSource, ...]
    recorded_at: datetime
    paid: bool = False  # the mailing is a server's job with charged lookups


def read_metadata(path: Path) -> MailingMetadata:
    """Read the metadata of a mailing's file; raise :class:`LabelError` if it is damaged."""
    try:
        with path.open("rb") as file:  # an open file, since polars takes brackets in a name for a glob
            text = pl.read_parquet_metadata(file)[METADATA_KEY]
        return msgspec.json.decode(text, type=MailingMetadata)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, KeyError, msgspec.MsgspecError, OSError) as error:
        raise _damaged_file(path, error) from error


def refuse_other_name(path: Path) -> None:
    """Raise :class:`LabelError` for a file not named after its mailing: a copy would count its rows twice."""
    if (name := f"{read_metadata(path).id}.parquet") != path.name:
        raise LabelError(MAILING_FILE_RENAMED, path=path, name=name)


def scan_rows(path: Path) -> pl.LazyFrame:
    """Scan the rows of a mailing's file (:data:`STORE_SCHEMA`); raise :class:`LabelError` if it is damaged."""
    try:
        frame = pl.scan_parquet(path, glob=False)
        schema = frame.collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged_file(path, error) from error
    for name, dtype in STORE_SCHEMA.items():
        if name not in schema:
            raise _damaged_file(path, KeyError(gettext("it has no column {name!r}", name=name)))
        frame = frame.with_columns(pl.col(name).cast(dtype)) if schema[name] != dtype else frame
    return frame.select(list(STORE_SCHEMA))


def collect_rows(frame: pl.LazyFrame, path: Path) -> pl.DataFrame:
    """Collect rows of a mailing's file; raise :class:`LabelError` if it is damaged."""
    try:
        return frame.collect(engine="streaming")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged_file(path, error) from error


def _damaged_file(path: Path, error: BaseException) -> LabelError:
    lines = str(error).strip("'\"").splitlines()
    return LabelError(MAILING_FILE_DAMAGED, path=path, value=lines[0] if lines else type(error).__name__)


PROBLEMS: Final[dict[str, str]] = {
    "not_understood": gettext_noop("what it says of the letter is not understood"),
    "no_row_id": gettext_noop("the row_id is not a row's number from 0"),
    "contradicts_itself": gettext_noop("says that the letter did not come back, and why or when it did"),
    "date_not_read": gettext_noop("the return date cannot be read; the outcome is used without it"),
    "no_number": gettext_noop("names no letter: it has no business number, letter_id or customer key"),
    "unknown_number": gettext_noop("its number is not in the mailed file"),
    "row_absent": gettext_noop("the mailed file has no row of this row_id"),
    "number_differs": gettext_noop("the row of the mailed file that it names has another business number"),
    "ambiguous": gettext_noop("its number stands in the mailed file with several addresses, none of them this one"),
    "letter_ambiguous": gettext_noop("several letters of the mailed file have this customer key, or this recipient"),
    "letter_id_wrong": gettext_noop("its letter_id is mistyped: the check sign is not right"),
    "letter_unknown": gettext_noop(
        "no letter of the mailed file has this letter_id, registered number, customer key, or recipient and address"
    ),
    "other_mailing": gettext_noop("was mailed on another day"),
    "returned_before_mailing": gettext_noop("came back before it was mailed"),
    "contradictory": gettext_noop("another outcome says something else of the same row"),
    "known_otherwise": gettext_noop("contradicts what was recorded before, which was kept unless it is to be replaced"),
}

_KINDS = (
    gettext_noop("not understood"),
    gettext_noop("unmatched"),
    gettext_noop("ambiguous"),
    gettext_noop("contradictory"),
)
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "not_understood": ("not_understood", "no_row_id", "date_not_read"),
    "unmatched": (
        *("no_number", "unknown_number", "row_absent", "number_differs", "other_mailing"),
        *("letter_id_wrong", "letter_unknown"),
    ),
    "ambiguous": ("ambiguous", "letter_ambiguous"),
    "contradictory": ("contradicts_itself", "returned_before_mailing", "contradictory", "known_otherwise"),
}

OTHER_MAILING: Final = "other_mailing"


@dataclass(frozen=True, slots=True)
class UnusedOutcome:
    """An outcome that cannot be used, and why."""

    row: int  # from 1; in a workbook, the row of the sheet
    problem: str  # a code of PROBLEMS
    value: str | None  # text of the cell at fault

    def __str__(self) -> str:
        value = f" ({self.value})" if self.value else ""
        return gettext(
            "row {row:,}{value}: {problem}", row=self.row, value=value, problem=gettext(PROBLEMS[self.problem])
        )


def unused_outcomes(frame: pl.DataFrame) -> tuple[UnusedOutcome, ...]:
    """Return the unusable outcomes of a match, except those of other mailings."""
    listed = frame.filter(pl.col("problem") != OTHER_MAILING).sort("place")
    found = listed.select("place", "problem", _shown_cell().alias("value"))
    return tuple(UnusedOutcome(*row) for row in found.iter_rows())


def write_unused(frame: pl.DataFrame, path: Path) -> None:
    """Write unusable outcomes as CSV: row, code of the problem, explanation, cells; raise :class:`OutputError`."""
    roles = {name: name.partition(":")[2] for name in frame.columns if name.startswith("written:")}
    words = {code: gettext(text) for code, text in PROBLEMS.items()}
    why = pl.col("problem").replace_strict(words, return_dtype=pl.String)
    texts = (pl.col(cell).alias(role_word(role, current_language())) for cell, role in roles.items())
    own = (pl.col("place").alias(gettext("row")), "problem", why.alias(gettext("why")))
    cells = frame.sort("place").select(*own, *texts)
    with publish_file(path) as temporary:
        try:
            cells.write_csv(temporary, include_bom=True)
        except pl.exceptions.PolarsError as error:
            raise OutputError(REPORT_UNWRITABLE, path=path, error=error) from error


def _shown_cell() -> pl.Expr:
    """Return the cell at fault: never an address, and a number only if it has ten digits."""
    cell = {
        "not_understood": pl.col("written:bounced"),
        "contradicts_itself": pl.col("written:bounced"),
        "date_not_read": pl.col("written:returned"),
        "no_row_id": pl.col("written:row_id"),
        "row_absent": pl.col("written:row_id"),
        "letter_id_wrong": pl.col("written:letter_id"),
    }
    value = business_number.format_expr(pl.col("digits"))
    for problem, shown in cell.items():
        value = pl.when(pl.col("problem") == problem).then(shown.str.slice(0, 40)).otherwise(value)
    return value


LABEL_SCHEMA: Final = {
    "row_id": pl.UInt32,
    "letter": pl.UInt32,  # the first row of the file with the same number and address
    "said": pl.Boolean,
    "reason_code": pl.String,
    "reason": pl.String,
    "returned": pl.Date,
}


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Labels of mailed rows (:data:`LABEL_SCHEMA`), and the outcomes that were matched or could not be used."""

    labels: pl.DataFrame
    matches: pl.DataFrame  # usable outcomes; `target`: row_id of the matched row
    listed: pl.DataFrame  # outcomes with a problem, in file order
    doubtful: pl.DataFrame  # row_id, letter of rows that unusable outcomes may concern, so not delivered by silence
    ways: dict[str, int]  # outcomes by the way they were matched
    repeated: int  # outcomes that repeat another one


def find_candidates(letters: pl.LazyFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """Return the mailed rows that outcomes may concern, by ``row_id``, by number, or as :func:`locate` found them."""
    keys = letters.select("row_id", "b_no", "address", "fixed_address")
    places = [outcomes[name] for name in ("row_id", "target") if name in outcomes.columns]
    rows = pl.concat([one.alias("row_id") for one in places]).drop_nulls().unique().to_frame().lazy()
    by_row = keys.join(rows, on="row_id", how="semi").collect(engine="streaming")
    numbers = pl.concat([by_row["b_no"], outcomes["digits"].alias("b_no")]).drop_nulls().unique()
    by_number = keys.join(numbers.to_frame().lazy(), on="b_no", how="semi").collect(engine="streaming")
    found = pl.concat([by_row, by_number]).unique("row_id").sort("row_id")
    place = place_key(pl.col("address"), pl.col("fixed_address")).alias("place")
    return found.select("row_id", "b_no", place).with_columns(letter_expr())


def address_keys() -> tuple[pl.Expr, pl.Expr]:
    """Return the comparison keys of the written and the corrected address."""
    return address_key(pl.col("address")).alias("address_key"), address_key(pl.col("fixed_address")).alias("fixed_key")


def letter_expr() -> pl.Expr:
    """Return the first ``row_id`` with the same number and place; the frame must have all rows of a number."""
    same, is_known = pl.col("row_id").min().over("b_no", "place"), pl.col("b_no", "place").is_not_null()
    return pl.when(pl.all_horizontal(is_known)).then(same).otherwise("row_id").alias("letter")


def match(outcomes: pl.DataFrame, rows: pl.DataFrame, mailed: pl.Expr) -> MatchResult:
    """Match outcomes (of :func:`locate`) to rows (:func:`find_candidates`) that were mailed on the day ``mailed``."""
    letters = rows.select("row_id", "letter", "b_no")
    found = outcomes.join(letters, left_on="target", right_on="row_id", how="left", maintain_order="left")
    found = found.with_columns(pl.when(pl.col("way") == WAYS[0]).then("target").otherwise("letter").alias("target"))
    own = pl.when(pl.col("problem") != "date_not_read").then("problem")  # reported only without another problem
    found = found.with_columns(pl.coalesce(own, _match_problem(mailed), "problem").alias("problem"))
    differs = (pl.col("said").n_unique() > 1) | (pl.col("reason_code").drop_nulls().n_unique() > 1)
    clash = found.filter(_is_usable()).group_by("target").agg(differs.alias("clash"))
    found = found.join(clash, on="target", how="left", maintain_order="left").with_columns(
        pl.when(_is_usable() & pl.col("clash")).then(pl.lit("contradictory")).otherwise("problem").alias("problem")
    )
    matches = found.filter(_is_usable())
    labels = merge_labels(
        matches.select(pl.col("target").alias("row_id"), *(name for name in LABEL_SCHEMA if name != "row_id"))
    )
    counted = dict(matches.group_by("way").len().iter_rows())
    return MatchResult(
        labels=labels,
        matches=matches,
        listed=found.filter(pl.col("problem").is_not_null()),
        doubtful=_doubtful_rows(found, rows),
        ways={way: counted[way] for way in WAYS if way in counted},
        repeated=matches.height - labels.height,
    )


def merge_labels(labels: pl.DataFrame) -> pl.DataFrame:
    """Merge labels that agree into one for each row: fill gaps, and take the earliest day of return."""
    parts = [pl.col(name).min() for name in LABEL_SCHEMA if name != "row_id"]
    return labels.group_by("row_id").agg(parts).sort("row_id").select(list(LABEL_SCHEMA)).cast(LABEL_SCHEMA)  # type: ignore[arg-type]


def _doubtful_rows(found: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    unused = found.filter(~_is_usable() & (pl.col("problem") != "other_mailing"))
    meant = rows.join(unused, left_on="row_id", right_on="target", how="semi")
    perhaps = rows.join(unused.filter(pl.col("target").is_null()), left_on="b_no", right_on="digits", how="semi")
    return pl.concat([meant, perhaps]).select("row_id", "letter").unique("row_id").sort("row_id")


def _match_problem(mailed: pl.Expr) -> pl.Expr:
    conditions = {
        "other_mailing": pl.col("mailed_on") != mailed,
        "number_differs": pl.col("digits") != pl.col("b_no"),
        "returned_before_mailing": pl.col("returned") < mailed,
    }
    problems = (pl.when(holds).then(pl.lit(name)) for name, holds in conditions.items())
    return pl.coalesce(next(problems), "lost", *problems)


def _is_usable() -> pl.Expr:
    return pl.col("problem").is_null() | (pl.col("problem") == "date_not_read")


_LABEL: Final[dict[str, Any]] = LABEL_SCHEMA | {"doubt": pl.Boolean}


@dataclass(frozen=True, slots=True)
class LabelBatch:
    """New labels of a mailing (``LABEL_SCHEMA``) for the store."""

    about: MailingMetadata
    labels: pl.DataFrame
    doubtful: pl.DataFrame  # row_id, letter of rows that unusable outcomes may concern
    known: Callable[[pl.Series], pl.DataFrame]  # row_id (UInt32) → row_id and columns KNOWN
    sent: Callable[[MailingTerms], pl.DataFrame]  # row_id and letter of all mailed letters
    now: datetime
    unplaced: bool = False  # an outcome may concern any row, so none counts as delivered without an outcome


def merge_recorded(known: pl.DataFrame, new: pl.DataFrame, replace: bool) -> tuple[pl.DataFrame, pl.Series, int]:
    """Merge new labels into recorded ones; return these, row_ids of refused contradictions, and count of replaced."""
    known, new = (frame.select(list(_LABEL)) for frame in (known, new.with_columns(doubt=pl.lit(False))))
    both = known.select("row_id", was="said", was_code="reason_code").join(new, on="row_id")
    differs = (pl.col("was") != pl.col("said")) | (pl.col("was_code") != pl.col("reason_code"))
    clashing = both.filter(differs.fill_null(False))["row_id"]
    agreeing = ~pl.col("row_id").is_in(clashing.implode())
    parts = [known.filter(agreeing), new] if replace else [known, new.filter(agreeing)]
    labels = merge_labels(pl.concat(parts)).with_columns(doubt=pl.lit(False)).select(list(_LABEL))
    return (labels, clashing.clear(), clashing.len()) if replace else (labels, clashing, 0)


def silent_letters(letters: pl.DataFrame, labels: pl.DataFrame, *, doubt: bool) -> pl.DataFrame:
    """Return label rows without an outcome for the ``letters`` without a label, all marked with ``doubt``."""
    quiet = letters.unique("row_id").join(labels, on="letter", how="anti").join(labels, on="row_id", how="anti")
    nothing = [pl.lit(None, dtype).alias(name) for name, dtype in _LABEL.items() if name not in ("row_id", "letter")]
    return quiet.with_columns(nothing).with_columns(doubt=pl.lit(doubt)).select(list(_LABEL))


def add_known(rows: pl.DataFrame, before: pl.DataFrame, batch: LabelBatch, terms: MailingTerms) -> pl.DataFrame:
    """Add missing columns of :data:`STORE_SCHEMA`: from the row's earlier record, else from the enriched file."""
    fresh = rows.join(before, on="row_id", how="anti")["row_id"]
    known = pl.concat([before.select("row_id", *KNOWN), batch.known(fresh).select("row_id", *KNOWN)])
    when = before.select("row_id", was_said="said", was_bounced="bounced", was_recorded="recorded")
    frame = rows.join(known, on="row_id", how="left").join(when, on="row_id", how="left")
    frame = frame.with_columns(
        pl.lit(terms.mailed).alias("mailed"), pl.when(~pl.col("doubt")).then(terms.certain_outcome()).alias("bounced")
    )
    # new terms can make an old outcome certain: learning counts it as of today, so that its past does not change
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"was_{name}")) for name in ("said", "bounced"))
    frame = frame.with_columns(pl.when(same).then("was_recorded").fill_null(batch.now).alias("recorded"))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in STORE_SCHEMA.items()).sort("row_id")


def merge_metadata(before: MailingMetadata, now: MailingMetadata, replace: bool) -> MailingMetadata:
    """Merge the terms and sources of two records of a mailing."""
    known = {source.sha256 for source in before.sources}
    return msgspec.structs.replace(
        before,
        declaration=before.declaration.merge(now.declaration, replace=replace),
        sources=(*before.sources, *(source for source in now.sources if source.sha256 not in known)),
    )
