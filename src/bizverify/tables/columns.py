"""Which of a file's columns holds the number, the name, the address: chosen from headers, checked on content."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import polars as pl

from bizverify import number
from bizverify.errors import ColumnError, UsageError
from bizverify.model import ADDED_COLUMNS, Choice
from bizverify.tables.table import Table

_SAMPLE_ROWS: Final = 1000
_TIE: Final = 0.05
_CONFIDENCE: Final = {"sure": 1.0, "likely": 0.8, "contains": 0.6}
_BY_CONTENT: Final = 0.5
_TEXTS: Final = (pl.String, pl.Categorical, pl.Enum)
_PUNCTUATION: Final = re.compile(r"[\s_\-.·/()\[\]{}*'\"]+")


def choose_columns(
    table: Table,
    roles: Sequence[str],
    given: Mapping[str, str] | None = None,
    ours: Collection[int] = (),
) -> dict[str, Choice]:
    """Choose a column for each role; the first role must get one.

    ``given`` names headers by role (or positions, ``#3`` for the third column) and overrides; ``ours`` are the
    positions of columns from an earlier enrichment, which are never chosen, and neither are lists, structs and bytes.
    The number column must also look like
    one: its first 1,000 rows lower or raise the confidence, and a column that holds nothing but numbers with right
    check digits is found without any header. Raises :class:`ColumnError` when no number column is found or two fit
    equally well.
    """
    given = dict(given or {})
    if unknown := set(given) - set(roles):
        raise UsageError(f"unknown column role {sorted(unknown)[0]!r}; the roles are {', '.join(roles)}")
    schema = table.frame.collect_schema()
    textual = [_prints(schema[id_]) for id_ in table.ids]
    chosen = {role: _given(table, role, header) for role, header in given.items()}
    for role, choice in chosen.items():
        if not textual[choice.column]:
            kind = schema[table.ids[choice.column]]
            raise ColumnError(f"{table.name}: column {choice.header!r} holds {kind}, which cannot be the {role}")
    key = roles[0]
    free = [place for place in range(len(table.headers)) if place not in ours and textual[place]]
    for role in roles:
        if role in chosen:
            continue
        taken = {choice.column for choice in chosen.values()}
        places = [place for place in free if place not in taken]
        found = _number_column(table, places) if role == key else _by_header(table, role, places)
        if found is not None:
            chosen[role] = found
    return {role: chosen[role] for role in roles if role in chosen}


def own_columns(headers: Sequence[str], prefix: str) -> dict[str, int]:
    """Return where an earlier enrichment put its columns: contract name → position; empty if there was none.

    A file is taken for an enriched one when all nine stand side by side in their order, each under its name or, where
    the user had a column of that name, with ``_bv``, ``_bv2`` and so on behind it, as
    :func:`bizverify.execute.join.layout` calls them. Anything else is the user's, and is not replaced.
    """
    titles = [re.compile(rf"{re.escape(prefix + name)}(_bv[0-9]*)?") for name in ADDED_COLUMNS]
    for start in reversed(range(len(headers) - len(titles) + 1)):
        run = headers[start : start + len(titles)]
        if all(title.fullmatch(header) for title, header in zip(titles, run, strict=True)):
            return {name: start + place for place, name in enumerate(ADDED_COLUMNS)}
    return {}


def has_role(header: str, *roles: str) -> bool:
    """Whether a header names one of these roles, by default of all there are."""
    return any(_level(role, header) for role in roles or _synonyms())


def _given(table: Table, role: str, header: str) -> Choice:
    if re.fullmatch(r"#[1-9][0-9]*", header) and int(header[1:]) <= len(table.headers):
        place = int(header[1:]) - 1
        return Choice(place, table.headers[place], 1.0, "given")
    places = [place for place, found in enumerate(table.headers) if found == header]
    if len(places) == 1:
        return Choice(places[0], header, 1.0, "given")
    if places:
        numbers = " or ".join(f"#{place + 1}" for place in places)
        raise ColumnError(f"{table.name}: {len(places)} columns are headed {header!r}; give --columns {role}={numbers}")
    raise ColumnError(f"{table.name}: no column is headed {header!r}; {_listed(table)}")


def _by_header(table: Table, role: str, places: Sequence[int]) -> Choice | None:
    choices = [choice for place in places if (choice := _rated(table, role, place))]
    return max(choices, key=lambda choice: choice.confidence, default=None)


def _rated(table: Table, role: str, place: int) -> Choice | None:
    level = _level(role, table.headers[place])
    if level is None:
        return None
    return Choice(place, table.headers[place], _CONFIDENCE[level], "similar" if level == "contains" else "header")


def _number_column(table: Table, places: Sequence[int]) -> Choice:
    shares = _shares(table, places)
    choices = []
    for place in places:
        rated = _rated(table, "b_no", place)
        ten_digits, checked = shares[place]
        if rated is not None:
            weight = 1.0 if ten_digits is None else 0.6 + 0.4 * min(1.0, 2 * ten_digits)
            confidence = round(rated.confidence * weight, 2)
            choices.append(Choice(place, rated.header, confidence, rated.why))
        elif checked is not None and checked >= 0.9 and not _is_trap("b_no", table.headers[place]):
            choices.append(Choice(place, table.headers[place], _BY_CONTENT, "content"))
    if not choices:
        raise ColumnError(
            f"{table.name}: no column with business numbers was found; {_listed(table)}; "
            "name it with --columns b_no=HEADER"
        )
    choices.sort(key=lambda choice: -choice.confidence)
    best, *rest = choices
    equal = [choice for choice in rest if best.confidence - choice.confidence < _TIE]
    if equal:
        fitting = " and ".join(f"{choice.header!r} (#{choice.column + 1})" for choice in [best, *equal])
        advice = f"'{best.header}'" if table.headers.count(best.header) == 1 else f"#{best.column + 1}"
        raise ColumnError(
            f"{table.name}: {fitting} fit equally well as the business number; choose with --columns b_no={advice}"
        )
    return best


def _shares(table: Table, places: Sequence[int]) -> dict[int, tuple[float | None, float | None]]:
    """For each column: the share of its first non-blank cells that are ten digits, and that have a right check digit.

    ``None`` where there are no cells or none that could be a number; the second also where there are fewer than three.
    """
    shares: dict[int, tuple[float | None, float | None]] = dict.fromkeys(places, (None, None))
    schema = table.frame.collect_schema()
    ids = {table.ids[place]: place for place in places}
    asked = [id_ for id_ in ids if schema[id_].is_numeric() or schema[id_] in _TEXTS]
    if not asked:
        return shares
    # all columns below one another, so that the rule is planned and run once however many there are
    sample = table.frame.head(_SAMPLE_ROWS).select(pl.col(asked).cast(pl.String)).collect()
    cells = sample.lazy().unpivot(variable_name="id", value_name="cell").drop_nulls("cell")
    cells = cells.with_columns(digits=number.compact_expr(pl.col("cell")))
    cells = cells.with_columns(right=number.checksum_expr(number.key_expr(pl.col("digits"))).fill_null(False))
    found = cells.group_by("id").agg(pl.col("digits").is_not_null().mean(), pl.col("right").mean(), pl.len()).collect()
    for id_, ten, right, count in found.iter_rows():  # a row is a column of the table
        shares[ids[id_]] = (ten, right if count >= 3 else None)
    return shares


def _prints(dtype: pl.DataType) -> bool:
    """Whether values of a type can be read as the text of a cell."""
    return not (dtype.is_nested() or dtype in (pl.Binary, pl.Object, pl.Duration))


def _level(role: str, header: str) -> str | None:
    words = _synonyms()[role]
    plain = _plain(header)
    short = _plain(re.sub(r"[(\[].*?[)\]]", "", header))
    for level in ("sure", "likely"):
        if plain in words[level] or short in words[level]:
            return level
    if any(word in plain for word in words["contains"]) and not _is_trap(role, header):
        return "contains"
    return None


def _is_trap(role: str, header: str) -> bool:
    plain = _plain(header)
    return any(word in plain for word in _synonyms()[role]["never"])


@cache
def _synonyms() -> dict[str, dict[str, frozenset[str]]]:
    text = files("bizverify.tables").joinpath("headers.toml").read_text(encoding="utf-8")
    return {
        role: {level: frozenset(map(_plain, words)) for level, words in levels.items()}
        for role, levels in tomllib.loads(text).items()
    }


def _plain(header: str) -> str:
    return _PUNCTUATION.sub("", unicodedata.normalize("NFKC", header)).lower()


def _listed(table: Table) -> str:
    return "the headers are: " + ", ".join(header or "(blank)" for header in table.headers)
