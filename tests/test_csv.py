"""CSV and TSV: what is in the file is in the table, what was the user's comes back, and nothing is changed silently."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import bansong as bs
from bansong.errors import InputError, OutputError, UsageError
from bansong.tables.csv import encoding as tables_text
from bansong.tables.detect import open_table, reading
from bansong.tables.table import Enriched, Table
from conftest import NINE, json_of, write
from examples import examples
from golden_texts import differing
from office import converted

N = "1248100998"
PACKINGS = {"gz": "gzip", "zst": "zstd"}
HANGUL = "똠방각하 뷁 쀍 삼성전자㈜ 株式會社 ①"
Rows = list[tuple[str | None, ...]]


def read(path: Path, **options: Any) -> tuple[Table, Rows]:
    """The table of a file and its rows."""
    with open_table(path, bs.ReadOptions(**options)) as table, reading(table):
        return table, table.frame.collect(engine="streaming").rows()


def read_bytes(path: Path, data: bytes, **options: Any) -> tuple[Table, Rows]:
    path.write_bytes(data)
    return read(path, **options)


def written(path: Path, target: Path) -> bytes:
    """The bytes of a file that was read and written again, with no column added."""
    with open_table(path) as table:
        layout = tuple(zip(table.ids, table.headers, strict=True))
        table.format.verbs.render(Enriched(table, table.frame, layout, table.frame.select(pl.len())), target)
    return target.read_bytes()


def enriched(path: Path, output: str | None = None, **options: Any) -> bytes:
    report = bs.enrich(path, path.with_name(output) if output else None, **options)
    assert report.output is not None
    return Path(report.output).read_bytes()


def filled(rows: Rows) -> list[list[str]]:
    return [[cell or "" for cell in row] for row in rows]


# ── there and back ───────────────────────────────────────────────────────────────────────────────────────────────

cells = st.text(
    st.one_of(st.sampled_from("가뷁a1 ,;\t|\"'\n=-"), st.characters(codec="cp949", exclude_categories=["Cc"])),
    max_size=6,
)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=0, max_size=6).map(
        lambda rows: [["사업자번호", *(f"열{place}" for place in range(1, width))], *rows]
    )
)


@examples(150)
@given(
    tables,
    st.sampled_from(["utf-8", "utf-8-sig", "cp949", "utf-16", "utf-16-be-marked"]),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_read_write_read_keeps_every_cell_in_every_encoding_and_dialect(
    tmp_path: Path, rows: list[list[str]], encoding: str, delimiter: str, line_end: str, quoting: Any
) -> None:
    if line_end == "\r":  # line ends within cells are CR then, too
        rows = [[cell.replace("\n", "") for cell in row] for row in rows]
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=line_end, quoting=quoting).writerows(rows)
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be-marked" else b""
    data = mark + out.getvalue().encode(encoding.removesuffix("-marked"))
    try:
        table, found = read_bytes(tmp_path / ("in.tsv" if delimiter == "\t" else "in.csv"), data)
    except InputError:  # a file of one column does not say what its delimiter is: what may be another is refused
        assert len(rows[0]) == 1
        return
    assume(table.headers == tuple(rows[0]))  # a row above may look more like a header than ours
    assert filled(found) == rows[1:]
    again = written(tmp_path / table.name, tmp_path / f"out{Path(table.name).suffix}")
    second, found_again = read_bytes(tmp_path / f"again{Path(table.name).suffix}", again)
    assert (second.headers, found_again) == (table.headers, found)
    if len(rows) > 1 and len(rows[0]) > 1:
        assert second.source == table.source
    assert again.startswith(data[:2])


@pytest.mark.parametrize(
    "data",
    [
        f"b_no,이름\n{N},{HANGUL}\n".encode(),
        f"b_no,이름\n{N},{HANGUL}\n".encode("utf-8-sig"),
        f"b_no;이름\r\n{N};{HANGUL}\r\n".encode("cp949"),
        f"b_no\t이름\r\n{N}\t{HANGUL}\r\n".encode("utf-16"),
        codecs.BOM_UTF16_BE + f"b_no|이름\n{N}|{HANGUL}\n".encode("utf-16-be"),
        f"b_no,이름\n{N},{HANGUL}\n".encode("utf-16-le"),
        f"b_no,이름\n{N},가각\n".encode("utf-16-be"),
        f"b_no,이름\r{N},{HANGUL}\r".encode("cp949"),
        f"b_no,이름\r{N},가\r".encode("utf-8-sig"),
        f'b_no,이름\n{N},"가, 나"'.encode(),
        f"b_no,이름\r\n{N},가".encode("utf-16"),
        f"b_no,이름\r\n{N},가\r".encode("utf-16"),
        f"b_no,이름\r\n{N},가\r".encode("cp949"),
        f'"b_no","이름"\n"{N}","가ab"\n"","나"\n,\n'.encode(),
        f'"이름","b_no","수"\n"가",{N},"1"\n"나 ""2""",{N},"2"\n,,"3"\n'.encode(),
        f'b_no,"이름"\n{N},가\n'.replace('"', "").encode(),
        f"거래처 명단\r\n\r\nb_no,이름\r\n{N},가\r\n".encode("cp949"),
        f'"명단, ""전체""\n계속",,\nb_no,이름,주소\n{N},가,나\n2208162517,다,라\n'.encode(),
        f",공급자,,공급받는자,\n일자,등록번호,상호,등록번호,상호\n1,{N},가,2208162517,나\n".encode(),
        f"sep=;\r\nb_no;이름\r\n{N};가,나\r\n".encode("utf-8-sig"),
        f'b_no,이름\n{N},\n,\n{N},""\n,\n'.encode(),
        "b_no,규격\n1,\u2028\x0b\x0c\x1c\x85\n".encode(),
    ],
)
def test_a_file_written_without_added_columns_is_the_same_bytes(tmp_path: Path, data: bytes) -> None:
    """Encoding, mark, delimiter, line ends, quoting, titles and a missing last line end all come back."""
    (tmp_path / "in.csv").write_bytes(data)
    assert written(tmp_path / "in.csv", tmp_path / "out.csv") == data


