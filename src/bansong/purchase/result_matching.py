"""Matching of a job's results to the rows of its upload, where it is proven which row a result is about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from bansong.purchase.row_proof import (
    Echo,
    KeyOf,
    Numbering,
    ResultLike,
    Texts,
    find_numbering,
    may_count_other_rows,
    read_echoes,
    read_row_keys,
)
from bansong.schema import Answer
from bansong.translation import gettext

_WITNESSES: Final = 100
"""How many rows must be seen at their own position before the order of all is believed."""

EMPTY_ANSWER: Final = Answer()
"""An answer without content: all of its fields are null or empty."""


@dataclass(frozen=True, slots=True)
class MatchedResults:
    """Answers and faults by row of the upload (from 0), and a note on results that fit no row.

    ``base`` is the row key of the first row, where all row keys are proven to count from there. A row in neither was
    not answered, or not in a way that says whose the answer is.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    note: str | None = None
    base: int | None = None


def match_results(
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    *,
    records: Sequence[Texts | None] = (),
    totals: Collection[int | None] = (),
    shared: bool = False,
    by_hand: bool = False,
) -> MatchedResults:
    """Return what the results say of each row sent, given as (lookup key, number) in the order of the upload.

    An item goes, by the first of these that is proven,

    1. where the echo of its whole row says: ``key_of`` (number, name, address) is the key of one row sent, or name and
       address are those of one row of ``records`` (of each row sent, ``None`` where they are not known);
    2. where the echo of its number says, if the number was sent once;
    3. where its row key says: see :func:`~bansong.purchase.row_proof.find_numbering`;
    4. to its own position, if every item stands at a row of its number, and enough of them prove the order.

    Two different answers for one row are a fault, and so is an error, an answer that says nothing, or another number
    under the row's key. What fits nowhere for certain is counted in the note.

    ``totals`` is how many rows the service says that the job has, ``shared`` whether it is another upload's, too:
    either may say that row keys count other rows than these, and then they need echoes beside them. Where the job is
    shared, or was named ``by_hand``, an echo with another name or address than was sent is another job's.
    """
    results = _drop_repeats(results)
    echoes = read_echoes(results, sent, key_of, records, strict=shared or by_hand)
    keys = read_row_keys(results)
    foreign = shared or may_count_other_rows(keys, totals, len(sent))
    numbering = find_numbering(keys, echoes, results, len(sent), foreign=foreign)
    places = [_proven_row(key, numbering, echo) for key, echo in zip(keys, echoes, strict=True)]
    if None in places and _is_in_order(places, echoes, sent):
        places = list(range(len(sent)))
    answers, faults = _collect_answers(results, places)
    if numbering is not None:
        others = _find_other_numbers(keys, numbering.base, echoes, results, sent)
        faults |= {row: fault for row, fault in others.items() if row not in answers and row not in faults}
    mistrusted = numbering is None and any(result.key is not None for result in results)
    proven = numbering is not None and all(key is None or numbering.since <= key <= numbering.until for key in keys)
    base = numbering.base if numbering is not None and proven else None
    return MatchedResults(answers, faults, _note_unmatched(places, mistrusted=mistrusted), base)


def _drop_repeats(results: Sequence[ResultLike]) -> list[ResultLike]:
    """Leave out items that say what another has said of the same row, which has a key or is echoed whole."""
    seen, kept = set(), list[ResultLike]()
    for result in results:
        said = (result.key, result.b_no, result.name, result.address, result.answer, result.error)
        named = result.key is not None or (result.b_no and result.name and result.address)
        if not named or said not in seen:
            kept.append(result)
        seen.add(said)
    return kept


def _proven_row(key: int | None, numbering: Numbering | None, echo: Echo) -> int | None:
    if echo.has_number and len(echo.rows) == 1:
        return next(iter(echo.rows))
    if key is None or numbering is None or not numbering.since <= key <= numbering.until:
        return None
    return key - numbering.base if key - numbering.base in echo.rows else None


def _find_other_numbers(
    keys: Sequence[int | None],
    base: int,
    echoes: Sequence[Echo],
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
) -> dict[int, str]:
    """What is wrong with rows under whose key the service gave the answer to another number."""
    return {
        key - base: gettext(
            "the result with this row's key is about {b_no}, and {value} was sent",
            b_no=result.b_no,
            value=sent[key - base][1],
        )
        for key, echo, result in zip(keys, echoes, results, strict=True)
        if key is not None and echo.has_number and not echo.rows and result.b_no and 0 <= key - base < len(sent)
    }


def _is_in_order(places: Sequence[int | None], echoes: Sequence[Echo], sent: Sequence[tuple[bytes, str]]) -> bool:
    """Whether the items stand in the order of the upload: proven, not merely possible.

    That every item stands at a row of its number says nothing of rows of one number, which may have changed places. It
    takes many rows whose place is known otherwise, each at its own position, in an order that is not the numbers' own.
    """
    if len(places) != len(sent):
        return False
    items = enumerate(zip(places, echoes, strict=True))
    if not all(echo.has_number and here in echo.rows and place in (None, here) for here, (place, echo) in items):
        return False
    witnesses = [sent[place][1] for place in places if place is not None]
    ascending = sorted(witnesses)
    return len(witnesses) >= _WITNESSES and witnesses not in (ascending, ascending[::-1])


def _collect_answers(
    results: Sequence[ResultLike], places: Sequence[int | None]
) -> tuple[dict[int, Answer], dict[int, str]]:
    answers: dict[int, Answer] = {}
    faults: dict[int, str] = {}
    empty: dict[int, str] = {}
    for result, row in zip(results, places, strict=True):
        if row is None:
            continue
        if result.error:
            faults[row] = result.error
        elif result.answer is None or result.answer == EMPTY_ANSWER:
            empty[row] = gettext("the service gave no answer")
        elif answers.setdefault(row, result.answer) != result.answer:
            faults.setdefault(row, gettext("two different answers"))
    faults = {row: fault for row, fault in empty.items() if row not in answers} | faults
    return {row: answer for row, answer in answers.items() if row not in faults}, faults


def _note_unmatched(places: Sequence[int | None], *, mistrusted: bool) -> str | None:
    lost = places.count(None)
    if not lost:
        return None
    note = gettext("{lost:,} of {count2:,} results fit no row of the upload for certain", lost=lost, count2=len(places))
    return gettext("{note}; the row keys do not prove themselves", note=note) if mistrusted else note
