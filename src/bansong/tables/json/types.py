"""Find for each JSON key the column type that keeps every value as spelled in the file, else text; read the columns."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import msgspec
import polars as pl
from polars.datatypes import DataTypeClass
from polars.io.plugins import register_io_source

from bansong.base.errors import InputError, Problem
from bansong.base.isolation import limits
from bansong.base.messages import gettext
from bansong.tables.headers import has_role
from bansong.tables.json import scan
from bansong.tables.json.scan import RecordChunk, other_lines, plain_pattern, whole_lines
from bansong.tables.table import RAW, column_ids, json_text, typed_id

RECORDS_NOT_SEPARABLE: Final = Problem(
    "json.records_not_separable", "{path}: the records at byte {start:,} cannot be told apart; one object a line"
)
TOO_MANY_KEYS: Final = Problem(
    "json.too_many_keys", "{path}: the objects have more than {columns:,} different keys; give them the same"
)
LONE_SURROGATE: Final = Problem(
    "json.lone_surrogate",
    "{path}: record {number}, key {key!r}: half a surrogate pair (\\ud800 to \\udfff) is no "
    "text; cut texts between characters when writing the file",
)
RECORD_NOT_OBJECT: Final = Problem("json.record_not_object", "{path}: record {number} is not a JSON object: {error}")
KEY_REPEATED: Final = Problem(
    "json.key_repeated", "{path}: record {number} has the key {error} twice; keep one of them"
)

DataType = pl.DataType | DataTypeClass
Schema = Mapping[str, DataType]

_LONE: Final = "v"
COLUMNS: Final = 4096  # how many different keys the objects of a file may have
_ABSENT: Final = msgspec.Raw(b"")
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_FLOAT: Final = r"-?[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)"
# replaces an integer in a union with ``float``, which alone would take integers, too
_NO_INTEGER: Final = Annotated[int, msgspec.Meta(ge=1, le=0)]
_I64: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_LEAVES: Final[dict[DataType, Any]] = {
    pl.Null(): None,
    pl.String(): str | None,
    pl.Int64(): _I64 | None,
    pl.Boolean(): bool | None,
    pl.Float64(): _NO_INTEGER | float | None,
}
_UNSTRUCTURED: Final = re.compile(r'["\\\x00-\x1f]')
_SPELLED: Final = (pl.Int64, pl.Float64)  # a number has several spellings (``1.10``, ``-0``), a column of these one
_KEY: Final = b'":'
_UNQUOTED: Final = "^[-0-9tf]"  # how numbers and truth values begin
_encode_lines: Final = msgspec.json.Encoder().encode_lines
_decode_objects: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode_lines
decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_texts: Final = msgspec.json.Decoder(str).decode_lines


class _NotExactError(Exception):
    pass


_NOT_NESTED: Final = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
    *(msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _NotExactError),
)


class ColumnTypes:
    """Learns the column types of a file from one part of its records after the other."""

    def __init__(self, path: Path, data: Path) -> None:
        self.path = path
        self.data = data
        self.types: dict[str, DataType | None] = {}  # ``None`` for text, Null for no value so far
        self.rows = 0
        self._pattern: str | None = None
        self._quick: msgspec.json.Decoder[Any] | None = None
        self._checks: dict[str, _Check] = {}
        self._integers: list[str] = []

    def learn(self, part: RecordChunk) -> None:
        if not self._fits(part):
            self._widen(part)
            usable = not any(_UNSTRUCTURED.search(key) for key in self.types)
            self._pattern = plain_pattern(self.types) if usable else None
            self._quick = _rows_decoder(self.types) if usable else None
            self._integers = [f"f{place}" for place, dtype in enumerate(self.types.values()) if dtype == pl.Int64]
            self._checks = {
                f"f{place}": _Check(dtype) for place, dtype in enumerate(self.types.values()) if _is_raw(dtype)
            }
        self.rows += part.count

    def schema(self) -> dict[str, DataType | None]:
        """Return the final type of each key, ``None`` for text. A key without any value is text of nulls."""
        return {
            key: pl.String() if dtype == pl.Null else dtype if dtype is None or _is_whole(dtype) else None
            for key, dtype in self.types.items()
        }

    def _fits(self, part: RecordChunk) -> bool:
        lines, count = part.lines, part.count
        if self._pattern is not None:
            lines, count = other_lines(lines, count, self._pattern)
            if not count:
                return True
            if count > part.count // 2:  # most are spelled otherwise: the pattern is of no use
                self._pattern = None
        return self._are_plain(lines, count)

    def _are_plain(self, lines: bytes, count: int) -> bool:
        if self._quick is None or not _is_one_a_line(lines, count):
            return False
        keys = count * len(self.types)
        try:
            rows = self._quick.decode_lines(lines)
            if len(rows) != count:
                return False
            if any(0 in map(attrgetter(field), rows) for field in self._integers) and b"-0" in lines:
                return False
            for field, check in self._checks.items():
                joined = b"\n".join(map(attrgetter(field), rows))
                if not check.passes(joined):
                    return False
                keys += joined.count(_KEY)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return lines.count(_KEY) == keys

    def _widen(self, part: RecordChunk) -> None:
        try:
            part.lines.decode()
        except UnicodeDecodeError as error:
            raise scan.not_utf8(self.path, self.data, part.start, part.end) from error
        objects = self._objects(part)
        for key in dict.fromkeys(chain.from_iterable(objects)):
            if len(key) > limits().text:
                raise scan.long_key(self.path, key)
            self.types.setdefault(key, pl.Null())
        if len(self.types) > COLUMNS:
            raise InputError(TOO_MANY_KEYS, path=self.path, columns=COLUMNS)
        keys: int | None = sum(map(len, objects))
        for key, known in self.types.items():
            tokens = split(b"\n".join(map(methodcaller("get", key, _ABSENT), objects)))
            tokens = tokens.filter((tokens != "") & (tokens != "null"))
            nested = tokens.filter(tokens.str.contains(r"^[\[{]"))
            self._check_depth(part, nested)
            keys = _keys_in(nested, keys)
            self._check_texts(part, tokens.filter(tokens.str.starts_with('"')))
            if not tokens.is_empty():
                self.types[key] = _merge_types(known, _type_of(tokens, whole=len(nested) == len(tokens)))
        if keys != part.lines.count(_KEY):
            self._check_keys(part)

    def _objects(self, part: RecordChunk) -> list[dict[str, msgspec.Raw]]:
        with suppress(msgspec.MsgspecError, RecursionError):
            objects = _decode_objects(part.lines)
            if len(objects) == part.count and _is_one_a_line(part.lines, part.count):
                return objects
        for number, line in self._numbered_lines(part):
            try:
                decode_object(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise InputError(RECORD_NOT_OBJECT, path=self.path, number=number, error=error) from error
        raise InputError(RECORDS_NOT_SEPARABLE, path=self.path, start=part.start)

    def _check_depth(self, part: RecordChunk, nested: pl.Series) -> None:
        """Raise for nesting beyond the limit: polars reads on threads with small stacks."""
        cap = limits().depth - 1
        many = nested.filter(nested.str.count_matches(r"[\[{]") > cap)
        brackets = many.str.replace_all(_STRING, "").str.replace_all(r"[^\[\]{}]", "")
        for _ in range(cap):
            if brackets.is_empty():
                return
            brackets = brackets.str.replace_all(r"\[\]|\{\}", "")
            brackets = brackets.filter(brackets != "")
        if not brackets.is_empty():
            last = self.rows + part.count
            what = gettext("a record from {rows:,} to {part_rows:,}", rows=self.rows + 1, part_rows=last)
            raise scan.too_deep(self.path, what)

    def _check_texts(self, part: RecordChunk, texts: pl.Series) -> None:
        """Raise for an unreadable text (half a surrogate pair), naming the record."""
        try:
            _decode_texts(_join_lines(texts))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            for number, line in self._numbered_lines(part):
                strings = {key: raw for key, raw in decode_object(line).items() if bytes(raw).startswith(b'"')}
                for key, raw in strings.items():
                    try:
                        msgspec.json.decode(raw, type=str)
                    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                        raise InputError(LONE_SURROGATE, path=self.path, number=number, key=key) from error
            raise

    def _check_keys(self, part: RecordChunk) -> None:
        """Raise for a key that an object has twice: readers of JSON differ in which value counts."""
        for number, line in self._numbered_lines(part):
            try:
                json.loads(line, object_pairs_hook=_once, parse_int=str, parse_float=str, parse_constant=str)
            except _RepeatedError as error:
                raise InputError(KEY_REPEATED, path=self.path, number=number, error=error) from error

    def _numbered_lines(self, part: RecordChunk) -> Iterator[tuple[int, bytes]]:
        return enumerate(part.lines.split(b"\n"), self.rows + 1)


class _RepeatedError(Exception):
    pass


def _is_one_a_line(lines: bytes, count: int) -> bool:
    return lines.startswith(b"{") and lines.endswith(b"}") and lines.count(b"}\n{") == count - 1


def split(tokens: bytes) -> pl.Series:
    return pl.Series([tokens.decode()]).str.split("\n").explode()


def _tokens_of(lines: bytes, keys: Iterable[str]) -> dict[str, pl.Series]:
    objects = _decode_objects(lines)
    columns = {key: split(b"\n".join(map(methodcaller("get", key, _ABSENT), objects))) for key in keys}
    return {key: column.set((column == "") | (column == "null"), None) for key, column in columns.items()}


def without(texts: pl.Series, keys: Iterable[str]) -> pl.Series:
    if texts.is_empty():
        return texts
    objects = _decode_objects(_join_lines(texts))
    for key in keys:
        deque(map(methodcaller("pop", key, None), objects), maxlen=0)
    return split(_encode_lines(objects).rstrip(b"\n"))


def _join_lines(texts: pl.Series) -> bytes:
    return str(texts.str.join("\n").item()).encode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counted = Counter(key for key, _ in pairs)
    if len(counted) < len(pairs):
        raise _RepeatedError(repr(counted.most_common(1)[0][0]))
    return dict(pairs)


def _keys_in(nested: pl.Series, others: int | None) -> int | None:
    if others is None or nested.is_empty():
        return others
    joined = _join_lines(nested)
    try:
        again = _encode_lines(msgspec.json.Decoder().decode_lines(joined))
    except (msgspec.MsgspecError, RecursionError):
        return None
    return others + again.count(_KEY)


def _rows_decoder(types: Mapping[str, DataType | None]) -> msgspec.json.Decoder[Any]:
    """Return a decoder for objects with all these keys (none needs an escape), and values of the keys' types."""
    fields = [
        (f"f{place}", msgspec.Raw if dtype is None or _is_raw(dtype) else _type(dtype))
        for place, dtype in enumerate(types.values())
    ]
    names = {f"f{place}": key for place, key in enumerate(types)}
    return msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, gc=False))