@pytest.mark.parametrize(("packing", "encoding"), [("gz", "cp949"), ("zst", "utf-16")])
def test_packed_files_come_back_packed_in_their_encoding(tmp_path: Path, packing: str, encoding: str) -> None:
    data = f"b_no,이름\r\n{N},{HANGUL}\r\n".encode(encoding)
    source = tmp_path / f"in.csv.{packing}"
    with pa.OSFile(str(source), "wb") as file, pa.CompressedOutputStream(file, PACKINGS[packing]) as stream:
        stream.write(data)
    target = tmp_path / f"in.enriched.csv.{packing}"
    assert bs.enrich(source).output == str(target)
    with pa.OSFile(str(target)) as file, pa.CompressedInputStream(file, PACKINGS[packing]) as stream:
        assert stream.read().decode(encoding).splitlines()[1].startswith(f"{N},{HANGUL},unknown,")


def test_another_delimiter_is_used_for_the_lines_above_the_header_too(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f'sep=;\n명단;"1;2"\nb_no;이름;주소\n{N};가;서울 1\n')
    lines = enriched(source, "out.tsv").decode().splitlines()
    assert lines[:2] == ["명단\t1;2", "\t".join(["b_no", "이름", "주소", *NINE])]


# ── encodings ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_character_of_cp949_comes_back_as_the_bytes_it_was(tmp_path: Path) -> None:
    pairs = (bytes([lead, trail]) for lead in range(0x81, 0xFF) for trail in range(0x41, 0xFF))
    known = [pair for pair in pairs if is_cp949(pair)]
    data = b"b_no,c\n" + b"".join(N.encode() + b"," + pair + b"\n" for pair in known)
    assert len(known) > 17_000
    _, rows = read_bytes(tmp_path / "in.csv", data)
    spaces = {b"\xa0\xa0": "\xa0\xa0"}  # two no-break spaces out of a web page, rather than a syllable of no word (젨)
    assert [row[1] for row in rows] == [spaces.get(pair, pair.decode("cp949")) for pair in known]
    assert written(tmp_path / "in.csv", tmp_path / "out.csv") == data


