"""Detects a file's format: by its content first, by its extension where the content leaves it open."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from bansong.errors import InputError, NoTableError, OutputError, Problem, UsageError
from bansong.tables.compression import BROKEN_ZIP, SUFFIXES, File, unpacked_name
from bansong.tables.table import Format
from bansong.translation import advise, gettext, gettext_noop

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

_SUFFIXES: Final[dict[Format, tuple[str, ...]]] = {
    "csv": (".csv", ".tsv", ".tab", ".txt"),
    "xlsx": (".xlsx", ".xlsm"),
    "xls": (".xls",),
    "xlsb": (".xlsb",),
    "ods": (".ods",),
    "html": (".html", ".htm"),
    "json": (".json",),
    "ndjson": (".ndjson", ".jsonl"),
    "parquet": (".parquet", ".pq"),
}
"""The extensions of each format, the usual one first."""
EXTENSIONS: Final = {suffix: format for format, suffixes in _SUFFIXES.items() for suffix in suffixes}
_READ_ONLY: Final[tuple[Format, ...]] = ("xls", "xlsb", "ods", "html")
"""Formats whose output is an .xlsx."""
_PACKABLE: Final[tuple[Format, ...]] = ("csv", "json", "ndjson")
READABLE: Final = gettext_noop("CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, HTML tables, JSON, NDJSON and Parquet are read")

_HEAD: Final = 4096
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


def detect_format(file: File, delimiter: str | None = None) -> Format:
    """Return the format of a file; raise :class:`InputError` when there is none that is read.

    ``delimiter``: what the user says to stand between the cells of a text.
    """
    with file.data.open("rb") as stream:
        head = stream.read(_HEAD)
    if file.path.name.startswith("~$"):
        raise InputError(EXCEL_LOCK_FILE, path=file.path)
    if not head.strip(b"\x00\t\r\n \xef\xbb\xbf\xff\xfe"):
        what = (
            gettext("is empty")
            if not head
            else gettext("is empty but for blanks")
            if head.strip(b"\x00")
            else gettext("holds zero bytes only")
        )
        raise InputError(INPUT_FILE_EMPTY, path=file.path, what=what)
    return _binary_format(file, head) or _text_format(file, head, named=delimiter is not None)


def output_format(path: Path) -> Format:
    """Return the format that an output's extension asks for; raise :class:`OutputError` when there is none."""
    plain = unpacked_name(path)
    format = EXTENSIONS.get(plain.suffix.lower())
    if format is None or format in _READ_ONLY:
        known = " ".join(extension for extension, format in EXTENSIONS.items() if format not in _READ_ONLY)
        raise OutputError(UNKNOWN_OUTPUT_FORMAT, path=path, suffix=plain.suffix, known=known)
    if plain != path and format not in _PACKABLE:
        raise OutputError(COMPRESSION_NEEDLESS, path=path, format=format, suffix=path.suffix)
    return format


def refuse_in_place(path: Path, format: Format) -> None:
    """Raise :class:`UsageError` for an input that cannot be written as it is: one only read, a packed workbook."""
    if format in _READ_ONLY:
        raise UsageError(FORMAT_ONLY_READ, path=path, format=format)
    if unpacked_name(path) != path and format not in _PACKABLE:
        raise UsageError(COMPRESSION_NOT_REPLACEABLE, path=path, format=format, suffix=path.suffix)


def default_output(path: Path, format: Format, mark: str = ".enriched") -> Path:
    """Return ``INPUT.enriched.EXT`` beside the input, with the extension of its real format, packed as it is.

    ``mark``: what stands before the extension.
    """
    plain = unpacked_name(path)
    own = EXTENSIONS.get(plain.suffix.lower()) == format
    usual = _SUFFIXES["xlsx" if format in _READ_ONLY else format][0]
    suffix = plain.suffix if own and plain.suffix and format not in _READ_ONLY else usual
    packed = path.suffix if path.suffix.lower() in SUFFIXES and format in _PACKABLE else ""
    return path.with_name(f"{plain.stem}{mark}{suffix}{packed}")


def _binary_format(file: File, head: bytes) -> Format | None:
    if head.startswith(_PARQUET) and (not _is_called_csv(file) or _ends_with(file, _PARQUET, _SEALED)):
        return "parquet"
    if head.startswith(b"PK\x03\x04"):
        return _zip_format(file)
    if head.startswith(_OLE):
        return _ole_format(file)
    for magic, what in _FOREIGN.items():
        if head.startswith(magic) and (magic != _SEALED or not _is_called_csv(file) or _ends_with(file, magic)):
            raise NoTableError(FORMAT_NOT_READ, path=file.path, what=gettext(what))
    return None


