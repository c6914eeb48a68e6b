"""Choose columns also among values in JSON objects and lists: ``biz.number`` of ``{"biz": {"number": …}}``."""
# ``addresses.0.road``: of the first object in a list. The values are only read; the output keeps the objects.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import polars as pl
from polars.datatypes import DataTypeClass

from bansong.base.errors import ColumnError, Problem
from bansong.base.messages import Option, current_language, gettext, gettext_noop, parameter
from bansong.base.schema import Alert, Choice, JoinedColumn, role_code, role_word
from bansong.tables.columns import Chosen, choose_columns
from bansong.tables.headers import has_role, level_of
from bansong.tables.roles import holds_address, is_json
from bansong.tables.table import Table, column_ids

SEVERAL_NUMBER_COLUMNS: Final = Problem(
    "json.several_number_columns", "{name}: {names} fit equally well as the business number; choose with {parameter}"
)

_KEY: Final = "b_no"
_SAMPLE: Final = 200
_MOST: Final = 1000
_ITEMS: Final = 5  # first values of a list, which can be named
_NO_KEY: Final = frozenset("\"'\\")

Path_ = tuple[str | int, ...]
_Texts = dict[int, tuple[pl.Series, bool]]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value in the objects of a column; ``path``: the column's header, then keys, and positions in lists."""

    column: int
    path: Path_
    value: pl.Expr

    @property
    def header(self) -> str:
        return ".".join(map(str, self.path))


def choose_nested(
    table: Table,
    roles: Sequence[str],
    given: Mapping[str, Any] | None = None,
    ours: Collection[int] = (),
    *,
    address_list: bool = False,
) -> tuple[Table, Chosen]:
    """Choose columns as :func:`~bansong.tables.columns.choose_columns`, also among values in objects."""
    # A nested value is chosen if the user names it, or for a role without a column: for the number, the only sure one;
    # for other roles, one in the same object, or with a sure path. Values in lists must be named.
    texts, given = _json_texts(table), {role_code(role): header for role, header in (given or {}).items()}
    leaves = _leaves(table, texts)
    unfolded = _unfold_leaves(table, leaves)
    schema = table.frame.collect_schema()
    whole = {place for place, (_, alone) in texts.items() if alone}
    objects = {leaf.column for leaf in leaves if leaf.column in whole or schema[table.ids[leaf.column]].is_nested()}
    free = [header for place, header in enumerate(table.headers) if place not in {*ours, *objects}]
    left = [role for role in roles if not any(has_role(header, role) for header in free)]
    found = _find_roles(table, leaves, left, given)
    nested = range(len(table.headers), len(unfolded.headers))
    every = {**given, **found}
    try:
        chosen = choose_columns(unfolded, roles, every, {*ours, *objects, *nested}, address_list=address_list)
    except ColumnError as error:
        held = next((place for place in sorted(objects) if has_role(table.headers[place], "address")), None)
        if not address_list or error.missing != _KEY or "address" in every or held is None:
            raise
        raise ColumnError(f"{error}; {_describe_objects(table, leaves, 'address', held)}", missing=_KEY) from error
    columns = chosen.columns | {role: replace(chosen.columns[role], why="header") for role in found}
    objects |= {place for place in chosen.objects if place < len(table.headers)}
    for role, choice in columns.items():
        held = next((part.column for part in choice.parts if part.column in objects), None)
        if held is not None and role != _KEY:
            raise ColumnError(f"{table.name}: {_describe_objects(table, leaves, role, held)}")
    notes = [*chosen.notes, *_notes(table, leaves, roles, columns, found, objects)]
    if "address" in columns:
        notes += _mixed_notes(table, leaves, columns["address"], texts)
    return unfolded, Chosen(columns, tuple(notes))


def unfold(table: Table) -> Table:
    """Return a table with the values in its JSON objects added as columns."""
    return _unfold_leaves(table, _leaves(table, _json_texts(table)))