def with_spaces(text: str) -> bytes:
    """A text in CP949 whose no-break spaces are the raw byte 0xA0."""
    return b"\xa0".join(part.encode("cp949") for part in text.split("\xa0"))


@pytest.mark.parametrize("encoding", [None, "cp949", "euc-kr"])
def test_raw_no_break_spaces_in_cp949_are_read_as_such_and_come_back_as_the_byte(
    tmp_path: Path, encoding: str | None
) -> None:
    """The byte is no character of CP949; tools write it for the &nbsp; of web pages."""
    cells = ["124-81-00998\xa0", "\xa0\xa0124-81-00998", "서울특별시\xa0강남구\xa0역삼동", "\xa0서울\xa0"]
    cells += ["주식회사\xa0Samsung", "\xa0ABC무역", "\xa0株式會社\xa0①㈜", "\xa0"]
    cells += ["똠\xa0방각하\xa0뷁"] if encoding is None else []
    data = "b_no,c\r\n".encode("cp949") + b"".join(N.encode() + b"," + with_spaces(cell) + b"\r\n" for cell in cells)
    table, rows = read_bytes(tmp_path / "in.csv", data, encoding=encoding)
    assert [row[1] for row in rows] == cells
    assert f"{sum(cell.count(chr(0xA0)) for cell in cells)} bytes 0xA0" in table.notes[0]
    assert written(tmp_path / "in.csv", tmp_path / "out.csv") == data


@given(
    cells=st.lists(st.text("가각서울특힣똠뷁쀍젢젨A1z ①株\xa0", max_size=12), min_size=1, max_size=6),
    size=st.integers(1, 40),
)
@examples(150)
def test_whatever_stands_around_raw_no_break_spaces_its_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], size: int
) -> None:
    """However a byte 0xA0 is read, and wherever the file is cut into chunks, the cell is written as it was."""
    folder = tmp_path_factory.mktemp("spaces")
    data = "b_no,이름\n".encode("cp949") + b"".join(N.encode() + b"," + with_spaces(cell) + b"\n" for cell in cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_text, "_CHUNK", size)
        (folder / "in.csv").write_bytes(data)
        try:
            assert written(folder / "in.csv", folder / "out.csv") == data
        except InputError:  # 젢 and the like beside one: bytes that can be read in no way, refused with their place
            assume(False)


def test_a_row_with_raw_no_break_spaces_is_verified_as_one_with_spaces(tmp_path: Path) -> None:
    row = "124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129,16677\n"
    spaced = with_spaces("\xa0124-81-00998\xa0,삼성전자\xa0,경기도\xa0수원시 영통구\xa0삼성로 129\xa0,16677\n")
    (tmp_path / "in.csv").write_bytes(("사업자등록번호,상호,주소,우편번호\n" + row).encode("cp949") + spaced)
    bs.enrich(tmp_path / "in.csv", tmp_path / "out.json")
    plain, pasted = ([row[name] for name in NINE] for row in json_of(tmp_path / "out.json"))
    assert pasted == plain
    with pytest.raises(OutputError) as caught:  # of another encoding, it is no raw byte
        bs.enrich(write(tmp_path / "in.csv", f"b_no,c\n{N},a\xa0b\n"), output_encoding="cp949")
    assert caught.value.fields["character"] == "\xa0"


