"""JSON and NDJSON files: find the records, read them, write them with more fields."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, cast

import msgspec
import polars as pl

from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.files import create_private, private_folder
from bansong.base.isolation import limits
from bansong.base.messages import Option, advise, gettext, gettext_noop, ngettext, parameter
from bansong.base.options import ReadOptions
from bansong.tables.detect import FORMATS
from bansong.tables.headers import has_role
from bansong.tables.json import scan
from bansong.tables.json.scan import CHUNK, NotPlainError, RecordChunk, Scanner, whole_lines
from bansong.tables.json.types import ColumnTypes, RecordFile, decode_object, without
from bansong.tables.streams import File, HoldEnd, open_file, packing_of, sink
from bansong.tables.table import (
    RAW,
    Enriched,
    Planned,
    Table,
    Verbs,
    Written,
    contract_name,
    is_added,
    json_text,
    refuse_binary,
    renamed_headers,
    typed_columns,
    typed_id,
    unique_names,
    written_column,
)

DOCUMENT_TOO_LARGE: Final = Problem(
    "limits.document_too_large", "{path}: holds too much beside {document_path}; keep the array that is to be verified"
)
SEVERAL_ARRAYS: Final = Problem("json.several_arrays", "{path}: holds several arrays of objects ({paths}); {advice}")
PATH_NOT_ARRAY: Final = Problem("json.path_not_array", "{path}: {what}; it must lead to an array of objects")
ARRAY_MISSING: Final = Problem("json.array_missing", "{path}: holds {word}, not an array of objects; export it again")
PATH_SYNTAX_INVALID: Final = Problem(
    "json.path_syntax_invalid", "{parameter} cannot be read from {rest!r} on; write data.items[0]"
)
PATH_KEY_UNREADABLE: Final = Problem("json.path_key_unreadable", "{parameter}: {quoted!r} cannot be read: {error}")
DOCUMENT_INVALID: Final = Problem("json.document_invalid", "{path}: is not valid JSON around {document_path}: {error}")

Step = str | int
Path_ = tuple[Step, ...]

_STEP: Final = re.compile(r"""\.?([^.\[\]"']+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]|\['([^']*)'\]""")
_SHOWN: Final = 8
_EMPTY, _FILLED, _NUMBERED = range(3)  # arrays: without objects; of objects; of some with the header of a number
_WORDS: Final = {
    b"{": gettext_noop("an object"),
    b"[": gettext_noop("an array"),
    b'"': gettext_noop("a text"),
    b"t": "true",
    b"f": "false",
    b"n": "null",
}


@dataclass(frozen=True, slots=True)
class Document:
    """The place of a JSON file's records: from byte ``start`` to byte ``end`` of ``data``."""

    data: Path
    start: int
    end: int
    path: str = ""  # leads to the records from the document itself
    kind: Literal["array", "object", "sequence"] = "array"  # an object: it is itself the only record

    def records(self, path: Path) -> Iterator[RecordChunk]:
        with Scanner(path, self.data, self.start) as scanner:
            yield from scanner.array() if self.kind == "array" else scanner.sequence()
            if not self.path and scanner.peek():
                raise scanner.fault(gettext("there is more behind the end of the array"))


class _FoundArray(NamedTuple):
    path: Path_
    start: int
    end: int
    fit: int  # how well it fits: _EMPTY to _NUMBERED


def _at_path(path: Path, data: Path, start: int, json_path: str) -> Document:
    steps = _steps(json_path)
    with Scanner(path, data, start) as scanner:
        for depth, step in enumerate(steps):
            _enter(scanner, step, steps[:depth], json_path)
        if (byte := scanner.peek()) != b"[":
            what = gettext("{parameter} leads to {word}", parameter=parameter("json_path", json_path), word=_word(byte))
            raise UsageError(PATH_NOT_ARRAY, path=path, what=what)
        begin = scanner.position
        deque(scanner.array(), maxlen=0)
        document = Document(data, begin, scanner.position, spell_path(steps))
    _check_around(path, document)
    return document


def _find(path: Path, data: Path, start: int) -> Document:
    """Find the records: the one array with a key for business numbers, or the only array, else the whole object."""
    with Scanner(path, data, start) as scanner:
        if scanner.peek() == b"[":
            return Document(data, scanner.position, data.stat().st_size, "", "array")
        if scanner.peek() != b"{":
            raise InputError(ARRAY_MISSING, path=path, word=_word(scanner.peek()))
        begin, own = scanner.position, False
        found: list[_FoundArray] = []
        for key in _members(scanner):
            own = own or has_role(key, "b_no")
            _search(scanner, (key,), found)
        end = scanner.position
        if scanner.peek():
            return Document(data, start, data.stat().st_size, "", "sequence")
    chosen = _choose_array(path, found, own)
    if chosen is None:
        return Document(data, begin, end, "", "object")
    return Document(data, chosen.start, chosen.end, spell_path(chosen.path))


def spell_path(steps: Path_) -> str:
    return "".join(map(_spell_step, steps)).removeprefix(".")


def _check_around(path: Path, document: Document) -> None:
    """Raise :class:`InputError` if the text around the array is no JSON, since it is written back unchanged."""
    size = document.data.stat().st_size
    if size - (document.end - document.start) > limits().document:
        raise InputError(DOCUMENT_TOO_LARGE, path=path, document_path=document.path)
    with document.data.open("rb") as file:
        before = file.read(document.start).removeprefix(codecs.BOM_UTF8)
        file.seek(document.end)
        try:
            msgspec.json.decode(before + b"[]" + file.read(), type=msgspec.Raw)
        except msgspec.DecodeError as error:
            raise InputError(DOCUMENT_INVALID, path=path, document_path=document.path, error=error) from error


def _spell_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    plain = step and not set(step) & set(".[]\"'") and not step.startswith("$")
    return f".{step}" if plain else f"[{msgspec.json.encode(step).decode()}]"


def _steps(json_path: str) -> Path_:
    rest, named = json_path.removeprefix("$"), Option("json_path", json_path)
    steps: list[Step] = []
    while rest:
        found = _STEP.match(rest)
        if not found:
            raise UsageError(PATH_SYNTAX_INVALID, parameter=named, rest=rest)
        key, index, quoted, single = found.groups()
        try:
            text = key or single or msgspec.json.decode(f'"{quoted or ""}"', type=str)
        except msgspec.DecodeError as error:
            raise UsageError(PATH_KEY_UNREADABLE, parameter=named, quoted=quoted, error=error) from error
        steps.append(int(index) if index else text)
        rest = rest[found.end() :]
    return tuple(steps)


def _enter(scanner: Scanner, step: Step, gone: Path_, json_path: str) -> None:
    place = gettext("in {path}", path=spell_path(gone)) if gone else gettext("at the top")
    said, byte = {"step": step, "place": place}, scanner.peek()
    seen: list[str] = []
    if isinstance(step, str) and byte == b"{":
        for key in _members(scanner):
            if key == step:
                return
            seen.append(key)
            scanner.value()
        more, keys = ", …" if len(seen) > _SHOWN else "", ", ".join(seen[:_SHOWN])
        there = gettext("no key {step!r} {place}; the keys are: {seen}{more}", seen=keys, more=more, **said)
    elif isinstance(step, int) and byte == b"[":
        for place_in, _ in enumerate(scanner.items(b"]")):
            if place_in == step:
                return
            seen.append("")
            scanner.value()
        there = gettext("no element {step} {place}; there are {count}, counted from 0", count=len(seen), **said)
    else:
        there = gettext("{place} stands {word}, which has no {step!r}", word=_word(byte), **said)
    raise UsageError(f"{scanner.path}: {parameter('json_path', json_path)}: {there}")


def _search(scanner: Scanner, path: Path_, found: list[_FoundArray]) -> None:
    if len(path) > limits().depth:
        raise scan.too_deep(scanner.path, gettext("the object at byte {position:,}", position=scanner.position))
    byte = scanner.peek()
    if byte == b"{":
        for key in _members(scanner):
            _search(scanner, (*path, key), found)
        return
    begin, first, fit = scanner.position, scanner.inside() if byte == b"[" else b"", _EMPTY
    if first == b"{":
        fit = _skip_array(scanner)
    else:
        scanner.value()
        if first != b"]":
            return
    if sum(array.fit == fit for array in found) < _SHOWN:  # a document may hold millions
        found.append(_FoundArray(path, begin, scanner.position, fit))


def _choose_array(path: Path, found: list[_FoundArray], own: bool) -> _FoundArray | None:
    filled = [array for array in found if array.fit != _EMPTY]
    numbered = [array for array in filled if array.fit == _NUMBERED]
    if not numbered and own:
        return None
    fitting = numbered or filled
    if len(fitting) > 1:
        paths = ", ".join(spell_path(array.path) for array in fitting)
        choose = gettext("choose with {parameter}", parameter=parameter("json_path", spell_path(fitting[0].path)))
        keep = gettext("keep one of them in the file")
        raise InputError(SEVERAL_ARRAYS, path=path, paths=paths, advice=advise("json_path", choose, keep))
    if fitting:
        return fitting[0]
    return found[0] if found else None


def _skip_array(scanner: Scanner) -> int:
    parts = scanner.array()
    first = next(parts).lines.partition(b"\n")[0]
    deque(parts, maxlen=0)
    try:
        keys = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):  # said with its place when the records are read
        return _FILLED
    return _NUMBERED if any(has_role(key, "b_no") for key in keys) else _FILLED


