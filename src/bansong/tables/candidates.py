"""Rank several columns that fit a role, and word the notes on the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import polars as pl

from bansong.base.errors import ColumnError, Problem
from bansong.base.messages import Option, current_language, gettext, gettext_noop, parameter
from bansong.base.schema import Alert, Choice, JoinedColumn, role_word
from bansong.tables.headers import (
    PURPOSES,
    Notation,
    Purpose,
    address_parts,
    is_detail,
    is_trap,
    notation_of,
    purpose_of,
)
from bansong.tables.roles import BEGINNING, CONFIDENCE, PROVINCE, holds_address, is_filled, is_sure_address
from bansong.tables.table import Table

SEVERAL_ADDRESS_COLUMNS: Final = Problem(
    "columns.several_address_columns",
    "{name}: {names} fit equally well as the address, and they differ; choose with {parameter}",
)

SAMPLE_ROWS: Final = 1000
_NOTATIONS: Final[tuple[Notation, ...]] = ("road", "any", "lot")
_KINDS: Final[Mapping[Purpose, str]] = {
    "mail": gettext_noop("a mailing address"),
    "delivery": gettext_noop("a delivery address"),
    "business": gettext_noop("the address of the business"),
    "billing": gettext_noop("a billing address"),
    "head office": gettext_noop("a head office"),
    "site": gettext_noop("a site"),
    "home": gettext_noop("a home"),
    "former": gettext_noop("a former address"),
}
_MARGIN: Final = 0.05  # shares that differ by less are taken for equal
_MOSTLY: Final = 0.5
_FEW: Final = 0.1
_SAME: Final = 0.95
_SAYS: Final = (is_filled, holds_address)
_ZIPCODE: Final = r"^\W*(?:[0-9]{4,5}|[0-9]{3}-[0-9]{2})(?:\.0)?\W*$"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A column that fits a role: the shares of its first rows that are filled, and that hold the right kind of text."""

    choice: Choice
    purpose: Purpose | None
    notation: Notation
    filled: float
    right: float
    whole: float  # the share of its texts that begin with a province, as whole addresses do

    @property
    def place(self) -> int:
        return self.choice.column

    @property
    def kind(self) -> Purpose:
        return self.purpose or "business"

    @property
    def group(self) -> tuple[int, bool]:
        return list(PURPOSES).index(self.kind), self.choice.why == "similar"

    def __str__(self) -> str:
        said = {"header": self.choice.header, "place": self.place + 1, "filled": self.filled}
        return gettext("{header!r} (#{place}, {filled:.0%} filled)", **said)


class Preferred(NamedTuple):
    """The column chosen for a role, if any, and notes for the user."""

    choice: Choice | None
    notes: tuple[str, ...] = ()


