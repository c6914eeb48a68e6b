"""JSON of every shape comes in as the right table, and goes out as it was with our fields behind; or is refused."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.errors import InputError
from bansong.tables.detect import FORMATS, open_table, write_table
from bansong.tables.json import scan
from bansong.tables.json import types as lossless_types
from bansong.tables.json.format import Document, write_document, write_lines
from bansong.tables.json.scan import other_lines, plain_pattern
from bansong.tables.table import FRAME, Enriched, Table
from conftest import NINE, json_of, write
from examples import examples
from golden_texts import differing
from memory import STEADY

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = "1248100998"
M = "2208162517"
MANY = 160


def enriched(path: Path, output: str = "out.json") -> Path:
    bs.enrich(path, path.with_name(output))
    return path.with_name(output)


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of a table under their headers."""
    with open_table(path, bs.ReadOptions(**options)) as table:
        frame = table.frame.select(table.ids).collect(engine="streaming")
        return [dict(zip(table.headers, row, strict=True)) for row in frame.iter_rows()]


def own(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in NINE} for row in objects]


def written(path: Path, columns: tuple[str, ...] | None = None, **options: Any) -> bytes:
    """What is written for a table with these of its columns (or all), and a column of ours."""
    with open_table(path, bs.ReadOptions(**options)) as table:
        places = [table.headers.index(name) for name in columns or table.headers]
        layout = (*((f"c{place}", table.headers[place]) for place in places), ("grade", "grade"))
        rows = table.frame.with_columns(grade=pl.lit("A"))
        stream = io.BytesIO()
        write = write_document if table.format is FORMATS["json"] else write_lines
        write(Enriched(table, rows, layout, rows.select(pl.len())), stream)
        return stream.getvalue()


