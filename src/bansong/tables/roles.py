"""Read the values of a role from one or several columns, and rank the columns that fit a role."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import polars as pl

from bansong.base import business_number
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
    rate_header,
)
from bansong.tables.table import SAMPLE_ROWS, Table

SEVERAL_ADDRESS_COLUMNS: Final = Problem(
    "columns.several_address_columns",
    "{name}: {names} fit equally well as the address, and they differ; choose with {parameter}",
)

_BEGIN: Final = r"^\W*(?:[0-9]{5,6}\W*)?"
_PROVINCES: Final = (
    "서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충청|충북|충남|전라|전북|전남|경상|경북|경남|제주"
)
PROVINCE: Final = rf"{_BEGIN}(?:{_PROVINCES})"
# only a province or district, which is no mailing address: ``서울 중구``
_DISTRICT: Final = rf"{_BEGIN}(?:(?:{_PROVINCES}|[가-힣]{{1,8}}[시도군구])\s*)+$"
NUMBERED: Final = (
    r"[가-힣](?:시|도|군|구|읍|면|동|리|가|로|길)(?:[0-9]+[가-힣]?길)?\s*(?:산\s*)?[0-9]"
    r"|(?i)-(?:ro|gil|dong|gu|si|do)\b"
)
ADDRESS: Final = rf"{PROVINCE}|{NUMBERED}"
BEGINNING: Final = rf"{PROVINCE}|[가-힣](?:시|군|구|읍|면)\s|[가-힣](?:로|길)\s*[0-9]|(?i)-(?:ro|gil|gu|si|do)\b"

_BLANKS: Final = [
    *("", "-", "--", ".", ",", "/", "·", "null", "NULL", "none", "None", "nan", "NaN", "N/A", "n/a", "NA", "na"),
    *("없음", "해당없음", "해당 없음"),
]
_FILLER: Final = r"^[\W_0]*$"  # address details without content: ``0``, ``**``, ``--``
_GUARDED: Final = r"^\s*[=＝'＇]"
_FORMULA_GUARD: Final = r"""(?s)^[=＝]\s*["＂](.*)["＂]\s*$"""
_APOSTROPHE: Final = r"(?s)^['＇]([^'＇A-Za-z][^'＇]*)$"  # not before a Latin letter: 'n Coffee is a name
_MIN_UNSPACED_DETAIL: Final = 4  # characters of a detail that is found at the end of an address without a space
_WIDTHS: Final = (3, 2, 5)
_JSON: Final = r"""^\s*(?:\{\s*["}]|\[\s*[\[{"\]])"""
CONFIDENCE: Final = 0.5  # confidence in a column that only its content chose

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
_MARGIN: Final = 0.05  # shares that differ by less count as equal
_MOSTLY: Final = 0.5
_FEW: Final = 0.1
_SAME: Final = 0.95
_ZIPCODE: Final = r"^\W*(?:[0-9]{4,5}|[0-9]{3}-[0-9]{2})(?:\.0)?\W*$"


def role_cell(table: Table, role: str, choice: Choice) -> pl.Expr:
    """Return the value of a role: the cell of one column, or the joined text of several."""
    # Excel's guards of texts are removed (``="…"``, an apostrophe). Names and addresses are joined by spaces, unless a
    # part repeats the end; a detail without an address is null. Numbers are joined by dashes, and zero-filled if only
    # then the check digit is right. Of alternatives, the first filled one counts (of addresses: the first plausible).
    schema = table.frame.collect_schema()
    if choice.otherwise:
        cells = [role_cell(table, role, one) for one in choice.alternatives]
        kinds = [pl.String() if one.joined else schema[table.ids[one.column]] for one in choice.alternatives]
        texts = list(map(_filled_text, cells, kinds))
        held = [pl.when(holds_address(text)).then(text) for text in texts] if role == "address" else []
        return pl.coalesce(*held, *texts)
    ids = [table.ids[part.column] for part in choice.parts]
    cells = [_without_guard(pl.col(id_)) if schema[id_] == pl.String else pl.col(id_) for id_ in ids]
    if not choice.joined:
        whole = cells[0]
        return pl.when(~is_json(whole)).then(whole) if role == "address" and schema[ids[0]] == pl.String else whole
    parts = [_filled_text(cell, schema[id_]) for cell, id_ in zip(cells, ids, strict=True)]
    if role == "b_no":
        return _joined_number(parts)
    if role == "address":
        parts[1:] = [pl.when(~part.str.contains(_FILLER)).then(part) for part in parts[1:]]
    return _joined_text(parts, whole=role == "address")


def _without_guard(cell: pl.Expr) -> pl.Expr:
    guarded = pl.when(cell.str.contains(_GUARDED)).then(cell.str.strip_chars_start())
    quoted = guarded.str.extract(_FORMULA_GUARD).str.replace_all('""', '"', literal=True)
    return pl.coalesce(quoted, guarded.str.extract(_APOSTROPHE), cell)


def is_json(cell: pl.Expr) -> pl.Expr:
    """Whether a text is a JSON object or a list."""
    return cell.str.contains(_JSON)


def is_filled(cell: pl.Expr) -> pl.Expr:
    """Whether a text is not blank and no word for blank, such as ``없음`` or ``n/a``."""
    return ~cell.str.strip_chars().is_in(_BLANKS).fill_null(True)


def _filled_text(cell: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    text = cell.cast(pl.String)
    text = (text.str.strip_suffix(".0") if dtype.is_float() else text).str.strip_chars()
    return pl.when(~text.is_in(_BLANKS)).then(text)


def _joined_text(parts: Sequence[pl.Expr], *, whole: bool) -> pl.Expr:
    names = [f"x{place}" for place in range(len(parts))]
    fields = pl.struct(part.alias(name) for part, name in zip(parts, names, strict=True))  # fields are computed once
    first, *rest = [pl.field(name) for name in names]
    begun = first.is_not_null()
    for place, part in enumerate(rest):
        said = _ends_with(first, part).fill_null(False)
        if place:  # equal numbers may mean two things: 101, 101 is a building and a flat
            said |= (_ends_with(pl.field("y"), part) & ~part.str.contains("^[0-9]+$")).fill_null(False)
        joined = pl.concat_str(
            pl.field("y") if place else first, pl.when(~said).then(part), separator=" ", ignore_nulls=True
        )
        fields = fields.struct.with_fields(joined.alias("y"))
        beginning = pl.when(first.is_null()).then(part)
        begun |= beginning.str.contains(ADDRESS).fill_null(False) if whole else part.is_not_null()
    return fields.struct.with_fields(pl.when(begun).then(pl.field("y")).alias("y")).struct.field("y")


def _ends_with(text: pl.Expr, part: pl.Expr) -> pl.Expr:
    likely = text.str.ends_with(part.str.slice(-1))
    text = pl.when(likely).then(text)  # null for most rows, which then cost nothing
    part = pl.when(likely).then(part)
    whole = text.str.ends_with(pl.concat_str(pl.lit(" "), part)) | text.str.ends_with(pl.concat_str(pl.lit(","), part))
    close, closer = (cell.str.replace_all(" ", "", literal=True) for cell in (text, part))
    return whole | (text == part) | ((closer.str.len_chars() >= _MIN_UNSPACED_DETAIL) & close.str.ends_with(closer))


def _joined_number(parts: Sequence[pl.Expr]) -> pl.Expr:
    whole = pl.concat_str(parts, separator="-", ignore_nulls=True)
    whole = pl.when(whole != "").then(whole)
    if len(parts) != len(_WIDTHS):
        return whole
    digits = pl.all_horizontal(
        part.str.contains(rf"^[0-9]{{1,{most}}}$") for part, most in zip(parts, _WIDTHS, strict=True)
    )
    short = digits & (parts[0].str.len_bytes() == _WIDTHS[0]) & (whole.str.len_bytes() < sum(_WIDTHS) + 2)
    padded = pl.concat_str([part.str.zfill(most) for part, most in zip(parts, _WIDTHS, strict=True)], separator="-")
    padded = pl.when(short).then(padded)
    return pl.when(business_number.is_valid_expr(padded)).then(padded).otherwise(whole)


def holds_address(cell: pl.Expr) -> pl.Expr:
    """Whether a text contains an address: a province, or a place with a number."""
    return is_filled(cell) & cell.str.contains(ADDRESS) & ~cell.str.contains(_DISTRICT) & ~is_json(cell)


def is_sure_address(cell: pl.Expr) -> pl.Expr:
    """Whether a text is certainly an address: it begins with a region or road, and has a number."""
    return holds_address(cell) & cell.str.contains(NUMBERED) & _begins_address(cell)


def _begins_address(cell: pl.Expr) -> pl.Expr:
    return cell.str.contains(BEGINNING)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A column that may have a role."""

    choice: Choice
    purpose: Purpose | None
    notation: Notation
    filled: float  # share of the first rows with a text
    right: float  # share of the first rows with a text that fits the role
    whole: float  # share of the texts that begin with a province, as whole addresses do

    @property
    def place(self) -> int:
        return self.choice.column

    @property
    def kind(self) -> Purpose:
        return self.purpose or "business"

    @property
    def group(self) -> tuple[int, bool]:
        return list(PURPOSES).index(self.kind), self.choice.why == "similar"

    @property
    def header_rank(self) -> tuple[tuple[int, bool], int, float]:
        return self.group, _NOTATIONS.index(self.notation), -self.choice.confidence

    def __str__(self) -> str:
        said = {"header": self.choice.header, "place": self.place + 1, "filled": self.filled}
        return gettext("{header!r} (#{place}, {filled:.0%} filled)", **said)


