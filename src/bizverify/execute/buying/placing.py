"""Which answer belongs to which row of an upload: placed where that is proven, and nowhere else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import polars as pl

from bizverify import number
from bizverify.model import Answer

KeyOf = Callable[[str, str | None, str | None], bytes]

_BASES: Final = (0, 1, 2)
"""What a service may call the first row: 0, 1, or 2, its line in the file."""

_WITNESSES: Final = 100
"""How many rows must be seen at their own position before the order of all is believed."""

NOTHING: Final = Answer()
"""An answer that says nothing: all of its fields are null or empty."""

_NOWHERE: Final[frozenset[int]] = frozenset()


class ResultLike(Protocol):
    """An item of a job's results: its row key, what it repeats of the row, and its answer or error."""

    @property
    def key(self) -> int | str | None: ...  # noqa: D102 - the class says it
    @property
    def b_no(self) -> str | None: ...  # noqa: D102
    @property
    def name(self) -> str | None: ...  # noqa: D102
    @property
    def address(self) -> str | None: ...  # noqa: D102
    @property
    def answer(self) -> Answer | None: ...  # noqa: D102
    @property
    def error(self) -> str | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Placed:
    """Answers and faults by place in the upload, and a note on what fits no place.

    ``base`` is what the service calls the first row, where row keys prove that.

    A place in neither was not answered, or not in a way that says whose the answer is.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    note: str | None = None
    base: int | None = None


@dataclass(frozen=True, slots=True)
class _Echo:
    """The places that an item can belong to by what it repeats of its row; ``said``: it repeats its number."""

    homes: Collection[int]
    said: bool


def place(
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    *,
    totals: Collection[int | None] = (),
    shared: bool = False,
    by_hand: bool = False,
) -> Placed:
    """Return what the results say of each row sent, given as (lookup key, number) in the order of the upload.

    An item goes, by the first of these that is proven,

    1. where its row key says, if exactly one way of counting (from 0, 1 or 2) agrees with all keys and all echoes;
    2. where the echo of its whole row says: ``key_of`` (number, name, address) is the key of one row sent;
    3. where the echo of its number says, if the number was sent once;
    4. to its own position, if every item stands at a row of its number, and enough of them prove the order.

    Two different answers for one row are a fault, and so are an error and an answer that says nothing. What fits
    nowhere for certain is counted in the note. ``totals`` is how many rows the service says that the job has,
    ``shared`` whether it is another upload's, too: either may say that row keys count other rows than these, and then
    they need echoes beside them. Where the job is shared, or was named ``by_hand``, an echo with another name or
    address than was sent is another job's.
    """
    echoes = _echoes(results, sent, key_of, strict=shared or by_hand)
    keys = _row_keys(results)
    foreign = shared or _recounted(keys, totals, len(sent))
    base = _base(keys, echoes, results, len(sent), foreign=foreign)
    places = [_sure_place(key, base, echo) for key, echo in zip(keys, echoes, strict=True)]
    if None in places and _in_order(places, echoes, sent):
        places = list(range(len(sent)))
    answers, faults = _settled(results, places)
    mistrusted = base is None and any(result.key is not None for result in results)
    return Placed(answers, faults, _note(places, mistrusted=mistrusted), base)


def _echoes(
    results: Sequence[ResultLike], sent: Sequence[tuple[bytes, str]], key_of: KeyOf, *, strict: bool
) -> list[_Echo]:
    """Return what each item's echo says of its place: any where there is none, none where it repeats another row.

    Where a number was sent more than once, the whole row decides. An echo without name or address may only be short of
    them, and then equals a row that was sent without; so it counts only if the echoes of a number find all its rows.
    Were echoes short, a row that they wrongly find would be found twice, and another not at all. If it is ``strict``, a
    whole row decides wherever it is echoed.
    """
    row_of = {key: row for row, (key, _) in enumerate(sent)}
    rows_of: defaultdict[str, set[int]] = defaultdict(set)
    for row, (_, its_number) in enumerate(sent):
        rows_of[its_number].add(row)

    numbers = _compacted([result.b_no for result in results])
    wholes: list[int | None] = []
    found: defaultdict[str, set[int]] = defaultdict(set)
    for result, b_no in zip(results, numbers, strict=True):
        whole = None
        if b_no is not None and len(rows_of.get(b_no, _NOWHERE)) > (0 if strict else 1):
            whole = row_of.get(key_of(b_no, result.name or None, result.address or None))
        if b_no is not None and whole is not None:
            found[b_no].add(whole)
        wholes.append(whole)

    def echo(result: ResultLike, b_no: str | None, whole: int | None) -> _Echo:
        if b_no is None:
            return _Echo(range(len(sent)), said=False)
        if whole is not None and ((result.name and result.address) or found[b_no] == rows_of[b_no]):
            return _Echo((whole,), said=True)
        if strict and whole is None and result.name and result.address:
            return _Echo(_NOWHERE, said=True)
        return _Echo(rows_of.get(b_no, _NOWHERE), said=True)

    return [echo(*item) for item in zip(results, numbers, wholes, strict=True)]


def _compacted(texts: list[str | None]) -> list[str | None]:
    """The ten digits of each, ``None`` where there are none; as one expression, since one value costs a millisecond."""
    frame = pl.DataFrame({"b_no": texts}, schema={"b_no": pl.String})
    return frame.select(number.compact_expr(pl.col("b_no"))).to_series().to_list()


def _row_keys(results: Sequence[ResultLike]) -> list[int | None]:
    """Return the keys as integers; none at all if one is anything else: "12" among "1f" and "3e" is no row."""
    keys = [_integer(result.key) for result in results]
    opaque = any(key is None and result.key is not None for key, result in zip(keys, results, strict=True))
    return [None] * len(keys) if opaque else keys


def _integer(key: int | str | None) -> int | None:
    if isinstance(key, str):
        text = key.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
    return key if isinstance(key, int) and not isinstance(key, bool) else None


def _recounted(keys: Sequence[int | None], totals: Collection[int | None], rows: int) -> bool:
    """Whether row keys may count other rows than were sent: the job is another's, or took fewer and numbers them anew.

    Where rows were left out and the others kept their numbers, the keys have a gap. A header may be counted as a row,
    and nothing may be counted yet.
    """
    odd = [total for total in totals if total and not rows <= total <= rows + 1]
    told = {key for key in keys if key is not None}
    return any(total > rows for total in odd) or bool(odd and told and max(told) - min(told) + 1 == len(told))


def _base(
    keys: Sequence[int | None],
    echoes: Sequence[_Echo],
    results: Sequence[ResultLike],
    rows: int,
    *,
    foreign: bool,
) -> int | None:
    """Return how the service counts rows, ``None`` unless that is proven.

    Every item rules out the bases under which its key is not a place that it can belong to. So the key 0 proves 0,
    the key rows + 1 proves 2, the keys 1 and rows together prove 1, and each echo rules out what disagrees with it; an
    item that repeats a row never sent says nothing. An error without an echo may be the header's, read as a row: it
    is heard only where there is a key for every row. Proven by their range alone, no key may come with two answers,
    nor may they be ``foreign``.
    """
    items = zip(keys, echoes, results, strict=True)
    told = [(key, echo, result) for key, echo, result in items if key is not None and echo.homes]
    heard = [(key, echo) for key, echo, _ in told if echo.said]
    sure = [(key, echo) for key, echo, result in told if echo.said or not result.error]
    left = _bases(sure)
    if len(left) != 1 and len({key for key, _, _ in told}) == rows:
        left = _bases([(key, echo) for key, echo, _ in told])
    if len(left) != 1 or (len(_bases(heard)) != 1 and (foreign or _contradict(keys, results))):
        return None
    return left[0]


def _bases(items: Sequence[tuple[int, _Echo]]) -> list[int]:
    """The bases that all of the items allow; none at all without an item."""
    return [base for base in _BASES if items and all(key - base in echo.homes for key, echo in items)]


def _contradict(keys: Sequence[int | None], results: Sequence[ResultLike]) -> bool:
    answers: dict[int, Answer] = {}
    return any(
        answers.setdefault(key, result.answer) != result.answer
        for key, result in zip(keys, results, strict=True)
        if key is not None and result.answer is not None
    )


def _sure_place(key: int | None, base: int | None, echo: _Echo) -> int | None:
    if key is not None and base is not None and key - base in echo.homes:
        return key - base
    return next(iter(echo.homes)) if echo.said and len(echo.homes) == 1 else None


def _in_order(places: Sequence[int | None], echoes: Sequence[_Echo], sent: Sequence[tuple[bytes, str]]) -> bool:
    """Whether the items stand in the order of the upload: proven, not merely possible.

    That every item stands at a row of its number says nothing of rows of one number, which may have changed places. It
    takes many rows whose place is known otherwise, each at its own position, in an order that is not the numbers' own.
    """
    if len(places) != len(sent):
        return False
    items = enumerate(zip(places, echoes, strict=True))
    if not all(echo.said and here in echo.homes and place in (None, here) for here, (place, echo) in items):
        return False
    witnesses = [sent[place][1] for place in places if place is not None]
    ascending = sorted(witnesses)
    return len(witnesses) >= _WITNESSES and witnesses not in (ascending, ascending[::-1])


def _settled(results: Sequence[ResultLike], places: Sequence[int | None]) -> tuple[dict[int, Answer], dict[int, str]]:
    answers: dict[int, Answer] = {}
    faults: dict[int, str] = {}
    empty: dict[int, str] = {}
    for result, row in zip(results, places, strict=True):
        if row is None:
            continue
        if result.error:
            faults[row] = result.error
        elif result.answer is None or result.answer == NOTHING:
            empty[row] = "the service gave no answer"
        elif answers.setdefault(row, result.answer) != result.answer:
            faults.setdefault(row, "two different answers")
    faults = {row: fault for row, fault in empty.items() if row not in answers} | faults
    return {row: answer for row, answer in answers.items() if row not in faults}, faults


def _note(places: Sequence[int | None], *, mistrusted: bool) -> str | None:
    lost = places.count(None)
    if not lost:
        return None
    note = f"{lost:,} of {len(places):,} results fit no row of the upload for certain"
    return f"{note}; the row keys do not prove themselves" if mistrusted else note