def graded(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects that were written, without the column of ours that each must have."""
    assert [row["grade"] for row in found] == ["A"] * len(found)
    return [{key: value for key, value in row.items() if key != "grade"} for row in found]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are learned from the first 4 KB, and what follows is read in parts of as much."""
    for size in ("FIRST", "PART", "CHUNK"):
        monkeypatch.setattr(scan, size, 4096)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_array_deep_in_a_document_is_found_by_its_business_number(tmp_path: Path) -> None:
    text = (
        f'{{"codes": [{{"k": 1}}], "res": {{"body": {{"items": [{{"사업자번호": "{N}"}}], "n": 1}}}}, "end": [1.50]}}'
    )
    source = write(tmp_path / "in.json", text)
    out = enriched(source).read_text()
    before, after = text.split(f'[{{"사업자번호": "{N}"}}]')
    assert out.startswith(before + f'[\n{{"사업자번호": "{N}","biz_status":')
    assert out.endswith("}\n]" + after)


def test_texts_are_read_or_refused_with_their_place(tmp_path: Path) -> None:
    """Keys of any spelling, paths to an array, and what is no JSON, with the remedy."""

    def read(text: str, json_path: str) -> list[dict[str, Any]]:
        return rows_of(write(tmp_path / "in.json", text), json_path=json_path or None)

    assert differing("json_texts.tsv", read) == {}


def test_an_object_alone_comes_back_as_an_object(tmp_path: Path) -> None:
    found = json_of(enriched(write(tmp_path / "in.json", f'{{\n  "b_no": "{N}",\n  "x": [1]\n}}\n')))
    assert (own([found]), found["row_status"]) == ([{"b_no": N, "x": [1]}], "verified")


SHAPES = {
    "lines": "\n".join,
    "CRLF lines": "\r\n".join,
    "CR lines": "\r".join,
    "blank lines": "\n\n \n".join,
    "no line ends": "".join,
    "spaces": " ".join,
    "array": lambda texts: f"[{','.join(texts)}]",
    "array on lines": lambda texts: "[\n  " + ",\n  ".join(texts) + "\n]\n",
    "comma first": lambda texts: "[" + "\n, ".join(texts) + "]",
}


@pytest.mark.parametrize(
    ("shape", "encoding"),
    [(shape, "utf-8") for shape in SHAPES]
    + [("CRLF lines", "utf-8-sig"), ("array on lines", "utf-16-le"), ("array", "utf-16-be"), ("lines", "utf-32")],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_every_shape_and_encoding_gives_the_same_table(
    tmp_path: Path, shape: str, encoding: str, indent: int | None
) -> None:
    objects = [{"b_no": N, "상호": f"가 나{place}\n", "n": place, "in": {"a": [1]}} for place in range(5)]
    texts = [json.dumps(row, ensure_ascii=False, indent=indent) for row in objects]
    source = write(tmp_path / "in.json", SHAPES[shape](texts), encoding)
    assert rows_of(source) == objects
    lines = not (shape.startswith("array") or shape == "comma first")
    out = written(source)
    assert graded([json.loads(line) for line in out.splitlines()] if lines else json.loads(out)) == objects


def test_records_longer_than_a_chunk_and_chunks_of_many_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in ("FIRST", "PART", "CHUNK"):
        monkeypatch.setattr(scan, size, 64)
    objects = [{"b_no": N, "t": "},{" * (place % 50), "l": [{"b_no": "x"}] * (place % 3)} for place in range(MANY)]
    for spaces in ((",", ":"), (", ", ": ")):
        lines = [json.dumps(row, separators=spaces) for row in objects]
        for text in ("[" + spaces[0].join(lines) + "]", "\n".join(lines), "\n".join(lines) + "\n"):
            found = rows_of(write(tmp_path / "in.json", text))
            assert [row["t"] for row in found] == [row["t"] for row in objects]
        wrapped = write(tmp_path / "in.json", f'{{"a":[],"d":[{",".join(lines)}],"z":[[{{}}]]}}')
        assert graded(json.loads(written(wrapped))["d"]) == objects


# ── exact ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("late", ["1.10", "-0", "1", "1e400", "true", '"x"', "[1]", '{"k":1}', "18446744073709551616"])
def test_a_value_far_down_that_a_type_would_change_makes_its_column_text(tmp_path: Path, late: str) -> None:
    lines = [f'{{"b_no":"{N}","v":0.5,"w":{place}}}' for place in range(400)]
    lines[-1] = f'{{"b_no":"{N}","v":{late},"w":1}}'
    for name, text in (("in.ndjson", "\n".join(lines)), ("in.json", f"[{','.join(lines)}]")):
        found = rows_of(write(tmp_path / name, text))
        spelled = late.strip('"')
        assert (found[0]["v"], found[-1]["v"], found[-1]["w"], len(found)) == ("0.5", spelled, 1, 400)


@pytest.mark.usefixtures("small_parts")
def test_lines_far_down_are_read_as_they_are_meant_or_refused_with_their_place(tmp_path: Path) -> None:
    lines = [f'{{"b_no":"{N}","v":{place}}}' for place in range(400)]

    def read(late: str) -> list[Any]:
        return [row["v"] for row in rows_of(write(tmp_path / "in.ndjson", "\n".join([*lines, late, lines[7]]) + "\n"))][
            400:
        ]

    assert differing("json_late.tsv", read) == {}


def test_values_that_no_one_type_gives_back_are_text_and_written_as_they_are_spelled(tmp_path: Path) -> None:
    def read(*values: str) -> list[Any]:
        objects = [f'{{"b_no":"{N}","o":{value}}}' for value in values]
        source = write(tmp_path / "in.json", f"[{','.join(objects)}]")
        lines = written(source).decode().splitlines()[1:3]
        assert all(line.startswith(own[:-1] + ",") for line, own in zip(lines, objects, strict=True))
        return [row["o"] for row in rows_of(source)]

    assert differing("json_values.tsv", read) == {}


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
loose = st.text(st.sampled_from('0123456789.-+eE"\\ud8c\ntrfalsn \t[]{},:가'), max_size=8)
TYPES = (None, pl.String(), pl.Int64(), pl.Float64(), pl.Boolean(), pl.Null())


@examples(400)
@given(st.one_of(numbers, loose, loose.map(json.dumps), st.sampled_from(["true", "null"])), st.sampled_from(TYPES))
def test_a_plain_line_is_json_whose_value_a_column_gives_back(token: str, dtype: pl.DataType | None) -> None:
    pattern = plain_pattern({"k.": dtype, "n": pl.Int64()})
    assert pattern is not None
    line = f'{{ "k.": {token} ,"n":1}}'
    others, count = other_lines(line.encode(), 1, pattern) if "\n" not in line else (b"", 1)
    if count:
        assert others in (b"", line.encode())
        return
    value = json.loads(line, parse_int=str, parse_float=str)["k."]
    if dtype in (pl.Int64(), pl.Float64()) and value is not None:
        assert pl.Series([token]).cast(dtype).cast(pl.String).item() == token == value
    assert (
        isinstance(value, {pl.String(): str, pl.Boolean(): bool, pl.Null(): type(None)}.get(dtype, object)) or not value
    )


def test_usual_numbers_are_plain_and_columns_spell_them_so() -> None:
    """All decimals of four digits behind the point, and long ones beside powers of ten."""
    spelled = [f"{sign}{place / 10_000}" for place in range(1, 100_000, 7) for sign in ("", "-")]
    spelled += [f"{10**digits + add}.{end}" for digits in range(10) for add in (-1, 0, 1) for end in ("0", "5", "0001")]
    plain = re.compile((plain_pattern({"v": pl.Float64()}) or "").replace(r"\z", r"\Z"))
    texts = pl.Series([text for text in spelled if plain.match(f'{{"v":{text}}}')])
    assert len(texts) > 27_000
    assert texts.cast(pl.Float64).cast(pl.String).equals(texts)


@pytest.mark.usefixtures("small_parts")
def test_keys_that_come_late_are_columns_and_keys_that_are_absent_stay_absent(tmp_path: Path) -> None:
    objects = [{"b_no": N, "a": 1}] * 500 + [{"z": "late", "b_no": M}, {}]
    source = write(tmp_path / "in.json", json.dumps(objects))
    found = rows_of(source)
    assert (found[0], found[-2]) == ({"b_no": N, "a": 1, "z": None}, {"b_no": M, "a": None, "z": "late"})
    assert graded(json.loads(written(source))) == objects


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab\u00e9"\\', max_size=2), inner, max_size=3),
    max_leaves=6,
)
objects_of_any_kind = st.lists(
    st.dictionaries(st.sampled_from(["b_no", "a", "한", 'q"', "\u2028"]), values, max_size=4), min_size=1, max_size=6
)
WRAPS: dict[str, tuple[str, Any, Any]] = {
    "array": ("in.json", lambda texts: "[" + ",".join(texts) + "]", json.loads),
    "wrapped": (
        "in.json",
        lambda texts: '{"n": 1.0, "d": {"items": [' + ",".join(texts) + "]}}",
        lambda out: json.loads(out)["d"]["items"],
    ),
    "lines": ("in.ndjson", "\n".join, lambda out: [json.loads(line) for line in out.split(b"\n") if line]),
}


@examples(100)
@given(objects_of_any_kind, st.sampled_from(["array", "wrapped", "lines"]), st.booleans(), st.sampled_from([None, 1]))
def test_what_is_read_and_written_and_read_again_is_the_same(
    tmp_path: Path, rows: list[dict[str, Any]], wrap: str, ascii_only: bool, indent: int | None
) -> None:
    rows = [{"b_no": N} | row for row in rows]
    texts = [json.dumps(row, ensure_ascii=ascii_only, indent=indent) for row in rows]
    name, made, taken = WRAPS[wrap]
    source = write(tmp_path / name, made(texts))
    out = written(source)
    found = graded(taken(out))
    assert json.dumps(found) == json.dumps(rows)
    again = tmp_path / f"again.{name}"
    again.write_bytes(out)
    assert graded(rows_of(again)) == rows_of(source)


@examples(100)
@given(st.lists(numbers, min_size=1, max_size=6))
def test_every_spelling_of_a_number_is_kept(tmp_path: Path, spelled: list[str]) -> None:
    source = write(tmp_path / "in.json", "[" + ",".join(f'{{"b_no":"{N}","v":{text}}}' for text in spelled) + "]")
    out = written(source).decode().splitlines()[1:-1]
    assert [line.partition(',"grade"')[0].partition('"v":')[2] for line in out] == spelled


inside = st.sampled_from(["", " ", "\t", "   "])
texts_in_json = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=6).map(json.dumps),
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=6).map(partial(json.dumps, ensure_ascii=False)),
    st.sampled_from(['"}"', '"},{"', r'"},\n{"', r'"\ud55c\ud83d\ude00\/"', r'"\\"', '"] , ["', '"1e5"', '""']),
)
tokens = st.one_of(
    numbers,
    texts_in_json,
    st.sampled_from(
        ["true", "false", "null", "{}", "[ ]", "[1 ,2.0]", '{"x" : {"y":[1e5,"}"]}}', "[[1],[ [] ]]", "1E+2"]
    ),
)
keys = st.sampled_from(['"a"', '"한"', r'"\ud55c\u0022"', '"b c"', '""', '"grade "'])
members = st.lists(st.tuples(keys, tokens, inside, inside), max_size=4, unique_by=lambda member: member[0])


