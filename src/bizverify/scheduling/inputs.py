"""Which files a job reads, what they are written to, and whether one is the same as when it was verified last."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from glob import has_magic
from pathlib import Path
from string import Formatter
from typing import Final

import msgspec

from bizverify._version import __version__
from bizverify.errors import InputError, UsageError
from bizverify.labels.label_store import LabelStore
from bizverify.model_store import resolve_model
from bizverify.report import sha256_of
from bizverify.scheduling.job_file import InputPart, JobFile

_SUFFIXES: Final = frozenset(
    {".csv", ".tsv", ".txt", ".xlsx", ".xlsm", ".xls", ".xlsb", ".ods", ".json", ".jsonl", ".ndjson", ".parquet"}
)
"""Of a folder, the files that are read; what a glob or a name says is read whatever its name is."""
_PACKED: Final = frozenset({".gz", ".zst"})
_READ_ONLY: Final = {".xls": ".xlsx", ".xlsb": ".xlsx", ".ods": ".xlsx"}
"""Formats that are read and come back as another."""
_FIELDS: Final = frozenset({"name", "ext", "date", "job"})


@dataclass(frozen=True, slots=True)
class JobInput:
    """One file of a job: where it is, how it is read, what it is written to."""

    path: Path
    part: InputPart
    output: Path
    latest: Path | None


@dataclass(frozen=True, slots=True)
class OutputNames:
    """What outputs of a job are called on one day; see :class:`bizverify.scheduling.job_file.OutputPart`."""

    folder: Path
    job: str
    day: date

    def fill(self, pattern: str, input: Path | None = None) -> Path:
        """Return the path of a pattern; raise :class:`UsageError` for a field that there is not."""
        fields = {name for _, name, _, _ in Formatter().parse(pattern) if name is not None}
        known = _FIELDS if input is not None else _FIELDS - {"name", "ext"}
        if unknown := sorted(fields - known):
            raise UsageError(
                f"the pattern {pattern!r} has a field {{{unknown[0]}}}; known are {', '.join(sorted(known))}"
            )
        stem, ext = ("", "") if input is None else _stem_and_ext(input)
        return self.folder / pattern.format(name=stem, ext=ext, date=self.day.isoformat(), job=self.job)


def _stem_and_ext(path: Path) -> tuple[str, str]:
    """``a.csv.gz`` is ``a`` and ``csv.gz``; a format that is only read has the extension of what it comes back as."""
    packed = path.suffix if path.suffix.lower() in _PACKED else ""
    inner = Path(path.name.removesuffix(packed)) if packed else Path(path.name)
    suffix = _READ_ONLY.get(inner.suffix.lower(), inner.suffix)
    return inner.stem, f"{suffix}{packed}".removeprefix(".")


def find_inputs(
    job: JobFile, folder: Path, names: OutputNames, written: Collection[str]
) -> tuple[list[JobInput], dict[str, str]]:
    """Return the files of a job in the order of its file, those of a glob or folder by name; and what is not there.

    ``written``: what the job ever wrote, which is no input whatever a glob says. The second value has a sentence for
    each name, glob or folder without a file. Raises :class:`UsageError` where two inputs would be written to one
    output.
    """
    found: dict[Path, JobInput] = {}
    missing: dict[str, str] = {}
    for part in job.inputs:
        try:
            named = [path for path in _expand(folder, part.path) if str(path) not in written]
        except InputError as error:
            missing[part.path] = str(error)
            continue
        outputs = {names.fill(job.output.path, path).resolve() for path in named}
        for path in named:
            if path not in outputs and path not in found:
                found[path] = _job_input(job, names, path, part)
    _refuse_one_output(found.values())
    return list(found.values()), missing


def _job_input(job: JobFile, names: OutputNames, path: Path, part: InputPart) -> JobInput:
    output = names.fill(job.output.path, path)
    latest = names.fill(job.output.latest, path) if job.output.latest else None
    if latest is not None and latest.suffix != output.suffix:
        raise UsageError(f"{latest}: is to be a copy of {output}, so its name must end with {output.suffix!r}, too")
    return JobInput(path, part, output, latest)


def _expand(folder: Path, pattern: str) -> list[Path]:
    place = folder / Path(pattern).expanduser()
    if place.is_dir():
        paths = [path for path in place.iterdir() if _is_table(path)]
    elif has_magic(pattern):
        base = Path(place.anchor)
        paths = list(base.glob(str(place.relative_to(base))))
    elif place.is_file():
        return [place.resolve()]
    else:
        raise InputError(f"{place}: does not exist; check `path` of the job file's inputs")
    files = sorted(path.resolve() for path in paths if path.is_file() and not path.name.startswith((".", "~$")))
    if not files:
        raise InputError(f"{place}: no file is there; check `path` of the job file's inputs")
    return files


def _is_table(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return bool(suffixes) and (suffixes[-1] if suffixes[-1] not in _PACKED else "".join(suffixes[-2:-1])) in _SUFFIXES


def _refuse_one_output(inputs: Collection[JobInput]) -> None:
    taken: dict[Path, Path] = {}
    for one in inputs:
        for output in filter(None, (one.output, one.latest)):
            other = taken.setdefault(output.resolve(), one.path)
            if other != one.path or output.resolve() == one.path:
                raise UsageError(
                    f"{output}: would be written from {one.path} and is {other}'s; put {{name}} into the pattern"
                )


def fingerprint(job: JobFile, one: JobInput, folder: Path) -> str:
    """Return what the answers of an input depend on, as one text: its content, the options, and all reference files.

    Reference files count by size and time of change.
    """
    digest = hashlib.sha256(sha256_of(one.path).encode())
    parts = (one.part, job.engine, job.status, job.reference, job.output, job.changes.key, job.lang, __version__)
    digest.update(msgspec.json.encode(parts))
    digest.update(resolve_model(_path(folder, job.reference.model)).version.encode())
    for path in _reference_files(job, folder):
        about = path.stat()
        digest.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _reference_files(job: JobFile, folder: Path) -> Iterator[Path]:
    for name in (job.reference.registry, job.reference.gazetteer):
        if name is not None and (path := folder / name).exists():
            yield path
    labels = LabelStore(_path(folder, job.reference.labels)).folder
    yield from sorted(labels.glob("*")) if labels.is_dir() else ()


def _path(folder: Path, name: str | None) -> Path | None:
    return None if name is None else folder / Path(name).expanduser()