def _is_raw(dtype: DataType | None) -> bool:
    return dtype is None or dtype == pl.Float64 or dtype.is_nested()


class _Check:
    def __init__(self, dtype: DataType | None) -> None:
        self._dtype = dtype
        nested = dtype is not None and dtype.is_nested()
        self._nested = msgspec.json.Decoder(_type(dtype)) if dtype is not None and nested else None

    def passes(self, joined: bytes) -> bool:
        if self._nested is not None:
            again = _encode_lines(self._nested.decode_lines(joined))
            return again.count(_KEY) == joined.count(_KEY) and (
                not _has_floats(self._dtype) or _are_floats_within(split(joined))
            )
        if self._dtype is None and (b"[" in joined or b"{" in joined):
            return False
        tokens = split(joined)
        if self._dtype is None:
            _decode_texts(_join_lines(tokens.filter(tokens.str.starts_with('"'))))
            return True
        return _are_spelled(tokens.filter(tokens != "null"), self._dtype)


def _type_of(tokens: pl.Series, *, whole: bool) -> DataType | None:
    if whole:
        return _nested_type(tokens)
    if tokens.str.starts_with('"').all():
        return pl.String()
    if tokens.is_in(["true", "false"]).all():
        return pl.Boolean()
    return next((dtype() for dtype in _SPELLED if _are_spelled(tokens, dtype)), None)


