"""Find the official address files in downloads (files, folders, zips), and yield their lines.

Files are known by the agency's and the post office's names, a text file of another name by its columns.
"""

from __future__ import annotations

import calendar
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, Final, Literal
from zipfile import BadZipFile, ZipFile

from bansong.errors import GazetteerError, Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.schema import seoul_day
from bansong.tables.publish import same_file
from bansong.translation import Listed, Phrase, gettext, gettext_noop

ZIP_UNREADABLE: Final = Problem(
    "gazetteer.zip_unreadable", "{path}: the zip {reason}; download it again, or unpack it and give the folder"
)
ADDRESS_FILES_MISSING: Final = Problem(
    "gazetteer.address_files_missing", "no official address file was found; {describe_expected}"
)
SOURCE_NOT_CP949: Final = Problem(
    "gazetteer.source_not_cp949",
    "{name}, line 1: is UTF-8, but the official file is CP949; it was saved by another "
    "program: use the file as it was downloaded",
)
OUTPUT_IS_SOURCE: Final = Problem(
    "gazetteer.output_is_source", "{output}: is one of the sources; give the gazetteer a name of its own"
)
NOT_ADDRESS_FILE: Final = Problem(
    "gazetteer.not_address_file", "{source}: is none of the official address files; {describe_expected}"
)
SOURCE_BYTE_INVALID: Final = Problem(
    "gazetteer.source_byte_invalid",
    "{name}, line {line:,}: the byte 0x{byte:02x} is not {encoding}; the file is damaged or "
    "was saved by another program: download it again",
)
SOURCE_UNREADABLE: Final = Problem("gazetteer.source_unreadable", "{name}: cannot be read: {reason}")
SOURCE_LINE_TOO_LONG: Final = Problem(
    "gazetteer.source_line_too_long",
    "{name}, line {first:,}: is longer than {longest_line:,} bytes; it is damaged, or not "
    "the official file: download it again",
)
SOURCE_CUT_OFF: Final = Problem(
    "gazetteer.source_cut_off",
    "{name}, line {line:,}: its last line is cut off within a character, so the file is truncated: download it again",
)

Kind = Literal["buildings", "lots", "changes", "lot changes", "postal", "admins"]
COLUMNS: Final[dict[Kind, int]] = {"buildings": 24, "changes": 24, "lots": 14, "lot changes": 14, "postal": 26}
REASON: Final[dict[int, tuple[int, Kind, Kind]]] = {24: (20, "buildings", "changes"), 14: (13, "lots", "lot changes")}
BLOCK: Final = 32 << 20
LONGEST_LINE: Final = 1 << 16

_NAMES: Final[tuple[tuple[str, Kind], ...]] = (
    (r"^jibun_rnaddrkor.*\.txt$", "lots"),
    (r"^rnaddrkor.*\.txt$", "buildings"),
    (r"th_sgco_rnadr_mst\.txt$", "changes"),
    (r"th_sgco_rnadr_lnbr\.txt$", "lot changes"),
    (r"^kikmix.*\.xlsx$", "admins"),
)
_COUNTED: Final = (
    *(gettext_noop("postal"), gettext_noop("lot changes"), gettext_noop("admins")),
    *(gettext_noop("active"), gettext_noop("suspended"), gettext_noop("closed"), gettext_noop("unregistered")),
)
_DATE: Final = re.compile(r"(?<![0-9])(20[0-9]{2})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])?(?![0-9])")
_HEAD_BYTES: Final = 1 << 16
_UTF8_BOM: Final = b"\xef\xbb\xbf"


