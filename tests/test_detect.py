"""What a file is, is told by its content; what cannot be read is refused with what to do about it."""

from __future__ import annotations

import gzip
import io
import os
import stat
from contextlib import ExitStack, nullcontext
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import openpyxl
import pytest

import bansong as bs
from bansong.base.isolation import SizeLimits, limits
from bansong.base.schema import INPUT_FORMATS
from bansong.errors import InputError, OutputError, UsageError
from bansong.tables.csv import format as dialect
from bansong.tables.detect import (
    EXTENSIONS,
    FILE_OPTIONS,
    FORMATS,
    ONLY_ENCODING,
    OPTIONS,
    default_output,
    detect_format,
    open_table,
    output_format,
)
from bansong.tables.streams import open_file
from bansong.tables.table import Verbs
from conftest import write

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
CSV = "사업자등록번호,상호\n124-81-00998,가\n"


def zipped(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            archive.writestr(ZipInfo(name), data)  # its day is fixed: parameters name tests
    return buffer.getvalue()


def format_of(path: Path) -> str:
    with ExitStack() as resources:
        return detect_format(open_file(path, resources), bs.ReadOptions()).name


CONTENTS = [
    ("a.csv", b"PK\x03\x04", "files.zip_damaged"),
    ("a.csv", zipped({"xl/workbook.xml": b"<x/>"}), "xlsx"),
    ("a.xls", zipped({"xl/workbook.xml": b"<x/>"}), "xlsx"),
    ("a.xlsx", zipped({"xl/workbook.bin": b""}), "xlsb"),
    ("a.xlsx", zipped({"mimetype": b"application/vnd.oasis.opendocument.spreadsheet"}), "ods"),
    ("a.xlsx", OLE, "xls"),
    ("a.xls", b"b_no,name\n1,2\n", "csv"),
    ("a.xls", "b_no\tname\n1\t2\n".encode("utf-16"), "csv"),
    ("a", b'{"b_no": 1}', "json"),
    ("a.txt", "b_no|name\n1|2\n".encode("utf-16-le"), "csv"),
    ("a.csv", b"[1]", "csv"),
    ("a.csv", b'[{"b_no": 1}]', "json"),
    ("a.csv", b'\xef\xbb\xbf{"b_no": 1}\n{"b_no": 2}', "json"),
    ("a.json", CSV.encode(), "csv"),
    ("a.json", b"[1]", "json"),
    ("a.xls", CSV.replace(",", "\t").encode("cp949"), "csv"),
    ("a.xls", b"b_no\n1248100998\n", "csv"),
    ("a.xlsx", b"b_no\n1248100998\n", "csv"),
    ("a.ndjson", b'{"a":1}', "ndjson"),
    ("a.dat", b"PAR1....", "parquet"),
    ("a.xls", b"<html><table><tr><td>1</td></tr></table></html>", "html"),
    ("a.csv", "\ufeff\n<!DOCTYPE html>\n<html>".encode(), "html"),
    ("a.xls", "<HTML><BODY>".encode("utf-16"), "html"),
    ("a.xls", "목록<br><table>".encode("cp949"), "html"),
    ("a.csv", b"b_no,name\n1,<table>\n", "csv"),
    ("a.csv", "PARENT,사업자등록번호\nx,124-81-00998\n".encode(), "csv"),
    ("a.csv", "PAR1,사업자등록번호\nx,124-81-00998\n".encode(), "csv"),
    ("a.txt", f"[거래처 목록],\n{CSV}".encode(), "csv"),
    ("a.txt", b'[\n{"b_no": 1}]', "json"),
    ("a.xlsx", OLE + "EncryptedPackage".encode("utf-16-le"), "protected with a password"),
    ("a.xls", OLE + "HwpSummaryInformation".encode("utf-16-le"), "a Hangul (.hwp) document"),
    ("a.hwp", b"HWP Document File V3.00", "a Hangul (.hwp) document"),
    ("a.hwpx", zipped({"mimetype": b"application/hwp+zip"}), "files.hwpx_document"),
    ("a.doc", OLE + "WordDocument".encode("utf-16-le"), "a Word document"),
    ("a.xls", b"\xef\xbb\xbf<?xml version='1.0'?><Workbook/>", "files.unknown_xml"),
    ("a.zip", zipped({"a.csv": b"x"}), "files.zip_not_workbook"),
    ("a.xlsx", zipped({"xl/workbook22.xml": b"x"}), "excel.unusual_workbook"),
    ("a.pdf", b"%PDF-1.7", "a PDF"),
    ("a.db", b"SQLite format 3\x00", "a SQLite database"),
    ("a.csv.gz", b"\x1f\x8b\x08", "files.unpacking_failed"),
    ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-9], "files.unpacking_failed"),
    ("a.csv.zst", b"\x28\xb5\x2f\xfd\x00", "files.unpacking_failed"),
    ("a.dat", b"\x00\x01\x02\x03", "files.unknown_binary_format"),
    ("a.csv", b"", "is empty"),
    ("a.csv", b"\x00\x00\x00", "holds zero bytes only"),
    ("a.csv", b" \n\n", "is empty but for blanks"),
    ("a.csv", b"\xff\xfe", "is empty but for blanks"),
    ("a.csv.gz", gzip.compress(b"", mtime=0), "files.input_file_empty"),
    ("~$a.xlsx", b"\x05user" + bytes(160), "excel.excel_lock_file"),
    ("a.docx", zipped({"word/document.xml": b"x"}), "files.document_not_workbook"),
    ("a.numbers", zipped({"Index/Document.iwa": b"x"}), "files.document_not_workbook"),
    ("a.xlsx", b"\x89PNG\r\n\x1a\n", "an image"),
    ("a.doc", b"{\\rtf1\\ansi}", "a document in rich text"),
    ("a.xlsx", zipped({"xl/workbook.xml": b"x"})[:40], "files.zip_damaged"),
]


