"""Find the columns that an earlier run added to a table, even if they were moved."""
# Users have columns with our names (``grade``), too. A table is an earlier output only if it has several of the nine
# headers in one language, two of which only we use, and our words in two columns. In such a table, a column is ours if
# its cells show it, or if a neighbour is the one that we write beside it.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

import polars as pl

from bansong.base.messages import Lang
from bansong.base.schema import (
    ACTIONS,
    ADDED_COLUMNS,
    BIZ_STATUSES,
    DECIDED_MARKS,
    EARLIER_WORDS,
    EXTRA_COLUMNS,
    GRADES,
    HEADERS,
    KOREAN_WORDS,
    LABEL_COLUMNS,
    OUR_COLUMNS,
    REASON_SEPARATOR,
    ROW_STATUSES,
)
from bansong.tables.roles import PROVINCE
from bansong.tables.table import SAMPLE_ROWS, Table, contract_name

_MANY: Final = 6  # users do not have so many of the nine headers
_SOME: Final = 3
_PROOFS: Final = 2
_LABELS: Final = 2
_COINED: Final = 2
_USUAL_HEADERS: Final = frozenset({"grade", "action", "reasons", "row_note", "조치", "처리 상태", "처리 메모"})
_CODES: Final = {"biz_status": BIZ_STATUSES, "action": ACTIONS, "grade": GRADES, "row_status": ROW_STATUSES}
_VALUES: Final = {
    **{
        name: (*codes, *KOREAN_WORDS.get(name, {}).values(), *EARLIER_WORDS.get(name, {}))
        for name, codes in _CODES.items()
    },
    "match_level": (*KOREAN_WORDS["match_level"], *KOREAN_WORDS["match_level"].values()),
}
_PATTERNS: Final = {
    "bounce_prob": r"^(0(\.[0-9]+)?|1(\.0+)?|[0-9.]+[eE]-[0-9]+|[0-9.]+%)$",
    "fixed_zipcode": r"^[0-9]{4,5}(\.0)?$",
    "fixed_address": rf"{PROVINCE}[가-힣]*[시도]\s",
    "reasons": r"^\[[^\]]+ [+-]?[0-9]+\] ",
    "bounced": r"^(?i)(true|false)$",
    "bounced_at": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "duplicate_of": r"^[0-9]+(\.0)?$",
    "district_code": r"^[0-9]{10}$",
    "building_code": r"^[0-9]{25}$",
}
_LOCAL_REASON: Final = r"\[base [+-]?[0-9]+\]|\(registry|\(nts, "
_SERVICE_WORDS: Final = frozenset({"biz_status", "grade", "action", "fixed_zipcode", "fixed_address"})
_PLAIN: Final = frozenset({"fixed_zipcode", "fixed_address"})  # columns whose cells anybody may have written
# users have such columns, too; all copies are ours only if another column of ours has two copies
_TYPED: Final = frozenset({"grade", "action", "fixed_zipcode", "fixed_address", "row_note"})
_ANSWERED: Final = [word for code in ("verified", "cached") for word in (code, KOREAN_WORDS["row_status"][code])]
_MOST: Final = 0.5
_FEW: Final = 0.25
_WIDEST: Final = 0.5  # largest difference of probabilities with one grade
_THEIRS, _DOUBTFUL, _OPEN, _PROVED = range(4)  # a column is: the user's; perhaps the user's; unknown; ours


@dataclass(frozen=True, slots=True)
class EarlierColumns:
    """Positions of an earlier run's columns by contract name; a second copy of a column has ``+2`` in its name."""

    nine: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    extras: Mapping[str, int] = field(default_factory=dict)

    @property
    def places(self) -> frozenset[int]:
        return frozenset((*self.nine.values(), *self.labels.values(), *self.extras.values()))

    @property
    def is_whole(self) -> bool:
        return set(ADDED_COLUMNS) <= self.nine.keys()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A column with one of our headers."""

    place: int
    name: str
    rank: int  # 0 for ``grade``, 1 for ``grade_bv``, 2 for ``grade_bv2``
    header: str
    lang: Lang
    level: int = _OPEN


def find_earlier_columns(table: Table, prefix: str) -> EarlierColumns:
    """Find the columns of earlier runs, whose headers begin with ``prefix``; none if the table is no output."""
    candidates = _candidates(table.headers, prefix)
    if len({one.name for one in candidates}.intersection(ADDED_COLUMNS)) < _SOME:
        return EarlierColumns()
    candidates = _judge(table, candidates)
    ours: list[_Candidate] = []
    for lang in HEADERS:
        nine = [one for one in candidates if one.lang == lang and one.name in ADDED_COLUMNS]
        chosen = _choose(nine) if _is_output(nine) else []
        others = [one for one in nine if one not in chosen and one.level > _DOUBTFUL]
        # added by an even earlier run, and taken for the user's by a later one
        ours += chosen + (others if len({one.name for one in others}) >= _MANY else [])
    if not ours:
        return EarlierColumns()
    places = sorted(one.place for one in ours)
    behind = [one for one in candidates if one.place > places[len(places) // 2]]
    labels = [one for one in _choose(behind, LABEL_COLUMNS) if one.level > _DOUBTFUL]
    has_labels = len({one.name for one in labels}) >= _LABELS
    return EarlierColumns(
        _by_name(ours),
        _by_name(labels if has_labels else ()),
        _by_name(one for one in _choose(behind, EXTRA_COLUMNS) if one.level > _DOUBTFUL),
    )


def added_later(headers: Sequence[str], earlier: EarlierColumns) -> tuple[str, ...]:
    """Return the headers of the user's columns that stand between ours."""
    places = earlier.places
    between = range(min(places), max(places)) if places else range(0)
    return tuple(headers[place] for place in between if place not in places and headers[place])


