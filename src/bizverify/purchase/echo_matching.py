"""What the items of a job's results repeat of the rows that were sent, and so where each of them can belong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import polars as pl

from bizverify import business_number
from bizverify.client.echo import fold_text, is_other
from bizverify.schema import Answer

KeyOf = Callable[[str, str | None, str | None], bytes]
Texts = tuple[str | None, str | None]
"""Name and address."""

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
class Echo:
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


def echoes_of(
    results: Sequence[ResultLike],
    sent: Sequence[tuple[bytes, str]],
    key_of: KeyOf,
    records: Sequence[Texts | None],
    *,
    strict: bool,
) -> list[Echo]:
    """Return what each item's echo says of its place: any where there is none, none where it repeats another row.

    Where a number was sent more than once, the whole row decides. An echo without name or address may only be short of
    them, and then equals a row that was sent without; so it counts only if the echoes of a number find all its rows.
    Were echoes short, a row that they wrongly find would be found twice, and another not at all. If it is ``strict``, a
    whole row decides wherever it is echoed. A number that is repeated
    with another name or address is another row's.
    """
    row_of = {key: row for row, (key, _) in enumerate(sent)}
    rows_of: defaultdict[str, set[int]] = defaultdict(set)
    for row, (_, its_number) in enumerate(sent):
        rows_of[its_number].add(row)
    without_number = _named_homes(records, len(sent))

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

    def echo(result: ResultLike, b_no: str | None, whole: int | None) -> Echo:
        if b_no is None:
            return without_number(result.name, result.address)
        if whole is not None and ((result.name and result.address) or found[b_no] == rows_of[b_no]):
            return Echo((whole,), said=True)
        if strict and whole is None and result.name and result.address:
            return Echo(_NOWHERE, said=True)
        homes = rows_of.get(b_no, _NOWHERE)
        if records:
            homes = {row for row in homes if not _contradicts((result.name, result.address), records[row])}
        return Echo(homes, said=True)

    return [echo(*item) for item in zip(results, numbers, wholes, strict=True)]


def _named_homes(records: Sequence[Texts | None], rows: int) -> Callable[[str | None, str | None], Echo]:
    """Return what says where an item without a number can belong by the name and address that it repeats.

    Both together find the rows that were sent with them; else they only tell where it cannot belong.
    """
    rows_named: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row, texts in enumerate(records):
        if texts is not None:
            rows_named[fold_text(texts[0]), fold_text(texts[1])].add(row)

    def homes(name: str | None, address: str | None) -> Echo:
        if not records or not (name or address):
            return Echo(range(rows), said=False)
        named = rows_named.get((fold_text(name), fold_text(address)), _NOWHERE) if name and address else _NOWHERE
        return Echo(named, said=True) if named else Echo(_Compatible(records, (name, address)), said=False)

    return homes


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
    return frame.select(business_number.compact_expr(pl.col("b_no"))).to_series().to_list()