def _is_called_csv(file: File) -> bool:
    """Of a CSV file the first header may be PARENT, so that Parquet's marks at its start tell nothing."""
    return EXTENSIONS.get(file.name.suffix.lower()) == "csv"


def _ends_with(file: File, *marks: bytes) -> bool:
    with file.data.open("rb") as stream:
        stream.seek(-min(len(marks[0]), stream.seek(0, 2)), 2)
        return stream.read() in marks


def _zip_format(file: File) -> Format:
    try:
        with ZipFile(file.data) as archive:
            parts = archive.namelist()
            kind = archive.read("mimetype")[:64] if "mimetype" in parts else b""
    except BROKEN_ZIP as error:
        raise InputError(ZIP_DAMAGED, path=file.path, error=error) from error
    names = {name.replace("\\", "/").lower() for name in parts}
    if "xl/workbook.xml" in names:
        return "xlsx"
    if "xl/workbook.bin" in names:
        return "xlsb"
    if kind.startswith(b"application/vnd.oasis.opendocument.spreadsheet"):
        return "ods"
    if kind.startswith(b"application/hwp+zip"):
        raise InputError(HWPX_DOCUMENT, path=file.path)
    for folder, what in _OTHER_ZIPS.items():
        if any(name.startswith(folder) for name in names):
            raise InputError(DOCUMENT_NOT_WORKBOOK, path=file.path, what=gettext(what))
    if any(name.startswith("xl/") for name in names):
        raise InputError(UNUSUAL_WORKBOOK, path=file.path)
    raise InputError(ZIP_NOT_WORKBOOK, path=file.path, readable=gettext(READABLE))


def _ole_format(file: File) -> Format:
    """An old .xls, or something else in the same container, known by the names in its directory."""
    content = file.data.read_bytes()
    for stream, what in _STREAMS.items():
        if stream.encode("utf-16-le") in content:
            raise InputError(FORMAT_NOT_READ, path=file.path, what=gettext(what))
    return "xls"


def _text_format(file: File, head: bytes, *, named: bool) -> Format:
    suffix = file.name.suffix.lower()
    by_name = EXTENSIONS.get(suffix)
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    utf16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _is_utf16(head)
    if _is_web_page(file, start.replace(b"\x00", b"").lower() if utf16 else start.lower()):
        return "html"
    if by_name in ("json", "ndjson") and (utf16 or not _is_csv(start)):
        return by_name
    if by_name == "csv" and suffix != ".txt":
        return "json" if _OBJECTS.match(start) else by_name
    if b"\x00" in head and not utf16:
        raise NoTableError(UNKNOWN_BINARY_FORMAT, path=file.path, readable=gettext(READABLE))
    if start[:1] == b"{" or _ARRAY.match(start):
        return "json"
    if by_name is not None or named or utf16 or any(mark in head.splitlines()[0] for mark in _TEXT_MARKS):
        return "csv"  # also a text that bears the name of a workbook
    divided = gettext("of a CSV file, name what divides its cells with `delimiter=`")
    advice = advise("delimiter", divided, gettext("call a CSV file .csv"))
    raise NoTableError(UNKNOWN_INPUT_FORMAT, path=file.path, readable=gettext(READABLE), advice=advice)


def _is_web_page(file: File, start: bytes) -> bool:
    """Whether a text is a page in HTML, by its first part in lower case; refuse its kin, which only Excel reads."""
    if _MAIL_HEADER.match(start) and _MHTML.search(start):
        raise InputError(MHTML_PAGE, path=file.path)
    if _EXCEL_2003.search(start) and not _WEB_PAGE.search(start):  # its <Table> is none of a page
        raise InputError(EXCEL_2003_XML, path=file.path)
    marked_up = start.lstrip(b"\xff\xfe")[:1] == b"<"
    called = file.name.suffix.lower() in (".xls", ".html", ".htm")
    if (marked_up or called) and _PAGE.search(start):
        return True
    if start.startswith(b"<?xml"):
        raise InputError(UNKNOWN_XML, path=file.path)
    return False


def _is_csv(start: bytes) -> bool:
    """Whether a file that is called JSON is CSV: it begins as no JSON does, comments and Python's quotes among it."""
    return start[:1] not in b"{[/#'\0" and any(mark in start.splitlines()[0] for mark in _TEXT_MARKS)


def _is_utf16(head: bytes) -> bool:
    """Whether bytes look like text in UTF-16 without a byte order mark: ASCII's zeros all on one side."""
    zeros = sorted((head[0::2].count(0), head[1::2].count(0)))
    return zeros[0] == 0 and zeros[1] > max(4, len(head) // 10) and b"\x00\x00" not in head