def _members(scanner: Scanner) -> Iterator[str]:
    for _ in scanner.items(b"}"):
        yield scanner.key()


def _word(byte: bytes) -> str:
    if not byte:
        return "nothing"
    if byte in _WORDS:
        return gettext(_WORDS[byte])
    return gettext("a number") if byte in b"-0123456789" else gettext("a text that is no JSON")


JSON_PATH_NEEDLESS: Final = Problem(
    "json.json_path_needless", "{path}: `json_path=` is for JSON documents; this file has one object a line"
)
ENCODING_MISMATCHED: Final = Problem(
    "json.encoding_mismatched", "{path}: is not {encoding} throughout: {error}; save the file as UTF-8"
)


def read(file: File, wanted: ReadOptions, resources: ExitStack, *, lines: bool) -> Table:
    """Open a JSON or NDJSON file in constant memory; ``lines`` is true if its name has an extension of NDJSON."""
    # A column is typed only if that gives back every value as written (nested values: of one shape). Others (``1.10``,
    # ``1`` beside ``0.5``), and columns of a role, are text: texts, else their JSON.
    try:
        data = _utf8(file, resources)
        document = _document(file.path, data, wanted.json_path, lines=lines)
        columns, records = ColumnTypes(file.path, data), data
        if document.kind != "sequence" or not _is_plain_lines(columns, data):
            columns, records = ColumnTypes(file.path, data), _private(resources, "records.ndjson")
            with records.open("wb") as out:
                for part in _learn_beside(columns, document.records(columns.path)):
                    out.write(part.lines)
                    out.write(b"\n")
    except RecursionError as error:
        raise scan.too_deep(file.path, gettext("a value")) from error
    return _table(file, document, columns, records)


