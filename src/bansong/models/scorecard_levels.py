"""Compare and complete the levels of scorecards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import msgspec
import polars as pl

from bansong.engine.risk.features import FEATURES
from bansong.engine.risk.scorecard import Level, Scorecard
from bansong.schema import GRADES
from bansong.translation import current_language

BASE: Final = "base"
_TEXTS: Final = ("en", "ko", "source", "always")


@dataclass(frozen=True, slots=True)
class ScorecardDifference:
    """One value that differs between scorecards ``a`` and ``b``; ``what`` names it (``status.active points``)."""

    what: str
    a: object
    b: object

    def as_dict(self) -> dict[str, object]:
        """Return the difference as plain values."""
        return asdict(self)


def add_missing_levels(card: Scorecard, builtin: Scorecard) -> tuple[Scorecard, tuple[str, ...]]:
    """Add levels that a scorecard lacks from the built-in one; return it and their names.

    A learned scorecard thus stays usable when a release adds features.
    """
    missing = [
        (feature, level)
        for feature, levels in FEATURES.items()
        for level in levels
        if level not in card.features.get(feature, {})
    ]
    if not missing:
        return card, ()
    features = {feature: dict(levels) for feature, levels in card.features.items()}
    for feature, level in missing:
        features.setdefault(feature, {})[level] = builtin.features[feature][level]
    return msgspec.structs.replace(card, features=features), tuple(".".join(place) for place in missing)


def differences(a: Scorecard, b: Scorecard) -> list[ScorecardDifference]:
    """Return the differences of two scorecards: points first, then grades, ceiling and actions, then texts."""
    ours, theirs = dict(levels_of(a)), dict(levels_of(b))
    shared = [name for name in ours if name in theirs]
    points = [(f"{name} points", ours[name].points, theirs[name].points) for name in shared]
    whole = [(name, getattr(a, name), getattr(b, name)) for name in ("ceiling", "points_to_double", "stale_after")]
    cuts = [(f"grade {grade} up to", a.grades.get(grade), b.grades.get(grade)) for grade in GRADES[:-1]]
    acts = [
        (f"actions {name}", getattr(a.actions, name), getattr(b.actions, name))
        for name in (*GRADES, "repair_from", "repair_features")
    ]
    texts = [
        (f"{name} {field}", getattr(ours[name], field), getattr(theirs[name], field))
        for name in shared
        for field in _TEXTS
    ]
    return [ScorecardDifference(*found) for found in (*points, *whole, *cuts, *acts, *texts) if found[1] != found[2]]


def points_table(card: Scorecard, beside: Scorecard) -> pl.DataFrame:
    """Return the points of two scorecards side by side, one row a level, the base first.

    Columns: ``level`` (String, ``feature.level``), ``points``, ``beside`` (Int32, null if missing), ``source``,
    ``text`` (String, in the current language).
    """
    others, lang = dict(levels_of(beside)), current_language()
    rows = [
        (name, level.points, others[name].points if name in others else None, level.source, getattr(level, lang))
        for name, level in levels_of(card)
    ]
    schema = {"level": pl.String, "points": pl.Int32, "beside": pl.Int32, "source": pl.String, "text": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def levels_of(card: Scorecard) -> Iterator[tuple[str, Level]]:
    """Yield every level of a scorecard by name, ``base`` first, in the order of the features."""
    yield BASE, card.base
    for feature, levels in card.features.items():
        for name, level in levels.items():
            yield f"{feature}.{name}", level
