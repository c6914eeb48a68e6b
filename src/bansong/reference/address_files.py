"""Find and read official address files.

The layouts are those that the address agency (business.juso.go.kr) and the post office publish. All use ``|`` and
no quoting: a quotation mark is part of a name.
"""

from __future__ import annotations

import calendar
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import IO, Final, Literal
from zipfile import BadZipFile, ZipFile

import polars as pl

from bansong.base.business_number import first_code
from bansong.base.errors import GazetteerError, Problem, UsageError
from bansong.base.messages import Listed, Phrase, describe_os_error, gettext, gettext_noop
from bansong.base.publish import same_file
from bansong.base.schema import seoul_day
from bansong.engine.address.gazetteer import NUMBER_LIMIT

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
    """An official address file, or a member of a zip."""

    path: Path  # of the file, or of the zip
    member: str | None
    kind: Kind
    size: int
    named: date | None  # date in the name of the file or its folder
    digest: str = ""  # SHA-256 in hex, once it was read
    newest: date | None = None  # newest date of its rows, once it was read

    @property
    def name(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}: {shown_name(self.member)}"

    @property
    def short(self) -> str:
        return Path(shown_name(self.member)).name if self.member else self.path.name

    @property
    def dated(self) -> date | None:
        """Date in the name of the file, else the newest date of its rows."""
        return self.named or self.newest

    @property
    def changed(self) -> date:
        return seoul_day(self.path.stat().st_mtime)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
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
        except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or a password
            raise _unzippable(self.path, error) from error


def find_sources(given: Iterable[str | Path], output: Path) -> tuple[list[SourceFile], list[str]]:
    """Find the official files among files, folders and zips, each once; also return the names of other files."""
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
    """Yield a file in blocks of whole lines: the number of the first line, and the lines in UTF-8."""
    digest = hashlib.sha256()
    first, rest, encoding = 1, b"", ""
    with source.open() as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if not encoding:
                encoding, block = _encoding(source, block), block.removeprefix(_UTF8_BOM)
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield first, _decode_block(source, whole + end, first, encoding)
                first += whole.count(b"\n") + 1
            if len(rest) > LONGEST_LINE:
                raise GazetteerError(SOURCE_LINE_TOO_LONG, name=source.name, first=first, longest_line=LONGEST_LINE)
    if rest.strip():
        yield first, _decode_block(source, rest, first, encoding) + b"\n"
    source.digest = digest.hexdigest()


def shown_name(member: str) -> str:
    """Return the name of a zip member; zips made in Korea have CP949 names, which zipfile reads as CP437."""
    try:
        return member.encode("cp437").decode("cp949")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return member


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted, without hidden files and lock files (``~$…``)."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.name.startswith("~$")
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def format_counts(counts: Mapping[str, int]) -> str:
    """List counts by name, without zeros."""
    return ", ".join(f"{gettext(name)} {count:,}" for name, count in counts.items() if count) or gettext("none")


def _in_file(path: Path) -> tuple[list[SourceFile], list[str]]:
    if path.suffix.lower() != ".zip":
        dated = _date(path.name, *reversed(path.parts[-3:-1]))
        source = SourceFile(path, None, "buildings", path.stat().st_size, dated)
        return ([source], []) if _recognise_kind(source) else ([], [path.name])
    try:
        with ZipFile(path) as archive:
            members = {member.filename: member.file_size for member in archive.infolist() if not member.is_dir()}
    except (BadZipFile, OSError) as error:
        raise _unzippable(path, error) from error
    found, others = [], []
    for member, size in sorted(members.items()):
        dated = _date(*reversed(Path(shown_name(member)).parts), path.name)
        source = SourceFile(path, member, "buildings", size, dated)
        if _recognise_kind(source):
            found.append(source)
        else:
            others.append(f"{path.name}: {shown_name(member)}")
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
        day = source.named if "changes" in source.kind else None  # changes of two days may be equal files
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
    """Return the date in the first of the names that has one; a month alone means its last day."""
    for name in names:
        for year, month, day in reversed(_DATE.findall(name)):
            last = calendar.monthrange(int(year), int(month))[1]
            if not day or int(day) <= last:
                return date(int(year), int(month), int(day or last))
    return None


