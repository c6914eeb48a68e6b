"""Choose the output of each input, check that it can be written, and publish it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Final

from bansong.base.errors import OutputError, Problem, UsageError
from bansong.base.files import RemotePath, as_path, is_remote, private_folder, sha256_of
from bansong.base.messages import LANGS
from bansong.base.publish import backed_up, find_foreign, publish_file
from bansong.base.remote import InputData, look_at_output
from bansong.base.schema import ADDED_COLUMNS
from bansong.engine.address.gazetteer import Gazetteer
from bansong.run.columns import Target, choose_stream, choose_target
from bansong.run.options import WriteOptions
from bansong.run.side_files import SideFiles, split_paths
from bansong.tables.detect import EXTENSIONS, STREAM, default_output
from bansong.tables.inputs import InputFile, is_one_file
from bansong.tables.streams import unpacked_name
from bansong.tables.table import Format, Table

OUTPUT_NOT_FOLDER: Final = Problem(
    "outputs.output_not_folder",
    "{output}: is the name of a file, and each of several inputs has an output of its own; `merge=True` "
    "writes one file of all; else name a folder, or end its name with a slash: {output}/",
)
FOLDER_IS_FILE: Final = Problem(
    "outputs.folder_is_file", "{path}: is a file, and outputs go into a folder; name another"
)
FOLDER_UNWRITABLE: Final = Problem(
    "outputs.folder_unwritable", "{path}: nothing can be written there; check who may write"
)
STDOUT_TAKES_ONE: Final = Problem(
    "outputs.stdout_takes_one",
    "standard output takes one table; of several inputs or sheets, name the folder or the file",
)
PARTITION_COLUMN_CLASHES: Final = Problem(
    "outputs.partition_column_clashes",
    "{path}: the dataset is partitioned by {column!r}, which is the name of an added column; give `prefix=`",
)
SHEETS_NEED_WORKBOOK: Final = Problem(
    "outputs.sheets_need_workbook",
    "{path}: several sheets go back into the .xlsx or .xlsm workbook they came from, with all their "
    "columns and a header; name one sheet, or let input and output be .xlsx",
)
SPLIT_NEEDS_SHEET: Final = Problem(
    "outputs.split_needs_sheet", "{path}: `split=` is for one sheet of a workbook; name it"
)
SPLIT_WITHOUT_OUTPUT: Final = Problem(
    "outputs.split_without_output", "`split=` writes files beside the output; name the output"
)
STDIN_IN_PLACE: Final = Problem("outputs.stdin_in_place", "`in_place=True` replaces a file, and standard input is none")
OUTPUT_SHARED: Final = Problem(
    "outputs.output_shared",
    "{output}: would be the output of {path} and of {other}; rename one of them, enrich them "
    "into different folders, or give a folder above both with `/**/*`, so that outputs keep "
    "the folders of their inputs",
)
OUTPUT_IS_INPUT: Final = Problem(
    "outputs.output_is_input",
    "{output}: is an input, and would be replaced by the output of {path}; give another folder",
)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where outputs go: below ``folder`` under the inputs' relative names, to ``file``, or beside the inputs."""

    write: WriteOptions
    folder: Path | None = None
    file: str | Path | None = None
    # one input was given, and not in a list: the run has one table, which may use standard input and output, and may
    # have a page, a review and a list of letters
    alone: bool = False

    @classmethod
    def of(cls, write: WriteOptions, output: str | Path | None, inputs: Sequence[str | Path]) -> Outputs:
        """Return the outputs of a list of inputs; ``output`` is a folder, or a file if the only input is a file."""
        if output is None:
            return cls(write)
        place = as_path(output)
        if place == STREAM:
            raise UsageError(STDOUT_TAKES_ONE)
        if not _is_file_name(output, place):
            return cls(write, place)
        if len(inputs) == 1 and is_one_file(inputs[0]):
            return cls(write, file=place)
        raise UsageError(OUTPUT_NOT_FOLDER, output=place)

    @property
    def paths(self) -> list[Path]:
        """Folder, or file with the files beside it, that a folder of inputs may hold from an earlier run."""
        write, paths = self.write, [self.folder] if self.folder is not None else []
        if write.merge and self.file is not None:
            paths += [as_path(one) for one in (self.file, write.letters, write.review) if one is not None]
            paths += [path for lang in LANGS if write.split for path in split_paths(paths[0], lang).values()]
        return paths

    def target_of(self, file: InputFile, table: Table, resources: ExitStack, *, several: bool) -> Target:
        """Choose the output of a table, which may be one of ``several`` sheets; raise if it cannot be written."""
        write = self.write
        options: dict[str, Any] = {"encoding": write.output_encoding, "backup": write.backup, "summary": write.summary}
        if self.alone and self._is_streamed(file):
            return choose_stream(file.path, table.format, resources.enter_context(private_folder()), **options)
        ours = {f"{self.write.prefix}{name}".casefold() for name in ADDED_COLUMNS}
        if not self.alone and (taken := [column for column in file.partitions if column.casefold() in ours]):
            raise UsageError(PARTITION_COLUMN_CLASHES, path=file.path, column=taken[0])
        output = self.file if self.alone else self._output_of(file, table.format)
        target = choose_target(file.path, table.format, output, write.in_place, **options)
        if several:
            self._refuse_sheets(file, table, target)
        if not self.alone:
            _check_writable(target.path)
        return target

    def sides_of(self, target: Target, gazetteer: Gazetteer | None) -> SideFiles:
        """Return the files beside an output, for one of several inputs without letters and page: all share one."""
        write = self.write
        if not self.alone:
            write = replace(write, letters=None, letter_cost=None, report=None, unmask=False)
        return SideFiles.of(write, target, gazetteer)

    def refuse_shared(self, files: Sequence[InputFile], outputs: Iterable[tuple[InputFile, Target, SideFiles]]) -> None:
        """Raise :class:`UsageError` if two inputs would be written to one file, or an input would be replaced."""
        read = {_same_as(file.path): file.path for file in files}
        taken: dict[str, Path] = {}
        for file, target, sides in outputs:
            for output in filter(None, (target.path, *sides.paths_by_use().values())):
                other = taken.setdefault(_same_as(output), file.path)
                if other != file.path:
                    raise UsageError(OUTPUT_SHARED, output=output, path=file.path, other=other)
                if not self.write.in_place and _same_as(output) in read:
                    raise UsageError(OUTPUT_IS_INPUT, output=output, path=file.path)

    def _is_streamed(self, file: InputFile) -> bool:
        if self.file is not None and Path(self.file) != STREAM:
            return False
        if self.file is None and file.path != STREAM:
            return False
        if self.write.split:
            raise UsageError(SPLIT_WITHOUT_OUTPUT)
        if self.write.in_place:
            raise UsageError(STDIN_IN_PLACE)
        return True

    def _output_of(self, file: InputFile, format: Format) -> str | Path | None:
        if self.file is not None:
            return self.file
        if self.folder is not None:
            return self.folder / default_output(file.relative, format, mark="")
        if file.partitions and not self.write.in_place:  # beside the input it would join the dataset
            dataset = file.dataset if file.dataset.name not in ("", "..") else file.dataset.resolve()
            beside = dataset.with_name(f"{dataset.name}.enriched")
            return beside / default_output(file.path.relative_to(file.dataset), format, mark="")
        return None

    def _refuse_sheets(self, file: InputFile, table: Table, target: Target) -> None:
        anew = table.source is None or self.write.select
        if not (table.format.can.splices_sheets and target.format is table.format) or anew:
            raise UsageError(SHEETS_NEED_WORKBOOK, path=file.path)
        if self.sides_of(target, None).wanted:
            raise UsageError(SPLIT_NEEDS_SHEET, path=file.path)


