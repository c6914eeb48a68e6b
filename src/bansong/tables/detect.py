"""All formats: detect the format of a file, open it, write it; standard input and output."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import polars as pl

from bansong.base.errors import InputError, NoTableError, OutputError, Problem, UsageError
from bansong.base.files import create_private, private_folder
from bansong.base.messages import (
    OptionNames,
    advise,
    current_audience,
    describe_os_error,
    gettext,
    gettext_noop,
    parameter,
    use_audience,
)
from bansong.base.option import differing_fields, specs_of
from bansong.base.options import ReadOptions
from bansong.base.schema import with_words
from bansong.tables.streams import BROKEN_ZIP, SUFFIXES, File, open_file, unpacked_name
from bansong.tables.table import AS_FOUND, INPUTS_OF, Capabilities, Enriched, Evidence, Format, Look, Table, with_copies

ZIP_NOT_WORKBOOK: Final = Problem(
    "files.zip_not_workbook", "{path}: is a zip but not a workbook; unpack it first; {readable}"
)
UNKNOWN_INPUT_FORMAT: Final = Problem(
    "files.unknown_input_format",
    "{path}: neither its extension nor its content is of a known format; {readable}; {advice}",
)
EXCEL_LOCK_FILE: Final = Problem(
    "excel.excel_lock_file", "{path}: is what Excel leaves beside an open workbook; give the workbook itself"
)
INPUT_FILE_EMPTY: Final = Problem("files.input_file_empty", "{path}: {what}; export or copy it again")
UNKNOWN_OUTPUT_FORMAT: Final = Problem(
    "files.unknown_output_format", "{path}: cannot write the format {suffix!r}; use one of {known}"
)
COMPRESSION_NEEDLESS: Final = Problem(
    "files.compression_needless", "{path}: {format} files are packed inside already; leave {suffix} out"
)
FORMAT_ONLY_READ: Final = Problem(
    "files.format_only_read", "{path}: cannot be replaced in place, {format} files are only read; give an output.xlsx"
)
COMPRESSION_NOT_REPLACEABLE: Final = Problem(
    "files.compression_not_replaceable",
    "{path}: cannot be replaced in place, {format} files are written without {suffix}",
)
HWPX_DOCUMENT: Final = Problem(
    "files.hwpx_document", "{path}: is a Hangul (.hwpx) document; copy its table into a sheet, save that as .xlsx"
)
UNUSUAL_WORKBOOK: Final = Problem(
    "excel.unusual_workbook", "{path}: is a workbook of an unusual make; open it in Excel and save it again"
)
UNKNOWN_BINARY_FORMAT: Final = Problem(
    "files.unknown_binary_format", "{path}: holds binary data of no known format; {readable}"
)
MHTML_PAGE: Final = Problem(
    "html.mhtml_page",
    "{path}: is a web page in a single file (MHTML), as Excel saves one; open it in Excel and save it as .xlsx",
)
EXCEL_2003_XML: Final = Problem(
    "excel.excel_2003_xml", "{path}: is an XML spreadsheet of Excel 2003; open it in Excel and save it as .xlsx"
)
UNKNOWN_XML: Final = Problem(
    "files.unknown_xml", "{path}: is XML of a kind that is not read; open it in Excel and save it as .xlsx"
)
FORMAT_NOT_READ: Final = Problem("files.format_not_read", "{path}: is {what}")
ZIP_DAMAGED: Final = Problem(
    "files.zip_damaged", "{path}: is a damaged zip or workbook ({error}); copy or export it again"
)
DOCUMENT_NOT_WORKBOOK: Final = Problem(
    "files.document_not_workbook", "{path}: is {what}; copy its table into a sheet and save that as .xlsx"
)

READABLE: Final = gettext_noop("CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, HTML tables, JSON, NDJSON and Parquet are read")

_HEAD: Final = 4096
_ZIP: Final = b"PK\x03\x04"
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PARQUET: Final = b"PAR1"
_SEALED: Final = b"PARE"
_FOREIGN: Final = {
    b"%PDF": gettext_noop("a PDF; export the table as .xlsx or .csv"),
    b"HWP Document File": gettext_noop("a Hangul (.hwp) document; copy its table into a sheet and save that as .xlsx"),
    b"Rar!": gettext_noop("a RAR archive; unpack it first"),
    b"7z\xbc\xaf": gettext_noop("a 7-Zip archive; unpack it first"),
    _SEALED: gettext_noop("a Parquet file with an encrypted footer; write it without encryption"),
    b"\x89PNG": gettext_noop("an image; give the file that it was made from"),
    b"\xff\xd8\xff": gettext_noop("an image; give the file that it was made from"),
    b"GIF8": gettext_noop("an image; give the file that it was made from"),
    b"{\\rtf": gettext_noop("a document in rich text (.rtf); copy its table into a sheet and save that as .xlsx"),
    b"SQLite format 3": gettext_noop("a SQLite database; export the table as .csv"),
}
_STREAMS: Final = {  # names of an OLE file's streams, as its directory spells them
    "EncryptedPackage": gettext_noop(
        "protected with a password; open it in Excel, save it without one (File, Info, Protect "
        "Workbook, Encrypt with Password, empty) and try again"
    ),
    "HwpSummaryInformation": gettext_noop(
        "a Hangul (.hwp) document; copy its table into a sheet and save that as .xlsx"
    ),
    "WordDocument": gettext_noop("a Word document; copy its table into a sheet and save that as .xlsx"),
}
_OTHER_ZIPS: Final = {
    "word/": gettext_noop("a Word document (.docx)"),
    "ppt/": gettext_noop("a PowerPoint presentation (.pptx)"),
    "index/": gettext_noop("a workbook of Numbers, or another document of Apple's"),
}
_OBJECTS: Final = re.compile(rb'(?:\[\s*)?\{\s*"(?:[^"\\]|\\.)*"\s*:')
_ARRAY: Final = re.compile(rb"\[\s*(?:[\[{}\]\"0-9]|-[0-9]|null|true|false|$)")  # "[거래처 목록]" is a title
_PAGE: Final = re.compile(rb"<(?:html|body|head|table|tr|!doctype\s+html)[\s>]")
_WEB_PAGE: Final = re.compile(rb"<(?:html|body|head|!doctype\s+html)[\s>]")
_EXCEL_2003: Final = re.compile(rb"""urn:schemas-microsoft-com:office:spreadsheet|progid\s*=\s*["']excel\.sheet["']""")
_MHTML: Final = re.compile(rb"^(?:mime-version: |content-type: multipart/related)", re.MULTILINE)
_MAIL_HEADER: Final = re.compile(rb"[a-z-]+: ")
_TEXT_MARKS: Final = (b",", b";", b"\t", b"|")


def detect_format(file: File, wanted: ReadOptions) -> Format:
    with file.data.open("rb") as stream:
        head = stream.read(_HEAD)
    if file.path.name.startswith("~$"):
        raise InputError(EXCEL_LOCK_FILE, path=file.path)
    if not head.strip(b"\x00\t\r\n \xef\xbb\xbf\xff\xfe"):
        blanks, zeros = gettext("is empty but for blanks"), gettext("holds zero bytes only")
        what = (blanks if head.strip(b"\x00") else zeros) if head else gettext("is empty")
        raise InputError(INPUT_FILE_EMPTY, path=file.path, what=what)
    look = Look(file, head, wanted)
    for magic, foreign in _FOREIGN.items():
        if head.startswith(magic) and (magic != _SEALED or not _is_called_csv(look) or _ends_with(look, magic)):
            raise NoTableError(FORMAT_NOT_READ, path=file.path, what=gettext(foreign))
    found: dict[Evidence, Format] = {}
    for format in FORMATS.values():
        if evidence := format.detect(look):
            found.setdefault(evidence, format)
        if evidence is Evidence.CERTAIN:
            break
    if not found:
        raise _unknown(look)
    return found[max(found)]


def output_format(path: Path) -> Format:
    plain = unpacked_name(path)
    format = EXTENSIONS.get(plain.suffix.lower())
    if format is None or not format.can.written:
        known = " ".join(extension for extension, format in EXTENSIONS.items() if format.can.written)
        raise OutputError(UNKNOWN_OUTPUT_FORMAT, path=path, suffix=plain.suffix, known=known)
    if plain != path and not format.can.text:
        raise OutputError(COMPRESSION_NEEDLESS, path=path, format=format.name, suffix=path.suffix)
    return format


def refuse_in_place(path: Path, format: Format) -> None:
    if not format.can.written:
        raise UsageError(FORMAT_ONLY_READ, path=path, format=format.name)
    if unpacked_name(path) != path and not format.can.text:
        raise UsageError(COMPRESSION_NOT_REPLACEABLE, path=path, format=format.name, suffix=path.suffix)


def default_output(path: Path, format: Format, mark: str = ".enriched") -> Path:
    """Return ``INPUT.enriched.EXT`` beside the input, with the extension of its real format and compression."""
    plain = unpacked_name(path)
    written = format if format.can.written else FORMATS["xlsx"]
    own = written is format and plain.suffix.lower() in format.extensions
    suffix = plain.suffix if own else written.extensions[0]
    packed = path.suffix if path.suffix.lower() in SUFFIXES and written.can.text else ""
    return path.with_name(f"{plain.stem}{mark}{suffix}{packed}")


def _unknown(look: Look) -> InputError:
    path = look.file.path
    if look.head.startswith(_ZIP):
        return _other_zip(look)
    if b"\x00" in look.head and not _is_utf16(look):
        return NoTableError(UNKNOWN_BINARY_FORMAT, path=path, readable=gettext(READABLE))
    divided = gettext("of a CSV file, name what divides its cells with `delimiter=`")
    advice = advise("delimiter", divided, gettext("call a CSV file .csv"))
    return NoTableError(UNKNOWN_INPUT_FORMAT, path=path, readable=gettext(READABLE), advice=advice)


def _other_zip(look: Look) -> InputError:
    path, (names, kind) = look.file.path, _zip_parts(look)
    if kind.startswith(b"application/hwp+zip"):
        return InputError(HWPX_DOCUMENT, path=path)
    for folder, what in _OTHER_ZIPS.items():
        if any(name.startswith(folder) for name in names):
            return InputError(DOCUMENT_NOT_WORKBOOK, path=path, what=gettext(what))
    if any(name.startswith("xl/") for name in names):
        return InputError(UNUSUAL_WORKBOOK, path=path)
    return InputError(ZIP_NOT_WORKBOOK, path=path, readable=gettext(READABLE))


def _zip_parts(look: Look) -> tuple[set[str], bytes]:
    try:
        with ZipFile(look.file.data) as archive:
            parts = archive.namelist()
            kind = archive.read("mimetype")[:64] if "mimetype" in parts else b""
    except BROKEN_ZIP as error:
        raise InputError(ZIP_DAMAGED, path=look.file.path, error=error) from error
    return {name.replace("\\", "/").lower() for name in parts}, kind


def _is_zip_with(part: str, look: Look) -> Evidence | None:
    return Evidence.CERTAIN if look.head.startswith(_ZIP) and part in _zip_parts(look)[0] else None


def _is_spreadsheet(look: Look) -> Evidence | None:
    named = b"application/vnd.oasis.opendocument.spreadsheet"
    return Evidence.CERTAIN if look.head.startswith(_ZIP) and _zip_parts(look)[1].startswith(named) else None


def _is_old_workbook(look: Look) -> Evidence | None:
    if not look.head.startswith(_OLE):
        return None
    content = look.file.data.read_bytes()
    for stream, what in _STREAMS.items():
        if stream.encode("utf-16-le") in content:
            raise InputError(FORMAT_NOT_READ, path=look.file.path, what=gettext(what))
    return Evidence.CERTAIN


def _is_parquet(look: Look) -> Evidence | None:
    marked = look.head.startswith(_PARQUET)
    return Evidence.CERTAIN if marked and (not _is_called_csv(look) or _ends_with(look, _PARQUET, _SEALED)) else None


def _is_called_csv(look: Look) -> bool:
    """Whether the file name has an extension of CSV."""
    # a text may begin like Parquet: the header PARENT begins with PARE, the mark of encrypted Parquet
    return look.suffix in FORMATS["csv"].extensions


def _ends_with(look: Look, *marks: bytes) -> bool:
    with look.file.data.open("rb") as stream:
        stream.seek(-min(len(marks[0]), stream.seek(0, 2)), 2)
        return stream.read() in marks


def _is_page(look: Look) -> Evidence | None:
    if not _is_text(look):
        return None
    path, start = look.file.path, _start(look).lower()
    start = start.replace(b"\x00", b"") if _is_utf16(look) else start
    if _MAIL_HEADER.match(start) and _MHTML.search(start):
        raise InputError(MHTML_PAGE, path=path)
    if _EXCEL_2003.search(start) and not _WEB_PAGE.search(start):  # its <Table> is none of a page
        raise InputError(EXCEL_2003_XML, path=path)
    marked_up = start.lstrip(b"\xff\xfe")[:1] == b"<"
    called = look.suffix in (".xls", *FORMATS["html"].extensions)
    if (marked_up or called) and _PAGE.search(start):
        return Evidence.CERTAIN
    if start.startswith(b"<?xml"):
        raise InputError(UNKNOWN_XML, path=path)
    return None


def _is_json(look: Look) -> Evidence | None:
    if not _is_text(look):
        return None
    start = _start(look)
    if look.suffix in FORMATS["json"].extensions and not _begins_as_csv(look):
        return Evidence.LIKELY
    if _is_surely_called_csv(look):
        return Evidence.LIKELY if _OBJECTS.match(start) else None
    return Evidence.LIKELY if (start[:1] == b"{" or _ARRAY.match(start)) and not _has_zeros(look) else None


def _is_ndjson(look: Look) -> Evidence | None:
    named = look.suffix in FORMATS["ndjson"].extensions
    return Evidence.CERTAIN if named and _is_text(look) and not _begins_as_csv(look) else None


def _may_be_csv(look: Look) -> Evidence | None:
    """Accept a text as CSV if its name or first line allows it. The name may be that of a workbook."""
    if not _is_text(look) or (_has_zeros(look) and not _is_surely_called_csv(look)):
        return None
    named = look.suffix in EXTENSIONS or look.wanted.delimiter is not None or _is_utf16(look)
    return Evidence.POSSIBLE if named or any(mark in look.head.splitlines()[0] for mark in _TEXT_MARKS) else None


def _is_text(look: Look) -> bool:
    return not look.head.startswith((_ZIP, _OLE)) and _is_parquet(look) is None


def _is_surely_called_csv(look: Look) -> bool:
    return _is_called_csv(look) and look.suffix != ".txt"


def _start(look: Look) -> bytes:
    return look.head.removeprefix(codecs.BOM_UTF8).lstrip()


def _has_zeros(look: Look) -> bool:
    return b"\x00" in look.head and not _is_utf16(look)


def _begins_as_csv(look: Look) -> bool:
    """Whether a file begins with a CSV line that cannot be JSON, not even with comments or Python's quotes."""
    start = _start(look)
    return (
        not _is_utf16(look)
        and start[:1] not in b"{[/#'\0"
        and any(mark in start.splitlines()[0] for mark in _TEXT_MARKS)
    )


def _is_utf16(look: Look) -> bool:
    """Whether bytes look like UTF-16: a byte order mark, or zero bytes (of ASCII) at even or at odd places only."""
    head = look.head
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    zeros = sorted((head[0::2].count(0), head[1::2].count(0)))
    return zeros[0] == 0 and zeros[1] > max(4, len(head) // 10) and b"\x00\x00" not in head


_WORKBOOK: Final = Capabilities(
    written=False,
    left_behind=gettext_noop(
        "the output is a new workbook: its other sheets, formulas, charts and formats are not in it"
    ),
)
FORMATS: Final = {
    format.name: format
    for format in (
        Format(
            "csv",
            (".csv", ".tsv", ".tab", ".txt"),
            _may_be_csv,
            "bansong.tables.csv.format:CsvVerbs",
            Capabilities(text=True, korean_headers=True, formulas=True),
        ),
        Format(
            "xlsx",
            (".xlsx", ".xlsm"),
            partial(_is_zip_with, "xl/workbook.xml"),
            "bansong.tables.excel.format:XlsxVerbs",
            replace(
                _WORKBOOK,
                written=True,
                splices_sheets=True,
                spliced_only=(".xlsm",),
                titles=True,
                summary=True,
                korean_headers=True,
                max_columns=16_384,
            ),
        ),
        Format("xls", (".xls",), _is_old_workbook, "bansong.tables.excel.format:XlsVerbs", _WORKBOOK),
        Format(
            "xlsb",
            (".xlsb",),
            partial(_is_zip_with, "xl/workbook.bin"),
            "bansong.tables.excel.format:XlsbVerbs",
            _WORKBOOK,
        ),
        Format("ods", (".ods",), _is_spreadsheet, "bansong.tables.excel.format:OdsVerbs", _WORKBOOK),
        Format(
            "html",
            (".html", ".htm"),
            _is_page,
            "bansong.tables.html:HtmlVerbs",
            Capabilities(
                written=False,
                in_folders=False,
                left_behind=gettext_noop(
                    "the output is a new workbook: what the web page has beside its table is not in it"
                ),
            ),
        ),
        Format(
            "json",
            (".json",),
            _is_json,
            "bansong.tables.json.format:JsonVerbs",
            Capabilities(text=True),
        ),
        Format(
            "ndjson",
            (".ndjson", ".jsonl"),
            _is_ndjson,
            "bansong.tables.json.format:NdjsonVerbs",
            Capabilities(text=True),
        ),
        Format(
            "parquet",
            (".parquet", ".pq"),
            _is_parquet,
            "bansong.tables.parquet:ParquetVerbs",
            Capabilities(uploads=False),
        ),
    )
}
EXTENSIONS: Final = {extension: format for format in FORMATS.values() for extension in format.extensions}

OUTPUT_ENCODING_NEEDLESS: Final = Problem(
    "csv.output_encoding_needless", "{target}: `output_encoding=` is for CSV files"
)
OPTION_NOT_FOR_FORMAT: Final = Problem(
    "files.option_not_for_format", "{path}: {named} is for {meant}, this file is {format}"
)
TABLE_COPY_FAILED: Final = Problem(
    "files.table_copy_failed", "{path}: cannot be read: {reason}; TMPDIR chooses where copies are made"
)


OPTIONS: Final = {spec.name: spec.name for spec in specs_of(ReadOptions) if spec.inputs and spec.flag}
# names of options where two files are read, and this is the enriched one
FILE_OPTIONS: Final = {option: f"file_{option}" for option in OPTIONS}
ONLY_ENCODING: Final = {name: name for name in ("encoding", "delimiter")}


@contextmanager
def open_table(
    path: Path,
    wanted: ReadOptions = AS_FOUND,
    *,
    options: Mapping[str, str] = OPTIONS,
    data: Path | None = None,
) -> Iterator[Table]:
    """Open a file as a lazy table."""
    # ``options``: the options that messages may advise; ``data``: the local copy of a file that is not at ``path``
    with ExitStack() as resources:
        try:
            with use_audience(OptionNames(current_audience(), options, frozenset(OPTIONS))):
                file = open_file(path, resources, data)
                format = detect_format(file, wanted)
                for option in differing_fields(wanted):
                    if option in INPUTS_OF and not format.takes(option):
                        named = parameter(option, False) if option == "has_header" else parameter(option)
                        said = {"named": named, "meant": gettext(INPUTS_OF[option].named), "format": format.name}
                        raise UsageError(OPTION_NOT_FOR_FORMAT, path=path, **said)
                table = format.verbs.read(file, wanted, resources)
        except OSError as error:  # a disk that fails, or no room left for a private copy
            reason = f"{describe_os_error(error)}{f' ({error.filename})' if error.filename else ''}"
            raise InputError(TABLE_COPY_FAILED, path=path, reason=reason) from error
        yield table


@contextmanager
def reading(table: Table) -> Iterator[None]:
    """Turn an error of polars about an unreadable part of a file into an :class:`InputError` with the place."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # a panic is no Exception
        if "KeyboardInterrupt" in str(error):  # polars makes a panic of it while it builds a query
            raise KeyboardInterrupt from error
        if table.file is None:
            raise
        raise table.format.verbs.explain(table, error) from error


def write_table(
    result: Enriched, target: Path, format: Format, encoding: str | None = None, *, anew: bool = False
) -> tuple[pl.DataFrame, Callable[[], int]]:
    """Write an enriched table; return its tally, made in the same pass, and a function that counts the file's rows."""
    # anew: never into a copy of the input, which has rows that the table leaves out
    if encoding is not None and not format.takes("encoding"):
        raise UsageError(OUTPUT_ENCODING_NEEDLESS, target=target)
    frame = with_copies(with_words(result.frame, result.lang), result.layout)
    result, verbs = replace(result, frame=frame, encoding=encoding), format.verbs
    written = (None if anew else verbs.splice(result, target)) or verbs.render(result, target)
    rows = written.rows
    return written.tally, lambda: verbs.count(result, target) if rows is None else rows


INPUT_FORMAT_UNKNOWN: Final = Problem("files.input_format_unknown", "{option}: must be one of {known}")
STDOUT_IS_TERMINAL: Final = Problem(
    "files.stdout_is_terminal", "stdout: is a terminal, which cannot show {format}; lead it into a file"
)
STDIN_UNREADABLE: Final = Problem("files.stdin_unreadable", "stdin: cannot be read: {reason}")
STDOUT_CLOSED: Final = Problem(
    "files.stdout_closed", "stdout: was closed before all rows had been written; leave it open, and try again"
)
STDOUT_UNWRITABLE: Final = Problem("files.stdout_unwritable", "stdout: cannot be written: {reason}")

STREAM: Final = Path("-")
INPUT_NAME: Final = Path("stdin")


def keep_input(resources: ExitStack) -> Path:
    path = resources.enter_context(private_folder()) / INPUT_NAME
    try:
        with os.fdopen(create_private(path), "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        raise InputError(STDIN_UNREADABLE, reason=describe_os_error(error)) from error
    return path


def name_input(format: str | None) -> Path:
    if format is None:
        return INPUT_NAME
    if format not in FORMATS:
        raise UsageError(INPUT_FORMAT_UNKNOWN, option=parameter("input_format", format), known=", ".join(FORMATS))
    return INPUT_NAME.with_suffix(f".{format}")


def check_terminal(format: Format) -> None:
    if not format.can.text and sys.stdout.isatty():
        raise OutputError(STDOUT_IS_TERMINAL, format=format.name)


def send_output(path: Path) -> None:
    stdout = sys.stdout
    try:
        stdout.flush()
        with path.open("rb") as file:
            shutil.copyfileobj(file, stdout.buffer, 1 << 20)
        stdout.buffer.flush()
    except BrokenPipeError as error:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - so that no later flush fails
            os.dup2(nowhere.fileno(), stdout.fileno())
        raise OutputError(STDOUT_CLOSED) from error
    except OSError as error:
        raise OutputError(STDOUT_UNWRITABLE, reason=describe_os_error(error)) from error
