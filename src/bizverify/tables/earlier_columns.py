"""Finds the columns that an earlier run added to a table, wherever they stand now.

People delete, move and insert columns in an output before they enrich it again. Two mistakes are possible: to
overwrite a column of the user's that has one of our names (``grade``), and to leave an old verdict beside the new one.
So a header is not enough. A table counts as an earlier output if several of the nine headers are there in one
language, two of which nobody else has, and the cells of two are what we write. Then a column is ours if its cells are,
or if it stands beside a neighbour from the contract's order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import polars as pl

from bizverify.column_words import HEADERS, KOREAN_WORDS
from bizverify.schema import (
    ACTIONS,
    ADDED_COLUMNS,
    BIZ_STATUSES,
    EXTRA_COLUMNS,
    GRADES,
    LABEL_COLUMNS,
    OUR_COLUMNS,
    REASON_SEPARATOR,
    ROW_STATUSES,
    Lang,
)
from bizverify.tables.column_preference import SAMPLE_ROWS
from bizverify.tables.table import Table, contract_name

_MANY: Final = 6
"""So many of the nine headers are enough: nobody else has them."""
_SOME: Final = 3
_PROOFS: Final = 2
_LABELS: Final = 2
_COINED: Final = 2
_USUAL_HEADERS: Final = frozenset({"grade", "action", "reasons", "row_note", "조치", "처리 상태", "처리 메모"})
"""Headers that users have, too."""
_CODES: Final = {"biz_status": BIZ_STATUSES, "action": ACTIONS, "grade": GRADES, "row_status": ROW_STATUSES}
_VALUES: Final = {
    **{name: (*codes, *KOREAN_WORDS.get(name, {}).values()) for name, codes in _CODES.items()},
    "match_level": (*KOREAN_WORDS["match_level"], *KOREAN_WORDS["match_level"].values()),
}
_PATTERNS: Final = {
    "bounce_prob": r"^(0(\.[0-9]+)?|1(\.0+)?|[0-9.]+[eE]-[0-9]+)$",
    "reasons": r"^\[[^\]]+ [+-]?[0-9]+\] ",
    "bounced": r"^(?i)(true|false)$",
    "bounced_at": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "duplicate_of": r"^[0-9]+(\.0)?$",
    "district_code": r"^[0-9]{10}$",
    "building_code": r"^[0-9]{25}$",
}
_FOREIGN, _OPEN, _PROVED = range(3)
"""What a column's cells say: they are not ours; nothing; they are ours."""


@dataclass(frozen=True, slots=True)
class EarlierColumns:
    """Positions of the columns of an earlier run by contract name: the nine, outcomes, extra columns.

    A column that stands twice has ``+2`` behind its name (see :func:`bizverify.tables.table.contract_name`).
    """

    nine: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    extras: Mapping[str, int] = field(default_factory=dict)

    @property
    def places(self) -> frozenset[int]:
        """The positions of all."""
        return frozenset((*self.nine.values(), *self.labels.values(), *self.extras.values()))

    @property
    def is_whole(self) -> bool:
        """Whether all nine columns are there."""
        return set(ADDED_COLUMNS) <= self.nine.keys()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A column whose header is one of ours; ``rank``: 0 for ``grade``, 1 for ``grade_bv``, 2 for ``grade_bv2``."""

    place: int
    name: str
    rank: int
    header: str
    lang: Lang
    level: int = _OPEN


def find_earlier_columns(table: Table, prefix: str) -> EarlierColumns:
    """Return where the columns of an earlier run stand; none in a table that never was an output.

    Where the user has a column of the same name, ours has ``_bv`` behind it and is the one that is found. Outcomes and
    extra columns stand behind the nine.
    """
    candidates = _candidates(table.headers, prefix)
    if len({one.name for one in candidates}.intersection(ADDED_COLUMNS)) < _SOME:
        return EarlierColumns()
    candidates = _judge(table, candidates)
    ours: list[_Candidate] = []
    for lang in HEADERS:
        nine = [one for one in candidates if one.lang == lang and one.name in ADDED_COLUMNS]
        chosen = _choose(nine) if _is_output(nine) else []
        others = [one for one in nine if one not in chosen and one.level != _FOREIGN]
        # of an even earlier run, which a later one took for the user's
        ours += chosen + (others if len({one.name for one in others}) >= _MANY else [])
    if not ours:
        return EarlierColumns()
    places = sorted(one.place for one in ours)
    behind = [one for one in candidates if one.place > places[len(places) // 2]]
    labels = [one for one in _choose(behind, LABEL_COLUMNS) if one.level != _FOREIGN]
    has_labels = len({one.name for one in labels}) >= _LABELS
    return EarlierColumns(
        _by_name(ours),
        _by_name(labels if has_labels else ()),
        _by_name(one for one in _choose(behind, EXTRA_COLUMNS) if one.level != _FOREIGN),
    )


def added_later(headers: Sequence[str], earlier: EarlierColumns) -> tuple[str, ...]:
    """Return the headers of the user's columns between those of an earlier run."""
    places = earlier.places
    between = range(min(places), max(places)) if places else range(0)
    return tuple(headers[place] for place in between if place not in places and headers[place])


