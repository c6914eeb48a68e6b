"""Columns named by the user, and the evidence of a column's cells for a role."""
# A value is a column's cell, or the cells of several columns joined.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from bansong.base import business_number
from bansong.base.errors import ColumnError, Problem, UsageError
from bansong.base.messages import Option, current_language, gettext, gettext_noop, parameter
from bansong.base.schema import Alert, Choice, JoinedColumn, role_word
from bansong.tables.table import Table

_JOINABLE: Final = ("b_no", "name", "address")
_BEGIN: Final = r"^\W*(?:[0-9]{5,6}\W*)?"
_PROVINCES: Final = (
    "서울|부산|대구|인천|광주|대전|울산|세종|경기|강원|충청|충북|충남|전라|전북|전남|경상|경북|경남|제주"
)
PROVINCE: Final = rf"{_BEGIN}(?:{_PROVINCES})"
# the name of a district alone, which is no mailing address: ``서울 중구``
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
_FILLER: Final = r"^[\W_0]*$"  # a detail without content: ``0``, ``**``, ``--``
_GUARDS: Final = ("=", "＝", "'", "＇")
_FORMULA_GUARD: Final = r"""(?s)^[=＝]\s*["＂](.*)["＂]\s*$"""
_APOSTROPHE: Final = r"(?s)^['＇]([^'＇A-Za-z][^'＇]*)$"  # before a letter it may be part of a name: 'n Coffee
_SHORTEST: Final = 4  # characters of a detail that is known at the end of an address without a space before it
_WIDTHS: Final = (3, 2, 5)
_JSON: Final = r"""^\s*(?:\{\s*["}]|\[\s*[\[{"\]])"""
CONFIDENCE: Final = 0.5  # in a column that is chosen by its content alone

_NAME: Final = (
    r"주식회사|유한회사|\(주\)|㈜|\(유\)|상사|상회|산업|식당|마트|약국|의원|학원|건설|전자|물산|무역|기업|공업|상점"
    r"|(?i)\b(?:co|inc|ltd)\b"
)
_ZIPCODE: Final = r"^\s*(?:0[1-9]|[1-5][0-9]|6[0-3])[0-9]-?[0-9]{2}\s*$"
_LEAST: Final = {"address": 0.5, "zipcode": 0.5, "name": 0.2}  # share of rows


def role_cell(table: Table, role: str, choice: Choice) -> pl.Expr:
    """Return the cells of a role: of one column as they are, of several as text."""
    # Texts lose Excel's guards (``="…"``, an apostrophe). Names and addresses join by spaces, without repeated ends;
    # a detail without an address is null. Numbers join by dashes, zero-filled if only that gives the right check digit.
    # Of alternatives the first filled one counts, of addresses the first plausible one.
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
    bare = cell.str.strip_chars_start()
    guarded = pl.when(pl.any_horizontal(bare.str.starts_with(guard) for guard in _GUARDS)).then(bare)
    quoted = guarded.str.extract(_FORMULA_GUARD).str.replace_all('""', '"', literal=True)
    return pl.coalesce(quoted, guarded.str.extract(_APOSTROPHE), cell)


def is_json(cell: pl.Expr) -> pl.Expr:
    return cell.str.contains(_JSON)


def is_filled(cell: pl.Expr) -> pl.Expr:
    return ~cell.str.strip_chars().is_in(_BLANKS).fill_null(True)


def _filled_text(cell: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    text = cell.cast(pl.String)
    text = (text.str.strip_suffix(".0") if dtype.is_float() else text).str.strip_chars()
    return pl.when(~text.is_in(_BLANKS)).then(text)


def _joined_text(parts: Sequence[pl.Expr], *, whole: bool) -> pl.Expr:
    names = [f"x{place}" for place in range(len(parts))]
    fields = pl.struct(part.alias(name) for part, name in zip(parts, names, strict=True))  # each is computed once
    first, *rest = [pl.field(name) for name in names]
    begun = first.is_not_null()
    for place, part in enumerate(rest):
        said = _ends_with(first, part).fill_null(False)
        if place:  # equal figures may be two things: 101, 101 is a building and a flat
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
    text = pl.when(likely).then(text)  # null in most rows, which cost nothing then
    part = pl.when(likely).then(part)
    whole = text.str.ends_with(pl.concat_str(pl.lit(" "), part)) | text.str.ends_with(pl.concat_str(pl.lit(","), part))
    close, closer = (cell.str.replace_all(" ", "", literal=True) for cell in (text, part))
    return whole | (text == part) | ((closer.str.len_chars() >= _SHORTEST) & close.str.ends_with(closer))


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
    return is_filled(cell) & cell.str.contains(ADDRESS) & ~cell.str.contains(_DISTRICT) & ~is_json(cell)


def is_sure_address(cell: pl.Expr) -> pl.Expr:
    return holds_address(cell) & cell.str.contains(NUMBERED) & cell.str.contains(BEGINNING)


def content_role(
    table: Table, sample: pl.DataFrame, role: str, places: Sequence[int], address: Choice | None
) -> Choice | None:
    if role not in _LEAST:
        return None
    if role == "zipcode":
        places = [place for place in places if address is not None and abs(place - address.column) == 1]
    names, sampled = table.ids, set(sample.columns)
    ids = {names[place]: place for place in places if names[place] in sampled}
    cell, pattern = pl.col(list(ids)), _ZIPCODE if role == "zipcode" else _NAME
    held = sample.select(
        (holds_address(cell) if role == "address" else is_filled(cell) & cell.str.contains(pattern)).mean()
    )
    shares = dict(zip(ids.values(), held.row(0), strict=True)) if ids else {}
    best = max(shares, key=lambda place: shares[place] or 0.0, default=None)
    if best is None or (shares[best] or 0.0) < _LEAST[role]:
        return None
    return Choice(best, table.headers[best], CONFIDENCE, "content")


def headless_alert(table: Table, chosen: Mapping[str, Choice], ours: Sequence[int] | frozenset[int]) -> Alert:
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

POSITION: Final = re.compile(r"#[1-9][0-9]*")  # a column named by its place: `#3`


def given_choice(table: Table, role: str, given: str | Sequence[str]) -> Choice:
    """Return the user's choice for a role: headers or positions, as in ``도로명주소+상세주소|지번주소``."""
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
    """Return the positions of the columns that ``select`` names; an item that is no header may be several."""
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
    """Return the position of the one column that a header or ``#3`` names; raise :class:`UsageError`."""
    places = sorted(_places_named(table, name))
    if len(places) == 1:
        return places[0]
    if places:
        raise UsageError(_name_alike(table, name, [parameter(option, f"#{place + 1}") for place in places]))
    raise UsageError(NAMES_NO_COLUMN, name=table.name, parameter=Option(option, name), headers=listed_headers(table))


def listed_headers(table: Table) -> str:
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
    """Return the positions of a header or ``#n``, else of headers that end with the name, below a group's label."""
    name = name.strip()
    if POSITION.fullmatch(name) and int(name[1:]) <= len(table.headers):
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
