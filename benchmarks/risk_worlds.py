"""Worlds in which letters bounce for reasons of their own, of another form than the scorecard's.

A letter comes back because the business is gone, **or** it has moved, **or** the address leads nowhere, **or** nobody
takes it in, **or** by chance: each cause alone can bounce it, so the effects neither add up nor multiply (a noisy-or
of hazards; the scorecard adds log-odds). Postal codes matter only where the address is poor, a move is forgotten where
the address was confirmed lately: interactions that no scorecard has. How strong each cause is differs from world to
world around what the expert believes, and so does each region. Who is mailed is decided by the champion's actions
(selective labels), with 5 % exploration among those it would hold. Everything is seeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from bansong.engine.risk.reasons import FEATURES, LEVEL_DTYPES
from bansong.learning.fit import TERMS

Levels = Mapping[str, np.ndarray]

SHARES: dict[str, dict[str, float]] = {
    "status": {
        "merged": 0.004, "closed_under_3_months": 0.012, "closed_3_to_12_months": 0.03, "closed_over_12_months": 0.05,
        "closed_undated": 0.006, "suspended": 0.02, "unregistered": 0.008, "active": 0.82, "not_found": 0.05,
    },
    "number": {"wrong_check_digit": 0.012},
    "kind": {"corporation": 0.38, "public_or_non_profit": 0.05, "simplified": 0.15},
    "age": {"under_1_year": 0.08, "from_1_to_3_years": 0.17, "over_10_years": 0.3},
    "name": {"missing": 0.02, "masked": 0.01, "differs": 0.05},
    "freshness": {
        "under_6_months": 0.2, "from_12_to_24_months": 0.14, "from_24_to_48_months": 0.12, "over_48_months": 0.1,
    },
    "address": {
        "ambiguous": 0.04, "corrected": 0.08, "exact_with_unit": 0.26, "found": 0.42, "building_only": 0.04,
        "no_number": 0.01, "number_absent": 0.025, "road_absent": 0.015, "lot_unknown": 0.04, "not_covered": 0.01,
        "not_found": 0.06,
    },
    "form": {"lot_number": 0.2},
    "unit": {"missing": 0.08},
    "change": {"changed": 0.2, "read_as": 0.05},
    "postal": {
        "other_district": 0.03, "outside_region": 0.02, "neighbouring": 0.05, "differs": 0.01, "old_six_digits": 0.05,
        "malformed": 0.02,
    },
    "postal_filled": {"filled": 0.1},
    "place": {"crowded": 0.03},
    "spread": {"several_addresses": 0.04},
    "history": {"moved": 0.015, "absent": 0.03, "delivered": 0.15},
    "region": dict(zip(FEATURES["region"], (
        0.19, 0.065, 0.047, 0.056, 0.03, 0.022, 0.007, 0.26, 0.03, 0.031, 0.041, 0.035, 0.065, 0.052, 0.064, 0.015,
    ), strict=True)),
}  # fmt: skip
"""How often each level occurs; what is left over is no level."""

GONE = {
    "merged": 0.18, "closed_under_3_months": 0.6, "closed_3_to_12_months": 1.2, "closed_over_12_months": 2.0,
    "closed_undated": 1.1, "suspended": 0.2, "unregistered": 0.4, "not_found": 0.01,
}  # fmt: skip
MOVED = {
    "freshness": {
        "under_6_months": 0.5, "from_12_to_24_months": 1.8, "from_24_to_48_months": 2.8, "over_48_months": 4.0,
    },
    "age": {"under_1_year": 1.7, "from_1_to_3_years": 1.4, "over_10_years": 0.6},
    "kind": {"corporation": 0.8, "public_or_non_profit": 0.3, "simplified": 1.25},
    "history": {"delivered": 0.25, "moved": 14.0},
    "place": {"crowded": 1.9},
    "spread": {"several_addresses": 2.1},
}  # fmt: skip
NOWHERE = {
    "ambiguous": 0.06, "corrected": 0.016, "found": 0.003, "exact_with_unit": 0.001, "building_only": 0.03,
    "no_number": 0.25, "number_absent": 0.4, "road_absent": 0.5, "lot_unknown": 0.025, "not_covered": 0.004,
    "not_found": 0.006,
}  # fmt: skip
NOBODY = {
    "name": {"missing": 0.008, "masked": 0.012, "differs": 0.045},
    "number": {"wrong_check_digit": 0.18},
    "unit": {"missing": 0.05},
    "form": {"lot_number": 0.006},
    "history": {"absent": 0.05},
}  # fmt: skip
POSTAL = {"other_district": 4.0, "outside_region": 4.0, "neighbouring": 1.6, "old_six_digits": 1.8, "malformed": 1.5}
MOVES, CHANCE, CODE_ALONE = 0.016, 0.004, 0.003
STALE = (
    "status:closed_over_12_months",
    "status:closed_3_to_12_months",
    "freshness:over_48_months",
    "postal:old_six_digits",
)
"""Levels that go together: a list that nobody has cared for has all of them."""

LATER = {"status:without_numbers", *(f"completeness:{level}" for level in FEATURES["completeness"])}
"""Levels that are newer than these worlds and occur in none: drawing for them would make every world another one."""


@dataclass(frozen=True)
class World:
    """One world: what really makes letters bounce in it."""

    strength: Mapping[str, float]
    """Each cause's hazard times this, by ``feature:level``, by region, and ``all``."""
    kept: float
    """Letters that would bounce and do all the same (the rest is taken in by somebody)."""

    @classmethod
    def of(cls, seed: int, spread: float = 0.55) -> World:
        rng = np.random.default_rng(seed)
        names = [name for feature, level in TERMS if (name := f"{feature}:{level}") not in LATER]
        strength = {name: float(np.exp(rng.normal(0, 0.15 if name.startswith("region") else spread))) for name in names}
        return cls(strength | {"all": float(np.exp(rng.normal(0, 0.3)))}, float(rng.uniform(0.85, 0.97)))

    def probability(self, rows: Levels) -> np.ndarray:
        """The true probability that a letter bounces, of what the features say: the oracle's."""
        gone = self._hazard(rows, "status", GONE)
        moves = MOVES * np.ones_like(gone)
        for feature, factors in MOVED.items():
            moves = moves * self._factor(rows, feature, factors)
        poor = self._hazard(rows, "address", NOWHERE)
        code = self._factor(rows, "postal", POSTAL)
        leads = poor * code + CODE_ALONE * (code - 1).clip(0)
        nobody = sum(self._hazard(rows, feature, hazards) for feature, hazards in NOBODY.items())
        region = self._factor(rows, "region", dict.fromkeys(FEATURES["region"], 1.0))
        hazard = gone + (moves + leads + nobody + CHANCE) * region
        return self.kept * (1 - np.exp(-self.strength["all"] * hazard))

    def _hazard(self, rows: Levels, feature: str, hazards: Mapping[str, float]) -> np.ndarray:
        return self._looked_up(rows, feature, hazards, 0.0)

    def _factor(self, rows: Levels, feature: str, factors: Mapping[str, float]) -> np.ndarray:
        return self._looked_up(rows, feature, factors, 1.0)

    def _looked_up(self, rows: Levels, feature: str, values: Mapping[str, float], other: float) -> np.ndarray:
        here = {level: value * self.strength[f"{feature}:{level}"] for level, value in values.items()}
        table = np.array([here.get(level, other) for level in FEATURES[feature]] + [other])
        return table[rows[feature]]  # -1, no level, is the last