def _document(path: Path, data: Path, json_path: str | None, *, lines: bool) -> Document:
    start, size = _mark(data), data.stat().st_size
    with Scanner(path, data, start) as scanner:
        first = scanner.peek()
    if first != b"[" and (lines or _is_lines(data, start)):
        if json_path is not None:
            raise UsageError(JSON_PATH_NEEDLESS, path=path)
        return Document(data, start, size, kind="sequence")
    return _find(path, data, start) if json_path is None else _at_path(path, data, start, json_path)


def _mark(data: Path) -> int:
    """Return the length of a file's byte order mark."""
    with data.open("rb") as file:
        return len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0


def _is_lines(data: Path, start: int) -> bool:
    with data.open("rb") as file:
        file.seek(start)
        head = file.read(CHUNK).lstrip()
    first, _, rest = head.partition(b"\n")
    try:
        decode_object(first)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return bool(rest.strip())


def _utf8(file: File, resources: ExitStack) -> Path:
    with file.data.open("rb") as stream:
        encoding = json.detect_encoding(stream.read(4))
    if encoding.startswith("utf-8"):
        return file.data
    copy = _private(resources, "copy.json")
    try:
        with file.data.open(encoding=encoding, newline="") as text, copy.open("w", encoding="utf-8", newline="") as out:
            while chunk := text.read(CHUNK):
                out.write(chunk)
    except UnicodeError as error:
        raise InputError(ENCODING_MISMATCHED, path=file.path, encoding=encoding, error=error) from error
    return copy


def _private(resources: ExitStack, name: str) -> Path:
    path = resources.enter_context(private_folder()) / name
    os.close(create_private(path))
    return path


def _is_plain_lines(columns: ColumnTypes, data: Path) -> bool:
    """Whether a file has one object per line and nothing else, so that it needs no copy; learn its columns."""
    try:
        deque(_learn_beside(columns, _plain_lines(data)), maxlen=0)
    except (NotPlainError, InputError):
        return False
    return True


