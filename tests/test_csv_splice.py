"""A CSV output is the user's bytes plus one insertion a row: whatever the dialect, no byte of theirs is another."""

from __future__ import annotations

import codecs
import csv
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import bansong as bs
from bansong.errors import InputError
from bansong.tables import detect
from bansong.tables.table import Enriched
from examples import examples

N = "1248100998"
ADDED = {"biz_status": "active", "bounce_prob": 0.0188, "grade": None, "action": 'a "b"', "fixed_address": "가; 나, 다"}
ADDED |= {"reasons": "[x +1] y | [z -2] w", "row_note": "=1+1"}
CELLS = ["active", "0.0188", "", 'a "b"', "가; 나, 다", "[x +1] y | [z -2] w", "'=1+1"]
ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"",
    "cp949": b"",
    "utf-16": b"",
    "utf-16-be": codecs.BOM_UTF16_BE,
}


def spliced(source: Path, target: Path, **options: Any) -> bytes:
    """The bytes of an output whose rows have the answers :data:`ADDED`."""
    with detect.open_table(source, bs.ReadOptions(**options)) as table:
        answered = table.frame.with_columns(pl.lit(value).alias(name) for name, value in ADDED.items())
        layout = (*zip(table.ids, table.headers, strict=True), *((name, name) for name in ADDED))
        result = Enriched(table, answered, layout, answered.select(pl.len()))
        tally, count = detect.write_table(result, target, table.format)
        assert count() == table.rows == tally.item()
    return target.read_bytes()


# a cell as it stands in the file: quoted or not, with or without need
plain = st.text("가각a1 -_.'@", max_size=5)
quoted = st.text("가a1 ,;\t|'=\n", max_size=5).map(lambda text: f'"{text}"')
doubled = st.text('가a", ', max_size=4).map(lambda text: '"' + text.replace('"', '""') + '"')
broken = st.sampled_from(['"가\n나"', '"가\r\n\r\n나"', '"\n"', '""'])
whole_cells = st.one_of(plain, quoted.filter(lambda cell: "\n" not in cell), doubled)
raw_cells = st.one_of(plain, quoted, doubled, broken)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, list[tuple[str, int]], str]:
    """Delimiter, lines above, records (with their line ends) and how many cells each lacks, the whole text."""
    delimiter = draw(st.sampled_from(",;\t|"))
    usual = draw(st.sampled_from(["\n", "\r\n"]))
    width = draw(st.integers(2, 4))
    ends = st.sampled_from([usual, *draw(st.sampled_from([[], ["\n", "\r\n"]]))])
    above = draw(st.sampled_from(["", "", f"거래처 명단{usual}{usual}"]))
    header = [draw(st.sampled_from(["사업자번호", '"사업자번호"'])), *["이름", '"주소"', "비고"][: width - 1]]
    records = [(delimiter.join(header) + draw(ends), 0)]
    widths, own_cells = draw(st.sampled_from([(st.just(width), whole_cells), (st.integers(1, width), raw_cells)]))
    for _ in range(draw(st.integers(1, 12))):
        cells = draw(st.lists(own_cells, min_size=width - 1, max_size=width - 1))
        row = [draw(st.sampled_from([N, f'"{N}"', "124-81-00998", ""])), *cells]
        row = row[: draw(widths)]
        records.append((delimiter.join(row) + draw(ends), width - len(row)))
    last, missing = records[-1]
    if last.rstrip("\r\n") and draw(st.booleans()):  # the last line has no end, or half of one
        records[-1] = (last.rstrip("\r\n") + draw(st.sampled_from(["", "\r"])), missing)
    return delimiter, above, records, above + "".join(record for record, _ in records)