def _unfold_leaves(table: Table, leaves: Sequence[_Leaf]) -> Table:
    if not leaves:
        return table
    headers = (*table.headers, *(leaf.header for leaf in leaves))
    ids = column_ids(len(headers))[len(table.headers) :]
    frame = table.frame.with_columns(leaf.value.alias(id_) for leaf, id_ in zip(leaves, ids, strict=True))
    return replace(table, frame=frame, headers=headers, beginning=None)


def held_choice(table: Table, choice: Choice) -> Choice:
    """Return the choice of the columns that contain a choice's nested values."""
    return choice.move(lambda part: _holder_of(table.headers, part))


def holders_of(headers: Sequence[str], choice: Choice) -> tuple[str, ...]:
    return tuple(dict.fromkeys(headers[_holder_of(headers, part)] for part in choice.parts))


def _holder_of(headers: Sequence[str], part: JoinedColumn) -> int:
    if part.column < len(headers):
        return part.column
    parts = part.header.split(".")
    heads = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next(headers.index(head) for head in heads if head in headers)


def _leaves(table: Table, texts: _Texts) -> list[_Leaf]:
    schema = table.frame.collect_schema()
    found = [
        leaf
        for place, (id_, header) in enumerate(zip(table.ids, table.headers, strict=True))
        for leaf in _fields(place, (header,), pl.col(id_), schema[id_])
    ]
    for place, (cells, _) in texts.items():
        for path in dict.fromkeys(path for text in cells for path in _paths(text, (table.headers[place],))):
            steps = "".join(f"[{key}]" if isinstance(key, int) else f'["{key}"]' for key in path[1:])
            found.append(_Leaf(place, path, pl.col(table.ids[place]).str.json_path_match(f"${steps}")))
    leaves = {leaf.header: leaf for leaf in reversed(found)}
    return [leaf for leaf in found if leaves[leaf.header] is leaf and leaf.header not in table.headers][:_MOST]


def _fields(column: int, path: Path_, value: pl.Expr, dtype: pl.DataType | DataTypeClass) -> Iterator[_Leaf]:
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            yield from _fields(column, (*path, field.name), value.struct.field(field.name), field.dtype)
    elif isinstance(dtype, pl.List):
        for place in range(_ITEMS):
            yield from _fields(column, (*path, place), value.list.get(place, null_on_oob=True), dtype.inner)
    elif len(path) > 1 and not dtype.is_nested():
        yield _Leaf(column, path, value)


def _json_texts(table: Table) -> _Texts:
    if table.file is None:  # the parts of a frame may have other keys in their first rows
        return {}
    schema = table.frame.collect_schema()
    ids = {id_: place for place, id_ in enumerate(table.ids) if schema[id_] == pl.String}
    sample = table.head(_SAMPLE).select(list(ids)).collect()
    objects = sample.select(is_json(pl.all()).fill_null(False))
    found: _Texts = {}
    for id_, place in ids.items():
        cells = sample[id_].drop_nulls()
        texts = sample[id_].filter(objects[id_])
        if len(texts):
            found[place] = texts, len(texts) == len(cells.filter(cells.str.strip_chars() != ""))
    return found


def _paths(text: str, path: Path_) -> Iterator[Path_]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # begins with a brace, but is no object
        return
    yield from _keys(value, path)


def _keys(value: Any, path: Path_) -> Iterator[Path_]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not _NO_KEY & set(key):
                yield from _keys(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value[:_ITEMS]):
            yield from _keys(inner, (*path, place))
    elif len(path) > 1:
        yield path