def _learn_beside(columns: ColumnTypes, parts: Iterator[RecordChunk]) -> Iterator[RecordChunk]:
    """Yield the parts while another thread learns their columns."""
    with ThreadPoolExecutor(1) as beside:
        learned: Future[None] | None = None
        try:
            for part in parts:
                if learned is not None:
                    learned.result()
                learned = beside.submit(copy_context().run, columns.learn, part)
                yield part
        finally:
            if learned is not None:
                learned.result()  # the first fault in the file is the one that is raised


def _plain_lines(data: Path) -> Iterator[RecordChunk]:
    for start, lines in whole_lines(data, longer=False):
        if b"\r" in lines:
            raise NotPlainError
        yield RecordChunk(lines, lines.count(b"\n") + 1, start, start + len(lines))


def _table(file: File, document: Document, columns: ColumnTypes, records: Path) -> Table:
    sequence, types = document.kind == "sequence", columns.schema()
    frame = RecordFile(records, types).scan() if columns.rows else pl.LazyFrame(schema={RAW: pl.String})
    format = FORMATS["ndjson" if sequence else "json"]
    loose = columns.rows == 1 and not sequence
    return Table(frame, tuple(types), format, file.path.name, file, document, rows=columns.rows, loose=loose)


_CHUNK: Final = 1 << 20
_OF_ROWS: Final = ("fixed_zipcode", "fixed_address", "duplicate_of", "building_code")  # the others repeat
# numbers and truth values as the tables of workbooks spell them
_BARE: Final = r"^-?[0-9]+(?:\.[0-9]+)?$|^(?:true|false)$"


def write_lines(result: Enriched, stream: BinaryIO) -> pl.DataFrame:
    """Write one object per line. Objects from JSON keep their text, with our fields appended."""
    return _sink_lines(result, _lines(result), stream, "\n")


def write_document(result: Enriched, stream: BinaryIO) -> pl.DataFrame:
    source = result.table.source
    if isinstance(source, Document) and source.kind == "object":
        return write_lines(result, stream)
    lines = _lines(result)
    around = source if isinstance(source, Document) and source.path else None
    if around:
        _copy(around.data, stream, _mark(around.data), around.start)  # JSON must not have a byte order mark
    stream.write(b"[\n")
    with HoldEnd(stream, b",\n") as held:
        tally = _sink_lines(result, lines, cast("BinaryIO", held), ",\n")
    stream.write(b"\n]" if around else b"\n]\n")
    if around:
        _copy(around.data, stream, around.end, around.data.stat().st_size)
    return tally


def _lines(result: Enriched) -> pl.LazyFrame:
    if isinstance(result.table.source, Document):
        return _append_fields(result)
    titled, typed = result.with_titles(lists=True), typed_columns(result)
    refuse_binary(titled, "JSON")
    if typed:
        return result.frame.select(_objects(result, typed))
    return titled.select(pl.struct(pl.all()).struct.json_encode())


def _warn_not_finite(table: Table) -> tuple[str, ...]:
    schema = table.frame.collect_schema()
    floats = {id_: header for id_, header in zip(table.ids, table.headers, strict=True) if schema[id_].is_float()}
    if not floats:
        return ()
    found = table.frame.select((~pl.col(list(floats)).is_finite()).sum()).collect(engine="streaming")
    return tuple(
        ngettext(
            "column {header!r} has NaN or infinity in {count:,} row, which JSON cannot hold: null there",
            "column {header!r} has NaN or infinity in {count:,} rows, which JSON cannot hold: null there",
            count,
            header=floats[id_],
        )
        for id_, count in found.row(0, named=True).items()
        if count
    )


def _sink_lines(result: Enriched, lines: pl.LazyFrame, stream: BinaryIO, separator: str) -> pl.DataFrame:
    stream.flush()
    # the quote before a key of ours separates the parts of a row, which need not be joined in memory
    sink = lines.sink_csv(
        stream, include_header=False, separator='"', line_terminator=separator, quote_style="never", lazy=True
    )
    _, tally = pl.collect_all([sink, result.tally], engine="streaming")
    return tally


def _copy(data: Path, stream: BinaryIO, start: int, end: int) -> None:
    with data.open("rb") as file:
        file.seek(start)
        for place in range(start, end, _CHUNK):
            stream.write(file.read(min(_CHUNK, end - place)))


