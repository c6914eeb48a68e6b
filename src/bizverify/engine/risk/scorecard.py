"""The additive risk model: points → score → probability → grade → action, and the reasons that add up to the score."""

from __future__ import annotations

import math
import re
import tomllib
from datetime import datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import polars as pl

from bizverify.engine.risk.features import (
    FEATURES,
    LABELS,
    WITHOUT_ASSESSMENT,
    Levels,
    is_assessable,
    is_blank,
)
from bizverify.errors import ModelError
from bizverify.model import GRADES, REASON_SEPARATOR, Lang

Points = Annotated[int, msgspec.Meta(ge=-500, le=500)]
Source = Literal["nts", "registry", "juso", "postal", "number", "file", "label", "model"]
Action = Literal["send", "fix_address", "confirm", "hold", "do_not_send"]
Grade = Literal["A", "B", "C", "D", "E"]

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_NO_CODE: Final[dict[Lang, str]] = {"en": "not known", "ko": "미상"}
_PLACEHOLDERS: Final[dict[str, tuple[pl.Expr, dict[Lang, str]]]] = {
    "since": (pl.col("since").dt.to_string("%Y-%m-%d"), {"en": "date not known", "ko": "날짜 미상"}),
    "zipcode": (pl.col("zipcode_given"), _NO_CODE),
    "fixed_zipcode": (pl.col("fixed_zipcode"), _NO_CODE),
    # words of the user's file: what separates reasons must not come in with them
    "changes": (
        pl.col("changes").str.replace_all(r"[|\p{Cc}\x{2028}\x{2029}]+", " "),
        {"en": "spelling", "ko": "표기"},
    ),
}
"""What a text may hold in braces → the column's text, and what stands there where that is null."""


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The points of one level of a feature and the texts of its reason."""

    points: Points
    source: Source
    en: str
    ko: str
    always: bool = False


class Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The action of each grade, and when an address is to be repaired instead."""

    A: Action
    B: Action
    C: Action
    D: Action
    E: Action
    repair_from: Grade
    repair_features: list[str]


