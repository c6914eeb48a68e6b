"""Changes between two runs over the same rows: pure functions over frames of answers."""
# A snapshot (:data:`SNAPSHOT`) holds the last answer of each key and input. A row without an answer now (pending,
# failed, status unknown) keeps its earlier one, so that no change is reported twice. A missing row stays for
# KEEP_GONE_DAYS.

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final, Literal, get_args

import polars as pl

from bansong.base.messages import current_language, gettext, gettext_noop
from bansong.base.publish import publish_file
from bansong.base.schema import ACTIONS, GRADES, HEADERS, KOREAN_WORDS
from bansong.engine.registry import meaning_expr
from bansong.engine.text import without_space
from bansong.tables import frames
from bansong.tables.detect import output_format

Change = Literal[
    "closed", "suspended", "reopened", "risk_up", "risk_down", "action_up", "action_down", "address", "new", "gone"
]
CHANGES: Final[tuple[Change, ...]] = get_args(Change)
KEY: Final = "key"
CHANGE: Final = "changes"
RECORD: Final = ("b_no", "name", "address")
# compared columns; not the probability, which moves a little every day
ANSWER: Final = ("biz_status", "grade", "action", "fixed_zipcode", "fixed_address")
GONE: Final = "gone"  # first day on which a row was missing from the list; null for a row of the list
KEEP_GONE_DAYS: Final = 30
SNAPSHOT: Final = pl.Schema(
    {KEY: pl.String(), "input": pl.String()}
    | dict.fromkeys((*RECORD, *ANSWER), pl.String())
    | {"bounce_prob": pl.Float64(), "row_status": pl.String(), GONE: pl.Date()}
)
_SHOWN: Final = (*ANSWER, "bounce_prob")
_PLACE: Final = "place"
_NOW: Final = "_now"
BEFORE: Final = "_before"  # suffix of a column with the earlier value
# one row for each changed key; `changes` has the kinds of change and may be empty
CHANGE_SCHEMA: Final = pl.Schema(
    {KEY: pl.String(), "input": pl.String()}
    | dict.fromkeys(RECORD, pl.String())
    | {CHANGE: pl.List(pl.String())}
    | {f"{name}{end}": SNAPSHOT[name] for name in _SHOWN for end in (BEFORE, "")}
)
_ANSWERED: Final = ("verified", "cached", "invalid")
_BETWEEN: Final = "\x1f"
_NUMBER: Final = "_number"
_NUMBER_EXPR: Final = pl.coalesce("b_no", KEY).alias(_NUMBER)
_STATUS: Final = "_status"
_SEVEREST_FIRST: Final = ("closed", "suspended", "active")


def key_expr(columns: Iterable[str]) -> pl.Expr:
    """Return the key of a row: the text of these columns, without spaces."""
    cells = [pl.col(name).cast(pl.String).fill_null("") for name in columns]
    return without_space(pl.concat_str(cells, separator=_BETWEEN))


def status_code_expr(status: pl.Expr) -> pl.Expr:
    """Return the code of a status word in Korean or English; other words stay."""
    return pl.coalesce(meaning_expr(status), status)