def _count_records(data: Path, start: int, end: int, joint: bytes) -> int:
    """Count written records by the text ``joint`` between two of them."""
    count, first, tail = 0, b"", b""
    with data.open("rb", buffering=0) as file:
        file.seek(start)
        for place in range(start, end, _CHUNK):
            part = tail + file.read(min(_CHUNK, end - place))
            count += part.count(joint)
            first, tail = first or part[:1], part[1 - len(joint) :]
    return count + (first == b"{" and tail.endswith(b"}"))


def _objects(result: Enriched, typed: Collection[str]) -> pl.Expr:
    names = unique_names([header for _, header in result.layout])
    pieces = []
    for apart, group in groupby(zip(result.layout, names, strict=True), lambda named: named[0][0] in typed):
        fields = [(column, name) for (column, _), name in group]
        if not apart:
            struct = pl.struct(written_column(column, lists=True).alias(name) for column, name in fields)
            pieces.append(struct.struct.json_encode().str.slice(1).str.strip_suffix("}"))
        for column, name in fields if apart else ():
            bare, text = pl.col(typed_id(column)) & pl.col(column).str.contains(_BARE), pl.col(column)
            token = pl.when(bare).then(text).otherwise(json_text(text).fill_null("null"))
            pieces.append(pl.concat_str(pl.lit(f"{json.dumps(name, ensure_ascii=False)}:"), token))
    return pl.concat_str(pl.lit("{"), pl.concat_str(pieces, separator=","), pl.lit("}"))


def _append_fields(result: Enriched) -> pl.LazyFrame:
    added = [(column, header) for column, header in result.layout if is_added(column)]
    laid_out = {column for column, _ in result.layout}
    table = result.table
    dropped = {header for id_, header in zip(table.ids, table.headers, strict=True) if id_ not in laid_out}
    raw = pl.col(RAW)
    if dropped:
        raw = raw.map_batches(lambda texts: without(texts, dropped), pl.String, is_elementwise=True)
    if not added:
        return result.frame.select(raw)
    own = raw.str.strip_suffix("}").str.strip_chars_end()
    joint = pl.when(own == "{").then(pl.lit("")).otherwise(pl.lit(","))
    groups = [tuple(group) for _, group in groupby(added, lambda field: contract_name(field[0]) in _OF_ROWS)]
    ends = [","] * (len(groups) - 1) + ["}"]
    fields = (
        pl.struct(column for column, _ in group)
        .map_batches(partial(_render_fields, group, end), pl.String, is_elementwise=True)
        .alias(str(place))
        for place, (group, end) in enumerate(zip(groups, ends, strict=True))
    )
    return result.frame.select(pl.concat_str(own, joint), *fields)


def _render_fields(group: tuple[tuple[str, str], ...], end: str, rows: pl.Series) -> pl.Series:
    """Render each row's fields as JSON, without the opening ``{"``; equal rows are rendered once."""
    hashes = rows.struct.unnest().hash_rows()
    first = hashes.arg_unique()
    fields = pl.struct(written_column(column, lists=True).alias(header) for column, header in group)
    text = pl.concat_str(fields.struct.json_encode().str.slice(2).str.strip_suffix("}"), pl.lit(end))
    if 2 * len(first) > len(rows):
        return rows.struct.unnest().select(text).to_series()
    made = rows.gather(first).struct.unnest().select(text.alias("text"), hash=hashes.gather(first))
    return hashes.to_frame("hash").join(made, on="hash", how="left", maintain_order="left")["text"]


class JsonVerbs(Verbs):
    """JSON documents; the text around the records stays around them in the output."""

    lines = False
    write = staticmethod(write_document)

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        return read(file, wanted, resources, lines=self.lines)

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:
        if isinstance(table.source, Document):
            return ()
        return (*renamed_headers(planned.headers, self.format), *_warn_not_finite(table))

    def render(self, result: Enriched, target: Path) -> Written:
        with sink(target, packing_of(target)) as stream:
            return Written(self.write(result, stream))

    def count(self, result: Enriched, path: Path) -> int:
        source, before, after, joint = result.table.source, len("[\n"), len("\n]\n"), b"},\n{"
        if self.lines or (isinstance(source, Document) and source.kind == "object"):
            before, after, joint = 0, len("\n"), b"}\n{"
        elif isinstance(source, Document) and source.path:
            before += source.start - _mark(source.data)
            after += source.data.stat().st_size - source.end - len("\n")
        with ExitStack() as resources:
            data = open_file(path, resources).data
            return _count_records(data, before, data.stat().st_size - after, joint)


class NdjsonVerbs(JsonVerbs):
    """NDJSON: one object a line."""

    lines = True
    write = staticmethod(write_lines)