def _nested_type(tokens: pl.Series) -> DataType | None:
    try:
        lone = '{"' + _LONE + '":' + tokens + "}"
        dtype = pl.read_ndjson(_join_lines(lone), infer_schema_length=None).schema[_LONE]
        msgspec.json.Decoder(_type(dtype)).decode_lines(_join_lines(tokens))
    except _NOT_NESTED:
        return None
    return None if _has_floats(dtype) and not _are_floats_within(tokens) else dtype


def _has_floats(dtype: DataType | None) -> bool:
    return dtype is not None and pl.Float64 in _leaves(dtype)


def _are_floats_within(nested: pl.Series) -> bool:
    found = nested.str.replace_all(_STRING, "").str.extract_all(_FLOAT).explode().drop_nulls().unique()
    return _are_spelled(found, pl.Float64)


def _are_spelled(tokens: pl.Series, dtype: DataType) -> bool:
    """Whether polars writes all numbers as they are spelled here; as floats, it changes ``1.10`` and ``1``."""
    return bool(tokens.cast(dtype, strict=False).cast(pl.String).eq_missing(tokens).all())


def _merge_types(one: DataType | None, other: DataType | None) -> DataType | None:
    if one is None or other is None or one == other or other == pl.Null:
        return one if other is not None else None
    if one == pl.Null:
        return other
    if isinstance(one, pl.List) and isinstance(other, pl.List):
        inner = _merge_types(one.inner, other.inner)
        return None if inner is None else pl.List(inner)
    if isinstance(one, pl.Struct) and isinstance(other, pl.Struct):
        mine, theirs = dict(one), dict(other)
        fields = {name: _merge_types(dtype, theirs.get(name)) for name, dtype in mine.items()}
        if mine.keys() == theirs.keys() and None not in fields.values():
            return pl.Struct({name: dtype for name, dtype in fields.items() if dtype is not None})
    return None


