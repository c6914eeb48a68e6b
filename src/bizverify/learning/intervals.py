"""How far a count may be from what it stands for."""

from __future__ import annotations

import math
from statistics import NormalDist

WIDE = 0.99
USUAL = 0.95


def interval(hits: int, of: int, confidence: float = USUAL) -> tuple[float, float]:
    """The interval of a share, by Wilson's score (1927); (0, 1) without anything counted.

    Unlike the textbook's normal interval it holds for few rows and for shares near 0, which bounces are.
    """
    if not of:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = hits / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < of else 1.0


def chi_square_bound(freedom: int, confidence: float = WIDE) -> float:
    """What a chi-square value stays below by chance, to a few per mille (Wilson and Hilferty, 1931)."""
    if freedom < 1:
        return 0.0
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(confidence) * math.sqrt(part)) ** 3)