def is_cp949(pair: bytes) -> bool:
    try:
        return len(pair.decode("cp949")) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (f"b_no,이름\n{N},가나다\n{N},가".encode() + b"\xff\n", None, r"line 3, character 13: byte 0xff is not utf-8"),
        (f"b_no,이름\n{N},가나다\n".encode() * 60_000 + b"x,\xb0\xa1\n", None, r"line 120001, character 3: byte 0xb0"),
        (("a,b\n" + "가" * 400_000).encode() + b"\xff\n", None, r"line 2, character 400001: byte 0xff"),
        (
            f"b_no,이름\n{N},가나\n".encode("cp949") + b"\xff\n",
            None,
            r"neither UTF-8 .*CP949 \(line 3, character 1: .*0xff",
        ),
        (f"b_no,이름\n{N},\n".encode("cp949") * 90_000 + b"x,\xff\n", "cp949", r"line 180001, character 3: byte 0xff"),
        (f"b_no,이름\n{N},가\n".encode("utf-16") + b"\x00\xd8\n\x00", None, r"line 3, character 1: .* utf-16-le"),
        (f"b_no,이름\n{N},가\n".encode(), "utf-16", r"line \d, character \d+: .* utf-16-le"),
        (f"b_no,이름\n{N},가\n".encode() + b"\xea\xb0", None, r"line 3, character 1: byte 0xea"),
    ],
)
def test_bytes_that_do_not_decode_are_named_with_line_and_character(
    tmp_path: Path, data: bytes, encoding: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=rf"in\.csv: .*{message}.*`encoding=`"):
        read_bytes(tmp_path / "in.csv", data, encoding=encoding)


def test_a_codec_that_is_no_text_encoding_is_refused(tmp_path: Path) -> None:
    for name in ("base64", "hex", "rot13", "idna", "undefined", "zlib", "nonsense", " ", "a\0b"):
        with pytest.raises(UsageError) as caught:
            tables_text.coding_named(name)
        assert caught.value.code == "csv.unknown_encoding"
    for name in ("utf-32", "utf-7"):  # of which the bytes are not
        with pytest.raises(InputError) as refused:
            read_bytes(tmp_path / "in.csv", f"b_no,상호\n{N},가\n".encode() * 3, encoding=name)
        assert refused.value.code == "csv.encoding_mismatched"


def test_utf8_with_a_broken_byte_is_not_taken_for_cp949_though_it_would_decode(tmp_path: Path) -> None:
    data = f"b_no,고객\n{N},경기물류\n{N},강남배송\n".encode()
    broken = data + N.encode() + b",\xb0\xa1\n"
    assert broken.decode("cp949")  # the trap
    with pytest.raises(InputError, match="line 4, character 12: byte 0xb0 is not utf-8"):
        read_bytes(tmp_path / "in.csv", broken)


@pytest.mark.parametrize("encoding", ["cp949", "utf-8"])
def test_the_encoding_is_decided_on_the_whole_file_where_the_first_part_is_ascii(tmp_path: Path, encoding: str) -> None:
    head = b"b_no,name\n" + f"{N},plain\n".encode() * 20_000
    assert len(head) > tables_text.SAMPLE
    _, rows = read_bytes(tmp_path / "in.csv", head + f"{N},똠뷁\n".encode(encoding))
    assert rows[-1] == (N, "똠뷁")


@pytest.mark.parametrize(("chunk", "encoding"), [(1, "utf-8-sig"), (2, "cp949"), (3, "utf-16"), (64, "utf-8-sig")])
def test_characters_cells_and_titles_may_lie_across_the_borders_of_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, encoding: str
) -> None:
    text = f'명단\n전체,,\nb_no,이름,주소\n{N},"가\n나 ""1""",𝄞\n{N},다\n\n{N},"라\r\n\n마",바'
    data = (text.replace("𝄞", "끝") if encoding == "cp949" else text).encode(encoding)
    whole = read_bytes(tmp_path / "in.csv", data)
    monkeypatch.setattr(tables_text, "_CHUNK", chunk)
    table, rows = read(tmp_path / "in.csv")
    assert (table.headers, table.notes, rows) == (whole[0].headers, whole[0].notes, whole[1])
    assert table.notes == ("1 line has fewer fields than the header's 3; their missing cells are blank: line 6",)


