"""Find and enrich the inputs of a job; copy its outputs and remove old ones."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from bansong._version import __version__
from bansong.base.cancel import CancelToken
from bansong.base.display import Progress
from bansong.base.errors import BansongError, InputError, OutputError, Problem, UsageError
from bansong.base.files import RemotePath, as_path, describe_given, is_remote, sha256_of
from bansong.base.key import ApiKey
from bansong.base.messages import describe_os_error, gettext
from bansong.base.options import ALL_SHEETS, ReadOptions, ServiceKeywords, ServiceOptions, StatusOptions, status_options
from bansong.base.publish import backed_up, find_foreign, make_folder, publish_file
from bansong.base.remote import fetch_file, look_at_input, look_at_object
from bansong.base.schema import Alert, seoul_day
from bansong.history.labels import LabelStore, read_history
from bansong.history.scorecards import resolve_model
from bansong.jobs.job_file import InputPart, JobFile, OutputNames
from bansong.jobs.state import AnswerRecorder, EarlierRows, locate, options_in
from bansong.run.accounting import kept_alert
from bansong.run.enrich import EngineRequest
from bansong.run.files_report import FilesReport
from bansong.run.options import LocalOptions, RunOptions, WriteOptions
from bansong.run.outputs import Outputs
from bansong.run.report import Report
from bansong.run.runner import Run
from bansong.run.survey import is_stray
from bansong.run.table import RunStart
from bansong.tables.inputs import InputFile, find_files, refuse_alike

MODE_NOT_SET: Final = Problem("jobs.mode_not_set", "{path}: its mode cannot be made {mode:o}: {strerror}; check `mode`")
OLD_FILE_STAYS: Final = Problem("jobs.old_file_stays", "{path}: is old and cannot be removed: {strerror}")

_DATED_NAME: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def copy_file(source: Path, target: Path, mode: int) -> tuple[Alert, ...]:
    """Copy a file atomically. Keep a backup of an existing copy that somebody has edited; return alerts about it."""
    make_folder(target.parent)
    with ExitStack() as backups, publish_file(target) as temporary, fetch_file(source) as data:
        shutil.copyfile(data.path, temporary)
        foreign = find_foreign({target: temporary})
        alerts = tuple(kept_alert(path, backups.enter_context(backed_up(path, path))) for path in foreign)
    set_mode(target, mode)
    return alerts


def set_mode(path: Path, mode: int) -> None:
    """Set the mode of a local output; raise :class:`OutputError`. Objects have the access of their bucket."""
    if is_remote(path):
        return
    try:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
    except OSError as error:
        raise OutputError(MODE_NOT_SET, path=path, mode=mode, strerror=describe_os_error(error)) from error


def remove_old_outputs(outputs: Iterable[Path], before: date) -> list[Path]:
    """Remove local outputs with a date in the name, if that and their mtime are before ``before``; return them."""
    gone: list[Path] = []
    for path in outputs:
        days = [day for day in map(_day_of, _DATED_NAME.findall(path.name)) if day is not None]
        if is_remote(path) or not days or max(days) >= before:  # buckets have rules for old objects
            continue
        try:
            # the day in the name may be a day of the list's
            if path.exists() and seoul_day(path.stat().st_mtime) >= before:
                continue
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(OLD_FILE_STAYS, path=path, strerror=describe_os_error(error)) from error
        gone.append(path)
    return gone


def _day_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def about_file(path: Path) -> str:
    """Return size and mtime of a file, or the version of an object, as text; empty if it is missing."""
    if isinstance(path, RemotePath):
        version = look_at_object(path)
        return (version and version.label) or ""
    try:
        about = path.stat()
    except OSError:
        return ""
    return f"{about.st_size} {about.st_mtime_ns}"


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
# days and months in names: 20261127, 2026-11, 26.11.27, 11월 27일
_DAY: Final = re.compile(
    r"(?<![0-9])20[0-9]{2}[-._ ]?(0[1-9]|1[0-2])"
    r"|(?<![0-9])[0-9]{2}[-._ ]?(0[1-9]|1[0-2])[-._ ]?(0[1-9]|[12][0-9]|3[01])(?![0-9])"
    r"|[0-9]월"
)


@dataclass(frozen=True, slots=True)
class JobInput:
    """One input file of a job, with its output; ``listed`` if it was found in a folder or by a pattern."""

    path: Path
    part: InputPart
    output: Path
    latest: Path | None
    listed: bool = False


def find_inputs(
    job: JobFile, folder: Path, names: OutputNames, written: Collection[str], changes: Path | None = None
) -> tuple[list[JobInput], dict[str, str]]:
    """Return a job's input files in the order of its job file, and a sentence about each missing one.

    ``written``: outputs of the job, which are no inputs. ``changes``: the file of changes that this run will write.
    """
    reference, engine, status = job.reference, job.engine, job.status
    references = (reference.registry, reference.gazetteer, reference.model)
    side_files = _locate_all(folder, job.notify.file, job.run.metrics)
    read = _locate_all(folder, *references, engine.ledger, engine.key_file, status.key_file, status.store)
    used = set(map(str, [*side_files, *read]))
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
    _refuse_one_output(found.values(), [*side_files, *([changes] if changes else [])])
    return list(found.values()), missing


def find_predecessors(paths: set[str], known: Mapping[str, object]) -> dict[str, str]:
    """Return for each new path its known predecessor: the newest path that differs only in digits, such as a date."""
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


def _locate_all(folder: Path, *names: str | None) -> list[Path]:
    return [path.resolve() for path in (locate(folder, name) for name in names) if path is not None]


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
    """Return the SHA-256 of an input's content; for an object its version, without reading it."""
    if isinstance(path, RemotePath) and (version := look_at_input(path)) is not None and version.label:
        return version.label
    with fetch_file(path) as data:
        return sha256_of(data.path)