@examples(1000, default=60)
@given(files(), st.sampled_from(sorted(ENCODINGS)), st.sampled_from([1, 7, 64, 1 << 18]))
def test_every_record_comes_back_to_the_byte_with_one_insertion_before_its_line_end(
    tmp_path: Path, file: tuple[str, str, list[tuple[str, int]], str], encoding: str, chunk: int
) -> None:
    delimiter, above, records, text = file
    source = tmp_path / "in.csv"
    source.write_bytes(ENCODINGS[encoding] + text.encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bansong.tables.csv.encoding._CHUNK", chunk)
        patch.setattr("bansong.tables.csv.lines._PART", chunk)
        try:
            data = spliced(source, tmp_path / "out.csv", delimiter=delimiter)
        except InputError:
            assume(False)
    mark = {"utf-8-sig": codecs.BOM_UTF8, "utf-16": codecs.BOM_UTF16_LE}.get(encoding, ENCODINGS[encoding])
    assert data.startswith(mark)
    left = data.removeprefix(mark).decode({"utf-8-sig": "utf-8", "utf-16": "utf-16-le"}.get(encoding, encoding))
    assert left.startswith(above)
    left = left.removeprefix(above)
    for place, (record, missing) in enumerate(records):
        own = record.rstrip("\r\n")
        assert left.startswith(own + delimiter * missing + delimiter)
        end = record[len(own) :]
        insertion, end_found, left = left[len(own) + missing :].partition(end or "\0")
        assert (end_found, insertion[-1:] == "\r") == (end, False)
        [added] = csv.reader([insertion], delimiter=delimiter)
        assert added[1:] == (list(ADDED) if not place else CELLS)
    assert not left


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # cells with quotes that they do not need, in a column and in a header where others have none
        (f'b_no,"이름"\n{N},"가"\n{N},나\n', f'b_no,"이름",HEAD\n{N},"가",CELLS\n{N},나,CELLS\n'),
        # a line end for each line, and none for the last
        (f"b_no,이름\r\n{N},가\n{N},나\r\n{N},다", f"b_no,이름,HEAD\r\n{N},가,CELLS\n{N},나,CELLS\r\n{N},다,CELLS"),
        (f"b_no,이름\r\n{N},가\r\n{N},나\r", f"b_no,이름,HEAD\r\n{N},가,CELLS\r\n{N},나,CELLS\r"),
        # bare CR, also within a cell
        (f'b_no,이름\r{N},"가\r나"\r', f'b_no,이름,HEAD\r{N},"가\r나",CELLS\r'),
        # a line break in the header; a blank line
        (f'b_no,"이\n름"\n\n{N},가\n', f'b_no,"이\n름",HEAD\n,,CELLS\n{N},가,CELLS\n'),
        # a file that readers take in different ways is rendered: its quotes become plain
        (f'b_no,이름\n{N},5" 관\n', f'b_no,이름,HEAD\n{N},"5"" 관",CELLS\n'),
    ],
)
def test_odd_files_keep_their_bytes(tmp_path: Path, data: str, expected: str) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(data.encode())
    cells = 'active,0.0188,,"a ""b""","가; 나, 다",[x +1] y | [z -2] w,\'=1+1'
    out = spliced(source, tmp_path / "out.csv").decode()
    assert out.replace(cells, "CELLS").replace(",".join(ADDED), "HEAD") == expected


def test_our_cells_follow_the_quotes_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(f'"b_no";"이름"\n"{N}";"가"\n"{N}";\n'.encode())
    lines = spliced(source, tmp_path / "out.csv").decode().splitlines()
    ours = '"active";"0.0188";;"a ""b""";"가; 나, 다";"[x +1] y | [z -2] w";"\'=1+1"'
    assert lines[1:] == [f'"{N}";"가";{ours}', f'"{N}";;{ours}']


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_first_row_of_a_file_without_a_header_is_below_ours(tmp_path: Path, mark: str) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(f"{mark}{N},가\n2208162517,나\n".encode())
    lines = spliced(source, tmp_path / "out.csv", has_header=False).decode().splitlines()
    assert lines[0].startswith(mark)
    assert lines[0].endswith(",".join(ADDED))
    assert [line.partition(",active,")[0] for line in lines[1:]] == [f"{N},가", "2208162517,나"]


@pytest.mark.parametrize("start", ["x^", "x\x01"])
def test_lines_that_begin_like_a_packed_file_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr("bansong.tables.csv.lines._PART", 1)
    source = tmp_path / "in.csv"
    source.write_text(f"이름,b_no\n{start},{N}\n{start}2,{N}\n", encoding="utf-8")
    lines = spliced(source, tmp_path / "out.csv").decode().splitlines()
    assert [line.partition(",active,")[0] for line in lines[1:]] == [f"{start},{N}", f"{start}2,{N}"]


@pytest.mark.parametrize(("above", "end", "encoding"), [("", "\n", "utf-8"), ("명단\r\n\r\n", "\r\n", "cp949")])
def test_columns_are_chosen_by_the_beginning_of_a_long_file(
    tmp_path: Path, above: str, end: str, encoding: str
) -> None:
    """Not if a record of the file has several lines: the beginning might end in one."""
    source, rows = tmp_path / "in.csv", [f'{N},"가, {place}",' for place in range(1_100)]
    for row, expected in ((f'{N},"나",끝', True), (f'{N},"가\n나",', False)):
        source.write_text(above + end.join(["b_no,이름,비고", *rows, row, ""]), encoding=encoding, newline="")
        with detect.open_table(source) as table:
            assert (table.beginning is not None) is expected
            assert table.head(1_000).collect().equals(table.frame.head(1_000).collect())
