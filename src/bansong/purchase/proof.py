"""Match the results of a job to the rows of its upload, only where a proof exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bansong.base import business_number
from bansong.base.messages import gettext
from bansong.base.schema import Answer
from bansong.client.evidence import fold_text, is_other

if TYPE_CHECKING:
    from bansong.client.responses import Result

KeyOf = Callable[[str, str | None, str | None], bytes]
Texts = tuple[str | None, str | None]

_NO_ROWS: Final[frozenset[int]] = frozenset()

_BASES: Final = (0, 1, 2)  # possible keys of the first row; 2 if lines of the file are counted, with a header
_MIN_RANKS: Final = 10  # so many different probabilities are in order by chance once in three million


@dataclass(frozen=True, slots=True)
class Echo:
    """The uploaded rows that a result may be about, judged by the record that the result repeats."""

    rows: Collection[int]
    has_number: bool  # the result repeats the number, or name and address of a row


class _CompatibleRows(Collection[int]):
    # rows that do not contradict the name and address of a result without a number, computed on demand
    def __init__(self, records: Sequence[Texts | None], said: Texts) -> None:
        self._records, self._said = records, said

    def __contains__(self, row: object) -> bool:
        if not isinstance(row, int) or not 0 <= row < len(self._records):
            return False
        return not _contradicts(self._said, self._records[row])

    def __iter__(self) -> Iterator[int]:
        return (row for row in range(len(self._records)) if row in self)

    def __len__(self) -> int:
        return len(self._records)


def _read_echoes(
    results: Sequence[Result],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    records: Sequence[Texts | None],
    *,
    strict: bool,
) -> list[Echo]:
    """Return the possible rows of each result: all if it repeats nothing, none if it repeats a record not sent."""
    row_of = {key: row for row, (key, _) in enumerate(sent)}
    rows_of: defaultdict[str, set[int]] = defaultdict(set)
    for row, (_, its_number) in enumerate(sent):
        rows_of[its_number].add(row)
    without_number = _echo_without_number(records, len(sent))
    numbers = _compact_numbers([result.b_no for result in results])
    wholes: list[int | None] = []
    found: defaultdict[str, set[int]] = defaultdict(set)
    for result, b_no in zip(results, numbers, strict=True):
        whole = None
        # if the number was sent more than once (if strict: always), the whole record decides
        if b_no is not None and len(rows_of.get(b_no, _NO_ROWS)) > (0 if strict else 1):
            whole = row_of.get(key_of(b_no, result.name or None, result.address or None))
        if b_no is not None and whole is not None:
            found[b_no].add(whole)
        wholes.append(whole)

    def echo(result: Result, b_no: str | None, whole: int | None) -> Echo:
        if b_no is None:
            return without_number(result.name, result.address)
        # without name or address, a record counts only if the results of its number find all rows of the number
        if whole is not None and ((result.name and result.address) or found[b_no] == rows_of[b_no]):
            return Echo((whole,), has_number=True)
        if strict and whole is None and result.name and result.address:
            return Echo(_NO_ROWS, has_number=True)
        rows = rows_of.get(b_no, _NO_ROWS)
        if records:
            rows = {row for row in rows if not _contradicts((result.name, result.address), records[row])}
        return Echo(rows, has_number=True)

    return [echo(*item) for item in zip(results, numbers, wholes, strict=True)]


def _echo_without_number(records: Sequence[Texts | None], rows: int) -> Callable[[str | None, str | None], Echo]:
    # name and address together find rows; one of them alone only excludes rows
    rows_named: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row, texts in enumerate(records):
        if texts is not None:
            rows_named[fold_text(texts[0]), fold_text(texts[1])].add(row)

    def read_echo(name: str | None, address: str | None) -> Echo:
        if not records or not (name or address):
            return Echo(range(rows), has_number=False)
        named = rows_named.get((fold_text(name), fold_text(address)), _NO_ROWS) if name and address else _NO_ROWS
        return (
            Echo(named, has_number=True) if named else Echo(_CompatibleRows(records, (name, address)), has_number=False)
        )

    return read_echo


def _contradicts(said: Texts, sent: Texts | None) -> bool:
    if sent is None:
        return False
    return any(
        bool(ours and theirs) and is_other(str(theirs), str(ours)) for theirs, ours in zip(said, sent, strict=True)
    )


def _compact_numbers(texts: list[str | None]) -> list[str | None]:
    # one query for all, since a query costs a millisecond
    frame = pl.DataFrame({"b_no": texts}, schema={"b_no": pl.String})
    return frame.select(business_number.compact_expr(pl.col("b_no"))).to_series().to_list()


class Numbering(NamedTuple):
    """The proven numbering of rows: from ``since`` to ``until``, a row key is the row (from 0) plus ``base``."""

    base: int
    since: int
    until: int


def _read_row_keys(results: Sequence[Result]) -> list[int | None]:
    # no numbers at all if one key is something else: "12" among "1f" and "3e" is no row
    keys = [_integer(result.key) for result in results]
    opaque = any(key is None and result.key is not None for key, result in zip(keys, results, strict=True))
    return [None] * len(keys) if opaque else keys


def _integer(key: int | str | None) -> int | None:
    if isinstance(key, str):
        text = key.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
    return key if isinstance(key, int) and not isinstance(key, bool) else None


def _may_count_other_rows(keys: Sequence[int | None], totals: Collection[int | None], rows: int) -> bool:
    # the keys may count rows of another job, or only the remaining rows after some were left out (rows left out without
    # new numbers would leave a gap); a total of rows + 1 includes a header, and 0 means not counted yet
    odd = [total for total in totals if total and not rows <= total <= rows + 1]
    given = {key for key in keys if key is not None}
    has_no_gap = bool(given) and max(given) - min(given) + 1 == len(given)
    return any(total > rows for total in odd) or bool(odd and has_no_gap)


def find_numbering(
    keys: Sequence[int | None], echoes: Sequence[Echo], results: Sequence[Result], rows: int, *, foreign: bool
) -> Numbering | None:
    """Deduce which row each row key means; ``None`` without proof. ``foreign``: keys may be another job's."""
    # The key 0 proves base 0, the key rows + 1 proves base 2, the keys 1 and rows together prove base 1. An error that
    # repeats no record may be about the header: it counts only if every row has a key. A service may leave rows out and
    # number the others anew. So all keys are proven only by those of the first and the last row (one is enough if no
    # other base is possible). Two results with certain rows prove the keys between them, and with the key of the first
    # row also those before. Without repeated numbers, keys must not be foreign, ranks, or have two answers.
    items = zip(keys, echoes, results, strict=True)
    keyed = [(key, echo, result) for key, echo, result in items if key is not None and echo.rows]
    numbered = [(key, echo) for key, echo, _ in keyed if echo.has_number]
    sure = [(key, echo) for key, echo, result in keyed if echo.has_number or not result.error]
    left, counted = _possible_bases(sure), {key for key, _, _ in keyed}
    complete = len(counted) == rows
    if len(left) != 1 and complete:
        left = _possible_bases([(key, echo) for key, echo, _ in keyed])
    if len(left) != 1:
        return None
    base, last = left[0], rows - 1 + left[0]
    from_first = complete or base == max(_BASES) or base in {key for key, _ in sure}
    alone = foreign or _has_contradictions(keys, results) or _are_ranks(keys, results)
    if from_first and last in counted and (len(_possible_bases(numbered)) == 1 or not alone):
        return Numbering(base, base, last)
    witnesses = [key for key, echo in numbered if len(echo.rows) == 1]
    return Numbering(base, base if from_first else min(witnesses), max(witnesses)) if witnesses else None


