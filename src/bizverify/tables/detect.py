"""Which format a file is in: by its content first, by its extension where the content leaves it open."""

from __future__ import annotations

import codecs
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from bizverify.errors import InputError, OutputError, UsageError
from bizverify.tables.table import Format

EXTENSIONS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "csv",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_READ_ONLY = (".xlsm",)  # a workbook without its macros must not bear the name of one with them
_DEFAULT_EXTENSION: dict[Format, str] = {
    "csv": ".csv",
    "xlsx": ".xlsx",
    "json": ".json",
    "ndjson": ".ndjson",
    "parquet": ".parquet",
}
READABLE = "CSV, TSV, XLSX, JSON, NDJSON and Parquet are read"

_HEAD = 4096
_FOREIGN = {
    b"\xd0\xcf\x11\xe0": "an old .xls or a password-protected workbook; save it as .xlsx without a password",
    b"\x1f\x8b": "compressed (gzip); decompress it first",
    b"\x28\xb5\x2f\xfd": "compressed (zstd); decompress it first",
    b"%PDF": "a PDF; export the table as .xlsx or .csv",
}


def detect_format(path: Path) -> Format:
    """Return the format of a file; raise :class:`InputError` when there is none that is read."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder, not a file")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror}") from error
    if not head.strip(b"\x00\t\r\n \xef\xbb\xbf"):
        raise InputError(f"{path}: is empty")
    return _binary_format(path, head) or _text_format(path, head)


def output_format(path: Path) -> Format:
    """Return the format that an output's extension asks for; raise :class:`OutputError` when there is none."""
    suffix = path.suffix.lower()
    if suffix in EXTENSIONS and suffix not in _READ_ONLY:
        return EXTENSIONS[suffix]
    known = " ".join(extension for extension in EXTENSIONS if extension not in _READ_ONLY)
    raise OutputError(f"{path}: cannot write the format {path.suffix!r}; use one of {known}")


def refuse_in_place(path: Path) -> None:
    """Raise :class:`UsageError` for an input whose name no file that is written here may bear."""
    if path.suffix.lower() in _READ_ONLY:
        raise UsageError(f"{path}: cannot be replaced in place, its macros would be lost; give an output.xlsx")


def default_output(path: Path, format: Format) -> Path:
    """Return ``INPUT.enriched.EXT`` beside the input, with the extension of its real format."""
    suffix = path.suffix.lower()
    keep = suffix not in _READ_ONLY and EXTENSIONS.get(suffix, format) == format
    return path.with_name(f"{path.stem}.enriched{path.suffix if keep else _DEFAULT_EXTENSION[format]}")


def _binary_format(path: Path, head: bytes) -> Format | None:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"PK\x03\x04"):
        return _zip_format(path)
    for magic, what in _FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"{path}: is {what}")
    return None


def _zip_format(path: Path) -> Format:
    try:
        with ZipFile(path) as archive:
            names = set(archive.namelist())
    except (BadZipFile, OSError) as error:
        raise InputError(f"{path}: is a damaged zip or workbook ({error})") from error
    if "xl/workbook.xml" in names:
        return "xlsx"
    raise InputError(f"{path}: is a zip but not an .xlsx workbook; {READABLE}")


def _text_format(path: Path, head: bytes) -> Format:
    by_name = EXTENSIONS.get(path.suffix.lower())
    utf16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\x00" in head and not utf16:
        raise InputError(f"{path}: holds binary data of no known format; {READABLE}")
    looks_json = head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"[")
    if by_name in ("json", "ndjson") or (by_name == "csv" and path.suffix.lower() != ".txt"):
        return by_name
    if looks_json:
        return "json"
    first_line = head.splitlines()[0]
    if by_name == "csv" or utf16 or any(mark in first_line for mark in (b",", b";", b"\t", b"|")):
        return "csv"
    raise InputError(f"{path}: neither its extension nor its content is of a known format; {READABLE}")