def draw(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Draw rows: for each feature the place of its level, -1 for none; what is stale tends to be so altogether."""
    stale = rng.random(rows)
    drawn = {}
    for feature, levels in FEATURES.items():
        shares = SHARES.get(feature)
        if shares is None:  # in no world: what another feature added draws would change all that are drawn after it
            drawn[feature] = np.full(rows, -1)
            continue
        weights = np.array([shares.get(level, 0.0) for level in levels])
        tilt = np.array([2.0 if f"{feature}:{level}" in STALE else 0.0 for level in levels])
        p = weights[None, :] * np.exp(tilt[None, :] * (stale[:, None] - 0.5))
        p = np.column_stack([p, np.full(rows, max(1 - weights.sum(), 1e-9))])
        edges = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)
        code = (rng.random(rows)[:, None] > edges).sum(axis=1).clip(0, len(levels))
        drawn[feature] = np.where(code == len(levels), -1, code)
    return drawn


def frame(rows: Levels) -> pl.DataFrame:
    """Rows as the columns of evidence: ``level:<feature>``."""
    columns = []
    for (name, dtype), feature in zip(LEVEL_DTYPES.items(), FEATURES, strict=True):
        code = pl.Series(name, rows[feature], pl.Int32)
        columns.append(code.set(code < 0, None).cast(pl.UInt8).cat.to(dtype))
    return pl.DataFrame(columns)
