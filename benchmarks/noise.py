"""Addresses as people type them, made from official ones: named noise classes, seeded, without the library.

Every class is one function, in one of three modules: it changes the parts of a :class:`Typed` in place and says whether
it could. ``KINDS`` holds them in the order in which they are applied when several are combined.
"""

from __future__ import annotations

import random

import noise_format  # noqa: F401  its classes register themselves
import noise_nowhere  # noqa: F401
import noise_wrong  # noqa: F401
from noise_parts import KINDS, Kind, Sample, Typed, sample

__all__ = ["KINDS", "Kind", "Sample", "Typed", "combination", "sample"]


def combination(rng: random.Random, size: int) -> tuple[str, ...]:
    """Names of so many classes that can go together, of those whose address can still be decided."""
    pool = [kind for kind in KINDS.values() if kind.group in ("format", "character", "postal", "open")]
    while True:
        kinds = rng.sample(pool, size)
        slots = [slot for kind in kinds for slot in kind.slots]
        if len(slots) == len(set(slots)):
            return tuple(kind.name for kind in kinds)