class _Criterion(NamedTuple):
    """A reason to prefer one column to another."""

    key: Callable[[Candidate], Any]  # the column with the lowest key is preferred
    why: Callable[[Candidate, Candidate], str]  # explains this, for the preferred column and the other
    is_loud: bool = False  # whether an alert names the columns that lose by this criterion


Found = tuple[Choice | None, tuple[str, ...]]  # column for a role, if any, and notes for the user


def quote_column(column: Choice | JoinedColumn) -> str:
    return f"{column.header!r} (#{column.column + 1})"


def spell_column(table: Table, choice: Choice) -> str:
    """Name a column as an option does: by its header if it is unique, else by its position."""
    header = choice.header
    return header if header and table.headers.count(header) == 1 else f"#{choice.column + 1}"


class ColumnCandidates:
    """Ranks the columns of a table for a role, by headers and first rows (``sample``, all text)."""

    def __init__(self, table: Table, sample: pl.DataFrame) -> None:
        self.table = table
        self._sample = sample
        self._is_cut = sample.height == SAMPLE_ROWS  # there may be more rows

    def choose(self, role: str, places: Sequence[int], address: Choice | None) -> Found:
        """Choose a column for a role by headers; a postal code must belong to the chosen ``address``."""
        if role == "address":
            return self._choose_address(places)
        rated = [choice for place in places if (choice := rate_header(self.table, role, place))]
        found = [self._candidate(role, choice) for choice in rated if role in ("name", "zipcode")]
        if found and role == "name":
            return self._choose_name(found)
        if found and address is not None:
            return self._choose_zipcode(found, places, address)
        return max(rated, key=lambda choice: choice.confidence, default=None), ()

    def address_by_content(self, pools: Sequence[Sequence[int]], headed: Choice | None) -> tuple[Choice, Alert] | None:
        beaten = [self._candidate("address", one) for one in headed.alternatives] if headed else []
        if any(one.right >= _FEW for one in beaten):
            return None
        headers = self.table.headers
        fitting = [[place for place in pool if not is_trap("address", headers[place])] for pool in pools]
        sure = [self.fullest(pool, is_sure_address) for pool in fitting]
        place, share = max(sure, key=lambda one: one[1] >= _MOSTLY)
        if share < _MOSTLY:
            return None
        choice = Choice(place, headers[place], CONFIDENCE, "content")
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

    def unjoined_details(self, given: Choice, places: Sequence[int]) -> tuple[str, ...]:
        """Return a note if the user chose an address without its details (``상세주소``)."""
        if len(given.parts) > 1:
            return ()
        own = self._candidate("address", given)
        bases, details = self._addresses(places)
        left = [detail for detail in details if own in _owners(detail, [own, *bases], details)]
        if not left or is_detail(given.header):
            return ()
        advice = parameter("columns", {"address": "+".join(self._spell(one) for one in (own, *left))})
        called = gettext(" and ").join(repr(detail.choice.header) for detail in left)
        return (gettext("{called} is not part of the address; {advice} joins it", called=called, advice=advice),)

    def fullest(self, places: Sequence[int], holds: Callable[[pl.Expr], pl.Expr]) -> tuple[int, float]:
        """Return the column (position) with the largest share of cells for which ``holds`` is true, and the share."""
        ids = self.table.ids
        cells = pl.col([ids[place] for place in places])
        shares = self._sample.select(holds(cells).mean().fill_null(0.0)).row(0) if places else ()
        return max(zip(places, shares, strict=True), key=lambda one: one[1], default=(-1, 0.0))

    def _choose_address(self, places: Sequence[int]) -> Found:
        bases, details = self._addresses(places)
        if not bases:  # without another column, 상세주소 is the address if it contains addresses
            rest, details = details, []
            rated = [one for one in rest if rate_header(self.table, "address", one.place)]
            bases = [one for one in rated if self._share([one], _begins_address) >= one.filled * _MOSTLY]
            if not bases:
                return None, self._without_address(places, rest)
        most = max(base.right for base in bases)
        usable = [base for base in bases if base.right >= most * _MOSTLY]
        fullest: dict[tuple[int, bool], float] = {}
        for base in usable:
            fullest[base.group] = max(base.right, fullest.get(base.group, 0.0))
        criteria = _address_criteria(fullest)
        ranked = _rank(usable, criteria)
        best = ranked[0]
        chain = self._alternatives(best, bases)
        notes = [*self._compare_addresses(ranked, chain, criteria)]
        missed = [base for base in bases if base not in (*usable, *chain) and (base.filled > 0 or self._is_cut)]
        notes += [_passed_over(base, best) for base in missed if base.header_rank <= best.header_rank]
        advice = "|".join(self._spell(one) for one in chain)
        if len(chain) > 1:
            notes.append(self._alternatives_note("address", chain))
        choices = []
        for one in chain:
            rests = [detail for detail in details if one in _owners(detail, bases, details)]
            joined = tuple(JoinedColumn(rest.place, rest.choice.header) for rest in rests)
            notes += [_joined_note(one, joined, advice)] if joined else []
            choices.append(replace(one.choice, joined=joined))
        return replace(choices[0], otherwise=tuple(choices[1:])), tuple(notes)

    def _alternatives(self, best: Candidate, bases: Sequence[Candidate]) -> list[Candidate]:
        ranked = sorted(bases, key=lambda base: (base.header_rank, -base.right, base.place))
        fitting = [base for base in ranked if base.kind == best.kind and base.filled * _MOSTLY <= base.right > 0]
        order = _NOTATIONS.index(best.notation)
        before = [base for base in fitting if base.group == best.group and _NOTATIONS.index(base.notation) < order]
        chain = {base.notation: base for base in reversed(before)}
        chain = {notation: chain[notation] for notation in _NOTATIONS if notation in chain} | {best.notation: best}
        for base in fitting:
            if base.notation not in chain and (base.choice.why == "header" or base.notation != "any"):
                held, more = list(chain.values()), [*chain.values(), base]
                fills = any(self._share(more, holds) > self._share(held, holds) for holds in (is_filled, holds_address))
                if fills or self._is_cut:
                    chain[base.notation] = base
        return list(chain.values())

    def _without_address(self, places: Sequence[int], rest: Sequence[Candidate]) -> tuple[str, ...]:
        ours = set(places)
        headers = [header if place in ours else "" for place, header in enumerate(self.table.headers)]
        split = [Choice(place, headers[place], 1.0, "header") for place in address_parts(headers)]
        parts = [*split, *(one.choice for one in rest)]
        if not parts:
            return ()
        joined = "+".join(spell_column(self.table, one) for one in parts) if split else "#1+#2"
        joins, lists = gettext("joins them"), gettext("names the columns of the address, in its order")
        text = gettext(
            "{name}: no column holds whole addresses, only parts of them are in {names}, so no "
            "address is verified and none is there to send to; {parameter} {which}",
            name=self.table.name,
            names=", ".join(map(quote_column, parts)),
            parameter=parameter("columns", {"address": joined}),
            which=joins if split else lists,
        )
        return (Alert(text),)

    def _choose_zipcode(self, found: Sequence[Candidate], places: Sequence[int], address: Choice) -> Found:
        own = self._candidate("address", address)
        bases = [own, *self._addresses(places)[0]]
        fitting = [one for one in found if _owner_kind(one, bases, nearest=True) == own.kind]
        if not fitting:
            note = gettext(
                "{role}: {names} belongs to another address than {header!r} and is not used; {parameter} uses it",
                role=role_word("zipcode", current_language()),
                names=gettext(" and ").join(map(str, found)),
                header=address.header,
                parameter=parameter("columns", {"zipcode": self._spell(found[0])}),
            )
            return None, (note,)
        most = max(one.right for one in fitting)
        held = gettext_noop("it holds a postal code in {share:.0%} of the rows, the other in {other:.0%}")
        criteria = (
            _Criterion(lambda one: one.purpose is None, lambda *_: gettext("it is of the same kind")),
            _Criterion(
                lambda one: one.right < most * _MOSTLY,
                lambda best, other: gettext(held, share=best.right, other=other.right),
            ),
            _Criterion(
                lambda one: abs(one.place - own.place),
                lambda *_: gettext("it stands nearest to {header!r}", header=address.header),
            ),
            _Criterion(lambda one: -one.choice.confidence, _more_usual),
        )
        ranked = _rank(fitting, criteria)
        chain = _chain_of_notations(ranked, address)
        if len(chain) > 1:
            choice = replace(chain[0].choice, otherwise=tuple(one.choice for one in chain[1:]))
            return choice, (self._alternatives_note("zipcode", chain),)
        return ranked[0].choice, self._explain_choice("zipcode", ranked, criteria)

    def _choose_name(self, found: Sequence[Candidate]) -> Found:
        most = max(one.filled for one in found)
        more = gettext_noop("it is filled in more rows")
        criteria = (
            _Criterion(lambda one: one.filled < most * _MOSTLY, lambda *_: gettext(more)),
            _Criterion(lambda one: -one.choice.confidence, _more_usual),
            _Criterion(lambda one: -round(one.filled / _MARGIN), lambda *_: gettext(more)),
            _Criterion(lambda one: one.place, lambda *_: gettext("it stands first")),
        )
        ranked = _rank(found, criteria)
        ranked = [one for one in ranked if one.filled] or ranked[:1]
        return ranked[0].choice, self._explain_choice("name", ranked, criteria)

    def _compare_addresses(
        self, ranked: Sequence[Candidate], chain: Sequence[Candidate], criteria: Sequence[_Criterion]
    ) -> tuple[str, ...]:
        best, others = ranked[0], [one for one in ranked[1:] if one not in chain]
        for one in others:
            if _first_difference(best, one, criteria) is criteria[-1] and not self._alike(best, one):
                names = gettext(" and ").join(quote_column(each.choice) for each in (best, one))
                choose = Option("columns", {"address": self._spell(best)})
                raise ColumnError(SEVERAL_ADDRESS_COLUMNS, name=self.table.name, names=names, parameter=choose)
        blank = max((one.filled for one in others), default=0.0) - self._share(chain, is_filled) > _MARGIN
        rest = gettext("; rows where it is blank have no address") if blank else ""
        return self._explain_choice("address", [best, *others], criteria, rest)

    def _explain_choice(
        self, role: str, ranked: Sequence[Candidate], criteria: Sequence[_Criterion], rest: str = ""
    ) -> tuple[str, ...]:
        best, *others = ranked
        if not others:
            return ()
        names: dict[str, list[str]] = {}
        is_loud = bool(rest)
        for other in others:
            criterion = _first_difference(best, other, criteria)
            is_loud |= criterion.is_loud
            names.setdefault(criterion.why(best, other) + rest, []).append(str(other))
        (why, first), *more = names.items()
        text = gettext(
            "{role}: {best} was taken and not {names}, because {why}",
            role=role_word(role, current_language()),
            best=best,
            names=", ".join(first),
            why=why,
        )
        for why, further in more:
            text += gettext(", nor {names}, because {why}", names=", ".join(further), why=why)
        if self._is_cut:
            text += gettext(" (as far as the first {sample_rows:,} rows show)", sample_rows=SAMPLE_ROWS)
        another = parameter("columns", {role: self._spell(others[0])})
        text += gettext("; {parameter} takes another", parameter=another)
        return (Alert(text) if is_loud else text,)

    def _addresses(self, places: Sequence[int]) -> tuple[list[Candidate], list[Candidate]]:
        rated = {place: rate_header(self.table, "address", place) for place in places}
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
        filled = is_filled(cell)
        right = filled & cell.str.contains(_ZIPCODE) if role == "zipcode" else holds_address(cell)
        whole = (filled & cell.str.contains(PROVINCE)).sum() / filled.sum()
        shares = self._sample.select(filled=filled.mean(), right=right.mean(), whole=whole).fill_nan(0.0).fill_null(0.0)
        return Candidate(choice, purpose_of(choice.header), notation_of(choice.header), *shares.row(0))

    def _share(self, columns: Sequence[Candidate], holds: Callable[[pl.Expr], pl.Expr]) -> float:
        """Return the share of rows in which ``holds`` is true for one of the columns."""
        held = (holds(pl.col(self.table.ids[one.place])) for one in columns)
        return self._sample.select(pl.any_horizontal(held).mean()).item() or 0.0

    def _alike(self, one: Candidate, other: Candidate) -> bool:
        cells = [self._sample[self.table.ids[each.place]].str.replace_all(r"\s", "") for each in (one, other)]
        same = (cells[0] == cells[1]).drop_nulls()
        return float(same.sum()) >= _SAME * len(same) if len(same) else not (one.filled and other.filled)

    def _spell(self, one: Candidate) -> str:
        return spell_column(self.table, one.choice)

    def _alternatives_note(self, role: str, chain: Sequence[Candidate]) -> str:
        return gettext(
            "{role}: {first} is taken, and in rows where it is blank {others}; {parameter} takes the first alone",
            role=role_word(role, current_language()),
            first=chain[0],
            others=gettext(", where this is blank ").join(map(str, chain[1:])),
            parameter=parameter("columns", {role: self._spell(chain[0])}),
        )


