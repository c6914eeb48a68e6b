"""Find the input files that names, globs, folders and datasets mean, without opening them."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.files import STORES, RemotePath, as_path, describe_given, path_on_disk
from bansong.base.messages import gettext, gettext_noop
from bansong.base.publish import same_file
from bansong.base.remote import is_there, list_files
from bansong.tables.detect import EXTENSIONS, STREAM
from bansong.tables.streams import unpacked_name, url_of

NO_TABLE_FILES: Final = Problem(
    "files.no_table_files", "{place}: no file with a table is there; check the name of the folder, or the pattern"
)
URLS_TOO_ALIKE: Final = Problem(
    "files.urls_too_alike",
    "{path}: several URLs differ only behind the `?`, and are not told apart; enrich them one by one",
)

INPUT_NOT_GIVEN: Final = Problem("inputs.input_not_given", "no input is given; name a file, a folder or a pattern")
STDIN_NOT_ALONE: Final = Problem(
    "inputs.stdin_not_alone", "standard input is one table: give `-` by itself, without other inputs and sheets"
)
NO_FILE_USABLE: Final = Problem("inputs.no_file_usable", "none of the files that were found is an input:\n  {reasons}")

_LABEL_LENGTH: Final = 200
_OF_FOLDERS: Final = frozenset(suffix for suffix, format in EXTENSIONS.items() if format.can.in_folders)
_NOT_MEANT: Final = (".", "~$")  # prefixes of hidden files and Excel's lock files
_BESIDE_DATA: Final = (*_NOT_MEANT, "_")  # in datasets also ``_SUCCESS``
_PARTITION: Final = re.compile(r"[^=/\\]+=.*")
# outputs: ``a.enriched.csv``, ``a.enriched.send.csv``, ``a.enriched.csv.gz``
_EARLIER: Final = re.compile(r".+\.enriched(\.[a-z_]+)?(\.[A-Za-z0-9]+){1,2}")
_BACKUP: Final = re.compile(r".+\.bak[0-9]*")


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file, given by name or found by a folder or pattern."""

    path: Path
    base: Path  # folder to which `relative` refers, as in the folder of outputs
    listed: bool = False  # found by a folder or pattern

    @property
    def relative(self) -> Path:
        return self.path.relative_to(self.base)

    @property
    def partitions(self) -> tuple[str, ...]:
        """Columns in folder names: ``country`` for ``country=KR/part-0.parquet``."""
        return tuple(part.partition("=")[0] for part in self.relative.parts[:-1] if _PARTITION.fullmatch(part))

    @property
    def dataset(self) -> Path:
        """The folder of the partitioned dataset."""
        parts = self.relative.parts[:-1]
        above = next((place for place, part in enumerate(parts) if _PARTITION.fullmatch(part)), 0)
        return self.base.joinpath(*parts[:above])


def collect_inputs(
    given: Sequence[str | Path], outputs: Sequence[Path], read_besides: Sequence[Path]
) -> tuple[list[InputFile], tuple[str, ...]]:
    """Return the input files, each once, and notes on other files in the given folders; ``outputs`` are none."""
    if not given:
        raise UsageError(INPUT_NOT_GIVEN)
    if any(Path(one) == STREAM for one in given):
        raise UsageError(STDIN_NOT_ALONE)
    files, again = _each_once([file for one in given for file in find_files(one)])
    same = gettext_noop("{path}: is the same file as {other}, and is enriched once")
    notes = [gettext(same, path=path, other=other) for path, other in again.items()]
    reasons = [_why_passed_over(file, outputs, read_besides) for file in files]
    kept = [file for file, why in zip(files, reasons, strict=True) if why is None]
    notes += filter(None, reasons)
    if not kept:
        raise InputError(NO_FILE_USABLE, reasons="\n  ".join(notes[:5]))
    return kept, tuple(notes)


