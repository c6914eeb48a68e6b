"""Choose the columns of number, name and address by their headers, checked against their cells."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import polars as pl

from bansong.base import business_number
from bansong.base.errors import ColumnError, Problem, UsageError
from bansong.base.messages import Option, current_language, gettext, gettext_noop, parameter
from bansong.base.schema import Alert, Choice, JoinedColumn, role_code, role_word
from bansong.tables.headers import ROLES as PARTY_ROLES
from bansong.tables.headers import (
    Party,
    choose_party,
    has_role,
    is_trap,
    level_of,
    parties,
    rate_header,
    side_of,
    split_number,
)
from bansong.tables.roles import (
    CONFIDENCE,
    ColumnCandidates,
    holds_address,
    is_filled,
    is_json,
    is_sure_address,
    quote_column,
    spell_column,
)
from bansong.tables.table import SAMPLE_ROWS, TEXTS, Table

NUMBER_COLUMN_NOT_FOUND: Final = Problem(
    "columns.number_column_not_found",
    "{name}: no column with business numbers was found{about}; {headers}; name it with {parameter}",
)
UNKNOWN_ROLE: Final = Problem("columns.unknown_role", "unknown column role {unknown!r}; the roles are {roles}")
ADDRESS_AS_HEADER: Final = Problem(
    "columns.address_as_header",
    "{name}: has no header, its first row holds an address already; give {parameter}, or put a row of headers above it",
)
SEVERAL_NUMBER_COLUMNS: Final = Problem(
    "columns.several_number_columns", "{name}: {names} fit equally well as the business number; choose with {parameter}"
)
COLUMN_KIND_UNSUITABLE: Final = Problem(
    "columns.column_kind_unsuitable", "{name}: column {header!r} holds {kind}, which cannot be the {role}"
)

COLUMN_NAMED_TWICE: Final = Problem("columns.column_named_twice", "{parameter} names a column twice; name each once")
NAMES_NO_COLUMN: Final = Problem("columns.names_no_column", "{name}: {parameter} names no column; {headers}")
NAMED_HEADER_MISSING: Final = Problem(
    "columns.named_header_missing", "{name}: no column is headed {header!r}; {headers}"
)
ROLE_NOT_JOINABLE: Final = Problem(
    "columns.role_not_joinable", "{parameter} names {count} columns; only {joinable} may be in several"
)
ROLE_WITHOUT_HEADERS: Final = Problem(
    "columns.role_without_headers", "a role in columns has an empty list; name at least one header"
)
SELECTED_COLUMN_MISSING: Final = Problem(
    "columns.selected_column_missing", "{name}: {named} names no column; {headers}"
)

_POSITION: Final = re.compile(r"#[1-9][0-9]*")  # a column named by position: `#3`
_JOINABLE: Final = ("b_no", "name", "address")
_NAME: Final = (
    r"주식회사|유한회사|\(주\)|㈜|\(유\)|상사|상회|산업|식당|마트|약국|의원|학원|건설|전자|물산|무역|기업|공업|상점"
    r"|(?i)\b(?:co|inc|ltd)\b"
)
_ZIPCODE: Final = r"^\s*(?:0[1-9]|[1-5][0-9]|6[0-3])[0-9]-?[0-9]{2}\s*$"
_LEAST: Final = {"address": 0.5, "zipcode": 0.5, "name": 0.2}  # share of fitting rows in a column chosen by content
_TIE: Final = 0.05
_MOSTLY: Final = 0.5
_NEARLY_ALL: Final = 0.9
_SHOWN: Final = 6
_PARTS: Final = (3, 2, 5)
# legal dong codes: one in ten has a right check digit, and a list of one dong repeats its code
_DONG_CODE: Final = "^(?:11|2[6-9]|3[016]|4[1-8]|5[0-2])[0-9]{6}00$"


class _Numbers(NamedTuple):
    ten: float | None = None  # share of a column's first cells with ten digits; None: all are blank
    right: float | None = None  # share of these with a right check digit; None: too few of them

    @property
    def are_others(self) -> bool:
        return self.right is not None and self.right < _MOSTLY


@dataclass(frozen=True, slots=True)
class Chosen:
    """The column of each role, and notes on the choice for the user."""

    columns: dict[str, Choice]
    notes: tuple[str, ...] = ()
    objects: frozenset[int] = frozenset()  # positions of columns with JSON, which are no name or address


def choose_columns(
    table: Table,
    roles: Sequence[str],
    given: Mapping[str, str | Sequence[str]] | None = None,
    ours: Collection[int] = (),
    *,
    address_list: bool = False,
) -> Chosen:
    """Choose a column for each role; raise if the first role gets none, or in an ``address_list`` the address."""
    # ``given``: headers by role, as the user chose them; ``ours``: positions of columns from an earlier enrichment,
    # which are never chosen. The number's column must have ten digits; with right check digits, its header does not
    # matter. Without headers, content decides. If rows have several businesses, all roles are of the same one.
    chosen = _given_columns(table, roles, {role_code(role): header for role, header in (given or {}).items()})
    key, *others = roles
    schema = table.frame.collect_schema()
    taken = _taken_columns(chosen)
    textual = [place for place, id_ in enumerate(table.ids) if _prints(schema[id_]) and place not in ours]
    free = [place for place in textual if place not in taken]
    sample = _sample(table, {*free, *taken})
    headless = all(_POSITION.fullmatch(header) for place, header in enumerate(table.headers) if place not in ours)
    numbers = _NumberColumns(table, sample, free, headless=headless)
    groups: tuple[Party, ...] = ()
    if any(role in PARTY_ROLES for role in roles):
        holding = {one.column for one in numbers.fitting if numbers.shares[one.column].ten or side_of(one.header)}
        users = ["" if place in ours else header for place, header in enumerate(table.headers)]
        groups = parties(users, holding | ({chosen[key].column} if key in chosen else set()))
    notes: tuple[str, ...] = ()
    near = [party for party in groups if not taken.isdisjoint(party.columns)] or groups
    if key not in chosen and (found := numbers.choose(near, address_list=address_list)):
        chosen[key], notes = found
    if key in chosen and chosen[key].why == "content" and not headless:
        notes = (*notes, _explain_content(table, chosen[key]))
    columns, objects = ColumnCandidates(table, sample), _objects(sample)
    for role in others:
        left = [place for place in free if place not in _taken_columns(chosen) | objects]
        if not headless:
            notes += _add_role(columns, role, _pools(role, left, chosen.get(key), groups), chosen)
        elif role not in chosen and (by_content := _choose_by_content(columns, role, left, chosen.get("address"))):
            chosen[role] = by_content
    if key not in chosen:
        notes += numbers.settle_without(chosen)
    chosen = {role: chosen[role] for role in roles if role in chosen}
    if headless and not {choice.why for choice in chosen.values()} <= {"given"}:
        notes = (*notes, _headless_alert(table, chosen, frozenset(ours)))
    return Chosen(chosen, notes, objects)


def _taken_columns(chosen: Mapping[str, Choice]) -> set[int]:
    return {part.column for choice in chosen.values() for part in choice.parts}


def _given_columns(table: Table, roles: Sequence[str], given: Mapping[str, str | Sequence[str]]) -> dict[str, Choice]:
    if unknown := set(given) - set(roles):
        raise UsageError(UNKNOWN_ROLE, unknown=sorted(unknown)[0], roles=", ".join(roles))
    schema = table.frame.collect_schema()
    chosen = {role: given_choice(table, role, header) for role, header in given.items()}
    for role, choice in chosen.items():
        for part in choice.parts:
            kind = schema[table.ids[part.column]]
            if not _prints(kind):
                word = role_word(role, current_language())
                raise ColumnError(COLUMN_KIND_UNSUITABLE, name=table.name, header=part.header, kind=kind, role=word)
    return chosen


def _sample(table: Table, places: Collection[int]) -> pl.DataFrame:
    """Return the first rows as texts. Columns not in ``places``, or neither of text nor numbers, are null."""
    schema = table.frame.collect_schema()
    read = [
        id_ for at, id_ in enumerate(table.ids) if at in places and (schema[id_].is_numeric() or schema[id_] in TEXTS)
    ]
    rows = table.head(SAMPLE_ROWS).select(pl.col(read).cast(pl.String)).collect()
    blank, unread = pl.repeat(None, rows.height, dtype=pl.String), set(table.ids).difference(read)
    return rows.with_columns(blank.alias(id_) for id_ in table.ids if id_ in unread).select(table.ids)


def _add_role(
    columns: ColumnCandidates, role: str, pools: Sequence[Sequence[int]], chosen: dict[str, Choice]
) -> tuple[str, ...]:
    if role in chosen:
        return columns.unjoined_details(chosen[role], pools[0]) if role == "address" else ()
    notes: tuple[str, ...] = ()
    for pool in pools:
        found, said = columns.choose(role, pool, chosen.get("address"))
        if found is not None:
            chosen[role] = found
            notes = (*notes, *said) if role != "address" else said
            break
        notes += said
    if role == "address" and (by_content := columns.address_by_content(pools, chosen.get(role))):
        chosen[role], alert = by_content
        return (alert,)
    return notes


def _pools(role: str, places: Sequence[int], number: Choice | None, groups: Sequence[Party]) -> list[list[int]]:
    own = [party.columns for party in groups if number is not None and party.number == number.column]
    if not own or role not in PARTY_ROLES:
        return [list(places)]
    others = frozenset[int]().union(*(party.columns for party in groups))
    return [[place for place in places if place in own[0]], [place for place in places if place not in others]]


class _NumberColumns:
    def __init__(self, table: Table, sample: pl.DataFrame, free: Sequence[int], *, headless: bool) -> None:
        self._table, self._sample, self._free, self._headless = table, sample, free, headless
        self.shares = self._measure()
        choices = []
        for place, held in self.shares.items():
            ten, right = held.ten or 0.0, held.right or 0.0
            rated = rate_header(table, "b_no", place)
            if rated is not None:
                weight = 1.0 if held.ten is None else 0.6 + 0.4 * min(1.0, 2 * ten)
                choices.append(replace(rated, confidence=round(rated.confidence * weight, 2)))
            elif ten * right >= _MOSTLY if headless else ten >= _MOSTLY and right >= _NEARLY_ALL:
                choices.append(Choice(place, table.headers[place], CONFIDENCE, "content"))
        self.fitting = sorted(choices, key=lambda choice: (self._numbers_of(choice).are_others, -choice.confidence))

    def _measure(self) -> dict[int, _Numbers]:
        shares = dict.fromkeys(self._free, _Numbers())
        names = self._table.ids
        ids = {names[place]: place for place in self._free}
        if not ids:
            return shares
        # all columns are stacked into one, so that one query measures them
        cells = self._sample.lazy().select(list(ids)).unpivot(variable_name="id", value_name="cell").drop_nulls("cell")
        cells = cells.with_columns(digits=business_number.compact_expr(pl.col("cell")))
        digits = pl.col("digits").drop_nulls().unique()
        right = business_number.checksum_expr(digits.cast(pl.UInt64, strict=False)) & ~digits.str.starts_with("0")
        found = cells.group_by("id").agg(
            pl.col("digits").is_not_null().mean().alias("ten"),
            right.mean().alias("right"),
            digits.len().alias("different"),
            pl.len().alias("rows"),
            digits.str.contains(_DONG_CODE).any().alias("dong"),
        )
        for id_, ten, valid, different, rows, dong in found.collect().iter_rows():  # a row a column
            few = valid == 1.0 and not dong and (rows >= 3 or (self._headless and different == 2))
            shares[ids[id_]] = _Numbers(ten, valid if different >= 3 or few else None)
        return shares

    def _numbers_of(self, choice: Choice) -> _Numbers:
        return self.shares[choice.column]

    def choose(self, groups: Sequence[Party], *, address_list: bool) -> tuple[Choice, tuple[str, ...]] | None:
        numbered = [choice for choice in self.fitting if not self._sample.height or self._holds_any(choice)]
        special = (self._by_party(groups) if numbered else None) or self._in_parts()
        if numbered or special or not address_list or self._may_be_elsewhere():
            return special or self._best_of(numbered or [self._blank_column()])
        return None

    def _holds_any(self, choice: Choice) -> bool:
        # later rows are read only if the sample has no number
        if self._numbers_of(choice).ten or self._sample.height < SAMPLE_ROWS:
            return bool(self._numbers_of(choice).ten)
        digits = business_number.compact_expr(pl.col(self._table.ids[choice.column]).cast(pl.String))
        return bool(self._table.frame.select(digits.is_not_null().any()).collect(engine="streaming").item())

    def _may_be_elsewhere(self) -> bool:
        unsure = 1.0 if self._headless else 0.0
        return any(
            (held.ten or 0.0) * (unsure if held.right is None else held.right) >= _MOSTLY
            and not is_trap("b_no", self._table.headers[place])
            for place, held in self.shares.items()
        )

    def _by_party(self, groups: Sequence[Party]) -> tuple[Choice, tuple[str, ...]] | None:
        choices = {choice.column: choice for choice in self.fitting if choice.why == "header"}
        competing = [party for party in groups if party.number in choices]
        if len(groups) == 1 and competing:  # another column of the party was given
            return choices[competing[0].number], ()
        if len(competing) < 2 or self.fitting[0].column not in {party.number for party in competing}:
            return None
        decided = choose_party(self._table, competing)
        if decided is None:
            return None
        party, reason = decided
        others = [choices[other.number] for other in competing if other is not party]
        give = {quote_column(one): parameter("columns", {"b_no": f"#{one.column + 1}"}) for one in others}
        other = gettext_noop("for {choice} give {parameter}")
        instead = ", ".join(gettext(other, choice=choice, parameter=named) for choice, named in give.items())
        note = gettext(
            "each row holds {count} parties; {choice} was chosen, with what belongs to it, because {reason}; {instead}",
            count=len(competing),
            choice=quote_column(choices[party.number]),
            reason=reason,
            instead=instead,
        )
        return choices[party.number], (note,)

    def settle_without(self, chosen: dict[str, Choice]) -> tuple[Alert, ...]:
        """Choose no number column for an address list, else a blank one; alert about columns that hold no numbers."""
        # a first row with an address is refused, since it would be lost as the header
        address = chosen.get("address")
        if address is None or not self._leave_address_list(address):
            chosen["b_no"] = self._blank_column()
            return ()
        titles = pl.DataFrame({"title": [part.header for part in address.parts]}, schema={"title": pl.String})
        is_row = titles.select(is_sure_address(pl.col("title")).any()).item()
        if address.why == "content" and not self._headless and is_row:
            option = Option("has_header", False)
            raise ColumnError(ADDRESS_AS_HEADER, missing="b_no", name=self._table.name, parameter=option)
        unused = gettext_noop(
            "{choice} holds no number of ten digits, so it is not used: its numbers are missing, rounded, masked or cut"
        )
        return tuple(Alert(gettext(unused, choice=quote_column(choice))) for choice in self.fitting)

    def _leave_address_list(self, address: Choice) -> bool:
        if any(level_of("b_no", part.header) for part in address.parts):
            return False
        filled = [is_filled(pl.col(self._table.ids[part.column]).cast(pl.String)) for part in address.parts]
        return not self.fitting or bool(self._sample.select(pl.any_horizontal(filled).any()).item())

    def _blank_column(self) -> Choice:
        """Return a blank column headed as business numbers; raise if there is none, or if the table has addresses."""
        blank = [choice for choice in self.fitting if self._numbers_of(choice).ten is None]
        addresses = self._sample.select(is_sure_address(pl.all()).any().fill_null(False))
        if blank and not any(addresses.row(0) if addresses.width else ()):
            return blank[0]
        headers = self._table.headers
        choices = gettext(" and ").join(map(quote_column, self.fitting))
        about = gettext("; {choices} holds no number of ten digits", choices=choices)
        if len(headers) == 1 and self.fitting:
            option = parameter("delimiter")
            about += gettext("; if that is a whole line, name what divides it with {option}", option=option)
        named = "#1" if all(map(_POSITION.fullmatch, headers)) else gettext("HEADER")
        said = {"about": about if self.fitting else "", "headers": listed_headers(self._table)}
        choose = Option("columns", {"b_no": named})
        raise ColumnError(NUMBER_COLUMN_NOT_FOUND, missing="b_no", name=self._table.name, parameter=choose, **said)

    def _best_of(self, fitting: Sequence[Choice]) -> tuple[Choice, tuple[str, ...]]:
        best, *rest = fitting
        near = [one for one in rest if self._numbers_of(one).ten and best.confidence - one.confidence < _TIE]
        if equal := [one for one in near if self._numbers_of(one).are_others == self._numbers_of(best).are_others]:
            names = gettext(" and ").join(map(quote_column, [best, *equal]))
            choose = Option("columns", {"b_no": spell_column(self._table, best)})
            raise ColumnError(SEVERAL_NUMBER_COLUMNS, name=self._table.name, names=names, parameter=choose)
        others = [choice for choice in rest if (self._numbers_of(choice).ten or 0.0) >= _MOSTLY]
        if not others:
            return best, ()
        share = gettext_noop("{choice}, where {share:.0%} are numbers")
        names = ", ".join(gettext(share, choice=quote_column(one), share=self._numbers_of(one).ten) for one in others)
        by_content = best.why == "content" or any(self._numbers_of(one).are_others for one in others)
        digits, surely = gettext("its numbers have right check digits"), gettext("its header says so most surely")
        return best, (
            gettext(
                "b_no: {choice} was taken and not {names}, because {why}; {parameter} takes another",
                choice=quote_column(best),
                names=names,
                why=digits if by_content else surely,
                parameter=parameter("columns", {"b_no": f"#{others[0].column + 1}"}),
            ),
        )

    def _in_parts(self) -> tuple[Choice, tuple[str, ...]] | None:
        headers, free = self._table.headers, set(self._free)
        for place in self._free:
            three = range(place, place + len(_PARTS))
            if not free.issuperset(three):
                continue
            stem = _common_stem([headers[each] for each in three])
            if stem is None or level_of("b_no", stem) != "sure" or not self._holds_parts(three):
                continue
            first, *rest = [JoinedColumn(each, headers[each]) for each in three]
            choice = Choice(first.column, first.header, 1.0, "header", tuple(rest))
            names = " + ".join(repr(part.header) for part in choice.parts)
            return choice, (gettext("b_no: the number is in three columns, {names}, which are joined", names=names),)
        return None

    def _holds_parts(self, places: Sequence[int]) -> bool:
        widths = dict(zip((self._table.ids[place] for place in places), _PARTS, strict=True))
        patterns = {id_: rf"^\s*[0-9]{{1,{width}}}(?:\.0)?\s*$" for id_, width in widths.items()}
        fits = [pl.col(id_).str.contains(pattern).mean() for id_, pattern in patterns.items()]
        return all((share or 0.0) >= _NEARLY_ALL for share in self._sample.select(fits).row(0))


def _common_stem(headers: Sequence[str]) -> str | None:
    if not any(header.strip() for header in headers[1:]):
        return headers[0]
    words = [split_number(header) for header in headers]
    stems = {word and word[0] for word in words}
    return stems.pop() if len(stems) == 1 and [word and word[1] for word in words] == [1, 2, 3] else None


def _explain_content(table: Table, choice: Choice) -> Alert:
    said = {"column": choice.column + 1, "header": choice.header}
    if table.file is None or any(has_role(header) for header in table.headers):  # frames have no header row
        text = gettext_noop(
            "b_no: column {column} ({header!r}) was chosen by what it holds, and not by its header: make sure that "
            "these are the numbers of the businesses; {parameter} takes another"
        )
        return Alert(gettext(text, parameter=parameter("columns", {"b_no": gettext("HEADER")}), **said))
    text = gettext_noop(
        "column {column} was chosen by what it holds, its header is {header!r}; if that is a value and not a header, "
        "give `has_header=False` or put a row of headers above it: the row is not verified now"
    )
    row = gettext_noop("the first row ({first}) was read as the header, though it names nothing that is known: {text}")
    first = ", ".join(header for header in table.headers[:_SHOWN] if header)
    return Alert(gettext(row, first=first, text=gettext(text, **said)))


def _objects(sample: pl.DataFrame) -> frozenset[int]:
    held = sample.select(is_json(pl.all()).sum() * 2 > is_filled(pl.all()).sum())
    return frozenset(place for place, mostly in enumerate(held.row(0) if held.width else ()) if mostly)


def _prints(dtype: pl.DataType) -> bool:
    return not (dtype.is_nested() or dtype in (pl.Binary, pl.Object, pl.Duration))


def _choose_by_content(
    columns: ColumnCandidates, role: str, places: Sequence[int], address: Choice | None
) -> Choice | None:
    if role not in _LEAST:
        return None
    if role == "zipcode":
        places = [place for place in places if address is not None and abs(place - address.column) == 1]
    pattern = _ZIPCODE if role == "zipcode" else _NAME
    best, share = columns.fullest(
        places, holds_address if role == "address" else lambda cell: is_filled(cell) & cell.str.contains(pattern)
    )
    return Choice(best, columns.table.headers[best], CONFIDENCE, "content") if share >= _LEAST[role] else None


def _headless_alert(table: Table, chosen: Mapping[str, Choice], ours: Sequence[int] | frozenset[int]) -> Alert:
    used, lang = {part.column for choice in chosen.values() for part in choice.parts}, current_language()
    taken = ", ".join(
        gettext("{header} as {role}", header=choice.spell(lambda part: part.header), role=role_word(role, lang))
        for role, choice in chosen.items()
    )
    left = [header for place, header in enumerate(table.headers) if place not in used and place not in ours]
    rest = gettext("; not used: {left}", left=", ".join(left)) if left else ""
    text = gettext_noop(
        "no column has a header, so they were chosen by what they hold: {taken}{rest}; make sure, and name others as "
        "in `columns={{'name': '#2'}}`"
    )
    return Alert(gettext(text, taken=taken, rest=rest))


def given_choice(table: Table, role: str, given: str | Sequence[str]) -> Choice:
    """Parse the user's choice for a role: headers or positions, as in ``도로명주소+상세주소|지번주소``."""
    spelled = parameter("columns", {role: given if isinstance(given, str) else "+".join(given)})
    first, *others = [_given_alternative(table, role, spelled, names) for names in _split(table, given)]
    if first in others or len(set(others)) < len(others):
        raise UsageError(COLUMN_NAMED_TWICE, parameter=spelled)
    return replace(first, otherwise=tuple(others))