@dataclass(slots=True)
class SourceFile:
    """One official file, or ``member`` of the zip at ``path``. ``digest`` fills while it is read."""

    path: Path
    member: str | None
    kind: Kind
    size: int
    named: date | None
    digest: str = ""
    newest: date | None = field(default=None)

    @property
    def name(self) -> str:
        """Path for people."""
        return str(self.path) if self.member is None else f"{self.path}: {shown_name(self.member)}"

    @property
    def short(self) -> str:
        """File name, for the metadata."""
        return Path(shown_name(self.member)).name if self.member else self.path.name

    @property
    def dated(self) -> date | None:
        """Date in the name, else the newest date of its rows."""
        return self.named or self.newest

    @property
    def changed(self) -> date:
        """Day in Korea of the file's last change."""
        return seoul_day(self.path.stat().st_mtime)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open for reading; raise :class:`GazetteerError` for a file or zip that cannot be read."""
        try:
            if self.member is None:
                with self.path.open("rb") as file:
                    yield file
            else:
                with ZipFile(self.path) as archive, self._open_member(archive, self.member) as file:
                    yield file
        except (BadZipFile, zlib.error, EOFError) as error:
            raise _unzippable(self.path, error) from error
        except OSError as error:
            raise GazetteerError(SOURCE_UNREADABLE, name=self.name, reason=describe_os_error(error)) from error

    def _open_member(self, archive: ZipFile, member: str) -> IO[bytes]:
        try:
            return archive.open(member)
        except (NotImplementedError, RuntimeError) as error:  # a method unknown to Python; a member with a password
            raise _unzippable(self.path, error) from error


def find_sources(given: Iterable[str | Path], output: Path) -> tuple[list[SourceFile], list[str]]:
    """Return the official files in files, folders and zips, in a stable order, and the ignored names.

    A file that is there twice (in a zip and beside it) is one source. Raises :class:`GazetteerError`.
    """
    found: list[SourceFile] = []
    others: list[str] = []
    for source in map(Path, given):
        if same_file(source, output):
            raise UsageError(OUTPUT_IS_SOURCE, output=output)
        try:
            source.stat()
            parts = [_in_file(path) for path in (files_below(source) if source.is_dir() else [source])]
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            reason = Phrase("there is no such file or folder") if is_missing else describe_os_error(error)
            raise GazetteerError(Listed([error.filename or source, reason], ": ")) from error
        left = [name for _, names in parts for name in names]
        if not source.is_dir() and not parts[0][0]:
            raise GazetteerError(NOT_ADDRESS_FILE, source=source, describe_expected=_describe_expected(left))
        found += [one for sources, _ in parts for one in sources]
        others += left
    if not found:
        raise GazetteerError(ADDRESS_FILES_MISSING, describe_expected=_describe_expected(others))
    return _once(found), others


def lines(source: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines in UTF-8, each with the number of its first line.

    Raises :class:`GazetteerError` for another encoding, with the line.
    """
    digest = hashlib.sha256()
    with source.open() as file:
        head = file.read(BLOCK)
        encoding = _encoding(source, head)
        first, rest = 1, b""
        block = head.removeprefix(_UTF8_BOM)
        digest.update(head)
        while block:
            block = rest + block
            end = block.rfind(b"\n") + 1
            whole, rest = block[:end], block[end:]
            if whole:
                yield first, _decode_block(source, whole, first, encoding)
            first += whole.count(b"\n")
            if len(rest) > LONGEST_LINE:
                raise GazetteerError(SOURCE_LINE_TOO_LONG, name=source.name, first=first, longest_line=LONGEST_LINE)
            block = file.read(BLOCK)
            digest.update(block)
        if rest.strip():
            yield first, _decode_block(source, rest, first, encoding) + b"\n"
    source.digest = digest.hexdigest()


def shown_name(member: str) -> str:
    """Return a zip member's name; zips made in Korea hold CP949 where zipfile assumes CP437."""
    try:
        return member.encode("cp437").decode("cp949")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return member


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, in order, without hidden files and lock files (``~$…``)."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.startswith("~$")
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def format_counts(counts: Mapping[str, int]) -> str:
    """Format counts as ``active 1,200, closed 3``, without zeros."""
    return ", ".join(f"{gettext(name)} {count:,}" for name, count in counts.items() if count) or gettext("none")


def _in_file(path: Path) -> tuple[list[SourceFile], list[str]]:
    if path.suffix.lower() != ".zip":
        source = SourceFile(
            path, None, "buildings", path.stat().st_size, _date(path.name, *reversed(path.parts[-3:-1]))
        )
        return ([source], []) if _recognise_kind(source) else ([], [path.name])
    try:
        with ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
    except (BadZipFile, OSError) as error:
        raise _unzippable(path, error) from error
    found, others = [], []
    for member in sorted(members, key=lambda member: member.filename):
        dated = _date(*reversed(Path(shown_name(member.filename)).parts), path.name)
        source = SourceFile(path, member.filename, "buildings", member.file_size, dated)
        if _recognise_kind(source):
            found.append(source)
        else:
            others.append(f"{path.name}: {shown_name(member.filename)}")
    return found, others