def label_inputs(given: Sequence[str | Path]) -> str:
    """Return the name of a list of inputs for the ledger; a long name is cut and gets a hash."""
    label = " ".join(map(describe_given, given))
    if len(label) <= _LABEL_LENGTH:
        return label
    digest = hashlib.sha256(label.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{label[:_LABEL_LENGTH]}… ({len(given):,}, {digest})"


def is_one_file(given: str | Path) -> bool:
    """Whether an input names a single file, and no folder or pattern."""
    path = as_path(given)
    if isinstance(path, RemotePath):
        return not path.is_folder and bool(path.key) and (path.scheme not in STORES or not glob.has_magic(str(path)))
    return not os.path.isdir(path) and (os.path.exists(path) or not glob.has_magic(str(given)))  # noqa: PTH110, PTH112


def find_files(given: str | Path, folder: Path = Path()) -> list[InputFile]:
    """Return the files that one name, folder or pattern means, sorted; raise :class:`InputError` without any."""
    place = path_on_disk(folder / _expand_home(as_path(given)))
    if isinstance(place, RemotePath):
        return _remote_files(place)
    if os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        found = _files_in(place)
    elif is_one_file(place) or url_of(Path(given)):  # checked before patterns, since a name may have brackets
        return [_below_partitions(InputFile(place, place.parent))]
    else:
        found = _matches(str(given), folder)
    return _in_order(place, found)


def _expand_home(path: Path) -> Path:
    with suppress(RuntimeError):  # `~$a.xlsx` is no home folder
        return path.expanduser()
    return path


def _in_order(place: Path, found: Iterable[InputFile]) -> list[InputFile]:
    files = sorted(map(_below_partitions, found), key=lambda one: one.path)
    if not files:
        raise InputError(NO_TABLE_FILES, place=place)
    return files


def _each_once(given: Sequence[InputFile]) -> tuple[list[InputFile], dict[Path, Path]]:
    """Return each file once, even if links lead to it, and a mapping of the omitted paths to the kept ones."""
    kept: dict[str, InputFile] = {}
    again: dict[Path, Path] = {}
    refuse_alike(one.path for one in given)
    for one in given:
        identity = one.path.identity if isinstance(one.path, RemotePath) else os.path.realpath(one.path)
        first = kept.setdefault(identity, one)
        if first is one:
            continue
        if first.listed and not one.listed:
            kept[identity] = InputFile(first.path, first.base)
        if first.path != one.path:
            again[one.path] = first.path
    return list(kept.values()), again


def refuse_alike(paths: Iterable[Path]) -> None:
    """Raise :class:`UsageError` for URLs that differ only in parts that are never shown, as outputs would collide."""
    shown: dict[str, str] = {}
    for path in paths:
        if isinstance(path, RemotePath) and shown.setdefault(str(path), path.identity) != path.identity:
            raise UsageError(URLS_TOO_ALIKE, path=path)


def _why_passed_over(one: InputFile, outputs: Sequence[Path], read_besides: Sequence[Path]) -> str | None:
    if one.path.name.startswith("~$"):  # the shell expanded `*.xlsx`
        return gettext("{path}: is what Excel leaves beside an open workbook, and was passed over", path=one.path)
    if _EARLIER.fullmatch(one.path.name) or any(_is_in(one, path) for path in outputs):
        return gettext("{path}: is the output of an earlier run, and was passed over", path=one.path)
    if one.listed and _BACKUP.fullmatch(one.path.name):
        return gettext("{path}: is a backup of an earlier run, and was passed over", path=one.path)
    if one.listed and any(same_file(one.path, path) for path in read_besides):
        return gettext("{path}: is read by the run for something else, and was passed over", path=one.path)
    return None


def _is_in(one: InputFile, output: Path) -> bool:
    # ``output``: a folder or a file
    if not one.listed:
        return False
    whole, base = output.resolve(), one.base.resolve()
    return whole != base and one.path.resolve().is_relative_to(whole) and whole.is_relative_to(base)


def _files_in(folder: Path) -> list[InputFile]:
    found, below = list[InputFile](), list[Path]()
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if entry.is_dir():
                below += [path] if _PARTITION.fullmatch(entry.name) else []
            elif _is_table(path) and not entry.name.startswith(_NOT_MEANT):
                found.append(InputFile(path, folder, listed=True))
    if not below:
        return found
    parts = [InputFile(one.path, folder, listed=True) for path in below for one in _files_in(path)]
    return [one for one in (*found, *parts) if not one.path.name.startswith(_BESIDE_DATA)]


def _remote_files(given: RemotePath) -> list[InputFile]:
    if is_one_file(given) or (not given.is_folder and given.key and is_there(given)):
        return [_below_partitions(InputFile(given, given.parent))]
    if not glob.has_magic(str(given)):
        return _in_order(given, _tables_in(given, given, list_files(given)))
    fixed = next(place for place, part in enumerate(given.parts) if glob.has_magic(part))
    base, wanted = RemotePath(*given.parts[:fixed]), given.parts[fixed:]
    found, folders = list[InputFile](), dict[RemotePath, list[RemotePath]]()
    for path in list_files(base):
        if _is_meant(path.parts[fixed:], wanted):
            found += [] if given.is_folder or path.name.startswith(_NOT_MEANT) else [InputFile(path, base, listed=True)]
        elif "**" not in wanted and _is_meant(path.parts[fixed : len(given.parts)], wanted):
            folders.setdefault(RemotePath(*path.parts[: len(given.parts)]), []).append(path)
    inside = [one for folder, paths in folders.items() for one in _tables_in(folder, base, paths)]
    return _in_order(given, [*found, *inside])


def _tables_in(folder: RemotePath, base: Path, below: Iterable[RemotePath]) -> list[InputFile]:
    depth = len(folder.parts)
    tables = [(path, path.parts[depth:-1]) for path in below if len(path.parts) > depth and _is_table(path)]
    partitioned = any(parts and all(map(_PARTITION.fullmatch, parts)) for _, parts in tables)
    beside = _BESIDE_DATA if partitioned else _NOT_MEANT
    meant = [path for path, parts in tables if all(map(_PARTITION.fullmatch, parts))]
    return [InputFile(path, base, listed=True) for path in meant if not path.name.startswith(beside)]


def _is_meant(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted or not parts:
        return not parts and all(part == "**" for part in wanted)
    hidden = parts[0].startswith(".")
    if wanted[0] == "**":
        return _is_meant(parts, wanted[1:]) or (not hidden and _is_meant(parts[1:], wanted))
    named = fnmatchcase(parts[0], wanted[0]) and (not hidden or wanted[0].startswith("."))
    return named and _is_meant(parts[1:], wanted[1:])


def _is_table(path: Path) -> bool:
    return unpacked_name(path).suffix.lower() in _OF_FOLDERS


def _matches(pattern: str, folder: Path) -> list[InputFile]:
    named = _expand_home(Path(pattern)).parts
    fixed = next(place for place, part in enumerate(named) if glob.has_magic(part))
    base = path_on_disk(folder / Path(*named[:fixed]))
    rest = str(Path(*named[fixed:]))
    spelled = {unicodedata.normalize(form, rest) for form in ("NFC", "NFD")}  # macOS decomposes Hangul
    patterns = [str(Path(glob.escape(str(base))) / one) for one in spelled]
    found = list[InputFile]()
    for path in {Path(match) for one in patterns for match in glob.iglob(one, recursive=True)}:  # noqa: PTH207 - `**/*` is files, too
        if path.is_dir():
            found += [InputFile(one.path, base, listed=True) for one in _files_in(path)] if "**" not in pattern else []
        elif not path.name.startswith(_NOT_MEANT):
            found.append(InputFile(path, base, listed=True))
    return found


def _below_partitions(one: InputFile) -> InputFile:
    base = one.base
    while _PARTITION.fullmatch(base.name):
        base = base.parent
    return one if base == one.base else InputFile(one.path, base, one.listed)