def _given_alternative(table: Table, role: str, spelled: str, names: Sequence[str]) -> Choice:
    places = [_one_place(table, role, name) for name in names]
    first, *rest = [JoinedColumn(place, table.headers[place]) for place in places]
    if rest and role not in _JOINABLE:
        raise UsageError(ROLE_NOT_JOINABLE, parameter=spelled, count=len(places), joinable=", ".join(_JOINABLE))
    if len(set(places)) < len(places):
        raise UsageError(COLUMN_NAMED_TWICE, parameter=spelled)
    return Choice(first.column, first.header, 1.0, "given", tuple(rest))


def kept_columns(table: Table, select: Sequence[str]) -> frozenset[int]:
    """Return the positions of the columns in ``select``; an item may be several headers, with commas between."""
    kept: set[int] = set()
    for item in select:
        if not item.strip(", "):
            named = Option("select", item.strip())
            raise UsageError(NAMES_NO_COLUMN, name=table.name, parameter=named, headers=listed_headers(table))
        for name in [item] if _places_named(table, item) else _split_at(table, item, ",")[0::2]:
            found = _places_named(table, name)
            if not found:
                said = {"named": parameter("select", name.strip()), "headers": listed_headers(table)}
                raise UsageError(SELECTED_COLUMN_MISSING, name=table.name, **said)
            kept |= found
    return frozenset(kept)