def _candidates(headers: Sequence[str], prefix: str) -> list[_Candidate]:
    titles = {prefix + of_lang[name]: (name, lang) for lang, of_lang in HEADERS.items() for name in OUR_COLUMNS}
    found = []
    for place, header in enumerate(headers):
        own, again = (header, None) if header in titles else _split_suffix(header)
        if own in titles:
            rank = 0 if again is None else int(again or 1)
            name, lang = titles[own]
            found.append(_Candidate(place, name, rank, own.removeprefix(prefix), lang))
    return found


def _split_suffix(header: str) -> tuple[str, str | None]:
    found = re.fullmatch(r"(.*)_bv([0-9]*)", header, re.DOTALL)
    return (found[1], found[2]) if found else (header, None)


def _judge(table: Table, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Judge the candidates by their first cells: most of those that hold anything decide."""
    ids = table.ids
    schema = table.frame.collect_schema()
    cells = {one: _text(pl.col(ids[one.place]), schema[ids[one.place]]) for one in candidates}
    sample = table.frame.head(SAMPLE_ROWS).select(cell.alias(ids[one.place]) for one, cell in cells.items()).collect()
    shares = sample.select(
        _is_ours(one.name, pl.col(ids[one.place])).mean().alias(ids[one.place]) for one in candidates
    )
    levels = dict(zip(shares.columns, shares.row(0), strict=True))
    judged = [replace(one, level=_level(one, levels[ids[one.place]])) for one in candidates]
    ranked = next((one for one in judged if one.name == "bounce_prob" and one.level == _PROVED), None)
    return [
        replace(one, level=_FOREIGN)
        if one.name == "grade" and ranked and _disagree(sample, ids[one.place], ids[ranked.place])
        else one
        for one in judged
    ]


def _text(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.List) and dtype.inner == pl.String:
        return column.list.join(REASON_SEPARATOR)
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        return pl.lit("?")
    return column.cast(pl.String)


def _is_ours(name: str, text: pl.Expr) -> pl.Expr:
    """Whether a cell is what we write (Boolean), null for blank cells and for columns that may hold anything."""
    if name in _VALUES:
        fits = text.is_in(_VALUES[name])
    elif name in _PATTERNS:
        fits = text.str.contains(_PATTERNS[name])
    else:
        return pl.lit(None, pl.Boolean)
    return pl.when(text.str.strip_chars() != "").then(fits)


def _level(one: _Candidate, share: float | None) -> int:
    if share is None:
        return _OPEN
    if share > 0.5:
        return _PROVED
    # probabilities and reasons have one form, the service's too; its status words may be any
    is_other = share == 0 and one.name in _PATTERNS
    return _FOREIGN if is_other or one.header in _USUAL_HEADERS or one.name not in ADDED_COLUMNS else _OPEN


def _disagree(sample: pl.DataFrame, grade: str, probability: str) -> bool:
    """Whether grades are another's: our probabilities of one grade do not reach into those of the next."""
    rated = sample.select(grade=pl.col(grade), p=pl.col(probability).cast(pl.Float64, strict=False)).drop_nulls()
    spans = rated.group_by("grade").agg(low=pl.col("p").min(), high=pl.col("p").max()).sort("grade").rows()
    return any(before[2] > after[1] for before, after in pairwise(spans))


def _is_output(candidates: Sequence[_Candidate]) -> bool:
    names = {one.name for one in candidates if one.level != _FOREIGN}
    proofs = {one.name for one in candidates if one.level == _PROVED}
    coined = {one.name for one in candidates if one.header not in _USUAL_HEADERS}
    return len(names) >= _MANY or (len(names) >= _SOME and len(proofs) >= _PROOFS and len(coined) >= _COINED)


def _choose(candidates: Sequence[_Candidate], names: Sequence[str] = ADDED_COLUMNS) -> list[_Candidate]:
    """Choose the columns of each name that are ours: by their cells those of the last suffix, else by their place."""
    at = {one.place: one for one in candidates if one.level != _FOREIGN}
    chosen: list[_Candidate] = []
    for position, name in enumerate(names):
        of_name = [one for one in candidates if one.name == name]
        fitting = [one for one in of_name if one.level != _FOREIGN]
        last = max((one.rank for one in fitting), default=0)
        beside = {names[position - 1] if position else "": -1, names[position + 1] if name != names[-1] else "": 1}
        newest = [one for one in fitting if one.rank == last]
        chosen += (
            [one for one in newest if one.level == _PROVED]
            or newest
            or [
                one
                for one in of_name
                if any((found := at.get(one.place + step)) and found.name == other for other, step in beside.items())
            ]
        )
    return chosen


def _by_name(chosen: Iterable[_Candidate]) -> dict[str, int]:
    places: dict[str, int] = {}
    for one in chosen:
        again = sum(contract_name(name) == one.name for name in places) + 1
        places[one.name if again == 1 else f"{one.name}+{again}"] = one.place
    return places
