"""The job file: a TOML file that says what is enriched, how, and what is told. Errors name the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from bansong.errors import Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.options import EngineName, StatusSource
from bansong.run.changes import CHANGES, Change
from bansong.scheduling.job_file_errors import explain_field, explain_syntax, explain_value, line_of
from bansong.scheduling.output_names import check_pattern
from bansong.schema import Lang
from bansong.translation import current_language, gettext

JOB_FILE_UNREADABLE: Final = Problem(
    "jobs.job_file_unreadable", "{path}: cannot be read: {strerror}; make one with `bansong run --init`"
)
JOB_FILE_NOT_UTF8: Final = Problem("jobs.job_file_not_utf8", "{path}: is not UTF-8: {error}; save it as UTF-8")

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Days = Annotated[float, msgspec.Meta(ge=0)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Mode = Annotated[str, msgspec.Meta(pattern="^0?[0-7]{3}$")]
_KeyColumn = Literal["b_no", "name", "address", "zipcode"]
_FILE_NAME: Final = r"""^[^\s/\\:*?"<>|]{1,64}$"""
_Variable = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the job file; a key that is not one of its fields is refused."""


class ColumnsPart(_Part, frozen=True):
    """``columns`` of an input: the header, or headers that are joined, of each role."""

    b_no: str | tuple[_Text, ...] | None = None
    name: str | tuple[_Text, ...] | None = None
    address: str | tuple[_Text, ...] | None = None
    zipcode: str | tuple[_Text, ...] | None = None
    confirmed: str | tuple[_Text, ...] | None = None

    def by_role(self) -> dict[str, str | list[str]]:
        """Return the roles that have a column."""
        roles = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in roles if value is not None}


class InputPart(_Part, frozen=True):
    """``[[inputs]]``: a file, a glob or a folder, and how its files are read; see :func:`bansong.enrich`."""

    path: _Text
    sheet: str | tuple[_Text, ...] | None = None
    encoding: str | None = None
    json_path: str | None = None
    has_header: bool = True
    delimiter: str | None = None
    columns: ColumnsPart = ColumnsPart()
    force: bool = False


class EnginePart(_Part, frozen=True):
    """``[engine]``: who answers, and what it may spend; see :class:`bansong.ServiceOptions`."""

    name: EngineName = "local"
    base_url: str | None = None
    key_env: _Variable | None = None
    key_file: str | None = None
    ledger: str | None = None
    max_age: _Days | None = None
    budget: _Count | None = None
    priority: str | None = None
    buy_suspect: bool | None = None
    rate: _Positive | None = None
    concurrency: Annotated[int, msgspec.Meta(ge=1)] | None = None
    offline: bool | None = None
    paid: bool | None = None


class StatusPart(_Part, frozen=True):
    """``[status]``: whether the tax authority is asked; see :class:`bansong.StatusOptions`."""

    source: StatusSource = "auto"
    max_age: _Days = 30.0
    budget: _Count | None = None
    store: str | None = None
    key_file: str | None = None


class ReferencePart(_Part, frozen=True):
    """``[reference]``: registry, gazetteer, scorecard and label store."""

    registry: str | None = None
    gazetteer: str | None = None
    model: str | None = None
    labels: str | None = None


class OutputPart(_Part, frozen=True):
    """``[output]``: names of what is written.

    ``{name}`` is the input's name, ``{ext}`` its extension, ``{folder}`` its folder below what ``path`` names,
    ``{date}`` the day in Korea, ``{job}`` the job's name.
    """

    path: _Text = "{name}.enriched.{ext}"
    latest: _Text | None = None
    changes: _Text | None = None
    mode: _Mode = "0600"
    encoding: str | None = None
    select: tuple[str, ...] | None = None
    prefix: str = ""
    summary: bool = False
    with_outcomes: bool = False
    headers: Lang | None = None


class ChangePart(_Part, frozen=True):
    """``[changes]``: by which columns a row is known again, and what counts as a change."""

    key: Annotated[tuple[_KeyColumn, ...], msgspec.Meta(min_length=1)] = ("b_no", "name", "address")
    kinds: tuple[Change, ...] = CHANGES


class NotificationPart(_Part, frozen=True):
    """``[notify]``: who is told, and when: of changes only, of every run, or of failures only."""

    when: Literal["changes", "always", "failure"] = "changes"
    kinds: tuple[Change, ...] = ("closed", "suspended", "reopened", "risk_up")
    webhook_env: _Variable | None = None
    command: tuple[_Text, ...] = ()
    file: str | None = None


class RunPart(_Part, frozen=True):
    """``[run]``: how long a run may take, and how long its traces are kept."""

    deadline: _Text | None = None
    skip_unchanged_days: _Days = 7.0
    keep_runs: Annotated[int, msgspec.Meta(ge=1)] = 400
    keep_outputs_days: Annotated[float, msgspec.Meta(ge=1)] | None = None
    metrics: str | None = None


class JobFile(_Part, frozen=True):
    """A job file.

    Paths in it are taken from the folder in which the file lies; keys, and URLs that are secrets, are named by the
    environment variable that holds them.
    """

    inputs: Annotated[tuple[InputPart, ...], msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(pattern=_FILE_NAME)] | None = None
    lang: Lang | None = None
    engine: EnginePart = EnginePart()
    status: StatusPart = StatusPart()
    reference: ReferencePart = ReferencePart()
    output: OutputPart = OutputPart()
    changes: ChangePart = ChangePart()
    notify: NotificationPart = NotificationPart()
    run: RunPart = RunPart()


_TEMPLATES: Final[Mapping[Lang, str]] = {"en": "job_template.toml", "ko": "job_template.ko.toml"}

_HEAD: Final = re.compile(r"\[+(?P<table>\w+)\]+ +# (?P<said>.*)")
_FIELD: Final = re.compile(r"(?:# )?(?P<field>\w+) = .+? +# (?P<said>.*)")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def job_template() -> str:
    """Return a job file with every field and what it means in the current language: what ``run --init`` writes."""
    name = _TEMPLATES[current_language()]
    return resources.files("bansong.scheduling").joinpath(name).read_text(encoding="utf-8")


def load_job_file(path: str | Path) -> JobFile:
    """Read a job file; raise :class:`UsageError` with file, line, what is wrong, and the value."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise UsageError(JOB_FILE_UNREADABLE, path=path, strerror=describe_os_error(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(JOB_FILE_NOT_UTF8, path=path, error=error) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(explain_syntax(path, text, error)) from None
    try:
        job = msgspec.convert(values, JobFile)
    except msgspec.ValidationError as error:
        raise UsageError(explain_value(path, text, values, JobFile, str(error))) from None
    for table, field, check in _checks(job):
        try:
            check()
        except ValueError as error:
            raise UsageError(
                explain_field(path, line_of(text, [table, field]), f"{table}.{field}", str(error))
            ) from None
    return job


def _checks(job: JobFile) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """What the type of a field does not say: table, field, and what raises ValueError for a value that cannot be."""
    yield "run", "deadline", partial(parse_duration, job.run.deadline)
    for field, of_input in (("path", True), ("latest", True), ("changes", False)):
        if (pattern := getattr(job.output, field)) is not None:
            yield "output", field, partial(check_pattern, pattern, of_input=of_input)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, for editors that complete and check it; it says what the template says."""
    schema = msgspec.json.schema(JobFile)
    tables = schema["$defs"]
    top = tables["JobFile"]
    top["description"] = gettext("A job of bansong: what is verified, how, and who is told.")
    for table, field, said in _described_fields(job_template()):
        place = tables[_table_of(top["properties"][table])] if table else top
        if field:
            place = place["properties"][field]
        place["description"] = said
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _table_of(field: Mapping[str, Any]) -> str:
    """Return the name of the table that a field of the schema refers to."""
    reference: str = field.get("items", field)["$ref"]
    return reference.rpartition("/")[2]


def _described_fields(template: str) -> Iterator[tuple[str, str, str]]:
    """Return (table, field, what it means) of the template's lines; without a field, what the table means."""
    table = ""
    for line in template.splitlines():
        if head := _HEAD.match(line):
            table = head["table"]
            yield table, "", head["said"]
        elif field := _FIELD.match(line):
            yield table, field["field"], field["said"]


def parse_duration(text: str | None) -> float | None:
    """Return seconds: ``2h``, ``90m``, ``1h30m``, ``45s``; raise ValueError for anything else.

    >>> parse_duration("1h30m"), parse_duration(None)
    (5400.0, None)
    """
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(gettext("{text!r} is no duration; give it like 2h, 90m or 1h30m", text=text))
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(hours * 3600 + minutes * 60 + seconds)