def _rank(found: Sequence[Candidate], criteria: Sequence[_Criterion]) -> list[Candidate]:
    return sorted(found, key=lambda one: [criterion.key(one) for criterion in criteria])


def _first_difference(best: Candidate, other: Candidate, criteria: Sequence[_Criterion]) -> _Criterion:
    return next((one for one in criteria if one.key(best) != one.key(other)), criteria[-1])


def _more_usual(_best: Candidate, _other: Candidate) -> str:
    return gettext("its header is the more usual one")


def _address_criteria(fullest: Mapping[tuple[int, bool], float]) -> tuple[_Criterion, ...]:
    """Return the criteria for columns of addresses."""
    # ``fullest``: the largest share of cells with an address, by ``Candidate.group``
    held = gettext_noop("it holds an address in {share:.0%} of the rows, the other in {other:.0%}")

    def why_notation(best: Candidate, _other: Candidate) -> str:
        by_road = best.notation == "road"
        return gettext("addresses by road come before others") if by_road else gettext("those by lot come last")

    return (
        _Criterion(lambda one: one.group[0], _kind_comes_first),
        _Criterion(lambda one: one.group[1], _more_usual),
        _Criterion(
            lambda one: one.right < fullest[one.group] - _MARGIN,
            lambda best, other: gettext(held, share=best.right, other=other.right),
            is_loud=True,
        ),
        _Criterion(lambda one: _NOTATIONS.index(one.notation), why_notation),
        _Criterion(lambda one: -one.choice.confidence, _more_usual),
        _Criterion(lambda one: one.place, lambda *_: gettext("both hold the same")),
    )


def _kind_comes_first(best: Candidate, other: Candidate) -> str:
    first, second = gettext(_KINDS[best.kind]), gettext(_KINDS[other.kind])
    return gettext("{first} comes before {other}", first=first, other=second)


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


def _joined_note(base: Candidate, joined: Sequence[JoinedColumn], advice: str) -> str:
    return gettext(
        "{role}: {parts} is joined to {header!r} (#{place}); {parameter} leaves it out",
        role=role_word("address", current_language()),
        parts=gettext(" and ").join(map(quote_column, joined)),
        header=base.choice.header,
        place=base.place + 1,
        parameter=parameter("columns", {"address": advice}),
    )