class Learned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a learned scorecard comes from.

    ``parent`` is the version that it replaced, ``labels`` and ``bounced`` the mailed rows it was fitted to, ``e_value``
    the evidence at its promotion, ``false_bounces`` and ``ceiling`` what was estimated beside the points.
    """

    parent: str
    at: datetime
    labels: int
    bounced: int
    e_value: float
    false_bounces: float


class Scorecard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scorecard as its file holds it; see ``scorecard.toml`` for what each field means."""

    version: str
    points_to_double: Annotated[int, msgspec.Meta(ge=1)]
    ceiling: Annotated[float, msgspec.Meta(gt=0, le=1)]
    base: Level
    grades: dict[Grade, Points]
    actions: Actions
    features: dict[str, dict[str, Level]]
    learned: Learned | None = None

    @classmethod
    def load(cls, path: str | Path | None = None) -> Scorecard:
        """Read a scorecard, the built-in one without ``path``; raise :class:`ModelError` naming the field."""
        if path is None:
            return _built_in()
        try:
            return _parsed(Path(path).read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: the scorecard cannot be read: {error}") from error

    def assess(self, frame: pl.LazyFrame, levels: dict[str, Levels], lang: Lang) -> pl.LazyFrame:
        """Add ``bounce_prob``, ``grade``, ``action`` and ``reasons`` (text) to a frame that has the features' columns.

        Risk needs a readable address. Without one there are no probability and grade, the action is ``fix_address``
        if a name or a (masked) address was given, and the reasons tell what is known all the same.
        """
        frame = frame.with_columns(is_assessable().alias("assessable"))
        frame = frame.with_columns(_level_codes(levels))
        frame = frame.with_columns(score=self._score(), reasons=self._reasons(levels, lang))
        frame = frame.with_columns(
            bounce_prob=pl.when("assessable").then(self._probability()),
            grade=pl.when("assessable").then(self._grade()),
        )
        given = ~is_blank(pl.col("name")) | ~is_blank(pl.col("address"))
        action = pl.when("assessable").then(self._action()).when(given).then(pl.lit("fix_address"))
        return frame.with_columns(action=action)

    def probability(self, score: int) -> float:
        """Return the bounce probability of a score, rounded as it is written."""
        return round(float(self.ceiling / (1 + 2 ** (-score / self.points_to_double))), 4)

    def _score(self) -> pl.Expr:
        return pl.sum_horizontal(
            pl.lit(self.base.points, pl.Int32),
            *(self._points(feature) for feature in self.features),
        )

    def _points(self, feature: str) -> pl.Expr:
        points = pl.lit(0, pl.Int32)
        for name, level in self.features[feature].items():
            if level.points:
                points = pl.when(_holds(feature, name)).then(pl.lit(level.points, pl.Int32)).otherwise(points)
        return points

    def _probability(self) -> pl.Expr:
        doublings = -pl.col("score") / self.points_to_double
        return (self.ceiling / (1 + (doublings * math.log(2)).exp())).round(4)

    def _grade(self) -> pl.Expr:
        grade = pl.lit(GRADES[-1])
        for name in reversed(GRADES[:-1]):
            grade = pl.when(pl.col("score") <= self.grades[name]).then(pl.lit(name)).otherwise(grade)
        return grade

    def _action(self) -> pl.Expr:
        repair = pl.max_horizontal(self._points(feature) for feature in self.actions.repair_features)
        others = pl.max_horizontal(
            self._points(feature) for feature in self.features if feature not in self.actions.repair_features
        )
        action = pl.lit(None, pl.String)
        for grade in GRADES:
            usual = pl.lit(getattr(self.actions, grade))
            if grade >= self.actions.repair_from:
                usual = pl.when((repair > 0) & (repair >= others)).then(pl.lit("fix_address")).otherwise(usual)
            action = pl.when(pl.col("grade") == grade).then(usual).otherwise(action)
        return action

    def _reasons(self, possible: dict[str, Levels], lang: Lang) -> pl.Expr:
        """All reasons of a row joined, the largest effect first.

        One term for each level in the order of its points, null where it does not hold: no list is built or sorted.
        Levels that are not ``possible`` have none.
        """
        terms = [(self.base, "base", pl.col("assessable"))]
        terms += [
            (level, LABELS.get(feature, feature), _holds(feature, name))
            for feature, levels in self.features.items()
            for name, level in levels.items()
            if (level.points or level.always) and name in possible.get(feature, {})
        ]
        terms.sort(key=lambda term: -abs(term[0].points))
        texts = [pl.when(holds).then(_reason(level, label, lang)) for level, label, holds in terms]
        return pl.concat_str(texts, separator=REASON_SEPARATOR, ignore_nulls=True)


def _reason(level: Level, label: str, lang: Lang) -> pl.Expr:
    parts = _PLACEHOLDER.split(f"[{label} {level.points:+d}] {getattr(level, lang)} ({level.source})")
    # placeholders stand at the odd places; a null would take the whole reason with it, but not its points
    return pl.concat_str(
        _PLACEHOLDERS[part][0].fill_null(_PLACEHOLDERS[part][1][lang]) if place % 2 else pl.lit(part)
        for place, part in enumerate(parts)
    )


def _level_codes(levels: dict[str, Levels]) -> list[pl.Expr]:
    """For each feature the place (from 1) of the level that holds, 0 for none, as ``level:<feature>``."""
    codes = []
    for feature, names in FEATURES.items():
        code = pl.lit(0, pl.UInt8)
        for place, name in reversed(list(enumerate(names, 1))):
            if name not in levels.get(feature, {}):
                continue
            code = pl.when(levels[feature][name]).then(pl.lit(place, pl.UInt8)).otherwise(code)
        if feature not in WITHOUT_ASSESSMENT:
            code = pl.when("assessable").then(code).otherwise(pl.lit(0, pl.UInt8))
        codes.append(code.alias(f"level:{feature}"))
    return codes


def _holds(feature: str, level: str) -> pl.Expr:
    return pl.col(f"level:{feature}") == FEATURES[feature].index(level) + 1


@cache
def _built_in() -> Scorecard:
    text = files("bizverify.engine.risk").joinpath("scorecard.toml").read_text(encoding="utf-8")
    return _parsed(text, "the built-in scorecard")


def _parsed(text: str, name: str) -> Scorecard:
    try:
        card = msgspec.convert(tomllib.loads(text), Scorecard)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ModelError(f"{name}: {error}") from error
    for fault in _faults(card):
        raise ModelError(f"{name}: {fault}")
    return card


def _faults(card: Scorecard) -> list[str]:
    faults = []
    for feature, names in FEATURES.items():
        given = card.features.get(feature, {})
        faults += [f"[features.{feature}.{level}] is missing" for level in names if level not in given]
    for feature, levels in card.features.items():
        faults += [
            f"[features.{feature}.{level}] is not a feature of this version"
            for level in levels
            if level not in FEATURES.get(feature, ())
        ]
    cuts = [points for _, points in sorted(card.grades.items())]
    if sorted(card.grades) != list(GRADES[:-1]) or any(low >= high for low, high in pairwise(cuts)):
        faults.append("[grades] must give A, B, C and D rising highest scores (E is everything above)")
    if strange := set(card.actions.repair_features) - set(card.features):
        faults.append(f"[actions] repair_features names {sorted(strange)[0]!r}, which is not a feature")
    levels_ = [card.base, *(level for levels in card.features.values() for level in levels.values())]
    faults += [fault for level in levels_ for text in (level.en, level.ko) if (fault := _fault_of_text(text))]
    return faults


def _fault_of_text(text: str) -> str | None:
    if REASON_SEPARATOR.strip() in text or "\n" in text:
        return f"the text {text!r} holds a line break or '|', which separates reasons"
    strange = [name for name in _PLACEHOLDER.findall(text) if name not in _PLACEHOLDERS]
    if strange:
        known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
        return f"the text {text!r} holds {{{strange[0]}}}, which nothing is put in for; known are {known}"
    return None
