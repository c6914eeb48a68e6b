"""What the row keys of a job's results prove: which row each counts, if no row can have been left out before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from bizverify.purchase.echo_matching import Echo, ResultLike
from bizverify.schema import Answer

_BASES: Final = (0, 1, 2)
"""What a service may call the first row: 0, 1, or 2, its line in the file."""

_RANKED: Final = 10
"""How many different probabilities must be in order before that is no chance: one in three million."""


class Numbering(NamedTuple):
    """What the service calls the first row; from ``since`` to ``until`` no row was left out before any key."""

    base: int
    since: int
    until: int


def row_keys(results: Sequence[ResultLike]) -> list[int | None]:
    """Return the keys as integers; none at all if one is anything else: "12" among "1f" and "3e" is no row."""
    keys = [_integer(result.key) for result in results]
    opaque = any(key is None and result.key is not None for key, result in zip(keys, results, strict=True))
    return [None] * len(keys) if opaque else keys


def _integer(key: int | str | None) -> int | None:
    if isinstance(key, str):
        text = key.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
    return key if isinstance(key, int) and not isinstance(key, bool) else None


def recounted(keys: Sequence[int | None], totals: Collection[int | None], rows: int) -> bool:
    """Whether row keys may count other rows than were sent: the job is another's, or took fewer and numbers them anew.

    Where rows were left out and the others kept their numbers, the keys have a gap. A header may be counted as a row,
    and nothing may be counted yet.
    """
    odd = [total for total in totals if total and not rows <= total <= rows + 1]
    told = {key for key in keys if key is not None}
    return any(total > rows for total in odd) or bool(odd and told and max(told) - min(told) + 1 == len(told))


def numbering_of(
    keys: Sequence[int | None],
    echoes: Sequence[Echo],
    results: Sequence[ResultLike],
    rows: int,
    *,
    foreign: bool,
) -> Numbering | None:
    """Return how the service counts rows, and how far that is proven; ``None`` where it is not.

    Every item rules out the bases under which its key is not a place that it can belong to. So the key 0 proves 0,
    the key rows + 1 proves 2, the keys 1 and rows together prove 1, and each echo rules out what disagrees with it; an
    item that repeats a row never sent says nothing. An error without an echo may be the header's, read as a row: it
    is heard only where there is a key for every row.

    A service that leaves rows out may number the others anew, and then each key is too small by as many as were left
    out before it. The first and the last row's keys together prove all keys; one of them is enough where no other base
    could be meant. Two items whose echoes say their rows prove the keys between them, with the first row's key also
    those before. Nothing else does. Proven without echoes, no key may come with two answers, nor may they be
    ``foreign``, or ranks.
    """
    items = zip(keys, echoes, results, strict=True)
    told = [(key, echo, result) for key, echo, result in items if key is not None and echo.homes]
    heard = [(key, echo) for key, echo, _ in told if echo.said]
    sure = [(key, echo) for key, echo, result in told if echo.said or not result.error]
    left, counted = _bases(sure), {key for key, _, _ in told}
    complete = len(counted) == rows
    if len(left) != 1 and complete:
        left = _bases([(key, echo) for key, echo, _ in told])
    if len(left) != 1:
        return None
    base, last = left[0], rows - 1 + left[0]
    from_first = complete or base == max(_BASES) or base in {key for key, _ in sure}
    alone = foreign or _contradict(keys, results) or _are_ranks(keys, results)
    if from_first and last in counted and (len(_bases(heard)) == 1 or not alone):
        return Numbering(base, base, last)
    witnesses = [key for key, echo in heard if len(echo.homes) == 1]
    return Numbering(base, base if from_first else min(witnesses), max(witnesses)) if witnesses else None


def _bases(items: Sequence[tuple[int, Echo]]) -> list[int]:
    """The bases that all of the items allow; none at all without an item."""
    return [base for base in _BASES if items and all(key - base in echo.homes for key, echo in items)]


def _contradict(keys: Sequence[int | None], results: Sequence[ResultLike]) -> bool:
    answers: dict[int, Answer] = {}
    return any(
        answers.setdefault(key, result.answer) != result.answer
        for key, result in zip(keys, results, strict=True)
        if key is not None and result.answer is not None
    )


def _are_ranks(keys: Sequence[int | None], results: Sequence[ResultLike]) -> bool:
    """Whether row keys only count results that are sorted by their probability."""
    answers = [result.answer for result in results if result.answer is not None]
    levels = [answer.bounce_prob for answer in answers if answer.bounce_prob is not None]
    first = keys[0] if keys else None
    if first is None or len(set(levels)) < _RANKED or list(keys) != list(range(first, first + len(keys))):
        return False
    return levels in (sorted(levels), sorted(levels, reverse=True))