@st.composite
def objects_as_spelled(draw: st.DrawFn) -> str:
    """An object with white space and spellings of every kind."""
    parts = (f"{one}{key}{two}:{one}{token}{two}" for key, token, one, two in draw(members))
    return "{" + draw(inside) + ",".join(parts) + "}"


@examples(200)
@given(st.lists(objects_as_spelled(), max_size=5), st.sampled_from([*SHAPES]), st.sampled_from(["", "\ufeff"]))
def test_a_row_is_the_bytes_of_its_object_and_one_insertion(
    tmp_path: Path, objects: list[str], shape: str, byte_order_mark: str
) -> None:
    objects = [f'{{"b_no": "{N}"}}', *objects]
    source = write(tmp_path / "in.json", byte_order_mark + SHAPES[shape](objects))
    added = ("biz_status", "grade", "fixed_address", "reasons", "row_note")
    with open_table(source) as table:
        place = pl.int_range(pl.len())
        rows = table.frame.with_columns(
            biz_status=pl.lit('of "all"'),
            grade=pl.when(place % 2 == 0).then(pl.lit("A")).otherwise(pl.lit("B")),
            fixed_address=pl.when(place > 0).then(pl.concat_str(pl.lit("로 "), place.cast(pl.String))),
            reasons=pl.lit("[a +1] one | [base -50] two"),
            row_note=pl.lit(None, pl.String),
        )
        layout = (*zip(table.ids, table.headers, strict=True), *((name, name) for name in added))
        result = Enriched(table, rows, layout, rows.select(pl.len()))
        _, count = write_table(result, tmp_path / "out", table.format)
        assert count() == len(objects)
    lines = (
        (tmp_path / "out")
        .read_bytes()
        .decode()
        .removeprefix("[\n")
        .removesuffix("\n]\n")
        .removesuffix("\n")
        .split("\n")
    )
    for place, (line, text) in enumerate(zip(lines, objects, strict=True)):
        own = text[:-1].rstrip(" \t")
        assert line.startswith(own)
        joint = "" if own == "{" else ","
        insertion = line.removesuffix(",").removeprefix(own + joint)
        ours = {"biz_status": 'of "all"', "grade": "AB"[place % 2], "fixed_address": f"로 {place}" if place else None}
        ours |= {"reasons": ["[a +1] one", "[base -50] two"], "row_note": None}
        assert list(json.loads("{" + insertion).items()) == list(ours.items())
        whole = json.loads(text) | ours
        assert json.loads(line.removesuffix(",")) == whole
        assert [*msgspec.json.decode(line.removesuffix(","), type=dict[str, msgspec.Raw])] == [*whole]  # 1E400 stays


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_columns_that_are_left_out_leave_the_objects(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", '[{"b_no": "1", "x": 1.10, "y": [1]}, {"y": 2, "b_no": "2"}, {"x": 3}]')
    assert written(source, ("b_no", "y")).splitlines()[1:-1] == [
        b'{"b_no":"1","y":[1],"grade":"A"},',
        b'{"y":2,"b_no":"2","grade":"A"},',
        b'{"grade":"A"}',
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_named_array_is_written_back_into_its_document_without_a_mark(tmp_path: Path, encoding: str) -> None:
    text = '{"a" : [{"b_no":"1"}],\n "b": [ {"b_no":"2"} ] , "c": 1.0 }\n'
    out = written(write(tmp_path / "in.json", text, encoding), ("b_no",), json_path="b").decode()
    assert out == '{"a" : [{"b_no":"1"}],\n "b": [\n{"b_no":"2","grade":"A"}\n] , "c": 1.0 }\n'


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_document_is_whole_however_few_its_rows(rows: int) -> None:
    frame = pl.LazyFrame({"c0": [N] * rows, "grade": ["A"] * rows}, schema={"c0": pl.String, "grade": pl.String})
    layout = (("c0", "b_no"), ("grade", "grade"))
    stream = io.BytesIO()
    table = Table(frame, ("b_no",), FRAME, "x")
    write_document(Enriched(table, frame, layout, frame.select(pl.len())), stream)
    assert json.loads(stream.getvalue()) == [{"b_no": N, "grade": "A"}] * rows


def test_private_copies_are_private_and_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = write(tmp_path / "in.json", f'[{{"b_no":"{N}"}}]', "utf-16")
    with open_table(source) as table:
        assert isinstance(table.source, Document)
        copies = [path for path in tmp_path.rglob("*") if path.is_file() and path != source]
        assert [stat.S_IMODE(path.stat().st_mode) for path in copies] == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == [source]


# ── hostile ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bytes_that_are_not_of_the_encoding_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    for text in ('[{"b_no":"가"},\n{"b_no":"나%"}]', '{"b_no":"가"}\n{"b_no":"나%"}'):
        source.write_bytes(text.encode().replace(b"%", b"\xb0"))
        with pytest.raises(InputError, match=r"line 2, column 11: byte 0xb0 is not UTF-8"):
            rows_of(source)
    source.write_bytes(f'[{{"b_no":"{N}"}}]'.encode("utf-16") + b"\x00")
    with pytest.raises(InputError) as caught:
        rows_of(source)
    assert caught.value.code == "json.encoding_mismatched"


@pytest.mark.parametrize("deep", ["[" * 201 + "]" * 201, '{"a":' * 201 + "1" + "}" * 201, "[" * 900 + "]" * 900])
def test_nesting_beyond_the_limit_is_refused_wherever_it_stands(tmp_path: Path, deep: str) -> None:
    for text in (
        f'[{{"b_no":"1"}},{{"b_no":"2","x":{deep}}}]',
        f'{{"b_no":"1"}}\n{{"b_no":"2","x":{deep}}}',
        '{"x":' * 300 + f'[{{"b_no":"{N}"}}]' + "}" * 300,
    ):
        with pytest.raises(InputError, match=r"nested too deeply, beyond 200 levels; .*BANSONG_LIMITS=depth="):
            rows_of(write(tmp_path / "in.json", text))


def test_many_brackets_are_not_deep_ones(tmp_path: Path) -> None:
    wide = {"b_no": N, "l": [{"x": [place]} for place in range(1000)], "t": "[" * 1000}
    assert rows_of(write(tmp_path / "in.json", json.dumps([wide]))) == [wide]


@pytest.mark.parametrize("text", ["{},", '{"\\ud55c":1},', '{"a":[{"a":1},{"a":2}]},', "{} ,\n "])
def test_many_records_are_passed_in_few_steps_whatever_their_first_key(tmp_path: Path, text: str) -> None:
    source = write(tmp_path / "in.json", "[" + text * 20_000 + "{}]")
    with scan.Scanner(source, source) as scanner:
        parts = [part.count for part in scanner.array()]
    assert (sum(parts), len(parts) < 20) == (20_001, True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (json.dumps([{"b_no": N, "x": "y" * 20_000_000}]), "limits.value_too_long"),
        (json.dumps([{f"k{place}": 1} for place in range(lossless_types.COLUMNS + 1)]), "json.too_many_keys"),
        ('[{"%s":1}]' % ("k" * 40_000), "limits.key_too_long"),
        ('{"%s":[]}' % ("k" * 40_000), "limits.key_too_long"),
    ],
    ids=["a long record", "many keys", "a long key", "a long key of an array"],
)
def test_what_is_too_long_or_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: str
) -> None:
    monkeypatch.setenv("BANSONG_LIMITS", "document=5M")
    with pytest.raises(InputError) as caught:
        rows_of(write(tmp_path / "in.json", text))
    assert caught.value.code == code