def _candidates(headers: Sequence[str], prefix: str) -> list[_Candidate]:
    titles = {prefix + of_lang[name]: (name, lang) for lang, of_lang in HEADERS.items() for name in OUR_COLUMNS}
    found = []
    for place, header in enumerate(headers):
        suffixed = None if header in titles else re.fullmatch(r"(.*)_bv([0-9]*)", header, re.DOTALL)
        own, rank = (suffixed[1], int(suffixed[2] or 1)) if suffixed else (header, 0)
        if own in titles:
            name, lang = titles[own]
            found.append(_Candidate(place, name, rank, own.removeprefix(prefix), lang))
    return found


def _judge(table: Table, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    ids = table.ids
    schema = table.frame.collect_schema()
    cells = {one: _text(pl.col(ids[one.place]), schema[ids[one.place]]) for one in candidates}
    sample = table.head(SAMPLE_ROWS).select(cell.alias(f"c{one.place}") for one, cell in cells.items()).collect()
    shares = sample.select(_is_ours(one.name, _cell(one)).mean().alias(f"c{one.place}") for one in candidates)
    has_own_words = _has_own_words(sample, candidates)
    judged = [replace(one, level=_level(one, shares[f"c{one.place}"].item(), has_own_words)) for one in candidates]
    risk = _candidates_of(judged, "bounce_prob", _PROVED)[:1]
    grades = _candidates_of(judged, "grade", _DOUBTFUL) if risk else []
    theirs = {one for one in grades if _disagree(sample, one, risk[0])}
    if not has_own_words:
        theirs.update(_find_unpaired(sample, judged), _other_notes(sample, judged))
    return [replace(one, level=_THEIRS) if one in theirs else one for one in judged]


def _cell(one: _Candidate) -> pl.Expr:
    return pl.col(f"c{one.place}")


def _is_filled(one: _Candidate) -> pl.Expr:
    return (_cell(one).str.strip_chars() != "").fill_null(value=False)


def _candidates_of(candidates: Iterable[_Candidate], name: str, level: int) -> list[_Candidate]:
    return sorted((one for one in candidates if one.name == name and one.level >= level), key=lambda one: -one.rank)


def _has_own_words(sample: pl.DataFrame, candidates: Sequence[_Candidate]) -> bool:
    reasons = [_cell(one) for one in candidates if one.name == "reasons"]
    served, local = (
        [cell.str.contains(pattern).any() for cell in reasons] for pattern in (_PATTERNS["reasons"], _LOCAL_REASON)
    )
    return bool(reasons) and sample.select(pl.any_horizontal(served) & ~pl.any_horizontal(local)).item()


def _text(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if isinstance(dtype, pl.List) and dtype.inner == pl.String:
        return column.list.join(REASON_SEPARATOR)
    if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        return pl.lit("?")
    return column.cast(pl.String)


def _is_ours(name: str, text: pl.Expr) -> pl.Expr:
    """Whether a cell has one of our values (Boolean); null for blank cells and columns of free text."""
    if name in _VALUES:
        fits = text.is_in(_VALUES[name])
    elif name in _PATTERNS:
        fits = text.str.contains(_PATTERNS[name])
    else:
        return pl.lit(None, pl.Boolean)
    return pl.when(text.str.strip_chars() != "").then(fits)


def _level(one: _Candidate, share: float | None, has_own_words: bool) -> int:
    if share is None:
        return _OPEN
    if share > _MOST:
        return _PROVED
    if share < _FEW and not (has_own_words and one.name in _SERVICE_WORDS):
        return _THEIRS
    return _DOUBTFUL if one.header in _USUAL_HEADERS or one.name not in ADDED_COLUMNS else _OPEN


def _disagree(sample: pl.DataFrame, grade: _Candidate, probability: _Candidate) -> bool:
    """Whether the grades contradict the probabilities: they do not rise with them."""
    risk = _cell(probability).str.strip_chars(" %").cast(pl.Float64, strict=False)
    rated = sample.select(grade=_cell(grade), risk=risk).drop_nulls().filter(pl.col("grade").is_in(GRADES))
    if rated.is_empty():
        return False
    grades = rated.sort("risk", "grade", descending=[False, True])["grade"]
    rising = pl.zeros(grades.len(), pl.Int64, eager=True)  # length of the longest series of grades that never falls
    for letter in GRADES:
        of_letter = (grades == letter).cast(pl.Int64).cum_sum()
        rising = of_letter + (rising - of_letter).cum_max().clip(0)
    usual = grades.value_counts().select(pl.col("count").max()).item()
    if usual == grades.len():  # all rows have one grade
        return bool(rated.select(pl.col("risk").max() - pl.col("risk").min() > _WIDEST).item())
    return bool((rising[-1] - usual) / (grades.len() - usual) < _MOST)


def _find_unpaired(sample: pl.DataFrame, judged: Sequence[_Candidate]) -> list[_Candidate]:
    addresses, codes = (_candidates_of(judged, name, _DOUBTFUL) for name in ("fixed_address", "fixed_zipcode"))
    if not addresses or not codes:
        return []
    best = dict.fromkeys([*addresses, *codes], 0.0)
    for address, code in product(addresses, codes):
        both, either = _is_filled(address) & _is_filled(code), _is_filled(address) | _is_filled(code)
        found, rows = sample.select(both.sum(), either.sum().alias("either")).row(0)
        is_as_written = address.place == code.place + 1  # people may have typed one of the two
        share = found / rows if rows and not is_as_written else 1.0
        best[address], best[code] = max(best[address], share), max(best[code], share)
    filled = {one: sample.select(_is_filled(one).sum()).item() for one in best}
    by_size = sorted((one for one in best if filled[one]), key=filled.__getitem__)
    if max(best.values()) < _MOST:  # the fuller one is ours, unless the other is empty
        return by_size[:-1] or by_size
    return [one for one in by_size if best[one] < _MOST]


def _other_notes(sample: pl.DataFrame, judged: Sequence[_Candidate]) -> list[_Candidate]:
    """Find the user's own columns of notes. They have notes mostly in answered rows, ours in unanswered ones."""
    answered = [_cell(one).is_in(_ANSWERED) for one in _candidates_of(judged, "row_status", _PROVED)[:1]]
    notes = _candidates_of(judged, "row_note", _OPEN) if answered else []
    marked = "|".join(DECIDED_MARKS.values())  # ours, in answered rows
    own = {one: _is_filled(one) & ~_cell(one).str.contains(marked) for one in notes}
    shares = {one: sample.filter(filled).select(answered[0].mean()).item() for one, filled in own.items()}
    return [one for one, share in shares.items() if (share or 0.0) > 1 - _FEW]


def _is_output(candidates: Sequence[_Candidate]) -> bool:
    names = {one.name for one in candidates if one.level > _DOUBTFUL}
    proofs = {one.name for one in candidates if one.level == _PROVED} - _PLAIN
    coined = {one.name for one in candidates if one.header not in _USUAL_HEADERS}
    return len(names) >= _MANY or (len(names) >= _SOME and len(proofs) >= _PROOFS and len(coined) >= _COINED)


def _choose(candidates: Sequence[_Candidate], names: Sequence[str] = ADDED_COLUMNS) -> list[_Candidate]:
    at = {one.place: one.name for one in candidates if one.level > _DOUBTFUL}

    def adjacent(one: _Candidate) -> int:
        position = names.index(one.name)
        before, after = names[position - 1 : position], names[position + 1 : position + 2]
        return (at.get(one.place - 1) in before) + (at.get(one.place + 1) in after)

    chosen: dict[str, list[_Candidate]] = {}
    for name in names:
        fitting = _candidates_of(candidates, name, _OPEN)
        newest = [one for one in fitting if one.rank == fitting[0].rank]
        doubtful = [one for one in candidates if one.name == name and one.level == _DOUBTFUL and adjacent(one)]
        chosen[name] = [one for one in newest if one.level == _PROVED] or newest or doubtful
    if not any(len(chosen[name]) > 1 for name in names if name not in _TYPED):
        chosen = {name: sorted(found, key=adjacent)[-1:] for name, found in chosen.items()}
    return [one for found in chosen.values() for one in found]


def _by_name(chosen: Iterable[_Candidate]) -> dict[str, int]:
    places: dict[str, int] = {}
    for one in chosen:
        again = sum(contract_name(name) == one.name for name in places) + 1
        places[one.name if again == 1 else f"{one.name}+{again}"] = one.place
    return places