def _encoding(source: SourceFile, head: bytes) -> str:
    """Detect the encoding: CP949, or UTF-8 for a file of the post office."""
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
    damage = Phrase("is damaged or cut off ({error})", error=error)
    reason = Phrase("has a password") if "password" in str(error) else damage
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


COLUMN_COUNT_WRONG: Final = Problem(
    "gazetteer.column_count_wrong", "{name}, line {first:,}: {columns} columns instead of {wanted} ({line!r}); {remedy}"
)
SOURCE_FILE_EMPTY: Final = Problem("gazetteer.source_file_empty", "{name}: holds no rows; download it again")
SOURCE_ROWS_UNUSABLE: Final = Problem(
    "gazetteer.source_rows_unusable",
    "{name}: {bad:,} of {rows:,} rows cannot be used, so the file is not what it should be; the first: {example}",
)

INSERT: Final = ("31", "33")
UPDATE: Final = ("34", "35", "36")
DELETE: Final = ("63", "64")
STREET: Final = ("dong_code", "sido", "sigungu", "emd", "ri", "road_code", "road")
DONG: Final = ("dong_code", "sido", "sigungu", "emd", "ri")
LOT: Final = ("dong_code", "san", "lot_main", "lot_sub")
ID: Final = ("id_high", "id_low")
DAY: Final = "day"
REFUSED_SHOWN: Final = 20

_RNADDR: Final = {
    0: "id", 1: "dong_code", 2: "sido", 3: "sigungu", 4: "emd", 5: "ri", 6: "san", 7: "lot_main", 8: "lot_sub",
    9: "road_code", 10: "road", 11: "under", 12: "main", 13: "sub", 15: "admin", 16: "zipcode", 18: "effective",
    19: "apartment", 20: "reason", 21: "register_name", 22: "building_name",
}  # fmt: skip
_JIBUN: Final = {
    0: "id", 1: "dong_code", 2: "sido", 3: "sigungu", 4: "emd", 5: "ri", 6: "san", 7: "lot_main", 8: "lot_sub",
    13: "reason",
}  # fmt: skip
_POSTAL: Final = {
    0: "zipcode", 1: "sido", 3: "sigungu", 5: "town", 7: "road_code", 8: "road", 10: "under", 11: "main", 12: "sub",
    13: "id", 15: "building_name", 16: "dong_code", 17: "emd", 18: "ri", 19: "admin", 20: "san", 21: "lot_main",
    23: "lot_sub",
}  # fmt: skip
_LAYOUTS: Final[dict[Kind, dict[int, str]]] = {
    "buildings": _RNADDR,
    "changes": _RNADDR,
    "lots": _JIBUN,
    "lot changes": _JIBUN,
    "postal": _POSTAL,
}
_BELOW_DISTRICT: Final = 10**8  # id_high // this = code of the building's district (five digits)
_NO_DATA: Final = b"no data"
_NEITHER_BAR_NOR_END: Final = bytes(byte for byte in range(256) if byte not in b"|\n")
_REFUSED_SHARE: Final = 100
_REFUSED_ALWAYS: Final = 10