def _find_roles(
    table: Table, leaves: Sequence[_Leaf], roles: Sequence[str], given: Mapping[str, Any]
) -> dict[str, str]:
    found = dict[str, str]()
    leaves = [leaf for leaf in leaves if not any(isinstance(key, int) for key in leaf.path)]
    roles = [role for role in roles if role not in given]
    if _KEY in roles:
        fitting = [leaf.header for leaf in leaves if _ends_surely(_KEY, leaf) or _is_sure(_KEY, leaf.header)]
        if len(fitting) > 1:
            names, choose = gettext(" and ").join(map(repr, fitting)), Option("columns", {_KEY: fitting[0]})
            raise ColumnError(SEVERAL_NUMBER_COLUMNS, name=table.name, names=names, parameter=choose)
        found |= dict.fromkeys([_KEY], fitting[0]) if fitting else {}
    number = next((leaf for leaf in leaves if leaf.header == found.get(_KEY, given.get(_KEY))), None)
    for role in roles:
        if role != _KEY and (leaf := _beside(role, leaves, number)):
            found[role] = leaf.header
    return found


def _notes(
    table: Table,
    leaves: Sequence[_Leaf],
    roles: Sequence[str],
    chosen: Mapping[str, Choice],
    found: Mapping[str, str],
    objects: Collection[int],
) -> Iterator[str]:
    if found:
        lang = current_language()
        one = gettext_noop("{role} is {header!r}")
        named = ", ".join(gettext(one, role=role_word(role, lang), header=header) for role, header in found.items())
        yield gettext("taken from within objects: {named}; `columns=` chooses others", named=named)
    for role in roles:
        unused = [place for place in sorted(objects) if has_role(table.headers[place], role)]
        if unused and role not in chosen:
            yield Alert(_describe_objects(table, leaves, role, unused[0]))


def _mixed_notes(table: Table, leaves: Sequence[_Leaf], address: Choice, texts: _Texts) -> Iterator[str]:
    headers = {part.header for part in address.parts}
    for place in sorted({part.column for part in address.parts} & set(texts)):
        inner = [leaf for leaf in leaves if leaf.column == place]
        if inner and not any(leaf.header in headers for leaf in inner):
            both = f"{table.headers[place]}|{_best_leaf(table, inner, 'address').header}"
            text = gettext_noop(
                "some cells of column {path!r} hold objects and are not used as the {role}; {parameter} takes a key of "
                "theirs"
            )
            said = {"path": table.headers[place], "role": role_word("address", current_language())}
            yield Alert(gettext(text, parameter=parameter("columns", {"address": both}), **said))


def _describe_objects(table: Table, leaves: Sequence[_Leaf], role: str, place: int) -> str:
    said = {"path": table.headers[place], "role": role_word(role, current_language())}
    rest = [leaf for leaf in leaves if leaf.column == place]
    if not rest:
        return gettext(
            "column {path!r} holds objects and is not used as the {role}; put the value of the key that is the {role} "
            "into a column of its own",
            **said,
        )
    named = parameter("columns", {role: _best_leaf(table, rest, role).header})
    unused = gettext_noop("column {path!r} holds objects and is not used; name the key that is the {role}: {parameter}")
    return gettext(unused, parameter=named, **said)


def _best_leaf(table: Table, leaves: Sequence[_Leaf], role: str) -> _Leaf:
    if role != "address":
        return leaves[0]
    values = [leaf.value.cast(pl.String, strict=False) for leaf in leaves]
    held = [holds_address(value).mean().fill_null(0.0).alias(str(at)) for at, value in enumerate(values)]
    shares = table.head(_SAMPLE).select(held).collect().row(0)
    return leaves[shares.index(max(shares))]


def _beside(role: str, leaves: Sequence[_Leaf], number: _Leaf | None) -> _Leaf | None:
    if number is not None:
        outer = number.path[:-1]
        inside = [leaf for leaf in leaves if leaf.path[: len(outer)] == outer and _ends_surely(role, leaf)]
        if len(inside) == 1:
            return inside[0]
    whole = [leaf for leaf in leaves if _is_sure(role, leaf.header)]
    return whole[0] if len(whole) == 1 else None


def _ends_surely(role: str, leaf: _Leaf) -> bool:
    return _is_sure(role, str(leaf.path[-1]))


def _is_sure(role: str, header: str) -> bool:
    return level_of(role, header) == "sure"