def test_a_character_that_the_output_encoding_lacks_is_named_with_its_cell(tmp_path: Path) -> None:
    for text, where in {
        f"b_no,이름\n{N},가\n{N},나☃\n": "row 2 below the header, column '이름'",
        f"b_no,이☃름\n{N},가\n": "the header",
    }.items():
        with pytest.raises(OutputError) as caught:
            enriched(write(tmp_path / "in.csv", text), "out.csv", output_encoding="cp949")
        assert caught.value.fields["where"] == where
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_short_lines_are_kept_and_reported_with_their_numbers(tmp_path: Path) -> None:
    lines = ["b_no,이름,주소", *[f"{N},가,나", f"{N},가"] * 12, f'{N},"가\n나",다', '"x\ny"', ""]
    table, rows = read(write(tmp_path / "in.csv", "\n".join(lines) + "\n"))
    assert len(rows) == len(lines) - 1
    assert rows[1] == (N, "가", None)
    assert rows[-2:] == [("x\ny", None, None), (None, None, None)]
    assert table.notes == (
        "13 lines have fewer fields than the header's 3; their missing cells are blank: "
        "lines 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 28",
    )


def test_long_lines_are_refused_together_with_the_first_twenty_numbers(tmp_path: Path) -> None:
    text = f"b_no,이름\n{N},가\n" + f"{N},가,나\n" * 22
    with pytest.raises(InputError) as caught:
        read(write(tmp_path / "in.csv", text))
    fields = caught.value.fields
    assert (caught.value.code, fields["line"], fields["fields"], fields["width"]) == ("csv.line_too_wide", 3, 3, 2)
    assert "(22 such lines: lines 3, 4, 5," in str(caught.value)
    assert ", 22 and 2 more)" in str(caught.value)


def test_blank_fields_beyond_the_header_are_left_out_and_reported(tmp_path: Path) -> None:
    table, rows = read(write(tmp_path / "in.csv", f"b_no,이름\n{N},가,\n{N},나\n{N},다,,\n"))
    assert rows == [(N, "가"), (N, "나"), (N, "다")]
    assert table.notes == ("2 lines have blank fields beyond the header's 2, which are left out: lines 2, 4",)


def test_texts_are_read_or_refused_with_their_place(tmp_path: Path) -> None:
    """Quotes and line ends in cells are kept; what would be lost or misread is refused; titles are no rows."""

    def rows_of(text: str) -> list[Any]:
        table, rows = read(write(tmp_path / "in.csv", text))
        return [list(table.headers), *filled(rows)]

    assert differing("csv_texts.tsv", rows_of) == {}
    for text, code in {
        "b_no,a\r" * 50_000 + "1,x\n": "csv.mixed_line_ends",
        'b_no,a\n1,"' + "x\n" * 100_000: "csv.quotes_not_closed",
    }.items():
        with pytest.raises(InputError) as caught:
            rows_of(text)
        assert caught.value.code == code


def test_a_line_of_absurd_length_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_text, "_LONGEST", 1 << 20)
    with pytest.raises(InputError) as caught:
        read_bytes(tmp_path / "in.csv", b"b_no,a\n1," + b"x" * (2 << 20) + b"\n")
    assert caught.value.code == "csv.line_too_long"


@examples(150)
@given(st.lists(st.sampled_from(["a", ",", '"', "\n", "\r\n", "\r", '""', '"가"', ',"x"', "\0"]), max_size=14))
def test_any_text_is_read_as_the_csv_module_reads_it_or_refused(tmp_path: Path, parts: list[str]) -> None:
    text = "b_no,이름\n" + "".join(parts)
    try:
        table, rows = read(write(tmp_path / "in.csv", text))
    except InputError:
        return
    expected = list(csv.reader(io.StringIO(text, newline="\n"), strict=True))[1:]
    assert table.headers == ("b_no", "이름")
    assert filled(rows) == [[*fields, "", ""][:2] for fields in expected]
    assert not any(any(fields[2:]) for fields in expected)


def test_the_rows_of_a_file_with_few_shapes_and_many_are_all_there(tmp_path: Path) -> None:
    """Blocks of lines that are all alike take a short way; the rows must be the same on either."""
    lines = [f'{N},"{place}, x"' if place % 7 else f"{N},{place}" for place in range(30_000)]
    _, rows = read(write(tmp_path / "in.csv", "b_no,a\n" + "\n".join(lines[:15_000] + [f"{N},1"] * 30_000 + lines)))
    assert len(rows) == 15_000 + 30_000 + 30_000