@dataclass(slots=True)
class Content:
    """Rows of all address files; they refer to streets, dongs and administrative dongs by number or code."""

    rows: dict[Kind, list[pl.DataFrame]] = field(default_factory=dict)  # those of changes have DAY: number of the file
    streets: list[pl.DataFrame] = field(default_factory=list)
    dongs: list[pl.DataFrame] = field(default_factory=list)
    lot_districts: list[pl.DataFrame] = field(default_factory=list)
    admins: list[pl.DataFrame] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)  # rows read, by kind of file
    refused: dict[str, int] = field(default_factory=dict)  # unusable rows, by problem
    examples: list[str] = field(default_factory=list)
    street_count: int = 0

    def add(self, source: SourceFile, number: int, advance: Callable[[int], None]) -> None:
        """Read a file, identified by ``number``; ``advance`` is called with the size of each block in bytes."""
        frames, rows = [], 0
        refused, examples = Counter[str](), list[dict[str, object]]()
        for first, text, frame in _frames(source):
            rows += frame.height
            judged = frame.with_row_index("line", first).with_columns(_problem(source.kind).alias("problem"))
            wrong = judged.filter(pl.col("problem").is_not_null())
            refused.update(dict(wrong["problem"].value_counts(sort=True).iter_rows()))
            # only some, to bound the memory
            examples += wrong.head(REFUSED_SHOWN - len(examples)).rows(named=True)
            good = judged.filter(pl.col("problem").is_null()).drop("problem", "line")
            if "effective" in good.columns:
                with suppress(ValueError):
                    newest = datetime.strptime(str(good["effective"].max()), "%Y%m%d").date()
                    source.newest = max(source.newest or newest, newest)
            frames.append(self._compact(source, number, good.with_columns(_numbers(frame.columns))))
            advance(len(text))
        if not rows and source.kind in ("buildings", "postal"):
            raise GazetteerError(SOURCE_FILE_EMPTY, name=source.name)
        if (bad := refused.total()) > max(_REFUSED_ALWAYS, rows // _REFUSED_SHARE):
            example = _example(examples[0])
            raise GazetteerError(SOURCE_ROWS_UNUSABLE, name=source.name, bad=bad, rows=rows, example=example)
        for problem, count in refused.items():
            self.refused[problem] = self.refused.get(problem, 0) + count
        shown = examples[: REFUSED_SHOWN - len(self.examples)]
        self.examples += [f"{source.name}, {_example(row)}" for row in shown]
        self.read[source.kind] = self.read.get(source.kind, 0) + rows
        self.rows.setdefault(source.kind, []).extend(frames)

    def _compact(self, source: SourceFile, number: int, frame: pl.DataFrame) -> pl.DataFrame:
        if source.kind in ("lots", "lot changes"):
            self.dongs.append(frame.select(DONG).unique(maintain_order=True))
            districts = frame.select(district=pl.col("id_high") // _BELOW_DISTRICT).unique(maintain_order=True)
            self.lot_districts.append(districts.with_columns(source=pl.lit(number, pl.UInt16)))
            return frame.select(*ID, *LOT, "reason")
        streets = frame.select(STREET).unique(maintain_order=True).with_row_index("street", self.street_count)
        frame = frame.join(streets, on=list(STREET), how="left", maintain_order="left")
        self.street_count += streets.height
        self.streets.append(streets.with_columns(pl.lit(number, pl.UInt16).alias("source")))
        admins = frame.select(*DONG, "admin").filter(pl.col("admin") != "").unique(maintain_order=True)
        self.admins.append(admins)
        of_change = [pl.col("dong_code"), pl.lit(number, pl.UInt16).alias(DAY)] if source.kind == "changes" else []
        building = ("street", *ID, "under", "main", "sub", "zipcode", "apartment", "name")
        return frame.select(*building, *LOT[1:], "reason", *of_change)


def _frames(source: SourceFile) -> Iterator[tuple[int, bytes, pl.DataFrame]]:
    layout = _LAYOUTS[source.kind]
    wanted = COLUMNS[source.kind]
    for first, text in lines(source):
        if first == 1 and text[:16].strip().lower() == _NO_DATA:
            return
        if first == 1 and source.kind == "postal":
            text = text[text.index(b"\n") + 1 :]
            first += 1
        if not text.strip():
            continue
        text = text.rstrip(b"\n") + b"\n"
        if text.translate(None, _NEITHER_BAR_NOR_END) != (b"|" * (wanted - 1) + b"\n") * text.count(b"\n"):
            raise _explain_ragged(source, text, first, wanted)
        try:
            frame = pl.read_csv(
                text,
                separator="|",
                has_header=False,
                quote_char=None,
                infer_schema=False,
                schema={f"column_{place + 1}": pl.String for place in range(wanted)},
                columns=[f"column_{place + 1}" for place in sorted(layout)],
            )
        except pl.exceptions.PolarsError as error:
            raise _explain_ragged(source, text, first, wanted) from error
        frame.columns = [layout[place] for place in sorted(layout)]
        yield first, text, frame


def _explain_ragged(source: SourceFile, text: bytes, first: int, wanted: int) -> GazetteerError:
    rows = pl.DataFrame({"text": text.decode().rstrip("\n").split("\n")})
    rows = rows.with_columns(columns=pl.col("text").str.count_matches("|", literal=True) + 1)
    place = int((rows["columns"] != wanted).arg_max() or 0)
    line, columns = rows.row(place)
    remedy = Phrase("it is damaged, or not the official file: download it again")
    if place == rows.height - 1 and 1 < columns < wanted:
        remedy = Phrase("its last line is cut off, so the file is truncated: download it again")
    return GazetteerError(
        COLUMN_COUNT_WRONG,
        name=source.name,
        first=first + place,
        columns=columns,
        wanted=wanted,
        line=line[:40],
        remedy=remedy,
    )


def _problem(kind: Kind) -> pl.Expr:
    tests = {
        "management number": _digits("id", 1, 26),
        "legal dong code": _digits("dong_code", 10, 10),
        gettext_noop("province"): pl.col("sido").is_not_null(),
        gettext_noop("town or dong"): pl.coalesce("emd", *(["town"] if kind == "postal" else [])).is_not_null(),
        "mountain sign": pl.col("san").fill_null("0").is_in(["0", "1", "2", "3"]),
        "lot number": _number("lot_main") & _number("lot_sub"),
    }
    if kind in ("buildings", "changes", "postal"):
        tests |= {
            gettext_noop("road name"): pl.col("road").is_not_null(),
            "road code": _digits("road_code", 12, 12),
            "underground sign": pl.col("under").is_in(["0", "1", "2", "3"]),
            "building number": pl.col("main").is_not_null() & _number("main") & _number("sub"),
            "postal code": _digits("zipcode", 5, 5),
        }
    if kind != "postal":
        reasons = (*INSERT, *UPDATE, *([""] if kind in ("buildings", "lots") else DELETE))
        tests["known move reason"] = pl.col("reason").fill_null("").is_in(reasons)
    return first_code({problem: ~good.fill_null(False) for problem, good in tests.items()}, None)


_SHOWN: Final = {
    gettext_noop("management number"): ("id",),
    gettext_noop("legal dong code"): ("dong_code",),
    gettext_noop("mountain sign"): ("san",),
    gettext_noop("lot number"): ("lot_main", "lot_sub"),
    gettext_noop("road code"): ("road_code",),
    gettext_noop("underground sign"): ("under",),
    gettext_noop("building number"): ("main", "sub"),
    gettext_noop("postal code"): ("zipcode",),
    gettext_noop("known move reason"): ("reason",),
}


def _example(row: dict[str, object]) -> Phrase:
    problem = Phrase(str(row["problem"]))
    values = [str(row[name]) for name in _SHOWN.get(str(row["problem"]), ()) if row[name] is not None]
    said = Phrase("there is no {problem}", problem=problem)
    if values:
        said = Phrase("{value!r} is no {problem}", value="-".join(values)[:40], problem=problem)
    return Phrase("line {line:,}: {said}", line=row["line"], said=said)


def _digits(name: str, shortest: int, longest: int) -> pl.Expr:
    return pl.col(name).str.contains(f"^[0-9]{{{shortest},{longest}}}$")


def _number(name: str) -> pl.Expr:
    value = pl.col(name).fill_null("0")
    return value.cast(pl.UInt32, strict=False).lt(NUMBER_LIMIT) & ~value.str.starts_with("+")


def _numbers(columns: list[str]) -> list[pl.Expr]:
    small = dict.fromkeys(("san", "under", "reason"), pl.UInt8)
    large = dict.fromkeys(("lot_main", "lot_sub", "main", "sub", "zipcode"), pl.UInt32)
    made = [
        pl.col("id").str.slice(0, 13).cast(pl.UInt64).alias("id_high"),
        pl.col("id").str.slice(13).replace("", "0").cast(pl.UInt64).alias("id_low"),
        *(pl.col(name).fill_null("") for name in ("sigungu", "ri", "admin") if name in columns),
        *(pl.col(name).fill_null("0").cast(dtype) for name, dtype in (small | large).items() if name in columns),
        *(pl.col(name).cast(pl.UInt64) for name in ("dong_code", "road_code") if name in columns),
    ]
    if "reason" not in columns:
        made.append(pl.lit(0, pl.UInt8).alias("reason"))
    if "town" in columns:  # 읍 and 면 in files of the post office
        made.append(pl.coalesce("town", "emd").alias("emd"))
    if "building_name" in columns:
        register = pl.col("register_name") if "register_name" in columns else pl.lit(None, pl.String)
        made.append(pl.coalesce("building_name", register).alias("name"))
        apartment = (pl.col("apartment") == "1").fill_null(False) if "apartment" in columns else pl.lit(False)
        made.append(apartment.alias("apartment"))
    return made