def named_column(table: Table, name: str, option: str) -> int:
    """Return the position of a column, given as header or ``#3``; raise :class:`UsageError` unless exactly one fits."""
    places = sorted(_places_named(table, name))
    if len(places) == 1:
        return places[0]
    if places:
        raise UsageError(_name_alike(table, name, [parameter(option, f"#{place + 1}") for place in places]))
    raise UsageError(NAMES_NO_COLUMN, name=table.name, parameter=Option(option, name), headers=listed_headers(table))


def listed_headers(table: Table) -> str:
    """List the headers of a table for an error message."""
    return gettext("the headers are: ") + ", ".join(header or gettext("(blank)") for header in table.headers)


def _split(table: Table, given: str | Sequence[str]) -> list[list[str]]:
    if not isinstance(given, str):
        if not given:
            raise UsageError(ROLE_WITHOUT_HEADERS)
        return [list(given)]
    first, *rest = [given] if given in table.headers else _split_at(table, given, "+|")
    alternatives = [[first]]
    for sign, name in zip(rest[0::2], rest[1::2], strict=True):
        if sign == "|":
            alternatives.append([name])
        else:
            alternatives[-1].append(name)
    return alternatives


def _split_at(table: Table, text: str, signs: str) -> list[str]:
    items: list[str] = []
    pieces = re.split(f"([{re.escape(signs)}])", text)
    while pieces:
        lengths = range(len(pieces) - 1 + len(pieces) % 2, 0, -2)
        length = next((length for length in lengths if _places_named(table, "".join(pieces[:length]))), 1)
        items += ["".join(pieces[:length]), *pieces[length : length + 1]]
        pieces = pieces[length + 1 :]
    return items