def fingerprint(job: JobFile, one: JobInput, folder: Path, content: str) -> str:
    """Return a hash of all that an input's answers depend on. Reference files count by size and mtime."""
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
    """Whether a job asks the tax authority for statuses."""
    return StatusOptions(**options_in(job.status, StatusOptions, folder)).is_asking


KEY_VARIABLE_EMPTY: Final = Problem(
    "jobs.key_variable_empty", "the variable {key_env} holds no key; set it, or take `key_env` out of [engine]"
)


def enrich_input(
    job: JobFile,
    folder: Path,
    one: JobInput,
    budget: int | None,
    *,
    day: date,
    now: Callable[[], float],
    recorder: AnswerRecorder,
    earlier: EarlierRows,
    progress: Progress | None,
    cancel: CancelToken,
) -> Report | FilesReport:
    """Enrich one input with the options of its job file, buying at most ``budget`` lookups."""
    local = LocalOptions(**options_in(job.reference, LocalOptions, folder), lang=job.lang, today=day)
    engine = EngineRequest(job.engine.name, _service_keywords(job, folder, budget), local)
    known = read_history(**options_in(job.reference, RunOptions, folder))
    read = ReadOptions(**options_in(one.part, ReadOptions, folder))
    write = WriteOptions(**options_in(job.output, WriteOptions, folder))
    status = StatusOptions(**options_in(job.status, StatusOptions, folder))
    is_one_table = read.sheet is None or (isinstance(read.sheet, str) and read.sheet != ALL_SHEETS)
    return Run(
        files=[InputFile(one.path, one.path.parent)],
        label=str(one.path),
        engine=engine.open(known.history if known else None),
        read=read,
        outputs=Outputs(write, file=one.output, alone=is_one_table),
        start=RunStart.now(now),
        known=known,
        model=Path(local.model) if isinstance(local.model, str | Path) else None,
        status=status_options(status, None, engine.kind, given=False),
        progress=progress,
        cancel=cancel,
        observe=recorder.observe,
        inspect=earlier.refuse_loss,
    ).carry_out()


def is_stray_input(one: JobInput, folder: Path, error: BansongError) -> bool:
    """Return whether an input that was found in a folder or by a pattern failed because it holds no table."""
    return one.listed and is_stray(one.path, error, ReadOptions(**options_in(one.part, ReadOptions, folder)))


def _service_keywords(job: JobFile, folder: Path, budget: int | None) -> ServiceKeywords:
    options, variable = options_in(job.engine, ServiceOptions, folder), job.engine.key_env
    given = {name: value for name, value in options.items() if value is not None}
    if budget is not None:
        given["budget"] = budget
    if variable is not None:
        if not os.environ.get(variable):
            raise UsageError(KEY_VARIABLE_EMPTY, key_env=variable)
        given["api_key"] = ApiKey(os.environ[variable])
    return given  # type: ignore[return-value]