def _recognise_kind(source: SourceFile) -> bool:
    name = source.short.lower()
    for pattern, kind in _NAMES:
        if re.search(pattern, name):
            source.kind = kind
            return kind != "admins" or source.member is None
    if not name.endswith(".txt"):
        return False
    with source.open() as file:
        first = file.read(_HEAD_BYTES).removeprefix(_UTF8_BOM).split(b"\n", 1)[0].rstrip(b"\r")
    fields = first.split(b"|")
    if len(fields) == COLUMNS["postal"] and fields[0] in ("우편번호".encode(), "우편번호".encode("cp949")):
        source.kind = "postal"
    elif len(fields) in REASON and fields[0].isdigit():
        place, whole, changed = REASON[len(fields)]
        source.kind = changed if fields[place].strip() else whole
    else:
        return False
    return True


def _once(found: list[SourceFile]) -> list[SourceFile]:
    sizes = [(source.kind, source.size) for source in found]
    kept: dict[tuple[object, ...], SourceFile] = {}
    for place, source in enumerate(found):
        alone = sizes.count(sizes[place]) == 1
        day = source.named if "changes" in source.kind else None  # two days may have the same changes
        same = ("alone", place) if alone else (source.kind, day, source.size, _checksum(source))
        kept.setdefault(same, source)
    return list(kept.values())


def _checksum(source: SourceFile) -> int:
    found = 0
    with source.open() as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


def _date(*names: str) -> date | None:
    """Return the date in the first name with one; a month alone means its last day, when a full set is made."""
    for name in names:
        for year, month, day in reversed(_DATE.findall(name)):
            last = calendar.monthrange(int(year), int(month))[1]
            if not day or int(day) <= last:
                return date(int(year), int(month), int(day or last))
    return None


def _encoding(source: SourceFile, head: bytes) -> str:
    """Return CP949, as the official files are; the post office also gives UTF-8."""
    start = head.removeprefix(_UTF8_BOM)[:_HEAD_BYTES]
    if start.isascii():
        return "cp949"
    try:
        start[: start.rfind(b"\n") + 1 or None].decode("utf-8")
    except UnicodeDecodeError:
        return "cp949"
    if source.kind != "postal":
        raise GazetteerError(SOURCE_NOT_CP949, name=source.name)
    return "utf-8"


def _decode_block(source: SourceFile, block: bytes, first: int, encoding: str) -> bytes:
    try:
        text = block.decode(encoding)
    except UnicodeDecodeError as error:
        line = first + block.count(b"\n", 0, error.start)
        if error.end == len(block) and "incomplete" in error.reason:
            raise GazetteerError(SOURCE_CUT_OFF, name=source.name, line=line) from error
        raise GazetteerError(
            SOURCE_BYTE_INVALID, name=source.name, line=line, byte=block[error.start], encoding=encoding.upper()
        ) from error
    return (text.replace("\r\n", "\n") if "\r" in text else text).encode()


def _unzippable(path: Path, error: Exception) -> GazetteerError:
    reason = (
        Phrase("has a password") if "password" in str(error) else Phrase("is damaged or cut off ({error})", error=error)
    )
    return GazetteerError(ZIP_UNREADABLE, path=path, reason=reason)


def _describe_expected(others: list[str]) -> Phrase:
    shown = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
    seen = [Phrase(" (there: {shown})", shown=shown)] if others else []
    if any(": " in name and name.lower().endswith(".zip") for name in others):
        seen.append(Phrase("; a zip within a zip is not opened: unpack the outer one and give the folder"))
    return Phrase(
        "rnaddrkor_*.txt, jibun_rnaddrkor_*.txt, daily changes and zipcode_DB files are read, or zips of them{seen}",
        seen="".join(map(str, seen)),
    )
