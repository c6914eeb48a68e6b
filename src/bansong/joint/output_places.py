"""Where the outputs of several inputs go: each to a place of its own, which can be written, and is no input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bansong.cloud.remote_files import look_at_output
from bansong.cloud.remote_path import RemotePath, as_path, is_remote
from bansong.errors import OutputError, Problem, UsageError
from bansong.options import WriteOptions
from bansong.run.output_layout import Target, choose_target
from bansong.run.side_files import SideFiles
from bansong.schema import ADDED_COLUMNS
from bansong.tables import Format, Table
from bansong.tables.compression import unpacked_name
from bansong.tables.detect import EXTENSIONS, default_output
from bansong.tables.input_files import InputFile, is_one_file
from bansong.tables.standard_streams import STREAM

OUTPUT_NOT_FOLDER: Final = Problem(
    "outputs.output_not_folder",
    "{output}: is the name of a file, and each of several inputs has an output of its own; name a folder, "
    "or end its name with a slash: {output}/",
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
class OutputPlaces:
    """Where outputs go: into ``folder`` under the inputs' relative names, as ``naming`` says, or beside the inputs."""

    write: WriteOptions
    folder: Path | None = None
    naming: Callable[[InputFile], Path] | None = None

    @classmethod
    def of(cls, write: WriteOptions, output: str | Path | None, inputs: Sequence[str | Path]) -> OutputPlaces:
        """Return where outputs go that were given as ``output``: a folder, or of one file with several sheets, a file.

        Raises :class:`UsageError` where several inputs would go to one file, or to standard output.
        """
        if output is None:
            return cls(write)
        place = as_path(output)
        if place == STREAM:
            raise UsageError(STDOUT_TAKES_ONE)
        if not _is_file_name(output, place):
            return cls(write, place)
        if len(inputs) == 1 and is_one_file(inputs[0]):
            return cls(write, naming=lambda _: place)
        raise UsageError(OUTPUT_NOT_FOLDER, output=place)

    def target_of(self, file: InputFile, table: Table, *, several: bool) -> Target:
        """Return where the output of an input goes; ``several``: whether it is one of several sheets of a workbook.

        Raises :class:`UsageError`, :class:`OutputError` for what cannot be.
        """
        self._refuse_partition(file)
        target = choose_target(
            file.path,
            table.format,
            self._output_of(file, table.format),
            self.write.in_place,
            encoding=self.write.output_encoding,
            backup=self.write.backup,
            summary=self.write.summary,
        )
        if several:
            self._refuse_sheets(file, table, target)
        _check_writable(target.path)
        return target

    def sides_of(self, target: Target) -> SideFiles:
        """Return the files that are written beside an output; the list of letters is one of all outputs."""
        return SideFiles.of(replace(self.write, letters=None, letter_cost=None), target, None)

    def refuse_shared(self, files: Sequence[InputFile], targets: Iterable[tuple[InputFile, Target]]) -> None:
        """Raise :class:`UsageError` where two inputs would be written to one file, or an input would be replaced."""
        read = {_same_as(file.path): file.path for file in files}
        taken: dict[str, Path] = {}
        for file, target in targets:
            for output in filter(None, (target.path, *self.sides_of(target).paths_by_use().values())):
                other = taken.setdefault(_same_as(output), file.path)
                if other != file.path:
                    raise UsageError(OUTPUT_SHARED, output=output, path=file.path, other=other)
                if not self.write.in_place and _same_as(output) in read:
                    raise UsageError(OUTPUT_IS_INPUT, output=output, path=file.path)

    def _output_of(self, file: InputFile, format: Format) -> Path | None:
        """The path of an output; ``None`` for the input itself, or what it is called beside it."""
        if self.naming is not None:
            return self.naming(file)
        if self.folder is not None:
            return self.folder / default_output(file.relative, format, mark="")
        if file.partitions and not self.write.in_place:  # beside the input it would be one more file of the dataset
            dataset = file.dataset if file.dataset.name not in ("", "..") else file.dataset.resolve()
            beside = dataset.with_name(f"{dataset.name}.enriched")
            return beside / default_output(file.path.relative_to(file.dataset), format, mark="")
        return None

    def _refuse_partition(self, file: InputFile) -> None:
        ours = {f"{self.write.prefix}{name}".casefold() for name in ADDED_COLUMNS}
        if taken := [column for column in file.partitions if column.casefold() in ours]:
            raise UsageError(PARTITION_COLUMN_CLASHES, path=file.path, column=taken[0])

    def _refuse_sheets(self, file: InputFile, table: Table, target: Target) -> None:
        anew = table.source is None or self.write.select
        if not (table.format.can.splices_sheets and target.format is table.format) or anew:
            raise UsageError(SHEETS_NEED_WORKBOOK, path=file.path)
        if self.sides_of(target).wanted:
            raise UsageError(SPLIT_NEEDS_SHEET, path=file.path)


def _is_file_name(output: str | Path, place: Path) -> bool:
    """Whether an output that was given is the name of a file, and not that of a folder."""
    named = unpacked_name(place).suffix.lower() in EXTENSIONS
    if isinstance(place, RemotePath):
        return named and not place.is_folder
    return named and not os.fspath(output).endswith(("/", os.sep)) and not place.is_dir()


def _check_writable(output: Path) -> None:
    """Raise :class:`OutputError` where an output cannot be: known before anything is bought."""
    if isinstance(output, RemotePath):
        look_at_output(output)
        return
    there = next(folder for folder in output.absolute().parents if os.path.lexists(folder))
    if not there.is_dir():
        raise OutputError(FOLDER_IS_FILE, path=there)
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(FOLDER_UNWRITABLE, path=there)


def _same_as(path: Path) -> str:
    """The same text for the same file, also where the file system knows no difference of case; buckets do."""
    return str(path) if is_remote(path) else os.path.realpath(path).casefold()
