"""Compute score, probability, grade, action and reasons of rows, once for each combination of levels."""

# A pattern is a number whose digits are the codes of a row's levels and the day of its status. Many rows share one.

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate
from math import prod
from operator import add, mul
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.base.business_number import first_code
from bansong.base.messages import Lang, gettext
from bansong.base.schema import GRADES, REASON_SEPARATOR
from bansong.engine.registry import KEY, Memo
from bansong.engine.risk.features import Levels, is_assessable, with_looks
from bansong.engine.risk.reasons import (
    BASE,
    BY_NTS,
    FEATURES,
    WITHOUT_ASSESSMENT,
    StatusOrigin,
    Term,
    list_reasons,
    placeholder_of,
)
from bansong.engine.text import is_blank

if TYPE_CHECKING:
    from bansong.engine.risk.scorecard import Scorecard


_MAX_COMBINATIONS: Final = 1024  # combinations of the reasons in a group; this makes half a dozen groups

MARK: Final = "\x00"  # stands around the name of a placeholder; texts of a scorecard have no control characters
POINTS: Final = ("score", "repair", "others", "at_best")
MILDEST: Final = ("send", "confirm", "hold")  # limits of the action that a level can set; `at_best` is an index


def _column_of(term: Term) -> str:
    return f"level:{term.feature}"


@dataclass(frozen=True, slots=True)
class _ReasonTable:
    # Columns of `combinations`: sum of the points (`score`), the most points of one reason that can be repaired and of
    # one that cannot (`repair`, `others`), index of the mildest allowed action (`at_best`), and `text`: a separator
    # before each reason, marks around placeholders.
    digits: dict[str, pl.Series]  # by column: code of the level → its part of the index into `combinations`
    combinations: pl.DataFrame

    def look_up(self, patterns: pl.DataFrame) -> pl.DataFrame:
        # by index, since each .gather() is a query
        parts = [digits[patterns[column]] for column, digits in self.digits.items()]
        return self.combinations[reduce(add, parts)]


def make_reason_tables(
    terms: Sequence[Term], lang: Lang, repairs: Iterable[str], *, by_nts: bool = False
) -> list[_ReasonTable]:
    """Split the reasons, in their order, into tables of at most :data:`_MAX_COMBINATIONS` combinations.

    ``repairs``: features whose reasons a repair of the address can remove.
    """
    cut: list[list[Term]] = []
    for term in terms:
        if cut and prod(len(of) + 1 for of in _by_column([*cut[-1], term]).values()) <= _MAX_COMBINATIONS:
            cut[-1].append(term)
        else:
            cut.append([term])
    return [_make_reason_table(each, lang, frozenset(repairs), by_nts) for each in cut]


def _by_column(terms: Sequence[Term]) -> dict[str, list[Term]]:
    columns: dict[str, list[Term]] = {}
    for term in terms:
        columns.setdefault(_column_of(term), []).append(term)
    return columns