def _type(dtype: DataType) -> Any:
    """Return the msgspec type of the values that a column of this dtype keeps exactly; raise if there is none."""
    if isinstance(dtype, pl.Struct) and dtype.fields:
        return TypedDict("Object", {field.name: _type(field.dtype) for field in dtype.fields}) | None  # type: ignore
    if isinstance(dtype, pl.List):
        return list[_type(dtype.inner)] | None  # type: ignore[misc]
    if dtype not in _LEAVES:
        raise _NotExactError
    return _LEAVES[dtype]


def _is_whole(dtype: DataType) -> bool:
    return pl.Null not in _leaves(dtype)


def _leaves(dtype: DataType) -> set[DataTypeClass]:
    if isinstance(dtype, pl.Struct):
        return set().union(*(_leaves(field.dtype) for field in dtype.fields))
    return _leaves(dtype.inner) if isinstance(dtype, pl.List) else {dtype.base_type()}


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file with one JSON object per line, and the types of its keys (``None``: text)."""

    path: Path
    types: Mapping[str, DataType | None]

    def scan(self) -> pl.LazyFrame:
        # ``scan_lines`` gives batches of 3,000 rows, and each step of a query has a cost a batch
        schema: dict[str, DataType] = {RAW: pl.String()}
        for id_, (key, dtype) in self._columns().items():
            schema[id_] = pl.String() if dtype is None or _is_roles(key, dtype) else dtype
        schema |= {typed_id(id_): pl.Boolean() for id_, (_, dtype) in self._columns().items() if dtype is None}
        return register_io_source(partial(self._read, list(schema)), schema=pl.Schema(schema), is_pure=True)

    def _columns(self) -> dict[str, tuple[str, DataType | None]]:
        return dict(zip(column_ids(len(self.types)), self.types.items(), strict=True))

    def _read(
        self, every: list[str], wanted: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        for _start, lines in whole_lines(self.path):
            batch = self._decode(lines, every if wanted is None else wanted)
            if most is not None:
                batch = batch.head(most)
                most -= batch.height
            yield batch if predicate is None else batch.filter(predicate)
            if most == 0:
                return

    def _decode(self, lines: bytes, names: list[str]) -> pl.DataFrame:
        wanted = {id_.partition(":")[0] for id_ in names}
        types = {key: dtype for id_, (key, dtype) in self._columns().items() if id_ in wanted}
        ids = {key: id_ for id_, (key, _) in self._columns().items() if id_ in wanted}
        raw = pl.scan_lines(lines, name=RAW).collect() if RAW in wanted or not types else pl.DataFrame()
        if not types:
            values = pl.DataFrame()
        elif None in self.types.values():  # polars reads no line with a number beyond its own, whatever the schema
            tokens = pl.DataFrame(_tokens_of(lines, types))
            typed = {typed_id(id_): pl.col(key).str.contains(_UNQUOTED).fill_null(False) for key, id_ in ids.items()}
            values = tokens.select(*(_value(key, types[key]).alias(id_) for key, id_ in ids.items()), **typed)
        else:
            known = {key: dtype for key, dtype in types.items() if dtype is not None}
            fields = (json_text(pl.col(key)) if _is_roles(key, types[key]) else pl.col(key) for key in ids)
            values = pl.read_ndjson(lines, schema=known).select(
                field.alias(id_) for field, id_ in zip(fields, ids.values(), strict=True)
            )
        batch = pl.concat([raw, values], how="horizontal")
        return batch.select(names) if names else pl.DataFrame(height=batch.height)


def _is_roles(key: str, dtype: DataType | None) -> bool:
    return dtype is not None and dtype.is_nested() and has_role(key)


def _value(key: str, dtype: DataType | None) -> pl.Expr:
    """Return a key's values. Values without a type, and nested ones of a role, stay as they are spelled."""
    token = pl.col(key)
    if dtype is None or dtype == pl.String or _is_roles(key, dtype):
        text = pl.when(token.str.starts_with('"')).then(token)
        return pl.coalesce(text.str.json_decode(pl.String()), token)
    if dtype == pl.Boolean:
        return token.str.starts_with("t")
    return token.str.json_decode(dtype) if dtype.is_nested() else token.cast(dtype)