def advance(
    before: pl.DataFrame, after: pl.DataFrame, today: date, other_columns: Collection[str] = ()
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the next snapshot, and the changes from ``before`` to it."""
    # ``other_columns``: inputs whose numbers or addresses come from other columns than before
    # hashes find the few rows that differ; only those are compared
    before = recognize(rebase(before, after, other_columns), after)
    compared = (KEY, *ANSWER, "row_status")
    is_other = ~_hash(after, *compared).is_in(_hash(before, *compared).implode())
    others = after.with_row_index(_PLACE).filter(is_other)
    settled = settle(others, before.filter(_hash(before, KEY).is_in(_hash(others, KEY).implode())))
    same = after.with_row_index(_PLACE).filter(~is_other)
    whole = pl.concat([same, settled.select(same.columns)]).sort(_PLACE).drop(_PLACE)
    listed = before.filter(pl.col(GONE).is_null())
    old, new = (rows.filter(_hash(rows, KEY).is_first_distinct()) for rows in (listed, whole))
    moved = new.filter(~_hash(new, KEY, *ANSWER).is_in(_hash(old, KEY, *ANSWER).implode()))
    keys = _hash(old, KEY)
    is_touched = keys.is_in(_hash(moved, KEY).implode()) | ~keys.is_in(_hash(new, KEY).implode())
    numbers = moved.select(_NUMBER_EXPR).to_series().implode()
    known, now = (rows.filter(_NUMBER_EXPR.is_in(numbers)) for rows in (before, whole))
    changed = compare(old.filter(is_touched), moved, known, now)
    gone = before.filter(~_hash(before, KEY).is_in(_hash(whole, KEY).implode()))
    gone = gone.with_columns(pl.col(GONE).fill_null(today)).filter(pl.col(GONE) > today - timedelta(KEEP_GONE_DAYS))
    return pl.concat([whole, gone]), changed


def rebase(before: pl.DataFrame, after: pl.DataFrame, inputs: Collection[str]) -> pl.DataFrame:
    """Replace the rows of ``inputs`` in ``before`` by those of ``after``, but keep each number's earlier status."""
    # Keys, grades and addresses of these inputs differ only because other columns are read now. Rows without a number,
    # and inputs without known numbers, cannot be matched: the present rows replace the earlier ones.
    if not inputs:
        return before
    is_rebased = pl.col("input").is_in(list(inputs)) & pl.col(GONE).is_null()
    known = number_statuses(before.filter(is_rebased))
    numbered = before.filter(is_rebased, pl.col("b_no").is_not_null())
    is_same = pl.col(_STATUS).is_not_null() | ~pl.col("input").is_in(numbered["input"].implode())
    now = after.filter(pl.col("input").is_in(list(inputs))).with_columns(_NUMBER_EXPR)
    same = now.join(known, _NUMBER, "left", maintain_order="left").filter(is_same | pl.col("b_no").is_null())
    status = pl.when(pl.col("b_no").is_null()).then("biz_status").otherwise(pl.col(_STATUS).fill_null("unknown"))
    same = same.with_columns(status.alias("biz_status"))
    missing = numbered.filter(~pl.col("b_no").is_in(now["b_no"].implode()))
    return pl.concat([same.select(before.columns), before.filter(~is_rebased), missing])


def recognize(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Give edited rows of ``before`` the key in ``after``: of their number, one row disappeared, one appeared."""
    listed = before.filter(pl.col(GONE).is_null())
    gone, came = (
        rows.filter(pl.col("b_no").is_not_null() & ~_hash(rows, KEY).is_in(_hash(others, KEY).implode()))
        .unique(KEY)
        .filter(pl.len().over("b_no") == 1)
        .select("b_no", KEY)
        for rows, others in ((listed, after), (after, before))
    )
    keys = gone.join(came, "b_no", suffix=_NOW).select(KEY, f"{KEY}{_NOW}")
    if keys.is_empty():
        return before
    now = pl.when(pl.col(GONE).is_null()).then(pl.coalesce(f"{KEY}{_NOW}", KEY)).otherwise(KEY).alias(KEY)
    return before.join(keys, KEY, "left", maintain_order="left").with_columns(now).select(before.columns)


def number_statuses(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the status of each number of a snapshot; rows still in a file take precedence over disappeared ones."""
    places = dict(zip(_SEVEREST_FIRST, range(len(_SEVEREST_FIRST)), strict=True))
    severity = pl.col("biz_status").replace_strict(places, default=len(places))
    is_unknown = pl.col("biz_status").fill_null("unknown") == "unknown"
    ranked = rows.sort(is_unknown, pl.col(GONE).is_not_null(), severity, maintain_order=True)
    return ranked.select(_NUMBER_EXPR, pl.col("biz_status").fill_null("unknown").alias(_STATUS)).unique(
        _NUMBER, keep="first", maintain_order=True
    )


def numbers_by_input(rows: pl.DataFrame) -> dict[str, pl.Series]:
    """Return the business numbers (UInt64) of a snapshot's rows by input, without disappeared rows."""
    number = pl.col("b_no").filter(pl.col("b_no").str.contains(r"^\d{10}$")).unique().cast(pl.UInt64)
    found = rows.filter(pl.col(GONE).is_null()).group_by("input").agg(number)
    return dict(zip(found["input"], found["b_no"], strict=True))


def _hash(rows: pl.DataFrame, *columns: str) -> pl.Series:
    return rows.select(pl.struct(columns).hash()).to_series()


def settle(after: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Return ``after``, in which rows without an answer take the answer of ``before``."""
    # An unanswered row keeps its whole answer. A row whose status is unknown now keeps the status; at the same address
    # it also keeps the risk: otherwise an outage would raise all risks, and its end would lower them again.
    known = before.unique(KEY, keep="first", maintain_order=True)
    names = (*_SHOWN, "address")
    joined = after.join(known.select(KEY, *(pl.col(name).alias(f"{name}{BEFORE}") for name in names)), KEY, "left")
    unanswered = ~pl.col("row_status").is_in(_ANSWERED)
    unknown = (pl.col("biz_status") == "unknown") & (pl.col(f"biz_status{BEFORE}") != "unknown")
    judged = unknown & without_space(pl.col("address")).eq_missing(without_space(pl.col(f"address{BEFORE}")))
    left_open = {"biz_status": unknown} | dict.fromkeys(("grade", "action", "bounce_prob"), judged)
    kept = [
        pl.when(unanswered | left_open.get(name, False))
        .then(pl.col(f"{name}{BEFORE}"))
        .otherwise(pl.col(name))
        .alias(name)
        for name in _SHOWN
    ]
    return joined.with_columns(kept).select(after.columns)


def compare(
    before: pl.DataFrame, after: pl.DataFrame, known: pl.DataFrame | None = None, now: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the changes between two snapshots (:data:`CHANGE_SCHEMA`), ordered as ``after``, then disappeared rows."""
    # The first row of a key counts. ``known`` and ``now``: rows that give the numbers' earlier and present statuses, by
    # default ``before`` and ``after``. The closure of a business is reported once, at its first row.
    known, now = number_statuses(before if known is None else known), number_statuses(after if now is None else now)
    before, after = (frame.unique(KEY, keep="first", maintain_order=True) for frame in (before, after))
    both = after.with_row_index(_PLACE).join(before, KEY, "full", suffix=BEFORE, coalesce=True)
    is_new, is_gone = pl.col(f"row_status{BEFORE}").is_null(), pl.col("row_status").is_null()
    differs = [pl.col(name).ne_missing(pl.col(f"{name}{BEFORE}")) for name in ANSWER]
    other = both.filter(pl.any_horizontal(is_new, is_gone, *differs)).with_columns(_NUMBER_EXPR)
    other = other.join(known, _NUMBER, "left").join(now, _NUMBER, "left", suffix=_NOW)
    says_so = pl.when(~is_gone & (pl.col("biz_status") == pl.col(f"{_STATUS}{_NOW}"))).then(pl.col(_PLACE))
    bears_news = (says_so == says_so.min().over(_NUMBER)).fill_null(False)
    kinds = [pl.when(rule).then(pl.lit(kind)) for kind, rule in _rules(is_new, is_gone, bears_news).items()]
    record = [pl.coalesce(name, f"{name}{BEFORE}") for name in ("input", *RECORD)]
    status = pl.coalesce(f"biz_status{BEFORE}", pl.when(is_new | bears_news).then(_STATUS))
    return (
        other.sort(_PLACE, KEY, nulls_last=True)
        .with_columns(
            pl.concat_list(kinds).list.drop_nulls().alias(CHANGE), *record, status.alias(f"biz_status{BEFORE}")
        )
        .select(CHANGE_SCHEMA.names())
        .cast(CHANGE_SCHEMA)
    )


def _rules(is_new: pl.Expr, is_gone: pl.Expr, bears_news: pl.Expr) -> dict[Change, pl.Expr]:
    status, status_before = pl.col("biz_status"), pl.col(_STATUS)
    stayed = ~is_new & ~is_gone
    grade, grade_before = _rank("grade", GRADES)
    action, action_before = _rank("action", ACTIONS)
    # null if only one of them is filled: a new correction is no change of the address
    moved = pl.any_horizontal(pl.col(name) != pl.col(f"{name}{BEFORE}") for name in ("fixed_zipcode", "fixed_address"))
    return {
        "closed": bears_news & (status == "closed") & (status_before != "closed"),
        "suspended": bears_news & (status == "suspended") & (status_before != "suspended"),
        "reopened": bears_news & (status == "active") & status_before.is_in(["closed", "suspended"]),
        "risk_up": stayed & (grade > grade_before),
        "risk_down": stayed & (grade < grade_before),
        "action_up": stayed & (action > action_before),
        "action_down": stayed & (action < action_before),
        "address": stayed & moved,
        "new": is_new,
        "gone": is_gone,
    }


def _rank(name: str, words: Sequence[str]) -> tuple[pl.Expr, pl.Expr]:
    places = dict(zip(words, range(len(words)), strict=True))
    now, before = (
        pl.col(column).replace_strict(places, default=None, return_dtype=pl.Int8)
        for column in (name, f"{name}{BEFORE}")
    )
    return now, before


def combine(changes: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Merge the changes of several runs, oldest first; a change and its reversal cancel out."""
    steps = pl.concat([frame.with_columns(pl.lit(place).alias("step")) for place, frame in enumerate(changes)])
    first, last = (steps.unique(KEY, keep=keep, maintain_order=True) for keep in ("first", "last"))
    was_new, went = pl.col(CHANGE).list.contains("new"), pl.col(CHANGE).list.contains("gone")
    before = _side(first.filter(~was_new.fill_null(False)), BEFORE)
    after = _side(last.filter(~went.fill_null(False)), "")
    is_earliest = pl.col("step") == pl.col("step").min().over(_NUMBER_EXPR)
    known = _side(steps.filter(is_earliest, pl.col(f"biz_status{BEFORE}").is_not_null()), BEFORE)
    return compare(recognize(before, after), after, known)


def _side(changes: pl.DataFrame, end: str) -> pl.DataFrame:
    sides = [pl.col(f"{name}{end}").alias(name) for name in _SHOWN]
    rest = (pl.lit("verified").alias("row_status"), pl.lit(None, pl.Date).alias(GONE))
    return changes.select(KEY, "input", *RECORD, *sides, *rest).select(SNAPSHOT.names())


def of_kinds(changes: pl.DataFrame, kinds: Sequence[Change]) -> pl.DataFrame:
    """Keep the rows with changes of these ``kinds``, and only these kinds in each."""
    named = pl.col(CHANGE).list.set_intersection(list(kinds))
    return changes.with_columns(named.alias(CHANGE)).filter(pl.col(CHANGE).list.len() > 0)


def count_kinds(changes: pl.DataFrame) -> dict[str, int]:
    """Count the rows with each kind of change."""
    found = dict(changes[CHANGE].explode(empty_as_null=False).value_counts().iter_rows())
    return {kind: int(found.get(kind, 0)) for kind in CHANGES}


KIND_WORDS: Final[Mapping[str, str]] = {  # word for each kind of change; in English it is the code
    "closed": gettext_noop("closed"),
    "suspended": gettext_noop("suspended"),
    "reopened": gettext_noop("reopened"),
    "risk_up": gettext_noop("risk_up"),
    "risk_down": gettext_noop("risk_down"),
    "action_up": gettext_noop("action_up"),
    "action_down": gettext_noop("action_down"),
    "address": gettext_noop("address"),
    "new": gettext_noop("new"),
    "gone": gettext_noop("gone"),
}
_HEADERS: Final = {name: name for name in (CHANGE, *RECORD, "input")} | {
    CHANGE: gettext_noop("changes"),
    "b_no": gettext_noop("b_no"),
    "name": gettext_noop("name"),
    "input": gettext_noop("input"),
}


def format_counts(counts: Mapping[str, int]) -> str:
    """Return the counts of changes by kind as one line of text."""
    return ", ".join(f"{gettext(KIND_WORDS[kind])} {counts[kind]:,}" for kind in CHANGES if counts.get(kind))


def write_changes(changes: pl.DataFrame, target: Path) -> None:
    """Write the changes as a table in the current language; the name's extension chooses the format."""
    format = output_format(target)
    with publish_file(target) as temporary:
        shown = [name for name in CHANGE_SCHEMA if name not in (KEY, "input", CHANGE)]
        words = {kind: gettext(word) for kind, word in KIND_WORDS.items()}
        kinds = pl.col(CHANGE).list.eval(pl.element().replace(words))
        rows = changes.select(kinds.list.join(", "), *shown, "input")
        frames.write_frame(_in_current_language(rows), temporary, format, map(_header, RECORD))


def _in_current_language(rows: pl.DataFrame) -> pl.DataFrame:
    if current_language() == "ko":
        words = {f"{name}{end}": KOREAN_WORDS[name] for name in _SHOWN if name in KOREAN_WORDS for end in (BEFORE, "")}
        rows = rows.with_columns(pl.col(name).replace(pairs) for name, pairs in words.items())
    return rows.rename({name: _header(name) for name in rows.columns})


def _header(name: str) -> str:
    if name.endswith(BEFORE):
        return gettext("{header}_before", header=_header(name.removesuffix(BEFORE)))
    return HEADERS[current_language()].get(name) or gettext(_HEADERS[name])
