"""JSON ⇄ frames: an array of objects, an array inside a wrapper object, or one object a line (NDJSON).

The text of each object is carried along (:data:`~bizverify.tables.table.RAW`), so that JSON → JSON appends our
fields to the user's objects and leaves everything else in them as it was: order and absence of keys, nesting, ``1.10``.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypedDict, TypeVar

import msgspec
import polars as pl
from polars.datatypes import DataTypeClass

from bizverify.errors import InputError
from bizverify.model import ADDED_COLUMNS
from bizverify.tables.columns import has_role
from bizverify.tables.packing import File
from bizverify.tables.table import RAW, Enriched, Format, Table, column_ids, json_text, refuse_binary, written_column

_ARRAY_SEPARATOR: Final = ",\n"
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

_BATCH: Final = 50_000
_RECORD: Final = "record"
_LONE: Final = "v"
_NULL: Final = msgspec.Raw(b"null")
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_FLOAT: Final = r"-?[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)"
_NO_INTEGER: Final = Annotated[int, msgspec.Meta(ge=1, le=0)]
"""Takes an integer's place in a union with ``float``, which alone would take integers too."""
_LEAVES: Final[dict[DataType, Any]] = {
    pl.String(): str | None,
    pl.Int64(): int | None,
    pl.Boolean(): bool | None,
    pl.Float64(): _NO_INTEGER | float | None,
}

DataType = pl.DataType | DataTypeClass
Schema = Mapping[str, DataType]
T = TypeVar("T", pl.Expr, pl.Series)


class _NotExactError(Exception):
    """A column of some type would not give back every value as it stands in the file."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What stands before and after the array of objects in its file."""

    before: bytes = b""
    after: bytes = b""


def read(file: File, format: Format, json_path: str | None) -> Table:
    """Open a JSON or NDJSON file.

    A column is typed where the type gives back every value as it stands in the file: integers, floats, booleans,
    text, nested values of one shape. Otherwise (``1.10``, ``1`` beside ``0.5``, objects with different keys) it is
    text: texts as they are, everything else as its JSON. So are nested values under the header of a role.
    Raises :class:`InputError`, for an object that cannot be read naming the record.
    """
    try:
        return _read(file, format, json_path)
    except RecursionError as error:
        raise InputError(f"{file.path}: is nested too deeply") from error


def _read(file: File, format: Format, json_path: str | None) -> Table:
    path = file.path
    if format == "ndjson" or _is_lines(file.data):
        lines = pl.scan_lines(file.data, name=RAW, glob=False).select(pl.col(RAW).str.strip_chars("\ufeff \t\r"))
        return _table(file, "ndjson", lines.filter(pl.col(RAW) != ""), Wrapper())
    data = file.data.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        # without the white space between tokens; the tokens themselves stay as they are written
        objects, wrapper = _array_in(path, msgspec.json.format(data, indent=-1))
        texts = [bytes(raw).decode() for raw in objects]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid JSON: {error}") from error
    return _table(file, "json", pl.LazyFrame({RAW: texts}, schema={RAW: pl.String}), wrapper)


def write(result: Enriched, file: BinaryIO, format: Format) -> pl.DataFrame:
    """Write an enriched table as an array of objects or as NDJSON; return the tally.

    Objects that came from JSON are kept as they stood, with our fields behind; ``reasons`` is a list.
    """
    wrapper = Wrapper()
    if isinstance(result.table.source, Wrapper):
        lines, wrapper = _appended(result), result.table.source
    else:
        titled = result.titled(lists=True)
        refuse_binary(titled, "JSON")
        lines = titled.select(pl.struct(pl.all()).struct.json_encode())
    separator = "\n" if format == "ndjson" else _ARRAY_SEPARATOR
    if format == "json":
        file.write(wrapper.before + b"[\n")
        file.flush()
    start = file.tell()
    sink = lines.sink_csv(file, include_header=False, quote_style="never", line_terminator=separator, lazy=True)
    _, tally = pl.collect_all([sink, result.tally], engine="streaming")
    if format == "json":
        end = file.seek(0, 2)
        file.seek(max(start, end - len(separator)))
        file.truncate()
        file.write(b"\n]" + wrapper.after + b"\n")
    return tally


def _is_lines(path: Path) -> bool:
    """Whether the first line is an object of its own and others follow."""
    with path.open("rb") as file:
        lines = (line for line in file if line.removeprefix(codecs.BOM_UTF8).strip())
        first, rest = next(lines, b""), next(lines, b"")
    try:
        _decode_object(first.removeprefix(codecs.BOM_UTF8))
    except msgspec.MsgspecError:
        return False
    return bool(rest)


