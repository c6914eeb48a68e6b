"""Which answer belongs to which row of an upload: placed where that is proven, and nowhere else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import polars as pl

from bizverify import number
from bizverify.model import Answer
from bizverify.service.echo import folded, is_other

KeyOf = Callable[[str, str | None, str | None], bytes]
Texts = tuple[str | None, str | None]
"""Name and address."""

_BASES: Final = (0, 1, 2)
"""What a service may call the first row: 0, 1, or 2, its line in the file."""

_WITNESSES: Final = 100
"""How many rows must be seen at their own position before the order of all is believed."""

_NOWHERE: Final[frozenset[int]] = frozenset()


class ResultLike(Protocol):
    """An item of a job's results: its row key, what it repeats of the row, and its answer or error.

    ``is_question``: name and address are said to be what was asked, not the service's own record.
    """

    @property
    def key(self) -> int | str | None: ...  # noqa: D102 - the class says it
    @property
    def b_no(self) -> str | None: ...  # noqa: D102
    @property
    def name(self) -> str | None: ...  # noqa: D102
    @property
    def address(self) -> str | None: ...  # noqa: D102
    @property
    def is_question(self) -> bool: ...  # noqa: D102
    @property
    def answer(self) -> Answer | None: ...  # noqa: D102
    @property
    def error(self) -> str | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Placed:
    """Answers and faults by place in the upload, and a note on what fits no place.

    ``base`` is what the service calls the first row, where all row keys are proven to count from there.

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


class _Compatible(Collection[int]):
    """The rows that the name and address of an item without a number do not contradict; looked at where asked for."""

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


class _Numbering(NamedTuple):
    """What the service calls the first row, and the key up to which it is proven that none was left out."""

    base: int
    until: int


def place(
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    *,
    records: Sequence[Texts | None] = (),
    totals: Collection[int | None] = (),
    shared: bool = False,
    by_hand: bool = False,
) -> Placed:
    """Return what the results say of each row sent, given as (lookup key, number) in the order of the upload.

    An item goes, by the first of these that is proven,

    1. where the echo of its whole row says: ``key_of`` (number, name, address) is the key of one row sent, or name and
       address are those of one row of ``records`` (of each row sent, ``None`` where they are not known);
    2. where the echo of its number says, if the number was sent once;
    3. where its row key says: see :func:`_numbering`;
    4. to its own position, if every item stands at a row of its number, and enough of them prove the order.

    Two different answers for one row are a fault, and so is an error, or another number under the row's key. What fits
    nowhere for certain is counted in the note. ``totals`` is how many rows the service says that the job has,
    ``shared`` whether it is another upload's, too: either may say that row keys count other rows than these, and then
    they need echoes beside them. Where the job is shared, or was named ``by_hand``, an echo with another name or
    address than was sent is another job's.
    """
    results = _distinct(results)
    echoes = _echoes(results, sent, key_of, records, strict=shared or by_hand)
    keys = _row_keys(results)
    foreign = shared or _recounted(keys, totals, len(sent))
    numbering = _numbering(keys, echoes, results, len(sent), foreign=foreign)
    places = [_sure_place(key, numbering, echo) for key, echo in zip(keys, echoes, strict=True)]
    if None in places and _in_order(places, echoes, sent):
        places = list(range(len(sent)))
    answers, faults = _settled(results, places)
    if numbering is not None:
        others = _other_numbers(keys, numbering.base, echoes, results, sent)
        faults |= {row: fault for row, fault in others.items() if row not in answers and row not in faults}
    mistrusted = numbering is None and any(result.key is not None for result in results)
    proven = numbering is not None and all(key is None or key <= numbering.until for key in keys)
    base = numbering.base if numbering is not None and proven else None
    return Placed(answers, faults, _note(places, mistrusted=mistrusted), base)


def _distinct(results: Sequence[ResultLike]) -> list[ResultLike]:
    """Leave out items that say what another has said of the same row, which has a key or is echoed whole."""
    seen, kept = set(), list[ResultLike]()
    for result in results:
        said = (result.key, result.b_no, result.name, result.address, result.answer, result.error)
        named = result.key is not None or (result.b_no and result.name and result.address)
        if not named or said not in seen:
            kept.append(result)
        seen.add(said)
    return kept