# ── headers and titles ───────────────────────────────────────────────────────────────────────────────────────────


def test_titles_and_both_lines_of_a_header_come_back_with_ours_in_the_last(tmp_path: Path) -> None:
    text = f"명단\n,공급자,,공급받는자,\n일자,등록번호,상호,등록번호,상호\n1,{N},가,2208162517,나\n"
    source = write(tmp_path / "in.csv", text, "cp949")
    lines = enriched(source, columns={"b_no": "공급자 등록번호", "name": "공급자 상호"}).decode("cp949").splitlines()
    assert lines[:2] == text.splitlines()[:2]
    assert lines[2] == text.splitlines()[2] + "," + ",".join(NINE)
    assert lines[3].startswith(f"1,{N},가,2208162517,나,unknown,")


# ── delimiters ────────────────────────────────────────────────────────────────────────────────────────────────────────

CUSTOMERS = [["사업자번호", "상호", "주소"], ["124-81-00998", "삼성전자", "경기도 수원시 영통구 삼성로 129"]]
CUSTOMERS = [*CUSTOMERS, ["220-81-62517", "네이버", "경기도 성남시 분당구 정자일로 95"]]


def divided(path: Path, delimiter: str) -> Path:
    return write(path, "".join(delimiter.join(row) + "\n" for row in CUSTOMERS))


def divided_rows(path: Path, delimiter: str | None = None) -> list[list[str]]:
    with open_table(path, bs.ReadOptions(delimiter=delimiter)) as table:
        return [list(table.headers), *map(list, table.frame.collect().rows())]


@pytest.mark.parametrize("delimiter", [*"^~:#!&@*", "\x01", "\x1f", ";", "\t", "|"])
def test_a_named_delimiter_divides(tmp_path: Path, delimiter: str) -> None:
    assert divided_rows(divided(tmp_path / "in.txt", delimiter), delimiter) == CUSTOMERS
    shown = delimiter if delimiter.isprintable() else rf"\x{ord(delimiter):02x}"
    if delimiter in ";\t|":
        assert divided_rows(tmp_path / "in.txt") == CUSTOMERS
    elif delimiter not in "@*":
        with pytest.raises(InputError) as caught:
            divided_rows(tmp_path / "in.txt")
        assert caught.value.code == "csv.separator_unclear"
        assert f"`delimiter={shown!r}`" in str(caught.value)