def test_content_comes_before_the_extension_and_what_is_no_table_is_refused_by_what_it_is(tmp_path: Path) -> None:
    """Portals send exports under wrong names; the snapshot of all problems has the remedies."""
    differing = {}
    for place, (name, content, wanted) in enumerate(CONTENTS):
        path = tmp_path / name
        path.write_bytes(content)
        try:
            found = format_of(path)
            with open_table(path) if wanted not in FORMATS else nullcontext():
                pass
        except InputError as error:
            what = str(error.fields.get("what", ""))
            found = wanted if what.startswith(wanted) else error.code
        if found != wanted:
            differing[place, name] = found
    assert differing == {}


def test_an_output_is_packed_when_its_name_says_so(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", CSV)
    bs.enrich(source, tmp_path / "out.json.gz")
    assert b'"row_status":"verified"' in gzip.decompress((tmp_path / "out.json.gz").read_bytes())
    with pytest.raises(OutputError, match=r"xlsx files are packed inside already; leave \.gz out"):
        bs.enrich(source, tmp_path / "out.xlsx.gz")


def test_the_unpacked_copy_is_private_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unpacked may hold people's addresses: only its owner reads it, and it does not stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    with open_table(tmp_path / "in.csv.gz") as table:
        assert table.file is not None
        assert stat.S_IMODE(table.file.data.parent.stat().st_mode) == 0o700
        assert table.frame.collect().height == 1
    assert os.listdir(tmp_path) == ["in.csv.gz"]  # noqa: PTH208


def test_a_file_that_unfolds_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANSONG_LIMITS", "unpacked=1M")
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"b_no\n" + b"1248100998\n" * 100_000))
    with pytest.raises(InputError, match=r"BANSONG_LIMITS=unpacked=") as caught:
        format_of(tmp_path / "in.csv.gz")
    assert caught.value.code == "limits.unpacked_too_large"


def test_a_csv_file_with_too_many_columns_is_refused_before_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header wider than a sheet is refused with the remedy; where all lines are, before each cell is looked at."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    wide = tmp_path / "wide.csv"
    wide.write_bytes(b"b_no" + b"," * 16_384 + b"\n1248100998\n")
    with pytest.raises(InputError, match=r"wide\.csv: has 16,385 columns, more than 16,384; take out"):
        bs.plan(wide)
    monkeypatch.setattr(dialect, "find_heading", never)
    monkeypatch.setenv("BANSONG_LIMITS", "columns=16385")
    wide.write_bytes((b"b_no" + b"," * 20_000 + b"\n") * 2)
    with pytest.raises(InputError, match=r"raise the limit with BANSONG_LIMITS=columns=20001"):
        bs.plan(wide)


def test_limits_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BANSONG_LIMITS", raising=False)
    assert limits() == SizeLimits()
    monkeypatch.setenv("BANSONG_LIMITS", " cells=60M , inflated=4g,")
    assert limits() == SizeLimits(cells=60_000_000, inflated=4_000_000_000)
    for text in ("cells", "cells=", "cells=M", "cells=0", "cells=-1", "what=3", "cells=1X", "cells=1.5M"):
        monkeypatch.setenv("BANSONG_LIMITS", text)
        with pytest.raises(UsageError, match="is no limit; write NAME=NUMBER, the names are cells"):
            limits()


def test_the_default_output_bears_the_extension_of_what_it_is(tmp_path: Path) -> None:
    for name, format, expected in (
        *(("a.csv", "csv", "a.enriched.csv"), ("a.TSV", "csv", "a.enriched.TSV"), ("a.xls", "csv", "a.enriched.csv")),
        *(("a.csv.gz", "csv", "a.enriched.csv.gz"), ("a", "json", "a.enriched.json")),
        *(("a.xlsm", "xlsx", "a.enriched.xlsm"), ("a.xls", "xls", "a.enriched.xlsx")),
        *(("a.ods", "ods", "a.enriched.xlsx"), ("a.xlsx.gz", "xlsx", "a.enriched.xlsx")),
    ):
        assert default_output(tmp_path / name, FORMATS[format]) == tmp_path / expected
        assert output_format(tmp_path / expected).name in ("csv", "xlsx", "json")