def _echoes(
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    records: Sequence[Texts | None],
    *,
    strict: bool,
) -> list[_Echo]:
    """Return what each item's echo says of its place: any where there is none, none where it repeats another row.

    Where a number was sent more than once, the whole row decides. An echo without name or address may only be short of
    them, and then equals a row that was sent without; so it counts only if the echoes of a number find all its rows.
    Were echoes short, a row that they wrongly find would be found twice, and another not at all. If it is ``strict``, a
    whole row decides wherever it is echoed. A question that is repeated with another name or address is another row's;
    without its number, name and address say which rows an item cannot belong to.
    """
    row_of = {key: row for row, (key, _) in enumerate(sent)}
    rows_of: defaultdict[str, set[int]] = defaultdict(set)
    for row, (_, its_number) in enumerate(sent):
        rows_of[its_number].add(row)
    rows_named: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row, texts in enumerate(records):
        if texts is not None:
            rows_named[folded(texts[0]), folded(texts[1])].add(row)

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
        said = result.name, result.address
        if b_no is None:
            if not records or said == (None, None):
                return _Echo(range(len(sent)), said=False)
            named = rows_named.get((folded(said[0]), folded(said[1])), _NOWHERE) if all(said) else _NOWHERE
            return _Echo(named, said=True) if named else _Echo(_Compatible(records, said), said=False)
        if whole is not None and ((result.name and result.address) or found[b_no] == rows_of[b_no]):
            return _Echo((whole,), said=True)
        if strict and whole is None and result.name and result.address:
            return _Echo(_NOWHERE, said=True)
        homes = rows_of.get(b_no, _NOWHERE)
        if records and result.is_question:
            homes = {row for row in homes if not _contradicts(said, records[row])}
        return _Echo(homes, said=True)

    return [echo(*item) for item in zip(results, numbers, wholes, strict=True)]


def _contradicts(said: Texts, sent: Texts | None) -> bool:
    """Whether a name or address that an item repeats cannot be the one that was sent."""
    if sent is None:
        return False
    return any(
        bool(ours and theirs) and is_other(str(theirs), str(ours)) for theirs, ours in zip(said, sent, strict=True)
    )


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


def _numbering(
    keys: Sequence[int | None],
    echoes: Sequence[_Echo],
    results: Sequence[ResultLike],
    rows: int,
    *,
    foreign: bool,
) -> _Numbering | None:
    """Return how the service counts rows, and how far that is proven; ``None`` where it is not.

    Every item rules out the bases under which its key is not a place that it can belong to. So the key 0 proves 0,
    the key rows + 1 proves 2, the keys 1 and rows together prove 1, and each echo rules out what disagrees with it; an
    item that repeats a row never sent says nothing. An error without an echo may be the header's, read as a row: it
    is heard only where there is a key for every row.

    A service that leaves rows out may number the others anew, and then each key is too small by as many as were left
    out before it. So the key of the last row proves all keys, an item whose echo says its row those up to its own, and
    nothing else does. Proven by the last key alone, no key may come with two answers, nor may they be ``foreign``.
    """
    items = zip(keys, echoes, results, strict=True)
    told = [(key, echo, result) for key, echo, result in items if key is not None and echo.homes]
    heard = [(key, echo) for key, echo, _ in told if echo.said]
    sure = [(key, echo) for key, echo, result in told if echo.said or not result.error]
    left = _bases(sure)
    counted = {key for key, _, _ in told}
    if len(left) != 1 and len(counted) == rows:
        left = _bases([(key, echo) for key, echo, _ in told])
    if len(left) != 1:
        return None
    last = rows - 1 + left[0]
    if last in counted and (len(_bases(heard)) == 1 or not (foreign or _contradict(keys, results))):
        return _Numbering(left[0], last)
    witnesses = [key for key, echo in heard if len(echo.homes) == 1]
    return _Numbering(left[0], max(witnesses)) if witnesses else None


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


def _sure_place(key: int | None, numbering: _Numbering | None, echo: _Echo) -> int | None:
    if echo.said and len(echo.homes) == 1:
        return next(iter(echo.homes))
    if key is None or numbering is None or key > numbering.until:
        return None
    return key - numbering.base if key - numbering.base in echo.homes else None


def _other_numbers(
    keys: Sequence[int | None],
    base: int,
    echoes: Sequence[_Echo],
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
) -> dict[int, str]:
    """What is wrong with rows under whose key the service gave the answer to another number."""
    return {
        key - base: f"the result with this row's key is about {result.b_no}, and {sent[key - base][1]} was sent"
        for key, echo, result in zip(keys, echoes, results, strict=True)
        if key is not None and echo.said and not echo.homes and result.b_no and 0 <= key - base < len(sent)
    }


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
        elif result.answer is None:
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