@pytest.mark.parametrize("delimiter", ["^", "\x1f"])
def test_it_stays_in_the_output(tmp_path: Path, delimiter: str) -> None:
    source = divided(tmp_path / "in.txt", delimiter)
    bs.enrich(source, tmp_path / "out.txt", delimiter=delimiter)
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(delimiter) == [*CUSTOMERS[0], *NINE]
    assert [line.split(delimiter)[:3] for line in lines] == CUSTOMERS
    bs.enrich(tmp_path / "out.txt", tmp_path / "again.txt", delimiter=delimiter)
    assert (tmp_path / "again.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()


@pytest.mark.parametrize(("typed", "meant"), [(r"\t", "\t"), (r"\u001f", "\x1f"), ("^", "^")])
def test_a_command_line_types_what_it_cannot_hold_as_an_escape(
    tmp_path: Path, typed: str, meant: str, run: Callable[..., CompletedProcess[str]]
) -> None:
    divided(tmp_path / "in.dat", meant)
    assert run("plan", "in.dat", "--delimiter", typed).returncode == 0


def test_what_divides_no_cells_is_refused(tmp_path: Path) -> None:
    for delimiter in ("", "ab", "가", '"', "\n", "a", r"\x0", r"\x00"):
        with pytest.raises(UsageError) as caught:
            divided_rows(divided(tmp_path / "in.csv", ","), delimiter)
        assert caught.value.code == "csv.separator_invalid"


@pytest.mark.parametrize(("typed", "meant"), [("^", "^"), (r"\x01", "\x01"), (r"\t", "\t"), ("\\", "\\")])
def test_a_line_sep_names_any_of_them_also_as_an_escape(tmp_path: Path, typed: str, meant: str) -> None:
    source, out = divided(tmp_path / "in.csv", meant), tmp_path / "out.csv"
    write(source, f"sep={typed}\n" + source.read_text(encoding="utf-8"))
    assert bs.enrich(source, out).rows == 2
    first, header, *_ = out.read_text(encoding="utf-8").splitlines()
    assert (first, header.split(meant)) == (f"sep={typed}", [*CUSTOMERS[0], *NINE])
    bs.enrich(source, tmp_path / "out.tsv")
    assert ("sep=" in (tmp_path / "out.tsv").read_text(encoding="utf-8")) == (meant == "\t")


# ── formulas ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_our_texts_never_begin_a_formula_and_the_users_own_cells_stay(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f"b_no,=이름\n{N},=1+1\n{N},@x\n")
    with open_table(source) as table:
        ours = {
            "biz_status": "=1",
            "action": "+1",
            "reasons": "-1",
            "row_note": "@x",
            "grade": "A-",
            "row_status": "\tx",
        }
        frame = table.frame.with_columns(pl.lit(text).alias(name) for name, text in ours.items())
        layout = (("c0", "b_no"), ("c1", "=이름"), *((name, name) for name in ours))
        table.format.verbs.render(Enriched(table, frame, layout, frame.select(pl.len())), tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("b_no,=이름,")
    assert lines[1:] == [f"{N},=1+1,'=1,'+1,'-1,'@x,A-,'\tx", f"{N},@x,'=1,'+1,'-1,'@x,A-,'\tx"]


# ── files of real programs ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
@pytest.mark.parametrize(("charset", "quote_all"), [(76, "false"), (65535, "true")], ids=["utf-8", "utf-16"])
def test_a_file_of_libreoffice_comes_back_as_libreoffice_wrote_it(tmp_path: Path, charset: int, quote_all: str) -> None:
    words = '가, "나"'
    pd.DataFrame({"사업자등록번호": [N], "상호": [words], "주소": ["서울 1"]}).to_excel(
        tmp_path / "book.xlsx", index=False
    )
    options = f"csv:Text - txt - csv (StarCalc):44,34,{charset},1,,0,{quote_all},true,false"
    assert read(converted(tmp_path / "book.xlsx", options))[1] == [(N, words, "서울 1")]
    assert written(tmp_path / "book.csv", tmp_path / "out.csv") == (tmp_path / "book.csv").read_bytes()


def test_a_marked_file_with_crlf_and_a_line_that_names_the_delimiter_keeps_them(tmp_path: Path) -> None:
    """As Excel writes and reads them."""
    text = f'sep=|\r\nb_no|이름|메모\r\n{N}|가, 나|"첫 줄\n둘째 줄"\r\n'
    data = enriched(write(tmp_path / "in.csv", text, "utf-8-sig"))
    lines = data.removeprefix(codecs.BOM_UTF8).decode().split("\r\n")
    assert lines[:2] == ["sep=|", "|".join(["b_no", "이름", "메모", *NINE])]
    assert lines[2].startswith(f'{N}|가, 나|"첫 줄\n둘째 줄"|unknown|')
    assert (data[:3], lines[3:]) == (codecs.BOM_UTF8, [""])


def test_rows_are_counted_again_in_the_dialect_they_were_written_in(tmp_path: Path) -> None:
    data = f"제목\r\nb_no;이름\r\n{N};가\r\n\r\n{N};나\r\n".encode("utf-16")
    table, _ = read_bytes(tmp_path / "in.csv", data)
    result = Enriched(table, table.frame, (), table.frame)
    assert table.format.verbs.count(result, tmp_path / "in.csv") == 3


def test_a_header_longer_than_the_first_part_of_the_file_is_read_whole(tmp_path: Path) -> None:
    """A header cut off would lose columns of blank cells without a word."""
    headers = ["사업자등록번호", *("열" * 4000 + str(place) for place in range(40))]
    line = ",".join(headers)
    assert len(line.encode()) > tables_text.SAMPLE
    table, _ = read(write(tmp_path / "a.csv", f"제목,\n{line}\n124-81-00998\n"))
    assert table.headers == tuple(headers)