def _possible_bases(items: Sequence[tuple[int, Echo]]) -> list[int]:
    return [base for base in _BASES if items and all(key - base in echo.rows for key, echo in items)]


def _has_contradictions(keys: Sequence[int | None], results: Sequence[Result]) -> bool:
    answers: dict[int, Answer] = {}
    return any(
        answers.setdefault(key, result.answer) != result.answer
        for key, result in zip(keys, results, strict=True)
        if key is not None and result.answer is not None
    )


def _are_ranks(keys: Sequence[int | None], results: Sequence[Result]) -> bool:
    answers = [result.answer for result in results if result.answer is not None]
    levels = [answer.bounce_prob for answer in answers if answer.bounce_prob is not None]
    first = keys[0] if keys else None
    if first is None or len(set(levels)) < _MIN_RANKS or list(keys) != list(range(first, first + len(keys))):
        return False
    return levels in (sorted(levels), sorted(levels, reverse=True))


_MIN_WITNESSES: Final = 100  # so many certain rows at their own position prove the order of all

EMPTY_ANSWER: Final = Answer()  # all of its fields are null or empty


@dataclass(frozen=True, slots=True)
class MatchedResults:
    """Answers and error texts (``faults``) by row of the upload, from 0; a row in neither has no identified answer."""

    answers: dict[int, Answer] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    note: str | None = None  # about results that fit no row
    base: int | None = None  # row key of the first row, if all row keys are proven


def match_results(
    results: Sequence[Result],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    *,
    records: Sequence[Texts | None] = (),  # name and address of each row sent, None if unknown
    totals: Collection[int | None] = (),  # how many rows the job has, as the service says
    shared: bool = False,  # another upload has the same job
    by_hand: bool = False,  # a person named the job, so other records mean another job
) -> MatchedResults:
    """Match results to the rows of an upload (``sent``: lookup key and business number, in order)."""
    # A result goes to the first of these that is proven: the row whose whole record it repeats (by key_of, or by name
    # and address in records); the row of its number, if sent once; the row of its key; the row at its own position, if
    # all results stand at rows of their numbers and enough of them prove the order. Two different answers for a row are
    # a fault.
    results = _drop_repeats(results)
    echoes = _read_echoes(results, sent, key_of, records, strict=shared or by_hand)
    keys = _read_row_keys(results)
    foreign = shared or _may_count_other_rows(keys, totals, len(sent))
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


def _drop_repeats(results: Sequence[Result]) -> list[Result]:
    # only results that name their row: by a key, or by a whole record
    seen: set[tuple[object, ...]] = set()
    kept: list[Result] = []
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
    results: Sequence[Result],
    sent: Sequence[tuple[bytes, str]],
) -> dict[int, str]:
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
    # Rows of one number cannot be told apart by position alone. The order is proven by many rows that are certain for
    # other reasons, each at its own position; their numbers must not be sorted, as the service may have sorted them.
    if len(places) != len(sent):
        return False
    items = enumerate(zip(places, echoes, strict=True))
    if not all(echo.has_number and here in echo.rows and place in (None, here) for here, (place, echo) in items):
        return False
    witnesses = [sent[place][1] for place in places if place is not None]
    ascending = sorted(witnesses)
    return len(witnesses) >= _MIN_WITNESSES and witnesses not in (ascending, ascending[::-1])


def _collect_answers(
    results: Sequence[Result], places: Sequence[int | None]
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
    note = gettext(
        "{lost:,} of {results:,} results fit no row of the upload for certain", lost=lost, results=len(places)
    )
    return gettext("{note}; the row keys do not prove themselves", note=note) if mistrusted else note