class ColumnCandidates:
    """The columns of a table by header and by their first rows (``sample``, all text)."""

    def __init__(self, table: Table, sample: pl.DataFrame, rated: Callable[[str, int], Choice | None]) -> None:
        self.table = table
        self._sample = sample
        self._is_cut = sample.height == SAMPLE_ROWS  # there may be more rows
        self._rate = rated

    def address(self, places: Sequence[int]) -> Preferred:
        bases, details = self._addresses(places)
        rest = details
        if not bases:  # 상세주소 alone is the address where it holds some
            bases, details = [one for one in details if self._rate("address", one.place) and self._begins(one)], []
        if not bases:
            return Preferred(None, self._without_address(places, rest))
        most = max(base.right for base in bases)
        usable = [base for base in bases if base.right >= most * _MOSTLY]
        fullest: dict[tuple[int, bool], float] = {}
        for base in usable:
            fullest[base.group] = max(base.right, fullest.get(base.group, 0.0))
        ranked = sorted(usable, key=lambda base: _address_rank(base, fullest[base.group]))
        best = ranked[0]
        chain = self._alternatives(best, bases)
        left = [base for base in ranked[1:] if base not in chain]
        notes = self._compare_addresses(best, left, fullest[best.group], self._filled_share(chain))
        notes += [
            _passed_over(base, best) for base in bases if base not in usable and self._is_missed(base, best, chain)
        ]
        advice = "|".join(_advice(self.table, one) for one in chain)
        if len(chain) > 1:
            notes.append(_alternatives_note("address", chain, _advice(self.table, chain[0])))
        choices = []
        for one in chain:
            rests = [detail for detail in details if one in _owners(detail, bases, details)]
            joined = tuple(JoinedColumn(rest.place, rest.choice.header) for rest in rests)
            notes += [_joined_note(one, joined, advice)] if joined else []
            choices.append(replace(one.choice, joined=joined))
        return Preferred(replace(choices[0], otherwise=tuple(choices[1:])), tuple(notes))

    def address_by_content(self, pools: Sequence[Sequence[int]], headed: Choice | None) -> tuple[Choice, Alert] | None:
        beaten = [self._candidate("address", one) for one in headed.alternatives] if headed else []
        if any(one.right >= _FEW for one in beaten):
            return None
        place, share = max(map(self._sure_address, pools), key=lambda one: one[1] >= _MOSTLY)
        if share < _MOSTLY:
            return None
        choice = Choice(place, self.table.headers[place], CONFIDENCE, "content")
        text = gettext(
            "{role}: {best} was chosen by what it holds, and not by its header: "
            "{share:.0%} of the rows hold an address there",
            role=role_word("address", current_language()),
            best=self._candidate("address", choice),
            share=share,
        )
        if beaten:
            names = gettext(" and ").join(map(str, beaten))
            text += gettext("; {names} fits by its header, but holds hardly any", names=names)
        another = parameter("columns", {"address": gettext("HEADER")})
        return choice, Alert(text + gettext("; {parameter} takes another", parameter=another))

    def _sure_address(self, places: Sequence[int]) -> tuple[int, float]:
        names, headers, sampled = self.table.ids, self.table.headers, set(self._sample.columns)
        fit = [at for at in places if names[at] in sampled and not is_trap("address", headers[at])]
        sure = {names[at]: is_sure_address(pl.col(names[at])).mean().fill_null(0.0) for at in fit}
        shares = self._sample.select(**sure)
        return max(zip(fit, shares.row(0), strict=True), key=lambda one: one[1]) if fit else (-1, 0.0)

    def _alternatives(self, best: Candidate, bases: Sequence[Candidate]) -> list[Candidate]:
        ranked = sorted(bases, key=lambda base: (_header_rank(base), -base.right, base.place))
        fitting = [base for base in ranked if base.kind == best.kind and base.filled * _MOSTLY <= base.right > 0]
        order = _NOTATIONS.index(best.notation)
        before = [base for base in fitting if base.group == best.group and _NOTATIONS.index(base.notation) < order]
        chain = {base.notation: base for base in reversed(before)}
        chain = {notation: chain[notation] for notation in _NOTATIONS if notation in chain} | {best.notation: best}
        for base in fitting:
            if base.notation not in chain and (base.choice.why == "header" or base.notation != "any"):
                held, more = list(chain.values()), [*chain.values(), base]
                fills = any(self._filled_share(more, says) > self._filled_share(held, says) for says in _SAYS)
                if fills or self._is_cut:
                    chain[base.notation] = base
        return list(chain.values())

    def _filled_share(self, chain: Sequence[Candidate], says: Callable[[pl.Expr], pl.Expr] = is_filled) -> float:
        ids = [id_ for one in chain if (id_ := self.table.ids[one.place]) in self._sample.columns]
        if not ids or self._sample.is_empty():
            return 0.0
        said = pl.any_horizontal(says(pl.col(id_)).fill_null(False) for id_ in ids)
        return float(self._sample.select(said.mean()).item())

    def _begins(self, detail: Candidate) -> bool:
        cell = pl.col(self.table.ids[detail.place])
        return self._shares(detail.place, cell.str.contains(BEGINNING))[1] >= detail.filled * _MOSTLY

    def _without_address(self, places: Sequence[int], rest: Sequence[Candidate]) -> tuple[str, ...]:
        ours = set(places)
        headers = [header if place in ours else "" for place, header in enumerate(self.table.headers)]
        split = [
            Candidate(Choice(place, headers[place], 1.0, "header"), None, "any", 0.0, 0.0, 0.0)
            for place in address_parts(headers)
        ]
        parts = [*split, *rest]
        if not parts:
            return ()
        names = ", ".join(f"{one.choice.header!r} (#{one.place + 1})" for one in parts)
        joined = "+".join(_advice(self.table, one) for one in parts) if split else "#1+#2"
        joins, lists = gettext("joins them"), gettext("names the columns of the address, in its order")
        text = gettext(
            "{name}: no column holds whole addresses, only parts of them are in {names}, so no "
            "address is verified and none is there to send to; {parameter} {which}",
            name=self.table.name,
            names=names,
            parameter=parameter("columns", {"address": joined}),
            which=joins if split else lists,
        )
        return (Alert(text),)

    def details_of(self, given: Choice, places: Sequence[int]) -> tuple[str, ...]:
        if len(given.parts) > 1:
            return ()
        own = self._candidate("address", given)
        bases, details = self._addresses(places)
        left = [detail for detail in details if own in _owners(detail, [own, *bases], details)]
        if not left or is_detail(given.header):
            return ()
        advice = parameter("columns", {"address": "+".join(_advice(self.table, one) for one in (own, *left))})
        called = gettext(" and ").join(repr(detail.choice.header) for detail in left)
        return (gettext("{called} is not part of the address; {advice} joins it", called=called, advice=advice),)

    def zipcode(self, places: Sequence[int], address: Choice | None) -> Preferred:
        found = [self._candidate("zipcode", choice) for place in places if (choice := self._rate("zipcode", place))]
        if not found or address is None:
            return Preferred(max((one.choice for one in found), key=lambda one: one.confidence, default=None))
        own = self._candidate("address", address)
        bases = [own, *self._addresses(places)[0]]
        fitting = [one for one in found if _owner_kind(one, bases, nearest=True) == own.kind]
        if not fitting:
            note = gettext(
                "{role}: {names} belongs to another address than {header!r} and is not used; {parameter} uses it",
                role=role_word("zipcode", current_language()),
                names=gettext(" and ").join(map(str, found)),
                header=address.header,
                parameter=parameter("columns", {"zipcode": _advice(self.table, found[0])}),
            )
            return Preferred(None, (note,))
        most = max(one.right for one in fitting)

        def rank(one: Candidate) -> tuple[bool, bool, int, float]:
            far = abs(one.place - own.place)
            return one.purpose is None, one.right < most * _MOSTLY, far, -one.choice.confidence

        best, *others = ranked = sorted(fitting, key=rank)
        if len(chain := _chain_of_notations(ranked, address)) > 1:
            choice = replace(chain[0].choice, otherwise=tuple(one.choice for one in chain[1:]))
            return Preferred(choice, (_alternatives_note("zipcode", chain, _advice(self.table, chain[0])),))

        def explain(other: Candidate) -> str:
            of_kind, holds, near, _ = (mine != its for mine, its in zip(rank(best), rank(other), strict=True))
            if of_kind:
                return gettext("it is of the same kind")
            if holds:
                held = gettext_noop("it holds a postal code in {share:.0%} of the rows, the other in {other:.0%}")
                return gettext(held, share=best.right, other=other.right)
            if near:
                return gettext("it stands nearest to {header!r}", header=address.header)
            return gettext("its header is the more usual one")

        return Preferred(best.choice, self._explain_choice("zipcode", best, others, explain))

    def name(self, places: Sequence[int]) -> Preferred:
        found = [self._candidate("name", choice) for place in places if (choice := self._rate("name", place))]
        if not found:
            return Preferred(None)
        most = max(one.filled for one in found)

        def rank(one: Candidate) -> tuple[bool, float, int, int]:
            return one.filled < most * _MOSTLY, -one.choice.confidence, -round(one.filled / _MARGIN), one.place

        ranked = sorted(found, key=rank)
        best, *others = [one for one in ranked if one.filled] or ranked[:1]

        def explain(other: Candidate) -> str:
            fuller, usual, more, _ = (mine < its for mine, its in zip(rank(best), rank(other), strict=True))
            if usual and not fuller:
                return gettext("its header is the more usual one")
            return gettext("it is filled in more rows") if fuller or more else gettext("it stands first")

        return Preferred(best.choice, self._explain_choice("name", best, others, explain))

    def _compare_addresses(
        self, best: Candidate, others: Sequence[Candidate], fullest: float, filled: float
    ) -> list[str]:
        # filled: the share of rows in which a chosen address is filled
        rank = _address_rank(best, fullest)[:-1]
        same = [one for one in others if _address_rank(one, fullest)[:-1] == rank]
        if other := next((one for one in same if not self._alike(best, one)), None):
            names = gettext(" and ").join(f"{one.choice.header!r} (#{one.place + 1})" for one in (best, other))
            choose = Option("columns", {"address": _advice(self.table, best)})
            raise ColumnError(SEVERAL_ADDRESS_COLUMNS, name=self.table.name, names=names, parameter=choose)
        less = [one for one in others if best.group == one.group and one.right < fullest - _MARGIN]
        blank = max((one.filled for one in others), default=0.0) - filled

        def explain(other: Candidate) -> str:
            if other in same:
                why = gettext("both hold the same")
            elif best.kind != other.kind:
                first, second = gettext(_KINDS[best.kind]), gettext(_KINDS[other.kind])
                why = gettext("{first} comes before {other}", first=first, other=second)
            elif other in less:
                held = gettext_noop("it holds an address in {share:.0%} of the rows, the other in {other:.0%}")
                why = gettext(held, share=best.right, other=other.right)
            elif best.group == other.group and best.notation != other.notation:
                by_road = best.notation == "road"
                why = gettext("addresses by road come before others") if by_road else gettext("those by lot come last")
            else:
                why = gettext("its header is the more usual one")
            return why + (gettext("; rows where it is blank have no address") if blank > _MARGIN else "")

        loud = bool(less) or blank > _MARGIN
        return list(self._explain_choice("address", best, others, explain, loud=loud))

    def _explain_choice(
        self,
        role: str,
        best: Candidate,
        others: Sequence[Candidate],
        explain: Callable[[Candidate], str],
        *,
        loud: bool = False,
    ) -> tuple[str, ...]:
        if not others:
            return ()
        names: dict[str, list[str]] = {}
        for other in others:
            names.setdefault(explain(other), []).append(str(other))
        (why, first), *rest = names.items()
        text = gettext(
            "{role}: {best} was taken and not {names}, because {why}",
            role=role_word(role, current_language()),
            best=best,
            names=", ".join(first),
            why=why,
        )
        for why, further in rest:
            text += gettext(", nor {names}, because {why}", names=", ".join(further), why=why)
        if self._is_cut:
            text += gettext(" (as far as the first {sample_rows:,} rows show)", sample_rows=SAMPLE_ROWS)
        another = parameter("columns", {role: _advice(self.table, others[0])})
        text += gettext("; {parameter} takes another", parameter=another)
        return (Alert(text) if loud else text,)

    def _addresses(self, places: Sequence[int]) -> tuple[list[Candidate], list[Candidate]]:
        rated = {place: self._rate("address", place) for place in places}
        details = {
            place: rated[place] or Choice(place, self.table.headers[place], 1.0, "header")
            for place in places
            if is_detail(self.table.headers[place])
        }
        rest = [self._candidate("address", choice) for choice in details.values()]
        rest = [one for one in rest if one.whole < _MOSTLY]
        apart = {one.place for one in rest}
        bases = [self._candidate("address", choice) for place, choice in rated.items() if choice and place not in apart]
        return bases, rest

    def _candidate(self, role: str, choice: Choice) -> Candidate:
        cell = pl.col(self.table.ids[choice.column])
        right = is_filled(cell) & cell.str.contains(_ZIPCODE) if role == "zipcode" else holds_address(cell)
        shares = self._shares(choice.column, right)
        return Candidate(choice, purpose_of(choice.header), notation_of(choice.header), *shares)

    def _shares(self, place: int, right: pl.Expr) -> tuple[float, float, float]:
        id_ = self.table.ids[place]
        if id_ not in self._sample.columns or self._sample.is_empty():
            return 0.0, 0.0, 0.0
        cell, filled = pl.col(id_), is_filled(pl.col(id_))
        whole = (filled & cell.str.contains(PROVINCE)).sum() / filled.sum()
        shares = self._sample.select(filled.mean().alias("filled"), right.mean().alias("right"), whole.alias("whole"))
        filled_share, right_share, whole_share = shares.fill_nan(0.0).fill_null(0.0).row(0)
        return filled_share, right_share, whole_share

    def _is_missed(self, base: Candidate, best: Candidate, chain: Sequence[Candidate]) -> bool:
        return base not in chain and (base.filled > 0 or self._is_cut) and _header_rank(base) <= _header_rank(best)

    def _alike(self, one: Candidate, other: Candidate) -> bool:
        cells = [self._sample[self.table.ids[each.place]].str.replace_all(r"\s", "") for each in (one, other)]
        same = (cells[0] == cells[1]).drop_nulls()
        return float(same.sum()) >= _SAME * len(same) if len(same) else not (one.filled and other.filled)