def _make_reason_table(terms: Sequence[Term], lang: Lang, repairs: frozenset[str], by_nts: bool) -> _ReasonTable:
    columns = _by_column(terms)
    sizes = [len(column) + 1 for column in columns.values()]
    strides = list(accumulate(sizes, mul, initial=1))
    digits, codes = {}, []
    for (column, there), size, stride in zip(columns.items(), sizes, strides, strict=False):
        names = FEATURES[str(there[0].feature)]
        numbers = [0] * (len(names) + 1)
        for digit, term in enumerate(there, 1):
            numbers[names.index(term.name) + 1] = digit * stride
        digits[column] = pl.Series(numbers, dtype=pl.UInt32)
        codes.append((pl.int_range(strides[-1]) // stride % size).alias(column))
    holds = [pl.col(_column_of(term)) == columns[_column_of(term)].index(term) + 1 for term in terms]
    table = pl.select(codes).select(*_points(terms, holds, repairs), _text(terms, holds, lang, by_nts).alias("text"))
    return _ReasonTable(digits, table)


def _points(terms: Sequence[Term], holds: list[pl.Expr], repairs: frozenset[str]) -> list[pl.Expr]:
    def value_if(there: pl.Expr, value: int) -> pl.Expr:
        return pl.when(there).then(pl.lit(value, pl.Int32)).otherwise(pl.lit(0, pl.Int32))

    points = [value_if(there, term.level.points) for term, there in zip(terms, holds, strict=True)]
    sides: dict[bool, list[pl.Expr]] = {True: [], False: []}
    for term, value in zip(terms, points, strict=True):
        sides[term.feature in repairs].append(value)
    mildest = [
        value_if(there, MILDEST.index(term.at_best)) for term, there in zip(terms, holds, strict=True) if term.at_best
    ]
    most = [pl.max_horizontal(pl.lit(0, pl.Int32), *values) for values in (sides[True], sides[False], mildest)]
    return [value.alias(name) for name, value in zip(POINTS, (pl.sum_horizontal(points), *most), strict=True)]


def _text(terms: Sequence[Term], holds: list[pl.Expr], lang: Lang, by_nts: bool) -> pl.Expr:
    texts = [
        pl.when(there).then(pl.lit(REASON_SEPARATOR + term.text_with_marks(MARK, lang, by_nts=by_nts)))
        for term, there in zip(terms, holds, strict=True)
    ]
    return pl.when(pl.any_horizontal(holds)).then(pl.concat_str(texts, ignore_nulls=True))


ASSESSABLE: Final = "assessable"
ADDED: Final[dict[str, type[pl.DataType]]] = {  # columns that `assess` adds besides `assessable` and levels
    "score": pl.Int32,
    "bounce_prob": pl.Float64,
    "grade": pl.String,
    "action": pl.String,
    "reasons": pl.String,
}

_ACTIONS: Final = {"usual": pl.String, "action": pl.String}
_GIVEN: Final = "given"
_RESTRAINED: Final = "restrained"  # whether a level changed `send` to `confirm` (Boolean)

_PATTERN: Final = "pattern"
_PARTS: Final = "parts"
_STATES: Final = 3  # first digit of a pattern: neither name nor address given, one given, assessable

_DAY: Final = "as_of"
_MAX_DAYS_FROM_1970: Final = 3_000_000  # covers the years 1 to 9999
_DAY_CODES: Final = 2 * _MAX_DAYS_FROM_1970 + 2  # 0 means no day

_MAX_PATTERNS_KEPT: Final = 1 << 14  # some hundred bytes each; if there are more, the older ones are dropped
_MIN_NEW_PATTERNS_KEPT: Final = 1 << 10  # new patterns of a batch are kept up to this or a quarter of its rows


def assess(
    card: Scorecard,
    frame: pl.LazyFrame,
    levels: dict[str, Levels],
    lang: Lang,
    origin: StatusOrigin | None = None,
    *,
    every_row: bool = False,
) -> pl.LazyFrame:
    """Add ``assessable``, the level of each feature, and the columns :data:`ADDED`.

    ``level:<feature>`` (UInt8) is the 1-based position of the level in :data:`FEATURES`, 0 for none.
    """
    answers = _assessor_of(card, tuple((feature, tuple(names)) for feature, names in levels.items()), lang, origin)
    frame = with_looks(frame).with_columns(is_assessable().alias(ASSESSABLE))
    # null for most rows, where the regular expressions then cost nothing
    name, address = (pl.when(~pl.col(ASSESSABLE)).then(pl.col(column)) for column in ("name", "address"))
    given = pl.lit(True) if every_row else ~is_blank(name) | ~is_blank(address)
    frame = frame.with_columns(*_level_codes(levels), given.alias(_GIVEN))
    answered = pl.struct(answers.pattern_expr(), *answers.sources).map_batches(
        answers, return_dtype=pl.Struct(ADDED), is_elementwise=True
    )
    frame = frame.with_columns(answered.alias("bv:risk"))
    return frame.with_columns(pl.col("bv:risk").struct.field(*ADDED)).drop("bv:risk", _GIVEN)


_CODES: Final = [pl.lit(code, pl.UInt8) for code in range(1 + max(map(len, FEATURES.values())))]


def _level_codes(levels: dict[str, Levels]) -> list[pl.Expr]:
    codes = []
    for feature, names in FEATURES.items():
        code = _CODES[0]
        for place, name in reversed(list(enumerate(names, 1))):
            if name not in levels.get(feature, {}):
                continue
            code = pl.when(levels[feature][name]).then(_CODES[place]).otherwise(code)
        if feature not in WITHOUT_ASSESSMENT:
            code = pl.when(ASSESSABLE).then(code).otherwise(_CODES[0])
        codes.append(code.alias(f"level:{feature}"))
    return codes


class _Assessor:
    # Called with Struct(pattern, *sources). `sources`: columns of placeholders that differ by row. `possible`: levels
    # that can hold, by feature. `origin`: given if facts may come from the tax authority; the frame then has BY_NTS.

    def __init__(
        self,
        card: Scorecard,
        possible: tuple[tuple[str, tuple[str, ...]], ...],
        lang: Lang,
        origin: StatusOrigin | None,
    ) -> None:
        terms, by_nts = list_reasons(card, dict(possible)), origin is not None
        names = dict.fromkeys(name for term in terms for name in term.placeholders(lang, by_nts=by_nts))
        self.lang: Lang = lang
        self._origin = origin
        self._dated = _DAY in names
        of_pattern = [_DAY, *(name for name in names if placeholder_of(name).column in BY_NTS.values())]
        self._of_rows = {name: placeholder_of(name) for name in names if name not in of_pattern}
        self.sources = list(dict.fromkeys(placeholder.column for placeholder in self._of_rows.values()))
        columns = {_column_of(term): len(FEATURES[str(term.feature)]) + 1 for term in terms}
        self._strides = dict(zip(columns, accumulate(columns.values(), mul, initial=_STATES), strict=False))
        self._facts = list(BY_NTS.values()) if by_nts else []
        self._facts_stride = prod(columns.values()) * _STATES
        self._day_stride = self._facts_stride * 2 ** len(self._facts)
        if self._day_stride * _DAY_CODES > 2**64:
            raise RuntimeError(gettext("a row's levels are too many for one pattern of 64 bits"))
        deciding = [term for term in terms if term.at_best == "confirm" and not term.level.points]
        repairs = card.actions.repair_features
        self.tables = make_reason_tables(deciding, lang, repairs, by_nts=by_nts)
        self._deciding = len(self.tables)
        others = [term for term in terms if term not in deciding]
        self.tables += make_reason_tables(others, lang, repairs, by_nts=by_nts)
        self.base = Term(None, BASE, card.base)
        bounds = pl.concat(
            table.combinations.select(low=pl.min("score"), high=pl.max("score")) for table in self.tables
        ).sum()
        self.lowest = bounds["low"].item() + card.base.points
        self.outcomes = _outcomes(card, self.lowest, bounds["high"].item() + card.base.points)
        # expressions are made once, since for a few rows making them takes as long as computing
        self._digits = self._read_digits()
        self._prefixed = [
            {name: f"{at}:{name}" for name in table.combinations.columns} for at, table in enumerate(self.tables)
        ]
        self._sums = self._sum_tables()
        self._reasons, self._reasons_of_rows = (self._join_reasons(filled) for filled in (of_pattern, list(names)))
        self._known = Memo(_MAX_PATTERNS_KEPT)

    def pattern_expr(self) -> pl.Expr:
        # digits: state, codes of levels, facts of the tax authority, day of status
        state = pl.when(ASSESSABLE).then(pl.lit(_STATES - 1, pl.UInt64)).otherwise(pl.col(_GIVEN).cast(pl.UInt64))
        digits = [state, *(pl.col(column).cast(pl.UInt64) * stride for column, stride in self._strides.items())]
        for place, column in enumerate(self._facts):
            digits.append(pl.col(column).fill_null(False).cast(pl.UInt64) * (self._facts_stride << place))
        if self._dated:
            since_1970 = pl.col(_DAY).to_physical().cast(pl.Int64).clip(-_MAX_DAYS_FROM_1970, _MAX_DAYS_FROM_1970)
            days = (since_1970 + _MAX_DAYS_FROM_1970 + 1).fill_null(0)
            digits.append(days.cast(pl.UInt64) * self._day_stride)
        return reduce(add, digits).alias(_PATTERN)

    def __call__(self, rows: pl.Series) -> pl.Series:
        try:
            return self._answer(rows.struct.unnest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # would blame the user's file
            raise RuntimeError(gettext("the risk could not be worked out: {error}", error=error)) from error

    def _answer(self, rows: pl.DataFrame) -> pl.Series:
        answers = self._look_up(rows)
        if answers[_PARTS].count():
            answers = self._fill(pl.concat([answers, rows.drop(_PATTERN)], how="horizontal"))
        return answers[list(ADDED)].to_struct("answer")

    def _fill(self, rows: pl.DataFrame) -> pl.DataFrame:
        pieces = [f"piece:{place}" for place in range(rows.select(pl.col(_PARTS).list.len().max()).item())]
        rows = rows.with_columns(
            pl.col(_PARTS).list.get(place, null_on_oob=True).alias(piece) for place, piece in enumerate(pieces)
        )
        texts = [self._value(pl.col(piece)) if place % 2 else pl.col(piece) for place, piece in enumerate(pieces)]
        whole = pl.when(pl.col(_PARTS).is_not_null()).then(pl.concat_str(texts, ignore_nulls=True))
        return rows.with_columns(pl.coalesce(whole, "reasons").alias("reasons"))

    def _value(self, name: pl.Expr) -> pl.Expr:
        values = (pl.when(name == known).then(of.fill(self.lang)) for known, of in self._of_rows.items())
        return pl.coalesce(pl.lit(None, pl.String), *values)

    def _look_up(self, rows: pl.DataFrame) -> pl.DataFrame:
        answers = self._known.look_up(rows[_PATTERN], lambda new: self._explain_new(rows, new))
        return self._explain(rows, self._reasons_of_rows).drop(KEY) if answers is None else answers

    def _explain_new(self, rows: pl.DataFrame, new: pl.Series) -> pl.DataFrame | None:
        # None for too many new patterns, which are not kept
        patterns = rows.select(_PATTERN).filter(new).unique()
        most = max(_MIN_NEW_PATTERNS_KEPT, rows.height // 4)
        return self._explain(patterns, self._reasons) if patterns.height <= most else None

    def _explain(self, patterns: pl.DataFrame, reasons: pl.Expr) -> pl.DataFrame:
        # `parts`: the reasons split at placeholders that differ by row; null if the reasons are complete
        frame = patterns.with_columns(self._digits)
        looked_up = [
            table.look_up(frame).rename(names) for table, names in zip(self.tables, self._prefixed, strict=True)
        ]
        frame = pl.concat([frame, *looked_up], how="horizontal").with_columns(self._sums)
        outcomes = self.outcomes[frame.select(self._place())["place"]]
        frame = pl.concat([frame, outcomes], how="horizontal").with_columns(reasons)
        parts = pl.when(pl.col("reasons").str.contains(MARK, literal=True)).then(pl.col("reasons").str.split(MARK))
        return frame.select(pl.col(_PATTERN).alias(KEY), *ADDED, parts.alias(_PARTS))

    def _read_digits(self) -> list[pl.Expr]:
        pattern, columns = pl.col(_PATTERN), []
        for column, stride in self._strides.items():
            size = len(FEATURES[column.removeprefix("level:")]) + 1
            columns.append((pattern // stride % size).cast(pl.UInt32).alias(column))
        for place, column in enumerate(self._facts):
            columns.append((pattern // (self._facts_stride << place) % 2 == 1).alias(column))
        state = pattern % _STATES
        day = pattern // self._day_stride
        days = pl.when(day > 0).then(day.cast(pl.Int64) - _MAX_DAYS_FROM_1970 - 1).cast(pl.Int32).cast(pl.Date)
        return [*columns, (state == _STATES - 1).alias(ASSESSABLE), (state == 1).alias(_GIVEN), days.alias(_DAY)]

    def _sum_tables(self) -> list[pl.Expr]:
        score = pl.sum_horizontal(self._every("score")) + self.base.level.points
        return [
            score.cast(pl.Int32).alias("score"),
            *(pl.max_horizontal(self._every(name)).alias(name) for name in POINTS[1:]),
        ]

    def _place(self) -> pl.Expr:
        to_repair = (pl.col("repair") > 0) & (pl.col("repair") >= pl.col("others"))
        line = pl.when(ASSESSABLE).then(2 + 2 * (pl.col("score") - self.lowest) + to_repair).otherwise(_GIVEN)
        return (line * len(MILDEST) + pl.col("at_best")).cast(pl.UInt32).alias("place")

    def _join_reasons(self, filled: Collection[str]) -> pl.Expr:
        # order: reasons that changed `send` to `confirm`, then by points, the base last; `filled`: placeholders to fill
        # from columns of the frame, while others keep their marks
        texts = [self._fill_text(at, filled) for at in range(len(self.tables))]
        first, later = (
            [pl.when(pl.col(_RESTRAINED) == restrained).then(text) for text in texts[: self._deciding]]
            for restrained in (True, False)
        )
        base = pl.when(ASSESSABLE).then(pl.lit(REASON_SEPARATOR + self.base.text(self.lang)))
        pieces = [*first, *texts[self._deciding :], *later, base]
        return pl.concat_str(pieces, ignore_nulls=True).str.slice(len(REASON_SEPARATOR)).alias("reasons")

    def _fill_text(self, at: int, filled: Collection[str]) -> pl.Expr:
        text, templates = pl.col(f"{at}:text"), self.tables[at].combinations["text"]
        for name in filled:
            mark = f"{MARK}{name}{MARK}"
            if templates.str.contains(mark, literal=True).any():
                text = text.str.replace_all(mark, self._fill_placeholder(name), literal=True)
        return text

    def _fill_placeholder(self, name: str) -> pl.Expr:
        if name == _DAY and self._origin is not None:
            return self._origin.fill_day(self.lang)
        return placeholder_of(name).fill(self.lang)

    def _every(self, name: str) -> list[pl.Expr]:
        return [pl.col(f"{at}:{name}") for at in range(len(self.tables))]


_assessor_of: Final = lru_cache(maxsize=8)(_Assessor)  # for single lookups, one after another


def _outcomes(card: Scorecard, lowest: int, highest: int) -> pl.DataFrame:
    # rows: two without an assessment (no address given, one given), then two for each score (the second if a repair of
    # the address outweighs other reasons); each of these for every action of MILDEST
    scores = pl.select(score=pl.int_range(lowest, highest + 1, dtype=pl.Int32)).lazy()
    doublings = -pl.col("score") / card.points_to_double
    bounce_prob = (card.ceiling / (1 + (doublings * math.log(2)).exp())).round(4)
    grade = first_code({name: pl.col("score") <= card.grades[name] for name in GRADES[:-1]}, GRADES[-1])
    scores = scores.with_columns(bounce_prob=bounce_prob, grade=grade)
    assessed = pl.concat(
        scores.with_columns(usual=_action(card, repair=False), action=_action(card, repair), repair=repair)
        for repair in (False, True)
    )
    without = pl.LazyFrame({"usual": [None, "do_not_send"], "action": [None, "fix_address"]}, schema=_ACTIONS)
    lines = pl.concat([without, assessed.sort("score", "repair")], how="diagonal")
    every = lines.join(pl.LazyFrame({"mildest": MILDEST}), how="cross", maintain_order="left_right")
    restrained = (pl.col("mildest") == "confirm") & (pl.col("action") == "send").fill_null(False)
    return every.select("bounce_prob", "grade", _restrict_action(), restrained.alias(_RESTRAINED)).collect()


def _restrict_action() -> pl.Expr:
    # the action is no milder than `mildest`; `usual`: the action without a repair of the address
    mildest, action, usual = pl.col("mildest"), pl.col("action"), pl.col("usual")
    held = pl.when(usual.is_null() | usual.is_in(["hold", "do_not_send"])).then(usual).otherwise(pl.lit("hold"))
    return (
        pl.when(mildest == "hold")
        .then(held)
        .when((mildest == "confirm") & (action == "send"))
        .then(pl.lit("confirm"))
        .otherwise(action)
        .alias("action")
    )


def _action(card: Scorecard, repair: bool) -> pl.Expr:
    actions = {grade: getattr(card.actions, grade) for grade in GRADES}
    if repair:
        actions |= {grade: "fix_address" for grade in GRADES if grade >= card.actions.repair_from}
    return pl.coalesce(pl.when(pl.col("grade") == grade).then(pl.lit(action)) for grade, action in actions.items())