def _array_in(path: Path, data: bytes) -> tuple[list[msgspec.Raw], Wrapper]:
    """The objects of a document: its array, the one array of objects in its top object, or that object alone."""
    if data.startswith(b"["):
        return _decode_array(data), Wrapper()
    if not data.startswith(b"{"):
        raise InputError(f"{path}: holds no array of objects")
    fields = _decode_object(data)
    arrays = [key for key, raw in fields.items() if bytes(raw).startswith(b"[{")]
    if len(arrays) > 1:
        raise InputError(f"{path}: holds several arrays of objects ({', '.join(arrays)}); keep the one to verify")
    if not arrays and not any(has_role(key, "b_no") for key in fields):  # a record may have empty arrays of its own
        arrays = [key for key, raw in fields.items() if bytes(raw) == b"[]"]
    if not arrays:
        return [msgspec.Raw(data)], Wrapper()
    parts = [(key, msgspec.json.encode(key) + b":" + bytes(raw)) for key, raw in fields.items()]
    place = list(fields).index(arrays[0])
    before = b"{" + b"".join(part + b"," for _, part in parts[:place]) + msgspec.json.encode(arrays[0]) + b":"
    after = b"".join(b"," + part for _, part in parts[place + 1 :]) + b"}"
    return _decode_array(fields[arrays[0]]), Wrapper(before, after)


def _table(file: File, format: Format, lines: pl.LazyFrame, wrapper: Wrapper) -> Table:
    texts = lines.collect(engine="streaming")[RAW]
    schema = _exact_schema(texts)
    record, fields = _by_token(file.path, texts) if schema is None else _by_schema(schema)
    if not fields:
        return Table(lines, (), format, file.path.name, file, wrapper)
    columns = (field.alias(id_) for field, id_ in zip(fields.values(), column_ids(len(fields)), strict=True))
    frame = lines.with_columns(record.alias(_RECORD)).select(RAW, *columns)
    return Table(frame, tuple(fields), format, file.path.name, file, wrapper)


def _exact_schema(texts: pl.Series) -> Schema | None:
    """Every key of every object with its type, or ``None`` where those types would change a value.

    polars guesses the types; msgspec reads every object with just these, and refuses a value of another one.
    """
    if texts.is_empty():
        return {}
    try:
        guess = pl.read_ndjson("\n".join(texts).encode(), infer_schema_length=None).schema
        schema = {key: pl.String() if dtype == pl.Null else dtype for key, dtype in guess.items()}
        decoder = msgspec.json.Decoder(_object(schema, every=False))
        for start in range(0, len(texts), _BATCH):  # in batches: what is read is thrown away at once
            decoder.decode_lines("\n".join(texts.slice(start, _BATCH)))
    except (pl.exceptions.PolarsError, msgspec.MsgspecError, _NotExactError):
        return None
    floats = any(leaf == pl.Float64 for leaf in _leaves(schema.values()))
    return None if floats and not _has_plain_floats(texts) else schema


def _type(dtype: DataType) -> Any:
    """What msgspec must find where a column of this type gives back the value as it was.

    Raises :class:`_NotExactError` for types that JSON's values need not have, or that not every format can hold.
    """
    if isinstance(dtype, pl.Struct) and dtype.fields:
        return _object({field.name: field.dtype for field in dtype.fields}) | None
    if isinstance(dtype, pl.List):
        return list[_type(dtype.inner)] | None  # type: ignore[misc]
    if dtype not in _LEAVES:
        raise _NotExactError
    return _LEAVES[dtype]


def _object(schema: Schema, *, every: bool = True) -> Any:
    """An object with these keys, ``every`` one of them."""
    types = {key: _type(dtype) for key, dtype in schema.items()}
    return TypedDict("Object", types, total=every)  # type: ignore[operator]


def _leaves(dtypes: Iterable[DataType]) -> Iterator[DataType]:
    for dtype in dtypes:
        if isinstance(dtype, pl.Struct):
            yield from _leaves(field.dtype for field in dtype.fields)
        elif isinstance(dtype, pl.List):
            yield from _leaves([dtype.inner])
        else:
            yield dtype