def _address_rank(base: Candidate, fullest: float) -> tuple[tuple[int, bool], bool, int, float, int]:
    group, notation, confidence = _header_rank(base)
    return group, base.right < fullest - _MARGIN, notation, confidence, base.place


def _header_rank(base: Candidate) -> tuple[tuple[int, bool], int, float]:
    return base.group, _NOTATIONS.index(base.notation), -base.choice.confidence


def _passed_over(base: Candidate, best: Candidate) -> Alert:
    why = gettext("fits by its header as well")
    if base.kind != best.kind:
        first, other = gettext(_KINDS[base.kind]), gettext(_KINDS[best.kind])
        why = gettext("would come first, since {first} comes before {other}", first=first, other=other)
    return Alert(
        gettext(
            "{role}: {base} {why}, but few of its cells hold an address; {best} was taken for all rows",
            role=role_word("address", current_language()),
            base=base,
            why=why,
            best=best,
        )
    )


def _owner_kind(one: Candidate, bases: Sequence[Candidate], *, nearest: bool = False) -> Purpose | None:
    if one.purpose is not None and any(base.kind == one.kind for base in bases):
        return one.kind
    near = [base for base in bases if nearest or base.place < one.place] or list(bases)
    if not near:
        return None
    return min(near, key=lambda base: (abs(base.place - one.place), base.purpose is not None)).kind