def test_a_workbook_in_disguise_is_enriched_under_its_right_name(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["사업자등록번호", "상호"], ["124-81-00998", "가"]):
        book.active.append(row)
    book.save(tmp_path / "in.xlsx")
    (tmp_path / "in.xlsx").rename(tmp_path / "in.xls")
    assert bs.enrich(tmp_path / "in.xls").output == str(tmp_path / "in.enriched.xlsx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_refused_with_the_remedy_and_never_waited_for(tmp_path: Path) -> None:
    """Bytes of a pipe are gone once read, so that it cannot be looked at twice."""
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(InputError, match="is a pipe, which can be read only once; save"):
        format_of(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["~/a.csv", "file:a.ndjson", os.fsdecode(b"\xb0\xed\xb0\xb4.parquet")])
def test_a_name_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Not one at home, none by URL; names may be no text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    made = Path(name)
    try:
        bs.enrich(write(tmp_path / "plain.csv", CSV), tmp_path / f"out{made.suffix}")
        (tmp_path / f"out{made.suffix}").rename(made)
    except (OSError, UnicodeError):
        pytest.skip("the file system has no such names")
    assert bs.enrich(made, in_place=True).rows == 1


def test_what_is_not_there_or_of_another_kind_is_named_as_it_was_given(tmp_path: Path) -> None:
    for given, remedy in {
        "ftp://host/a.csv": "copy the file here and give the copy's path",
        "file:///data/a.csv": "give the path alone",
    }.items():
        with pytest.raises(InputError, match=remedy) as caught:
            bs.enrich(given)
        assert (caught.value.code, caught.value.fields["url"]) == ("files.url_not_read", given)
    with pytest.raises(OutputError, match=r"ftp://host/out\.csv: is a URL, and of those only"):
        bs.enrich(write(tmp_path / "in.csv", CSV), "ftp://host/out.csv")
    with pytest.raises(InputError) as missing:
        bs.enrich(tmp_path / "none.csv")
    assert (missing.value.code, missing.value.fields["parent"]) == ("files.input_file_missing", tmp_path)


TWO_LISTS = '{"a": [{"b_no": "1248100998"}], "b": [{"b_no": "2208162517"}]}'


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (OPTIONS, "choose with `json_path='a'`"),
        (FILE_OPTIONS, "choose with `file_json_path='a'`"),
        (ONLY_ENCODING, "keep one of them in the file"),
    ],
)
def test_a_message_names_only_options_that_its_reader_has(tmp_path: Path, options: dict[str, str], remedy: str) -> None:
    source = write(tmp_path / "a.json", TWO_LISTS)
    with pytest.raises(InputError) as caught, open_table(source, options=options):
        pass
    assert caught.value.fields["advice"] == remedy
    if options is ONLY_ENCODING:
        with pytest.raises(InputError, match=remedy):
            bs.build_registry([source], tmp_path / "registry.parquet")


def test_a_table_wider_than_a_sheet_is_refused_before_its_columns_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To choose among 16,384 columns takes seconds; that ours have no place beside them is known before."""
    wide = write(tmp_path / "in.csv", "b_no" + "," * 16_383 + "\n1248100998\n")
    monkeypatch.setattr("bansong.run.survey.prepare_table", None)
    with pytest.raises(OutputError) as refused:
        bs.enrich(wide, tmp_path / "out.xlsx")
    assert (refused.value.fields["width"], refused.value.fields["max_columns"]) == (16_393, 16_384)


@pytest.mark.scale
@pytest.mark.timeout(120)
def test_a_table_as_wide_as_a_sheet_is_enriched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a selection from a sheet of 16,384 columns, and with a raised limit from a list of one more."""
    in_all_columns(tmp_path / "in.xlsx")
    assert bs.enrich(tmp_path / "in.xlsx", tmp_path / "out.xlsx", select=["b_no"]).rows == 1
    monkeypatch.setenv("BANSONG_LIMITS", "columns=16385")
    wide = write(tmp_path / "wide.csv", "b_no" + "," * 16_384 + "\n1248100998\n")
    assert bs.plan(wide).rows == 1


def in_all_columns(path: Path) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(["b_no", *(f"c{place}" for place in range(16_383))])
    sheet.append(["124-81-00998"])
    book.save(path)


def test_every_format_is_declared_once_and_its_code_is_found() -> None:
    """Names that the command line lists, extensions that belong to one format, code that is imported on first use."""
    assert tuple(FORMATS) == INPUT_FORMATS
    assert len(EXTENSIONS) == sum(len(format.extensions) for format in FORMATS.values())
    for format in FORMATS.values():
        assert format.verbs.format is format
        assert EXTENSIONS[format.extensions[0]] is format
        assert (type(format.verbs).render is not Verbs.render) == format.can.written