def _has_plain_floats(texts: pl.Series) -> bool:
    """Whether all numbers with a fraction or an exponent are spelled as polars spells them; ``1.10`` is not."""
    floats = texts.str.replace_all(_STRING, "").str.extract_all(_FLOAT).explode().drop_nulls().unique()
    return bool((floats.cast(pl.Float64, strict=False).cast(pl.String) == floats).all())


def _by_schema(schema: Schema) -> tuple[pl.Expr, dict[str, pl.Expr]]:
    """The objects as records of exact types, and each key's column of them."""
    field = pl.col(_RECORD).struct.field
    return pl.col(RAW).str.json_decode(pl.Struct(schema)), {
        key: json_text(field(key)) if dtype.is_nested() and has_role(key) else field(key)
        for key, dtype in schema.items()
    }


def _by_token(path: Path, texts: pl.Series) -> tuple[pl.Expr, dict[str, pl.Expr]]:
    """The objects as records of tokens, and each key's column of them: typed where that is exact for it, else text.

    Goes through the objects one by one, since no parser of columns gives a number as it is spelled; only files with
    values that typed columns would change take this way.
    """
    keys = _keys(path, texts)
    tokens = _tokens(texts, keys, ()).struct
    types = {key: _exact_type(tokens.field(key).drop_nulls()) for key in keys}
    plain = [key for key, dtype in types.items() if dtype == pl.String or (dtype.is_nested() and has_role(key))]
    record = pl.col(RAW).map_batches(
        lambda part: _tokens(part, keys, plain), pl.Struct(dict.fromkeys(keys, pl.String())), is_elementwise=True
    )
    field = pl.col(_RECORD).struct.field
    return record, {
        key: field(key)
        if key in plain
        else _lone(field(key)).str.json_decode(pl.Struct({_LONE: dtype})).struct.field(_LONE)
        for key, dtype in types.items()
    }


def _exact_type(tokens: pl.Series) -> DataType:
    """The type that gives back these tokens as they are, String where there is none."""
    if tokens.str.starts_with('"').all():
        return pl.String()
    schema = _exact_schema(_lone(tokens))
    return schema[_LONE] if schema else pl.String()


def _lone(tokens: T) -> T:
    """Each token as an object with one key."""
    return f'{{"{_LONE}":' + tokens + "}"


def _keys(path: Path, texts: pl.Series) -> list[str]:
    keys: dict[str, None] = {}
    for number, text in enumerate(texts, 1):
        try:
            keys |= dict.fromkeys(_decode_object(text))
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: record {number} is not a JSON object: {error}") from error
    return list(keys)


def _tokens(texts: pl.Series, keys: Sequence[str], plain: Collection[str]) -> pl.Series:
    """The value of each key as it stands in the objects; under ``plain`` keys without the quotes of JSON text."""
    objects = [_decode_object(text) for text in texts]
    columns = {key: [_token(fields.get(key), plain=key in plain) for fields in objects] for key in keys}
    return pl.DataFrame(columns, schema=dict.fromkeys(keys, pl.String())).to_struct(RAW)


def _token(raw: msgspec.Raw | None, *, plain: bool) -> str | None:
    if raw is None:
        return None
    token = bytes(raw).decode()
    if not plain:
        return token
    if token.startswith('"'):
        with suppress(msgspec.DecodeError):  # half a surrogate pair is no text: its escape stays
            return _decode_text(token)
    return None if raw == _NULL else token


def _appended(result: Enriched) -> pl.LazyFrame:
    """Each object's own text with our fields put behind its own."""
    added = [(column, header) for column, header in result.layout if column in ADDED_COLUMNS]
    replaced = {header for _, header in added} & set(result.table.headers)
    raw = pl.col(RAW)
    if replaced:
        raw = raw.map_batches(lambda texts: _without(texts, replaced), pl.String, is_elementwise=True)
    values = (written_column(column, lists=True).alias(header) for column, header in added)
    fields = pl.struct(values).struct.json_encode().str.slice(1)
    own = raw.str.strip_suffix("}").str.strip_chars_end()
    joint = pl.when(own == "{").then(pl.lit("")).otherwise(pl.lit(","))
    return result.frame.select(pl.concat_str(own, joint, fields))


def _without(texts: pl.Series, keys: set[str]) -> pl.Series:
    # by dict, so of a key that an object repeats the last value stays
    kept = (
        {key: raw for key, raw in _decode_object(text).items() if key not in keys} for text in texts
    )  # our own fields from an earlier run; only such files take this path
    return pl.Series([msgspec.json.encode(fields).decode() for fields in kept], dtype=pl.String)