def _chain_of_notations(ranked: Sequence[Candidate], address: Choice) -> list[Candidate]:
    firsts = {one.notation: one for one in reversed(ranked) if one.right}
    notations = dict.fromkeys(notation_of(one.header) for one in address.alternatives)
    return [firsts[notation] for notation in notations if notation in firsts]


def _owners(detail: Candidate, bases: Sequence[Candidate], details: Sequence[Candidate]) -> Sequence[Candidate]:
    fitting = _of_same_notation(detail, bases, details)
    kind = _owner_kind(detail, fitting)
    same = [base for base in fitting if base.kind == kind]
    before = [base for base in same if base.place < detail.place] or same
    if not before:
        return ()
    near = min(before, key=lambda base: abs(base.place - detail.place))
    ends = [{base.place, near.place} for base in before]
    apart = [any(min(end) < one.place < max(end) for one in details) for end in ends]
    return [base for base, other in zip(before, apart, strict=True) if not other]


def _of_same_notation(
    detail: Candidate, bases: Sequence[Candidate], details: Sequence[Candidate]
) -> Sequence[Candidate]:
    if detail.notation != "any":
        same = [base for base in bases if base.notation == detail.notation]
        return same or [base for base in bases if base.notation == "any"]
    named = [one for one in details if one.notation != "any"]
    spoken = {(one.notation, kind) for one in named for kind in ([one.kind] if one.purpose else PURPOSES)}
    return [base for base in bases if (base.notation, base.kind) not in spoken] or bases


def _alternatives_note(role: str, chain: Sequence[Candidate], advice: str) -> str:
    return gettext(
        "{role}: {first} is taken, and in rows where it is blank {others}; {parameter} takes the first alone",
        role=role_word(role, current_language()),
        first=chain[0],
        others=gettext(", where this is blank ").join(map(str, chain[1:])),
        parameter=parameter("columns", {role: advice}),
    )


def _joined_note(base: Candidate, joined: Sequence[JoinedColumn], advice: str) -> str:
    parts = gettext(" and ").join(f"{part.header!r} (#{part.column + 1})" for part in joined)
    return gettext(
        "{role}: {parts} is joined to {header!r} (#{place}); {parameter} leaves it out",
        role=role_word("address", current_language()),
        parts=parts,
        header=base.choice.header,
        place=base.place + 1,
        parameter=parameter("columns", {"address": advice}),
    )


def _advice(table: Table, one: Candidate) -> str:
    header = one.choice.header
    return header if header and table.headers.count(header) == 1 else f"#{one.place + 1}"