def _one_place(table: Table, role: str, name: str) -> int:
    exact = {place for place, header in enumerate(table.headers) if header == name}
    places = sorted(exact or _places_named(table, name))
    if len(places) == 1:
        return places[0]
    if places:
        raise ColumnError(_name_alike(table, name, [parameter("columns", {role: f"#{place + 1}"}) for place in places]))
    raise ColumnError(NAMED_HEADER_MISSING, name=table.name, header=name.strip(), headers=listed_headers(table))


def _places_named(table: Table, name: str) -> set[int]:
    """Return the positions of columns by header or ``#n``, else of those whose header ends with the name."""
    # such headers begin with the label of a group of columns
    name = name.strip()
    if _POSITION.fullmatch(name) and int(name[1:]) <= len(table.headers):
        return {int(name[1:]) - 1}
    whole = {place for place, header in enumerate(table.headers) if header.strip() == name}
    lines = f" {' '.join(name.split())}"
    return whole or {
        place
        for place, header in enumerate(table.headers)
        if len(lines) > 1 and f" {' '.join(header.split())}".endswith(lines)
    }


def _name_alike(table: Table, header: str, places: Sequence[str]) -> str:
    said = {"name": table.name, "count": len(places), "header": header, "these": gettext(" or ").join(places)}
    return gettext("{name}: {count} columns are headed {header!r}; give {these}", **said)