def test_duplicate_keys_are_not_seen_where_a_text_only_looks_like_one(tmp_path: Path) -> None:
    rows = [{"b_no": N, "t": ":", "o": {"x": '":"', "y": [":", {"z": '\\":'}]}}, {"b_no": M, "t": '":', "o": None}]
    assert rows_of(write(tmp_path / "in.json", json.dumps(rows)))[0]["t"] == ":"


BOMBS = {
    "brackets": "b'[' * 100_000_000",
    "objects in objects": "b'{\"a\":' * 15_000_000",
    "brackets in a record": 'b\'[{"b_no":"1","x":\' + b\'[\' * 50_000_000',
    "empty objects": "b'[' + b'{},' * 5_000_000 + b'{}]'",
    "empty arrays": "b'{' + b'\"\":[],' * 100_000 + b'\"b\":1}'",
    "a long text": "b'[{\"b_no\":\"' + b'1' * 60_000_000 + b'\"}]'",
    "a long key": "b'[{\"' + b'k' * 60_000_000 + b'\":1}]'",
    "a long number": "b'[{\"b_no\":' + b'1' * 20_000_000 + b'}]'",
}
OPENING = """
import sys
from functools import partial
from pathlib import Path
from memory import peak
from bansong.errors import InputError
from bansong.tables.detect import open_table, reading
path = Path(sys.argv[1])
for bomb in sys.argv[2:]:
    path.write_bytes(eval(bomb))
    try:
        with open_table(path) as table, reading(table):
            table.frame.select(table.ids).head(5).collect(engine="streaming")
    except InputError:
        pass
    print(peak() >> 20)
"""


@pytest.mark.process
def test_no_file_kills_the_process_or_takes_a_gigabyte(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENING, tmp_path / "in.json", *BOMBS.values()]
    done = subprocess.run(command, env=os.environ | STEADY, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    peaks = dict(zip(BOMBS, map(int, done.stdout.split()), strict=True))
    assert max(peaks.values()) < 1000, peaks


def test_what_json_cannot_hold_is_noted(tmp_path: Path) -> None:
    """NaN becomes null, headers that repeat or are blank get names; each is said."""
    pl.DataFrame({"b_no": ["124-81-00998"], "rate": [float("nan")]}).write_parquet(tmp_path / "a.parquet")
    report = bs.enrich(tmp_path / "a.parquet", tmp_path / "a.json")
    assert "column 'rate' has NaN or infinity in 1 row, which JSON cannot hold: null there" in report.warnings
    report = bs.enrich(write(tmp_path / "b.csv", "b_no,,x,x\n124-81-00998,1,2,3\n"), tmp_path / "b.ndjson")
    assert [note for note in report.warnings if note.endswith("as ndjson needs: '' is 'column_2', 'x' is 'x_2'")]