@dataclass(frozen=True, slots=True)
class Unpublished:
    """An output and the files beside it, before they are published."""

    target: Target
    temporary: Path  # file that becomes the output
    sides: SideFiles
    sha256: Future[str]
    pool: ThreadPoolExecutor  # one thread that works beside the query
    backups: ExitStack  # removes backups of files that were not replaced
    in_place: bool

    def find_foreign(self) -> Future[list[Path]]:
        """Find, in a thread, files to be replaced that people have edited; in place, the output has a backup anyway."""
        files = {path: finished for path, finished in self.sides.at.items() if path != self.sides.page}
        if not (self.target.private or self.in_place):
            files[self.target.path] = self.temporary
        return self.pool.submit(find_foreign, files)

    def back_up(self, paths: Iterable[Path], record: Path | None) -> dict[Path, Path]:
        """Copy these files and, if asked for, the output to be replaced; return the copies by path."""
        kept = dict.fromkeys([*([self.target.path] if self.target.backup else []), *paths])
        apart_from = record or self.target.path
        return {path: self.backups.enter_context(backed_up(path, apart_from)) for path in kept}


@contextmanager
def publish_output(target: Target, sides: SideFiles, data: InputData, *, in_place: bool) -> Iterator[Unpublished]:
    """Yield an output to be finished, which is published with the files beside it if the block raises no error."""
    # the contexts end from the last to the first, which is the order of publication
    version = data.version if in_place else None  # refuses to replace another version than the one that was read
    with (
        ExitStack() as backups,  # ends after the output: only then it is known whether the old file was replaced
        publish_file(target.path, version) as temporary,
        ExitStack() as beside,  # published before the output: if one of these fails, the output stays as it was
        ThreadPoolExecutor(1) as pool,
        ExitStack() as hashing,  # ends before the pool, so that a failed run does not wait for the hash
    ):
        stop = Event()
        hashing.callback(stop.set)
        sha256 = pool.submit(sha256_of, data.path, stop.is_set)  # needs no Python lock, so it runs beside the query
        yield Unpublished(target, temporary, sides.reserve(beside), sha256, pool, backups, in_place)


def _is_file_name(output: str | Path, place: Path) -> bool:
    named = unpacked_name(place).suffix.lower() in EXTENSIONS
    if isinstance(place, RemotePath):
        return named and not place.is_folder
    return named and not os.fspath(output).endswith(("/", os.sep)) and not place.is_dir()


def _check_writable(output: Path) -> None:
    if isinstance(output, RemotePath):
        look_at_output(output)
        return
    there = next(folder for folder in output.absolute().parents if os.path.lexists(folder))
    if not there.is_dir():
        raise OutputError(FOLDER_IS_FILE, path=there)
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(FOLDER_UNWRITABLE, path=there)


def _same_as(path: Path) -> str:
    # local file systems may ignore case, buckets do not
    return str(path) if is_remote(path) else os.path.realpath(path).casefold()
