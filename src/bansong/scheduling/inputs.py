"""The files of a job, their outputs, and whether one is unchanged since its last verification."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bansong._version import __version__
from bansong.cloud.remote_files import fetch_file, look_at_input
from bansong.cloud.remote_path import RemotePath, as_path, describe_given, is_remote
from bansong.errors import InputError, Problem, UsageError
from bansong.labels.label_store import LabelStore
from bansong.manifest import sha256_of
from bansong.models.model_store import resolve_model
from bansong.options import StatusOptions
from bansong.scheduling.job_file import InputPart, JobFile
from bansong.scheduling.job_place import locate, options_in
from bansong.scheduling.output_files import about_file
from bansong.scheduling.output_names import OutputNames
from bansong.tables.input_files import InputFile, find_files, refuse_alike
from bansong.translation import gettext

COPY_NAME_MISMATCHED: Final = Problem(
    "jobs.copy_name_mismatched", "{latest}: is to be a copy of {output}, so its name must end with {suffix!r}, too"
)
INPUT_MISSING: Final = Problem("jobs.input_missing", "{path}: does not exist; check `path` of the job file's inputs")
SIDE_FILE_CLASHES: Final = Problem(
    "jobs.side_file_clashes", "{path}: is an input, or the output of one, and would be written besides; name another"
)
OUTPUT_SHARED: Final = Problem(
    "jobs.output_shared",
    "{output}: would be written from {path} and is {other}'s; put {{name}} into the pattern, and "
    "{{folder}} where files of several folders have one name",
)
OUTPUT_IS_INPUT: Final = Problem(
    "jobs.output_is_input",
    "{output}: is an input, and would be replaced by the output of {path}; write outputs into "
    "another folder, or, if an earlier run wrote it, move it away",
)

_DIGITS: Final = re.compile(r"[0-9]+")
_DAY: Final = re.compile(
    r"(?<![0-9])20[0-9]{2}[-._ ]?(0[1-9]|1[0-2])"
    r"|(?<![0-9])[0-9]{2}[-._ ]?(0[1-9]|1[0-2])[-._ ]?(0[1-9]|[12][0-9]|3[01])(?![0-9])"
    r"|[0-9]월"
)
"""Days and months in names: 20261127, 2026-11, 26.11.27, 11월 27일."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """One file of a job with its output; ``listed``: found in a folder or glob, not named in the job file."""

    path: Path
    part: InputPart
    output: Path
    latest: Path | None
    listed: bool = False


def find_inputs(
    job: JobFile, folder: Path, names: OutputNames, written: Collection[str], changes: Path | None = None
) -> tuple[list[JobInput], dict[str, str]]:
    """Return the files of a job in the order of its job file, and a sentence for each missing one.

    ``written``: the job's outputs, which are no inputs; nor are other files named in the job file. Raises
    :class:`UsageError` if two inputs share an output, or an input would be replaced by an output or ``changes``.
    """
    used = {str(path) for path in (*_side_files(job, folder), *_read_files(job, folder))}
    found: dict[Path, JobInput] = {}
    missing: dict[str, str] = {}
    for part in job.inputs:
        try:
            named = find_files(part.path, folder)
            if not named[0].listed and not is_remote(named[0].path) and not named[0].path.exists():
                raise InputError(INPUT_MISSING, path=named[0].path)
        except InputError as error:
            missing[describe_given(part.path)] = str(error)
            continue
        refuse_alike([*found, *(file.path for file in named)])
        for file in named:
            path = file.path.resolve()
            if not _is_text(path):
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                missing[shown] = gettext(
                    "{shown}: the name is not UTF-8, so it cannot be remembered; rename the file", shown=shown
                )
            elif str(path) not in written and path not in found and not (file.listed and str(path) in used):
                found[path] = _job_input(job, names, file, part)
    _refuse_one_output(found.values(), [*_side_files(job, folder), *([changes] if changes else [])])
    return list(found.values()), missing


def find_predecessors(paths: set[str], known: Mapping[str, object]) -> dict[str, str]:
    """Return for unknown paths the known one that each continues: the newest with other digits in its name.

    That one is no input any more, or both names have a day or month: lists of several branches do not continue each
    other.
    """
    found: dict[str, str] = {}
    for path in paths - known.keys():
        series = [one for one in known if _DIGITS.sub("0", one) == _DIGITS.sub("0", path)]
        earlier = [one for one in series if one not in paths or _digits_of(one) < _digits_of(path)]
        newest = max(earlier, key=_digits_of, default=None)
        if newest is None:
            continue
        pairs = zip(as_path(newest).parts, as_path(path).parts, strict=False)
        if newest not in paths or any(one != two and _DAY.search(one) and _DAY.search(two) for one, two in pairs):
            found[path] = newest
    return found


def _digits_of(path: str) -> list[int]:
    return [int(digits) for digits in _DIGITS.findall(path)]


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _side_files(job: JobFile, folder: Path) -> list[Path]:
    """Return the files that a job writes beside its outputs."""
    return _locate_all(folder, job.notify.file, job.run.metrics)


def _locate_all(folder: Path, *names: str | None) -> list[Path]:
    return [path.resolve() for path in (locate(folder, name) for name in names) if path is not None]


def _read_files(job: JobFile, folder: Path) -> list[Path]:
    """Return the files that a job reads beside its inputs."""
    reference, engine, status = job.reference, job.engine, job.status
    references = (reference.registry, reference.gazetteer, reference.model)
    return _locate_all(folder, *references, engine.ledger, engine.key_file, status.key_file, status.store)


def _job_input(job: JobFile, names: OutputNames, file: InputFile, part: InputPart) -> JobInput:
    output = names.fill(job.output.path, file)
    latest = names.fill(job.output.latest, file) if job.output.latest else None
    if latest is not None and latest.suffix != output.suffix:
        raise UsageError(COPY_NAME_MISMATCHED, latest=latest, output=output, suffix=output.suffix)
    return JobInput(file.path.resolve(), part, output, latest, file.listed)


def _refuse_one_output(inputs: Collection[JobInput], others: Collection[Path]) -> None:
    taken: dict[Path, Path] = {}
    read = {one.path for one in inputs}
    for one in inputs:
        for output in filter(None, (one.output, one.latest)):
            other = taken.setdefault(output.resolve(), one.path)
            if other != one.path or output.resolve() == one.path:
                raise UsageError(OUTPUT_SHARED, output=output, path=one.path, other=other)
            if output.resolve() in read:
                raise UsageError(OUTPUT_IS_INPUT, output=output, path=one.path)
    for path in others:
        if path.resolve() in read or path.resolve() in taken:
            raise UsageError(SIDE_FILE_CLASHES, path=path)


def content_of(path: Path) -> str:
    """Return a key of an input's content: its SHA-256, or the version of an object, which is not read.

    Raises :class:`InputError`.
    """
    if isinstance(path, RemotePath) and (version := look_at_input(path)) is not None and version.label:
        return version.label
    with fetch_file(path) as data:
        return sha256_of(data.path)


def fingerprint(job: JobFile, one: JobInput, folder: Path, content: str) -> str:
    """Return a key of all that the answers of an input depend on: content, options, reference files.

    Reference files count by size and time of change.
    """
    digest = hashlib.sha256(content.encode())
    parts = (one.part, job.engine, job.status, job.reference, job.output, job.changes.key, job.lang, __version__)
    digest.update(msgspec.json.encode((*parts, is_asking(job, folder))))
    digest.update(resolve_model(locate(folder, job.reference.model)).version.encode())
    references = [locate(folder, name) for name in (job.reference.registry, job.reference.gazetteer)]
    labels = LabelStore(locate(folder, job.reference.labels)).folder
    read = [path for path in references if path is not None and path.exists()]
    for path in [*read, *(sorted(labels.glob("*")) if labels.is_dir() else ())]:
        digest.update(f"{path}\0{about_file(path)}".encode())
    return digest.hexdigest()


def is_asking(job: JobFile, folder: Path) -> bool:
    """Return whether the job asks the tax authority: ``auto`` does if there is a key."""
    return StatusOptions(**options_in(job.status, StatusOptions, folder)).is_asking
